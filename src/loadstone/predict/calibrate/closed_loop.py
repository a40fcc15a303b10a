"""A point's traffic through the simulator, and what a fit needs to know of the run: times, and mean steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from loadstone.core import Load, Plan
from loadstone.predict.scheduler import EnginePolicy
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.engine import StepTimes
from loadstone.predict.simulator.fleet import Fleet


@dataclass
class Outcome:
    """Per request, in order of sending: seconds. And what one scheduler did, on average of all, for the fit.

    decode_steps       with decodes alone; of ranks that go in step, all of them
    decodes, context   in these: sequences of a step, tokens of a sequence
    prompt_steps       with prompts, of this scheduler or of one that it goes in step with
    chunk_tokens       prompt tokens of a step that has some of its own
    met_tokens         tokens that a scheduler brings to such steps, decodes included, those with nothing counted too
    held_back          somebody waited for room in the KV cache
    """

    ttft_s: NDArray[np.float64]
    tpot_s: NDArray[np.float64]
    e2e_s: NDArray[np.float64]
    output_tokens: int
    duration_s: float
    preemptions: int
    decode_steps: float
    decodes: float
    context: float
    prompt_steps: float
    chunk_tokens: float
    met_tokens: float
    held_back: bool


class _Counted:
    """A performance model that counts the steps it is asked for."""

    def __init__(self, model: StepTimes) -> None:
        self.request_s, self.request_token_s, self.stream_s = model.request_s, model.request_token_s, model.stream_s
        self.decode_line = model.decode_line
        self.window_tokens, self.window_s = model.window_tokens, model.window_s
        self._step_s = model.step_s
        self.chunked = self.beside = 0  # steps with chunks; and with other ranks' alone
        self.with_decodes = self.decodes = self.tokens = 0
        self.context: float = 0

    def step_s(
        self,
        decodes: int,
        decode_context_tokens: float,
        chunks: Sequence[tuple[int, int]],
        met_tokens: int | None = None,
    ) -> float:
        if chunks:
            self.chunked += 1
            for new, _ in chunks:
                self.tokens += new
        else:
            self.beside += 1
        if decodes:
            self.with_decodes += 1
            self.decodes += decodes
            self.context += decode_context_tokens
        return self._step_s(decodes, decode_context_tokens, chunks, met_tokens)


def run(
    fleet: Fleet,
    users: int,
    inputs: NDArray[np.int64],
    outputs: NDArray[np.int64],
    seed: int = 0,
    times: NDArray[np.float64] | None = None,
    warm: int = 0,
) -> Outcome:
    """A closed loop of `users`; or requests at `times`, seconds. Lengths in tokens, answers of 2 or more. The first
    `warm` requests are not in the outcome's times.

    Raises InputError where a request would never fit into the KV cache.
    """
    model = _Counted(fleet.model)
    plan = _plan(users, inputs, outputs, seed, times)
    # The short way may find that it cannot be taken only when it has counted steps: it is taken where it surely can.
    at_once = users if times is None else len(inputs)
    done = run_cell(plan, 0, replace(fleet, model=model), quick=_roomy(fleet.policy, at_once, inputs + outputs))
    sent, first = np.array(done.asked.sent_s_of), np.array(done.journal.first_s)
    last = np.array(done.end_s)
    schedulers = [replica.scheduler for replica in done.replicas]
    preemptions = sum(scheduler.preemptions for scheduler in schedulers)
    replicas = len(done.replicas)
    steps = sum(scheduler.tick for scheduler in schedulers) - model.with_decodes
    # A prompt's step writes a token, when it is computed again as well; all others are of decodes.
    speculative = fleet.policy.speculative
    per_step = 1.0 if speculative is None else speculative.tokens_per_step
    left = (outputs - 1).astype(float)
    decodes = (left.sum() - preemptions) / per_step - model.decodes
    context = float((left * inputs + left * outputs / 2).sum()) / per_step - model.context
    prompt_steps = model.chunked + model.beside
    return Outcome(
        ttft_s=(first + done.stream_s - sent)[warm:],
        tpot_s=((last - first) / left)[warm:],
        e2e_s=(last + done.stream_s - sent)[warm:],
        output_tokens=int(outputs.sum()),
        duration_s=done.over_s - done.start_s,
        preemptions=preemptions,
        decode_steps=steps / replicas,
        decodes=max(0.0, decodes) / max(1, steps),
        context=max(0.0, context) / max(1.0, decodes),
        prompt_steps=prompt_steps / replicas,
        chunk_tokens=model.tokens / max(1, model.chunked),
        met_tokens=(model.tokens + model.decodes) / max(1, prompt_steps),
        held_back=any(scheduler.held_back for scheduler in schedulers),
    )


def _roomy(policy: EnginePolicy, users: int, tokens: NDArray[np.int64]) -> bool:
    """Whether the cache holds any that can run at once, to their last token."""
    blocks = -(-tokens // policy.block_tokens)
    return int(np.sort(blocks)[-min(users, policy.max_seqs) :].sum()) <= policy.kv_blocks


def _plan(
    users: int,
    inputs: NDArray[np.int64],
    outputs: NDArray[np.int64],
    seed: int,
    times: NDArray[np.float64] | None,
) -> Plan:
    count = len(inputs)
    none, nothing = np.full(count, -1, np.int32), np.zeros(count, np.int32)
    return Plan(
        seed=seed,
        cells=(Load("concurrency", users) if times is None else Load("rate", 1.0),),
        workload={},
        exact_output=True,
        cell=nothing,
        phase=np.ones(count, np.uint8),
        intended_s=np.full(count, np.nan) if times is None else times,
        input_tokens=inputs.astype(np.int32),
        output_tokens=outputs.astype(np.int32),
        prefix_group=none,
        prefix_tokens=nothing,
        turn=none,
        think_s=np.zeros(count),
        prompt=none,
    )
