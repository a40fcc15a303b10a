"""Finds when a setup's numbers changed, over releases and dates: `loadstone trend`.

A series is the runs of one setup at one load, by date; the release of its engine may differ. If
nothing changed, its runs can be exchanged. The statistic is the largest share of a metric's
variance (of logarithms) that one step at one place explains, over all places with two runs on
either side, and over all metrics, which are relabelled together; its p value is the share of orders
of the runs that give as much. So the rate of false alarms holds for values of any law, outliers
included. Holm's procedure holds it over all series together. What lies before and after a step is
then searched again, at the same level. Where a line through the logarithms says more than the steps
(Schwarz's criterion), the runs drift.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from loadstone.analyse.classes import cell_of_class
from loadstone.analyse.compare.metric import DEFAULT, POOLED
from loadstone.analyse.compare.result import name_class
from loadstone.analyse.compare.sides import load_key
from loadstone.analyse.stored_run import StoredRun
from loadstone.core.errors import InputError
from loadstone.core.plan import Load
from loadstone.core.statistics.dependence import RESOLUTION
from loadstone.core.summary import CellSummary
from loadstone.core.vectors import Floats

FALSE_ALARMS = 0.002
"""The chance of any alarm where nothing changed, unless another is asked for."""
_ORDERS = (9_999, 99_999)
"""The least and the most random orders."""
_METRICS = (*DEFAULT, *POOLED)
_AT_ONCE = 2_000_000
"""Numbers of relabelled runs in memory at once."""
_SIDE = 2
"""The least runs on either side of a step."""
_VARIES = ("engine_version", "hardware", "own_model", "stated", "named")
"""Facts in which runs of one series may differ, or which others tell."""


class TrendPoint(msgspec.Struct, frozen=True):
    """One run of a series; `values`: seconds and tokens/s, by metric."""

    run: str
    created: str
    release: str | None
    values: dict[str, float | None]


class TrendSeries(msgspec.Struct):
    """The runs of one setup at one load, or of a class of traffic of it, by date. `left_out`: runs
    with errors; `why_not_tested`: None where it was."""

    setup: str
    load: Load
    points: list[TrendPoint]
    metrics: list[str]
    left_out: int
    why_not_tested: str | None = None


class ChangedMetric(msgspec.Struct, frozen=True):
    """Medians before and after; `p` over all metrics and places of the series. Of a drift the first
    and last value of its line; `per_run`: the ratio from a run to the next."""

    metric: str
    before: float
    after: float
    ratio: float
    p: float
    worse: bool
    per_run: float | None = None


class ChangePoint(msgspec.Struct, frozen=True):
    """A step in series number `series`, counted from 0: `run` is the first one after it. `runs`:
    how many before and after, up to the next step on either side. A drift begins with `run`;
    `runs`: how many before it, and in it.
    """

    series: int
    setup: str
    load: Load
    run: str
    created: str
    releases: tuple[str | None, str | None]
    runs: tuple[int, int]
    p: float
    metrics: list[ChangedMetric]
    kind: Literal["step", "drift"] = "step"

    @property
    def worse(self) -> bool:
        return any(metric.worse for metric in self.metrics)


class Trend(msgspec.Struct, kw_only=True, frozen=True):
    """The result, as `loadstone trend --json` prints it."""

    schema: int = 1
    false_alarms: float
    series: list[TrendSeries]
    changes: list[ChangePoint]


def find_changes(runs: Sequence[StoredRun], *, false_alarms: float = FALSE_ALARMS) -> Trend:
    """Find the steps in every series of these runs. Raises InputError: a rate that is none."""
    if not 1e-4 <= false_alarms <= 0.5:
        raise InputError(
            f"--false-alarms {false_alarms:g}: must lie between 0.0001 and 0.5, such as"
            f" {FALSE_ALARMS}"
        )
    made = list(_make_series(runs))
    least = least_runs(false_alarms)
    for series in made:
        if len(series.points) < least:
            count = len(series.points)
            series.why_not_tested = (
                f"{count} runs, and {least} are needed to hold the rate of false alarms"
            )
        elif not series.metrics:
            series.why_not_tested = "no metric is told by all of its runs"
    family = [number for number, series in enumerate(made) if series.why_not_tested is None]
    test = _Test(min(max(_ORDERS[0], math.ceil(5 * len(family) / false_alarms)), _ORDERS[1]))
    logs = {
        number: np.log(
            [[p.values[name] or 1.0 for name in made[number].metrics] for p in made[number].points]
        )
        for number in family
    }
    first = {number: float(test.find(logs[number])[1].min()) for number in family}
    changes: list[ChangePoint] = []
    for rank, number in enumerate(sorted(family, key=lambda number: first[number])):
        level = false_alarms / (len(family) - rank)
        if first[number] > level:
            break
        stretches = test.search(logs[number], level, 0, len(logs[number]))
        found = _changes(made[number], logs[number], stretches)
        changes += _describe(made[number], number, found, level)
    changes.sort(key=lambda change: (change.created, change.series))
    return Trend(false_alarms=false_alarms, series=made, changes=changes)


def least_runs(level: float) -> int:
    """Compute how many runs can show a step at this level at all: of n runs, two orders are as far
    apart as a clear step after half of them.
    """
    return next(
        count for count in range(2 * _SIDE, 100) if 2 / math.comb(count, count // 2) <= level
    )


# --- series ---------------------------------------------------------------------------------------


def _make_series(runs: Sequence[StoredRun]) -> Iterator[TrendSeries]:
    groups: dict[tuple[str, Load, str], list[tuple[StoredRun, CellSummary]]] = {}
    for run in sorted(runs, key=lambda run: (run.info.created, run.info.run_id)):
        for cell in run.summary.cells:
            key = _setup_key(run), load_key(cell.load)
            groups.setdefault((*key, ""), []).append((run, cell))
            for part in cell.by_class:
                groups.setdefault((*key, part.name), []).append((run, cell_of_class(cell, part)))
    for (_, load, traffic_class), cells in groups.items():
        kept = [(run, cell) for run, cell in cells if not cell.verdict.kinds("error")]
        intended = not load.is_closed and all(
            cell.metrics.ttft_intended_s is not None for _, cell in kept
        )
        steady = all(
            cell.steady is not None or cell.metrics.sustained is not None for _, cell in kept
        )
        points = []
        for run, cell in kept:
            stats = {metric.name: metric.stat(cell, intended, steady, None) for metric in _METRICS}
            values = {
                name: stat.value if stat is not None and stat.value > 0 else None
                for name, stat in stats.items()
            }
            points.append(
                TrendPoint(run.info.run_id, run.info.created, run.facts.engine_version, values)
            )
        names = [
            metric.name
            for metric in _METRICS
            if points and all(point.values[metric.name] for point in points)
        ]
        label = msgspec.structs.replace(cells[-1][0].facts, engine_version=None).label
        label = name_class(label, traffic_class)
        yield TrendSeries(label, load, points, names, len(cells) - len(kept))


def _setup_key(run: StoredRun) -> str:
    """Make a key that is equal for runs of one setup, whatever the release. Lengths that nobody
    asked for are known from what arrived, which differs a little.
    """
    facts = msgspec.to_builtins(run.facts)
    lengths = {name: f"{facts[name] or 0:.2g}" for name in ("input_tokens", "output_tokens")}
    return repr([value for name, value in (facts | lengths).items() if name not in _VARIES])


# --- the test -------------------------------------------------------------------------------------


class _Stretch(NamedTuple):
    """Runs between two steps, and the p values of each metric: of the step that begins them, and of
    their drift."""

    begin: int
    end: int
    step_p: Floats | None = None
    drift_p: Floats | None = None

    def fit(self, logs: Floats) -> Floats:
        """Return the median of each metric for all of these runs, or a line through them."""
        runs = logs[self.begin : self.end]
        if self.drift_p is None:
            return np.broadcast_to(np.median(runs, axis=0), runs.shape)
        offsets = np.arange(len(runs)) - (len(runs) - 1) / 2
        return np.asarray(
            runs.mean(axis=0) + np.outer(offsets, offsets @ runs / (offsets @ offsets))
        )


def _cost(logs: Floats, stretches: Sequence[_Stretch]) -> float:
    """Compute Schwarz's criterion: less is better. What differs by less than counts is no error."""
    first, last = stretches[0].begin, stretches[-1].end
    errors = logs[first:last] - np.concatenate([stretch.fit(logs) for stretch in stretches])
    variance = np.maximum((errors**2).mean(axis=0), math.log1p(RESOLUTION) ** 2)
    parameters = 2 * len(stretches) - 1 + sum(stretch.drift_p is not None for stretch in stretches)
    return float(np.sum((last - first) * np.log(variance) + parameters * math.log(last - first)))


class _Test(NamedTuple):
    """Tests series, by so many random orders of their runs."""

    orders: int

    def search(self, logs: Floats, level: float, begin: int, end: int) -> list[_Stretch]:
        """Cut these runs into stretches that stay as they are, or drift."""
        place, p = self.find(logs[begin:end])
        if p.min() > level:
            return [_Stretch(begin, end)]
        earlier = self.search(logs, level, begin, begin + place)
        first, *rest = self.search(logs, level, begin + place, end)
        stretches = [*earlier, first._replace(step_p=p), *rest]
        drift = [_Stretch(begin, end, drift_p=p)]
        changed = logs[:, p <= level]
        return drift if _cost(changed, drift) < _cost(changed, stretches) else stretches

    def find(self, logs: Floats) -> tuple[int, Floats]:
        """Return where a step explains most, and the p value of each metric there, over all metrics
        and places."""
        runs, metrics = logs.shape
        # What differs by less than counts, as of a simulator without noise, is no series to find a
        # step in.
        varies = np.ptp(logs, axis=0) > math.log1p(RESOLUTION)
        if runs < 2 * _SIDE or not varies.any():
            return runs, np.ones(metrics)
        centred = logs - logs.mean(axis=0)
        scaled = np.where(varies, centred / np.sqrt((centred**2).sum(axis=0) + 1e-300), 0.0)
        explained = _explained(scaled[None])[0]
        place = int(explained.max(axis=1).argmax())
        rng = np.random.default_rng([0, runs])
        reached, left = np.ones(metrics), self.orders
        while left > 0:
            count = min(left, max(1, _AT_ONCE // logs.size))
            left -= count
            orders = rng.permuted(np.tile(np.arange(runs), (count, 1)), axis=1)
            largest = _explained(scaled[orders]).max(axis=(1, 2))
            # Sums differ in their last bits with the order of their terms.
            reached += (largest[:, None] >= explained[place] * (1 - 1e-9)).sum(axis=0)
        return place + _SIDE, np.where(varies, reached / (1 + self.orders), 1.0)


def _explained(scaled: Floats) -> Floats:
    """Compute the share of the variance that a step explains; orders × places × metrics. `scaled`:
    sums of 0, sums of squares of 1.
    """
    runs = scaled.shape[1]
    places = np.arange(_SIDE, runs - _SIDE + 1)[:, None]
    sums = np.cumsum(scaled, axis=1)[:, _SIDE - 1 : runs - _SIDE]
    return np.asarray(sums**2 * runs / (places * (runs - places)))


class _Found(NamedTuple):
    """A step or a drift: the first run of it, the p value of each metric, the values of each at
    either end, and those of its run before and after."""

    kind: Literal["step", "drift"]
    first: int
    p: Floats
    ends: tuple[Floats, Floats]
    releases: tuple[str | None, str | None]
    runs: tuple[int, int]


def _changes(series: TrendSeries, logs: Floats, stretches: Sequence[_Stretch]) -> Iterator[_Found]:
    points = series.points
    for index, stretch in enumerate(stretches):
        begin, end, step_p, drift_p = stretch
        fitted = np.exp(stretch.fit(logs))
        if step_p is not None:
            earlier = stretches[index - 1]
            ends = np.exp(earlier.fit(logs)[-1]), fitted[0]
            releases = points[begin - 1].release, points[begin].release
            runs = begin - earlier.begin, end - begin
            yield _Found("step", begin, step_p, ends, releases, runs)
        if drift_p is not None:
            ends, releases = (
                (fitted[0], fitted[-1]),
                (points[begin].release, points[end - 1].release),
            )
            yield _Found("drift", begin, drift_p, ends, releases, (begin, end - begin))


def _describe(
    series: TrendSeries, number: int, found: Iterable[_Found], level: float
) -> Iterator[ChangePoint]:
    """Describe what is large enough to matter."""
    for change in found:
        steps = change.runs[1] - 1 if change.kind == "drift" else None
        compared = [
            _compare(name, (float(earlier), float(latest)), float(p), steps)
            for name, earlier, latest, p in zip(series.metrics, *change.ends, change.p, strict=True)
            if p <= level
        ]
        changed = [metric for metric in compared if metric is not None]
        if changed:
            first = series.points[change.first]
            yield ChangePoint(
                number,
                series.setup,
                series.load,
                first.run,
                first.created,
                change.releases,
                change.runs,
                float(change.p.min()),
                changed,
                change.kind,
            )


def _compare(
    name: str, ends: tuple[float, float], p: float, steps: int | None
) -> ChangedMetric | None:
    """Compare the values at both ends, so many runs apart where it is a drift."""
    ratio = ends[1] / ends[0]
    if abs(math.log(ratio)) <= math.log1p(RESOLUTION):
        return None
    more_is_better = next(metric for metric in _METRICS if metric.name == name).more_is_better
    per_run = ratio ** (1 / steps) if steps else None
    return ChangedMetric(name, *ends, ratio, p, (ratio > 1) != more_is_better, per_run)
