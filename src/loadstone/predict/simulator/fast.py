"""The same as cell.py and engine.py, several times as fast, where nothing rare can happen.

For one replica whose cache holds all that runs at once, without shared blocks, speculation or
static batches, and for loads in which a request starts by the clock or with the end of an answer:
the usual sweep. No step can want for a block then, nobody is preempted, and of the scheduler's
decisions only the token budget and the order are left. So requests are plain indices, and an engine
is a handful of numbers. The client and the times of steps are those of the general loop, and so are
the events, at the same seconds to the last bit (tests/predict/test_simulator.py compares them).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from itertools import takewhile

from loadstone.core.plan import Load, Plan
from loadstone.predict.scheduler import EnginePolicy
from loadstone.predict.simulator.client import SimulatedClient
from loadstone.predict.simulator.engine import NEVER, DecodeTimes, StepTimes, step_at, steps_over
from loadstone.predict.simulator.run import CellRun, Look, State

_FEW = 32
"""Ends that are compared with one another; of more, the next one is near."""


def applies(plan: Plan, cell: int, policy: EnginePolicy, replicas: int, shared: bool) -> bool:
    """Tell whether this loop gives what the general one would, as long as the cache is large
    enough."""
    load = plan.cells[cell]
    if (
        replicas > 1
        or shared
        or policy.order == "static"
        or policy.speculative
        or plan.has_sessions
        or plan.inputs is not None
        or plan.pictures is not None
        or plan.class_slots
    ):
        return False
    if policy.priorities and len({kind.priority for kind in plan.classes}) > 1:
        return False
    if policy.poll_steps or policy.gather_steps or policy.pipeline > 1 or policy.turns_away:
        return False
    if policy.adapters is not None:
        return False
    if load.max_concurrency is not None or load.duration_s is not None or load.is_burst:
        return False
    return policy.reserved_tokens is None


def run_fast(
    run: CellRun, load: Load, policy: EnginePolicy, model: StepTimes, look: Look | None
) -> bool:
    """Simulate one cell, from rest to rest. False: blocks may run short in it, and the general loop
    has to."""
    client = SimulatedClient(run.requests, load, 0, run.requests.count, run.start_s)
    arrivals, pop, answered = client.arrivals, client.pop, client.ended
    engine = QuickEngine(run, policy, model)
    waiting, stretch, stream_s, end_s = (
        engine.waiting,
        DecodeTimes(model).stretch,
        run.stream_s,
        run.end_s,
    )
    note = run.replicas[0].clock.stretches.append
    now_s = over_s = look_s = run.start_s
    alone, max_seqs = False, policy.max_seqs
    while True:
        # A request that finds the engine idle starts a step alone; one that comes at that very
        # moment waits for the next.
        while arrivals and arrivals[0][0] <= now_s and not alone:
            waiting.append(pop(arrivals)[1])
        alone = False
        a, b, steps, decodes = 0.0, 0.0, 0, engine.decodes
        if (waiting or engine.partial >= 0) and engine.fill():
            if engine.free_blocks < 0:
                return False
            (a, decodes), steps = engine.time_prompts(), 1
            after_s = now_s + a
        elif decodes:
            a, b, steps = stretch(
                decodes, engine.context_tokens, decodes, engine.next_end - engine.tick
            )
            after_s = now_s + a * steps + b * (steps * (steps - 1) / 2)
            if (
                steps > 1
                and not waiting
                and arrivals
                and arrivals[0][0] < after_s
                and engine.running < max_seqs
            ):
                steps, after_s = step_at(now_s, a, b, steps, arrivals[0][0])
        elif arrivals:
            after_s = arrivals[0][0]
        else:
            break
        if look_s < after_s:
            look_s = _show(engine, look, look_s, after_s, (now_s, a, b, steps), arrivals)
        if not steps:
            now_s, index = pop(arrivals)
            waiting.append(index)
            alone = True
            continue
        if decodes:
            note((engine.tick, now_s, a, b))
        else:
            steps = 0
        now_s = after_s
        for index in engine.advance(steps, now_s):
            end_s[index] = now_s
            over_s = now_s + stream_s
            answered(index, over_s)
    run.over_s, run.issue_end_s = over_s, client.issue_end_s
    scheduler = run.replicas[0].scheduler
    scheduler.tick, scheduler.prompt_tokens = engine.tick, engine.prompt_tokens
    scheduler.written_tokens = engine.written_tokens
    return True


def _show(
    engine: QuickEngine,
    look: Look | None,
    look_s: float,
    until_s: float,
    stretch: tuple[float, float, float, int],
    arrivals: Collection[tuple[float, int]],
) -> float:
    """Show the engine until then, as often as `look` asks for; returns when it wants to see it
    next. `stretch`: under way, its t0, a, b and steps."""
    if look is None:
        return NEVER
    coming = arrivals if isinstance(arrivals, deque) else sorted(arrivals)
    while look_s < until_s:
        late = sum(1 for _ in takewhile(lambda each: each[0] <= look_s, coming))  # noqa: B023
        over = steps_over(*stretch, look_s) if stretch[3] > 1 else 0
        look_s = look(look_s, [engine.state(over, late)])
    return look_s


class QuickEngine:
    """One replica that lacks no block. `fill` decides the next step, `advance` ends it.

    waiting      indices of requests, in the order of their arrival
    running      how many were let in and have not ended
    decodes      how many of them decode; context_tokens: what their attention reads in the next
                 step
    tick         decode steps that are over; next_end: the one that ends a decode next
    free_blocks  blocks of the cache less what all that run can come to hold
    partial      the one request whose prompt is computed in part, partial_done tokens of it; -1:
                 none
    """

    def __init__(self, run: CellRun, policy: EnginePolicy, model: StepTimes) -> None:
        self._input, self._output = run.requests.input_tokens, run.requests.output_tokens
        self._first_s, self._first_tick = run.journal.first_s, run.journal.first_tick
        self._step_s = model.step_s
        self._mixed, self._chunked, self._max_seqs = (
            policy.order == "mixed",
            policy.chunked,
            policy.max_seqs,
        )
        self._budget, self._block, self.free_blocks = (
            policy.max_batched_tokens,
            policy.block_tokens,
            policy.kv_blocks,
        )
        block = policy.block_tokens
        self._most_blocks = [
            -(-(new + written - 1) // block)
            for new, written in zip(self._input, self._output, strict=True)
        ]
        self._chunks: list[tuple[int, int]] = []
        self._begun: list[int] = []  # whose prompts the step completes
        self._ends: dict[int, list[int]] = {}  # decodes by the tick that ends them
        self.next_end = self.tick = 0
        self.waiting: deque[int] = deque()
        self.running = self.decodes = self.context_tokens = self.prompt_tokens = (
            self.written_tokens
        ) = 0
        self.partial, self.partial_done = -1, 0

    def fill(self) -> bool:
        """Let in what the budget of the next step has room for: the prompt under way, then those
        waiting. False: nothing."""
        inputs, waiting, chunks, begun = self._input, self.waiting, self._chunks, self._begun
        budget = self._budget - self.decodes if self._mixed else self._budget
        if self.partial >= 0 and budget > 0:
            new = min(inputs[self.partial] - self.partial_done, budget)
            chunks.append((new, self.partial_done))
            self.partial_done += new
            budget -= new
            if self.partial_done == inputs[self.partial]:
                begun.append(self.partial)
                self.partial = -1
        while waiting and budget > 0 and self.running < self._max_seqs:
            index = waiting[0]
            new = inputs[index]
            if new > budget:
                if self._chunked:
                    self.partial, self.partial_done, new = index, budget, budget
                elif budget < self._budget:
                    break
            waiting.popleft()
            self.running += 1
            self.free_blocks -= self._most_blocks[index]
            chunks.append((new, 0))
            budget -= new
            if self.partial != index:
                begun.append(index)
        return bool(chunks)

    def time_prompts(self) -> tuple[float, int]:
        """Return the seconds of a step with the chunks, and how many decodes go with them."""
        if self._mixed and self.decodes:
            return self._step_s(self.decodes, self.context_tokens, self._chunks), self.decodes
        return self._step_s(0, 0, self._chunks), 0

    def advance(self, steps: int, now_s: float) -> list[int]:
        """End the step, or so many of decodes, at `now_s`; returns those whose last token it
        wrote."""
        inputs, outputs = self._input, self._output
        ended: list[int] = []
        self.tick = tick = self.tick + steps
        if steps:
            context_tokens = self.context_tokens + steps * self.decodes
            if tick == self.next_end:
                ended = self._ends.pop(tick)
                self.decodes -= len(ended)
                for index in ended:
                    context_tokens -= inputs[index] + outputs[index]
            self.context_tokens = context_tokens
        if self._chunks:
            self._chunks = []
            self._begin(tick, now_s, ended)
        if ended:
            self.running -= len(ended)
            for index in ended:
                self.free_blocks += self._most_blocks[index]
                self.written_tokens += outputs[index]
        if self.next_end <= tick:
            ends = self._ends
            if len(ends) < _FEW:
                self.next_end = min(ends, default=tick)
            else:
                # As Running does: nearly every tick ends something where many decode.
                tick += 1
                while tick not in ends:
                    tick += 1
                self.next_end = tick
        return ended

    def _begin(self, tick: int, now_s: float, ended: list[int]) -> None:
        """Write the first tokens of those whose prompts are computed; `ended` takes those that want
        no more."""
        inputs, outputs, first_s, first_tick, ends = (
            self._input,
            self._output,
            self._first_s,
            self._first_tick,
            self._ends,
        )
        for index in self._begun:
            first_s[index], first_tick[index] = now_s, tick
            prompt = inputs[index]
            self.prompt_tokens += prompt
            end = tick + outputs[index] - 1
            if end == tick:
                ended.append(index)
                continue
            if end in ends:
                ends[end].append(index)
            else:
                ends[end] = [index]
                if end < self.next_end:  # noqa: PLR1730  (min() takes longer)
                    self.next_end = end
            self.decodes += 1
            self.context_tokens += prompt + 1
        self._begun = []

    def state(self, over: int, late: int) -> State:
        """Return the engine after `over` steps of the stretch under way, with `late` more in its
        queue."""
        held = [new + done for new, done in self._chunks]
        if self.partial >= 0 and not self._chunks:
            held.append(self.partial_done)
        written = self.written_tokens
        for end, ending in self._ends.items():
            left = end - self.tick - over
            for index in ending:
                held.append(self._input[index] + self._output[index] - 1 - left)
                written += self._output[index] - left
        used_tokens = sum(-(-tokens // self._block) for tokens in held) * self._block
        return State(
            self.running, len(self.waiting) + late, used_tokens, self.prompt_tokens, written
        )
