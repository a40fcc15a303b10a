"""Messages and Responses: whichever server sends them, first tokens, channels and counts are those
of the same answer in OpenAI's chat."""

import json
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from conftest import (
    LAST_CHUNK,
    SSE,
    Ask,
    Loadstone,
    Outcome,
    Reply,
    ScriptedServer,
    Send,
    chunk,
    whole,
)
from loadstone.core.record import ANSWER, THINKING, TOOL_CALL
from loadstone.measure import simulated_server
from loadstone.measure.simulated_server import FixedLatency, TimingServer
from loadstone.measure.wire.answer import Answer
from loadstone.measure.wires import anthropic, responses
from loadstone.measure.wires.anthropic import MessagesReply
from loadstone.measure.wires.responses import ResponsesReply
from wires import event, hear, state

GIVEN = Path(__file__).resolve().parents[3] / "shared" / "data" / "api_streams"
needs_streams = pytest.mark.skipif(not GIVEN.is_dir(), reason="shared/data/api_streams is absent")
EXPECTED = json.loads((GIVEN / "expected.json").read_text()) if GIVEN.is_dir() else {}


def reply_for(name: str, *, keep_text: bool = False) -> Answer:
    kind = MessagesReply if "messages" in name else ResponsesReply
    return kind(keep_text=keep_text)


def timed(name: str) -> list[tuple[int, bytes]]:
    """The events of a given stream, each with the milliseconds from its sending."""
    text = (GIVEN / f"{name}.sse").read_bytes()
    return [(int(at), sent) for at, sent in re.findall(rb": t=(\d+)\n(.*?\n\n)", text, re.DOTALL)]


# --- the given streams ----------------------------------------------------------------------------


@needs_streams
@pytest.mark.parametrize("name", EXPECTED)
def test_a_given_stream_has_its_right_answers(name: str) -> None:
    expected, answer = EXPECTED[name], reply_for(name)
    times: list[int] = []
    for at_ms, sent in timed(name):
        times += [at_ms] * answer.feed(sent)
    answer.finish()
    answers = [at for at, channel in zip(times, answer.channels, strict=True) if channel > THINKING]
    assert {
        "ttft_ms": times[0],
        "first_answer_ms": answers[0],
        "last_output_ms": times[-1],
        "output_events": answer.events,
        "input_tokens": answer.input_tokens,
        "output_tokens": answer.output_tokens,
        "cached_tokens": answer.cached_tokens,
        "reasoning_tokens": answer.reasoning_tokens,
        "finish": answer.finish_reason,
    }.items() <= expected.items()
    error = expected.get("error_type")
    assert answer.error == (None if error is None else f"{error}: Overloaded")
    assert answer.done is (error is None)


@needs_streams
@pytest.mark.parametrize("name", EXPECTED)
def test_a_given_stream_over_a_socket_at_its_times(loadstone: Loadstone, name: str) -> None:
    expected = EXPECTED[name]

    def reply(ask: Ask, send: Send) -> None:
        begun = time.monotonic()
        send(SSE)
        for at_ms, sent in timed(name):
            time.sleep(max(0.0, begun + at_ms / 1e3 - time.monotonic()))
            send(chunk(sent))
        send(LAST_CHUNK)

    endpoint = "messages" if "messages" in name else "responses"
    outcome, _ = run(loadstone, endpoint, reply)
    for record in outcome.records:
        failed = expected["status"] == "error"
        assert (record["status"] == "error") is failed, record["error"]
        assert len(record["arrival_s"]) == expected["output_events"]
        # Nothing comes before it was sent: an event that is none would come sooner.
        assert record["arrival_s"][0] - record["sent_s"] >= expected["ttft_ms"] / 1e3 - 0.001
        for field in ("input_tokens", "cached_tokens", "reasoning_tokens"):
            assert record[field] == expected[field]
        if expected["output_tokens"] is not None:
            assert record["output_tokens"] == expected["output_tokens"]


def run(
    loadstone: Loadstone, endpoint: str, reply: Reply, *more: object
) -> tuple[Outcome, list[Ask]]:
    """Measure a server that answers measured requests by `reply`, and what comes before in short;
    return what it was asked, too."""

    def answer(ask: Ask, send: Send) -> None:
        if ask.measured:
            reply(ask, send)
        elif ask.path == "/v1/models":
            send(whole("200 OK", b'{"data": [{"id": "m"}]}'))
        elif ask.path != f"/v1/{endpoint}":
            send(whole("404 Not Found", b"{}"))
        elif ask.json["stream"]:
            send(whole("200 OK", SHORT[endpoint], "text/event-stream"))
        else:
            send(whole("200 OK", json.dumps(WHOLE[endpoint]).encode()))

    flags = ("--concurrency", 1, "--input", 8, "--output", 4, "--warmup", 0, "--requests", 2)
    with ScriptedServer(answer, meets=True) as server:
        outcome = loadstone("bench", server.url, "--endpoint", endpoint, *flags, *more, "--json")
    assert outcome.code == 0, outcome
    return outcome, server.asks


WHOLE = {
    "messages": {
        "type": "message",
        "content": [{"type": "text", "text": "a"}],
        "stop_reason": "max_tokens",
        "usage": {"input_tokens": 8, "output_tokens": 1},
    },
    "responses": {
        "status": "completed",
        "output": [{"type": "message", "content": [{"type": "output_text", "text": "a"}]}],
        "usage": {"input_tokens": 8, "output_tokens": 1},
    },
}


# --- servers' ways --------------------------------------------------------------------------------


def start(**usage: int) -> bytes:
    return event(type="message_start", message={"model": "m", "usage": usage})


def delta(kind: str, text: str) -> bytes:
    field = {"text": "text", "thinking": "thinking", "input_json": "partial_json"}[kind]
    said = {"type": f"{kind}_delta", field: text}
    return event(type="content_block_delta", index=0, delta=said)


def stop(reason: str = "end_turn", **usage: Any) -> bytes:
    ended = event(type="message_delta", delta={"stop_reason": reason}, usage=usage)
    return ended + event(type="message_stop")


def said(kind: str, text: str) -> bytes:
    return event(type=f"response.{kind}.delta", output_index=0, delta=text)


def ended(status: str, tokens: int, reasoning: int | None = None, **more: Any) -> bytes:
    usage = {"input_tokens": 20, "output_tokens": tokens}
    if reasoning is not None:
        usage |= {"output_tokens_details": {"reasoning_tokens": reasoning}}  # type: ignore[dict-item]
    return event(
        type=f"response.{more.pop('event', status)}",
        response={"status": status, "usage": usage, **more},
    )


def test_a_gateway_that_begins_with_zeros_is_counted_by_its_end() -> None:
    zeros = start(input_tokens=0, output_tokens=0, cache_read_input_tokens=0)
    answer = hear(
        MessagesReply(),
        zeros,
        delta("text", "a"),
        stop(input_tokens=10, output_tokens=3, cache_creation_input_tokens=5),
    )
    assert (answer.input_tokens, answer.output_tokens) == (15, 3)
    cut = hear(MessagesReply(), zeros, delta("text", "a"))
    assert (cut.input_tokens, cut.cached_tokens, cut.output_tokens) == (None, None, None)


def test_counts_of_none_leave_those_before() -> None:
    answer = hear(
        MessagesReply(),
        start(input_tokens=3, cache_read_input_tokens=16, output_tokens=1),
        delta("text", "a"),
        stop(input_tokens=None, cache_read_input_tokens=None, output_tokens=2),
    )
    assert (answer.input_tokens, answer.cached_tokens, answer.output_tokens) == (19, 16, 2)


def test_what_is_no_output_has_no_time() -> None:
    answer = hear(
        MessagesReply(),
        start(input_tokens=3, output_tokens=1),
        event(type="ping"),
        event(type="content_block_start", index=0, content_block={"type": "text", "text": ""}),
        delta("text", ""),
        event(type="content_block_delta", index=0, delta={"type": "signature_delta", "signature": "x"}),
        event(type="content_block_delta", index=0, delta={"type": "citations_delta", "citation": {"cited_text": "b"}}),
        event(type="content_block_start", index=1, content_block={"type": "redacted_thinking", "data": "x"}),
        event(type="heard_of_never", delta={"type": "text_delta"}),
    )  # fmt: skip
    assert answer.events == 0


def test_each_block_has_its_channel_and_calls_are_put_together() -> None:
    named = {"type": "tool_use", "name": "ls", "id": "c", "input": {}}
    answer = hear(
        MessagesReply(keep_text=True),
        delta("thinking", "so"),
        delta("text", "well"),
        event(type="content_block_start", index=0, content_block=named),
        delta("input_json", '{"p":'),
        delta("input_json", "1}"),
    )
    assert list(answer.channels) == [THINKING, ANSWER, TOOL_CALL, TOOL_CALL]
    assert answer.calls == [{"name": "ls", "arguments": '{"p":1}'}]
    assert (answer.text, answer.thought) == ("well", True)


def test_the_end_of_a_response_is_told_in_three_ways() -> None:
    reason = {"reason": "max_output_tokens"}
    for how, finish in (
        (ended("incomplete", 2, incomplete_details=reason), "max_output_tokens"),
        (ended("incomplete", 2, incomplete_details=reason, event="completed"), "max_output_tokens"),
        (ended("completed", 2), "completed"),
    ):
        answer = hear(ResponsesReply(), said("output_text", "a"), how)
        assert (answer.finish_reason, answer.done, answer.error) == (finish, True, None)
        assert (answer.input_tokens, answer.output_tokens) == (20, 2)
        assert answer.is_cut is (finish != "completed")


def test_what_is_said_again_is_no_output() -> None:
    answer = hear(
        ResponsesReply(),
        said("output_text", "a"),
        event(type="response.output_text.done", text="a"),
        event(type="response.output_item.done", item={"type": "message"}),
        said("function_call_arguments", "{}"),
        event(type="response.function_call_arguments.done", arguments="{}"),
        said("refusal", "no"),
        ended("completed", 3),
    )
    assert list(answer.channels) == [ANSWER, TOOL_CALL, ANSWER]


def test_tokens_of_hidden_reasoning_are_hidden() -> None:
    words = [said("output_text", "a"), said("output_text", "b"), ended("completed", 330, 328)]
    assert hear(ResponsesReply(), *words).tokens == (330, 2)
    summary = [said("reasoning_summary_text", text) for text in ("It", " thought", " much")]
    answer = hear(ResponsesReply(), *summary, *words)
    assert answer.tokens == (330, 2)
    assert list(answer.channels) == [THINKING, THINKING, THINKING, ANSWER, ANSWER]
    shown = [said("reasoning_text", "x"), said("output_text", "a"), ended("completed", 2, 1)]
    assert hear(ResponsesReply(), *shown).tokens == (2, 2)


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (event(type="response.failed", response={"status": "failed", "error": {"code": "server_error", "message": "out"}}), "server_error: out"),
        (event(type="response.failed", response={"status": "failed"}), "the server gave up the request (status failed)"),
        (event(type="error", code="rate_limit", message="slow down"), "slow down"),
        (event(type="error", error={"type": "invalid", "message": "no"}), "invalid: no"),
    ],
)  # fmt: skip
def test_a_response_that_fails_is_an_error_and_keeps_what_came(sent: bytes, error: str) -> None:
    answer = hear(ResponsesReply(), said("output_text", "a"), sent)
    assert (answer.error, answer.events) == (error, 1)


def test_unknown_deltas_that_go_on_are_output() -> None:
    answer = hear(ResponsesReply(), *(said("song", text) for text in ("la", "li", "lu")))
    assert (answer.events, answer.unlisted) == (3, ["response.song.delta"])


def test_answers_in_one_piece() -> None:
    content = [
        {"type": "thinking", "thinking": "so"},
        {"type": "text", "text": "well"},
        {"type": "tool_use", "name": "ls", "input": {"p": 1}},
    ]
    usage = {"input_tokens": 3, "cache_read_input_tokens": 4, "output_tokens": 9}
    message = {"type": "message", "content": content, "stop_reason": "tool_use", "usage": usage}
    answer = hear(MessagesReply(stream=False, keep_text=True), json.dumps(message).encode())
    assert (answer.events, answer.input_tokens, answer.output_tokens) == (1, 7, 9)
    assert (answer.text, answer.done) == ("well", True)
    assert [call["name"] for call in answer.calls] == ["ls"]
    output = [
        {"type": "reasoning", "summary": [{"text": "so"}]},
        {"type": "message", "content": [{"type": "output_text", "text": "well"}]},
        {"type": "function_call", "name": "ls", "arguments": "{}"},
    ]
    response = {"status": "completed", "output": output, "usage": {"output_tokens": 9}}
    answer = hear(ResponsesReply(stream=False, keep_text=True), json.dumps(response).encode())
    assert (answer.events, answer.output_tokens, answer.text) == (1, 9, "well")
    assert answer.calls == [{"name": "ls", "arguments": "{}"}]


SHORT = {
    "messages": start(input_tokens=8) + delta("text", "a") + stop("max_tokens", output_tokens=1),
    "responses": said("output_text", "a") + ended("completed", 1),
}


# --- the template ---------------------------------------------------------------------------------


def named(kind: str, text: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), text)


def plain_events(endpoint: str, count: int) -> list[bytes]:
    if endpoint == "messages":
        form = (
            b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" w%d"}}'
        )
        return [named("content_block_delta", form % number) for number in range(count)]
    form = (
        b'{"type":"response.output_text.delta","sequence_number":%d,"output_index":0,"delta":" w"}'
    )
    return [named("response.output_text.delta", form % number) for number in range(5, 5 + count)]


@pytest.mark.parametrize("endpoint", ["messages", "responses"])
def test_plain_events_are_recognised_as_bytes_and_mean_the_same(endpoint: str) -> None:
    events = plain_events(endpoint, 120)
    first, *rest = events
    taken, read = reply_for(endpoint), reply_for(endpoint)
    taken.feed(first)
    template = taken.template(first)
    assert template is not None
    plain, counts = template.run([b"%x\r\n%b\r\n" % (len(sent), sent) for sent in rest])
    assert (plain, counts) == (len(rest), [])
    taken.take_plain(plain, counts)
    assert state(taken) == state(hear(read, *events))


@pytest.mark.parametrize("endpoint", ["messages", "responses"])
def test_what_is_no_plain_event_is_read_in_full(endpoint: str) -> None:
    first, second, *_ = plain_events(endpoint, 3)
    answer = reply_for(endpoint)
    answer.feed(first)
    template = answer.template(first)
    assert template is not None
    for other in (
        second.replace(b'"}', b'","more":1}'),
        second.replace(b"delta", b"final"),
        second.replace(b":6,", b":06,") if endpoint == "responses" else b": \n\n",
        second.replace(b" w", b"\\u12"),
    ):
        assert template.run([b"%x\r\n%b\r\n" % (len(other), other)])[0] == 0


# --- requests -------------------------------------------------------------------------------------

CALL = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": '{"p": 1}'}}
HISTORY = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "out"},
    {"role": "user", "content": "go on"},
]
TOOL = {"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}
PROMPT = json.dumps(HISTORY).encode() + b',"tools":' + json.dumps([TOOL]).encode()


def spelled(spell: Any, name: str, previous: str | None = None) -> Any:
    return json.loads(b'{"%b":%b}' % (name.encode(), spell(PROMPT, previous)))


def test_messages_have_the_system_apart_and_results_of_tools_in_blocks() -> None:
    body = spelled(anthropic.spell_prompt, "messages")
    assert body["system"] == "be brief"
    assert body["messages"] == [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "ls", "input": {"p": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "out"}]},
        {"role": "user", "content": "go on"},
    ]  # fmt: skip
    assert body["tools"] == [{"name": "ls", "description": "", "input_schema": {"type": "object"}}]


def test_responses_have_instructions_and_items() -> None:
    body = spelled(responses.spell_prompt, "input")
    assert body["instructions"] == "be brief"
    assert body["input"] == [
        {"role": "user", "content": "hi"},
        {"type": "function_call", "call_id": "c1", "name": "ls", "arguments": '{"p": 1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "out"},
        {"role": "user", "content": "go on"},
    ]
    assert body["tools"] == [{"type": "function", "name": "ls", "parameters": {"type": "object"}}]


def test_a_stored_answer_stands_for_all_before_it() -> None:
    body = spelled(responses.spell_prompt, "input", "resp_1")
    assert body["previous_response_id"] == "resp_1"
    assert [item.get("type") or item["content"] for item in body["input"]] == [
        "function_call_output",
        "go on",
    ]


# --- against a server -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def in_parts() -> Iterator[TimingServer]:
    """A server whose answers think, speak and call a tool."""
    with simulated_server.start(
        FixedLatency(0.01, 0.002, thinking=0.25, tool_calls=0.25)
    ) as server:
        yield server


def test_the_key_goes_in_the_headers_of_the_api_and_into_no_file(
    loadstone: Loadstone, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "sk-ant-0123456789"
    for name in ("LOADSTONE_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ANTHROPIC_API_KEY", key)

    def reply(ask: Ask, send: Send) -> None:
        send(whole("200 OK", event(type="error", error={"message": f"is {key} yours?"}), "text/event-stream"))  # fmt: skip

    outcome, asks = run(loadstone, "messages", reply)
    sent = [ask for ask in asks if ask.path == "/v1/messages"]
    assert {ask.measured for ask in sent} == {True, False}
    for ask in sent:
        assert ask.headers["x-api-key"] == key
        assert ask.headers["anthropic-version"] == "2023-06-01"
        assert "authorization" not in ask.headers
        assert ask.json["max_tokens"] >= 1
    for path in outcome.folder.rglob("*"):
        assert key.encode() not in (path.read_bytes() if path.is_file() else b"")


def test_a_summary_is_the_first_output_and_no_token(loadstone: Loadstone) -> None:
    pause_s = 0.2

    def reply(ask: Ask, send: Send) -> None:
        send(SSE)
        send(chunk(said("reasoning_summary_text", "It thought.")))
        for sent in (
            said("output_text", "a"),
            said("output_text", "b") + ended("completed", 330, 328),
        ):
            time.sleep(pause_s if sent == said("output_text", "a") else 0.0)
            send(chunk(sent))
        send(LAST_CHUNK)

    outcome, _ = run(loadstone, "responses", reply)
    for record in outcome.records:
        assert (record["output_tokens"], record["reasoning_tokens"]) == (2, 328)
        assert record["arrival_s"][1] - record["arrival_s"][0] >= 0.9 * pause_s
    metrics = outcome.cell["metrics"]
    assert metrics["tpot_s"]["p50"] < pause_s / 2  # of the answer alone
    assert "tokens_hidden" in outcome.findings


@pytest.mark.parametrize("stream", [True, False])
def test_one_plan_has_the_same_counts_by_three_apis(
    loadstone: Loadstone, in_parts: TimingServer, stream: bool
) -> None:
    flags = ("--concurrency", 4, "--requests", 12, "--input", 40, "--output", 16, "--json")
    facts: dict[str, Sequence[Any]] = {}
    for endpoint in ("chat", "messages", "responses"):
        outcome = loadstone(
            "bench",
            in_parts.url,
            "--endpoint",
            endpoint,
            *flags,
            *(() if stream else ["--no-stream"]),
        )
        assert outcome.code == 0, outcome
        cell = outcome.cell
        names = ("input_tokens", "output_tokens", "thinking_share", "tool_share")
        facts[endpoint] = [cell["requests"], *(cell["metrics"].get(name) for name in names)]
    assert facts["messages"] == facts["responses"] == facts["chat"]
    assert facts["chat"][0]["ok"] == 12


def test_turns_go_on_from_stored_answers(loadstone: Loadstone, timing: TimingServer) -> None:
    flags = ("--turns", 3, "--think-time", "1ms", "--concurrency", 2, "--requests", 12)
    counts = {}
    for history in ("sent", "stored"):
        outcome = loadstone(
            "bench", timing.url, "--endpoint", "responses", *flags, "--input", 32, "--output", 8,
            "--history", history, "--seed", 1, "--json",
        )  # fmt: skip
        assert outcome.code == 0, outcome
        counts[history] = [record["input_tokens"] for record in outcome.records]
    assert sorted(counts["sent"]) == sorted(counts["stored"])


@pytest.mark.parametrize(
    ("endpoint", "more", "line"),
    [
        ("messages", ("--turns", 2), "no answer of messages can be named later"),
        ("responses", (), "no prompt of this plan holds an answer"),
    ],
)
def test_stored_answers_that_cannot_be_named_are_one_line(
    loadstone: Loadstone, timing: TimingServer, endpoint: str, more: Sequence[object], line: str
) -> None:
    outcome = loadstone(
        "bench", timing.url, "--endpoint", endpoint, "--history", "stored", *more,
        "--concurrency", 2, "--requests", 4, "--input", 32, "--output", 4,
    )  # fmt: skip
    assert outcome.code == 2
    assert line in outcome.line()
