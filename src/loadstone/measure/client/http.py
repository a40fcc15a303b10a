"""Reads as HTTP what a connection kept: fills a stream with the events of its answer.

Most reads of an answer are alike, one event in one chunk: a template recognises them many at a time
(wire.template). What it does not know goes through the HTTP parser, and the bodies that this finds
to the stream's Answer.
"""

import zlib
from collections.abc import Sequence
from itertools import accumulate, chain, repeat
from typing import NamedTuple

import httptools

from loadstone.core.text import excerpt
from loadstone.measure.client.clock import RunClock
from loadstone.measure.client.stream import Stream
from loadstone.measure.wire.coding import Unpacker
from loadstone.measure.wire.template import Template

CHUNKED_END = b"\r\n\r\n"
"""An HTTP message in chunks ends so (the last chunk's or the trailers' end); an event's chunk never
needs to."""
_ERROR_BODY_BYTES = 8192
_BOM = b"\xef\xbb\xbf"
_TELLING_BYTES = len(b"retry:")
"""The beginning of a body by which an event stream is known where the header does not say so."""
_INFLATED_BYTES = 4 * 1024 * 1024
"""The most that one piece of a compressed body may unpack to: it is of one read or less, and an
event is far shorter.
"""
_BODILESS_BYTES = 256 * 1024
"""The most that may come without any of a body in it: headers, interim answers, trailers. Servers
send a thousandth.
"""
_WINDOW_READS = 64
_RETRY_READS = 8
_LEARNINGS = 4
_EVENT_END = b"\n\n\r\n"
"""An event's end and its HTTP chunk's, as nearly all servers write them."""


class End(NamedTuple):
    """An answer's end; where it is not whole the reason, and whether the connection was cut before
    it began."""

    reason: str | None = None
    lost: bool = False


class HttpReader:
    """Reads the answers of one connection. Use: `begin` an answer, `read` until it has ended;
    `close` at the connection's end."""

    __slots__ = (
        "_bodies",
        "_bodiless",
        "_clock",
        "_headers_complete",
        "_learnings",
        "_message_complete",
        "_parser",
        "_stream",
        "_template",
        "end_shows",
        "keep_alive",
        "on_body",
    )

    def __init__(self, clock: RunClock) -> None:
        self.keep_alive = False
        """The connection may be used again after this answer."""
        self.end_shows = False
        """The headers are read, and the last read will show that it is, by CHUNKED_END or the
        connection's end."""
        self._clock = clock
        self._stream: Stream | None = None  # whose answer the parser is at
        self._template: Template | None = (
            None  # what the next reads of this answer will probably be
        )
        self._learnings = 0  # tries left to learn one: each use of a template earns another
        self._bodies: list[bytes] = []
        self._bodiless = 0  # bytes since the last of a body
        self._message_complete = False
        self._headers_complete = False
        self.on_body = self._bodies.append
        self._parser = httptools.HttpResponseParser(self)

    def begin(self) -> None:
        """Make ready for the next answer."""
        self._message_complete = self._headers_complete = self.keep_alive = self.end_shows = False
        self._template, self._learnings, self._bodiless = None, _LEARNINGS, 0

    def close(self) -> None:
        # Parser and reader hold each other, and the worker's garbage collector is off.
        self._parser = self._stream = None

    def read(
        self, stream: Stream, reads: list[bytes], stamps: list[bytes], reads_ns: list[int]
    ) -> End | None:
        """Fill the stream's events from socket reads (an empty one is the connection's end), their
        kernel stamps and the times they were read at. None: the answer goes on; else
        `stream.end_ns` says when a whole one ended.
        """
        self._stream = stream
        indices: Sequence[int] = range(stream.reads, stream.reads + len(reads))
        stream.reads += (
            len(reads) if reads and reads[-1] else max(0, len(reads) - 1)
        )  # an empty one is the end
        cut = False
        position = 0
        retry_position = 0  # where a template is worth trying again, after it failed
        # The read that ends an answer is never plain, and a batch with one such read costs as much
        # as two without.
        ends = bool(reads) and reads[-1].endswith(CHUNKED_END)
        while position < len(reads):
            if self._template is not None and retry_position <= position < len(reads) - ends:
                window = reads[position : min(position + _WINDOW_READS, len(reads) - ends)]
                plain, counts = self._template.run(window)
                if plain:
                    end = position + plain
                    self._take_plain(
                        stream,
                        stamps[position:end],
                        reads_ns[position:end],
                        indices[position:end],
                        counts,
                    )
                    position = end
                else:
                    retry_position = position + _RETRY_READS
                if plain == len(window):
                    continue
                if not cut and reads[position].count(_EVENT_END) > 1:
                    # A late client finds several events in a read: it must not fall further behind
                    # over them.
                    cut = True
                    rest = (
                        reads[position:],
                        stamps[position:],
                        reads_ns[position:],
                        indices[position:],
                    )
                    reads, stamps, reads_ns, indices = _split_reads(*rest)
                    position = retry_position = 0
                    continue
            position += 1
            ended = self._parse(
                stream,
                reads[position - 1],
                stamps[position - 1],
                reads_ns[position - 1],
                indices[position - 1],
            )
            if ended is not None:
                # Something after the answer, or the connection's end: no more requests on this one.
                self.keep_alive = self.keep_alive and position == len(reads)
                self._stream = None
                return ended
        return None

    def _take_plain(
        self,
        stream: Stream,
        stamps: list[bytes],
        reads_ns: list[int],
        indices: Sequence[int],
        counts: list[int],
    ) -> None:
        """Take reads that the template recognised: an output event each."""
        clock = self._clock
        arrivals, lag_ns = clock.arrivals_ns(stamps, reads_ns)
        stream.worst_lag_ns = max(stream.worst_lag_ns, lag_ns)
        if arrivals[0] < stream.last_output_ns or arrivals != sorted(arrivals):
            # Never before what came before it, whatever the stamps say.
            arrivals = list(accumulate(arrivals, max, initial=stream.last_output_ns))[1:]
        origin_ns = clock.origin_ns
        stream.arrival_s.extend([(arrival - origin_ns) * 1e-9 for arrival in arrivals])
        stream.read_index.extend(indices)
        stream.last_output_ns = arrivals[-1]
        stream.answer.take_plain(len(arrivals), counts)
        self._learnings += len(arrivals)

    def _parse(
        self, stream: Stream, data: bytes, stamp: bytes, read_ns: int, index: int
    ) -> End | None:
        """Read one piece, whatever it holds."""
        if not data:
            return self._on_eof(stream, read_ns)
        (arrival_ns,), lag_ns = self._clock.arrivals_ns([stamp], [read_ns])
        arrival_ns = max(arrival_ns, stream.last_output_ns)
        stream.worst_lag_ns = max(stream.worst_lag_ns, lag_ns)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._take_bodies(stream, arrival_ns, index)  # what came before the fault
            if self._message_complete:  # the answer is whole, and what follows it is nobody's
                self.keep_alive = False
                return self._finish(stream, arrival_ns)
            return End(f"not HTTP: {excerpt(str(error))}")
        self._take_bodies(stream, arrival_ns, index)
        if self._message_complete:
            return self._finish(stream, arrival_ns)
        self._bodiless = 0 if self._bodies else self._bodiless + len(data)
        if self._bodiless > _BODILESS_BYTES:
            return End(f"not HTTP: {_BODILESS_BYTES >> 10} KiB of headers without end")
        if stream.error is not None:
            return End(stream.error)  # what follows cannot be read either
        self._learn(stream, data)
        self._bodies.clear()
        return None

    def _take_bodies(self, stream: Stream, arrival_ns: int, index: int) -> None:
        """Take what the HTTP parser found of the answer's body in one read."""
        for body in self._bodies:
            count = stream.answer.feed(body) if stream.plain else self._take_body(stream, body)
            if count:
                arrival_s = self._clock.since_origin_s(arrival_ns)
                stream.arrival_s.extend([arrival_s] * count)
                stream.read_index.extend([index] * count)
                stream.last_output_ns = arrival_ns

    def _learn(self, stream: Stream, data: bytes) -> None:
        """Choose the template for the next reads, after `data` was parsed.

        A template skips the HTTP parser, so it may only be used from the end of a chunk to the end
        of a chunk: which is where things stand if the read was made of whole chunks.
        """
        bodies = self._bodies
        whole = b"".join([b"%x\r\n%b\r\n" % (len(body), body) for body in bodies])
        if not bodies or data != whole or not stream.plain:
            self._template = None
        elif self._learnings > 0:
            self._learnings -= 1
            self._template = stream.answer.template(bodies[-1]) or self._template

    def _take_body(self, stream: Stream, body: bytes) -> int:
        """The first of a body, or one that is not plainly what was asked for. Output events it
        completed."""
        if stream.unpacker is not None:
            if stream.error is not None:
                return 0
            try:
                body = stream.unpacker.feed(body, _INFLATED_BYTES)
            except zlib.error as error:
                stream.error = f"compressed answer cannot be read: {error}"
                return 0
            if stream.unpacker.overflowed:
                stream.error = (
                    f"compressed answer: a piece of it unpacks to over {_INFLATED_BYTES >> 20} MiB"
                )
                return 0
        if stream.expected is None and body:
            # Told by its first bytes where the header does not say so; some servers name their
            # streams text/plain.
            kind = stream.headers.get(b"content-type", b"").lower()
            body, stream.body = stream.body + body, b""
            begins = body.removeprefix(_BOM).lstrip()[:_TELLING_BYTES]
            is_sse = b"event-stream" in kind or begins.startswith(
                (b"data:", b"event:", b"id:", b"retry:", b":")
            )
            is_json = not is_sse and (b"json" in kind or begins.startswith((b"{", b"[")))
            if (
                not (is_sse or is_json)
                and len(begins) < _TELLING_BYTES
                and len(body) < _ERROR_BODY_BYTES
            ):
                stream.body = body
                return 0
            stream.expected = stream.http_status == 200 and (
                is_sse if stream.answer.streams else is_json
            )
        if stream.expected:
            stream.plain = stream.unpacker is None
            return stream.answer.feed(body)
        stream.body = (stream.body + body)[:_ERROR_BODY_BYTES]
        return 0

    def _finish(self, stream: Stream, end_ns: int) -> End:
        """Take the end of an answer that is whole."""
        self._bodies.clear()
        stream.end_ns = end_ns
        late = stream.answer.finish()
        if late:
            stream.arrival_s.extend([self._clock.since_origin_s(end_ns)] * late)
            stream.read_index.extend([max(0, stream.reads - 1)] * late)
        return End()

    def _on_eof(self, stream: Stream, end_ns: int) -> End:
        headers = stream.headers
        until_close = b"content-length" not in headers and b"chunked" not in headers.get(
            b"transfer-encoding", b""
        )
        self.keep_alive = False
        if not self._headers_complete:
            return End("the server closed the connection before answering", lost=True)
        if not until_close:
            return End("the server closed the connection before the answer's end")
        return self._finish(stream, end_ns)

    # --- called by the HTTP parser ----------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._message_complete:
            self.keep_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._stream is not None and len(self._stream.headers) < 64:
            self._stream.headers[name.lower()] = value[:256]

    def on_headers_complete(self) -> None:
        stream = self._stream
        status = self._parser.get_status_code()
        if stream is None or status < 200 or self._message_complete:
            return  # 1xx: the real answer comes after it; or more than was asked for
        self._headers_complete = True
        self.keep_alive = self._parser.should_keep_alive()
        stream.http_status = status
        self.end_shows = b"content-length" not in stream.headers
        stream.unpacker = Unpacker.choose(
            stream.headers.get(b"content-encoding", b"").decode("latin-1")
        )
        is_sse = status == 200 and b"event-stream" in stream.headers.get(b"content-type", b"")
        if stream.unpacker is None and is_sse and stream.answer.streams:
            stream.expected = stream.plain = True

    def on_message_complete(self) -> None:
        if self._headers_complete:
            self._message_complete = True


def _split_reads(
    reads: list[bytes], stamps: list[bytes], reads_ns: list[int], indices: Sequence[int]
) -> tuple[list[bytes], list[bytes], list[int], list[int]]:
    """Reads of several events cut into one piece an event; each piece keeps its read's stamp, time
    and index."""
    cut = [[part + _EVENT_END for part in read.split(_EVENT_END)] for read in reads]
    for parts, read in zip(cut, reads, strict=True):
        rest = parts.pop()[: -len(_EVENT_END)]
        if rest or not read:
            parts.append(rest)
    sizes = list(map(len, cut))
    spread = [
        list(chain.from_iterable(map(repeat, column, sizes)))
        for column in (stamps, reads_ns, indices)
    ]
    return list(chain.from_iterable(cut)), *spread  # type: ignore[return-value]
