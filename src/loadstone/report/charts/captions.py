"""Writes the captions of pictures: units, definitions, how many requests a point is of, what its
bar means."""

import math
from collections.abc import Sequence

from loadstone.core.groups import by_key
from loadstone.core.units import show_load, show_number
from loadstone.report.charts.theme import Row, seconds_unit
from loadstone.report.data.frames import Frame, Measure, is_bunched
from loadstone.report.data.points import CellPoint
from loadstone.report.data.statistic import REPEATS
from loadstone.report.data.wording import join, requests_a

BESIDE = "labelled where there is room"
WHOSE = ("label:N", "series")
"""What a tooltip of every point tells first."""
CROSSED = "×: the load carries a warning"


def unit_of(measure: Measure, points: Sequence[CellPoint]) -> tuple[str, float]:
    """Return milliseconds for latencies below two seconds."""
    if measure.unit != "s":
        return measure.unit, 1.0
    values = (value for _, value in measure.values(points))
    return seconds_unit(max(values, default=math.inf))


def name_statistic(points: Sequence[CellPoint], measure: Measure) -> str:
    """Write `, median`, or mean, where values are one of these."""
    stats = (measure.stat(point) for point in points)
    kinds = {stat.which for stat in stats if stat is not None} - {"rate"}
    return f", {' or '.join(sorted(kinds, reverse=True))}" if kinds else ""


def definition(points: Sequence[CellPoint], measure: Measure) -> str:
    loop = "closed loop" if points[0].kind == "concurrency" else "open loop"
    since = " or ".join(sorted({point.since for point in points}))
    return measure.definition.format(since=f"{since} ({loop})", window=points[0].measured_over)


def count_requests(measure: Measure, point: CellPoint) -> int | None:
    """Return requests that a value is of: those of a pooled one are not its gaps."""
    stat = None if measure.pooled else measure.stat(point)
    return stat.n if stat is not None and stat.n is not None else point.ok


def sample_words(points: Sequence[CellPoint], measure: Measure) -> str:
    """Say how many requests a point is made of, and what its bar means."""
    bunched = sum(is_bunched(point, measure) for point in points)
    return join(
        requests_a("point", (count_requests(measure, point) for point in points)),
        _explain_bars(points, measure),
        " and ".join(sorted({point.setup.source for point in points})),
        CROSSED if not all(point.trusted for point in points) else "",
        f"left out: {bunched} point{'s' * (bunched > 1)} whose tokens arrived together"
        if bunched
        else "",
        by="; ",
    )


def _explain_bars(points: Sequence[CellPoint], measure: Measure) -> str:
    stats = [(point, measure.stat(point)) for point in points]
    kinds = [(point, stat.level) for point, stat in stats if stat is not None]
    if not kinds:
        return "no interval: one number per load"
    levels = sorted({level for _, level in kinds if level is not None})
    bare = [point for point, level in kinds if level is None]
    if not bare:
        why = ""
    elif measure.pooled:
        why = "tokens of all requests are pooled"
    else:
        why = join(
            "other tools' summaries have none" if any(point.sums for point in bare) else "",
            "" if all(point.sums for point in bare) else "too few generations of requests",
            by="; ",
        )
    if not levels:
        return f"no interval: {why}"
    names = (level if level == REPEATS else f"{level} interval" for level in levels)
    absent = f", none at {len(bare)} of {len(kinds)} points: {why}" if bare else ""
    return f"bars: {' or '.join(names)}{absent}"


def whose(frame: Frame, rows: Sequence[Row]) -> str:
    """Write the frame's words, and the rows' series where no legend names it, since only one is
    left."""
    labels = {row["label"] for row in rows}
    if len(labels) > 1:
        return frame.words
    series = (word for word in labels.pop().split(" · ") if "not stated" not in word)
    return join(*dict.fromkeys([*frame.words.split(" · "), *series]), by=" · ")


def spoken(rows: Sequence[Row], unit: str) -> str:
    """Return the lines in words, for those who do not see them."""
    texts = []
    for name, line in list(by_key((row["label"], row) for row in rows).items())[:12]:
        line.sort(key=lambda row: row["x"])
        first, last = line[0], line[-1]
        texts.append(
            f"{name}: {show_number(first['y'])} {unit} at {show_load(float(first['x']))} to "
            f"{show_number(last['y'])} at {show_load(float(last['x']))}"
        )
    return "; ".join(texts)
