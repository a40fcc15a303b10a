"""Tells what a class of traffic costs the others: two runs of one plan, with it and without it.

Requests of the others are the same in both, so each is compared with itself. Intervals are of a
paired bootstrap of stretches of the run, since neighbours wait for the same queue.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from loadstone.analyse.metrics import label_rows
from loadstone.core import arrays, run_folder
from loadstone.core.plan import Load, Plan
from loadstone.core.summary import ClassChange, ClassCost
from loadstone.core.vectors import Array, Floats, Ints64

if TYPE_CHECKING:
    import pyarrow as pa

_BLOCKS, _LEAST_PAIRS = 20, 40
"""Stretches of a run, and pairs below which nothing is said of chance."""
_SAMPLES = 1000
_METRICS = ("ttft", "tpot", "e2e")
_QUANTILES = {"mean": None, "p50": 0.5, "p99": 0.99}


def class_cost(name: str, whole: Path, rest: Path) -> ClassCost:
    """Compare the runs of a plan with and without the class of this name. Raises InputError where
    one cannot be read."""
    plans = [(folder, run_folder.read_plan(folder)) for folder in (whole, rest)]
    names = [of_class.name for of_class in plans[1][1].classes]
    changes: list[ClassChange] = []
    for cell, load in enumerate(plans[0][1].cells):
        sides = [_read_cell(folder, plan, cell) for folder, plan in plans]
        for traffic_class in names:
            changes += _compare(
                traffic_class, cell, load, [by_class[traffic_class] for by_class in sides]
            )
    return ClassCost(of=name, run_dir=str(rest), changes=changes)


class _Requests(NamedTuple):
    """The measured requests of a class that were answered, and their places in it, ascending."""

    rows: Array
    places: Ints64


def _read_cell(folder: Path, plan: Plan, cell: int) -> dict[str, _Requests]:
    """Read the requests of a cell by class; of one that comes round and round the first time."""

    def plan_rows(batch: pa.RecordBatch) -> Ints64:
        indices = (request.rpartition("-")[2] for request in batch.column("request_id").to_pylist())
        return np.array([plan.row(cell, int(index)) for index in indices], np.int64)

    records = run_folder.read_records(folder, cell, arrays.COLUMNS)
    rows, labels = label_rows(records, plan_rows)
    answered = (labels >= 0) & arrays.is_completed(rows)
    rows, labels = rows[answered], labels[answered]
    labels, first = np.unique(labels, return_index=True)
    rows = rows[first]
    found = {}
    for number, of_class in enumerate(plan.classes):
        in_class = np.flatnonzero(plan.traffic_class == number)
        chosen = np.isin(labels, in_class)
        places = np.searchsorted(in_class, labels[chosen])
        found[of_class.name] = _Requests(rows[chosen], places)
    return found


def _compare(name: str, cell: int, load: Load, sides: list[_Requests]) -> list[ClassChange]:
    """Compare the requests of a class that both runs answered."""
    first, second = sides
    _, *chosen = np.intersect1d(first.places, second.places, return_indices=True)
    rows = [side.rows[places] for side, places in zip(sides, chosen, strict=True)]
    changes = []
    for metric in _METRICS:
        values = np.stack([_latencies(side, metric, load) for side in rows])
        values = values[:, np.isfinite(values).all(axis=0)]
        if not values.shape[1]:
            continue
        samples = _resample(values.shape[1])
        for statistic, quantile in _QUANTILES.items():
            present, absent = _statistic(values, quantile)
            low = high = None
            if samples is not None:
                drawn = [_statistic(values[:, sample], quantile) for sample in samples]
                ends = np.quantile(np.subtract(*np.transpose(drawn)), (0.025, 0.975))
                low, high = (float(end) for end in ends)
            changes.append(
                ClassChange(
                    traffic_class=name,
                    cell=cell,
                    metric=metric,
                    statistic=statistic,
                    present_s=present,
                    absent_s=absent,
                    difference_s=present - absent,
                    low_s=low,
                    high_s=high,
                    pairs=values.shape[1],
                )
            )
    return changes


def _latencies(rows: Array, metric: str, load: Load) -> Floats:
    if metric == "tpot":
        return np.asarray(arrays.tpot_s(rows))
    begun = rows["sent"] if load.is_closed else rows["intended"]
    return np.asarray(rows["first" if metric == "ttft" else "last"] - begun)


def _statistic(values: Floats, quantile: float | None) -> tuple[float, float]:
    found = values.mean(axis=1) if quantile is None else np.quantile(values, quantile, axis=1)
    return float(found[0]), float(found[1])


def _resample(pairs: int) -> list[Ints64] | None:
    """Draw stretches of the pairs, as many as there are, again and again; None of too few."""
    if pairs < _LEAST_PAIRS:
        return None
    stretches = np.array_split(np.arange(pairs), _BLOCKS)
    picks = np.random.default_rng(0).integers(0, _BLOCKS, (_SAMPLES, _BLOCKS))
    return [np.concatenate([stretches[number] for number in pick]) for pick in picks]
