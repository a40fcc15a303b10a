"""Keeps one TCP (or TLS) connection, one request on it at a time: writes the request, keeps what
comes back, and when.

The hot path is `_on_readable`: one `recvmsg`, whose kernel stamp says when the data arrived, one
append, one test. HTTP, SSE and JSON are read later (client.http), in `decode`: when the answer
ends, when much is held, or at a sweep. So a slow decoder never delays the clock, and the memory
held for raw bytes stays bounded.
"""

import asyncio
import errno
import os
import socket
import ssl
import time
from typing import Any, Protocol

from loadstone.core.text import excerpt
from loadstone.measure.client.clock import ANCILLARY_BYTES, RunClock, ask_for_stamps
from loadstone.measure.client.http import CHUNKED_END, HttpReader
from loadstone.measure.client.packets import Flow, PacketRing
from loadstone.measure.client.protocol import Address
from loadstone.measure.client.stream import Stream

READ_BYTES = 65536
_CHUNKED = b"chunked\r\n"
_SHORTEST_SURE = 8
"""A read shorter than this may be the rest of a split ending."""


class Owner(Protocol):
    """Holds a connection, of whichever kind, and is told what becomes of it."""

    loop: asyncio.AbstractEventLoop
    clock: RunClock
    held_limit_bytes: int
    packets: PacketRing | None

    def on_ended(self, connection: Any, stream: Stream) -> None: ...
    def on_broke(self, connection: Any, stream: Stream, reason: str, *, retry: bool) -> None: ...
    def on_opened(self, connection: Any) -> None: ...
    def on_dropped(self, connection: Any) -> None: ...


class Connection:
    """Use: `open(stream)` sends it once connected; after `Owner.on_ended`, `start(stream)` sends
    the next."""

    __slots__ = (
        "_fd",
        "_flow",
        "_held",
        "_held_limit",
        "_incoming",
        "_outgoing",
        "_owner",
        "_packets",
        "_proxy_answer",
        "_reader",
        "_reads",
        "_reads_ns",
        "_recvmsg",
        "_sock",
        "_stamps",
        "_tls",
        "_tunnel",
        "_unsent",
        "_used",
        "closed",
        "connected",
        "stream",
    )

    def __init__(self, owner: Owner, address: Address, tls: ssl.SSLContext | None) -> None:
        self.stream: Stream | None = None
        self._owner = owner
        self._packets = owner.packets
        self._flow: Flow | None = None
        self._held_limit = owner.held_limit_bytes
        self._reads: list[bytes] = []
        self._stamps: list[bytes] = []
        self._reads_ns: list[int] = []
        self._held = 0
        self._reader = HttpReader(owner.clock)
        self._unsent: bytes | memoryview = b""
        self.connected = False
        self._used = False
        self.closed = False
        self._sock = socket.socket(
            address.family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        self._fd = self._sock.fileno()
        self._recvmsg = self._sock.recvmsg
        self._tls: ssl.SSLObject | None = None
        if tls is not None:
            self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            self._tls = tls.wrap_bio(
                self._incoming, self._outgoing, server_hostname=address.tls_name
            )
        self._tunnel = address.tunnel
        self._proxy_answer = b""

    # --- opening and writing ----------------------------------------------------------------------

    def open(self, address: Address, stream: Stream | None) -> None:
        """Begin to connect; `stream` is sent as soon as that is done (None: the connection waits
        for one)."""
        self.stream = stream
        try:
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ask_for_stamps(self._sock)
            code = self._sock.connect_ex(address.sockaddr)
            if self._packets is not None:
                self._flow = self._packets.follow(self._sock, *address.sockaddr[:2])
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
            self._write(
                f"CONNECT {self._tunnel} HTTP/1.1\r\nHost: {self._tunnel}\r\n\r\n".encode("latin-1")
            )

    def _on_proxy_answer(self) -> None:
        try:
            data = self._sock.recv(4096)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._break(_describe_loss(error))
            return
        # It says nothing after its answer until we do, and says that in few words, though maybe in
        # several packets.
        answer = self._proxy_answer = self._proxy_answer + data
        if data and b"\r\n\r\n" not in answer and len(answer) < READ_BYTES:
            return
        if (
            answer[:8] in (b"HTTP/1.1", b"HTTP/1.0")
            and answer[9:12] == b"200"
            and answer.endswith(b"\r\n\r\n")
        ):
            self._begin()
        else:
            reason = excerpt(answer.partition(b"\r")[0]) or "it closed the connection"
            rest = "; more follows its answer to CONNECT" if answer[9:12] == b"200" else ""
            self._break(f"the proxy refused: {reason}{rest}")

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
            self._break(f"TLS failed: {excerpt(str(error))}")
            return
        self._write_tls()
        self._ready()

    def _ready(self) -> None:
        self.connected = True
        if self.stream is not None:
            self._send_request()
        else:
            self._owner.on_opened(self)

    def start(self, stream: Stream) -> None:
        """Send `stream` on this idle connection."""
        self.stream = stream
        stream.reused = self._used
        self._send_request()

    def listens(self) -> bool:
        """Return True if an idle connection can be used: not once the server said something that
        nobody asked for.

        The loop may not have come to it yet, and it would be taken for the answer to the next
        request.
        """
        try:
            spoke = self._sock.recv(1, socket.MSG_PEEK)
        except OSError:  # nothing, as a rule; what is worse shows when the request is written
            return True
        if spoke:
            self.ask()
            self.decode()
        return not self.closed

    def _send_request(self) -> None:
        stream = self.stream
        assert stream is not None  # noqa: S101
        self._used = True
        self._reader.begin()
        self._held_limit = (
            -1
        )  # each read is looked at as it comes, until the headers have said how the answer ends
        # Just before the write; a request tried again on a fresh connection keeps its first time.
        stream.sent_ns = stream.sent_ns or time.monotonic_ns()
        stream.last_output_ns = stream.sent_ns
        stream.written_ns, payload = None, stream.payload
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

    def _write(self, data: bytes | memoryview) -> None:
        if self._unsent:
            self._unsent = bytes(self._unsent) + data
            return
        try:
            sent = self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._break(_describe_loss(error), lost=True)
            return
        if sent < len(data):
            # A view: a long body goes in many pieces, and is not to be copied for each.
            self._unsent = memoryview(data)[sent:]
            self._owner.loop.add_writer(self._fd, self._on_writable)
        elif self.stream is not None and self.stream.written_ns is None:
            self.stream.written_ns = time.monotonic_ns()

    def _on_writable(self) -> None:
        data, self._unsent = self._unsent, b""
        self._owner.loop.remove_writer(self._fd)
        self._write(data)

    # --- reading: the hot path --------------------------------------------------------------------

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
        if data.endswith(CHUNKED_END) or len(data) < _SHORTEST_SURE:
            self.decode()
        elif self._held > self._held_limit:
            self._look(data)

    def _on_readable_tls(self) -> None:
        assert self._tls is not None  # noqa: S101
        try:
            data, ancillary, _, _ = self._recvmsg(READ_BYTES, ANCILLARY_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lost(error)
            return
        read_ns = time.monotonic_ns()
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        if not self.connected:
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
        for part in (
            (plain, b"") if plain and ended else (plain,) if plain else (b"",) if ended else ()
        ):
            self._reads.append(part)
            self._stamps.append(ancillary[0][2] if ancillary else b"")
            self._reads_ns.append(read_ns)
            self._held += len(part)
        if plain.endswith(CHUNKED_END) or len(plain) < _SHORTEST_SURE or ended:
            self.decode()
        elif self._held > self._held_limit:
            self._look(plain)

    def _look(self, data: bytes) -> None:
        """`data` fills what may be held, or is the first of an answer: as a rule that says how it
        will end.

        That alone is no reason to decode it now: where a thousand streams begin at once, the others
        wait.
        """
        if data.startswith(b"HTTP/") and _CHUNKED in data:
            self._held_limit = self._owner.held_limit_bytes
        else:
            self.decode()

    def _lost(self, error: OSError) -> None:
        """The socket failed: first what arrived before, then the failure."""
        self.decode()
        if not self.closed:
            self._break(_describe_loss(error), lost=True)

    def ask(self) -> None:
        """Read what the loop may not tell of: uvloop tells once of a socket that was reset, and no
        more of the reset itself where data lay before it.
        """
        if self.connected and not self.closed:
            (self._on_readable if self._tls is None else self._on_readable_tls)()

    # --- reading: later ---------------------------------------------------------------------------

    def decode(self) -> None:
        """Read what is held: fills the stream's events; tells the owner when the answer ends."""
        reads, stamps, reads_ns = self._reads, self._stamps, self._reads_ns
        self._reads, self._stamps, self._reads_ns, self._held = [], [], [], 0
        if self._packets is not None and self._flow is not None:
            reads, stamps, reads_ns = self._packets.cut(self._flow, reads, stamps, reads_ns)
        stream = self.stream
        if stream is None:
            # An idle connection: the server closed it, or speaks out of turn.
            if reads:
                self.close()
                self._owner.on_dropped(self)
            return
        end = self._reader.read(stream, reads, stamps, reads_ns)
        if end is None:
            if self._reader.end_shows:
                self._held_limit = self._owner.held_limit_bytes
            return
        if end.reason is not None:
            self._break(end.reason, lost=end.lost)
            return
        self.stream = None
        if not self._reader.keep_alive or self._unsent:
            self.close()
        self._owner.on_ended(self, stream)

    # --- ending -----------------------------------------------------------------------------------

    def _break(self, reason: str, *, lost: bool = False) -> None:
        """The connection is of no more use; `lost`: it was cut, rather than found useless."""
        stream, self.stream = self.stream, None
        self.close()
        if stream is None:
            self._owner.on_dropped(self)
            return
        # A kept connection that is cut without a word was closed by the server before it saw the
        # request (RFC 9112 §9.3.1): such a request is sent again on a fresh one, its first sending
        # time kept.
        self._owner.on_broke(
            self, stream, reason, retry=lost and stream.reused and stream.reads == 0
        )

    def close(self) -> None:
        """Close the socket. Idempotent; the stream, if any, is the caller's to end."""
        if self.closed:
            return
        self.closed = True
        if self._packets is not None and self._flow is not None:
            self._packets.forget(self._flow)
        loop = self._owner.loop
        loop.remove_reader(self._fd)
        loop.remove_writer(self._fd)
        self._sock.close()
        self._reads.clear()
        self._reader.close()


def _describe_loss(error: OSError) -> str:
    return f"connection lost: {error.strerror or error}"
