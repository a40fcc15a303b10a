"""Batches through engines' own interfaces: the mechanics with a stand-in, slow ones with the
engines themselves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Loadstone, Outcome
from engines import tiny_model
from engines.launch import _HOMES

STAND_IN = """
import os, time, types
class Engine:
    def __init__(self, model_path, dies_at=0, seconds=0.0, full=False, more=0, broken=None, **arguments):
        print("noise on stdout", arguments, flush=True)
        if full:
            raise RuntimeError("CUDA out of memory")
        open(os.environ["PID_FILE"], "w").write(str(os.getpid()))
        self.calls, self.dies_at, self.seconds = 0, dies_at, seconds
        self.more, self.broken = more, broken
        config = types.SimpleNamespace(vocab_size=4096)
        self.tokenizer_manager = types.SimpleNamespace(model_config=config)
    def generate(self, input_ids, sampling_params):
        self.calls += 1
        if self.calls == self.dies_at:
            os._exit(3)
        time.sleep(self.seconds)
        answers = [
            {"meta_info": {"prompt_tokens": len(ids), "completion_tokens": each["max_new_tokens"]}}
            for ids, each in zip(input_ids, sampling_params)
        ]
        if self.broken is not None:
            answers[0]["meta_info"]["completion_tokens"] = float(self.broken)
        return answers[: self.more] if self.more < 0 else answers + answers[:1] * self.more
"""
Offline = Callable[..., Outcome]
BATCHES = ["--warmup", "0", "--batch", "2,4", "--input", "8", "--output", "3"]


@pytest.fixture
def engine(tmp_path: Path) -> list[str]:
    packages = tmp_path / "packages"
    (packages / "sglang-9.9.9.dist-info").mkdir(parents=True)
    (packages / "sglang-9.9.9.dist-info" / "METADATA").write_text("Name: sglang\nVersion: 9.9.9\n")
    (packages / "sglang.py").write_text(STAND_IN)
    environment = ["--env", f"PYTHONPATH={packages}", "--env", f"PID_FILE={tmp_path / 'pid'}"]
    return ["llama-3.1-8b@1xh100/engine=sglang", "--python", sys.executable, *environment]


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "loadstone.commands", "offline", *words]


@pytest.fixture
def offline(loadstone: Loadstone, tmp_path: Path) -> Offline:
    return lambda *words: loadstone("offline", *words, "--out", tmp_path / "runs")


@pytest.mark.process
def test_each_batch_is_a_cell_and_each_output_length_a_run(
    offline: Offline, engine: list[str]
) -> None:
    done = offline(*engine, *BATCHES[:-1], "3,5", "--json")
    assert done.code == 0, done.err
    for run, output in zip(done.document["runs"], (3, 5), strict=True):
        assert [cell["requests"]["ok"] for cell in run["cells"]] == [2, 4]
        for cell in run["cells"]:
            metrics = cell["metrics"]
            assert metrics["total_tokens_per_s"] / metrics["output_tokens_per_s"] == pytest.approx(
                (8 + output) / output
            )
        assert (run["target"]["endpoint"], run["target"]["engine_version"]) == ("offline", "9.9.9")
        assert "noise on stdout" in (Path(run["run_dir"]) / "engine.log").read_text()


@pytest.mark.process
def test_an_engine_that_dies_keeps_the_cells_before(
    tmp_path: Path, offline: Offline, engine: list[str]
) -> None:
    offline(*engine, *BATCHES, "-a", "dies_at=2")
    (path,) = tmp_path.glob("runs/*/summary.json")
    summary = json.loads(path.read_text())
    assert summary["cells"][0]["requests"]["ok"] == 2
    assert "exit code 3" in json.loads((path.parent / "run.json").read_text())["error"]


@pytest.mark.process
@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("more=1", "3 came for 2 prompts"),
        ("more=-1", "1 came for 2 prompts"),
        ("broken=nan", "they cannot be read"),
        ("broken=-3", "they cannot be read"),
    ],
)
def test_answers_that_cannot_be_are_one_line(
    offline: Offline, engine: list[str], argument: str, said: str
) -> None:
    failed = offline(*engine, *BATCHES, "-a", argument)
    assert (failed.code, said in failed.line()) == (2, True)


@pytest.mark.process
def test_a_full_memory_is_one_line(offline: Offline, engine: list[str]) -> None:
    assert "memory is full" in offline(*engine, *BATCHES, "-a", "full=true").line()


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_it(tmp_path: Path, engine: list[str], number: signal.Signals) -> None:
    owner = subprocess.Popen(command(*engine, *BATCHES, "-a", "seconds=60"), cwd=tmp_path)
    pid_file = tmp_path / "pid"
    wait_for(lambda: pid_file.exists() and pid_file.read_text() != "")
    wait_for(lambda: any(tmp_path.glob("runs/*/run.json")))
    owner.send_signal(number)
    owner.wait(30)
    wait_for(lambda: not Path(f"/proc/{pid_file.read_text()}").exists())
    if number == signal.SIGINT:
        (path,) = tmp_path.glob("runs/*/run.json")
        assert json.loads(path.read_text())["status"] == "interrupted"


def wait_for(met) -> None:  # type: ignore[no-untyped-def]
    deadline_s = time.monotonic() + 20
    while not met():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--output", ","], "--output"),
        (["--batch", "x"], "--batch"),
        (["--batch", "0"], "--batch"),
        (["--simulate", "--python", "x"], "--simulate"),
        (["--profile", "x"], "--profile"),
        (["-a", "=3"], "--argument"),
        (["--python", "/nowhere"], "--python /nowhere"),
    ],
)
def test_bad_input_is_one_line(offline: Offline, words: list[str], problem: str) -> None:
    assert problem in offline("llama-3.1-8b@1xh100/engine=vllm", *words).line()


def test_without_a_server_large_batches_of_a_small_model_are_simulated_faster(
    offline: Offline, loadstone: Loadstone, tmp_path: Path
) -> None:
    words = [
        "llama-3.1-8b@1xh100/engine=tensorrt-llm",
        "--input",
        "128",
        "--output",
        "64",
        "--warmup",
        "0",
    ]
    alone = offline(*words, "--batch", "512", "--simulate", "--json").cell["metrics"]
    load = ("--rate", "inf", "--requests", "512", "--out", tmp_path, "--json")
    served = loadstone("simulate", *words, *load).cell["metrics"]
    assert alone["output_tokens_per_s"] > 1.1 * served["output_tokens_per_s"]


STUB = Path(__file__).parents[1] / "engines" / "sglang_stub"
ENGINES = {
    "vllm": ("enforce_eager max_model_len=512", "VLLM_CPU_KVCACHE_SPACE=1 VLLM_NO_USAGE_STATS=1"),
    "sglang": (
        "device=cpu attention_backend=torch_native sampling_backend=pytorch max_total_tokens=16384",
        f"SGLANG_USE_CPU_ENGINE=1 CUDA_VISIBLE_DEVICES= PYTHONPATH={STUB}",
    ),
    "transformers": ("", ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ENGINES)
def test_engines_answer_batches_of_exact_lengths(
    tmp_path: Path, offline: Offline, name: str
) -> None:
    if not (_HOMES / name / "setup.stamp").is_file():
        pytest.skip(f"scripts/engines/{name} has not been run")
    tiny_model.write(tmp_path / "tiny")
    arguments, variables = ENGINES[name]
    settings = [word for each in ["dtype=float32", *arguments.split()] for word in ("-a", each)]
    settings += [
        word for each in ["HF_HUB_OFFLINE=1", *variables.split()] for word in ("--env", each)
    ]
    python = str(_HOMES / name / "bin" / "python3")
    deployment, batches = (
        f"{tmp_path / 'tiny'}@1xh100/engine={name}",
        ("--batch", "2,4", "--input", "16"),
    )
    done = offline(deployment, "--python", python, *settings, *batches, "--output", "8", "--json")
    assert done.code == 0, done.err
    for cell, batch in zip(done.document["cells"], (2, 4), strict=True):
        metrics = cell["metrics"]
        assert (cell["requests"]["ok"], cell["verdict"]["trusted"]) == (batch, True)
        assert (metrics["input_tokens"], metrics["output_tokens"]) == (16 * batch, 8 * batch)
        assert (metrics["ttft_s"] is not None) == (name == "vllm")
