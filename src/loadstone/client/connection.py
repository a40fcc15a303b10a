"""One TCP (or TLS) connection, one request on it at a time: write the request, keep what comes back, and when.

The hot path is `_on_readable`: one `recvmsg`, whose kernel stamp says when the data arrived, one append, one test.
HTTP, SSE and JSON are read later, in `decode`: when the answer ends, when much is held, or when the worker sweeps.
So a slow decoder never delays the clock, and the memory held for raw bytes stays bounded.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import time
import zlib
from collections.abc import Sequence
from itertools import accumulate, chain, repeat
from typing import Any, Protocol

import httptools

from loadstone.client.clock import ANCILLARY_BYTES, Clock, ask_for_stamps
from loadstone.client.stream import Stream
from loadstone.wire.template import Template
from loadstone.wire.text import excerpt

READ_BYTES = 65536
_ERROR_BODY_BYTES = 8192
_INFLATED_BYTES = 64 * 1024 * 1024
_CHUNKED_END = b"\r\n\r\n"
"""An HTTP message in chunks ends so (the last chunk's or the trailers' end); an event's chunk never needs to."""
_WINDOW_READS = 64
_RETRY_READS = 8
_EVENT_END = b"\n\n\r\n"
"""An event's end and its HTTP chunk's, as nearly all servers write them."""
_SHORTEST_SURE = 8
"""A read shorter than this may be the rest of a split ending."""


class Owner(Protocol):
    """What a connection asks of the worker that holds it."""

    loop: asyncio.AbstractEventLoop
    clock: Clock
    held_limit_bytes: int

    def ended(self, connection: Connection, stream: Stream) -> None: ...
    def broke(self, connection: Connection, stream: Stream, reason: str, *, retry: bool) -> None: ...
    def opened(self, connection: Connection) -> None: ...
    def dropped(self, connection: Connection) -> None: ...


class Address:
    """Where to connect, resolved once: (family, sockaddr), and the name for TLS where there is any.

    `tunnel`: host:port to ask a proxy at that address to connect to first.
    """

    def __init__(self, family: int, sockaddr: Any, tls_name: str | None, tunnel: str | None = None) -> None:
        self.family = family
        self.sockaddr = sockaddr
        self.tls_name = tls_name
        self.tunnel = tunnel


class Connection:
    """Use: `open(stream)` sends it once connected; after `Owner.ended`, `start(stream)` sends the next."""

    __slots__ = (
        "_bodies", "_closed", "_connected", "_fd", "_headers_complete", "_held", "_held_limit", "_incoming",
        "_learnings", "_message_complete", "_outgoing", "_owner", "_parser", "_reads", "_reads_ns", "_recvmsg",
        "_sock", "_stamps", "_template", "_tls", "_tunnel", "_unsent", "_used", "keep_alive", "on_body",
        "stream",
    )  # fmt: skip

    def __init__(self, owner: Owner, address: Address, tls: ssl.SSLContext | None) -> None:
        self.stream: Stream | None = None
        self.keep_alive = False
        self._owner = owner
        self._held_limit = owner.held_limit_bytes
        self._reads: list[bytes] = []
        self._stamps: list[bytes] = []
        self._reads_ns: list[int] = []
        self._held = 0
        self._template: Template | None = None  # what the next reads of this answer will probably be
        self._learnings = 0  # tries left to learn one: each use of a template earns another
        self._bodies: list[bytes] = []
        self._unsent = b""
        self._message_complete = False
        self._headers_complete = False
        self._connected = False
        self._used = False
        self._closed = False
        self.on_body = self._bodies.append
        self._sock = socket.socket(address.family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        self._fd = self._sock.fileno()
        self._recvmsg = self._sock.recvmsg
        self._tls: ssl.SSLObject | None = None
        if tls is not None:
            self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            self._tls = tls.wrap_bio(self._incoming, self._outgoing, server_hostname=address.tls_name)
        self._tunnel = address.tunnel
        self._parser = httptools.HttpResponseParser(self)

    # --- opening and writing ----------------------------------------------------------------------------------

    def open(self, address: Address, stream: Stream | None) -> None:
        """Begin to connect; `stream` is sent as soon as that is done (None: the connection waits for one)."""
        self.stream = stream
        try:
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ask_for_stamps(self._sock)
            code = self._sock.connect_ex(address.sockaddr)
        except OSError as error:
            code = error.errno or errno.EIO
        if code in (0, errno.EINPROGRESS):
            self._owner.loop.add_writer(self._fd, self._on_connected)
        else:
            self._break(f"cannot connect: {os.strerror(code)}")

    def _on_connected(self) -> None:
        loop = self._owner.loop
        code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._break(f"cannot connect: {os.strerror(code)}")
            return
        loop.remove_writer(self._fd)
        if self._tunnel is None:
            self._begin()
        else:
            loop.add_reader(self._fd, self._on_proxy_answer)
            self._write(f"CONNECT {self._tunnel} HTTP/1.1\r\nHost: {self._tunnel}\r\n\r\n".encode("latin-1"))

    def _on_proxy_answer(self) -> None:
        try:
            answer = self._sock.recv(4096)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._break(_broken(error))
            return
        # A proxy says nothing after its answer until we do, and the answer is short: it comes in one piece.
        if answer[:8] in (b"HTTP/1.1", b"HTTP/1.0") and answer[9:12] == b"200" and answer.endswith(b"\r\n\r\n"):
            self._begin()
        else:
            said = excerpt(answer.partition(b"\r")[0])
            self._break(f"the proxy refused: {said or 'it closed the connection'}")

    def _begin(self) -> None:
        """The way to the server is open."""
        reader = self._on_readable if self._tls is None else self._on_readable_tls
        self._owner.loop.add_reader(self._fd, reader)
        if self._tls is None:
            self._ready()
        else:
            self._shake_hands()

    def _shake_hands(self) -> None:
        assert self._tls is not None  # noqa: S101
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._write_tls()
            return
        except ssl.SSLError as error:
            self._break(f"TLS failed: {excerpt(str(error).encode())}")
            return
        self._write_tls()
        self._ready()

    def _ready(self) -> None:
        self._connected = True
        if self.stream is not None:
            self._send_request()
        else:
            self._owner.opened(self)

    @property
    def connected(self) -> bool:
        return self._connected

    def start(self, stream: Stream) -> None:
        """Send `stream` on this idle connection."""
        self.stream = stream
        stream.reused = self._used
        self._send_request()

    def _send_request(self) -> None:
        stream = self.stream
        assert stream is not None  # noqa: S101
        self._used = True
        self._message_complete = self._headers_complete = False
        self._template, self._learnings = None, 4
        # The end of an answer in one piece cannot be told from its bytes: each read is looked at as it comes.
        self._held_limit = self._owner.held_limit_bytes if stream.answer.streams else -1
        self.keep_alive = False
        # Just before the write; a request tried again on a fresh connection keeps its first time.
        stream.sent_ns = stream.sent_ns or time.monotonic_ns()
        stream.last_output_ns = stream.sent_ns
        payload = stream.payload
        # Before the write: when that fails at once, the stream may have gone to another connection.
        stream.payload = payload if stream.reused else b""
        if self._tls is not None:
            self._tls.write(payload)
            self._write_tls()
        else:
            self._write(payload)

    def _write_tls(self) -> None:
        if self._outgoing.pending:
            self._write(self._outgoing.read())

    def _write(self, data: bytes) -> None:
        if self._unsent:
            self._unsent += data
            return
        try:
            sent = self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._break(_broken(error), lost=True)
            return
        if sent < len(data):
            self._unsent = data[sent:]
            self._owner.loop.add_writer(self._fd, self._on_writable)

    def _on_writable(self) -> None:
        try:
            sent = self._sock.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._break(_broken(error), lost=True)
            return
        self._unsent = self._unsent[sent:]
        if not self._unsent:
            self._owner.loop.remove_writer(self._fd)

    # --- reading: the hot path --------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        recvmsg = self._recvmsg
        try:
            data, ancillary, _, _ = recvmsg(READ_BYTES, ANCILLARY_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lost(error)
            return
        self._reads.append(data)
        self._stamps.append(ancillary[0][2] if ancillary else b"")
        self._reads_ns.append(time.monotonic_ns())
        self._held += len(data)
        if data.endswith(_CHUNKED_END) or len(data) < _SHORTEST_SURE or self._held > self._held_limit:
            self.decode()

    def _on_readable_tls(self) -> None:
        assert self._tls is not None  # noqa: S101
        try:
            data, ancillary, _, _ = self._recvmsg(READ_BYTES, ANCILLARY_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lost(error)
            return
        now = time.monotonic_ns()
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        if not self._connected:
            if data:
                self._shake_hands()
            else:
                self._break("TLS failed: the server closed the connection during the handshake")
            return
        parts = []
        ended = not data
        try:
            while part := self._tls.read(READ_BYTES):
                parts.append(part)
            ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            ended = True
        self._write_tls()
        plain = b"".join(parts)
        for part in (plain, b"") if plain and ended else (plain,) if plain else (b"",) if ended else ():
            self._reads.append(part)
            self._stamps.append(ancillary[0][2] if ancillary else b"")
            self._reads_ns.append(now)
            self._held += len(part)
        if plain.endswith(_CHUNKED_END) or len(plain) < _SHORTEST_SURE or ended or self._held > self._held_limit:
            self.decode()

    def _lost(self, error: OSError) -> None:
        """The socket failed: first what arrived before, then the failure."""
        self.decode()
        if not self._closed:
            self._break(_broken(error), lost=True)

    # --- reading: later ---------------------------------------------------------------------------------------

    def decode(self) -> None:
        """Read what is held: fills the stream's events; tells the owner when the answer ends."""
        reads, stamps, reads_ns = self._reads, self._stamps, self._reads_ns
        self._reads, self._stamps, self._reads_ns, self._held = [], [], [], 0
        stream = self.stream
        if stream is None:
            # An idle connection: the server closed it, or speaks out of turn.
            if reads:
                self.close()
                self._owner.dropped(self)
            return
        indices: Sequence[int] = range(stream.reads, stream.reads + len(reads))
        stream.reads += len(reads) if reads and reads[-1] else max(0, len(reads) - 1)  # an empty one is the end
        cut = False
        at = 0
        retry_at = 0  # where a template is worth trying again, after it failed
        # The read that ends an answer is never plain, and a batch with one such read costs as much as two without.
        ends = bool(reads) and reads[-1].endswith(_CHUNKED_END)
        while at < len(reads):
            if self._template is not None and retry_at <= at < len(reads) - ends:
                window = reads[at : min(at + _WINDOW_READS, len(reads) - ends)]
                plain, counts = self._template.run(window)
                if plain:
                    end = at + plain
                    self._take_plain(stream, stamps[at:end], reads_ns[at:end], indices[at:end], counts)
                    at = end
                else:
                    retry_at = at + _RETRY_READS
                if plain == len(window):
                    continue
                if not cut and reads[at].count(_EVENT_END) > 1:
                    # A late client finds several events in a read: it must not fall further behind over them.
                    cut = True
                    rest = reads[at:], stamps[at:], reads_ns[at:], indices[at:]
                    reads, stamps, reads_ns, indices = _pieces(*rest)
                    at = retry_at = 0
                    continue
            at += 1
            if self._parse(stream, reads[at - 1], stamps[at - 1], reads_ns[at - 1], indices[at - 1]):
                if self.stream is stream:
                    # Something after the answer, or the connection's end: no more requests on this one.
                    self.keep_alive = self.keep_alive and at == len(reads)
                    self._finish(stream)
                return

    def _take_plain(
        self, stream: Stream, stamps: list[bytes], reads_ns: list[int], indices: Sequence[int], counts: list[int]
    ) -> None:
        """Reads that the template recognised: an output event each."""
        clock = self._owner.clock
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

    def _parse(self, stream: Stream, data: bytes, stamp: bytes, read_ns: int, index: int) -> bool:
        """One read, whatever it holds. True if the answer or the connection ended with it; `stream.end_ns` says when.

        A connection that broke has no stream any more.
        """
        if not data:
            return self._on_eof(stream, read_ns)
        (arrival_ns,), lag_ns = self._owner.clock.arrivals_ns([stamp], [read_ns])
        arrival_ns = max(arrival_ns, stream.last_output_ns)
        stream.worst_lag_ns = max(stream.worst_lag_ns, lag_ns)
        bodies = self._bodies
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._take_bodies(stream, arrival_ns, index)  # what came before the fault
            self._break(f"not HTTP: {excerpt(str(error).encode())}")
            return True
        self._take_bodies(stream, arrival_ns, index)
        if self._message_complete:
            stream.end_ns = arrival_ns
        else:
            self._learn(stream, data)
        bodies.clear()
        return self._message_complete

    def _take_bodies(self, stream: Stream, arrival_ns: int, index: int) -> None:
        """What the HTTP parser found of the answer's body in one read."""
        for body in self._bodies:
            count = stream.answer.feed(body) if stream.plain else self._take_body(stream, body)
            if count:
                arrival_s = self._owner.clock.since_origin_s(arrival_ns)
                stream.arrival_s.extend([arrival_s] * count)
                stream.read_index.extend([index] * count)
                stream.last_output_ns = arrival_ns

    def _learn(self, stream: Stream, data: bytes) -> None:
        """Choose the template for the next reads, after `data` was parsed.

        A template skips the HTTP parser, so it may only be used from the end of a chunk to the end of a chunk: which
        is where things stand if the read was made of whole chunks.
        """
        bodies = self._bodies
        whole = b"".join([b"%x\r\n%b\r\n" % (len(body), body) for body in bodies])
        if not bodies or data != whole or not stream.plain:
            self._template = None
        elif self._learnings > 0:
            self._learnings -= 1
            self._template = stream.answer.template(bodies[-1]) or self._template

    def _take_body(self, stream: Stream, body: bytes) -> int:
        """The first of a body, or one that is not plainly what was asked for. Output events it completed."""
        if stream.decompress is not None:
            try:
                body = stream.decompress.decompress(body, _INFLATED_BYTES)
            except zlib.error as error:
                stream.error = stream.error or f"compressed answer cannot be read: {error}"
                return 0
        if stream.expected is None and body:
            # Told by its first bytes where the header does not say so; some servers name their streams text/plain.
            kind = stream.headers.get(b"content-type", b"").lower()
            begins = (stream.body + body).lstrip()[:6]
            is_sse = b"event-stream" in kind or begins.startswith((b"data:", b"event:", b":"))
            is_json = not is_sse and (b"json" in kind or begins.startswith(b"{"))
            stream.expected = stream.http_status == 200 and (is_sse if stream.answer.streams else is_json)
        if stream.expected:
            stream.plain = stream.decompress is None
            return stream.answer.feed(body)
        stream.body = (stream.body + body)[:_ERROR_BODY_BYTES]
        return 0

    def _finish(self, stream: Stream) -> None:
        late = stream.answer.finish()
        if late and stream.end_ns is not None:
            stream.arrival_s.extend([self._owner.clock.since_origin_s(stream.end_ns)] * late)
            stream.read_index.extend([max(0, stream.reads - 1)] * late)
        self.stream = None
        if not self.keep_alive or self._reads or self._unsent:
            self.close()
        self._owner.ended(self, stream)

    def _on_eof(self, stream: Stream, read_ns: int) -> bool:
        headers = stream.headers
        until_close = b"content-length" not in headers and b"chunked" not in headers.get(b"transfer-encoding", b"")
        self.keep_alive = False
        if self._headers_complete and until_close:
            stream.end_ns = read_ns
        elif self._headers_complete:
            self._break("the server closed the connection before the answer's end")
        else:
            self._break("the server closed the connection before answering", lost=True)
        return True

    # --- called by the HTTP parser ----------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._message_complete:
            self.keep_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.stream is not None and len(self.stream.headers) < 64:
            self.stream.headers[name.lower()] = value[:256]

    def on_headers_complete(self) -> None:
        stream = self.stream
        status = self._parser.get_status_code()
        if stream is None or status < 200 or self._message_complete:
            return  # 1xx: the real answer comes after it; or more than was asked for
        self._headers_complete = True
        self.keep_alive = self._parser.should_keep_alive()
        stream.http_status = status
        coding = stream.headers.get(b"content-encoding", b"identity").lower()
        if coding in (b"gzip", b"x-gzip", b"deflate"):
            stream.decompress = zlib.decompressobj(47 if b"gzip" in coding else 15)
        elif status == 200 and b"event-stream" in stream.headers.get(b"content-type", b"") and stream.answer.streams:
            stream.expected = stream.plain = True

    def on_message_complete(self) -> None:
        if self._headers_complete:
            self._message_complete = True

    # --- ending -----------------------------------------------------------------------------------------------

    def _break(self, reason: str, *, lost: bool = False) -> None:
        """The connection is of no more use; `lost`: it was cut, rather than found useless."""
        stream, self.stream = self.stream, None
        self.close()
        if stream is None:
            self._owner.dropped(self)
            return
        # A kept connection that is cut without a word was closed by the server before it saw the request (RFC 9112
        # §9.3.1): such a request is sent again on a fresh one, its first sending time kept.
        self._owner.broke(self, stream, reason, retry=lost and stream.reused and stream.reads == 0)

    def close(self) -> None:
        """Close the socket. Idempotent; the stream, if any, is the caller's to end."""
        if self._closed:
            return
        self._closed = True
        loop = self._owner.loop
        loop.remove_reader(self._fd)
        loop.remove_writer(self._fd)
        self._sock.close()
        self._reads.clear()
        # Parser and connection hold each other, and the worker's garbage collector is off.
        self._parser = None

    @property
    def closed(self) -> bool:
        return self._closed


def _pieces(
    reads: list[bytes], stamps: list[bytes], reads_ns: list[int], indices: Sequence[int]
) -> tuple[list[bytes], list[bytes], list[int], list[int]]:
    """Reads of several events cut into one piece an event; each piece keeps its read's stamp, time and index."""
    cut = [[part + _EVENT_END for part in read.split(_EVENT_END)] for read in reads]
    for parts, read in zip(cut, reads, strict=True):
        rest = parts.pop()[: -len(_EVENT_END)]
        if rest or not read:
            parts.append(rest)
    sizes = list(map(len, cut))
    spread = [list(chain.from_iterable(map(repeat, column, sizes))) for column in (stamps, reads_ns, indices)]
    return list(chain.from_iterable(cut)), *spread  # type: ignore[return-value]


def _broken(error: OSError) -> str:
    return f"connection lost: {error.strerror or error}"
