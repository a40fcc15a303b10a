"""Whether records.parquet and summary.json are as they were written: run.json keeps a mark of each."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

import msgspec

from loadstone.core.record import RunInfo
from loadstone.core.run_folder.folder import write_info

_MARKED_BYTES = 1 << 20


class _Marked(msgspec.Struct):
    """Of run.json."""

    marks: dict[str, str] = {}


def seal(folder: Path, info: RunInfo) -> None:
    """Writes run.json with what these files are like once they are written; of records as they were at first."""
    info.marks = _marks(folder) | {name: each for name, each in info.marks.items() if name == "records.parquet"}
    write_info(folder, info)


def changed(folder: Path) -> list[str]:
    """The files that are not as they were written; none where nobody kept how that was."""
    known: dict[str, str] = {}
    if not (folder / "run.json").is_file():  # a pipe would be waited for
        return []
    with contextlib.suppress(OSError, msgspec.DecodeError):
        known = msgspec.json.decode((folder / "run.json").read_bytes(), type=_Marked).marks
    return [name for name, mark in _marks(folder).items() if known.get(name, mark) != mark] if known else []


def _marks(folder: Path) -> dict[str, str]:
    """Of large files their end, where Parquet has the place and the size of all columns, stands for all."""
    marks = {}
    for name in ("summary.json", "records.parquet"):
        if not (folder / name).is_file():
            continue
        with contextlib.suppress(OSError), (folder / name).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _MARKED_BYTES))
            marks[name] = hashlib.sha256(b"%d " % size + file.read()).hexdigest()
    return marks
