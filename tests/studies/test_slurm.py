"""Studies on a real Slurm of two nodes on this machine: measured, taken up again, refused, without a node."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusters import TwoRanks, cluster, lose, until
from loadstone.studies.file import read_study
from loadstone.studies.machines.slurm import SlurmMachine
from loadstone.studies.plan import plan_study

MACHINE = "{partition: main}"


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment in which Slurm's commands are found."""
    with cluster("slurm", tmp_path / "slurm") as exports:
        words = exports.removeprefix("export ").split()
        env = dict(word.split("=", 1) for word in words)
        yield env | {"PATH": env["PATH"].replace("$PATH", os.environ["PATH"])}


@pytest.fixture
def study(tmp_path: Path, slurm: dict[str, str]) -> Iterator[TwoRanks]:
    study = TwoRanks(tmp_path, MACHINE, slurm)
    yield study
    study.close()


def jobs(study: TwoRanks, states: str = "PENDING,CONFIGURING,RUNNING,COMPLETING") -> list[str]:
    words = ["squeue", "--noheader", "--format=%A %T", f"--states={states}"]
    return subprocess.run(words, env=study.env, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]


@pytest.mark.slow
def test_two_ranks_are_started_and_measured_in_the_job(study: TwoRanks) -> None:
    run = study.run()
    _, told = run.communicate(timeout=120)
    assert run.returncode == 0, told
    assert study.states() == ["done", "done"]
    (launch,) = study.status().launches
    logs = study.out / "launches" / launch.id
    assert [(logs / f"rank-{i}.log").read_text().splitlines()[0] for i in (0, 1)] == [
        f"rank {i} of 2 leader 127.0.0.1" for i in (0, 1)
    ]
    printed, _ = study.run("--dry-run").communicate(timeout=60)
    script = (logs / "job.sh").read_text()
    assert re.sub(r"--port \d+", "--port 8000", script) in printed, "what is printed is what was submitted"
    assert jobs(study) == []
    assert study.ranks_alive() == []


@pytest.mark.slow
def test_the_client_may_be_here(tmp_path: Path, slurm: dict[str, str]) -> None:
    study = TwoRanks(tmp_path, "{partition: main, client: localhost}", slurm)
    run = study.run()
    _, told = run.communicate(timeout=120)
    assert run.returncode == 0, told
    assert jobs(study) == []


@pytest.mark.slow
def test_a_rank_that_ends_ends_the_launch_with_its_cause(study: TwoRanks) -> None:
    (study.folder / "no-rank-1").touch()
    run = study.run()
    _, told = run.communicate(timeout=90)
    assert run.returncode == 1, told
    assert "rank 1 of vllm ended with exit code 1: " in study.why()
    assert "memory" in study.why()
    assert (jobs(study), study.ranks_alive()) == ([], [])


@pytest.mark.slow
def test_a_rank_that_is_lost_in_the_middle_cuts_the_cell(tmp_path: Path, slurm: dict[str, str]) -> None:
    study = TwoRanks(tmp_path, MACHINE, slurm, output=4000)
    run = study.run()
    study.wait_for("cell")
    os.kill(study.pid(1), signal.SIGKILL)
    _, told = run.communicate(timeout=90)
    assert run.returncode == 1, told
    assert "rank 1 of vllm ended by signal 9" in study.why()
    assert study.states() == ["waiting", "waiting"]
    assert (jobs(study), study.ranks_alive()) == ([], [])


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_measured_and_leaves_nothing(tmp_path: Path, slurm: dict[str, str]) -> None:
    study = TwoRanks(tmp_path, MACHINE, slurm, output=3000)
    run = study.run()
    until(lambda: bool(list((study.out / "cells").glob("*/*/run.json"))))
    run.send_signal(signal.SIGINT)
    _, told = run.communicate(timeout=90)
    assert run.returncode == 130, told
    assert (jobs(study), study.ranks_alive()) == ([], [])
    (papers,) = (study.out / "cells").glob("*/*/run.json")
    assert b'"interrupted"' in papers.read_bytes()


@pytest.mark.slow
def test_containers_are_stopped_where_ctrl_c_comes_before_they_are_ready(
    tmp_path: Path, slurm: dict[str, str]
) -> None:
    study = TwoRanks(tmp_path, f"{{partition: main, setup: ['export PATH={tmp_path}:$PATH']}}", slurm)
    study.contain()
    run = study.run()
    until(lambda: len(study.containers("started")) == 2)
    run.send_signal(signal.SIGINT)
    _, told = run.communicate(timeout=90)
    assert run.returncode == 130, told
    assert study.containers("stopped") == study.containers("started")
    assert jobs(study) == []


@pytest.mark.slow
def test_a_job_outlives_its_supervisor_and_is_taken_up_again(study: TwoRanks) -> None:
    run = study.run()
    study.wait_for("done")
    run.kill()
    run.communicate(timeout=30)
    first = study.pid(0)
    assert study.ranks_alive() == [0, 1]
    again = study.run()
    _, told = again.communicate(timeout=120)
    assert again.returncode == 0, told
    assert study.pid(0) == first
    assert jobs(study, "all")[0].split()[0] == "1", "one job did it all"
    assert len(list((study.out / "cells").glob("*/*/summary.json"))) == 2
    assert (jobs(study), study.ranks_alive()) == ([], [])


@pytest.mark.slow
def test_a_job_that_nobody_needs_is_cancelled_by_the_next_run(study: TwoRanks) -> None:
    first = study.run()
    _, told = first.communicate(timeout=120)
    assert first.returncode == 0, told
    journal = study.out / "journal.jsonl"
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join(line for line in lines if '"event":"end"' not in line) + "\n")
    name = next(line for line in lines if "job_name" in line).split('"job_name":"')[1].split('"')[0]
    words = ["sbatch", f"--job-name={name}", "--output=/dev/null", "--wrap=sleep 600"]
    subprocess.run(words, env=study.env, check=True, capture_output=True)
    assert len(jobs(study)) == 1
    again = study.run()
    _, told = again.communicate(timeout=60)
    assert again.returncode == 0, told
    assert jobs(study) == []
    study.path.write_text(study.path.read_text().replace(MACHINE, "{local: true}"))
    elsewhere = study.run()
    _, told = elsewhere.communicate(timeout=60)
    assert elsewhere.returncode == 0, "nothing is left of that job, so that any machine will do"


@pytest.mark.slow
def test_the_time_in_the_queue_is_not_the_engines(tmp_path: Path, slurm: dict[str, str]) -> None:
    study = TwoRanks(tmp_path, MACHINE, slurm)
    study.path.write_text(study.path.read_text().replace("ready: 60s", "ready: 15s"))
    words = ["sbatch", "--parsable", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 600"]
    other = subprocess.run(words, env=study.env, check=True, capture_output=True, text=True).stdout.strip()
    run = study.run()
    until(lambda: any(line.endswith("PENDING") for line in jobs(study)))
    time.sleep(20)
    assert run.poll() is None
    subprocess.run(["scancel", other], env=study.env, check=True)
    _, told = run.communicate(timeout=120)
    assert run.returncode == 0, told


@pytest.mark.slow
def test_a_supervisor_that_dies_in_the_queue_is_followed_by_one_that_waits_for_the_same_job(
    tmp_path: Path, slurm: dict[str, str]
) -> None:
    study = TwoRanks(tmp_path, MACHINE, slurm)
    words = ["sbatch", "--parsable", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 600"]
    other = subprocess.run(words, env=study.env, check=True, capture_output=True, text=True).stdout.strip()
    first = study.run()
    until(lambda: len(jobs(study)) == 2)
    first.kill()
    first.communicate(timeout=30)
    second = study.run()
    study.wait_for("launch", 2)
    time.sleep(2)
    assert len(jobs(study)) == 2
    second.send_signal(signal.SIGINT)
    _, told = second.communicate(timeout=60)
    assert second.returncode == 130, told
    assert [line.split()[0] for line in jobs(study)] == [other]


@pytest.mark.slow
def test_a_node_that_vanishes_ends_the_launch(tmp_path: Path, slurm: dict[str, str]) -> None:
    study = TwoRanks(tmp_path, MACHINE, slurm, output=8000)
    run = study.run()
    study.wait_for("cell")
    lose("slurm", tmp_path / "slurm", "node1")
    _, told = run.communicate(timeout=180)
    assert run.returncode == 1, told
    assert "vllm" in study.why()
    assert study.states() == ["waiting", "waiting"]
    assert study.ranks_alive() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "problem"),
    [
        ("{partition: nope}", "Slurm refuses the job: Batch job submission failed: Invalid partition name specified"),
        ("{partition: main, options: [--nodes=9]}", "Slurm would keep the job waiting for ever (Partition"),
        ("{partition: main, options: [--gres=gpu:4]}", "Slurm refuses the job: "),
        ("{partition: main, python: /no/such/python}", "the client on node0 ended with exit code 127: "),
        ('{partition: main, setup: ["exit 3"]}', "of vllm ended "),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line(tmp_path: Path, slurm: dict[str, str], machine: str, problem: str) -> None:
    study = TwoRanks(tmp_path, machine, slurm)
    run = study.run()
    _, told = run.communicate(timeout=120)
    assert run.returncode == 1
    assert "Traceback" not in told
    failed = [line for line in told.splitlines() if line.startswith("failed")]
    assert problem in failed[0]
    assert (jobs(study), study.ranks_alive()) == ([], [])


def test_without_slurm_one_is_told_so(tmp_path: Path) -> None:
    study = TwoRanks(tmp_path, MACHINE, {"PATH": "/usr/bin:/bin"})
    run = study.run()
    _, told = run.communicate(timeout=60)
    assert run.returncode == 1
    assert "here; run the study on a host where jobs are submitted" in told


def test_a_job_asks_for_what_the_deployment_and_the_file_say(tmp_path: Path) -> None:
    machine = "{partition: h200, account: lab, qos: high, time: 90m, setup: [module load cuda]}"
    study = TwoRanks(tmp_path, machine, {})
    study.path.write_text(study.path.read_text().replace("2xcpu/tp2", "16xh200/tp16"))
    read = read_study(study.path)
    (launch,) = plan_study(read)
    from loadstone.studies.commands import commands_of, node_addresses

    made = SlurmMachine(read.study.machines["nodes"], read.study.engines, read.study.limits, "two")
    commands = commands_of(launch, read.study.engines["vllm"], node_addresses(2), 8000)
    script = made.script(launch, commands, tmp_path / "a folder", "job")
    for line in ("--nodes=2", "--gpus-per-node=8", "--partition=h200", "--account=lab", "--qos=high", "--time=90",
                 "--no-requeue", "--exclusive"):  # fmt: skip
        assert f"#SBATCH {line}\n" in script
    assert "\nmodule load cuda\n" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    assert '--master-addr "${addresses[0]}"' in script
    assert "LOADSTONE-NODE" not in script


def test_a_world_of_mpi_is_one_step_with_a_task_for_each_gpu(tmp_path: Path) -> None:
    study = TwoRanks(tmp_path, "{partition: h200}", {})
    study.path.write_text(study.path.read_text().replace("2xcpu/tp2", "16xh200/tp16"))
    read = read_study(study.path)
    (launch,) = plan_study(read)
    from loadstone.engines import launch_named
    from loadstone.engines.launch import Site
    from loadstone.studies.commands import node_addresses

    text = "deepseek-v3@16xh200/tp16,nodes=2,engine=tensorrt-llm,prefix_caching=0"
    commands = launch_named(text, Site(nodes=node_addresses(2)))
    made = SlurmMachine(read.study.machines["nodes"], read.study.engines, read.study.limits, "two")
    script = made.script(launch, commands, tmp_path, "job")
    assert "#SBATCH --ntasks-per-node=8\n" in script
    assert "srun --nodes=2 --ntasks-per-node=8 --mpi=pmix " in script
    assert f"--config {tmp_path}/trtllm.yaml" in script
    assert "enable_block_reuse: false" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
