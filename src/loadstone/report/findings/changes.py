"""Say what a change does: longer answers, a shared prefix, another split, another GPU."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from loadstone.core.groups import by_key
from loadstone.report.data.frames import (
    E2E,
    ITL,
    OUTPUT,
    PER_GPU,
    TPOT,
    TTFT,
    Frame,
    Measure,
    load_label,
    load_word,
)
from loadstone.report.data.pairs import Effect, Fact, Ratio, effect
from loadstone.report.data.points import FACTS, CellPoint, alike
from loadstone.report.data.series import lengths_label
from loadstone.report.data.wording import join
from loadstone.report.findings.sentence import Sentence, ranges, setups, spans, value, warn

STABLE = 1.15
"""Largest over smallest value, up to which a measure is called steady: twice the repeats' spread of
TTFT."""
SUDDEN = 0.7
"""Share of a rise (in the log) that falls into one step, from which the step is named."""
Pair = tuple[CellPoint, CellPoint]
"""What was, and what is compared with it."""


def follow_length(frame: Frame) -> Iterator[Sentence]:
    """Say how TTFT and TPOT go as answers grow: steady, or rising, and where."""
    lines = by_key(zip(setups(frame.points), frame.points, strict=True))
    lengths = sorted(x for x in map(frame.x, frame.points) if x is not None)
    for measure in (TTFT, TPOT):
        steady, changing = [], []
        for name, points in lines.items():
            places = [(frame.x(point) or 0.0, measure.of(point) or 0.0, point) for point in points]
            curve = sorted(
                ((x, y, point) for x, y, point in places if x and y), key=lambda place: place[0]
            )
            if not 2 <= len(curve) == len({x for x, _, _ in curve}):
                continue
            heights = [y for _, y, _ in curve]
            span = max(heights) / min(heights)
            if span <= STABLE:
                steady.append(f"{name} (within {100 * (span - 1):.2g}%)")
                continue
            change = effect(curve[-1][2], curve[0][2], measure)
            if change is not None and change.clear:
                goes = "grows" if heights[-1] > heights[0] else "falls"
                ends = f"{value(curve[0][2], measure)} to {value(curve[-1][2], measure)}"
                step = _largest_step([(x, y) for x, y, _ in curve])
                changing.append(f"{name}'s {goes} {change.times}, {ends}{step}")
        if steady or changing:
            first = frame.points[0]
            head = f"{measure.name} at {load_label(first)} from {int(lengths[0]):,}"
            clauses = [f"steady for {', '.join(steady)}"] if steady else []
            yield Sentence(
                text=f"{head} to {int(lengths[-1]):,} {frame.axis} tokens:"
                f" {'; '.join([*clauses, *changing])}{warn(frame.points)}.",
                kind="trend",
                about=frame.axis,
                context=join(first.setup.model, first.demand.prefix, first.demand.work),
            )


def _largest_step(curve: Sequence[tuple[float, float]]) -> str:
    """Say between which lengths most of the rise is; nothing where it is spread over several."""
    steps = [
        (abs(math.log(longer[1] / shorter[1])), shorter[0], longer[0], longer[1] / shorter[1])
        for shorter, longer in itertools.pairwise(curve)
    ]
    rise, start, end, times = max(steps)
    if len(steps) == 1 or rise <= SUDDEN * abs(math.log(curve[-1][1] / curve[0][1])):
        return ""
    return f", most of it from {int(start):,} to {int(end):,} ({times:.3g}×)"


def find_switches(sets: Sequence[Sequence[CellPoint]], fact: Fact) -> Iterator[Sentence]:
    """Say what a switch of one fact changes beyond doubt, setup by setup and measure by measure,
    over the loads."""
    every = [point for switch in sets for point in switch]
    names = dict(zip(map(id, every), setups(every, without=(fact,)), strict=True))
    groups = by_key(
        ((names[id(point)], point.kind, *_describe_switch(base, point, fact)), (base, point))
        for base, *switched in sets
        for point in switched
    )
    for (name, _, workload, switch), pairs in groups.items():
        for measure in (OUTPUT, TTFT, TPOT, E2E):
            clauses = _clauses(pairs, measure)
            if clauses:
                yield Sentence(
                    text=f"{name} with {switch}{_at_loads(pairs, clauses)}",
                    kind="switch",
                    about=fact,
                    context=workload,
                )


def _describe_switch(base: CellPoint, point: CellPoint, fact: Fact) -> tuple[str, str]:
    """Return the workload, and what is switched. Another name that the user has for it may stand
    for more than that."""
    workload = _workload_label(base, "" if fact == "prefix" else base.demand.prefix)
    base_value, switched = FACTS[fact](base), FACTS[fact](point)
    text = f"{fact} {switched} instead of {base_value}" if base_value else switched
    label, base_label = point.setup.label, base.setup.label
    if fact != "settings" and base_label and label and base_label != label:
        text += f" ({label} instead of {base_label})"
    return workload, text


def find_scaling(scalings: Sequence[Pair]) -> Iterator[Sentence]:
    """Say what more GPUs give at the same loads, and how much of it each of them: see
    pairs.more_gpus()."""
    names = setups([point for pair in scalings for point in pair], without=("parallel",))
    groups = by_key(
        (
            (
                f"{name}{_split(large)} instead of {small.setup.hardware}{_split(small)}",
                _workload_label(small, small.demand.prefix),
                small.kind,
            ),
            (small, large),
        )
        for (small, large), name in zip(scalings, names[1::2], strict=True)
    )
    for (change, workload, _), pairs in groups.items():
        clauses = [
            clause for measure in (OUTPUT, TTFT, TPOT, E2E) for clause in _clauses(pairs, measure)
        ]
        if clauses:
            clauses += _clauses(pairs, PER_GPU)
            yield Sentence(
                text=f"{change}{_at_loads(pairs, clauses)}",
                kind="scale",
                about="load",
                context=workload,
            )


def _split(point: CellPoint) -> str:
    return f" ({point.setup.parallel})" if point.setup.parallel else ""


def _workload_label(point: CellPoint, prefix: str) -> str:
    return join(point.setup.model, lengths_label(point), prefix, point.demand.work)


def _at_loads(pairs: Sequence[Pair], clauses: Sequence[str]) -> str:
    """End a sentence on pairs: their loads, what is said of them, how far they can be trusted."""
    loads = f"{load_word(pairs[0][0])} {spans(sorted({base.load for base, _ in pairs}))}"
    return f", at {loads}: {'; '.join(clauses)}{_warned(pairs)}."


def _clauses(pairs: Sequence[Pair], measure: Measure) -> list[str]:
    """Say at which loads `measure` is higher and at which lower, beyond doubt, and by how much."""
    effects: list[tuple[float, Effect]] = []
    for base, point in sorted(pairs, key=lambda pair: pair[0].load):
        change = effect(point, base, OUTPUT if measure is PER_GPU else measure)
        if change is not None:
            gpus = (base.setup.gpus or 1) / (point.setup.gpus or 1)
            share = gpus if measure is PER_GPU else 1.0
            scaled = Effect(share * change.ratio, share * change.low, share * change.high)
            effects.append((base.load, scaled))
    loads = [load for load, _ in effects]
    texts = []
    for word, rises in (("higher", True), ("lower", False)):
        clear = [
            (load, change)
            for load, change in effects
            if change.clear and (change.ratio > 1) == rises
        ]
        if clear:
            where = f" at {ranges([load for load, _ in clear], loads)}"
            sized = sorted((change for _, change in clear), key=lambda c: abs(math.log(c.ratio)))
            sizes = " to ".join(dict.fromkeys((sized[0].words, sized[-1].words)))
            everywhere = len(clear) == len(effects)
            texts.append(f"{measure.noun} {sizes} {word}{'' if everywhere else where}")
    return texts


def _warned(pairs: Iterable[Pair]) -> str:
    return warn([point for pair in pairs for point in pair])


def gpu_against_gpu(ratios: Sequence[Ratio]) -> Iterator[Sentence]:
    """Return each pair of GPUs under each engine: geometric mean and range of the ratios, where
    they point one way, and most of them beyond their intervals; of a measure of which that cannot
    be said, at which loads of a sweep one is ahead.
    """
    pairs = by_key(
        ((ratio.over.setup.gpu, ratio.under.setup.gpu, ratio.over.setup.engine), ratio)
        for ratio in ratios
    )
    for (over, under, engine), compared in pairs.items():
        clause_of = {
            measure: _compare_all([ratio for ratio in compared if ratio.measure is measure])
            for measure in (OUTPUT, TTFT, TPOT, ITL, E2E)
        }
        clauses = [clause for clause in clause_of.values() if clause]
        if clauses:
            text = f"{over} against {under} with {engine}, all else equal: {'; '.join(clauses)}"
            text += f"{_warned(_pairs(compared))}."
            yield Sentence(text=text, kind="ratio", about="gpus")
        undecided = [ratio for ratio in compared if clause_of[ratio.measure] is None]
        for sweep in by_key((_sweep(ratio), ratio) for ratio in undecided).values():
            yield from _compare_sweep(sweep)


def _compare_sweep(sweep: Sequence[Ratio]) -> Iterator[Sentence]:
    """Say at which loads of one sweep a GPU is ahead."""
    clauses = [
        clause
        for measure in (OUTPUT, TTFT, TPOT, ITL, E2E)
        for clause in _clauses(
            _pairs(ratio for ratio in sweep if ratio.measure is measure), measure
        )
    ]
    if len({ratio.over.load for ratio in sweep}) > 1 and clauses:
        first, setup = sweep[0].over, sweep[0].over.setup
        details = join(setup.precision, setup.parallel, setup.settings)
        head = f"{setup.hardware} against {sweep[0].under.setup.hardware} with {setup.engine}"
        head += f" ({details})" if details else ""
        yield Sentence(
            text=f"{head}{_at_loads(_pairs(sweep), clauses)}",
            kind="ratio",
            about="gpus",
            context=_workload_label(first, first.demand.prefix),
        )


def _sweep(ratio: Ratio) -> tuple[object, ...]:
    return alike(ratio.over, "load", "version")


def _pairs(ratios: Iterable[Ratio]) -> list[Pair]:
    return [(ratio.under, ratio.over) for ratio in ratios]


def _compare_all(ratios: Sequence[Ratio]) -> str | None:
    """Say of ratios of one measure the one direction, or how many pairs go in which; None if a
    single sweep goes both ways."""
    effects = [
        change
        for ratio in ratios
        if (change := effect(ratio.over, ratio.under, ratio.measure)) is not None and change.clear
    ]
    if len(effects) <= len(ratios) / 2:
        return None
    measure = ratios[0].measure
    if len(ratios) == 1:
        return f"{measure.noun} {effects[0].words} {'higher' if effects[0].ratio > 1 else 'lower'}"
    better = sum((change.ratio > 1) == (measure.better == "higher") for change in effects)
    times = [ratio.times for ratio in ratios]
    low, high = min(times), max(times)
    if 0 < better < len(effects):
        if len(set(map(_sweep, ratios))) == 1:
            return None
        worse = f"worse in {len(effects) - better} (down to {low:.3g}×)"
        return f"{measure.noun} better in {better} pairs of loads (up to {high:.3g}×), {worse}"
    mean = math.exp(sum(map(math.log, times)) / len(times))
    side = "better"
    if mean <= 1:
        side = "worse"
        if mean < 1:
            mean, low, high = 1 / mean, 1 / high, 1 / low
    pairs = f"{low:.3g}× to {high:.3g}× over {len(ratios)} pairs of loads"
    if ratios[0].over.is_simulated and ratios[0].under.is_simulated:
        certainty = median(change.high / change.ratio for change in effects)
        pairs += f", each certain to a factor of {certainty:.2g}"
    return f"{measure.noun} {mean:.3g}× {side} on average ({pairs})"
