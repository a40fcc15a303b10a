"""What one item of a dataset asks: its prompt, its turns, how long its answer should be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from loadstone.workload.dataset_lines import ItemError

FORMATS = {
    "conversations": "sharegpt",
    "messages": "messages",
    "turns": "prompts",
    "prompt": "prompts",
    "question": "prompts",
    "instruction": "prompts",
    "input": "prompts",
    "text": "prompts",
}
_OUTPUT_FIELDS = ("output_tokens", "output_len", "output_length", "max_tokens", "max_completion_tokens")
_MESSAGE_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id")  # what a server takes; the rest is notes
_ROLES = {"human": "user", "user": "user", "system": "system", "developer": "system"}


def request_of(item: Any) -> Any:
    """Of a line of OpenAI's batch format, the body of its request; anything else as it is."""
    if isinstance(item, dict) and "custom_id" in item and isinstance(item.get("body"), dict):
        return item["body"]
    return item


def field_of(item: Any) -> str | None:
    """Under which field the prompts lie; None for bare strings."""
    if isinstance(item, str):
        return None
    if isinstance(item, dict):
        for field in FORMATS:
            if item.get(field) is not None:
                return field
    raise ItemError(f"neither a string nor an object with a prompt; name the field one of {', '.join(FORMATS)}")


def prompt_of(item: Any, field: str | None) -> str | None:
    """The prompt of one item, None where it has none to send. Raises ItemError where it is not what `field` asks."""
    if field is None:
        if not isinstance(item, str):
            raise ItemError("not a string, as the first item is; give items of one kind")
        return item if item.strip() else None
    if not isinstance(item, dict) or field not in item:
        raise ItemError(f"no field {field!r}, which the first item has; give items of one kind")
    value = item[field]
    if field == "instruction":
        # Alpaca, Dolly: what the instruction is about stands beside it.
        value = "\n\n".join([value, *_texts(item, ("input", "context"))]) if isinstance(value, str) else value
    if field == "conversations":
        return _conversation(_list(value, field))
    if field == "messages":
        return _messages(_list(value, field))
    if field == "turns":
        value = next(iter(_list(value, field)), "")
    if not isinstance(value, str):
        raise ItemError(f"{field!r} is not text; give the prompt as a string")
    return value if value.strip() else None


def _texts(item: dict[str, Any], fields: Sequence[str]) -> list[str]:
    return [text for field in fields if isinstance(text := item.get(field), str) and text.strip()]


def _conversation(turns: list[Any]) -> str | None:
    messages: list[dict[str, Any]] = []
    for turn in turns:
        role, text = _turn(turn)
        # Only a system turn may stand in front: a question that follows an answer means nothing without it.
        if role is None or (role == "system" and messages):
            return None
        if role == "user":
            messages.append({"role": role, "content": text})
            return _compact(messages) if text.strip() else None
        if text.strip():
            messages.append({"role": role, "content": text})
    return None


def _messages(messages: list[Any]) -> str | None:
    kept = []
    for message in messages:
        if not (isinstance(message, dict) and isinstance(message.get("role"), str)):
            raise ItemError("a message lacks 'role' as a string; correct it or leave it out")
        content = message.get("content")
        if not isinstance(content, str | list) and not (content is None and message.get("tool_calls")):
            raise ItemError(
                "the 'content' of a message is neither text nor a list of parts; correct it or leave it out"
            )
        kept.append({name: message[name] for name in _MESSAGE_FIELDS if name in message})
    if kept and kept[-1]["role"] == "assistant":
        kept.pop()
    if not any(message.get("content") for message in kept):
        return None
    parts = [part for message in kept if isinstance(message.get("content"), list) for part in message["content"]]
    # An image cannot be sent to a language model, and without it the text is another question.
    return _compact(kept) if all(isinstance(part, dict) and part.get("type") == "text" for part in parts) else None


def turns_of(item: Any, field: str | None, prompt: str) -> tuple[str | None, list[str]]:
    """The system message that an item begins with, and its user's texts; of an item that has a prompt."""
    said: list[tuple[str | None, str]] = [("user", prompt)]
    if field == "turns":
        if not all(isinstance(text, str) for text in item[field]):
            raise ItemError("one of 'turns' is not text; give each as a string")
        said = [("user", text) for text in item[field]]
    elif field == "conversations":
        said = [_turn(turn) for turn in item[field]]
    elif field == "messages":
        said = [_message(message) for message in item[field]]
    role, text = said[0]
    system = text if role == "system" and text.strip() else None
    return system, [text for role, text in said if role == "user" and text.strip()]


def _turn(turn: Any) -> tuple[str | None, str]:
    """Role (None: neither user nor system) and text."""
    if not (isinstance(turn, dict) and isinstance(turn.get("from"), str) and isinstance(turn.get("value"), str)):
        raise ItemError("a turn of 'conversations' lacks 'from' or 'value' as a string; correct it or leave it out")
    return _ROLES.get(turn["from"]), turn["value"]


def _message(message: dict[str, Any]) -> tuple[str | None, str]:
    """Role (None: neither user nor system) and text, of a message that `_messages` has let pass."""
    role = _ROLES.get(message["role"])
    content = message.get("content") or ""
    # What a user or system says has no parts but text, or the item would have no prompt.
    if role and isinstance(content, list):
        content = "\n".join(str(part.get("text", "")) for part in content)
    return role, content if role else ""


def _compact(messages: list[dict[str, Any]]) -> str:
    return msgspec.json.encode(messages).decode()


def _list(value: Any, field: str) -> list[Any]:
    if not isinstance(value, list):
        raise ItemError(f"{field!r} is not a list; give its turns in one")
    return value


def output_tokens_of(item: dict[str, Any]) -> int | None:
    for field in _OUTPUT_FIELDS:
        value = item.get(field)
        if value is None:
            continue
        # Tables turned into JSON write 128.0.
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or value != int(value)
            or not 1 <= value < 2**31
        ):
            raise ItemError(f"{field!r} is {value!r}, not a count of tokens; give a whole number of at least 1")
        return int(value)
    return None
