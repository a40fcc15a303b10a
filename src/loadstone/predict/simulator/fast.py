"""The same as cell.py and engine.py with batching, in one loop, where nothing rare can happen.

For one replica whose cache holds all that runs at once, without shared blocks, speculation or static batches, and for
loads in which a request starts by the clock or with the end of an answer: the usual sweep. No step can want for a
block then, nobody is preempted, and of the scheduler's decisions only the token budget and the order are left. The
events are the same, at the same seconds to the last bit (tests/predict/test_simulator.py compares them); it is
several times as fast because it calls nothing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush

from loadstone.core.plan import Load, Plan
from loadstone.predict.scheduler import EnginePolicy
from loadstone.predict.simulator.engine import NEVER, StepTimes, step_at, steps_over
from loadstone.predict.simulator.run import CellRun, Look, State


def applies(plan: Plan, cell: int, policy: EnginePolicy, replicas: int, shared: bool) -> bool:
    """Whether this loop gives what the general one would, as long as the cache is large enough."""
    load = plan.cells[cell]
    if replicas > 1 or shared or policy.order == "static" or policy.speculative or plan.has_sessions:
        return False
    if policy.poll_steps or policy.gather_steps or policy.pipeline > 1:
        return False
    if load.max_concurrency is not None or load.duration_s is not None or load.is_burst:
        return False
    return policy.reserved_tokens is None


def run_fast(run: CellRun, load: Load, policy: EnginePolicy, model: StepTimes, look: Look | None) -> bool:
    """One cell, from rest to rest. False: blocks may run short in it, and the general way has to take it anew."""
    requests, journal = run.requests, run.journal
    input_tokens, output_tokens = requests.input_tokens, requests.output_tokens
    request_s, turnaround_s = requests.request_s, requests.turnaround_s
    intended_s_of, sent_s_of = requests.intended_s_of, requests.sent_s_of
    first_s, first_tick, end_s = journal.first_s, journal.first_tick, run.end_s
    step_s, decode_line, stream_s = model.step_s, model.decode_line, run.stream_s
    window_tokens, window_s = model.window_tokens, model.window_s
    mixed, chunked, max_seqs = policy.order == "mixed", policy.chunked, policy.max_seqs
    budget_tokens = policy.max_batched_tokens
    block, free = policy.block_tokens, policy.kv_blocks  # less what all that run can come to hold
    note = run.replicas[0].clock.stretches.append

    arrivals: list[tuple[float, int]] = []
    feed: Iterator[tuple[float, int]] = iter(())
    count = requests.count
    closed = load.is_closed
    following = min(int(load.value), count) if closed else count
    if closed:
        for index in range(following):
            intended_s_of[index] = run.start_s
            sent_s_of[index] = run.start_s + turnaround_s[index]
            heappush(arrivals, (sent_s_of[index] + request_s[index], index))
    else:
        intended_s_of[:] = sent_s_of[:] = [run.start_s + at_s for at_s in requests.intended_s]
        feed = iter(sorted((sent_s_of[i] + request_s[i], i) for i in range(count)))
        arrivals = [next(feed)] if count else []

    waiting: deque[int] = deque()
    ends: dict[int, list[int]] = {}
    lines: dict[int, tuple[float, float]] = {}
    next_end = tick = decodes = running = context_tokens = 0
    partial, partial_done = -1, 0  # the one prompt that is under way but not done
    alone = False
    now_s = over_s = run.start_s
    prompt_total = written_total = 0
    look_s = now_s if look is not None else NEVER
    ended: list[int]
    begun: list[int]
    chunks: list[tuple[int, int]]

    while True:
        # Who finds the engine idle starts a step alone; who comes at that very moment waits for the next.
        while not alone and arrivals and arrivals[0][0] <= now_s:
            waiting.append(heappop(arrivals)[1])
            for more in feed:
                heappush(arrivals, more)
                break
        alone = False
        chunks = []
        if waiting or partial >= 0:
            begun = []
            budget = budget_tokens - decodes if mixed else budget_tokens
            if partial >= 0 and budget > 0:
                left = input_tokens[partial] - partial_done
                if left <= budget:
                    chunks.append((left, partial_done))
                    begun.append(partial)
                    budget -= left
                    partial = -1
                else:
                    chunks.append((budget, partial_done))
                    partial_done += budget
                    budget = 0
            while waiting and budget > 0 and running < max_seqs:
                index = waiting[0]
                new = input_tokens[index]
                if new > budget:
                    if chunked:
                        partial, partial_done, new = index, budget, budget
                    elif budget < budget_tokens:
                        break
                waiting.popleft()
                running += 1
                free -= -(-(input_tokens[index] + output_tokens[index] - 1) // block)
                chunks.append((new, 0))
                budget -= new
                if partial != index:
                    begun.append(index)
        if free < 0:
            return False
        steps, b = 0, 0.0
        if chunks:
            if decodes and mixed:
                steps = 1
                a = step_s(decodes, context_tokens, chunks)
            else:
                a = step_s(0, 0, chunks)
            after_s = now_s + a
        elif decodes:
            if decodes not in lines:
                lines[decodes] = decode_line(decodes)
            base, slope = lines[decodes]
            a = base + slope * context_tokens
            b = slope * decodes
            steps = next_end - tick
            if window_s and (lacking := decodes * window_tokens - context_tokens) > 0:
                a -= window_s * lacking
                b += window_s * decodes
                steps = min(steps, math.ceil(lacking / decodes))
            after_s = now_s + a * steps + b * (steps * (steps - 1) / 2)
            if steps > 1 and arrivals and not waiting and running < max_seqs and arrivals[0][0] < after_s:
                steps, after_s = step_at(now_s, a, b, steps, arrivals[0][0])
        elif arrivals:
            after_s = arrivals[0][0]
        else:
            break
        if look_s < after_s and look is not None:
            held = [new + done for new, done in chunks]
            if partial >= 0 and not chunks:
                held.append(partial_done)
            used_by_prompts = sum(-(-tokens // block) for tokens in held)
            while look_s < after_s:
                at_tick = tick + (steps_over(now_s, a, b, steps, look_s) if steps > 1 else 0)
                here = [(input_tokens[i] + output_tokens[i] - 1 - end + at_tick, output_tokens[i] - end + at_tick)
                        for end, those in ends.items() for i in those]  # fmt: skip
                used = (used_by_prompts + sum(-(-tokens // block) for tokens, _ in here)) * block
                written = written_total + sum(done for _, done in here)
                while arrivals and max(arrivals)[0] <= look_s and (coming := next(feed, None)) is not None:
                    heappush(arrivals, coming)
                late = sum(at_s <= look_s for at_s, _ in arrivals)
                look_s = look(look_s, [State(running, len(waiting) + late, used, prompt_total, written)])
        if not chunks and not decodes:
            now_s, index = heappop(arrivals)
            waiting.append(index)
            for more in feed:
                heappush(arrivals, more)
                break
            alone = True
            continue
        ended = []
        if steps:
            note((tick, now_s, a, b))
            tick += steps
            context_tokens += steps * decodes
            if tick == next_end:
                ended = ends.pop(tick)
        now_s = after_s
        if ended:
            decodes -= len(ended)
            for index in ended:
                context_tokens -= input_tokens[index] + output_tokens[index]
        if chunks:
            for index in begun:
                prompt_total += input_tokens[index]
                first_s[index] = now_s
                first_tick[index] = tick
                new = output_tokens[index]
                if new == 1:
                    ended.append(index)
                else:
                    new += tick - 1
                    if new in ends:
                        ends[new].append(index)
                    else:
                        ends[new] = [index]
                    decodes += 1
                    context_tokens += input_tokens[index] + 1
        if ended:
            running -= len(ended)
            over_s = now_s + stream_s
            for index in ended:
                end_s[index] = now_s
                free += -(-(input_tokens[index] + output_tokens[index] - 1) // block)
                written_total += output_tokens[index]
                if closed and following < count:
                    sent_s = over_s + turnaround_s[following]
                    intended_s_of[following] = over_s
                    sent_s_of[following] = sent_s
                    heappush(arrivals, (sent_s + request_s[following], following))
                    following += 1
        if next_end <= tick or chunks:
            if 0 < len(ends) < 32:
                next_end = min(ends)
            else:
                next_end = tick + 1
                if decodes:
                    while next_end not in ends:
                        next_end += 1
    run.over_s = over_s
    run.issue_end_s = max([run.start_s, *sent_s_of])
    scheduler = run.replicas[0].scheduler
    scheduler.tick, scheduler.prompt_tokens, scheduler.written_tokens = tick, prompt_total, written_total
    return True
