"""What is said while a run goes on: whole lines into logs, a bar on a terminal that leaves nothing
behind."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import QUICK, Loadstone, ScriptedServer, command, whole
from loadstone.commands.progress import Display
from loadstone.core.host import Host
from loadstone.core.record import CellInfo, RunInfo
from loadstone.measure.client.protocol import Progress
from loadstone.measure.simulated_server import TimingServer
from loadstone.runs.cells import Event
from loadstone.workload.options import Options
from loadstone.workload.planning import plan_of


def on_a_terminal(out: Path, *arguments: object, columns: int = 120) -> str:
    """What `loadstone …` writes to a terminal."""
    main, side = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "30"}
    words = [sys.executable, "-m", "loadstone.commands", *command(out, arguments)]
    with subprocess.Popen(words, stdin=side, stdout=side, stderr=side, env=environment) as process:
        os.close(side)
        data = b""
        while True:
            try:
                piece = os.read(main, 65536)
            except OSError:  # nobody holds the other side any more
                break
            if not piece:
                break
            data += piece
        process.wait()
    os.close(main)
    return data.decode()


def screen(text: str) -> list[str]:
    """The lines that stay, for the control sequences that rich uses: erase line, up, carriage
    return, colours."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b.|[^\x1b]", text):
        if part == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif part == "\r":
            column = 0
        elif part.endswith("K") and part.startswith("\x1b["):
            lines[row] = "" if part == "\x1b[2K" else lines[row][:column]
        elif part.endswith("A") and part.startswith("\x1b["):
            row -= int(part[2:-1] or 1)
        elif not part.startswith("\x1b"):
            line = lines[row].ljust(column)
            lines[row] = line[:column] + part + line[column + 1 :]
            column += 1
    return [line.rstrip() for line in lines]


@pytest.fixture
def written(tmp_path: Path, timing: TimingServer) -> str:
    return on_a_terminal(
        tmp_path, "bench", timing.url, *QUICK, "--concurrency", "1,2", "--requests", "40"
    )


@pytest.mark.process
def test_the_bar_leaves_nothing_behind(written: str) -> None:
    assert "under way" in written  # there was a bar
    kept = "\n".join(screen(written))
    assert "under way" not in kept
    assert "━" not in kept
    assert "TTFT p50" in kept
    assert written.count("\x1b[?25l") == written.count("\x1b[?25h")  # the cursor shows again
    assert not re.search(r"\n\n\n", kept.partition(" conc")[0])  # a table too wide has parts


@pytest.mark.process
def test_latencies_and_the_time_left_are_whole_on_a_narrow_terminal(
    tmp_path: Path, timing: TimingServer
) -> None:
    arguments = (
        "bench",
        timing.url,
        "--input",
        "8",
        "--output",
        "8",
        "--ramp",
        "20:40:2s",
        "--burstiness",
        "0.5",
    )
    written = on_a_terminal(tmp_path, *arguments, "--warmup", "2", columns=80)
    frames = [
        line for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written).splitlines() if "━" in line
    ]
    assert frames
    assert all(re.search(r" (--:--|\d?\d:\d\d)\s*$", line) for line in frames)
    shown = " ".join(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written).split())
    assert re.search(r"TTFT ⌀ \d[\d.]* ms, TPOT ⌀ \d[\d.]* ms", shown)


@pytest.mark.process
def test_failures_are_told_cell_by_cell(loadstone: Loadstone) -> None:
    with ScriptedServer(lambda ask, send: send(whole("500 Oh", b""))) as server:
        outcome = loadstone("bench", server.url, *QUICK, "--concurrency", "1,2", "--requests", "3")
    lines = [re.sub(r"in [0-9.]+ s", "in … s", line) for line in outcome.err.splitlines()]
    assert lines[1:] == [
        "concurrency 1 (1/2)",
        "concurrency 1: 3 requests in … s, 3 failed",
        "concurrency 2 (2/2)",
        "concurrency 2: 3 requests in … s, 3 failed",
    ]


@pytest.mark.process
def test_failures_of_the_warm_up_are_told_to_be_among_them(loadstone: Loadstone) -> None:
    with ScriptedServer(lambda ask, send: send(whole("500 Oh", b""))) as server:
        outcome = loadstone(
            "bench",
            server.url,
            *QUICK[:4],
            "--warmup",
            "1",
            "--concurrency",
            "1",
            "--requests",
            "2",
            "--json",
        )
    assert outcome.cell["requests"]["error"] == 2
    lines = [re.sub(r"in [0-9.]+ s", "in … s", line) for line in outcome.err.splitlines()]
    assert (
        lines[-1]
        == "concurrency 1: 3 requests, 1 of them warm-up, in … s, 3 failed, warm-up included"
    )
    assert "1 load, 3 requests (1 of them warm-up) · " in lines[0]


@pytest.mark.process
def test_bounds_are_announced_with_their_units(loadstone: Loadstone, timing: TimingServer) -> None:
    asked = ("--slo", "ttft<5,tpot_p99<30ms")
    told = loadstone(
        "bench", timing.url, *QUICK, "--concurrency", "1", "--requests", "2", *asked
    ).err
    assert " · SLO ttft < 5.00 s, tpot_p99 < 30.0 ms · " in told


def test_the_rate_of_a_trace_is_told_in_three_digits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "timestamp_s,input_tokens,output_tokens\n" + "".join(f"{i / 30},8,2\n" for i in range(30))
    )
    with Display() as display:
        display(
            Event(
                kind="cell",
                cell=0,
                plan=plan_of(Options.read(trace=trace, time_scale=[0.931], warmup=0)),
            )
        )
        display(
            Event(
                kind="cell",
                cell=0,
                plan=plan_of(Options.read(rate=[2.0625], requests=[4], warmup=0)),
            )
        )
    traced, asked = capsys.readouterr().err.splitlines()
    assert re.search(r", 32\.2 req/s \(1/1\)$", traced)
    assert asked == "2.0625 req/s (1/1)"


@pytest.mark.process
def test_a_plan_is_announced_by_the_name_that_it_keeps(
    loadstone: Loadstone, timing: TimingServer
) -> None:
    told = loadstone("bench", timing.url, *QUICK, "--concurrency", "1", "--requests", "2", "--json")
    assert f" · plan {told.document['plan_id'][:6]} seed 0 · 1 load, 2 requests · " in told.err
    by_time = loadstone(
        "bench", timing.url, *QUICK, "--concurrency", "1", "--duration", "200ms", "--json"
    )
    assert " · seed 0 · 1 load · " in by_time.err
    assert " plan " not in by_time.err


@pytest.mark.parametrize(
    ("options", "told", "means"),
    [
        (
            Options.read(concurrency=[2], requests=[2000], warmup=0),
            "1,500 of 2,000 done, 2 under way, ",
            "TTFT ⌀ 30.0 ms, TPOT ⌀ 5.00 ms, 1,500 tokens/s, ",
        ),
        (
            Options.read(concurrency=[2], duration_s=5.0, warmup=0),
            "1,500 done, 2 under way, ",
            "TTFT ⌀ 30.0 ms, TPOT ⌀ 5.00 ms, 1,500 tokens/s, ",
        ),
        (
            Options.read(concurrency=[2], duration_s=5.0, warmup=0, endpoint="embeddings"),
            "1,500 done, 2 under way, ",
            "E2E ⌀ 30.0 ms, ",
        ),
    ],
)
def test_a_line_of_progress(
    options: Options, told: str, means: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, clock = plan_of(options), iter([0.0, 20.0])
    counts = {"issued": 1502, "ended": 1500, "failed": 3, "tokens": 30_000, "active": 2}
    latencies = {"ttfts": 1000, "ttft_s": 30.0}
    if "TPOT" in means:
        latencies |= {"tpots": 500, "tpot_s": 2.5}
    said = Progress(**counts, **latencies, last_error="HTTP 500: Oh")
    with pytest.MonkeyPatch.context() as patch, Display() as display:
        patch.setattr("loadstone.commands.progress.time.monotonic", lambda: next(clock))
        display(Event(kind="cell", cell=0, plan=plan))
        display(Event(kind="progress", cell=0, plan=plan, progress=said))
    line = capsys.readouterr().err.splitlines()[-1]
    assert line == f"{told}{means}75.0 req/s, 3 failed: HTTP 500: Oh"


def test_counts_begin_anew_with_each_run_of_a_search(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of(Options.read(concurrency=[2], requests=[20], warmup=0))
    info = RunInfo(
        run_id="r", source="measured", created="", command=[], loadstone="", host=Host(), plan_id="", seed=0,
        salt=None, cells=[CellInfo(load=plan.cells[0])],
    )  # fmt: skip
    with Display() as display:
        for ended in (15, 6):
            display(Event(kind="attached", plan=plan, info=info))
            display(Event(kind="cell", cell=0, plan=plan))
            display(
                Event(
                    kind="progress",
                    cell=0,
                    plan=plan,
                    progress=Progress(issued=20, ended=ended, failed=0, active=2, tokens=0),
                )
            )
            display(Event(kind="cell_end", cell=0, plan=plan))
    ends = [line for line in capsys.readouterr().err.splitlines() if " requests in " in line]
    assert [line.split(" requests")[0] for line in ends] == [
        "concurrency 2: 15",
        "concurrency 2: 6",
    ]
