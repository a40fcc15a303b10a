"""Prompts from a file, in whichever of the usual formats it is. The content tells the format, never the name.

A file is one JSON array, JSONL (a JSON value per line), or plain text (a prompt per line); UTF-8; gzip or not.
What an item holds is settled by the first one; every other must be like it:

sharegpt  {"conversations": [{"from": "human", "value": …}, …]}: the first human turn, behind a system turn if any
messages  {"messages": [{"role", "content"}, …]}: OpenAI chat, without the answer when that is the last message
prompts   a JSON string, or text under the first of these fields that is there: turns (a list, of which the first
          counts: MT-bench, Spec-Bench), prompt (HumanEval), question (GSM8K), instruction (with what stands under
          input or context: Alpaca, Dolly), input, text
text      a line of plain text

A line of OpenAI's batch format (custom_id, method, url, body) is what its body holds.

Read as conversations, an item is all its user's turns: what a session asks one after another, each with the answers
it got to those before. The file's own answers are not used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec

from loadstone.core.errors import InputError
from loadstone.workload.files import first_line, lines, opened

GIVE = "give JSON, JSONL or plain text in UTF-8"

Kind = Literal["array", "lines", "text"]

_ARRAY = re.compile(rb'\[\s*(["{\[\]]|$)')
_OBJECT = re.compile(rb'\{\s*(["}]|$)')

_MOST_ARRAY_BYTES = 1 << 32
_MOST_PROMPTS = 10_000_000
_READ_BYTES = 1 << 20
_NAME = re.compile(rb"[\w .-]{1,40}")
_HEADS = frozenset({
    b"prompt", b"question", b"instruction", b"input", b"text", b"messages", b"timestamp", b"timestamp_s",
})  # fmt: skip
"""Columns that tables of prompts and traces have, in small letters."""


FORMATS = {
    "conversations": "sharegpt", "messages": "messages", "turns": "prompts", "prompt": "prompts",
    "question": "prompts", "instruction": "prompts", "input": "prompts", "text": "prompts",
}  # fmt: skip
_OUTPUT_FIELDS = ("output_tokens", "output_len", "output_length", "max_tokens", "max_completion_tokens")
_MESSAGE_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id")  # what a server takes; the rest is notes
_ROLES = {"human": "user", "user": "user", "system": "system", "developer": "system"}
_INK = re.compile(r"[^ \t\n\r]|\Z")
_UNREADABLE = b"{"
"""Stands for the element at which an array breaks."""


class Dataset(msgspec.Struct, frozen=True):
    """What a file asks. Entry i of every list belongs together.

    prompts        plain text, or chat messages as a compact JSON array (formats sharegpt and messages)
    output_tokens  the tokens to ask for, None where the file does not state a count
    sha256         of the file as it lies on disk, hexadecimal
    skipped        items without a usable prompt: empty, parts other than text, not begun by a human; among
                   conversations also those without a user's message
    bad            items that cannot be read or are not like the first, left out where that was asked for
    turns          only of conversations: the user's texts in their order, at least one each
    system         only of conversations: the system message they begin with, None where they have none
    """

    format: str
    prompts: list[str]
    output_tokens: list[int | None]
    sha256: str
    skipped: int
    turns: list[list[str]] = []
    system: list[str | None] = []
    bad: int = 0

    @property
    def chat(self) -> bool:
        """Whether prompts are messages."""
        return self.format in ("sharegpt", "messages")


def read(path: Path, *, conversations: bool = False, skip_bad: bool = False) -> Dataset:
    """Read every prompt of a file. Lines are read one by one; an array is held whole, as bytes, beside its prompts.

    With `conversations` the turns of every item too. With `skip_bad` items that are broken or lack a field are left
    out and counted; an array that breaks off has those before.

    Raises InputError, with the line (of an array: the element), where the file cannot be read, is not text, is
    broken, lacks a field or holds no prompt.
    """
    with opened(path, GIVE) as (stream, sha256):
        return _read(path, stream, sha256, conversations, skip_bad)


def _read(path: Path, stream: BinaryIO, sha256: str, conversations: bool, skip_bad: bool) -> Dataset:
    kind = kind_of(path, stream)
    unit = "element" if kind == "array" else "line"
    field: str | None = None
    format = "text" if kind == "text" else ""
    prompts: list[str] = []
    output_tokens: list[int | None] = []
    turns: list[list[str]] = []
    systems: list[str | None] = []
    skipped = bad = 0
    for number, data in pieces(path, stream, kind, skip_bad):
        try:
            item = request_of(value_of(data, kind))
            if not format:
                field = field_of(item)
                format = FORMATS[field] if field else "prompts"
            prompt = prompt_of(item, field)
            tokens = None if field is None else output_tokens_of(item)
            system, user_turns = turns_of(item, field, prompt) if conversations and prompt else (None, [])
        except ItemError as error:
            if skip_bad:
                bad += 1
                continue
            raise InputError(f"{path}, {unit} {number}: {error}, or leave such {unit}s out with --skip-bad") from None
        if prompt is None or (conversations and not user_turns):
            skipped += 1
            continue
        if len(prompts) == _MOST_PROMPTS:
            raise InputError(f"{path}, {unit} {number}: over {_MOST_PROMPTS:,} prompts; give fewer, in several files")
        prompts.append(prompt)
        output_tokens.append(tokens)
        if conversations:
            turns.append(user_turns)
            systems.append(system)
    if not prompts:
        why = f": none of its {skipped + bad} items has a prompt to send" if skipped + bad else ""
        raise InputError(f"{path}: no prompts{why}; {GIVE}")
    return Dataset(format, prompts, output_tokens, sha256, skipped, turns, systems, bad)


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
        about = (item.get(name) for name in ("input", "context"))
        texts = (text for text in about if isinstance(text, str) and text.strip())
        value = "\n\n".join([value, *texts]) if isinstance(value, str) else value
    if field == "conversations":
        return _conversation(_list(value, field))
    if field == "messages":
        return _messages(_list(value, field))
    if field == "turns":
        value = next(iter(_list(value, field)), "")
    if not isinstance(value, str):
        raise ItemError(f"{field!r} is not text; give the prompt as a string")
    return value if value.strip() else None


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
    sent = []
    for message in messages:
        if not (isinstance(message, dict) and isinstance(message.get("role"), str)):
            raise ItemError("a message lacks 'role' as a string; correct it or leave it out")
        content = message.get("content")
        if not isinstance(content, str | list) and not (content is None and message.get("tool_calls")):
            raise ItemError(
                "the 'content' of a message is neither text nor a list of parts; correct it or leave it out"
            )
        sent.append({name: message[name] for name in _MESSAGE_FIELDS if name in message})
    if sent and sent[-1]["role"] == "assistant":
        sent.pop()
    if not any(message.get("content") for message in sent):
        return None
    parts = [part for message in sent if isinstance(message.get("content"), list) for part in message["content"]]
    # An image cannot be sent to a language model, and without it the text is another question.
    return _compact(sent) if all(isinstance(part, dict) and part.get("type") == "text" for part in parts) else None


def turns_of(item: Any, field: str | None, prompt: str) -> tuple[str | None, list[str]]:
    """The system message that an item begins with, and its user's texts; of an item that has a prompt."""
    spoken: list[tuple[str | None, str]] = [("user", prompt)]
    if field == "turns":
        if not all(isinstance(text, str) for text in item[field]):
            raise ItemError("one of 'turns' is not text; give each as a string")
        spoken = [("user", text) for text in item[field]]
    elif field == "conversations":
        spoken = [_turn(turn) for turn in item[field]]
    elif field == "messages":
        spoken = [_message(message) for message in item[field]]
    role, text = spoken[0]
    system = text if role == "system" and text.strip() else None
    return system, [text for role, text in spoken if role == "user" and text.strip()]


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


class ItemError(Exception):
    """What is wrong with one item, and the remedy; where it lies is known higher up."""


def kind_of(path: Path, stream: BinaryIO) -> Kind:
    """`array`, `lines` (of JSON) or `text`, by the first line that is not blank; leaves `stream` at the content."""
    first = first_line(path, stream, GIVE)[1].strip()
    if _ARRAY.match(first):
        return "array"
    if _OBJECT.match(first):
        return "lines"
    # Prose may open with a quotation mark; only a whole JSON string is one.
    try:
        msgspec.json.decode(first, type=str)
    except ValueError:
        if _table(first):
            raise InputError(
                f"{path}: a table with named columns; give JSONL, an object with a prompt on each line (a trace goes "
                "with --trace)"
            ) from None
        return "text"
    return "lines"


def _table(first: bytes) -> bool:
    """Whether a line is the header of a CSV file with prompts, or of a trace: as text its lines would be prompts."""
    names = [name.strip(b" \"'").lower() for name in re.split(rb"[,;\t]", first)]
    return len(names) > 1 and all(map(_NAME.fullmatch, names)) and not _HEADS.isdisjoint(names)


def pieces(path: Path, stream: BinaryIO, kind: Kind, skip_bad: bool) -> Iterator[tuple[int, bytes | msgspec.Raw]]:
    """The items, numbered from 1: an array's by their place, others by their line. With `skip_bad` those of an array
    that breaks are the ones before, and one that cannot be read. Raises InputError where an array breaks.
    """
    return _array(path, stream, skip_bad) if kind == "array" else _lines(path, stream)


def _lines(path: Path, stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, numbered from 1, without their ends."""
    for number, line in enumerate(lines(path, stream), 1):
        if line.strip():
            yield number, line.rstrip(b"\r\n")


def _array(path: Path, stream: BinaryIO, skip_bad: bool) -> Iterator[tuple[int, bytes | msgspec.Raw]]:
    """The elements, numbered from 1, still as JSON: decoded all at once they would take many times the file."""
    data = bytearray()
    while part := stream.read(_READ_BYTES):
        data += part
        if len(data) > _MOST_ARRAY_BYTES:
            raise InputError(f"{path}: an array of over {_MOST_ARRAY_BYTES:,} bytes; give JSONL, read line by line")
    try:
        elements = msgspec.json.decode(data, type=list[msgspec.Raw])
    except (ValueError, RecursionError) as error:
        if skip_bad:
            yield from enumerate(_salvaged(data.decode("utf-8", "replace")), 1)
            return
        byte = re.search(r"\(byte (\d+)\)", str(error))
        line = data.count(b"\n", 0, int(byte[1]) if byte else len(data.rstrip())) + 1
        raise InputError(
            f"{path}, line {line}: {_broken(error)}; correct it, give JSONL, or keep what is whole with --skip-bad"
        ) from None
    yield from enumerate(elements, 1)


def value_of(piece: bytes | msgspec.Raw, kind: Kind) -> Any:
    """What an item holds. Raises ItemError where it cannot be read."""
    try:
        return bytes(piece).decode() if kind == "text" else msgspec.json.decode(piece)
    except UnicodeDecodeError:
        raise ItemError(f"invalid UTF-8; {GIVE}") from None
    except (ValueError, RecursionError) as error:
        raise ItemError(f"{_broken(error)}; JSONL has one whole value on each line") from None


def _broken(error: Exception) -> str:
    return f"broken JSON: {str(error).removeprefix('JSON is malformed: ')}"


def _salvaged(text: str) -> Iterator[bytes]:
    """The elements of an array up to where it breaks; what is after that is one that cannot be read.

    Half of a surrogate pair breaks the strict decoder, and not this one: its element alone is then found to be bad.
    """
    decode = json.JSONDecoder().raw_decode
    at = text.index("[") + 1
    try:
        while True:
            at = _past_blanks(text, at)
            element, at = decode(text, at)
            yield json.dumps(element).encode()
            at = _past_blanks(text, at)
            if text[at : at + 1] != ",":
                break
            at += 1
    except (ValueError, RecursionError):
        yield _UNREADABLE
        return
    if text[at : at + 1] != "]" or text[at + 1 :].strip():
        yield _UNREADABLE


def _past_blanks(text: str, at: int) -> int:
    match = _INK.search(text, at)
    return match.start() if match else len(text)
