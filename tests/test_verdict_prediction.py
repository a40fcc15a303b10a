"""What a simulated cell says of what its prediction stands on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import loadstone
from loadstone.catalogue.shorthand import parse_deployment
from loadstone.perfmodel.profile import profile_of, save, unmeasured
from loadstone.verdict import prediction_findings


@pytest.mark.parametrize(
    ("deployment", "what"),
    [
        ("llama-3.1-8b@1xh100", ""),
        ("llama-3.1-8b@1xa100/engine=sglang", "sglang on ampere"),
        ("llama-3.1-8b@1xh100/engine=llama.cpp", "llama.cpp on hopper"),
        ("llama-3.1-8b@1xmi300x", "vllm of today on cdna 3"),
        ("deepseek-r1@8xmi300x/tp8,version=0.7.3", ""),  # of that time there are some
        ("llama-3.1-8b@1xgaudi3", "vllm on gaudi 3"),
    ],
)
def test_of_what_nothing_was_measured(deployment: str, what: str) -> None:
    deployed = parse_deployment(deployment)
    assert unmeasured(deployed, profile_of(deployed)) == what


def test_a_profile_of_ones_own_was_measured(tmp_path: Path) -> None:
    deployed = parse_deployment("llama-3.1-8b@1xmi300x")
    import msgspec

    own = save(msgspec.structs.replace(profile_of(deployed), name="mine"), tmp_path)
    assert unmeasured(deployed, profile_of(deployed, str(own))) == ""


def findings(tmp_path: Path, deployment: str, **options: Any) -> dict[str, Any]:
    done = loadstone.simulate(
        deployment, concurrency="2", input="64", output="8", requests=4, out=tmp_path, draws=0, **options
    )
    (cell,) = done["cells"] if isinstance(done, dict) else done.summary()["cells"]
    found = {each["kind"]: each for each in cell["verdict"]["findings"]}
    assert cell["verdict"]["trusted"] == all(each["severity"] == "info" for each in found.values())
    return found


def test_another_vendors_gpu_is_a_warning_and_a_release_is_none(tmp_path: Path) -> None:
    far = findings(tmp_path, "llama-3.1-8b@1xmi300x")["unmeasured"]
    assert far["severity"] == "warning"
    assert "vllm of today on cdna 3" in far["evidence"]
    assert "on other vendors' GPUs" in far["evidence"]
    assert far["remedy"].endswith("`loadstone calibrate` before you buy on these numbers.")
    near = findings(tmp_path, "llama-3.1-8b@1xa100/engine=sglang")["unmeasured"]
    assert near["severity"] == "info"
    assert "elsewhere" in near["evidence"]
    assert near["remedy"].endswith("`loadstone calibrate`.")
    assert "unmeasured" not in findings(tmp_path, "llama-3.1-8b@1xh100")


def test_drafts_that_were_assumed(tmp_path: Path) -> None:
    assert "drafts_assumed" not in findings(tmp_path, "llama-3.1-8b@1xh100")
    deployment = "llama-3.1-8b@1xh100/num_speculative_tokens=2"
    said = findings(tmp_path, deployment)["drafts_assumed"]["evidence"]
    assert "70%" in said
    assert "takes no memory" in said
    assert "drafts_assumed" not in findings(tmp_path, deployment, acceptance=0.7)
    own = "deepseek-r1@8xh200/tp8,num_speculative_tokens=1"
    assert "the model's own layer" in findings(tmp_path, own)["drafts_assumed"]["evidence"]


def test_what_the_config_left_open(tmp_path: Path) -> None:
    config = {
        "model_type": "never-heard-of", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 128, "vocab_size": 256, "max_position_embeddings": 512,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = findings(tmp_path, f"{tmp_path / 'config.json'}@1xh100")
    assert "never-heard-of" in found["model_assumed"]["evidence"]


def test_runs_without_a_basis_say_nothing() -> None:
    assert prediction_findings({}) == []
    assert prediction_findings({"basis": None}) == []
