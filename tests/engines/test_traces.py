"""What a trace promises a prefix cache, and what vLLM's gives."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Loadstone
from engines.launch import Engine, NotInstalled, launch

CONVERSATIONS = (
    Path(__file__).resolve().parents[3] / "shared" / "data" / "traces" / "mooncake" / "conversation_trace.jsonl"
)


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    try:
        with launch("vLLM", tmp_path_factory.mktemp("engine")) as engine:
            yield engine
    except NotInstalled as error:
        pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.skipif(not CONVERSATIONS.is_file(), reason="needs the Mooncake trace of shared/data beside the checkout")
def test_vllm_s_cache_gives_what_the_trace_promises(loadstone: Loadstone, vllm: Engine) -> None:
    signal.alarm(300)
    # A sixteenth of the lengths: blocks of 32 tokens, which are vLLM's own on a CPU. One request at a time, so that
    # what an earlier one left in the cache is there; what is longer than the context is left out.
    flags = "--length-scale 0.0625 --skip-bad --trace-window 0s:200s --concurrency 1 --requests 500 --warmup 0 --json"
    outcome = loadstone("bench", vllm.url, "--trace", CONVERSATIONS, *flags.split())
    metrics = outcome.cell["metrics"]
    assert outcome.cell["requests"]["ok"] == 500
    assert metrics["shared_input_tokens"] > 20_000
    assert metrics["cached_input_tokens"] == pytest.approx(metrics["shared_input_tokens"], rel=0.02)
    assert "prefix_cache_helped" not in outcome.findings
