"""The commands that start prefill and decode pools: every rank of every worker, and the router."""

from __future__ import annotations

import json

import msgspec
import pytest
from typer.testing import CliRunner

from loadstone.catalogue.deployment.shorthand import parse_deployment
from loadstone.commands import app
from loadstone.core.errors import InputError
from loadstone.engines.deployment_launch import DeploymentLaunch, launch_deployment
from loadstone.engines.launch import Site

SMALL = "llama-3.1-8b@prefill=2*(1xh100/tp1)+decode=1xh100/tp1"
WIDE = "deepseek-r1@prefill=8xh200/tp8+decode=16xh200/dp16,ep16,attention-dp"


def made(text: str, site: Site | None = None) -> DeploymentLaunch:
    return launch_deployment(parse_deployment(text), site or Site())


def test_sglang_on_one_node() -> None:
    assert made(f"{SMALL},engine=sglang").shell_lines() == [
        "# prefill 0, on 127.0.0.1",
        "CUDA_VISIBLE_DEVICES=0 sglang serve --model-path meta-llama/Meta-Llama-3.1-8B --tp-size 1 --enable-metrics "
        "--disaggregation-mode prefill --disaggregation-bootstrap-port 8998 --host 127.0.0.1 --port 8101",
        "# prefill 1, on 127.0.0.1",
        "CUDA_VISIBLE_DEVICES=1 sglang serve --model-path meta-llama/Meta-Llama-3.1-8B --tp-size 1 --enable-metrics "
        "--disaggregation-mode prefill --disaggregation-bootstrap-port 8999 --host 127.0.0.1 --port 8102",
        "# decode 0, on 127.0.0.1",
        "CUDA_VISIBLE_DEVICES=2 sglang serve --model-path meta-llama/Meta-Llama-3.1-8B --tp-size 1 --enable-metrics "
        "--disaggregation-mode decode --host 127.0.0.1 --port 8103",
        "# router 0, on 127.0.0.1",
        "python3 -m sglang_router.launch_router --pd-disaggregation --prefill http://127.0.0.1:8101 8998 "
        "--prefill http://127.0.0.1:8102 8999 --decode http://127.0.0.1:8103 --policy power_of_two "
        "--host 127.0.0.1 --port 8000",
    ]


def test_vllm_tells_each_rank_its_side_channel() -> None:
    launch = made(f"{WIDE},engine=vllm", Site(nodes=("a", "b", "c"), port=9000))
    ranks = [rank for worker in launch.launches[:-1] for rank in worker.ranks]
    assert [rank.env for rank in ranks] == [
        {"VLLM_NIXL_SIDE_CHANNEL_HOST": node, "VLLM_NIXL_SIDE_CHANNEL_PORT": "5600"}
        for node in "abc"
    ]
    given = [json.loads(rank.argv[rank.argv.index("--kv-transfer-config") + 1]) for rank in ranks]
    assert [each["kv_role"] for each in given] == ["kv_producer", "kv_consumer", "kv_consumer"]
    assert {each["kv_connector"] for each in given} == {"NixlConnector"}
    assert launch.shell_lines()[-1] == (
        "vllm-router --vllm-pd-disaggregation --prefill http://a:9101 --decode http://b:9101 "
        "--policy power_of_two --host 0.0.0.0 --port 9000"
    )
    shared = made(f"{SMALL},engine=vllm")
    ports = [
        rank.env["VLLM_NIXL_SIDE_CHANNEL_PORT"]
        for workers in shared.pools.values()
        for each in workers
        for rank in each.ranks
    ]
    assert ports == ["5600", "5700", "5800"]


def test_tensorrt_llm_has_a_file_for_each_pool_and_the_router() -> None:
    text = (
        "deepseek-r1@prefill=2*(4xgb200/tp4)+decode=8xgb200/dp8,ep8,attention-dp,max_model_len=9000"
    )
    launch = made(f"{text},engine=tensorrt-llm")
    files = {name: msgspec.yaml.decode(text) for name, text in launch.files.items()}
    assert files == {
        "trtllm-prefill.yaml": {
            "cache_transceiver_config": {"backend": "DEFAULT"},
            "disable_overlap_scheduler": True,
        },
        "trtllm-decode.yaml": {
            "cache_transceiver_config": {"backend": "DEFAULT", "max_tokens_in_buffer": 9000},
            "enable_attention_dp": True,
        },
        "disagg.yaml": {
            "hostname": "0.0.0.0",
            "port": 8000,
            "context_servers": {
                "num_instances": 2,
                "urls": ["node0:8101", "node1:8101"],
                "router": {"type": "load_balancing"},
            },
            "generation_servers": {
                "num_instances": 1,
                "urls": ["node2:8101"],
                "router": {"type": "load_balancing"},
            },
        },
    }
    lines = launch.shell_lines()
    assert lines[-1] == "trtllm-serve disaggregated -c disagg.yaml"
    # A rack's trays are machines: eight GPUs are two of them, one world of MPI.
    assert lines[4] == "# decode 0, on node2, node3"
    assert "--nodes=2 --nodelist=node2,node3 --ntasks-per-node=4" in lines[5]


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        (SMALL, [["127.0.0.1"], ["127.0.0.1"], ["127.0.0.1"]]),
        (WIDE, [["node0"], ["node1", "node2"]]),
        (
            "llama-3.1-8b@prefill=3*(4xh100/tp4)+decode=4xh100/tp4",
            [["node0"], ["node0"], ["node1"], ["node1"]],
        ),
        ("llama-3.1-8b@prefill=1xh100/tp1+decode=1xh200/tp1", [["node0"], ["node1"]]),
        ("llama-3.1-8b@prefill=1xcpu+decode=1xcpu", [["127.0.0.1"], ["127.0.0.1"]]),
    ],
)
def test_workers_that_fit_share_a_node(text: str, nodes: list[list[str]]) -> None:
    launch = made(text)
    assert [
        [rank.node for rank in worker.ranks]
        for workers in launch.pools.values()
        for worker in workers
    ] == nodes
    taken = [
        (rank.node, gpu)
        for workers in launch.pools.values()
        for worker in workers
        for rank in worker.ranks
        for gpu in rank.env.get("CUDA_VISIBLE_DEVICES", f"all {worker.url}").split(",")
    ]
    assert len(taken) == len(set(taken))


def test_deepep_has_the_kernels_of_each_pool() -> None:
    said = "attention-dp,engine=sglang,moe_a2a_backend=deepep"
    launch = made(f"deepseek-r1@prefill=8xh200/dp8,ep8,{said}+decode=16xh200/dp16,ep16,{said}")
    modes = [
        rank.argv[rank.argv.index("--deepep-mode") + 1]
        for workers in launch.pools.values()
        for worker in workers
        for rank in worker.ranks
    ]
    assert modes == ["normal", "low_latency", "low_latency"]


def test_a_container_has_workers_and_the_router_that_its_image_has() -> None:
    site = Site(runtime="docker", image="image:1")
    sglang, vllm = made(f"{SMALL},engine=sglang", site), made(f"{SMALL},engine=vllm", site)
    assert "CUDA_VISIBLE_DEVICES=1" in sglang.pools["prefill"][1].ranks[0].argv
    assert sglang.router.container is not None
    assert vllm.router.container is None


@pytest.mark.parametrize(
    ("text", "site", "says"),
    [
        (WIDE, Site(nodes=("a", "b")), "2 nodes are named, and the pools take 3"),
        (
            "llama-3.1-8b@prefill=1xh100/engine=vllm+decode=1xh100/engine=sglang",
            Site(),
            "cannot hand a KV cache",
        ),
        (SMALL, Site(arguments=(("--api-key", "x"),)), "a secret is no part of a command"),
        (SMALL, Site(port=65_434), "port 65536: there is none"),
        (SMALL, Site(port=-1), "port"),
    ],
)
def test_what_cannot_start_is_told_in_one_line(text: str, site: Site, says: str) -> None:
    with pytest.raises(InputError, match=says) as error:
        made(text, site)
    assert "\n" not in str(error.value)


def test_the_command_line_prints_pools() -> None:
    run = CliRunner().invoke(app, ["launch", SMALL, "--dry-run", "--json"])
    document = json.loads(run.stdout)
    assert {role: len(workers) for role, workers in document["pools"].items()} == {
        "prefill": 2,
        "decode": 1,
    }
    assert document["router"]["ranks"][0]["argv"][-6:-4] == ["--policy", "power_of_two"]
    assert document["router"]["url"] == "http://127.0.0.1:8000"
