"""Makes run folders, reads and writes run.json, and replaces files whole or not at all."""

import contextlib
import errno
import hashlib
import os
import re
import secrets
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from loadstone.core.errors import DiskFullError, InputError
from loadstone.core.files import decode_json, read_bytes
from loadstone.core.record import RunInfo
from loadstone.core.settings import read_settings

RUN_SCHEMA = 1
MOST_INFO_BYTES = 64 << 20
"""The largest run.json that is read: a thousand cells take one MiB."""


def run_id(created: datetime, *parts: str | None) -> str:
    """Name a run: `20260131-235900-vllm-llama-3.1-8b`, when, and what of whom, as far as it is
    known."""
    name = re.sub(r"[^a-z0-9.]+", "-", "-".join(part for part in parts if part).lower()).strip(
        "-."
    )[:60]
    return f"{created:%Y%m%d-%H%M%S}-{name or 'run'}"


def create(parent: Path, run_id: str) -> Path:
    """Make a new run folder `parent/run_id`, with a number behind it where that is taken. Raises
    InputError, one line.
    """
    with writing(parent):
        parent.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, 1000):
            folder = parent / (run_id if attempt == 1 else f"{run_id}-{attempt}")
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            return folder
    raise InputError(f"{parent}: a thousand runs named {run_id}; give another folder with --out")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Make an InputError of an OSError within, which says why `path` cannot be written; a
    DiskFullError where there is no room.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            problem = f"{path}: disk full; free some space, or give another folder with --out"
            raise DiskFullError(problem) from error
        raise InputError(
            f"{path}: cannot write here ({error.strerror}); give another folder with --out"
        ) from error


@contextlib.contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield a path to write to, which becomes `path` once all of it is there; until then `path`
    stays as it was.

    Raises InputError, one line, where it cannot be written; DiskFullError where there is no room.
    """
    # A name that nobody can guess: it is no other process's, and no link of somebody else's making
    # lies there.
    partial = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(8)}.part")
    with writing(path):
        try:
            yield partial
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def write_json(path: Path, value: object) -> None:
    """Replace `path` by `value` as JSON. Raises InputError as replace_file() does."""
    with replace_file(path) as partial:
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")


def log(folder: Path, text: str) -> None:
    """Add a line to the run's log.txt. A full disk must not end a run for its log's sake."""
    with (
        contextlib.suppress(OSError),
        (folder / "log.txt").open("a", encoding="utf-8", errors="replace") as file,
    ):
        file.write(text + "\n")


def digest_papers(content: bytes) -> str:
    """Digest what run.json says, but its digests. Raises ValueError: it is no object of JSON."""
    papers = msgspec.json.decode(content, type=dict[str, Any])
    papers.pop("marks", None)
    return hashlib.sha256(msgspec.json.encode(papers, order="sorted")).hexdigest()


def write_info(folder: Path, info: RunInfo) -> None:
    """Write run.json; that of a concluded run with a digest of itself. Raises InputError."""
    if info.marks:
        info.marks["run.json"] = digest_papers(msgspec.json.encode(info))
    write_json(folder / "run.json", info)


def write_failure(folder: Path, info: RunInfo, error: BaseException, done: str) -> None:
    """Have run.json say that the run failed, and why, or that it was interrupted before anything
    was `done`; where there is room for it: nobody shall wait for its end.
    """
    interrupted = isinstance(error, KeyboardInterrupt)
    info.status = "interrupted" if interrupted else "failed"
    info.error = f"interrupted before anything was {done}" if interrupted else str(error)
    with contextlib.suppress(InputError):
        write_info(folder, info)


class _Origin(msgspec.Struct):
    """Holds the fields of run.json that every version has."""

    schema: int = RUN_SCHEMA
    loadstone: str = "?"


def read_info(folder: Path) -> RunInfo:
    """Read run.json; fields that later versions added are passed over.

    Raises InputError where `folder` is no run folder, or its schema another than this version of
    the program reads.
    """
    path = folder / "run.json"
    content = read_bytes(
        path, MOST_INFO_BYTES, f"{folder} is not a run folder; give one under runs/"
    )
    complaint, remedy = (
        f"{path}: not a run this version of Loadstone can read",
        "move it away, or measure it again",
    )
    origin = decode_json(content, _Origin, complaint, remedy)
    if origin.schema != RUN_SCHEMA:
        raise InputError(
            f"{path}: run of schema {origin.schema}, and this version of Loadstone reads"
            f" {RUN_SCHEMA}; read it with Loadstone {origin.loadstone}, which made it"
        )
    try:
        return decode_json(content, RunInfo, complaint, remedy)
    except InputError:
        # A setting that another program wrote shall not hide the run.
        papers = decode_json(content, dict[str, Any], complaint, remedy)
        papers["settings"] = read_settings(papers.get("settings"))
        return decode_json(msgspec.json.encode(papers), RunInfo, complaint, remedy)
