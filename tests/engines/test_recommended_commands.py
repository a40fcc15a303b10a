"""What is printed is what was planned: checkpoints by name and precision, and all that would not
start."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from engines.recommended import RECOMMENDED
from loadstone.catalogue import parse_worker
from loadstone.catalogue.checkpoints import published
from loadstone.commands import app
from loadstone.core.errors import InputError
from loadstone.engines import launch_named, launch_of
from loadstone.engines.launch import Site


@pytest.mark.parametrize(("deployment", "words", "warning"), RECOMMENDED)
def test_a_recommended_command_passes_a_dry_run_with_its_warnings(
    deployment: str, words: str, warning: str
) -> None:
    done = CliRunner().invoke(app, ["launch", deployment, "--dry-run"])
    assert done.exit_code == 0, done.output
    assert words in f"{done.stdout} "
    assert warning in done.stderr
    if not warning:
        assert done.stderr == ""


@pytest.mark.parametrize(
    ("deployment", "why"),
    [
        (
            "qwen3-235b-a22b:fp8@8xh100/tp8",
            "tp8 cuts an expert's 1536 to 192, which the checkpoint's blocks of 128",
        ),
        ("qwen3-14b@16xl40s/tp16", "tp16 does not divide the 40 attention heads"),
        ("qwen3-8b@1xmi300x/engine=tensorrt-llm", "tensorrt-llm runs on NVIDIA's GPUs alone"),
        (
            "qwen3-14b@prefill=16xl40s/tp16+decode=2xl40s/tp2,engine=vllm",
            "tp16 does not divide the 40 attention",
        ),
    ],
)
def test_what_the_engine_will_not_start_is_said_with_its_command(deployment: str, why: str) -> None:
    done = CliRunner().invoke(app, ["launch", deployment, "--dry-run"])
    assert done.exit_code == 0, done.output
    (line,) = [each for each in done.stderr.splitlines() if "will not start" in each]
    assert line.startswith("loadstone: this will not start: ")
    assert why in line


@pytest.mark.parametrize(
    ("name", "checkpoint"),
    [
        ("llama-3.1-70b", "meta-llama/Meta-Llama-3.1-70B"),
        ("llama-3.1-70b-instruct", "meta-llama/Llama-3.1-70B-Instruct"),
        ("llama-3.3-70b", "meta-llama/Llama-3.3-70B-Instruct"),
        ("llama-3.3-70b-instruct", "meta-llama/Llama-3.3-70B-Instruct"),
        ("deepseek-r1-0528", "deepseek-ai/DeepSeek-R1-0528"),
        ("deepseek-v3.1", "deepseek-ai/DeepSeek-V3.1"),
        ("glm-4.6", "zai-org/GLM-4.6"),
        ("gemma-3-27b", "google/gemma-3-27b-it"),
        ("nvidia/DeepSeek-R1-0528-FP4", "nvidia/DeepSeek-R1-0528-FP4"),
        ("qwen3-32b-fp8", "Qwen/Qwen3-32B-FP8"),
        ("meta-llama-3.1-8b", "meta-llama/Meta-Llama-3.1-8B"),
        ("llama-3.1-70b-fp8", "neuralmagic/Meta-Llama-3.1-70B-Instruct-FP8"),
    ],
)
def test_what_was_named_is_started_also_where_others_have_its_shapes(
    name: str, checkpoint: str
) -> None:
    deployment = parse_worker(f"{name}@8xb200")
    for engine_text in (f"{name}@8xb200", deployment.name):  # what is printed starts the same
        (rank,) = launch_named(engine_text, Site()).ranks
        assert rank.argv[2] == checkpoint


def test_a_name_for_which_no_checkpoint_is_known_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"no checkpoint is known by that name.*mistralai/Mistral-7B-Instruct-v0.3"
    ):
        launch_named("mistral-7b-instruct@1xh100", Site())


def test_a_folder_is_started_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, '
        '"intermediate_size": 128, "vocab_size": 1000, "torch_dtype": "bfloat16"}'
    )
    for name in (tmp_path, tmp_path / "config.json"):
        assert launch_named(f"{name}@1xh100", Site()).ranks[0].argv[2] == str(tmp_path)


@pytest.mark.parametrize(
    ("deployment", "loaded"),
    [
        # Those of a maker of GPUs are for these; TensorRT-LLM reads no compressed-tensors.
        ("llama-3.1-70b-instruct:fp8@8xmi300x/kv=fp8", "amd/Llama-3.1-70B-Instruct-FP8-KV"),
        ("llama-3.1-70b-instruct:fp8@8xh200/kv=fp8", "nvidia/Llama-3.1-70B-Instruct-FP8"),
        ("llama-3.1-70b-instruct:fp8@8xh200", "neuralmagic/Meta-Llama-3.1-70B-Instruct-FP8"),
        (
            "llama-3.1-70b-instruct:fp8@8xh200/engine=tensorrt-llm",
            "nvidia/Llama-3.1-70B-Instruct-FP8",
        ),
        ("llama-3.3-70b:int4@8xh200", "RedHatAI/Llama-3.3-70B-Instruct-quantized.w4a16"),
        ("llama-3.3-70b:int4@8xh200/engine=tensorrt-llm", "./Llama-3.3-70B-Instruct-int4"),
        ("deepseek-r1:bf16@16xh200/nodes=2,tp8", "./DeepSeek-R1-bf16"),
    ],
)
def test_a_checkpoint_of_the_planned_precision_is_named_or_a_folder_for_it(
    deployment: str, loaded: str
) -> None:
    launch = launch_of(parse_worker(deployment))
    assert loaded in launch.ranks[0].argv
    assert any(loaded in note for note in launch.notes)


def test_the_cache_s_precision_is_said_where_the_checkpoint_has_another() -> None:
    launch = launch_of(parse_worker("llama-3.1-70b-instruct:fp8@8xh200/engine=tensorrt-llm"))
    assert launch.files["trtllm.yaml"] == "kv_cache_config:\n  dtype: bfloat16\n"


@pytest.mark.parametrize(
    ("deployment", "note"),
    [
        ("llama-3.1-405b@8xh100/tp8", "94.5 GiB of weights on each h100"),
        ("llama-3-8b@1xh100/max_model_len=9999", "a context of 9,999 is beyond the 8,192"),
        ("llama-3.1-70b@2xh100/tp2,kv=fp8,max_model_len=131072", "a request of 131,072 tokens does not fit"),
        ("llama-3-70b:fp8@2xh100/tp2,engine=sglang", "65.7 GiB of bf16 weights on each GPU before it quantises them"),
    ],
)  # fmt: skip
def test_what_would_not_start_is_said_before(deployment: str, note: str) -> None:
    assert any(note in each for each in launch_of(parse_worker(deployment)).notes)


@pytest.mark.parametrize(
    ("deployment", "problem"),
    [
        ("llama-3.1-8b@1xh100/num_speculative_tokens=3", "has no layers that guess tokens"),
        ("llama-3.1-8b@16xh100/dp16,nodes=2,engine=sglang", "sglang has its replicas on one node"),
    ],
)
def test_what_the_engine_cannot_do_is_refused(deployment: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        launch_of(parse_worker(deployment))


def test_a_cache_s_precision_that_nothing_says_is_the_model_s_own() -> None:
    model = parse_worker("llama-3.1-405b@8xb200").model
    kv = {each.name: each.kv for each in published(model, "llama-3.1-405b-instruct")}
    assert kv["nvidia/Llama-3.1-405B-Instruct-FP4"] == model.kv_dtype == "bf16"
    assert kv["nvidia/Llama-3.1-405B-Instruct-FP8"] == "fp8"


def test_published_checkpoints_are_of_the_model_that_was_named() -> None:
    model = parse_worker("llama-3.3-70b@8xh200").model
    names = {each.name for each in published(model, "llama-3.3-70b")}
    assert "nvidia/Llama-3.3-70B-Instruct-FP8" in names
    assert not any("3.1" in name for name in names)
