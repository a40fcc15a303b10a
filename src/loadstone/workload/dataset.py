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

from pathlib import Path
from typing import BinaryIO

import msgspec

from loadstone.core.errors import InputError
from loadstone.workload.dataset_items import FORMATS, field_of, output_tokens_of, prompt_of, request_of, turns_of
from loadstone.workload.dataset_lines import GIVE, ItemError, kind_of, pieces, value_of
from loadstone.workload.files import opened


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
            system, asked = turns_of(item, field, prompt) if conversations and prompt else (None, [])
        except ItemError as error:
            if skip_bad:
                bad += 1
                continue
            raise InputError(f"{path}, {unit} {number}: {error}, or leave such {unit}s out with --skip-bad") from None
        if prompt is None or (conversations and not asked):
            skipped += 1
            continue
        prompts.append(prompt)
        output_tokens.append(tokens)
        if conversations:
            turns.append(asked)
            systems.append(system)
    if not prompts:
        why = f": none of its {skipped + bad} items has a prompt to send" if skipped + bad else ""
        raise InputError(f"{path}: no prompts{why}; {GIVE}")
    return Dataset(format, prompts, output_tokens, sha256, skipped, turns, systems, bad)
