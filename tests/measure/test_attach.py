"""Meeting servers: the timing server, and scripted ones that are as odd as real ones."""

import json
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from conftest import (
    LAST_CHUNK,
    MODEL,
    SSE,
    Hangup,
    Json,
    Reset,
    ScriptedServer,
    Send,
    answer,
    chunk,
    event,
    whole,
)
from conftest import Ask as Request
from loadstone.core.errors import InputError, TargetError
from loadstone.core.plan import Load
from loadstone.core.record import Target
from loadstone.measure.engines import attach
from loadstone.measure.engines.probe import Requirements
from loadstone.measure.engines.server import Patience, Server
from loadstone.measure.simulated_server import FixedLatency, TimingServer, start
from loadstone.measure.wire.request import make_body, make_path
from loadstone.runs.preflight import LOADED, ProbedServer, answer_times_s
from loadstone.workload.lengths import Length
from loadstone.workload.options import Options
from loadstone.workload.planning import Planner
from loadstone.workload.request import RequestSpec, Sampling, Structured
from loadstone.workload.schedule import make_plan
from loadstone.workload.synthetic import Synthetic

SCHEMA = Structured("json_schema", {"type": "object"})
REGEX = Structured("regex", "[0-9]{40}")
GRAMMAR = Structured("grammar", "root ::= [0-9]+")


def probe(url: str, patience: Patience | None = None, **needs: Any) -> attach.Attached:
    with Server(url, [], patience=patience) as server:
        return attach.attach(server, Requirements(**needs))


def refused(url: str, **more: Any) -> str:
    with pytest.raises(InputError) as raised:
        probe(url, **more)
    line = str(raised.value)
    assert "\n" not in line
    return line


def not_found(send: Send) -> None:
    send(whole("404 Not Found", b'{"detail": "Not Found"}'))


def streamed(send: Send, *events: bytes) -> None:
    send(SSE + b"".join(map(chunk, events)) + LAST_CHUNK)


def refusing(
    when: Callable[[Json], object], said: str, status: str = "400 Bad Request"
) -> ScriptedServer:
    """A server that answers every request but those with such fields."""

    def reply(request: Request, send: Send) -> None:
        if request.body and when(request.json):
            send(whole(status, json.dumps({"error": {"message": said}}).encode()))
        else:
            answer(request, send)

    return ScriptedServer(reply, meets=True)


# --- the OpenAI endpoints -------------------------------------------------------------------------


@pytest.mark.process
def test_the_timing_server_takes_everything(timing: TimingServer) -> None:
    target, vocabulary, ask = probe(timing.url)
    assert (target.endpoint, target.engine, target.model, target.streams) == (
        "completions",
        "timing server",
        "timing",
        True,
    )
    assert set(target.accepts.values()) == {True}
    assert (vocabulary.kind, vocabulary.overhead_tokens) == ("token ids", 0)
    assert (ask.usage, ask.ignore_eos, ask.min_tokens) == ("running", True, True)
    assert (target.prompt_kind, target.overhead_tokens) == ("token ids", 0)


def test_llama_cpp_tells_its_build_among_its_properties() -> None:
    properties: Json = {
        "build_info": "b11669-Debian",
        "chat_template": "{{ x }}",
        "model_path": "/home/me/m.gguf",
    }

    def reply(ask: Request, send: Send) -> None:
        if ask.path == "/v1/models":
            send(
                whole(
                    "200 OK", json.dumps({"data": [{"id": MODEL, "owned_by": "llamacpp"}]}).encode()
                )
            )
        elif ask.path == "/props":
            send(whole("200 OK", json.dumps(properties).encode()))
        else:
            answer(ask, send)

    with ScriptedServer(reply, meets=True) as server:
        target, _, _ = probe(server.url)
        assert (target.engine, target.engine_version) == ("llama.cpp", "b11669-Debian")
        assert target.version == {"version": "b11669-Debian"}  # and nothing of the rest
        properties["build_info"] = 7
        assert probe(server.url)[0].engine_version is None


@pytest.mark.parametrize(
    "pages", [("/metrics",), ("/tokenize",), ("/version", "/metrics", "/tokenize")]
)
@pytest.mark.parametrize("way", ["hangs", "drips", "resets"])
def test_a_page_that_a_run_can_do_without_ends_nothing(pages: tuple[str, ...], way: str) -> None:
    patience = Patience(spare_page_s=0.3, spare_pages_s=5.0, pauses_s=(0.01,))

    def reply(ask: Request, send: Send) -> None:
        if ask.path not in pages:
            answer(ask, send)
            return
        if way == "resets":
            raise Reset
        send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        for _ in range(500):
            if way == "drips":
                send(b"#")
            time.sleep(0.02)

    with (
        ScriptedServer(reply, meets=True) as server,
        Server(server.url, [], patience=patience) as client,
    ):
        began_s = time.monotonic()
        target, vocabulary, _ = attach.attach(client, Requirements())
        assert time.monotonic() - began_s < 6
    assert (target.endpoint, target.metrics_names, vocabulary.kind) == (
        "completions",
        [],
        "token ids",
    )
    assert [line.partition(": ")[0].removeprefix(server.url) for line in client.missed] == list(
        pages
    )
    assert all(line.endswith("; measured without this page") for line in client.missed)


@pytest.mark.process
def test_lengths_are_demanded_only_where_they_must_be_exact(timing: TimingServer) -> None:
    _, _, ask = probe(timing.url, exact=False)
    assert (ask.ignore_eos, ask.min_tokens, ask.usage) == (False, False, "running")


@pytest.mark.process
def test_conversations_are_text_and_prefer_chat(timing: TimingServer) -> None:
    target, vocabulary, _ = probe(timing.url, text_only=True)
    assert (target.endpoint, vocabulary.kind, vocabulary.overhead_tokens) == ("chat", "text", 7)
    target, vocabulary, _ = probe(timing.url, text_only=True, endpoint="completions")
    assert (target.endpoint, vocabulary.kind, vocabulary.overhead_tokens) == (
        "completions",
        "text",
        0,
    )


@pytest.mark.process
def test_answers_in_one_piece_need_no_stream_options(timing: TimingServer) -> None:
    target, vocabulary, ask = probe(timing.url, stream=False)
    assert target.accepts == {"ignore_eos": True, "min_tokens": True}
    assert (target.streams, ask.stream, ask.usage, vocabulary.kind) == (
        False,
        False,
        "none",
        "token ids",
    )
    assert "stream_options" not in make_body(ask)


@pytest.mark.parametrize("status", ["404 Not Found", "405 Method Not Allowed", "400 Bad Request"])
def test_a_server_without_chat_can_hold_a_conversation(status: str) -> None:
    def reply(request: Request, send: Send) -> None:
        if "/chat/" in request.path:
            send(whole(status, b'{"error": {"message": "no chat template"}}'))
        else:
            answer(request, send)

    with ScriptedServer(reply, meets=True) as server:
        assert probe(server.url, text_only=True)[0].endpoint == "completions"
        assert "no chat template" in refused(server.url, endpoint="chat")


@pytest.mark.process
def test_what_the_user_asks_for_is_in_every_request_of_the_run(timing: TimingServer) -> None:
    sampling = Sampling(temperature=0.5, top_p=0.9, seed=3, stop=("x",))
    _, _, ask = probe(timing.url, sampling=sampling, extra={"top_k": 5})
    assert (ask.sampling, ask.extra) == (sampling, {"top_k": 5})
    assert {
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 3,
        "stop": ["x"],
        "top_k": 5,
    }.items() <= make_body(ask).items()


@pytest.mark.parametrize(
    ("field", "sampling", "said"),
    [
        (
            "temperature",
            Sampling(temperature=0.5),
            "--temperature 0.5: the server does not take it (HTTP 422: unknown",
        ),
        ("top_p", Sampling(temperature=0.5, top_p=0.9), "--top-p 0.9: "),
        ("seed", Sampling(seed=0), "--sampling-seed 0: "),
        ("stop", Sampling(stop=("\x1b[2J",)), "--stop"),
    ],
)
def test_a_field_that_is_refused_is_named_by_its_flag(
    field: str, sampling: Sampling, said: str
) -> None:
    with refusing(
        lambda sent: field in sent, "unknown field", "422 Unprocessable Entity"
    ) as server:
        line = refused(server.url, sampling=sampling)
        assert line.startswith(said)
        assert line.isprintable()


def test_helpful_fields_that_are_refused_are_left_out() -> None:
    with refusing(
        lambda sent: {"ignore_eos", "min_tokens", "stream_options"} & sent.keys(),
        "unknown field",
        "422 Unprocessable Entity",
    ) as server:
        target, _, ask = probe(server.url)
    assert set(target.accepts.values()) == {False}
    assert (ask.usage, ask.ignore_eos, ask.min_tokens) == ("none", False, False)


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("max_tokens", 16),
        ("max_tokens", 100),
        ("max_completion_tokens", 1),
        ("max_completion_tokens", 16),
    ],
)
def test_the_length_is_asked_for_as_the_server_takes_it(name: str, least: int) -> None:
    with refusing(
        lambda sent: sent.get(name, 0) < least or len({"max_tokens", name} & sent.keys()) > 1,
        "Invalid max_tokens",
    ) as server:
        target, _, ask = probe(server.url)
        same(server.url, target, ask)
    assert ask.length == name
    assert name in make_body(ask)
    assert target.accepts["ignore_eos"]


def test_the_first_model_that_answers_is_measured() -> None:
    def several(request: Request, send: Send) -> None:
        if not request.body:
            send(
                whole("200 OK", json.dumps({"data": [{"id": "embedder"}, {"id": MODEL}]}).encode())
            )
        elif request.json["model"] != MODEL:
            send(whole("400 Bad Request", b'{"error": {"message": "this is no chat model"}}'))
        else:
            answer(request, send)

    with ScriptedServer(several, meets=True) as server:
        with Server(server.url, []) as client:
            assert attach.attach(client, Requirements()).target.model == MODEL
        assert client.missed[-1] == f"{server.url}: embedder is refused; measured with {MODEL}"
        assert "this is no chat model" in refused(server.url, model="embedder")


def test_a_server_that_wants_its_version_in_every_url() -> None:
    def azure(request: Request, send: Send) -> None:
        if (
            request.line.split()[1]
            == "/openai/deployments/tiny/chat/completions?api-version=2024-10-21"
        ):
            usage = {"prompt_tokens": 8, "completion_tokens": 1}
            send(
                SSE
                + chunk(
                    event(
                        {
                            "choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}],
                            "usage": usage,
                        }
                    )
                )
            )
            send(LAST_CHUNK)
        else:
            not_found(send)

    with ScriptedServer(azure, meets=True) as server:
        for below in ("", "/chat/completions"):
            url = f"{server.url}/openai/deployments/tiny{below}?api-version=2024-10-21"
            target, _, ask = probe(url, endpoint="chat")
            assert (target.model, make_path(ask)) == (
                "tiny",
                "/chat/completions?api-version=2024-10-21",
            )
        assert "leave out what begins with ?" in refused(f"{server.url}?key=secret")


def test_the_users_own_field_that_is_refused_is_named() -> None:
    with refusing(lambda sent: "odd" in sent, "odd is odd") as server:
        assert refused(server.url, extra={"odd": 1}) == (
            "--extra-body: the server does not take it (HTTP 400: odd is odd); correct it"
        )


@pytest.mark.parametrize("extra", [{"min_tokens": 5}, {"sampling_params": {"min_new_tokens": 5}}])
def test_the_users_own_least_length_is_tried_with_room_for_it(extra: dict[str, Any]) -> None:
    """vLLM and SGLang refuse a limit below it, which no request of the run has."""

    with refusing(
        lambda sent: extra.items() <= sent.items() and sent.get("max_tokens", 5) < 5,
        "min_tokens must be at most max_tokens",
    ) as server:
        assert probe(server.url, extra=extra)[2].extra == extra


@pytest.mark.parametrize("stream", [True, False])
def test_the_answers_to_a_request_are_counted(stream: bool) -> None:
    """Also where the server takes no field that Loadstone would like to send."""

    def several(request: Request, send: Send) -> None:
        if not request.body or "n" not in request.json:
            answer(request, send)
        elif {"ignore_eos", "min_tokens", "stream_options"} & request.json.keys():
            send(whole("422 Unprocessable Entity", b'{"detail": "unknown field"}'))
        else:
            choices = [{"index": i, "text": " time", "finish_reason": "length"} for i in range(3)]
            if request.json["stream"]:
                streamed(
                    send, *(event({"choices": [choice]}) for choice in choices), event("[DONE]")
                )
            else:
                send(whole("200 OK", json.dumps({"choices": choices}).encode()))

    with ScriptedServer(several, meets=True) as server:
        assert probe(server.url, extra={"n": 3}, stream=stream)[0].choices == 3
        assert probe(server.url, extra={"top_k": 3}, stream=stream)[0].choices == 1


def test_the_users_options_of_a_stream_do_not_hinder_counting_prompts() -> None:
    """Counted is in one piece, where vLLM refuses them."""

    own = {"stream_options": {"continuous_usage_stats": False}}
    with refusing(
        lambda sent: "stream_options" in sent and not sent.get("stream"),
        "only set this with stream",
    ) as server:
        plain, _, _ = probe(server.url)
        target, _, ask = probe(server.url, extra=own)
    assert ask.extra == own
    assert (target.prompt_kind, target.overhead_tokens) == (
        plain.prompt_kind,
        plain.overhead_tokens,
    )


def test_a_server_that_refuses_to_stream() -> None:
    def whole_only(request: Request, send: Send) -> None:
        if request.body and request.json.get("stream"):
            send(whole("400 Bad Request", b'{"error": {"message": "no streaming"}}'))
        else:
            answer(request, send)

    with ScriptedServer(whole_only, meets=True) as server:
        assert (
            "streaming is refused (HTTP 400: no streaming); measure without it: --no-stream"
            in refused(server.url)
        )
        assert probe(server.url, stream=False)[0].streams is False


@pytest.mark.parametrize("status", ["301 Moved Permanently", "307 Temporary Redirect"])
def test_a_server_that_is_elsewhere_is_told_where(status: str) -> None:
    def reply(ask: Request, send: Send) -> None:
        send(
            f"HTTP/1.1 {status}\r\nLocation: https://x{ask.path}\r\nContent-Length: 0\r\n\r\n".encode()
        )

    with ScriptedServer(reply, meets=True) as server:
        assert f"/v1/models: HTTP {status[:3]}: it is at https://x/v1/models; give that" in refused(
            server.url
        )


@pytest.mark.parametrize(
    ("status", "header", "said"),
    [
        (
            "502 Bad Gateway",
            "",
            "HTTP 502: 502 Bad Gateway nginx/1.22.1; a proxy finds no engine behind it",
        ),
        ("500 Internal Server Error", "", "HTTP 500: "),
        (
            "404 Not Found",
            "",
            "names no model (HTTP 404); check the URL, or name the model with --model",
        ),
        (
            "401 Unauthorized",
            'WWW-Authenticate: Basic realm="x"',
            "; it requires a user name and password: -H 'Authorization",
        ),
        ("401 Unauthorized", "", "; set LOADSTONE_API_KEY or OPENAI_API_KEY"),
    ],
)
def test_a_proxy_that_refuses_the_list_of_models_is_told_with_its_status(
    status: str, header: str, said: str
) -> None:
    page = b"<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>\r\n<center><h1>502 Bad Gateway</h1>"
    page += b"</center>\r\n<hr><center>nginx/1.22.1</center>\r\n</body>\r\n</html>\r\n"
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\nContent-Length: {len(page)}\r\n"
    head += f"{header}\r\n" if header else ""
    with ScriptedServer(lambda _, send: send(head.encode() + b"\r\n" + page), meets=True) as server:
        assert said in refused(server.url)


def test_a_gateway_that_answers_in_one_piece_when_asked_for_a_stream() -> None:
    def reply(ask: Request, send: Send) -> None:
        if ask.path == "/v1/models":
            send(whole("200 OK", json.dumps({"data": [{"id": MODEL}]}).encode()))
        else:
            send(whole("200 OK", b'{"choices": [{"text": " a", "finish_reason": "length"}]}'))

    with ScriptedServer(reply, meets=True) as server:
        assert "asked for a stream, it answers in one piece; measure that: --no-stream" in refused(
            server.url
        )
        assert not probe(server.url, stream=False)[0].streams


@pytest.mark.parametrize("stated", [b"Infinity", b"-Infinity", b"NaN", b"1e400", b"0", b'"4096"'])
def test_a_context_that_cannot_be_is_none(stated: bytes) -> None:
    def reply(ask: Request, send: Send) -> None:
        if ask.path == "/v1/models":
            send(
                whole(
                    "200 OK",
                    b'{"data": [{"id": null}, {"id": "scripted", "max_model_len": %b}]}' % stated,
                )
            )
        else:
            answer(ask, send)

    with ScriptedServer(reply, meets=True) as server:
        target, _, _ = probe(server.url)
    assert (target.model, target.max_model_tokens) == (MODEL, None)


@pytest.mark.parametrize(
    ("entry", "charset"),
    [
        (b'"id": "sc\\ud800ripted"', ""),
        (b'"id": "scripted"', "; charset=idna"),
        (b'"id": "scripted", "deep": ' + b"[" * 900 + b"]" * 900, ""),
        (b'"id": "scripted", "number": 1' + b"0" * 400, ""),
    ],
    ids=[
        "half a character",
        "a charset that decodes nothing",
        "nested deeply",
        "a number without end",
    ],
)
def test_what_a_server_says_of_itself_can_be_kept(entry: bytes, charset: str) -> None:
    """run.json is read by others: DuckDB, say, reads JSON of 128 levels."""

    def reply(ask: Request, send: Send) -> None:
        if ask.path == "/v1/models":
            send(whole("200 OK", b'{"data": [{%b}]}' % entry, f"application/json{charset}"))
        elif ask.path == "/metrics":
            send(whole("200 OK", b"# TYPE a_total counter\n", f"text/plain{charset}"))
        else:
            answer(ask, send)

    with ScriptedServer(reply, meets=True) as server:
        target, _, _ = probe(server.url)
    assert target.model == MODEL.replace("sc", "sc?" if b"ud800" in entry else "sc")
    kept = msgspec.json.encode(target)
    assert kept.count(b"[") < 128
    assert msgspec.json.decode(kept, type=Target) == target
    assert target.metrics_names == ["a_total"]


def test_a_stream_that_fails_at_once_is_told_with_the_servers_words() -> None:
    def reply(ask: Request, send: Send) -> None:
        if ask.line.startswith("POST"):
            streamed(send, event({"error": {"message": "no KV cache left"}}), event("[DONE]"))
        else:
            answer(ask, send)

    with ScriptedServer(reply, meets=True) as server:
        assert "the simplest request failed (no KV cache left); see the server's log" in refused(
            server.url
        )


@pytest.mark.process
def test_a_model_that_is_not_offered(timing: TimingServer) -> None:
    assert refused(timing.url, model="nope") == "--model nope: the server offers timing"


# --- structured output ----------------------------------------------------------------------------


def shaped(*fields: str, shape: str, done: bool = False) -> Callable[[Request, Send], None]:
    """An engine that answers " time time …", but `shape` where one of the `fields` is asked."""

    def reply(request: Request, send: Send) -> None:
        if not (request.body and request.json.get("stream")):
            answer(request, send)
            return
        words = [" time"] * request.output_tokens
        if any(field in request.json for field in fields):
            words = list(shape)
        reason = "stop" if done else "length"
        streamed(send, *(event({"choices": [{"text": word}]}) for word in words),
                 event({"choices": [{"text": "", "finish_reason": reason}]}))  # fmt: skip

    return reply


@pytest.mark.parametrize(
    ("structured", "field", "shape", "spelling"),
    [
        (SCHEMA, "response_format", '{"a', "response_format"),
        (SCHEMA, "structured_outputs", '{"a', "structured_outputs"),
        (SCHEMA, "guided_json", '{"a', "guided"),
        (SCHEMA, "json_schema", '{"a', "llama.cpp"),
        (REGEX, "structured_outputs", "0123", "structured_outputs"),
        (REGEX, "guided_regex", "0123", "guided"),
        (REGEX, "regex", "0123", "sglang"),
        (GRAMMAR, "ebnf", "0123", "sglang"),
        (GRAMMAR, "grammar", "0123", "llama.cpp"),
    ],
)
def test_the_first_spelling_that_is_not_ignored_is_kept(
    structured: Structured, field: str, shape: str, spelling: str
) -> None:
    with ScriptedServer(shaped(field, shape=shape), meets=True) as server:
        _, _, ask = probe(server.url, structured=structured)
    assert (ask.structured, ask.spelling) == (structured, spelling)
    assert field in make_body(ask)
    # A constrained answer ends where its shape does.
    assert (ask.ignore_eos, ask.min_tokens) == (False, False)


@pytest.mark.parametrize("structured", [SCHEMA, REGEX, GRAMMAR])
def test_a_server_that_ignores_all_spellings(structured: Structured) -> None:
    with ScriptedServer(shaped(shape=""), meets=True) as server:
        line = refused(server.url, structured=structured)
    assert line.startswith(
        f"--structured: the server takes no {structured.kind.replace('_', ' ')} in any form known"
    )
    assert line.count(": ignored") == (
        5 if structured is SCHEMA else 3 if structured is REGEX else 4
    )


def test_an_answer_that_ended_and_does_not_match_was_not_constrained() -> None:
    with ScriptedServer(shaped("guided_regex", shape="one", done=True), meets=True) as server:
        assert "guided: ignored" in refused(server.url, structured=REGEX)


def test_a_shape_that_the_server_cannot_read_is_told_with_its_reason() -> None:
    def strict(request: Request, send: Send) -> None:
        if request.body and "grammar" in request.json:
            send(whole("400 Bad Request", b'{"error": {"message": "failed to parse grammar"}}'))
        else:
            shaped(shape="")(request, send)

    with ScriptedServer(strict, meets=True) as server:
        assert "llama.cpp: HTTP 400: failed to parse grammar" in refused(
            server.url, structured=GRAMMAR
        )


# --- SGLang's own endpoint ------------------------------------------------------------------------


def sglang(request: Request, send: Send) -> None:
    """A server of SGLang's own endpoints alone."""
    about = {
        "/get_model_info": {"model_path": "org/model"},
        "/server_info": {"version": "0.5.3", "api_key": "secret"},
    }
    if request.path in about:
        send(whole("200 OK", json.dumps(about[request.path]).encode()))
    elif request.path == "/generate":
        fields = request.json
        params = fields["sampling_params"]
        if "min_new_tokens" in params:
            streamed(
                send,
                event({"error": {"message": "min_new_tokens is unavailable"}}),
                event("[DONE]"),
            )
            return
        prompt = fields.get("input_ids") or fields["text"].split()
        tokens = params["max_new_tokens"]
        text = "{" if "json_schema" in params else " time"
        counts = {"prompt_tokens": len(prompt) + 1, "completion_tokens": tokens}
        said = {
            "text": text * tokens,
            "meta_info": {"finish_reason": {"type": "length", "length": tokens}, **counts},
        }
        if fields["stream"]:
            streamed(send, event(said), event("[DONE]"))
        else:
            send(whole("200 OK", json.dumps(said).encode()))
    else:
        not_found(send)


def test_a_server_of_sglangs_own_endpoint_alone_is_found() -> None:
    with ScriptedServer(sglang, meets=True) as server:
        target, vocabulary, ask = probe(server.url)
    assert (target.endpoint, target.engine, target.engine_version) == ("sglang", "SGLang", "0.5.3")
    assert target.model == "org/model"
    assert target.version == {"version": "0.5.3"}  # not all that the server tells of itself
    assert (vocabulary.kind, vocabulary.overhead_tokens) == ("token ids", 1)
    assert (ask.ignore_eos, ask.min_tokens) == (True, False)
    assert target.accepts == {"ignore_eos": True, "min_tokens": False}


def test_sglang_without_a_tokenizer_is_met_by_token_ids() -> None:
    """As started with --skip-tokenizer-init."""

    def bare(request: Request, send: Send) -> None:
        if request.path == "/generate" and "text" in request.json:
            send(whole("400 Bad Request", b'{"error": {"message": "cannot accept text prompts"}}'))
        else:
            sglang(request, send)

    with ScriptedServer(bare, meets=True) as server:
        target, vocabulary, _ = probe(server.url)
    assert (target.endpoint, vocabulary.kind) == ("sglang", "token ids")


def test_sglangs_shapes_are_sampling_parameters() -> None:
    with ScriptedServer(sglang, meets=True) as server:
        _, vocabulary, ask = probe(server.url, structured=SCHEMA, text_only=True)
        assert (ask.spelling, vocabulary.kind) == ("sampling_params", "text")
        assert "sampling_params: ignored" in refused(server.url, structured=GRAMMAR)


@pytest.mark.process
def test_the_timing_server_over_sglangs_endpoint(timing: TimingServer) -> None:
    target, vocabulary, ask = probe(
        timing.url, endpoint="sglang", sampling=Sampling(temperature=0.0)
    )
    assert (target.endpoint, target.model, target.engine) == ("sglang", "timing", "timing server")
    assert vocabulary.kind == "token ids"
    assert make_body(ask)["sampling_params"]["temperature"] == 0.0
    assert probe(timing.url, endpoint="sglang", stream=False)[1].kind == "token ids"


# --- Triton ---------------------------------------------------------------------------------------

INPUTS = (
    "text_input",
    "max_tokens",
    "stream",
    "bad_words",
    "stop_words",
    "temperature",
    "min_length",
)
COUNTS = ("return_num_input_tokens", "return_num_output_tokens")


def triton(
    *models: str, inputs: tuple[str, ...] = INPUTS, asked: list[Json] | None = None
) -> Callable[[Request, Send], None]:
    """A Triton server with these models ready; what is asked of them goes to `asked`."""

    def reply(request: Request, send: Send) -> None:
        if request.path == "/v2":
            send(
                whole(
                    "200 OK", b'{"name": "triton", "version": "2.60.0", "extensions": ["generate"]}'
                )
            )
        elif request.path == "/v2/repository/index":
            index = [{"name": name, "version": "1", "state": "READY"} for name in models]
            index.append({"name": "broken", "version": "1", "state": "UNAVAILABLE", "reason": "x"})
            send(whole("200 OK", json.dumps(index).encode()))
        elif request.path.endswith("/config"):
            config = {"name": "m", "input": [{"name": name, "dims": [1]} for name in inputs]}
            send(whole("200 OK", json.dumps(config).encode()))
        elif request.path.startswith("/v2/models/"):
            fields = request.json
            if asked is not None:
                asked.append(fields)
            counted = "return_num_output_tokens" in fields
            counts = {
                "num_input_tokens": len(fields["text_input"].split()) + 1,
                "num_output_tokens": 1,
            }
            said = {"model_name": "m", "text_output": " time", **(counts if counted else {})}
            if request.path.endswith("_stream"):
                streamed(send, *[event(said)] * fields["max_tokens"])
            else:
                send(
                    whole(
                        "200 OK",
                        json.dumps(
                            {**said, "text_output": " time" * fields["max_tokens"]}
                        ).encode(),
                    )
                )
        else:
            not_found(send)

    return reply


@pytest.mark.parametrize(
    ("models", "chosen"),
    [
        (("preprocessing", "tensorrt_llm", "tensorrt_llm_bls", "ensemble"), "ensemble"),
        (("preprocessing", "tensorrt_llm_bls"), "tensorrt_llm_bls"),
        (("own",), "own"),
    ],
)
def test_a_triton_server_is_found_with_its_model(models: tuple[str, ...], chosen: str) -> None:
    asked: list[Json] = []
    with ScriptedServer(triton(*models, asked=asked), meets=True) as server:
        target, vocabulary, ask = probe(server.url)
    assert (target.endpoint, target.engine, target.engine_version) == ("triton", "Triton", "2.60.0")
    assert (target.model, ask.model, ask.inputs) == (chosen, chosen, INPUTS)
    # Nothing that the model has no input for, lest it be taken for a parameter and ignored.
    assert {name for fields in asked for name in fields} <= set(INPUTS)
    assert (ask.min_tokens, ask.usage, ask.ignore_eos) == (True, "none", False)
    assert "min_length" in make_body(ask)
    assert (vocabulary.kind, vocabulary.overhead_tokens) == ("text", 0)


def test_a_triton_model_that_counts_is_believed() -> None:
    with ScriptedServer(triton("ensemble", inputs=(*INPUTS, *COUNTS)), meets=True) as server:
        target, vocabulary, ask = probe(server.url, endpoint="triton")
        assert (ask.usage, vocabulary.overhead_tokens) == ("running", 1)
        assert target.accepts == {"min_tokens": True, "return_num_output_tokens": True}
        assert probe(server.url, endpoint="triton", stream=False)[1].overhead_tokens == 1


def test_what_a_triton_model_has_no_input_for_is_refused() -> None:
    with ScriptedServer(triton("ensemble"), meets=True) as server:
        assert refused(server.url, sampling=Sampling(temperature=0.5, top_p=0.5)) == (
            "--top-p 0.5: the model ensemble has no input for it; leave it out"
        )
        assert "guided_decoding_guide" in refused(server.url, structured=SCHEMA)
        assert probe(server.url, sampling=Sampling(temperature=0.5, stop=("x",)))[
            2
        ].sampling.stop == ("x",)


def test_which_triton_model_must_be_plain() -> None:
    with ScriptedServer(triton("a", "b"), meets=True) as server:
        assert "has ready a, b; choose one with --model" in refused(server.url)
        assert "--model c: the server has ready a, b" in refused(
            server.url, model="c", endpoint="triton"
        )
        assert probe(server.url, model="b", endpoint="triton")[0].model == "b"
    with ScriptedServer(triton(), meets=True) as server:
        assert "names no model that is ready" in refused(server.url)
    with ScriptedServer(triton("own", inputs=("image",)), meets=True) as server:
        assert "the model has no input text_input and max_tokens: it has image" in refused(
            server.url
        )


@pytest.mark.process
def test_what_is_no_triton_server(timing: TimingServer) -> None:
    assert "no Triton server answers there" in refused(timing.url, endpoint="triton")


# --- a fleet --------------------------------------------------------------------------------------


def same(url: str, target: Target, request: RequestSpec | None = None) -> None:
    request = request or RequestSpec(endpoint=target.endpoint, model=target.model)  # type: ignore[arg-type]
    with Server(url, []) as server:
        attach.check_same(server, target, request)


@pytest.mark.process
def test_the_servers_of_a_fleet_offer_the_same(timing: TimingServer) -> None:
    target, _, _ = probe(timing.url)
    same(timing.url, target)
    with ScriptedServer() as other:
        with pytest.raises(TargetError) as raised:
            same(other.url, target)
        assert str(raised.value) == (
            f"{other.url}: offers {MODEL}, and {timing.url} timing; a fleet serves one model"
        )
        with pytest.raises(TargetError, match=f"{other.url}/v1/chat/completions: HTTP 404"):
            same(
                other.url, Target(url=timing.url, endpoint="chat", model=MODEL, prompt_kind="text")
            )
    with pytest.raises(TargetError, match=f"{other.url}: no server answers there"):
        same(other.url, target)


def test_a_fleet_of_triton_servers() -> None:
    with ScriptedServer(triton("ensemble"), meets=True) as one, ScriptedServer(meets=True) as other:
        target, _, _ = probe(one.url)
        same(one.url, target)
        with pytest.raises(TargetError, match=other.url):
            same(other.url, target)


@pytest.mark.process
def test_how_long_requests_will_take_is_asked_of_the_server() -> None:
    """Probes of a few tokens, for plans of many: 20 ms each, twice that among others."""
    cells = [Load("rate", 2.0), Load("rate", 4.0)]
    plan = make_plan(Synthetic(Length("fixed", 64), Length("fixed", 500)), cells, requests=[3, 3])
    with start(FixedLatency(0.03, 0.02)) as server:
        target, vocabulary, request = probe(server.url)
        expected = answer_times_s(plan, ProbedServer(target, vocabulary, request, [], [], [], []))
        assert len(expected) == 2
        assert expected[0] == expected[1] > LOADED * 500 * 0.02 / 2
        planner = Planner(Options.read(rate=[2.0]))
        assert planner.chooses_length
        assert planner.plan(e2e_s=expected[:1]).cells == (Load("rate", 2.0),)
        broken = msgspec.structs.replace(target, url=server.url + "/nowhere")
        assert answer_times_s(plan, ProbedServer(broken, vocabulary, request, [], [], [], [])) == []


# --- connections that are cut ---------------------------------------------------------------------


@pytest.mark.parametrize("cut", [Hangup, Reset])
def test_a_connection_that_is_cut_once_while_probing_is_tried_again(cut: type[Exception]) -> None:
    seen: list[str] = []

    def cut_each_first(ask: Request, send: Send) -> None:
        seen.append(ask.line)
        if seen.count(ask.line) == 1 and ask.line.startswith(("GET /v1/models", "POST")):
            raise cut
        answer(ask, send)

    with (
        ScriptedServer(cut_each_first, meets=True) as server,
        Server(server.url, []) as control,
    ):
        assert attach.attach(control, Requirements()).target.model == MODEL
        assert control.cuts[f"{server.url}/v1/models"] == 1


@pytest.mark.parametrize("cut", [Hangup, Reset])
def test_a_server_that_cuts_every_connection_is_told_as_such(
    cut: type[Exception],
) -> None:
    def reply(ask: Request, send: Send) -> None:
        raise cut

    with ScriptedServer(reply, meets=True) as server:
        line = refused(f"{server.url}/base/v1", patience=Patience(pauses_s=(0.01, 0.01)))
    assert line.startswith(
        f"{server.url}/base/v1/models: the connection was cut before the answer's end, 3 times ("
    )
    assert "not an HTTP server" not in line


def test_what_is_no_http_is_named_with_its_base_path() -> None:
    def ssh(ask: Request, send: Send) -> None:
        send(b"SSH-2.0-OpenSSH_9.6\r\n")
        raise Hangup

    with ScriptedServer(ssh, meets=True) as server:
        assert refused(f"{server.url}/base").startswith(
            f"{server.url}/base/v1/models: not an HTTP server ("
        )
