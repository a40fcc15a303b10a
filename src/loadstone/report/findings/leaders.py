"""Say who is ahead: in each measure, at each load or length, on the same hardware; the highest
throughput; and, where prices are given, who is cheapest, and whether that is sure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from loadstone.analyse.slo import SURE
from loadstone.core.groups import by_key
from loadstone.core.units import show_number, show_share
from loadstone.report.data.frames import (
    DOLLARS,
    E2E,
    OUTPUT,
    TOTAL,
    TPOT,
    TTFT,
    Frame,
    Measure,
    best_cells,
    load_label,
)
from loadstone.report.data.pairs import Effect, effect
from loadstone.report.data.points import CellPoint
from loadstone.report.data.series import series_of
from loadstone.report.data.statistic import Estimate
from loadstone.report.data.wording import join
from loadstone.report.findings.sentence import (
    Sentence,
    doubt,
    is_surely_met,
    ranges,
    setup,
    setups,
    spans,
    throughput,
    value,
    warn,
    within_slo,
    work,
)


def leaders(frame: Frame) -> Iterable[Sentence]:
    """Say for each hardware who leads at which x. Contests that the data does not decide are left
    out."""
    measures = (OUTPUT,) if frame.offline else (OUTPUT, TTFT, TPOT, E2E)
    groups = by_key((point.setup.hardware, point) for point in frame.points)
    if len(groups) > 1 and all(len(_names(peers)) == 1 for peers in groups.values()):
        return  # one engine on several machines: ratios say that
    for hardware, peers in groups.items():
        for measure in measures:
            contest = _contest(frame, peers, measure)
            if contest is not None:
                where = f"On {hardware}" if hardware else "Here"
                text, workload = contest
                yield Sentence(
                    text=f"{where}, {text}.", kind="leader", about=frame.section, context=workload
                )


def _names(group: Sequence[CellPoint]) -> set[str]:
    return {series.setup for series in series_of(group, without=("gpu", "gpus"))}


class Win(NamedTuple):
    """Says that `name` is ahead of `other` at `x`, beyond the interval."""

    x: float
    name: str
    effect: Effect
    first: CellPoint
    other: str
    second: CellPoint


def _contest(frame: Frame, group: Sequence[CellPoint], measure: Measure) -> tuple[str, str] | None:
    """Say who wins where, and for which model and workload."""
    xs, wins = contests(frame, group, measure)
    if not wins:
        return None
    best = "highest" if measure.better == "higher" else "lowest"
    side = "above" if measure.better == "higher" else "below"
    unit = " requests/s" if frame.axis == "load" and group[0].kind == "rate" else ""
    clauses = []
    for number, winner in enumerate(dict.fromkeys(win.name for win in wins)):
        won = [win for win in wins if win.name == winner]
        head = f"{winner} has the {best} {measure.noun}" if number == 0 else winner
        place = (
            f"at every {frame.axis_word} measured ({spans(xs)}{unit})"
            if len(won) == len(xs) > 1
            else f"at {frame.axis_word} {ranges([win.x for win in won], xs)}{unit}"
        )
        clauses.append(f"{head} {place}, {_sizes(won, measure, side)}")
    left = [x for x in xs if x not in {win.x for win in wins}]
    if left:
        clauses.append(f"the first two cannot be told apart at {ranges(left, xs)}")
    first = group[0]
    workload = (
        work(first)
        if frame.axis == "load"
        else join(first.setup.model, load_label(first), first.demand.prefix, first.demand.work)
    )
    contested = [point for win in wins for point in (win.first, win.second)]
    return f"{'; '.join(clauses)}{warn(contested)}", workload


def contests(
    frame: Frame,
    group: Sequence[CellPoint],
    measure: Measure,
    without: Collection[str] = ("gpu", "gpus"),
) -> tuple[list[float], list[Win]]:
    """Return the x at which several setups compete, and who is ahead where, beyond the interval.
    `without`: facts in which the group does not differ.
    """
    sign = 1 if measure.better == "lower" else -1
    contested = {
        x: entrants
        for x, entrants in sorted(entries(frame, group, measure, without).items())
        if len(entrants) > 1
    }
    wins: list[Win] = []
    for x, entrants in contested.items():
        (_, name, first), (_, rival, second), *_ = sorted(
            entrants, key=lambda entry: sign * entry[0]
        )
        lead = effect(first, second, measure)
        if lead is not None and lead.clear:
            wins.append(Win(x, name, lead, first, rival, second))
    return list(contested), wins


def entries(
    frame: Frame,
    group: Sequence[CellPoint],
    measure: Measure,
    without: Collection[str] = ("gpu", "gpus"),
) -> dict[float, list[tuple[float, str, CellPoint]]]:
    """List (value, name, point) of each setup at each x, where all was measured; of repeats the
    middle one."""
    by_x: dict[float, dict[str, list[tuple[float, CellPoint]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for point, series in zip(group, series_of(group, without=without), strict=True):
        x, y = frame.x(point), measure.of(point)
        if x is not None and y is not None and not point.failed:
            by_x[x][series.setup].append((y, point))
    return {
        x: [
            (y, name, point)
            for name, repeats in setups.items()
            for y, point in [sorted(repeats, key=lambda entry: entry[0])[(len(repeats) - 1) // 2]]
        ]
        for x, setups in by_x.items()
    }


def _sizes(wins: Sequence[Win], measure: Measure, side: str) -> str:
    """Return effect and interval: of the one load, or of the smallest and the largest lead."""
    ranked = sorted(wins, key=lambda win: abs(win.effect.ratio - 1))
    smallest, largest = ranked[0], ranked[-1]
    if smallest is largest:
        return f"{value(largest.first, measure)}, {largest.effect.words} {side} {largest.other}"
    ends = (f"{win.effect.words} {side} {win.other} at {win.x:g}" for win in (smallest, largest))
    return f"from {' to '.join(ends)}"


def peaks(frame: Frame) -> Iterable[Sentence]:
    """Return the highest throughput of a sweep, on all hardware and on each; by total tokens where
    all points have them.
    """
    rank = TOTAL if all(point.total_tokens_per_s is not None for point in frame.points) else OUTPUT
    met, meets = within_slo(frame.points)
    ranked = list(best_cells(met, setups(met), rank).values())
    if len(ranked) < 2:
        return
    contests = [("", ranked)]
    for hardware in dict.fromkeys(point.setup.hardware for point in ranked):
        local = [point for point in ranked if point.setup.hardware == hardware]
        if local[0] is not ranked[0] and len(local) > 1:
            contests.append((f" on {hardware}", local))
    for where, entered in contests:
        head = f"Highest {frame.mode} throughput{where}{f' ({meets})' if meets else ''}"
        context = work(frame.points[0])
        yield Sentence(
            text=_peak(head, entered, rank), kind="peak", about=frame.section, context=context
        )


def _peak(head: str, ranked: Sequence[CellPoint], rank: Measure) -> str:
    first, second, *_ = ranked
    names = setups(ranked)
    gap = effect(first, second, rank)
    lead = (
        f", {gap.words} above the next,"
        if gap is not None and gap.clear
        else "; not clearly above the next,"
    )
    text = f"{head}: {names[0]} with {throughput(first)} at {load_label(first)}{lead}"
    return f"{text} {names[1]} ({throughput(second)} at {load_label(second)}){doubt(ranked[:2])}."


def cheapest(frame: Frame) -> Iterable[Sentence]:
    """Name the cheapest setup of one model and workload, each at the load at which its output
    tokens cost least and its bounds are met: if it is so beyond the intervals of all others, if its
    bounds are met with SURE or more, and if none that may meet them is cheaper; else say which
    cannot be told apart, and how likely each qualifies.
    """
    priced = [point for point in frame.points if point.dollars.output is not None]
    met, meets = within_slo(priced)
    least = _least(frame, met)
    where = "in bursts" if frame.mode == "burst" else frame.mode
    head, context = (
        f"Cheapest output tokens {where}{f' ({meets})' if meets else ''}: ",
        work(frame.points[0]),
    )
    if len(least) < 2:
        if meets and len(set(setups(frame.points))) > 1:
            only = [
                f"only {setup(point)}, at {load_label(point)}, {_price(point)}" for point in least
            ]
            text = f"{head}{join(*only) or 'none'}{_maybe(frame, least)}."
            yield Sentence(text=text, kind="price", about="price", context=context)
        return
    first, second, *_ = least
    names = setups(least)
    effects = [effect(first, rival, DOLLARS) for rival in least[1:]]
    unclear = [
        rival
        for rival, difference in zip(least[1:], effects, strict=True)
        if difference is None or not difference.clear
    ]
    maybe, text = _maybe(frame, least), head
    if not unclear and effects[0] is not None:
        sure = "" if not maybe else "probably "
        text += (
            f"{sure}{names[0]} at {load_label(first)}, {_price(first)}; {effects[0].words} below"
            " the next, "
        )
        text += f"{names[1]} ({_dollars(second.dollars.output)} at {load_label(second)})"
    else:
        alternatives = [
            f"{names[least.index(rival)]} ({_dollars(rival.dollars.output)} at {load_label(rival)})"
            for rival in unclear[:3]
        ]
        alternatives += [f"{len(unclear) - 3} more"] if len(unclear) > 3 else []
        text += (
            f"no clear winner. {names[0]} at {load_label(first)} is lowest, {_price(first)}, but"
            " not clearly below "
        )
        text += (
            f"{', '.join(alternatives[:-1])}{' and ' if alternatives[1:] else ''}{alternatives[-1]}"
        )
    text = f"{text}{maybe}{doubt([first, *(unclear or [second])])}."
    yield Sentence(text=text, kind="price", about="price", context=context)


def _least(frame: Frame, points: Sequence[CellPoint]) -> list[CellPoint]:
    """Find each setup's cell in which output tokens cost least; the cheapest first."""
    least: dict[str, CellPoint] = {}
    for priced in entries(frame, points, DOLLARS, without=()).values():
        for price, name, point in priced:
            if name not in least or price < (DOLLARS.of(least[name]) or 0.0):
                least[name] = point
    return sorted(least.values(), key=lambda point: DOLLARS.of(point) or 0.0)


def _maybe(frame: Frame, least: Sequence[CellPoint]) -> str:
    """Say what is unsure about the ranking: whether the first meets its bounds, which is the first
    that does with SURE or more, and which cheaper cell may meet them after all.
    """
    alternatives = []
    if least and not is_surely_met(least[0]):
        first = least[0]
        alternatives.append(
            f"{setup(first)} at {load_label(first)} meets its bounds with probability "
            f"{show_share(first.p_met or 0.0)}"
        )
        likely = _least(
            frame, [point for point in frame.points if point.slo_met and is_surely_met(point)]
        )
        alternatives += [
            f"the cheapest that does with {SURE:.0%} or more is {setup(point)} at"
            f" {load_label(point)} ({_dollars(point.dollars.output)})"
            for point in likely[:1]
        ] or [f"none does with {SURE:.0%} or more"]
    top = DOLLARS.of(least[0]) if least else None
    unlikely = [
        point
        for point in frame.points
        if point.slo_met is False and (point.p_met or 0.0) >= 1 - SURE
    ]
    for point in _least(frame, unlikely):
        if top is None or (DOLLARS.of(point) or 0.0) < top:
            alternatives.append(
                f"{setup(point)} at {load_label(point)} ({_dollars(point.dollars.output)}) would be"
                " cheaper, and may meet them after all (probability"
                f" {show_share(point.p_met or 0.0)})"
            )
            break
    return "".join(f"; {clause}" for clause in alternatives)


def _price(point: CellPoint) -> str:
    """Write `$0.432 (0.41–0.45) a million, or $0.0533 with input counted, 41.2 tok/s per user`."""
    cost, pace = point.dollars.output, point.tokens_per_s_per_user
    sure = (
        f" ({show_number(cost.low)}–{show_number(cost.high)})"
        if cost is not None and cost.reach is not None
        else ""
    )
    return join(
        f"{_dollars(cost)}{sure} a million",
        (
            f"or {_dollars(point.dollars.total)} with input counted"
            if point.dollars.total is not None
            else ""
        ),
        f"{show_number(pace)} tok/s per user" if pace is not None else "",
    )


def _dollars(stat: Estimate | None) -> str:
    return f"${show_number(stat.value)}" if stat is not None else "-"
