"""One scheduler with nothing but lengths and times, in a closed loop or at given times: fast enough for a fit.

It does what an engine's scheduler does with plain traffic: prompts in order of arrival, in chunks within the token
budget, beside the running answers (`mixed`: vLLM, TensorRT-LLM) or before them (`prefill-first`: SGLang); admission
by free KV tokens; the newest answer gives way where they run out and is computed anew. Stretches of pure decode are
one event. Prefix caches, sessions and open loops are `loadstone.simulator`'s.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from loadstone.perfmodel.step import StepModel

TURNAROUND_S = 1e-3
"""A benchmark client's mean time from an answer's end to its next request."""


@dataclass(frozen=True)
class Rules:
    """What the scheduler may do. Tokens.

    keep_free   share of the answers still to be written for which room must be left (1: nobody is ever preempted)
    poll_steps  new requests are looked for only every so many decode steps (0: every one)
    """

    order: str
    budget_tokens: int
    max_seqs: int
    kv_tokens: int
    chunked: bool = True
    keep_free: float = 0.0
    poll_steps: int = 0


@dataclass
class Outcome:
    """Per request, in order of sending: seconds. And what the engine did, for the fit."""

    ttft_s: NDArray[np.float64]
    tpot_s: NDArray[np.float64]
    e2e_s: NDArray[np.float64]
    output_tokens: int
    duration_s: float
    preemptions: int
    decode_steps: float = 0.0
    decodes: float = 0.0
    context: float = 0.0
    prompt_steps: int = 0
    prompt_tokens: int = 0
    prompt_s: float = 0.0
    held_back: bool = False
    stamps: list[float] = field(default_factory=list)


def run(
    model: StepModel,
    rules: Rules,
    users: int,
    inputs: NDArray[np.int64],
    outputs: NDArray[np.int64],
    seed: int = 0,
    times: NDArray[np.float64] | None = None,
) -> Outcome:
    """The first `users` requests at once, then one as another ends; or at `times`, seconds. Lengths in tokens."""
    count = len(inputs)
    rng = np.random.default_rng(seed)
    turnaround = rng.exponential(TURNAROUND_S, count).tolist()
    prompts, answers = inputs.tolist(), outputs.tolist()
    request_s, token_s, stream_s = model.request_s, model.request_token_s, model.stream_s
    decode_line, step_s = model.decode_line, model.step_s
    mixed = rules.order == "mixed"

    sent = [0.0] * count
    first = [0.0] * count
    last = [0.0] * count
    arrivals: list[tuple[float, int]] = []  # heap: (at the scheduler, request)
    following = 0

    def send(at: float) -> None:
        nonlocal following
        if following < count:
            sent[following] = at
            reach = at + request_s + token_s * prompts[following]
            heapq.heappush(arrivals, (reach, following))
            following += 1

    if times is None:
        for _ in range(min(users, count)):
            send(turnaround[following] * 0.1)
    else:
        for at in times.tolist():
            send(at)

    waiting: deque[int] = deque()
    todo = list(prompts)  # tokens still to be computed before the next output
    made = [0] * count  # outputs so far, when last counted
    started = [0] * count  # value of `step` when it began to decode
    finishing: list[tuple[int, int]] = []  # heap: (step at which it ends, request)
    running: list[int] = []  # in order of admission, for preemption
    partial: deque[int] = deque()  # admitted, prompt not done
    done = 0
    step = 0  # decode steps so far
    now = 0.0
    decodes = 0
    context = 0  # tokens of decoding sequences
    held = 0  # KV tokens held by all admitted
    promised = 0  # tokens that all admitted may still write
    polled = 0  # decode step at which new requests were looked for
    preemptions = 0
    gave_way = False  # to make room for this step's decodes: nobody new is let in
    held_back = False
    sums = [0.0, 0.0, 0.0]
    prompt_steps = prompt_tokens = 0
    prompt_s = 0.0

    while done < count:
        if not decodes or step - polled >= rules.poll_steps:
            polled = step
            while arrivals and arrivals[0][0] <= now:
                waiting.append(heapq.heappop(arrivals)[1])
        # --- admission
        while waiting and not (mixed and gave_way) and decodes + len(partial) < rules.max_seqs:
            need = todo[waiting[0]]
            answer = answers[waiting[0]] - made[waiting[0]]
            room = rules.kv_tokens - (rules.keep_free * (promised + answer) if rules.keep_free else 0)
            if mixed and not rules.keep_free:
                room -= decodes  # a token each in the same step
            if held + need > room and (decodes or partial):
                held_back = True
                break
            if not partial or sum(todo[each] for each in partial) < rules.budget_tokens:
                chosen = waiting.popleft()
                partial.append(chosen)
                held += need
                promised += answer
            else:
                break
        if partial:
            room = rules.budget_tokens - (decodes if mixed else 0)
            chunks: list[tuple[int, int]] = []
            ended = []
            while partial and room > 0:
                each = partial[0]
                new = todo[each]
                if new > room:
                    if not rules.chunked and chunks:
                        break
                    new = room if rules.chunked else new
                cached = prompts[each] + made[each] - todo[each]
                chunks.append((new, cached))
                room -= new
                todo[each] -= new
                if todo[each]:
                    break
                partial.popleft()
                ended.append(each)
            spent = step_s(decodes if mixed else 0, context if mixed else 0, chunks)
            now += spent
            prompt_steps += 1
            prompt_tokens += sum(new for new, _ in chunks)
            prompt_s += spent
            if mixed and decodes:
                step += 1
                context += decodes
                held += decodes
                promised -= decodes
            for each in ended:
                if not made[each]:
                    first[each] = now
                made[each] += 1
                started[each] = step
                running.append(each)
                decodes += 1
                context += prompts[each] + made[each]
                held += 1
                promised -= 1
                heapq.heappush(finishing, (step + answers[each] - made[each], each))
        elif decodes:
            base, slope = decode_line(decodes)
            steps = finishing[0][0] - step
            if held + steps * decodes > rules.kv_tokens:
                steps = max(1, (rules.kv_tokens - held) // decodes)
            if steps > 0:
                if arrivals and decodes < rules.max_seqs and not waiting:
                    until = arrivals[0][0] - now
                    poll = max(1, rules.poll_steps - (step - polled))
                    if base + slope * context >= until:
                        steps = min(steps, poll)
                    else:
                        # base·m + slope·(m·context + decodes·m²/2) = until
                        half = slope * decodes / 2
                        linear = base + slope * context
                        m = (
                            until / linear
                            if half * until < 1e-9 * linear * linear
                            else (math.sqrt(linear * linear + 4 * half * until) - linear) / (2 * half)
                        )
                        steps = min(steps, max(math.ceil(m), poll))
                now += steps * base + slope * (steps * context + decodes * steps * (steps - 1) / 2)
                sums[0] += steps
                sums[1] += steps * decodes
                sums[2] += steps * (context + decodes * (steps - 1) / 2)
                step += steps
                context += steps * decodes
                held += steps * decodes
                promised -= steps * decodes
        elif arrivals:
            now = max(now, arrivals[0][0])
            continue
        # --- endings
        while finishing and finishing[0][0] <= step:
            _, each = heapq.heappop(finishing)
            if started[each] < 0:
                continue
            size = prompts[each] + answers[each]
            last[each] = now
            decodes -= 1
            context -= size
            held -= size
            running.remove(each)
            done += 1
            send(now + stream_s + turnaround[each])
        # --- KV ran out: the newest gives way
        gave_way = False
        while held + decodes > rules.kv_tokens and len(running) > 1:
            gave_way = True
            each = running.pop()
            preemptions += 1
            held_back = True
            size = prompts[each] + made[each] + (step - started[each])
            made[each] += step - started[each]
            decodes -= 1
            context -= size
            held -= size
            finishing = [entry for entry in finishing if entry[1] != each]
            heapq.heapify(finishing)
            todo[each] = size
            waiting.appendleft(each)

    ttft = np.array(first) + stream_s - np.array(sent)
    steps_of = np.maximum(outputs - 1, 1)
    tpot = (np.array(last) - np.array(first)) / steps_of
    e2e = np.array(last) + stream_s - np.array(sent)
    taken = max(sums[0], 1.0)
    return Outcome(
        ttft, tpot, e2e, int(outputs.sum()), now + stream_s, preemptions, sums[0], sums[1] / taken,
        sums[2] / max(sums[1], 1.0), prompt_steps, prompt_tokens, prompt_s, held_back,
    )  # fmt: skip
