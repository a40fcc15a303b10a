"""Requests of the control plane end, whatever the server does."""

from __future__ import annotations

import gzip
import time

import httpx
import pytest

from conftest import Ask, Reply, ScriptedServer, Send, whole
from loadstone.measure.engines.http import send

PACKED = b"HTTP/1.1 200 OK\r\nContent-Encoding: %b\r\nContent-Length: %d\r\n\r\n%b"


def headers_that_drip(ask: Ask, send: Send) -> None:
    send(b"HTTP/1.1 200 OK\r\nX: ")
    while True:
        send(b"a")
        time.sleep(0.02)


def interim_answers(ask: Ask, send: Send) -> None:
    while True:
        send(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 50)
        time.sleep(0.001)


def a_body_that_drips(ask: Ask, send: Send) -> None:
    send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        send(b"a")
        time.sleep(0.02)


def ask(url: str, *, limit_s: float = 30.0, max_bytes: int = 1_000_000) -> tuple[bytes, bool]:
    with httpx.Client(timeout=30, trust_env=False) as http:
        said = send(http, http.build_request("GET", url), limit_s=limit_s, max_bytes=max_bytes)
    return said.body, said.whole


@pytest.mark.parametrize("reply", [headers_that_drip, interim_answers, a_body_that_drips])
def test_an_answer_that_is_spun_out_ends(reply: Reply) -> None:
    began_s = time.monotonic()
    with ScriptedServer(reply, meets=True) as server, pytest.raises(httpx.ReadTimeout):
        ask(server.url, limit_s=0.4)
    assert time.monotonic() - began_s < 20


def test_what_is_packed_is_not_unpacked() -> None:
    body = gzip.compress(b"well")
    with (
        ScriptedServer(
            lambda ask, send: send(PACKED % (b"gzip", len(body), body)), meets=True
        ) as server,
        pytest.raises(httpx.DecodingError, match="compressed by gzip, though asked not to be"),
    ):
        ask(server.url)


def test_a_body_is_whole_or_said_to_be_cut() -> None:
    with ScriptedServer(lambda ask, send: send(whole("200 OK", b"x" * 100)), meets=True) as server:
        assert ask(server.url, max_bytes=100) == (b"x" * 100, True)
        assert ask(server.url, max_bytes=99) == (b"x" * 99, False)
