"""OpenAI's Responses, `POST /v1/responses`, as OpenAI and other servers send it. No I/O.

Sources: OpenAI's documentation of Responses and of their streams; vLLM 0.33,
entrypoints/openai/responses; SGLang 0.5.23, srt/entrypoints/openai/serving_responses.py; recorded
bytes of llama.cpp.

Output is what deltas bring; `….done` says it again, whole. `response.created` comes before the
prompt is computed (OpenAI, vLLM, SGLang) or with the first token (llama.cpp). The last event says
how the answer ended: at its length by `response.incomplete` (llama.cpp: completed; older vLLM:
completed, with the status incomplete), which is no failure; it alone has counts. Their input
includes what was cached. Of hidden reasoning there is a summary, or nothing: its deltas have times,
but are none of the counted tokens.
"""

from __future__ import annotations

from typing import Any

import msgspec

from loadstone.core.text import error_text
from loadstone.measure.simulated_server.responses import ResponsesAnswer, ResponsesBody
from loadstone.measure.wire.chunk import Choice, Chunk, Delta, Details, Usage
from loadstone.measure.wire.simulated import SimulatedWire
from loadstone.measure.wire.structured import make_sampling_fields, make_shape_fields
from loadstone.measure.wire.tolerant import NO_RAW, is_error, raw
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

_SUMMARIES = ("response.reasoning_summary_text.delta", "response.reasoning_summary.delta")
_THINKING = ("response.reasoning_text.delta", "response.reasoning.delta", *_SUMMARIES)
_ANSWERS = ("response.output_text.delta", "response.refusal.delta")
_CALLS = (
    "response.function_call_arguments.delta",
    "response.custom_tool_call_input.delta",
    "response.mcp_call_arguments.delta",
    "response.code_interpreter_call_code.delta",
)
_ENDS = ("completed", "incomplete", "failed", "cancelled")


# --- answers --------------------------------------------------------------------------------------


class _Usage(msgspec.Struct):
    input_tokens: float | None = None
    output_tokens: float | None = None
    input_tokens_details: Details | None = None
    output_tokens_details: Details | None = None


class _Part(msgspec.Struct):
    text: str | None = None
    refusal: str | None = None


class _Item(msgspec.Struct):
    type: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    content: list[_Part] | None = None
    summary: list[_Part] | None = None


class _Incomplete(msgspec.Struct):
    reason: str | None = None


class _Response(TypedEvent):
    id: str | None = None
    model: str | None = None
    status: str | None = None
    incomplete_details: _Incomplete | None = None
    usage: _Usage | None = None
    output: list[_Item] | None = None


class _Event(_Response):
    """An event; an answer in one piece is the response itself."""

    response: _Response | None = None
    output_index: float | None = None
    item: _Item | None = None
    delta: str | None = None
    message: msgspec.Raw = NO_RAW


class ResponsesReply(TypedAnswer):
    """Reads an answer of /v1/responses."""

    __slots__ = ()
    kind = _Event

    def spell(self, event: _Event) -> Delta | None:
        kind, text = event.type, event.delta
        if not text:
            return None
        if kind in _ANSWERS:
            return Delta(content=text)
        if kind in _THINKING:
            return Delta(reasoning_content=text)
        return self.call(event.output_index, arguments=text) if kind in _CALLS else None

    def translate(self, event: _Event) -> Chunk:
        response = event if event.response is None else event.response
        if event.type == "error" and not is_error(event.error):
            self.fail(raw({"type": event.id, "message": error_text(bytes(event.message))}))
        chunk = Chunk(usage=_count(response.usage), model=response.model)
        self.stored_id = self.stored_id or (response.id if response.status else None)
        if event.item is not None and event.type == "response.output_item.added":
            self.note_name(event.output_index, event.item.name)
        if event.type in _SUMMARIES and event.delta:
            self.summaries += 1
        delta = self.spell(event) if self.streams else _join(response.output or [])
        if delta is not None:
            chunk.choices = [Choice(delta=delta)]
        if response.status in _ENDS:
            self._end(response)
        return chunk

    def find_other(self, document: dict[str, Any]) -> object:
        kind, delta = str(document.get("type")), document.get("delta")
        is_known = kind in (*_ANSWERS, *_THINKING, *_CALLS)
        return None if is_known or not kind.endswith("delta") else {kind: delta}

    def _end(self, response: _Response) -> None:
        self.done = True
        if response.status in ("failed", "cancelled"):
            self.end(response.status)
            if is_error(response.error):
                self.fail(response.error)
            self.complain(f"the server gave up the request (status {response.status})")
            return
        details = response.incomplete_details
        self.end(details.reason if details is not None and details.reason else response.status)


def _count(usage: _Usage | None) -> Usage | None:
    if usage is None:
        return None
    return Usage(
        usage.input_tokens,
        usage.output_tokens,
        usage.input_tokens_details,
        usage.output_tokens_details,
    )


def _join(items: list[_Item]) -> Delta | None:
    """Say the output of an answer in one piece as one delta."""
    texts = {"message": "", "reasoning": ""}
    calls: list[dict[str, Any]] = []
    for place, item in enumerate(items):
        if item.name:
            arguments = item.arguments or item.input or ""
            function = {"name": item.name, "arguments": arguments}
            calls.append({"index": place, "function": function})
        elif item.type in texts:
            parts = item.content or item.summary or []
            texts[item.type] += "".join(part.text or part.refusal or "" for part in parts)
    if not (calls or any(texts.values())):
        return None
    return Delta(
        content=texts["message"], reasoning_content=texts["reasoning"], tool_calls=raw(calls)
    )


# --- requests -------------------------------------------------------------------------------------


def make_body(spec: RequestSpec) -> dict[str, Any]:
    """Return the body of a request. Answers are stored where a later prompt names them, and only
    then: some servers never forget what they store."""
    body: dict[str, Any] = {"model": spec.model, "stream": spec.stream, "store": spec.stored}
    body |= demanded_length(spec)
    body |= make_sampling_fields(spec) | make_shape_fields(spec)
    return body | {"max_output_tokens": LENGTH, "input": PROMPT}


def spell_prompt(prompt: bytes, previous: str | None = None) -> bytes:
    """Write the messages of a chat, and its tools, as Responses has them: what the system says in a
    field of its own, calls of tools and their results as items. `previous`: the server's name of
    the last answer, with which all before it is left out.
    """
    split = split_prompt(prompt)
    if split is None:
        named = msgspec.json.encode({"previous_response_id": previous})[1:-1]
        return prompt if previous is None else prompt + b"," + named
    messages, fields = split
    instructions = []
    while messages and messages[0].get("role") in ("system", "developer"):
        instructions.append(text_of(messages.pop(0).get("content")))
    if previous is not None:
        fields["previous_response_id"] = previous
        answers = [i for i, message in enumerate(messages) if message.get("role") == "assistant"]
        del messages[: max(answers, default=-1) + 1]
    items = [item for message in messages for item in _spell_message(message)]
    if instructions:
        fields["instructions"] = "\n\n".join(instructions)
    _spell_fields(fields)
    return join_fields(items, fields)


def _spell_message(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the items that a message is in Responses."""
    role, content = message.get("role"), message.get("content")
    if role in ("tool", "function"):
        number = str(message.get("tool_call_id") or "call_0")
        return [{"type": "function_call_output", "call_id": number, "output": text_of(content)}]
    if role != "assistant":
        return [{"role": role, "content": _spell_parts(content)}]
    items: list[dict[str, Any]] = []
    thinking = thinking_of(message)
    if thinking:
        parts = [{"type": "reasoning_text", "text": text_of(thinking)}]
        items.append({"type": "reasoning", "summary": [], "content": parts})
    if content:
        parts = [{"type": "output_text", "text": text_of(content)}]
        items.append({"type": "message", "role": role, "content": parts})
    for number, name, arguments in functions_of(message):
        call = {"type": "function_call", "call_id": number, "name": name, "arguments": arguments}
        items.append(call)
    return items


def _spell_parts(content: Any) -> Any:
    if not isinstance(content, list):
        return content or ""
    return [
        {"type": "input_image", "image_url": part["image_url"]["url"]}
        if part.get("type") == "image_url"
        else {"type": "input_text", "text": str(part.get("text", ""))}
        for part in content
    ]


def _spell_fields(fields: dict[str, Any]) -> None:
    """Write a body's tools, and the choice of them, as Responses has them."""
    tools = fields.pop("tools", None)
    if tools:
        fields["tools"] = [{"type": "function", **(tool.get("function") or tool)} for tool in tools]
    choice = fields.get("tool_choice")
    if isinstance(choice, dict) and "function" in choice:
        fields["tool_choice"] = {"type": "function", "name": choice["function"]["name"]}


WIRE = Wire(
    path=lambda spec: make_path(spec, "responses"),
    body=make_body,
    answer=ResponsesReply,
    prompts="messages",
    spell=spell_prompt,
    stores=True,
    length_names=("max_output_tokens",),
    spellings={"json_schema": ("text_format", "structured_outputs", "llama.cpp")},
    order=5,
    optional=list_length_fields,
    simulated=SimulatedWire(
        path="/v1/responses",
        body=ResponsesBody,
        content=ResponsesBody.split_input,
        limit=ResponsesBody.limit,
        default_tokens=None,
        answer=ResponsesAnswer,
    ),
)
