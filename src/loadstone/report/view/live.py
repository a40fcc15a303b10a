"""Show a run that goes on, or was cut off: its journals, read as they grow, as one JSON
document."""

import math
import threading
import time
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.core.files import check_regular
from loadstone.report.data.wording import clean
from loadstone.report.view.curves import CellCurve, Curves, percentile
from loadstone.report.view.run_list import RunRow, Signature, signature

LOOK_S = 0.4
"""A look reads no longer than this; what is left is read by the next."""
WINDOW_BYTES = 32 * 1024 * 1024
"""Read at a time: a whole frame is always in it, since a worker appends twice a second."""
KEPT = 8
"""Runs whose curves are kept between looks."""
_MOST_JOURNALS = 1024


class Tail:
    """One journal. `broken`: why it is read no further."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self.broken = ""

    def read(self) -> tuple[list[pa.RecordBatch], bool]:
        """Return batches that were appended since, of one window; and whether there is more to read
        at once.

        A frame not wholly written is left for the next look. A file that went (its records are
        made) gives nothing.
        """
        if self.broken:
            return [], False
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read(WINDOW_BYTES)
        except OSError:
            return [], False
        batches, used = self._frames(data)
        self._at += used
        return batches, len(data) == WINDOW_BYTES and not self.broken

    def _frames(self, data: bytes) -> tuple[list[pa.RecordBatch], int]:
        """Return the batches of the whole frames in `data`, and how many bytes these take."""
        batches: list[pa.RecordBatch] = []
        used = 0
        try:
            while len(data) - used >= run_folder.HEADER_BYTES:
                number, length, check = run_folder.read_header(data, used)
                begin, end = used + run_folder.HEADER_BYTES, used + run_folder.HEADER_BYTES + length
                if end > len(data) and length <= WINDOW_BYTES - run_folder.HEADER_BYTES:
                    break
                batches += _take(data[begin:end], number, check)
                used = end
        except (pa.ArrowException, OSError, ValueError, EOFError, MemoryError) as error:
            self.broken = str(error)
        return batches, used


def _take(message: bytes, number: int, check: int) -> list[pa.RecordBatch]:
    """Return the batch of a frame's message, if it is one. Raises ValueError where it is not what
    it says."""
    if zlib.crc32(message) != check:
        raise ValueError("not a journal, or a damaged one")
    schema = run_folder.journal_schema()
    if number:
        batch = pa.ipc.read_record_batch(pa.py_buffer(message), schema)
        batch.validate(full=True)
        return [batch]
    if not pa.ipc.read_schema(pa.py_buffer(message)).equals(schema):
        raise ValueError("the columns are not those of records")
    return []


class LiveRun:
    """The curves of one run. Raises InputError where the run's files cannot be read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        info = run_folder.read_info(folder)
        self._loads = [cell.load for cell in info.cells]
        self._curves = Curves([load.kind for load in self._loads])
        self._planned = _read_planned(folder, len(info.cells))
        self._tails: dict[str, Tail] = {}
        self._lock = threading.Lock()

    def look(self, row: RunRow) -> dict[str, Any]:
        """Read what there is by now, as the document of docs/view.md."""
        with self._lock:
            behind = self._read()
            return self._document(row, behind)

    def _read(self) -> bool:
        deadline = time.monotonic() + LOOK_S
        for path in sorted(self._folder.glob("journal-*.arrow"))[:_MOST_JOURNALS]:
            self._tails.setdefault(path.name, Tail(path))
        unread = True
        while unread:
            unread = False
            for tail in self._tails.values():
                batches, again = tail.read()
                unread |= again
                for batch in batches:
                    self._curves.add(batch)
                if time.monotonic() > deadline:
                    return True
        return False

    def _document(self, row: RunRow, behind: bool) -> dict[str, Any]:
        curves, running = self._curves, row.state == "running"
        return {
            "schema": 1,
            "state": row.state,
            "why": row.why,
            "behind": behind,
            "elapsed_s": round(curves.newest_s, 3),
            "bin_s": curves.bin_s,
            "curves": curves.series(running),
            "cells": [self._cell(number) for number in range(len(self._loads))],
            "notes": [
                f"{name}: {clean(tail.broken)}" for name, tail in self._tails.items() if tail.broken
            ],
        }

    def _cell(self, number: int) -> dict[str, Any]:
        load, begun = self._loads[number], number in self._curves.cells
        cell = self._curves.cells.get(number, CellCurve())
        document: dict[str, Any] = {
            "load": clean(load.label),
            "origin": "sent" if load.is_closed else "intended",
            "planned": None if load.duration_s is not None else self._planned[number],
            "sent": cell.sent,
            "warmup": cell.warm,
            "ok": cell.ok,
            "short": cell.short,
            "failed": cell.failed,
            "cancelled": cell.cancelled,
            "under_way": cell.sent - cell.ended,
        }
        if not begun:
            return document
        return document | {
            "begin_s": cell.begin_s if math.isfinite(cell.begin_s) else None,
            "output_tokens": round(cell.events * cell.tokens_per_event),
            "ttft_p50_s": percentile(cell.ttft[None, :], 0.5)[0],
            "ttft_p90_s": percentile(cell.ttft[None, :], 0.9)[0],
            "gap_p50_s": percentile(cell.gap[None, :], 0.5)[0],
            "gap_p99_s": percentile(cell.gap[None, :], 0.99)[0],
        }


def _read_planned(folder: Path, cells: int) -> list[int | None]:
    """Return requests of each cell, warm-up included; None where the plan does not say."""
    try:
        check_regular(folder / "plan.parquet")
        column = pq.read_table(folder / "plan.parquet", columns=["cell"])["cell"].to_numpy()
        counts = np.bincount(column[(column >= 0) & (column < cells)], minlength=cells)
    except (OSError, KeyError, TypeError, ValueError, pa.ArrowException):
        return [None] * cells
    return [int(count) or None for count in counts]


def look(row: RunRow) -> dict[str, Any]:
    """Return what there is of a run by now, as the document of docs/view.md; the curves of the runs
    that were looked at last are kept. Raises InputError where the run's files cannot be read."""
    try:
        # Another plan under the same name is another run; run.json changes with each cell.
        run = _open(row.folder, signature(row.folder, ("plan.parquet",)))
    except (ValueError, TypeError) as error:
        raise InputError(f"{row.name}: its files cannot be read ({error})") from error
    return run.look(row)


@lru_cache(KEPT)
def _open(folder: Path, plan: Signature) -> LiveRun:
    return LiveRun(folder)
