"""A request under way at the client."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
import pyarrow as pa

from loadstone.core.plan import PlannedRequest
from loadstone.core.record import RequestRecord, Status, TokenSource
from loadstone.core.run_folder import EVENT_LISTS, journal_schema
from loadstone.core.text import error_text, excerpt
from loadstone.measure.client.clock import RunClock
from loadstone.measure.wire.answer import Answer
from loadstone.measure.wire.coding import Unpacker
from loadstone.measure.wire.drafts import DraftCounts
from loadstone.workload.request import Timeouts

_AFTER_DONE_NS = 1_000_000_000
"""The time after [DONE] that the HTTP message may still take to end before the answer counts as
ended."""


@dataclass(slots=True, eq=False)
class Stream:
    """A request under way: its plan, its times, and what was heard so far. Becomes a record when it
    ends.

    expected   the body is of the kind that was asked for, an event stream or one JSON object; None:
               not known yet
    plain      it is, and not compressed: bodies go straight to the answer
    """

    request: PlannedRequest
    payload: bytes
    intended_ns: int
    answer: Answer
    started_ns: int = 0  # when it was taken up: connecting comes between this and sending
    sent_ns: int | None = None
    end_ns: int | None = None
    written_ns: int | None = None  # when the kernel had taken all of it
    body_bytes: int | None = None
    picture_bytes: int = 0
    replica: int = 0
    reused: bool = False
    arrival_s: array[float] = field(default_factory=lambda: array("d"))
    read_index: array[int] = field(default_factory=lambda: array("i"))
    first_s: float | None = None  # the first output, once it is journaled
    journaled_until_s: float | None = None  # the last output that is
    journaled: int = 0  # events
    part_ns: int = 0  # when it was last journaled
    reads: int = 0
    last_output_ns: int = 0
    worst_lag_ns: int = -1
    http_status: int | None = None
    headers: dict[bytes, bytes] = field(default_factory=dict)
    expected: bool | None = None
    plain: bool = False
    body: bytes = b""
    unpacker: Unpacker | None = None
    status: Status | None = None
    error: str | None = None

    def find_overdue(self, limits: Timeouts, now_ns: int) -> str | None:
        """Say why it should end now, if it should. Measured by output: keep-alive comments do not
        count."""
        if self.sent_ns is None:
            waited, limit, event = now_ns - self.started_ns, limits.connect_s, "connecting"
        elif self.answer.done:
            return "ended" if now_ns - self.last_output_ns > _AFTER_DONE_NS else None
        elif self.answer.events == 0:
            waited, limit, event = now_ns - self.sent_ns, limits.first_s, "the first output"
        else:
            waited, limit, event = now_ns - self.last_output_ns, limits.idle_s, "the next output"
        if waited > limit * 1e9:
            return _describe_wait(limit, event)
        return self._check_total(limits, now_ns)

    def find_exceeded(self, limits: Timeouts, clock: RunClock) -> str | None:
        """Say which limit was passed between two looks, by the times of what has arrived since: who
        had waited no longer would not have had the answer."""
        if self.sent_ns is None:
            return None
        arrival_s, before_s = self.arrival_s, self.journaled_until_s
        if arrival_s:
            if before_s is None:
                before_s = arrival_s[0]
                if before_s - clock.since_origin_s(self.sent_ns) > limits.first_s:
                    return _describe_wait(limits.first_s, "the first output")
            # One subtraction tells for nearly all that no gap can be so long.
            may_exceed = arrival_s[-1] - before_s > limits.idle_s
            if may_exceed and np.diff(arrival_s, prepend=before_s).max() > limits.idle_s:
                return _describe_wait(limits.idle_s, "the next output")
        return None if self.end_ns is None else self._check_total(limits, self.end_ns)

    def _check_total(self, limits: Timeouts, now_ns: int) -> str | None:
        if self.sent_ns is not None and now_ns - self.sent_ns > limits.total_s * 1e9:
            return f"timeout: not ended {limits.total_s:g} s after sending"
        return None

    def token_source(self) -> TokenSource:
        answer = self.answer
        if (
            answer.events
            and answer.running
            and 2 * answer.still <= answer.events
            and not self.hidden_tokens()
        ):
            return "running usage"
        return "final usage" if answer.output_tokens is not None else "pieces"

    def output_tokens(self) -> int:
        """Count the tokens that the server says it sent, else the output events seen."""
        _, tokens = self.answer.tokens
        return tokens if tokens is not None else self.answer.events - self.answer.voids

    def hidden_tokens(self) -> int:
        """Count output tokens that the server counts and did not send; below 0: that it sent and
        counts beside them."""
        made, came = self.answer.tokens
        return (made or 0) - (came or 0) or (self.answer.output_tokens or 0) - (made or 0)

    def judge(self, exact_output: bool, best: int | None = None) -> None:
        """Find the status of an answer that ended by itself; sets `error` where it is none. `best`:
        of so many documents alone scores are asked for."""
        if self.http_status == 200:
            self.answer.take_headers(self.headers)
            if self.request.inputs:
                self.answer.take_request(self.request.output_tokens, best)
        self.error = self.error or self._find_complaint()
        if self.error is not None:
            self.status = "error"
        else:
            requested_tokens = self.request.output_tokens * self.answer.choices
            # Where the server ended it at the limit, and nothing tells how many tokens its events
            # held, it is whole.
            full = self.answer.output_tokens is None and self.answer.is_cut
            made = self.output_tokens() + max(0, self.hidden_tokens())
            short = exact_output and made < requested_tokens and not full
            self.status = "short" if short else "ok"

    def _find_complaint(self) -> str | None:
        answer = self.answer
        if self.http_status != 200:
            return f"HTTP {self.http_status}: {error_text(self.body)}"
        if not self.expected:
            kind = excerpt(self.headers.get(b"content-type", b"no content type"))
            expected_kind = "not an event stream" if answer.streams else "not one JSON object"
            return f"answer is {expected_kind} ({kind}): {excerpt(self.body)}"
        form = "stream" if answer.streams else "answer"
        if answer.error is not None:
            return f"error in the {form}: {answer.error}"
        if answer.events == answer.voids and not answer.output_tokens:
            return f"{form} ended without any output"
        if answer.finish_reason is None and not answer.done:
            return f"{form} ended without finish reason or [DONE]"
        return None


def _describe_wait(limit_s: float, what: str) -> str:
    return f"timeout: waited {limit_s:g} s for {what}"


class _Fragment(RequestRecord, kw_only=True, gc=False):
    """One row of a journal, fields as journal_schema(); its lists are arrays, each with what came
    since the last."""

    earlier_events: int
    voids: int
    opening: int
    closing: int


class Fragments:
    """Rows not yet written. `events` counts the output events of all rows ever added."""

    def __init__(self, worker: int, clock: RunClock) -> None:
        self._worker = worker
        self._clock = clock
        self._schema = journal_schema()
        self._rows: list[_Fragment] = []
        self.events = 0

    def warm_up(self) -> None:
        """Write a batch and throw it away: what libraries do at their first use, they do before the
        run."""
        request = PlannedRequest(0, 0, "warmup", 0.0, 1, 1, None, 0, None)
        self.add(Stream(request, b"", self._clock.origin_ns, Answer()))
        batch = self.take()
        if batch is not None:
            batch.serialize()
        self.events = 0

    def add(self, stream: Stream) -> None:
        """Add what came since the last fragment of a stream, which goes on or has ended."""
        is_answer = stream.status is None or (stream.http_status == 200 and bool(stream.expected))
        request, answer = stream.request, stream.answer
        source = stream.token_source() if is_answer else None
        drafts = answer.drafts or DraftCounts()
        since = self._clock.since_origin_s
        pictures = request.pictures
        planned = None if pictures is None else pictures.shape.tokens
        tokens = array("i", answer.running_tokens if source == "running usage" else ())
        self.events += len(stream.arrival_s)
        self._rows.append(
            _Fragment(
                request_id=request.request_id,
                cell=request.cell,
                phase=request.phase,
                session_id=request.session_id,
                turn=request.turn,
                intended_s=since(stream.intended_ns),
                sent_s=None if stream.sent_ns is None else since(stream.sent_ns),
                arrival_s=stream.arrival_s,  # type: ignore[arg-type]
                read=stream.read_index,  # type: ignore[arg-type]
                tokens=tokens,  # type: ignore[arg-type]
                token_source=source,
                end_s=None if stream.end_ns is None else since(stream.end_ns),
                input_tokens=answer.input_tokens,
                output_tokens=stream.output_tokens() if is_answer else None,
                cached_tokens=answer.cached_tokens,
                reasoning_tokens=answer.reasoning_tokens,
                finish_reason=answer.finish_reason,
                status=stream.status,  # type: ignore[arg-type]  # None while it goes on
                error=stream.error,
                http_status=stream.http_status,
                worker=self._worker,
                replica=stream.replica,
                reused_connection=stream.reused,
                receive_lag_s=None if stream.worst_lag_ns < 0 else stream.worst_lag_ns * 1e-9,
                server_prefill_s=answer.server_prefill_s,
                server_decode_s=answer.server_decode_s,
                channel=answer.channels,  # type: ignore[arg-type]
                draft_steps=drafts.steps,
                draft_tokens=drafts.tokens,
                draft_accepted=drafts.accepted,
                accepted_histogram=drafts.histogram,
                images=None if pictures is None else pictures.images,
                pixels=None if pictures is None else pictures.times * pictures.shape.pixels,
                picture_bytes=stream.picture_bytes or None,
                body_bytes=stream.body_bytes,
                visual_tokens_planned=(
                    None if pictures is None or planned is None else pictures.times * planned
                ),
                visual_tokens=answer.visual_tokens,
                sent_end_s=None if stream.written_ns is None else since(stream.written_ns),
                earlier_events=stream.journaled,
                voids=answer.voids,
                opening=digest_of(answer.ends[0]),
                closing=digest_of(answer.ends[1]),
            )
        )
        stream.journaled += len(stream.arrival_s)
        if stream.arrival_s:
            stream.first_s = stream.arrival_s[0] if stream.first_s is None else stream.first_s
            stream.journaled_until_s = stream.arrival_s[-1]
        stream.arrival_s, stream.read_index = array("d"), array("i")
        answer.running_tokens, answer.channels = [], bytearray()

    def take(self) -> pa.RecordBatch | None:
        """Return all rows so far as one batch, and forget them; None if there are none."""
        if not self._rows:
            return None
        rows, self._rows = self._rows, []
        columns = [
            (
                _make_list_column(values, field.type)
                if field.name in EVENT_LISTS
                else pa.array(values, field.type)
            )
            for field, values in zip(
                self._schema, zip(*map(msgspec.structs.astuple, rows), strict=True), strict=True
            )
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def digest_of(text: str | None) -> int:
    """Return a number for a text that is the same in all workers; 0: for none."""
    return 0 if text is None else (crc32(text.encode(errors="surrogatepass")) >> 1) or 1


def _make_list_column(values: Sequence[array[Any]], kind: pa.ListType) -> pa.ListArray:
    """Make a column of lists from arrays, without a Python object per element."""
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([len(value) for value in values], out=offsets[1:])
    flat = pa.Array.from_buffers(
        kind.value_type, int(offsets[-1]), [None, pa.py_buffer(b"".join(values))]
    )
    return pa.ListArray.from_arrays(pa.array(offsets), flat)
