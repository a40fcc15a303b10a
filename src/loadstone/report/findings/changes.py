"""Say what a change does: longer answers, a shared prefix, another split, another GPU."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
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


def follow_length(frame: Frame) -> Iterable[Sentence]:
    """Say how TTFT and TPOT go as answers grow: steady, or rising, and where."""
    lines = by_key(zip(setups(frame.points), frame.points, strict=True))
    for measure in (TTFT, TPOT):
        steady, changing = [], []
        for name, points in lines.items():
            measured = (
                (x, y, point)
                for point in points
                if (x := frame.x(point)) and (y := measure.of(point))
            )
            known = sorted(measured, key=lambda entry: entry[0])
            if not 2 <= len(known) == len({x for x, _, _ in known}):
                continue
            (_, first_y, first), (_, last_y, last) = known[0], known[-1]
            low, high = min(y for _, y, _ in known), max(y for _, y, _ in known)
            if high / low <= STABLE:
                steady.append(f"{name} (within {100 * (high / low - 1):.2g}%)")
                continue
            change = effect(last, first, measure)
            if change is None or not change.clear:
                continue
            rise = abs(math.log(last_y / first_y))
            steps = [
                (abs(math.log(b[1] / a[1])), a[0], b[0], b[1] / a[1])
                for a, b in itertools.pairwise(known)
            ]
            step = max(steps)
            where = (
                f", most of it from {int(step[1]):,} to {int(step[2]):,} ({step[3]:.3g}×)"
                if len(steps) > 1 and step[0] > SUDDEN * rise
                else ""
            )
            goes = "grows" if last_y > first_y else "falls"
            ends_s = f"{value(first, measure)} to {value(last, measure)}"
            changing.append(f"{name}'s {goes} {change.times}, {ends_s}{where}")
        if not steady and not changing:
            continue
        ends = sorted({x for point in frame.points if (x := frame.x(point)) is not None})
        parts = [f"steady for {', '.join(steady)}"] if steady else []
        span = f"from {int(ends[0]):,} to {int(ends[-1]):,} {frame.axis} tokens"
        first_of = frame.points[0]
        workload = join(first_of.setup.model, first_of.demand.prefix, first_of.demand.work)
        text = f"{measure.name} at {load_label(first_of)} {span}: {'; '.join([*parts, *changing])}"
        yield Sentence(
            text=f"{text}{warn(frame.points)}.", kind="trend", about=frame.axis, context=workload
        )


def find_switches(sets: Sequence[Sequence[CellPoint]], what: Fact) -> Iterable[Sentence]:
    """Say what a switch of one fact changes beyond doubt, setup by setup and measure by measure,
    over the loads."""
    groups: dict[tuple[str, ...], list[Pair]] = defaultdict(list)
    every = [point for switch in sets for point in switch]
    names = {
        id(point): name for point, name in zip(every, setups(every, without=(what,)), strict=True)
    }
    for base, *others in sets:
        for point in others:
            workload = _workload_label(base, "" if what == "prefix" else base.demand.prefix)
            named = (
                f" ({point.setup.label} instead of {base.setup.label})"
                if _is_renamed(base, point, what)
                else ""
            )
            change = FACTS[what](base), FACTS[what](point), named
            groups[names[id(point)], workload, point.kind, *change].append((base, point))
    for (name, workload, _, before, after, named), pairs in groups.items():
        other = (f"{what} {after} instead of {before}" if before else after) + named
        for measure in (OUTPUT, TTFT, TPOT, E2E):
            if clauses := _clauses(pairs, measure):
                text = (
                    f"{name} with {other}, at {_loads(pairs)}:"
                    f" {'; '.join(clauses)}{_warned(pairs)}."
                )
                yield Sentence(text=text, kind="switch", about=what, context=workload)


def _is_renamed(base: CellPoint, point: CellPoint, what: Fact) -> bool:
    """Tell whether the user has another name for it, which may stand for more than what was
    switched."""
    return (
        what != "settings"
        and bool(base.setup.label and point.setup.label)
        and base.setup.label != point.setup.label
    )


def find_scaling(scalings: Sequence[Pair]) -> Iterable[Sentence]:
    """Say what more GPUs give at the same loads, and how much of it each of them: see
    pairs.more_gpus()."""
    groups: dict[tuple[str, ...], list[Pair]] = defaultdict(list)
    names = setups([point for pair in scalings for point in pair], without=("parallel",))
    for (few, many), name in zip(scalings, names[1::2], strict=True):
        split = [
            f" ({point.setup.parallel})" if point.setup.parallel else "" for point in (few, many)
        ]
        workload = _workload_label(few, few.demand.prefix)
        groups[
            f"{name}{split[1]} instead of {few.setup.hardware}{split[0]}", workload, few.kind
        ].append((few, many))
    for (change, workload, _), pairs in groups.items():
        of_all = [
            clause for measure in (OUTPUT, TTFT, TPOT, E2E) for clause in _clauses(pairs, measure)
        ]
        if of_all:
            clauses = [*of_all, *_clauses(pairs, PER_GPU)]
            text = f"{change}, at {_loads(pairs)}: {'; '.join(clauses)}{_warned(pairs)}."
            yield Sentence(text=text, kind="scale", about="load", context=workload)


def _workload_label(point: CellPoint, prefix: str) -> str:
    return join(point.setup.model, lengths_label(point), prefix, point.demand.work)


def _loads(pairs: Sequence[Pair]) -> str:
    """Write `concurrency 1 to 64`."""
    return f"{load_word(pairs[0][0])} {spans(sorted({base.load for base, _ in pairs}))}"


def _clauses(pairs: Sequence[Pair], measure: Measure) -> list[str]:
    """Say at which loads `measure` is higher and at which lower, beyond doubt, and by how much."""
    effects: list[tuple[float, Effect]] = []
    for base, point in sorted(pairs, key=lambda pair: pair[0].load):
        change = effect(point, base, OUTPUT if measure is PER_GPU else measure)
        if change is not None:
            share = (base.setup.gpus or 1) / (point.setup.gpus or 1) if measure is PER_GPU else 1.0
            effects.append(
                (base.load, Effect(share * change.ratio, share * change.low, share * change.high))
            )
    texts = []
    for word, up in (("higher", True), ("lower", False)):
        own = [(load, each) for load, each in effects if each.clear and (each.ratio > 1) == up]
        if own:
            every = [load for load, _ in effects]
            at = (
                f" at {ranges([load for load, _ in own], every)}" if len(own) < len(effects) else ""
            )
            sized = sorted((each for _, each in own), key=lambda each: abs(math.log(each.ratio)))
            sizes = " to ".join(dict.fromkeys(each.words for each in (sized[0], sized[-1])))
            texts.append(f"{measure.noun} {sizes} {word}{at}")
    return texts


def _warned(pairs: Iterable[Pair]) -> str:
    return warn([point for pair in pairs for point in pair])


def gpu_against_gpu(ratios: Sequence[Ratio]) -> Iterable[Sentence]:
    """Return each pair of GPUs under each engine: geometric mean and range of the ratios, where
    they point one way, and most of them beyond their intervals; of a measure of which that cannot
    be said, at which loads of a sweep one is ahead.
    """
    pairs = by_key(
        ((ratio.over.setup.gpu, ratio.under.setup.gpu, ratio.over.setup.engine), ratio)
        for ratio in ratios
    )
    for (over, under, engine), own in pairs.items():
        head = f"{over} against {under} with {engine}, all else equal"
        clauses_of = {measure: _ratio(own, measure) for measure in (OUTPUT, TTFT, TPOT, ITL, E2E)}
        if any(clauses_of.values()):
            text = f"{head}: {'; '.join(clause for clause in clauses_of.values() if clause)}"
            yield Sentence(text=f"{text}{_warned(_pairs(own))}.", kind="ratio", about="gpus")
        undecided = [ratio for ratio in own if clauses_of[ratio.measure] is None]
        sweeps = by_key((alike(ratio.over, "load", "version"), ratio) for ratio in undecided)
        for sweep in sweeps.values():
            if len({ratio.over.load for ratio in sweep}) < 2:
                continue
            clauses = [
                clause
                for measure in (OUTPUT, TTFT, TPOT, ITL, E2E)
                for clause in _clauses(
                    _pairs(ratio for ratio in sweep if ratio.measure is measure), measure
                )
            ]
            if clauses:
                first = sweep[0].over
                of = join(first.setup.precision, first.setup.parallel, first.setup.settings)
                head = (
                    f"{first.setup.hardware} against {sweep[0].under.setup.hardware} with"
                    f" {engine}{f' ({of})' if of else ''}"
                )
                text = (
                    f"{head}, at {_loads(_pairs(sweep))}:"
                    f" {'; '.join(clauses)}{_warned(_pairs(sweep))}."
                )
                context = _workload_label(first, first.demand.prefix)
                yield Sentence(text=text, kind="ratio", about="gpus", context=context)


def _pairs(ratios: Iterable[Ratio]) -> list[Pair]:
    return [(ratio.under, ratio.over) for ratio in ratios]


def _ratio(ratios: Sequence[Ratio], measure: Measure) -> str | None:
    """Say the one direction, or how many pairs go in which; None if a single sweep goes both
    ways."""
    own = [ratio for ratio in ratios if ratio.measure is measure]
    effects = [
        each
        for ratio in own
        if (each := effect(ratio.over, ratio.under, measure)) is not None and each.clear
    ]
    if len(effects) <= len(own) / 2:
        return None
    better = sum((each.ratio > 1) == (measure.better == "higher") for each in effects)
    least, most = min(ratio.times for ratio in own), max(ratio.times for ratio in own)
    if len(own) == 1:
        return f"{measure.noun} {effects[0].words} {'higher' if effects[0].ratio > 1 else 'lower'}"
    if 0 < better < len(effects):
        if len({alike(ratio.over, "load", "version") for ratio in own}) == 1:
            return None
        worse = f"worse in {len(effects) - better} (down to {least:.3g}×)"
        return f"{measure.noun} better in {better} pairs of cells (up to {most:.3g}×), {worse}"
    mean = math.exp(sum(math.log(ratio.times) for ratio in own) / len(own))
    side = "better" if mean > 1 else "worse"
    if mean < 1:
        mean, least, most = 1 / mean, 1 / most, 1 / least
    pairs = f"{least:.3g}× to {most:.3g}× over {len(own)} pairs of cells"
    if own[0].over.setup.source == own[0].under.setup.source == "simulated":
        pairs += (
            ", each certain to a factor of"
            f" {median(each.high / each.ratio for each in effects):.2g}"
        )
    return f"{measure.noun} {mean:.3g}× {side} on average ({pairs})"
