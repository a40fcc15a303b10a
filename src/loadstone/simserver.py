"""The timing server: OpenAI-compatible HTTP that streams tokens at times known beforehand.

It is the target of `loadstone bench` when none is given, and the bench on which the client itself is measured. It
therefore costs little (it shares the host with the client) and keeps time: one heap of streams by due time, one
kernel timer, times absolute from the arrival of the request so that nothing drifts. The bytes follow vLLM 0.32.

Run `python -m loadstone.simserver --help`, or `with start(Law()) as server:` and `server.url`.

Request header `X-Loadstone-Truth: 1` puts an SSE comment `: t=<CLOCK_MONOTONIC ns at the write>` before each event.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import gc
import heapq
import itertools
import json
import os
import signal
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, get_args

import httptools
import msgspec

from loadstone import __version__
from loadstone.errors import InputError, LoadstoneError
from loadstone.units import parse_seconds

Usage = Literal["asked", "none", "final", "running", "unasked"]

MODEL = "timing"
DEFAULT_MAX_MODEL_LEN = 131_072
_COMPLETION_TOKENS = 16  # the OpenAI API's default, kept by vLLM
_CHAT_TOKENS, _MESSAGE_TOKENS = 3, 4  # what the pretended chat template adds: in all, and per message
_WRITES_PER_TURN = 256  # then sockets are read again: about 2 ms
# A wake costs 20 to 30 µs of CPU on a virtual machine, as much as five writes. Where many tokens are due, wakes thus
# come no closer than this, and a token may be that much late.
_WAKE_GAP_NS = 200_000
_WORDS = [b" w%04d" % number for number in range(1000)]  # all of one length, so the chunk's size is known beforehand
_VOCABULARY = 32_000


class Law(msgspec.Struct, frozen=True):
    """When tokens are due, counted from the arrival of the request: TTFT = a + b·input_tokens, ITL = c."""

    ttft_s: float = 0.05
    itl_s: float = 0.01
    per_input_token_s: float = 0.0

    @classmethod
    def parse(cls, text: str, what: str = "--sim") -> Law:
        """A law from `ttft=50ms,itl=10ms[,per_input_token=20us]`; what is left out keeps its default.

        `what` names the flag in the InputError for anything else.
        """
        seconds: dict[str, float] = {}
        for part in text.split(","):
            key, _, value = part.partition("=")
            name = f"{key.strip()}_s"
            if name not in cls.__struct_fields__ or name in seconds:
                raise InputError(f"{what}: {part.strip()!r} in {text!r} is no law; write ttft=50ms,itl=10ms")
            seconds[name] = parse_seconds(value, f"{what} {key.strip()}")
        return cls(**seconds)

    def __str__(self) -> str:
        """What `parse` reads."""
        return f"ttft={self.ttft_s}s,itl={self.itl_s}s,per_input_token={self.per_input_token_s}s"

    def due_ns(self, input_tokens: int, index: int) -> int:
        """Nanoseconds from arrival to the output token `index` (from 0)."""
        return int((self.ttft_s + self.per_input_token_s * input_tokens + self.itl_s * index) * 1e9)


class TimingServer(NamedTuple):
    """A timing server that runs in another process."""

    url: str
    pid: int


@contextlib.contextmanager
def start(
    law: Law,
    *,
    host: str = "127.0.0.1",
    tokens_per_event: int = 1,
    usage: Usage = "asked",
    done: bool = True,
    max_model_len: int = DEFAULT_MAX_MODEL_LEN,
) -> Iterator[TimingServer]:
    """Run a timing server as a child process until the block ends, or this process does.

    tokens_per_event   the first event carries one token, each later one up to so many, and is sent when the last of
                       them is due (vLLM's `--stream-interval`)
    usage              `asked`: as `stream_options` asks; `none`; `final`: in an event of its own before the end;
                       `running`: on every event too; `unasked`: on the last event with text (llama.cpp)
    done               ends streams with `[DONE]`

    Raises LoadstoneError if it does not come up; why is on stderr.
    """
    command = [sys.executable, "-P", "-m", "loadstone.simserver", "--with-parent", "--law", str(law), "--host", host]
    command += ["--tokens-per-event", str(tokens_per_event), "--usage", usage, "--max-model-len", str(max_model_len)]
    command += [] if done else ["--no-done"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True) as process:
        try:
            line = process.stdout.readline() if process.stdout else b""
            if not line:
                raise LoadstoneError("the timing server did not start; stderr says why")
            yield TimingServer(json.loads(line)["url"], process.pid)
        finally:
            process.kill()  # it holds nothing worth saving


class _Options(NamedTuple):
    """How the server answers: see `start`."""

    tokens_per_event: int
    usage: Usage
    done: bool
    max_model_len: int


class _Part(msgspec.Struct):
    text: str | None = None


class _Message(msgspec.Struct):
    content: str | list[_Part] | None = None


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class _Ask(msgspec.Struct):
    """The request fields that matter here; others are accepted and ignored."""

    model: str | None = None
    prompt: Any = None
    content: Any = None
    messages: list[_Message] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None


_decode_ask = msgspec.json.Decoder(_Ask).decode


class _RefusalError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def _tokens(prompt: object) -> list[Any]:
    """One token per word of a text; token ids as they are. A list of one prompt is that prompt."""
    match prompt:
        case str() | [str()]:
            return (prompt if isinstance(prompt, str) else prompt[0]).split()
        case [int(), *_]:
            return list(prompt)
        case [[int(), *_] as ids]:
            return list(ids)
    raise _RefusalError(400, "prompt must be one string or one list of token ids")


def _chat_tokens(messages: list[_Message] | None) -> int:
    """Tokens of a conversation. Parts of a message that are no text count nothing."""
    if not messages:
        raise _RefusalError(400, "messages must be a list of at least one message")
    tokens = _CHAT_TOKENS
    for message in messages:
        content = message.content or ""
        texts = [content] if isinstance(content, str) else [part.text or "" for part in content]
        tokens += _MESSAGE_TOKENS + sum(len(text.split()) for text in texts)
    return tokens


class _Shape(NamedTuple):
    """The bytes in which the two endpoints differ; `before` and `after` stand around the text of a choice."""

    id: bytes
    chunk_object: bytes
    chunk_before: bytes
    chunk_after: bytes
    last_after: bytes  # of the last chunk, and of the choice of an answer in one piece
    whole_object: bytes
    whole_before: bytes
    first: bytes  # a choice sent before the first token


_COMPLETION = _Shape(
    id=b"cmpl-",
    chunk_object=b"text_completion",
    chunk_before=b'{"index":0,"text":"',
    chunk_after=b'","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}',
    last_after=b'","logprobs":null,"finish_reason":"length","stop_reason":null,"prompt_token_ids":null,"token_ids":null}',
    whole_object=b"text_completion",
    whole_before=b'{"index":0,"text":"',
    first=b"",
)
_CHAT = _Shape(
    id=b"chatcmpl-",
    chunk_object=b"chat.completion.chunk",
    chunk_before=b'{"index":0,"delta":{"content":"',
    chunk_after=b'"},"logprobs":null,"finish_reason":null,"token_ids":null}',
    last_after=b'"},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null}',
    whole_object=b"chat.completion",
    whole_before=b'{"index":0,"message":{"role":"assistant","content":"',
    first=b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}',
)
# What follows the prefix of a plain event, by token: a token then costs one concatenation.
_TAILS = {shape: [word + shape.chunk_after + b"]}\n\n\r\n" for word in _WORDS] for shape in (_COMPLETION, _CHAT)}


class _Timer:
    """Wakes `callback` at a CLOCK_MONOTONIC time: a Linux timerfd (20 µs), else the loop's timer (1 ms)."""

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None], use_fd: bool = True) -> None:
        self._loop, self._callback = loop, callback
        self._handle: asyncio.TimerHandle | None = None
        self._fd = -1
        if use_fd and sys.platform == "linux":
            libc = ctypes.CDLL(None, use_errno=True)
            self._fd = libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd >= 0:
            self._spec = (ctypes.c_long * 4)()  # struct itimerspec: interval s, ns; first expiry s, ns
            self._at = ctypes.byref(self._spec)
            self._settime = libc.timerfd_settime
            loop.add_reader(self._fd, callback)

    def set(self, due_ns: int) -> None:
        """Wake at `due_ns`, at once if that is past; 0 is never. Also ends the present wake: nothing need be read."""
        if self._fd >= 0:
            self._spec[2], self._spec[3] = divmod(due_ns, 1_000_000_000)
            self._settime(self._fd, 1, self._at, None)  # 1: TFD_TIMER_ABSTIME
            return
        if self._handle:
            self._handle.cancel()
        self._handle = None
        if due_ns:  # at least 1 ms: uvloop rounds to milliseconds and would spin on 0
            wait_s = max(0.001, (due_ns - time.monotonic_ns()) / 1e9)
            self._handle = self._loop.call_later(wait_s, self._callback)

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
        elif self._handle:
            self._handle.cancel()


class _Scheduler:
    """Calls `step` of every stream when it is due. `step` returns the next due time in ns, 0 when there is none."""

    def __init__(self, loop: asyncio.AbstractEventLoop, use_fd: bool = True) -> None:
        self._heap: list[tuple[int, int, _Stream]] = []
        self._serial = itertools.count()  # keeps the heap from comparing streams
        self._armed_ns = 0
        self._timer = _Timer(loop, self._run, use_fd)
        self.close = self._timer.close

    def add(self, due_ns: int, stream: _Stream) -> None:
        heapq.heappush(self._heap, (due_ns, next(self._serial), stream))
        if not self._armed_ns or due_ns < self._armed_ns:
            self._arm(due_ns)

    def _arm(self, due_ns: int) -> None:
        self._armed_ns = due_ns
        self._timer.set(due_ns)

    def _run(self) -> None:
        heap = self._heap
        begun_ns = now_ns = time.monotonic_ns()
        for _ in range(_WRITES_PER_TURN):
            if not heap:
                return self._arm(0)
            due_ns, serial, stream = heap[0]
            if due_ns > now_ns:
                now_ns = time.monotonic_ns()
                if due_ns > now_ns:
                    return self._arm(max(due_ns, begun_ns + _WAKE_GAP_NS))
            next_ns = stream.step()
            if next_ns:
                heapq.heapreplace(heap, (next_ns, serial, stream))
            else:
                heapq.heappop(heap)
        return self._arm(now_ns)  # more is due, after the sockets that wait to be read


class _Server:
    """What all connections share: the law, the options, the clock and the counters of /metrics."""

    def __init__(self, law: Law, options: _Options, scheduler: _Scheduler) -> None:
        self.law, self.options, self.scheduler = law, options, scheduler
        self.started_s = int(time.time())
        self.serial = itertools.count(1)
        self.running = self.prompt_tokens = self.generated_tokens = 0
        self.ended: Counter[str] = Counter()  # requests by finished_reason

    def metrics(self) -> bytes:
        """Prometheus text under vLLM's names. The tokens sent before an abort count."""
        model = f'engine="0",model_name="{MODEL}"'
        ended = {f'{model},finished_reason="{reason}"': self.ended[reason] for reason in ("stop", "length", "abort")}
        families: list[tuple[str, str, dict[str, int]]] = [
            ("num_requests_running", "gauge", {model: self.running}),
            ("num_requests_waiting", "gauge", {model: 0}),
            ("prompt_tokens_total", "counter", {model: self.prompt_tokens}),
            ("generation_tokens_total", "counter", {model: self.generated_tokens}),
            ("request_success_total", "counter", ended),
        ]
        text = ""
        for name, kind, samples in families:
            text += f"# TYPE vllm:{name} {kind}\n"
            text += "".join(f"vllm:{name}{{{labels}}} {value:.1f}\n" for labels, value in samples.items())
        return text.encode()


class _Request(NamedTuple):
    """One HTTP request, as far as it matters here."""

    arrival_ns: int = 0  # CLOCK_MONOTONIC, when its last byte was read
    method: str = ""
    path: str = ""
    id: bytes = b""
    truth: bool = False
    keep_alive: bool = False
    body: bytes = b""


class _Stream:
    """One generation: says when its next bytes are due, and writes them."""

    def __init__(self, connection: _Connection, request: _Request, ask: _Ask, shape: _Shape) -> None:
        self.connection, self.request, self.shape = connection, request, shape
        self.server = server = connection.server
        self.law, options = server.law, server.options
        chat = shape is _CHAT
        self.input_tokens = _chat_tokens(ask.messages) if chat else len(_tokens(ask.prompt))
        room = options.max_model_len - self.input_tokens
        wanted = ask.max_tokens if ask.max_completion_tokens is None else ask.max_completion_tokens
        if wanted is None:
            wanted = max(1, room if chat else min(room, _COMPLETION_TOKENS))
        if wanted < 1:
            raise _RefusalError(400, f"max_tokens must be at least 1, got {wanted}.")
        if wanted > room:
            limit = f"This model's maximum context length is {options.max_model_len} tokens. However, you requested"
            raise _RefusalError(400, f"{limit} {wanted} output tokens and {self.input_tokens} input tokens.")
        self.max_tokens = wanted
        self.is_stream = bool(ask.stream)
        self.usage = options.usage
        if options.usage == "asked":
            asked = ask.stream_options or _StreamOptions()
            running: Usage = "running" if asked.continuous_usage_stats else "final"
            self.usage = running if asked.include_usage or not self.is_stream else "none"
        name = msgspec.json.encode((request.id or b"%016x" % next(server.serial)).decode("latin-1"))[1:-1]
        kind = shape.chunk_object if self.is_stream else shape.whole_object
        start = b'{"id":"%b%b","object":"%b","created":%d,"model":"%b","choices":['
        self.prefix = start % (shape.id, name, kind, int(time.time()), MODEL.encode())
        # Of a plain event all but the word is known beforehand, its size too.
        self.plain = options.tokens_per_event == 1 and self.usage != "running" and not request.truth
        self.tails = _TAILS[shape]
        head = b"data: " + self.prefix + shape.chunk_before
        self.head = b"%x\r\n%b" % (len(head) + len(self.tails[0]) - len(b"\r\n"), head)
        self.sent = 0  # tokens written
        self.end = 1 if self.is_stream else wanted  # tokens written after the next step

    def due_ns(self) -> int:
        """When the next step is due."""
        return self.request.arrival_ns + self.law.due_ns(self.input_tokens, self.end - 1)

    def step(self) -> int:
        """Write what is due and return the next due time in ns, 0 when all is written or the client is gone."""
        connection, server, begin, end = self.connection, self.server, self.sent, self.end
        if connection.gone():
            return 0
        server.generated_tokens += end - begin
        self.sent = end
        if begin and end < self.max_tokens and self.plain:
            connection.write(self.head + self.tails[begin % len(_WORDS)])
            self.end = end + 1
            return self.due_ns()
        if not begin:
            server.prompt_tokens += self.input_tokens
        text = b"".join([_WORDS[index % len(_WORDS)] for index in range(begin, end)])
        if self.is_stream:
            if not begin and self.shape.first:
                connection.write(self._event(self.prefix + self.shape.first + b"]" + self._usage_at(0) + b"}"))
            connection.write(self._events(text))
        else:
            body = self.prefix + self.shape.whole_before + text + self.shape.last_after + b"]"
            connection.respond(200, body + self._final_usage() + b"}", self.request)
        if end == self.max_tokens:
            connection.finish()
            return 0
        self.end = min(end + server.options.tokens_per_event, self.max_tokens)
        return self.due_ns()

    def _events(self, text: bytes) -> bytes:
        """The event of this text; if it is the last, with all that ends the response."""
        event = self.prefix + self.shape.chunk_before + text
        if self.sent < self.max_tokens:
            return self._event(event + self.shape.chunk_after + b"]" + self._usage_at(self.sent) + b"}")
        unasked = self._final_usage() if self.usage == "unasked" else self._usage_at(self.sent)
        data = self._event(event + self.shape.last_after + b"]" + unasked + b"}")
        if self.usage in ("final", "running"):
            data += self._event(self.prefix + b"]" + self._final_usage() + b"}")
        if self.server.options.done:
            data += self._event(b"[DONE]")
        return data + b"0\r\n\r\n"

    def _event(self, payload: bytes) -> bytes:
        """One HTTP chunk with one server-sent event."""
        stamp = b": t=%d\n" % time.monotonic_ns() if self.request.truth else b""
        event = b"%bdata: %b\n\n" % (stamp, payload)
        return b"%x\r\n%b\r\n" % (len(event), event)

    def _usage_at(self, tokens: int) -> bytes:
        """The usage of an event with text."""
        if self.usage != "running":
            return b""
        counts = (self.input_tokens, self.input_tokens + tokens, tokens)
        return b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}' % counts

    def _final_usage(self) -> bytes:
        if self.usage == "none":
            return b""
        counts = (self.input_tokens, self.input_tokens + self.max_tokens, self.max_tokens)
        usage = b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,' % counts
        return usage + b'"prompt_tokens_details":{"cached_tokens":0}}'


_POSTS = {"/v1/completions": _COMPLETION, "/v1/chat/completions": _CHAT, "/tokenize": None}
_GETS = ("/v1/models", "/version", "/health", "/metrics")
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed"}


class _Connection(asyncio.Protocol):
    """One client connection: HTTP in, answers out, one request at a time and in order."""

    def __init__(self, server: _Server) -> None:
        self.server = server
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: list[_Request] = []  # asked before the answer to an earlier request has ended
        self._stream: _Stream | None = None
        self._buffered = False  # the transport may hold bytes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._fd: int = transport.get_extra_info("socket").fileno()
        # Nothing more can be written. Also keeps writes from a descriptor that has passed to a newer connection.
        self.gone: Callable[[], bool] = transport.is_closing

    def connection_lost(self, exc: Exception | None) -> None:
        self._parser = None  # breaks a circle of references, for the garbage collector is off
        if self._stream:
            self._stream = None
            self.server.running -= 1
            self.server.ended["abort"] += 1

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
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

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

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if not self._stream:
                self._refuse(_RefusalError(400, "not understood as HTTP/1.1"), _Request())
            self._transport.close()
        self._serve_next()

    # What is asked.

    def _serve_next(self) -> None:
        while self._waiting and not self._stream and not self.gone():
            request = self._waiting.pop(0)
            try:
                self._serve(request)
            except _RefusalError as refusal:
                self._refuse(refusal, request)
            if not request.keep_alive and not self._stream:
                self._transport.close()

    def _serve(self, request: _Request) -> None:
        path = request.path
        if path not in _POSTS and path not in _GETS:
            raise _RefusalError(404, f"no {path} here")
        if request.method != ("POST" if path in _POSTS else "GET"):
            raise _RefusalError(405, f"{path} takes no {request.method}")
        if request.method == "GET":
            return self._get(request)
        try:
            ask = _decode_ask(request.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _RefusalError(400, str(error)) from None
        if ask.model not in (None, MODEL):
            raise _RefusalError(404, f"The model `{ask.model}` does not exist.")
        shape = _POSTS[path]
        if shape is None:
            return self._tokenize(ask, request)
        stream = _Stream(self, request, ask, shape)
        self._stream = stream
        self.server.running += 1
        if stream.is_stream:  # like vLLM's, long before the first token
            self.write(self._head(200, request, "text/event-stream; charset=utf-8", "transfer-encoding: chunked"))
        return self.server.scheduler.add(stream.due_ns(), stream)

    def _get(self, request: _Request) -> None:
        server = self.server
        match request.path:
            case "/health":
                self.respond(200, b"", request)
            case "/metrics":
                self.respond(200, server.metrics(), request, "text/plain; version=0.0.4; charset=utf-8")
            case "/version":
                self.respond(200, msgspec.json.encode({"version": __version__}), request)
            case "/v1/models":
                card = {"id": MODEL, "object": "model", "created": server.started_s, "owned_by": "loadstone"}
                card |= {"root": MODEL, "parent": None, "max_model_len": server.options.max_model_len}
                self.respond(200, msgspec.json.encode({"object": "list", "data": [card]}), request)

    def _tokenize(self, ask: _Ask, request: _Request) -> None:
        tokens = _tokens(ask.content if ask.prompt is None else ask.prompt)
        ids = [zlib.crc32(token.encode()) % _VOCABULARY if isinstance(token, str) else token for token in tokens]
        document = {"tokens": ids, "count": len(ids), "max_model_len": self.server.options.max_model_len}
        self.respond(200, msgspec.json.encode(document), request)

    # What is answered.

    def write(self, data: bytes) -> None:
        """Straight to the socket, so that the bytes leave now; by way of the transport while the client is behind."""
        if self._buffered and self._transport.get_write_buffer_size():
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
            self._buffered = True
            self._transport.write(data[written:])

    def _head(self, status: int, request: _Request, content_type: str, *more: str) -> bytes:
        lines = [f"HTTP/1.1 {status} {_REASONS[status]}", "server: loadstone", f"content-type: {content_type}", *more]
        if request.id:
            lines.append(f"x-request-id: {request.id.decode('latin-1')}")
        if not request.keep_alive:
            lines.append("connection: close")
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    def respond(self, status: int, body: bytes, request: _Request, content_type: str = "application/json") -> None:
        """A response in one piece."""
        more = [f"content-length: {len(body)}"]
        if status == 405:
            more.append(f"allow: {'POST' if request.path in _POSTS else 'GET'}")
        self.write(self._head(status, request, content_type, *more) + body)

    def _refuse(self, refusal: _RefusalError, request: _Request) -> None:
        kind = f"{_REASONS[refusal.status].replace(' ', '')}Error"
        error = {"message": str(refusal), "type": kind, "param": None, "code": refusal.status}
        self.respond(refusal.status, msgspec.json.encode({"error": error}), request)

    def finish(self) -> None:
        """The stream has written its last byte."""
        if self._stream:
            keep_alive, self._stream = self._stream.request.keep_alive, None
            self.server.running -= 1
            self.server.ended["length"] += 1
            if not keep_alive:
                self._transport.close()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._serve_next)


async def _serve(law: Law, options: _Options, host: str, port: int, with_parent: bool) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    if with_parent:
        loop.add_reader(0, lambda: None if os.read(0, 4096) else ended.set())
    scheduler = _Scheduler(loop)
    server = _Server(law, options, scheduler)
    listener = await loop.create_server(lambda: _Connection(server), host, port, backlog=4096)
    bound = listener.sockets[0].getsockname()
    print(json.dumps({"url": f"http://{f'[{bound[0]}]' if ':' in bound[0] else bound[0]}:{bound[1]}"}), flush=True)
    gc.collect()
    gc.freeze()
    gc.disable()
    await ended.wait()
    listener.close()
    scheduler.close()


def main(arguments: list[str] | None = None) -> int:
    """Serve until SIGTERM; the exit code."""
    parser = argparse.ArgumentParser("python -m loadstone.simserver", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--law", default=str(Law()), help="ttft=50ms,itl=10ms[,per_input_token=20us]")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any; the line on stdout says which")
    parser.add_argument("--tokens-per-event", type=int, default=1, metavar="K")
    parser.add_argument("--usage", choices=get_args(Usage), default="asked")
    parser.add_argument("--no-done", action="store_true", help="send no [DONE]")
    parser.add_argument("--max-model-len", type=int, default=DEFAULT_MAX_MODEL_LEN, metavar="TOKENS")
    parser.add_argument("--with-parent", action="store_true", help="end when stdin does")
    given = parser.parse_args(arguments)
    try:
        law = Law.parse(given.law, "--law")
    except InputError as error:
        parser.error(str(error))
    if given.tokens_per_event < 1 or given.max_model_len < 1:
        parser.error("--tokens-per-event and --max-model-len must be at least 1")
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        import uvloop

        factory = uvloop.new_event_loop
    except ImportError:
        factory = None
    options = _Options(given.tokens_per_event, given.usage, not given.no_done, given.max_model_len)
    with asyncio.Runner(loop_factory=factory) as runner:
        try:
            runner.run(_serve(law, options, given.host, given.port, given.with_parent))
        except (OSError, OverflowError) as error:
            parser.error(f"cannot listen on {given.host}:{given.port}: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
