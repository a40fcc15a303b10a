"""Who is cheapest, where prices are given, and whether that is sure."""

from __future__ import annotations

from collections.abc import Iterable

from loadstone.report.charts.frames import DOLLARS, Frame, load_label
from loadstone.report.findings.effect import effect
from loadstone.report.findings.leaders import entries
from loadstone.report.findings.sentence import Sentence, lengths, setups
from loadstone.report.points import Point
from loadstone.report.stats import Stat
from loadstone.units import show_number


def cheapest(frame: Frame) -> Iterable[Sentence]:
    """Of the setups of one model and workload, each at the load at which its output tokens cost least: the cheapest,
    if it is so beyond the intervals of all others; else which cannot be told apart.
    """
    least: dict[str, Point] = {}
    for at in entries(frame, frame.points, DOLLARS, without=()).values():
        for price, name, point in at:
            if name not in least or price < (DOLLARS.of(least[name]) or 0.0):
                least[name] = point
    if len(least) < 2:
        return
    ranked = sorted(least.values(), key=lambda point: DOLLARS.of(point) or 0.0)
    first, second, *_ = ranked
    names = setups(ranked)
    effects = [effect(first, other, DOLLARS) for other in ranked[1:]]
    unclear = [other for other, found in zip(ranked[1:], effects, strict=True) if found is None or not found.clear]
    text = f"Cheapest per million output tokens ({_work(frame)}): "
    if not unclear and effects[0] is not None:
        text += f"{names[0]} at {load_label(first)} with {_price(first)}, {effects[0].words} below the next, "
        text += f"{names[1]} ({_dollars(second.dollars_output)} at {load_label(second)})"
    else:
        said = [
            f"{names[ranked.index(other)]} ({_dollars(other.dollars_output)} at {load_label(other)})"
            for other in unclear[:3]
        ]
        said += [f"{len(unclear) - 3} more"] if len(unclear) > 3 else []
        text += f"none is surely so. {names[0]} at {load_label(first)} has {_price(first)}, which this data cannot "
        text += f"tell from {', '.join(said[:-1])}{' and ' if said[1:] else ''}{said[-1]}"
    compared = [first, *(unclear or [second])]
    doubtful = sum(not point.trusted for point in compared)
    if doubtful:
        text += f"; {doubtful} of these {len(compared)} cells carr{'ies' if doubtful == 1 else 'y'} a warning"
    yield Sentence(text=text + ".", kind="price", about="price")


def _work(frame: Frame) -> str:
    point = frame.points[0]
    return ", ".join(part for part in (point.model, lengths(point), point.prefix) if part)


def _price(point: Point) -> str:
    """`$0.432 (0.41–0.45), $0.0533 of input and output, 41.2 tok/s per user`."""
    parts = [_dollars(point.dollars_output)]
    if point.dollars_output is not None and point.dollars_output.reach is not None:
        parts[0] += f" ({show_number(point.dollars_output.low)}–{show_number(point.dollars_output.high)})"
    if point.dollars_total is not None:
        parts.append(f"{_dollars(point.dollars_total)} of input and output")
    if point.tokens_per_s_per_user is not None:
        parts.append(f"{show_number(point.tokens_per_s_per_user)} tok/s per user")
    return ", ".join(parts)


def _dollars(stat: Stat | None) -> str:
    return f"${show_number(stat.value)}" if stat is not None else "-"
