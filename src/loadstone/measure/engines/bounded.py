"""One request over httpx that ends: bounded in time, in bytes, and in what it may unpack to."""

from __future__ import annotations

import contextlib
import socket
import threading
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx

_PACKED = {"gzip": 47, "x-gzip": 47, "deflate": 15}
"""Content codings that are read, and the window that zlib wants for each."""


class Said(NamedTuple):
    """An answer, whose body is read here and not by httpx; `whole`: the body is all of it."""

    answer: httpx.Response
    body: bytes
    whole: bool


def send(http: httpx.Client, request: httpx.Request, *, limit_s: float, most_bytes: int) -> Said:
    """The answer and the beginning of its body. Raises httpx.HTTPError; ReadTimeout where it does not end in time."""
    with _within(limit_s, request):
        answer = http.send(request, stream=True)
        with contextlib.closing(answer):
            body = _read(answer, most_bytes)
    return Said(answer, body[:most_bytes], len(body) <= most_bytes)


@contextlib.contextmanager
def _within(limit_s: float, request: httpx.Request) -> Iterator[None]:
    """Send `request` in this block. httpx.ReadTimeout ends what takes longer, however it is spun out.

    httpx counts from one piece of an answer to the next: headers that drip, or interim answers (1xx) that flood,
    would last for ever. So the socket is shut when the time is over, which wakes whoever reads it.
    """
    over = threading.Event()
    sockets: list[socket.socket] = []

    def shut() -> None:
        for each in sockets:
            with contextlib.suppress(OSError):
                # Of TLS too: its own way would pull the session from under who reads it.
                socket.socket.shutdown(each, socket.SHUT_RDWR)

    def end() -> None:
        over.set()
        shut()

    def on_trace(event: str, about: dict[str, Any]) -> None:
        if event == "connection.connect_tcp.complete":
            sockets.append(about["return_value"].get_extra_info("socket"))
            if over.is_set():
                shut()

    request.extensions["trace"] = on_trace
    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (httpx.HTTPError, OSError, ValueError) as error:
        if over.is_set():
            raise httpx.ReadTimeout("the answer does not end", request=request) from error
        raise
    finally:
        timer.cancel()
    if over.is_set():  # what was read may be cut
        raise httpx.ReadTimeout("the answer does not end", request=request)


def _read(answer: httpx.Response, most_bytes: int) -> bytes:
    """The body, or its beginning: then longer than `most_bytes`. Raises httpx.DecodingError.

    httpx would unpack each piece whole, and as many times over as the header says: 7 kB can become gigabytes.
    """
    coding = answer.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("identity", *_PACKED):
        raise httpx.DecodingError(f"its answer is compressed by {coding}, though asked not to be")
    unpack = zlib.decompressobj(_PACKED[coding]) if coding in _PACKED else None
    body = bytearray()
    for piece in answer.iter_raw():
        try:
            body += piece if unpack is None else unpack.decompress(piece, most_bytes + 1)
        except zlib.error as error:
            raise httpx.DecodingError(f"its compressed answer cannot be read: {error}") from error
        if len(body) > most_bytes:
            return bytes(body)
    if unpack is not None and not unpack.eof:
        raise httpx.DecodingError("its compressed answer is cut")
    return bytes(body)
