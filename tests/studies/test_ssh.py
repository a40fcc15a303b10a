"""Studies over SSH, on two real servers of this machine: measured, cut off, without a node; nothing is left."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusters import TwoRanks, cluster, lose, until
from loadstone.studies.file import read_study
from loadstone.studies.plan import plan_study
from loadstone.studies.supervise import CUT, finished

pytestmark = pytest.mark.slow
MACHINE = "{{ssh: [node0, node1], python: {python}{more}}}"


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Path]:
    with cluster("ssh", tmp_path / "ssh") as home:
        yield Path(home)


@pytest.fixture
def study(tmp_path: Path, servers: Path) -> Iterator[TwoRanks]:
    study = make(tmp_path, servers)
    yield study
    study.close()


def make(folder: Path, home: Path, output: int = 16, more: str = "") -> TwoRanks:
    import sys

    machine = MACHINE.format(python=sys.executable, more=more)
    return TwoRanks(folder, machine, {"HOME": str(home), "TMPDIR": str(folder)}, output)


def left(folder: Path) -> list[Path]:
    """Work folders on the hosts, which are this machine."""
    return list(Path("/tmp").glob("loadstone-??????"))


def test_two_ranks_are_started_and_measured_from_the_first_node(study: TwoRanks) -> None:
    before = left(study.folder)
    run = study.run()
    _, told = run.communicate(timeout=120)
    assert run.returncode == 0, told
    assert study.states() == ["done", "done"]
    read = read_study(study.path)
    (launch,) = plan_study(read)
    runs = [finished(study.out, cell) for cell in launch.cells]
    assert all(each is not None and (each / "records.parquet").exists() for each in runs)
    logs = study.out / "launches" / launch.id
    assert [(logs / f"rank-{i}.log").read_text().splitlines()[0] for i in (0, 1)] == [
        f"rank {i} of 2 leader 127.0.0.1" for i in (0, 1)
    ]
    assert study.ranks_alive() == []
    assert left(study.folder) == before


def test_the_client_may_be_here(tmp_path: Path, servers: Path) -> None:
    study = make(tmp_path, servers, more=", client: localhost")
    run = study.run()
    _, told = run.communicate(timeout=120)
    assert run.returncode == 0, told
    assert study.states() == ["done", "done"]
    assert study.ranks_alive() == []


def test_a_rank_that_ends_ends_the_launch_with_its_cause(study: TwoRanks) -> None:
    (study.folder / "no-rank-1").touch()
    run = study.run()
    _, told = run.communicate(timeout=60)
    assert run.returncode == 1, told
    assert "rank 1 of vllm ended with exit code 1: " in study.why()
    assert "memory" in study.why()
    until(lambda: study.ranks_alive() == [], 5)


def test_a_rank_that_is_lost_in_the_middle_cuts_the_cell(tmp_path: Path, servers: Path) -> None:
    study = make(tmp_path, servers, output=4000)
    run = study.run()
    study.wait_for("cell")
    os.kill(study.pid(1), signal.SIGKILL)
    _, told = run.communicate(timeout=90)
    assert run.returncode == 1, told
    assert "rank 1 of vllm ended by signal 9" in study.why()
    assert study.states() == ["waiting", "waiting"]
    assert study.ranks_alive() == []


def test_ctrl_c_keeps_what_was_measured_and_leaves_nothing(tmp_path: Path, servers: Path) -> None:
    study = make(tmp_path, servers, output=3000)
    before = left(tmp_path)
    run = study.run()
    study.wait_for("cell")
    work = [path for path in left(tmp_path) if path not in before]
    until(lambda: any((path / "runs").exists() for path in left(tmp_path) if path not in before), 30)
    run.send_signal(signal.SIGINT)
    _, told = run.communicate(timeout=90)
    assert run.returncode == 130, told
    assert study.ranks_alive() == []
    assert list((study.out / "cells").glob("*/*/run.json")), work
    assert left(tmp_path) == before


def test_containers_are_stopped_where_ctrl_c_comes_before_they_are_ready(tmp_path: Path, servers: Path) -> None:
    study = make(tmp_path, servers, more=f", setup: ['export PATH={tmp_path}:$PATH']")
    study.contain()
    run = study.run()
    until(lambda: len(study.containers("started")) == 2)
    run.send_signal(signal.SIGINT)
    _, told = run.communicate(timeout=90)
    assert run.returncode == 130, told
    assert study.containers("stopped") == study.containers("started")


def test_what_a_killed_supervisor_left_ends_by_its_lease_and_the_next_goes_on(study: TwoRanks) -> None:
    run = study.run()
    study.wait_for("done")
    run.kill()
    run.communicate(timeout=30)
    until(lambda: study.ranks_alive() == [], 10)
    again = study.run()
    _, told = again.communicate(timeout=120)
    assert again.returncode == 0, told
    assert study.states() == ["done", "done"]
    assert len(list((study.out / "cells").glob("*/*/summary.json"))) == 2
    assert len(list(study.out.glob(f"{CUT}/*"))) <= 1


def test_a_node_that_vanishes_ends_the_launch(tmp_path: Path, servers: Path) -> None:
    study = make(tmp_path, servers, output=4000)
    run = study.run()
    study.wait_for("cell")
    lose("ssh", tmp_path / "ssh", "node1")
    _, told = run.communicate(timeout=90)
    assert run.returncode == 1, told
    assert "the connection to node1 was lost" in study.why()
    until(lambda: study.ranks_alive() == [], 10)


@pytest.mark.parametrize(
    ("machine", "problem"),
    [
        ("{ssh: [node0]}", "2 nodes are needed, and this machine has 1"),
        ("{ssh: [node0, node2]}", "node2 cannot be reached by SSH: "),
        ("{ssh: [node0, node1], port: 1}", "node0 cannot be reached by SSH: "),
        ("{ssh: [node0, node1], key: no-such-key}", "node0 cannot be reached by SSH: "),
        ("{ssh: [node0, node1], python: /no/such/python}", "the client on node0 ended with exit code 127: "),
        ("{ssh: [node0, node1], client: node7}", "node7 cannot be reached by SSH: "),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line(tmp_path: Path, servers: Path, machine: str, problem: str) -> None:
    study = TwoRanks(tmp_path, machine, {"HOME": str(servers)})
    run = study.run()
    _, told = run.communicate(timeout=60)
    assert run.returncode == 1
    assert "Traceback" not in told
    failed = [line for line in told.splitlines() if line.startswith("failed")]
    assert problem in failed[0]
    assert study.ranks_alive() == []


def test_a_host_whose_key_is_not_known_is_refused(study: TwoRanks) -> None:
    Path(study.env["HOME"], ".ssh", "known_hosts").write_text("")
    run = study.run()
    _, told = run.communicate(timeout=60)
    assert run.returncode == 1
    assert "its key is not in known_hosts; connect once with ssh node0, and check it" in told


def test_secrets_reach_the_ranks_and_no_command_line_or_file(study: TwoRanks) -> None:
    secret = "hf_" + "s3cret" * 4
    study.env["HF_TOKEN"] = secret
    run = study.run()
    study.wait_for("ready")
    environment = Path(f"/proc/{study.pid(0)}/environ").read_bytes()
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    run.communicate(timeout=120)
    assert f"HF_TOKEN={secret}".encode() in environment
    assert not any(secret.encode() in line for line in lines)
    assert not any(secret in path.read_text(errors="replace") for path in study.out.rglob("*") if path.is_file())
