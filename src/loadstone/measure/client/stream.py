"""A request under way at the client."""

from __future__ import annotations

from array import array
from typing import Any

from loadstone.core import PlannedRequest, Status, TokenSource
from loadstone.core.text import error_text, excerpt
from loadstone.measure.client.clock import Clock
from loadstone.measure.wire.answer import Answer
from loadstone.measure.wire.openai import OpenAIAnswer
from loadstone.workload.request import Timeouts

_AFTER_DONE_NS = 1_000_000_000
"""How long after [DONE] the HTTP message may still take to end before the answer counts as ended."""


class Stream:
    """A request under way: its plan, its times, and what was heard so far. Becomes a record when it ends.

    expected   the body is of the kind that was asked for, an event stream or one JSON object; None: not known yet
    plain      it is, and not compressed: bodies go straight to the answer
    """

    __slots__ = (
        "answer",
        "arrival_s",
        "body",
        "decompress",
        "end_ns",
        "error",
        "expected",
        "headers",
        "heard_s",
        "http_status",
        "intended_ns",
        "journaled",
        "last_output_ns",
        "part_ns",
        "payload",
        "plain",
        "read_index",
        "reads",
        "replica",
        "request",
        "reused",
        "sent_ns",
        "started_ns",
        "status",
        "worst_lag_ns",
    )  # fmt: skip

    def __init__(
        self, request: PlannedRequest, payload: bytes, intended_ns: int, answer: Answer | None = None
    ) -> None:
        self.request = request
        self.payload = payload
        self.intended_ns = intended_ns
        self.started_ns = 0  # when it was taken up: connecting comes between this and sending
        self.sent_ns: int | None = None
        self.end_ns: int | None = None
        self.replica: int = 0
        self.reused = False
        self.answer = OpenAIAnswer() if answer is None else answer
        self.arrival_s = array("d")
        self.heard_s: float | None = None  # the last output that is journaled
        self.journaled = 0  # events
        self.read_index = array("i")
        self.reads = 0
        self.last_output_ns = 0
        self.worst_lag_ns = -1
        self.part_ns = 0  # when it was last journaled
        self.http_status: int | None = None
        self.headers: dict[bytes, bytes] = {}
        self.expected: bool | None = None
        self.plain = False
        self.body = b""
        self.decompress: Any = None
        self.status: Status | None = None
        self.error: str | None = None

    def overdue(self, limits: Timeouts, now_ns: int) -> str | None:
        """Why it should end now, if it should. Measured by output: keep-alive comments do not count."""
        if self.sent_ns is None:
            waited, limit, what = now_ns - self.started_ns, limits.connect_s, "connecting"
        elif self.answer.done:
            return "ended" if now_ns - self.last_output_ns > _AFTER_DONE_NS else None
        elif self.answer.events == 0:
            waited, limit, what = now_ns - self.sent_ns, limits.first_s, "the first output"
        else:
            waited, limit, what = now_ns - self.last_output_ns, limits.idle_s, "the next output"
        if waited > limit * 1e9:
            return _waited(limit, what)
        return self._unending(limits, now_ns)

    def exceeded(self, limits: Timeouts, clock: Clock) -> str | None:
        """Which limit was passed between two looks, by the times of what has arrived since: who had waited no longer
        would not have had the answer."""
        if self.sent_ns is None:
            return None
        arrival_s, before_s = self.arrival_s, self.heard_s
        if arrival_s:
            if before_s is None:
                before_s = arrival_s[0]
                if before_s - clock.since_origin_s(self.sent_ns) > limits.first_s:
                    return _waited(limits.first_s, "the first output")
            # One subtraction tells for nearly all that no gap can be so long.
            if arrival_s[-1] - before_s > limits.idle_s:
                import numpy as np

                if np.diff(arrival_s, prepend=before_s).max() > limits.idle_s:
                    return _waited(limits.idle_s, "the next output")
        return None if self.end_ns is None else self._unending(limits, self.end_ns)

    def _unending(self, limits: Timeouts, now_ns: int) -> str | None:
        if self.sent_ns is not None and now_ns - self.sent_ns > limits.total_s * 1e9:
            return f"timeout: not ended {limits.total_s:g} s after sending"
        return None

    def token_source(self) -> TokenSource:
        answer = self.answer
        if answer.events and answer.running and 2 * answer.still <= answer.events:
            return "running usage"
        return "final usage" if answer.output_tokens is not None else "pieces"

    def output_tokens(self) -> int:
        """Tokens the server says it sent, else the output events seen."""
        answer = self.answer
        return answer.output_tokens if answer.output_tokens is not None else answer.events

    def judge(self, exact_output: bool) -> None:
        """Status of an answer that ended by itself; sets `error` where it is none."""
        self.error = self.error or self._complaint()
        if self.error is not None:
            self.status = "error"
        elif exact_output and self.output_tokens() < self._demanded() and not self._full():
            self.status = "short"
        else:
            self.status = "ok"

    def _demanded(self) -> int:
        """Tokens of all answers to the request."""
        return self.request.output_tokens * self.answer.choices

    def _full(self) -> bool:
        """Whether the server ended it at the limit, and nothing tells how many tokens its events held."""
        return self.answer.output_tokens is None and self.answer.finish_reason == "length"

    def _complaint(self) -> str | None:
        answer = self.answer
        if self.http_status != 200:
            said = error_text(self.body)
            return f"HTTP {self.http_status}: {said}"
        if not self.expected:
            kind = excerpt(self.headers.get(b"content-type", b"no content type"))
            wanted = "not an event stream" if answer.streams else "not one JSON object"
            return f"answer is {wanted} ({kind}): {excerpt(self.body)}"
        what = "stream" if answer.streams else "answer"
        if answer.error is not None:
            return f"error in the {what}: {answer.error}"
        if answer.events == 0 and not answer.output_tokens:
            return f"{what} ended without any output"
        if answer.finish_reason is None and not answer.done:
            return f"{what} ended without finish reason or [DONE]"
        return None


def _waited(limit_s: float, what: str) -> str:
    return f"timeout: waited {limit_s:g} s for {what}"
