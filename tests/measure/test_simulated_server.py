"""The timing server, over real sockets and as a real process."""

import asyncio
import contextlib
import itertools
import json
import os
import re
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from loadstone import __version__
from loadstone.core.errors import InputError, LoadstoneError
from loadstone.measure.simulated_server import FixedLatency, TimingServer, start
from loadstone.measure.simulated_server.http import MAX_BODY_BYTES, MAX_HEAD_BYTES
from loadstone.measure.simulated_server.stream import WriteScheduler

LAW = FixedLatency(ttft_s=0.02, itl_s=0.002)
Json = dict[str, Any]


@pytest.fixture(scope="module")
def server() -> Iterator[TimingServer]:
    with start(LAW) as running:
        yield running


def address(server: TimingServer) -> tuple[str, int]:
    host, port = server.url.removeprefix("http://").rsplit(":", 1)
    return host, int(port)


def request_bytes(path: str, body: Json | bytes, *headers: str) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: x",
        f"Content-Length: {len(content)}",
        *headers,
        "",
        "",
    ]
    return "\r\n".join(lines).encode() + content


def completion(tokens: int, **fields: Any) -> Json:
    return {
        "model": "timing",
        "prompt": "one two three",
        "max_tokens": tokens,
        "stream": True,
    } | fields


def chat(tokens: int, **fields: Any) -> Json:
    return {
        "messages": [{"role": "user", "content": "one two"}],
        "max_tokens": tokens,
        "stream": True,
    } | fields


def chunks(data: bytes) -> tuple[list[bytes], bytes]:
    """The chunks of a chunked body (without the closing one), and what follows the body."""
    found: list[bytes] = []
    while True:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        assert data[length : length + 2] == b"\r\n"
        if not length:
            return found, data[2:]
        found.append(data[:length])
        data = data[length + 2 :]


def raw(server: TimingServer, sent: bytes, end: bytes = b"0\r\n\r\n") -> tuple[str, bytes]:
    """Head and body of the response to these bytes, up to `end`."""
    with socket.create_connection(address(server), timeout=10) as connection:
        connection.sendall(sent)
        data = b""
        while not data.endswith(end):
            piece = connection.recv(65536)
            assert piece, data
            data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    return head.decode(), body


def stream(server: TimingServer, body: Json, *headers: str) -> list[bytes]:
    """The events of a streamed answer: one HTTP chunk each."""
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    head, data = raw(server, request_bytes(path, body, *headers))
    assert head.startswith("HTTP/1.1 200 OK\r\n")
    assert "transfer-encoding: chunked" in head
    assert "content-type: text/event-stream" in head
    events, rest = chunks(data)
    assert rest == b""
    assert all(event.endswith(b"\n\n") and event.count(b"\n\n") == 1 for event in events)
    return events


def payloads(events: list[bytes]) -> list[Json]:
    """The JSON of the events, `[DONE]` left out."""
    assert all(event.startswith(b"data: ") for event in events)
    return [json.loads(event[6:]) for event in events if event != b"data: [DONE]\n\n"]


def metrics(server: TimingServer) -> dict[str, float]:
    text = httpx.get(f"{server.url}/metrics").text
    rows = re.findall(
        r'^vllm:(\w+)\{engine="0",model_name="timing"(?:,finished_reason="(\w+)")?\} (\S+)$',
        text,
        re.M,
    )
    return {name + (f":{reason}" if reason else ""): float(value) for name, reason, value in rows}


# The law.


@pytest.mark.parametrize(
    ("text", "law"),
    [
        ("ttft=50ms,itl=10ms", FixedLatency(0.05, 0.01)),
        ("itl=0, ttft=1.5s", FixedLatency(1.5, 0.0)),
        ("per_input_token=1us", FixedLatency(0.05, 0.01, 1e-6)),
        (str(FixedLatency(1e-05, 0.1, 3e-7)), FixedLatency(1e-05, 0.1, 3e-7)),
    ],
)
def test_law_parse(text: str, law: FixedLatency) -> None:
    assert FixedLatency.parse(text) == law


@pytest.mark.parametrize(
    "text",
    ["", "fast", "ttft", "ttft=", "ttft=-1s", "tpot=1ms", "ttft=1s,ttft=2s", "itl=inf", "itl=1ms,"],
)
def test_law_parse_nonsense(text: str) -> None:
    with pytest.raises(InputError, match="--sim"):
        FixedLatency.parse(text)


def test_pictures_take_a_fixed_time_more() -> None:
    law = FixedLatency.parse("ttft=100ms,itl=10ms,encode=50ms")
    assert law.due_ns(7, 0, pictures=True) - law.due_ns(7, 0) == 50_000_000
    assert FixedLatency.parse(str(law)) == law


def test_law_due() -> None:
    law = FixedLatency(ttft_s=0.5, itl_s=0.25, per_input_token_s=0.125)
    assert [law.due_ns(4, index) for index in range(3)] == [
        1_000_000_000,
        1_250_000_000,
        1_500_000_000,
    ]


# What is sent.


@pytest.mark.process
def test_completion_bytes(server: TimingServer) -> None:
    events = stream(
        server, completion(2, stream_options={"include_usage": True}), "X-Request-Id: r1"
    )
    start_ = '{"id":"cmpl-r1","object":"text_completion","created":0,"model":"timing","choices":['
    after = '"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}'
    assert [re.sub(rb'"created":\d+', b'"created":0', event).decode() for event in events] == [
        f'data: {start_}{{"index":0,"text":" w0000","logprobs":null,"finish_reason":null,{after}\n\n',
        f'data: {start_}{{"index":0,"text":" w0001","logprobs":null,"finish_reason":"length",{after}\n\n',
        f'data: {start_}],"usage":{{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2,'
        '"prompt_tokens_details":{"cached_tokens":0}}}\n\n',
        "data: [DONE]\n\n",
    ]


@pytest.mark.process
def test_plain_events_equal_the_others(server: TimingServer) -> None:
    for body in (completion(1100), chat(3)):
        (texts, stamped) = (
            stream(server, body, "X-Request-Id: a", *more)
            for more in ((), ("X-Loadstone-Truth: 1",))
        )
        without = [re.sub(rb"^: t=\d+\n", b"", event) for event in stamped]
        created = re.compile(rb'"created":\d+')
        assert [created.sub(b"", event) for event in texts] == [
            created.sub(b"", event) for event in without
        ]
        assert all(re.match(rb": t=\d+\ndata: ", event) for event in stamped)


@pytest.mark.process
def test_chat_stream(server: TimingServer) -> None:
    events = stream(server, chat(3))
    assert events[-1] == b"data: [DONE]\n\n"
    documents = payloads(events)
    choices = [document["choices"][0] for document in documents]
    assert choices[0] == {
        "index": 0,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": None,
    }
    assert [choice["delta"] for choice in choices[1:]] == [
        {"content": f" w000{index}"} for index in range(3)
    ]
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "length"]
    assert {document["object"] for document in documents} == {"chat.completion.chunk"}
    assert len({document["id"] for document in documents}) == 1
    assert not any("usage" in document for document in documents)


@pytest.mark.process
def test_text_counts_as_many_words_as_tokens(server: TimingServer) -> None:
    text = "".join(
        document["choices"][0]["text"] for document in payloads(stream(server, completion(9)))
    )
    assert len(text.split()) == 9


@pytest.mark.process
def test_whole_answers(server: TimingServer) -> None:
    usage = {
        "prompt_tokens": 3,
        "total_tokens": 5,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    answer = httpx.post(
        f"{server.url}/v1/completions",
        json=completion(2, stream=False),
        headers={"X-Request-Id": 'a"b'},
    )
    assert answer.headers["x-request-id"] == 'a"b'
    document = answer.json()
    assert document["id"] == 'cmpl-a"b'
    assert document["choices"][0]["text"] == " w0000 w0001"
    assert document["choices"][0]["finish_reason"] == "length"
    assert document["usage"] == usage
    document = httpx.post(f"{server.url}/v1/chat/completions", json=chat(2, stream=False)).json()
    assert document["object"] == "chat.completion"
    assert document["choices"][0]["message"] == {"role": "assistant", "content": " w0000 w0001"}
    assert document["usage"]["prompt_tokens"] == 3 + 4 + 2


@pytest.mark.process
@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [("a b\n c", 3), ([5, 6], 2), (["a b"], 2), ([[1, 2, 3, 4]], 4), ("", 0)],
)
def test_prompt_forms(server: TimingServer, prompt: object, tokens: int) -> None:
    body = completion(
        1, stream=False, prompt=prompt, ignore_eos=True, min_tokens=1, temperature=0, seed=1, odd={}
    )
    assert (
        httpx.post(f"{server.url}/v1/completions", json=body).json()["usage"]["prompt_tokens"]
        == tokens
    )


@pytest.mark.process
def test_default_lengths() -> None:
    with start(FixedLatency(0, 0), max_model_len=40) as server:
        body = completion(1, stream=False)
        del body["max_tokens"]
        answer = httpx.post(f"{server.url}/v1/completions", json=body).json()
        assert answer["usage"]["completion_tokens"] == 16
        body = chat(1, stream=False)
        del body["max_tokens"]
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=body).json()
        assert answer["usage"]["total_tokens"] == 40
        parts = {
            "role": "user",
            "content": [{"type": "text", "text": "a b"}, {"type": "image_url"}],
        }
        body = chat(
            1, stream=False, max_completion_tokens=2, messages=[parts, {"role": "assistant"}]
        )
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=body).json()
        assert answer["usage"]["prompt_tokens"] == 3 + 4 + 2 + 4
        assert answer["usage"]["completion_tokens"] == 2


@pytest.mark.process
def test_running_usage(server: TimingServer) -> None:
    asked = {"include_usage": True, "continuous_usage_stats": True}
    documents = payloads(stream(server, chat(2, stream_options=asked)))
    counts = [
        (document["usage"]["completion_tokens"], document["usage"]["total_tokens"])
        for document in documents
    ]
    assert counts == [(0, 9), (1, 10), (2, 11), (2, 11)]
    assert [len(document["choices"]) for document in documents] == [1, 1, 1, 0]
    # Like vLLM: continuous stats without include_usage are no usage at all.
    documents = payloads(stream(server, chat(2, stream_options={"continuous_usage_stats": True})))
    assert not any("usage" in document for document in documents)


@pytest.mark.process
@pytest.mark.parametrize(
    ("usage", "places"),
    [("none", []), ("final", [3]), ("running", [0, 1, 2, 3]), ("unasked", [2])],
)
def test_usage_flag(usage: Any, places: list[int]) -> None:
    with start(FixedLatency(0, 0), usage=usage) as server:
        for options in ({}, {"include_usage": True}):
            documents = payloads(stream(server, completion(3, stream_options=options)))
            assert [
                index for index, document in enumerate(documents) if "usage" in document
            ] == places
            assert [len(document["choices"]) for document in documents[:3]] == [1, 1, 1]
            if places:
                assert documents[places[-1]]["usage"]["completion_tokens"] == 3
        whole = httpx.post(f"{server.url}/v1/completions", json=completion(3, stream=False)).json()
        assert ("usage" in whole) == bool(places)


@pytest.mark.process
def test_tokens_per_event_and_no_done() -> None:
    with start(FixedLatency(0, 0), tokens_per_event=4, done=False) as server:
        asked = {"include_usage": True, "continuous_usage_stats": True}
        events = stream(server, completion(11, stream_options=asked))
        assert b"[DONE]" not in b"".join(events)
        documents = payloads(events)
        texts = [document["choices"][0]["text"].split() for document in documents[:-1]]
        assert [len(text) for text in texts] == [1, 4, 4, 2]
        assert sum(texts, []) == [f"w{index:04}" for index in range(11)]  # noqa: RUF017  (four short lists)
        assert [document["usage"]["completion_tokens"] for document in documents] == [
            1,
            5,
            9,
            11,
            11,
        ]


# SGLang's own endpoint.


def generate(tokens: int, **fields: Any) -> Json:
    return {
        "text": "one two three",
        "sampling_params": {"max_new_tokens": tokens},
        "stream": True,
    } | fields


def generated(server: TimingServer, body: Json, *headers: str) -> list[bytes]:
    head, data = raw(server, request_bytes("/generate", body, *headers))
    assert head.startswith("HTTP/1.1 200 OK\r\n")
    assert "content-type: text/event-stream" in head
    events, rest = chunks(data)
    assert rest == b""
    return events


@pytest.mark.process
def test_generate_bytes(server: TimingServer) -> None:
    events = generated(server, generate(2), "X-Request-Id: r1")
    first = '{"text":" w0000","output_ids":[0],"meta_info":{"id":"r1","finish_reason":null,"prompt_tokens":3,'
    last = '{"text":" w0000 w0001","output_ids":[0,1],"meta_info":{"id":"r1","finish_reason":{"type":"length",'
    assert [event.decode() for event in events] == [
        f'data: {first}"completion_tokens":1,"cached_tokens":0}}}}\n\n',
        f'data: {last}"length":2}},"prompt_tokens":3,"completion_tokens":2,"cached_tokens":0}}}}\n\n',
        "data: [DONE]\n\n",
    ]


@pytest.mark.process
def test_generate_says_all_text_and_the_running_count_each_time(server: TimingServer) -> None:
    documents = payloads(generated(server, generate(1100, text=None, input_ids=[5] * 7)))
    assert [document["meta_info"]["completion_tokens"] for document in documents] == list(
        range(1, 1101)
    )
    assert {document["meta_info"]["prompt_tokens"] for document in documents} == {7}
    assert [len(document["text"].split()) for document in documents] == list(range(1, 1101))
    assert all(
        later["text"].startswith(earlier["text"])
        for earlier, later in itertools.pairwise(documents)
    )


@pytest.mark.process
def test_generate_stamps_and_bundles() -> None:
    with start(LAW, tokens_per_event=4, done=False) as server:
        events = generated(server, generate(10), "X-Loadstone-Truth: 1")
    stamped = re.compile(rb"^: t=(\d+)\ndata: ")
    times = [int(stamped.match(event)[1]) for event in events]  # type: ignore[index]
    assert times == sorted(times)
    documents = payloads([re.sub(rb"^: t=\d+\n", b"", event) for event in events])
    assert [document["meta_info"]["completion_tokens"] for document in documents] == [1, 5, 9, 10]


@pytest.mark.process
def test_generate_in_one_piece_and_refusals(server: TimingServer) -> None:
    document = httpx.post(f"{server.url}/generate", json=generate(2, stream=False)).json()
    assert (document["text"], document["meta_info"]["completion_tokens"]) == (" w0000 w0001", 2)
    assert document["meta_info"]["finish_reason"] == {"type": "length", "length": 2}
    for body in (
        {},
        generate(0),
        generate(200_000),
        {"text": ["a", "b"]},
        {"input_ids": "a b"},
        {"sampling_params": 3},
    ):
        answer = httpx.post(f"{server.url}/generate", json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"]
    default = httpx.post(f"{server.url}/generate", json={"input_ids": [1, 2]}).json()
    assert default["meta_info"]["completion_tokens"] == 128


@pytest.mark.process
def test_other_endpoints(server: TimingServer) -> None:
    card = httpx.get(f"{server.url}/v1/models").json()["data"][0]
    assert (card["id"], card["max_model_len"]) == ("timing", 131_072)
    assert httpx.get(f"{server.url}/version?x=1").json() == {"version": __version__}
    health = httpx.get(f"{server.url}/health")
    assert (health.status_code, health.content) == (200, b"")
    document = httpx.post(f"{server.url}/tokenize", json={"prompt": "a b a"}).json()
    assert (document["count"], document["max_model_len"]) == (3, 131_072)
    assert document["tokens"][0] == document["tokens"][2] != document["tokens"][1]
    assert httpx.post(f"{server.url}/tokenize", json={"content": [7, 8]}).json()["tokens"] == [7, 8]


@pytest.mark.process
@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/completions", completion(1, model="other"), 404),
        ("GET", "/nowhere", b"", 404),
        ("GET", "/v1/completions", b"", 405),
        ("POST", "/metrics", b"", 405),
        ("POST", "/v1/completions", b"{", 400),
        ("POST", "/v1/completions", b"[" * 100_000, 400),
        ("POST", "/v1/completions", b'{"prompt": "\xff"}', 400),
        ("POST", "/v1/completions", completion(0), 400),
        ("POST", "/v1/completions", completion(131_070), 400),
        ("POST", "/v1/completions", completion(1, prompt=[0] * 131_072), 400),
        ("POST", "/v1/completions", completion(1, prompt=["a", "b"]), 400),
        ("POST", "/v1/completions", completion(1, prompt=[[]]), 400),
        ("POST", "/v1/completions", completion("many"), 400),  # type: ignore[arg-type]
        ("POST", "/v1/chat/completions", completion(1), 400),
        ("POST", "/v1/chat/completions", chat(1, messages=["hello"]), 400),
        ("POST", "/tokenize", {}, 400),
    ],
)
def test_refusals(
    server: TimingServer, method: str, path: str, body: Json | bytes, status: int
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = httpx.request(method, server.url + path, content=content)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error["code"] == status
    assert error["message"]
    if status == 405:
        assert answer.headers["allow"] != method


@pytest.mark.process
def test_a_body_without_bounds_is_refused_and_the_server_goes_on(server: TimingServer) -> None:
    with httpx.Client(base_url=server.url) as client:
        answer = client.post("/v1/completions", content=b" " * (MAX_BODY_BYTES + 1))
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, 413)
        assert client.post("/v1/completions", json=completion(1, stream=False)).status_code == 200


# Connections.


@pytest.mark.process
def test_keep_alive_pipelining_and_close(server: TimingServer) -> None:
    first, second = completion(5), completion(1, stream=False)
    sent = request_bytes("/v1/completions", first, "X-Request-Id: 1")
    sent += request_bytes("/v1/completions", second, "X-Request-Id: 2", "Connection: close")
    with socket.create_connection(address(server), timeout=10) as connection:
        for _ in range(2):
            connection.sendall(request_bytes("/v1/completions", first))
            data = b""
            while not data.endswith(b"0\r\n\r\n"):
                data += connection.recv(65536)
            assert len(chunks(data.partition(b"\r\n\r\n")[2])[0]) == 6
        connection.sendall(sent)
        data = b""
        while piece := connection.recv(65536):
            data += piece
    events, rest = chunks(data.partition(b"\r\n\r\n")[2])
    assert len(events) == 6
    assert b"x-request-id: 2" in rest
    assert b"connection: close" in rest
    assert json.loads(rest.partition(b"\r\n\r\n")[2])["usage"]["completion_tokens"] == 1


@pytest.mark.process
def test_not_http_and_expect(server: TimingServer) -> None:
    with socket.create_connection(address(server), timeout=10) as connection:
        connection.sendall(b"nonsense\r\n\r\n")
        data = b""
        while piece := connection.recv(65536):
            data += piece
    assert data.startswith(b"HTTP/1.1 400 ")
    with socket.create_connection(address(server), timeout=10) as connection:
        head, _, body = request_bytes(
            "/tokenize", {"prompt": "a"}, "Expect: 100-continue"
        ).partition(b"\r\n\r\n")
        connection.sendall(head + b"\r\n\r\n")
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 OK")


def told(server: TimingServer, sent: bytes) -> bytes:
    """All that is answered to these bytes, until the server closes."""
    with socket.create_connection(address(server), timeout=10) as connection:
        connection.sendall(sent)
        return b"".join(iter(lambda: connection.recv(65536), b""))


GET_HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.process
@pytest.mark.parametrize(
    "before", [GET_HEALTH + b"\r\n", request_bytes("/v1/completions", completion(5))]
)
def test_what_was_asked_before_nonsense_is_answered_first(
    server: TimingServer, before: bytes
) -> None:
    first, _, rest = told(server, before + b"\0nonsense\r\n\r\n").partition(b"HTTP/1.1 400 ")
    assert first.startswith(b"HTTP/1.1 200 ")
    assert first.count(b'"text":') == (5 if b"completions" in before else 0)
    assert b"not understood as HTTP/1.1" in rest


@pytest.mark.process
@pytest.mark.parametrize("path", [b"/health", b"/nowhere"])
def test_an_answer_to_head_has_no_body(server: TimingServer, path: bytes) -> None:
    sent = (
        b"HEAD "
        + path
        + b" HTTP/1.1\r\nHost: x\r\n\r\n"
        + GET_HEALTH
        + b"Connection: close\r\n\r\n"
    )
    head, _, rest = told(server, sent).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 40")
    assert rest.startswith(b"HTTP/1.1 200 ")


@pytest.mark.process
@pytest.mark.parametrize("offered", ["h2c", "websocket"])
def test_offers_of_another_protocol_are_not_taken_up(server: TimingServer, offered: str) -> None:
    headers = [
        f"Upgrade: {offered}",
        "Connection: Upgrade, HTTP2-Settings",
        "HTTP2-Settings: AAMAAABkAAQAoAAA",
    ]
    sent = request_bytes("/v1/completions", completion(2), *headers)
    got = told(server, sent + sent + GET_HEALTH + b"Connection: close\r\n\r\n")
    assert got.count(b"HTTP/1.1 200 OK") == 3
    assert got.count(b'"text":') == 4
    assert told(server, b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 400 ")


@pytest.mark.process
def test_who_expects_to_be_told_is_told_after_the_answer_before(server: TimingServer) -> None:
    head, _, body = request_bytes("/tokenize", {"prompt": "a"}, "Expect: 100-continue").partition(
        b"\r\n\r\n"
    )
    with socket.create_connection(address(server), timeout=10) as connection:
        connection.sendall(request_bytes("/v1/completions", completion(5)) + head + b"\r\n\r\n")
        data = b""
        while b" 100 Continue\r\n\r\n" not in data:
            data += connection.recv(65536)
        assert data.startswith(b"HTTP/1.1 200 OK")
        assert data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n")
        connection.sendall(body)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.process
@pytest.mark.parametrize(
    "head", [b"GET /" + b"a" * MAX_HEAD_BYTES, b"GET / HTTP/1.1\r\nx: " + b"a" * MAX_HEAD_BYTES]
)
def test_a_head_without_end_is_refused(server: TimingServer, head: bytes) -> None:
    with socket.create_connection(address(server), timeout=10) as connection:
        for begin in range(0, len(head), 4096):
            connection.sendall(head[begin : begin + 4096])
        assert connection.recv(1000).startswith(b"HTTP/1.1 431 ")
    assert (
        len(told(server, GET_HEALTH + b"Connection: close\r\nx: " + b"a" * 60_000 + b"\r\n\r\n"))
        < 200
    )


STREAM = request_bytes("/v1/completions", completion(100_000))
MUCH_ANSWERED = (b"GET /metrics HTTP/1.1\r\nHost: x\r\nx: " + b"a" * 8000 + b"\r\n\r\n") * 128
MUCH_ASKED = request_bytes("/tokenize", {"prompt": "a" * 2**20})


@pytest.mark.process
@pytest.mark.parametrize(("before", "asked"), [(b"", MUCH_ANSWERED), (STREAM, MUCH_ASKED)])
def test_what_is_asked_and_not_taken_stays_with_the_client(
    server: TimingServer, before: bytes, asked: bytes
) -> None:
    """The next request is read when there is an answer to make, and when the client takes the one
    before."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(5)
        connection.connect(address(server))
        connection.sendall(before)
        with pytest.raises(TimeoutError):
            connection.sendall(asked * 64)


@pytest.mark.process
def test_disconnect_ends_the_stream(server: TimingServer) -> None:
    before = metrics(server)
    with socket.create_connection(address(server), timeout=10) as connection:
        connection.sendall(request_bytes("/v1/completions", completion(100_000)))
        while b"w0004" not in connection.recv(65536):
            pass
        assert metrics(server)["num_requests_running"] == 1
    deadline = time.monotonic() + 5
    while (after := metrics(server))["num_requests_running"] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert after["num_requests_running"] == 0
    assert after["request_success_total:abort"] == before["request_success_total:abort"] + 1
    assert after["request_success_total:length"] == before["request_success_total:length"]
    assert after["prompt_tokens_total"] == before["prompt_tokens_total"] + 3
    assert 5 <= after["generation_tokens_total"] - before["generation_tokens_total"] < 5000
    time.sleep(0.05)
    assert metrics(server) == after


@pytest.mark.process
def test_a_slow_reader_gets_everything() -> None:
    with start(FixedLatency(0, 0)) as server, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(10)
        connection.connect(address(server))
        connection.sendall(request_bytes("/v1/completions", completion(30_000)))
        while (
            metrics(server)["request_success_total:length"] == 0
        ):  # all is written, most of it not read
            time.sleep(0.05)
        data = bytearray()
        while not data.endswith(b"0\r\n\r\n"):
            data += connection.recv(1 << 20)
        assert len(re.findall(rb'"text":" w\d{4}"', data)) == 30_000


@pytest.mark.process
def test_300_streams_at_once(server: TimingServer) -> None:
    before = metrics(server)
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        answers: dict[socket.socket, bytearray] = {}
        for number in range(300):
            connection = stack.enter_context(socket.create_connection(address(server), timeout=10))
            connection.sendall(request_bytes("/v1/completions", completion(20 + number % 7)))
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_READ, number)
            answers[connection] = bytearray()
        open_streams = set(answers)
        while open_streams:
            ready = selector.select(timeout=10)
            assert ready
            for key, _ in ready:
                connection = key.fileobj  # type: ignore[assignment]
                piece = connection.recv(65536)
                assert piece
                answers[connection] += piece
                if answers[connection].endswith(b"0\r\n\r\n"):
                    open_streams.discard(connection)
        for number, answer in enumerate(answers.values()):
            events = chunks(bytes(answer).partition(b"\r\n\r\n")[2])[0]
            assert len(events) == 20 + number % 7 + 1
    after = metrics(server)
    expected = sum(20 + number % 7 for number in range(300))
    assert after["generation_tokens_total"] - before["generation_tokens_total"] == expected
    assert after["request_success_total:length"] - before["request_success_total:length"] == 300
    assert after["num_requests_running"] == 0


# Time.


@pytest.mark.process
@pytest.mark.quiet
def test_tokens_come_when_due() -> None:
    law = FixedLatency(ttft_s=0.05, itl_s=0.01, per_input_token_s=0.01)
    for attempt in reversed(range(5)):  # a busy machine is late, but not every time
        with start(law) as server:
            sent_ns = time.monotonic_ns()
            events = stream(server, completion(51), "X-Loadstone-Truth: 1")[:51]
        stamps = [int(re.match(rb": t=(\d+)\n", event)[1]) for event in events]  # type: ignore[index]
        excess_ns = [stamp - sent_ns - law.due_ns(3, index) for index, stamp in enumerate(stamps)]
        assert min(excess_ns) >= 0
        assert stamps == sorted(stamps)
        gap_s = statistics.median(b - a for a, b in itertools.pairwise(stamps)) / 1e9
        in_time = gap_s == pytest.approx(law.itl_s, rel=0.2) and sorted(excess_ns)[25] < 0.2 * (
            stamps[0] - sent_ns
        )
        if in_time:
            break
        assert attempt, (gap_s, excess_ns)


@pytest.mark.process
def test_bundles_come_when_their_last_token_is_due() -> None:
    law = FixedLatency(ttft_s=0.02, itl_s=0.01)
    with start(law, tokens_per_event=5) as server:
        sent_ns = time.monotonic_ns()
        events = stream(server, completion(11), "X-Loadstone-Truth: 1")[:3]
    stamps = [int(re.match(rb": t=(\d+)\n", event)[1]) for event in events]  # type: ignore[index]
    for stamp, last in zip(stamps, (0, 5, 10), strict=True):
        assert stamp - sent_ns >= law.due_ns(3, last)


def test_the_loops_own_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no timerfd."""
    early_ns: list[int] = []

    def ticks(due_ns: int) -> Iterator[int]:
        for tick_ns in range(due_ns, due_ns + 15_000_000, 5_000_000):
            yield tick_ns
            early_ns.append(tick_ns - time.monotonic_ns())

    async def run() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "platform", "darwin")
            scheduler = WriteScheduler(asyncio.get_running_loop())
        now_ns = time.monotonic_ns()
        scheduler.add(ticks(now_ns + 20_000_000))
        scheduler.add(ticks(now_ns + 3_000_000))
        while len(early_ns) < 6:
            await asyncio.sleep(0.005)
        scheduler.close()

    asyncio.run(asyncio.wait_for(run(), 10))
    assert max(early_ns) <= 0


@pytest.mark.process
def test_truth_is_kept_until_it_is_taken() -> None:
    with start(LAW, keep_truth=True) as server:
        begun_ns = time.monotonic_ns()
        events = stream(server, completion(5), "X-Request-Id: a", "X-Loadstone-Truth: 1")
        stream(server, chat(3), "X-Request-Id: b")
        httpx.post(
            f"{server.url}/v1/completions",
            json=completion(2, stream=False),
            headers={"X-Request-Id": "c"},
        )
        truth = httpx.get(f"{server.url}/truth").json()
        ended_ns = time.monotonic_ns()
        assert httpx.get(f"{server.url}/truth").json() == {}
    assert {name: len(times) for name, times in truth.items()} == {"a": 6, "b": 4, "c": 2}
    times = [begun_ns, *itertools.chain(*truth.values()), ended_ns]
    assert times == sorted(times)
    # Each event's own stamp is made with it, just before it is written; the next is not made before
    # that.
    stamps = [int(re.match(rb": t=(\d+)\n", event)[1]) for event in events[:5]]  # type: ignore[index]
    read_ns, *written_ns = truth["a"]
    assert all(stamp <= at for stamp, at in zip(stamps, written_ns, strict=True))
    assert all(at <= stamp for stamp, at in zip(stamps[1:], written_ns[:-1], strict=True))
    assert all(at - read_ns >= LAW.due_ns(3, index) for index, at in enumerate(written_ns))


@pytest.mark.process
def test_truth_is_not_kept_unasked(server: TimingServer) -> None:
    assert httpx.get(f"{server.url}/truth").status_code == 404


# The process.


def launch(*arguments: str, code: str = "") -> subprocess.Popen[bytes]:
    program = ["-c", code] if code else ["-m", "loadstone.measure.simulated_server"]
    return subprocess.Popen(
        [sys.executable, *program, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )


@pytest.mark.process
def test_import_is_light() -> None:
    code = "import sys, loadstone.measure.simulated_server; print({'asyncio', 'httptools', 'uvloop'} & set(sys.modules))"
    with launch(code=code) as process:
        assert process.communicate()[0] == b"set()\n"


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_signals_end_it(number: signal.Signals, loop: str) -> None:
    package = "loadstone.measure.simulated_server"
    imports = f"from {package} import *; from {package}.__main__ import serve"
    without = f"import sys; sys.modules['uvloop'] = None; {imports}; serve(Settings(latency=FixedLatency(0.001, 0.001)))"
    settings = '{"latency": {"ttft_s": 0.001, "itl_s": 0.001}}'
    with launch(settings, code=without if loop == "asyncio" else "") as process:
        assert process.stdout
        server = TimingServer(json.loads(process.stdout.readline())["url"], process.pid)
        with socket.create_connection(address(server)) as connection:
            assert len(stream(server, completion(5))) == 6
            connection.sendall(request_bytes("/v1/completions", completion(100_000)))
            assert connection.recv(1000)
            process.send_signal(number)
            assert process.wait(timeout=10) == 0


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with contextlib.suppress(FileNotFoundError), open(f"/proc/{pid}/stat", "rb") as stat:  # noqa: PTH123
        return stat.read().rpartition(b")")[2].split()[0] != b"Z"
    return True


def ends(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)


@pytest.mark.process
def test_it_dies_with_its_parent() -> None:
    code = "import time; from loadstone.measure.simulated_server import *\n"
    code += "with start(FixedLatency()) as server: print(server.pid, flush=True); time.sleep(60)"
    with launch(code=code) as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
        assert ends(pid)


@pytest.mark.process
def test_it_ends_with_the_block() -> None:
    with start(FixedLatency()) as server:
        assert alive(server.pid)
        assert httpx.get(f"{server.url}/health").status_code == 200
    assert not alive(server.pid)


@pytest.mark.process
def test_it_says_why_it_does_not_start(capfd: pytest.CaptureFixture[str]) -> None:
    with (
        pytest.raises(LoadstoneError, match="did not start"),
        start(FixedLatency(), host="203.0.113.1"),
    ):
        pass
    assert "cannot listen on 203.0.113.1" in capfd.readouterr().err
    with (
        pytest.raises(InputError, match="tokens_per_event"),
        start(FixedLatency(), tokens_per_event=0),
    ):
        pass
