"""The load of a step: which of its requests may be sent at this moment, and when to ask again."""

from __future__ import annotations

import hashlib
import math
import time

from loadstone.core import Plan, PlannedRequest
from loadstone.measure.client.feed import Due, Feed
from loadstone.measure.client.protocol import Step
from loadstone.workload.arrivals import level

_MODELS = 20
"""Names of models that are kept apart."""
_COMPARED = 32
"""Measured answers of a worker whose text is kept to be compared: such are parsed event by event."""
_COMPARED_TOKENS = 8
"""Tokens from which an answer is more than a yes."""


class StepLoad:
    """A step under way, as far as one worker has it.

    A *place* is what a closed loop has so many of: a request under way, or a session with its pauses.
    """

    def __init__(self, step: Step, plan: Plan, feed: Feed) -> None:
        load = plan.cells[step.cell]
        self.begun = False
        """Its start has come."""
        self.start_ns = self.issue_end_ns = step.start_ns
        self.cpu_before_s = time.process_time()
        self.resent = 0
        """Requests sent again, for the server had cut the kept connection that they were on."""
        self.models: dict[str, int] = {}
        """Answers by the model that they name."""
        self.texts: dict[str, str] = {}
        """Of the first answers: digests of the request to that of the text."""
        self._comparing = _COMPARED
        self.wake_ns: int | None = None
        """When to ask `next` again; None: when a request ends."""
        self.duration_s = load.duration_s or 0.0
        """From the first measured request; 0: it ends by count."""
        self.follows_profile = load.kind == "concurrency" and bool(load.profile)
        self.connects_ahead = load.kind != "rate"
        self._step = step
        self._load = load
        self._feed = feed
        self._cyclic = plan.cyclic(step.cell)
        self._cap = math.inf if load.max_concurrency is None else self._share(load.max_concurrency)
        self._places = 0
        self._measure_start_ns: int | None = None

    @property
    def at_once(self) -> int:
        """What is sent at the very start."""
        return 8 if self._load.kind == "rate" else self._share(int(self._load.value))

    def next(self, freed_ns: int, under_way: int) -> tuple[Due, int] | None:
        """A request to send now, and when that was intended; None: there is none yet, see `wake_ns`.

        `freed_ns`: when a place of a closed loop came free, which is when its next request should begin.
        """
        self.wake_ns = None
        if self._cyclic and self.over():
            self._feed.end()
            return None
        if under_way >= self._cap:
            return None  # the end of a request makes room
        now_ns = time.monotonic_ns()
        later, starter = self._feed.later(), self._feed.starter()
        if later is not None and later.due_ns <= now_ns:
            return self._feed.take_later(), later.due_ns
        if self._load.kind == "concurrency":
            if starter is not None and self._places < self._slots():
                self._places += 1
                return self._feed.take_starter(), freed_ns
        elif starter is not None:
            if starter.due_ns <= now_ns:
                self._places += 1
                return self._feed.take_starter(), starter.due_ns
            self.wake_ns = starter.due_ns
        if later is not None:
            self.wake_ns = min(later.due_ns, self.wake_ns or later.due_ns)
        return None

    def sent(self, request: PlannedRequest, now_ns: int) -> bool:
        """Keep that a request was sent; True if it is the first that is measured."""
        self.issue_end_ns = now_ns
        if request.phase != "measure" or self._measure_start_ns is not None:
            return False
        self._measure_start_ns = now_ns
        return True

    def answered_by(self, model: str) -> None:
        """Keep that an answer named this model; of names without end, those after the first few are one."""
        known = model in self.models or len(self.models) < _MODELS
        name = model if known else "others"
        self.models[name] = self.models.get(name, 0) + 1

    def keeps_text(self, request: PlannedRequest) -> bool:
        """Whether the text of its answer is one of those that are compared."""
        if request.phase != "measure" or not self._comparing:
            return False
        self._comparing -= 1
        return True

    def answered_with(self, text: str, body: bytes, tokens: int) -> None:
        """Keep that a request of this body was answered so."""
        if text and tokens >= _COMPARED_TOKENS:
            self.texts[_digest(body)] = _digest(text.encode(errors="surrogatepass"))

    def free_place(self) -> None:
        self._places -= 1

    def over(self) -> bool:
        """The cell's time is up."""
        if not self.duration_s or self._measure_start_ns is None:
            return False
        return time.monotonic_ns() >= self._measure_start_ns + self.duration_s * 1e9

    def _slots(self) -> int:
        """Places of a closed loop at this moment."""
        profile, start_ns = self._load.profile, self._measure_start_ns
        if not profile:
            return self._share(int(self._load.value))
        if start_ns is None:
            return self._share(max(1, math.ceil(profile[0][0])))
        return self._share(int(level(profile, (time.monotonic_ns() - start_ns) * 1e-9)))

    def _share(self, total: int) -> int:
        """This worker's part of `total` places."""
        return total // self._step.parts + (self._step.part < total % self._step.parts)


def _digest(of: bytes) -> str:
    return hashlib.blake2b(of, digest_size=8).hexdigest()
