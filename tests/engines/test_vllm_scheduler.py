"""The simulated scheduler against vLLM's own, step by step: who computes how many tokens, who gives
way, who ends."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from engines import tiny_model
from engines.launch import _HOMES, environment
from loadstone.engines.sharding.adapters import AdapterSlots
from loadstone.predict.scheduler import EnginePolicy, Scheduler, Sequence
from loadstone.predict.scheduler.blocks import SingleBlocks

pytestmark = pytest.mark.process

CASES, MANY_CASES = 120, 300


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shared", "priorities", "adapters"),
    [
        (False, False, False),
        (True, False, False),
        (False, True, False),
        (False, False, True),
        (False, True, True),
    ],
    ids=["own prompts", "shared prompts", "priorities", "adapters", "adapters and priorities"],
)
def test_every_step_is_vllms(
    shared: bool, priorities: bool, adapters: bool, tmp_path: Path
) -> None:
    draw = random.Random(shared + 2 * priorities + 4 * adapters)
    count = MANY_CASES if priorities or adapters else CASES
    cases = [drawn(draw, shared, priorities) for _ in range(count)]
    for case in cases:
        case["slots"] = draw.randint(1, 4) if adapters else 0
        for asked in case["requests"] if adapters else ():
            asked["adapter"] = draw.randint(0, 6)
    theirs = vllm_steps(cases, tmp_path)
    ours = [loadstone_steps(case, shared) for case in cases]
    assert (
        sum(len(lost) for said in theirs for _, lost, _ in said) > count
    )  # what matters most did happen
    odd = [at for at in range(count) if ours[at] != theirs[at]]
    if not shared:
        assert odd == []
        return
    # vLLM keeps two blocks of the same content where two requests computed it side by side; here
    # they are one.
    assert len(odd) <= count * 0.05
    computed, expected = (
        sum(sum(step[0].values()) for said in all_said for step in said)
        for all_said in (ours, theirs)
    )
    assert computed == pytest.approx(expected, rel=1e-3)


def drawn(draw: random.Random, shared: bool, priorities: bool = False) -> dict[str, Any]:
    """A small cache, and requests that crowd it. `priorities`: as vLLM has them, smaller first."""
    block, kv_blocks, max_seqs = (
        draw.choice([1, 2, 4, 16]),
        draw.randint(8, 60),
        draw.randint(1, 12),
    )
    most = block * kv_blocks
    chunked = draw.random() < 0.7
    longest = max(2, most // draw.randint(1, 4))
    prefixes = [[draw.randrange(1000) for _ in range(longest)] for _ in range(3)]
    requests, step = [], 0
    for name in range(draw.randint(2, 25)):
        step += draw.choice([0, 0, 0, 1, 3, draw.randint(0, 40)])
        prompt = [1000 * (1 + name) + at for at in range(draw.randint(1, longest - 1))]
        if shared and draw.random() < 0.7:
            common = draw.randint(0, len(prompt))
            prompt[:common] = draw.choice(prefixes)[:common]
        output = draw.randint(1, longest - len(prompt))
        asked = {"id": str(name), "step": step, "prompt": prompt, "output": output}
        requests.append(asked | ({"priority": draw.randint(-1, 1)} if priorities else {}))
    budget = draw.choice([max_seqs, max_seqs + draw.randint(0, 20), 64, 256])
    return {
        "block_tokens": block,
        "kv_blocks": kv_blocks,
        "max_model_len": most,
        "max_seqs": max_seqs,
        "max_batched_tokens": max(budget, max_seqs if chunked else most),
        "chunked": chunked,
        "prefix_cache": draw.random() < 0.8,
        "policy": "priority" if priorities else "fcfs",
        "requests": requests,
    }


def vllm_steps(cases: list[dict[str, Any]], folder: Path) -> list[Any]:
    home = _HOMES / "vllm"
    if not (home / "setup.stamp").is_file():
        pytest.skip("scripts/engines/vllm has not been run")
    tiny_model.write(folder / "tiny")
    env = environment()
    env |= {
        "HF_HOME": str(folder),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    script = Path(__file__).with_name("vllm_scheduler.py")
    done = subprocess.run(
        [str(home / "bin" / "python"), str(script), str(folder / "tiny")],
        input="\n".join(map(json.dumps, cases)), capture_output=True, text=True, env=env, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def loadstone_steps(case: dict[str, Any], shared: bool) -> list[Any]:
    names = (
        "block_tokens",
        "kv_blocks",
        "max_seqs",
        "max_batched_tokens",
        "chunked",
        "prefix_cache",
    )
    habits = {name: case[name] for name in names}
    slots = AdapterSlots(case["slots"]) if case["slots"] else None
    policy = EnginePolicy(**habits, priorities=case["policy"] == "priority", adapters=slots)
    scheduler = Scheduler(policy, shared=shared)
    block = case["block_tokens"]
    coming = list(reversed(case["requests"]))
    known: list[Sequence] = []
    said: list[Any] = []
    while coming or not scheduler.idle:
        while coming and coming[-1]["step"] <= len(said):
            asked = coming.pop()
            prompt = asked["prompt"]
            keys = (
                [tuple(prompt[: block * (at + 1)]) for at in range(len(prompt) // block)]
                if shared
                else []
            )
            asking = Sequence(int(asked["id"]), len(prompt), asked["output"])
            asking.priority = -asked.get("priority", 0)
            asking.adapter = asked.get("adapter", 0)
            known.append(asking.share(SingleBlocks(keys), len(keys)))
            scheduler.add(known[-1])
        before = [sequence.preempted for sequence in known]
        steps = scheduler.schedule()
        decoding = (
            [
                sequence
                for sequence in scheduler.running
                if sequence.end_tick and sequence not in scheduler.paused
            ]
            if scheduler.decoding
            else []
        )
        tokens = {str(sequence.row): 1 for sequence in decoding}
        tokens |= {str(sequence.row): new for sequence, new, _ in scheduler.chunks}
        lost = [
            sequence
            for sequence, times in zip(known, before, strict=True)
            if sequence.preempted > times
        ]
        ended = scheduler.advance() if steps else []
        said.append(
            [tokens, *(sorted(str(sequence.row) for sequence in some) for some in (lost, ended))]
        )
    return said
