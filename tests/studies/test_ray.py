"""Studies over Ray, on two real nodes of this machine: measured, cut off, taken up again; nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusters import ROOT, TwoRanks, until
from loadstone.studies.file import read_study
from loadstone.studies.plan import plan_study
from loadstone.studies.supervise import finished

pytest.importorskip("ray")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    script = ROOT / "scripts" / "clusters" / "ray"
    process = subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    yield address
    process.communicate(timeout=60)


def make(folder: Path, address: str, output: int = 16, more: str = "") -> TwoRanks:
    machine = f"{{ray: '{address}', python: {sys.executable}{more}}}"
    return TwoRanks(folder, machine, {"TMPDIR": str(folder)}, output)


@pytest.fixture
def study(tmp_path: Path, cluster: str) -> Iterator[TwoRanks]:
    study = make(tmp_path, cluster)
    yield study
    study.close()


def test_two_ranks_are_started_and_measured_from_the_first_node(study: TwoRanks) -> None:
    run = study.run()
    _, told = run.communicate(timeout=180)
    assert run.returncode == 0, told
    assert study.states() == ["done", "done"]
    (launch,) = plan_study(read_study(study.path))
    runs = [finished(study.out, cell) for cell in launch.cells]
    assert all(each is not None and (each / "records.parquet").exists() for each in runs)
    logs = study.out / "launches" / launch.id
    first = [(logs / f"rank-{i}.log").read_text().splitlines()[0] for i in (0, 1)]
    assert [line.split(" leader ")[0] for line in first] == ["rank 0 of 2", "rank 1 of 2"]
    assert study.ranks_alive() == []


def test_the_client_may_be_here(tmp_path: Path, cluster: str) -> None:
    study = make(tmp_path, cluster, more=", client: localhost")
    run = study.run()
    _, told = run.communicate(timeout=180)
    assert run.returncode == 0, told
    assert study.states() == ["done", "done"]
    assert study.ranks_alive() == []


def test_a_rank_that_ends_ends_the_launch_with_its_cause(study: TwoRanks) -> None:
    (study.folder / "no-rank-1").touch()
    run = study.run()
    _, told = run.communicate(timeout=120)
    assert run.returncode == 1, told
    assert "rank 1 of vllm ended with exit code 1: " in study.why()
    assert "memory" in study.why()
    until(lambda: study.ranks_alive() == [], 10)


def test_a_rank_that_is_lost_in_the_middle_cuts_the_cell(tmp_path: Path, cluster: str) -> None:
    study = make(tmp_path, cluster, output=4000)
    run = study.run()
    study.wait_for("cell")
    os.kill(study.pid(1), signal.SIGKILL)
    _, told = run.communicate(timeout=120)
    assert run.returncode == 1, told
    assert "rank 1 of vllm ended by signal 9" in study.why()
    assert study.states() == ["waiting", "waiting"]
    until(lambda: study.ranks_alive() == [], 10)


def test_ctrl_c_keeps_what_was_measured_and_leaves_nothing(tmp_path: Path, cluster: str) -> None:
    study = make(tmp_path, cluster, output=3000)
    run = study.run()
    study.wait_for("cell")
    run.send_signal(signal.SIGINT)
    _, told = run.communicate(timeout=120)
    assert run.returncode == 130, told
    until(lambda: study.ranks_alive() == [], 10)


def test_what_a_killed_supervisor_left_is_taken_up_again(study: TwoRanks) -> None:
    run = study.run()
    study.wait_for("done")
    before = study.pid(0)
    run.kill()
    run.communicate(timeout=30)
    assert study.ranks_alive() == [0, 1]
    again = study.run()
    _, told = again.communicate(timeout=180)
    assert again.returncode == 0, told
    assert study.pid(0) == before
    assert study.states() == ["done", "done"]
    assert len(list((study.out / "cells").glob("*/*/summary.json"))) == 2
    until(lambda: study.ranks_alive() == [], 10)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{{ray: '127.0.0.1:1'}}", "no Ray cluster is reached at 127.0.0.1:1"),
        ("{{ray: '{address}', python: /no/such/python}}", "the client on the first node ended with exit code 127: "),
    ],
)
def test_what_cannot_be_is_one_line(tmp_path: Path, cluster: str, text: str, problem: str) -> None:
    study = TwoRanks(tmp_path, text.format(address=cluster), {"TMPDIR": str(tmp_path)})
    run = study.run()
    _, told = run.communicate(timeout=180)
    assert run.returncode == 1
    assert "Traceback" not in told
    failed = [line for line in told.splitlines() if line.startswith("failed")]
    assert problem in failed[0]
    assert study.ranks_alive() == []


def test_more_nodes_than_there_are_is_one_line(tmp_path: Path, cluster: str) -> None:
    study = make(tmp_path, cluster)
    study.path.write_text(study.path.read_text().replace("2xcpu/tp2,nodes=2", "3xcpu/tp3,nodes=3"))
    run = study.run()
    _, told = run.communicate(timeout=120)
    assert run.returncode == 1
    assert "3 nodes are needed, and the Ray cluster has 2" in told
