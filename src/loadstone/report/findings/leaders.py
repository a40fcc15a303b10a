"""Who is ahead: of each measure, at each load or length, on the same hardware; and the highest throughput of all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from loadstone.report.data.frames import E2E, OUTPUT, TOTAL, TPOT, TTFT, Frame, Measure, load_label
from loadstone.report.data.pairs import Effect, effect
from loadstone.report.data.points import Point
from loadstone.report.data.series import series_of
from loadstone.report.data.wording import joined
from loadstone.report.findings.sentence import (
    Sentence,
    doubt,
    meeting,
    ranges,
    setups,
    spans,
    throughput,
    value,
    warned,
    work,
)


def leaders(frame: Frame) -> Iterable[Sentence]:
    """For each hardware: who leads at which x. Contests that the data does not decide are left out."""
    measures = (OUTPUT,) if frame.offline else (OUTPUT, TTFT, TPOT, E2E)
    groups: dict[str, list[Point]] = defaultdict(list)
    for point in frame.points:
        groups[point.hardware].append(point)
    if len(groups) > 1 and all(len(_names(group)) == 1 for group in groups.values()):
        return  # one engine on several machines: ratios say that
    for hardware, group in groups.items():
        for measure in measures:
            contest = _contest(frame, group, measure)
            if contest is not None:
                where = f"On {hardware}" if hardware else "Here"
                yield Sentence(text=f"{where}, {contest}.", kind="leader", about=frame.section)


def _names(group: Sequence[Point]) -> set[str]:
    return {series.setup for series in series_of(group, without=("gpu", "gpus"))}


class _Win(NamedTuple):
    """At `x` `name` is ahead of `other` beyond the interval."""

    x: float
    name: str
    effect: Effect
    first: Point
    other: str
    second: Point


def _contest(frame: Frame, group: Sequence[Point], measure: Measure) -> str | None:
    sign = 1 if measure.better == "lower" else -1
    at = {x: each for x, each in sorted(entries(frame, group, measure).items()) if len(each) > 1}
    wins: list[_Win] = []
    for x, each in at.items():
        (_, name, first), (_, other, second), *_ = sorted(each, key=lambda entry: sign * entry[0])
        lead = effect(first, second, measure)
        if lead is not None and lead.clear:
            wins.append(_Win(x, name, lead, first, other, second))
    if not wins:
        return None
    xs = list(at)
    best = "highest" if measure.better == "higher" else "lowest"
    side = "above" if measure.better == "higher" else "below"
    unit = " requests/s" if frame.axis == "load" and group[0].kind == "rate" else ""
    clauses = []
    for number, winner in enumerate(dict.fromkeys(win.name for win in wins)):
        own = [win for win in wins if win.name == winner]
        head = f"{winner} has the {best} {measure.noun}" if number == 0 else winner
        place = (
            f"at every {frame.axis_word} measured ({spans(xs)}{unit})"
            if len(own) == len(xs) > 1
            else f"at {frame.axis_word} {ranges([win.x for win in own], xs)}{unit}"
        )
        clauses.append(f"{head} {place}, {_sizes(own, measure, side)}")
    left = [x for x in xs if x not in {win.x for win in wins}]
    if left:
        clauses.append(f"the first two cannot be told apart at {ranges(left, xs)}")
    first = group[0]
    workload = (
        work(first) if frame.axis == "load" else joined(first.model, load_label(first), first.prefix, first.work)
    )
    contested = [point for win in wins for point in (win.first, win.second)]
    return f"{'; '.join(clauses)} ({workload}){warned(contested)}"


def entries(
    frame: Frame, group: Sequence[Point], measure: Measure, without: Collection[str] = ("gpu", "gpus")
) -> dict[float, list[tuple[float, str, Point]]]:
    """(value, name, point) of each setup at each x. Of repeats the one in the middle: they do not compete."""
    by_x: dict[float, dict[str, list[tuple[float, Point]]]] = defaultdict(lambda: defaultdict(list))
    for point, series in zip(group, series_of(group, without=without), strict=True):
        x, y = frame.x(point), measure.of(point)
        if x is not None and y is not None:
            by_x[x][series.setup].append((y, point))
    return {
        x: [
            (y, name, point)
            for name, repeats in setups.items()
            for y, point in [sorted(repeats, key=lambda entry: entry[0])[(len(repeats) - 1) // 2]]
        ]
        for x, setups in by_x.items()
    }


def _sizes(own: Sequence[_Win], measure: Measure, side: str) -> str:
    """Effect and interval: of the one load, or of the smallest and the largest lead."""
    ranked = sorted(own, key=lambda win: abs(win.effect.ratio - 1))
    least, most = ranked[0], ranked[-1]
    if least is most:
        return f"{value(most.first, measure)}, {most.effect.words} {side} {most.other}"
    ends = (f"{win.effect.words} {side} {win.other} at {win.x:g}" for win in (least, most))
    return f"from {' to '.join(ends)}"


def peaks(frame: Frame) -> Iterable[Sentence]:
    """The highest throughput of a sweep, on all hardware and on each; by total tokens where all points have them."""
    rank = TOTAL if all(point.total_tokens_per_s is not None for point in frame.points) else OUTPUT
    best: dict[str, tuple[float, Point]] = {}
    met, meets = meeting(frame.points)
    for name, point in zip(setups(met), met, strict=True):
        much = rank.of(point)
        if much is not None and much > best.get(name, (0.0, point))[0]:
            best[name] = much, point
    if len(best) < 2:
        return
    ranked = [point for _, point in sorted(best.values(), key=lambda entry: -entry[0])]
    contests = [("", ranked)]
    for hardware in dict.fromkeys(point.hardware for point in ranked):
        own = [point for point in ranked if point.hardware == hardware]
        if own[0] is not ranked[0] and len(own) > 1:
            contests.append((f" on {hardware}", own))
    for where, entered in contests:
        head = f"Highest {frame.mode} throughput{where} ({joined(work(frame.points[0]), meets, by='; ')})"
        yield Sentence(text=_peak(head, entered, rank), kind="peak", about=frame.section)


def _peak(head: str, ranked: Sequence[Point], rank: Measure) -> str:
    first, second, *_ = ranked
    names = setups(ranked)
    gap = effect(first, second, rank)
    lead = f", {gap.words} above the next," if gap is not None and gap.clear else "; not clearly above the next,"
    text = f"{head}: {names[0]} with {throughput(first)} at {load_label(first)}{lead}"
    return f"{text} {names[1]} ({throughput(second)} at {load_label(second)}){doubt(ranked[:2])}."
