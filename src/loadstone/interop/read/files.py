"""Reads other people's files: JSON, JSON lines, YAML and CSV, with bounds."""

import codecs
import csv
import json
import re
from pathlib import Path
from typing import Any

from loadstone.core.errors import InputError
from loadstone.core.files import explain_os_error, open_regular
from loadstone.core.yaml_text import decode_yaml

MAX_BYTES = 1 << 30
CHUNK_BYTES = 1 << 24
MAX_LINES = 2_000_000
MAX_RESULTS = 200_000
"""The most results in one file, a cell each."""
MAX_VALUES = 64_000_000
"""The most values in a JSON document: as objects, the smallest take sixty bytes each."""
_YAML_BYTES = 16 << 20
"""YAML is read slowly, and only reports of a few kilobytes come in it."""


_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class NoResult(InputError):
    """A sound file, but of nothing that is known."""


_ARCHIVES = {
    b"PK\x03\x04": "a ZIP archive",
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"7z\xbc\xaf": "a 7-Zip archive",
    b"PAR1": "Parquet",
}


def printable(path: Path | str) -> str:
    """Write a path in words. File names are bytes: what of them is no UTF-8 cannot be written to a
    run's files."""
    return "".join(character if character.isprintable() else "\ufffd" for character in str(path))


def read_text(path: Path) -> str:
    """Read a file as text, without its byte order mark: UTF-8, or UTF-16 as Windows writes it.
    Raises InputError."""
    content = bytearray()
    name = printable(path)
    with explain_os_error(f"{name}: cannot be read", "check the name"), open_regular(path) as file:
        while chunk := file.read(CHUNK_BYTES):
            content += chunk
            if len(content) > MAX_BYTES:
                raise InputError(f"{name}: more than {MAX_BYTES >> 20} MiB; split it")
            for mark, kind in _ARCHIVES.items():
                if content.startswith(mark):
                    raise NoResult(
                        f"{name}: {kind}, and only text is read; unpack it and name what is in it"
                    )
            # A file with holes, or of a disk image, is found out before it is all in memory.
            if b"\0" in chunk and not content.startswith(_UTF16):
                raise NoResult(f"{name}: binary, and only text is read; name a result file")
    return content.decode("utf-16" if content.startswith(_UTF16) else "utf-8-sig", "replace")


def parse_json(content: str, name: str) -> Any:
    """Parse JSON as Python reads it: `Infinity` and `NaN`, which SGLang and vLLM write, are
    numbers. Raises InputError.
    """
    if sum(map(content.count, ",[{")) > MAX_VALUES:
        raise InputError(f"{name}: more than {MAX_VALUES:,} values; split it")
    try:
        return json.loads(content)
    except RecursionError:
        raise InputError(f"{name}: nested too deep to be a result file") from None
    except ValueError as error:
        raise InputError(f"{name}: no JSON ({error}); was it cut off?") from None


def parse_lines(content: str, name: str) -> tuple[list[tuple[int, dict[str, Any]]], list[int]]:
    """Parse JSON lines into (line number, object), and the numbers of those that are no JSON: a
    tool that was killed leaves half a line. Raises InputError where a line is JSON, but no object.
    """
    if content.count("\n") > MAX_LINES:
        raise InputError(f"{name}: more than {MAX_LINES:,} lines; split it")
    objects, broken = [], []
    # Not splitlines: U+2028 and its like may stand in a JSON string.
    for line, row in enumerate(content.split("\n"), 1):
        if not row.strip():
            continue
        try:
            value = parse_json(row, name)
        except InputError:
            broken.append(line)
            continue
        if not isinstance(value, dict):
            raise InputError(f"{name}, line {line}: not a JSON object; each line must be one")
        objects.append((line, value))
    return objects, broken


def parse_yaml(content: str, name: str) -> Any:
    """Raises InputError."""
    if len(content) > _YAML_BYTES:
        raise InputError(f"{name}: too large for a report in YAML; write it as JSON")
    try:
        return decode_yaml(content)
    except ValueError as error:
        raise InputError(f"{name}: no YAML ({error}); was it cut off?") from None


def _guess_delimiter(content: str) -> str:
    """Guess the delimiter: spreadsheets of some countries write semicolons, and what is copied from
    one has tabs."""
    first = content.partition("\n")[0]
    return "," if "," in first else max(",;\t", key=first.count)


_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


def parse_csv(content: str, name: str) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Parse CSV into its header and (line number, cells) of the rows that have any. Raises
    InputError."""
    try:
        rows = csv.reader(
            (line[0] for line in _LINE.finditer(content)), delimiter=_guess_delimiter(content)
        )
        header = [name.strip() for name in next(rows, [])]
        lines: list[tuple[int, list[str]]] = []
        for row in rows:
            if rows.line_num > MAX_LINES:
                raise InputError(f"{name}: more than {MAX_LINES:,} lines; split it")
            if not any(cell.strip() for cell in row):
                continue
            if len(lines) >= MAX_RESULTS:
                raise InputError(f"{name}: more than {MAX_RESULTS:,} results; split it")
            lines.append((rows.line_num, row))
    except csv.Error as error:
        raise InputError(f"{name}: no CSV ({error})") from None
    return header, lines
