"""Faults that are rarer, or larger, than those of test_faults.py; of the host too."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path

import pytest

from conftest import (
    LAST_CHUNK,
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
from loadstone.measure.simulated_server import FixedLatency, start
from test_faults import PLANNED, measure

HALF_A_HEADER = b"HTTP/1.1 200 OK\r\nContent-Type: text/ev"


def statuses(records: list[Json]) -> set[str]:
    return {record["status"] for record in records}


# --- connections that end, or hang, at any place ----------------------------------------------------------------


@pytest.mark.parametrize("farewell", [Hangup, Reset])
def test_a_connection_that_ends_within_the_headers(loadstone: Loadstone, farewell: type[Exception]) -> None:
    def reply(ask: Ask, send: Send) -> None:
        send(HALF_A_HEADER)
        time.sleep(0.02)
        raise farewell

    outcome, records = measure(loadstone, reply)
    assert statuses(records) == {"error"}
    assert not any(record["arrival_s"] for record in records)
    assert "request_errors" in outcome.findings


@pytest.mark.parametrize("farewell", [Hangup, Reset])
@pytest.mark.parametrize("finish", ["length", None])
def test_a_connection_that_ends_after_the_last_token(
    loadstone: Loadstone, farewell: type[Exception], finish: str | None
) -> None:
    """Whether the answer was complete is known by its finish reason, not by how the connection ended."""

    def reply(ask: Ask, send: Send) -> None:
        send(SSE + b"".join(map(chunk, [token(), token(), token(), token(finish=finish)])))
        time.sleep(0.05)
        raise farewell

    _, records = measure(loadstone, reply)
    assert all(len(record["arrival_s"]) == 4 for record in records)
    if finish is None:
        assert statuses(records) == {"error"}
    else:
        assert all(record["finish_reason"] == "length" for record in records)
        assert len(statuses(records)) == 1


def within_the_headers(ask: Ask, send: Send) -> None:
    send(HALF_A_HEADER)
    time.sleep(60)


def after_the_last_token(ask: Ask, send: Send) -> None:
    send(SSE + b"".join(map(chunk, [token()] * 4)))
    time.sleep(60)


@pytest.mark.parametrize(
    ("reply", "flag", "tokens"),
    [(within_the_headers, "--timeout-first", 0), (after_the_last_token, "--timeout-idle", 4)],
)
def test_a_server_that_hangs(loadstone: Loadstone, reply: Reply, flag: str, tokens: int) -> None:
    _, records = measure(loadstone, reply, flag, "300ms")
    assert statuses(records) == {"timeout"}
    assert all(len(record["arrival_s"]) == tokens for record in records)


def test_a_server_that_stops_and_goes_on(loadstone: Loadstone, tmp_path: Path) -> None:
    """SIGSTOP: its sockets stay, nothing comes; then all goes on. Nothing is lost, and the pause is in the times."""
    with start(FixedLatency(ttft_s=0.01, itl_s=0.01)) as server:

        def pause() -> None:
            """Once answers have come, however long it took to begin."""
            journals = (tmp_path / "runs").glob
            eventually(lambda: any(path.stat().st_size > 4096 for path in journals("*/journal-*.arrow")))
            os.kill(server.pid, signal.SIGSTOP)
            time.sleep(2)
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
    gaps = [b - a for record in outcome.records for a, b in zip(record["arrival_s"], record["arrival_s"][1:])]  # noqa: B905
    waits = [record["arrival_s"][0] - record["sent_s"] for record in outcome.records]
    assert max(gaps + waits) > 1.5


# --- what comes is odd, or too much -----------------------------------------------------------------------------


def endless(head: bytes, piece: bytes) -> Reply:
    def reply(ask: Ask, send: Send) -> None:
        send(head)
        while True:
            send(piece)

    return reply


PACKED = SSE.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")


def unpacking(byte: bytes) -> bytes:
    """64 MiB of one byte, in 64 kB."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join([packer.compress(byte * (1 << 20)) for _ in range(64)]) + packer.flush()


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (endless(b"HTTP/1.1 200 OK\r\nX: ", b"a" * 65536), "headers without end"),
        (endless(b"", b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 999), "headers without end"),
        (endless(SSE + chunk(token()) + b"0\r\nX: ", b"a" * 65536), "headers without end"),
        (endless(SSE + chunk(token()) + b"5;", b"a" * 65536), "headers without end"),
        (endless(PACKED, chunk(unpacking(b"\n"))), "unpacks to over 4 MiB"),
        (endless(PACKED, chunk(b"no gzip")), "compressed answer cannot be read"),
    ],
    ids=["a header", "interim answers", "a trailer", "a chunk's extension", "packed line ends", "not packed"],
)
def test_what_has_no_end_and_holds_nothing_is_given_up(loadstone: Loadstone, reply: Reply, said: str) -> None:
    """At once: not after the many minutes that an answer may take, with all of it in memory."""
    began_s = time.monotonic()
    _, records = measure(loadstone, reply)
    assert statuses(records) == {"error"}
    assert all(said in record["error"] for record in records), records[0]["error"]
    assert time.monotonic() - began_s < 60


def test_refused_with_a_word_when_to_come_back(loadstone: Loadstone) -> None:
    """Retry-After is not obeyed: a client that waited would hide the refusal, and change the load."""
    began_s = time.monotonic()

    def reply(ask: Ask, send: Send) -> None:
        send(b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 600\r\nContent-Length: 0\r\n\r\n")

    outcome, records = measure(loadstone, reply)
    assert {record["http_status"] for record in records} == {429}
    assert outcome.cell["requests"]["error"] == PLANNED
    assert time.monotonic() - began_s < 300


def test_bytes_that_are_no_utf_8(loadstone: Loadstone) -> None:
    bad = event({"choices": [{"text": "MARK", "finish_reason": None}]}).replace(b"MARK", b"\xff\xfe\xc3")

    def reply(ask: Ask, send: Send) -> None:
        send(SSE + b"".join(map(chunk, [token(), bad, token(), token(finish="length"), usage(ask)])) + LAST_CHUNK)

    _, records = measure(loadstone, reply)
    assert statuses(records) == {"ok"}
    assert all(record["output_tokens"] == 4 for record in records)


def test_an_event_of_ten_megabytes(loadstone: Loadstone) -> None:
    huge = event({"choices": [{"text": "x" * 10_000_000, "finish_reason": None}]})

    def reply(ask: Ask, send: Send) -> None:
        if ask.number == 3:
            send(SSE + chunk(token()) + chunk(huge) + chunk(token(finish="length")) + chunk(usage(ask)) + LAST_CHUNK)
        else:
            answer(ask, send)

    outcome, records = measure(loadstone, reply)
    (odd,) = [record for record in records if record["request_id"] == "0-3"]
    assert odd["status"] in ("ok", "error", "short")
    assert odd["status"] != "error" or odd["error"]
    assert sum(record["status"] == "ok" for record in records) >= PLANNED - 1
    assert outcome.cell["metrics"]["ttft_s"]["n"] >= PLANNED - 1


@pytest.mark.parametrize("done", [["[DONE]", "[DONE]"], ["[DONE]", "late"]])
def test_an_end_that_comes_twice_or_too_early(loadstone: Loadstone, done: list[str]) -> None:
    def reply(ask: Ask, send: Send) -> None:
        said = [token(), token(), token(), token(finish="length"), usage(ask)]
        said += [event("[DONE]") if word == "[DONE]" else token() for word in done]
        send(SSE + b"".join(map(chunk, said)) + LAST_CHUNK)

    _, records = measure(loadstone, reply)
    assert statuses(records) == {"ok"}
    assert all(record["output_tokens"] == 4 for record in records)


@pytest.mark.slow
def test_a_million_tiny_chunks(loadstone: Loadstone) -> None:
    said = chunk(token()) * 1000

    def reply(ask: Ask, send: Send) -> None:
        if ask.number:
            answer(ask, send)
            return
        send(SSE)
        for _ in range(1000):
            send(said)
        send(chunk(token(finish="length")) + chunk(event("[DONE]")) + LAST_CHUNK)

    _, records = measure(loadstone, reply)
    # Two are sent at once: either may be the server's first.
    long = max(records, key=lambda record: len(record["arrival_s"]))
    assert long["status"] == "ok"
    assert len(long["arrival_s"]) == 1_000_001


def test_a_stream_that_never_ends_as_fast_as_it_can(loadstone: Loadstone) -> None:
    """It ends by `--timeout-total`, and memory stays bounded meanwhile."""
    said = chunk(token()) * 200

    def reply(ask: Ask, send: Send) -> None:
        if ask.number % 3:
            answer(ask, send)
            return
        send(SSE)
        while True:
            send(said)

    _, records = measure(loadstone, reply, "--timeout-total", "1s")
    assert statuses(records) == {"ok", "timeout"}
    assert all(len(record["arrival_s"]) > 1000 for record in records if record["status"] == "timeout")


@pytest.mark.parametrize(("streamed", "counted"), [(4, 400), (4, 0), (8, 4), (4, -3), (4, 2**40)])
def test_a_count_of_tokens_that_lies(loadstone: Loadstone, streamed: int, counted: int) -> None:
    def reply(ask: Ask, send: Send) -> None:
        lie = event({"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": counted}})
        last = [token(finish="length"), lie, event("[DONE]")]
        send(SSE + b"".join(map(chunk, [token()] * (streamed - 1) + last)) + LAST_CHUNK)

    outcome, records = measure(loadstone, reply)
    assert statuses(records) <= {"ok", "short", "error"}
    assert outcome.spoilt_by or counted < 0 or counted > 2**31
    assert all(0 <= record["output_tokens"] < 2**31 for record in records if record["output_tokens"] is not None)


# --- the host ---------------------------------------------------------------------------------------------------


def test_a_name_that_nobody_knows(loadstone: Loadstone) -> None:
    line = loadstone("bench", "http://no-such-host.invalid:8000").line()
    assert line.startswith("http://no-such-host.invalid:8000: ")


def test_a_limit_of_open_files(tmp_path: Path) -> None:
    """The hard limit is known before the run, and told with its remedy; nothing is measured."""
    with ScriptedServer(answer) as server:
        command = [sys.executable, "-m", "loadstone.commands", "bench", server.url, *map(str, QUICK)]
        command += ["--concurrency", "300", "--requests", "300", "--json", "--out", str(tmp_path)]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200)),
        )
    assert done.returncode == 2
    assert "the limit of open files is 200; raise it with ulimit -n" in done.stderr
    assert not done.stdout


def test_more_open_files_wanted_than_were_foreseen(tmp_path: Path) -> None:
    """An open loop has as many connections as the server's slowness makes: those beyond the limit are errors."""

    def slow(ask: Ask, send: Send) -> None:
        time.sleep(1.5)
        answer(ask, send)

    with ScriptedServer(slow) as server:
        command = [sys.executable, "-m", "loadstone.commands", "bench", server.url, *map(str, QUICK)]
        command += ["--rate", "inf", "--requests", "120", "--json", "--out", str(tmp_path)]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (110, 110)),
        )
    assert done.returncode in (0, 2), done.stderr
    if done.returncode == 0:
        requests = json.loads(done.stdout)["cells"][0]["requests"]
        assert requests["sent"] == 120 == requests["ok"] + requests["error"]
    else:
        assert "the limit of open files is 110" in done.stderr


def test_a_page_in_place_of_every_answer(loadstone: Loadstone) -> None:
    def reply(ask: Ask, send: Send) -> None:
        send(whole("503 Service Unavailable", b"<html><h1>nginx</h1></html>", "text/html"))

    outcome, records = measure(loadstone, reply)
    assert {record["http_status"] for record in records} == {503}
    assert outcome.cell["metrics"]["ttft_s"] is None


def test_what_is_right_stays_right(loadstone: Loadstone) -> None:
    """The other tests could pass by failing everything."""
    _, records = measure(loadstone, lambda ask, send: send(SSE + b"".join(map(chunk, events(ask))) + LAST_CHUNK))
    assert statuses(records) == {"ok"}
