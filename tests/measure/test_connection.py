"""What the connection alone must hold; whole answers are tested end to end."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import socket
import time
from typing import Any

import pytest

from conftest import LAST_CHUNK, SSE, Ask, Hangup, ScriptedServer, Send, chunk, token, whole
from conftest import event as sse_event
from loadstone.core.plan import PlannedRequest
from loadstone.measure.client.clock import RunClock, new_event_loop
from loadstone.measure.client.connection import Connection
from loadstone.measure.client.fleet import ServerFleet
from loadstone.measure.client.protocol import Address, Destination
from loadstone.measure.client.stream import Stream
from loadstone.measure.wire.wire import find_wire


class Owner:
    """Stands for the worker; remembers what it was told."""

    held_limit_bytes = 65536
    packets = None

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.clock = RunClock(time.monotonic_ns())
        self.told: list[str] = []

    def on_ended(self, connection: Connection, stream: Stream) -> None:
        self.told.append("ended")
        self.loop.stop()

    def on_broke(self, connection: Connection, stream: Stream, reason: str, *, retry: bool) -> None:
        self.told.append(reason)
        self.loop.stop()

    def on_opened(self, connection: Connection) -> None:
        self.told.append("opened")

    def on_dropped(self, connection: Connection) -> None:
        self.told.append("dropped")


def test_closed_connections_are_freed_without_a_garbage_collector() -> None:
    owner = Owner()
    address = Address(socket.AF_INET, ("127.0.0.1", 9), None)
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            Connection(owner, address, None).close()
        left = sum(type(thing) is Connection for thing in gc.get_objects())
    finally:
        gc.enable()
        owner.loop.close()
    assert left == 0


def test_closing_twice_is_harmless() -> None:
    owner = Owner()
    connection = Connection(owner, Address(socket.AF_INET, ("127.0.0.1", 9), None), None)
    connection.close()
    connection.close()
    owner.loop.close()
    assert connection.closed


@pytest.mark.parametrize(
    ("unasked", "used"), [(b"", True), (whole("200 OK", b"{}"), False), (b"HT", False)]
)
def test_what_nobody_asked_for_is_not_taken_for_the_next_answer(unasked: bytes, used: bool) -> None:
    owner = Owner()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address(socket.AF_INET, listener.getsockname(), None)
        destination = Destination(address=address, request_line="", headers=[])
        fleet = ServerFleet(owner, [destination], "round-robin")
        first = fleet._open(0, None)
        owner.loop.call_later(0.1, owner.loop.stop)
        owner.loop.run_forever()
        assert owner.told == ["opened"]
        fleet.keep(first)
        server, _ = listener.accept()
        with server:
            server.sendall(unasked)
            time.sleep(0.05)
            stream = Stream(
                PlannedRequest(0, 0, "measure", 0.0, 3, 2, None, 0, None),
                b"POST / HTTP/1.1\r\n\r\n",
                owner.clock.origin_ns,
                find_wire("completions").answer(stream=True),
            )
            second = fleet.launch(stream)
            assert (second is first) is used
            assert first.closed is not used
            first.close()
            second.close()
    owner.loop.close()


# --- answers of other kinds than the usual stream -------------------------------------------------

DOCUMENT = json.dumps(
    {
        "choices": [{"text": " one two", "finish_reason": "length"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }
).encode()
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


def exchange(
    *parts: bytes, endpoint: Any = "completions", stream: bool = False
) -> tuple[Stream, str, bool]:
    """A request answered by `parts`, some milliseconds apart: what was heard, and how the
    connection fared.

    An empty last part: the server then hangs up. Nothing sweeps here: what ends must be noticed as
    it arrives.
    """

    def reply(ask: Ask, send: Send) -> None:
        for part in parts:
            if not part:
                raise Hangup
            send(part)
            time.sleep(0.01)

    owner = Owner()
    heard = Stream(
        PlannedRequest(0, 0, "measure", 0.0, 3, 2, None, 0, None),
        b"POST / HTTP/1.1\r\nHost: x\r\nX-Request-Id: 1\r\n\r\n",
        owner.clock.origin_ns,
        find_wire(endpoint).answer(stream=stream),
    )
    with ScriptedServer(reply) as server:
        host, port = server.url.removeprefix("http://").split(":")
        address = Address(socket.AF_INET, (host, int(port)), None)
        connection = Connection(owner, address, None)
        connection.open(address, heard)
        owner.loop.call_later(20, owner.loop.stop)
        owner.loop.run_forever()
        kept = not connection.closed
        connection.close()
    owner.loop.close()
    (told,) = owner.told
    if told == "ended":
        heard.judge(exact_output=True)
    return heard, told, kept


@pytest.mark.parametrize(
    "parts",
    [
        [whole("200 OK", DOCUMENT)],
        [whole("200 OK", DOCUMENT)[:-30], DOCUMENT[-30:]],
        [whole("200 OK", DOCUMENT, "text/plain")],
        [CHUNKED, chunk(DOCUMENT[:9]), chunk(DOCUMENT[9:]) + LAST_CHUNK],
        [CHUNKED + chunk(DOCUMENT), LAST_CHUNK],
    ],
    ids=["at once", "in two reads", "named plain text", "in chunks", "its end alone"],
)
def test_an_answer_in_one_piece_is_heard_when_its_message_ends(parts: list[bytes]) -> None:
    heard, told, kept = exchange(*parts)
    assert (told, heard.status, heard.error, kept) == ("ended", "ok", None, True)
    assert (heard.answer.events, heard.output_tokens(), heard.token_source()) == (
        1,
        2,
        "final usage",
    )
    assert heard.end_ns is not None
    assert list(heard.arrival_s) == [pytest.approx((heard.end_ns - heard.intended_ns) * 1e-9)]
    assert list(heard.read_index) == [heard.reads - 1]
    assert heard.sent_ns is not None
    assert heard.end_ns - heard.sent_ns >= 10_000_000 * (len(parts) - 1)


def test_a_compressed_answer_in_one_piece() -> None:
    body = gzip.compress(DOCUMENT)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\n"
    heard, told, _ = exchange(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert (told, heard.status, heard.output_tokens()) == ("ended", "ok", 2)


@pytest.mark.parametrize(
    ("parts", "stream", "error"),
    [
        (
            [CHUNKED + chunk(DOCUMENT) + LAST_CHUNK],
            True,
            "answer is not an event stream (application/json): {",
        ),
        (
            [SSE + chunk(token()) + LAST_CHUNK],
            False,
            "answer is not one JSON object (text/event-stream): data: {",
        ),
        (
            [whole("200 OK", b"<html>", "text/html")],
            False,
            "answer is not one JSON object (text/html): <html>",
        ),
        ([whole("200 OK", b"{")], False, "error in the answer: answer is not a JSON object: {"),
        ([whole("200 OK", b'{"error": "no memory"}')], False, "error in the answer: no memory"),
        ([whole("200 OK", b"{}")], False, "answer ended without any output"),
        ([whole("422 Odd", b'{"detail": "unknown field"}')], False, "HTTP 422: unknown field"),
    ],
)
def test_an_answer_of_another_kind_than_was_asked_for(
    parts: list[bytes], stream: bool, error: str
) -> None:
    heard, told, _ = exchange(*parts, stream=stream)
    assert (told, heard.status, len(heard.arrival_s)) == ("ended", "error", 0)
    assert (heard.error or "").startswith(error)


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_a_refused_stream_is_heard_at_once(parts: int) -> None:
    """Its end cannot be told from its bytes, only from its length: a place of a closed loop waits
    for it."""
    refusal = whole("429 Slow down", b'{"error": {"message": "slow down"}}')
    step = -(-len(refusal) // parts)
    heard, told, kept = exchange(
        *(refusal[at : at + step] for at in range(0, len(refusal), step)), stream=True
    )
    assert (told, heard.status, heard.error, kept) == (
        "ended",
        "error",
        "HTTP 429: slow down",
        True,
    )


def test_a_stream_of_stated_length_is_heard_as_it_ends() -> None:
    """As a proxy sends it that has read the whole answer first."""
    stream = token() + token(finish="length") + sse_event("[DONE]")
    head = SSE.replace(b"Transfer-Encoding: chunked", b"Content-Length: %d" % len(stream))
    heard, told, kept = exchange(head, stream[:30], stream[30:], stream=True)
    assert (told, heard.status, len(heard.arrival_s), kept) == ("ended", "ok", 2, True)


@pytest.mark.parametrize(
    "stated", [0, 6], ids=["zeros until the end", "the total from the beginning"]
)
def test_counts_that_do_not_grow_with_the_events_are_no_running_ones(stated: int) -> None:
    """As gateways write them, and mocks."""

    def counted(text: str, tokens: int) -> bytes:
        return chunk(
            sse_event(
                {
                    "choices": [{"text": text}],
                    "usage": {"prompt_tokens": 8, "completion_tokens": tokens},
                }
            )
        )

    parts = [counted(f" w{number}", stated) for number in range(6)]
    heard, told, _ = exchange(SSE, *parts, chunk(sse_event("[DONE]")) + LAST_CHUNK, stream=True)
    assert (told, heard.status, heard.answer.events) == ("ended", "ok", 6)
    assert (heard.output_tokens(), heard.token_source()) == (
        6,
        "final usage" if stated else "pieces",
    )
    last = chunk(sse_event({"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": 12}}))
    heard, _, _ = exchange(SSE, *parts, last, chunk(sse_event("[DONE]")) + LAST_CHUNK, stream=True)
    assert (heard.output_tokens(), heard.token_source()) == (12, "final usage")
    growing = [counted(f" w{number}", number + 1 - (number == 3)) for number in range(6)]
    heard, _, _ = exchange(SSE, *growing, chunk(sse_event("[DONE]")) + LAST_CHUNK, stream=True)
    assert (heard.output_tokens(), heard.token_source()) == (6, "running usage")


def test_a_cut_answer_in_one_piece_is_no_answer() -> None:
    heard, told, _ = exchange(whole("200 OK", DOCUMENT)[:-9], b"")
    assert told == "the server closed the connection before the answer's end"
    assert (heard.answer.events, len(heard.arrival_s)) == (0, 0)


def test_a_triton_stream_ends_with_its_message() -> None:
    piece = chunk(sse_event({"text_output": " one", "num_output_tokens": 1}))
    heard, told, kept = exchange(SSE, piece, piece, LAST_CHUNK, endpoint="triton", stream=True)
    assert (told, heard.status, heard.error, kept) == ("ended", "ok", None, True)
    assert (heard.output_tokens(), heard.token_source(), len(heard.arrival_s)) == (
        2,
        "running usage",
        2,
    )
    heard, told, _ = exchange(SSE, piece, piece, b"", endpoint="triton", stream=True)
    assert told == "the server closed the connection before the answer's end"
    assert heard.answer.events == 2
    assert not heard.answer.done


def test_an_sglang_stream() -> None:
    meta = {"prompt_tokens": 3, "completion_tokens": 1, "finish_reason": None}
    first = chunk(sse_event({"text": " one", "meta_info": meta}))
    meta |= {"completion_tokens": 2, "finish_reason": {"type": "length", "length": 2}}
    last = chunk(sse_event({"text": " one two", "meta_info": meta})) + chunk(sse_event("[DONE]"))
    heard, told, kept = exchange(SSE, first, last, LAST_CHUNK, endpoint="sglang", stream=True)
    assert (told, heard.status, heard.error, kept) == ("ended", "ok", None, True)
    assert (heard.output_tokens(), heard.token_source(), len(heard.arrival_s)) == (
        2,
        "running usage",
        2,
    )


def test_a_reset_is_noticed_though_data_lie_before_it() -> None:
    """uvloop tells of both once, and not again."""
    owner = Owner()
    owner.loop.close()
    owner.loop = new_event_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stream = Stream(
            PlannedRequest(0, 0, "measure", 0.0, 3, 2, None, 0, None),
            b"POST / HTTP/1.1\r\n\r\n",
            owner.clock.origin_ns,
            find_wire("completions").answer(stream=True),
        )
        address = Address(socket.AF_INET, listener.getsockname(), None)
        connection = Connection(owner, address, None)
        connection.open(address, stream)
        owner.loop.call_later(0.05, owner.loop.stop)
        owner.loop.run_forever()
        server, _ = listener.accept()
        server.recv(4096)
        server.sendall(SSE + chunk(token()))
        server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        server.close()
        time.sleep(0.05)
        owner.loop.call_later(0.05, connection.ask)
        owner.loop.call_later(5, owner.loop.stop)
        owner.loop.run_forever()
    assert owner.told == ["connection lost: Connection reset by peer"]
    assert len(stream.arrival_s) == 1
    owner.loop.close()


@pytest.mark.parametrize(
    ("error", "failed"),
    [
        (b'{"code": 0}', False),
        (b'{"code": "0", "message": ""}', False),
        (b'{"code": 0, "message": "OK"}', False),
        (b'{"code": 7}', True),
        (b'{"code": 0, "message": "no memory"}', True),
    ],
)
def test_an_error_that_says_there_is_none_is_none(error: bytes, failed: bool) -> None:
    document = DOCUMENT.rstrip()[:-1] + b', "error": ' + error + b"}"
    heard, _, _ = exchange(whole("200 OK", document), stream=False)
    assert (heard.status == "error") == failed
