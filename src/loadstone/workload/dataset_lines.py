"""A dataset's file as items that are not read yet: the elements of one JSON array, or lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec

from loadstone.core.errors import InputError
from loadstone.workload import json_salvage
from loadstone.workload.files import BOM, HEAD_BYTES, check_text, lines

GIVE = "give JSON, JSONL or plain text in UTF-8"

Kind = Literal["array", "lines", "text"]

_ARRAY = re.compile(rb'\[\s*(["{\[\]]|$)')
_OBJECT = re.compile(rb'\{\s*(["}]|$)')

_MOST_ARRAY_BYTES = 1 << 32
_READ_BYTES = 1 << 20
_NAME = re.compile(rb"[\w .-]{1,40}")
_HEADS = frozenset({
    b"prompt", b"question", b"instruction", b"input", b"text", b"messages", b"timestamp", b"timestamp_s",
})  # fmt: skip
"""Columns that tables of prompts and traces have, in small letters."""


class ItemError(Exception):
    """What is wrong with one item, and the remedy; where it lies is known higher up."""


def kind_of(path: Path, stream: BinaryIO) -> Kind:
    """`array`, `lines` (of JSON) or `text`, by the first line that is not blank; leaves `stream` at the content."""
    head = stream.readline(HEAD_BYTES)
    start = len(BOM) if head.startswith(BOM) else 0
    first = head[start:].strip()
    while head and not first:
        head = stream.readline(HEAD_BYTES)
        first = head.strip()
    check_text(path, head, GIVE)
    stream.seek(start)
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
            yield from enumerate(json_salvage.elements(data.decode("utf-8", "replace")), 1)
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
