"""`loadstone bench` against the timing server, and against one that writes down what it is sent."""

import itertools
import json
import re
import time
from pathlib import Path

import pytest

from conftest import (
    FAST,
    QUICK,
    SSE,
    Ask,
    Loadstone,
    ScriptedServer,
    Send,
    answer,
    chunk,
    event,
    spawn,
    token,
)
from loadstone.measure.simulated_server import TimingServer, start
from loadstone.runs import bench

SMALL = ("--input", "16", "--output", "6", "--json")


def test_the_document_that_scripts_rely_on(loadstone: Loadstone, timing: TimingServer) -> None:
    outcome = loadstone(
        "bench", timing.url, *SMALL, "--concurrency", "1,4", "--requests", "20", "--warmup", "3"
    )
    assert outcome.code == 0
    document = outcome.document
    assert document["schema"] == 1
    assert document["source"] == "measured"
    assert document["target"]["url"] == timing.url
    assert document["run_dir"].endswith(document["run_id"])
    assert [cell["load"]["value"] for cell in document["cells"]] == [1, 4]
    for cell in document["cells"]:
        assert cell["load"]["kind"] == "concurrency"
        assert cell["requests"] == {
            "sent": 20,
            "ok": 20,
            "error": 0,
            "timeout": 0,
            "cancelled": 0,
            "short": 0,
        }
        assert cell["duration_s"] > 0
        metrics = cell["metrics"]
        for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s", "ttft_intended_s", "e2e_intended_s"):
            assert {"mean", "p50", "p90", "p95", "p99"} <= metrics[name].keys()
        for name in (
            "output_tokens_per_s",
            "total_tokens_per_s",
            "requests_per_s",
            "steady",
            "achieved_rate_per_s",
        ):
            assert name in metrics
        assert metrics["output_tokens"] == 120
        assert metrics["input_tokens"] == 320
        assert cell["client"].keys() >= {"send_lag_p99_s", "receive_lag_p99_s", "clock"}
        assert cell["verdict"].keys() == {"trusted", "findings"}
        # The law holds from below; from above only as far as this machine is quiet.
        assert metrics["ttft_s"]["min" if "min" in metrics["ttft_s"] else "p50"] >= FAST.ttft_s
        assert (
            metrics["e2e_s"]["min" if "min" in metrics["e2e_s"] else "p50"]
            >= FAST.ttft_s + 5 * FAST.itl_s
        )
    # Only the measured phase counts; the rest is in the records all the same.
    assert [record["phase"] for record in outcome.records].count("warmup") == 6
    folder = {path.name for path in outcome.folder.iterdir()}
    assert folder == {
        "run.json", "plan.parquet", "records.parquet", "server.parquet", "summary.json", "log.txt"
    }  # fmt: skip
    assert json.loads((outcome.folder / "summary.json").read_bytes()) == document
    info = json.loads((outcome.folder / "run.json").read_bytes())
    assert info["status"] == "done"
    assert info["command"][:2] == ["loadstone", "bench"]
    # Stdout is the document and nothing else; the log holds no terminal's control characters.
    assert outcome.out.count("\n") == 1
    assert re.fullmatch(r"[^\x00-\x09\x0b-\x1f\x7f]*", outcome.err)
    assert "concurrency 4 (2/2)" in outcome.err
    assert (outcome.folder / "log.txt").read_text() == outcome.err


@pytest.mark.parametrize("burstiness", ["1", "inf", "0.5"])
def test_an_open_loop_keeps_its_times(
    loadstone: Loadstone, timing: TimingServer, burstiness: str
) -> None:
    arguments = (
        "--rate",
        "40,80",
        "--requests-per-rate",
        "0.5",
        "--burstiness",
        burstiness,
        "--warmup",
        "2",
    )
    outcome = loadstone("bench", timing.url, *SMALL, *arguments)
    cells = outcome.document["cells"]
    assert [cell["requests"]["ok"] for cell in cells] == [20, 40]
    assert {cell["load"]["process"] for cell in cells} == {
        {"1": "poisson", "inf": "constant", "0.5": "gamma"}[burstiness]
    }
    for number in range(2):
        records = [record for record in outcome.records if record["cell"] == number]
        intended = [
            record["intended_s"] for record in sorted(records, key=lambda r: r["intended_s"])
        ]
        assert all(record["sent_s"] >= record["intended_s"] for record in records)
        gaps = [later - earlier for earlier, later in itertools.pairwise(intended)]
        if burstiness == "inf":
            assert max(gaps) - min(gaps) < 1e-6
        else:
            assert len({round(gap, 6) for gap in gaps}) > 5


def test_bursts_are_sent_at_once(loadstone: Loadstone, timing: TimingServer) -> None:
    outcome = loadstone("bench", timing.url, *SMALL, "--rate", "inf", "--requests", "1,12")
    cells = outcome.document["cells"]
    assert [(cell["load"]["kind"], cell["load"]["value"]) for cell in cells] == [
        ("burst", 1),
        ("burst", 12),
    ]
    assert [cell["requests"]["ok"] for cell in cells] == [1, 12]
    burst = [r for r in outcome.records if r["cell"] == 1 and r["phase"] == "measure"]
    assert len({record["intended_s"] for record in burst}) == 1
    # All are sent before the first has ended.
    assert max(record["sent_s"] for record in burst) < min(record["end_s"] for record in burst)


def test_waiting_for_a_place_counts_from_the_intended_time(
    loadstone: Loadstone, timing: TimingServer
) -> None:
    outcome = loadstone(
        "bench", timing.url, *SMALL, "--rate", "inf", "--requests", "8", "--max-concurrency", "2"
    )
    records = [record for record in outcome.records if record["phase"] == "measure"]
    for record in records:
        under_way = sum(other["sent_s"] <= record["sent_s"] < other["end_s"] for other in records)
        assert under_way <= 2
    metrics = outcome.cell["metrics"]
    assert metrics["e2e_intended_s"]["p99"] > 3 * metrics["e2e_s"]["p50"]
    assert "sends_late" not in outcome.findings


def test_a_closed_loop_for_a_time(loadstone: Loadstone, timing: TimingServer) -> None:
    outcome = loadstone(
        "bench", timing.url, *SMALL, "--concurrency", "2", "--duration", "600ms", "--warmup", "2"
    )
    requests = outcome.cell["requests"]
    assert requests["ok"] == requests["sent"] > 4
    # What was issued is what the folder's plan holds, and its id is the document's.
    again = loadstone("bench", timing.url, "--json", "--plan", outcome.folder)
    assert again.code == 0
    assert (
        again.document["plan_id"] == outcome.document["plan_id"] or again.cell["requests"]["ok"] > 0
    )


@pytest.mark.parametrize("load", [("--concurrency", "2"), ("--rate", "20", "--burstiness", "inf")])
def test_what_does_not_end_within_the_grace_is_cancelled(
    loadstone: Loadstone, load: tuple[str, ...]
) -> None:
    def some(ask: Ask, send: Send) -> None:
        if ask.number < 2:
            answer(ask, send)
            return
        send(SSE)
        while True:
            send(chunk(token()))
            time.sleep(0.05)

    limits = ("--duration", "300ms", "--grace", "300ms", "--warmup", "0", "--timeout-total", "4s")
    with ScriptedServer(some) as server:
        outcome = loadstone("bench", server.url, *SMALL, *load, *limits)
    requests = outcome.cell["requests"]
    assert requests["ok"] == 2
    assert requests["cancelled"] == requests["sent"] - 2 >= 2
    cancelled = [record for record in outcome.records if record["status"] == "cancelled"]
    assert all(record["arrival_s"] and "grace" in record["error"] for record in cancelled)


def test_an_open_loop_for_a_time(loadstone: Loadstone, timing: TimingServer) -> None:
    arguments = ("--rate", "50", "--burstiness", "inf", "--duration", "500ms", "--warmup", "0")
    outcome = loadstone("bench", timing.url, *SMALL, *arguments)
    assert outcome.cell["requests"]["ok"] in (24, 25, 26)


@pytest.mark.parametrize("load", [("--concurrency", "4"), ("--rate", "100"), ("--rate", "inf")])
def test_two_workers_share_the_work(
    loadstone: Loadstone, timing: TimingServer, load: tuple[str, str]
) -> None:
    outcome = loadstone(
        "bench", timing.url, *SMALL, *load, "--requests", "20", "--workers", "2", "--warmup", "2"
    )
    records = outcome.records
    assert sorted(int(record["request_id"].split("-")[1]) for record in records) == list(range(22))
    shares = [[record["worker"] for record in records].count(worker) for worker in (0, 1)]
    assert min(shares) >= 8
    assert outcome.cell["requests"]["ok"] == 20


def test_the_same_seed_is_the_same_plan(loadstone: Loadstone, timing: TimingServer) -> None:
    run = (
        "bench",
        timing.url,
        "--json",
        "--input",
        "uniform:4:9",
        "--output",
        "3",
        "--rate",
        "50",
        "--requests",
        "5",
    )
    first, same, other = (loadstone(*run, "--seed", seed).document for seed in (0, 0, 1))
    assert first["plan_id"] == same["plan_id"] != other["plan_id"]


def prompts(server: ScriptedServer) -> dict[str, bytes]:
    """Body by request, the run's own tag left out."""
    return {ask.headers["x-request-id"].split("-", 1)[1]: ask.body for ask in server.measured}


def test_a_plan_and_its_salt_give_the_same_bytes_again(loadstone: Loadstone) -> None:
    with ScriptedServer() as first:
        outcome = loadstone(
            "bench", first.url, *SMALL, "--concurrency", "2", "--requests", "6", "--prefix", "4"
        )
    salt = json.loads((outcome.folder / "run.json").read_bytes())["salt"]
    replay = ("--plan", outcome.folder, "--json")
    with ScriptedServer() as second:
        again = loadstone("bench", second.url, *replay, "--salt", salt)
    with ScriptedServer() as third:
        loadstone("bench", third.url, *replay)
    assert again.document["plan_id"] == outcome.document["plan_id"]
    assert len(prompts(first)) == 8
    assert prompts(second) == prompts(first)
    assert prompts(third).keys() == prompts(first).keys()
    assert not set(prompts(third).values()) & set(prompts(first).values())


def test_prefixes_are_shared_within_their_groups_and_nowhere_else(loadstone: Loadstone) -> None:
    arguments = ("--prefix", "10", "--prefix-groups", "2", "--concurrency", "2", "--requests", "16")
    with ScriptedServer() as server:
        outcome = loadstone("bench", server.url, *SMALL, *arguments)
    sent = [ask.json["prompt"] for ask in server.measured]
    assert all(len(prompt) == 16 for prompt in sent)
    assert len({tuple(prompt[:10]) for prompt in sent}) == 2
    assert len({tuple(prompt[10:]) for prompt in sent}) == len(sent)
    assert not outcome.spoilt_by


def test_slo_and_strict(loadstone: Loadstone, timing: TimingServer) -> None:
    run = ("bench", timing.url, *SMALL, "--concurrency", "1", "--requests", "4")
    met = loadstone(*run, "--slo", "ttft<10s,tpot_p99<10s", "--strict")
    assert met.code == (not met.trusted)  # on a busy machine it may not be
    assert met.cell["metrics"]["attainment"] == 1
    assert met.cell["metrics"]["goodput_per_s"] > 0
    assert [(bound["bound"], bound["met"]) for bound in met.cell["slo"]] == [
        ("ttft<10s", True),
        ("tpot_p99<10s", True),
    ]
    missed = ("--slo", "ttft_p99<1ms")
    assert loadstone(*run, *missed).code == 0
    outcome = loadstone(*run, *missed, "--strict")
    assert outcome.code == 1
    assert [bound["met"] for bound in outcome.cell["slo"]] == [False]
    outcome = loadstone(*run, "--slo", "ttft<1us", "--strict")
    assert (outcome.code, outcome.cell["metrics"]["attainment"]) == (1, 0)


def test_strict_wants_every_cell_trusted(loadstone: Loadstone) -> None:
    with start(FAST, usage="none") as server:
        run = ("bench", server.url, *SMALL, "--concurrency", "1", "--requests", "2")
        assert loadstone(*run).code == 0
        outcome = loadstone(*run, "--strict")
    assert outcome.code == 1
    assert outcome.findings >= {"no_usage"}
    assert {record["token_source"] for record in outcome.records} == {"pieces"}


@pytest.mark.parametrize(
    ("form", "source"),
    [("final", "final usage"), ("running", "running usage"), ("unasked", "final usage")],
)
def test_wherever_the_usage_stands_the_tokens_are_counted(
    loadstone: Loadstone, form: str, source: str
) -> None:
    with start(FAST, usage=form) as server:  # type: ignore[arg-type]
        outcome = loadstone("bench", server.url, *SMALL, "--concurrency", "2", "--requests", "6")
    assert outcome.cell["metrics"]["output_tokens"] == 36
    assert {record["token_source"] for record in outcome.records} == {source}
    assert not outcome.spoilt_by


def test_events_of_several_tokens_are_told_and_spoil_nothing(loadstone: Loadstone) -> None:
    with start(FAST, tokens_per_event=3) as server:
        outcome = loadstone(
            "bench", server.url, *SMALL, "--concurrency", "2", "--requests", "6", "--warmup", "0"
        )
    assert outcome.findings >= {"several_tokens_an_event"}
    assert not outcome.spoilt_by
    assert outcome.cell["metrics"]["output_tokens"] == 36
    assert {tuple(record["tokens"]) for record in outcome.records} == {(1, 4, 6)}


def test_a_stream_without_done_is_whole_by_its_finish_reason(loadstone: Loadstone) -> None:
    with start(FAST, done=False) as server:
        outcome = loadstone("bench", server.url, *SMALL, "--concurrency", "2", "--requests", "6")
    assert outcome.cell["requests"]["ok"] == 6


def test_short_answers_are_a_finding(loadstone: Loadstone) -> None:
    def early(ask: Ask, send: Send) -> None:
        counts = event(
            {"choices": [], "usage": {"prompt_tokens": ask.prompt_tokens, "completion_tokens": 2}}
        )
        said = [token(), token(finish="stop"), counts, event("[DONE]")]
        send(SSE + b"".join(map(chunk, said)) + b"0\r\n\r\n")

    with ScriptedServer(early) as server:
        outcome = loadstone(
            "bench", server.url, *SMALL, "--concurrency", "1", "--requests", "3", "--warmup", "0"
        )
    assert outcome.cell["requests"]["short"] == 3
    assert outcome.findings >= {"short_outputs"}
    assert outcome.cell["metrics"]["ttft_s"]["n"] == 3


def test_uncounted_answers_that_met_their_limit_are_not_called_short(loadstone: Loadstone) -> None:
    def bundled(ask: Ask, send: Send) -> None:
        send(SSE)
        for said in (
            token(" three of them"),
            token(" and three", finish="length"),
            event("[DONE]"),
        ):
            send(chunk(said))
            time.sleep(0.005)
        send(b"0\r\n\r\n")

    with ScriptedServer(bundled) as server:
        outcome = loadstone(
            "bench", server.url, *SMALL, "--concurrency", "1", "--requests", "3", "--warmup", "0"
        )
    assert outcome.cell["requests"]["ok"] == 3
    assert outcome.spoilt_by == {"no_usage"}  # two events are counted as two tokens
    assert outcome.cell["metrics"]["output_tokens"] == 6


def test_time_to_connect_is_limited(tmp_path: Path) -> None:
    with ScriptedServer() as server:

        def on_event(event: bench.Event) -> None:
            if event.kind == "attached":
                server.stop_accepting()

        options = bench.Options.read(
            url=server.url, input="8", output="4", concurrency=[2], requests=[2], warmup=0, out=tmp_path,
            timeout_connect_s=0.5,
        )  # fmt: skip
        document = bench.bench(options, on_event).document()
    assert document["cells"][0]["requests"]["timeout"] == 2
    findings = document["cells"][0]["verdict"]["findings"]
    assert "waited 0.5 s for connecting" in findings[0]["evidence"]


def test_a_dataset(loadstone: Loadstone, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(
        "".join(json.dumps({"prompt": f"say {n}", "output_tokens": n}) + "\n" for n in (2, 3, 4))
    )
    with ScriptedServer() as server:
        outcome = loadstone(
            "bench",
            server.url,
            "--dataset",
            file,
            "--concurrency",
            "1",
            "--requests",
            "6",
            "--json",
        )
    assert outcome.cell["requests"]["ok"] == 6
    assert outcome.cell["metrics"]["output_tokens"] == 18
    sent = [ask.json["prompt"] for ask in server.measured]
    assert all(re.fullmatch(r"\[[0-9a-f]{8}\] say [234]", prompt) for prompt in sent)


def test_log_and_document_as_separate_streams_of_a_process(
    tmp_path: Path, timing: TimingServer
) -> None:
    with spawn(
        tmp_path, "bench", timing.url, *QUICK, "--concurrency", "1", "--requests", "2", "--json"
    ) as process:
        out, err = process.communicate(timeout=50)
    assert process.returncode == 0
    assert json.loads(out)["cells"][0]["requests"]["ok"] == 2
    assert "\x1b" not in err
    assert "\r" not in err


def test_without_a_load_it_is_doubled_until_throughput_stops_growing(loadstone: Loadstone) -> None:
    """A server of two slots gives no more under eight requests than under four."""
    slots = "llama-3.1-8b@1xh100/max_num_seqs=2"
    done = loadstone("bench", "--sim", slots, "--input", "16", "--output", "16", "--json")
    assert done.code == 0, done.err
    loads = [cell["load"]["value"] for cell in done.document["cells"]]
    assert loads == [1, 2, 4, 8]
    assert done.document["findings"] == []
