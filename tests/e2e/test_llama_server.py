"""A real engine: every request, token and time of a run against what llama.cpp's own server
says."""

import json
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Json, Loadstone, Outcome, eventually, processes_about
from loadstone.core.errors import InputError
from loadstone.measure.engines import llama_cpp
from loadstone.measure.engines.process import ServerProcess

INPUT, OUTPUT = 64, 48
SHAPE = ("--input", INPUT, "--output", OUTPUT, "--json")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    try:
        _ = llama_cpp.find() or llama_cpp.fetch()
    except InputError as error:
        pytest.skip(str(error))
    log = tmp_path_factory.mktemp("llama") / "server.log"
    with llama_cpp.launch(slots=8, context_tokens=512, log_path=log) as server:
        yield server


def check_counts(outcome: Outcome, sent: list[int]) -> None:
    """All of the plan is in the records, and token counts are exact: as asked, as the server says,
    as summed up."""
    assert outcome.code == 0
    cells = outcome.document["cells"]
    assert [cell["requests"]["ok"] for cell in cells] == sent
    for number, cell in enumerate(cells):
        records = [r for r in outcome.records if r["cell"] == number and r["phase"] == "measure"]
        assert len(records) == cell["requests"]["sent"] == sent[number]
        assert {record["input_tokens"] for record in records} == {INPUT}
        assert {record["output_tokens"] for record in records} == {OUTPUT}
        assert cell["metrics"]["output_tokens"] == OUTPUT * sent[number]
        assert cell["metrics"]["input_tokens"] == INPUT * sent[number]
        # What every prompt begins with, a chat template and a first word (in bytes), is found in
        # the cache.
        assert max(record["cached_tokens"] for record in records) <= 8
        assert {record["finish_reason"] for record in records} == {"length"}


@pytest.mark.quiet
def test_a_closed_loop(loadstone: Loadstone, engine: ServerProcess) -> None:
    outcome = loadstone("bench", engine.url, *SHAPE, "--concurrency", "1,2,4,8", "--requests", "16")
    check_counts(outcome, [16] * 4)
    # As many again as were under way came before, and count for nothing.
    assert [
        sum(r["phase"] == "warmup" and r["cell"] == n for r in outcome.records) for n in range(4)
    ] == [1, 2, 4, 8]
    assert not outcome.spoilt_by, [cell["verdict"] for cell in outcome.document["cells"]]
    alone = [r for r in outcome.records if r["cell"] == 0 and r["phase"] == "measure"]
    ttft = [r["arrival_s"][0] - r["sent_s"] for r in alone]
    prefill = [r["server_prefill_s"] for r in alone]
    # The first token cannot come before its prompt has been read; and where nobody waits it comes
    # soon after.
    assert all(measured >= own for measured, own in zip(ttft, prefill, strict=True))
    assert statistics.median(ttft) <= 1.5 * statistics.median(prefill) + statistics.median(
        tpots(alone)
    )
    # llama.cpp's predicted_ms begins when the first token has been sampled, so that it covers the
    # intervals between tokens: n − 1 of them. Events that waited for the client carry the stamp of
    # the newest.
    in_time = [r for r in alone if r["receive_lag_s"] < r["server_decode_s"] / (OUTPUT - 1)]
    if len(in_time) < 4:
        pytest.skip("others use this machine's processors: the client read late")
    ratios = [
        own / (r["server_decode_s"] / (OUTPUT - 1))
        for own, r in zip(tpots(in_time), in_time, strict=True)
    ]
    assert 0.95 <= statistics.median(ratios) <= 1.05, ratios


def tpots(records: list[Json]) -> list[float]:
    return [
        (r["arrival_s"][-1] - r["arrival_s"][0]) / (r["tokens"][-1] - r["tokens"][0])
        for r in records
    ]


def test_an_open_loop(loadstone: Loadstone, engine: ServerProcess) -> None:
    outcome = loadstone("bench", engine.url, *SHAPE, "--rate", "4,8", "--requests", "8")
    check_counts(outcome, [8, 8])
    assert all(record["sent_s"] >= record["intended_s"] for record in outcome.records)


@pytest.mark.quiet
def test_the_chat_endpoint_has_prompts_of_exact_length(
    loadstone: Loadstone, engine: ServerProcess
) -> None:
    outcome = loadstone(
        "bench", engine.url, *SHAPE, "--endpoint", "chat", "--concurrency", "2", "--requests", "6"
    )
    check_counts(outcome, [6])
    assert outcome.document["target"]["prompt_kind"] == "text"
    assert not outcome.spoilt_by


@pytest.mark.slow
@pytest.mark.quiet
def test_one_plan_by_three_apis_has_its_counts_and_times(
    loadstone: Loadstone, engine: ServerProcess
) -> None:
    shape = ("--input", INPUT, "--output", OUTPUT, "--concurrency", "1", "--requests", "12")
    apis = ("chat", "messages", "responses")
    ttfts: dict[str, list[float]] = {api: [] for api in apis}
    for api in 3 * apis:  # in turn
        outcome = loadstone("bench", engine.url, *shape, "--endpoint", api, "--json")
        assert outcome.code == 0, outcome
        assert outcome.cell["requests"]["ok"] == 12
        for record in outcome.records:
            assert (record["input_tokens"], record["output_tokens"]) == (INPUT, OUTPUT)
            assert len(record["arrival_s"]) == OUTPUT
        ttfts[api].append(outcome.cell["metrics"]["ttft_s"]["p50"])
    for api in apis[1:]:
        ratios = [mine / chat for mine, chat in zip(ttfts[api], ttfts["chat"], strict=True)]
        assert 0.7 <= statistics.median(ratios) <= 1.4, ratios


def test_histories_with_tools_are_taken_by_each_api(
    loadstone: Loadstone, engine: ServerProcess, tmp_path: Path
) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "out"},
        {"role": "assistant", "content": "well"},
        {"role": "user", "content": "more"},
        {"role": "assistant", "content": "no"},
    ]
    file = tmp_path / "session.jsonl"
    file.write_text(json.dumps({"messages": messages}) + "\n")
    for api in ("chat", "messages", "responses"):
        outcome = loadstone(
            "bench", engine.url, "--endpoint", api, "--agents", file, "--concurrency", "1",
            "--output", 4, "--json",
        )  # fmt: skip
        assert outcome.code == 0, outcome
        assert {record["status"] for record in outcome.records} <= {"ok", "short"}, api
        assert len(outcome.records) >= 3


def test_a_dataset(loadstone: Loadstone, engine: ServerProcess, tmp_path: Path) -> None:
    file = tmp_path / "chats.json"
    words = ("time", "people", "water")
    chats = [
        {
            "conversations": [
                {"from": "human", "value": f"tell of {w}"},
                {"from": "gpt", "value": "-"},
            ]
        }
        for w in words
    ]
    file.write_text(json.dumps(chats))
    arguments = (
        "--dataset",
        file,
        "--output",
        "9",
        "--concurrency",
        "2",
        "--requests",
        "6",
        "--json",
    )
    outcome = loadstone("bench", engine.url, *arguments)
    assert outcome.cell["requests"]["ok"] == 6
    assert outcome.cell["metrics"]["output_tokens"] == 54


def test_an_engine_of_our_own_comes_and_goes(
    loadstone: Loadstone, engine: ServerProcess, tmp_path: Path
) -> None:
    outcome = loadstone(
        "bench", "--engine", "llama.cpp", *SHAPE, "--concurrency", "2", "--requests", "4"
    )
    check_counts(outcome, [4])
    assert outcome.document["target"]["engine"] == "llama.cpp"
    assert (outcome.folder / "engine.log").stat().st_size > 0
    port = outcome.document["target"]["url"].rpartition(":")[2]
    assert eventually(lambda: not processes_about(f"--port\0{port}\0"))
