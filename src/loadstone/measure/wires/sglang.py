"""SGLang's own dialect, `POST /generate`. No I/O.

Source: sgl-project/sglang, python/sglang/srt: entrypoints/http_server.py (`generate_request`),
managers/io_struct.py (`GenerateReqInput`), managers/tokenizer_manager.py (`_handle_batch_output`),
sampling/sampling_params.py. Each event states the whole text so far (with
--incremental-streaming-output: what is new of it) and, in `meta_info`, the number of tokens so far:
that count tells what is output, so the text is not even decoded unless it is wanted. A stream that
is refused is answered by 200 and an `error` event (0.5.23: a prompt too long) or by 400 (an unknown
field); a request that the server gave up has the finish reason `abort`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from loadstone.core.record import ANSWER, THINKING
from loadstone.core.text import error_text, excerpt
from loadstone.measure.simulated_server.answer import GenerateAnswer
from loadstone.measure.simulated_server.body import GenerateBody
from loadstone.measure.wire.answer import CHOICES, MAX_TEXT, REASON_LENGTH, Answer, read_index
from loadstone.measure.wire.drafts import read_drafts
from loadstone.measure.wire.simulated import SimulatedWire
from loadstone.measure.wire.structured import make_sampling_fields, make_shape_fields
from loadstone.measure.wire.tolerant import (
    NO_RAW,
    UNREADABLE,
    convert,
    count,
    is_error,
    is_present,
    load,
    load_object,
    raw,
)
from loadstone.measure.wire.wire import Found, Wire
from loadstone.measure.wires.openai import list_length_fields
from loadstone.workload.request import LENGTH, PROMPT, TEXT_OR_IDS, RequestSpec

if TYPE_CHECKING:
    from loadstone.measure.engines.server import Server

NAME = "sglang"


def make_body(spec: RequestSpec) -> dict[str, Any]:
    """Make the body of a request, whose prompt is `text` or `input_ids`."""
    params: dict[str, Any] = {"max_new_tokens": LENGTH}
    if spec.min_tokens:
        params["min_new_tokens"] = LENGTH
    if spec.ignore_eos:
        params["ignore_eos"] = True
    params |= make_sampling_fields(spec, seed="sampling_seed") | make_shape_fields(spec)
    return {"sampling_params": params, "stream": spec.stream, TEXT_OR_IDS: PROMPT}


class _Meta(msgspec.Struct):
    finish_reason: msgspec.Raw = NO_RAW
    prompt_tokens: float | None = None
    completion_tokens: float | None = None
    cached_tokens: float | None = None
    reasoning_tokens: float | None = None
    spec_verify_ct: float | None = None


class _Event(msgspec.Struct):
    index: float | None = None
    text: msgspec.Raw = NO_RAW
    output_ids: msgspec.Raw = NO_RAW
    meta_info: _Meta | None = None
    error: msgspec.Raw = NO_RAW
    message: msgspec.Raw = NO_RAW


_decode = msgspec.json.Decoder(_Event).decode


class SglangAnswer(Answer):
    """An answer of /generate. An event is output if its count of tokens grew."""

    __slots__ = ()

    def fold(self, payload: bytes) -> None:
        try:
            event = _decode(payload)
        except UNREADABLE:
            answers = [] if self.streams else _read_several(payload)
            if answers:
                for number, event in enumerate(answers):
                    self._take(event, number, payload)
                return
            lenient = self.read_leniently(payload, _Event)
            if lenient is None:
                return
            event = lenient
        self._take(event, read_index(event.index), payload)

    def _take(self, event: _Event, number: int, payload: bytes) -> None:
        """Take what `payload` says of answer number `number`."""
        if event.meta_info is None and (is_error(event.error) or is_present(event.message)):
            reason = bytes(event.error) if is_error(event.error) else payload
            self.complain(error_text(reason))
            return
        meta = event.meta_info or _Meta()
        tokens = count(meta.completion_tokens)
        previous = self._counts.get(number, 0)
        if tokens is None:
            if is_present(event.text) or is_present(event.output_ids):
                self.add_event(ANSWER, None)
        elif tokens > previous:
            thought = (count(meta.reasoning_tokens) or 0) - (self.reasoning_tokens or 0)
            self._counts[number] = tokens
            self._last_running = self.output_tokens = sum(self._counts.values())
            channel = THINKING if 0 < thought <= tokens - previous else ANSWER
            self.add_event(channel, self._last_running)
        else:
            self.output_tokens = self._last_running
        if self.keeps_text and not number:
            self._take_text(event.text)
        self.take_counts(meta.prompt_tokens, meta.cached_tokens, meta.reasoning_tokens)
        if meta.spec_verify_ct and (is_present(meta.finish_reason) or not self.streams):
            self.drafts = read_drafts(load_object(payload) or {}, tokens) or self.drafts
        if is_present(meta.finish_reason):
            self._take_reason(meta.finish_reason)
            self._ended |= {number}
        if is_error(event.error):
            self.complain(error_text(bytes(event.error)))

    def _take_text(self, field: msgspec.Raw) -> None:
        """The whole text so far, or what is new of it: the whole begins with what was said
        before."""
        text = load(bytes(field))
        if isinstance(text, str):
            earlier = self.text
            self._texts = [(text if text.startswith(earlier) else earlier + text)[:MAX_TEXT]]

    def _take_reason(self, reason: msgspec.Raw) -> None:
        """`{"type": "length", "length": 8}`, or a bare word from old servers."""
        value = load(bytes(reason))
        if value is None:
            return
        kind = value.get("type") if isinstance(value, dict) else value
        word = kind if isinstance(kind, str) else bytes(raw(value)).decode()
        self.finish_reason = excerpt(word, REASON_LENGTH)
        if kind == "abort":
            message = value.get("message") if isinstance(value, dict) else None
            self.complain(error_text(bytes(raw(message))) if message else "aborted by the server")


def _read_several(payload: bytes) -> list[_Event]:
    """The answers to a request with `n`, in one piece: a list."""
    answers = load(payload)
    if not isinstance(answers, list):
        return []
    events = [convert(answer, _Event) for answer in answers[:CHOICES]]
    return [event for event in events if event is not None]


def recognise(server: Server, spec: RequestSpec) -> bool:
    """Return whether the server answers the plainest request."""
    return server.send_once(spec).error is None


def describe(server: Server, spec: RequestSpec, model: str | None) -> Found:
    """Describe the server; its own pages name the model, and the engine, where others do not."""
    from loadstone.measure.engines import pages

    models = server.get_json("/v1/models", must_allow=True)
    about = server.get_json("/model_info") or server.get_json("/get_model_info")
    loaded = about.get("model_path") if isinstance(about, dict) else None
    if model is None and not pages.list_models(models) and isinstance(loaded, str):
        model = loaded
    target = pages.describe(server, NAME, pages.choose_model(server, models, model), models)
    if target.engine is None and loaded is not None:
        pages.name_engine(server, target, owner=NAME)
    spec = msgspec.structs.replace(spec, model=target.model)
    pages.check_answered(server, spec)
    return target, spec


WIRE = Wire(
    path=lambda spec: "/generate",
    body=make_body,
    answer=SglangAnswer,
    prompts="text or ids",
    least_field=("sampling_params", "min_new_tokens"),
    spellings=dict.fromkeys(("json_schema", "regex", "grammar"), ("sampling_params",)),
    order=2,
    # Such a prompt it takes though it has no tokenizer (--skip-tokenizer-init), and every
    # vocabulary has these.
    probe_prompt=list(range(100, 108)),
    optional=list_length_fields,
    recognise=recognise,
    describe=describe,
    simulated=SimulatedWire(
        path="/generate",
        body=GenerateBody,
        content=GenerateBody.split,
        limit=GenerateBody.limit,
        default_tokens=128,  # SGLang's
        answer=GenerateAnswer,
    ),
)
