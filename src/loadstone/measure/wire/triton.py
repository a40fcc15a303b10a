"""Triton Inference Server in front of TensorRT-LLM: `POST /v2/models/MODEL/generate_stream` and
`/generate`. No I/O.

Source: triton-inference-server/server, docs/protocol/extension_generate.md; NVIDIA/TensorRT-LLM,
triton_backend: all_models/inflight_batcher_llm/ensemble/config.pbtxt (the names of inputs and
outputs; older releases say `min_length` and `random_seed` for `min_tokens` and `seed`),
inflight_batcher_llm/src/model_instance_state.cc (token counts).

A stream's event is one response of the model: `{"model_name", "model_version", "text_output", …}`.
It has no usage, no finish reason and no [DONE]: the answer is complete when its HTTP message is.
With `return_num_output_tokens` each response says how many tokens came with it, so those are
summed; without, a response with text is taken for a piece, and one without is not: the last, which
only closes the answer, cannot be told from a token without text.

Over gRPC, `ModelStreamInfer`, tensors go out and come in. A request is written as JSON first, so
that it is rendered like every other dialect's; `encode` turns that into what gRPC carries. Token
counts come where they were asked for and the model has them (`num_output_tokens`): of each response
its own, which add up to a running count.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from loadstone.core.errors import InputError
from loadstone.core.record import ANSWER
from loadstone.core.text import error_text, excerpt
from loadstone.measure.wire.answer import Answer
from loadstone.measure.wire.structured import make_shape_fields
from loadstone.measure.wire.tolerant import (
    MAX_COUNT,
    NO_RAW,
    UNREADABLE,
    convert,
    count,
    is_present,
)
from loadstone.workload.request import RequestSpec

NEEDED = ("text_input", "max_tokens")
"""Inputs that a model must have to be measured."""


EMPTY_FINAL = "triton_enable_empty_final_response"
"""Asks for a last response, empty where need be, that says it is the last. Triton knows it from
23.05 on."""
FINAL = "triton_final_response"
_LAST = b"\n\x15" + FINAL.encode() + b"\x12\x02\x08\x01"
"""A map entry, key and value, in protobuf: how the last response of an answer looks from outside.
"""
_ERROR_TAG = b"\n"
"""Field 1 of ModelStreamInferResponse, `error_message`, which precedes the response where there is
one."""

_CODES = {
    "BOOL": "B",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
}
"""struct's code for each datatype of fixed size; tensors are little-endian. BYTES elements carry
their length. That for truth values, "?", would take anything for one: "false" too.
"""


class Tensor(msgspec.Struct):
    """One input of a request over gRPC."""

    name: str
    datatype: str
    shape: list[int]
    data: list[Any]

    def raw(self) -> bytes:
        """The values as gRPC carries them. Raises InputError on one that is not of the input's
        datatype."""
        try:
            if self.datatype == "BYTES":
                return b"".join(
                    [
                        struct.pack("<I", len(raw)) + raw
                        for raw in (value.encode() for value in self.data)
                    ]
                )
            return struct.pack(f"<{len(self.data)}{_CODES[self.datatype]}", *self.data)
        except (AttributeError, KeyError, struct.error, OverflowError) as error:
            shown = excerpt(msgspec.json.encode(self.data), 60)
            raise InputError(
                f"input {self.name!r} of the model is {self.datatype}, and cannot be {shown}; "
                "correct the flag, or --extra-body"
            ) from error


class GrpcBody(msgspec.Struct):
    """A request in JSON, in the form that KServe's inference protocol gives it over HTTP."""

    model_name: str
    inputs: list[Tensor]


def make_inputs(spec: RequestSpec, prompt: str, length: str) -> dict[str, Any]:
    """Input name → value, for a model with `ask.inputs` (none known: those of the newest ensemble).

    `prompt` and `length` stand in their places. It is the JSON body of /generate as it is.
    """
    sampling = spec.sampling
    stop: Any = list(sampling.stop) if len(sampling.stop) > 1 else "".join(sampling.stop)
    values: dict[str, Any] = {
        "text_input": prompt,
        "max_tokens": length,
        "stream": spec.stream,
        # Older models demand both.
        "bad_words": "",
        "stop_words": stop,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        spell_input("seed", spec.inputs): sampling.seed,
        spell_input("min_tokens", spec.inputs): length if spec.min_tokens else None,
        "return_num_input_tokens": True if spec.usage != "none" else None,
        "return_num_output_tokens": True if spec.usage != "none" else None,
        # In one piece the answer else begins with the prompt, which is then counted as output.
        "exclude_input_in_output": None if spec.stream else True,
    }
    values |= make_shape_fields(spec)
    return {
        name: value
        for name, value in values.items()
        if value is not None and (not spec.inputs or name in spec.inputs)
    }


def spell_input(name: str, known: tuple[str, ...]) -> str:
    """An input's name in the model's release; the newest where neither is known."""
    older = {"seed": "random_seed", "min_tokens": "min_length"}.get(name, name)
    return older if older in known and name not in known else name


def make_grpc_body(spec: RequestSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A request with these inputs in JSON, which `encode` turns into what gRPC carries.

    Raises InputError where the user's own fields are no inputs of the model.
    """
    tensors = []
    for name, value in inputs.items():
        if name not in spec.types:
            known = ", ".join(excerpt(known, 40) for known in sorted(spec.types)[:40])
            raise InputError(f"--extra-body: the model has no input {name!r}; it has {known}")
        data = value if isinstance(value, list) else [value]
        shape = [1, len(data)] if spec.batched else [len(data)]
        tensors.append(Tensor(name, spec.types[name], shape, data))
    body: dict[str, Any] = msgspec.to_builtins(GrpcBody(spec.model, tensors))
    return body


class _Response(msgspec.Struct):
    text_output: str | list[str] | None = None
    num_input_tokens: float | list[float] | None = None
    num_output_tokens: float | list[float] | None = None
    error: msgspec.Raw = NO_RAW


_decode = msgspec.json.Decoder(_Response).decode
_decode_grpc_body = msgspec.json.Decoder(GrpcBody).decode


class TritonAnswer(Answer):
    """An answer of /generate_stream or /generate."""

    __slots__ = ()

    def finish(self) -> int:
        late = super().finish()
        self.done = self.events > 0 and self.error is None
        return late

    def _fold(self, payload: bytes) -> None:
        try:
            response = _decode(payload)
        except UNREADABLE:
            fields = self._read_object(payload, done=None)
            if fields is None:
                return
            response = _tolerated(fields)
        if is_present(response.error):
            self._complain(error_text(bytes(response.error)))
            return
        text = response.text_output
        self.take(
            "".join(text) if isinstance(text, list) else text, _first(response.num_output_tokens)
        )
        self._take_counts(_first(response.num_input_tokens), None, None)

    def take(self, text: str | None, tokens: int | None) -> None:
        """One response of the model: its text, and how many tokens came with it where it says
        so."""
        if tokens is not None:
            self.output_tokens = min(MAX_COUNT, (self.output_tokens or 0) + tokens)
        if not (text or tokens):
            return
        self.events += 1
        self.channels.append(ANSWER)
        if tokens is None:
            self.running = False
        elif self.running:
            self.running_tokens.append(self.output_tokens or 0)
        if self._keeps:
            self._keep(text)


def _first(value: float | list[float] | None) -> int | None:
    """A count, which comes bare or as a tensor of one element."""
    if isinstance(value, list):
        value = value[0] if value else None
    return count(value)


def _tolerated(fields: dict[str, Any]) -> _Response:
    """A response where a field has an odd type, or the text is no valid UTF-8."""
    response = convert(fields, _Response) or _Response()
    text = fields.get("text_output")
    response.text_output = [
        part for part in (text if isinstance(text, list) else [text]) if isinstance(part, str)
    ]
    return response


class GrpcAnswer(TritonAnswer):
    """One answer: `receive` what each response holds, `finish` after the last, `fail` on an
    error."""

    __slots__ = ()

    def receive(self, outputs: Mapping[str, tuple[str, bytes]]) -> int:
        """One response's outputs, name → (datatype, raw): how many output events it is, none or
        one."""
        before = self.events
        text = _first_bytes(outputs.get("text_output"))
        self.take(
            None if text is None else text.decode("utf-8", "replace"),
            _count(outputs.get("num_output_tokens")),
        )
        self._take_counts(_count(outputs.get("num_input_tokens")), None, None)
        return self.events - before if self.streams else 0

    def finish(self) -> int:
        """That was the last response: output events completed by that, which is the one of an
        answer in one piece."""
        super().finish()
        return 0 if self.streams else self.events

    def fail(self, message: str) -> None:
        """Take an error that the server, or who reads it, gives in place of a response."""
        self._complain(excerpt(message))


def encode(messages: Any, rendered: bytes, request_id: str) -> bytes:
    """A ModelInferRequest from its JSON form, which `grpc_body` began; `messages` are those of
    Triton's protocol."""
    body = _decode_grpc_body(rendered)
    request = messages.ModelInferRequest(model_name=body.model_name, id=request_id)
    request.parameters[EMPTY_FINAL].bool_param = True
    for tensor in body.inputs:
        request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        request.raw_input_contents.append(tensor.raw())
    encoded: bytes = request.SerializeToString()
    return encoded


def may_be_last(data: bytes) -> bool:
    """Return True if a response still in bytes says that it is the last, or begins with an
    error."""
    return _LAST in data or data[:1] == _ERROR_TAG


def fold(parse: Callable[[bytes], Any], answer: GrpcAnswer, data: bytes) -> tuple[int, bool]:
    """One response into its answer: output events that it is, and whether it is the last. Never
    raises."""
    try:
        message = parse(data)
    except Exception as error:  # DecodeError of whichever protobuf implementation there is
        answer.fail(f"response is not a ModelStreamInferResponse: {error}")
        return 0, True
    if message.error_message:
        answer.fail(message.error_message)
        return 0, True
    response = message.infer_response
    outputs = {
        output.name: (output.datatype, raw)
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=False)
    }
    events = answer.receive(outputs)
    last = FINAL in response.parameters and response.parameters[FINAL].bool_param
    return (events + answer.finish(), True) if last else (events, False)


def _first_bytes(output: tuple[str, bytes] | None) -> bytes | None:
    """The first element of a BYTES tensor (the first beam); None where it is none."""
    if output is None or output[0] != "BYTES":
        return None
    raw = output[1]
    return raw[4 : 4 + int.from_bytes(raw[:4], "little")]


def _count(output: tuple[str, bytes] | None) -> int | None:
    """The first element of a tensor of whole numbers, if it can be a count of tokens."""
    if output is None or output[0] not in ("INT32", "INT64", "UINT32", "UINT64"):
        return None
    size = struct.calcsize("<" + _CODES[output[0]])
    if len(output[1]) < size:
        return None
    (count,) = struct.unpack_from("<" + _CODES[output[0]], output[1])
    return count if 0 <= count <= MAX_COUNT else None
