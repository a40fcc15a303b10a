"""What a release of an engine cannot be told is refused in one line, with the release that can."""

import pytest

from loadstone.catalogue.deployment.shorthand import parse_worker
from loadstone.core.errors import InputError
from loadstone.engines import launch_of
from loadstone.engines.launch import Site

TWO = "llama-3.1-70b@16xh200/tp16,nodes=2"
TRT = "llama-3.1-8b@1xh100/engine=tensorrt-llm,backend=tensorrt"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{TWO},version=0.10.0", "vllm 0.10.0 does not have it; 0.12 and later"),
        (f"{TWO},distributed_executor_backend=ray", "beside --distributed-executor-backend ray"),
        (f"{TRT},version=1.3.0", "tensorrt-llm 1.3.0 no longer has it, removed in 1.3"),
        (f"{TRT},version=1.3", "no longer has it"),
        (f"{TRT},server=triton,version=1.4.1", "no longer has it"),
        ("llama-3.1-8b@2xh100/tp1,dp2,version=0.8.0", "--data-parallel-size: vllm 0.8.0"),
        (
            "deepseek-v4-flash@8xh200/tp8,version=0.10.0",
            "V4-Flash: vllm 0.10.0 does not have it; 0.20",
        ),
        ("deepseek-v4-flash@8xh200/tp8,version=0.19.1", "V4-Flash: vllm 0.19.1 does not have it"),
        ("gpt-oss-20b@1xh100/version=0.6.3", "gpt-oss-20b: vllm 0.6.3 does not have it"),
        ("deepseek-v3@8xh200/tp8,version=0.6.4", "DeepSeek-V3: vllm 0.6.4 does not have it; 0.6.6"),
        ("qwen3-next-80b-a3b@4xh100/tp4,engine=sglang,version=0.4.9", "0.5.2 and later"),
        (
            "llama-3.1-8b@1xh100/engine=sglang,version=0.4.1,attention_backend=fa3",
            "fa3: sglang 0.4.1",
        ),
        (
            "llama-3.1-8b@1xh100/engine=sglang,version=0.4.1,kv=fp8",
            "--kv-cache-dtype fp8_e4m3: sglang",
        ),
        (
            "llama-3.1-8b@1xh100/version=0.9.0,async_scheduling=0",
            "--no-async-scheduling: vllm 0.9.0",
        ),
    ],
)
def test_what_a_release_lacks_is_refused(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said.replace(".", r"\.")) as told:
        launch_of(parse_worker(text), Site(model="m"))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    "text",
    [
        f"{TWO},version=0.12.0",
        TWO,
        f"{TRT},version=1.2.1",
        TRT,
        "llama-3.1-8b@1xh100/version=0.6.3",
        "deepseek-v4-flash@8xh200/tp8,version=0.20.0",
        "gpt-oss-20b@1xh100/version=0.10.2",
        "llama-3.1-8b@1xh100/engine=sglang,version=0.4.5,attention_backend=fa3",
        "llama-3.1-8b@1xh100/engine=sglang,version=0.5.20,cuda_graph_max_bs=64",
    ],
)
def test_what_a_release_has_is_printed(text: str) -> None:
    assert launch_of(parse_worker(text), Site(model="m")).ranks


def test_the_user_s_own_flags_are_checked_too() -> None:
    worker = parse_worker("llama-3.1-8b@1xh100/version=0.33.0")
    with pytest.raises(InputError, match=r"--swap-space: vllm 0\.33\.0 no longer has it"):
        launch_of(worker, Site(arguments=(("swap_space", "4"),)))
    with pytest.raises(InputError, match=r"--worker-use-ray: vllm 0\.33\.0 no longer has it"):
        launch_of(worker, Site(arguments=(("worker_use_ray", None),)))
    old = parse_worker("llama-3.1-8b@1xh100/version=0.6.3")
    assert launch_of(old, Site(arguments=(("swap-space", "4"),))).ranks
