"""Two sides of runs, A and B: what differs in the setup, and which metrics differ by more than chance.

Units of the statistics are whole runs where both sides have repeats, else blocks of requests within the one run
(statistics.blocks). Differences are tested by permuting units, for all metrics and cells together (permutation);
ratios come with an interval (interval), and with prices also that of a million tokens (price). docs/compare.md is for
readers, docs/statistics.md says what the tests hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from loadstone.analyse.compare import cells, model, repeats
from loadstone.analyse.compare.metric import DEFAULT, ENERGY, PRICED, Bound, parse_bounds
from loadstone.analyse.compare.opening import open_sides
from loadstone.analyse.compare.permutation import RELABELLINGS, compare_all
from loadstone.analyse.compare.price import Prices, parse_prices, without_price
from loadstone.analyse.compare.result import LEVEL, LEVEL_OF_FEW, Cell
from loadstone.analyse.compare.setup import WORKLOAD, differences
from loadstone.analyse.compare.sides import Run, load_key
from loadstone.analyse.compare.text import loads_of
from loadstone.analyse.verdict import Finding
from loadstone.core.errors import InputError
from loadstone.core.statistics.blocks import RESOLUTION

__all__ = ["compare"]


def compare(
    a: Sequence[Path], b: Sequence[Path], *, fail_on: Sequence[str] = (), price: Sequence[str] = (), seed: int = 0
) -> dict[str, Any]:
    """The comparison as the JSON document of `loadstone compare`; ratios are B over A.

    `a`, `b`: run folders, or folders of repeats.
    `fail_on`: bounds such as `ttft_p99>+5%`. `price`: dollars per GPU and hour, such as `h200=3.2`.
    The same runs and seed give the same document.
    Raises InputError, one line, where a run cannot be read or is named twice, or no load is on both sides.
    """
    bounds = parse_bounds(list(fail_on))
    prices = parse_prices(price)
    if not prices and (bound := next((bound for bound in bounds if bound.metric.priced), None)):
        raise InputError(f"--fail-on {bound.text!r}: needs --price, e.g. --price h200=3.2")
    sides = open_sides(a, b, prices)
    told = any(
        "j_per_output_token" in cell["metrics"] for side in sides for run in side for cell in run.document["cells"]
    )
    extra = [*(PRICED if prices else ()), *([ENERGY] if told else ())]
    metrics = list(dict.fromkeys([*DEFAULT, *extra, *(bound.metric for bound in bounds)]))
    matched, alone = _match(*sides)
    if not matched:
        raise InputError(
            f"{a[0]} and {b[0]}: no load is on both sides ({loads_of(alone[0])} against {loads_of(alone[1])}); "
            "compare runs of the same loads"
        )
    compared = [cells.gather(on_a, on_b, metrics) for on_a, on_b in matched]
    judge(compared, seed)
    document: dict[str, Any] = {
        "schema": 1,
        "a": _side(sides[0]),
        "b": _side(sides[1]),
        "setup": differences(*sides),
        "cells": [cell.to_json() for cell in compared],
        "unmatched": {"a": alone[0], "b": alone[1]},
        "level": LEVEL,
        "resolution": RESOLUTION,
    }
    found = _findings(sides, compared, document["setup"])
    if prices:
        a_dollars, b_dollars = ([run.dollars for run in side] for side in sides)
        document["prices"] = {"dollars_per_gpu_hour": prices, "a": a_dollars, "b": b_dollars}
        found += _unpriced(sides, prices)
    document["findings"] = msgspec.to_builtins(found)
    if bounds:
        document["fail_on"] = [_bound(bound, compared) for bound in bounds]
    return document


def _match(a: Sequence[Run], b: Sequence[Run]) -> tuple[list[Any], tuple[list[Any], list[Any]]]:
    """[(where the load is on A, where on B)], each [(run, position in its summary)]; and loads on one side alone."""
    places: list[dict[tuple[Any, ...], list[tuple[Run, int]]]] = []
    loads: dict[tuple[Any, ...], Any] = {}
    for runs in (a, b):
        found: dict[tuple[Any, ...], list[tuple[Run, int]]] = {}
        for run in runs:
            for position, cell in enumerate(run.document["cells"]):
                key = load_key(cell["load"])
                loads.setdefault(key, cell["load"])
                found.setdefault(key, []).append((run, position))
        places.append(found)
    matched = [(places[0][key], places[1][key]) for key in places[0] if key in places[1]]
    alone = [[loads[key] for key in mine if key not in other] for mine, other in (places, places[::-1])]
    return matched, (alone[0], alone[1])


def _side(runs: Sequence[Run]) -> dict[str, Any]:
    return {"runs": [str(run.folder) for run in runs], "label": runs[0].facts.label, "source": runs[0].info.source}


def _unpriced(sides: Sequence[Sequence[Run]], prices: Prices) -> list[Finding]:
    runs = [(f"{side} {run.folder.name}", run.facts) for side, own in zip("AB", sides, strict=True) for run in own]
    said = without_price(runs, prices)
    remedy = "Give --price GPU=DOLLARS; of a result file, state the GPU at its import: --set gpu=h200 --set gpus=8."
    return [Finding("no_price", "info", said, remedy)] if said else []


def judge(compared: Sequence[Cell], seed: int, relabellings: int = RELABELLINGS) -> None:
    """p values for the family of all metrics of all cells that can be tested."""
    tested = [cell for cell in compared if cell.units is not None]
    units = [cell.units for cell in tested if cell.units is not None]
    level = LEVEL_OF_FEW if any(each.few for each in units) else LEVEL
    results = compare_all(units, seed, relabellings, level)
    for cell, result in zip(tested, results, strict=True):
        for index, row in enumerate(cell.tested):
            row.p, row.p_family, row.level = float(result.p[index]), float(result.p_family[index]), level
            if row.log_error is not None:
                row.least = max(1 + RESOLUTION, math.exp(result.least * row.log_error))
    for cell in compared:
        for row in cell.rows:
            if not (row.least and row.ratio):
                continue
            # The test is of means of blocks, which may be blunter here than the error of the ratio has it, or keener.
            beyond = abs(math.log(row.ratio)) > math.log(row.least)
            if beyond and not row.shown:
                row.least = None
            elif row.apart and not beyond:
                row.least = max(row.ratio, 1 / row.ratio)
    repeats.count(tested, [result.least for result in results])


def _findings(
    sides: tuple[list[Run], list[Run]], compared: Sequence[Cell], setup: list[dict[str, Any]]
) -> list[Finding]:
    found = []
    asked = [one for one in setup if one["what"] in WORKLOAD]
    untold = [one["what"] for one in asked if one["a"] is None or one["b"] is None]
    different = [one["what"] for one in asked if one["what"] not in untold]
    if untold:
        found.append(Finding(
            "workload_not_told", "warning", "whether both sides had the same workload is unknown: one does not state "
            f"its {', '.join(untold)}",
            "State it when importing the run (--set), or measure both with one plan.",
        ))  # fmt: skip
    if different:
        found.append(Finding(
            "workloads_differ", "warning", f"the sides had different workloads: {', '.join(different)} differ",
            "The numbers differ because of the workload too: measure both with one plan.",
        ))  # fmt: skip
    doubted = [
        f"{side} {cell['load']['kind']} {cell['load']['value']:g}"
        for side, runs in zip("AB", sides, strict=True)
        for run in runs
        for cell in run.document["cells"]
        if not cell["verdict"]["trusted"]
    ]
    if doubted:
        shown = ", ".join(dict.fromkeys(doubted[:12]))
        found.append(Finding(
            "untrusted", "warning", f"cells that carry warnings: {shown}",
            "Read their findings first (`loadstone show`): what is wrong there affects the ratio too.",
        ))  # fmt: skip
    if predicted := _predicted(sides, compared):
        found.append(predicted)
    kinds = {cell.unit for cell in compared}
    measured = [row for cell in compared for row in cell.rows if row.alone]
    if single := {alone for cell in compared if cell.unit == "blocks" or measured for alone in _alone(cell)}:
        which = "on each side" if len(single) == 2 else f"on {single.pop()}"
        evidence = f"only one run {which}: the spread within a run is known, the spread from run to run is not"
        if measured:
            evidence += ", so neither side is called better; intervals have that of published repeats in it"
            remedy = repeats.how(*sides, repeats.to_measure(measured))
        else:
            remedy = "To cover what other seeds draw, simulate repeats: compare A1,A2,A3 B1,B2,B3."
        found.append(Finding("one_run_each", "info", evidence, remedy))
    if None in kinds:
        by_reason: dict[str, list[Mapping[str, Any]]] = {}
        for cell in compared:
            if cell.unit is None:
                by_reason.setdefault(cell.why, []).append(cell.load)
        reasons = "; ".join(f"at {loads_of(loads)}: {why}" for why, loads in by_reason.items())
        found.append(Finding(
            "point_values", "info", f"no test, only point values, {reasons}",
            "Measure longer, or repeat both runs.",
        ))  # fmt: skip
    return found


def _alone(cell: Cell) -> list[str]:
    """Sides that have a load once."""
    return [side for side, runs in zip("AB", cell.runs, strict=True) if runs == 1]


def _predicted(sides: tuple[list[Run], list[Run]], compared: Sequence[Cell]) -> Finding | None:
    """That a side is a prediction, and what was made of how far the model may be off."""
    simulated = [side for side, runs in zip("AB", sides, strict=True) if any(run.simulated for run in runs)]
    if not simulated:
        return None
    together = model.together([model.basis(run.info, run.facts) for side in sides for run in side])
    known = any(row.model is not None for cell in compared for row in cell.rows)
    if together == 1:
        made_of_it = "both are one deployment with one workload, so the performance model's errors cancel out"
    elif not known:
        made_of_it = "the performance model's error is unknown (--draws 0), and no conclusion includes it"
    elif len(simulated) == 1:
        made_of_it = "the conclusions include the performance model's error (80 %)"
    else:
        alike = together == model.ALIKE
        whose, share = ("one profile and model", "four fifths") if alike else ("two profiles or models", "two thirds")
        made_of_it = f"with {whose}, {share} of the performance model's error is assumed to cancel out"
    return Finding(
        "predicted",
        "info",
        f"{' and '.join(simulated)}: simulated; intervals and tests cover the simulation's own spread; {made_of_it}",
        "Measure where a decision depends on it.",
    )


def _bound(bound: Bound, compared: Sequence[Cell]) -> dict[str, Any]:
    """Met where the estimate is beyond the bound and the data shows a difference; without a test, by the estimate.
    Single measured runs decide nothing.
    """
    where, untested, not_shown, one_run = [], [], [], []
    many: list[int | None] = []
    for cell in compared:
        row = next((row for row in cell.rows if row.metric == bound.metric), None)
        if row is None or row.ratio is None or not bound.beyond(row.ratio):
            continue
        if not row.differs and (row.alone or row.p_family is not None):
            many.append(row.repeats)
        if row.alone:
            one_run.append(cell.label)
        elif row.p_family is None:
            untested.append(cell.label)
        elif row.differs:
            where.append(cell.label)
        else:
            not_shown.append(cell.label)
    missing = all(row.ratio is None for cell in compared for row in cell.rows if row.metric == bound.metric)
    return {
        "bound": bound.text,
        "met": bool(where or untested),
        "at": where + untested,
        "untested": untested,
        "not_shown": not_shown,
        "one_run": one_run,
        "repeats_needed": max((each or 0 for each in many), default=0) or None,
        "missing": missing,
    }
