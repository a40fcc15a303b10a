"""Answers that no server should give: each request becomes a record that says what came, and the run goes on."""

from __future__ import annotations

import gzip
import json
import os
import time
from functools import partial
from typing import Any

import pytest

from conftest import LAST_CHUNK, QUICK, SSE, Ask, Hangup, Loadstone, Reset, ScriptedServer, Send, answer, chunk, token


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


TOKENS = b"".join(chunk(token(f" t{n}")) for n in range(4))
STOP = chunk(event(choices=[{"index": 0, "text": "", "finish_reason": "length"}]))
DONE = chunk(b"data: [DONE]\n\n")
END = STOP + DONE + LAST_CHUNK
BODY = b"".join(token(f" t{n}") for n in range(4)) + b"data: [DONE]\n\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def counted(tokens: Any) -> bytes:
    return SSE + TOKENS + STOP + chunk(event(choices=[], usage={"completion_tokens": tokens})) + DONE + LAST_CHUNK


def indices(*places: int) -> bytes:
    events = [chunk(event(choices=[{"index": place, "text": "a", "finish_reason": None}])) for place in places]
    return SSE + b"".join(events) + END


ATTACKS: dict[str, tuple[bytes, str, str]] = {
    # name: (what is sent before the connection is closed, status, words of the error)
    "early hints": (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + SSE + TOKENS + END, "ok", ""),
    "fifty interim answers": (b"HTTP/1.1 100 Continue\r\n\r\n" * 50 + SSE + TOKENS + END, "ok", ""),
    "switching protocols": (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n" + TOKENS, "error", ""),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", "error", "HTTP 204"),
    "a redirect": (b"HTTP/1.1 307 x\r\nLocation: http://x/\r\nContent-Length: 0\r\n\r\n", "error", "HTTP 307"),
    "a length too small": (HEAD + b"Content-Length: 40\r\n\r\n" + BODY, "error", ""),
    "a length too large": (HEAD + b"Content-Length: 99999\r\n\r\n" + BODY, "error", "closed the connection before"),
    "a negative length": (HEAD + b"Content-Length: -5\r\n\r\n" + BODY, "error", "not HTTP"),
    "a length of words": (HEAD + b"Content-Length: many\r\n\r\n" + BODY, "error", "not HTTP"),
    "a length of 40 digits": (HEAD + b"Content-Length: %b\r\n\r\n" % (b"9" * 40) + BODY, "error", "not HTTP"),
    "two lengths": (HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n" + BODY, "error", "not HTTP"),
    "a length beside chunks": (SSE[:-2] + b"Content-Length: 5\r\n\r\n" + TOKENS + END, "error", "not HTTP"),
    "a negative chunk": (SSE + b"-1\r\nab\r\n" + END, "error", "not HTTP"),
    "a chunk without end": (SSE + b"F" * 17 + b"\r\nab\r\n" + END, "error", "not HTTP"),
    "a chunk without size": (SSE + b"\r\nab\r\n" + END, "error", "not HTTP"),
    "an extension without end": (SSE + b"5;" + b"x" * 500_000, "error", "without end"),
    "a hundred trailers": (SSE + TOKENS + STOP + DONE + b"0\r\n" + b"X-A: b\r\n" * 100 + b"\r\n", "ok", ""),
    "trailers without end": (SSE + TOKENS + STOP + b"0\r\n" + b"X-A: b\r\n" * 60_000, "error", "without end"),
    "headers without end": (HEAD + b"X-A: b\r\n" * 60_000, "error", "without end"),
    "ten thousand headers": (HEAD + b"X-A: b\r\n" * 10_000 + SSE.partition(b"\r\n")[2] + TOKENS + END, "ok", ""),
    "no headers at all": (b'{"choices": []}\n', "error", "not HTTP"),
    "the older HTTP": (b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + BODY, "ok", ""),
    "the newer HTTP": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "error", "not HTTP"),
    "a NUL in a header": (HEAD + b"X-A: b\0c\r\n\r\n" + BODY, "error", "not HTTP"),
    "a status of 999": (b"HTTP/1.1 999 x\r\nContent-Length: 0\r\n\r\n", "error", "HTTP 999"),
    "a reason that paints": (
        b"HTTP/1.1 500 \x1b[31mred\r\nContent-Length: 6\r\n\r\n\x1b[31m\n!!",
        "error",
        "HTTP 500",
    ),
    "a NUL in the text": (SSE + chunk(event(choices=[{"text": "a\0b"}])) * 4 + END, "ok", ""),
    "a raw NUL in the text": (SSE + chunk(b'data: {"choices": [{"text": "a\0b"}]}\n\n') + END, "error", "not a JSON"),
    "indices out of order": (indices(3, 1, 0, 2), "ok", ""),
    "an index of millions": (indices(0, 10**9, 0, 10**9), "ok", ""),
    "a negative index": (indices(-1, -1, -1, -1), "ok", ""),
    "one index twice": (indices(0, 0, 0, 0), "ok", ""),
    "a count below nothing": (counted(-4), "ok", ""),
    "a count of words": (counted("many"), "ok", ""),
    "a count of 2^63": (counted(2**63), "ok", ""),
    "a count with a fraction": (counted(4.5), "ok", ""),
    "a count that is a list": (counted([4]), "ok", ""),
    "choices that are no list": (
        SSE + chunk(event(choices={"text": "a"})) + DONE + LAST_CHUNK,
        "error",
        "any output",
    ),
    "a choice of null": (SSE + chunk(b'data: {"choices": [null]}\n\n') + TOKENS + END, "ok", ""),
    "nested 100,000 deep": (SSE + chunk(b"data: " + b"[" * 100_000 + b"\n\n") + END, "error", "not a JSON object"),
    "a bomb": (
        HEAD + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(b"data: " + bytes(1 << 25)),
        "error",
        "unpacks to over",
    ),
    "two gzip members": (
        HEAD + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(BODY[:50]) + gzip.compress(BODY[50:]),
        "ok",
        "",
    ),
    "a cut gzip member": (
        HEAD + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(os.urandom(99) + BODY)[:-60],
        "error",
        "",
    ),
    "a coding nobody knows": (HEAD + b"Content-Encoding: br\r\n\r\n" + os.urandom(200), "error", ""),
    "comments of megabytes": (SSE + chunk(b": " + b"x" * 4_000_000 + b"\n\n") + TOKENS + END, "ok", ""),
    "two ends": (SSE + TOKENS + STOP + STOP + DONE + DONE + LAST_CHUNK, "ok", ""),
    "the end first": (SSE + DONE + TOKENS + END, "error", "without any output"),
    "a page in place of a stream": (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html>",
        "error",
        "not an event",
    ),
    "a second answer after the first": (SSE + TOKENS + END + SSE + TOKENS + END, "ok", ""),
    "a second refusal after the first": (SSE + TOKENS + END + b"HTTP/1.1 408 x\r\n\r\n", "ok", ""),
    "tokens after the end": (SSE + TOKENS + STOP + DONE + TOKENS + LAST_CHUNK, "ok", ""),
    "an error with escapes": (SSE + chunk(event(error={"message": "\x1b[31m\nred"})) + LAST_CHUNK, "error", "red"),
    "nothing": (b"", "error", "closed the connection before answering"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_answer_that_no_server_should_give(loadstone: Loadstone, name: str) -> None:
    sent, status, words = ATTACKS[name]

    def reply(ask: Ask, send: Send) -> None:
        send(sent)
        raise Hangup

    with ScriptedServer(reply) as server:
        outcome = loadstone("bench", server.url, *QUICK, "--concurrency", "1", "--requests", "2", "--json")
    assert "Traceback" not in outcome.err
    records = outcome.records
    assert len(records) >= 2
    for record in records:
        assert (record["status"], words in (record["error"] or "")) == (status, True), record["error"]
        assert (record["error"] or "").isprintable()
        if status == "ok":
            assert (len(record["arrival_s"]), record["output_tokens"]) == (4, 4)
    assert "\x1b" not in outcome.err + json.dumps(records, ensure_ascii=False)


def test_a_reset_right_behind_a_token_is_no_silence(loadstone: Loadstone) -> None:
    def reply(ask: Ask, send: Send) -> None:
        send(SSE + TOKENS)
        raise Reset

    words = ("--concurrency", "8", "--requests", "400", "--timeout-idle", "4s", "--json")
    with ScriptedServer(reply) as server:
        outcome = loadstone("bench", server.url, *QUICK, *words)
    assert {record["status"] for record in outcome.records} == {"error"}
    assert {len(record["arrival_s"]) for record in outcome.records} <= {0, 4}


def test_an_answer_cut_at_each_of_its_bytes(loadstone: Loadstone) -> None:
    whole = SSE + TOKENS + STOP + DONE + LAST_CHUNK

    def reply(ask: Ask, send: Send) -> None:
        send(whole[: ask.number % len(whole)])
        raise Hangup

    words = ("--concurrency", "8", "--requests", str(len(whole)), "--json")
    with ScriptedServer(reply) as server:
        outcome = loadstone("bench", server.url, *QUICK, *words)
    assert [record["status"] for record in outcome.records] == ["error"] * len(whole)
    assert sorted({len(record["arrival_s"]) for record in outcome.records}) == [0, 1, 2, 3, 4]


def test_odd_answers_are_read_by_their_counts_and_told(loadstone: Loadstone) -> None:
    """A role that counts as a token, and thinking in an odd field, or counted without ever being sent."""
    details = {"completion_tokens_details": {"reasoning_tokens": 4}}
    role = {"role": "assistant", "content": ""}
    thought = [{"thoughts": f" {i}"} for i in range(4)]

    def deltas(*each: dict[str, str]) -> bytes:
        return b"".join(chunk(event(choices=[{"delta": one}])) for one in each)

    def reply(ask: Ask, send: Send, *, shown: bool) -> None:
        if not ask.body:
            answer(ask, send)
            return
        said = [{"content": f" {i}"} for i in range(4)]
        counts = {"prompt_tokens": 8, "completion_tokens": 8}
        send(SSE + chunk(event(choices=[{"delta": role}], usage=counts | {"completion_tokens": 1})))
        time.sleep(0.05)
        send(deltas(*(thought if shown else []), *said))
        send(chunk(event(choices=[{"delta": {}, "finish_reason": "length"}], usage=counts | details)))
        send(DONE + LAST_CHUNK)

    for shown, kind in ((True, "output_unlisted"), (False, "tokens_hidden")):
        with ScriptedServer(partial(reply, shown=shown), meets=True) as server:
            words = ("--endpoint", "chat", "--input", "8", "--output", "8", "--concurrency", "1", "--requests", "2")
            outcome = loadstone("bench", server.url, *words, "--json")
        findings = {each["kind"] for each in outcome.document["cells"][0]["verdict"]["findings"]}
        assert {"first_event_void", kind} <= findings
        for record in outcome.records:
            assert (record["status"], record["output_tokens"]) == ("ok", 8 if shown else 4)
            assert len(record["arrival_s"]) == record["output_tokens"]
            assert record["arrival_s"][0] - record["sent_s"] >= 0.05
