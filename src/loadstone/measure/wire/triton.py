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
"""

from __future__ import annotations

from typing import Any

import msgspec

from loadstone.core.record import ANSWER
from loadstone.core.text import error_text
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


class _Response(msgspec.Struct):
    text_output: str | list[str] | None = None
    num_input_tokens: float | list[float] | None = None
    num_output_tokens: float | list[float] | None = None
    error: msgspec.Raw = NO_RAW


_decode = msgspec.json.Decoder(_Response).decode


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
