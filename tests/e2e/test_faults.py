"""Servers that misbehave: every request is recorded with what really became of it, and the run ends."""

import gzip
import json
import socket
import threading
import time
from typing import Any

import pytest

from conftest import (
    LAST_CHUNK,
    MODEL,
    QUICK,
    SSE,
    Ask,
    Hangup,
    Json,
    Loadstone,
    Outcome,
    Reply,
    Reset,
    ScriptedServer,
    Send,
    answer,
    chunk,
    event,
    events,
    token,
    whole,
)
from loadstone.measure.engines import server as control_plane
from loadstone.measure.engines.process import free_port

PLANNED = 6
RUN = (*QUICK, "--concurrency", "2", "--requests", PLANNED, "--json")


def measure(loadstone: Loadstone, reply: Reply, *more: object) -> tuple[Outcome, list[Json]]:
    """A run of six requests against `reply`: every one of them is in the records, whatever happens."""
    with ScriptedServer(reply) as server:
        outcome = loadstone("bench", server.url, *RUN, *more)
    assert outcome.code == 0, outcome
    records = outcome.records
    assert sorted(record["request_id"] for record in records) == [f"0-{n}" for n in range(PLANNED)]
    assert outcome.cell["requests"]["sent"] == PLANNED
    return outcome, records


def statuses(records: list[Json]) -> dict[str, int]:
    found = [record["status"] for record in records]
    return {status: found.count(status) for status in found}


def all_failed(outcome: Outcome, records: list[Json], what: str, *, tokens: int = 0) -> None:
    """All of them failed so, with `tokens` arrived before; nothing is invented and nothing is trusted."""
    assert statuses(records) == {"error": PLANNED}
    for record in records:
        assert what in record["error"], record["error"]
        assert len(record["arrival_s"]) == tokens
        assert record["end_s"] >= record["sent_s"]
    assert "request_errors" in outcome.findings
    assert outcome.cell["metrics"]["ttft_s"] is None


def all_well(outcome: Outcome, records: list[Json]) -> None:
    assert statuses(records) == {"ok": PLANNED}
    for record in records:
        assert record["input_tokens"] == 8
        assert record["output_tokens"] == 4
        assert record["tokens"] == [1, 2, 3, 4]
        assert record["arrival_s"] == sorted(record["arrival_s"])
        assert record["sent_s"] < record["arrival_s"][0] <= record["arrival_s"][-1] <= record["end_s"]
        assert record["finish_reason"] == "length"


# --- before the run: one line -----------------------------------------------------------------------------------


def test_nobody_listens(loadstone: Loadstone) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    line = loadstone("bench", url).line()
    assert line.startswith(f"{url}: no server answers there")
    assert "start it, or correct the URL" in line


def test_a_name_of_two_addresses_with_a_server_behind_the_second(
    loadstone: Loadstone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `localhost` is on many machines: ::1 first, and a server that listens on 127.0.0.1 alone."""
    asked = socket.getaddrinfo

    def both(name: str | bytes | None, port: int, *more: Any, **named: Any) -> list[Any]:
        found = asked("127.0.0.1" if name == "localhost" else name, port, *more, **named)
        first = (socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("::1", port, 0, 0))
        return [first, *found] if name == "localhost" else found

    monkeypatch.setattr(socket, "getaddrinfo", both)
    with ScriptedServer() as server:
        outcome = loadstone("bench", server.url.replace("127.0.0.1", "localhost"), *RUN)
    all_well(outcome, outcome.records)


def test_a_server_that_speaks_no_http(loadstone: Loadstone) -> None:
    def ssh(ask: Ask, send: Send) -> None:
        send(b"SSH-2.0-OpenSSH_9.2\r\n")
        raise Hangup

    with ScriptedServer(ssh, meets=True) as server:
        assert "not an HTTP server" in loadstone("bench", server.url).line()


def test_a_server_of_web_pages(loadstone: Loadstone) -> None:
    def page(ask: Ask, send: Send) -> None:
        send(whole("200 OK", b"<html>welcome</html>", "text/html"))

    with ScriptedServer(page, meets=True) as server:
        assert "names no model" in loadstone("bench", server.url).line()
        line = loadstone("bench", server.url, "--model", "m").line()
    assert "no event stream of a language model (text/html: <html>welcome</html>)" in line


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        ("401 Unauthorized", b'{"error": {"message": "no key"}}', "HTTP 401: no key; set LOADSTONE_API_KEY"),
        ("404 Not Found", b'{"detail": "no such model"}', "HTTP 404: no such model; check --model"),
        ("429 Too Many Requests", b"", "HTTP 429: no further word; the server limits requests"),
        ("500 Oh", b"\x1b[31mboom\n\nboom", "HTTP 500: \ufffd[31mboom boom; the server refuses the simplest request"),
    ],
)
def test_a_server_that_refuses(loadstone: Loadstone, status: str, body: bytes, said: str) -> None:
    def refuse(ask: Ask, send: Send) -> None:
        send(whole(status, body)) if ask.line.startswith("POST") else answer(ask, send)

    with ScriptedServer(refuse, meets=True) as server:
        assert said in loadstone("bench", server.url).line()


def test_a_key_is_wanted_for_the_list_of_models_already(loadstone: Loadstone) -> None:
    def refuse(ask: Ask, send: Send) -> None:
        send(whole("401 Unauthorized", b'{"error": {"message": "no key"}}'))

    with ScriptedServer(refuse, meets=True) as server:
        line = loadstone("bench", server.url).line()
    assert "HTTP 401: no key; set LOADSTONE_API_KEY" in line


@pytest.mark.parametrize("endless", [b": ping\n\n", event({"choices": [{"text": ""}]})])
def test_a_server_that_never_ends_its_first_answer(
    loadstone: Loadstone, endless: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_plane, "_TIMEOUT_S", 1.0)

    def drip(ask: Ask, send: Send) -> None:
        if not (ask.body and ask.json.get("stream")):
            answer(ask, send)
            return
        send(SSE)
        while True:
            send(chunk(endless))
            time.sleep(0.1)

    with ScriptedServer(drip, meets=True) as server:
        assert "within 1 s" in loadstone("bench", server.url).line()


# --- in the run: every request is recorded ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        ("500 Oh", b'{"error": {"message": "out of memory"}}', "HTTP 500: out of memory"),
        ("404 Not Found", b'{"error": {"message": "no model"}}', "HTTP 404: no model"),
        ("429 Slow down", b"", "HTTP 429: no further word"),
        ("200 OK", b"<html>proxy</html>", "not an event stream (application/json): <html>proxy</html>"),
    ],
)
def test_refusals(loadstone: Loadstone, status: str, body: bytes, said: str) -> None:
    outcome, records = measure(loadstone, lambda ask, send: send(whole(status, body)))
    all_failed(outcome, records, said)
    assert {record["http_status"] for record in records} == {int(status.split(maxsplit=1)[0])}
    assert sum(record["reused_connection"] for record in records) >= PLANNED - 2  # an error is no reason to leave


def test_a_few_refusals_among_good_answers(loadstone: Loadstone) -> None:
    def sometimes(ask: Ask, send: Send) -> None:
        send(whole("503 Busy", b"")) if ask.number % 3 == 0 else answer(ask, send)

    outcome, records = measure(loadstone, sometimes)
    assert statuses(records) == {"error": 2, "ok": 4}
    assert outcome.cell["requests"] == {"sent": 6, "ok": 4, "error": 2, "timeout": 0, "cancelled": 0, "short": 0}
    assert outcome.cell["metrics"]["ttft_s"]["n"] == 4


def reset_before_headers(ask: Ask, send: Send) -> None:
    raise Reset


def hang_up_before_headers(ask: Ask, send: Send) -> None:
    raise Hangup


def reset_mid_stream(ask: Ask, send: Send) -> None:
    send(SSE + chunk(token()) + chunk(token()))
    time.sleep(0.05)
    raise Reset


def hang_up_mid_stream(ask: Ask, send: Send) -> None:
    send(SSE + chunk(token()) + chunk(token()))
    raise Hangup


def error_in_the_stream(ask: Ask, send: Send) -> None:
    failure = event({"error": {"message": "CUDA out of memory", "code": 500}})
    send(SSE + chunk(token()) + chunk(failure) + chunk(event("[DONE]")) + LAST_CHUNK)


def truncated_json(ask: Ask, send: Send) -> None:
    send(SSE + chunk(token()) + chunk(b'data: {"choices": [{"te\n\n') + LAST_CHUNK)


def no_end(ask: Ask, send: Send) -> None:
    send(SSE + chunk(token()) + chunk(token()) + LAST_CHUNK)


def nothing_but_an_end(ask: Ask, send: Send) -> None:
    send(SSE + chunk(event("[DONE]")) + LAST_CHUNK)


def garbage(ask: Ask, send: Send) -> None:
    send(b"\x00\xff garbage\r\n\r\n")


def bad_chunk_size(ask: Ask, send: Send) -> None:
    send(SSE + chunk(token()) + b"zz\r\n")


@pytest.mark.parametrize(
    ("reply", "said", "tokens"),
    [
        (reset_before_headers, "connection lost: Connection reset by peer", 0),
        (hang_up_before_headers, "closed the connection before answering", 0),
        (reset_mid_stream, "connection lost: Connection reset by peer", 2),
        (hang_up_mid_stream, "closed the connection before the answer's end", 2),
        (error_in_the_stream, "error in the stream: CUDA out of memory", 1),
        (truncated_json, "", 1),
        (no_end, "ended without finish reason or [DONE]", 2),
        (nothing_but_an_end, "ended without any output", 0),
        (garbage, "not HTTP", 0),
        (bad_chunk_size, "not HTTP", 1),
    ],
)
def test_broken_answers(loadstone: Loadstone, reply: Reply, said: str, tokens: int) -> None:
    outcome, records = measure(loadstone, reply)
    all_failed(outcome, records, said, tokens=tokens)


def silence(ask: Ask, send: Send) -> None:
    time.sleep(60)


def headers_and_silence(ask: Ask, send: Send) -> None:
    send(SSE)
    time.sleep(60)


def pings(ask: Ask, send: Send) -> None:
    send(SSE)
    while True:
        send(chunk(b": ping\n\n"))
        time.sleep(0.1)


def a_token_and_pings(ask: Ask, send: Send) -> None:
    send(SSE + chunk(token()))
    pings_only(send)


def pings_only(send: Send) -> None:
    while True:
        send(chunk(b": ping\n\n"))
        time.sleep(0.1)


def a_token_for_ever(ask: Ask, send: Send) -> None:
    send(SSE)
    while True:
        send(chunk(token()))
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("reply", "flag", "said"),
    [
        (silence, "--timeout-first", "waited 0.5 s for the first output"),
        (headers_and_silence, "--timeout-first", "waited 0.5 s for the first output"),
        (pings, "--timeout-first", "waited 0.5 s for the first output"),
        (a_token_and_pings, "--timeout-idle", "waited 0.5 s for the next output"),
        (a_token_for_ever, "--timeout-total", "not ended 0.5 s after sending"),
    ],
)
def test_servers_that_hang(loadstone: Loadstone, reply: Reply, flag: str, said: str) -> None:
    outcome, records = measure(loadstone, reply, flag, "500ms", "--concurrency", PLANNED)
    assert statuses(records) == {"timeout": PLANNED}
    assert all(said in record["error"] for record in records)
    assert outcome.cell["requests"]["timeout"] == PLANNED
    # What had arrived is kept: that is all there is to look at afterwards.
    assert all(bool(record["arrival_s"]) == reply.__name__.startswith("a_token") for record in records)


def slow_to_begin(ask: Ask, send: Send) -> None:
    time.sleep(0.45)
    answer(ask, send)


def slow_to_go_on(ask: Ask, send: Send) -> None:
    *first, last = events(ask)
    send(SSE + b"".join(map(chunk, first)))
    time.sleep(0.45)
    send(chunk(last) + LAST_CHUNK)


def slow_all_the_way(ask: Ask, send: Send) -> None:
    send(SSE)
    for each in events(ask):
        time.sleep(0.1)
        send(chunk(each))
    send(LAST_CHUNK)


@pytest.mark.parametrize(
    ("reply", "flag", "said"),
    [
        (slow_to_begin, "--timeout-first", "waited 0.3 s for the first output"),
        (slow_all_the_way, "--timeout-first", None),
        (slow_to_go_on, "--timeout-idle", "waited 0.3 s for the next output"),
        (slow_all_the_way, "--timeout-idle", None),
        (slow_all_the_way, "--timeout-total", "not ended 0.3 s after sending"),
    ],
)
def test_an_answer_that_ends_just_after_a_timeout_is_one(
    loadstone: Loadstone, reply: Reply, flag: str, said: str | None
) -> None:
    """Whether a look at the request came between the timeout and the end must not decide."""
    outcome, records = measure(loadstone, reply, flag, "300ms")
    if said is None:
        all_well(outcome, records)
        return
    assert statuses(records) == {"timeout": PLANNED}
    assert all(said in record["error"] for record in records)


# --- in the run: odd, but right -------------------------------------------------------------------------------


def one_byte_a_packet(ask: Ask, send: Send) -> None:
    for byte in SSE + b"".join(map(chunk, events(ask))) + LAST_CHUNK:
        send(bytes([byte]))


def several_events_a_packet(ask: Ask, send: Send) -> None:
    send(SSE + chunk(b"".join(events(ask)[:3])) + chunk(b"".join(events(ask)[3:])) + LAST_CHUNK)


def events_cut_anywhere(ask: Ask, send: Send) -> None:
    body = b"".join(events(ask))
    send(SSE + b"".join(chunk(body[i : i + 7]) for i in range(0, len(body), 7)) + LAST_CHUNK)


def gzipped(ask: Ask, send: Send) -> None:
    send(SSE.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n"))
    send(chunk(gzip.compress(b"".join(events(ask)))) + LAST_CHUNK)


def http_1_0(ask: Ask, send: Send) -> None:
    send(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + b"".join(events(ask)))
    raise Hangup


def chunk_extensions_and_trailers(ask: Ask, send: Send) -> None:
    sent = [chunk(e).replace(b"\r\n", b";name=value\r\n", 1) for e in events(ask)]
    send(SSE + b"".join(sent) + b"0\r\nX-Trailer: yes\r\n\r\n")


def with_a_length(ask: Ask, send: Send) -> None:
    send(whole("200 OK", b"".join(events(ask)), "text/event-stream"))


def mistaken_for_text(ask: Ask, send: Send) -> None:
    send(SSE.replace(b"text/event-stream", b"text/plain") + b"".join(map(chunk, events(ask))) + LAST_CHUNK)


def mistaken_for_text_in_pieces(ask: Ask, send: Send) -> None:
    body = b"\xef\xbb\xbf" + b"".join(events(ask))
    send(SSE.replace(b"text/event-stream", b"text/plain"))
    send(b"".join(chunk(body[i : i + 1]) for i in range(len(body))) + LAST_CHUNK)


def after_a_continue(ask: Ask, send: Send) -> None:
    send(b"HTTP/1.1 100 Continue\r\n\r\n")
    answer(ask, send)


def crlf_and_comments(ask: Ask, send: Send) -> None:
    lines = [b": keepalive\r\n\r\nevent: message\r\n" + e.replace(b"\n", b"\r\n") for e in events(ask)]
    send(SSE + b"".join(map(chunk, lines)) + LAST_CHUNK)


def closes_each_time(ask: Ask, send: Send) -> None:
    send(SSE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    send(b"".join(map(chunk, events(ask))) + LAST_CHUNK)
    raise Hangup


def never_ends_the_message(ask: Ask, send: Send) -> None:
    send(SSE + b"".join(map(chunk, events(ask))))
    time.sleep(60)


def odd_json(ask: Ask, send: Send) -> None:
    tokens = [event({"choices": [{"text": " a", "finish_reason": None}], "usage": None}) for _ in range(3)]
    last = event({"choices": [{"text": " a", "finish_reason": {"type": "length"}}]})
    counts = event({"choices": None, "usage": {"prompt_tokens": 8.0, "completion_tokens": 4.0}})
    send(SSE + b"".join(map(chunk, [*tokens, last, counts])) + LAST_CHUNK)


@pytest.mark.parametrize(
    "reply",
    [
        one_byte_a_packet,
        several_events_a_packet,
        events_cut_anywhere,
        gzipped,
        http_1_0,
        chunk_extensions_and_trailers,
        with_a_length,
        mistaken_for_text,
        mistaken_for_text_in_pieces,
        after_a_continue,
        crlf_and_comments,
        closes_each_time,
        never_ends_the_message,
        odd_json,
    ],
)
def test_odd_but_right(loadstone: Loadstone, reply: Reply) -> None:
    outcome, records = measure(loadstone, reply)
    all_well(outcome, records)
    if reply is several_events_a_packet:
        assert all(record["read"] == [0, 0, 0, 0] for record in records)
        assert all(len(set(record["arrival_s"])) == 1 for record in records)


@pytest.mark.parametrize("farewell", [Hangup, Reset])
def test_a_kept_connection_that_the_server_closes_loses_nothing(
    loadstone: Loadstone, farewell: type[Exception]
) -> None:
    """The server says keep-alive and goes all the same, as servers do whose patience ends."""

    def impatient(ask: Ask, send: Send) -> None:
        answer(ask, send)
        raise farewell

    outcome, records = measure(loadstone, impatient)
    all_well(outcome, records)
    assert not outcome.spoilt_by


def forgetful() -> Reply:
    """Reads the second request of each connection, and drops it."""
    seen: dict[int, int] = {}

    def drops(ask: Ask, send: Send) -> None:
        seen[ask.connection] = seen.get(ask.connection, 0) + 1
        if seen[ask.connection] > 1:
            raise Hangup
        answer(ask, send)

    return drops


def test_a_request_lost_with_its_kept_connection_is_sent_once_more_and_no_more(loadstone: Loadstone) -> None:
    """On a fresh connection it is answered."""
    with ScriptedServer(forgetful()) as server:
        outcome = loadstone("bench", server.url, *RUN)
    all_well(outcome, outcome.records)
    names = [ask.headers["x-request-id"] for ask in server.measured]
    assert max(names.count(name) for name in names) == 2
    assert len(set(names)) == PLANNED
    (finding,) = (f for f in outcome.document["cells"][0]["verdict"]["findings"] if f["kind"] == "requests_resent")
    assert finding["severity"] == "info"
    assert finding["evidence"].startswith(f"{len(names) - PLANNED} of {PLANNED} requests")


def test_a_server_that_keeps_no_connection_is_not_asked_to_for_ever(loadstone: Loadstone) -> None:
    """After five that were lost every request has a connection of its own."""
    with ScriptedServer(forgetful()) as server:
        outcome = loadstone("bench", server.url, *QUICK, "--concurrency", "1", "--requests", "30", "--json")
    assert statuses(outcome.records) == {"ok": 30}
    assert not any(record["reused_connection"] for record in outcome.records)
    (finding,) = (f for f in outcome.document["cells"][0]["verdict"]["findings"] if f["kind"] == "requests_resent")
    assert finding["evidence"].startswith("5 of 30 requests")


def test_a_server_killed_in_the_run(loadstone: Loadstone) -> None:
    """What is under way ends with an error, what comes after finds nobody; the run ends all the same."""

    def slowly(ask: Ask, send: Send) -> None:
        if ask.number == 3:
            threading.Timer(0.05, server.stop).start()
        send(SSE)
        for e in events(ask):
            send(chunk(e))
            time.sleep(0.02)
        send(LAST_CHUNK)

    with ScriptedServer(slowly) as server:
        outcome = loadstone("bench", server.url, *RUN)
    records = outcome.records
    assert len(records) == PLANNED
    assert statuses(records) == {"ok": 2, "error": 4} or statuses(records) == {"ok": 3, "error": 3}
    assert any("cannot connect: Connection refused" in record["error"] for record in records if record["error"])
    assert outcome.document["status"] == "done"


def test_the_chat_endpoint_where_completions_are_not_offered(loadstone: Loadstone) -> None:
    def chat(ask: Ask, send: Send) -> None:
        if ask.path != "/v1/chat/completions":
            if ask.path == "/v1/completions":
                send(whole("404 Not Found", b"{}"))
            else:
                answer(ask, send)
            return
        if not ask.json.get("stream"):
            choice = {"message": {"role": "assistant", "content": "time"}, "finish_reason": "length"}
            counts = {"prompt_tokens": ask.prompt_tokens + 2, "completion_tokens": ask.output_tokens}
            send(whole("200 OK", json.dumps({"choices": [choice], "usage": counts}).encode()))
            return
        role = event({"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
        word = event({"choices": [{"delta": {"content": " time"}, "finish_reason": None}]})
        end = event({"choices": [{"delta": {}, "finish_reason": "length"}]})
        counts = {"prompt_tokens": ask.prompt_tokens + 2, "completion_tokens": ask.output_tokens}
        said = [role, *[word] * ask.output_tokens, end, event({"choices": [], "usage": counts}), event("[DONE]")]
        send(SSE + b"".join(map(chunk, said)) + LAST_CHUNK)

    with ScriptedServer(chat, meets=True) as server:
        outcome = loadstone("bench", server.url, *RUN)
    all_well(outcome, outcome.records)
    assert outcome.document["target"]["endpoint"] == "chat"
    assert all(ask.json["model"] == MODEL for ask in server.measured)
