"""Tells whether what a verdict relies on is as it was written: run.json keeps a digest of each
file, and of itself."""

import contextlib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from loadstone.core.record import RunInfo
from loadstone.core.run_folder.folder import digest_papers, write_info

_MARKED_BYTES = 1 << 20
_MEASURED = ("records.parquet", "server.parquet", "answers.parquet")


def seal(folder: Path, info: RunInfo) -> None:
    """Write run.json with digests of these files; those of what was measured are kept from the
    first time."""
    info.marks = _digest_files(folder) | {
        name: mark for name, mark in info.marks.items() if name in _MEASURED
    }
    write_info(folder, info)


def find_changed(folder: Path, marks: Mapping[str, str], status: str = "running") -> list[str]:
    """List the files that are not as they were written, or gone, by `marks` and `status`, those of
    run.json. A run that was concluded has some."""
    if not marks:
        files = ("records.parquet",) if status == "done" else ("summary.json", "records.parquet")
        concluded = all((folder / name).exists() for name in files)
        return ["run.json"] if concluded else []
    found = _digest_files(folder)
    return [name for name, mark in marks.items() if found.get(name) != mark]


def _digest_files(folder: Path) -> dict[str, str]:
    """Digest each file: of a large one the end, where Parquet has the place and the size of all
    columns."""
    marks = {}
    if (folder / "run.json").is_file():
        with contextlib.suppress(OSError, ValueError):
            marks["run.json"] = digest_papers((folder / "run.json").read_bytes())
    for name in ("summary.json", "plan.parquet", *_MEASURED):
        if not (folder / name).is_file():
            continue
        with contextlib.suppress(OSError), (folder / name).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _MARKED_BYTES))
            marks[name] = hashlib.sha256(b"%d " % size + file.read()).hexdigest()
    return marks
