"""Races of real launches, of a stand-in for llama-server whose flags decide what becomes of it."""

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

import loadstone
from conftest import Loadstone
from loadstone.studies.journal import read_entries

# A busy machine spoils launches: they are not trusted, and count for nothing.
pytestmark = [pytest.mark.process, pytest.mark.long, pytest.mark.quiet]

ENGINE = Path(__file__).with_name("flagged_engine.py")
LOAD = ("--input", 16, "--output", 6, "--concurrency", 2, "--requests", 32, "--warmup", 0)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program that starts the stand-in, whatever its first words are."""
    path = tmp_path / "engine"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {ENGINE} "$@"\n', "utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_failures_are_named_and_the_fastest_is_advised(
    loadstone: Loadstone, program: Path, tmp_path: Path
) -> None:
    outcome = loadstone(
        "tune", "llama.cpp", "--program", program,
        "--set", "parallel=4,64", "--set", "poll=50,100", "--set", "ctk=f16,q4_0",
        "--launches", 18, *LOAD, "--out", tmp_path / "tunes", "--json",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    result = json.loads(outcome.out)
    rows = {row["name"]: row for row in result["settings"]}
    failures = {name: row["failure"] for name, row in rows.items() if row.get("failure")}
    for name, failure in failures.items():
        if "parallel 64" in name:
            assert failure == "does_not_start"
            assert "memory is full" in rows[name]["why"]
        elif "poll 100" in name:
            assert failure == "died"
        elif "q4_0" in name:
            assert failure == "answers_changed"
    assert {"does_not_start", "died", "answers_changed"} <= set(failures.values())
    assert "parallel 64" not in result["advised"]
    assert "poll 100" not in result["advised"]
    assert "q4_0" not in result["advised"]


@pytest.mark.slow
def test_a_race_that_is_killed_goes_on_to_the_same_end(
    loadstone: Loadstone, program: Path, tmp_path: Path
) -> None:
    words = [
        "tune", "llama.cpp", "--program", program, "--set", "threads=1,2,4", *LOAD,
        "--launches", 14, "--out", tmp_path / "tunes", "--name", "killed", "--json",
    ]  # fmt: skip
    command = [sys.executable, "-m", "loadstone", *map(str, words)]
    for wait_s in (2.0, 3.5, 5.0):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(wait_s)
        process.kill()
        process.wait()
    outcome = loadstone(*words)
    assert outcome.code == 0, outcome.err
    result = json.loads(outcome.out)
    folder = tmp_path / "tunes" / "killed"
    done = [entry.cell for entry in read_entries(folder) if entry.event == "done" and not entry.why]
    assert len(done) == len(set(done))  # no cell twice
    assert result["launches"] <= 14
    again = json.loads(loadstone(*words).out)
    assert again["winner"] == result["winner"]
    assert again["steps"] == result["steps"]
    assert not _engines(folder)


def _engines(folder: Path) -> list[int]:
    """Processes that the race's launches left."""
    left = []
    for entry in read_entries(folder):
        for pid in entry.handle.get("processes", ()):  # type: ignore[union-attr]
            try:
                os.kill(int(pid), 0)
            except OSError:
                continue
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            if str(ENGINE).encode() in words:
                left.append(int(pid))
    return left


def test_python_and_a_simulated_race(tmp_path: Path) -> None:
    result = loadstone.tune(
        "llama-3.1-8b@1xh100/engine=vllm",
        simulate=True,
        set=["max_num_seqs=32,256"],
        concurrency=64,
        requests=640,
        input=512,
        output=64,
        out=tmp_path,
    )
    rows = {row.name: row for row in result.settings}
    slow = rows["max-num-seqs 32"]
    assert slow.gain is not None
    assert slow.gain.high < -0.05  # half of the requests wait
    assert result.advised in ("default", "max-num-seqs 256")
    assert result.command
