"""Reading other people's files: bounded, in whatever of JSON, JSON lines, YAML and CSV they are."""

from __future__ import annotations

import codecs
import csv
import io
import json
from pathlib import Path
from typing import Any

from loadstone.core.errors import InputError

MOST_BYTES = 1 << 30
MOST_LINES = 2_000_000
_YAML_BYTES = 16 << 20
"""YAML is read slowly, and only reports of a few kilobytes come in it."""


class NoResult(InputError):
    """A sound file, but of nothing that is known."""


_ARCHIVES = {b"PK\x03\x04": "a ZIP archive", b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2",
             b"\xfd7zXZ": "xz", b"7z\xbc\xaf": "a 7-Zip archive", b"PAR1": "Parquet"}  # fmt: skip


def printable(path: Path | str) -> str:
    """A path in words. File names are bytes: what of them is no UTF-8 cannot be written to a run's papers."""
    return "".join(character if character.isprintable() else "\ufffd" for character in str(path))


def read_text(path: Path) -> str:
    """A file as text, without its byte order mark: UTF-8, or UTF-16 as Windows writes it. Raises InputError."""
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise InputError(f"{printable(path)}: not a regular file; name a result file, or a folder of them")
        if size > MOST_BYTES:
            raise InputError(
                f"{printable(path)}: {size / 1e6:,.0f} MB, and at most {MOST_BYTES / 1e6:,.0f} MB are read; split it"
            )
        said = path.read_bytes()
        if (kind := next((kind for mark, kind in _ARCHIVES.items() if said.startswith(mark)), None)) is not None:
            raise NoResult(f"{printable(path)}: {kind}, and only text is read; unpack it and name what is in it")
        wide = said.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        return said.decode("utf-16" if wide else "utf-8-sig", "replace")
    except OSError as error:
        raise InputError(f"{printable(path)}: cannot be read ({error.strerror or error}); check the name") from error


def parse_json(said: str, what: str) -> Any:
    """JSON as Python reads it: `Infinity` and `NaN`, which SGLang and vLLM write, are numbers. Raises InputError."""
    try:
        return json.loads(said)
    except RecursionError:
        raise InputError(f"{what}: nested too deep to be a result file") from None
    except ValueError as error:
        raise InputError(f"{what}: no JSON ({error}); was it cut off?") from None


def parse_lines(said: str, what: str) -> tuple[list[tuple[int, dict[str, Any]]], list[int]]:
    """(line number, object) of JSON lines, and the numbers of those that are no JSON: a tool that was killed leaves
    half a line. Raises InputError where a line is JSON, but no object.
    """
    found, broken = [], []
    # Not splitlines: U+2028 and its like may stand in a JSON string.
    for line, row in enumerate(said.split("\n"), 1):
        if line > MOST_LINES:
            raise InputError(f"{what}: more than {MOST_LINES:,} lines; split it")
        if not row.strip():
            continue
        try:
            value = parse_json(row, what)
        except InputError:
            broken.append(line)
            continue
        if not isinstance(value, dict):
            raise InputError(f"{what}, line {line}: not a JSON object; each line must be one")
        found.append((line, value))
    return found, broken


def parse_yaml(said: str, what: str) -> Any:
    """Raises InputError."""
    import msgspec

    if len(said) > _YAML_BYTES:
        raise InputError(f"{what}: too large for a report in YAML; write it as JSON")
    try:
        return msgspec.yaml.decode(said)
    except RecursionError:
        raise InputError(f"{what}: nested too deep to be a result file") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise InputError(f"{what}: no YAML ({' '.join(str(error).split())[:200]}); was it cut off?") from None


def _delimiter(said: str) -> str:
    """Spreadsheets of some countries write semicolons, and what is copied from one has tabs."""
    first = said.partition("\n")[0]
    return "," if "," in first else max(",;\t", key=first.count)


def parse_csv(said: str, what: str) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Header, and (line number, cells) of the rows that have any. Raises InputError."""
    try:
        rows = csv.reader(io.StringIO(said, newline=""), delimiter=_delimiter(said))
        header = [name.strip() for name in next(rows, [])]
        found = []
        for row in rows:
            if rows.line_num > MOST_LINES:
                raise InputError(f"{what}: more than {MOST_LINES:,} lines; split it")
            if any(cell.strip() for cell in row):
                found.append((rows.line_num, row))
    except csv.Error as error:
        raise InputError(f"{what}: no CSV ({error})") from None
    return header, found
