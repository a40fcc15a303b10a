"""Sizing against vLLM itself: given the same room for the KV cache, as many blocks and as long a
context.

vLLM for the CPU, with the tiny model. What it prints is what is compared; nothing is served.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from engines import tiny_model
from engines.launch import _HOMES, _READY_TIMEOUT_S, environment
from loadstone import catalogue
from loadstone.catalogue import Worker
from loadstone.engines import rules_of
from loadstone.measure.engines.launch import serve
from loadstone.measure.engines.process import free_port

pytestmark = pytest.mark.process

MIB = 1 << 20


class Setting(NamedTuple):
    """`space_gib`: VLLM_CPU_KVCACHE_SPACE, whole GiB; `kv_mib`: --kv-cache-memory-bytes instead."""

    max_model_len: str
    block_tokens: int | None
    space_gib: int | None = None
    kv_mib: int | None = None

    @property
    def kv_bytes(self) -> int:
        return (self.space_gib or 0) * 1024 * MIB + (self.kv_mib or 0) * MIB


SETTINGS = (
    Setting("4096", 32, space_gib=1),
    Setting("2048", None, space_gib=2),
    Setting(
        "auto", 64, kv_mib=11
    ),  # too little for the model's 4,096: vLLM looks for the longest that fits
)
CPU_BLOCK_TOKENS = 128


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: f"{setting.kv_bytes // MIB}MiB")
def test_blocks_and_longest_context_are_those_vllm_prints(setting: Setting, tmp_path: Path) -> None:
    signal.alarm(400)  # it starts in most of a minute on a quiet machine
    printed, config = vllm_says(setting, tmp_path)
    model = catalogue.model(str(tmp_path / "tiny" / "config.json"))
    deployment = Worker(
        model=model, gpu=catalogue.gpu("l4"), gpus=1, weights_dtype="fp32", kv_dtype="fp32"
    )
    rules = rules_of(deployment)
    limits = rules.limits()
    block = setting.block_tokens or CPU_BLOCK_TOKENS
    cache = rules.cache(
        rules_of(deployment).ranks[0],
        type(limits)(block, limits.max_batched_tokens, limits.max_seqs),
    )
    blocks = cache.blocks(setting.kv_bytes)
    assert (blocks, block) == (int(config["num_gpu_blocks"]), int(config["block_size"]))
    longest = cache.max_context(blocks, model.max_context_tokens or 0)
    if setting.max_model_len == "auto":
        assert longest == int(find(r"Auto-fit max_model_len: reduced from 4096 to (\d+)", printed))
        length = longest
    else:
        length = int(setting.max_model_len)
        assert longest >= length
    tokens, of, times = re.search(
        r"KV cache size: ([\d,]+) tokens, Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x",
        printed,
    ).groups()  # type: ignore[union-attr]
    assert int(of.replace(",", "")) == length
    assert int(cache.concurrency(blocks, length) * length) == int(tokens.replace(",", ""))
    assert f"{cache.concurrency(blocks, length):.2f}" == times


def find(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    assert match, f"{pattern!r} is not in what vLLM printed:\n{text[-3000:]}"
    return match[1]


def vllm_says(setting: Setting, folder: Path) -> tuple[str, dict[str, str]]:
    """Its log until it was ready, and the labels of vllm:cache_config_info."""
    home = _HOMES / "vllm"
    if not (home / "setup.stamp").is_file():
        pytest.skip("scripts/engines/vllm has not been run")
    tiny_model.write(folder / "tiny")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        str(home / "bin" / "vllm"), "serve", str(folder / "tiny"), "--host", "127.0.0.1", "--port", str(port),
        "--dtype", "float32", "--enforce-eager", "--max-num-seqs", "8", "--max-model-len", setting.max_model_len,
    ]  # fmt: skip
    if setting.block_tokens:
        command += ["--block-size", str(setting.block_tokens)]
    if setting.kv_mib:
        command += ["--kv-cache-memory-bytes", str(setting.kv_mib * MIB)]
    env = environment()
    env |= {
        "HF_HOME": str(folder),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": "1",
    }
    if setting.space_gib:
        env["VLLM_CPU_KVCACHE_SPACE"] = str(setting.space_gib)
    log = folder / "server.log"
    with serve(command, "vllm", log_path=log, url=url, env=env, timeout_s=_READY_TIMEOUT_S):
        metrics = httpx.get(f"{url}/metrics", trust_env=False).text
    line = find(r"vllm:cache_config_info\{([^}]*)\}", metrics)
    return (folder / "server.log").read_text(errors="replace"), dict(
        re.findall(r'(\w+)="([^"]*)"', line)
    )
