"""Prompts are read from a file, in whichever of the usual formats it is. The content tells the
format, never the name.

A file is one JSON array, JSONL (a JSON value per line), or plain text (a prompt per line); UTF-8;
gzip or not. What an item holds is settled by the first one; every other must be like it:

sharegpt  {"conversations": [{"from": "human", "value": …}, …]}: the first human turn, behind a
          system turn if any
messages  {"messages": [{"role", "content"}, …]}: OpenAI chat, without the answer when that is the
          last message
prompts   a JSON string, or text under the first of these fields that is there: turns (a list, of
          which the first counts: MT-bench, Spec-Bench), prompt (HumanEval), question (GSM8K),
          instruction (with what stands under input or context: Alpaca, Dolly), input, text
text      a line of plain text

A line of OpenAI's batch format (custom_id, method, url, body) is what its body holds.

What items have for the tools of messages goes with them. Columns and parts that change what is
asked of the server and cannot be sent are counted.

Read as conversations, an item is all its user's turns: what a session asks one after another, each
with the answers it got to those before. The file's own answers are used only where tools were
called: their results belong to them.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from loadstone.core.errors import InputError
from loadstone.core.pictures import Pictures, PictureShape
from loadstone.core.plan import Plan, rank_by_first_use
from loadstone.core.text import excerpt
from loadstone.core.vectors import Ints32
from loadstone.workload.draw import LENGTHS, Draw, Rows, ServerLimits, Workload, roll, text_rows
from loadstone.workload.files import BadItem, decode, open_requests
from loadstone.workload.lengths import Length
from loadstone.workload.media import MEDIA, embed_files, picture_sizes

GIVE = "give JSON, JSONL or plain text in UTF-8"

_MAX_PROMPTS = 10_000_000
_NAME = re.compile(rb"[\w .-]{1,40}")
_HEADS = frozenset(
    {
        b"prompt",
        b"question",
        b"instruction",
        b"input",
        b"text",
        b"messages",
        b"timestamp",
        b"timestamp_s",
    }
)
"""Columns that tables of prompts and traces have, in small letters."""


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
_OUTPUT_FIELDS = (
    "output_tokens",
    "output_len",
    "output_length",
    "output_tokens_count",
    "max_tokens",
    "max_completion_tokens",
)
_MESSAGE_FIELDS = ("role", "content", "name", "tool_calls", "function_call", "tool_call_id")
"""What a server takes of a message; the rest is notes."""
_CALLS = ("tool_calls", "function_call")
_TOOLS = {"tools": ("tool_choice", "parallel_tool_calls"), "functions": ("function_call",)}
"""Fields that chat endpoints take besides messages."""
_CHANGES = re.compile(
    "image|audio|video|media|document|passage|article|context|attach|system|tool"
    "|function|observation"
    "|response_format|schema|grammar|guided|structured|template|^n$|best_of"
)
"""Names of columns, roles and fields of messages without which a request is another one."""
_ROLES = {"human": "user", "user": "user", "system": "system", "developer": "system"}


class Dataset(Workload, msgspec.Struct, frozen=True):
    """The prompts of a file. Entry i of every list belongs together.

    prompts        plain text, or (formats sharegpt and messages) chat messages as a compact JSON
                   array; an object with `messages` and their tools where there are any
    output_tokens  the tokens to ask for, None where the file does not state a count
    sha256         of the file as it lies on disk, hexadecimal
    skipped        items without a usable prompt: empty, parts other than text, not begun by a
                   human; among conversations also those without a user's message
    bad            items that cannot be read or are not like the first, left out where that was
                   asked for
    turns          only of conversations: what each request adds to the one before, as chat messages
                   (see prompts); where it begins with an answer, that stands in place of the
                   server's own
    dropped        what cannot be sent, though it changes what is asked: name to items that have it
    too_long       prompts that the server does not take, left out
    """

    format: str
    prompts: list[str]
    output_tokens: list[int | None]
    sha256: str
    skipped: int
    turns: list[list[str]] = []
    bad: int = 0
    dropped: dict[str, int] = {}
    too_long: int = 0

    @property
    def chat(self) -> bool:
        """True where prompts are messages."""
        return self.format in ("sharegpt", "messages")

    def describe(self, output: Length | None) -> dict[str, Any]:
        described = {
            "kind": "dataset",
            "format": self.format,
            "sha256": self.sha256,
            "prompts": len(self.prompts),
            "skipped": self.skipped,
            "bad": self.bad,
            "output": msgspec.to_builtins(output),
        }
        texts = [*self.prompts, *(turn for turns in self.turns for turn in turns)]
        parts = [
            kind for kind in sorted(MEDIA) if any(f'"type":"{kind}"' in text for text in texts)
        ]
        present = {"dropped": self.dropped, "too_long": self.too_long, "parts": parts}
        return described | {name: value for name, value in present.items() if value}

    def rows(self, draw: Draw) -> Rows:
        sessions, output = draw.sessions, draw.output
        if sessions is None:
            starts_s = draw.starts_s(draw.count(draw.requested))
            picks = draw.choose(len(self.prompts), len(starts_s) - draw.warm)
            lengths = np.array([tokens or -1 for tokens in self.output_tokens], np.int32)[picks]
            if output is not None:
                drawn = output.draw(draw.generator(LENGTHS), len(picks))
                lengths = np.where(lengths < 0, drawn, lengths)
            elif (lengths < 0).any():
                raise InputError(
                    "--output: the dataset does not say how long answers should be; give e.g."
                    " --output 256"
                )
            return draw.single_rows(starts_s, roll(text_rows(picks, lengths), draw.warm))
        if output is None:
            raise InputError(
                "--output: give the length of the answers in a conversation, e.g. --output 256"
            )
        turns_asked = sessions.turns.mean
        sizes = np.array([len(turns) for turns in self.turns])
        counts = draw.turn_counts(
            sum(np.minimum(sizes, turns_asked).tolist()) / len(sizes),
            lambda measured: np.minimum(sizes, int(turns_asked))[draw.choose(len(sizes), measured)],
        )
        # Measured sessions first.
        turns = np.roll(counts, -draw.warm)
        chosen = draw.choose(len(sizes), len(counts) - draw.warm)
        begins = np.cumsum(sizes) - sizes
        first = np.cumsum(turns) - turns
        picks = np.repeat(begins[chosen] - first, turns) + np.arange(turns.sum())
        rows = text_rows(picks, output.draw(draw.generator(LENGTHS), len(picks)))
        return draw.turn_rows(counts, roll(rows, counts[: draw.warm].sum()), sessions)

    def finish(self, rows: Rows, draw: Draw) -> dict[str, Any]:
        texts = self.prompts
        if draw.sessions is not None:
            texts = [turn for turns in self.turns for turn in turns]
        ranks, used, _ = rank_by_first_use(rows["prompt"])
        prompts = [texts[number] for number in used.tolist()]
        contents = {
            "prompt": ranks,
            "prompts": prompts,
            "chat": self.chat or draw.sessions is not None,
            "exact_output": draw.output is not None,
        }
        pictures = _pictures_of(prompts, ranks)
        return contents if pictures is None else contents | {"pictures": pictures}

    def fit(self, limits: ServerLimits) -> Dataset:
        """Keep prompts that the server takes with the shortest answers that are asked for, where
        bad ones are left out. Raises InputError where none is left."""
        beyond = limits.beyond
        if beyond is None or not limits.skip_bad:
            return self
        prompts = zip(self.prompts, self.output_tokens, strict=True)
        keep = [
            number
            for number, (prompt, tokens) in enumerate(prompts)
            if beyond(prompt, self.chat, tokens or limits.shortest_answer) is None
        ]
        if not keep:
            raise InputError(
                "--dataset: every prompt is longer than the server's context; start the server with"
                " a longer one"
            )
        return msgspec.structs.replace(
            self,
            prompts=[self.prompts[number] for number in keep],
            output_tokens=[self.output_tokens[number] for number in keep],
            too_long=len(self.prompts) - len(keep),
        )

    def check(self, plan: Plan, limits: ServerLimits, name: str) -> None:
        beyond = limits.beyond
        if beyond is None or not plan.prompts:
            return
        longest = np.zeros(len(plan.prompts), np.int64)
        np.maximum.at(longest, plan.prompt, plan.output_tokens)
        for prompt, output_tokens in zip(plan.prompts, longest.tolist(), strict=True):
            tokens = beyond(prompt, plan.chat, output_tokens)
            if tokens is not None:
                remedy = "" if limits.skip_bad else ", or leave such prompts out with --skip-bad"
                raise InputError(
                    f"{name}: a prompt of {tokens} tokens ({excerpt(prompt, 40)}) and an answer of"
                    f" {output_tokens}: together beyond the server's context; ask for shorter"
                    f" answers{remedy}"
                )


def read(path: Path, *, conversations: bool = False, skip_bad: bool = False) -> Dataset:
    """Read every prompt of a file. Lines are read one by one; an array is held as bytes, with its
    prompts.

    With `conversations` the turns of every item too. With `skip_bad` items that are broken or lack
    a field are left out and counted; an array that breaks off has those before.

    Raises InputError, with the line (of an array: the element), where the file cannot be read, is
    not text, is broken, lacks a field or holds no prompt.
    """
    with open_requests(path, GIVE, skip_bad=skip_bad) as file:
        if file.kind == "text" and _is_table(file.head):
            raise InputError(
                f"{path}: a table with named columns; give JSONL, an object with a prompt on each"
                " line (a trace goes with --trace)"
            )
        items = _Items("text" if file.kind == "text" else "", conversations, path.parent)
        items_asked: list[_Asked] = []
        skipped = 0
        for number, item in file.read(items.read):
            if item is None:
                skipped += 1
                continue
            if len(items_asked) == _MAX_PROMPTS:
                file.refuse(number, f"over {_MAX_PROMPTS:,} prompts; give fewer, in several files")
            items_asked.append(item)
    bad = file.skipped.total()
    if not items_asked:
        why = f": none of its {skipped + bad} items has a prompt to send" if skipped + bad else ""
        raise InputError(f"{path}: no prompts{why}; {GIVE}")
    prompts, output_tokens, turns = map(list, zip(*items_asked, strict=True))
    return Dataset(
        items.format,
        prompts,
        output_tokens,
        file.sha256,
        skipped,
        turns if conversations else [],
        bad,
        dict(items.dropped),
    )


def _pictures_of(prompts: list[str], picks: Ints32) -> Pictures | None:
    """Return the pictures of rows whose prompts are these; None where there are none."""
    sizes = [picture_sizes(prompt) for prompt in prompts]
    if not any(sizes):
        return None
    # Prompts with pictures of the same sizes are of one shape.
    numbers = {files: number for number, files in enumerate(dict.fromkeys(filter(None, sizes)))}
    shapes = tuple(PictureShape(*files[0][:2], files=files) for files in numbers)
    shape = np.array([numbers.get(files, 0) for files in sizes], np.int32)[picks]
    count = np.array([bool(files) for files in sizes], np.uint8)[picks]
    return Pictures(shapes, shape, count, np.full(len(picks), -1, np.int32))


_Asked = tuple[str, int | None, list[str]]
"""What one item asks: its prompt, output_tokens and turns; see Dataset."""


class _Items:
    """Reads items that are like the first."""

    def __init__(self, format: str, conversations: bool, folder: Path) -> None:
        self.format, self._conversations, self._folder = format, conversations, folder
        self.dropped = Counter[str]()
        self._field: str | None = None

    def read(self, data: bytes) -> _Asked | None:
        """Read an item; None where it has no prompt to send. Raises BadLine."""
        item: Any = _decode_text(data) if self.format == "text" else decode(data)
        if isinstance(item, dict) and "custom_id" in item and isinstance(item.get("body"), dict):
            # The body of a request in OpenAI's batch format.
            item = item["body"]
        if not self.format:
            self._field = field_of(item)
            self.format = FORMATS[self._field] if self._field else "prompts"
        embed_files(item, self._folder)
        lost: set[str] = set()
        prompt = prompt_of(item, self._field, lost)
        tokens = None if self._field is None else output_tokens_of(item)
        turns = []
        if self._conversations and prompt:
            turns = turns_of(item, self._field, prompt, lost)
        self.dropped.update(lost)
        if prompt is None or (self._conversations and not turns):
            return None
        return prompt, tokens, turns


def _decode_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise BadItem(f"invalid UTF-8; {GIVE}") from None


def _is_table(first: bytes) -> bool:
    """Return True for the header of a CSV file with prompts, or of a trace: as text its lines would
    be prompts."""
    names = [name.strip(b" \"'").lower() for name in re.split(rb"[,;\t]", first)]
    return len(names) > 1 and all(map(_NAME.fullmatch, names)) and not _HEADS.isdisjoint(names)


def field_of(item: Any) -> str | None:
    """Find the field that holds prompts; None for bare strings."""
    if isinstance(item, str):
        return None
    if isinstance(item, dict):
        for field in FORMATS:
            if item.get(field) is not None:
                return field
    raise BadItem(
        f"neither a string nor an object with a prompt; name the field one of {', '.join(FORMATS)}"
    )


def prompt_of(item: Any, field: str | None, lost: set[str]) -> str | None:
    """Return the prompt of one item, None where it has none to send; `lost` gets the names of what
    cannot be sent. Raises BadItem where it is not what `field` asks.
    """
    if field is None:
        if not isinstance(item, str):
            raise BadItem("not a string, as the first item is; give items of one kind")
        return item if item.strip() else None
    if not isinstance(item, dict) or field not in item:
        raise BadItem(f"no field {field!r}, which the first item has; give items of one kind")
    value = item[field]
    used = {field, *_extra_fields(item)} if field in ("conversations", "messages") else {field}
    if field == "instruction":
        used |= {"input", "context"}
    lost |= {
        name
        for name in item
        if item[name] not in (None, 0, 1, "", [], {}) and _CHANGES.search(name)
    } - used
    if field == "instruction":
        # Alpaca, Dolly: another field has what the instruction is about.
        about = (item.get(name) for name in ("input", "context"))
        texts = (text for text in about if isinstance(text, str) and text.strip())
        value = "\n\n".join([value, *texts]) if isinstance(value, str) else value
    if field == "conversations":
        return _conversation(item)
    if field == "messages":
        return _messages(item, lost)
    if field == "turns":
        value = next(iter(_list(item, field)), "")
    if not isinstance(value, str):
        raise BadItem(f"{field!r} is not text; give the prompt as a string")
    return value if value.strip() else None


def _conversation(item: dict[str, Any]) -> str | None:
    messages: list[dict[str, Any]] = []
    for turn in _list(item, "conversations"):
        role, text = _turn(turn)
        # Only a system turn may stand in front: a question that follows an answer means nothing
        # without it.
        if role is None or (role == "system" and messages):
            return None
        if role == "user":
            messages.append({"role": role, "content": text})
            return _compact(messages, item) if text.strip() else None
        if text.strip():
            messages.append({"role": role, "content": text})
    return None


def _messages(item: dict[str, Any], lost: set[str]) -> str | None:
    sent = _check_messages(item)
    if sent and sent[-1]["role"] == "assistant":
        sent.pop()
    for message in item["messages"][: len(sent)]:
        lost |= {
            name
            for name in message.keys() - _MESSAGE_FIELDS
            if message[name] and _CHANGES.search(name)
        }
    if not any(message.get("content") for message in sent):
        return None
    parts = [
        part
        for message in sent
        if isinstance(message.get("content"), list)
        for part in message["content"]
    ]
    kinds = {
        str(part.get("type")) if isinstance(part, dict) else "unknown parts" for part in parts
    } - {"text", *MEDIA}
    lost |= kinds
    # Without a part the text is another question.
    return None if kinds else _compact(sent, item)


def _check_messages(item: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the messages as a server takes them."""
    sent = []
    for message in _list(item, "messages"):
        if not (isinstance(message, dict) and isinstance(message.get("role"), str)):
            raise BadItem("a message lacks 'role' as a string; correct it or leave it out")
        content = message.get("content")
        if not isinstance(content, str | list) and not (
            content is None and any(map(message.get, _CALLS))
        ):
            raise BadItem(
                "the 'content' of a message is neither text nor a list of parts; correct it or"
                " leave it out"
            )
        sent.append({name: message[name] for name in _MESSAGE_FIELDS if name in message})
    return sent


def turns_of(item: Any, field: str | None, prompt: str, lost: set[str]) -> list[str]:
    """Return what each request of an item's conversation adds, as chat messages; of an item that
    has a prompt.

    A request ends with each message of a user's; where tools were called, wherever an answer stands
    in the file.
    """
    messages = [{"role": "user", "content": prompt}]
    if field == "turns":
        if not all(isinstance(text, str) for text in item[field]):
            raise BadItem("one of 'turns' is not text; give each as a string")
        messages = [{"role": "user", "content": text} for text in item[field]]
    elif field == "conversations":
        messages = [
            {"role": role or "assistant", "content": text} for role, text in map(_turn, item[field])
        ]
        lost |= {
            turn["from"]
            for turn in item[field]
            if _CHANGES.search(turn["from"]) and turn["from"] not in _ROLES
        }
    elif field == "messages":
        messages = _check_messages(item)
    called = any(
        message["role"] in ("tool", "function") or any(map(message.get, _CALLS))
        for message in messages
    )
    turns: list[str] = []
    adds: list[dict[str, Any]] = []
    for message, following in zip_longest(messages, messages[1:]):
        role, content = message["role"], message.get("content")
        blank = isinstance(content, str) and not content.strip() and role in _ROLES
        if blank or (role == "assistant" and turns and not called):
            continue
        adds.append(message)
        answered = following is None or following["role"] == "assistant"
        if role == "user" if not called else answered and role != "assistant":
            turns.append(_compact(adds, item))
            adds = []
    return turns if any(message["role"] == "user" for message in messages) else []


def _turn(turn: Any) -> tuple[str | None, str]:
    """Return role (None: neither user nor system) and text of a message."""
    if not (
        isinstance(turn, dict)
        and isinstance(turn.get("from"), str)
        and isinstance(turn.get("value"), str)
    ):
        raise BadItem(
            "a turn of 'conversations' lacks 'from' or 'value' as a string; correct it or leave"
            " it out"
        )
    return _ROLES.get(turn["from"]), turn["value"]


def _extra_fields(item: Any) -> dict[str, Any]:
    """Return the fields of an item that a request has besides its messages."""
    fields: dict[str, Any] = {}
    for name, companions in _TOOLS.items() if isinstance(item, dict) else ():
        tools = item.get(name)
        if isinstance(tools, list) and tools and all(isinstance(tool, dict) for tool in tools):
            fields |= {
                field: item[field] for field in (name, *companions) if item.get(field) is not None
            }
    return fields


def _compact(messages: list[dict[str, Any]], item: Any) -> str:
    extra = _extra_fields(item)
    return msgspec.json.encode({"messages": messages, **extra} if extra else messages).decode()


def _list(item: dict[str, Any], field: str) -> list[Any]:
    value = item[field]
    if not isinstance(value, list):
        raise BadItem(f"{field!r} is not a list; give its turns in one")
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
            raise BadItem(
                f"{field!r} is {value!r}, not a count of tokens; give a whole number of at least 1"
            )
        return int(value)
    return None
