"""Studies over SSH, Slurm and Ray, on two real nodes of this machine: measured, cut off, refused;
nothing is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusters import ROOT, Nodes, RayNodes, SlurmNodes, SshNodes, cluster, end
from conftest import eventually
from loadstone.studies.file import read_study
from loadstone.studies.plan import plan_study
from loadstone.studies.supervise import CUT, find_run

pytestmark = pytest.mark.slow
KINDS = ("ssh", "slurm", "ray")
CONTAINED = ("ssh", "slurm")


@pytest.fixture(scope="module")
def ray_address() -> Iterator[str]:
    pytest.importorskip("ray")
    script = ROOT / "scripts" / "clusters" / "ray"
    process = subprocess.Popen(
        [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    yield process.stdout.readline().strip()
    process.communicate(timeout=60)


@pytest.fixture
def ssh(tmp_path: Path) -> Iterator[SshNodes]:
    with cluster("ssh", tmp_path / "ssh") as home:
        yield SshNodes(tmp_path, {"HOME": home, "TMPDIR": str(tmp_path)})


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[SlurmNodes]:
    with cluster("slurm", tmp_path / "slurm") as exports:
        env = dict(word.split("=", 1) for word in exports.removeprefix("export ").split())
        yield SlurmNodes(tmp_path, env | {"PATH": env["PATH"].replace("$PATH", os.environ["PATH"])})


@pytest.fixture
def ray(tmp_path: Path, ray_address: str) -> RayNodes:
    return RayNodes(tmp_path, ray_address)


@pytest.fixture(params=KINDS)
def nodes(request: pytest.FixtureRequest) -> Iterator[Nodes]:
    nodes: Nodes = request.getfixturevalue(request.param)
    yield nodes
    for study in nodes.studies:
        study.close()


on_contained = pytest.mark.parametrize("nodes", CONTAINED, indirect=True)


def test_two_ranks_are_started_and_measured_from_the_first_node(nodes: Nodes) -> None:
    study = nodes.study()
    study.run()
    assert study.states() == ["done", "done"]
    (launch,) = plan_study(read_study(study.path))
    runs = [find_run(study.out, cell) for cell in launch.cells]
    assert all(each is not None and (each / "records.parquet").exists() for each in runs)
    logs = study.out / "launches" / launch.id
    first = [
        (logs / f"rank-{i}.log").read_text().splitlines()[0].split(" leader ")[0] for i in (0, 1)
    ]
    assert first == ["rank 0 of 2", "rank 1 of 2"]
    nodes.check_clean()


def test_the_client_may_be_here(nodes: Nodes) -> None:
    study = nodes.study(", client: localhost")
    study.run()
    assert study.states() == ["done", "done"]
    nodes.check_clean()


def test_a_rank_that_ends_ends_the_launch_with_its_cause(nodes: Nodes) -> None:
    study = nodes.study()
    (study.folder / "no-rank-1").touch()
    study.run(code=1)
    assert "rank 1 of vllm ended with exit code 1: " in study.why()
    assert "memory" in study.why()
    nodes.check_clean()


def test_a_rank_that_is_lost_in_the_middle_cuts_the_cell(nodes: Nodes) -> None:
    study = nodes.study(output=4000)
    run = study.start()
    study.wait_for("cell")
    os.kill(study.pid(1), signal.SIGKILL)
    end(run, 1)
    assert "rank 1 of vllm ended by signal 9" in study.why()
    assert study.states() == ["waiting", "waiting"]
    nodes.check_clean()


@pytest.mark.process
def test_ctrl_c_keeps_what_was_measured_and_leaves_nothing(nodes: Nodes) -> None:
    study = nodes.study(output=3000)
    run = study.start()
    study.wait_for("cell")
    if isinstance(nodes, SshNodes):  # the run is on the host, and comes here with its end
        assert eventually(lambda: any((Path(work) / "runs").exists() for work in nodes.leftovers()))
    elif isinstance(nodes, SlurmNodes):
        assert eventually(lambda: any(study.out.glob("cells/*/*/run.json")))
    end(run, 130, signal.SIGINT)
    nodes.check_clean()
    if nodes.kind != "ray":
        (papers,) = study.out.glob("cells/*/*/run.json")
        assert b'"interrupted"' in papers.read_bytes()


@on_contained
def test_containers_are_stopped_where_ctrl_c_comes_before_they_are_ready(nodes: Nodes) -> None:
    study = nodes.study(f", setup: ['export PATH={nodes.folder}:$PATH']")
    study.contain()
    run = study.start()
    assert eventually(lambda: len(study.containers("started")) == 2)
    end(run, 130, signal.SIGINT)
    assert study.containers("stopped") == study.containers("started")
    nodes.check_clean()


@pytest.mark.process
def test_what_a_killed_supervisor_left_is_taken_up_again(nodes: Nodes) -> None:
    """Over SSH it ends by its lease, and another launch goes on; else it is the same launch."""
    study = nodes.study()
    run = study.start()
    study.wait_for("done")
    before = study.pid(0)
    end(run, -signal.SIGKILL, signal.SIGKILL)
    if nodes.kind == "ssh":
        assert eventually(lambda: not study.ranks_alive())
    else:
        assert study.ranks_alive() == [0, 1]
    study.run()
    assert study.states() == ["done", "done"]
    assert (study.pid(0) == before) == (nodes.kind != "ssh")
    if isinstance(nodes, SlurmNodes):
        assert nodes.jobs("all")[0].split()[0] == "1", "one job did it all"
    assert len(list(study.out.glob("cells/*/*/summary.json"))) == 2
    assert len(list(study.out.glob(f"{CUT}/*"))) <= 1
    nodes.check_clean()


@on_contained
def test_a_node_that_vanishes_ends_the_launch(nodes: Nodes) -> None:
    study = nodes.study(output=8000)
    run = study.start()
    study.wait_for("cell")
    nodes.lose_node()
    end(run, 1)
    assert ("the connection to node1 was lost" if nodes.kind == "ssh" else "vllm") in study.why()
    assert study.states() == ["waiting", "waiting"]
    assert eventually(lambda: not study.ranks_alive())


NO_PYTHON = "the client on {node} ended with exit code 127: "


@pytest.mark.parametrize(
    ("nodes", "machine", "problem"),
    [
        ("ssh", "{ssh: [node0]}", "2 nodes are needed, and this machine has 1"),
        ("ssh", "{ssh: [node0, node2]}", "node2 cannot be reached by SSH: "),
        ("ssh", "{ssh: [node0, node1], port: 1}", "node0 cannot be reached by SSH: "),
        ("ssh", "{ssh: [node0, node1], key: no-such-key}", "node0 cannot be reached by SSH: "),
        ("ssh", "{ssh: [node0, node1], python: /no/such/python}", NO_PYTHON.format(node="node0")),
        ("ssh", "{ssh: [node0, node1], client: node7}", "node7 cannot be reached by SSH: "),
        (
            "slurm", "{partition: nope}",
            "Slurm refuses the job: Batch job submission failed: Invalid partition name specified",
        ),
        ("slurm", "{partition: main, options: [--nodes=9]}", "Slurm would keep the job waiting for ever (Partition"),
        ("slurm", "{partition: main, options: [--gres=gpu:4]}", "Slurm refuses the job: "),
        ("slurm", "{partition: main, python: /no/such/python}", NO_PYTHON.format(node="node0")),
        ("slurm", '{partition: main, setup: ["exit 3"]}', "of vllm ended "),
        ("ray", "{ray: '127.0.0.1:1'}", "no Ray cluster is reached at 127.0.0.1:1"),
        ("ray", "{ray: 'ADDRESS', python: /no/such/python}", NO_PYTHON.format(node="the first node")),
    ],
    indirect=["nodes"],
)  # fmt: skip
def test_what_cannot_be_is_one_line(nodes: Nodes, machine: str, problem: str) -> None:
    study = nodes.study(machine=machine.replace("ADDRESS", getattr(nodes, "address", "")))
    assert problem in study.failure()
    nodes.check_clean()


# --- one of them alone ----------------------------------------------------------------------------


@pytest.mark.process
def test_more_nodes_than_ray_has_is_one_line(ray: RayNodes) -> None:
    study = ray.study()
    study.path.write_text(study.path.read_text().replace("2xcpu/tp2,nodes=2", "3xcpu/tp3,nodes=3"))
    assert "3 nodes are needed, and the Ray cluster has 2" in study.run(code=1)


def test_a_host_whose_key_is_not_known_is_refused(ssh: SshNodes) -> None:
    study = ssh.study()
    Path(study.env["HOME"], ".ssh", "known_hosts").write_text("")
    assert "its key is not in known_hosts; connect once with ssh node0, and check it" in study.run(
        code=1
    )


def test_secrets_reach_the_ranks_and_no_command_line_or_file(ssh: SshNodes) -> None:
    study = ssh.study()
    secret = study.env["HF_TOKEN"] = "hf_" + "s3cret" * 4
    run = study.start()
    study.wait_for("ready")
    environment = Path(f"/proc/{study.pid(0)}/environ").read_bytes()
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    end(run, 0)
    assert f"HF_TOKEN={secret}".encode() in environment
    assert not any(secret.encode() in line for line in lines)
    assert not any(
        secret in path.read_text(errors="replace")
        for path in study.out.rglob("*")
        if path.is_file()
    )


@pytest.mark.process
def test_what_slurm_is_given_is_what_is_printed(slurm: SlurmNodes) -> None:
    study = slurm.study()
    study.run()
    (launch,) = study.status().launches
    logs = study.out / "launches" / launch.id
    printed, _ = study.start("--dry-run").communicate(timeout=60)
    assert re.sub(r"--port \d+", "--port 8000", (logs / "job.sh").read_text()) in printed
    assert [(logs / f"rank-{i}.log").read_text().splitlines()[0] for i in (0, 1)] == [
        f"rank {i} of 2 leader 127.0.0.1" for i in (0, 1)
    ]


@pytest.mark.process
def test_a_job_that_nobody_needs_is_cancelled_by_the_next_run(slurm: SlurmNodes) -> None:
    study = slurm.study()
    study.run()
    journal = study.out / "journal.jsonl"
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join(line for line in lines if '"event":"end"' not in line) + "\n")
    name = next(line for line in lines if "job_name" in line).split('"job_name":"')[1].split('"')[0]
    slurm.command("sbatch", f"--job-name={name}", "--output=/dev/null", "--wrap=sleep 600")
    assert len(slurm.jobs()) == 1
    study.run()
    assert slurm.jobs() == []
    study.path.write_text(study.path.read_text().replace(f"{{{slurm.machine}}}", "{local: true}"))
    study.run()  # nothing is left of that job, so that any machine will do


def occupy(slurm: SlurmNodes) -> str:
    """Submit a job that has both nodes; returns its number."""
    words = [
        "sbatch",
        "--parsable",
        "--nodes=2",
        "--exclusive",
        "--output=/dev/null",
        "--wrap=sleep 600",
    ]
    return slurm.command(*words).strip()


@pytest.mark.process
def test_the_time_in_the_queue_is_not_the_engines(slurm: SlurmNodes) -> None:
    study = slurm.study()
    study.path.write_text(study.path.read_text().replace("ready: 60s", "ready: 15s"))
    other = occupy(slurm)
    run = study.start()
    assert eventually(lambda: any(line.endswith("PENDING") for line in slurm.jobs()))
    time.sleep(20)
    assert run.poll() is None
    slurm.command("scancel", other)
    end(run, 0)


@pytest.mark.process
def test_a_supervisor_that_dies_in_the_queue_is_followed_by_one_that_waits_for_the_same_job(
    slurm: SlurmNodes,
) -> None:
    study = slurm.study()
    other = occupy(slurm)
    first = study.start()
    assert eventually(lambda: len(slurm.jobs()) == 2)
    end(first, -signal.SIGKILL, signal.SIGKILL)
    second = study.start()
    study.wait_for("launch", 2)
    time.sleep(2)
    assert len(slurm.jobs()) == 2
    end(second, 130, signal.SIGINT)
    assert [line.split()[0] for line in slurm.jobs()] == [other]
