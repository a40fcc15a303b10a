"""One load on both sides: its units, its point values, and how far each can be trusted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadstone.analyse.compare import interval, model, request
from loadstone.analyse.compare.contrast import Side, contrast
from loadstone.analyse.compare.metric import Metric, Stat
from loadstone.analyse.compare.permutation import Units, student, welch
from loadstone.analyse.compare.result import Cell, Row
from loadstone.analyse.compare.sides import PER_REQUEST, Place, Requests, requests_of
from loadstone.analyse.run_facts import steady_window
from loadstone.core import Load
from loadstone.core.statistics import autocorrelation, blocks

Floats = NDArray[np.float64]

PERMUTED_RUNS = 70
"""Relabellings of whole runs from which a permutation test can find anything: four against four have so many."""
PAIRED_SHARE = 0.9
"""Of the requests of the larger side that both must have been asked, and have ended well, to be compared in pairs."""


def gather(a: Sequence[Place], b: Sequence[Place], metrics: Sequence[Metric]) -> Cell:
    """`a`, `b`: the runs that have the load, and where in their summaries."""
    documents = [[run.document["cells"][position] for run, position in places] for places in (a, b)]
    every = [cell for side in documents for cell in side]
    load = dict(every[0]["load"])
    intended = load["kind"] != "concurrency" and all(cell["metrics"].get("e2e_intended_s") for cell in every)
    steady = all(steady_window(cell) for cell in every)
    stats = {
        metric: [
            [metric.stat(run.document["cells"][position], intended, steady, run.dollars) for run, position in places]
            for places in (a, b)
        ]
        for metric in metrics
    }
    values = {
        metric: [[stat.value if stat is not None else None for stat in side] for side in sides]
        for metric, sides in stats.items()
    }
    cell = Cell(load, [_row(metric, *values[metric]) for metric in metrics], runs=(len(a), len(b)))
    sides = {
        metric: (_side(a, metric, of_a, intended), _side(b, metric, of_b, intended))
        for metric, (of_a, of_b) in stats.items()
    }
    for row in cell.rows:
        on_a, on_b = sides[row.metric]
        off = contrast(on_a, on_b, row.metric.base).model
        if row.ratio is not None and off is not None:
            row.model = interval.bounds(row.ratio, off)
    if min(len(a), len(b)) >= 2:
        _by_runs(cell, values)
        return cell
    for row in cell.rows:
        row.alone = not all(run.simulated for run, _ in (*a, *b))
    if all(run.has_records for run, _ in (*a, *b)):
        _by_blocks(cell, a, b, intended=intended)
        bound(cell, sides)
    else:
        cell.why = "one side was imported as summary statistics, without its requests"
    return cell


def _side(places: Sequence[Place], metric: Metric, stats: Sequence[Stat | None], intended: bool) -> Side:
    """What is known of a side's value: sampling of its runs pooled; of predictions the widest, for repeats of a
    simulation do not make the model better.
    """
    reaches = [stat.reach if stat is not None else None for stat in stats]
    known = [each for each in reaches if each is not None]
    off = [metric.model_reach(run.document["cells"][position], intended) for run, position in places if run.simulated]
    told = [each for each in off if each is not None]
    return Side(
        interval.pooled(known) if known and len(known) == len(reaches) else None,
        (max(each[0] for each in told), max(each[1] for each in told)) if told and len(told) == len(off) else None,
        tuple(model.basis(run.info, run.facts) for run, _ in places),
    )


def _row(metric: Metric, a: Sequence[float | None], b: Sequence[float | None]) -> Row:
    """Means of a side's runs, geometric in the ratio, where all have the metric."""
    known = [[value for value in side if value is not None] for side in (a, b)]
    means = [sum(side) / len(side) if side else None for side in known]
    row = Row(metric, means[0], means[1])
    if all(known) and len(known[0]) == len(a) and len(known[1]) == len(b) and min(map(min, known)) > 0:
        row.ratio = math.exp(float(np.mean(np.log(known[1])) - np.mean(np.log(known[0]))))
    return row


# --- repeats: runs are the units ---------------------------------------------------------------------------------


def _by_runs(cell: Cell, values: dict[Metric, list[list[float | None]]]) -> None:
    """How runs differ from one another holds what differs within them too: nothing is drawn from inside them."""
    cell.unit = "runs"
    sizes = [len(side) for side in values[cell.rows[0].metric]]
    few = math.comb(sum(sizes), sizes[0]) < PERMUTED_RUNS
    tested, columns = [], []
    for row in cell.rows:
        if row.ratio is None:
            continue
        a, b = (np.log(np.array(side, np.float64)) for side in values[row.metric])
        _, error, freedom = student(a, b) if few else welch(a, b)
        row.log_error, row.spread = error, error / math.sqrt(1 / len(a) + 1 / len(b))
        reach = interval.student(max(1.0, freedom)) * error
        row.low, row.high = interval.bounds(row.ratio, (reach, reach))
        tested.append(row)
        columns.append((a, b))
    cell.counts = sizes[0], sizes[1]
    if tested:
        a, b = (np.stack([column[side] for column in columns], axis=1) for side in (0, 1))
        cell.units, cell.tested = Units(a, b, np.zeros(len(tested)), few=few), tested


# --- one run a side: blocks of requests are the units --------------------------------------------------------------


def _by_blocks(cell: Cell, a: Sequence[Place], b: Sequence[Place], *, intended: bool) -> None:
    rated = any(row.metric.counts_output and row.ratio is not None for row in cell.rows)
    sides = [
        [requests_of(run, position, intended=intended, with_tokens=rated) for run, position in places]
        for places in (a, b)
    ]
    paired = len(a) == len(b) == 1 and _pair(sides[0], sides[1], request.shared(a[0], b[0]))
    take_blocks(cell, sides, paired=paired, dollars=[[run.dollars for run, _ in places] for places in (a, b)])


def take_blocks(
    cell: Cell,
    sides: Sequence[Sequence[Requests]],
    *,
    paired: bool,
    dollars: Sequence[Sequence[float | None]] = (),
) -> None:
    """The units of a cell from the requests of each side's runs; `paired`: row by row of the same request.

    `dollars`: per hour, of each run.

    Metrics without a ratio are left out. Where nothing can be tested, the cell says why.
    """
    if any(len(run.index) == 0 for side in sides for run in side):
        cell.why = "one side has no completed request"
        return
    cell.paired = paired
    generations = min(len(run.index) / max(1.0, run.under_way) for side in sides for run in side)
    most = min(blocks.count(len(run.index), run.under_way) for side in sides for run in side)
    if most == 0:
        cell.why = (
            f"{generations:.1f} times as many requests as were under way at a time, {blocks.LEAST_BLOCKS} are needed"
            if generations
            else "the number of requests under way is unknown"
        )
        return
    rows = [row for row in cell.rows if row.ratio is not None and row.metric.per_request]
    rows += [row for row in cell.rows if row.ratio is not None and row.metric.counts_output]
    made: dict[int, tuple[Floats, Floats, list[Row]]] = {}
    places = msgspec.convert(cell.load, Load).places

    def correlations(count: int) -> Floats:
        made[count] = _columns(sides, rows, count, dollars)
        found_a, found_b, _ = made[count]
        both = [found_b - found_a] if paired else [found_a, found_b]
        return np.asarray(np.mean([_correlation(side, count) for side in both], axis=0))

    count, _, careful = blocks.settle(most, correlations)
    on_a, on_b, cell.tested = made[count]
    if not cell.tested:
        cell.why = "no metric is known on both sides for every block of requests"
        return
    cell.unit, cell.counts = "blocks", (len(on_a), len(on_b))
    rhythms = np.array([_rhythm(row, sides, places, paired=paired) for row in cell.tested])
    for index, row in enumerate(cell.tested):
        if not row.metric.per_request:
            # Places that are always taken give tokens as their requests take time; as a share of the value.
            rhythms[index] *= float(on_a[:, index].mean()) * float(on_b[:, index].mean())
    cell.units = Units(on_a, on_b, careful, paired, rhythms)


def _pair(a: list[Requests], b: list[Requests], below: int | None) -> bool:
    """Keeps, of two cells that were asked the same up to a number, the requests that both completed, in their order;
    both as they are, and False, where that would leave out too many.
    """
    shared, of_a, of_b = np.intersect1d(a[0].index, b[0].index, return_indices=True)
    kept = slice(None if below is None else int(np.searchsorted(shared, below)))
    if len(shared[kept]) < PAIRED_SHARE * max(len(a[0].index), len(b[0].index), 1):
        return False
    a[0], b[0] = _pick(a[0], of_a[kept]), _pick(b[0], of_b[kept])
    return True


def _pick(requests: Requests, chosen: NDArray[Any]) -> Requests:
    return replace(requests, **{name: getattr(requests, name)[chosen] for name in PER_REQUEST})


def _correlation(rows: Floats, count: int) -> Floats:
    """Of neighbouring blocks, within each run of a side."""
    return np.asarray(np.mean([blocks.correlation(run) for run in np.split(rows, len(rows) // count)], axis=0))


def _columns(
    sides: Sequence[Sequence[Requests]], rows: Sequence[Row], count: int, dollars: Sequence[Sequence[float | None]]
) -> tuple[Floats, Floats, list[Row]]:
    """Block means of every metric that has them, `count` blocks of each run: (A's, B's, which metrics)."""
    kept: list[Row] = []
    columns: list[list[Floats]] = []
    for row in rows:
        if not row.metric.per_request:
            pieces = [[run.rates(count) for run in side] for side in sides]
            if row.metric.priced:
                # Tokens for a dollar: of what costs as much on both sides the test is that of the throughput.
                pieces = [
                    [None if rate is None or not cost else rate / cost for rate, cost in zip(*side, strict=True)]
                    for side in zip(pieces, dollars, strict=True)
                ]
        else:
            values = _values(row.metric, sides)
            if all(np.isnan(run).all() for side in values for run in side):
                continue
            pieces = [[blocks.means(run, count) for run in side] for side in values]
        joined = [
            np.concatenate([piece for piece in side if piece is not None] or [np.full(1, np.nan)]) for side in pieces
        ]
        if any(piece is None for side in pieces for piece in side) or any(np.isnan(one).any() for one in joined):
            continue
        kept.append(row)
        columns.append(joined)
    if not kept:
        return np.empty((count, 0)), np.empty((count, 0)), []
    a, b = (np.stack([column[side] for column in columns], axis=1) for side in (0, 1))
    return a, b, kept


def _values(metric: Metric, sides: Sequence[Sequence[Requests]]) -> list[list[Floats]]:
    """A number for each request of each run, whose means are compared."""
    values: list[list[Floats]] = [[getattr(run, f"{metric.base}_s") for run in side] for side in sides]
    pooled = np.concatenate([run for side in values for run in side])
    if math.isnan(metric.quantile) or np.isnan(pooled).all():
        return values
    cut = float(np.nanquantile(pooled, metric.quantile))
    # Values that differ by less than RESOLUTION must not decide: requests of equal lengths fall into a rhythm with
    # one another that lasts a run, and another run has another, whose times differ by a millionth.
    near = blocks.RESOLUTION / 2
    return [[blocks.above(run, cut, near) for run in side] for side in values]


def _rhythm(row: Row, sides: Sequence[Sequence[Requests]], places: int, *, paired: bool) -> float:
    """What a rhythm adds to the variance of the difference B − A; of a throughput to that of ln(B/A)."""
    if not row.metric.per_request:
        e2e = [[run.e2e_s / float(np.nanmean(run.e2e_s)) for run in side] for side in sides]
        return _of_sides(e2e, places, paired=paired)
    return _of_sides(_values(row.metric, sides), places, paired=paired)


def _of_sides(values: Sequence[Sequence[Floats]], places: int, *, paired: bool) -> float:
    if paired:
        return autocorrelation.variance(values[1][0] - values[0][0], places)
    return sum(autocorrelation.variance(run, places) / len(side) ** 2 for side in values for run in side)


def bound(cell: Cell, sides: Mapping[Metric, Sequence[Side]]) -> None:
    """Intervals of the ratios of a cell of blocks, from what is known of the value on either side."""
    if cell.units is None:
        return
    freedom = min(len(cell.units.a), len(cell.units.b)) - 1.0
    for row in cell.rows:
        a, b = sides[row.metric]
        if row.ratio is None or a.sampling is None or b.sampling is None:
            continue
        together = 0.0
        if cell.paired and row in cell.tested:
            at = cell.tested.index(row)
            together = _correlated(cell.units.a[:, at], cell.units.b[:, at])
        if (reach := contrast(a, b, row.metric.base, paired=together).sampling) is not None:
            row.low, row.high = interval.bounds(row.ratio, reach)
        # What these two runs would have shown: the test knows nothing of other runs.
        row.log_error = sum(interval.ratio(a.sampling, b.sampling, together)) / 2 / blocks.student(freedom)


def _correlated(a: Floats, b: Floats) -> float:
    """Of blocks of the same requests: Pearson's, at most the largest double below 1."""
    spread = float(a.std() * b.std())
    return min(float(((a - a.mean()) * (b - b.mean())).mean()) / spread, 1 - 1e-9) if spread > 0 else 0.0
