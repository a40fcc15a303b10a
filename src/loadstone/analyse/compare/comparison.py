"""Compares two sides of runs: the result of `loadstone compare`."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import UNSET, UnsetType

from loadstone.analyse.compare import cells, repeats
from loadstone.analyse.compare.answers import answer_findings
from loadstone.analyse.compare.metric import (
    DEFAULT,
    ENERGY,
    FAILED,
    POOLED,
    PRICED,
    ChangeBound,
    compared_name,
    parse_bounds,
)
from loadstone.analyse.compare.permutation import RELABELLINGS, compare_all
from loadstone.analyse.compare.price import Prices, check_prices, parse_prices, without_price
from loadstone.analyse.compare.ratio import ONE_PROFILE, basis, shared_error
from loadstone.analyse.compare.result import (
    LEVEL,
    LEVEL_OF_FEW,
    BoundResult,
    ComparedCell,
    Comparison,
    Difference,
    PricesResult,
    SideResult,
    Unmatched,
    name_loads,
)
from loadstone.analyse.compare.setup import WORKLOAD, differences, flags_known
from loadstone.analyse.compare.sides import (
    ComparedRun,
    RunCell,
    load_key,
    open_run,
    refuse_twice,
    runs_in,
)
from loadstone.analyse.grading.paired import ComparedAnswers, adjust
from loadstone.analyse.stored_run import leave_out_copies
from loadstone.analyse.verdict.finding import Findings, finding
from loadstone.core.errors import InputError
from loadstone.core.groups import by_key
from loadstone.core.plan import Load
from loadstone.core.statistics.dependence import RESOLUTION

Sides = tuple[list[ComparedRun], list[ComparedRun]]

MAX_STATED = 4
"""The most numbers of files that one finding lists."""
_OF_REPEATS = ("seed", "plan", "client host", "loadstone", "git commit", "engine environment")
"""Differences that repeats of one run may have."""


def compare(
    a: Sequence[Path],
    b: Sequence[Path],
    *,
    fail_on: Sequence[str] = (),
    allow_errors: bool = False,
    price: Sequence[str] = (),
    seed: int = 0,
) -> Comparison:
    """Compare two sides of runs, as `loadstone compare` prints it; ratios are B over A.

    `a`, `b`: run folders, or folders of repeats. `fail_on`: bounds such as `ttft_p99>+5%`; B passes
    none with a cell that has an error finding, unless `allow_errors`. `price`: dollars per GPU and
    hour, such as `h200=3.2`. The same runs and seed give the same result. Raises InputError, one
    line, where a run cannot be read or is named twice, or no load is on both sides.
    """
    bounds = parse_bounds(fail_on)
    prices = parse_prices(price)
    for bound in bounds if not prices else ():
        if bound.metric.priced:
            raise InputError(f"--fail-on {bound.text!r}: needs --price, e.g. --price h200=3.2")
    sides = open_sides(a, b, prices)
    check_prices(prices, (run.facts for side in sides for run in side))
    every = [cell for side in sides for run in side for cell in run.summary.cells]
    optional = (
        [ENERGY] if any(cell.metrics.j_per_output_token is not None for cell in every) else []
    )
    rates = {cell.rate_name for cell in every}
    optional += [metric for metric in POOLED if metric.name in rates]
    optional += [FAILED] if any(cell.requests.failed_share for cell in every) else []
    requested = [bound.metric for bound in bounds]
    metrics = list(dict.fromkeys([*DEFAULT, *(PRICED if prices else ()), *optional, *requested]))
    by_load = [_group_by_load(side) for side in sides]
    matched = [(key, key) for key in by_load[0] if key in by_load[1]] or _match_classes(*by_load)
    alone = [
        [
            places[0].cell.load
            for key, places in by_load[side].items()
            if key not in [keys[side] for keys in matched]
        ]
        for side in (0, 1)
    ]
    if not matched:
        raise InputError(
            f"{a[0]} and {b[0]}: no load is on both sides ({name_loads(alone[0])} against"
            f" {name_loads(alone[1])}); compare runs of the same loads"
        )
    compared = [
        cells.gather_classes(by_load[0][on_a], by_load[1][on_b], metrics) for on_a, on_b in matched
    ]
    judge([part for cell in compared for part in cell.parts], seed)
    judge_answers(compared)
    setup = differences(*sides)
    findings = [
        *_findings(sides, compared, setup),
        *(_missing_prices(sides, prices) if prices else ()),
    ]
    return Comparison(
        a=_side(sides[0]),
        b=_side(sides[1]),
        setup=setup,
        flags_known=UNSET if flags_known([run for side in sides for run in side]) else False,
        cells=[cell.printed for cell in compared],
        unmatched=Unmatched(alone[0], alone[1], *_classes_alone(sides)),
        prices=(
            PricesResult(prices, *([run.dollars for run in side] for side in sides))
            if prices
            else UNSET
        ),
        findings=findings,
        fail_on=[_judge_bound(bound, compared, allow_errors) for bound in bounds] or UNSET,
    )


def open_sides(a: Sequence[Path], b: Sequence[Path], prices: Prices) -> Sides:
    """Open the runs of both sides, each a run folder, or a folder that holds repeats of one run and
    nothing else.

    Raises InputError where one cannot be read or holds nothing, or a run is named twice, however it
    is spelled, or copied.
    """
    on_a, on_b = ([(path, runs_in(path)) for path in paths] for paths in (a, b))
    folders = [[folder for _, held in side for folder in held] for side in (on_a, on_b)]
    for side in folders:
        if not side:
            raise InputError(
                "compare: one side has no run; write RUN_A RUN_B, repeats with commas: A1,A2 B1,B2"
            )
        if len(side) > repeats.MAX_RUNS:
            raise InputError(
                f"{len(side)} runs on a side: at most {repeats.MAX_RUNS}; compare fewer"
            )
    refuse_twice(folders)
    sides = (
        [run for path, held in on_a for run in _open_repeats(path, held, prices)],
        [run for path, held in on_b for run in _open_repeats(path, held, prices)],
    )
    for runs in sides:
        _, copies = leave_out_copies(runs)
        if copies:
            raise InputError(f"{copies[0]}; name each run once")
    return sides


def _open_repeats(path: Path, folders: Sequence[Path], prices: Prices) -> list[ComparedRun]:
    """Open the repeats of one run. Raises InputError where the folder holds other runs."""
    runs = [open_run(folder, prices) for folder in folders]
    names = dict.fromkeys(row.what for run in runs[1:] for row in differences(runs[:1], [run]))
    loads = [sorted(repr(load_key(cell.load)) for cell in run.summary.cells) for run in runs]
    differ = [name for name in names if name not in _OF_REPEATS] + ["loads"] * any(
        labels != loads[0] for labels in loads
    )
    if differ:
        shown = ", ".join(map(str, folders[:3])) + (" …" if len(folders) > 3 else "")
        raise InputError(
            f"{path}: holds {len(runs)} runs that are not repeats of one another"
            f" ({', '.join(differ[:4])}); name the run in it: {shown}"
        )
    return runs


def _group_by_load(runs: Sequence[ComparedRun]) -> dict[Load, list[RunCell]]:
    """List, for each load, the cells that have it."""
    return by_key((load_key(place.cell.load), place) for run in runs for place in run.places)


def _match_classes(
    a: dict[Load, list[RunCell]], b: dict[Load, list[RunCell]]
) -> list[tuple[Load, Load]]:
    """Match the only load of either side where they have a class of traffic in common: one side
    has another class beside it."""
    if len(a) == len(b) == 1:
        (on_a, first), (on_b, second) = *a.items(), *b.items()
        if set(first[0].classes) & set(second[0].classes):
            return [(on_a, on_b)]
    return []


def _classes_alone(sides: Sides) -> list[list[str] | UnsetType]:
    """List the classes of traffic that one side alone has."""
    a, b = (
        dict.fromkeys(name for run in side for place in run.places for name in place.classes)
        for side in sides
    )
    return [
        [name for name in names if name not in rivals] or UNSET
        for names, rivals in ((a, b), (b, a))
    ]


def _side(runs: Sequence[ComparedRun]) -> SideResult:
    return SideResult([str(run.folder) for run in runs], runs[0].facts.label, runs[0].info.source)


def judge(compared: Sequence[ComparedCell], seed: int, relabellings: int = RELABELLINGS) -> None:
    """Compute p values for the family of all metrics of all cells that can be tested."""
    tested = [cell for cell in compared if cell.units is not None]
    units = [cell.units for cell in tested if cell.units is not None]
    level = LEVEL_OF_FEW if any(unit.too_few for unit in units) else LEVEL
    results = compare_all(units, seed, relabellings, level)
    for cell, result in zip(tested, results, strict=True):
        for index, row in enumerate(cell.tested):
            row.p = float(result.p[index])
            row.p_family = float(result.p_family[index])
            row.level = level
            if row.log_error is not None:
                row.would_show = max(1 + RESOLUTION, math.exp(result.least * row.log_error))
    for row in (row for cell in compared for row in cell.rows):
        if not (row.would_show and row.ratio):
            continue
        # The test is of means of blocks, which may be blunter here than the error of the ratio has
        # it, or keener.
        beyond = abs(math.log(row.ratio)) > math.log(row.would_show)
        if beyond and not row.significant:
            row.would_show = None
        elif row.confirmed and not beyond:
            row.would_show = max(row.ratio, 1 / row.ratio)
    repeats.count(tested, [result.least for result in results])


def judge_answers(compared: Sequence[ComparedCell]) -> None:
    """Adjust the tests of graded answers for one another; a side whose answers are wrong cannot win
    its load."""
    graded = [
        (cell, cell.answers) for cell in compared if isinstance(cell.answers, ComparedAnswers)
    ]
    adjust(answers for _, answers in graded)
    for cell, answers in graded:
        for row in cell.rows:
            row.failing += answers.worse()[0]


# --- findings of a comparison ---------------------------------------------------------------------


def _findings(
    sides: Sides, compared: Sequence[ComparedCell], setup: Sequence[Difference]
) -> Findings:
    yield from _different_workloads(setup)
    rows = [row for row in setup if row.what != "label"]
    if [row.what for row in rows] == ["endpoint"]:
        yield finding("api_layer", a=rows[0].a, b=rows[0].b)
    doubted = [
        f"{side} {cell.load.kind} {cell.load.value:g}"
        for side, run in _runs(sides)
        for cell in run.summary.cells
        if not cell.verdict.trusted
    ]
    if doubted:
        yield finding("untrusted", cells=list(dict.fromkeys(doubted[:12])))
    yield from _predictions(sides, compared)
    yield from _other_numbers(sides, compared)
    yield from _single_runs(sides, compared)
    in_turn = [cell.load for cell in compared if cell.one_after_another]
    if in_turn:
        yield finding("not_in_turn", loads=name_loads(in_turn))
    parts = [part for cell in compared for part in cell.parts]
    by_reason = by_key((part.why, part) for part in parts if part.unit is None)
    if by_reason:
        reasons = [{"loads": _name_parts(alike), "why": why} for why, alike in by_reason.items()]
        yield finding("point_values", reasons=reasons)
    for cell in compared:
        if cell.answers is not None:
            yield from answer_findings(cell.load.label, cell.answers)


def _name_parts(parts: Sequence[ComparedCell]) -> str:
    """Name loads, then classes of loads."""
    loads = [part.load for part in parts if not part.traffic_class]
    classes = [part.label for part in parts if part.traffic_class]
    return "; ".join([name_loads(loads)] * bool(loads) + classes)


def _runs(sides: Sides) -> Iterator[tuple[str, ComparedRun]]:
    """List all runs, each with the name of its side."""
    for side, runs in zip("AB", sides, strict=True):
        for run in runs:
            yield side, run


def _different_workloads(setup: Sequence[Difference]) -> Findings:
    rows = [row for row in setup if row.what in WORKLOAD]
    unknown = [row.what for row in rows if row.a is None or row.b is None]
    different = [row.what for row in rows if row.what not in unknown]
    if unknown:
        yield finding("workload_not_told", facts=unknown)
    if different:
        yield finding("workloads_differ", facts=different)


def _other_numbers(sides: Sides, compared: Sequence[ComparedCell]) -> Findings:
    """Find numbers in imported files that their requests contradict, among the metrics compared."""
    loads = {load_key(cell.load) for cell in compared}
    names = {row.name for cell in compared for row in cell.rows}
    numbers = []
    for side, run in _runs(sides):
        for cell in run.summary.cells:
            for number in cell.stated if load_key(cell.load) in loads else ():
                name = compared_name(number.metric, number.statistic)
                unit = "_s" if number.statistic else ""
                if name in names:
                    numbers.append(
                        {
                            "side": side,
                            "load": cell.load.label,
                            "metric": name,
                            f"stated{unit}": number.stated,
                            f"compared{unit}": number.ours,
                            "definition": number.definition,
                        }
                    )
    if numbers:
        omitted = len(numbers) - MAX_STATED
        yield finding(
            "stated_otherwise",
            numbers=numbers[:MAX_STATED],
            omitted=omitted if omitted > 0 else None,
        )


def _predictions(sides: Sides, compared: Sequence[ComparedCell]) -> Findings:
    """Tell that a side is a prediction, and how the model's error is taken into account."""
    simulated = list(dict.fromkeys(side for side, run in _runs(sides) if run.simulated))
    if not simulated:
        return
    shared = shared_error([basis(run.info, run.facts) for _, run in _runs(sides)])
    parts = [part for cell in compared for part in cell.parts]
    has_error = any(row.model is not None for part in parts for row in part.rows)
    if shared == 1:
        name = "predicted.one_deployment"
    elif not has_error:
        name = "predicted.no_error"
    elif len(simulated) == 1:
        name = "predicted"
    else:
        name = "predicted.one_profile" if shared == ONE_PROFILE else "predicted.two_profiles"
    yield finding(name, sides=simulated)


def _single_runs(sides: Sides, compared: Sequence[ComparedCell]) -> Findings:
    parts = [part for cell in compared for part in cell.parts]
    measured = [row for part in parts for row in part.rows if row.single_run]
    examined = [part for part in parts if part.unit == "blocks" or measured]
    single = {
        side for cell in examined for side, runs in zip("AB", cell.runs, strict=True) if runs == 1
    }
    if not single:
        return
    side = single.pop() if len(single) == 1 else None
    if not measured:
        yield finding("one_run_each", side=side)
        return
    runs = repeats.to_measure(measured)
    commands = repeats.commands(*sides, runs)
    yield finding("one_run_each.measured", side=side, runs=runs, commands=commands)


def _missing_prices(sides: Sides, prices: Prices) -> Findings:
    runs = [(f"{side} {run.folder.name}", run.facts) for side, run in _runs(sides)]
    unpriced = without_price(runs, prices)
    if unpriced:
        yield finding("no_price", unpriced=unpriced)


def _judge_bound(
    bound: ChangeBound, compared: Sequence[ComparedCell], allow_errors: bool
) -> BoundResult:
    """Judge a bound: it is met where the estimate is beyond it and the data shows a difference;
    without a test, by the estimate. Single measured runs decide nothing.
    """
    rows = [
        (part.label, row)
        for cell in compared
        for part in cell.parts
        for row in part.rows
        if row.metric == bound.metric and bound.traffic_class in ("", part.traffic_class)
    ]
    beyond = [
        (label, row) for label, row in rows if row.change is not None and bound.beyond(row.change)
    ]
    several = [(label, row) for label, row in beyond if not row.single_run]
    tested = [(label, row) for label, row in several if row.p_family is not None]
    untested = [label for label, row in several if row.p_family is None]
    where = [label for label, row in tested if row.differs]
    open_ = [
        row for _, row in beyond if not row.differs and (row.single_run or row.p_family is not None)
    ]
    failing = [label for label, row in rows if "b" in row.failing and not allow_errors]
    return BoundResult(
        bound=bound.text,
        met=bool(where or untested),
        at=where + untested,
        untested=untested,
        not_shown=[label for label, row in tested if not row.differs],
        one_run=[label for label, row in beyond if row.single_run],
        repeats_needed=max((row.repeats_needed or 0 for row in open_), default=0) or None,
        missing=all(row.change is None for _, row in rows),
        failing=failing or UNSET,
    )
