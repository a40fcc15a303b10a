"""Tells whether records.parquet and summary.json are as they were written: run.json keeps a digest
of each."""

import contextlib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from loadstone.core.record import RunInfo
from loadstone.core.run_folder.folder import write_info

_MARKED_BYTES = 1 << 20


def seal(folder: Path, info: RunInfo) -> None:
    """Write run.json with digests of these files; that of the records is kept from the first
    time."""
    info.marks = _digest_files(folder) | {
        name: mark for name, mark in info.marks.items() if name == "records.parquet"
    }
    write_info(folder, info)


def find_changed(folder: Path, marks: Mapping[str, str]) -> list[str]:
    """List the files that are not as they were written; none without `marks`, those of run.json."""
    return (
        [name for name, mark in _digest_files(folder).items() if marks.get(name, mark) != mark]
        if marks
        else []
    )


def _digest_files(folder: Path) -> dict[str, str]:
    """Digest both files: of a large one the end, where Parquet has the place and the size of all
    columns."""
    marks = {}
    for name in ("summary.json", "records.parquet"):
        if not (folder / name).is_file():
            continue
        with contextlib.suppress(OSError), (folder / name).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _MARKED_BYTES))
            marks[name] = hashlib.sha256(b"%d " % size + file.read()).hexdigest()
    return marks
