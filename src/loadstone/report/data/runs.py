"""Reading runs for a report: their papers, their summaries, whether measured, simulated or imported."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from loadstone.analyse.run_facts import RunFacts, run_facts
from loadstone.core import run_folder
from loadstone.core import summary as summaries
from loadstone.core.errors import InputError
from loadstone.core.record import RunInfo
from loadstone.core.summary import Summary


class RunView(msgspec.Struct, kw_only=True):
    """A run as a report sees it."""

    folder: Path
    info: RunInfo
    summary: Summary
    facts: RunFacts

    @property
    def has_records(self) -> bool:
        return (self.folder / "records.parquet").exists()


def read_runs(paths: Sequence[Path]) -> tuple[list[RunView], list[str]]:
    """The runs in these folders, each a run or a folder of runs, by their start; and what could not be read.

    Raises InputError where a run that was named itself cannot be read, and where there is none at all.
    """
    runs: list[RunView] = []
    passed_over: list[str] = []
    seen: set[Path] = set()
    for path in paths:
        named = (path / "run.json").exists()
        for folder in [path] if named else _folders(path):
            if folder.resolve() in seen:
                continue
            seen.add(folder.resolve())
            try:
                runs.append(read_run(folder))
            except InputError as error:
                if named:
                    raise
                passed_over.append(str(error))
    if not runs:
        why = f" ({passed_over[0]})" if passed_over else ""
        raise InputError(f"{paths[0] if paths else 'runs'}: no run that can be read{why}; name run folders")
    return sorted(runs, key=lambda run: (run.info.created, run.info.run_id)), passed_over


def _folders(path: Path) -> Iterable[Path]:
    folders = sorted(each.parent for each in path.glob("*/run.json")) if path.is_dir() else []
    if not folders:
        raise InputError(
            f"{path}: neither a run folder nor a folder of run folders; give one, or other tools' result files"
        )
    return folders


def read_run(folder: Path) -> RunView:
    """One run. Its summary.json where it has one, else computed from its records. Raises InputError.

    A summary of before intervals had regard to how requests depend on one another is computed anew too; what the
    hardware allows is added where no cell has it, as in figures that were imported.
    """
    info = run_folder.read_info(folder)
    summary = summaries.read(folder) if (folder / "summary.json").exists() else None
    if summary is None or ((folder / "records.parquet").exists() and _by_requests(summary)):
        from loadstone.analyse.summary import summary_of

        summary = summary_of(folder)
    if all(cell.roofline is None for cell in summary.cells):
        from loadstone.analyse.summary import with_roofline

        summary = with_roofline(summary, info)
    return RunView(folder=folder, info=info, summary=summary, facts=run_facts(info, summary))


def _by_requests(summary: Summary) -> bool:
    """Whether its intervals take each request for independent: such summaries have none of a mean."""
    known = (cell.metrics.latency(name) for cell in summary.cells for name in summaries.LATENCIES)
    return any("p50" in latency.ci95 and "mean" not in latency.ci95 for latency in known if latency is not None)
