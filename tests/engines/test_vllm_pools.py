"""Two real pools of vLLM on a processor: KV caches go over NIXL from one worker to the other."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Loadstone
from engines.launch import NotInstalled, Pools, launch_vllm_pools
from engines.test_traces import write_sessions


@pytest.fixture(scope="module")
def pools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pools]:
    try:
        with launch_vllm_pools(tmp_path_factory.mktemp("pools")) as started:
            yield started
    except NotInstalled as error:
        pytest.skip(str(error))


def asked(pools: Pools, more: str, url: str | None = None) -> list[str]:
    workers = f"{pools.prefill.url},{pools.decode.url}"
    flags = f"--model tiny --warmup 0 --json --worker-metrics {workers} --deployment {pools.deployment} {more}"
    return ["bench", url or pools.url, *flags.split()]


def computed(worker: str) -> int:
    """Requests that a worker has begun to answer."""
    with urllib.request.urlopen(f"{worker}/metrics") as page:
        (count,) = re.findall(
            r"vllm:time_to_first_token_seconds_count{.*} ([0-9]+)", page.read().decode()
        )
    return int(count)


@pytest.mark.slow
def test_the_caches_of_all_requests_are_handed_over(loadstone: Loadstone, pools: Pools) -> None:
    signal.alarm(600)
    outcome = loadstone(*asked(pools, "--input 256 --output 16 --concurrency 4 --requests 40"))
    cell = outcome.cell
    assert cell["requests"]["ok"] == 40
    assert (cell["server"]["transferred_tokens"], cell["server"]["transfers_failed"]) == (
        40 * 256,
        0,
    )
    assert "transfers_differ" not in outcome.findings
    prefill, decode = cell["pools"]
    assert prefill["tokens_per_s"] == pytest.approx(16 * decode["tokens_per_s"], rel=0.05)


@pytest.mark.slow
def test_what_the_decode_worker_still_has_is_not_missed(
    loadstone: Loadstone, pools: Pools, tmp_path: Path
) -> None:
    signal.alarm(600)
    write_sessions(tmp_path / "sessions.jsonl")
    outcome = loadstone(
        *asked(pools, "--endpoint completions --concurrency 1"),
        "--agents",
        tmp_path / "sessions.jsonl",
    )
    cell = outcome.cell
    assert cell["server"]["transferred_tokens"] == sum(
        each["input_tokens"] for each in outcome.records
    )
    assert cell["metrics"]["cached_input_tokens"] > 4000
    assert "transfers_differ" not in outcome.findings


@pytest.mark.slow
def test_one_side_alone_is_told(loadstone: Loadstone, pools: Pools) -> None:
    signal.alarm(600)
    flags = "--input 256 --output 4 --concurrency 2 --requests 10"
    outcome = loadstone(*asked(pools, flags, url=pools.decode.url))  # past the router
    assert outcome.cell["requests"]["ok"] == 10
    assert "transfers_differ" in outcome.findings


@pytest.mark.slow
def test_a_pool_that_dies_is_told(loadstone: Loadstone, pools: Pools) -> None:
    signal.alarm(600)
    begun = computed(pools.prefill.url)

    def kill_in_the_middle() -> None:
        while computed(pools.prefill.url) < begun + 20:
            time.sleep(0.1)
        os.kill(pools.prefill.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_in_the_middle, daemon=True)
    killer.start()
    flags = "--input 256 --output 16 --concurrency 4 --requests 60 --timeout-first 20"
    outcome = loadstone(*asked(pools, flags))
    killer.join()
    requests = outcome.cell["requests"]
    assert requests["ok"] > 0
    assert requests["error"] + requests["timeout"] > 10
    assert "request_errors" in outcome.findings
