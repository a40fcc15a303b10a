"""Reads answers whose events say by their `type` what they are: each as the chunk of OpenAI's chat
that says the same, so that first tokens, channels and counts follow one rule in all APIs. No I/O.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

import msgspec

from loadstone.core.text import error_text, excerpt
from loadstone.measure.wire.answer import REASON_LENGTH
from loadstone.measure.wire.chunk import Choice, Chunk, Delta, Timings, Usage
from loadstone.measure.wire.drafts import read_drafts
from loadstone.measure.wire.tolerant import NO_RAW, UNREADABLE, is_error, load_object, raw
from loadstone.measure.wires.openai import OpenAIAnswer
from loadstone.workload.request import LENGTH, RequestSpec

_CALL = msgspec.Raw(b"[{}]")
"""Stands for a piece of a tool call whose text nobody keeps."""


class TypedEvent(msgspec.Struct):
    """Holds what events of all such APIs have, and answers in one piece."""

    type: str | None = None
    error: msgspec.Raw = NO_RAW
    timings: Timings | None = None


class TypedAnswer(OpenAIAnswer):
    """Reads an answer of typed events. An API adds `kind`, the struct of its events, and:

    spell       says as a delta what an event holds of output; None: it has none
    translate   makes the chunk of an event, and keeps what it says of the whole answer
    find_other  returns by its name the text of an event that the API does not know
    """

    __slots__ = ()
    kind: ClassVar[type[TypedEvent]]

    def spell(self, event: Any) -> Delta | None:
        raise NotImplementedError

    def translate(self, event: Any) -> Chunk:
        raise NotImplementedError

    def find_other(self, document: dict[str, Any]) -> object:
        raise NotImplementedError

    def call(self, number: float | None, **said: str | None) -> Delta:
        """Make the delta of a piece of tool call `number`: its `name`, or of its `arguments`."""
        if not self.keeps_text:
            return Delta(tool_calls=_CALL)
        piece = {"index": number, "function": {name: text for name, text in said.items() if text}}
        return Delta(tool_calls=raw([piece]))

    def note_name(self, number: float | None, name: str | None) -> None:
        """Keep the name of a tool call, of which no token is an event."""
        if name and self.keeps_text:
            self._called.append(bytes(self.call(number, name=name).tool_calls))

    def end(self, reason: str | None) -> None:
        """Keep why the answer ended."""
        if reason:
            self.finish_reason = excerpt(reason, REASON_LENGTH)
            self._ended |= {0}

    def fail(self, error: msgspec.Raw) -> None:
        """Complain of an error object, with its type, or its code, in front."""
        fields = load_object(bytes(error)) or {}
        kind, text = fields.get("type") or fields.get("code"), error_text(bytes(error))
        self.complain(f"{excerpt(kind, REASON_LENGTH)}: {text}" if isinstance(kind, str) else text)

    def _read_plain(self, payload: bytes) -> Chunk | None:
        delta = self.spell(_decoder(self.kind).decode(payload))
        return None if delta is None else Chunk([Choice(delta=delta)])

    def _read_chunk(self, payload: bytes) -> Chunk | None:
        try:
            event = _decoder(self.kind).decode(payload)
        except UNREADABLE:
            event = self.read_leniently(payload, self.kind)
            if event is None:
                return None
        if is_error(event.error):
            self.fail(event.error)
        chunk = self.translate(event)
        chunk.timings = event.timings
        return chunk

    def _find_unlisted(self, document: dict[str, Any]) -> Any:
        unlisted = self.find_other(document)
        if not unlisted:
            return None
        return super()._find_unlisted({"choices": [{"delta": unlisted}]})

    def _read_rest(self, document: dict[str, Any]) -> Usage | None:
        self.drafts = read_drafts(document, self.output_tokens) or self.drafts
        return None


_DECODERS: dict[type[TypedEvent], msgspec.json.Decoder[Any]] = {}


def _decoder(kind: type[TypedEvent]) -> msgspec.json.Decoder[Any]:
    if kind not in _DECODERS:
        _DECODERS[kind] = msgspec.json.Decoder(kind)
    return _DECODERS[kind]


# --- requests -------------------------------------------------------------------------------------


def split_prompt(prompt: bytes) -> tuple[list[dict[str, Any]], dict[str, Any]] | None:
    """Return the messages of a chat's prompt and the body's fields behind them; None where it is
    one message of the user's, which is written alike everywhere."""
    begins = b'[{"role":"user","content":"'
    if prompt.startswith(begins) and prompt.count(b'"role":') == 1 and prompt.endswith(b'"}]'):
        return None
    fields = msgspec.json.decode(b'{"messages":%b}' % prompt)
    return fields.pop("messages"), fields


def join_fields(messages: list[Any], fields: dict[str, Any]) -> bytes:
    """Write messages, and further fields of the body behind them."""
    rest = msgspec.json.encode(fields)[1:-1] if fields else b""
    return msgspec.json.encode(messages) + (b"," + rest if rest else b"")


def thinking_of(message: dict[str, Any]) -> object:
    """Return what a message of the model's holds of its thinking; None or empty: nothing."""
    return message.get("reasoning_content") or message.get("reasoning")


def demanded_length(spec: RequestSpec) -> dict[str, Any]:
    """Return the fields by which servers of these APIs are made to write a whole length."""
    fields: dict[str, Any] = {"ignore_eos": True} if spec.ignore_eos else {}
    return fields | ({"min_tokens": LENGTH} if spec.min_tokens else {})


def functions_of(message: dict[str, Any]) -> list[tuple[str, str, str]]:
    """List the (id, name, arguments as JSON) of the tools that a message calls."""
    calls = []
    for place, call in enumerate(message.get("tool_calls") or ()):
        function = call.get("function") or {}
        arguments = function.get("arguments")
        text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
        calls.append((str(call.get("id") or f"call_{place}"), str(function.get("name")), text))
    return calls
