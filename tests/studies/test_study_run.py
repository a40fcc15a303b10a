"""Studies run on a real engine, llama.cpp with the small model: measured, killed, resumed, refused twice at once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from loadstone.studies.file import read_study
from loadstone.studies.journal import entries
from loadstone.studies.plan import plan_study
from loadstone.studies.status import status_of
from loadstone.studies.supervise import CUT, finished

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


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def engines(folder: Path) -> list[int]:
    pids: list[int] = []
    for entry in entries(folder):
        processes = entry.handle.get("processes", [])
        pids += [int(pid) for pid in processes] if isinstance(processes, list) else []
    return pids


def test_a_study_is_measured_and_then_nothing_is_left_to_do(path: Path) -> None:
    folder = path.parent / "out" / "small"
    run = start(path)
    _, told = run.communicate(timeout=120)
    assert run.returncode == 0, told
    read = read_study(path)
    launches = plan_study(read)
    runs = [finished(folder, cell) for launch in launches for cell in launch.cells]
    assert None not in runs
    status = status_of(read, launches, folder)
    assert {launch.state for launch in status.launches} == {"done"}
    again = start(path, "--json")
    shown, _ = again.communicate(timeout=60)
    assert again.returncode == 0
    document = msgspec.json.decode(shown)
    assert [cell["run_dir"] for launch in document["launches"] for cell in launch["cells"]] == [
        str(run) for run in runs
    ]
    assert sum(entry.event == "launch" for entry in entries(folder)) == 2
    assert not any(map(is_alive, engines(folder)))


def test_a_changed_cell_alone_is_measured(path: Path) -> None:
    path.write_text(STUDY.replace("repeats: 2", "repeats: 1"))
    start(path).communicate(timeout=120)
    path.write_text(STUDY.replace("repeats: 2", "repeats: 1").replace("[1, 2]", "[1, 3]"))
    start(path).communicate(timeout=120)
    done = [entry for entry in entries(path.parent / "out" / "small") if entry.event == "done"]
    assert len(done) == 3


def test_two_at_once_are_told_apart(path: Path) -> None:
    first = start(path)
    folder = path.parent / "out" / "small"
    deadline = time.monotonic() + 30
    while not (folder / "journal.jsonl").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    second = start(path)
    _, told = second.communicate(timeout=60)
    assert second.returncode == 2
    assert f"is being run by process {first.pid} on " in told
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=60)
    assert first.returncode == 130
    assert not any(map(is_alive, engines(folder)))


def test_a_launch_that_fails_says_why_and_the_rest_goes_on(path: Path) -> None:
    broken = "engines: {broken: {engine: llama.cpp, program: /bin/false}}\n"
    path.write_text(broken + STUDY.replace("[llama.cpp]", "[broken, llama.cpp]").replace("repeats: 2", "repeats: 1"))
    run = start(path, "--json")
    shown, told = run.communicate(timeout=120)
    assert run.returncode == 1, told
    failed, done = msgspec.json.decode(shown)["launches"]
    assert (failed["state"], done["state"]) == ("failed", "done")
    assert "ended with exit code 1" in failed["why"]


@pytest.mark.parametrize(
    ("before", "after", "place"),
    [
        ("repeats: 2", "restart: never", "6:1"),
        ("repeats: 2", "limits: {cell: 20m}", "6:10"),
        ("repeats: 2", "machines: {far: {ray: auto}}", "6:12"),
    ],
)  # fmt: skip
def test_what_this_version_does_not_run_is_refused(path: Path, before: str, after: str, place: str) -> None:
    path.write_text(STUDY.replace(before, after))
    run = start(path)
    _, told = run.communicate(timeout=60)
    assert run.returncode == 2
    assert f"study.yaml:{place}: " in told
    assert "does not run; leave it out" in told


@pytest.mark.slow
def test_killed_at_twenty_moments_no_cell_is_lost_or_measured_twice(path: Path) -> None:
    folder = path.parent / "out" / "small"
    path.write_text(STUDY.replace("repeats: 2", "repeats: 6"))
    chance = random.Random(7)
    kills = 0
    while kills < 20:
        run = start(path)
        try:
            run.communicate(timeout=chance.uniform(0.5, 8))
            if run.returncode == 0 and kills >= 20:
                break
            if run.returncode == 0:  # all is done: more work
                repeats = path.read_text().count("\n") and int(path.read_text().rpartition("repeats: ")[2])
                path.write_text(STUDY.replace("repeats: 2", f"repeats: {repeats + 6}"))
        except subprocess.TimeoutExpired:
            os.kill(run.pid, signal.SIGKILL)
            run.communicate()
            kills += 1
            deadline = time.monotonic() + 15
            while any(map(is_alive, engines(folder))):
                assert time.monotonic() < deadline, "an engine was left behind"
                time.sleep(0.1)
    last = start(path)
    last.communicate(timeout=600)
    assert last.returncode == 0
    launches = plan_study(read_study(path))
    assert all(finished(folder, cell) for launch in launches for cell in launch.cells)
    measured = Counter(entry.cell for entry in entries(folder) if entry.event == "done")
    assert set(measured.values()) == {1}
    assert (folder / CUT).exists()
