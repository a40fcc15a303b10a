"""Anthropic's Messages, `POST /v1/messages`, as Anthropic and other servers send it. No I/O.

Sources: Anthropic's documentation of Messages and of its streams; vLLM 0.33,
entrypoints/anthropic/serving.py; SGLang 0.5.23, srt/entrypoints/anthropic/serving.py; LiteLLM
1.110, llms/anthropic/messages/adapters/streaming_iterator.py; recorded bytes of llama.cpp.

Output is what deltas of text, thinking and a tool's input bring; starts, stops, signatures and
pings are none. `message_start` comes at once (Anthropic, LiteLLM) or with the first token (vLLM,
SGLang, llama.cpp), and its count of output says nothing. Counts of the prompt are the newest of
each field: LiteLLM begins with zeros, llama.cpp ends without them. The prompt is `input_tokens` and
what a cache had of it or took of it; older servers have all in `input_tokens`, and no other field.
"""

from __future__ import annotations

from typing import Any

import msgspec

from loadstone.measure.simulated_server.anthropic import MessagesAnswer, MessagesBody
from loadstone.measure.wire.chunk import Choice, Chunk, Delta, Details, Usage
from loadstone.measure.wire.simulated import SimulatedWire
from loadstone.measure.wire.structured import make_sampling_fields, make_shape_fields
from loadstone.measure.wire.tolerant import NO_RAW, count, is_present, load_object, raw
from loadstone.measure.wire.wire import Wire
from loadstone.measure.wires.openai import list_length_fields, make_path
from loadstone.measure.wires.typed import (
    TypedAnswer,
    TypedEvent,
    demanded_length,
    functions_of,
    join_fields,
    split_prompt,
    thinking_of,
)
from loadstone.workload.prompts import text_of
from loadstone.workload.request import LENGTH, PROMPT, RequestSpec

_SILENT = ("signature_delta", "citations_delta")
"""Deltas of what the model did not write."""
_PROMPT_COUNTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


# --- answers --------------------------------------------------------------------------------------


class _Usage(msgspec.Struct):
    input_tokens: float | None = None
    cache_read_input_tokens: float | None = None
    cache_creation_input_tokens: float | None = None
    output_tokens: float | None = None


class _Piece(msgspec.Struct):
    """A block of content, or what is new of it."""

    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    name: str | None = None
    input: msgspec.Raw = NO_RAW
    stop_reason: str | None = None


class _Message(TypedEvent):
    model: str | None = None
    content: list[_Piece] | None = None
    stop_reason: str | None = None
    usage: _Usage | None = None


class _Event(_Message):
    """An event; an answer in one piece is the message itself."""

    message: _Message | None = None
    index: float | None = None
    content_block: _Piece | None = None
    delta: _Piece | None = None


class MessagesReply(TypedAnswer):
    """Reads an answer of /v1/messages."""

    __slots__ = ("_prompt",)
    kind = _Event

    def __init__(self, *, stream: bool = True, keep_text: bool = False) -> None:
        super().__init__(stream=stream, keep_text=keep_text)
        self._prompt: dict[str, int] = {}

    def spell(self, event: _Event) -> Delta | None:
        piece = event.delta or event.content_block
        if piece is None:
            return None
        if piece.text or piece.thinking:
            return Delta(content=piece.text, reasoning_content=piece.thinking)
        if piece.partial_json:
            return self.call(event.index, arguments=piece.partial_json)
        if is_present(piece.input):  # whole, where it is not told in pieces
            return self.call(event.index, arguments=bytes(piece.input).decode())
        return None

    def translate(self, event: _Event) -> Chunk:
        message = event if event.message is None else event.message
        is_start = event.type == "message_start"
        chunk = Chunk(usage=self._merge(message.usage, is_start=is_start), model=message.model)
        if event.content_block is not None:
            self.note_name(event.index, event.content_block.name)
        delta = self.spell(event) if self.streams else self._join(message.content or [])
        if delta is not None:
            chunk.choices = [Choice(delta=delta)]
        self.end(message.stop_reason or (event.delta.stop_reason if event.delta else None))
        self.done = self.done or event.type == "message_stop"
        return chunk

    def find_other(self, document: dict[str, Any]) -> object:
        delta = document.get("delta")
        is_known = not isinstance(delta, dict) or delta.get("type") in _SILENT
        return None if is_known or document.get("type") == "message_delta" else delta

    def _join(self, content: list[_Piece]) -> Delta | None:
        """Say the content of an answer in one piece as one delta."""
        text, thinking = (
            "".join(getattr(piece, name) or "" for piece in content)
            for name in ("text", "thinking")
        )
        calls = [
            {
                "index": place,
                "function": {"name": piece.name, "arguments": bytes(piece.input).decode()},
            }
            for place, piece in enumerate(content)
            if piece.name
        ]
        if not (text or thinking or calls):
            return None
        return Delta(content=text, reasoning_content=thinking, tool_calls=raw(calls))

    def _merge(self, usage: _Usage | None, *, is_start: bool) -> Usage | None:
        """Keep the newest of each count of the prompt; return all counts as OpenAI's chat has
        them."""
        if usage is None:
            return None
        for name in _PROMPT_COUNTS:
            tokens = count(getattr(usage, name))
            if tokens is not None:
                self._prompt[name] = tokens
        prompt = sum(self._prompt.values())
        cached = self._prompt.get("cache_read_input_tokens") if prompt else None
        return Usage(prompt, None if is_start else usage.output_tokens, Details(cached))


# --- requests -------------------------------------------------------------------------------------


def make_body(spec: RequestSpec) -> dict[str, Any]:
    """Return the body of a request."""
    body: dict[str, Any] = {"model": spec.model, "stream": spec.stream, "max_tokens": LENGTH}
    body |= (
        demanded_length(spec)
        | make_sampling_fields(spec, stop="stop_sequences")
        | make_shape_fields(spec)
    )
    return body | {"messages": PROMPT}


def spell_prompt(prompt: bytes, previous: str | None = None) -> bytes:
    """Write the messages of a chat, and its tools, as Messages has them: what the system says in a
    field of its own, results of tools in a message of the user's."""
    split = split_prompt(prompt)
    if split is None:
        return prompt
    messages, fields = split
    spelled: list[dict[str, Any]] = []
    system: list[str] = []
    for message in messages:
        role, content = message.get("role"), message.get("content")
        if role in ("system", "developer"):
            # A later one stays where it is, so that what is before it stays a prefix.
            if spelled:
                spelled.append({"role": "user", "content": text_of(content)})
            else:
                system.append(text_of(content))
        elif role in ("tool", "function"):
            result = {
                "type": "tool_result",
                "tool_use_id": str(message.get("tool_call_id") or "call_0"),
                "content": text_of(content),
            }
            last = spelled[-1]["content"] if spelled else None
            if isinstance(last, list) and last[-1]["type"] == "tool_result":
                last.append(result)
            else:
                spelled.append({"role": "user", "content": [result]})
        else:
            spelled.append({"role": role, "content": _spell_blocks(message)})
    if system:
        fields["system"] = "\n\n".join(system)
    _spell_tools(fields)
    return join_fields(spelled, fields)


def _spell_blocks(message: dict[str, Any]) -> Any:
    """Return the content of a message: its text, or blocks where it thinks or calls tools."""
    content, calls = message.get("content"), functions_of(message)
    thinking = thinking_of(message)
    if isinstance(content, list):
        content = [_spell_picture(part) for part in content]
    if not calls and not thinking:
        return content or ""
    blocks: list[dict[str, Any]] = []
    if thinking:
        blocks.append({"type": "thinking", "thinking": text_of(thinking), "signature": ""})
    if content:
        blocks += content if isinstance(content, list) else [{"type": "text", "text": content}]
    for number, name, arguments in calls:
        values = load_object(arguments.encode())
        given = {"arguments": arguments} if values is None else values
        blocks.append({"type": "tool_use", "id": number, "name": name, "input": given})
    return blocks


def _spell_picture(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part of a message; a picture in a data URL as a block with a source."""
    if part.get("type") != "image_url":
        return part
    kind, _, data = part["image_url"]["url"].removeprefix("data:").partition(";base64,")
    return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}


def _spell_tools(fields: dict[str, Any]) -> None:
    """Write a body's tools, and the choice of them, as Messages has them."""
    tools = [tool.get("function") or tool for tool in fields.pop("tools", None) or ()]
    if tools:
        fields["tools"] = [
            {
                "name": tool.get("name"),
                "description": tool.get("description") or "",
                "input_schema": tool.get("parameters") or {"type": "object"},
            }
            for tool in tools
        ]
    choice = fields.pop("tool_choice", None)
    if isinstance(choice, dict):
        fields["tool_choice"] = {"type": "tool", "name": (choice.get("function") or choice)["name"]}
    elif choice is not None:
        fields["tool_choice"] = {"type": "any" if choice == "required" else choice}


WIRE = Wire(
    path=lambda spec: make_path(spec, "messages"),
    body=make_body,
    answer=MessagesReply,
    prompts="messages",
    spell=spell_prompt,
    headers=(("anthropic-version", "2023-06-01"),),
    key=("x-api-key", "ANTHROPIC_API_KEY"),
    spellings={"json_schema": ("output_config", "structured_outputs", "llama.cpp")},
    order=4,
    optional=list_length_fields,
    simulated=SimulatedWire(
        path="/v1/messages",
        body=MessagesBody,
        content=MessagesBody.split_messages,
        limit=MessagesBody.limit,
        default_tokens=None,
        answer=MessagesAnswer,
    ),
)
