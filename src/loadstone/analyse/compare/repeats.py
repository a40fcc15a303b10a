"""Computes how many runs a side would show a difference, and gives the commands that measure
them."""

import math
import shlex
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadstone.analyse.compare.ratio import published_spread
from loadstone.analyse.compare.result import LEVEL, ComparedCell, ComparedMetric
from loadstone.analyse.compare.sides import ComparedRun
from loadstone.core.statistics.quantiles import student_chance, student_quantile

MAX_RUNS = 1000
"""The most runs on a side of a comparison."""
POWER = 0.8
"""The chance that so many runs show the difference."""
LEAST = 3
"""Runs a side where nothing was seen yet of how runs differ."""
MAX_BLIND = 10
"""The most runs that are asked for before the spread between runs is known: then there is a better
number."""
_ALONE = 3.0
"""The number of independent tests that the metrics of one load are worth: they go together
(docs/statistics.md)."""


def needed(difference: float, spread: float, level: float) -> int | None:
    """Compute the runs a side that show a difference of the means (on a log scale) with a chance of
    POWER, at this two-sided level; `spread`: standard deviation from run to run. None: more than
    MAX_RUNS.
    """
    if not (difference > 0 and spread > 0):
        return None if spread > 0 else 2

    def shows(runs: int) -> bool:
        errors = sum(student_quantile(chance, 2 * runs - 2) for chance in (1 - level / 2, POWER))
        return errors * spread * math.sqrt(2 / runs) <= difference

    runs = bisect_left(range(MAX_RUNS + 1), True, lo=2, key=shows)
    return runs if runs <= MAX_RUNS else None


def count(compared: Sequence[ComparedCell], least: Sequence[float]) -> None:
    """Set `repeats_needed` of each row without a conclusion; `least`: |t| that each of `compared`
    had to reach."""
    for cell, t in zip(compared, least, strict=True):
        for row in cell.rows:
            if row.ratio is None or row.conclusion in ("better", "same", "within_model", None):
                continue
            if row.spread is not None:
                level = 2 * student_chance(-t, sum(cell.runs) - 2)
                row.repeats_needed = needed(abs(math.log(row.ratio)), row.spread, level)
            elif row.single_run:
                level = LEVEL / _ALONE / len(compared)
                runs = needed(abs(math.log(row.ratio)), published_spread(row.metric.base), level)
                row.repeats_needed = None if runs is None else max(LEAST, runs)


def to_measure(rows: Sequence[ComparedMetric]) -> int:
    """Choose the runs a side for the metrics that differ between two runs; MAX_BLIND for those
    that need very many.
    """
    wanted = [row.repeats_needed or MAX_BLIND for row in rows if row.conclusion == "runs_differ"]
    return min(max(wanted, default=LEAST), MAX_BLIND)


def commands(a: Sequence[ComparedRun], b: Sequence[ComparedRun], runs: int) -> str | None:
    """Write the commands that measure so many runs a side, and compare them; None where Loadstone
    did not measure both."""
    repeated, folders = [], []
    for name, (run, *_) in (("a", a), ("b", b)):
        if run.info.source == "imported" or len(run.info.command) <= 2:
            return None
        folder = run.folder.parent / f"repeats-{name}"
        folders.append(str(folder))
        repeated.append(_again(run.info.command, folder))
    compared = shlex.join(["loadstone", "compare", *folders])
    return f"for n in $(seq {runs}); do {'; '.join(repeated)}; done; {compared}"


def _again(command: Sequence[Any], folder: Path) -> str:
    """Write the same command with this folder for its run."""
    arguments: list[str] = []
    words = iter(map(str, command))
    for word in words:
        if word == "--out":
            next(words, None)
        elif not word.startswith("--out=") and word != "--json":
            arguments.append(word)
    return shlex.join([*arguments, "--out", str(folder)])
