"""The same as cell.py and engine.py, several times as fast, where nothing rare can happen.

For one replica whose cache holds all that runs at once, without shared blocks, speculation or static batches, and for
loads in which a request starts by the clock or with the end of an answer: the usual sweep. No step can want for a
block then, nobody is preempted, and of the scheduler's decisions only the token budget and the order are left. So
requests are plain indices, and an engine is a handful of numbers. The client and the times of steps are those of the
general loop, and so are the events, at the same seconds to the last bit (tests/predict/test_simulator.py compares
them).
"""

from __future__ import annotations

from collections import deque
from itertools import takewhile

from loadstone.core.plan import Load, Plan
from loadstone.predict.scheduler import EnginePolicy
from loadstone.predict.simulator.client import SimulatedClient
from loadstone.predict.simulator.engine import NEVER, DecodeTimes, StepTimes, step_at, steps_over
from loadstone.predict.simulator.run import CellRun, Look, State

_FEW = 32
"""Ends that are compared with one another; of more, the next one is near."""


def applies(plan: Plan, cell: int, policy: EnginePolicy, replicas: int, shared: bool) -> bool:
    """Tell whether this loop gives what the general one would, as long as the cache is large enough."""
    load = plan.cells[cell]
    if replicas > 1 or shared or policy.order == "static" or policy.speculative or plan.has_sessions:
        return False
    if policy.poll_steps or policy.gather_steps or policy.pipeline > 1:
        return False
    if load.max_concurrency is not None or load.duration_s is not None or load.is_burst:
        return False
    return policy.reserved_tokens is None


def run_fast(run: CellRun, load: Load, policy: EnginePolicy, model: StepTimes, look: Look | None) -> bool:
    """Simulate one cell, from rest to rest. False: blocks may run short in it, and the general loop has to."""
    client = SimulatedClient(run.requests, load, 0, run.requests.count, run.start_s)
    arrivals, pop, answered = client.arrivals, client.pop, client.ended
    engine = QuickEngine(run, policy, model)
    waiting, stream_s, end_s = engine.waiting, run.stream_s, run.end_s
    note = run.replicas[0].clock.stretches.append
    now_s = over_s = run.start_s
    look_s = NEVER if look is None else now_s
    alone = False
    while True:
        # A request that finds the engine idle starts a step alone; one that comes at that very moment waits for the
        # next.
        while not alone and arrivals and arrivals[0][0] <= now_s:
            waiting.append(pop(arrivals)[1])
        alone = False
        if waiting or engine.partial >= 0:
            engine.fill()
            if engine.free_blocks < 0:
                return False
        a, b, steps = engine.timed()
        if steps:
            after_s = now_s + a * steps + b * (steps * (steps - 1) / 2)
            if steps > 1 and arrivals and arrivals[0][0] < after_s and engine.open:
                steps, after_s = step_at(now_s, a, b, steps, arrivals[0][0])
        elif arrivals:
            after_s = arrivals[0][0]
        else:
            break
        while look is not None and look_s < after_s:
            over = steps_over(now_s, a, b, steps, look_s) if steps > 1 else 0
            coming = arrivals if isinstance(arrivals, deque) else sorted(arrivals)
            late = sum(1 for _ in takewhile(lambda each: each[0] <= look_s, coming))  # noqa: B023
            look_s = look(look_s, [engine.state(over, late)])
        if not steps:
            now_s, index = pop(arrivals)
            waiting.append(index)
            alone = True
            continue
        if engine.decoding:
            note((engine.tick, now_s, a, b))
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


class QuickEngine:
    """One replica that lacks no block. `fill` and `timed` say what comes next, `advance` that it is over.

    waiting      indices of requests, in the order of their arrival
    running      how many were let in and have not ended
    decodes      how many of them decode; context_tokens: what their attention reads in the next step
    decoding     the step that was timed has decodes in it
    free_blocks  blocks of the cache less what all that run can come to hold
    partial      the one request whose prompt is computed in part, partial_done tokens of it; -1: none
    """

    __slots__ = (
        "_begun", "_block", "_budget", "_chunked", "_chunks", "_ends", "_first_s", "_first_tick", "_input",
        "_max_seqs", "_mixed", "_next_end", "_output", "_step_s", "_stretch", "context_tokens", "decodes", "decoding",
        "free_blocks", "partial", "partial_done", "prompt_tokens", "running", "tick", "waiting", "written_tokens",
    )  # fmt: skip

    def __init__(self, run: CellRun, policy: EnginePolicy, model: StepTimes) -> None:
        self._input, self._output = run.requests.input_tokens, run.requests.output_tokens
        self._first_s, self._first_tick = run.journal.first_s, run.journal.first_tick
        self._step_s, self._stretch = model.step_s, DecodeTimes(model).stretch
        self._mixed, self._chunked, self._max_seqs = policy.order == "mixed", policy.chunked, policy.max_seqs
        self._budget, self._block, self.free_blocks = policy.max_batched_tokens, policy.block_tokens, policy.kv_blocks
        self._chunks: list[tuple[int, int]] = []
        self._begun: list[int] = []  # whose prompts the step completes
        self._ends: dict[int, list[int]] = {}  # decodes by the tick that ends them
        self._next_end = self.tick = 0
        self.waiting: deque[int] = deque()
        self.running = self.decodes = self.context_tokens = self.prompt_tokens = self.written_tokens = 0
        self.decoding = False
        self.partial, self.partial_done = -1, 0

    @property
    def open(self) -> bool:
        """One more that arrives gets into the very next step."""
        return not self.waiting and self.running < self._max_seqs

    def fill(self) -> None:
        """Let in what the budget of the next step has room for: the prompt under way, then those waiting."""
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
            self.free_blocks -= self._most_blocks(index)
            chunks.append((new, 0))
            budget -= new
            if self.partial != index:
                begun.append(index)

    def _most_blocks(self, index: int) -> int:
        return -(-(self._input[index] + self._output[index] - 1) // self._block)

    def timed(self) -> tuple[float, float, int]:
        """Time the next step, as Replica.timed does: a, b and how many go on alike; 0 where nothing runs."""
        decodes = self.decodes
        if self._chunks:
            self.decoding = self._mixed and decodes > 0
            if self.decoding:
                return self._step_s(decodes, self.context_tokens, self._chunks), 0.0, 1
            return self._step_s(0, 0, self._chunks), 0.0, 1
        self.decoding = decodes > 0
        if decodes:
            return self._stretch(decodes, self.context_tokens, decodes, self._next_end - self.tick)
        return 0.0, 0.0, 0

    def advance(self, steps: int, now_s: float) -> list[int]:
        """End the step, or so many of the stretch, at `now_s`; returns those whose last token it wrote."""
        ended: list[int] = []
        if self.decoding:
            self.tick += steps
            self.context_tokens += steps * self.decodes
            if self.tick == self._next_end:
                ended = self._ends.pop(self.tick)
                self.decodes -= len(ended)
                for index in ended:
                    self.context_tokens -= self._input[index] + self._output[index]
        if self._chunks:
            self._chunks = []
            if self._begun:
                self._begin(now_s, ended)
        for index in ended:
            self.free_blocks += self._most_blocks(index)
            self.written_tokens += self._output[index]
        self.running -= len(ended)
        if self._next_end <= self.tick:
            self._find_next_end()
        return ended

    def _begin(self, now_s: float, ended: list[int]) -> None:
        """Write the first tokens of those whose prompts are computed; `ended` takes those that want no more."""
        tick, ends = self.tick, self._ends
        for index in self._begun:
            prompt, output = self._input[index], self._output[index]
            self.prompt_tokens += prompt
            self._first_s[index], self._first_tick[index] = now_s, tick
            if output == 1:
                ended.append(index)
                continue
            end = tick + output - 1
            if end in ends:
                ends[end].append(index)
            else:
                ends[end] = [index]
                self._next_end = min(self._next_end, end) if self.decodes else end
            self.decodes += 1
            self.context_tokens += prompt + 1
        self._begun = []

    def _find_next_end(self) -> None:
        # As Running does.
        ends = self._ends
        if len(ends) < _FEW:
            self._next_end = min(ends, default=0)
        else:
            tick = self.tick + 1
            while tick not in ends:
                tick += 1
            self._next_end = tick

    def state(self, over: int, late: int) -> State:
        """The engine after `over` steps of the stretch under way, and with `late` more in its queue."""
        held = [new + done for new, done in self._chunks]
        if self.partial >= 0 and not self._chunks:
            held.append(self.partial_done)
        written = self.written_tokens
        for end, those in self._ends.items():
            left = end - self.tick - over
            for index in those:
                held.append(self._input[index] + self._output[index] - 1 - left)
                written += self._output[index] - left
        used_tokens = sum(-(-tokens // self._block) for tokens in held) * self._block
        return State(self.running, len(self.waiting) + late, used_tokens, self.prompt_tokens, written)
