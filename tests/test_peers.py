"""benchmarks/peers.py: what other tools' result files say, and what a tree of processes costs."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from conftest import eventually, gone, script
from loadstone.core.errors import InputError
from loadstone.measure.simulated_server import MODEL, FixedLatency, start

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT.parent / "shared/data/results/peers"
BURN = "import time\nwhile time.process_time() < {cpu_s}: pass\n"
"""A program that takes so many CPU seconds, its own start included, however busy the machine."""


peers = script(ROOT / "benchmarks/peers.py")


def real(path: str) -> Any:
    if not (RESULTS / path).is_file():
        pytest.skip("shared/data/results/peers is not beside this checkout")
    return json.loads((RESULTS / path).read_text())


# --- result files ---------------------------------------------------------------------------------


def test_reads_loadstone() -> None:
    times = {"mean": 0.25, "p50": 0.125, "p99": 0.5}
    metrics = {"output_tokens": 300, "output_tokens_per_s": 60.0}
    metrics |= {"ttft_s": times, "tpot_s": {**times, "p50": 1.0}, "itl_s": {**times, "p50": 2.0}}
    reading = peers.read_loadstone(
        {"cells": [{"requests": {"ok": 3, "sent": 4}, "metrics": metrics}]}
    )
    assert reading == peers.Reading(
        3, 300, 60.0, 250.0, (125.0, 500.0), (1000.0, 500.0), (2000.0, 500.0)
    )


def test_reads_vllm() -> None:
    result = {
        "completed": 3,
        "failed": 1,
        "total_output_tokens": 300,
        "output_throughput": 60.0,
        "mean_ttft_ms": 5.0,
    }
    for number, name in enumerate(("ttft", "tpot", "itl")):
        result |= {f"p50_{name}_ms": 10.0 + number, f"p99_{name}_ms": 20.0 + number}
    assert peers.read_vllm(result) == peers.Reading(
        3, 300, 60.0, 5.0, (10.0, 20.0), (11.0, 21.0), (12.0, 22.0)
    )


def test_reads_aiperf() -> None:
    result: dict[str, Any] = {
        "request_count": {"unit": "requests", "avg": 3.0},
        "total_output_tokens": {"unit": "tokens", "avg": 300.0},
        "output_token_throughput": {"unit": "tokens/sec", "avg": 60.0},
        "time_to_first_token": {"unit": "ms", "avg": 5.0, "p50": 10.0, "p99": 20.0},
        "inter_token_latency": {"unit": "ms", "avg": 1.0, "p50": 11.0, "p99": 21.0},
        "inter_chunk_latency": {"unit": "ms", "avg": 1.0, "p50": 12.0, "p99": 22.0},
    }
    assert peers.read_aiperf(result) == peers.Reading(
        3, 300, 60.0, 5.0, (10.0, 20.0), (11.0, 21.0), (12.0, 22.0)
    )


def test_reads_guidellm() -> None:
    def ok(**values: Any) -> dict[str, Any]:
        return {"successful": values, "errored": None}

    metrics = {
        "request_totals": {"successful": 3, "errored": 1, "incomplete": 0, "total": 4},
        "output_token_count": ok(mean=100.0, total_sum=300.0),
        "output_tokens_per_second": ok(mean=60.0, median=50.0),
        "time_to_first_token_ms": ok(mean=5.0, percentiles={"p50": 10.0, "p99": 20.0}),
        "inter_token_latency_ms": ok(mean=1.0, percentiles={"p50": 11.0, "p99": 21.0}),
    }
    reading = peers.read_guidellm({"benchmarks": [{"metrics": metrics}]})
    assert reading == peers.Reading(3, 300, 60.0, 5.0, (10.0, 20.0), (11.0, 21.0), None)


# The figures expected are those the tools printed on their consoles, saved beside the files.


def test_reads_a_real_vllm_result() -> None:
    reading = peers.read_vllm(real("vllm_bench/vllm_bench_serve.json"))
    assert (reading.requests, reading.output_tokens) == (24, 768)
    assert reading.output_tokens_per_s == pytest.approx(673.76, abs=0.005)
    assert reading.ttft_mean_ms == pytest.approx(29.59, abs=0.005)
    assert reading.ttft_ms == pytest.approx((30.04, 42.67), abs=0.005)
    assert reading.tpot_ms == pytest.approx((4.93, 6.59), abs=0.005)
    assert reading.itl_ms == pytest.approx((4.78, 15.41), abs=0.005)


def test_reads_a_real_aiperf_result() -> None:
    reading = peers.read_aiperf(real("aiperf/artifacts/profile_export_aiperf.json"))
    assert (reading.requests, reading.output_tokens) == (
        24,
        850,
    )  # it tokenized the text again: the server sent 768
    assert reading.output_tokens_per_s == pytest.approx(599.30, abs=0.005)
    assert reading.ttft_mean_ms == pytest.approx(48.90, abs=0.005)
    assert reading.ttft_ms == pytest.approx((37.64, 118.99), abs=0.005)
    assert reading.tpot_ms == pytest.approx((4.57, 9.83), abs=0.005)
    assert reading.itl_ms == pytest.approx((4.88, 20.03), abs=0.005)


def test_reads_a_real_guidellm_result() -> None:
    reading = peers.read_guidellm(real("guidellm/guidellm.json"))
    assert (reading.requests, reading.output_tokens) == (24, 768)
    assert reading.output_tokens_per_s == pytest.approx(546.7, abs=0.05)
    assert reading.ttft_mean_ms == pytest.approx(49.3, abs=0.05)
    assert reading.ttft_ms.p50 == pytest.approx(42.4, abs=0.05)
    assert reading.ttft_ms.p99 == pytest.approx(94.2, abs=0.05)
    assert reading.tpot_ms.p50 == pytest.approx(5.8, abs=0.05)


# --- CPU of a tree of processes -------------------------------------------------------------------


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.mark.process
def test_counts_children_and_orphans(tmp_path: Path) -> None:
    """Of a program, of its child, of a grandchild, and of a process that outlives them in a session
    of its own."""
    burn = BURN.format(cpu_s=0.3)
    daemon = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {burn!r}], start_new_session=True)\n"
    child = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}])\n{burn}"
    code = f"{daemon}subprocess.run([sys.executable, '-c', {child!r}])\n{burn}"
    spent = peers.run_tree(python(code), tmp_path)
    assert spent.exit_code == 0
    assert spent.wall_s > 0
    assert 4 * 0.3 <= spent.cpu_s < 5 * 0.3 * 1.5


@pytest.mark.process
def test_does_not_count_itself(tmp_path: Path) -> None:
    spent = peers.run_tree(["/bin/true"], tmp_path)
    assert spent.exit_code == 0
    assert spent.cpu_s < 0.05  # the guard's own start takes several times that


@pytest.mark.process
def test_keeps_output_and_exit_code(tmp_path: Path) -> None:
    spent = peers.run_tree(
        python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"), tmp_path
    )
    assert spent.exit_code == 3
    assert (tmp_path / "stdout").read_text() == "out\n"
    assert peers.last_words(tmp_path) == "err"


@pytest.mark.process
def test_stops_what_outstays_its_command(tmp_path: Path) -> None:
    sleeper = (
        "import subprocess; print(subprocess.Popen(['sleep', '1000'], start_new_session=True).pid)"
    )
    began = time.monotonic()
    spent = peers.run_tree(python(sleeper), tmp_path, linger_s=1)
    assert time.monotonic() - began < 60
    assert spent.exit_code == 0
    assert not Path("/proc", (tmp_path / "stdout").read_text().strip()).exists()


@pytest.mark.process
def test_dies_with_its_owner(tmp_path: Path) -> None:
    sleeper = python("import os, time; print(os.getpid(), flush=True); time.sleep(1000)")
    load = f"import runpy, pathlib\npeers = runpy.run_path({str(ROOT / 'benchmarks/peers.py')!r})\n"
    code = f"{load}peers['run_tree']({sleeper!r}, pathlib.Path({str(tmp_path)!r}))"
    with subprocess.Popen(python(code)) as owner:
        said = tmp_path / "stdout"
        assert eventually(lambda: said.is_file() and said.read_text().endswith("\n"))
        owner.kill()
    pid = said.read_text().strip()
    assert eventually(lambda: gone(int(pid)))


@pytest.mark.process
def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nosuchprogram cannot be run"):
        peers.run_tree(["nosuchprogram"], tmp_path)


# --- truth ----------------------------------------------------------------------------------------


@pytest.mark.process
def test_the_tokenizer_knows_every_word_of_an_answer(tmp_path: Path) -> None:
    peers.write_tokenizer(tmp_path)
    vocabulary = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]
    with start(FixedLatency(ttft_s=0.0, itl_s=0.0)) as server:
        connection = http.client.HTTPConnection(urlsplit(server.url).netloc)
        body = json.dumps({"model": MODEL, "prompt": "a", "max_tokens": 1500})
        connection.request("POST", "/v1/completions", body)
        text = json.loads(connection.getresponse().read())["choices"][0]["text"]
        connection.close()
    assert len(text.split()) == 1500
    assert set(text.split()) <= set(vocabulary)


@pytest.mark.process
@pytest.mark.quiet
def test_the_witness_hears_how_late_the_server_is() -> None:
    """By a law that is 10 ms a token quicker than the server's, each write is 10 ms later than the
    one before."""
    with start(FixedLatency(ttft_s=0.01, itl_s=0.02)) as server:
        with peers.witness(server.url, FixedLatency(ttft_s=0.01, itl_s=0.01)) as late_ms:
            time.sleep(1)
        assert len(late_ms) >= 10
        each_ms = (late_ms[-1] - late_ms[0]) / (len(late_ms) - 1)
    assert each_ms == pytest.approx(10, rel=0.2)


def row(**values: float | None) -> dict[str, Any]:
    known = [
        "wall_s",
        "cpu_s",
        "start_up_cpu_s",
        "cpu_us_per_token",
        "net_cpu_us_per_token",
        "requests",
    ]
    known += ["output_tokens", "output_tokens_per_s", "ttft_mean_error_ms", "server_late_p99_ms"]
    known += [
        f"{name}_{point}_error_ms" for name in ("ttft", "tpot", "itl") for point in ("p50", "p99")
    ]
    return {**dict.fromkeys(known, 1.0), **values}


def test_renders_ratios_and_errors() -> None:
    other = row(
        cpu_us_per_token=30.0,
        net_cpu_us_per_token=9.0,
        ttft_p99_error_ms=-2.5,
        itl_p50_error_ms=None,
    )
    document = {
        "law": "ttft=0.05s",
        "law_tokens_per_s": 9615.0,
        "work": {"concurrency": 1, "requests": 2, "input_tokens": 64, "output_tokens": 4},
        "rounds": 1,
        "tools": {
            "loadstone": row(cpu_us_per_token=2.0),
            "guidellm": {**other, "itl_p99_error_ms": None},
        },
    }
    lines = [line for line in peers.render(document).splitlines() if line.startswith("| GuideLLM")]
    cost, truth = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    assert cost[-4:] == ["30.0", "15.0", "9.0", "9.0"]
    assert truth[-4:] == ["+1.00 / -2.50", "+1.00 / +1.00", "", "1.00"]


def test_median_of_rounds() -> None:
    assert peers.median([{"a": 1, "b": None}, {"a": 5, "b": None}, {"a": 2, "b": None}]) == {
        "a": 2,
        "b": None,
    }
    assert peers.errors("itl", None, 0.01) == {"itl_p50_error_ms": None, "itl_p99_error_ms": None}
    assert peers.errors("itl", peers.Spread(10.5, 9.0), 0.01) == {
        "itl_p50_error_ms": 0.5,
        "itl_p99_error_ms": -1.0,
    }


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--tools", "loadstone,wrk"], "wrk"),
        (["--tokens", "100", "--concurrency", "2"], "--tokens"),
        (["--output", "1"], "--output"),
        (["--rounds", "0"], "--rounds"),
        (["--law", "ttft=soon"], "--law"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str],
    word: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["peers.py", *arguments])
    with pytest.raises(SystemExit) as stop:
        peers.main()
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert word in said
    assert said.count("\n") == 1
