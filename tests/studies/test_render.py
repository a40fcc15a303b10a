"""Studies as files for dstack, Kubernetes and Slurm: valid by their own models, and run by a real
shell."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import Loadstone

ROOT = Path(__file__).resolve().parents[2]
CHECKER = ROOT / ".cache" / "engines" / "manifests" / "bin" / "python"
STUDY = """\
study: two
model: deepseek-ai/DeepSeek-V3
engines: {{{engine}: {{image: "maker/image:1", args: {{tag: "it's $(HOME)"}}, env: {{A: "b c"}}}}}}
deployments: {{engine: [{engine}], layout: ["{layout}"]}}
repeats: 2
machines:
  cloud: {{dstack: {{max_duration: 2h, resources: {{disk: 1TB..}}}}, setup: ["echo ready"]}}
  k8s:
    time: 2h
    kubernetes: {{namespace: lab, pod: {{nodeSelector: {{a: b}}}}, container: {{env: [{{name: X, value: y}}]}}}}
  slurm: {{partition: main}}
  here: {{local: true}}
"""


def study(folder: Path, layout: str = "16xh200/tp16,nodes=2", engine: str = "sglang") -> Path:
    path = folder / "study.yaml"
    path.write_text(STUDY.format(layout=layout, engine=engine))
    return path


def documents(loadstone: Loadstone, path: Path, machine: str) -> list[dict[str, Any]]:
    printed = loadstone("study", "run", path, "--on", machine, "--dry-run")
    assert printed.code == 0, printed.err
    return [each for each in yaml.safe_load_all(printed.out) if each]


def argv(script: str, folder: Path, program: str, **variables: str) -> list[str]:
    """The words with which a script starts its engine."""
    stand_in = folder / "bin" / program
    stand_in.parent.mkdir(exist_ok=True)
    stand_in.write_text('#!/bin/sh\nfor each in "$@"; do printf "%s\\n" "$each"; done\n')
    stand_in.chmod(0o755)
    env = {"PATH": f"{stand_in.parent}:{os.environ['PATH']}", **variables}
    done = subprocess.run(["sh", "-c", script], env=env, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def value(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


@pytest.mark.process
def test_a_task_of_two_nodes_starts_each_rank_with_its_own_command(
    tmp_path: Path, loadstone: Loadstone
) -> None:
    (task,) = documents(loadstone, study(tmp_path), "cloud")
    assert (task["nodes"], task["image"], task["max_duration"]) == (2, "maker/image:1", "2h")
    assert task["env"] == ["HF_TOKEN", "A=b c"]
    assert task["resources"]["gpu"] == {"name": "H200", "memory": "120GB..162GB", "count": 8}
    assert task["resources"]["disk"] == "1TB.."
    (script,) = task["commands"]
    for rank in ("0", "1"):
        known = {
            "DSTACK_NODE_RANK": rank,
            "DSTACK_MASTER_NODE_IP": "10.0.0.1",
            "DSTACK_NODES_IPS": "10.0.0.1\n10.0.0.2",
        }
        ready, *words = argv(script, tmp_path, "sglang", **known)
        assert ready == "ready"
        assert (value(words, "--node-rank"), value(words, "--dist-init-addr")) == (
            rank,
            "10.0.0.1:20000",
        )
        assert (value(words, "--host"), value(words, "--port")) == ("0.0.0.0", "8000")
        assert value(words, "--tag") == "it's $(HOME)"


@pytest.mark.process
def test_a_job_of_two_pods_starts_each_rank_with_its_own_command(
    tmp_path: Path, loadstone: Loadstone
) -> None:
    service, job = documents(loadstone, study(tmp_path), "k8s")
    name = job["metadata"]["name"]
    assert (service["metadata"]["name"], job["metadata"]["namespace"]) == (name, "lab")
    assert (job["spec"]["completions"], job["spec"]["completionMode"]) == (2, "Indexed")
    assert job["spec"]["activeDeadlineSeconds"] == 7200
    pod = job["spec"]["template"]["spec"]
    assert (pod["subdomain"], pod["nodeSelector"]) == (name, {"a": "b"})
    (container,) = pod["containers"]
    assert container["env"] == [{"name": "A", "value": "b c"}, {"name": "X", "value": "y"}]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 8}}
    script = container["command"][2].replace("$$(", "$(")  # as Kubernetes does
    for rank in ("0", "1"):
        words = argv(script, tmp_path, "sglang", JOB_COMPLETION_INDEX=rank)
        assert (value(words, "--node-rank"), value(words, "--dist-init-addr")) == (
            rank,
            f"{name}-0.{name}:20000",
        )
        assert value(words, "--tag") == "it's $(HOME)"


@pytest.mark.process
def test_files_of_an_engine_are_written_where_it_starts(
    tmp_path: Path, loadstone: Loadstone
) -> None:
    path = study(tmp_path, "8xh200/tp8,kv=fp8", "tensorrt-llm")
    (task,) = documents(loadstone, path, "cloud")
    (script,) = task["commands"]
    words = argv(script.replace("/tmp/", f"{tmp_path}/"), tmp_path, "trtllm-serve")
    config = yaml.safe_load(Path(value(words[1:], "--config")).read_text())
    assert config["kv_cache_config"]["dtype"] == "fp8"
    assert "nodes" not in task


@pytest.mark.process
def test_slurm_gets_a_script(tmp_path: Path, loadstone: Loadstone) -> None:
    out = tmp_path / "scripts"
    done = loadstone(
        "study",
        "run",
        study(tmp_path),
        "--on",
        "slurm",
        "--render",
        out,
        "--out",
        tmp_path / "studies",
    )
    assert done.code == 0, done.err
    (script,) = out.glob("*.sh")
    assert "mkdir -p " in done.out
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    assert "#SBATCH --gpus-per-node=8\n" in script.read_text()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--on", "cloud"), ":7:3: cloud: studies are not run by dstack, only rendered for it; run --render FOLDER "
         "writes the files; start one, and measure it as an engine with url:"),
        (("--on", "here", "--render", "x"), "--render: here is of kind local, which takes commands; see --dry-run"),
        (("--on", "nowhere", "--dry-run"), "--on nowhere: no such machine in "),
        (("--on", "cloud", "--render", "/dev/null/x"), "/dev/null/x"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line(
    tmp_path: Path, loadstone: Loadstone, words: tuple[str, ...], problem: str
) -> None:
    done = loadstone("study", "run", study(tmp_path), *words, "--out", tmp_path / "studies")
    assert done.code == 2
    assert problem in done.err
    assert len(done.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('image: "maker/image:1", ', "", ":3:11: sglang has no image, and dstack runs images; write image: under it"),
        ("{dstack: {", "{local: true, dstack: {", "2 of local, ssh, partition, ray, dstack, kubernetes; write one"),
        ("setup: [", "account: lab, setup: [", "account: a machine of kind dstack has none"),
        ("{namespace: lab,", "{namespaces: lab,", "namespaces: no such key here"),
    ],
)  # fmt: skip
def test_what_a_file_lacks_is_one_line(
    tmp_path: Path, loadstone: Loadstone, old: str, new: str, problem: str
) -> None:
    path = study(tmp_path)
    path.write_text(path.read_text().replace(old, new))
    done = loadstone("study", "run", path, "--on", "cloud", "--dry-run")
    assert done.code == 2
    assert problem in done.err


def test_secrets_are_in_no_file(
    tmp_path: Path, loadstone: Loadstone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_s3cret")
    for machine in ("cloud", "k8s", "slurm"):
        assert (
            "hf_s3cret"
            not in loadstone("study", "run", study(tmp_path), "--on", machine, "--dry-run").out
        )


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("machine", ["cloud", "k8s"])
def test_files_are_valid_by_the_schedulers_own_models(
    tmp_path: Path, loadstone: Loadstone, machine: str
) -> None:
    if not CHECKER.exists():
        pytest.skip("scripts/engines/manifests has not been run")
    example = (ROOT / "examples" / "dstack_deepseek_r1.yaml").read_text()
    example = example.replace("tensorrt-llm: {}", 'tensorrt-llm: {image: "a/trtllm:1"}').replace(
        "{version: ", '{image: "a/b:1", version: '
    )
    path = tmp_path / "example.yaml"
    path.write_text(f"{example}machines: {{cloud: {{dstack: {{}}}}, k8s: {{kubernetes: {{}}}}}}\n")
    layouts = [
        "8xa100-40gb/tp8",
        "8xa100/tp8",
        "1xh100-nvl/tp1",
        "8xb200/tp8",
        "8xmi325x/tp8",
        "4xl40s/tp4",
        "1xcpu/tp1",
    ]
    paths = [path, study(tmp_path)]
    for i, layout in enumerate(layouts):
        (tmp_path / str(i)).mkdir()
        paths.append(study(tmp_path / str(i), layout, "vllm"))
    out = tmp_path / "files"
    for each in paths:
        done = loadstone("study", "run", each, "--on", machine, "--render", out)
        assert done.code == 0, done.err
    files = sorted(out.iterdir())
    assert len(files) == 5 + 1 + len(layouts)
    assert problems(*files) == ["valid"] * len(files) * (2 if machine == "k8s" else 1)
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(files[0].read_text().replace("nodes:", "node:").replace("image: ", "imagee: "))
    assert "imagee" in problems(wrong)[-1], "what is wrong does not pass"


def problems(*files: Path) -> list[str]:
    command = [CHECKER, ROOT / "tests" / "studies" / "check_manifests.py", *files]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
