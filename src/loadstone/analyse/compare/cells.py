"""Compares one load on both sides: its units, its point values, and how far each can be trusted."""

import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from loadstone.analyse.compare.answers import compare_answers
from loadstone.analyse.compare.metric import Metric, Stat
from loadstone.analyse.compare.permutation import Units, pooled_variance, welch
from loadstone.analyse.compare.ratio import (
    Side,
    basis,
    bounds,
    contrast,
    pooled,
    ratio_margin,
    repeats,
)
from loadstone.analyse.compare.result import ComparedCell, ComparedMetric
from loadstone.analyse.compare.sides import (
    RequestTimes,
    RunCell,
    load_key,
    requests_of,
    shared_requests,
)
from loadstone.core.statistics import dependence
from loadstone.core.statistics.quantiles import student_quantile
from loadstone.core.vectors import Floats

Samples = Sequence[Sequence[Floats]]
"""A value for each request of each run of each side."""
Runs = Sequence[Sequence[RequestTimes]]
"""The requests of each run of each side."""
Dollars = Sequence[Sequence[float | None]]
"""The cost per hour of each run of each side."""

PERMUTED_RUNS = 70
"""Relabellings of whole runs from which a permutation test can find anything: four against four
have so many."""
_LARGEST_LOG = 50.0
"""The largest logarithm of a ratio: numbers in other programs' files may be as large as a float can
hold."""
_UNSEEN_OF_TWO = 3.0
"""The spread of published repeats, so many times, where a side has two runs: a machine with two
states shows one of them on either side in an eighth of such pairs.
"""
PAIRED_SHARE = 0.9
"""The share of the larger side's requests that both must have completed to be compared in pairs."""


def gather_classes(
    a: Sequence[RunCell], b: Sequence[RunCell], metrics: Sequence[Metric]
) -> ComparedCell:
    """Compare one load of the runs that have it, and by name each class of traffic that all of them
    have. Times are then compared by class alone: those of all follow from the classes' shares."""
    every = [*a, *b]
    shared = [name for name in a[0].classes if all(name in place.classes for place in every)]
    of_all = [metric for metric in metrics if not shared or metric.statistic is None]
    if len({load_key(place.cell.load) for place in every}) > 1:
        cell = ComparedCell(a[0].cell.load, [], why="the loads differ, and classes alone are alike")
    else:
        cell = gather(a, b, of_all)
    of_class = [metric for metric in metrics if metric.of_classes]
    for name in shared:
        own_a, own_b = ([place._replace(traffic_class=name) for place in side] for side in (a, b))
        part = gather(own_a, own_b, of_class)
        part.traffic_class = name
        cell.classes.append(part)
    return cell


def gather(a: Sequence[RunCell], b: Sequence[RunCell], metrics: Sequence[Metric]) -> ComparedCell:
    """Compare one load of the runs that have it."""
    every = [*a, *b]
    load = every[0].cell.load
    intended = not load.is_closed and all(place.cell.metrics.e2e_intended_s for place in every)
    steady = all(place.cell.steady for place in every)
    cell = ComparedCell(load, [], runs=(len(a), len(b)))
    cell.answers = compare_answers(a, b)
    sides, values = {}, {}
    failing = "a" * any(place.cell.verdict.kinds("error") for place in a)
    failing += "b" * any(place.cell.verdict.kinds("error") for place in b)
    for metric in metrics:
        stats = [
            [metric.stat(place.cell, intended, steady, place.run.dollars) for place in places]
            for places in (a, b)
        ]
        values[metric] = [[None if stat is None else stat.value for stat in side] for side in stats]
        sides[metric] = (
            _describe_side(a, metric, stats[0], intended),
            _describe_side(b, metric, stats[1], intended),
        )
        row = _average(metric, *values[metric])
        cell.rows.append(row)
        row.failing = failing
        model = contrast(*sides[metric], metric.base).model
        if row.ratio is not None and model is not None:
            row.model = bounds(row.ratio, model)
    if min(len(a), len(b)) >= 2:
        begun = [
            [place.run.info.created for place in side if place.run.info.source == "measured"]
            for side in (a, b)
        ]
        if all(begun):
            cell.one_after_another = max(begun[0]) < min(begun[1]) or max(begun[1]) < min(begun[0])
            cell.unseen = _UNSEEN_OF_TWO if min(cell.runs) == 2 else float(cell.one_after_another)
        by_runs(cell, values)
        return cell
    for row in cell.rows:
        row.single_run = not all(place.run.simulated for place in every)
    if all(place.run.has_records for place in every):
        _take_request_blocks(cell, a, b, intended=intended)
        bound(cell, sides)
    else:
        cell.why = "one side was imported as summary statistics, without its requests"
    return cell


def _describe_side(
    places: Sequence[RunCell], metric: Metric, stats: Sequence[Stat | None], intended: bool
) -> Side:
    """Join what the runs of a side tell of its value: their sampling pooled; of predictions the
    widest model error, for repeats of a simulation do not make the model better.
    """
    sampling = [stat.reach for stat in stats if stat is not None and stat.reach is not None]
    simulated = [
        metric.model_margin(place.cell, intended) for place in places if place.run.simulated
    ]
    model = [margin for margin in simulated if margin is not None]
    return Side(
        pooled(sampling) if sampling and len(sampling) == len(stats) else None,
        (
            (max(low for low, _ in model), max(high for _, high in model))
            if model and len(model) == len(simulated)
            else None
        ),
        tuple(basis(place.run.info, place.run.facts) for place in places),
    )


def _average(
    metric: Metric, a: Sequence[float | None], b: Sequence[float | None]
) -> ComparedMetric:
    """Average each side's runs, geometrically in the ratio, where all have the metric."""
    values = [[value for value in side if value is not None] for side in (a, b)]
    means = [sum(side) / len(side) if side else None for side in values]
    row = ComparedMetric(metric, means[0], means[1])
    row.is_complete = all(values) and len(values[0]) == len(a) and len(values[1]) == len(b)
    if row.is_complete and min(map(min, values)) > 0:
        log_ratio = float(np.mean(np.log(values[1])) - np.mean(np.log(values[0])))
        row.ratio = math.exp(log_ratio) if abs(log_ratio) < _LARGEST_LOG else None
    return row


# --- repeats: runs are the units ------------------------------------------------------------------


def by_runs(cell: ComparedCell, values: Mapping[Metric, Sequence[Sequence[float | None]]]) -> None:
    """Take whole runs as units: how they differ from one another contains what differs within them.
    Runs that follow one another do not show how the machine changes meanwhile, and two may be alike
    by chance; the spread of published repeats is added for that.
    """
    cell.unit, cell.counts = "runs", cell.runs
    too_few = math.comb(sum(cell.runs), cell.runs[0]) < PERMUTED_RUNS
    cell.tested = [
        row
        for row in cell.rows
        if row.ratio is not None or (row.metric.is_share and row.is_complete)
    ]
    columns = [[np.array(side, np.float64) for side in values[row.metric]] for row in cell.tested]
    for row, (a, b) in zip(cell.tested, columns, strict=True):
        if row.metric.is_share:
            continue
        a[:], b[:] = np.log(a), np.log(b)
        _, error, freedom = pooled_variance(a, b) if too_few else welch(a, b)
        row.log_error, row.spread = error, error / math.sqrt(1 / len(a) + 1 / len(b))
        reach = math.hypot(
            student_quantile(0.975, max(1.0, freedom)) * error,
            cell.unseen * repeats(row.metric.base),
        )
        row.low, row.high = bounds(row.ratio or math.nan, (reach, reach))
    if cell.tested:
        a, b = (np.stack(side, axis=1) for side in zip(*columns, strict=True))
        cell.units = Units(a, b, np.zeros(len(cell.tested)), too_few=too_few)


# --- one run a side: blocks of requests are the units ---------------------------------------------


def _take_request_blocks(
    cell: ComparedCell, a: Sequence[RunCell], b: Sequence[RunCell], *, intended: bool
) -> None:
    rated = any(row.metric.counts_output and row.ratio is not None for row in cell.rows)
    sides = [
        [requests_of(place, intended=intended, with_tokens=rated) for place in places]
        for places in (a, b)
    ]
    paired = len(a) == len(b) == 1 and _pair(sides[0], sides[1], shared_requests(a[0], b[0]))
    take_blocks(
        cell,
        sides,
        paired=paired,
        dollars=[[place.run.dollars for place in places] for places in (a, b)],
    )


def take_blocks(cell: ComparedCell, sides: Runs, *, paired: bool, dollars: Dollars = ()) -> None:
    """Make the units of a cell from the requests of each side's runs; `paired`: row by row of the
    same request.

    Metrics without a ratio are left out. Where nothing can be tested, the cell says why.
    """
    runs = [run for side in sides for run in side]
    if any(len(run.index) == 0 for run in runs):
        cell.why = "one side has no completed request"
        return
    cell.paired = paired
    limit = min(dependence.block_count(len(run.index), run.under_way) for run in runs)
    if limit == 0:
        generations = min(len(run.index) / max(1.0, run.under_way) for run in runs)
        cell.why = (
            f"{generations:.1f} times as many requests as were under way at a time, "
            f"{dependence.LEAST_BLOCKS} are needed"
            if generations
            else "the number of requests under way is unknown"
        )
        return
    rows = [row for row in cell.rows if row.ratio is not None and row.metric.per_request]
    rows += [row for row in cell.rows if row.ratio is not None and row.metric.counts_output]
    rows += [row for row in cell.rows if row.is_complete and row.metric.is_share]
    columns = functools.cache(lambda count: _columns(sides, rows, count, dollars))

    def correlations(count: int) -> Floats:
        on_a, on_b, _ = columns(count)
        both = [on_b - on_a] if paired else [on_a, on_b]
        return np.asarray(np.mean([_correlation(side, count) for side in both], axis=0))

    count, careful = dependence.settle(limit, correlations)
    on_a, on_b, cell.tested = columns(count)
    if not cell.tested:
        cell.why = "no metric is known on both sides for every block of requests"
        return
    cell.unit, cell.counts = "blocks", (len(on_a), len(on_b))
    between_places = np.array(
        [_variance_between_slots(row, sides, cell.load.slots, paired=paired) for row in cell.tested]
    )
    for index, row in enumerate(cell.tested):
        if row.metric.is_share:
            between_places[index] = 0.0
        elif not row.metric.per_request:
            # Places that are always taken give tokens as their requests take time; as a share of
            # the value.
            between_places[index] *= float(on_a[:, index].mean()) * float(on_b[:, index].mean())
    cell.units = Units(on_a, on_b, careful, paired, between_places)


def _pair(a: list[RequestTimes], b: list[RequestTimes], limit: int | None) -> bool:
    """Keep, of two cells that were asked the same up to a number, the requests that both completed,
    in their order; both as they are, and False, where that would leave out too many.
    """
    shared, of_a, of_b = np.intersect1d(a[0].index, b[0].index, return_indices=True)
    first = slice(None if limit is None else int(np.searchsorted(shared, limit)))
    if len(shared[first]) < PAIRED_SHARE * max(len(a[0].index), len(b[0].index), 1):
        return False
    a[0], b[0] = a[0].pick(of_a[first]), b[0].pick(of_b[first])
    return True


def _correlation(rows: Floats, count: int) -> Floats:
    """Correlate neighbouring blocks, within each run of a side."""
    return np.asarray(
        np.mean([dependence.correlation(run) for run in np.split(rows, len(rows) // count)], axis=0)
    )


def _columns(
    sides: Runs, rows: Sequence[ComparedMetric], count: int, dollars: Dollars
) -> tuple[Floats, Floats, list[ComparedMetric]]:
    """Compute block means of every metric that has them, `count` blocks of each run: (A's, B's,
    which metrics)."""
    tested: list[ComparedMetric] = []
    columns: list[list[Floats]] = []
    for row in rows:
        if row.metric.per_request:
            means = [
                [dependence.block_means(run, count) for run in side]
                for side in _values(row.metric, sides)
            ]
        elif row.metric.is_share:
            means = [[dependence.block_means(run.failed, count) for run in side] for side in sides]
        else:
            means = _rates(row.metric, sides, count, dollars)
        joined = [np.concatenate(side) for side in means]
        if not any(np.isnan(side).any() for side in joined):
            tested.append(row)
            columns.append(joined)
    if not tested:
        return np.empty((count, 0)), np.empty((count, 0)), []
    a, b = (np.stack(side, axis=1) for side in zip(*columns, strict=True))
    return a, b, tested


def _rates(metric: Metric, sides: Runs, count: int, dollars: Dollars) -> list[list[Floats]]:
    """Compute output tokens per second, or for a dollar (where both sides cost as much, the test is
    that of the throughput), in each block of each run; NaN where a run has none.
    """
    made: list[list[Floats]] = []
    for number, side in enumerate(sides):
        costs = dollars[number] if metric.priced else [1.0] * len(side)
        made.append([])
        for run, cost in zip(side, costs, strict=True):
            rates = run.rates(count)
            made[-1].append(rates / cost if rates is not None and cost else np.full(count, np.nan))
    return made


def _values(metric: Metric, sides: Runs) -> Samples:
    """Take a number for each request of each run, whose means are compared."""
    values: Samples = [[getattr(run, f"{metric.base}_s") for run in side] for side in sides]
    together = np.concatenate([run for side in values for run in side])
    if math.isnan(metric.quantile) or np.isnan(together).all():
        return values
    cut = float(np.nanquantile(together, metric.quantile))
    # Values that differ by less than RESOLUTION must not decide: requests of equal lengths keep in
    # step with one another for a whole run, otherwise in another run, and their times differ by a
    # millionth.
    near = dependence.RESOLUTION / 2
    return [[dependence.above(run, cut, near) for run in side] for side in values]


def _variance_between_slots(
    row: ComparedMetric, sides: Runs, places: int, *, paired: bool
) -> float:
    """Compute the variance that the slots of a closed loop add to the difference B − A, or for a
    throughput to ln(B/A).
    """
    values = (
        _values(row.metric, sides)
        if row.metric.per_request
        else [[run.e2e_s / float(np.nanmean(run.e2e_s)) for run in side] for side in sides]
    )
    if paired:
        return dependence.variance_between_places(values[1][0] - values[0][0], places)
    return sum(
        dependence.variance_between_places(run, places) / len(side) ** 2
        for side in values
        for run in side
    )


def bound(cell: ComparedCell, sides: Mapping[Metric, tuple[Side, Side]]) -> None:
    """Add the intervals of the ratios of a cell of blocks, from those of the value on either
    side."""
    if cell.units is None:
        return
    freedom = min(len(cell.units.a), len(cell.units.b)) - 1.0
    for row in cell.rows:
        a, b = sides[row.metric]
        if row.ratio is None or a.sampling is None or b.sampling is None:
            continue
        paired = 0.0
        if cell.paired and row in cell.tested:
            column = cell.tested.index(row)
            paired = _pearson(cell.units.a[:, column], cell.units.b[:, column])
        reach = contrast(a, b, row.metric.base, paired=paired).sampling
        if reach is not None:
            row.low, row.high = bounds(row.ratio, reach)
        # What these two runs would have shown: the test knows nothing of other runs.
        row.log_error = (
            sum(ratio_margin(a.sampling, b.sampling, paired)) / 2 / dependence.student(freedom)
        )


def _pearson(a: Floats, b: Floats) -> float:
    """The correlation of blocks of the same requests, at most the largest double below 1."""
    spread = float(a.std() * b.std())
    return (
        min(float(((a - a.mean()) * (b - b.mean())).mean()) / spread, 1 - 1e-9)
        if spread > 0
        else 0.0
    )
