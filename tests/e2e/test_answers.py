"""Odd answers, broken ones, and such as no server should give: each request's record says what
came.

All of them are given in one run, one after the other, for what one does may not reach the next.
"""

from __future__ import annotations

import gzip
import json
import random
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from conftest import (
    LAST_CHUNK,
    SSE,
    Ask,
    Hangup,
    Json,
    Reply,
    Reset,
    ScriptedServer,
    Send,
    chunk,
    event,
    events,
    read_records,
    token,
    usage,
    whole,
)
from loadstone.runs.bench import bench
from loadstone.workload.option_fields import options_of
from loadstone.workload.options import Options
from replies import DONE, is_well, repeats, sends, streams, tokens

TOKENS = b"".join(chunk(token(f" t{n}")) for n in range(4))
STOP = chunk(token("", "length"))
LAST = chunk(DONE) + LAST_CHUNK
END = STOP + LAST
BODY = b"".join(token(f" t{n}") for n in range(4)) + DONE
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
NOISE = random.Random(1).randbytes(200)
PACKED = HEAD + b"Content-Encoding: gzip\r\n"
CHUNKS = b"Transfer-Encoding: chunked\r\n\r\n"
ANY = -1


class Case(NamedTuple):
    """An answer, and what its record must hold: `error` or a part of it, and how many `tokens`
    arrived."""

    reply: Reply
    status: str
    """`well`: ok, with every token and count. `finished`: whatever it is, with a finish reason."""
    error: str = ""
    tokens: int = ANY
    http_status: int | None = None


CASES: dict[str, Case] = {}


def fails(
    name: str, reply: Reply, error: str = "", tokens: int = ANY, http_status: int | None = None
) -> None:
    CASES[name] = Case(reply, "error", error, tokens, http_status)


# --- refused --------------------------------------------------------------------------------------

for status, body, kind, error in (
    ("500 Oh", b'{"error": {"message": "out of memory"}}', "", "HTTP 500: out of memory"),
    ("404 Not Found", b'{"error": {"message": "no model"}}', "", "HTTP 404: no model"),
    ("429 Slow down", b"", "", "HTTP 429: no further word"),
    (
        "200 OK",
        b"<html>proxy</html>",
        "",
        "not an event stream (application/json): <html>proxy</html>",
    ),
    ("503 Service Unavailable", b"<html><h1>nginx</h1></html>", "text/html", "HTTP 503"),
):
    fails(
        f"refused {status}",
        sends(whole(status, body, kind or "application/json")),
        error,
        0,
        int(status[:3]),
    )
# A client that waited would hide the refusal, and change the load.
fails(
    "refused with a word when to come back",
    sends(b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 600\r\nContent-Length: 0\r\n\r\n"), "", 0, 429,
)  # fmt: skip

# --- broken ---------------------------------------------------------------------------------------

FAILURE = event({"error": {"message": "CUDA out of memory", "code": 500}})
fails("reset before headers", sends(then=Reset), "connection lost: Connection reset by peer", 0)
fails("hang up before headers", sends(then=Hangup), "closed the connection before answering", 0)
for farewell in (Hangup, Reset):
    fails(f"{farewell.__name__} within headers", sends(HEAD[:35], then=farewell), "", 0)
cut = (SSE, chunk(token()) * 2)
fails(
    "reset in mid-stream", sends(*cut, then=Reset), "connection lost: Connection reset by peer", 2
)
fails(
    "hang up in mid-stream",
    sends(*cut, then=Hangup),
    "closed the connection before the answer's end",
    2,
)
fails(
    "error in the stream",
    streams(token(), FAILURE, DONE),
    "error in the stream: CUDA out of memory",
    1,
)
fails("truncated JSON", streams(token(), b'data: {"choices": [{"te\n\n'), "", 1)
fails("no end", streams(token(), token()), "ended without finish reason or [DONE]", 2)
fails("nothing but an end", streams(DONE), "ended without any output", 0)
fails("garbage", sends(b"\x00\xff garbage\r\n\r\n"), "not HTTP", 0)
fails("bad chunk size", sends(SSE, chunk(token()), b"zz\r\n"), "not HTTP", 1)
for farewell in (Hangup, Reset):
    # Whether an answer is complete is known by its finish reason, not by how the connection ends.
    ended = sends(SSE, *map(chunk, tokens(4)), then=farewell)
    CASES[f"{farewell.__name__} after the finish reason"] = Case(ended, "finished", "", 4)
    fails(
        f"{farewell.__name__} after the last token",
        sends(SSE, chunk(token()) * 4, then=farewell),
        "",
        4,
    )


# --- odd, but right -------------------------------------------------------------------------------


def odd(reply: Reply) -> Reply:
    CASES[reply.__name__.replace("_", " ")] = Case(reply, "well")
    return reply


def rewritten(
    name: str, head: bytes, rewrite: Callable[[list[bytes]], bytes], *, leaves: bool = False
) -> None:
    """Add a right answer whose events are written otherwise."""

    def reply(ask: Ask, send: Send) -> None:
        send(head + rewrite(events(ask)))
        if leaves:
            raise Hangup

    CASES[name] = Case(reply, "well")


def in_chunks(said: list[bytes]) -> bytes:
    return b"".join(map(chunk, said)) + LAST_CHUNK


def with_extensions(said: list[bytes]) -> bytes:
    chunks = [chunk(each).replace(b"\r\n", b";name=value\r\n", 1) for each in said]
    return b"".join(chunks) + b"0\r\nX-Trailer: yes\r\n\r\n"


def with_comments(said: list[bytes]) -> bytes:
    return in_chunks(
        [b": keepalive\r\n\r\nevent: message\r\n" + each.replace(b"\n", b"\r\n") for each in said]
    )


def in_pieces(body: bytes, size: int) -> bytes:
    return in_chunks([body[i : i + size] for i in range(0, len(body), size)])


PLAIN = SSE.replace(b"text/event-stream", b"text/plain")
rewritten("right", SSE, in_chunks)  # the other cases could pass by failing everything
rewritten(
    "several events a packet", SSE, lambda said: in_chunks([b"".join(said[:3]), b"".join(said[3:])])
)
rewritten("events cut anywhere", SSE, lambda said: in_pieces(b"".join(said), 7))
rewritten("gzipped", PACKED + CHUNKS, lambda said: in_chunks([gzip.compress(b"".join(said))]))
rewritten("HTTP 1.0", HEAD.replace(b"1.1", b"1.0") + b"\r\n", b"".join, leaves=True)
rewritten("chunk extensions and trailers", SSE, with_extensions)
rewritten("mistaken for text", PLAIN, in_chunks)
rewritten(
    "mistaken for text in pieces",
    PLAIN,
    lambda said: in_pieces(b"\xef\xbb\xbf" + b"".join(said), 1),
)
rewritten("after a continue", b"HTTP/1.1 100 Continue\r\n\r\n" + SSE, in_chunks)
rewritten("CRLF and comments", SSE, with_comments)
rewritten("closes each time", HEAD + b"Connection: close\r\n" + CHUNKS, in_chunks, leaves=True)


@odd
def one_byte_a_packet(ask: Ask, send: Send) -> None:
    for byte in SSE + in_chunks(events(ask)):
        send(bytes([byte]))


@odd
def with_a_length(ask: Ask, send: Send) -> None:
    send(whole("200 OK", b"".join(events(ask)), "text/event-stream"))


@odd
def never_ends_the_message(ask: Ask, send: Send) -> None:
    send(SSE + b"".join(map(chunk, events(ask))))
    time.sleep(60)


@odd
def odd_json(ask: Ask, send: Send) -> None:
    said = [
        event({"choices": [{"text": " a", "finish_reason": None}], "usage": None}) for _ in range(3)
    ]
    last = event({"choices": [{"text": " a", "finish_reason": {"type": "length"}}]})
    counts = event({"choices": None, "usage": {"prompt_tokens": 8.0, "completion_tokens": 4.0}})
    send(SSE + in_chunks([*said, last, counts]))


NO_UTF_8 = event({"choices": [{"text": "MARK", "finish_reason": None}]}).replace(
    b"MARK", b"\xff\xfe\xc3"
)


def ends_oddly(name: str, said: Callable[[Ask], list[bytes]]) -> None:
    def reply(ask: Ask, send: Send) -> None:
        send(SSE + in_chunks(said(ask)))

    CASES[name] = Case(reply, "ok", tokens=ANY)


ends_oddly("no UTF-8", lambda ask: [token(), NO_UTF_8, token(), token(finish="length"), usage(ask)])
ends_oddly("[DONE] twice", lambda ask: [*tokens(4), usage(ask), DONE, DONE])
ends_oddly("a token after [DONE]", lambda ask: [*tokens(4), usage(ask), DONE, token()])


# --- without end ----------------------------------------------------------------------------------


def packed_bomb(byte: bytes) -> bytes:
    """Pack 64 MiB of one byte into 64 kB."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join([packer.compress(byte * (1 << 20)) for _ in range(64)]) + packer.flush()


LONG = b"a" * 65536
for name, head, piece, error in (
    ("a header", b"HTTP/1.1 200 OK\r\nX: ", LONG, "headers without end"),
    (
        "interim answers",
        b"",
        b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 999,
        "headers without end",
    ),
    ("a trailer", SSE + chunk(token()) + b"0\r\nX: ", LONG, "headers without end"),
    ("a chunk's extension", SSE + chunk(token()) + b"5;", LONG, "headers without end"),
    ("packed line ends", PACKED + CHUNKS, chunk(packed_bomb(b"\n")), "unpacks to over 4 MiB"),
    ("not packed", PACKED + CHUNKS, chunk(b"no gzip"), "compressed answer cannot be read"),
):
    # Given up at once: not after the many minutes that an answer may take, with all of it in
    # memory.
    fails(f"without end: {name}", repeats(head, piece), error)


# --- such as no server should give; the connection is closed after each ---------------------------


def fields(**given: Any) -> bytes:
    return chunk(event(given))


def with_count(count: Any) -> bytes:
    return SSE + TOKENS + STOP + fields(choices=[], usage={"completion_tokens": count}) + LAST


def with_indices(*places: int) -> bytes:
    said = [
        fields(choices=[{"index": place, "text": "a", "finish_reason": None}]) for place in places
    ]
    return SSE + b"".join(said) + END


RIGHT: dict[str, bytes] = {
    "early hints": b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + SSE + TOKENS + END,
    "fifty interim answers": b"HTTP/1.1 100 Continue\r\n\r\n" * 50 + SSE + TOKENS + END,
    "a hundred trailers": SSE
    + TOKENS
    + STOP
    + chunk(DONE)
    + b"0\r\n"
    + b"X-A: b\r\n" * 100
    + b"\r\n",
    "ten thousand headers": HEAD
    + b"X-A: b\r\n" * 10_000
    + SSE.partition(b"\r\n")[2]
    + TOKENS
    + END,
    "the older HTTP": HEAD.replace(b"1.1", b"1.0") + b"\r\n" + BODY,
    "a NUL in the text": SSE + fields(choices=[{"text": "a\0b"}]) * 4 + END,
    "indices out of order": with_indices(3, 1, 0, 2),
    "an index of millions": with_indices(0, 10**9, 0, 10**9),
    "a negative index": with_indices(-1, -1, -1, -1),
    "one index twice": with_indices(0, 0, 0, 0),
    "a count below nothing": with_count(-4),
    "a count of words": with_count("many"),
    "a count of 2^63": with_count(2**63),
    "a count with a fraction": with_count(4.5),
    "a count that is a list": with_count([4]),
    "a choice of null": SSE + chunk(b'data: {"choices": [null]}\n\n') + TOKENS + END,
    "two gzip members": PACKED + b"\r\n" + gzip.compress(BODY[:50]) + gzip.compress(BODY[50:]),
    "comments of megabytes": SSE + chunk(b": " + b"x" * 4_000_000 + b"\n\n") + TOKENS + END,
    "two ends": SSE + TOKENS + STOP + STOP + chunk(DONE) + LAST,
    "a second answer after the first": SSE + TOKENS + END + SSE + TOKENS + END,
    "a second refusal after the first": SSE + TOKENS + END + b"HTTP/1.1 408 x\r\n\r\n",
    "tokens after the end": SSE + TOKENS + STOP + chunk(DONE) + TOKENS + LAST_CHUNK,
}
WRONG: dict[str, tuple[bytes, str]] = {
    "switching protocols": (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n" + TOKENS,
        "",
    ),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", "HTTP 204"),
    "a redirect": (
        b"HTTP/1.1 307 x\r\nLocation: http://x/\r\nContent-Length: 0\r\n\r\n",
        "HTTP 307",
    ),
    "a length too small": (HEAD + b"Content-Length: 40\r\n\r\n" + BODY, ""),
    "a length too large": (
        HEAD + b"Content-Length: 99999\r\n\r\n" + BODY,
        "closed the connection before",
    ),
    "a negative length": (HEAD + b"Content-Length: -5\r\n\r\n" + BODY, "not HTTP"),
    "a length of words": (HEAD + b"Content-Length: many\r\n\r\n" + BODY, "not HTTP"),
    "a length of 40 digits": (
        HEAD + b"Content-Length: %b\r\n\r\n" % (b"9" * 40) + BODY,
        "not HTTP",
    ),
    "two lengths": (HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n" + BODY, "not HTTP"),
    "a length beside chunks": (SSE[:-2] + b"Content-Length: 5\r\n\r\n" + TOKENS + END, "not HTTP"),
    "a negative chunk": (SSE + b"-1\r\nab\r\n" + END, "not HTTP"),
    "a chunk without end": (SSE + b"F" * 17 + b"\r\nab\r\n" + END, "not HTTP"),
    "a chunk without size": (SSE + b"\r\nab\r\n" + END, "not HTTP"),
    "an extension without end": (SSE + b"5;" + b"x" * 500_000, "without end"),
    "trailers without end": (
        SSE + TOKENS + STOP + b"0\r\n" + b"X-A: b\r\n" * 60_000,
        "without end",
    ),
    "headers without end": (HEAD + b"X-A: b\r\n" * 60_000, "without end"),
    "no headers at all": (b'{"choices": []}\n', "not HTTP"),
    "the newer HTTP": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "not HTTP"),
    "a NUL in a header": (HEAD + b"X-A: b\0c\r\n\r\n" + BODY, "not HTTP"),
    "a status of 999": (b"HTTP/1.1 999 x\r\nContent-Length: 0\r\n\r\n", "HTTP 999"),
    "a reason that paints": (
        b"HTTP/1.1 500 \x1b[31mred\r\nContent-Length: 6\r\n\r\n\x1b[31m\n!!",
        "HTTP 500",
    ),
    "a raw NUL in the text": (
        SSE + chunk(b'data: {"choices": [{"text": "a\0b"}]}\n\n') + END,
        "not a JSON",
    ),
    "choices that are no list": (SSE + fields(choices={"text": "a"}) + LAST, "any output"),
    "nested 100,000 deep": (
        SSE + chunk(b"data: " + b"[" * 100_000 + b"\n\n") + END,
        "not a JSON object",
    ),
    "a bomb": (PACKED + b"\r\n" + gzip.compress(b"data: " + bytes(1 << 25)), "unpacks to over"),
    "a cut gzip member": (PACKED + b"\r\n" + gzip.compress(NOISE + BODY)[:-60], ""),
    "a coding nobody knows": (HEAD + b"Content-Encoding: br\r\n\r\n" + NOISE, ""),
    "the end first": (SSE + chunk(DONE) + TOKENS + END, "without any output"),
    "a page in place of a stream": (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html>",
        "not an event",
    ),
    "an error with escapes": (SSE + fields(error={"message": "\x1b[31m\nred"}) + LAST_CHUNK, "red"),
    "nothing": (b"", "closed the connection before answering"),
}
for name, sent in RIGHT.items():
    CASES[name] = Case(sends(sent, then=Hangup, pause_s=0), "ok", "", 4)
for name, (sent, error) in WRONG.items():
    fails(name, sends(sent, then=Hangup, pause_s=0), error)

NAMES = list(CASES)


def number_of(ask: Ask) -> int:
    return int(ask.headers["x-request-id"].rpartition("-")[2])


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Json]:
    """The record of each case."""

    def reply(ask: Ask, send: Send) -> None:
        CASES[NAMES[number_of(ask)]].reply(ask, send)

    with ScriptedServer(reply) as server:
        given: dict[str, object] = {
            "url": server.url,
            "input": 8,
            "output": 4,
            "warmup": 0,
            "concurrency": 1,
        }
        given |= {"requests": len(NAMES), "out": tmp_path_factory.mktemp("answers")}
        document = bench(options_of(given, Options)).document()
    assert document["cells"][0]["requests"]["sent"] == len(NAMES)
    return {
        NAMES[int(each["request_id"][2:])]: each for each in read_records(Path(document["run_dir"]))
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_record_says_what_came(given: dict[str, Json], name: str) -> None:
    case, record = CASES[name], given[name]
    error = record["error"] or ""
    if case.status == "well":
        is_well(record)
    elif case.status == "finished":
        assert record["finish_reason"] == "length"
    else:
        assert record["status"] == case.status, error
    assert case.error in error, error
    assert error.isprintable()
    assert record["end_s"] >= record["sent_s"]
    if case.tokens != ANY:
        assert len(record["arrival_s"]) == case.tokens
    if case.http_status is not None:
        assert record["http_status"] == case.http_status
    if record["status"] == "ok":
        assert record["output_tokens"] == 4
    if name == "several events a packet":
        assert record["read"] == [0, 0, 0, 0]
        assert len(set(record["arrival_s"])) == 1
    assert "\x1b" not in json.dumps(record, ensure_ascii=False)
