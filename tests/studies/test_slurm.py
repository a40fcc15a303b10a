"""The job that a study submits to Slurm."""

from __future__ import annotations

import subprocess
from pathlib import Path

from clusters import TwoRanks
from loadstone.engines import launch_named
from loadstone.engines.launch import Site
from loadstone.studies.commands import commands_of, node_addresses
from loadstone.studies.file import read_study
from loadstone.studies.machines.slurm import SlurmMachine
from loadstone.studies.plan import plan_study


def test_without_slurm_one_is_told_so(tmp_path: Path) -> None:
    study = TwoRanks(tmp_path, "{partition: main}", {"PATH": "/usr/bin:/bin"})
    told = study.run(code=1)
    assert "here; run the study on a host where jobs are submitted" in told


def test_a_job_asks_for_what_the_deployment_and_the_file_say(tmp_path: Path) -> None:
    machine = "{partition: h200, account: lab, qos: high, time: 90m, setup: [module load cuda]}"
    study = TwoRanks(tmp_path, machine, {})
    study.path.write_text(study.path.read_text().replace("2xcpu/tp2", "16xh200/tp16"))
    read = read_study(study.path)
    (launch,) = plan_study(read)
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
    text = "deepseek-v3@16xh200/tp16,nodes=2,engine=tensorrt-llm,prefix_caching=0"
    commands = launch_named(text, Site(nodes=node_addresses(2)))
    made = SlurmMachine(read.study.machines["nodes"], read.study.engines, read.study.limits, "two")
    script = made.script(launch, commands, tmp_path, "job")
    assert "#SBATCH --ntasks-per-node=8\n" in script
    assert "srun --nodes=2 --ntasks-per-node=8 --mpi=pmix " in script
    assert f"--config {tmp_path}/trtllm.yaml" in script
    assert "enable_block_reuse: false" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
