"""Whatever ends a run before its time: what was measured is there afterwards, and nobody is left
behind."""

import contextlib
import errno
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Loadstone, eventually, gone, kill, processes_about, read_records, spawn
from loadstone.core import run_folder
from loadstone.measure.simulated_server import FixedLatency, TimingServer, start
from loadstone.runs import bench, simulate
from loadstone.workload.options import SimulateOptions
from tiers import further

LONG = (
    "--input",
    "8",
    "--output",
    "400",
    "--concurrency",
    "3",
    "--requests",
    "60",
    "--warmup",
    "0",
    "--json",
)
SHORT = (
    "--input",
    "8",
    "--output",
    "10",
    "--concurrency",
    "3",
    "--requests",
    "6000",
    "--warmup",
    "0",
    "--json",
)


@pytest.fixture(scope="module")
def server() -> Iterator[TimingServer]:
    with start(FixedLatency(ttft_s=0.02, itl_s=0.005)) as running:
        yield running


def children_of(process: subprocess.Popen[str]) -> list[int]:
    return list(
        map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
    )


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    return [
        pid
        for pid in children_of(process)
        if b"loadstone.measure.client.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


def under_way(process: subprocess.Popen[str], out: Path) -> tuple[Path, list[int]]:
    """The run's folder and its workers, once something has been written to a journal."""

    def started() -> bool:
        return any(path.stat().st_size > 4096 for path in out.glob("*/journal-*.arrow"))

    assert eventually(started), process.poll()
    (folder,) = out.iterdir()
    return folder, workers_of(process)


def test_ctrl_c_in_a_terminal_reaches_neither_workers_nor_the_server(tmp_path: Path) -> None:
    """They are in the terminal's session, where the scheduler counts them together, but not in its
    foreground."""
    main, side = pty.openpty()
    take_it = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
    words = [
        sys.executable,
        "-m",
        "loadstone.commands",
        "bench",
        "--sim",
        "ttft=20ms,itl=5ms",
        *LONG,
        "--out",
        tmp_path,
    ]

    with subprocess.Popen(
        [sys.executable, "-c", take_it, *words],
        stdin=side, stdout=subprocess.PIPE, stderr=side, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            folder, (worker,) = under_way(process, tmp_path)
            (server,) = (pid for pid in children_of(process) if pid != worker)
            assert os.getsid(worker) == os.getsid(server) == process.pid
            assert [os.getpgid(worker), os.getpgid(server)] == [worker, server]
            os.write(main, b"\x03")
            assert process.wait(30) == 130
        finally:
            process.kill()
    os.close(main)
    os.close(side)
    assert json.loads((folder / "run.json").read_bytes())["status"] == "interrupted"
    statuses = [record["status"] for record in read_records(folder)]
    assert set(statuses) <= {"ok", "cancelled"}  # an error, had the server ended
    assert statuses.count("cancelled") == 3


@pytest.mark.parametrize("after_s", [0.0, 0.3, 1.1])
def test_kill_9_of_everything(
    loadstone: Loadstone, server: TimingServer, tmp_path: Path, after_s: float
) -> None:
    out = tmp_path / "runs"
    with spawn(out, "bench", server.url, *SHORT, "--workers", "2") as process:
        folder, workers = under_way(process, out)
        time.sleep(after_s)
        kill(process.pid, *workers)
    assert len(workers) == 2
    before = json.loads((folder / "run.json").read_bytes())
    assert before["status"] == "running"
    outcome = loadstone("recover", folder, "--json")
    assert outcome.code == 0
    assert outcome.document["status"] == "interrupted"
    assert "interrupted" in outcome.findings
    assert "user_clock" not in outcome.findings
    records = read_records(folder)
    assert records
    for worker in (0, 1):
        # Of what it sent nothing is missing but the last moments: the numbers have no holes.
        numbers = sorted(
            int(r["request_id"].split("-")[1]) for r in records if r["worker"] == worker
        )
        known = numbers[0] if numbers else 0
        missing = set(range(known, max(numbers, default=known), 2)) - set(numbers)
        assert len(missing) <= 3, missing
    assert {record["status"] for record in records} <= {"ok", "cancelled"}
    assert loadstone("recover", folder, "--json").document == outcome.document
    assert not list(folder.glob("journal-*"))
    assert not list(folder.glob(".reserve-*"))


def test_cells_that_never_began_are_told_and_stay_planned(
    loadstone: Loadstone, server: TimingServer, tmp_path: Path
) -> None:
    out = tmp_path / "runs"
    with spawn(out, "bench", server.url, *SHORT, "--concurrency", "3,5,7") as process:
        folder, workers = under_way(process, out)
        planned = run_folder.read_plan(folder)
        kill(process.pid, *workers)
    document = loadstone("recover", folder, "--json").document
    assert len(document["cells"]) == 1
    (finding,) = document["findings"]
    assert finding["kind"] == "cells_not_begun"
    assert "2 of 3 planned loads never began (concurrency 5, concurrency 7)" in finding["evidence"]
    assert run_folder.read_plan(folder).plan_id == planned.plan_id
    assert "cells_not_begun" in loadstone("show", folder).out


def test_streams_under_way_come_back_with_what_had_arrived(
    loadstone: Loadstone, server: TimingServer, tmp_path: Path
) -> None:
    out = tmp_path / "runs"
    with spawn(out, "bench", server.url, *LONG) as process:
        folder, workers = under_way(process, out)
        time.sleep(1.2)
        kill(process.pid, *workers)
    assert loadstone("recover", folder, "--json").code == 0
    cancelled = [record for record in read_records(folder) if record["status"] == "cancelled"]
    assert cancelled
    for record in cancelled:
        assert len(record["arrival_s"]) == len(record["tokens"]) > 10
        assert "interrupted" in record["error"]


def test_workers_save_and_go_when_their_owner_is_killed(
    loadstone: Loadstone, server: TimingServer, tmp_path: Path
) -> None:
    out = tmp_path / "runs"
    with spawn(out, "bench", server.url, *LONG, "--workers", "2") as process:
        folder, workers = under_way(process, out)
        kill(process.pid)
        assert eventually(lambda: all(map(gone, workers)))
    assert loadstone("recover", folder, "--json").code == 0
    records = read_records(folder)
    # They had time to write what was under way.
    assert sum(record["status"] == "cancelled" for record in records) == 3
    assert all(record["arrival_s"] for record in records)


@contextlib.contextmanager
def at_hang_up(handler: signal.Handlers) -> Iterator[None]:
    """What a terminal's end does to processes that are started here: nohup's, or not, whatever
    these tests have."""
    before = signal.signal(signal.SIGHUP, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    "signals",
    [
        [signal.SIGINT] * 2,
        [signal.SIGTERM],
        [signal.SIGHUP],
        *further([signal.SIGINT], [signal.SIGQUIT], [signal.SIGUSR1]),
        *further([signal.SIGALRM], [signal.SIGXCPU]),
    ],
)
def test_interrupted(server: TimingServer, tmp_path: Path, signals: list[signal.Signals]) -> None:
    out = tmp_path / "runs"
    with (
        at_hang_up(signal.SIG_DFL),
        spawn(out, "bench", server.url, *LONG, "--workers", "2") as process,
    ):
        folder, workers = under_way(process, out)
        for number in signals:
            process.send_signal(number)
        said, err = process.communicate(timeout=50)
    assert process.returncode == 130
    assert err.splitlines()[-1] == f"interrupted; what was measured is in {folder}"
    assert "Traceback" not in err
    document = json.loads(said)
    assert document["status"] == "interrupted"
    assert document["cells"][0]["requests"]["cancelled"] == 3
    assert json.loads((folder / "run.json").read_bytes())["status"] == "interrupted"
    assert len(read_records(folder)) == document["cells"][0]["requests"]["sent"]
    assert all(map(gone, workers))
    assert eventually(lambda: not processes_about(str(tmp_path)))


def test_a_signal_to_every_process_at_once(server: TimingServer, tmp_path: Path) -> None:
    with spawn(tmp_path, "bench", server.url, *LONG, "--workers", "2") as process:
        folder, workers = under_way(process, tmp_path)
        for pid in (*workers, process.pid):
            os.kill(pid, signal.SIGTERM)
        said, err = process.communicate(timeout=50)
    assert process.returncode == 130
    assert err.splitlines()[-1] == f"interrupted; what was measured is in {folder}"
    assert json.loads(said)["cells"][0]["requests"]["cancelled"] == 3
    # Ended by a worker that was told to, and not what the journal of one that died leaves of them.
    told = {record["error"] for record in read_records(folder) if record["status"] == "cancelled"}
    assert run_folder.INTERRUPTED not in told


def test_a_terminal_that_is_closed_ends_no_run_under_nohup(
    server: TimingServer, tmp_path: Path
) -> None:
    command = ("bench", server.url, *LONG, "--requests", "6")
    with at_hang_up(signal.SIG_IGN), spawn(tmp_path, *command) as process:
        under_way(process, tmp_path)
        process.send_signal(signal.SIGHUP)
        said, _ = process.communicate(timeout=50)
    assert process.returncode == 0
    assert json.loads(said)["cells"][0]["requests"]["ok"] == 6


def test_nobody_hears_what_is_said_of_the_run(server: TimingServer, tmp_path: Path) -> None:
    with spawn(tmp_path, "bench", server.url, *LONG, "--requests", "6") as unheard:
        assert unheard.stderr is not None
        unheard.stderr.close()  # as of a log's reader that is gone
        said = unheard.stdout.read() if unheard.stdout is not None else ""
    assert unheard.returncode == 0
    document = json.loads(said)
    assert (document["status"], document["cells"][0]["requests"]["ok"]) == ("done", 6)


def test_what_is_temporary_goes_with_a_signal(tmp_path: Path) -> None:
    with spawn(
        tmp_path, "selftest", "--quick", env={**os.environ, "TMPDIR": str(tmp_path)}
    ) as process:
        assert eventually(
            lambda: list(tmp_path.glob("loadstone-*"))
        )  # before a run begins that counts signals
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=50)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "loadstone: interrupted"
    assert not list(tmp_path.iterdir())


def test_impatience_cuts_nothing_of_what_is_said(server: TimingServer, tmp_path: Path) -> None:
    with spawn(tmp_path, "bench", server.url, *LONG) as process:
        folder, _ = under_way(process, tmp_path)
        while process.poll() is None:  # the document is small enough to wait in the pipe
            process.send_signal(signal.SIGINT)
            time.sleep(0.01)
        said, err = process.communicate(timeout=50)
    assert process.returncode == 130
    assert err.splitlines()[-1] == f"interrupted; what was measured is in {folder}"
    assert json.loads(said)["status"] == "interrupted"


def test_interrupted_before_anything_was_measured(tmp_path: Path) -> None:
    command = ("bench", "--sim", "ttft=30ms,itl=5ms", "--concurrency", "1", "--requests", "100")
    with spawn(tmp_path, *command) as process:
        # Before that it imports: test_interrupted_while_the_commands_are_imported.
        assert eventually(
            lambda: Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        )
        for _ in range(10):
            # Python drops an interrupt that meets it in a callback, as while it imports on a slow
            # machine.
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                _, err = process.communicate(timeout=5)
                break
    assert process.returncode == 130
    assert any(line.startswith("loadstone: interrupted") for line in err.splitlines()), err
    assert "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_while_the_commands_are_imported(tmp_path: Path, number: int) -> None:
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("these tests run under nohup, and what they start ignores the signal, too")
    (tmp_path / "typer.py").write_text(f"import signal\nsignal.raise_signal({int(number)})\n")
    found = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-m", "loadstone", "bench", "--help"]
    ended = subprocess.run(command, env=found, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (130, "loadstone: interrupted\n")


def test_the_folder_of_a_run_that_never_began_does_not_say_running(
    server: TimingServer, tmp_path: Path
) -> None:
    def on_event(event: bench.Event) -> None:
        if event.kind == "attached":
            signal.raise_signal(signal.SIGINT)

    options = bench.Options.read(
        url=server.url, input="8", output="4", concurrency=[1], requests=[4], out=tmp_path
    )
    with pytest.raises(KeyboardInterrupt):
        bench.bench(options, on_event)
    (folder,) = tmp_path.iterdir()
    info = json.loads((folder / "run.json").read_bytes())
    assert (info["status"], info["error"]) == (
        "interrupted",
        "interrupted before anything was measured",
    )


def test_a_run_that_an_error_ends_does_not_say_running(
    server: TimingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    load = {"input": "8", "output": "4", "concurrency": [1], "requests": [4], "out": tmp_path}
    with pytest.raises(BlockingIOError):
        bench.bench(bench.Options.read(url=server.url, **load), fails)
    monkeypatch.setattr(simulate, "cell_uncertainties", fails)
    with pytest.raises(BlockingIOError):
        simulate.simulate(SimulateOptions.read(deployment="llama-3.1-8b@1xh100", **load))
    told = [json.loads((folder / "run.json").read_bytes()) for folder in tmp_path.iterdir()]
    assert [info["status"] for info in told] == ["failed", "failed"]
    assert all("Resource temporarily unavailable" in info["error"] for info in told)


def test_an_interrupted_simulation_keeps_the_cells_that_were_done(
    loadstone: Loadstone, tmp_path: Path
) -> None:
    asked = [
        "--input",
        "64",
        "--output",
        "64",
        "--concurrency",
        "1,2,4,8",
        "--requests",
        "60000",
        "--draws",
        "0",
    ]
    asked += ["--out", str(tmp_path), "--json"]
    with spawn(tmp_path, "simulate", "llama-3.1-8b@1xh100", *asked) as process:
        assert eventually(
            lambda: any(len(log.read_text().splitlines()) > 1 for log in tmp_path.glob("*/log.txt"))
        )
        process.send_signal(signal.SIGINT)
        said, err = process.communicate(timeout=50)
    assert process.returncode == 130, err
    (folder,) = tmp_path.iterdir()
    assert err.splitlines()[-1] == f"interrupted; what was simulated is in {folder}"
    document = json.loads(said)
    assert (
        document["status"]
        == json.loads((folder / "run.json").read_bytes())["status"]
        == "interrupted"
    )
    assert 1 <= len(document["cells"]) < 4
    assert {cell["requests"]["ok"] for cell in document["cells"]} == {60000}
    assert "cells_not_begun" in {finding["kind"] for finding in document["findings"]}
    assert not list(folder.glob("*.part"))
    assert loadstone("recover", folder).code == 0


def test_a_simulation_that_never_began_does_not_say_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        simulate, "cell_uncertainties", lambda *_, **__: signal.raise_signal(signal.SIGINT)
    )
    with pytest.raises(KeyboardInterrupt):
        simulate.simulate(
            SimulateOptions.read(
                deployment="llama-3.1-8b@1xh100", concurrency=[1], requests=[4], out=tmp_path
            )
        )
    (folder,) = tmp_path.iterdir()
    info = json.loads((folder / "run.json").read_bytes())
    assert (info["status"], info["error"]) == (
        "interrupted",
        "interrupted before anything was simulated",
    )


def test_a_worker_that_dies(server: TimingServer, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    with spawn(out, "bench", server.url, *SHORT, "--workers", "2") as process:
        folder, workers = under_way(process, out)
        assert eventually(
            lambda: all(path.stat().st_size > 8192 for path in folder.glob("journal-*.arrow"))
        )
        kill(workers[0])
        said, err = process.communicate(timeout=50)
    assert process.returncode == 1
    info = json.loads((folder / "run.json").read_bytes())
    assert info["status"] == "failed"
    assert "worker 0 died (signal 9)" in info["error"]
    assert "worker 0 died (signal 9)" in err
    document = json.loads(said)
    assert document["cells"][0]["requests"]["ok"] > 0
    assert "interrupted" in {
        finding["kind"] for finding in document["cells"][0]["verdict"]["findings"]
    }
    assert {record["worker"] for record in read_records(folder)} == {0, 1}
    assert all(map(gone, workers))


def test_a_process_forked_off_in_a_run_keeps_no_worker(tmp_path: Path) -> None:
    """It has the workers' pipes open, as one of `multiprocessing` that another thread of a notebook
    starts."""
    code = """
import os, sys, time
from pathlib import Path
from loadstone.runs import bench
from loadstone.workload.options import Options
forked = []
def fork(event):
    if event.kind == "cell":
        forked.append(os.fork())
        if not forked[0]:
            os.close(1)
            time.sleep(600)
document = bench.bench(Options.read(
    sim="ttft=5ms,itl=1ms", input="8", output="4", concurrency=[2], requests=[8], out=Path(sys.argv[1])
), fork)
os.kill(forked[0], 9)
document = document.document()
print(document["status"], document["cells"][0]["requests"]["ok"])
"""
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            said, _ = process.communicate(
                timeout=50
            )  # a worker that does not go is killed after a minute
        finally:
            kill(*processes_about(str(tmp_path)))
    assert said.split() == ["done", "8"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    try:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=72m", "none", str(folder)],
            capture_output=True,
            check=False,
        )
    except OSError as error:
        pytest.skip(f"no mount here: {error}")
    if mounted.returncode:
        pytest.skip(f"mounting is not permitted: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_too_small_from_the_start(
    loadstone: Loadstone, server: TimingServer, small_disk: Path
) -> None:
    (small_disk / "ballast").write_bytes(bytes(20_000_000))
    line = loadstone("bench", server.url, *SHORT, "--out", small_disk).line()
    assert "MB free, and the run may need" in line
    assert [path.name for path in small_disk.iterdir()] == ["ballast"]


def test_a_disk_that_fills_up(loadstone: Loadstone, server: TimingServer, small_disk: Path) -> None:
    with spawn(small_disk, "bench", server.url, *SHORT) as process:
        assert eventually(
            lambda: any(p.stat().st_size > 4096 for p in small_disk.glob("*/journal-*.arrow"))
        )
        (folder,) = small_disk.iterdir()
        with (small_disk / "ballast").open("wb") as ballast:
            try:
                while True:
                    ballast.write(bytes(65536))
                    ballast.flush()
            except OSError:
                pass
        said, err = process.communicate(timeout=50)
    assert process.returncode in (1, 2)
    assert "disk full" in err
    assert "Traceback" not in err
    os.unlink(small_disk / "ballast")  # noqa: PTH108  (its file object went with an error)
    outcome = loadstone("recover", folder, "--json")
    assert outcome.code == 0
    assert outcome.document["cells"][0]["requests"]["ok"] > 0
    assert not said or json.loads(said)["status"] == "failed"
