"""Serves HTTP/1.1 connections of the simulated server: on each, one request after another."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
import zlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import httptools
import msgspec

from loadstone.core.errors import InputError
from loadstone.core.version import __version__
from loadstone.measure.simulated_server.answer import count_drafts
from loadstone.measure.simulated_server.body import (
    END,
    OpenAIBody,
    RefusalError,
    count_tokens,
    parse_body,
    see_pictures,
    split_prompt,
)
from loadstone.measure.simulated_server.pooling import PoolingBody
from loadstone.measure.simulated_server.responses import RESPONSE
from loadstone.measure.simulated_server.settings import FixedLatency, Settings
from loadstone.measure.simulated_server.stream import (
    AnswerWriter,
    HttpRequest,
    Keys,
    WriteScheduler,
    answered,
)
from loadstone.measure.wire.simulated import SimulatedBody, SimulatedWire

if TYPE_CHECKING:
    from loadstone.catalogue.visual.visual import Visual
    from loadstone.measure.simulated_server.engine import RealTimeEngine


_PAGES = ("/health", "/metrics", "/version", "/truth", "/v1/models")
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}
_VOCABULARY = 32_000
MAX_BODY_BYTES = 64 * 1024 * 1024
"""Room for a prompt of millions of tokens, written out."""
MAX_HEAD_BYTES = 64 * 1024
"""The most bytes of a request's line and headers, give or take what came in one read."""
_STARTED_S = int(time.time())
_generated_ids = (b"%016x" % serial for serial in itertools.count(1))


_STORED = 4096
"""Conversations that are stored; then the oldest is forgotten."""


class ServerCounters:
    """Counts requests and tokens for /metrics, under vLLM's names; tokens sent before an abort
    count, too."""

    def __init__(self, model: str) -> None:
        self._model = model
        self.running = 0  # requests
        self.prompt_tokens = self.generated_tokens = 0
        self.ended: Counter[str] = Counter()  # requests by finished_reason

    def text(self, scheduler: WriteScheduler, engine: RealTimeEngine | None = None) -> bytes:
        """Return the page /metrics as Prometheus text; with an engine, a sample for each of its
        schedulers, numbered as vLLM does."""
        families: dict[str, dict[str, float]] = defaultdict(dict)
        model = self._label(0)
        if engine is None:
            families["vllm:num_requests_running"][model] = self.running
            families["vllm:num_requests_waiting"][model] = 0
        families["vllm:prompt_tokens_total"][model] = self.prompt_tokens
        families["vllm:generation_tokens_total"][model] = self.generated_tokens
        for reason in ("stop", "length", "abort"):
            labels = f'{model},finished_reason="{reason}"'
            families["vllm:request_success_total"][labels] = self.ended[reason]
        if engine is None:  # only fixed latencies promise times that a write can be late for
            families["loadstone:writes_total"][""] = scheduler.writes
            families["loadstone:write_late_seconds_total"][""] = scheduler.late_ns / 1e9
        else:
            self._add_engine(families, engine)
        lines = []
        for name, samples in families.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines.append(f"# TYPE {name} {kind}\n")
            lines += [f"{name}{{{labels}}} {float(value)!r}\n" for labels, value in samples.items()]
        return "".join(lines).encode()

    def _label(self, engine: int) -> str:
        return f'engine="{engine}",model_name="{self._model}"'

    def _add_engine(self, families: dict[str, dict[str, float]], engine: RealTimeEngine) -> None:
        for number, state in enumerate(engine.states()):
            values = {
                "num_requests_running": state.running,
                "num_requests_waiting": state.waiting,
                "kv_cache_usage_perc": state.used_tokens / engine.kv_tokens,
                "num_preemptions_total": state.preemptions,
                "prefix_cache_queries_total": state.cache_queries,
                "prefix_cache_hits_total": state.cache_hits,
            }
            for name, value in values.items():
                families[f"vllm:{name}"][self._label(number)] = value
        for number, histogram in enumerate(engine.accepted):
            labels = self._label(number)
            names = ("drafts", "draft_tokens", "accepted_tokens")
            for name, count in zip(names, count_drafts(histogram), strict=True):
                families[f"vllm:spec_decode_num_{name}_total"][labels] = count
            by_position = families["vllm:spec_decode_num_accepted_tokens_per_pos_total"]
            for position in range(len(histogram) - 1):
                count = sum(histogram[position + 1 :])
                by_position[f'{labels},position="{position}"'] = count
        if engine.pools is not None:
            families["loadstone:kv_transfers_total"][""] = engine.pools.times.transfers


class ServerState(NamedTuple):
    """Holds what all connections share.

    scheduler  writes tokens at the settings' fixed latency
    engine     writes tokens when the simulated deployment has made them; None: the fixed latency
               holds
    """

    settings: Settings
    scheduler: WriteScheduler
    metrics: ServerCounters
    wires: dict[str, SimulatedWire]
    """The APIs that it speaks, by path."""
    truth: dict[str, array[int]]
    """Times by X-Request-Id, CLOCK_MONOTONIC ns: when the request was read, when each event with
    text was written."""
    answers: dict[str, list[Any]]
    """The tokens of conversations that are stored, by the name of their newest answer."""
    engine: RealTimeEngine | None = None
    visual: Visual | None = None
    """The rule by which pictures count; None: they are dropped."""


class ServerConnection(asyncio.Protocol):
    """Reads the requests of one client, and answers them in order."""

    def __init__(self, server: ServerState) -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._head_bytes = 0  # so far, of a head that has not ended
        self._in_head = True
        self._expects = False  # the client holds its body back until it is told to go on
        self._waiting: list[HttpRequest] = []  # read while an earlier one was being answered
        self._stream: AnswerWriter | None = None  # the answer that is being written
        self._is_behind = False  # the client reads more slowly than is written
        self._is_paused = False  # nothing is read from the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._fd: int = transport.get_extra_info("socket").fileno()
        # Asked before each write: a closed connection's descriptor may be another's by then.
        self.gone: Callable[[], bool] = transport.is_closing

    def connection_lost(self, exc: Exception | None) -> None:
        self._parser = None  # breaks a circle of references, for the garbage collector is off
        if self._stream is not None:
            if self._server.engine is not None:
                self._server.engine.abandon(self._stream)
            self.ended("abort")

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self._waiting.append(HttpRequest(fault=(400, "not understood as HTTP/1.1")))
        else:
            if self._in_head and self._head_bytes > MAX_HEAD_BYTES:
                self._waiting.append(
                    HttpRequest(fault=(431, f"a head of more than {MAX_HEAD_BYTES} bytes"))
                )
        self._serve_next()

    def _feed(self, data: bytes) -> None:
        """Parse what came. The parser stops at a head that offers another protocol (h2c): then the
        head is parsed again without the offer."""
        while data:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                request = self._waiting.pop()
                if request.method == "CONNECT":
                    raise httptools.HttpParserError from None
                version = self._parser.get_http_version().encode()
                head = [b"%b %b HTTP/%b" % (request.method.encode(), self._url, version)]
                head += [
                    b"%b: %b" % header
                    for header in self._headers.items()
                    if header[0] != b"upgrade"
                ]
                data = b"\r\n".join([*head, b"", data[offer.args[0] :]])
                self._parser = httptools.HttpRequestParser(self)
            else:
                return

    def pause_writing(self) -> None:
        self._is_behind = True
        self._pause_or_resume()

    def resume_writing(self) -> None:
        self._is_behind = False
        self._pause_or_resume()

    def _pause_or_resume(self) -> None:
        """Stop reading while answers are owed that the client does not take yet, so that further
        requests stay in its socket; else go on."""
        is_paused = self._is_behind or bool(self._waiting)
        if is_paused is self._is_paused or self.gone():
            return
        self._is_paused = is_paused
        if is_paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    # --- called by httptools ----------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._body = bytearray()
        self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # trailers behind a body are ignored
            self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._expects = self._headers.get(b"expect", b"").lower() == b"100-continue"

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes <= MAX_BODY_BYTES:
            self._body += body

    def on_message_complete(self) -> None:
        request = HttpRequest(
            arrival_ns=time.monotonic_ns(),
            method=self._parser.get_method().decode(),
            path=self._url.partition(b"?")[0].decode("latin-1"),
            id=self._headers.get(b"x-request-id", b""),
            truth=self._headers.get(b"x-loadstone-truth") == b"1",
            keep_alive=self._parser.should_keep_alive(),
            body=bytes(self._body),
            body_bytes=self._body_bytes,
        )
        self._waiting.append(request)
        self._body = bytearray()
        self._head_bytes, self._in_head, self._expects = 0, True, False

    # --- requests ---------------------------------------------------------------------------------

    def _serve_next(self) -> None:
        while self._waiting and self._stream is None and not self.gone():
            request = self._waiting.pop(0)
            try:
                self._serve(request)
            except RefusalError as refusal:
                self._refuse(refusal, request)
            if not request.keep_alive and self._stream is None:
                self._transport.close()
        if self._expects and self._stream is None and not self.gone():
            self._expects = False
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._pause_or_resume()

    def _serve(self, request: HttpRequest) -> None:
        if request.fault is not None:
            raise RefusalError(*request.fault)
        settings, engine = self._server.settings, self._server.engine
        method = self._method(request.path)
        if method is None or (request.path == "/truth" and not settings.keep_truth):
            raise RefusalError(404, f"no {request.path} here")
        if request.method != method:
            raise RefusalError(405, f"{request.path} takes no {request.method}")
        if request.body_bytes > MAX_BODY_BYTES:
            raise RefusalError(
                413, f"a body of {request.body_bytes} bytes; {MAX_BODY_BYTES} are taken"
            )
        match request.path:
            case "/health":
                self.respond(request, b"")
            case "/metrics":
                text = self._server.metrics.text(self._server.scheduler, engine)
                self.respond(request, text, content_type="text/plain; version=0.0.4; charset=utf-8")
            case "/version":
                self.respond(request, msgspec.json.encode({"version": __version__}))
            case "/v1/models":
                card = {
                    "id": settings.model,
                    "object": "model",
                    "created": _STARTED_S,
                    "owned_by": "loadstone" if engine is None else "loadstone-sim",
                    "root": settings.model,
                    "parent": None,
                    "max_model_len": settings.max_model_len,
                }
                if engine is not None:  # not OpenAI's: bench keeps it with the run
                    card["deployment"] = settings.deployment
                    card["priority_sign"] = engine.priority_sign
                cards = [card] + [
                    card | {"id": name, "root": name, "parent": settings.model}
                    for name in settings.adapters
                ]
                self.respond(request, msgspec.json.encode({"object": "list", "data": cards}))
            case "/truth":
                self.respond(
                    request, msgspec.json.encode(self._server.truth, enc_hook=array.tolist)
                )
                self._server.truth.clear()
            case "/tokenize":
                self._tokenize(request, parse_body(request.body, OpenAIBody, settings.model))
            case path:
                self._generate(request, self._server.wires[path])

    def _method(self, path: str) -> str | None:
        """Return the only method that a path takes; None for an unknown path."""
        if path in _PAGES:
            return "GET"
        return "POST" if path == "/tokenize" or path in self._server.wires else None

    def _tokenize(self, request: HttpRequest, body: OpenAIBody) -> None:
        tokens = split_prompt(body.content if body.prompt is None else body.prompt)
        ids = [
            zlib.crc32(token.encode()) % _VOCABULARY if isinstance(token, str) else token
            for token in tokens
        ]
        document = {
            "tokens": ids,
            "count": len(ids),
            "max_model_len": self._server.settings.max_model_len,
        }
        self.respond(request, msgspec.json.encode(document))

    def _generate(self, request: HttpRequest, wire: SimulatedWire) -> None:
        name = request.id or next(_generated_ids)
        settings, engine = self._server.settings, self._server.engine
        body = parse_body(request.body, wire.body, settings.model, settings.adapters)
        content = self._recall(body) + wire.content(body)
        content, visual_tokens = see_pictures(content, self._server.visual, settings.images)
        read = body.lengths(settings.max_model_len) if isinstance(body, PoolingBody) else []
        tokens = sum(read), len(read)
        if not read:
            tokens = count_tokens(wire, body, len(content), settings.max_model_len)
        if body.model in settings.adapters:
            settings = msgspec.structs.replace(settings, model=str(body.model))
        answer = wire.answer(body, settings, tokens, name=name, truth=request.truth)
        answer.visual_tokens = visual_tokens
        times = array("q", [request.arrival_ns]) if settings.keep_truth else None
        stream = AnswerWriter(self, request, answer, settings.tokens_per_event, times)
        stream.sequences = read
        if engine is not None:
            if body.model in settings.adapters:
                stream.adapter = 1 + settings.adapters.index(str(body.model))
            stream.priority = body.priority
            stream.keys = Keys(content, stream.output_tokens, engine.block_tokens)
            try:
                engine.submit(stream, request.arrival_ns)
            except InputError as error:
                raise RefusalError(400, str(error)) from None
        if body.keeps():
            conversation = [*content, *answered(stream.output_tokens), END]
            answers = self._server.answers
            answers[name.decode("latin-1")] = conversation
            if len(answers) > _STORED:
                del answers[next(iter(answers))]
        self._stream = stream
        self._server.metrics.running += 1
        if answer.is_stream:  # the head leaves long before the first token, as vLLM's does
            kind = "text/event-stream; charset=utf-8"
            head = _make_head(200, request, kind, "transfer-encoding: chunked")
            stream.head = head + answer.opening()
            if engine is None or not engine.refuses_first:
                stream.open()
        if times is not None:
            self._server.truth[name.decode("latin-1")] = times
        if engine is None:
            self._server.scheduler.add(self._write_on_time(settings.latency, stream))

    def _recall(self, body: SimulatedBody) -> list[Any]:
        """Return the tokens of a stored conversation that a request goes on with. Raises
        RefusalError."""
        named = body.follows()
        if named is None:
            return []
        earlier = self._server.answers.get(named.removeprefix(RESPONSE))
        if earlier is None:
            raise RefusalError(404, f"Response with id '{named}' not found.")
        return earlier

    def _write_on_time(self, latency: FixedLatency, stream: AnswerWriter) -> Iterator[int]:
        """Write an answer at fixed times: yields the next of them, in CLOCK_MONOTONIC ns, and is
        resumed then."""
        pictures = stream.answer.visual_tokens > 0
        for end in stream.ends():
            due_ns = latency.due_ns(stream.input_tokens, end - 1, pictures=pictures)
            yield stream.request.arrival_ns + due_ns
            if not stream.write(end):
                return

    def wrote(self, stream: AnswerWriter, tokens: int) -> None:
        """Count tokens of the answer that were written; with the last of them it has ended."""
        metrics = self._server.metrics
        metrics.generated_tokens += tokens
        if stream.sent == tokens:
            metrics.prompt_tokens += stream.input_tokens
        if stream.sent == stream.output_tokens:
            self.ended("length")
            if not stream.request.keep_alive:
                self._transport.close()
            # Not at once: the scheduler, which called this, is in the midst of its writes.
            asyncio.get_running_loop().call_soon(self._serve_next)

    def turn_away(self, stream: AnswerWriter, reason: str) -> None:
        """End a request that the engine does not take."""
        if stream.head or not stream.answer.is_stream:
            self._refuse(RefusalError(503, reason), stream.request)
        else:
            self.write(stream.answer.failure(reason))
        self.ended("abort")
        if not stream.request.keep_alive:
            self._transport.close()
        asyncio.get_running_loop().call_soon(self._serve_next)

    def ended(self, reason: str) -> None:
        self._stream = None
        self._server.metrics.running -= 1
        self._server.metrics.ended[reason] += 1

    # --- responses --------------------------------------------------------------------------------

    def respond(
        self,
        request: HttpRequest,
        body: bytes,
        *more: str,
        status: int = 200,
        content_type: str = "application/json",
    ) -> None:
        """Write a response in one piece; `more` are header lines."""
        head = _make_head(status, request, content_type, f"content-length: {len(body)}", *more)
        self.write(head if request.method == "HEAD" else head + body)

    def _refuse(self, refusal: RefusalError, request: HttpRequest) -> None:
        status = refusal.status
        kind = f"{_REASONS[status].replace(' ', '')}Error"
        error = {"message": str(refusal), "type": kind, "param": None, "code": status}
        headers = [f"allow: {self._method(request.path)}"] if status == 405 else []
        self.respond(request, msgspec.json.encode({"error": error}), *headers, status=status)

    def write(self, data: bytes) -> None:
        """Write to the socket itself, so that the bytes leave now; through the transport's buffer
        while the client is behind."""
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


def _make_head(status: int, request: HttpRequest, content_type: str, *more: str) -> bytes:
    """Return the head of a response; `more` are header lines."""
    lines = [
        f"HTTP/1.1 {status} {_REASONS[status]}",
        "server: loadstone",
        f"content-type: {content_type}",
        *more,
    ]
    if request.id:
        lines.append(f"x-request-id: {request.id.decode('latin-1')}")
    if not request.keep_alive:
        lines.append("connection: close")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
