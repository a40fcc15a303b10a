"""Side by side: cells that differ in one thing alone, and bars of their values."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Literal

from loadstone.report.charts.curves import unit_of
from loadstone.report.charts.theme import WIDTH, Figure, Row, data, figure, shades
from loadstone.report.data.frames import Measure, load_label
from loadstone.report.data.points import Point, alike
from loadstone.report.data.series import common, lengths_label, series_of
from loadstone.report.data.wording import joined, requests_a

ROWS = 24
"""Bars beyond these are left to the table."""
NEAR = 0.1
"""Lengths that differ by less are the same: a shared prefix is seldom cut to the token."""

_SPLIT = re.compile(r"(tp|pp|dp|ep|fleet of )(\d+)")

Fact = Literal["prefix", "parallel", "context", "settings"]


def switches(points: Sequence[Point], fact: Fact) -> list[list[Point]]:
    """All sets of points that differ in `fact` alone, each of its values once, by their values.

    Of prefixes, input lengths that nearly are the same are taken to be.
    """
    groups: dict[Any, list[Point]] = defaultdict(list)
    for point in points:
        groups[alike(point, fact, "near_input", "near_output")].append(point)
    found = []
    for group in groups.values():
        for base in _of_like_lengths(group, fact != "prefix"):
            chosen = {getattr(point, fact): point for point in reversed(base)}
            if len(chosen) > 1:
                found.append([chosen[value] for value in sorted(chosen)])
    return found


def more_gpus(points: Sequence[Point]) -> list[tuple[Point, Point]]:
    """(fewer, more): cells that differ in their number of GPUs alone and in what follows from it, one kind of split
    that goes further; the next larger number of each kind.
    """
    groups: dict[Any, dict[tuple[int, str], Point]] = defaultdict(dict)
    for point in points:
        if point.gpus:
            groups[alike(point, "gpus", "parallel")].setdefault((point.gpus, point.parallel), point)
    found = []
    for group in groups.values():
        for (few, split), point in group.items():
            larger: dict[str, tuple[int, Point]] = {}
            for (many, other), more in sorted(group.items(), key=lambda entry: entry[0]):
                kinds = _further(split, other)
                if many > few and kinds is not None:
                    larger.setdefault(kinds, (many, more))
            found += [(point, more) for _, more in larger.values()]
    return found


def _further(split: str, other: str) -> str | None:
    """The kind of split in which `other` differs; "" where nothing is told of either, None where they differ in more.
    Experts are dealt out as the rest is.
    """
    told, others = (dict(_SPLIT.findall(text)) for text in (split, other))
    if bool(told) != bool(others):
        return None
    kinds = {kind for kind in (*told, *others) if told.get(kind, "1") != others.get(kind, "1")} - {"ep"}
    return "".join(kinds) if len(kinds) < 2 else None


def _of_like_lengths(group: Sequence[Point], exactly: bool) -> list[list[Point]]:
    sets: list[list[Point]] = []
    for point in group:
        for known in sets:
            if _near(known[0].input_tokens, point.input_tokens, exactly) and _near(
                known[0].output_tokens, point.output_tokens, exactly
            ):
                known.append(point)
                break
        else:
            sets.append([point])
    return sets


def _near(a: int | None, b: int | None, exactly: bool) -> bool:
    if a is None or b is None or exactly:
        return a == b
    return abs(a - b) <= NEAR * max(a, b)


def side_by_side(
    sets: Sequence[Sequence[Point]], measure: Measure, fact: Fact, what: str, *, none: str
) -> Figure | None:
    """A group of bars for each set of switches(), a bar for each value of what was switched.

    `what`: that in words; `none`: what it is called where there is none of it.
    """
    import altair as alt

    every = [point for switched in sets for point in switched]
    if not every:
        return None
    unit, scale = unit_of(measure, every)
    names = [series.label for series in series_of(every, without=(fact,))]
    loads = {(point.kind, point.load) for point in every}
    rows: list[Row] = []
    for point, name in zip(every, names, strict=True):
        if (y := measure.of(point)) is not None:
            named = joined(name, load_label(point) if len(loads) > 1 else "", by=" · ")
            value = getattr(point, fact) or none
            row = {"set": named, "value": value, "y": y * scale, "order": point.load, "n": point.ok}
            rows.append(row if point.trusted else row | {"warned": True})
    rows = rows[: 2 * ROWS]
    if not rows:
        return None
    values = sorted({row["value"] for row in rows}, key=lambda value: (value != none, value))
    ordered = sorted(rows, key=lambda row: (row["set"].partition(" · ")[0], row["order"]))
    order = list(dict.fromkeys(row["set"] for row in ordered))
    title = f"{measure.name} ({unit})"
    base = alt.Chart(data(rows)).encode(
        y=alt.Y("set:N", title=None, sort=order, axis=alt.Axis(labelLimit=240)),
        yOffset=alt.YOffset("value:N", sort=values),
    )
    bars = base.mark_bar().encode(
        x=alt.X("y:Q", title=title, axis=alt.Axis(tickCount=5)),
        color=alt.Color("value:N", scale=shades(values), legend=alt.Legend(title=None)),
        opacity=alt.condition("datum.warned", alt.value(0.4), alt.value(1)),
        tooltip=[
            "set:N",
            "value:N",
            alt.Tooltip("y:Q", title=title, format=".4~g"),
            alt.Tooltip("n:Q", title="requests"),
        ],
    )
    texts = base.mark_text(align="left", dx=4, fontSize=12).encode(x="y:Q", text=alt.Text("y:Q", format=".4~g"))
    height = max(120, len(order) * (18 * len(values) + 12))
    lengths = {lengths_label(point) for point in every if point.prefix == ""}
    return figure(
        f"{fact}-{measure.key}",
        f"{measure.name}: {what}",
        [
            joined(
                *common(every, without=(fact,)),
                lengths.pop() if len(lengths) == 1 else "",
                load_label(every[0]) if len(loads) == 1 else "",
                by=" · ",
            ),
            measure.definition.format(since=every[0].since, window=every[0].window),
            joined(
                requests_a("bar", (point.ok for point in every)),
                "intervals are in the table",
                "pale: the cell carries a warning" if any("warned" in row for row in rows) else "",
                by="; ",
            ),
        ],
        (bars + texts).properties(width=WIDTH - 60, height=height),
        section=fact,
        summary=f"{measure.name} in {unit}, {what}: "
        + "; ".join(f"{row['set']} {row['value']} {row['y']:.4g}" for row in rows[:12]),
    )
