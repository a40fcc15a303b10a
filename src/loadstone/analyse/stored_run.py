"""Reads a run for comparisons and reports: its folder's papers, its numbers, its facts."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from loadstone.analyse import imported_run
from loadstone.analyse.run_facts import RunFacts, run_facts
from loadstone.analyse.verdict.finding import judge
from loadstone.core import run_folder
from loadstone.core import summary as summaries
from loadstone.core.record import RunInfo
from loadstone.core.summary import Summary
from loadstone.core.version import __version__


class StoredRun(msgspec.Struct, kw_only=True):
    """A run in its folder. `facts`: its engine, model, GPU and workload."""

    folder: Path
    info: RunInfo
    summary: Summary
    facts: RunFacts

    @property
    def has_records(self) -> bool:
        return (self.folder / "records.parquet").exists()


def fingerprint(run: StoredRun) -> str:
    """Digest what a copy of a run has, too: when each request was sent and ended; without records
    its numbers. Those of a simulation come again with its seed."""
    digest = hashlib.sha256(run.info.run_id.encode() if run.info.source == "simulated" else b"")
    for number in range(len(run.info.cells)) if run.has_records else ():
        times = run_folder.read_columns(run.folder, ("sent_s", "end_s"), number)
        for column in times.columns:
            digest.update(column.to_numpy().tobytes())
    if not run.has_records:
        cells = [(cell.load, cell.metrics) for cell in run.summary.cells]
        digest.update(msgspec.json.encode((run.facts, cells)))
    return digest.hexdigest()


def leave_out_copies(runs: Sequence[StoredRun]) -> tuple[list[StoredRun], list[str]]:
    """Keep the first of runs that are copies of one another; and say of each other that it is."""
    kept: dict[str, StoredRun] = {}
    copies = []
    for run in runs:
        first = kept.setdefault(fingerprint(run), run)
        if first is not run:
            copies.append(f"{run.folder}: a copy of {first.folder}, and no repeat")
    return list(kept.values()), copies


def read_run(folder: Path) -> StoredRun:
    """Read one run. Raises InputError.

    Its summary.json counts where this version of Loadstone made it and nobody changed it, and where
    there are no records. Else the summary is made again, of the records: another version may have
    defined its numbers otherwise.
    """
    from loadstone.analyse.summary import add_limits, late_findings, measured_summary

    info = run_folder.read_info(folder)
    has_records = (folder / "records.parquet").exists()
    changed = run_folder.find_changed(folder, info.marks, info.status)
    is_stored = (folder / "summary.json").exists()
    is_ours = info.loadstone == __version__
    if is_stored and is_ours and not imported_run.is_summary_only(folder, info):
        summaries.read(folder)  # one that cannot be read is an error, also where it is made again
    if not is_stored or (has_records and (changed or not is_ours)):
        summary, facts = measured_summary(folder, info)
    else:
        only_stated = imported_run.is_summary_only(folder, info)
        summary = imported_run.read(folder, info) if only_stated else summaries.read(folder)
        if has_records or any(cell.roofline is not None for cell in summary.cells):
            facts = run_facts(info, summary)
        else:
            facts = add_limits(summary, info)
    for cell in summary.cells:
        findings = list(late_findings(cell, info, changed))
        if findings:
            cell.verdict = judge([*cell.verdict.findings, *findings])
    return StoredRun(folder=folder, info=info, summary=summary, facts=facts)
