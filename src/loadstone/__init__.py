"""Loadstone: a laboratory for LLM inference serving.

    document = loadstone.bench("http://localhost:8000", concurrency=[1, 8], output="128")
    run = loadstone.open_run(document["run_dir"])
    run.records()

Importing it takes no time: each function imports what it needs when it is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

    from loadstone.records import Plan, RunInfo

__version__ = "0.1.0"

__all__ = ["Run", "__version__", "bench", "open_run", "recover"]


def bench(url: str | Sequence[str] | None = None, **options: Any) -> dict[str, Any]:
    """Measure a live engine, or an embedded one without `url`; returns the summary, as `loadstone bench --json`.

    Several URLs are a fleet of servers with the same model behind them.

    `options` are the fields of `loadstone.options.Options`, named as the flags; a TypeError tells of any other.
    Raises loadstone.errors.InputError, one line, where it cannot be done; requests that fail are records.
    """
    from loadstone import measure
    from loadstone.options import Options

    return measure.bench(Options(url=url, **options))


def recover(path: str | PathLike[str]) -> dict[str, Any]:
    """Finish a run folder that a crash left; returns the summary. Harmless to repeat. Raises InputError."""
    from loadstone import measure

    return measure.recover(Path(path))


def open_run(path: str | PathLike[str]) -> Run:
    """A run folder, for reading. Raises InputError where it is none."""
    from loadstone import store

    folder = Path(path)
    return Run(folder, store.read_info(folder), store.read_plan(folder))


class Run:
    """A run folder: `info` (everything needed to repeat it), `plan` (what was asked), and what came of it."""

    def __init__(self, folder: Path, info: RunInfo, plan: Plan) -> None:
        self.folder = folder
        self.info = info
        self.plan = plan

    def records(self) -> pa.Table:
        """One row per request, columns as loadstone.records.RequestRecord. Raises InputError where there are none."""
        import pyarrow as pa

        from loadstone import store

        return pa.Table.from_batches(store.read_records(self.folder), schema=store.records_schema())

    def summary(self) -> dict[str, Any]:
        """The numbers, computed from the records. Raises InputError where there are none."""
        from loadstone.summary import summarise

        return summarise(self.folder)
