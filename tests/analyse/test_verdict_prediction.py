"""What a simulated cell says of what its prediction stands on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import loadstone
from loadstone.analyse.verdict.run import prediction_findings
from loadstone.catalogue.deployment.shorthand import parse_worker
from loadstone.core import run_folder
from loadstone.predict.step_time.profile import profile_of, save, unmeasured
from verdict_cells import info_of


def test_a_profile_of_ones_own_was_measured(tmp_path: Path) -> None:
    deployed = parse_worker("llama-3.1-8b@1xmi300x/version=0.7.3")
    import msgspec

    own = save(msgspec.structs.replace(profile_of(deployed), name="mine"), tmp_path)
    assert unmeasured(deployed, profile_of(deployed, str(own))) == ""


def findings(tmp_path: Path, deployment: str, **options: Any) -> dict[str, Any]:
    done = loadstone.simulate(
        deployment,
        concurrency="2",
        input="64",
        output="8",
        requests=4,
        out=tmp_path,
        draws=0,
        **options,
    ).document()
    (cell,) = done["cells"] if isinstance(done, dict) else done.summary().document()["cells"]
    found = {each["kind"]: each for each in cell["verdict"]["findings"]}
    assert cell["verdict"]["trusted"] == all(each["severity"] == "info" for each in found.values())
    return found


def test_a_simulated_scheduler_works_under_the_lengths_that_are_asked(tmp_path: Path) -> None:
    """Of Gemma's windows most are what a request of 1,280 tokens keeps."""
    for prompt, least, most in (("1152", 25, 32), ("8064", 10, 12)):
        done = loadstone.simulate(
            "gemma-3-27b@1xh100",
            concurrency="2",
            input=prompt,
            output="128",
            requests=4,
            out=tmp_path,
            draws=0,
        ).document()
        policy = run_folder.read_info(Path(done["run_dir"])).settings.policy
        assert least <= policy["kv_blocks"] * policy["block_tokens"] / (int(prompt) + 128) <= most


def test_another_vendors_gpu_is_a_warning_and_a_release_is_none(tmp_path: Path) -> None:
    far = findings(tmp_path, "qwen3-30b-a3b@1xmi300x")["unmeasured"]
    assert far["severity"] == "warning"
    assert "vllm of today on cdna 3" in far["evidence"]
    assert "on other vendors' GPUs" in far["evidence"]
    assert far["remedy"].endswith("`loadstone calibrate` before you buy on these numbers.")
    near = findings(tmp_path, "llama-3.1-8b@1xa100/engine=sglang")["unmeasured"]
    assert near["severity"] == "info"
    assert "elsewhere" in near["evidence"]
    assert near["remedy"].endswith("`loadstone calibrate`.")
    assert "unmeasured" not in findings(tmp_path, "llama-3.1-8b@1xh100")
    # Of AMD's present releases vLLM 0.10 was measured, with dense models.
    assert "unmeasured" not in findings(tmp_path, "llama-3.1-8b@1xmi300x/version=0.10.0")
    assert findings(tmp_path, "llama-3.1-8b@1xmi300x")["unmeasured"]["severity"] == "info"
    assert (
        findings(tmp_path, "llama-3.1-8b@1xmi300x/engine=sglang")["unmeasured"]["severity"]
        == "warning"
    )
    assert findings(tmp_path, "llama-3.1-8b@1xmi355x")["unmeasured"]["severity"] == "warning"


def test_an_engine_that_was_measured_nowhere_is_a_warning(tmp_path: Path) -> None:
    found = findings(tmp_path, "llama-3.1-8b:int4@1xrtx-3090/engine=llama.cpp")["unmeasured"]
    assert found["severity"] == "warning"
    assert "elsewhere, with other engines" in found["evidence"]


def test_drafts_that_were_assumed(tmp_path: Path) -> None:
    assert "drafts_assumed" not in findings(tmp_path, "llama-3.1-8b@1xh100")
    deployment = "llama-3.1-8b@1xh100/num_speculative_tokens=2"
    found = findings(tmp_path, deployment)["drafts_assumed"]
    assert "70%" in found["evidence"]
    assert "no memory" in found["evidence"]
    assert "draft=MODEL" in found["remedy"]
    assert found["severity"] == "warning"
    # What it costs is no less a guess where the acceptance is known.
    known = findings(tmp_path, deployment, acceptance=0.7)["drafts_assumed"]
    assert known["severity"] == "warning"
    assert "70%" not in known["evidence"]
    assert "--acceptance" not in known["remedy"]


@pytest.mark.parametrize(
    ("deployment", "draft"),
    [
        ("deepseek-r1@8xh200/tp8,num_speculative_tokens=1", "the model's own layers"),
        (
            "llama-3.1-8b@1xh100/num_speculative_tokens=2,draft=llama-3.2-1b",
            "meta-llama/Llama-3.2-1B",
        ),
    ],
)
def test_a_draft_that_is_known_leaves_the_acceptance(
    tmp_path: Path, deployment: str, draft: str
) -> None:
    found = findings(tmp_path, deployment)["drafts_assumed"]
    assert found["severity"] == "info"
    assert f"the draft is {draft}" in found["evidence"]
    assert "drafts_assumed" not in findings(tmp_path, deployment, acceptance=0.7)


def test_runs_of_before_say_whose_the_draft_is_otherwise() -> None:
    (own,) = prediction_findings(
        info_of(settings={"basis": {"assumed_acceptance": 0.7, "own_draft": True}})
    )
    (none,) = prediction_findings(
        info_of(settings={"basis": {"assumed_acceptance": 0.7, "own_draft": False}})
    )
    assert [own.severity, none.severity] == ["info", "warning"]


@pytest.mark.parametrize(
    ("deployment", "nodes"),
    [
        ("deepseek-v3@8xh200/tp8,engine=sglang", 1),
        ("deepseek-v3@16xh200/tp16,engine=sglang", 2),
        ("deepseek-v3@16xh200/tp8,pp2,engine=sglang", 2),
        ("deepseek-v3@32xh200/tp1,dp32,ep8,attention-dp,engine=sglang", 4),
        ("deepseek-v3@16xh200/tp8,dp2,engine=sglang", 1),  # each replica within a node
        ("deepseek-v3@16xgb200/tp16,engine=sglang", 1),  # NVLink holds 72
        ("deepseek-v3@16xgb200/tp16,nodes=4,engine=sglang", 1),  # of which four trays are a part
    ],
)
def test_no_point_crosses_nodes(tmp_path: Path, deployment: str, nodes: int) -> None:
    assert parse_worker(deployment).nodes_crossed == nodes
    found = findings(tmp_path, deployment)
    assert ("network_guessed" in found) == (nodes > 1)
    if nodes > 1:
        assert found["network_guessed"]["severity"] == "warning"
        assert f"{nodes} nodes" in found["network_guessed"]["evidence"]


def test_the_exchange_of_experts_over_nodes_was_measured(tmp_path: Path) -> None:
    deployment = "deepseek-v3@32xh200/tp1,dp32,ep32,engine=sglang"
    assert parse_worker(deployment).nodes_crossed == 4
    assert "network_guessed" not in findings(tmp_path, deployment)


def test_a_profile_of_ones_own_may_have_crossed_them(tmp_path: Path) -> None:
    import msgspec

    deployment = "deepseek-v3@16xh200/tp16,engine=sglang"
    own = save(msgspec.structs.replace(profile_of(parse_worker(deployment)), name="mine"), tmp_path)
    assert "network_guessed" not in findings(tmp_path, deployment, profile=str(own))


def test_what_the_config_left_open(tmp_path: Path) -> None:
    config = {
        "model_type": "never-heard-of", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 128, "vocab_size": 256, "max_position_embeddings": 512,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = findings(tmp_path, f"{tmp_path / 'config.json'}@1xh100")
    assert "never-heard-of" in found["model_assumed"]["evidence"]


def test_what_only_starting_knows(tmp_path: Path) -> None:
    found = findings(tmp_path, "llama-3.1-8b@1xh100/attention_backend=FLASHINFER")
    assert "attention_backend=FLASHINFER is not simulated" in found["launch_only"]["evidence"]
    assert "launch_only" not in findings(tmp_path, "llama-3.1-8b@1xh100")


def test_runs_without_a_basis_say_nothing() -> None:
    assert list(prediction_findings(info_of())) == []
    assert list(prediction_findings(info_of(settings={"basis": None}))) == []
