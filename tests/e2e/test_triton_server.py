"""A real Triton Inference Server, over HTTP: every token counted, errors and a dead
server told."""

from __future__ import annotations

import json
import os
import signal
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Json, Loadstone, Outcome, eventually, read_records, spawn
from engines.triton_server import TritonServer, missing, triton

pytestmark = pytest.mark.slow

INPUT = 32
OUTPUT = 120
"""More than the model's answers have by themselves: its minimum must be said, and heeded."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    if (reason := missing()) is not None:
        pytest.skip(reason)
    with triton(tmp_path_factory.mktemp("triton") / "server.log") as server:
        yield server


def bench(loadstone: Loadstone, server: TritonServer, *more: object) -> Outcome:
    return loadstone("bench", server.http, "--endpoint", "triton", *more, "--json")


def measured(outcome: Outcome, cell: int) -> list[Json]:
    return [
        record
        for record in outcome.records
        if record["cell"] == cell and record["phase"] == "measure"
    ]


def test_every_token_is_counted(loadstone: Loadstone, server: TritonServer) -> None:
    shape = ("--input", INPUT, "--output", OUTPUT, "--concurrency", "1,4", "--requests", "6")
    outcome = bench(loadstone, server, *shape)
    assert outcome.code == 0, outcome
    target = outcome.document["target"]
    assert (target["engine"], target["model"], target["endpoint"]) == (
        "Triton",
        "ensemble",
        "triton",
    )
    for number, cell in enumerate(outcome.document["cells"]):
        assert cell["requests"]["ok"] == cell["requests"]["sent"] == 6, cell
        records = measured(outcome, number)
        assert {record["input_tokens"] for record in records} == {INPUT}
        assert {record["output_tokens"] for record in records} == {OUTPUT}
        assert {record["token_source"] for record in records} == {"running usage"}
        assert all(record["tokens"] == list(range(1, OUTPUT + 1)) for record in records)
        assert cell["metrics"]["output_tokens"] == 6 * OUTPUT
        assert cell["client"]["clock"] == "kernel"
        assert all(record["receive_lag_s"] is not None for record in records)


def test_the_first_token_takes_four_times_as_long(
    loadstone: Loadstone, server: TritonServer
) -> None:
    shape = ("--input", INPUT, "--output", OUTPUT, "--concurrency", "1", "--requests", "6")
    records = measured(bench(loadstone, server, *shape), 0)
    ttft = statistics.median(r["arrival_s"][0] - r["sent_s"] for r in records)
    tpot = statistics.median(
        (r["arrival_s"][-1] - r["arrival_s"][0]) / (OUTPUT - 1) for r in records
    )
    assert 2 <= ttft / tpot <= 8, (ttft, tpot)


def test_an_open_loop_and_sampling(loadstone: Loadstone, server: TritonServer) -> None:
    shape = ("--input", INPUT, "--output", 20, "--rate", "10", "--requests", "10")
    outcome = bench(loadstone, server, *shape, "--temperature", "0.5", "--top-p", "0.9")
    assert outcome.code == 0, outcome
    assert outcome.cell["requests"]["ok"] == 10


def test_answers_in_one_piece(loadstone: Loadstone, server: TritonServer) -> None:
    shape = ("--input", INPUT, "--output", 20, "--concurrency", "2", "--requests", "4")
    outcome = bench(loadstone, server, *shape, "--no-stream")
    assert outcome.code == 0, outcome
    assert {
        (record["output_tokens"], len(record["arrival_s"])) for record in measured(outcome, 0)
    } == {(20, 1)}


def test_an_error_in_mid_stream_keeps_what_came(
    loadstone: Loadstone, server: TritonServer, tmp_path: Path
) -> None:
    file = tmp_path / "chats.json"
    prompts = ("fail after 3", "time goes by")
    file.write_text(json.dumps([
        {"conversations": [{"from": "human", "value": prompt}, {"from": "gpt", "value": "-"}]} for prompt in prompts
    ]))  # fmt: skip
    shape = (
        "--dataset",
        file,
        "--output",
        9,
        "--concurrency",
        "2",
        "--requests",
        "6",
        "--warmup",
        "0",
    )
    outcome = bench(loadstone, server, *shape)
    ends = {
        (record["status"], record["error"], len(record["arrival_s"])) for record in outcome.records
    }
    assert ends == {("ok", None, 9), ("error", "error in the stream: this prompt was to fail", 3)}


def test_a_server_killed_in_mid_stream(tmp_path: Path) -> None:
    if (reason := missing()) is not None:
        pytest.skip(reason)
    runs = tmp_path / "runs"
    shape = (
        "--input",
        INPUT,
        "--output",
        5000,
        "--concurrency",
        "4",
        "--requests",
        "4",
        "--warmup",
        "0",
        "--json",
    )
    with (
        triton(tmp_path / "server.log") as server,
        spawn(runs, "bench", server.http, "--endpoint", "triton", *shape) as process,
    ):
        # Something of an answer is on the disk.
        assert eventually(
            lambda: any(file.stat().st_size > 8192 for file in runs.glob("*/journal-*.arrow"))
        )
        os.kill(server.process.pid, signal.SIGKILL)
        out, err = process.communicate(timeout=40)
    assert process.returncode == 0, err
    document = json.loads(out)
    assert document["cells"][0]["requests"]["error"] == 4
    records = read_records(Path(document["run_dir"]))
    assert all(record["error"] and record["error"].isprintable() for record in records)
    assert all(len(record["arrival_s"]) < 5000 for record in records)
    assert any(record["arrival_s"] for record in records)
