"""Who is cheapest, where prices are given, and whether that is sure."""

from __future__ import annotations

from collections.abc import Iterable

from loadstone.report.charts.frames import DOLLARS, Frame, load_label
from loadstone.report.effect import effect
from loadstone.report.findings.leaders import entries
from loadstone.report.findings.sentence import Sentence, doubt, meeting, setup, setups, work
from loadstone.report.points import Point
from loadstone.report.stats import Stat
from loadstone.report.words import joined
from loadstone.units import show_number


def cheapest(frame: Frame) -> Iterable[Sentence]:
    """Of the setups of one model and workload, each at the load at which its output tokens cost least and its bounds
    are met: the cheapest, if it is so beyond the intervals of all others; else which cannot be told apart.
    """
    least: dict[str, Point] = {}
    met, meets = meeting([point for point in frame.points if point.dollars_output is not None])
    for at in entries(frame, met, DOLLARS, without=()).values():
        for price, name, point in at:
            if name not in least or price < (DOLLARS.of(least[name]) or 0.0):
                least[name] = point
    where = "in bursts" if frame.mode == "burst" else frame.mode
    head = f"Cheapest output tokens {where} ({joined(work(frame.points[0]), meets, by='; ')}): "
    if len(least) < 2:
        if meets and len(set(setups(frame.points))) > 1:
            only = [f"only {setup(point)}, at {load_label(point)}, {_price(point)}" for point in least.values()]
            yield Sentence(text=f"{head}{joined(*only) or 'none'}.", kind="price", about="price")
        return
    ranked = sorted(least.values(), key=lambda point: DOLLARS.of(point) or 0.0)
    first, second, *_ = ranked
    names = setups(ranked)
    effects = [effect(first, other, DOLLARS) for other in ranked[1:]]
    unclear = [other for other, found in zip(ranked[1:], effects, strict=True) if found is None or not found.clear]
    text = head
    if not unclear and effects[0] is not None:
        text += f"{names[0]} at {load_label(first)}, {_price(first)}; {effects[0].words} below the next, "
        text += f"{names[1]} ({_dollars(second.dollars_output)} at {load_label(second)})"
    else:
        said = [
            f"{names[ranked.index(other)]} ({_dollars(other.dollars_output)} at {load_label(other)})"
            for other in unclear[:3]
        ]
        said += [f"{len(unclear) - 3} more"] if len(unclear) > 3 else []
        text += (
            f"no clear winner. {names[0]} at {load_label(first)} is lowest, {_price(first)}, but not clearly below "
        )
        text += f"{', '.join(said[:-1])}{' and ' if said[1:] else ''}{said[-1]}"
    yield Sentence(text=f"{text}{doubt([first, *(unclear or [second])])}.", kind="price", about="price")


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
