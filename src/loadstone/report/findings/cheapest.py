"""Who is cheapest, where prices are given, and whether that is sure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from loadstone.analyse.slo import SURE
from loadstone.core.units import show_number
from loadstone.report.data.frames import DOLLARS, Frame, load_label
from loadstone.report.data.pairs import effect
from loadstone.report.data.points import Point
from loadstone.report.data.statistic import Stat
from loadstone.report.data.wording import joined, show_p
from loadstone.report.findings.leaders import entries
from loadstone.report.findings.sentence import Sentence, doubt, meeting, setup, setups, surely_met, work


def cheapest(frame: Frame) -> Iterable[Sentence]:
    """Of the setups of one model and workload, each at the load at which its output tokens cost least and its bounds
    are met: the cheapest, if it is so beyond the intervals of all others, if its bounds are surely met, and if none
    that may meet them is cheaper; else which cannot be told apart, and how likely each qualifies.
    """
    priced = [point for point in frame.points if point.dollars_output is not None]
    met, meets = meeting(priced)
    least = _least(frame, met)
    where = "in bursts" if frame.mode == "burst" else frame.mode
    head = f"Cheapest output tokens {where} ({joined(work(frame.points[0]), meets, by='; ')}): "
    if len(least) < 2:
        if meets and len(set(setups(frame.points))) > 1:
            only = [f"only {setup(point)}, at {load_label(point)}, {_price(point)}" for point in least]
            text = f"{head}{joined(*only) or 'none'}{_maybe(frame, least)}."
            yield Sentence(text=text, kind="price", about="price")
        return
    first, second, *_ = least
    names = setups(least)
    effects = [effect(first, other, DOLLARS) for other in least[1:]]
    unclear = [
        other
        for other, difference in zip(least[1:], effects, strict=True)
        if difference is None or not difference.clear
    ]
    maybe, text = _maybe(frame, least), head
    if not unclear and effects[0] is not None:
        sure = "" if not maybe else "probably "
        text += f"{sure}{names[0]} at {load_label(first)}, {_price(first)}; {effects[0].words} below the next, "
        text += f"{names[1]} ({_dollars(second.dollars_output)} at {load_label(second)})"
    else:
        alternatives = [
            f"{names[least.index(other)]} ({_dollars(other.dollars_output)} at {load_label(other)})"
            for other in unclear[:3]
        ]
        alternatives += [f"{len(unclear) - 3} more"] if len(unclear) > 3 else []
        text += (
            f"no clear winner. {names[0]} at {load_label(first)} is lowest, {_price(first)}, but not clearly below "
        )
        text += f"{', '.join(alternatives[:-1])}{' and ' if alternatives[1:] else ''}{alternatives[-1]}"
    yield Sentence(text=f"{text}{maybe}{doubt([first, *(unclear or [second])])}.", kind="price", about="price")


def _least(frame: Frame, points: Sequence[Point]) -> list[Point]:
    """Of each setup the cell in which its output tokens cost least; the cheapest first."""
    least: dict[str, Point] = {}
    for at in entries(frame, points, DOLLARS, without=()).values():
        for price, name, point in at:
            if name not in least or price < (DOLLARS.of(least[name]) or 0.0):
                least[name] = point
    return sorted(least.values(), key=lambda point: DOLLARS.of(point) or 0.0)


def _maybe(frame: Frame, least: Sequence[Point]) -> str:
    """What is unsure about the ranking: whether the first meets its bounds, which is the first that surely does, and
    which cheaper cell may meet them after all.
    """
    alternatives = []
    if least and not surely_met(least[0]):
        first = least[0]
        alternatives.append(
            f"{setup(first)} at {load_label(first)} meets its bounds with {show_p(first.p_met or 0.0)}"
        )
        surely = _least(frame, [point for point in frame.points if point.slo_met and surely_met(point)])
        alternatives += [
            f"the cheapest that surely does is {setup(point)} at {load_label(point)} "
            f"({_dollars(point.dollars_output)})"
            for point in surely[:1]
        ] or ["none surely does"]
    top = DOLLARS.of(least[0]) if least else None
    others = [point for point in frame.points if point.slo_met is False and (point.p_met or 0.0) >= 1 - SURE]
    for point in _least(frame, others):
        if top is None or (DOLLARS.of(point) or 0.0) < top:
            alternatives.append(
                f"{setup(point)} at {load_label(point)} ({_dollars(point.dollars_output)}) would be cheaper, and may "
                f"meet them after all ({show_p(point.p_met or 0.0)})"
            )
            break
    return "".join(f"; {each}" for each in alternatives)


def _price(point: Point) -> str:
    """`$0.432 (0.41–0.45) a million, or $0.0533 with input counted, 41.2 tok/s per user`."""
    cost, pace = point.dollars_output, point.tokens_per_s_per_user
    sure = (
        f" ({show_number(cost.low)}–{show_number(cost.high)})" if cost is not None and cost.reach is not None else ""
    )
    return joined(
        f"{_dollars(cost)}{sure} a million",
        f"or {_dollars(point.dollars_total)} with input counted" if point.dollars_total is not None else "",
        f"{show_number(pace)} tok/s per user" if pace is not None else "",
    )


def _dollars(stat: Stat | None) -> str:
    return f"${show_number(stat.value)}" if stat is not None else "-"
