"""HTTP/1.1 connections: requests in, answers out, one at a time and in order."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
import zlib
from array import array
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import httptools
import msgspec

from loadstone import __version__
from loadstone.simserver.answer import Answer
from loadstone.simserver.ask import Ask, RefusalError, parse_ask, prompt_tokens
from loadstone.simserver.generate import GenerateAnswer
from loadstone.simserver.law import MODEL, Law, Options
from loadstone.simserver.metrics import Metrics
from loadstone.simserver.scheduler import Scheduler

_CHAT = "/v1/chat/completions"
_GENERATE = "/generate"
_METHODS = {
    "/health": "GET",
    "/metrics": "GET",
    "/version": "GET",
    "/truth": "GET",
    "/v1/models": "GET",
    "/tokenize": "POST",
    "/v1/completions": "POST",
    _CHAT: "POST",
    _GENERATE: "POST",
}
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed"}
_VOCABULARY = 32_000
_STARTED_S = int(time.time())
_names = (b"%016x" % serial for serial in itertools.count(1))  # for requests without an id


class Server(NamedTuple):
    """What all connections share."""

    law: Law
    options: Options
    scheduler: Scheduler
    metrics: Metrics
    truth: dict[str, array[int]]
    """By X-Request-Id, CLOCK_MONOTONIC ns: when the request was read, when each event with text was written."""


class _Request(NamedTuple):
    """One HTTP request, as far as it matters here."""

    arrival_ns: int = 0  # CLOCK_MONOTONIC, when its last byte was read
    method: str = ""
    path: str = ""
    id: bytes = b""
    truth: bool = False
    keep_alive: bool = False
    body: bytes = b""


class Connection(asyncio.Protocol):
    """One client connection."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: list[_Request] = []  # asked before the answer to an earlier request has ended
        self._generating = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._fd: int = transport.get_extra_info("socket").fileno()
        # Nothing more can be written. Also keeps writes from a descriptor that has passed to a newer connection.
        self._gone: Callable[[], bool] = transport.is_closing

    def connection_lost(self, exc: Exception | None) -> None:
        self._parser = None  # breaks a circle of references, for the garbage collector is off
        if self._generating:
            self._ended("abort")

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if not self._generating:
                self._refuse(RefusalError(400, "not understood as HTTP/1.1"), _Request())
            self._transport.close()
        self._serve_next()

    # What httptools calls.

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if self._headers.get(b"expect", b"").lower() == b"100-continue":
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        request = _Request(
            arrival_ns=time.monotonic_ns(),
            method=self._parser.get_method().decode(),
            path=self._url.partition(b"?")[0].decode("latin-1"),
            id=self._headers.get(b"x-request-id", b""),
            truth=self._headers.get(b"x-loadstone-truth") == b"1",
            keep_alive=self._parser.should_keep_alive(),
            body=b"".join(self._body),
        )
        self._waiting.append(request)
        self._body = []

    # What is asked.

    def _serve_next(self) -> None:
        while self._waiting and not self._generating and not self._gone():
            request = self._waiting.pop(0)
            try:
                self._serve(request)
            except RefusalError as refusal:
                self._refuse(refusal, request)
            if not request.keep_alive and not self._generating:
                self._transport.close()

    def _serve(self, request: _Request) -> None:
        method = _METHODS.get(request.path)
        if method is None or (request.path == "/truth" and not self._server.options.keep_truth):
            raise RefusalError(404, f"no {request.path} here")
        if request.method != method:
            raise RefusalError(405, f"{request.path} takes no {request.method}")
        match request.path:
            case "/health":
                self._respond(request, b"")
            case "/metrics":
                text = self._server.metrics.text()
                self._respond(request, text, content_type="text/plain; version=0.0.4; charset=utf-8")
            case "/version":
                self._respond(request, msgspec.json.encode({"version": __version__}))
            case "/v1/models":
                card = {"id": MODEL, "object": "model", "created": _STARTED_S, "owned_by": "loadstone"}
                card |= {"root": MODEL, "parent": None, "max_model_len": self._server.options.max_model_len}
                self._respond(request, msgspec.json.encode({"object": "list", "data": [card]}))
            case "/truth":
                self._respond(request, msgspec.json.encode(self._server.truth, enc_hook=array.tolist))
                self._server.truth.clear()
            case "/tokenize":
                self._tokenize(request, parse_ask(request.body))
            case _:
                self._generate(request, parse_ask(request.body))

    def _tokenize(self, request: _Request, ask: Ask) -> None:
        tokens = prompt_tokens(ask.content if ask.prompt is None else ask.prompt)
        ids = [zlib.crc32(token.encode()) % _VOCABULARY if isinstance(token, str) else token for token in tokens]
        document = {"tokens": ids, "count": len(ids), "max_model_len": self._server.options.max_model_len}
        self._respond(request, msgspec.json.encode(document))

    def _generate(self, request: _Request, ask: Ask) -> None:
        name = request.id or next(_names)
        options, truth = self._server.options, request.truth
        answer: Answer | GenerateAnswer
        if request.path == _GENERATE:
            answer = GenerateAnswer(ask, options, name=name, truth=truth)
        else:
            answer = Answer(ask, options, chat=request.path == _CHAT, name=name, truth=truth)
        self._generating = True
        self._server.metrics.running += 1
        if answer.is_stream:  # like vLLM's, long before the first token
            self._write(_head(200, request, "text/event-stream; charset=utf-8", "transfer-encoding: chunked"))
        times = None
        if options.keep_truth:
            times = self._server.truth[name.decode("latin-1")] = array("q", [request.arrival_ns])
        self._server.scheduler.add(self._stream(request, answer, times))

    def _stream(self, request: _Request, answer: Answer | GenerateAnswer, times: array[int] | None) -> Iterator[int]:
        """Write an answer as it falls due. Yields when, in CLOCK_MONOTONIC ns, and is resumed then.

        `times`: gets when each event was written, in the same ns.
        """
        law, metrics = self._server.law, self._server.metrics
        sent = 0
        for end in answer.ends():
            yield request.arrival_ns + law.due_ns(answer.input_tokens, end - 1)
            if self._gone():
                return
            metrics.generated_tokens += end - sent
            if sent == 0:
                metrics.prompt_tokens += answer.input_tokens
                if role := answer.role():
                    self._write(role)
            data = answer.piece(sent, end) if answer.is_stream else answer.whole()
            if times is not None:
                times.append(time.monotonic_ns())
            if answer.is_stream:
                self._write(data)
            else:
                self._respond(request, data)
            sent = end
        self._ended("length")
        if not request.keep_alive:
            self._transport.close()
        asyncio.get_running_loop().call_soon(self._serve_next)  # later, for the scheduler is at work

    def _ended(self, reason: str) -> None:
        self._generating = False
        self._server.metrics.running -= 1
        self._server.metrics.ended[reason] += 1

    # What is answered.

    def _respond(
        self, request: _Request, body: bytes, *more: str, status: int = 200, content_type: str = "application/json"
    ) -> None:
        """A response in one piece; `more` are header lines."""
        head = _head(status, request, content_type, f"content-length: {len(body)}", *more)
        self._write(head + body)

    def _refuse(self, refusal: RefusalError, request: _Request) -> None:
        status = refusal.status
        kind = f"{_REASONS[status].replace(' ', '')}Error"
        error = {"message": str(refusal), "type": kind, "param": None, "code": status}
        more = [f"allow: {_METHODS[request.path]}"] if status == 405 else []
        self._respond(request, msgspec.json.encode({"error": error}), *more, status=status)

    def _write(self, data: bytes) -> None:
        """Straight to the socket, so that the bytes leave now; by way of the transport while the client is behind."""
        if self._transport.get_write_buffer_size():
            self._transport.write(data)
            return
        try:
            written = os.write(self._fd, data)
        except BlockingIOError:
            written = 0
        except OSError:
            self._transport.abort()
            return
        if written < len(data):
            self._transport.write(data[written:])


def _head(status: int, request: _Request, content_type: str, *more: str) -> bytes:
    """The head of a response; `more` are header lines."""
    lines = [f"HTTP/1.1 {status} {_REASONS[status]}", "server: loadstone", f"content-type: {content_type}", *more]
    if request.id:
        lines.append(f"x-request-id: {request.id.decode('latin-1')}")
    if not request.keep_alive:
        lines.append("connection: close")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
