"""The job that a study submits to Slurm."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from clusters import TwoRanks
from loadstone.engines import launch_named
from loadstone.engines.launch import Site
from loadstone.measure.engines.launch import LaunchError
from loadstone.studies.commands import commands_of, node_addresses
from loadstone.studies.file import EngineSettings, read_study
from loadstone.studies.machines.slurm import SlurmJob, SlurmMachine, SlurmRanks
from loadstone.studies.plan import plan_study


@pytest.mark.process
def test_without_slurm_one_is_told_so(tmp_path: Path) -> None:
    study = TwoRanks(tmp_path, "{partition: main}", {"PATH": "/usr/bin:/bin"})
    told = study.run(code=1)
    assert "here; run the study on a host where jobs are submitted" in told


@pytest.mark.process
def test_a_job_asks_for_what_the_deployment_and_the_file_say(tmp_path: Path) -> None:
    machine = "{partition: h200, account: lab, qos: high, time: 90m, setup: [module load cuda]}"
    study = TwoRanks(tmp_path, machine, {})
    study.path.write_text(study.path.read_text().replace("2xcpu/tp2", "16xh200/tp16"))
    read = read_study(study.path)
    (launch,) = plan_study(read)
    made = SlurmMachine(read.study.machines["nodes"], read.study)
    commands = commands_of(launch, node_addresses(2), 8000)
    script = made.script(launch, commands, tmp_path / "a folder", "job")
    for line in ("--nodes=2", "--gpus-per-node=8", "--partition=h200", "--account=lab", "--qos=high", "--time=90",
                 "--no-requeue", "--exclusive"):  # fmt: skip
        assert f"#SBATCH {line}\n" in script
    assert "\nmodule load cuda\n" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    assert '--master-addr "${addresses[0]}"' in script
    assert "LOADSTONE-NODE" not in script


@pytest.mark.process
def test_a_world_of_mpi_is_one_step_with_a_task_for_each_gpu(tmp_path: Path) -> None:
    study = TwoRanks(tmp_path, "{partition: h200}", {})
    study.path.write_text(study.path.read_text().replace("2xcpu/tp2", "16xh200/tp16"))
    read = read_study(study.path)
    (launch,) = plan_study(read)
    text = "deepseek-v3@16xh200/tp16,nodes=2,engine=tensorrt-llm,prefix_caching=0"
    commands = launch_named(text, Site(nodes=node_addresses(2)))
    made = SlurmMachine(read.study.machines["nodes"], read.study)
    script = made.script(launch, commands, tmp_path, "job")
    assert "#SBATCH --ntasks-per-node=8\n" in script
    assert "srun --nodes=2 --ntasks-per-node=8 --mpi=pmix " in script
    assert f"--config {tmp_path}/trtllm.yaml" in script
    assert "enable_block_reuse: false" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


def test_a_node_that_slurm_has_lost_is_named(tmp_path: Path) -> None:
    def answer(*words: str) -> str:
        if words[0] == "squeue":
            return "7|job|NODE_FAIL|n[1-2]|NodeDown\n".replace("|job", "")
        return f"NodeName={words[3]} State={'DOWN*' if words[3] == 'n2' else 'IDLE'}"

    commands = launch_named(
        "deepseek-v3@16xh200/tp16,nodes=2,engine=sglang", Site(nodes=("n1", "n2"))
    )
    for i in range(2):
        (tmp_path / f"rank-{i}.log").touch()
    (tmp_path / "rank-0.exit").write_text("143")  # ended by Slurm, as the other is gone
    ranks = SlurmRanks(
        commands, tmp_path, SlurmJob(7, "job", "RUNNING", ("n1", "n2"), "None"), answer
    )
    with pytest.raises(LaunchError, match=r"node n2 is lost \(DOWN\*\)"):
        ranks.check()


@pytest.mark.process
def test_a_study_file_says_what_a_container_gets_and_the_remote_cache_is_mounted(
    tmp_path: Path,
) -> None:
    study = TwoRanks(tmp_path, "{partition: h200}", {})
    study.path.write_text(study.path.read_text().replace("2xcpu/tp2", "16xh200/tp16"))
    read = read_study(study.path)
    (launch,) = plan_study(read)
    engine = EngineSettings(
        image="a/b:1",
        mounts=("/data:/data",),
        devices=("/dev/infiniband",),
        options=("--privileged",),
        env={"A": "b"},
    )
    launch = launch._replace(settings=engine)
    script = SlurmMachine(read.study.machines["nodes"], read.study).render(launch, tmp_path)
    assert (
        '--volume "$HOME"/.cache/huggingface:/root/.cache/huggingface --volume /data:/data'
        in script
    )
    assert "--device /dev/infiniband --gpus all" in script
    assert "--env A=b --privileged " in script
    here = commands_of(launch, (), 8000, here=True).ranks[0].argv
    assert f"{Path.home()}/.cache/huggingface:/root/.cache/huggingface" in here
