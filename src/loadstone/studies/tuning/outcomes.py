"""Reads what came of a launch: from the study's journal and the cell's run folder alone, so that a
race that goes on reads what an uninterrupted one would."""

import math
import re
from pathlib import Path

from loadstone.analyse.grading.paired import adjust, pair_answers, tell
from loadstone.analyse.stored_run import read_run
from loadstone.core import run_folder
from loadstone.core.summary import CellSummary
from loadstone.core.verdict import Finding
from loadstone.studies.journal import Entry, read_entries
from loadstone.studies.plan import PlannedLaunch
from loadstone.studies.status import read_answer
from loadstone.studies.supervise import CUT_SHORT, find_run
from loadstone.studies.tuning.race import LaunchOutcome

_MEMORY = re.compile(r"out of memory|memory is full|no room for a KV cache|full memory", re.I)

_LAGS = ("sends_late", "client_read_late", "arrivals_bunched")
"""Findings that spoil times of tokens."""


def read_outcome(
    folder: Path, launch: PlannedLaunch, objective: str, default: PlannedLaunch | None
) -> LaunchOutcome | None:
    """Return the outcome of a launch; None: it has not come to an end. `default`: the launch of the
    default under the same plan, whose answers are compared. Raises InputError."""
    entries = [entry for entry in read_entries(folder) if entry.launch == launch.id]
    ends = [entry for entry in entries if entry.event == "end"]
    (cell,) = launch.cells
    run = find_run(folder, cell)
    if run is None and (not ends or ends[-1].why in CUT_SHORT):
        return None
    seconds = _sum_seconds(entries)
    if run is None:
        return _failed(entries, seconds)
    if ends and ends[-1].why:
        return LaunchOutcome(None, "not_trusted", ends[-1].why, seconds)
    read = read_run(run)
    (measured, *_) = read.summary.cells
    value = _value(objective, measured, run)
    if default is not None and measured.graded is not None:
        changed = _compare_answers(folder, default, run)
        if changed:
            return LaunchOutcome(None, "answers_changed", changed, seconds)
    if value is None:
        why = "no J/token: the GPUs' energy was not read" if objective == "energy" else "no value"
        return LaunchOutcome(None, "not_trusted", why, seconds)
    spoiled = [finding for finding in measured.verdict.findings if _spoils(finding, objective)]
    if spoiled and objective != "rate":
        return LaunchOutcome(None, "not_trusted", spoiled[0].evidence, seconds)
    if measured.slo_met is False:
        missed = ", ".join(bound.bound for bound in measured.slo if not bound.met)
        return LaunchOutcome(value, "misses_slo", missed, seconds)
    return LaunchOutcome(value, None, "", seconds)


def _spoils(found: Finding, objective: str) -> bool:
    """Tell whether a finding says that the objective's value is not what it seems: the client's
    lags spoil the latencies that they name, and throughput only where slots stood empty."""
    if found.severity == "info":
        return False
    spoilt = found.values.get("spoilt")
    if found.kind not in _LAGS:
        return True
    metric = objective.partition(":")[2]
    if not isinstance(spoilt, list):
        return bool(metric)
    if metric:
        return any(str(finding.get("metric", "")).lower() == metric for finding in spoilt)
    return any("missing_share" in finding for finding in spoilt)


def _failed(entries: list[Entry], seconds: float) -> LaunchOutcome:
    """Return the outcome of a launch without a run: by when it failed, and what its log said."""
    last = max(number for number, entry in enumerate(entries) if entry.event == "launch")
    of_last = entries[last:]
    why = next((entry.why for entry in reversed(of_last) if entry.why), "it ended")
    memory = bool(_MEMORY.search(why))
    if all(entry.event != "ready" for entry in of_last):
        return LaunchOutcome(None, "does_not_start", why, seconds, memory)
    if any(entry.event == "done" and entry.why for entry in of_last):
        return LaunchOutcome(None, "not_trusted", why, seconds)
    return LaunchOutcome(None, "oom_under_load" if memory else "died", why, seconds, memory)


def _sum_seconds(entries: list[Entry]) -> float:
    """Return the seconds that a launch took, without those between a cut and going on."""
    total, begun, last = 0.0, None, 0.0
    for entry in entries:
        if entry.event == "launch":
            total += last - begun if begun is not None else 0.0
            begun = entry.at
        last = entry.at
    return total + (last - begun if begun is not None else 0.0)


def _value(objective: str, cell: CellSummary, run: Path) -> float | None:
    """Return the logarithm of what the objective makes large."""
    statistic, _, metric = objective.partition(":")
    if objective == "rate":
        answer = read_answer(run)
        value = answer.load.value if answer is not None and answer.load is not None else None
        return math.log(value) if value else None
    window = cell.lasting()
    if objective == "throughput":
        value = window.output_tokens_per_s
        return math.log(value) if value else None
    if objective == "energy":
        value = window.j_per_output_token or cell.metrics.j_per_output_token
        return -math.log(value) if value else None
    latency = cell.metrics.latency(f"{metric}_s")
    value = None if latency is None else latency.value(statistic)
    return -math.log(value) if value else None


def _compare_answers(folder: Path, default: PlannedLaunch, run: Path) -> str:
    """Say which answers are wrong with a setting alone; empty: none are."""
    (cell,) = default.cells
    first = find_run(folder, cell)
    if first is None or first == run:
        return ""
    pairs = pair_answers(run_folder.read_answers(first, 0), run_folder.read_answers(run, 0))
    if pairs is None:
        return ""
    adjust([pairs])
    side, worse = pairs.worse()
    return tell(worse) if side == "b" else ""
