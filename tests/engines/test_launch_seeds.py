"""Commands that people ran by hand, as their reports have them, come out of the shorthand equal in
meaning.

What differs is named in each case: what was a mistake or said twice, and what we always add
(metrics, address).
"""

from __future__ import annotations

import json
import shlex

import msgspec
import pytest

from loadstone.engines import keywords_named, launch_named
from loadstone.engines.launch import Site

SHORT = {"--model": "--model-path", "--tp": "--tp-size"}
"""Prefixes and other names that SGLang's and vLLM's parsers take for the same."""
OURS = ("--enable-metrics", "--host", "--port")

SGLANG = "python3 -m sglang.launch_server --model deepseek-ai/DeepSeek-V3 --tp 8 "
TWO = (
    "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 16 "
    "--dist-init-addr 192.168.114.10:20000 --nnodes 2 --node-rank {rank} --trust-remote-code --host 0.0.0.0 "
    "--port 40000 --enable-torch-compile "
)
NODES = ("192.168.114.10", "192.168.114.11")
OLD = "engine=sglang,version=0.4.1,trust_remote_code"


def meaning(words: list[str]) -> dict[str, str | bool]:
    """Flags and values, with `model` for what is loaded; the program left out."""
    flags: dict[str, str | bool] = {}
    name = None
    for word in words:
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            name = SHORT.get(flag, flag)
            flags[name] = value if equals else True
        elif name is not None:
            flags[name] = word
    return flags


@pytest.mark.parametrize(
    ("seed", "deployment", "wrong", "redundant"),
    [
        pytest.param(
            SGLANG + "--trust-remote-code --enable-torch-compile --enable-dp-attention --mem-fraction-static 0.8 "
            "--disable-cuda-graph",
            f"deepseek-v3@8xh200/dp8,attention-dp,{OLD},torch_compile,enforce_eager,mem_fraction_static=0.8",
            {},
            (),
            id="DeepSeek-V3 on 8xH200, called BF16",
        ),
        pytest.param(
            SGLANG + "--quantization fp8 --kv-cache-dtype fp8_e5m2 --trust-remote-code --enable-dp-attention",
            f"deepseek-v3@8xh200/dp8,attention-dp,{OLD},kv=fp8_e5m2",
            {},
            ("--quantization",),  # the checkpoint says it
            id="DeepSeek-V3 on 8xH200, FP8",
        ),
        pytest.param(
            "python -m vllm.entrypoints.openai.api_server --model meta-llama/Llama-3-70b-instruct "
            "--tensor-parallel-size 8 --max-model-len 131072 --gpu-memory-utilization 0.90 --max-num-seqs 512 "
            "--dtype bfloat16 --host 0.0.0.0 --port 8000",
            "meta-llama/Meta-Llama-3-70B-Instruct@8xh200/tp8,max_model_len=8192,gpu_memory_utilization=0.90,"
            "max_num_seqs=512",
            # No such id, and that model ends at 8192.
            {"--max-model-len": "8192", "--model-path": "meta-llama/Meta-Llama-3-70B-Instruct"},
            ("--dtype",),  # the checkpoint's
            id="Llama-3-70B by vLLM",
        ),
        pytest.param(
            "vllm serve --model neuralmagic/Meta-Llama-3.1-70B-Instruct-FP8 --tensor-parallel-size 1 "
            "--max-model-len 4096",
            "meta-llama/Llama-3.3-70B-Instruct-FP8@1xh100/max_model_len=4096",
            {"--model-path": "meta-llama/Llama-3.3-70B-Instruct-FP8"},
            (),
            id="context that fits one H100",
        ),
    ],
)  # fmt: skip
def test_a_command_on_one_node(
    seed: str, deployment: str, wrong: dict[str, str], redundant: tuple[str, ...]
) -> None:
    (rank,) = launch_named(deployment, Site()).ranks
    ours = meaning(list(rank.argv))
    if rank.argv[:2] == ("vllm", "serve"):
        ours["--model-path"] = rank.argv[2]
    theirs = {**meaning(shlex.split(seed)), **wrong}
    assert {name: value for name, value in ours.items() if name not in OURS} == {
        name: value for name, value in theirs.items() if name not in (*OURS, *redundant)
    }


@pytest.mark.parametrize(
    ("rest", "deployment", "redundant"),
    [
        (
            "--mem-fraction-static 0.8 --disable-cuda-graph",
            f"deepseek-v3@16xh200/tp16,nodes=2,{OLD},torch_compile,enforce_eager,mem_fraction_static=0.8",
            (),
        ),
        (
            "--quantization fp8 --kv-cache-dtype fp8_e5m2 --disable-cuda-graph",
            f"deepseek-v3@16xh200/tp16,nodes=2,{OLD},torch_compile,enforce_eager,kv=fp8_e5m2",
            ("--quantization",),
        ),
    ],
)  # fmt: skip
def test_commands_of_two_nodes(rest: str, deployment: str, redundant: tuple[str, ...]) -> None:
    launch = launch_named(deployment, Site(nodes=NODES, port=40000))
    assert len(launch.ranks) == 2
    for i, rank in enumerate(launch.ranks):
        theirs = meaning(shlex.split(TWO.format(rank=i) + rest))
        ours = meaning(list(rank.argv))
        assert ours.pop("--enable-metrics")
        assert ours == {name: value for name, value in theirs.items() if name not in redundant}


def test_today_s_words_for_the_first_of_them() -> None:
    """Attention-DP by its new name, CUDA graphs off for both phases."""
    text = "deepseek-v3@8xh200/dp8,attention-dp,engine=sglang,trust_remote_code,enforce_eager,mem_fraction_static=0.8"
    (rank,) = launch_named(text, Site()).ranks
    assert {
        name: value for name, value in meaning(list(rank.argv)).items() if name not in OURS
    } == {
        "--model-path": "deepseek-ai/DeepSeek-V3",
        "--tp-size": "8",
        "--attn-dp-size": "8",
        "--mem-fraction-static": "0.8",
        "--trust-remote-code": True,
        "--cuda-graph-backend-decode": "disabled",
        "--cuda-graph-backend-prefill": "disabled",
    }


@pytest.mark.parametrize(
    ("theirs", "deployment", "changed"),
    [
        (
            {
                "tensor_parallel_size": 8, "dtype": "bfloat16", "max_model_len": 131072,
                "gpu_memory_utilization": 0.9, "enforce_eager": False, "max_num_seqs": 256,
            },
            "llama-3-70b@8xh200/tp8,max_model_len=8192,gpu_memory_utilization=0.9,max_num_seqs=256",
            # What the checkpoint or the engine has anyway is not said; the model ends at 8192.
            {"max_model_len": 8192, "dtype": None, "enforce_eager": None},
        ),
        (
            {
                "speculative_model": "meta-llama/Meta-Llama-3-8B",
                "num_speculative_tokens": 5,
                "tensor_parallel_size": 8,
            },
            "llama-3-70b@8xh200/tp8,speculative_model=llama-3-8b,num_speculative_tokens=5",
            # One dictionary since vLLM 0.9.
            {
                "speculative_model": None, "num_speculative_tokens": None,
                "speculative_config": {
                    "method": "draft_model", "model": "meta-llama/Meta-Llama-3-8B", "num_speculative_tokens": 5,
                },
            },
        ),
        (
            {"kv_cache_dtype": "fp8", "tensor_parallel_size": 8, "max_model_len": 131072},
            "llama-3.1-70b@8xh200/tp8,kv_cache_dtype=fp8,max_model_len=131072",
            {},
        ),
    ],
)  # fmt: skip
def test_vllm_s_interface_in_python(
    theirs: dict[str, object], deployment: str, changed: dict[str, object]
) -> None:
    expected = {name: value for name, value in {**theirs, **changed}.items() if value is not None}
    assert json.loads(keywords_named(deployment, Site()).arguments) == expected


def test_an_engine_that_tensorrt_llm_builds() -> None:
    """As convert_checkpoint.py --dtype bfloat16 --use_fp8_rowwise --tp_size 8, then trtllm-build
    --max_batch_size 256 --max_input_len 8192 --max_output_len 2048, made it. Its length is of input
    and output together by now, and plugins are chosen by the build.
    """
    text = "llama-3-70b:fp8@8xh200/tp8,engine=tensorrt-llm,backend=tensorrt,max_batch_size=256,max_seq_len=10240"
    launch = launch_named(text, Site())
    (rank,) = launch.ranks
    ours = meaning(list(rank.argv))
    assert {name: ours[name] for name in ("--tp_size", "--max_batch_size", "--max_seq_len", "--backend")} == {
        "--tp_size": "8", "--max_batch_size": "256", "--max_seq_len": "10240", "--backend": "tensorrt",
    }  # fmt: skip
    assert msgspec.yaml.decode(launch.files["trtllm.yaml"]) == {
        "quant_config": {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}
    }
    assert "trtllm-build" in launch.notes[0]
    built = launch_named(text, Site(model="/engines/llama-3-70b-trt"))
    assert (built.notes, built.files) == ((), {})
    assert built.ranks[0].argv[2] == "/engines/llama-3-70b-trt"


def test_a_container_of_sglang() -> None:
    """`docker run -it -d --shm-size 32g --gpus all --net host --env "HF_TOKEN=$HF_TOKEN" -v
    :/root/.cache/huggingface --ipc=host --name sglang_dev lmsysorg/sglang:latest`: the folder had
    no source, and the secret was in the command.
    """
    site = Site(runtime="docker", image="lmsysorg/sglang:v0.5.23", cache="/models")
    (rank,) = launch_named("deepseek-v3@8xh200/tp8,engine=sglang", site).ranks
    line = shlex.join(rank.argv)
    for words in (
        "docker run", "--shm-size 32g", "--gpus all", "--network host", "--env HF_TOKEN ",
        "--volume /models:/root/.cache/huggingface", "--ipc host", " lmsysorg/sglang:v0.5.23 sglang serve ",
    ):  # fmt: skip
        assert words in line
