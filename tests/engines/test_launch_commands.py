"""The commands that start a deployment: as people write them, and with flags that the engines
know."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import msgspec
import pytest

from loadstone.catalogue.deployment.shorthand import parse_worker
from loadstone.catalogue.engines import ARGUMENTS, CHOICES, ENGINES, OWNERS
from loadstone.core.errors import InputError
from loadstone.engines import keywords_named, launch_named, launch_of, rules_of
from loadstone.engines.launch import SECRETS, Launch, Site
from loadstone.engines.table import engine_tables
from loadstone.predict.sizing.size import size

FLAGS = Path(__file__).resolve().parents[3] / "shared" / "research" / "flags"
NODES = ("192.168.114.10", "192.168.114.11")


def made(deployment: str, site: Site | None = None) -> Launch:
    return launch_of(parse_worker(deployment), site or Site())


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
        (
            "meta-llama/Meta-Llama-3-70B-Instruct@8xh200/tp8",
            "serve meta-llama/Meta-Llama-3-70B-Instruct ",
        ),
        (
            "meta-llama/Meta-Llama-3-70B-Instruct:fp8@8xh200",
            "serve meta-llama/Meta-Llama-3-70B-Instruct ",
        ),
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
    launch = made(
        "deepseek-v3@8xh200/dp8,attention-dp,ep8,engine=tensorrt-llm,num_speculative_tokens=3,kv=fp8"
    )
    assert shlex.join(launch.ranks[0].argv).startswith(
        "trtllm-serve serve deepseek-ai/DeepSeek-V3 --tp_size 8 --ep_size"
    )
    assert launch.files["trtllm.yaml"] == (
        "kv_cache_config:\n  dtype: fp8\nenable_attention_dp: true\n"
        "speculative_config:\n  decoding_type: MTP\n  num_nextn_predict_layers: 3\n"
    )


def test_a_container_gets_what_the_engine_needs_and_no_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    site = Site(
        runtime="docker",
        image="vllm/vllm-openai:v0.33.0",
        cache="/models",
        environment=(("A", "b c"),),
    )
    (line,) = lines("llama-3.1-8b@1xh100", site)
    assert line.startswith(
        "docker run --rm --init --name loadstone-8000-0 --gpus all --ipc host --network host "
    )
    assert "--volume /models:/root/.cache/huggingface" in line
    assert all(f"--env {name} " in line for name in SECRETS)
    assert "--env 'A=b c'" in line
    # The image's entry point is `vllm serve`.
    assert " vllm/vllm-openai:v0.33.0 meta-llama/Meta-Llama-3.1-8B --tensor-parallel-size 1" in line
    assert "hf_secret" not in line


def test_another_checkpoint_is_asked_for_where_loading_cannot_make_it() -> None:
    assert "--quantization fp8" in lines("llama-3-70b:fp8@8xh200")[0]
    launch = made("llama-3-70b:int4@8xh200")
    assert launch.notes == (
        "no checkpoint of meta-llama/Meta-Llama-3-70B in int4 is known that vllm reads, and it makes none: "
        "convert it into ./Meta-Llama-3-70B-int4, or name one with --model",
    )
    assert made("llama-3-70b:int4@8xh200", Site(model="a/b-AWQ")).notes == ()


IMAGE = "vllm/vllm-openai:v0.33.0"
HUB = "/root/.cache/huggingface"


@pytest.mark.parametrize(
    ("deployment", "site", "words"),
    [
        ("llama-3.1-8b@1xmi300x", Site(runtime="docker", image="rocm/vllm:6.4", cache="/m"),
         ["--device /dev/kfd --device /dev/dri --group-add video --group-add render",
          "--entrypoint vllm rocm/vllm:6.4 serve meta-llama/Meta-Llama-3.1-8B "]),
        ("llama-3.1-8b@1xmi300x", Site(runtime="docker", image="vllm/vllm-openai-rocm:v1", cache="/m"),
         [" vllm/vllm-openai-rocm:v1 meta-llama/Meta-Llama-3.1-8B "]),
        ("llama-3.1-8b@1xmi300x/engine=sglang", Site(runtime="podman", image="s:rocm", cache="/m"),
         ["--device /dev/kfd", "--group-add keep-groups", " s:rocm sglang serve "]),
        ("llama-3.1-8b@1xcpu", Site(runtime="docker", image=IMAGE, cache="/m"),
         ["--name loadstone-8000-0 --ipc host"]),
        ("llama-3.1-8b@1xh100", Site(runtime="enroot", image=IMAGE, cache="/m"),
         ["enroot import -o", "vllm+vllm-openai+v0.33.0.sqsh docker://vllm/vllm-openai:v0.33.0 enroot start --rw",
          ".sqsh meta-llama/Meta-Llama-3.1-8B "]),
        ("llama-3.1-8b@1xh100", Site(runtime="enroot", image="host.example/a/vllm:1", cache="/m"),
         ["docker://host.example#a/vllm:1", ".sqsh vllm serve meta-llama/"]),
        ("deepseek-v3@16xh200/tp16,nodes=2,engine=sglang",
         Site(runtime="pyxis", image="a/b:1", cache="/m", nodes=NODES),
         [f"--nodelist={NODES[0]} --container-image=a/b:1 --container-mounts /m:{HUB} ",
          "--no-container-entrypoint env HF_HOME=/root/.cache/huggingface sglang serve"]),
        ("llama-3.1-8b@1xmi300x", Site(runtime="apptainer", image=IMAGE, cache="/m", environment=(("A", "b"),)),
         [f"apptainer exec --writable-tmpfs --rocm --bind /m:{HUB} --env A=b --env HF_HOME=",
          f"docker://{IMAGE} vllm serve"]),
        ("llama-3.1-8b@1xh100",
         Site(runtime="docker", image=IMAGE, cache="/m", mounts=("/d:/d",), devices=("/dev/infiniband",),
              options=("--privileged",)),
         ["--device /dev/infiniband --gpus all", "--volume /d:/d ", f"--privileged {IMAGE}"]),
    ],
)  # fmt: skip
def test_containers_of_every_runtime_get_gpus_folders_and_one_entry_point(
    deployment: str, site: Site, words: list[str]
) -> None:
    line = lines(deployment, site)[0]
    for each in words:
        assert each in line
    assert "--gpus" not in line or "h100" in deployment


def test_a_folder_of_the_home_is_that_of_who_runs_the_command() -> None:
    launch = made("llama-3.1-8b@1xh100", Site(runtime="docker", image=IMAGE))
    assert f'--volume "$HOME"/.cache/huggingface:{HUB} ' in launch.shell_lines()[0]


@pytest.mark.skipif(
    not FLAGS.exists(), reason="the engines' own flags are not beside this checkout"
)
@pytest.mark.parametrize(
    ("table", "deployment"),
    [
        ("vllm", "deepseek-v3@16xh200/tp8,dp2,attention-dp,ep16,nodes=2,kv=fp8,enforce_eager,block_size=64,"
                 "max_num_seqs=64,max_num_batched_tokens=4096,gpu_memory_utilization=0.9,max_model_len=8192,"
                 "num_speculative_tokens=1,cudagraph_mode=full,max_cudagraph_capture_size=64,prefix_caching=1,"
                 "enable_chunked_prefill=1,kv_host=1tb,kv_offload=lmcache"),
        ("vllm", "llama-3.1-405b:fp8@16xh200/tp8,pp2,nodes=2"),
        ("sglang", "llama-3.1-8b@2xh100/tp2,engine=sglang,kv_host=1tb,hicache_write_policy=write_back"),
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
    flags = {
        word for line in lines(deployment) for word in shlex.split(line) if word.startswith("--")
    }
    assert len(flags) > 5
    assert {flag for flag in flags if flag not in known} == set()


VALUES = {
    "gpu_memory_utilization": "0.8", "mem_fraction_static": "0.8", "free_gpu_memory_fraction": "0.8",
    "batch_wait_max_tokens_ratio": "0.8", "cudagraph_mode": "full", "draft": "llama-3.2-1b",
    "hf_overrides": '{"max_position_embeddings":4096}',
    "json_model_override_args": '{"max_position_embeddings":4096}',
    "prefix_caching": "0", "enable_chunked_prefill": "0", "device_cache_percent": "0.1", "lora_modules": "a=/b",
    "mm_encoder_tp_mode": "data",
}  # fmt: skip
"""Of arguments that take no count."""
BESIDE = {"draft": ",num_speculative_tokens=3", "num_speculative_tokens": ",draft=llama-3.2-1b"}
TIERS = {"kv_host", "kv_disk", "kv_offload", "hicache_write_policy", "task"}
"""They go together, and each engine has some of them; `task` has tests of its own."""
ADAPTERS = {
    "max_loras",
    "max_cpu_loras",
    "max_lora_rank",
    "lora_target_modules",
    "enable_lora_overlap_loading",
}
"""They go with adapters, without which SGLang does not start."""


def choice_of(engine: str, name: str) -> str:
    """Return the last of the values that the engine's table has, 1 where it may be any."""
    flag = ENGINES[engine].launch.get(name, name).removeprefix("yaml:").replace("_", "-")
    return engine_tables()[engine].choices.get(flag, ("1",))[-1]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "llama.cpp"])
def test_a_setting_with_few_values_has_one_of_them(engine: str) -> None:
    """Whatever command asks: sizes refuse it as launches do. A release that is not known yet may
    have more values of what changes the start alone."""
    names = {*ENGINES[engine].launch, *ENGINES[engine].arguments}
    listed = [name for name in sorted(names) if choice_of(engine, name) != "1"]
    assert len(listed) >= len(engine_tables()[engine].choices)
    for name in listed:
        text = f"llama-3.1-8b@1xh100/engine={engine},{name}="
        assert rules_of(parse_worker(text + choice_of(engine, name)))
        with pytest.raises(InputError, match=f"{name}=foo: {engine} has no such value; use ") as no:
            size(parse_worker(f"{text}foo"))
        assert "\n" not in str(no.value)
        newest = parse_worker(f"{text}foo,version=99.0")
        if name in ENGINES[engine].launch and engine != "llama.cpp":
            assert rules_of(newest)
        else:
            with pytest.raises(InputError, match="no such value"):
                rules_of(newest)


@pytest.mark.parametrize("engine", list(ENGINES))
def test_every_argument_reaches_the_engine_or_is_refused(engine: str) -> None:
    """With it and without it, what is started differs."""
    site = Site(model="m.gguf") if engine == "llama.cpp" else Site()
    names = [
        name
        for name in ARGUMENTS
        if OWNERS.get(name, engine) == engine and name not in CHOICES and name not in TIERS
    ]
    reached = []
    for name in names:
        base = f"llama-3.1-8b@1xh100/engine={engine}"
        if engine == "sglang" and name in ADAPTERS:
            base += ",lora_modules=a=/b"
        if engine == "sglang" and name == "enable_lora":
            continue
        beside = BESIDE.get(name, "")
        value = (
            "1"
            if name == "enable_chunked_prefill" and engine == "tensorrt-llm"
            else VALUES.get(name) or choice_of(engine, name)
        )
        without, text = made(base, site), f"{base},{name}={value}{beside}"
        if OWNERS.get(name) is None and name not in rules_of(parse_worker(base)).spelled:
            with pytest.raises(InputError, match="no command of"):
                made(text, site)
            continue
        launch = made(text, site)
        assert (launch.ranks, launch.files) != (without.ranks, without.files), name
        reached.append(name)
    assert len(reached) >= {"vllm": 12, "sglang": 14, "tensorrt-llm": 12}.get(engine, 1)


@pytest.mark.parametrize("engine", list(ENGINES))
def test_every_argument_of_launching_reaches_the_engine(engine: str) -> None:
    rows = ENGINES[engine]
    site = Site(model="m.gguf") if engine == "llama.cpp" else Site()
    without = made(f"llama-3.1-8b@1xh100/engine={engine}", site)
    for name, spelling in rows.launch.items():
        if not spelling:
            continue
        value = choice_of(engine, name)
        launch = made(f"llama-3.1-8b@1xh100/engine={engine},{name}={value}", site)
        assert (launch.ranks, launch.files) != (without.ranks, without.files), name
    for name in rows.switches:
        assert name in rows.launch or name in rows.arguments
        with pytest.raises(InputError, match="neither true nor false"):
            made(f"llama-3.1-8b@1xh100/engine={engine},{name}=maybe", site)


@pytest.mark.skipif(
    not FLAGS.exists(), reason="the engines' own flags are not beside this checkout"
)
@pytest.mark.parametrize(
    ("engine", "table"), [("vllm", "vllm"), ("sglang", "sglang"), ("tensorrt-llm", "trtllm_serve")]
)
def test_the_engine_knows_every_spelling_of_launching(engine: str, table: str) -> None:
    known = set()
    for flag in json.loads((FLAGS / f"{table}.json").read_text()):
        known |= {flag["name"], *(flag["aliases"] or ())}
    fields = {field["name"] for field in json.loads((FLAGS / "trtllm_llm_args.json").read_text())}
    for spelling in filter(None, ENGINES[engine].launch.values()):
        if spelling.startswith("yaml:"):
            assert set(spelling.removeprefix("yaml:").split(".")) <= fields
        else:
            name = f"--{spelling.partition('.')[0]}"
            assert name in known or name.replace("--no-", "--") in known, name


@pytest.mark.skipif(
    not FLAGS.exists(), reason="the engines' own flags are not beside this checkout"
)
def test_tensorrt_llm_knows_every_key_of_its_file() -> None:
    fields = json.loads((FLAGS / "trtllm_llm_args.json").read_text())
    top = {
        field["name"]
        for field in fields
        if field["class"] in ("BaseLlmArgs", "TorchLlmArgs", "TrtLlmArgs")
    }
    below = {
        "kv_cache_config": "KvCacheConfig", "moe_config": "MoeConfig", "scheduler_config": "SchedulerConfig",
        "attention_dp_config": "AttentionDpConfig", "torch_compile_config": "TorchCompileConfig",
        "speculative_config": "MTPDecodingConfig",
    }  # fmt: skip
    launch = made(
        "deepseek-v3@8xh200/dp8,attention-dp,ep8,engine=tensorrt-llm,num_speculative_tokens=3,kv=fp8,block_size=64,"
        "prefix_caching=0,free_gpu_memory_fraction=0.8,timeout_iters=60,batch_wait_timeout_iters=20,"
        "batch_wait_max_tokens_ratio=0.9,capture_num_tokens=8192,moe_backend=WIDEEP,attention_backend=TRTLLM,"
        "capacity_scheduler_policy=MAX_UTILIZATION,disable_overlap,load_format=dummy,return_perf_metrics,"
        "stream_interval=4,structured_output_backend=xgrammar"
    )
    tiered = made("llama-3.1-8b@2xh100/tp2,engine=tensorrt-llm,kv_host=64gb").files["trtllm.yaml"]
    assert msgspec.yaml.decode(tiered)["kv_cache_config"] == {
        "host_cache_size": 32_000_000_000
    }  # of each rank
    assert "host_cache_size" in {
        field["name"] for field in fields if field["class"] == "KvCacheConfig"
    }
    settings = msgspec.yaml.decode(launch.files["trtllm.yaml"])
    assert settings["kv_cache_config"] == {
        "free_gpu_memory_fraction": 0.8, "dtype": "fp8", "tokens_per_block": 64, "enable_block_reuse": False,
    }  # fmt: skip
    assert (settings["stream_interval"], settings["disable_overlap_scheduler"]) == (4, True)
    assert set(settings) <= top
    for key, kind in below.items():
        known = {field["name"] for field in fields if field["class"] == kind} | {"decoding_type"}
        assert set(settings[key]) <= known, key


@pytest.mark.parametrize(
    ("deployment", "words"),
    [
        ("llama-3.1-8b@1xh100/kv=fp8_e5m2", "--kv-cache-dtype fp8_e5m2"),
        ("llama-3.1-8b@1xh100/kv=fp8_e4m3", "--kv-cache-dtype fp8 "),
        ("llama-3.1-8b@1xh100/kv=fp16", "--kv-cache-dtype float16"),
        ("llama-3.1-8b@1xh100/kv=fp8_e5m2,engine=sglang", "--kv-cache-dtype fp8_e5m2"),
        ("llama-3.1-8b@1xh100/kv=fp8,engine=sglang", "--kv-cache-dtype fp8_e4m3"),
        ("deepseek-v3.2@8xh200/tp8,kv=fp8", "--kv-cache-dtype fp8_ds_mla"),
        ("llama-3.1-8b@1xh100/kv=int8,engine=mlx-lm", "--kv-bits 8"),
        ("llama-3.1-8b@1xh100/async_scheduling=0", "--no-async-scheduling"),
        ("llama-3.1-8b@1xh100/disable_overlap=0", "--async-scheduling"),
        ("llama-3.1-8b@1xh100/disable_overlap,engine=sglang", "--disable-overlap-schedule"),
        ("llama-3.1-8b@1xh100/disable_piecewise_cuda_graph,engine=sglang", "--disable-prefill-cuda-graph"),
        (
            "llama-3.1-8b@1xh100/disable_piecewise_cuda_graph,engine=sglang,version=0.5.12",
            "--disable-piecewise-cuda-graph",
        ),
        ("llama-3.1-8b@2xh100/tp2,kv_host=64gib", "--kv-offloading-size 64 --host"),
        (
            "llama-3.1-8b@2xh100/dp2,kv_host=64gib,kv_offload=lmcache",
            "--kv-offloading-size 32 --kv-offloading-backend lmcache",
        ),
        ("llama-3.1-8b@2xh100/tp2,engine=sglang,kv_host=1tb", "--enable-hierarchical-cache --hicache-size 500 "),
        ("llama-3.1-8b@4xh100/tp4,engine=sglang,kv_host=2gb", "--hicache-size 1 "),
        (
            "llama-3.1-8b@1xh100/engine=sglang,kv_host=100gb,hicache_write_policy=write_back",
            "--hicache-size 100 --hicache-write-policy write_back",
        ),
        ("llama-3.1-8b@1xh100/engine=transformers,enforce_eager,compile=0", "--no-cb-use-cuda-graph --host"),
        ("llama-3.1-8b@1xh100/kv=fp16,engine=llama.cpp", "--cache-type-k f16 --cache-type-v f16"),
        ("llama-3.1-8b@2xh100/tp2,engine=llama.cpp,prefix_caching=0", "--no-cache-prompt --split-mode tensor"),
        ("llama-3.1-8b@1xh100/engine=llama.cpp,served_model_name=x,flash_attn=on", "--flash-attn on"),
    ],
)  # fmt: skip
def test_how_it_is_spelled(deployment: str, words: str) -> None:
    assert words in lines(deployment, Site(model="m.gguf"))[0]


@pytest.mark.parametrize(
    ("deployment", "site", "problem"),
    [
        ("llama-3.1-8b@1xh100", Site(runtime="docker"), "no image"),
        ("llama-3.1-8b@1xh100/batching=static", Site(), "it can only be simulated"),
        ("llama-3.1-8b@1xcpu/engine=llama.cpp", Site(), "loads a GGUF file"),
        ("llama-3.1-8b@2xh100/dp2,engine=tensorrt-llm", Site(), "has no replicas"),
        ("llama-3.1-8b@16xh100/nodes=2", Site(nodes=("one",)), "1 nodes are named"),
        ("llama-3.1-8b@1xh100", Site(arguments=(("x; rm -rf /", None),)), "is no flag"),
        ("llama-3.1-8b@1xh100/kv=fp8_e5m2,engine=tensorrt-llm", Site(), "kv=fp8_e5m2: tensorrt-llm takes bf16"),
        ("llama-3.1-8b@1xh100/engine=mlx-lm,prefix_caching=0", Site(), "prefix_caching: no command of mlx-lm"),
        ("llama-3.1-8b@2xh100/tp2,engine=transformers", Site(), "tp: no command of transformers"),
        ("llama-3.1-8b@4xh100/tp2,pp2,engine=llama.cpp", Site(model="m"), "cuts layers or deals them"),
        ("llama-3.1-8b@1xh100/server=triton", Site(), "name its folder with --model"),
        ("llama-3.1-8b@1xh100/server=nginx", Site(), "write server=triton"),
        ("llama-3.1-8b@16xh100/tp16,nodes=2,server=triton", Site(model="m"), "started on one node"),
        (
            "llama-3.1-8b@16xh100/tp16,nodes=2,engine=tensorrt-llm",
            Site(runtime="docker", image="i"),
            "use enroot",
        ),
        ("llama-3.1-8b:fp8@1xh100/engine=transformers", Site(), "makes no fp8 weights"),
        ("llama-3.1-8b@1xh100/kv_host=1tb,kv_disk=4tb", Site(), "kv_disk: no command here says that"),
        ("llama-3.1-8b@1xh100/kv_host=1tb,kv_offload=kvbm", Site(), "is started by Dynamo"),
        ("llama-3.1-8b@1xh100/engine=sglang,kv_host=1tb,kv_disk=4tb", Site(), "kv_disk: sglang is not simulated"),
    ],
)  # fmt: skip
def test_what_no_command_can_say(deployment: str, site: Site, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        made(deployment, site)


def test_older_releases_of_vllm_say_it_otherwise() -> None:
    text = "llama-3.1-8b@1xh100/attention_backend=FLASHINFER,structured_output_backend=xgrammar,version=0.10.2"
    (line,) = made(text).shell_lines()
    assert line.startswith("VLLM_ATTENTION_BACKEND=FLASHINFER vllm serve ")
    assert line.endswith(" --guided-decoding-backend xgrammar")
    assert "--attention-backend" not in line
    (line,) = made(text.replace("0.10.2", "0.13.0")).shell_lines()
    assert line.startswith("vllm serve ")
    assert "--attention-backend FLASHINFER" in line
    assert "--structured-outputs-config.backend xgrammar" in line


def test_a_world_of_mpi_is_one_line() -> None:
    launch = made(
        "deepseek-v3@16xh200/tp16,nodes=2,engine=tensorrt-llm,moe_backend=WIDEEP", Site(nodes=NODES)
    )
    assert launch.tasks_per_node == 8
    (line,) = launch.shell_lines()
    assert line.startswith(
        "srun --mpi=pmix --kill-on-bad-exit=1 --nodes=2 --ntasks-per-node=8 trtllm-llmapi-launch "
    )
    assert launch.ranks[0].argv == launch.ranks[1].argv


def test_the_file_of_settings_is_read_in_its_container() -> None:
    site = Site(runtime="docker", image="tensorrt-llm:1.3")
    launch = made("llama-3.1-8b@1xh100/engine=tensorrt-llm,prefix_caching=0", site)
    words = launch.words(launch.ranks[0], "/logs")
    assert "--volume /logs/trtllm.yaml:/loadstone/trtllm.yaml" in " ".join(words)
    assert " --config /loadstone/trtllm.yaml " in " ".join(words)
    bare = made("llama-3.1-8b@1xh100/engine=tensorrt-llm,prefix_caching=0")
    assert "--config /logs/trtllm.yaml" in " ".join(bare.words(bare.ranks[0], "/logs"))


def test_triton_serves_a_folder_of_models() -> None:
    site = Site(model="/models/repo", port=9000)
    python = made("llama-3.1-8b@1xh100/server=triton,attention_backend=FLASHINFER", site)
    assert shlex.join(python.ranks[0].argv) == (
        "tritonserver --model-repository /models/repo --grpc-address 127.0.0.1 --grpc-port 9001 --metrics-port 9002 "
        "--http-address 127.0.0.1 --http-port 9000"
    )
    assert python.ready == "/v2/health/ready"
    built = made("llama-3-70b@8xh200/tp8,engine=tensorrt-llm,backend=tensorrt,server=triton", site)
    assert built.shell_lines()[0].startswith(
        "TRTLLM_ORCHESTRATOR=1 mpirun --allow-run-as-root -n 1 tritonserver "
    )


def test_what_only_starting_knows_reaches_batches_too() -> None:
    text = "llama-3.1-8b@1xh100/attention_backend=FLASHINFER,disable_overlap,structured_output_backend=xgrammar"
    assert json.loads(keywords_named(text, Site()).arguments) == {
        "tensor_parallel_size": 1, "attention_backend": "FLASHINFER", "async_scheduling": False,
        "structured_outputs_config": {"backend": "xgrammar"},
    }  # fmt: skip
    with pytest.raises(InputError, match="can only be simulated"):
        keywords_named("llama-3.1-8b@1xh100/batching=static", Site())
