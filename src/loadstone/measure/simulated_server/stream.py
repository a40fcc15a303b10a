"""Writes answers over connections when they are due, and makes the keys by which a prefix cache
knows their tokens.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, overload

from loadstone.measure.client.clock import Pacer
from loadstone.measure.simulated_server.answer import WORDS
from loadstone.measure.wire.simulated import SimulatedAnswer

_WRITES_PER_TURN = 256  # then sockets are read again: about 2 ms
# A wake costs 20 to 30 µs of CPU on a virtual machine, as much as five writes. Where many tokens
# are due, wakes thus come no closer than this, and a token may be that much late.
_WAKE_GAP_NS = 200_000
_WORDS = [word.decode().strip() for word in WORDS]


class WriteScheduler:
    """Resumes each stream when it is due, never earlier.

    A stream is a generator: it yields the CLOCK_MONOTONIC ns at which it is due next, and is
    resumed to write.

    writes   times that a stream was resumed
    late_ns  sum over these of how long after the due time
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.writes = self.late_ns = 0
        self._heap: list[tuple[int, int, Iterator[int]]] = []  # due ns, serial, stream
        self._serial = itertools.count()  # keeps the heap from comparing streams
        self._pacer = Pacer(loop, self._run)
        self.close = self._pacer.close

    def add(self, stream: Iterator[int]) -> None:
        """Take on a stream that has something to write. Not to be called by a stream."""
        entry = (next(stream), next(self._serial), stream)
        heapq.heappush(self._heap, entry)
        if self._heap[0] is entry:
            self._pacer.wake_at(entry[0])

    def _run(self) -> None:
        heap = self._heap
        begun_ns = now_ns = time.monotonic_ns()
        for _ in range(_WRITES_PER_TURN):
            if not heap:
                return
            due_ns, serial, stream = heap[0]
            if due_ns > now_ns:
                now_ns = time.monotonic_ns()  # 100 ns, seldom spent
            if due_ns > now_ns:
                self._pacer.wake_at(max(due_ns, begun_ns + _WAKE_GAP_NS))
                return
            self.writes += 1
            self.late_ns += time.monotonic_ns() - due_ns
            next_ns = next(stream, None)
            if next_ns is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (next_ns, serial, stream))
        self._pacer.wake_at(begun_ns)  # more is due, after the sockets that wait to be read


class HttpRequest(NamedTuple):
    """One HTTP request, as far as it matters here."""

    arrival_ns: int = 0  # CLOCK_MONOTONIC, when its last byte was read
    method: str = ""
    path: str = ""
    id: bytes = b""
    truth: bool = False
    keep_alive: bool = False
    body: bytes = b""
    body_bytes: int = 0  # of which no more than http.MAX_BODY_BYTES are kept
    fault: tuple[int, str] | None = (
        None  # status and message, of bytes that are no request; what follows is not read
    )


class ResponseConnection(Protocol):
    """The connection over which an answer goes."""

    gone: Callable[[], bool]

    def write(self, data: bytes) -> None: ...
    def respond(self, request: HttpRequest, body: bytes) -> None: ...
    def wrote(self, stream: AnswerWriter, tokens: int) -> None: ...
    def turn_away(self, stream: AnswerWriter, reason: str) -> None: ...


class AnswerWriter:
    """An answer that is being written over a connection, when its scheduler says so.

    `times`: gets when each event was written, CLOCK_MONOTONIC ns. `serial`: an engine's name for
    it, −1 before it is submitted to one. `adapter`: its number, 0: none. `head`: of the response,
    until it is sent. `priority`: as the request says. `sequences`: tokens of each text that a
    vector or score is asked for, `left` of which an engine has not read yet.
    """

    def __init__(
        self,
        connection: ResponseConnection,
        request: HttpRequest,
        answer: SimulatedAnswer,
        tokens_per_event: int,
        times: array[int] | None,
    ) -> None:
        self.request = request
        self.answer = answer
        self.sent = 0
        self.serial = -1
        self.adapter = 0
        self.input_tokens, self.output_tokens = answer.input_tokens, answer.output_tokens
        self.head = b""
        self.priority: int | None = None
        self.keys: Sequence[Hashable] = ()
        self.sequences: list[int] = []
        self.left = 0
        self.cached_tokens = 0
        self._connection = connection
        self._tokens_per_event = tokens_per_event
        self._times = times

    def ends(self) -> Iterable[int]:
        """List how many tokens are sent after each write: one, then up to so many more at a time,
        then all."""
        first = (
            range(1, self.output_tokens, self._tokens_per_event) if self.answer.is_stream else ()
        )
        return itertools.chain(first, (self.output_tokens,))

    def open(self) -> None:
        """Send the head: the request was taken."""
        head, self.head = self.head, b""
        if head and not self._connection.gone():
            self._connection.write(head)

    def turn_away(self, reason: str) -> None:
        """End it without an answer: with an HTTP status, or within a stream that has begun."""
        if not self._connection.gone():
            self._connection.turn_away(self, reason)

    def write(self, written: int) -> bool:
        """Send what is new of the first `written` tokens; False: there is nobody any more.

        A few that are not the last may wait for more to make an event with (`tokens_per_event`).
        """
        connection, answer, sent = self._connection, self.answer, self.sent
        if connection.gone():
            return False
        last = written == self.output_tokens
        if not last and (
            not answer.is_stream or 0 < written - sent < min(self._tokens_per_event, sent + 1)
        ):
            return True
        answer.cached_tokens = self.cached_tokens
        role = answer.role() if sent == 0 else b""
        if role:
            connection.write(role)
        data = answer.piece(sent, written) if answer.is_stream else answer.whole()
        if self._times is not None:
            self._times.append(time.monotonic_ns())
        if answer.is_stream:
            connection.write(data)
        else:
            connection.respond(self.request, data)
        self.sent = written
        connection.wrote(self, written - sent)
        return True


def answered(tokens: int) -> list[Any]:
    """Return the tokens of an answer of so many."""
    return [_WORDS[index % len(_WORDS)] for index in range(tokens)]


class Keys(Sequence[int]):
    """Keys of the whole blocks of a prompt and its answer, each with all before it; none without a
    prefix cache.

    Those of the answer are made as they are asked for: an answer that may take up the whole context
    seldom does.
    """

    def __init__(self, tokens: list[Any], output_tokens: int, block_tokens: int) -> None:
        self._tokens, self._block_tokens = tokens, block_tokens
        self._count = (len(tokens) + output_tokens) // block_tokens if block_tokens else 0
        self._made: list[int] = []

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        places = range(self._count)[index]
        last = max(places, default=-1) if isinstance(places, range) else places
        for block in range(len(self._made), last + 1):
            previous = self._made[-1] if block else 0
            self._made.append(hash((previous, *self._block(block * self._block_tokens))))
        return (
            list(map(self._made.__getitem__, places))
            if isinstance(places, range)
            else self._made[places]
        )

    def _block(self, start: int) -> list[Any]:
        end, prompt = start + self._block_tokens, len(self._tokens)
        answer = [
            _WORDS[index % len(_WORDS)]
            for index in range(max(start - prompt, 0), max(end - prompt, 0))
        ]
        return self._tokens[start:end] + answer
