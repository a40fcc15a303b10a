"""What a trace or sessions of agents promise a prefix cache, and what engines' own give."""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest

from conftest import Loadstone, Outcome
from engines.launch import Engine, NotInstalled, launch, launch_or_skip
from loadstone.core import run_folder
from loadstone.workload.schedule import promised_tokens

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
CONVERSATIONS = DATA / "traces" / "mooncake" / "conversation_trace.jsonl"
AGENTS = DATA / "agents" / "dynamo_agentic_mooncake_derived.jsonl"


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    yield from launch_or_skip("vLLM", tmp_path_factory)


@pytest.mark.slow
@pytest.mark.skipif(
    not CONVERSATIONS.is_file(),
    reason="needs the Mooncake trace of shared/data beside the checkout",
)
def test_vllm_s_cache_gives_what_the_trace_promises(loadstone: Loadstone, vllm: Engine) -> None:
    signal.alarm(300)
    # A sixteenth of the lengths: blocks of 32 tokens, which are vLLM's own on a CPU. One request at
    # a time, so that what an earlier one left in the cache is there; what is longer than the
    # context is left out.
    flags = "--length-scale 0.0625 --skip-bad --trace-window 0s:200s --concurrency 1 --requests 500 --warmup 0 --json"
    outcome = loadstone("bench", vllm.url, "--trace", CONVERSATIONS, *flags.split())
    metrics = outcome.cell["metrics"]
    assert outcome.cell["requests"]["ok"] == 500
    assert metrics["shared_input_tokens"] > 20_000
    assert metrics["cached_input_tokens"] == pytest.approx(metrics["shared_input_tokens"], rel=0.02)
    assert "prefix_cache_helped" not in outcome.findings


BLOCK = 32


def write_sessions(path: Path) -> None:
    """Two sessions that begin alike, each with a sub-agent's call between its own, and answers that
    are known."""
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


def write_many_sessions(path: Path) -> None:
    """Forty calls: four sessions that begin alike, each with two chains of a sub-agent's beside its
    own calls."""
    random = np.random.default_rng(7)
    calls, fresh = [], itertools.count(1000)
    for session in range(4):
        prompts: dict[str, list[int]] = {}
        after = {"2": ["1"], "3": ["2"], "4": ["3", "a2", "b2"], "5": ["4"], "6": ["5"]}
        after |= {"a1": ["2"], "a2": ["a1"], "b1": ["2"], "b2": ["b1"]}
        for name in ("1", "2", "a1", "a2", "b1", "b2", "3", "4", "5", "6"):
            # A sub-agent begins with a part of its parent's prompt, what follows has the whole of
            # what was before.
            begin = [*range(9)] if name == "1" else prompts[after[name][0]]
            begin = begin[: int(random.integers(3, len(begin)))] if name in ("a1", "b1") else begin
            prompts[name] = [*begin, *itertools.islice(fresh, int(random.integers(2, 18)))]
            calls.append({
                "session_id": session, "id": f"{session}-{name}", "delay_s": 0.01,
                "after": [f"{session}-{at}" for at in after.get(name, ())],
                "input_tokens": BLOCK * len(prompts[name]) - int(random.integers(0, BLOCK)),
                "output_tokens": int(random.integers(1, 12)), "hash_ids": prompts[name], "block_tokens": BLOCK,
            })  # fmt: skip
    path.write_text("".join(json.dumps(call) + "\n" for call in calls))


def write_real_sessions(path: Path) -> None:
    """Two sessions of an agent that mended programs, at half of their lengths, as far as the
    context goes."""
    rows = [json.loads(line) for line in AGENTS.read_text().splitlines()]
    for row in rows:
        row["input_length"], row["output_length"], row["block_tokens"] = (
            row["input_length"] // 2,
            8,
            BLOCK,
        )
        row["timestamp"], row["tool_wait_ms"] = 0, 1
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def count_alike(one: Sequence[object], other: Sequence[object]) -> int:
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def check_cached(outcome: Outcome, own_block: int) -> int:
    """Hold an engine's own count of what it found of each prompt against the plan; return the
    tokens promised of all.

    Sessions go one after the other: what a prompt has in common with any before it was in the cache
    by then. Of an earlier prompt that ends within a block this is less than the whole block that a
    plan counts.
    """
    plan = run_folder.read_plan(outcome.folder)
    promised = promised_tokens(plan, 0)
    assert plan.blocks is not None
    assert plan.blocks.tokens == BLOCK
    starts = np.flatnonzero(plan.turn == 0).tolist()
    begun = [
        each["session_id"] for each in sorted(outcome.records, key=lambda each: each["sent_s"])
    ]
    first = dict(zip(dict.fromkeys(begun), starts, strict=True))
    asked = {first[each["session_id"]] + each["turn"]: each for each in outcome.records}
    said = {
        row: [*((block, at) for block in plan.blocks.take_row(row).tolist() for at in range(BLOCK))]
        for row in asked
    }
    for row, record in sorted(asked.items()):
        length = int(plan.input_tokens[row])
        own = said[row] = [*said[row], *(("its own", row) for _ in range(length))][:length]
        common = max((count_alike(own, said[other]) for other in asked if other < row), default=0)
        assert promised[row] - BLOCK < common <= promised[row]
        # The last token of a prompt is computed in any case.
        found = min(common, length - 1) // own_block * own_block
        assert (record["input_tokens"], record["cached_tokens"]) == (length, found)
    return int(promised[list(asked)].sum())


FLAGS = "--endpoint completions --concurrency 1 --warmup 0 --json"


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
            flags = (*FLAGS.split(), "--salt", "0123456789ab")
            outcome = loadstone(
                "bench", engine.url, "--model", engine.model, "--agents", path, *flags
            )
    except NotInstalled as error:
        pytest.skip(str(error))
    assert outcome.code == 0, outcome.err
    assert len(outcome.records) == 12
    assert check_cached(outcome, own_block) > 4000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("write", "calls", "least"),
    [
        (write_many_sessions, 40, 30_000),
        pytest.param(
            write_real_sessions, 20, 40_000,
            marks=pytest.mark.skipif(not AGENTS.is_file(), reason="needs shared/data/agents beside the checkout"),
        ),
    ],
)  # fmt: skip
def test_vllm_finds_of_longer_sessions_what_the_plan_says_to_a_block(
    write: Callable[[Path], None],
    calls: int,
    least: int,
    loadstone: Loadstone,
    vllm: Engine,
    tmp_path: Path,
) -> None:
    signal.alarm(400)
    path = tmp_path / "sessions.jsonl"
    write(path)
    outcome = loadstone("bench", vllm.url, "--model", vllm.model, "--agents", path, *FLAGS.split())
    assert outcome.code == 0, outcome.err
    assert len(outcome.records) == calls
    assert check_cached(outcome, BLOCK) > least
