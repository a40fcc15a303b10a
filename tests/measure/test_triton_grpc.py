"""Triton over gRPC: its tensors, byte for byte; the connection, against a server that says what a
test wants."""

from __future__ import annotations

import asyncio
import itertools
import queue
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadstone.core.errors import InputError
from loadstone.core.plan import PlannedRequest
from loadstone.measure.client.clock import RunClock
from loadstone.measure.client.connection import Address
from loadstone.measure.client.grpc import (
    METHOD,
    Channels,
    GrpcConnection,
    load_library,
    make_metadata,
    shut_down,
)
from loadstone.measure.client.stream import Stream
from loadstone.measure.engines.attach import attach
from loadstone.measure.engines.probe import Requirements
from loadstone.measure.engines.server import Trial
from loadstone.measure.engines.triton_grpc import GrpcServer
from loadstone.measure.wire.request import RequestBody, make_body
from loadstone.measure.wire.triton import GrpcAnswer, GrpcBody, Tensor, fold, may_be_last
from loadstone.workload.request import LENGTH, PROMPT, RequestSpec, Sampling, Structured

TYPES = {
    "text_input": "BYTES",
    "max_tokens": "INT32",
    "stream": "BOOL",
    "temperature": "FP32",
    "stop_words": "BYTES",
}


def spec(**changes: Any) -> RequestSpec:
    fields: dict[str, Any] = {
        "model": "ensemble",
        "types": TYPES,
        "inputs": tuple(TYPES),
        **changes,
    }
    return RequestSpec(endpoint="triton-grpc", **fields)


# --- tensors --------------------------------------------------------------------------------------


def test_a_request_is_the_models_inputs_with_their_types_and_shapes() -> None:
    written = make_body(spec(sampling=Sampling(temperature=0.5, stop=("a", "b"))))
    assert written["model_name"] == "ensemble"
    inputs = {
        entry["name"]: (entry["datatype"], entry["shape"], entry["data"])
        for entry in written["inputs"]
    }
    assert inputs == {
        "text_input": ("BYTES", [1], [PROMPT]),
        "max_tokens": ("INT32", [1], [LENGTH]),
        "stream": ("BOOL", [1], [True]),
        "temperature": ("FP32", [1], [0.5]),
        "stop_words": ("BYTES", [2], ["a", "b"]),
    }
    batched = make_body(spec(batched=True, sampling=Sampling(stop=("a", "b"))))
    assert {entry["name"]: entry["shape"] for entry in batched["inputs"]} == {
        "text_input": [1, 1], "max_tokens": [1, 1], "stream": [1, 1], "stop_words": [1, 2],
    }  # fmt: skip


def test_a_rendered_request_in_bytes() -> None:
    rendered = RequestBody(
        make_body(spec(sampling=Sampling(temperature=0.5, stop=("a", "bc"))))
    ).render('"é!"'.encode(), 300)
    assert {
        tensor.name: tensor.raw() for tensor in msgspec.json.decode(rendered, type=GrpcBody).inputs
    } == {
        "text_input": b"\x03\0\0\0\xc3\xa9!",
        "max_tokens": b"\x2c\x01\0\0",
        "stream": b"\x01",
        "temperature": b"\0\0\0\x3f",
        "stop_words": b"\x01\0\0\0a\x02\0\0\0bc",
    }


@pytest.mark.parametrize(
    ("datatype", "value", "raw"),
    [
        ("UINT64", 7, b"\x07" + bytes(7)),
        ("UINT32", 7, b"\x07\0\0\0"),
        ("UINT16", 7, b"\x07\0"),
        ("UINT8", 7, b"\x07"),
        ("INT64", -1, b"\xff" * 8),
        ("INT16", -2, b"\xfe\xff"),
        ("INT8", -2, b"\xfe"),
        ("FP64", 1.0, b"\0\0\0\0\0\0\xf0\x3f"),
        ("FP16", 1.0, b"\0\x3c"),
        ("BYTES", "", b"\0\0\0\0"),
        ("BOOL", False, b"\0"),
        ("BOOL", True, b"\x01"),
    ],
)
def test_datatypes(datatype: str, value: object, raw: bytes) -> None:
    assert Tensor("x", datatype, [1], [value]).raw() == raw


@pytest.mark.parametrize(
    ("datatype", "value"),
    [
        ("UINT64", -1),
        ("INT32", "x"),
        ("BYTES", 3),
        ("BF16", 1.0),
        ("BOOL", "false"),
        ("BOOL", None),
        ("FP32", 1e39),
    ],
)
def test_a_value_of_another_type_is_told(datatype: str, value: object) -> None:
    with pytest.raises(InputError, match=f"input 'seed' of the model is {datatype}, and cannot be"):
        Tensor("seed", datatype, [1], [value]).raw()


def test_an_input_that_the_model_lacks_is_told() -> None:
    with pytest.raises(
        InputError,
        match=r"--extra-body: the model has no input 'top_q'; it has max_tokens, stop_words, ",
    ):
        make_body(spec(extra={"top_q": 1}))


def text(said: str | bytes) -> tuple[str, bytes]:
    raw = said.encode() if isinstance(said, str) else said
    return "BYTES", struct.pack("<I", len(raw)) + raw


def number(count: int) -> tuple[str, bytes]:
    return "INT32", struct.pack("<i", count)


def test_counts_of_each_response_add_up() -> None:
    answer = GrpcAnswer(keep_text=True)
    parts = [(" a", 1), ("", 1), (" bc", 2), ("", 0), (" d", 0)]
    came = [
        answer.receive({
            "text_output": text(said), "num_output_tokens": number(tokens), "num_input_tokens": number(9),
        })
        for said, tokens in parts
    ]  # fmt: skip
    assert came == [1, 1, 1, 0, 1]
    assert answer.running
    assert answer.running_tokens == [1, 2, 4, 4]
    assert (answer.events, answer.output_tokens, answer.input_tokens) == (4, 4, 9)
    assert answer.text == " a bc d"
    assert answer.receive({}) == 0
    assert (answer.running, answer.output_tokens, answer.input_tokens) == (True, 4, 9)
    assert not answer.done
    assert answer.finish() == 0
    assert answer.done


def test_without_counts_a_response_with_text_is_a_piece() -> None:
    answer = GrpcAnswer()
    assert [answer.receive({"text_output": text(said)}) for said in (" a", "", " b")] == [1, 0, 1]
    assert answer.receive({}) == 0
    assert not answer.running
    assert answer.output_tokens is None


@pytest.mark.parametrize(
    ("datatype", "raw", "tokens"),
    [
        ("INT32", b"\x03\0\0\0", 3),
        ("UINT32", b"\x03\0\0\0\x09\0\0\0", 3),
        ("INT64", b"\x03" + bytes(7), 3),
        ("UINT64", b"\x03" + bytes(7), 3),
        ("INT64", b"\x03\0\0\0", None),
        ("INT32", b"\xff" * 4, None),
        ("FP32", b"\0\0\x40\x40", None),
    ],
)
def test_counts_are_whole_numbers_of_any_size(
    datatype: str, raw: bytes, tokens: int | None
) -> None:
    answer = GrpcAnswer()
    answer.receive({"text_output": text(" a"), "num_output_tokens": (datatype, raw)})
    assert answer.output_tokens == tokens


@pytest.mark.parametrize(
    ("raw", "said"),
    [(text(" a")[1] + text(" b")[1], " a"), (b"\x09\0\0\0cut", "cut"), (b"\x01\0", ""), (b"", "")],
)
def test_of_several_beams_the_first_is_the_answer(raw: bytes, said: str) -> None:
    answer = GrpcAnswer(keep_text=True)
    answer.receive({"text_output": ("BYTES", raw)})
    assert answer.text == said


def test_an_answer_in_one_piece_is_one_event_at_its_end() -> None:
    answer = GrpcAnswer(stream=False)
    assert [
        answer.receive({"text_output": text(" a b"), "num_output_tokens": number(2)})
        for _ in range(2)
    ] == [0, 0]
    assert answer.finish() == 1
    assert (answer.events, answer.output_tokens, answer.running_tokens, answer.done) == (
        1,
        4,
        [],
        True,
    )


def test_what_comes_in_place_of_a_response_is_the_last_and_no_output() -> None:
    def unreadable(_: bytes) -> Any:
        raise ValueError("truncated")

    for parse, said in (
        (unreadable, "response is not a ModelStreamInferResponse: truncated"),
        (lambda _: SimpleNamespace(error_message="no such model"), "no such model"),
    ):
        answer = GrpcAnswer()
        assert fold(parse, answer, b"") == (0, True)
        assert answer.error == said


outputs = st.dictionaries(
    st.sampled_from(["text_output", "num_output_tokens", "num_input_tokens", "else"]),
    st.tuples(
        st.sampled_from(["BYTES", "INT32", "INT64", "UINT64", "FP32", ""]), st.binary(max_size=12)
    ),
)


@given(st.lists(outputs, max_size=8), st.booleans())
def test_outputs_of_any_kind_do_no_harm(
    responses: list[dict[str, tuple[str, bytes]]], stream: bool
) -> None:
    answer = GrpcAnswer(stream=stream, keep_text=True)
    came = sum(answer.receive(response) for response in responses) + answer.finish()
    assert came == answer.events
    assert not answer.running or len(answer.running_tokens) == came
    assert all(count >= 0 for count in (answer.output_tokens or 0, answer.input_tokens or 0))


def test_headers_that_grpc_writes_itself_are_left_out() -> None:
    headers = [
        ("Host", "h"),
        ("Content-Type", "application/json"),
        ("Authorization", "Bearer k"),
        ("X-Team", "t"),
    ]
    assert make_metadata(headers) == (("authorization", "Bearer k"), ("x-team", "t"))


def test_without_the_extra_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tritonclient.grpc", None)
    with pytest.raises(
        InputError, match=r"--endpoint triton-grpc needs .*: pip install 'loadstone\[triton\]'"
    ):
        load_library()


@pytest.mark.parametrize(
    ("url", "proxy", "said"),
    [
        ("https://h:8001", None, "without TLS only"),
        ("http://h:8001/v1", None, "has no path"),
        ("http://h:8001", "http://p:1", "without a proxy only"),
    ],
)
def test_what_grpc_cannot_do_is_told(url: str, proxy: str | None, said: str) -> None:
    with pytest.raises(InputError, match=said):
        GrpcServer(url, [], proxy)


# --- the connection -------------------------------------------------------------------------------

Say = Callable[..., bytes]
Reply = Callable[[Any, "Speaker"], Iterator[bytes]]
"""Answers one request with encoded responses. An exception ends the stream, `Gone` without an
error."""


class Gone(Exception):
    """End the stream, as if all were said."""


class Speaker:
    """Writes responses as Triton does."""

    def __init__(self, messages: Any) -> None:
        self._messages = messages

    def part(self, said: str | None = " a", *, tokens: int | None = 1, last: bool = False) -> bytes:
        message = self._messages.ModelStreamInferResponse()
        response = message.infer_response
        response.parameters["triton_final_response"].bool_param = last
        for name, output in (
            ("text_output", None if said is None else text(said)),
            ("num_output_tokens", None if tokens is None else number(tokens)),
        ):
            if output is not None:
                response.outputs.add(name=name, datatype=output[0], shape=[1, 1])
                response.raw_output_contents.append(output[1])
        return bytes(message.SerializeToString())

    def end(self) -> bytes:
        return self.part(None, tokens=None, last=True)

    def error(self, said: str) -> bytes:
        return bytes(
            self._messages.ModelStreamInferResponse(error_message=said).SerializeToString()
        )


def good(request: Any, say: Speaker) -> Iterator[bytes]:
    for _ in range(3):
        yield say.part()
    yield say.end()


class Scripted:
    """A gRPC server in threads of this process."""

    def __init__(self, reply: Reply) -> None:
        grpc, messages = load_library()
        self.requests: list[Any] = []
        self.streams = 0
        self.metadata: list[tuple[str, str]] = []
        say = Speaker(messages)

        def talk(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
            self.streams += 1
            self.metadata = [(key, value) for key, value in context.invocation_metadata()]
            for data in requests:
                self.requests.append(messages.ModelInferRequest.FromString(data))
                try:
                    yield from reply(self.requests[-1], say)
                except Gone:
                    return

        service, _, method = METHOD.strip("/").partition("/")
        handler = grpc.stream_stream_rpc_method_handler(talk)
        self._server = grpc.server(ThreadPoolExecutor(8))
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: handler}),)
        )
        port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        self.address = Address(socket.AF_INET, ("127.0.0.1", port), None)

    def __enter__(self) -> Scripted:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._server.stop(None).wait()


class Worker:
    """Stands for the worker, on a loop like its own; keeps what it was told."""

    held_limit_bytes = 65536

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._wake = loop.create_future()
        self.clock = RunClock(time.monotonic_ns())
        self.told: queue.Queue[tuple[Any, ...]] = queue.Queue()
        self.failures: list[Any] = []
        self.loop.set_exception_handler(lambda _, context: self.failures.append(context))
        self.channels = Channels(headers=[("X-Team", "t")], request_tag="run-")
        self._numbers = itertools.count()

    def on_ended(self, connection: GrpcConnection, stream: Stream) -> None:
        stream.judge(False)
        self._tell("ended", stream.status)

    def on_broke(
        self, connection: GrpcConnection, stream: Stream, reason: str, *, retry: bool
    ) -> None:
        self._tell("broke", reason, retry)

    def on_opened(self, connection: GrpcConnection) -> None:
        self._tell("opened")

    def on_dropped(self, connection: GrpcConnection) -> None:
        self._tell("dropped")

    def _tell(self, *what: Any) -> None:
        self.told.put(what)
        if not self._wake.done():
            self._wake.set_result(None)

    def stream(self) -> Stream:
        request = PlannedRequest(0, next(self._numbers), "measure", 0.0, 3, 3, None, 0, None)
        payload = RequestBody(make_body(spec(batched=True))).render(b'"one two"', 3)
        return Stream(request, payload, time.monotonic_ns(), GrpcAnswer())

    def open(self, server: Scripted, stream: Stream | None) -> GrpcConnection:
        connection = GrpcConnection(self, self.channels)
        self.loop.call_soon(connection.open, server.address, stream)
        return connection

    def hear(self) -> tuple[Any, ...]:
        """What the connection tells next."""
        if self.told.empty():
            self._wake = self.loop.create_future()
            self.loop.run_until_complete(self._wake)
        return self.told.get_nowait()

    def wait(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """One for all: gRPC's poller serves the loops of a process together, so that none should be
    closed under it."""
    pytest.importorskip(
        "tritonclient.grpc", reason="the extra is not installed: pip install 'loadstone[triton]'"
    )
    uvloop = pytest.importorskip("uvloop")
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def worker(loop: asyncio.AbstractEventLoop) -> Iterator[Worker]:
    worker = Worker(loop)
    yield worker
    shut_down(loop)
    assert worker.failures == []


def test_requests_follow_one_another_on_one_stream(worker: Worker) -> None:
    with Scripted(good) as server:
        first, second = worker.stream(), worker.stream()
        connection = worker.open(server, first)
        assert worker.hear() == ("ended", "ok")
        connection.start(second)
        assert worker.hear() == ("ended", "ok")
        connection.close()
    assert server.streams == 1
    assert ("x-team", "t") in server.metadata
    assert [request.id for request in server.requests] == ["run-0-0", "run-0-1"]
    assert server.requests[0].parameters["triton_enable_empty_final_response"].bool_param
    assert [
        (tensor.name, tensor.datatype, list(tensor.shape)) for tensor in server.requests[0].inputs
    ] == [
        (name, TYPES[name], [1, 1]) for name in ("text_input", "max_tokens", "stream", "stop_words")
    ]
    assert server.requests[0].raw_input_contents[0] == b"\x07\0\0\0one two"
    assert (first.reused, second.reused) == (False, True)
    for stream in (first, second):
        assert list(stream.read_index) == [0, 1, 2]
        assert list(stream.arrival_s) == sorted(stream.arrival_s)
        assert stream.sent_ns is not None
        assert stream.end_ns is not None
        assert worker.clock.since_origin_s(stream.sent_ns) <= stream.arrival_s[0]
        assert stream.arrival_s[-1] <= worker.clock.since_origin_s(stream.end_ns)
        assert (stream.answer.running_tokens, stream.token_source()) == ([1, 2, 3], "running usage")
        assert stream.worst_lag_ns == -1  # there is no kernel stamp to compare with
        assert stream.http_status == 200


@pytest.mark.usefixtures("loop")
def test_the_end_and_an_error_are_known_from_outside() -> None:
    say = Speaker(load_library().messages)
    assert [may_be_last(data) for data in (say.end(), say.part(last=True), say.error("no"))] == [
        True
    ] * 3
    assert not may_be_last(say.part())


def test_the_last_response_may_carry_output(worker: Worker) -> None:
    def reply(request: Any, say: Speaker) -> Iterator[bytes]:
        yield say.part()
        yield say.part(" b", last=True)

    with Scripted(reply) as server:
        stream = worker.stream()
        worker.open(server, stream)
        assert worker.hear() == ("ended", "ok")
        assert (stream.answer.events, len(stream.arrival_s)) == (2, 2)


def test_a_connection_opened_ahead_waits_for_its_request(worker: Worker) -> None:
    with Scripted(good) as server:
        connection = worker.open(server, None)
        assert worker.hear() == ("opened",)
        assert connection.connected
        stream = worker.stream()
        connection.start(stream)
        assert worker.hear() == ("ended", "ok")
        assert not stream.reused


def test_an_error_ends_the_answer_and_the_connection(worker: Worker) -> None:
    def reply(request: Any, say: Speaker) -> Iterator[bytes]:
        yield say.part()
        yield say.error("out of\nmemory")
        yield say.end()

    with Scripted(reply) as server:
        stream = worker.stream()
        connection = worker.open(server, stream)
        assert worker.hear() == ("ended", "error")
        assert stream.error == "error in the stream: out of memory"
        assert stream.answer.events == 1
        assert connection.closed


def test_a_response_that_cannot_be_read_is_an_error(worker: Worker) -> None:
    def reply(request: Any, say: Speaker) -> Iterator[bytes]:
        yield b"\x12\xff\xff"
        yield say.end()

    with Scripted(reply) as server:
        stream = worker.stream()
        worker.open(server, stream)
        assert worker.hear() == ("ended", "error")
        assert "response is not a ModelStreamInferResponse" in (stream.error or "")


def test_the_streams_end_before_the_answers_keeps_what_came(worker: Worker) -> None:
    def reply(request: Any, say: Speaker) -> Iterator[bytes]:
        yield say.part()
        raise Gone

    with Scripted(reply) as server:
        stream = worker.stream()
        connection = worker.open(server, stream)
        assert worker.hear() == (
            "broke",
            "the server ended the stream before the answer's end",
            False,
        )
        assert (stream.answer.events, connection.closed) == (1, True)


def test_a_refusal_of_the_call_is_told_in_one_line(worker: Worker) -> None:
    def reply(request: Any, say: Speaker) -> Iterator[bytes]:
        raise RuntimeError("such\nis life")
        yield b""

    with Scripted(reply) as server:
        worker.open(server, worker.stream())
        kind, reason, retry = worker.hear()
        assert (kind, retry) == ("broke", False)
        assert reason.startswith("gRPC UNKNOWN: ")
        assert "such is life" in reason


def test_a_kept_stream_that_ends_without_a_word_is_tried_again(worker: Worker) -> None:
    def reply(request: Any, say: Speaker) -> Iterator[bytes]:
        if request.id != "run-0-0":
            raise Gone
        yield from good(request, say)

    with Scripted(reply) as server:
        connection = worker.open(server, worker.stream())
        assert worker.hear() == ("ended", "ok")
        again = worker.stream()
        connection.start(again)
        assert worker.hear()[::2] == ("broke", True)
        assert again.payload  # or it could not be sent again


def test_an_idle_connection_whose_server_goes_is_dropped(worker: Worker) -> None:
    with Scripted(good) as server:
        connection = worker.open(server, worker.stream())
        assert worker.hear() == ("ended", "ok")
        server.stop()
        assert worker.hear() == ("dropped",)
        assert connection.closed


def test_a_server_that_speaks_out_of_turn_is_dropped(worker: Worker) -> None:
    def reply(request: Any, say: Speaker) -> Iterator[bytes]:
        yield from good(request, say)
        yield say.part(last=True)

    with Scripted(reply) as server:
        connection = worker.open(server, worker.stream())
        assert worker.hear() == ("ended", "ok")
        if not connection.closed:  # what was too much may have come with the end, or after it
            assert worker.hear() == ("dropped",)
        assert connection.closed


def test_where_nobody_listens_the_reason_is_told(worker: Worker) -> None:
    with Scripted(good) as server:
        pass
    worker.open(server, worker.stream())
    kind, reason, retry = worker.hear()
    assert (kind, retry) == ("broke", False)
    assert reason.startswith("gRPC UNAVAILABLE: ")
    worker.open(server, None)
    assert worker.hear() == ("dropped",)


def test_closing_cancels_and_tells_nobody(worker: Worker) -> None:
    gone = queue.Queue[bool]()

    def reply(request: Any, say: Speaker) -> Iterator[bytes]:
        try:
            while True:
                time.sleep(0.001)
                yield say.part()
        finally:
            gone.put(True)

    with Scripted(reply) as server:
        stream = worker.stream()
        connection = worker.open(server, stream)
        while not stream.answer.events:
            worker.wait(0.01)
            connection.decode()
        connection.stream = None
        connection.close()
        connection.close()
        worker.wait(0.05)
        assert worker.told.empty()
        assert gone.get(timeout=30)


def test_little_is_held_undecoded(worker: Worker) -> None:
    worker.held_limit_bytes = 1000

    def reply(request: Any, say: Speaker) -> Iterator[bytes]:
        for _ in range(50):
            yield say.part("x" * 100)
        yield say.end()

    with Scripted(reply) as server:
        stream = worker.stream()
        connection = worker.open(server, stream)
        worst = 0

        async def watch() -> None:
            nonlocal worst
            while True:
                worst = max(worst, connection._held_bytes)
                await asyncio.sleep(0)

        worker.loop.create_task(watch())
        assert worker.hear() == ("ended", "ok")
        assert 0 < worst <= 1000
        assert stream.answer.events == 50


# --- meeting --------------------------------------------------------------------------------------


class FakeServer(GrpcServer):
    """A server of one model with such inputs, whose answers are what `said` makes of a request."""

    origin = "http://x:8001"

    def __init__(self, inputs: tuple[str, ...], said: Callable[[RequestSpec], str]) -> None:
        self._inputs, self._said = inputs, said
        self.asked: list[RequestSpec] = []

    def call(self, name: str, /, **fields: Any) -> Any:
        config = {
            "name": "ensemble",
            "input": [{"name": each, "data_type": "TYPE_STRING"} for each in self._inputs],
        }
        answers = {
            "ServerMetadata": {"name": "triton", "version": "2.60.0"},
            "RepositoryIndex": {"models": [{"name": "ensemble", "state": "READY"}]},
            "ModelConfig": {"config": config},
        }
        return getattr(load_library().messages, f"{name}Response")(**answers[name])

    def send_once(
        self,
        spec: RequestSpec,
        prompt: str | Sequence[int] | None = None,
        *,
        tokens: int | None = None,
        keep_text: bool = False,
    ) -> Trial:
        self.asked.append(spec)
        answer = GrpcAnswer(keep_text=keep_text)
        answer.receive({"text_output": text(self._said(spec))})
        answer.finish()
        return Trial(answer, answer.error)


GUIDED = (
    "text_input",
    "max_tokens",
    "temperature",
    "guided_decoding_guide_type",
    "guided_decoding_guide",
)
DIGITS = Structured(kind="regex", value="[0-9]{80}")


def probe(server: GrpcServer, sampling: Sampling, structured: Structured | None) -> RequestSpec:
    needs = Requirements(endpoint="triton-grpc", sampling=sampling, structured=structured)
    return attach(server, needs).request


def test_a_shape_that_is_heeded_is_asked_for() -> None:
    spec = probe(
        FakeServer(GUIDED, lambda spec: "0123" if spec.structured else " word"),
        Sampling(temperature=0.5),
        DIGITS,
    )
    assert (spec.structured, spec.spelling, spec.sampling.temperature) == (
        DIGITS,
        "guided_decoding",
        0.5,
    )


def test_a_shape_that_is_taken_and_ignored_is_told() -> None:
    """The beginning of an answer cannot tell; that it is the very answer that comes without the
    wish, does."""
    with pytest.raises(InputError, match=r"--structured: .*guided_decoding: ignored"):
        probe(FakeServer(GUIDED, lambda _: " word"), Sampling(), DIGITS)


@pytest.mark.parametrize(
    ("sampling", "structured", "said"),
    [
        (Sampling(top_p=0.5), None, "--top-p 0.5: the model ensemble has no input"),
        (Sampling(), DIGITS, "--structured"),
    ],
)
def test_a_wish_without_an_input_is_told_before_it_is_tried(
    sampling: Sampling, structured: Structured | None, said: str
) -> None:
    server = FakeServer(("text_input", "max_tokens"), lambda _: " word")
    with pytest.raises(InputError, match=said):
        probe(server, sampling, structured)
    assert len(server.asked) == 1
