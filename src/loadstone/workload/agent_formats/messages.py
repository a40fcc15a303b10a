"""Reads OpenAI's messages with tools."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from loadstone.core.errors import InputError
from loadstone.core.plan import ASSISTANT
from loadstone.workload.agent_formats.session import NO_BLOCKS, RawCall, RawSession
from loadstone.workload.files import BadLine, RequestFile, decode
from loadstone.workload.prompts import text_tokens


class Message(Struct):
    """Holds the fields of a message that a server takes, as OpenAI has it."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    function_call: dict[str, Any] | None = None
    tool_call_id: str | None = None


def text_of(message: Message, dropped: Counter[str]) -> str:
    """Write a message as it is sent, as JSON. Parts that are no text cannot be sent, and are
    counted."""
    content = message.content
    if isinstance(content, list):
        kinds = [str(part.get("type")) for part in content]
        dropped.update({kind for kind in kinds if kind != "text"})
        content = [part for part, kind in zip(content, kinds, strict=True) if kind == "text"]
    values = ((name, getattr(message, name)) for name in Message.__struct_fields__)
    sent = {name: value for name, value in values if value is not None}
    if content is not None or not (message.tool_calls or message.function_call):
        sent["content"] = content or ""
    return msgspec.json.encode(sent).decode()


def asks(messages: Sequence[str]) -> bool:
    """Tell whether messages end with one that wants an answer."""
    return bool(messages) and not messages[-1].startswith(ASSISTANT)


def answer_tokens(text: str) -> int:
    """Estimate the tokens of an answer from its JSON, without the frame of a message."""
    return text_tokens(text[len(ASSISTANT) + len(',"content":""}') :])


def fields_of(item: Mapping[str, Any]) -> str | None:
    """Write what a request says of its tools as JSON; None: nothing."""
    fields = {
        name: item[name]
        for name in ("tools", "tool_choice", "parallel_tool_calls")
        if item.get(name)
    }
    return msgspec.json.encode(fields).decode() if fields else None


def call_of_messages(
    messages: Sequence[str],
    place: int,
    output_tokens: int,
    fields: str | None,
    delay_s: float = 0.0,
) -> RawCall:
    """Make the call at this place of a session in which each follows the one before."""
    parents = (place - 1,) if place else ()
    return RawCall(
        parents,
        False,
        delay_s if place else 0.0,
        1,
        output_tokens,
        NO_BLOCKS,
        tuple(messages),
        fields,
    )


class _Conversation(Struct):
    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None


def read_messages(file: RequestFile, dropped: Counter[str]) -> Iterator[RawSession]:
    """Read OpenAI's messages: an assistant's message is the answer to a call, and what stands last
    asks for one."""
    digests = set[int]()  # of the conversations so far
    for line, item in file.read(lambda data: decode(data, _Conversation)):
        fields = fields_of(msgspec.structs.asdict(item))
        calls: list[RawCall] = []
        messages: list[str] = []
        digest = 0
        for message in item.messages:
            if digest in digests:
                raise InputError(
                    f"--agents, {file.unit} {line}: begins with all of an earlier one; give it as"
                    " --dataset"
                )
            text = text_of(message, dropped)
            digest = hash((digest, text))
            if message.role == "assistant" and asks(messages):
                calls.append(call_of_messages(messages, len(calls), answer_tokens(text), fields))
            messages.append(text)
        if asks(messages):
            calls.append(call_of_messages(messages, len(calls), 0, fields))
        digests.add(digest)
        if calls:
            yield RawSession(calls, 0)
        else:
            problem = "no message that asks for an answer"
            file.leave_out(line, BadLine("no calls", problem, "leave it out"))
