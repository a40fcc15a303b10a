"""What a change does: longer answers, a shared prefix, another split, another GPU."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median

from loadstone.report.charts.bars import Fact, Ratio
from loadstone.report.charts.frames import E2E, ITL, OUTPUT, TPOT, TTFT, Frame, Measure, load_label
from loadstone.report.findings.effect import effect
from loadstone.report.findings.sentence import Sentence, setup, spans, value, warned
from loadstone.report.points import Point, count

STABLE = 1.15
"""Largest over smallest value, up to which a measure is called steady: twice the repeats' spread of TTFT."""
SUDDEN = 0.7
"""Share of a rise (in the log) that falls into one step, from which the step is named."""


def by_length(frame: Frame) -> Iterable[Sentence]:
    """How TTFT and TPOT go as answers grow: steady, or rising, and where."""
    lines: dict[str, list[Point]] = defaultdict(list)
    for point in frame.points:
        lines[setup(point)].append(point)
    for measure in (TTFT, TPOT):
        steady, said = [], []
        for name, points in lines.items():
            found = ((x, y, point) for point in points if (x := frame.x(point)) and (y := measure.of(point)))
            known = sorted(found, key=lambda entry: entry[0])
            if not 2 <= len(known) == len({x for x, _, _ in known}):
                continue
            (_, first_y, first), (_, last_y, last) = known[0], known[-1]
            low, high = min(y for _, y, _ in known), max(y for _, y, _ in known)
            if high / low <= STABLE:
                steady.append(f"{name} (within {100 * (high / low - 1):.2g} %)")
                continue
            change = effect(last, first, measure)
            if change is None or not change.clear:
                continue
            rise = abs(math.log(last_y / first_y))
            steps = [(abs(math.log(b[1] / a[1])), a[0], b[0], b[1] / a[1]) for a, b in itertools.pairwise(known)]
            step = max(steps)
            where = (
                f", most of it from {count(int(step[1]))} to {count(int(step[2]))} ({step[3]:.3g}×)"
                if len(steps) > 1 and step[0] > SUDDEN * rise
                else ""
            )
            goes = "grows" if last_y > first_y else "falls"
            ends_s = f"{value(first, measure)} to {value(last, measure)}"
            said.append(f"{name}'s {goes} {change.times}, {ends_s}{where}")
        if not steady and not said:
            continue
        ends = sorted({x for point in frame.points if (x := frame.x(point)) is not None})
        parts = [f"steady for {', '.join(steady)}"] if steady else []
        span = f"from {count(int(ends[0]))} to {count(int(ends[-1]))} {frame.axis} tokens"
        text = f"{measure.name} at {load_label(frame.points[0])} {span}: {'; '.join([*parts, *said])}"
        text += f"{warned(frame.points)}."
        yield Sentence(text=text, kind="trend", about=frame.axis)


def switched(found: Sequence[Sequence[Point]], what: Fact) -> Iterable[Sentence]:
    """What a switch of one fact changes, engine by engine and measure by measure, over the loads; only what is beyond
    doubt.
    """
    groups: dict[tuple[str, str, str, str], list[tuple[Point, Point]]] = defaultdict(list)
    for base, *others in found:
        for point in others:
            groups[setup(point), point.kind, getattr(base, what), getattr(point, what)].append((base, point))
    for (name, _, before, after), pairs in groups.items():
        pairs.sort(key=lambda pair: pair[0].load)
        loads = spans([pair[0].load for pair in pairs])
        change = f"{what} {after} instead of {before}" if before else after
        for measure in (OUTPUT, TTFT, TPOT, E2E):
            said = []
            effects = [
                (pair[1].load, each) for pair in pairs if (each := effect(pair[1], pair[0], measure)) is not None
            ]
            clear = [(load, each) for load, each in effects if each.clear]
            for word, up in (("higher", True), ("lower", False)):
                own = [(load, each) for load, each in clear if (each.ratio > 1) == up]
                if own:
                    at = f" at {spans([load for load, _ in own])}" if len(own) < len(effects) else ""
                    sized = sorted((each for _, each in own), key=lambda each: abs(math.log(each.ratio)))
                    sizes = " to ".join(dict.fromkeys(each.words for each in (sized[0], sized[-1])))
                    said.append(f"{measure.noun} {sizes} {word}{at}")
            if said:
                text = f"{name} with {change}, at {pairs[0][0].kind} {loads}: {'; '.join(said)}"
                text += f"{warned([point for pair in pairs for point in pair])}."
                yield Sentence(text=text, kind="switch", about=what)


def gpu_against_gpu(ratios: Sequence[Ratio]) -> Iterable[Sentence]:
    """Each pair of GPUs under each engine: geometric mean and range of the ratios, where they point one way, and most
    of them beyond their intervals.
    """
    pairs: dict[tuple[str, str, str], list[Ratio]] = defaultdict(list)
    for ratio in ratios:
        pairs[ratio.over.gpu, ratio.under.gpu, ratio.over.engine].append(ratio)
    for (over, under, engine), found in pairs.items():
        said = [text for measure in (OUTPUT, TTFT, TPOT, ITL, E2E) if (text := _ratio(found, measure, over, under))]
        if said:
            text = f"{over} against {under} with {engine}, all else equal: {'; '.join(said)}"
            text += f"{warned([point for ratio in found for point in (ratio.over, ratio.under)])}."
            yield Sentence(text=text, kind="ratio", about="gpus")


def _ratio(found: Sequence[Ratio], measure: Measure, over: str, under: str) -> str | None:
    own = [ratio for ratio in found if ratio.measure is measure]
    effects = [each for ratio in own if (each := effect(ratio.over, ratio.under, measure)) is not None and each.clear]
    if len(effects) <= len(own) / 2:
        return None
    better = sum((each.ratio > 1) == (measure.better == "higher") for each in effects)
    least, most = min(ratio.times for ratio in own), max(ratio.times for ratio in own)
    if len(own) == 1:
        return f"{measure.noun} {effects[0].words} {'higher' if effects[0].ratio > 1 else 'lower'}"
    if 0 < better < len(effects):
        worse = f"worse in {len(effects) - better} (down to {least:.3g}×)"
        return f"{measure.noun} better in {better} pairs of cells (up to {most:.3g}×), {worse}"
    mean = math.exp(sum(math.log(ratio.times) for ratio in own) / len(own))
    side = "better" if mean > 1 else "worse"
    if mean < 1:
        mean, least, most = 1 / mean, 1 / most, 1 / least
    pairs = f"{least:.3g}× to {most:.3g}× over {len(own)} pairs of cells"
    if own[0].over.source == own[0].under.source == "simulated":
        pairs += f", each sure to a factor of {median(each.high / each.ratio for each in effects):.2g}"
    return f"{measure.noun} {mean:.3g}× {side} on average ({pairs})"
