"""Reads other people's files: chooses those that are results, and reads JSON, JSON lines, YAML and
CSV with bounds.
"""

from __future__ import annotations

import codecs
import csv
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadstone.core.errors import InputError
from loadstone.core.files import explain_os_error, open_regular
from loadstone.core.yaml_text import decode_yaml
from loadstone.interop.read import aiperf, inference_perf

_MOST_FILES = 10_000
_SUFFIXES = (".json", ".jsonl", ".csv", ".yaml", ".yml", ".txt")


def list_files(paths: Sequence[Path]) -> list[tuple[Path, str, bool]]:
    """List (file, what to call it, True if it was named itself), each once.

    Some tools name all their results alike: what a file is called has its folder, from the one
    folder that was named or that all files are in, else as it was named.
    """
    files: dict[Path, tuple[Path, str, bool]] = {}
    apart = len({path if path.is_dir() else path.parent for path in paths}) > 1
    for path in paths:
        if not path.is_dir():
            files[_follow_links(path)] = (path, printable(path if apart else path.name), True)
            continue
        inside = sorted(one for one in path.rglob("*") if one.suffix in _SUFFIXES and one.is_file())
        if len(inside) > _MOST_FILES:
            raise InputError(f"{path}: {len(inside):,} files; name at most {_MOST_FILES:,}")
        for one in inside:
            if not _repeats_others(one):
                files.setdefault(
                    _follow_links(one),
                    (one, printable(one if apart else one.relative_to(path)), False),
                )

    def is_second(resolved: Path, named: bool) -> bool:
        """AIPerf's summary and its requests are one result: reading either reads both."""
        summary = (
            files.get(aiperf.summary_path(resolved)) if resolved.name == aiperf.REQUESTS else None
        )
        return summary is not None and not (named and not summary[2])

    return [entry for resolved, entry in files.items() if not is_second(resolved, entry[2])]


def _follow_links(path: Path) -> Path:
    """Follow links. Not Path.resolve(), which fails where links go in a circle."""
    return Path(os.path.realpath(path))


def _repeats_others(path: Path) -> bool:
    """Return True for files that repeat what others in the folder say, or are read with them:
    AIPerf's phases and accuracy, inference-perf's summary and report.
    """
    if path.name == aiperf.ACCURACY:
        return aiperf.summary_path(path).exists() or path.with_name(aiperf.REQUESTS).exists()
    if "phases" in path.parts and path.name.startswith("profile_export"):
        return True
    stages = inference_perf.list_stages(path.parent)
    requests = path.parent / inference_perf.REQUESTS
    if path.name == "summary_lifecycle_metrics.json" or path.name.startswith("inference-perf."):
        return bool(stages)
    # One stage states its requests' load; with several, none states which requests are its.
    if path in stages:
        return len(stages) == 1 and requests.exists()
    return path == requests and len(stages) > 1


# --- reading --------------------------------------------------------------------------------------

MOST_BYTES = 1 << 30
_CHUNK_BYTES = 1 << 24
MOST_LINES = 2_000_000
MOST_RESULTS = 200_000
"""The most results in one file, a cell each."""
_MOST_VALUES = 64_000_000
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
    what = printable(path)
    with explain_os_error(f"{what}: cannot be read", "check the name"), open_regular(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            content += chunk
            if len(content) > MOST_BYTES:
                raise InputError(f"{what}: more than {MOST_BYTES >> 20} MiB; split it")
            kind = next(
                (kind for mark, kind in _ARCHIVES.items() if content.startswith(mark)), None
            )
            if kind is not None:
                raise NoResult(
                    f"{what}: {kind}, and only text is read; unpack it and name what is in it"
                )
            # A file with holes, or of a disk image, is found out before it is all in memory.
            if b"\0" in chunk and not content.startswith(_UTF16):
                raise NoResult(f"{what}: binary, and only text is read; name a result file")
    return content.decode("utf-16" if content.startswith(_UTF16) else "utf-8-sig", "replace")


def parse_json(content: str, what: str) -> Any:
    """Parse JSON as Python reads it: `Infinity` and `NaN`, which SGLang and vLLM write, are
    numbers. Raises InputError.
    """
    if sum(map(content.count, ",[{")) > _MOST_VALUES:
        raise InputError(f"{what}: more than {_MOST_VALUES:,} values; split it")
    try:
        return json.loads(content)
    except RecursionError:
        raise InputError(f"{what}: nested too deep to be a result file") from None
    except ValueError as error:
        raise InputError(f"{what}: no JSON ({error}); was it cut off?") from None


def parse_lines(content: str, what: str) -> tuple[list[tuple[int, dict[str, Any]]], list[int]]:
    """Parse JSON lines into (line number, object), and the numbers of those that are no JSON: a
    tool that was killed leaves half a line. Raises InputError where a line is JSON, but no object.
    """
    if content.count("\n") > MOST_LINES:
        raise InputError(f"{what}: more than {MOST_LINES:,} lines; split it")
    objects, broken = [], []
    # Not splitlines: U+2028 and its like may stand in a JSON string.
    for line, row in enumerate(content.split("\n"), 1):
        if not row.strip():
            continue
        try:
            value = parse_json(row, what)
        except InputError:
            broken.append(line)
            continue
        if not isinstance(value, dict):
            raise InputError(f"{what}, line {line}: not a JSON object; each line must be one")
        objects.append((line, value))
    return objects, broken


def parse_yaml(content: str, what: str) -> Any:
    """Raises InputError."""
    if len(content) > _YAML_BYTES:
        raise InputError(f"{what}: too large for a report in YAML; write it as JSON")
    try:
        return decode_yaml(content)
    except ValueError as error:
        raise InputError(f"{what}: no YAML ({error}); was it cut off?") from None


def _guess_delimiter(content: str) -> str:
    """Guess the delimiter: spreadsheets of some countries write semicolons, and what is copied from
    one has tabs."""
    first = content.partition("\n")[0]
    return "," if "," in first else max(",;\t", key=first.count)


_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


def parse_csv(content: str, what: str) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Parse CSV into its header and (line number, cells) of the rows that have any. Raises
    InputError."""
    try:
        rows = csv.reader(
            (line[0] for line in _LINE.finditer(content)), delimiter=_guess_delimiter(content)
        )
        header = [name.strip() for name in next(rows, [])]
        lines: list[tuple[int, list[str]]] = []
        for row in rows:
            if rows.line_num > MOST_LINES:
                raise InputError(f"{what}: more than {MOST_LINES:,} lines; split it")
            if not any(cell.strip() for cell in row):
                continue
            if len(lines) >= MOST_RESULTS:
                raise InputError(f"{what}: more than {MOST_RESULTS:,} results; split it")
            lines.append((rows.line_num, row))
    except csv.Error as error:
        raise InputError(f"{what}: no CSV ({error})") from None
    return header, lines
