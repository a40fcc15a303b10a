"""The requests of a step, written before they are due: those that begin something, and later turns of sessions."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from loadstone.core import Plan, PlannedRequest
from loadstone.measure.client.protocol import Step
from loadstone.measure.client.stream import Stream
from loadstone.measure.wire.ask import RequestBody
from loadstone.workload.prompts import PromptWriter

_READY_REQUESTS = 128
_READY_BYTES = 128 * 1024 * 1024


class Due(NamedTuple):
    """A request ready to be sent.

    due_ns   monotonic; of a closed loop's starters the step's start
    order    among those due at the same time: the index
    opened   the prompt so far, where a turn follows whose prompt begins with it
    replica  where the session is, None where that is not settled
    """

    due_ns: int
    order: int
    request: PlannedRequest
    body: bytes
    opened: bytes
    replica: int | None


class Feed:
    """Use: `begin(step)`, then look at `starter` and `later`, take them, and `follow` answers, until `ended`."""

    def __init__(self, plan: Plan, prompts: PromptWriter, body: RequestBody, soon: Callable[..., object]) -> None:
        """`soon(callback)`: call back when there is time."""
        self._plan = plan
        self._prompts = prompts
        self._body = body
        self._soon = soon
        self._ready: deque[Due] = deque()
        self._ready_bytes = 0
        self._later: list[Due] = []
        self._refilling = False
        self._indices: Iterator[int] = iter(())
        self._cell = 0
        self._start_ns = 0

    def begin(self, step: Step, at_once: int) -> None:
        """`at_once`: how many are wanted at the very start; they are written now, as far as memory allows."""
        self._cell, self._start_ns = step.cell, step.start_ns
        if self._plan.has_sessions:
            indices = itertools.count(step.first) if step.last is None else iter(range(step.first, step.last))
            starters = (i for i in indices if self._plan.turn[self._plan.row(step.cell, i)] <= 0)
            self._indices = itertools.islice(starters, step.part, None, step.parts)
        else:
            first = step.first + step.part
            self._indices = (
                itertools.count(first, step.parts) if step.last is None else iter(range(first, step.last, step.parts))
            )
        while len(self._ready) < at_once and self._ready_bytes < _READY_BYTES and self._prepare(1):
            pass
        self._refill()

    def end(self) -> None:
        """Nothing more is to be sent."""
        self._indices = iter(())
        self._ready.clear()
        self._later.clear()
        self._ready_bytes = 0

    @property
    def ended(self) -> bool:
        return not self._later and self.starter() is None

    def starter(self) -> Due | None:
        """The next request (first turn) of the plan."""
        if not self._ready:
            self._prepare(1)
        return self._ready[0] if self._ready else None

    def later(self) -> Due | None:
        """The next later turn."""
        return self._later[0] if self._later else None

    def take_starter(self) -> Due:
        due = self._ready.popleft()
        self._ready_bytes -= len(due.body)
        self._refill()
        return due

    def take_later(self) -> Due:
        return heapq.heappop(self._later)

    def follow(self, stream: Stream, opened: bytes, following: PlannedRequest, replica: int | None) -> None:
        """Make the turn after an answer, due `think_s` after its end."""
        history = self._prompts.answered(opened, stream.answer.text)
        due_ns = (stream.end_ns or 0) + round(following.think_s * 1e9)
        heapq.heappush(self._later, self._written(following, history, due_ns, replica))

    def _written(self, request: PlannedRequest, history: bytes, due_ns: int, replica: int | None) -> Due:
        opened = self._prompts.opened(request, history)
        body = self._body.render(self._prompts.closed(opened), request.output_tokens)
        goes_on = request.turn is not None and self._plan.next_turn(request) is not None
        return Due(due_ns, request.index, request, body, opened if goes_on else b"", replica)

    def _prepare(self, count: int) -> int:
        """Write up to `count` more starters; returns how many there were."""
        made = 0
        for index in itertools.islice(self._indices, count):
            request = self._plan.request(self._cell, index)
            due_ns = self._start_ns + round((request.intended_s or 0.0) * 1e9)
            due = self._written(request, b"", due_ns, None)
            self._ready.append(due)
            self._ready_bytes += len(due.body)
            made += 1
        return made

    def _refill(self) -> None:
        """Keep requests ready, a few at a time between other work, so that none is written when it is due."""
        if not self._refilling and len(self._ready) < _READY_REQUESTS and self._ready_bytes < _READY_BYTES:
            self._refilling = True
            self._soon(self._refill_some)

    def _refill_some(self) -> None:
        self._refilling = False
        if self._prepare(4):
            self._refill()
