"""The commands that start a deployment: as people write them, and with flags that the engines know."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from loadstone.catalogue.deployment.shorthand import parse_deployment
from loadstone.core.errors import InputError
from loadstone.predict.engine_rules import launch_named, launch_of
from loadstone.predict.engine_rules.launch import SECRETS, Launch, Site

FLAGS = Path(__file__).resolve().parents[3] / "shared" / "research" / "flags"
NODES = ("192.168.114.10", "192.168.114.11")


def made(deployment: str, site: Site | None = None) -> Launch:
    return launch_of(parse_deployment(deployment), site or Site())


def lines(deployment: str, site: Site | None = None) -> list[str]:
    return [shlex.join(rank.argv) for rank in made(deployment, site).ranks]


@pytest.mark.parametrize(
    ("deployment", "site", "expected"),
    [
        (
            "llama-3.1-70b@8xh200/tp8",
            Site(),
            "vllm serve meta-llama/Meta-Llama-3.1-70B --tensor-parallel-size 8 --host 127.0.0.1 --port 8000",
        ),
        # As datacrunch ran DeepSeek-V3 on one node, in the words of that release and of today's.
        (
            "deepseek-v3@8xh200/dp8,attention-dp,engine=sglang,version=0.4.1,enforce_eager,mem_fraction_static=0.8",
            Site(arguments=(("trust-remote-code", None), ("enable-torch-compile", None))),
            "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp-size 8 --enable-dp-attention "
            "--mem-fraction-static 0.8 --disable-cuda-graph --enable-metrics --host 127.0.0.1 --port 30000 "
            "--trust-remote-code --enable-torch-compile",
        ),
        (
            "deepseek-v3@8xh200/dp8,attention-dp,engine=sglang,enforce_eager,mem_fraction_static=0.8",
            Site(),
            "sglang serve --model-path deepseek-ai/DeepSeek-V3 --tp-size 8 --attn-dp-size 8 "
            "--mem-fraction-static 0.8 --cuda-graph-backend-decode disabled "
            "--cuda-graph-backend-prefill disabled --enable-metrics --host 127.0.0.1 --port 30000",
        ),
        (
            "llama-3-70b@8xh200/tp8,draft=llama-3-8b,num_speculative_tokens=5,prefix_caching=0",
            Site(),
            "vllm serve meta-llama/Meta-Llama-3-70B --tensor-parallel-size 8 --no-enable-prefix-caching "
            '--speculative-config \'{"method": "draft_model", "model": "meta-llama/Meta-Llama-3-8B", '
            '"num_speculative_tokens": 5}\' --host 127.0.0.1 --port 8000',
        ),
        (
            "llama-3.1-8b@1xcpu/engine=llama.cpp,parallel=4,ctx_size=8192",
            Site(model="m.gguf", port=9),
            "llama-server --model m.gguf --parallel 4 --ctx-size 8192 --metrics --no-webui --host 127.0.0.1 --port 9",
        ),
        (
            "llama-3.1-8b@1xh100/engine=transformers",
            Site(),
            "transformers serve meta-llama/Meta-Llama-3.1-8B --continuous-batching --host 127.0.0.1 --port 8000",
        ),
    ],
)  # fmt: skip
def test_one_node(deployment: str, site: Site, expected: str) -> None:
    assert lines(deployment, site) == [expected]


@pytest.mark.parametrize(
    ("deployment", "words"),
    [
        ("meta-llama/Meta-Llama-3-70B-Instruct@8xh200/tp8", "serve meta-llama/Meta-Llama-3-70B-Instruct "),
        ("meta-llama/Meta-Llama-3-70B-Instruct:fp8@8xh200", "serve meta-llama/Meta-Llama-3-70B-Instruct "),
        ("meta-llama/Meta-Llama-3-70B-Instruct:fp8@8xh200", " --quantization fp8 "),
        ("llama-3-70b@8xh200/tp8", "serve meta-llama/Meta-Llama-3-70B "),
    ],
)
def test_the_checkpoint_that_is_named_is_loaded(deployment: str, words: str) -> None:
    assert words in f"{launch_named(deployment, Site()).shell_lines()[0]} "


def test_a_checkpoint_that_is_quantised_already_is_not_quantised_again() -> None:
    (line,) = launch_named("meta-llama/Llama-3.3-70B-Instruct-FP8@8xh200/tp8", Site()).shell_lines()
    assert "serve meta-llama/Llama-3.3-70B-Instruct-FP8 " in line
    assert "--quantization" not in line


def test_two_nodes_of_sglang_differ_in_their_rank_alone() -> None:
    site = Site(nodes=NODES, port=40000)
    first, second = lines("deepseek-v3@16xh200/tp16,nodes=2,engine=sglang", site)
    assert first.replace("--node-rank 0", "--node-rank 1") == second
    assert "--nnodes 2 --node-rank 0 --dist-init-addr 192.168.114.10:20000" in first
    assert "--host 0.0.0.0 --port 40000" in first


def test_ranks_of_vllm_over_nodes() -> None:
    across = lines("llama-3.1-405b@16xh200/tp8,pp2,nodes=2", Site(nodes=NODES))
    assert "--nnodes 2 --node-rank 0 --master-addr 192.168.114.10" in across[0]
    assert "--headless" not in across[0]
    assert across[1].endswith("--headless")
    replicas = lines("deepseek-v3@16xh200/dp16,attention-dp,ep16,nodes=2", Site(nodes=NODES))
    assert "--data-parallel-size 16 --enable-expert-parallel" in replicas[0]
    assert replicas[1].endswith("--data-parallel-start-rank 8 --headless")


def test_tensorrt_llm_has_the_rest_in_a_file() -> None:
    launch = made("deepseek-v3@8xh200/dp8,attention-dp,ep8,engine=tensorrt-llm,num_speculative_tokens=3,kv=fp8")
    assert shlex.join(launch.ranks[0].argv).startswith(
        "trtllm-serve serve deepseek-ai/DeepSeek-V3 --tp_size 8 --ep_size"
    )
    assert launch.files["trtllm.yaml"] == (
        "kv_cache_config:\n  dtype: fp8\nenable_attention_dp: true\n"
        "speculative_config:\n  decoding_type: MTP\n  num_nextn_predict_layers: 3\n"
    )


def test_a_container_gets_what_the_engine_needs_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    site = Site(runtime="docker", image="vllm/vllm-openai:v0.33.0", cache="/models", environment=(("A", "b c"),))
    (line,) = lines("llama-3.1-8b@1xh100", site)
    assert line.startswith("docker run --rm --init --name loadstone-8000-0 --gpus all --ipc host --network host ")
    assert "--volume /models:/root/.cache/huggingface" in line
    assert all(f"--env {name} " in line for name in SECRETS)
    assert "--env 'A=b c'" in line
    # The image's entry point is `vllm serve`.
    assert " vllm/vllm-openai:v0.33.0 meta-llama/Meta-Llama-3.1-8B --tensor-parallel-size 1" in line
    assert "hf_secret" not in line


@pytest.mark.parametrize(
    ("deployment", "site", "problem"),
    [
        ("llama-3.1-8b@1xh100", Site(runtime="docker"), "no image"),
        ("llama-3.1-8b@1xh100/batching=static", Site(), "it can only be simulated"),
        ("llama-3.1-8b@1xcpu/engine=llama.cpp", Site(), "loads a GGUF file"),
        ("llama-3.1-8b@2xh100/dp2,engine=tensorrt-llm", Site(), "has no replicas"),
        ("llama-3.1-8b@16xh100/nodes=2", Site(nodes=("one",)), "1 nodes are named"),
        ("llama-3.1-8b@1xh100", Site(arguments=(("x; rm -rf /", None),)), "is no flag"),
    ],
)  # fmt: skip
def test_what_cannot_be_started(deployment: str, site: Site, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        made(deployment, site)


def test_another_checkpoint_is_asked_for_where_loading_cannot_make_it() -> None:
    assert "--quantization fp8" in lines("llama-3.1-70b:fp8@8xh200")[0]
    launch = made("llama-3.1-70b:int4@8xh200")
    assert launch.notes == (
        "meta-llama/Meta-Llama-3.1-70B has weights in bf16, the deployment in int4: "
        "name such a checkpoint with --model",
    )
    assert made("llama-3.1-70b:int4@8xh200", Site(model="a/b-AWQ")).notes == ()


@pytest.mark.skipif(not FLAGS.exists(), reason="the engines' own flags are not beside this checkout")
@pytest.mark.parametrize(
    ("table", "deployment"),
    [
        ("vllm", "deepseek-v3@16xh200/tp8,dp2,attention-dp,ep16,nodes=2,kv=fp8,enforce_eager,block_size=64,"
                 "max_num_seqs=64,max_num_batched_tokens=4096,gpu_memory_utilization=0.9,max_model_len=8192,"
                 "num_speculative_tokens=1,cudagraph_mode=full,max_cudagraph_capture_size=64,prefix_caching=1,"
                 "enable_chunked_prefill=1"),
        ("vllm", "llama-3.1-405b:fp8@16xh200/tp8,pp2,nodes=2"),
        ("sglang", "deepseek-v3@16xh200/tp2,dp8,attention-dp,ep16,nodes=2,engine=sglang,kv=fp8,enforce_eager,"
                   "mem_fraction_static=0.8,max_running_requests=64,max_total_tokens=100000,page_size=64,"
                   "max_prefill_tokens=4096,scheduler_recv_interval=10,prefix_caching=0,cuda_graph_max_bs=64,"
                   "num_speculative_tokens=3,max_model_len=8192,chunked_prefill_size=2048"),
        ("trtllm_serve", "deepseek-v3@16xh200/tp8,pp2,nodes=2,engine=tensorrt-llm,max_batch_size=64,"
                         "max_num_tokens=4096,"
                         "free_gpu_memory_fraction=0.8,max_model_len=8192,enable_chunked_prefill=1,kv=fp8"),
    ],
)  # fmt: skip
def test_the_engine_knows_every_flag(table: str, deployment: str) -> None:
    known = set()
    for flag in json.loads((FLAGS / f"{table}.json").read_text()):
        known |= {flag["name"], *(flag["aliases"] or ())}
    flags = {word for line in lines(deployment) for word in shlex.split(line) if word.startswith("--")}
    assert len(flags) > 5
    assert {flag for flag in flags if flag not in known} == set()
