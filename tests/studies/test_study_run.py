"""Studies run on a real engine, llama.cpp with the small model: measured, killed, resumed, refused
twice at once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clusters import end
from conftest import Loadstone, eventually, gone
from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.studies.commands import commands_of, pools_of
from loadstone.studies.file import read_study
from loadstone.studies.journal import read_entries
from loadstone.studies.machines import make_machines
from loadstone.studies.machines.local import LocalMachine
from loadstone.studies.plan import plan_study
from loadstone.studies.status import read_status
from loadstone.studies.supervise import CUT, find_run

STUDY = """\
study: small
deployments: {engine: [llama.cpp]}
workloads:
  short: {input: 64, output: 16}
loads: {concurrency: [1, 2], requests: 4, warmup: 0}
repeats: 2
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "study.yaml"
    path.write_text(STUDY)
    return path


def out_folder(path: Path) -> Path:
    return path.parent / "out" / "small"


def start(path: Path, *words: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "loadstone",
        "study",
        "run",
        str(path),
        "--out",
        str(path.parent / "out"),
        *words,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def launches_of(run: subprocess.Popen[str], code: int = 0) -> list[Any]:
    """Wait for a run with --json; returns the launches of its document."""
    shown, told = run.communicate(timeout=180)
    assert run.returncode == code, told
    launches: list[Any] = msgspec.json.decode(shown)["launches"]
    return launches


def engines(folder: Path) -> list[int]:
    """Return the processes of engines that the journal names."""
    pids: list[int] = []
    for entry in read_entries(folder):
        processes = entry.handle.get("processes", [])
        pids += [int(pid) for pid in processes] if isinstance(processes, list) else []
    return pids


def engines_are_gone(folder: Path) -> bool:
    return eventually(lambda: all(map(gone, engines(folder))))


def count(folder: Path, event: str) -> int:
    return sum(entry.event == event for entry in read_entries(folder))


@pytest.mark.process
def test_a_study_is_measured_and_then_nothing_is_left_to_do(path: Path) -> None:
    folder = out_folder(path)
    end(start(path), 0)
    read = read_study(path)
    launches = plan_study(read)
    runs = [find_run(folder, cell) for launch in launches for cell in launch.cells]
    assert None not in runs
    status = read_status(read, launches, folder)
    assert {launch.state for launch in status.launches} == {"done"}
    again = launches_of(start(path, "--json"))
    assert [cell["run_dir"] for launch in again for cell in launch["cells"]] == [
        str(run) for run in runs
    ]
    assert count(folder, "launch") == 2
    assert all(map(gone, engines(folder)))


@pytest.mark.process
def test_a_changed_cell_alone_is_measured(path: Path) -> None:
    path.write_text(STUDY.replace("repeats: 2", "repeats: 1"))
    end(start(path), 0)
    path.write_text(STUDY.replace("repeats: 2", "repeats: 1").replace("[1, 2]", "[1, 3]"))
    end(start(path), 0)
    assert count(out_folder(path), "done") == 3


@pytest.mark.process
def test_two_at_once_are_told_apart(path: Path) -> None:
    first = start(path)
    folder = out_folder(path)
    assert eventually((folder / "journal.jsonl").exists)
    assert f"this study is still going on (process {first.pid} on " in end(start(path), 2)
    end(first, 130, signal.SIGINT)
    assert all(map(gone, engines(folder)))


@pytest.mark.process
def test_a_launch_that_fails_says_why_and_the_rest_goes_on(path: Path) -> None:
    broken = "engines: {broken: {engine: llama.cpp, program: /bin/false}}\n"
    path.write_text(
        broken
        + STUDY.replace("[llama.cpp]", "[broken, llama.cpp]").replace("repeats: 2", "repeats: 1")
    )
    failed, done = launches_of(start(path, "--json"), 1)
    assert (failed["state"], done["state"]) == ("failed", "done")
    assert "ended with exit code 1" in failed["why"]


@pytest.mark.process
def test_one_launch_serves_all_repeats_where_nothing_is_restarted(path: Path) -> None:
    path.write_text(STUDY + "restart: never\n")
    shown, told = start(path, "--json").communicate(timeout=120)
    (launch,) = msgspec.json.decode(shown)["launches"]
    assert "repeats 1 to 2" in told
    assert [(cell["repeat"], cell["state"]) for cell in launch["cells"]] == [(1, "done")] * 2 + [
        (2, "done")
    ] * 2
    assert count(out_folder(path), "ready") == 1


@pytest.mark.process
def test_a_cell_that_takes_too_long_is_ended_and_kept(path: Path) -> None:
    text = (
        STUDY.replace("requests: 4", "requests: 4000")
        .replace("[1, 2]", "[1]")
        .replace("repeats: 2", "repeats: 1")
    )
    path.write_text(text + "limits: {cell: 2s}\n")
    begun_s = time.monotonic()
    (launch,) = launches_of(start(path, "--json"))
    assert time.monotonic() - begun_s < 40
    folder = Path(launch["cells"][0]["run_dir"])
    summary = msgspec.json.decode((folder / "summary.json").read_bytes())
    assert 0 < summary["cells"][0]["requests"]["ok"] < 4000
    (ran,) = run_folder.read_info(folder).cells
    assert ran.stopped is not None
    assert ran.stopped.rule == "time"


PARALLEL = STUDY + "machines: {here: {local: true, parallel: 2}}\n"


def at_once(folder: Path) -> int:
    """Return the most launches that ever ran at a time."""
    under_way, most = set(), 0
    for entry in read_entries(folder):
        if entry.event == "launch":
            under_way.add(entry.launch)
        elif entry.event == "end":
            under_way.discard(entry.launch)
        most = max(most, len(under_way))
    return most


@pytest.mark.process
def test_launches_run_at_the_same_time_and_one_that_fails_stops_no_other(path: Path) -> None:
    broken = "engines: {broken: {engine: llama.cpp, program: /bin/false}}\n"
    path.write_text(broken + PARALLEL.replace("[llama.cpp]", "[broken, llama.cpp]"))
    folder = out_folder(path)
    launches = launches_of(start(path, "--json"), 1)
    assert [launch["state"] for launch in launches] == ["failed", "done"] * 2
    assert at_once(folder) == 2
    measured = Counter(entry.cell for entry in read_entries(folder) if entry.event == "done")
    assert list(measured.values()) == [1] * 4
    assert all(map(gone, engines(folder)))


@pytest.mark.process
@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM, signal.SIGKILL]
)
def test_all_that_runs_at_the_same_time_ends_with_the_study(
    path: Path, number: signal.Signals
) -> None:
    path.write_text(PARALLEL.replace("requests: 4", "requests: 2000"))
    folder = out_folder(path)
    run = start(path)
    assert eventually(lambda: run.poll() is not None or count(folder, "cell") >= 2)
    time.sleep(1)
    processes = engines(folder)
    assert len(processes) >= 2
    told = end(run, -signal.SIGKILL if number == signal.SIGKILL else 130, number)
    assert eventually(lambda: all(map(gone, processes))), "an engine was left behind"
    if number != signal.SIGKILL:
        assert "run it again to go on" in told
        assert (
            sum(
                entry.event == "end" and entry.why == "interrupted"
                for entry in read_entries(folder)
            )
            == 2
        )
        read = read_study(path)
        states = {
            (each.state, each.why) for each in read_status(read, plan_study(read), folder).launches
        }
        assert states == {("waiting", "interrupted")}  # nothing of it failed
    path.write_text(PARALLEL)  # other cells: nothing of the first is in their way
    end(start(path), 0)


@pytest.mark.process
@pytest.mark.parametrize(
    ("machine", "problem"),
    [
        ("{ssh: [a, b], parallel: 3}", "parallel: 3 launches at a time on 2 hosts"),
        ("{local: true, parallel: 0}", "parallel: 0; write 1 to 256"),
    ],
)  # fmt: skip
def test_more_launches_at_a_time_than_there_is_room_for_are_refused(
    path: Path, machine: str, problem: str
) -> None:
    path.write_text(STUDY + f"machines: {{here: {machine}}}\n")
    told = end(start(path), 2)
    assert problem in told
    assert told.count("\n") == 1


def test_each_launch_that_runs_at_a_time_has_its_own_gpus(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    path.write_text(PARALLEL)
    machines = make_machines(read_study(path), None)
    seen = [machine.environment for machine in machines if isinstance(machine, LocalMachine)]
    assert seen == [{"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "2,3"}]
    path.write_text(PARALLEL.replace("parallel: 2", "parallel: 5"))
    with pytest.raises(InputError, match="5 launches at a time on 4 GPUs"):
        make_machines(read_study(path), None)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=320m", "none", str(folder)]
    try:
        mounted = subprocess.run(words, capture_output=True, check=False)
    except OSError as error:
        pytest.skip(f"no mount here: {error}")
    if mounted.returncode:
        pytest.skip(f"mounting is not permitted: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("kind", [STUDY, PARALLEL], ids=["", "parallel"])
def test_a_full_disk_ends_the_study_which_goes_on_once_there_is_room(
    small_disk: Path, kind: str
) -> None:
    path = small_disk / "study.yaml"
    path.write_text(kind.replace("requests: 4", "requests: 100"))
    folder = small_disk / "out" / "small"
    run = start(path)
    assert eventually(lambda: count(folder, "cell"))
    ballast = small_disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb") as file:
        while True:
            file.write(bytes(65536))
            file.flush()
    told = end(run, 2)
    assert "make room" in told or "no room" in told or "full" in told
    assert all(map(gone, engines(folder)))
    done = {entry.cell for entry in read_entries(folder) if entry.event == "done"}
    ballast.unlink()
    end(start(path), 0)
    measured = Counter(entry.cell for entry in read_entries(folder) if entry.event == "done")
    assert set(measured) >= done
    assert set(measured.values()) == {1}
    assert all(
        find_run(folder, cell) for launch in plan_study(read_study(path)) for cell in launch.cells
    )


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [STUDY, STUDY + "restart: never\n", PARALLEL], ids=["", "never", "parallel"]
)
def test_killed_at_twenty_moments_no_cell_is_lost_or_measured_twice(path: Path, kind: str) -> None:
    folder = out_folder(path)
    path.write_text(kind.replace("repeats: 2", "repeats: 6"))
    chance = random.Random(7)
    kills = 0
    while kills < 20:
        run = start(path)
        try:
            run.communicate(timeout=chance.uniform(0.5, 8))
            if run.returncode == 0 and kills >= 20:
                break
            if run.returncode == 0:  # all is done: more work
                repeats = read_study(path).study.repeats
                path.write_text(kind.replace("repeats: 2", f"repeats: {repeats + 6}"))
        except subprocess.TimeoutExpired:
            os.kill(run.pid, signal.SIGKILL)
            run.communicate()
            kills += 1
            assert engines_are_gone(folder), "an engine was left behind"
    end(start(path), 0)
    launches = plan_study(read_study(path))
    assert all(find_run(folder, cell) for launch in launches for cell in launch.cells)
    measured = Counter(entry.cell for entry in read_entries(folder) if entry.event == "done")
    assert set(measured.values()) == {1}
    assert (folder / CUT).exists()


POOLED = "prefill=2*(1xh100/tp1)+decode=1xh100/tp1"


@pytest.mark.process
@pytest.mark.parametrize("dead", ["", "decode"])
def test_pools_are_started_measured_and_ended(
    path: Path, monkeypatch: pytest.MonkeyPatch, dead: str
) -> None:
    """Workers are processes that say they are ready; the router is simulated pools, and starts once
    all do."""
    folder = path.parent / "bin"
    folder.mkdir()
    (folder / "worker").write_text(WORKER.format(python=sys.executable, dead=dead or "nobody"))
    (folder / "vllm-router").write_text(
        ROUTER.format(python=sys.executable, pools=f"llama-3.1-8b@{POOLED}")
    )
    for each in folder.iterdir():
        each.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    text = STUDY.replace(
        "[llama.cpp]", f"[vllm], model: [llama-3.1-8b], layout: ['{POOLED}']"
    ).replace("loads: {concurrency: [1, 2]", "loads: {concurrency: [2]")
    path.write_text(
        f"{text}engines: {{vllm: {{program: {folder}/worker}}}}\n".replace(
            "repeats: 2", "repeats: 1"
        )
    )
    (launch,) = launches_of(start(path, "--json"), 1 if dead else 0)
    if dead:
        assert "no room for the decode pool" in str(launch)
    else:
        (cell,) = launch["cells"]
        made = run_folder.read_info(Path(cell["run_dir"])).settings
        assert [each["role"] for each in made.deployment["pools"]] == ["prefill", "decode"]
        assert len(engines(out_folder(path))) == 4
        assert made.provenance is not None
        assert [" ".join(words).count("--prefill") for words in made.provenance.commands] == [
            0,
            0,
            0,
            2,
        ]
    assert engines_are_gone(out_folder(path))


def test_a_dry_run_prints_every_worker_of_pools_and_the_router(
    loadstone: Loadstone, path: Path
) -> None:
    path.write_text(
        STUDY.replace("[llama.cpp]", f"[vllm], model: [llama-3.1-8b], layout: ['{POOLED}']")
    )
    printed = loadstone("study", "run", path, "--dry-run").out
    assert [line.split(",")[0] for line in printed.splitlines() if line.endswith("127.0.0.1") and line[0] == "#"] == [
        "# prefill 0", "# prefill 1", "# decode 0", "# router 0"
    ]  # fmt: skip


WORKER = """\
#!{python}
import http.server, sys
if "kv_consumer" in str(sys.argv) and "{dead}" == "decode":
    sys.exit("RuntimeError: no room for the decode pool")
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Ready).serve_forever()
"""
ROUTER = """\
#!{python}
import os, sys, urllib.request
for flag, url in zip(sys.argv, sys.argv[1:]):
    if flag in ("--prefill", "--decode"):
        urllib.request.urlopen(url + "/health")
words = ["-m", "loadstone", "serve-sim", "{pools}", "--port", sys.argv[sys.argv.index("--port") + 1]]
os.execv(sys.executable, [sys.executable, *words])
"""


@pytest.mark.parametrize(
    ("layout", "more", "said"),
    [
        ("prefill=2*(8xh100/tp8)+decode=8xh100/tp8", "", "3 nodes are needed, and `local` is one"),
        (
            POOLED,
            ", args: {max_num_seqs: 4}",
            "of pools each has its own max_num_seqs=4; write it in the layout",
        ),
    ],
)
def test_pools_that_a_study_cannot_start_are_one_line(
    path: Path, layout: str, more: str, said: str
) -> None:
    text = STUDY.replace("[llama.cpp]", f"[vllm], model: [llama-3.1-8b], layout: ['{layout}']")
    path.write_text(f"{text}engines: {{vllm: {{program: /bin/false{more}}}}}\n")

    def start_first() -> None:
        read = read_study(path)
        (launch, *_) = plan_study(read)
        assert launch.parsed is not None
        pools_of(launch.parsed, launch, 9000)

    with pytest.raises(InputError, match=said):
        start_first()


def test_pools_are_not_started_on_other_machines(path: Path) -> None:
    path.write_text(
        STUDY.replace("[llama.cpp]", f"[vllm], model: [llama-3.1-8b], layout: ['{POOLED}']")
    )
    (launch, *_) = plan_study(read_study(path))
    with pytest.raises(InputError, match="pools are started on one machine, `local`, alone"):
        commands_of(launch, (), 9000)
