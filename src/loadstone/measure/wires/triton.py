"""Triton Inference Server in front of TensorRT-LLM: `POST /v2/models/MODEL/generate_stream` and
`/generate`. No I/O.

Source: triton-inference-server/server, docs/protocol/extension_generate.md; NVIDIA/TensorRT-LLM,
triton_backend: all_models/inflight_batcher_llm/ensemble/config.pbtxt (the names of inputs and
outputs; older releases say `min_length` and `random_seed` for `min_tokens` and `seed`),
inflight_batcher_llm/src/model_instance_state.cc (token counts).

A stream's event is one response of the model: `{"model_name", "model_version", "text_output", …}`.
It has no usage, no finish reason and no [DONE]: the answer is complete when its HTTP message is.
With `return_num_output_tokens` each response says how many tokens came with it, and these are
summed. Without it a response with text counts as an event of output, and one without text does not:
a token without text looks like the last response, which only closes the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from loadstone.core.errors import TargetError
from loadstone.core.record import ANSWER, Target
from loadstone.core.text import error_text, excerpt
from loadstone.measure.wire.answer import Answer
from loadstone.measure.wire.structured import make_shape_fields
from loadstone.measure.wire.tolerant import (
    MAX_COUNT,
    NO_RAW,
    UNREADABLE,
    convert,
    count,
    is_error,
    list_objects,
)
from loadstone.measure.wire.wire import Found, Wire
from loadstone.workload.request import LENGTH, PROMPT, RequestSpec

if TYPE_CHECKING:
    from loadstone.measure.engines.server import Server

NAME = "triton"

NEEDED = ("text_input", "max_tokens")
"""Inputs that a model must have to be measured."""


def make_body(spec: RequestSpec) -> dict[str, Any]:
    """Return the body of a request: a value for each of the model's inputs; where these are not
    known, for those of the newest ensemble."""
    sampling = spec.sampling
    stop: Any = list(sampling.stop) if len(sampling.stop) > 1 else "".join(sampling.stop)
    values: dict[str, Any] = {
        "text_input": PROMPT,
        "max_tokens": LENGTH,
        "stream": spec.stream,
        # Older models demand both.
        "bad_words": "",
        "stop_words": stop,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        spell_input("seed", spec.inputs): sampling.seed,
        spell_input("min_tokens", spec.inputs): LENGTH if spec.min_tokens else None,
        "return_num_input_tokens": True if spec.usage != "none" else None,
        "return_num_output_tokens": True if spec.usage != "none" else None,
        # Otherwise an answer in one piece begins with the prompt, which counts as output.
        "exclude_input_in_output": None if spec.stream else True,
    }
    values |= make_shape_fields(spec)
    # Inputs that the model has not are left out: Triton takes them silently, and nobody reads them.
    return {
        name: value
        for name, value in values.items()
        if value is not None and (not spec.inputs or name in spec.inputs)
    }


def make_path(spec: RequestSpec) -> str:
    """Return the path that requests of this model are sent to."""
    suffix = "_stream" if spec.stream else ""
    return f"/v2/models/{quote(spec.model, safe='')}/generate{suffix}"


def spell_input(name: str, inputs: Sequence[str]) -> str:
    """Return what the model's release calls an input; the newest name where neither is known."""
    older = {"seed": "random_seed", "min_tokens": "min_length"}.get(name, name)
    return older if older in inputs and name not in inputs else name


def name_input(spec: RequestSpec, name: str) -> str:
    """Return what the model calls a field of a request."""
    names = {"stop": "stop_words", "structured": "guided_decoding_guide"}
    return spell_input(names.get(name, name), spec.inputs)


class _Response(msgspec.Struct):
    """Holds the fields of one response; numbers come bare or as tensors of one element."""

    text_output: str | list[str] | None = None
    num_input_tokens: float | list[float] | None = None
    num_output_tokens: float | list[float] | None = None
    error: msgspec.Raw = NO_RAW


_decode = msgspec.json.Decoder(_Response).decode


class TritonAnswer(Answer):
    """Reads an answer of /generate_stream or /generate."""

    __slots__ = ()

    def finish(self) -> int:
        late = super().finish()
        self.done = self.events > 0 and self.error is None
        return late

    def fold(self, payload: bytes) -> None:
        try:
            response = _decode(payload)
        except UNREADABLE:
            fields = self.read_object(payload, done=None)
            if fields is None:
                return
            response = _tolerated(fields)
        if is_error(response.error):
            self.complain(error_text(bytes(response.error)))
            return
        text = "".join(response.text_output or "")
        tokens = _first(response.num_output_tokens)
        if tokens is not None:
            self.output_tokens = min(MAX_COUNT, (self.output_tokens or 0) + tokens)
        if text or tokens:
            self.add_event(ANSWER, None if tokens is None else self.output_tokens)
            self.say(text)
        self.take_counts(_first(response.num_input_tokens), None, None)


def _first(value: float | list[float] | None) -> int | None:
    """Return a count, which comes bare or as a tensor of one element."""
    if isinstance(value, list):
        value = value[0] if value else None
    return count(value)


def _tolerated(fields: dict[str, Any]) -> _Response:
    """Return the readable fields of a response where one has an odd type, or the text is no valid
    UTF-8."""
    response = convert(fields, _Response) or _Response()
    text = fields.get("text_output")
    response.text_output = [
        part for part in (text if isinstance(text, list) else [text]) if isinstance(part, str)
    ]
    return response


# --- the server's pages ---------------------------------------------------------------------------

_PREFERRED_MODELS = ("ensemble", "tensorrt_llm_bls")
"""TensorRT-LLM's models that take text, the preferred one first."""


def _choose_model(server: Server, index: Any, requested: str | None) -> str:
    """Return the requested model, else the one of TensorRT-LLM that takes text, else the only one
    that is ready. Raises TargetError where it is not ready, or none can be chosen."""
    ready = [
        str(entry["name"])
        for entry in list_objects({"index": index}, "index")
        if "name" in entry and entry.get("state", "READY") == "READY"
    ]
    if requested is not None:
        if ready and requested not in ready:
            raise TargetError(f"--model {requested}: the server has ready {_join(ready[:8])}")
        return requested
    for name in _PREFERRED_MODELS:
        if name in ready:
            return name
    if len(ready) != 1:
        state = f"has ready {_join(ready[:8])}" if ready else "names no model that is ready"
        raise TargetError(f"{server.url}: the server {state}; choose one with --model")
    return ready[0]


def _list_inputs(server: Server, model: str) -> tuple[str, ...]:
    """Return the names of a model's inputs. Raises TargetError where one that is NEEDED is
    missing."""
    page = f"/v2/models/{quote(model, safe='')}/config"
    config = server.get_json(page, must_allow=True)
    inputs = tuple(str(entry.get("name")) for entry in list_objects(config, "input"))
    missing = [name for name in NEEDED if name not in inputs]
    if missing:
        raise TargetError(
            f"{server.url}{page}: the model has no input {' and '.join(missing)}: it has"
            f" {_join(inputs[:20]) or 'none'}; name one that has with --model"
        )
    return inputs


def _join(names: Sequence[str]) -> str:
    return ", ".join(excerpt(name, 120) for name in names)


def recognise(server: Server, spec: RequestSpec) -> bool:
    """Return whether the server calls itself a Triton."""
    about = server.get_json("/v2")
    return isinstance(about, dict) and about.get("name") == NAME


def describe(server: Server, spec: RequestSpec, model: str | None) -> Found:
    """Return what is known of the server, and the requests for its model. Raises TargetError where
    no Triton answers, or no model can be chosen."""
    from loadstone.measure.engines import pages

    about = server.get_json("/v2", must_allow=True)
    if not isinstance(about, dict) or "name" not in about:
        raise TargetError(
            f"{server.url}/v2: no Triton server answers there; correct the URL, or --endpoint"
        )
    index = server.post_json("/v2/repository/index", {"ready": True})
    version = about.get("version")
    model = _choose_model(server, index, model)
    spec = msgspec.structs.replace(spec, model=model, inputs=_list_inputs(server, model))
    pages.check_answered(server, spec)
    target = Target(
        url=server.url,
        endpoint=NAME,
        model=spec.model,
        engine="Triton",
        engine_version=(excerpt(version, 120) or None) if isinstance(version, str) else None,
        prompt_kind="text",
        models=index,
        version=about,
        metrics_names=pages.list_metrics(server.get("/metrics")),
    )
    return target, spec


WIRE = Wire(
    path=make_path,
    body=make_body,
    answer=TritonAnswer,
    prompts="text",
    spellings=dict.fromkeys(("json_schema", "regex", "grammar"), ("guided_decoding",)),
    order=3,
    probe_tokens=4,  # one may have no text, and is then not seen where the model does not count
    counts_whole=False,  # some models cannot answer in one piece
    optional=lambda spec: {
        "min_tokens": {"min_tokens": True},
        "return_num_output_tokens": {"usage": "running"},
    },
    input_name=name_input,
    recognise=recognise,
    describe=describe,
)
