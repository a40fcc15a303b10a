"""One data-parallel replica: a scheduler, and the clock of its steps.

Stretches of steps in which nothing but decode happens are walked over at once. A decode step takes
base + slope·(KV tokens read), and each step of a stretch reads `growth` tokens more than the one
before, so the j-th of them ends at t0 + a·j + b·j·(j − 1)/2, with a the first step's seconds and b
= slope·growth. An arrival in the middle of a stretch ends it at the next step's boundary, as it
would in the engine.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol
from zlib import crc32

import numpy as np

from loadstone.core.vectors import Floats
from loadstone.engines.habits import Route
from loadstone.predict.scheduler import Scheduler, Sequence
from loadstone.predict.simulator.adapters import ResidentAdapters
from loadstone.predict.step_time.adapters import AdapterTimes
from loadstone.predict.step_time.pictures import PictureTimes
from loadstone.workload.routing import choose_by_prefix

if TYPE_CHECKING:
    from loadstone.predict.step_time.step import Chunks

NEVER = math.inf


class StepTimes(Protocol):
    """Seconds of an engine's steps and of its host: perfmodel.StepModel, or what a test puts in its
    place."""

    request_s: float
    """From a request's sending to the scheduler."""
    request_token_s: float
    """The same per prompt token, on top."""
    stream_s: float
    """From the end of a step until its token is at the client."""
    window_tokens: float
    """Of layers that see a window: how wide it is."""
    window_s: float
    """How much less a decode step takes per KV token that its windows lack; 0 without windows."""

    def step_s(
        self,
        decodes: int,
        decode_context_tokens: float,
        chunks: Chunks,
        met_tokens: int | None = None,
        /,
    ) -> float:
        """Time one step: `decodes` sequences that read so many KV tokens together, and (new,
        cached) tokens of prompts.

        `met_tokens`: what the ranks of a group bring to its experts, on average; None: as many as
        this one.
        """
        ...

    adapters: AdapterTimes | None
    """Of LoRA adapters; asked for where the policy has slots for them alone."""

    def decode_line(self, decodes: int, /) -> tuple[float, float]:
        """Time a step of decodes alone whose windows are full: seconds, and seconds more per KV
        token that they read together."""
        ...


def picture_times_of(model: StepTimes) -> PictureTimes | None:
    """Return the times of pictures; None: the model of steps knows none."""
    return getattr(model, "pictures", None)


def text_share_of(model: StepTimes) -> float:
    """Return the share of request_s that further texts take; 0: the model of steps knows none."""
    return getattr(model, "text_share", 0.0)


class DecodeTimes:
    """Seconds of stretches of steps in which nothing but decode happens, by the module's
    formula."""

    def __init__(self, model: StepTimes) -> None:
        self._line = model.decode_line
        self._window_tokens, self._window_s = model.window_tokens, model.window_s
        self._lines: dict[int, tuple[float, float]] = {}

    def stretch(
        self, decodes: int, context_tokens: float, growth: float, steps: int
    ) -> tuple[float, float, int]:
        """Return a and b of the formula, and how many of at most `steps` it holds for."""
        line = self._lines.get(decodes)
        if line is None:
            line = self._lines[decodes] = self._line(decodes)
        base, slope = line
        a, b = base + slope * context_tokens, slope * growth
        lacking = decodes * self._window_tokens - context_tokens if self._window_s else 0.0
        if lacking > 0:
            # Until they are full, each step reads more of the windows too.
            a -= self._window_s * lacking
            b += self._window_s * growth
            steps = min(steps, math.ceil(lacking / growth))
        return a, b, steps


class Clock:
    """The end of each decode step of a replica, kept by stretches: first tick, t0, a, b of the
    module's formula."""

    def __init__(self) -> None:
        self.stretches: list[tuple[int, float, float, float]] = []

    def times(self, last_tick: int) -> Floats:
        """Return the end of each decode step, f8 seconds, by the tick that it makes; entry 0 is
        before the first."""
        ticks, *seconds = np.array(self.stretches, np.float64).reshape(-1, 4).T
        steps = np.diff(np.append(ticks, last_tick)).astype(np.int64)
        j = np.arange(1, last_tick + 1) - np.repeat(ticks, steps)
        start, step, growth = (np.repeat(values, steps) for values in seconds)
        return np.concatenate([[np.nan], start + step * j + growth * (j * (j - 1) / 2)])


class RequestLog:
    """The notes of replicas on each request, by index.

    first_s     end of the step that wrote the first token
    first_tick  of its replica, after that step
    replica     which one
    pieces      of requests that were preempted: (index, end_s, replica, tick, tokens written
                before) each time they go on
    """

    def __init__(self, count: int) -> None:
        self.first_s: list[float] = []
        self.first_tick: list[int] = []
        self.replica: list[int] = []
        self.pieces: list[tuple[int, float, int, int, int]] = []
        self.grow(count)

    def grow(self, count: int) -> None:
        self.first_s += [math.nan] * count
        self.first_tick += [-1] * count
        self.replica += [0] * count


class Replica:
    """Drive it so: `add` an arrival when `next_s` lies behind it, else `complete` (pipeline.py)
    what ends then.

    next_s  end of the step or stretch under way; NEVER while idle
    pauses  until then nothing is computed: all that is there waits for its blocks
    """

    def __init__(
        self,
        scheduler: Scheduler,
        model: StepTimes,
        journal: RequestLog | None,
        number: int = 0,
        at_once: int = 1 << 30,
    ) -> None:
        """Make an idle replica. `journal` None: nothing is noted, nor the steps' clock. `at_once`:
        the most steps walked over at once."""
        self.scheduler = scheduler
        self.tiers = scheduler.tiers
        self.pauses = False
        self.clock = Clock()
        self.next_s = NEVER
        self.now_s = 0.0
        self.steps = 1
        self._number = number
        self._at_once = at_once
        self._journal = journal
        self._decode_tokens = scheduler.policy.decode_tokens
        self._step_s = model.step_s
        self._stretch = DecodeTimes(model).stretch
        self._a = self._b = 0.0
        self._pictures = picture_times_of(model)
        self._unread = self._pictures.unread if self._pictures is not None else 0.0
        self.adapters: ResidentAdapters | None = None
        slots = scheduler.policy.adapters
        if slots is not None and model.adapters is not None:
            self.adapters = ResidentAdapters(slots, model.adapters)

    @property
    def load(self) -> int:
        """Count requests here; those that wait or whose prompt is computed count four times, as for
        vLLM's data-parallel router, to which what it sent waits until the engine tells of it after
        a step (get_core_engine_for_request)."""
        return 4 * len(self.scheduler.waiting) + self.running_load

    @property
    def running_load(self) -> int:
        """Count what runs, as `load` does."""
        return len(self.scheduler.running) + 3 * len(self.scheduler.chunks)

    @property
    def ending(self) -> list[Replica]:
        """The replicas whose step is the next to end."""
        return [self]

    @property
    def under_way_tick(self) -> int:
        """The tick that the step or stretch under way leads to."""
        busy = self.next_s < NEVER and self.scheduler.decoding
        return self.scheduler.tick + (self.steps if busy else 0)

    def add(self, sequence: Sequence, at_s: float) -> None:
        """A request arrives, no earlier than the replica's last boundary."""
        scheduler = self.scheduler
        may_enter = self.steps > 1 and scheduler.open
        scheduler.add(sequence)
        if self.next_s == NEVER or self.pauses:
            self.now_s = at_s
            self.begin(*self.plan())
        elif may_enter:
            self.cut(at_s)

    def go_on(self) -> None:
        """Begin what comes next, if anything."""
        scheduler = self.scheduler
        if scheduler.running or scheduler.waiting:
            self.begin(*self.plan())
        else:
            self.next_s = NEVER

    def finish(self) -> list[Sequence]:
        """Go to `next_s`: what is under way is over; who ended with it."""
        scheduler = self.scheduler
        self.now_s = now_s = self.next_s
        ended = scheduler.advance(self.steps)
        journal = self._journal
        if scheduler.begun and journal is not None:
            tick = scheduler.tick
            for sequence in scheduler.begun:
                index = sequence.row
                if sequence.emitted:
                    journal.pieces.append((index, now_s, self._number, tick, sequence.emitted))
                else:
                    journal.first_s[index] = now_s
                    journal.first_tick[index] = tick
                    if self._number:
                        journal.replica[index] = self._number
        return ended

    def plan(self) -> tuple[float, float, int]:
        """Schedule the next step: a, b and how many of them go on alike."""
        if self.tiers is None:
            return self.timed(self.scheduler.schedule())
        return until_load([self], self.now_s, self.timed(self.schedule(self.now_s)))

    def schedule(self, now_s: float, hold: bool = False) -> int:
        """Have the scheduler decide, who is told the time where requests wait for their blocks."""
        if self.tiers is not None:
            self.tiers.now_s = now_s
        self.pauses = False
        return self.scheduler.schedule(hold)

    @property
    def tokens(self) -> int:
        """Count the tokens that pass through the model in the step that was scheduled."""
        scheduler = self.scheduler
        decodes = scheduler.decodes if scheduler.decoding else 0
        return decodes * self._decode_tokens + sum(new for _, new, _ in scheduler.chunks)

    def timed(self, steps: int, met_tokens: int | None = None) -> tuple[float, float, int]:
        """Time what was scheduled, as `plan` does; `met_tokens` as step_s has them, for a group
        with prompts in its step."""
        encoded = self.scheduler.encoder.encoded
        if self.adapters is None and not encoded:
            return self._timed(steps, met_tokens)
        a, b, steps = self._timed(steps, met_tokens)
        if encoded and self._pictures is not None:
            a += self._pictures.encode_s(encoded)
        if self.adapters is None:
            return a, b, steps
        if not steps:
            return a, b, steps
        added_s, loading_s = self.adapters.step_s(self.scheduler.step_adapters, self.tokens)
        return a + added_s + loading_s, b, 1 if loading_s else steps

    def _timed(self, steps: int, met_tokens: int | None) -> tuple[float, float, int]:
        scheduler = self.scheduler
        decodes = scheduler.decodes if scheduler.decoding else 0
        if scheduler.chunks or (met_tokens is not None and decodes):
            chunks = [(new, done) for _, new, done in scheduler.chunks]
            if self._unread:
                chunks = [self._seen(*chunk) for chunk in scheduler.chunks]
            step_s = self._step_s(
                decodes, self._context_tokens if decodes else 0, chunks, met_tokens
            )
            return (
                step_s if self.tiers is None else self.tiers.lengthen(step_s, scheduler.cache),
                0.0,
                1,
            )
        if not decodes:
            return 0.0, 0.0, 0
        a, b, steps = self._stretch(decodes, self._context_tokens, scheduler.growth, steps)
        return a, b, min(steps, self._at_once)

    @property
    def _context_tokens(self) -> float:
        """Return the KV tokens that decodes read; of states, what cross attention does."""
        tokens = self.scheduler.context_tokens
        if self._unread:
            running = self.scheduler.running
            tokens -= self._unread * sum(s.states for s in running if s.end_tick)
        return tokens

    def _seen(self, sequence: Sequence, new: int, done: int) -> tuple[int, int]:
        """Return a chunk's tokens that pass through the model, and what these see: all that was
        done, of states what layers of cross attention do."""
        states = min(sequence.states, done + new)
        previous = min(states, done)
        return new - (states - previous), done - previous + round((1 - self._unread) * states)

    def begin(self, a: float, b: float, steps: int) -> None:
        """Put the step, or the stretch, under way."""
        now_s = self.now_s
        self._a, self._b, self.steps = a, b, steps
        self.next_s = now_s + a * steps + b * (steps * (steps - 1) / 2)
        if self.scheduler.decoding and self._journal is not None:
            self.clock.stretches.append((self.scheduler.tick, now_s, a, b))

    def cut(self, at_s: float) -> None:
        """End the stretch with the step that is under way at `at_s`."""
        steps, end_s = step_at(self.now_s, self._a, self._b, self.steps, at_s)
        if steps < self.steps:
            self.steps, self.next_s = steps, end_s

    def steps_over(self, at_s: float) -> int:
        """Count the steps of the stretch under way that are over at `at_s`, which lies before its
        end."""
        if self.steps == 1 or self.next_s == NEVER or not self.scheduler.decoding:
            return 0
        return steps_over(self.now_s, self._a, self._b, self.steps, at_s)


def steps_over(start_s: float, a: float, b: float, limit: int, at_s: float) -> int:
    """Count the steps that are over at `at_s`, of a stretch of at most so many."""
    steps, end_s = step_at(start_s, a, b, limit, at_s)
    return steps if end_s <= at_s else steps - 1


def step_at(start_s: float, a: float, b: float, limit: int, at_s: float) -> tuple[int, float]:
    """Find the first step of a stretch that does not end before `at_s`, or the last of `limit`; and
    its end."""
    if b > 0:
        # From a·j + b·j(j − 1)/2 = elapsed; what rounding makes of it is set right below.
        half = a - b / 2
        steps = int((math.sqrt(half * half + 2 * b * (at_s - start_s)) - half) / b)
    else:
        steps = int((at_s - start_s) / a)
    steps = max(1, steps - 1)
    end_s = start_s + a * steps + b * (steps * (steps - 1) / 2)
    while steps < limit and end_s < at_s:
        steps += 1
        end_s = start_s + a * steps + b * (steps * (steps - 1) / 2)
    return steps, end_s


def until_load(
    replicas: list[Replica], now_s: float, plan: tuple[float, float, int]
) -> tuple[float, float, int]:
    """Return the steps of a plan up to the one in which a load ends; where there are none, a pause
    until then."""
    wake_s = min(replica.tiers.wake_s for replica in replicas if replica.tiers is not None)
    a, b, steps = plan
    if wake_s == NEVER:
        return plan
    if not steps:
        for replica in replicas:
            replica.pauses = True
        return wake_s - now_s, 0.0, 1
    return a, b, step_at(now_s, a, b, steps, wake_s)[0] if steps > 1 else steps


def choose_replica(
    loads: list[int],
    turn: int,
    how: Route,
    sequence: Sequence | None = None,
    of: list[Replica] | None = None,
) -> int:
    """Choose which of those with these loads takes the `turn`-th request: the next in turn, the
    least busy, who `of` the replicas has most of the prompt in its caches, or whom a hash gives its
    session, as the ring of a router that hashes consistently does."""
    count = len(loads)
    if how == "prefix" and sequence is not None and of is not None:
        return choose_by_prefix(
            [replica.scheduler.cached_blocks(sequence) for replica in of], loads, turn
        )
    if how == "hashed" and sequence is not None:
        return crc32(b"%d" % sequence.session) % count
    if how == "round-robin":
        return turn % count
    least, first = min(loads), turn % count
    return loads.index(least, first) if least in loads[first:] else loads.index(least)


class LockstepGroup:
    """Replicas that go in step, because they share a model's experts: each step takes as long as
    its slowest needs.

    To its driver it is one Replica. Where the policy says so (hold_steps), prompts wait for those
    of other members.
    """

    def __init__(self, members: list[Replica]) -> None:
        self.members = members
        self.next_s = NEVER
        self.now_s = 0.0
        self._turn = 0
        self._hold_steps = members[0].scheduler.policy.hold_steps
        self._held = 0  # steps since prompts were last let in, or might have been
        self._waits = False  # the step or stretch under way counts as one of these

    @property
    def load(self) -> int:
        return sum(member.load for member in self.members)

    @property
    def ending(self) -> list[Replica]:
        return self.members

    def add(self, sequence: Sequence, at_s: float, member: Replica | None = None) -> None:
        """A request arrives, for `member` or the one that the engine chooses."""
        members = self.members
        if member is None:
            self._turn += 1
            how = members[0].scheduler.policy.route
            loads = [rank.load for rank in members]
            member = members[choose_replica(loads, self._turn, how, sequence, members)]
        may_enter = member.scheduler.open
        member.scheduler.add(sequence)
        if self.next_s == NEVER or member.pauses:
            self.now_s = at_s
            self.begin(*self.plan())
        elif may_enter and members[0].steps > 1:
            self.cut(at_s)

    def cut(self, at_s: float) -> None:
        for member in self.members:
            member.cut(at_s)
        self.next_s = self.members[0].next_s

    def finish(self) -> list[Sequence]:
        self.now_s = self.next_s
        if self._hold_steps:
            self._held = (
                (self._held + self.members[0].steps) % self._hold_steps if self._waits else 0
            )
        return [sequence for member in self.members for sequence in member.finish()]

    def go_on(self) -> None:
        if all(member.scheduler.idle for member in self.members):
            self.next_s = NEVER
            for member in self.members:
                member.next_s = NEVER
        else:
            self.begin(*self.plan())

    def _longest_wait(self) -> int:
        """Return for how many steps at most those with prompts wait for those without; 0: they do
        not, or none has any."""
        if not self._hold_steps:
            return 0
        schedulers = [member.scheduler for member in self.members]
        self._waits = all(scheduler.decodes for scheduler in schedulers)
        ready = [scheduler.has_prompts for scheduler in schedulers]
        if not self._waits or not any(ready):
            return 0
        left = self._hold_steps - 1 - self._held
        if all(ready) or not left:
            self._waits = False
            return 0
        return left

    def plan(self) -> tuple[float, float, int]:
        """Schedule the next step of all, as Replica.plan() does."""
        longest = self._longest_wait()
        steps_of = [member.schedule(self.now_s, longest > 0) for member in self.members]
        met = None
        if any(member.scheduler.chunks for member in self.members):
            # Each rank's attention waits for its own prompts; the experts take what all bring.
            met = -(-sum(member.tokens for member in self.members) // len(self.members))
        plans = [
            member.timed(steps, met) for member, steps in zip(self.members, steps_of, strict=True)
        ]
        # Those without work go along with empty steps.
        steps = min((steps for _, _, steps in plans if steps), default=0)
        if steps and longest:
            steps = min(steps, longest)
        a, b, _ = max((plan for plan in plans if plan[2]), default=(0.0, 0.0, 0))
        if self.members[0].tiers is not None:
            return until_load(self.members, self.now_s, (a, b, steps))
        return a, b, steps

    def begin(self, a: float, b: float, steps: int) -> None:
        for member in self.members:
            member.now_s = self.now_s
            member.begin(a, b, steps)
        self.next_s = self.members[0].next_s
