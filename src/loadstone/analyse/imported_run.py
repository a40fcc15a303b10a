"""Reads the facts and numbers that an imported file reported, beyond its records or in their place.

RunInfo.settings.imported holds tool, files, and an ImportedCell for each cell. A run of sums has no
records: its summary.json is what the file stated. A run of requests has records, and a summary
computed from them.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from loadstone.analyse.verdict.finding import Findings, Origin, finding
from loadstone.core import run_folder
from loadstone.core import summary as summaries
from loadstone.core.errors import InputError
from loadstone.core.machine_figures import DraftFigures
from loadstone.core.metrics import LATENCIES, Latency, Metrics, finite
from loadstone.core.record import RunInfo
from loadstone.core.summary import CellSummary, StatedNumber, Summary
from loadstone.core.verdict import Finding

_RATES = ("output_tokens_per_s", "total_tokens_per_s", "requests_per_s")
_NEEDS_A_CLOCK = ("steady", "sustained", "achieved_rate_per_s", *_RATES)
CUT_AT_END = "cut_at_end"
"""The finding on requests that a tool cancels when its time is up, as it is meant to: no failures.
"""
SHOWN_DIFFERENCE = 0.005
"""A number that a file states is shown beside ours from this share on: less is rounding in three
digits."""
_SHOWN = ("mean", "p50", "p99")
DIFFERENCE = 0.02
"""A stated mean and that of the requests of the same file differ worth a word from this share on.
"""
MAX_RATIO = 2.0
"""TTFT and E2E differ by this factor under no definition: one of both is wrong."""


class Stated(msgspec.Struct, kw_only=True, frozen=True):
    """The numbers that a file reports of a cell. `latencies`: metric to statistic to seconds;
    `totals`: fields of Metrics.
    """

    requests: dict[str, int | None] = {}
    duration_s: float | None = None
    latencies: dict[str, dict[str, float | None]] = {}
    totals: dict[str, int | float | None] = {}
    under_way: float | None = None
    graded: summaries.Accuracy | None = None
    drafts: DraftFigures | None = None


class ImportedCell(msgspec.Struct, kw_only=True, frozen=True):
    """The facts of a cell that the import found.

    tool            whose client measured it
    definitions     the dialect by whose formulas its numbers were made
    relative_times  each request's times count from its own send, so that whatever needs a common
                    clock is as stated, or missing
    unknown         metrics that the records cannot tell though they look as if
    """

    where: str | None = None
    created: str | None = None
    tool: str | None = None
    definitions: str | None = None
    relative_times: bool = False
    unknown: list[str] = []
    stated: Stated = Stated()
    findings: list[Finding] = []


def of_cell(info: RunInfo, cell: int) -> ImportedCell | None:
    """Return the facts of a cell that the import found; None for runs that were not imported, or
    where they cannot be read.
    """
    imported = info.settings.imported
    try:
        return msgspec.convert(imported.cells[cell], ImportedCell) if imported is not None else None
    except (IndexError, msgspec.ValidationError):
        return None


def origin(info: RunInfo, imported: ImportedCell | None) -> Origin:
    """Tell where a cell's records come from, and which facts they lack."""
    imported = imported or ImportedCell()
    return Origin(
        info.source,
        common_clock=not imported.relative_times,
        every_event="output_events" not in imported.unknown,
        cut_at_end=any(finding.kind == CUT_AT_END for finding in imported.findings),
    )


def is_summary_only(folder: Path, info: RunInfo) -> bool:
    return info.source == "imported" and not (folder / "records.parquet").exists()


def read(folder: Path, info: RunInfo) -> Summary:
    """Read the summary of a run that has no records. Raises InputError where there is none."""
    if not (folder / "summary.json").exists():
        raise InputError(f"{folder}: neither records nor a summary; import the file again")
    summary = summaries.read(folder, "import the file again")
    if run_folder.find_changed(folder, info.marks):
        raise InputError(
            f"{folder / 'summary.json'}: was changed after it was written; import the file again"
        )
    summary.run_dir, summary.run_id = str(folder), folder.name
    return summary


def overlay(summary: CellSummary, imported: ImportedCell) -> None:
    """Put into a cell's summary, made of its records, the other numbers of the file; take out those
    that the records cannot tell.
    """
    metrics, stated = summary.metrics, imported.stated
    for name in set(imported.unknown).intersection(Metrics.__struct_fields__):
        setattr(metrics, name, None)
    if imported.relative_times:
        summary.duration_s = stated.duration_s
        for name in _NEEDS_A_CLOCK:
            setattr(metrics, name, finite(stated.totals.get(name)))
    summary.verdict.findings.extend(imported.findings)
    summary.verdict.findings.extend(_differences(metrics, stated.latencies))
    summary.measured_by, summary.graded = imported.tool, stated.graded
    summary.drafts = summary.drafts or stated.drafts
    summary.stated = list(_stated_otherwise(summary, imported))


def _stated_otherwise(summary: CellSummary, imported: ImportedCell) -> Iterator[StatedNumber]:
    """List the file's own numbers, of throughputs and latencies, that differ from those shown of
    the cell."""
    from loadstone.analyse.other_tools import find_definition

    window, totals = summary.lasting(), imported.stated.totals
    shown: list[tuple[str, str | None, float | None, float | None]] = [
        (name, None, totals.get(name), getattr(window, name)) for name in _RATES
    ]
    for name, statistics in imported.stated.latencies.items():
        values = summary.metrics.latency(name) if name in LATENCIES else None
        if values is not None:
            shown += [
                (name, statistic, statistics.get(statistic), values.value(statistic))
                for statistic in _SHOWN
            ]
    for metric, statistic, number, ours in shown:
        stated = finite(number)
        if stated is None or ours is None:
            continue
        if abs(stated - ours) > SHOWN_DIFFERENCE * max(stated, ours):
            definition = find_definition(imported.definitions, metric)
            yield StatedNumber(
                metric=metric, statistic=statistic, stated=stated, ours=ours, definition=definition
            )


def _differences(metrics: Metrics, latencies: Mapping[str, Mapping[str, float | None]]) -> Findings:
    """Find means that differ from those that the file states."""
    means, wide = [], False
    for name, statistics in latencies.items():
        values: Latency | None = getattr(metrics, name, None)
        measured = values.mean if values is not None else None
        stated = statistics.get("mean")
        if measured is None or stated is None:
            continue
        low, high = sorted((measured, stated))
        if high - low > DIFFERENCE * high:
            label = name.removesuffix("_s").upper()
            means.append({"metric": label, "stated_s": stated, "measured_s": measured})
            wide |= name in ("ttft_s", "e2e_s") and high > MAX_RATIO * low
    if means:
        yield finding("stated_differs.wide" if wide else "stated_differs", means=means)
