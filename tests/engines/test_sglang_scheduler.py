"""The simulated scheduler against SGLang's own, step by step, as its log has them: prompts
computed, who decodes."""

from __future__ import annotations

import random
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

import httpx
import pytest

from engines import tiny_model
from engines.launch import _HOMES, _READY_TIMEOUT_S, environment
from loadstone.catalogue.deployment.shorthand import parse_worker
from loadstone.measure.engines.launch import serve
from loadstone.measure.engines.process import free_port
from loadstone.predict.scheduler import EnginePolicy, Scheduler, Sequence
from loadstone.predict.scheduler.policy import policy_of

KV_TOKENS, SEQS, CHUNK = 1024, 12, 256
BURSTS, REQUESTS = 6, 16
PREFILL = re.compile(r"Prefill batch.*?#new-seq: (\d+), #new-token: (\d+)")
DECODE = re.compile(r"Decode batch.*?#running-req: (\d+)")


@pytest.mark.slow
def test_every_step_of_a_burst_is_sglangs(tmp_path: Path) -> None:
    signal.alarm(500)
    draw = random.Random(0)
    with sglang(tmp_path) as (url, log):
        for _ in range(BURSTS):
            lengths = clear(draw)
            begin = log.stat().st_size
            burst(url, lengths, draw)
            said = settled(log)[begin:].decode(errors="replace")
            assert "etract" not in said
            assert told(ours(lengths)) == told(theirs(said)), lengths


def settled(log: Path) -> bytes:
    """The answer may be there before the line about its last step is."""
    said = b""
    while said != (now := log.read_bytes()):
        said = now
        time.sleep(1.0)
    return said


def clear(draw: random.Random) -> list[tuple[int, int]]:
    """Prompts and answers of a burst in which it makes no difference that SGLang reserves a token
    or two more for each request than it will need."""
    while True:
        lengths = [(draw.randint(10, 100), draw.randint(2, 120)) for _ in range(REQUESTS)]
        if told(ours(lengths)) == told(ours(lengths, KV_TOKENS - 2 * SEQS)):
            return lengths


@contextmanager
def sglang(folder: Path) -> Iterator[tuple[str, Path]]:
    home = _HOMES / "sglang"
    if not (home / "setup.stamp").is_file():
        pytest.skip("scripts/engines/sglang has not been run")
    tiny_model.write(folder / "tiny")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        str(home / "bin" / "sglang-cpu"), "--model-path", str(folder / "tiny"), "--host", "127.0.0.1",
        "--port", str(port), "--dtype", "float32", "--max-total-tokens", str(KV_TOKENS),
        "--max-running-requests", str(SEQS), "--chunked-prefill-size", str(CHUNK),
        "--disable-overlap-schedule", "--decode-log-interval", "1",
    ]  # fmt: skip
    env = environment()
    log = folder / "server.log"
    with serve(
        command,
        "sglang",
        log_path=log,
        url=url,
        ready="/health_generate",
        env=env,
        timeout_s=_READY_TIMEOUT_S,
    ):
        yield url, log


def burst(url: str, lengths: list[tuple[int, int]], draw: random.Random) -> None:
    """All at once: the engine is held until they have arrived."""
    body = {
        "input_ids": [
            [3 + at, *draw.choices(range(99, 200), k=prompt - 1)]
            for at, (prompt, _) in enumerate(lengths)
        ],
        "sampling_params": [
            {"max_new_tokens": output, "ignore_eos": True} for _, output in lengths
        ],
    }
    with httpx.Client(base_url=url, timeout=300, trust_env=False) as client:
        client.post("/flush_cache").raise_for_status()
        client.post("/pause_generation", json={"mode": "in_place"}).raise_for_status()
        answers: list[httpx.Response] = []
        asking = threading.Thread(
            target=lambda: answers.append(client.post("/generate", json=body))
        )
        asking.start()
        time.sleep(2.0)
        client.post("/continue_generation", json={}).raise_for_status()
        asking.join()
    assert [each["meta_info"]["completion_tokens"] for each in answers[0].json()] == [
        out for _, out in lengths
    ]


def theirs(log: str) -> Iterator[tuple[str, int, int]]:
    for line in log.splitlines():
        if found := PREFILL.search(line):
            yield "prompts", int(found[1]), int(found[2])
        elif found := DECODE.search(line):
            yield "decodes", int(found[1]), 0


def ours(
    lengths: list[tuple[int, int]], kv_tokens: int = KV_TOKENS
) -> Iterator[tuple[str, int, int]]:
    known = policy_of(parse_worker("llama-3.1-8b@1xh100/engine=sglang"))
    policy = EnginePolicy(
        kv_blocks=kv_tokens, block_tokens=1, max_batched_tokens=CHUNK, max_seqs=SEQS, order=known.order,
        keep_free=known.keep_free, prefix_cache=False,
    )  # fmt: skip
    scheduler = Scheduler(policy)
    for row, (prompt, output) in enumerate(lengths):
        scheduler.add(Sequence(row, prompt, output))
    while scheduler.schedule():
        if scheduler.chunks:
            yield "prompts", len(scheduler.chunks), sum(new for _, new, _ in scheduler.chunks)
        else:
            yield "decodes", scheduler.decodes, 0
        scheduler.advance()


def told(steps: Iterator[tuple[str, int, int]]) -> list[tuple[tuple[str, int, int], int]]:
    """Steps of the same kind in a row as one, and how many they are."""
    return [(step, len(list(same))) for step, same in groupby(steps)]
