"""What a trace or sessions of agents promise a prefix cache, and what engines' own give."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path

import pytest

from conftest import Loadstone
from engines.launch import Engine, NotInstalled, launch
from loadstone.core import run_folder
from loadstone.workload.schedule import promised_tokens

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


BLOCK = 32


def write_sessions(path: Path) -> None:
    """Two sessions that begin alike, each with a sub-agent's call between its own, and answers that are known."""
    calls = []
    for session in range(2):
        begin, first = [*range(6)], 100 * (session + 1)
        prompts = {
            "1": [*begin, *range(first, first + 4)],
            "2": [*begin, *range(first, first + 9)],
            "sub": [*begin[:3], *range(first + 50, first + 60)],
            "3": [*begin, *range(first, first + 20)],
            "4": [*begin, *range(first, first + 12), *range(first + 70, first + 80)],
            "5": [*begin, *range(first, first + 40)],
        }
        after = {"2": ["1"], "sub": ["1"], "3": ["2", "sub"], "4": ["3"], "5": ["4"]}
        for name, blocks in prompts.items():
            calls.append({
                "session_id": session, "id": f"{session}-{name}",
                "after": [f"{session}-{at}" for at in after.get(name, ())],
                "input_tokens": BLOCK * len(blocks) - 7, "output_tokens": 8,
                "hash_ids": blocks, "block_tokens": BLOCK,
            })  # fmt: skip
    path.write_text("".join(json.dumps(call) + "\n" for call in calls))


def count_alike(one: Sequence[object], other: Sequence[object]) -> int:
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "own_block"), [("SGLang", 1), ("vLLM", BLOCK)])
def test_engines_find_of_sessions_what_the_plan_says_to_a_block(
    name: str, own_block: int, loadstone: Loadstone, tmp_path: Path
) -> None:
    signal.alarm(400)
    path = tmp_path / "sessions.jsonl"
    write_sessions(path)
    try:
        with launch(name, tmp_path) as engine:
            flags = "--endpoint completions --concurrency 1 --warmup 0 --salt 0123456789ab --json"
            outcome = loadstone("bench", engine.url, "--model", engine.model, "--agents", path, *flags.split())
    except NotInstalled as error:
        pytest.skip(str(error))
    assert outcome.code == 0, outcome.err
    plan = run_folder.read_plan(outcome.folder)
    promised = promised_tokens(plan, 0)
    begun = [each["session_id"] for each in sorted(outcome.records, key=lambda each: each["sent_s"])]
    first = {session: 6 * at for at, session in enumerate(dict.fromkeys(begun))}
    assert len(outcome.records) == len(promised) == 12
    # One session after the other: what a prompt has in common with any before it was in the cache by then. Of an
    # earlier prompt that ends within a block this is less than the whole block that a plan counts.
    assert plan.blocks is not None
    said = [
        [(block, at) for block in plan.blocks.take_row(row).tolist() for at in range(BLOCK)][: plan.input_tokens[row]]
        for row in range(12)
    ]
    for record in sorted(outcome.records, key=lambda each: each["sent_s"]):
        row = first[record["session_id"]] + record["turn"]
        own = said[row]
        common = max((count_alike(own, other) for other in said[:row]), default=0)
        assert promised[row] - BLOCK < common <= promised[row]
        # The last token of a prompt is computed in any case.
        found = min(common, len(own) - 1) // own_block * own_block
        assert (record["input_tokens"], record["cached_tokens"]) == (len(own), found)
    assert sum(promised) > 4000
