"""Triton's gRPC dialect, `ModelStreamInfer` with TensorRT-LLM's ensemble: tensors out, tensors in. No I/O.

A request is written as JSON first, in the form that KServe's inference protocol gives it over HTTP (`model_name`, and
`inputs` with name, datatype, shape and data), so that it is rendered like every other dialect's; `tensors` turns that
into what gRPC carries. Token counts come where they were asked for and the model has them (`num_output_tokens`): of
each response its own, which add up to a running count.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from loadstone.core.errors import InputError
from loadstone.core.text import excerpt
from loadstone.measure.wire import ask as asking
from loadstone.measure.wire.tolerant import MAX_COUNT
from loadstone.measure.wire.triton import TritonAnswer
from loadstone.workload.request import Ask

EMPTY_FINAL = "triton_enable_empty_final_response"
"""Asks for a last response, empty where need be, that says it is the last. Triton knows it from 23.05 on."""
FINAL = "triton_final_response"
_LAST = b"\n\x15" + FINAL.encode() + b"\x12\x02\x08\x01"
"""A map entry, key and value, in protobuf: how the last response of an answer looks from outside."""
_ERROR_TAG = b"\n"
"""Field 1 of ModelStreamInferResponse, `error_message`, which precedes the response where there is one."""

_CODES = {
    "BOOL": "B", "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q", "UINT8": "B", "UINT16": "H", "UINT32": "I",
    "UINT64": "Q", "FP16": "e", "FP32": "f", "FP64": "d",
}  # fmt: skip
"""struct's code for each datatype of fixed size; tensors are little-endian. BYTES elements carry their length. That
for truth values, "?", would take anything for one: "false" too.
"""


class GrpcAsk(Ask, kw_only=True, frozen=True):
    """types    datatype of each input that the model has, as KServe names it (BYTES, INT32, …)
    batched  the model's tensors have a first dimension for the batch, of one here
    """

    types: dict[str, str]
    batched: bool = False


class Tensor(NamedTuple):
    """One input of a request."""

    name: str
    datatype: str
    shape: list[int]
    raw: bytes


def body(ask: GrpcAsk) -> dict[str, Any]:
    """Every request in JSON, with ask.PROMPT and ask.LENGTH in the places of what differs.

    Raises InputError where the user's own fields are no inputs of the model.
    """
    inputs = []
    for name, value in asking.body(ask).items():
        if name not in ask.types:
            known = ", ".join(excerpt(known, 40) for known in sorted(ask.types)[:40])
            raise InputError(f"--extra-body: the model has no input {name!r}; it has {known}")
        data = value if isinstance(value, list) else [value]
        shape = [1, len(data)] if ask.batched else [len(data)]
        inputs.append({"name": name, "datatype": ask.types[name], "shape": shape, "data": data})
    return {"model_name": ask.model, "inputs": inputs}


def tensors(fields: Mapping[str, Any]) -> list[Tensor]:
    """The inputs of a rendered body. Raises InputError on a value that is not of its input's datatype."""
    return [Tensor(tensor["name"], tensor["datatype"], tensor["shape"], _raw(tensor)) for tensor in fields["inputs"]]


def _raw(tensor: Mapping[str, Any]) -> bytes:
    data, datatype = tensor["data"], tensor["datatype"]
    try:
        if datatype == "BYTES":
            return b"".join([struct.pack("<I", len(raw)) + raw for raw in (value.encode() for value in data)])
        return struct.pack(f"<{len(data)}{_CODES[datatype]}", *data)
    except (AttributeError, KeyError, struct.error, OverflowError) as error:
        said = excerpt(msgspec.json.encode(data), 60)
        raise InputError(
            f"input {tensor['name']!r} of the model is {datatype}, and cannot be {said}; "
            "correct the flag, or --extra-body"
        ) from error


class GrpcAnswer(TritonAnswer):
    """One answer: `receive` what each response holds, `finish` after the last, `fail` on an error."""

    __slots__ = ()

    def receive(self, outputs: Mapping[str, tuple[str, bytes]]) -> int:
        """One response's outputs, name → (datatype, raw): how many output events it is, none or one."""
        before = self.events
        text = _first_bytes(outputs.get("text_output"))
        self.take(None if text is None else text.decode("utf-8", "replace"), _count(outputs.get("num_output_tokens")))
        input_tokens = _count(outputs.get("num_input_tokens"))
        if input_tokens is not None:
            self.input_tokens = input_tokens
        return self.events - before if self.streams else 0

    def finish(self) -> int:
        """That was the last response: output events completed by that, which is the one of an answer in one piece."""
        super().finish()
        return 0 if self.streams else self.events

    def fail(self, message: str) -> None:
        """What the server, or who reads it, says in place of a response."""
        self._complain(excerpt(message))


def encode(messages: Any, rendered: bytes, request_id: str) -> bytes:
    """A ModelInferRequest from its JSON form, which `body` began; `messages` are those of Triton's protocol."""
    fields = msgspec.json.decode(rendered)
    request = messages.ModelInferRequest(model_name=fields["model_name"], id=request_id)
    request.parameters[EMPTY_FINAL].bool_param = True
    for tensor in tensors(fields):
        request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        request.raw_input_contents.append(tensor.raw)
    encoded: bytes = request.SerializeToString()
    return encoded


def may_be_last(data: bytes) -> bool:
    """Of a response still in bytes: does it say that it is the last, or begin with an error?"""
    return _LAST in data or data[:1] == _ERROR_TAG


def fold(parse: Callable[[bytes], Any], answer: GrpcAnswer, data: bytes) -> tuple[int, bool]:
    """One response into its answer: output events that it is, and whether it is the last. Never raises."""
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
