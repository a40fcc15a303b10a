"""A stream to Triton's `ModelStreamInfer`: to the worker it is what connection.Connection is, over
gRPC.

A connection is one bidirectional stream, kept for one request after another; the streams of a
worker share the HTTP/2 channels of `Channels`. gRPC reads the socket itself, so there are no kernel
stamps: a response's time is when this process got it whole, and how long it waited before is not
known (`worst_lag_ns` stays −1, the run's clock is "user").

On arrival a response's bytes are kept with the time. They are read as protobuf later, in `decode`:
when the answer ends, when much is held, or when the worker sweeps. There is no TLS and no proxy:
engines.triton_grpc refuses them.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from loadstone.core.errors import InputError
from loadstone.core.text import excerpt
from loadstone.measure.client.connection import Address, Owner
from loadstone.measure.client.stream import Stream
from loadstone.measure.wire.triton import GrpcAnswer, encode, fold, may_be_last

METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"
_MESSAGE_BYTES = 16 * 1024 * 1024

OPTIONS = (
    # The user's proxies are for the internet, not for what is measured.
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", _MESSAGE_BYTES),
    # A server that comes back should be found as soon as over HTTP, where each request tries anew.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Else channels to one address would share one TCP connection.
    ("grpc.use_local_subchannel_pool", 1),
)
_HTTP_ONLY = frozenset(
    (
        "host",
        "user-agent",
        "content-type",
        "content-length",
        "accept",
        "accept-encoding",
        "connection",
        "te",
    )
)
"""Headers that gRPC writes itself."""


class Library(NamedTuple):
    """The two modules of the `triton` extra that this package uses."""

    grpc: Any
    messages: Any


def load_library() -> Library:
    """grpc, and the messages of Triton's protocol. Raises InputError where the extra is not
    installed."""
    # It logs what it also reports; a worker's errors are for the worker to tell.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        import grpc.aio
        from tritonclient.grpc import service_pb2
    except (
        ImportError,
        RuntimeError,
    ) as error:  # tritonclient without its grpc extra raises RuntimeError
        raise InputError(
            "--endpoint triton-grpc needs an extra package: pip install 'loadstone[triton]'"
        ) from error
    return Library(grpc, service_pb2)


def make_metadata(headers: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Headers of HTTP as gRPC takes them, but for those that it writes itself."""
    return tuple((name.lower(), value) for name, value in headers if name.lower() not in _HTTP_ONLY)


def write_address(address: Address) -> str:
    """An address as gRPC names it."""
    host, port = address.sockaddr[:2]
    return f"ipv6:[{host}]:{port}" if address.family == socket.AF_INET6 else f"ipv4:{host}:{port}"


class Channels:
    """The HTTP/2 connections of one worker, one to each address, made at the first use within the
    loop.

    `headers` go with every stream as metadata; `request_tag` begins every request's id. Raises
    InputError where the `triton` extra is not installed.
    """

    def __init__(self, *, headers: Sequence[tuple[str, str]] = (), request_tag: str = "") -> None:
        self.library = load_library()
        self.request_tag = request_tag
        self._metadata = make_metadata(headers)
        self._channels: list[Any] = []  # only kept: one that nobody holds closes itself
        self._methods: dict[str, Any] = {}

    def call(self, address: Address) -> Any:
        """A new stream of bytes messages."""
        target = write_address(address)
        if target not in self._methods:
            channel = self.library.grpc.aio.insecure_channel(target, OPTIONS)
            self._channels.append(channel)
            self._methods[target] = channel.stream_stream(METHOD)
        return self._methods[target](metadata=self._metadata)


class GrpcConnection:
    """Use: `open(stream)` sends it once connected; after `Owner.on_ended`, `start(stream)` sends
    the next."""

    __slots__ = (
        "_call",
        "_channels",
        "_held",
        "_held_bytes",
        "_owner",
        "_parse",
        "_reader",
        "_used",
        "_writer",
        "closed",
        "connected",
        "stream",
    )

    def __init__(self, owner: Owner, channels: Channels) -> None:
        self.stream: Stream | None = None
        self._owner = owner
        self._channels = channels
        self._parse = channels.library.messages.ModelStreamInferResponse.FromString
        self._held: list[tuple[int, bytes]] = []
        self._held_bytes = 0
        self._call: Any = None
        self._reader: asyncio.Task[None] | None = None
        self._writer: asyncio.Task[None] | None = None
        self.connected = False
        self._used = False
        self.closed = False

    # --- opening and writing ----------------------------------------------------------------------

    def open(self, address: Address, stream: Stream | None) -> None:
        """Begin to connect; `stream` is sent as soon as that is done (None: the connection waits
        for one)."""
        self.stream = stream
        self._call = self._channels.call(address)
        self._reader = self._begin(self._read())

    def listens(self) -> bool:
        """Always: a channel keeps its calls apart."""
        return True

    def ask(self) -> None:
        """Nothing: gRPC's own threads read its sockets."""

    def start(self, stream: Stream) -> None:
        """Send `stream` on this idle connection."""
        self.stream = stream
        stream.reused = self._used
        self._send(stream)

    def _send(self, stream: Stream) -> None:
        self._used = True
        channels = self._channels
        payload = encode(
            channels.library.messages,
            stream.payload,
            channels.request_tag + stream.request.request_id,
        )
        if not stream.reused:
            stream.payload = b""  # else it may have to be sent again
        self._writer = self._begin(self._write(stream, payload))

    async def _write(self, stream: Stream, payload: bytes) -> None:
        # Just before the write; a request tried again on a fresh connection keeps its first time.
        stream.sent_ns = stream.sent_ns or time.monotonic_ns()
        stream.last_output_ns = stream.sent_ns
        try:
            await self._call.write(payload)
        except (
            asyncio.CancelledError,
            asyncio.InvalidStateError,
            self._channels.library.grpc.aio.AioRpcError,
        ):
            return  # the stream has ended, and the reader hears why

    def _begin(self, work: Any) -> asyncio.Task[None]:
        """A task of the loop, whose failure is one of the program and goes to the loop's exception
        handler."""
        task: asyncio.Task[None] = self._owner.loop.create_task(work)
        task.add_done_callback(_tell_failure)
        return task

    # --- reading ----------------------------------------------------------------------------------

    async def _read(self) -> None:
        """The life of the stream: connects, takes what arrives, tells why it ended."""
        grpc = self._channels.library.grpc
        call, end = self._call, grpc.aio.EOF
        monotonic_ns = time.monotonic_ns
        try:
            await call.wait_for_connection()
            self._ready()
            while not self.closed:
                data = await call.read()
                now = monotonic_ns()
                if data is end:
                    reason = "the server ended the stream before the answer's end"
                    break
                self._held.append((now, data))
                self._held_bytes += len(data)
                if may_be_last(data) or self._held_bytes > self._owner.held_limit_bytes:
                    self.decode()
        except grpc.aio.AioRpcError as error:
            reason = f"gRPC {error.code().name}: {excerpt(error.details() or 'no further word')}"
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                return  # by `close`, or by `shut`
            reason = "gRPC CANCELLED: the server cancelled the stream"
        if not self.closed:
            self._lost(reason)

    def _ready(self) -> None:
        self.connected = True
        if self.stream is not None:
            self._send(self.stream)
        else:
            self._owner.on_opened(self)

    def decode(self) -> None:
        """Read what is held: fills the stream's events; tells the owner when the answer ends."""
        held, self._held, self._held_bytes = self._held, [], 0
        stream = self.stream
        if stream is None:
            if held:  # the server speaks out of turn
                self.close()
                self._owner.on_dropped(self)
            return
        for number, (arrival_ns, data) in enumerate(held, 1):
            if self._fold(stream, arrival_ns, data):
                self.stream = None
                stream.end_ns = arrival_ns
                if stream.answer.error is not None or number < len(held):
                    # an error may have a last response after it, which would end the next request
                    self.close()
                self._owner.on_ended(self, stream)
                return

    def _fold(self, stream: Stream, arrival_ns: int, data: bytes) -> bool:
        """One response. True if the answer ended with it."""
        answer = stream.answer
        assert isinstance(answer, GrpcAnswer)  # noqa: S101
        # gRPC exists on a 200 alone.
        stream.http_status, stream.expected = 200, True
        events, last = fold(self._parse, answer, data)
        if events:
            stream.last_output_ns = max(arrival_ns, stream.last_output_ns)
            stream.arrival_s.append(self._owner.clock.since_origin_s(stream.last_output_ns))
            stream.read_index.append(stream.reads)
        stream.reads += 1
        return last

    # --- ending -----------------------------------------------------------------------------------

    def _lost(self, reason: str) -> None:
        """The stream failed or ended: first what arrived before, then that."""
        self.decode()
        if self.closed:
            return
        stream, self.stream = self.stream, None
        self.close()
        if stream is None:
            self._owner.on_dropped(self)
        else:
            # As over HTTP: a kept stream that ends without a word was ended before the server saw
            # the request.
            self._owner.on_broke(self, stream, reason, retry=stream.reused and stream.reads == 0)

    def close(self) -> None:
        """Cancel the stream. Idempotent; the worker's stream, if any, is the caller's to end."""
        if self.closed:
            return
        self.closed = True
        self._held.clear()
        if self._call is None:
            return
        self._call.cancel()
        if self._reader is not None and self._reader is not asyncio.current_task(self._owner.loop):
            self._reader.cancel()  # before it is connected it does not hear of the call's end


def _tell_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler(
            {"message": "gRPC stream failed", "exception": error}
        )


def shut_down(loop: asyncio.AbstractEventLoop) -> None:
    """Let the tasks of closed connections end, on a loop that has stopped and will be closed."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=1.0))
