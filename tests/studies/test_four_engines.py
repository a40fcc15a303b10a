"""One study over four real engines on this processor: launched, killed, taken up again, and
reported."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from conftest import Loadstone
from engines import tiny_model
from engines.launch import _HOMES, RECIPES, environment
from loadstone.studies.file import read_study
from loadstone.studies.journal import read_entries
from loadstone.studies.plan import plan_study
from loadstone.studies.supervise import find_run
from test_study_run import engines_are_gone, start

pytestmark = pytest.mark.process

ARGUMENTS = {
    "vllm": {
        "dtype": "float32",
        "max-model-len": 4096,
        "max-num-seqs": 16,
        "enforce-eager": True,
        "block-size": 32,
    },
    "transformers": {
        "device": "cpu",
        "dtype": "float32",
        "cb-num-blocks": 512,
        "cb-max-batch-tokens": 512,
    },
    "sglang": {
        "dtype": "float32",
        "max-total-tokens": 16384,
        "max-running-requests": 8,
        "sleep-on-idle": True,
    },
}
PROGRAMS = {"vllm": "vllm", "transformers": "transformers", "sglang": "sglang-cpu"}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in PROGRAMS:
        if not (_HOMES / name / "setup.stamp").is_file():
            pytest.skip(f"scripts/engines/{name} has not been run")
    for name in set(os.environ) - set(environment()):
        monkeypatch.delenv(name)
    model, cache = tmp_path / "tiny", tmp_path / "huggingface"
    tiny_model.write(model)
    (cache / "hub").mkdir(parents=True)
    setting = {"HF_HOME": str(cache), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    installed = {
        name: {
            "program": str(_HOMES / name / "bin" / program),
            "model": str(model),
            "args": ARGUMENTS[name],
            "env": setting
            | RECIPES[{"vllm": "vLLM", "sglang": "SGLang"}.get(name, name)].environment,
        }
        for name, program in PROGRAMS.items()
    }
    path = tmp_path / "four.yaml"
    study = {
        "study": "four",
        "engines": {"llama.cpp": {}, **installed},
        "deployments": {"engine": ["llama.cpp", *installed]},
        "workloads": {"short": {"input": 64, "output": 16}, "long": {"input": 512, "output": 16}},
        "loads": {"concurrency": [1, 4], "requests": 8, "warmup": 2},
        "repeats": 2,
        "limits": {"ready": "10m"},
    }
    path.write_bytes(msgspec.yaml.encode(study))
    return path


@pytest.mark.slow
def test_four_engines_are_measured_killed_taken_up_again_and_reported(
    path: Path, loadstone: Loadstone
) -> None:
    folder = path.parent / "out" / "four"
    launches = plan_study(read_study(path))
    measured_by = {cell.id: launch.engine for launch in launches for cell in launch.cells}
    assert len(measured_by) == 4 * 2 * 2 * 2

    def done() -> Counter[str]:
        return Counter(
            entry.cell for entry in read_entries(folder) if entry.event == "done" and entry.cell
        )

    for victim in PROGRAMS:  # each in the middle of its first launch
        run = start(path)
        while run.poll() is None and victim not in map(measured_by.get, done()):
            time.sleep(0.2)
        os.kill(run.pid, signal.SIGKILL)
        run.communicate()
        assert engines_are_gone(folder), f"{victim} was left behind"

    last = start(path)
    _, said = last.communicate(timeout=1800)
    assert last.returncode == 0, said
    assert done() == dict.fromkeys(measured_by, 1)
    assert all(find_run(folder, cell) for launch in launches for cell in launch.cells)

    page = path.parent / "four.html"
    outcome = loadstone("report", folder / "cells", "-o", page)
    assert outcome.code == 0, outcome.err
    text = page.read_text()
    assert all(engine in text for engine in measured_by.values())
