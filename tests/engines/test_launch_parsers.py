"""Commands of `loadstone launch`, read by the parsers of the engines that are installed here, and
run by them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import httpx
import pytest

from engines import tiny_model, triton_server
from engines.launch import _HOMES, environment
from engines.recommended import RECOMMENDED
from loadstone.engines import launch_named
from loadstone.engines.launch import Site
from loadstone.measure.engines.launch import LaunchError, RunningEngine
from loadstone.measure.engines.process import free_port

pytestmark = pytest.mark.slow

VLLM = """
import json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser())
read = [vars(parser.parse_args(words)) for words in json.load(sys.stdin)]
print("READ" + json.dumps(read, default=str))
"""
SGLANG = """
import argparse, json, sys
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser(allow_abbrev=False)
ServerArgs.add_cli_args(parser)
read = [vars(parser.parse_args(words)) for words in json.load(sys.stdin)]
print("READ" + json.dumps(read, default=str))
"""

CASES = {
    "vllm": [
        (
            "llama-3.1-8b@8xh100/tp4,pp2,kv=fp8_e5m2,max_model_len=8192,max_num_seqs=64,max_num_batched_tokens=4096,"
            "gpu_memory_utilization=0.85,block_size=32,prefix_caching=0,enable_chunked_prefill=0,cudagraph_mode=full,"
            "max_cudagraph_capture_size=64",
            {
                "tensor_parallel_size": 4, "pipeline_parallel_size": 2, "kv_cache_dtype": "fp8_e5m2",
                "max_model_len": 8192, "max_num_seqs": 64, "max_num_batched_tokens": 4096,
                "gpu_memory_utilization": 0.85, "block_size": 32, "enable_prefix_caching": False,
                "enable_chunked_prefill": False, "max_cudagraph_capture_size": 64,
            },
        ),
        (
            "deepseek-v3@16xh200/dp16,attention-dp,ep16,nodes=2,num_speculative_tokens=1,enforce_eager",
            {
                "data_parallel_size": 16, "data_parallel_size_local": 8, "enable_expert_parallel": True,
                "enforce_eager": True,
            },
        ),
        ("llama-3-70b:fp8@16xh200/tp8,pp2,nodes=2", {"nnodes": 2, "node_rank": 0, "quantization": "fp8"}),
        (
            "llama-3.1-8b@1xh100/attention_backend=FLASHINFER,compile_level=1,disable_overlap,load_format=dummy,"
            "generation_config=vllm,kv_offloading_size=4,moe_backend=triton,scheduling_policy=priority,seed=7,"
            "served_model_name=mine,stream_interval=4,structured_output_backend=xgrammar,tokenizer=a/b,"
            "trust_remote_code,distributed_executor_backend=mp",
            {
                "optimization_level": "1", "async_scheduling": False, "load_format": "dummy",
                "generation_config": "vllm", "kv_offloading_size": 4.0, "moe_backend": "triton",
                "scheduling_policy": "priority", "seed": 7, "served_model_name": ["mine"], "stream_interval": 4,
                "tokenizer": "a/b", "trust_remote_code": True, "distributed_executor_backend": "mp",
            },
        ),
        (
            "llama-3.1-8b@2xh100/tp2,kv_host=64gib,kv_offload=native",
            {"kv_offloading_size": 64.0, "kv_offloading_backend": "native"},
        ),
        ("llama-3.1-8b@1xh100/async_scheduling=0,trust_remote_code=0", {"async_scheduling": False}),
        ("llama-3.1-8b@1xh100/disable_overlap=0,kv=int8", {"async_scheduling": True}),
    ],
    "sglang": [
        (
            "deepseek-v3@16xh200/tp2,dp8,attention-dp,ep16,nodes=2,engine=sglang,kv=fp8_e5m2,enforce_eager,"
            "mem_fraction_static=0.8,max_running_requests=64,max_total_tokens=100000,page_size=64,"
            "max_prefill_tokens=4096,scheduler_recv_interval=10,prefix_caching=0,cuda_graph_max_bs=64,"
            "num_speculative_tokens=3,max_model_len=8192,chunked_prefill_size=2048",
            {
                "tp_size": 16, "ep_size": 16, "kv_cache_dtype": "fp8_e5m2", "mem_fraction_static": 0.8,
                "max_running_requests": 64, "max_total_tokens": 100000, "page_size": 64, "context_length": 8192,
                "disable_radix_cache": True, "nnodes": 2, "speculative_num_steps": 3, "chunked_prefill_size": 2048,
            },
        ),
        (
            "llama-3.1-8b@2xh100/tp2,engine=sglang,kv_host=1tb,hicache_write_policy=write_back",
            {"enable_hierarchical_cache": True, "hicache_size": 500, "hicache_write_policy": "write_back"},
        ),
        ("llama-3.1-8b:fp8@2xh100/dp2,engine=sglang,kv=fp8", {"dp_size": 2, "kv_cache_dtype": "fp8_e4m3"}),
        (
            "llama-3.1-8b@1xh100/engine=sglang,attention_backend=fa3,prefill_attention_backend=fa3,"
            "decode_attention_backend=flashinfer,disable_overlap,enable_mixed_chunk,load_format=dummy,"
            "moe_a2a_backend=deepep,moe_backend=triton,schedule_conservativeness=0.5,schedule_policy=fcfs,seed=7,"
            "served_model_name=mine,stream_interval=4,structured_output_backend=xgrammar,tokenizer=a/b,torch_compile,"
            "torch_compile_max_bs=8,trust_remote_code",
            {
                "attention_backend": "fa3", "disable_overlap_schedule": True, "load_format": "dummy",
                "grammar_backend": "xgrammar", "enable_torch_compile": True, "trust_remote_code": True,
                "random_seed": 7, "served_model_name": "mine", "moe_runner_backend": "triton",
            },
        ),
    ],
}  # fmt: skip
for text, _, _ in RECOMMENDED:
    engine = text.partition("engine=")[2].partition(",")[0]
    if engine in CASES:
        CASES[engine].append((text, {}))
PROGRAMS = {"vllm": ("vllm", VLLM), "sglang": ("sglang", SGLANG)}


def home_of(name: str) -> Path:
    home = _HOMES / name
    if not (home / "setup.stamp").is_file():
        pytest.skip(f"scripts/engines/{name} has not been run")
    return home


@pytest.mark.process
@pytest.mark.parametrize("engine", CASES)
def test_the_engine_s_parser_reads_what_the_deployment_says(engine: str) -> None:
    name, program = PROGRAMS[engine]
    home = home_of(name)
    words, expected = [], []
    for text, values in CASES[engine]:
        for i, rank in enumerate(launch_named(text, Site()).ranks):
            words.append(list(rank.argv[2:]))  # `vllm serve`, `sglang serve`
            expected.append(values if i == 0 else {})
    command = [str(home / "bin" / "python"), "-c", program]
    done = subprocess.run(
        command,
        check=False,
        input=json.dumps(words),
        capture_output=True,
        text=True,
        timeout=300,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    read = json.loads(done.stdout.partition("READ")[2])
    assert len(read) == len(words) > 3
    for made, values in zip(read, expected, strict=True):
        assert {name: made[name] for name in values} == values


@pytest.mark.process
@pytest.mark.parametrize(
    ("home", "help", "deployment"),
    [
        (
            "transformers",
            ("bin/transformers", "serve", "--help"),
            "llama-3.1-8b:fp16@1xh100/engine=transformers,attention_backend=sdpa,compile,seed=7,trust_remote_code,"
            "block_size=16,enforce_eager,cb_max_batch_tokens=512,cb_max_memory_percent=0.5",
        ),
        (
            "mlx",
            ("bin/mlx_lm.server", "--help"),
            "llama-3.1-8b@1xh100/engine=mlx-lm,kv=int8,draft=llama-3.2-1b,num_speculative_tokens=3,"
            "decode_concurrency=4,prefill_step_size=512,prompt_cache_bytes=100,prompt_cache_size=4,"
            "prompt_concurrency=2,trust_remote_code",
        ),
        ("triton", ("tritonserver", "--help"), "llama-3.1-8b@1xh100/engine=tensorrt-llm,server=triton"),
    ],
)  # fmt: skip
def test_the_engine_s_help_has_every_flag(
    home: str, help: tuple[str, ...], deployment: str
) -> None:
    program, *words = help
    done = subprocess.run(
        [str(home_of(home) / program), *words], check=False, capture_output=True, text=True, timeout=120,
        env={**environment(), "COLUMNS": "200"},
    )  # fmt: skip
    shown = done.stdout + done.stderr
    (rank,) = launch_named(deployment, Site(model="m")).ranks
    flags = [word for word in rank.argv if word.startswith("--")]
    assert len(flags) > 3
    known = {
        word.strip("[],=") for line in shown.splitlines() for word in line.replace("=", " ").split()
    }
    assert [flag for flag in flags if flag not in known] == []


@pytest.mark.parametrize(
    ("home", "engine", "options"),
    [
        (
            "vllm",
            "vllm",
            "max_model_len=512,max_num_seqs=4,enforce_eager,trust_remote_code,generation_config=vllm,"
            "served_model_name=mine",
        ),
        ("transformers", "transformers", "attention_backend=sdpa,seed=7"),
        ("mlx", "mlx-lm", "prompt_cache_size=8"),
    ],
)  # fmt: skip
def test_the_engine_that_is_started_answers(
    home: str, engine: str, options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = home_of(home) / "bin" / {"mlx": "mlx_lm.server"}.get(home, home)
    model = tmp_path / "tiny"
    tiny_model.write(model)
    (tmp_path / "huggingface" / "hub").mkdir(parents=True)
    for name in set(os.environ) - set(environment()):
        monkeypatch.delenv(name)
    settings = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "huggingface"), "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_NO_USAGE_STATS": "1"}  # fmt: skip
    site = Site(
        model=str(model), program=str(program), port=free_port(), environment=tuple(settings.items()),
        arguments=(("dtype", "float32"),) if engine == "vllm" else (),
    )  # fmt: skip
    launch = launch_named(f"llama-3.1-8b@1xcpu/engine={engine},{options}", site)
    with RunningEngine(launch, tmp_path / "log") as running:
        running.wait_ready(300)
        name = launch.model or "mine"
        answer = httpx.post(
            f"{launch.url}/v1/completions",
            json={"model": name, "prompt": "a b c", "max_tokens": 3},
            timeout=120,
        )
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 3


def test_triton_that_is_started_is_ready(tmp_path: Path) -> None:
    if triton_server.missing():
        pytest.skip("scripts/engines/triton has not been run")
    site = Site(
        model=str(triton_server.MODELS), program=str(triton_server.PROGRAM), port=free_port()
    )
    launch = launch_named("llama-3.1-8b@1xcpu/engine=vllm,server=triton", site)
    with RunningEngine(launch, tmp_path) as running:
        running.wait_ready(60)
        assert httpx.get(f"{launch.url}/v2").json()["name"] == "triton"


@pytest.mark.parametrize(
    ("options", "model", "cause"),
    [
        ("max_model_len=9999", None, "a context of 9999 tokens is longer than the model's 4096"),
        ("", "no/such-model", "the model is neither a folder here nor can it be fetched"),
        ("tp3", None, "attention heads cannot be cut 3 ways"),
    ],
)  # fmt: skip
def test_why_vllm_does_not_start(
    options: str, model: str | None, cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = home_of("vllm") / "bin" / "vllm"
    folder = tmp_path / "tiny"
    tiny_model.write(folder)
    for name in set(os.environ) - set(environment()):
        monkeypatch.delenv(name)
    site = Site(
        model=model or str(folder), program=str(program), port=free_port(),
        environment=(("HF_HUB_OFFLINE", "1"), ("VLLM_NO_USAGE_STATS", "1"), ("VLLM_CPU_KVCACHE_SPACE", "1")),
    )  # fmt: skip
    gpus = 3 if options == "tp3" else 1
    launch = launch_named(f"llama-3.1-8b@{gpus}xcpu/engine=vllm,{options}".rstrip(","), site)
    with (
        RunningEngine(launch, tmp_path / "log") as running,
        pytest.raises(LaunchError, match=cause),
    ):
        running.wait_ready(120)
