"""Servers and hosts that misbehave: every request is recorded with what really became of it, and
the run ends."""

from __future__ import annotations

import itertools
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
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
    Reply,
    Reset,
    ScriptedServer,
    Send,
    answer,
    chunk,
    event,
    events,
    eventually,
    token,
    usage,
    whole,
)
from loadstone.measure.engines import server as control_plane
from loadstone.measure.engines.process import free_port
from loadstone.measure.simulated_server import FixedLatency, start
from replies import (
    DONE,
    PLANNED,
    RUN,
    all_well,
    findings,
    measure,
    repeats,
    say,
    sends,
    statuses,
    streams,
    tokens,
)

PING = chunk(b": ping\n\n")

# --- before the run: one line ---------------------------------------------------------------------


def test_nobody_listens(loadstone: Loadstone) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    line = loadstone("bench", url).line()
    assert line.startswith(f"{url}: no server answers there")
    assert "start it, or correct the URL" in line


def test_a_name_that_nobody_knows(loadstone: Loadstone) -> None:
    line = loadstone("bench", "http://no-such-host.invalid:8000").line()
    assert line.startswith("http://no-such-host.invalid:8000: ")


def test_a_name_of_two_addresses_with_a_server_behind_the_second(
    loadstone: Loadstone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `localhost` is on many machines: ::1 first, and a server that listens on 127.0.0.1
    alone."""
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
    with ScriptedServer(
        sends(b"SSH-2.0-OpenSSH_9.2\r\n", then=Hangup, pause_s=0), meets=True
    ) as server:
        assert "not an HTTP server" in loadstone("bench", server.url).line()


def test_a_server_of_web_pages(loadstone: Loadstone) -> None:
    with ScriptedServer(
        sends(whole("200 OK", b"<html>welcome</html>", "text/html")), meets=True
    ) as server:
        assert "names no model" in loadstone("bench", server.url).line()
        line = loadstone("bench", server.url, "--model", "m").line()
    assert "no event stream of a language model (text/html: <html>welcome</html>)" in line


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (
            "401 Unauthorized",
            b'{"error": {"message": "no key"}}',
            "HTTP 401: no key; set LOADSTONE_API_KEY",
        ),
        ("404 Not Found", b'{"detail": "no such model"}', "HTTP 404: no such model; check --model"),
        ("429 Too Many Requests", b"", "HTTP 429: no further word; the server limits requests"),
        (
            "500 Oh",
            b"\x1b[31mboom\n\nboom",
            "HTTP 500: \ufffd[31mboom boom; the server refuses the simplest request",
        ),
    ],
)
def test_a_server_that_refuses(loadstone: Loadstone, status: str, body: bytes, said: str) -> None:
    def refuse(ask: Ask, send: Send) -> None:
        send(whole(status, body)) if ask.line.startswith("POST") else answer(ask, send)

    with ScriptedServer(refuse, meets=True) as server:
        assert said in loadstone("bench", server.url).line()


def test_a_key_is_wanted_for_the_list_of_models_already(loadstone: Loadstone) -> None:
    refused = sends(whole("401 Unauthorized", b'{"error": {"message": "no key"}}'))
    with ScriptedServer(refused, meets=True) as server:
        assert "HTTP 401: no key; set LOADSTONE_API_KEY" in loadstone("bench", server.url).line()


@pytest.mark.parametrize("endless", [PING, chunk(event({"choices": [{"text": ""}]}))])
def test_a_server_that_never_ends_its_first_answer(
    loadstone: Loadstone, endless: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_plane, "PATIENCE", control_plane.Patience(answer_s=1.0))

    def drip(ask: Ask, send: Send) -> None:
        streamed = ask.body and ask.json.get("stream")
        (repeats(SSE, endless, 0.1) if streamed else answer)(ask, send)

    with ScriptedServer(drip, meets=True) as server:
        assert "within 1 s" in loadstone("bench", server.url).line()


# --- in the run: every request is recorded --------------------------------------------------------


@pytest.mark.parametrize(
    "reply", [sends(whole("500 Oh", b"")), sends(SSE, chunk(token()), then=Hangup)]
)
def test_where_all_fail_nothing_is_invented_or_trusted(loadstone: Loadstone, reply: Reply) -> None:
    outcome, records = measure(loadstone, reply)
    assert statuses(records) == {"error": PLANNED}
    assert "request_errors" in outcome.findings
    assert not outcome.trusted
    assert outcome.cell["metrics"]["ttft_s"] is None
    if records[0]["http_status"] == 500:  # an error is no reason to leave
        assert sum(record["reused_connection"] for record in records) >= PLANNED - 2


def test_a_few_refusals_among_good_answers(loadstone: Loadstone) -> None:
    def sometimes(ask: Ask, send: Send) -> None:
        send(whole("503 Busy", b"")) if ask.number % 3 == 0 else answer(ask, send)

    outcome, records = measure(loadstone, sometimes)
    assert statuses(records) == {"error": 2, "ok": 4}
    assert outcome.cell["requests"] == {
        "sent": 6,
        "ok": 4,
        "error": 2,
        "timeout": 0,
        "cancelled": 0,
        "short": 0,
    }
    assert outcome.cell["metrics"]["ttft_s"]["n"] == 4


FIRST, IDLE, TOTAL = "--timeout-first", "--timeout-idle", "--timeout-total"
NO_FIRST, NO_NEXT = "waited 0.5 s for the first output", "waited 0.5 s for the next output"


@pytest.mark.parametrize(
    ("reply", "flag", "said", "arrived"),
    [
        pytest.param(sends(then=60.0), FIRST, NO_FIRST, 0, id="silence"),
        pytest.param(sends(SSE[:35], then=60.0), FIRST, NO_FIRST, 0, id="within the headers"),
        pytest.param(sends(SSE, then=60.0), FIRST, NO_FIRST, 0, id="headers and silence"),
        pytest.param(repeats(SSE, PING, 0.1), FIRST, NO_FIRST, 0, id="pings"),
        pytest.param(
            repeats(SSE + chunk(token()), PING, 0.1), IDLE, NO_NEXT, 1, id="a token and pings"
        ),
        pytest.param(
            sends(SSE, chunk(token()) * 4, then=60.0), IDLE, NO_NEXT, 4, id="after the last token"
        ),
        pytest.param(
            repeats(SSE, chunk(token()), 0.1),
            TOTAL,
            "not ended 0.5 s after",
            None,
            id="a token for ever",
        ),
    ],
)
def test_servers_that_hang(
    loadstone: Loadstone, reply: Reply, flag: str, said: str, arrived: int | None
) -> None:
    outcome, records = measure(loadstone, reply, flag, "500ms", "--concurrency", PLANNED)
    assert statuses(records) == {"timeout": PLANNED}
    assert all(said in record["error"] for record in records)
    assert outcome.cell["requests"]["timeout"] == PLANNED
    # What had arrived is kept: that is all there is to look at afterwards.
    came = {len(record["arrival_s"]) for record in records}
    assert came == {arrived} if arrived is not None else min(came) > 0


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
        (slow_to_begin, FIRST, "waited 0.3 s for the first output"),
        (slow_all_the_way, FIRST, None),
        (slow_to_go_on, IDLE, "waited 0.3 s for the next output"),
        (slow_all_the_way, IDLE, None),
        (slow_all_the_way, TOTAL, "not ended 0.3 s after sending"),
    ],
)
def test_an_answer_that_ends_just_after_a_timeout_is_one(
    loadstone: Loadstone, reply: Reply, flag: str, said: str | None
) -> None:
    """Whether a look at the request came between the timeout and the end must not decide."""
    outcome, records = measure(loadstone, reply, flag, "300ms", "--concurrency", PLANNED)
    if said is None:
        all_well(outcome, records)
        return
    assert statuses(records) == {"timeout": PLANNED}
    assert all(said in record["error"] for record in records)


def sometimes(odd: Reply, every: int, ask: Ask, send: Send) -> None:
    (answer if ask.number % every else odd)(ask, send)


@pytest.mark.slow
def test_a_million_tiny_chunks(loadstone: Loadstone) -> None:
    def long(ask: Ask, send: Send) -> None:
        send(SSE)
        for _ in range(1000):
            send(chunk(token()) * 1000)
        send(chunk(token(finish="length")) + chunk(DONE) + LAST_CHUNK)

    _, records = measure(loadstone, partial(sometimes, long, PLANNED))
    # Two are sent at once: either may be the server's first.
    longest = max(records, key=lambda record: len(record["arrival_s"]))
    assert longest["status"] == "ok"
    assert len(longest["arrival_s"]) == 1_000_001


def test_a_stream_that_never_ends_as_fast_as_it_can(loadstone: Loadstone) -> None:
    """It ends by `--timeout-total`, and memory stays bounded meanwhile."""
    endless = repeats(SSE, chunk(token()) * 200)
    _, records = measure(loadstone, partial(sometimes, endless, 3), "--timeout-total", "1s")
    assert statuses(records).keys() == {"ok", "timeout"}
    assert all(
        len(record["arrival_s"]) > 1000 for record in records if record["status"] == "timeout"
    )


def test_an_event_of_ten_megabytes(loadstone: Loadstone) -> None:
    huge = event({"choices": [{"text": "x" * 10_000_000, "finish_reason": None}]})

    def reply(ask: Ask, send: Send) -> None:
        odd = ask.headers["x-request-id"].endswith("-3")
        (streams(token(), huge, token(finish="length"), usage(ask)) if odd else answer)(ask, send)

    outcome, records = measure(loadstone, reply)
    (odd,) = [record for record in records if record["request_id"] == "0-3"]
    assert odd["status"] in ("ok", "error", "short")
    assert odd["status"] != "error" or odd["error"]
    assert statuses(records)["ok"] >= PLANNED - 1
    assert outcome.cell["metrics"]["ttft_s"]["n"] >= PLANNED - 1


@pytest.mark.parametrize(("streamed", "counted"), [(4, 400), (4, 0), (8, 4), (4, -3), (4, 2**40)])
def test_a_count_of_tokens_that_lies(loadstone: Loadstone, streamed: int, counted: int) -> None:
    lie = event({"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": counted}})
    outcome, records = measure(loadstone, streams(*tokens(streamed), lie, DONE))
    assert statuses(records).keys() <= {"ok", "short", "error"}
    assert outcome.spoilt_by or counted < 0 or counted > 2**31
    assert all(
        0 <= record["output_tokens"] < 2**31
        for record in records
        if record["output_tokens"] is not None
    )


def test_a_reset_right_behind_a_token_is_no_silence(loadstone: Loadstone) -> None:
    words = ("--concurrency", "8", "--requests", "400", "--timeout-idle", "4s", "--json")
    with ScriptedServer(sends(SSE, chunk(token()) * 4, then=Reset, pause_s=0)) as server:
        outcome = loadstone("bench", server.url, *QUICK, *words)
    assert statuses(outcome.records) == {"error": 400}
    assert {len(record["arrival_s"]) for record in outcome.records} <= {0, 4}


def test_an_answer_cut_at_each_of_its_bytes(loadstone: Loadstone) -> None:
    full = SSE + b"".join(map(chunk, [*[token()] * 4, token("", "length"), DONE])) + LAST_CHUNK

    def reply(ask: Ask, send: Send) -> None:
        send(full[: ask.number % len(full)])
        raise Hangup

    words = ("--concurrency", "8", "--requests", str(len(full)), "--json")
    with ScriptedServer(reply) as server:
        outcome = loadstone("bench", server.url, *QUICK, *words)
    assert statuses(outcome.records) == {"error": len(full)}
    assert sorted({len(record["arrival_s"]) for record in outcome.records}) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("shown", "kind"), [(True, "output_unlisted"), (False, "tokens_hidden")])
def test_odd_answers_are_read_by_their_counts_and_told(
    loadstone: Loadstone, shown: bool, kind: str
) -> None:
    """A role that counts as a token, and thinking in an odd field, or counted without ever being
    sent."""
    counts = {"prompt_tokens": 8, "completion_tokens": 8}
    details = {"completion_tokens_details": {"reasoning_tokens": 4}}
    thought = [{"thoughts": f" {i}"} for i in range(4)] if shown else []
    role = {"role": "assistant", "content": ""}
    first = event({"choices": [{"delta": role}], "usage": counts | {"completion_tokens": 1}})
    last = event({"choices": [{"delta": {}, "finish_reason": "length"}], "usage": counts | details})

    def reply(ask: Ask, send: Send) -> None:
        if not ask.body:
            answer(ask, send)
            return
        send(SSE + chunk(first))
        time.sleep(0.05)
        said = [*thought, *({"content": f" {i}"} for i in range(4))]
        deltas = [event({"choices": [{"delta": each}]}) for each in said]
        send(b"".join(map(chunk, [*deltas, last, DONE])) + LAST_CHUNK)

    words = (
        "--endpoint",
        "chat",
        "--input",
        "8",
        "--output",
        "8",
        "--concurrency",
        "1",
        "--requests",
        "2",
        "--json",
    )
    with ScriptedServer(reply, meets=True) as server:
        outcome = loadstone("bench", server.url, *words)
    assert {"first_event_void", kind} <= outcome.findings
    for record in outcome.records:
        assert (record["status"], record["output_tokens"]) == ("ok", 8 if shown else 4)
        assert len(record["arrival_s"]) == record["output_tokens"]
        assert record["arrival_s"][0] - record["sent_s"] >= 0.05


# --- connections ----------------------------------------------------------------------------------


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


def test_a_request_lost_with_its_kept_connection_is_sent_once_more_and_no_more(
    loadstone: Loadstone,
) -> None:
    """On a fresh connection it is answered."""
    with ScriptedServer(forgetful()) as server:
        outcome = loadstone("bench", server.url, *RUN)
    all_well(outcome, outcome.records)
    names = [ask.headers["x-request-id"] for ask in server.measured]
    assert max(names.count(name) for name in names) == 2
    assert len(set(names)) == PLANNED
    (finding,) = findings(outcome, "requests_resent")
    assert finding["severity"] == "info"
    assert finding["evidence"].startswith(f"{len(names) - PLANNED} of {PLANNED} requests")


def test_a_server_that_keeps_no_connection_is_not_asked_to_for_ever(loadstone: Loadstone) -> None:
    """After five that were lost every request has a connection of its own."""
    with ScriptedServer(forgetful()) as server:
        outcome = loadstone(
            "bench", server.url, *QUICK, "--concurrency", "1", "--requests", "30", "--json"
        )
    assert statuses(outcome.records) == {"ok": 30}
    assert not any(record["reused_connection"] for record in outcome.records)
    (finding,) = findings(outcome, "requests_resent")
    assert finding["evidence"].startswith("5 of 30 requests")


def test_a_server_killed_in_the_run(loadstone: Loadstone) -> None:
    """What is under way ends with an error, what comes after finds nobody; the run ends all the
    same."""

    def slowly(ask: Ask, send: Send) -> None:
        if ask.number == 3:
            threading.Timer(0.05, server.stop).start()
        say(send, events(ask), 0.02)

    with ScriptedServer(slowly) as server:
        outcome = loadstone("bench", server.url, *RUN)
    records = outcome.records
    assert len(records) == PLANNED
    assert statuses(records) in ({"ok": 2, "error": 4}, {"ok": 3, "error": 3})
    assert any(
        "cannot connect: Connection refused" in record["error"]
        for record in records
        if record["error"]
    )
    assert outcome.document["status"] == "done"


def test_a_server_that_stops_and_goes_on(loadstone: Loadstone, tmp_path: Path) -> None:
    """SIGSTOP: its sockets stay, nothing comes; then all goes on. Nothing is lost, and the pause is
    in the times."""
    with start(FixedLatency(ttft_s=0.01, itl_s=0.01)) as server:

        def pause() -> None:
            """Once answers have come, however long it took to begin."""
            journals = (tmp_path / "runs").glob
            eventually(
                lambda: any(path.stat().st_size > 4096 for path in journals("*/journal-*.arrow"))
            )
            os.kill(server.pid, signal.SIGSTOP)
            time.sleep(1)
            os.kill(server.pid, signal.SIGCONT)

        stopping = threading.Thread(target=pause)
        stopping.start()
        try:
            outcome = loadstone(
                "bench", server.url, *("--input", 16, "--output", 60, "--warmup", 0),
                *("--concurrency", 4, "--requests", 40, "--json"),
            )  # fmt: skip
        finally:
            stopping.join()
    assert outcome.cell["requests"]["ok"] == outcome.cell["requests"]["sent"] == 40
    gaps = [b - a for record in outcome.records for a, b in itertools.pairwise(record["arrival_s"])]
    waits = [record["arrival_s"][0] - record["sent_s"] for record in outcome.records]
    assert max(gaps + waits) > 0.7


def test_the_chat_endpoint_where_completions_are_not_offered(loadstone: Loadstone) -> None:
    def chat(ask: Ask, send: Send) -> None:
        counts = (
            {"prompt_tokens": ask.prompt_tokens + 2, "completion_tokens": ask.output_tokens}
            if ask.body
            else {}
        )
        if ask.path == "/v1/completions":
            send(whole("404 Not Found", b"{}"))
        elif ask.path != "/v1/chat/completions":
            answer(ask, send)
        elif ask.json.get("stream"):
            role = {"delta": {"role": "assistant", "content": ""}, "finish_reason": None}
            word = {"delta": {"content": " time"}, "finish_reason": None}
            end = {"delta": {}, "finish_reason": "length"}
            said = [event({"choices": [each]}) for each in (role, *[word] * ask.output_tokens, end)]
            streams(*said, event({"choices": [], "usage": counts}), DONE)(ask, send)
        else:
            choice = {
                "message": {"role": "assistant", "content": "time"},
                "finish_reason": "length",
            }
            send(whole("200 OK", json.dumps({"choices": [choice], "usage": counts}).encode()))

    with ScriptedServer(chat, meets=True) as server:
        outcome = loadstone("bench", server.url, *RUN)
    all_well(outcome, outcome.records)
    assert outcome.document["target"]["endpoint"] == "chat"
    assert all(ask.json["model"] == MODEL for ask in server.measured)


# --- the host -------------------------------------------------------------------------------------


def bench_with_files(
    reply: Reply, files: int, out: Path, *flags: str
) -> subprocess.CompletedProcess[str]:
    """Run `bench` as a process that may have so many files open."""
    with ScriptedServer(reply) as server:
        words = [
            sys.executable,
            "-m",
            "loadstone.commands",
            "bench",
            server.url,
            *QUICK,
            *flags,
            "--json",
        ]
        return subprocess.run(
            [*words, "--out", str(out)],
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)),
        )


def test_a_limit_of_open_files(tmp_path: Path) -> None:
    """The hard limit is known before the run, and told with its remedy; nothing is measured."""
    done = bench_with_files(answer, 200, tmp_path, "--concurrency", "300", "--requests", "300")
    assert done.returncode == 2
    assert "the limit of open files is 200; raise it with ulimit -n" in done.stderr
    assert not done.stdout


def test_more_open_files_wanted_than_were_foreseen(tmp_path: Path) -> None:
    """An open loop has as many connections as the server's slowness makes: those beyond the limit
    are errors."""

    def slow(ask: Ask, send: Send) -> None:
        time.sleep(1.5)
        answer(ask, send)

    done = bench_with_files(slow, 110, tmp_path, "--rate", "inf", "--requests", "120")
    assert done.returncode in (0, 2), done.stderr
    if done.returncode == 0:
        requests: Json = json.loads(done.stdout)["cells"][0]["requests"]
        assert requests["sent"] == 120 == requests["ok"] + requests["error"]
    else:
        assert "the limit of open files is 110" in done.stderr
