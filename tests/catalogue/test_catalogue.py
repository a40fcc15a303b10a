"""The catalogue's tables, finding things in them, and the shorthand of deployments."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import Loadstone
from loadstone import catalogue
from loadstone.analyse.run_facts import gpu_name
from loadstone.catalogue import Gpu
from loadstone.catalogue import find as load
from loadstone.catalogue.deployment.shorthand import names_engine
from loadstone.catalogue.engines import (
    ARGUMENTS,
    ELSEWHERE,
    ENGINES,
    OWNERS,
    engine_key,
    engine_title,
)
from loadstone.core.errors import InputError

GIB = 1 << 30
GPUS = catalogue.gpus()


# --- hardware -------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_a_gpus_numbers_fit_each_other(gpu: Gpu) -> None:
    assert 0.9 * gpu.hbm_bytes < gpu.usable_bytes <= gpu.hbm_bytes
    assert gpu.flops_per_s["bf16"] == gpu.flops_per_s["fp16"]
    wider, narrower = gpu.flops_per_s["bf16"], gpu.flops_per_s.get("fp8")
    # Dense FP8 is twice bf16 and no more (Gaudi 3: the same); a ratio of four is sparsity printed
    # as dense.
    assert narrower is None or wider <= narrower <= 2.03 * wider
    assert gpu.pair_bytes_per_s <= gpu.link_bytes_per_s
    assert gpu.link != "pcie" or gpu.link_bytes_per_s in (16e9, 32e9, 64e9)
    # FLOP per byte of memory at the ridge: a slip of a thousand in either shows.
    assert 30 < wider / gpu.hbm_bytes_per_s < 600


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_every_number_has_a_source(gpu: Gpu) -> None:
    assert "all" in gpu.source
    named = {key.partition(".")[0] for key in gpu.source} - {"all"}
    assert named <= {*Gpu.__struct_fields__, "flops"}
    assert {key.partition(".")[2] for key in gpu.source if "." in key} <= set(gpu.flops_per_s)
    assert "usable_bytes" in gpu.source


def test_the_gpus_that_matter_are_there() -> None:
    wanted = (
        "a100-40gb a100 a100-pcie h100 h100-pcie h100-nvl h200 h20 b200 b300 gb200 gb300 gh200 l4 l40s rtx-4090 "
        "rtx-5090 rtx-pro-6000 mi250x mi300x mi325x mi355x gaudi2 gaudi3 a800 h800 h20-141gb h200-nvl l20 l40 a10 "
        "a10g a40 rtx-a6000 rtx-6000-ada rtx-3090 t4 v100 mi210 mi350x"
    )
    assert set(wanted.split()) <= {gpu.name for gpu in GPUS}


def test_h200_against_h100_as_published() -> None:
    h100, h200 = catalogue.gpu("h100"), catalogue.gpu("H200")
    assert h200.hbm_bytes / h100.hbm_bytes == pytest.approx(1.76, abs=0.005)
    assert h200.hbm_bytes_per_s / h100.hbm_bytes_per_s == pytest.approx(1.43, abs=0.005)
    assert h200.flops_per_s == h100.flops_per_s == {
        "bf16": 989.5e12, "fp16": 989.5e12, "fp8": 1979e12, "int8": 1979e12,
    }  # fmt: skip
    assert h200.usable_bytes / GIB == pytest.approx(139.8, abs=0.01)


def test_products_use_the_next_wider_units() -> None:
    assert catalogue.gpu("a100").peak_flops_per_s("fp8") == 312e12
    assert catalogue.gpu("h100").peak_flops_per_s("nvfp4") == 1979e12
    assert catalogue.gpu("b200").peak_flops_per_s("mxfp4") == 9000e12
    assert catalogue.gpu("mi250x").peak_flops_per_s("int4") == 383e12


def test_nodes_are_of_known_gpus() -> None:
    for node in catalogue.nodes():
        assert catalogue.gpu(node.gpu).name == node.gpu
        assert node.source
    vultr = catalogue.node("vultr-mi300x")
    assert (vultr.gpus, vultr.cores, vultr.ram_bytes) == (8, 96, 2048 * GIB)
    assert vultr.scale_out_bytes_per_s is None
    assert catalogue.node("dgx-h100").scale_out_bytes_per_s == 50e9


# --- finding --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("find", "name", "said"),
    [
        (catalogue.gpu, "h1000", "nearest: h100"),
        (catalogue.gpu, "H 100", "nearest: h100"),
        (catalogue.node, "dgx-h10", "nearest: dgx-h1"),
        (catalogue.model, "lama-3.1-8b", "nearest: llama-3.1-8b"),
        (catalogue.model, "qwen3-32", "nearest: qwen3-32b"),
        (
            catalogue.model,
            "llama-70b",
            "nearest: llama-3.3-70b, llama-3.1-70b, llama-3-70b, llama-2-70b, ",
        ),
        (catalogue.model, "gpt-oss", "nearest: gpt-oss-20b, gpt-oss-120b;"),
        (catalogue.model, "llama-3-405b", "nearest: llama-3.1-405b, "),
        (catalogue.model, "phi-4", "see loadstone catalogue models"),
        (catalogue.model, "no/such/config.json", "No such file"),
        (catalogue.model, "", "no model ''"),
    ],
)
def test_unknown_names_get_the_nearest(find: Callable[[str], Any], name: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        find(name)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("llama-3.1-8b", "meta-llama/Meta-Llama-3.1-8B"),
        ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Meta-Llama-3.1-8B"),
        ("Meta-Llama-3.1-8B", "meta-llama/Meta-Llama-3.1-8B"),
        ("DEEPSEEK-R1", "deepseek-ai/DeepSeek-R1"),
        ("qwen3-32b", "Qwen/Qwen3-32B"),
        ("mixtral-8x7b", "mistralai/Mixtral-8x7B-v0.1"),
        ("mistral-7b", "mistralai/Mistral-7B-v0.3"),
        ("mistral-nemo", "mistralai/Mistral-Nemo-Instruct-2407"),
        ("mistral-large", "mistralai/Mistral-Large-Instruct-2407"),
        ("llama-3.1-70b-instruct", "meta-llama/Meta-Llama-3.1-70B"),
        ("qwen2.5-7b-instruct", "Qwen/Qwen2.5-7B"),
        ("gemma-3-27b", "google/gemma-3-27b-it"),
        ("qwen3-coder-480b-a35b", "Qwen/Qwen3-Coder-480B-A35B-Instruct"),
        ("Mistral-7B-Instruct-v0.3", "mistralai/Mistral-7B-v0.3"),
        ("Mixtral-8x7B-Instruct-v0.1", "mistralai/Mixtral-8x7B-v0.1"),
        (
            "meta-llama/Meta-Llama-3.1-70B-Instruct-FP8",
            "neuralmagic/Meta-Llama-3.1-70B-Instruct-FP8",
        ),
        ("unsloth/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B"),
    ],
)
def test_aliases(name: str, found: str) -> None:
    assert catalogue.model(name).name == found


def test_a_folder_comes_before_a_name_that_is_only_near(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose checkpoint may be kept in another precision."""
    (tmp_path / "llama-3.1-8b-instruct").mkdir()
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    config |= {"intermediate_size": 128, "vocab_size": 100}
    (tmp_path / "llama-3.1-8b-instruct" / "config.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    assert catalogue.model("llama-3.1-8b-instruct").hidden == 64
    assert catalogue.parse_worker("llama-3.1-8b-instruct@1xh100").model.hidden == 64


def test_every_id_is_found_by_its_last_part() -> None:
    for model in catalogue.models():
        for name in (model.name, *model.aliases):
            assert catalogue.model(name.rpartition("/")[2]).name == model.name


def test_a_last_part_that_two_share_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"one/same": "one", "two/same": "two", "two/other": "two"}
    monkeypatch.setattr(load, "model_names", lambda: names)
    assert load._near_names.__wrapped__() == names | {"other": "two"}


@pytest.mark.parametrize(
    ("name", "found", "weights"),
    [
        ("Qwen/Qwen2.5-72B-Instruct-AWQ", "Qwen/Qwen2.5-72B", "int4"),
        ("qwen2.5-72b-instruct-gptq-int8", "Qwen/Qwen2.5-72B", "int8"),
        ("RedHatAI/Mistral-7B-Instruct-v0.3-quantized.w4a16", "mistralai/Mistral-7B-v0.3", "int4"),
        ("RedHatAI/Qwen2.5-7B-Instruct-FP8-dynamic", "Qwen/Qwen2.5-7B", "fp8"),
        ("qwen2.5-72b-awq:bf16", "Qwen/Qwen2.5-72B", "bf16"),  # what is said goes before
        ("Qwen/Qwen3-32B-FP8", "Qwen/Qwen3-32B-FP8", "fp8"),  # the catalogue's own, with its blocks
    ],
)
def test_a_known_model_in_the_precision_that_its_name_ends_with(
    name: str, found: str, weights: str
) -> None:
    deployment = catalogue.parse_worker(f"{name}@2xh200")
    assert (deployment.model.name, deployment.weights_dtype) == (found, weights)
    assert catalogue.parse_worker(deployment.name) == deployment


def test_a_precision_at_the_end_of_no_known_model_is_no_precision() -> None:
    with pytest.raises(InputError, match="no model 'unheard-of-awq' in the catalogue"):
        catalogue.parse_worker("unheard-of-awq@1xh100")


def test_gpus_are_found_as_reports_write_them() -> None:
    for gpu in GPUS:
        said = gpu_name(gpu.name)
        assert said is not None
        assert catalogue.gpu(said).name == gpu.name


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA H100 PCIe", "h100-pcie"), ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H200", "h200"), ("NVIDIA B200", "b200"), ("NVIDIA L40S", "l40s"),
        ("NVIDIA A100-SXM4-80GB", "a100"), ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"), ("NVIDIA GH200 480GB", "gh200"), ("NVIDIA L4", "l4"),
        ("Tesla T4", "t4"), ("NVIDIA GeForce RTX 4090", "rtx-4090"), ("NVIDIA A100 80GB PCIe", "a100-pcie"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"), ("NVIDIA H20-3e", "h20-141gb"),
        ("NVIDIA H20", "h20"), ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"), ("NVIDIA A10 PCIe", "a10"),
    ],
)  # fmt: skip
def test_a_drivers_name_means_a_catalogued_gpu(name: str, gpu: str) -> None:
    assert load.match_gpu(name) == (gpu, "")


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("Tesla", None),
        ("", None),
        ("llvmpipe", None),
        ("NVIDIA X999", None),
        ("NVIDIA H20 NVL", "nvl"),
        ("NVIDIA H800 PCIe", "pcie"),
    ],
)
def test_a_gpu_without_an_entry_is_taken_for_no_other(name: str, form: str | None) -> None:
    match = load.match_gpu(name)
    assert (match and match.form) == form


def test_no_name_means_two_things() -> None:
    seen: dict[str, str] = {}
    for things in (catalogue.gpus(), catalogue.nodes(), catalogue.models()):
        for thing in things:
            for name in {thing.name.lower(), *(alias.lower() for alias in thing.aliases)}:
                assert seen.setdefault(name, thing.name) == thing.name


# --- deployments ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parallel"),
    [  # gpus, nodes, tp, pp, dp, ep, attention_dp
        ("llama-3.1-70b@8xh200", (8, 1, 8, 1, 1, 1, False)),
        ("llama-3.1-8b@h100", (1, 1, 1, 1, 1, 1, False)),
        ("llama-3.1-8b@8×h100/tp2", (8, 1, 2, 1, 4, 1, False)),
        ("llama-3.1-8b@8xh100/dp8", (8, 1, 1, 1, 8, 1, False)),
        ("deepseek-v3@16xh200", (16, 2, 8, 2, 1, 1, False)),
        ("deepseek-v3@16xh200/tp16", (16, 2, 16, 1, 1, 1, False)),
        ("deepseek-v3@16xh200/tp8", (16, 2, 8, 2, 1, 1, False)),
        ("llama-3.1-8b@16xh100/tp1", (16, 2, 1, 1, 16, 1, False)),
        ("llama-3.1-8b@16xh100/tp4", (16, 2, 4, 1, 4, 1, False)),
        ("deepseek-v3@16xh200/tp8,dp2", (16, 2, 8, 1, 2, 1, False)),
        ("deepseek-v3:fp8@8xh200/tp8,dp1,ep8", (8, 1, 8, 1, 1, 8, False)),
        ("deepseek-v3@8xh200/tp1,dp8,ep8", (8, 1, 1, 1, 8, 8, True)),
        ("deepseek-v3@8xh200/tp1,dp8,attention-dp", (8, 1, 1, 1, 8, 1, True)),
        ("deepseek-v3@72xgb200/dp72,ep72", (72, 1, 1, 1, 72, 72, True)),
        ("deepseek-v3@8xh200/nodes=2,tp8", (8, 2, 8, 1, 1, 1, False)),
        ("deepseek-v3@2xdgx-h200", (16, 2, 8, 2, 1, 1, False)),
        ("deepseek-v3@16xh200/tp8,attention-dp", (16, 2, 8, 1, 2, 1, True)),
        ("deepseek-v3@16xh200/tp4,dp2,attention-dp", (16, 2, 4, 2, 2, 1, True)),
        (
            "deepseek-v3@8xh200/tp8,dp8,enable_dp_attention=1,engine=sglang",
            (8, 1, 1, 1, 8, 1, True),
        ),
        (
            "deepseek-v3@8xh200/engine=sglang,tp_size=8,dp_size=4,--enable-dp-attention",
            (8, 1, 2, 1, 4, 1, True),
        ),
        (
            "deepseek-v3@8xh200/engine=sglang,tp2,dp4,enable_dp_attention=true",
            (8, 1, 2, 1, 4, 1, True),
        ),
        ("deepseek-v3@8xh200/engine=sglang,tp8,enable_dp_attention=0", (8, 1, 8, 1, 1, 1, False)),
    ],
)
def test_parallelism_said_and_filled_in(text: str, parallel: tuple[Any, ...]) -> None:
    found = catalogue.parse_worker(text)
    assert (
        found.gpus,
        found.nodes,
        found.tp,
        found.pp,
        found.dp,
        found.ep,
        found.attention_dp,
    ) == parallel
    assert catalogue.parse_worker(found.name) == found, found.name


def test_precision_engine_and_arguments() -> None:
    found = catalogue.parse_worker(
        "llama-3.1-70b:fp8@4xh100/tp4, kv=fp8_e5m2, engine=trtllm, version=1.0, free-gpu-memory-fraction=0.9"
    )
    assert (found.weights_dtype, found.kv_dtype) == ("fp8", "fp8_e5m2")
    assert (found.engine, found.engine_version) == ("tensorrt-llm", "1.0")
    assert found.argument("free_gpu_memory_fraction") == "0.9"
    assert found.argument("max_model_len") is None


@pytest.mark.parametrize(
    ("said", "ours"),
    [
        ("engine=sglang,disable_cuda_graph=1", "engine=sglang,enforce_eager=1"),
        ("disable_cuda_graph,engine=sglang", "engine=sglang,enforce_eager=1"),
        ("engine=sglang,context_length=4096", "engine=sglang,max_model_len=4096"),
        ("engine=sglang,speculative_num_steps=3", "engine=sglang,num_speculative_tokens=3"),
        (
            "engine=trtllm,kv_cache_free_gpu_memory_fraction=0.8",
            "engine=trtllm,free_gpu_memory_fraction=0.8",
        ),
        (
            "tensor_parallel_size=2,--kv-cache-dtype=fp8,enable_prefix_caching=0",
            "tp2,kv=fp8,prefix_caching=0",
        ),
        ("enforce-eager", "enforce_eager=1"),
    ],
)
def test_engines_own_names_for_the_same(said: str, ours: str) -> None:
    found = catalogue.parse_worker(f"llama-3.1-8b@2xh100/{said}")
    assert found == catalogue.parse_worker(f"llama-3.1-8b@2xh100/{ours}")
    assert catalogue.parse_worker(found.name) == found


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("TRT-LLM", "tensorrt-llm"),
        ("trtllm", "tensorrt-llm"),
        ("llama-server", "llama.cpp"),
        ("own", None),
    ],
)
def test_engines_by_any_of_their_names(name: str, key: str | None) -> None:
    assert engine_key(name) == key
    assert engine_title(name) == {"tensorrt-llm": "TensorRT-LLM", "llama.cpp": "llama.cpp"}.get(
        key or "", name
    )


def test_names_of_engines_lead_to_options() -> None:
    taken = {*ARGUMENTS, "tp", "pp", "dp", "ep", "kv", "attention-dp"}
    for name, engine in ENGINES.items():
        assert set(engine.same.values()) <= taken
        assert not engine.same.keys() & (taken | engine.elsewhere.keys() | ELSEWHERE.keys())
        assert not engine.elsewhere.keys() & (taken | ELSEWHERE.keys())
        assert all(OWNERS.get(ours, name) == name for ours in engine.same.values())
    for hints in (ELSEWHERE, *(engine.elsewhere for engine in ENGINES.values())):
        for hint in hints.values():
            assert hint.format(model="m", weights="fp8")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("", False), ("/tp1", False), ("/kv=fp8", False), ("/engine=vllm", True), ("/--engine=vllm", True),
        ("/max-num-seqs=8", True), ("/--mem-fraction-static=0.8", True),
    ],
)  # fmt: skip
def test_whether_the_engine_is_said(options: str, named: bool) -> None:
    assert names_engine(f"llama-3.1-8b@1xh100{options}") is named


def test_what_is_not_said_is_as_the_checkpoint() -> None:
    found = catalogue.parse_worker("deepseek-v3@8xh200")
    assert (found.weights_dtype, found.kv_dtype, found.engine) == ("fp8", "bf16", "vllm")
    assert catalogue.parse_worker("nvidia/Llama-3.1-8B-Instruct-FP8@h100").kv_dtype == "fp8"


def test_a_config_as_the_model(tmp_path: Any) -> None:
    entry = {
        "model_type": "llama", "torch_dtype": "float16", "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 100, "tie_word_embeddings": True,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(entry))
    found = catalogue.parse_worker(f"{tmp_path}:int8@2xl4/tp2")
    assert (found.model.layer_count, found.weights_dtype, found.kv_dtype) == (2, "int8", "fp16")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "llama-3.1-8b@8xh200,tp8",
            "options behind a slash, 8xh200/tp8; did you mean llama-3.1-8b@8xh200/tp8?",
        ),
        ("llama-3.1-8b@8xh200@8xh200", "did you mean llama-3.1-8b@8xh200?"),
        ("llama-3.1-8b@h200x8", "did you mean llama-3.1-8b@8xh200?"),
        ("llama-3.1-8b@8h200/tp8", "did you mean llama-3.1-8b@8xh200/tp8?"),
        ("llama-3.1-8b/8xh200", "not MODEL@GPUS; write e.g. llama-3.1-8b@8xh200"),
        ("8xh200", "not MODEL@GPUS; write e.g. llama-3.1-70b@8xh200"),
        ("nope on 8xh200", "not MODEL@GPUS; write e.g. llama-3.1-70b@8xh200/tp8,engine=vllm"),
        ("llama-3.1-8b", "not MODEL@GPUS"),
        ("@8xh100", "not MODEL@GPUS"),
        ("llama-3.1-8b@", "not MODEL@GPUS"),
        ("llama-3.1-8b@8x", "no GPU or node '8x'"),
        ("llama-3.1-8b@8x!", "names no GPUs"),
        ("llama-3.1-8b@0xh100", "0 GPUs"),
        ("llama-3.1-8b@99999999xh100", "99999999 GPUs"),
        ("llama-3.1-8b@8xh1000", "nearest: h100"),
        ("lama-3.1-8b@8xh100", "nearest: llama-3.1-8b"),
        ("llama-3.1-8b:fp9@8xh100", "'fp9' is not a known precision"),
        ("llama-3.1-8b@8xh100/kv=int3", "'int3' is not a precision of a KV cache"),
        ("llama-3.1-8b@8xh100/engine=vlm", "unknown engine 'vlm'; the engines are vllm, sglang"),
        (
            "llama-3.1-8b@8xh100/engine=lmdeploy",
            "LMDeploy is not modelled here; the engines are vllm, sglang",
        ),
        ("llama-3.1-8b@8xh100/tpp8", "unknown option 'tpp8'"),
        ("llama-3.1-8b@8xh100/gpu_memory_util=0.9", "gpu_memory_utilization"),
        (
            "llama-3.1-8b@8xh100/mem_fraction_static=0.8",
            "an argument of sglang, not of vllm; its own are ",
        ),
        (
            "llama-3.1-8b@8xh100/max_num_seqs=8,engine=sglang",
            "max_num_seqs is an argument of vllm, not of sglang",
        ),
        ("llama-3.1-8b@8xh100/tp3", "tp3 · pp1 · dp2 is 6, not 8 GPUs; make their product 8"),
        ("llama-3.1-8b@8xh100/tp0", "tp0 is not a count"),
        ("llama-3.1-8b@8xh100/tp8,tp4", "tp is given twice"),
        ("llama-3.1-8b@2xh100/nodes=4,tp2,pp1", "2 GPUs on 4 nodes"),
        ("llama-3.1-8b@2xdgx-h100/nodes=3", "nodes=3 beside 2xdgx-h100"),
        ("deepseek-v3@8xh200/tp8,ep3", "ep3 does not divide the 8 ranks"),
        ("deepseek-v3@8xh200/tp8,dp8,attention-dp", "tp1,dp8,attention-dp here"),
        (
            "deepseek-v3@8xh200/tp8,attention-dp",
            "shares with nobody; write e.g. tp1,dp8,attention-dp",
        ),
        ("llama-3.1-8b@1xh200/attention-dp", "shares with nobody; leave it out"),
        (
            "deepseek-v3@8xh200/tp8,dp8,enable_dp_attention=1",
            "an argument of sglang, not of vllm; here it is attention-dp",
        ),
        ("deepseek-v3@8xh200/tp8,engine=sglang,enable_dp_attention=8", "neither true nor false"),
        (
            "llama-3.1-8b@8xh100/disable_cuda_graph=1",
            "an argument of sglang, not of vllm; here it is enforce_eager",
        ),
        ("llama-3-70b@8xh200/swap_space=4", "is not simulated here; leave it out"),
        ("llama-3-70b@8xh200/quantization=awq", "after the model's name: llama-3-70b:int4@"),
        ("llama-3-70b@8xh200/dtype=bfloat16", "after the model's name: llama-3-70b:bf16@"),
        ("llama-3-70b@8xh200/engine=tensorrt-llm,max_input_len=8192", "max_seq_len does"),
        ("llama-3-70b@8xh200/engine=triton", "write engine=tensorrt-llm, or engine=vllm"),
        ("llama-3-70b@8xh200/max_model_len", "has no value; write max_model_len="),
        ("llama-3-70b@8xh200/enforce_eager=", "has no value; write enforce_eager="),
        ("llama-3-70b@8xh200/kv_cache=fp8", "write kv_cache=paged or kv_cache=reserved"),
        ("llama-3-70b@8xh200/batching=dynamic", "write batching=continuous or batching=static"),
    ],
)
def test_a_bad_deployment_gets_one_line(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        catalogue.parse_worker(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_only_what_an_engine_has_is_proposed() -> None:
    with pytest.raises(InputError) as caught:
        catalogue.parse_worker("llama-3.1-8b@8xh100/engine=tensorrt-llm,max_num_tokns=8192")
    assert "write max_num_tokens" in str(caught.value)
    assert "max_num_batched_tokens" not in str(caught.value)


# --- the command ----------------------------------------------------------------------------------


def test_two_gpus_side_by_side(loadstone: Loadstone) -> None:
    document = json.loads(loadstone("catalogue", "gpus", "--compare", "h100,h200", "--json").out)
    rows = {row["what"]: row for row in document["rows"]}
    assert document["names"] == ["h100", "h200"]
    assert rows["memory"]["values"] == [80, 141]
    assert rows["bandwidth"]["ratios"][1] == pytest.approx(1.43, abs=0.005)
    assert rows["fp4"]["ratios"] == [None, None]


def test_every_kind_is_listed(loadstone: Loadstone) -> None:
    for kind in ("gpus", "models", "nodes"):
        found = json.loads(loadstone("catalogue", kind, "--json").out)
        assert found["schema"] == 1
        assert len(found[kind]) > 10
        lines = loadstone("catalogue", kind).out.splitlines()
        assert len(lines) == len(found[kind]) + 1


def test_one_in_full_with_its_sources(loadstone: Loadstone) -> None:
    said = loadstone("catalogue", "models", "google/gemma-4-26B-A4B").out
    assert "vision tower counted" in said
    assert "source" in loadstone("catalogue", "gpus", "b300").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("gpus", "h1000"), "nearest: h100"),
        (("gpus", "--compare", "h100"), "at least two"),
        (("gpus", "--compare", "h100,h2"), "nearest"),
        (("planets",), "planets"),
    ],
)
def test_what_cannot_be_shown(loadstone: Loadstone, arguments: tuple[str, ...], said: str) -> None:
    assert said in loadstone("catalogue", *arguments).line()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"link_bytes_per_s": None}, "lacks link_bytes_per_s"),
        ({"usable_gib": None}, "lacks usable_gib"),
        ({"tdp_w": None, "tpd_w": 700}, "tpd_w"),
        ({"hbm_bytes_per_s": "9 TB/s"}, "hbm_bytes_per_s"),
        ({"hbm_bytes_per_s": -9e12}, "hbm_bytes_per_s"),
        ({"flops_per_s": {"bf16": 0}}, "flops_per_s"),
        ({"flops_per_s": {"fp16": 1.25e14}}, "no bf16"),
        ({"hbm_gib": "much"}, "gpus.toml"),
        ({"source": None}, "source"),
    ],
)
def test_what_is_wrong_with_an_entry_of_ones_own_is_one_line(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], said: str
) -> None:
    entry = load.entries_of("gpus")["h200"] | {"aliases": []} | change
    table = {"mine": {name: value for name, value in entry.items() if value is not None}}
    monkeypatch.setattr(load, "entries_of", lambda name: table)
    monkeypatch.setattr(load, "gpu_names", lambda: {"mine": "mine"})
    with pytest.raises(InputError, match=r"gpus\.toml of the catalogue, \[mine\]: ") as caught:
        load._gpu.__wrapped__("mine")  # past its cache
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
