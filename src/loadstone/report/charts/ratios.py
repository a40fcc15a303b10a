"""GPU against GPU: ratios of cells that differ in their GPU alone, and a picture for each pair of GPUs."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from loadstone.report.charts.marks import CROSSED, crossed
from loadstone.report.charts.theme import WIDTH, Figure, Row, data, figure, shades, wide
from loadstone.report.data.effect import Effect, effect
from loadstone.report.data.frames import E2E, OUTPUT, TTFT, Measure, load_label, pace, unsettled
from loadstone.report.data.points import Point, alike
from loadstone.report.data.series import common, lengths_label, series_of
from loadstone.report.data.wording import count, joined

ROWS = 24
"""Rows beyond these are left to the table."""
_LANE = 11
"""Height of a measure's own part of a row, so that no interval lies on another."""


class Ratio(msgspec.Struct, frozen=True):
    """How many times better `over` does than `under`: throughput divided, latency the other way round."""

    over: Point
    under: Point
    measure: Measure
    times: float

    @property
    def effect(self) -> Effect | None:
        """`times` with its interval, where that is known."""
        found = effect(self.over, self.under, self.measure)
        return found.inverse if found is not None and self.measure.better == "lower" else found


def gpu_ratios(points: Sequence[Point]) -> list[Ratio]:
    """All pairs of cells that differ in their GPU alone, the better GPU (by its throughputs) over the other; without
    the ratios of queues that may have grown.
    """
    groups: dict[Any, dict[str, Point]] = defaultdict(dict)
    for point in points:
        if not point.gpu:
            continue
        groups[alike(point, "gpu", "version")].setdefault(point.gpu, point)
    wins: dict[tuple[str, str], float] = defaultdict(float)
    for group in groups.values():
        for a, b in itertools.permutations(group.values(), 2):
            if a.output_tokens_per_s and b.output_tokens_per_s:
                wins[a.gpu, b.gpu] += math.log(a.output_tokens_per_s / b.output_tokens_per_s)
    found = []
    for group in groups.values():
        for (over, under), sum_log in wins.items():
            if sum_log < 0 or over not in group or under not in group or (sum_log == 0 and over > under):
                continue
            for measure in (OUTPUT, TTFT, pace((group[over], group[under])), E2E):
                if unsettled(group[over], measure) or unsettled(group[under], measure):
                    continue
                much, less = measure.of(group[over]), measure.of(group[under])
                if much and less and much > 0 and less > 0:
                    times = much / less if measure.better == "higher" else less / much
                    found.append(Ratio(group[over], group[under], measure, times))
    return found


UNSETTLED = "TTFT and E2E of cells whose queue grew are left out: they grow with the length of the cell"


def left_out(ratios: Iterable[Ratio]) -> bool:
    """Whether some latencies of these pairs are not there: see unsettled()."""
    return any(unsettled(point, TTFT) for ratio in ratios for point in (ratio.over, ratio.under))


def heaviest(ratios: Sequence[Ratio]) -> list[Ratio]:
    """Of each sweep the highest load that both have, and of which no latency is left out if there is such a one."""
    return _at_end(ratios, 1)


def lightest(ratios: Sequence[Ratio]) -> list[Ratio]:
    """The lowest such load."""
    return _at_end(ratios, -1)


def _at_end(ratios: Sequence[Ratio], sign: Literal[1, -1]) -> list[Ratio]:
    tops: dict[Any, tuple[bool, float]] = {}

    def place(ratio: Ratio) -> tuple[bool, float]:
        return not left_out([ratio]), sign * ratio.over.load

    def sweep(ratio: Ratio) -> tuple[Any, ...]:
        return ratio.under.gpu, *alike(ratio.over, "load")

    for ratio in ratios:
        tops[sweep(ratio)] = max(tops.get(sweep(ratio), place(ratio)), place(ratio))
    return [ratio for ratio in ratios if place(ratio) == tops[sweep(ratio)]]


def ratio_figures(ratios: Sequence[Ratio]) -> list[Figure]:
    """A picture for each pair of GPUs: a row for each model, number of GPUs and length; a mark for each measure."""
    import altair as alt

    pairs: dict[tuple[str, str], list[Ratio]] = defaultdict(list)
    for ratio in heaviest(ratios):
        pairs[ratio.over.gpu, ratio.under.gpu].append(ratio)
    made = []
    for (over, under), found in pairs.items():
        names = [series.label for series in series_of([ratio.over for ratio in found], without=("gpu",))]
        loads, lengths = ({of(ratio.over) for ratio in found} for of in (load_label, lengths_label))
        placed: list[tuple[Any, Row]] = []
        for ratio, name in zip(found, names, strict=True):
            point = ratio.over
            row = joined(
                name if name != over else "",
                load_label(point) if len(loads) > 1 else "",
                f"{count(point.output_tokens)} out" if len(lengths) > 1 and point.output_tokens else "",
                by=" · ",
            )
            place = (name, point.kind, point.load, point.near_output or 0)
            shown_as: Row = {"row": row or over, "measure": ratio.measure.name, "times": ratio.times}
            if (known := ratio.effect) is not None:
                shown_as |= {"low": known.low, "high": known.high}
            doubtful = not (point.trusted and ratio.under.trusted)
            placed.append((place, shown_as | {"warned": True} if doubtful else shown_as))
        order = list(dict.fromkeys(row["row"] for _, row in sorted(placed, key=lambda entry: entry[0])))
        shown = [row for _, row in placed if row["row"] in order[:ROWS]]
        measures = list(dict.fromkeys(row["measure"] for row in shown))
        log = wide([row[name] for row in shown for name in ("times", "low", "high") if name in row], 8)
        x_scale = alt.Scale(type="log", nice=False, padding=14) if log else alt.Scale(zero=False, padding=14)
        x = alt.X("times:Q", title=f"{over} over {under} (times)", scale=x_scale)
        y = alt.Y("row:N", title=None, sort=order, axis=alt.Axis(labelLimit=400, grid=True))
        lane = alt.YOffset("measure:N", sort=measures, scale=alt.Scale(paddingOuter=0.7))
        base = alt.Chart(data(shown)).encode(
            y=y,
            yOffset=lane,
            color=alt.Color("measure:N", scale=shades(measures), legend=alt.Legend(title=None, columns=1)),
        )
        bars = (
            base.transform_filter("isValid(datum.low)").mark_rule(opacity=0.55).encode(x=alt.X("low:Q"), x2="high:Q")
        )
        marks = base.mark_point(size=110, opacity=0.95).encode(
            x=x,
            shape=alt.Shape("measure:N", scale=alt.Scale(domain=measures), legend=alt.Legend(title=None, columns=1)),
            tooltip=["row:N", "measure:N", alt.Tooltip("times:Q", format=".3~g")],
        )
        even = alt.Chart(data([{"times": 1}])).mark_rule(color="#777777", strokeDash=[3, 3]).encode(x="times:Q")
        beyond = f"; {len(order) - ROWS} more rows are in the table" if len(order) > ROWS else ""
        words = common([ratio.over for ratio in found], without=("gpu",))
        words = [
            f"{ratio.over.gpus} GPU{'s' * (ratio.over.gpus != 1)} each" if part == ratio.over.hardware else part
            for part in words
        ]
        made.append(
            figure(
                f"gpus-{over}-{under}",
                f"{over} against {under}",
                [
                    " · ".join(words),
                    "Throughput: ratio; latencies: inverse ratio, so that right is better for all" + beyond,
                    "At the highest load that both keep up with; model, engine, GPU count and lengths are the same",
                    joined(
                        f"bars: {interval_words(found)}, and how much repeats differ"
                        if any("low" in row for row in shown)
                        else "no interval: too few generations of requests",
                        CROSSED if any("warned" in row for row in shown) else "",
                        UNSETTLED if left_out(found) else "",
                        by="; ",
                    ),
                ],
                (even + bars + crossed(marks, shown, x, y, yOffset=lane)).properties(
                    width=WIDTH - 100, height=max(100, _LANE * len(measures) * min(len(order), ROWS))
                ),
                section="gpus",
                summary=f"{over} over {under}: "
                + "; ".join(f"{row['row']} {row['measure']} {row['times']:.2f}×" for row in shown[:12]),
            )
        )
    return made


def interval_words(ratios: Iterable[Ratio]) -> str:
    """Where the intervals of these ratios come from."""
    predicted = {point.source == "simulated" for ratio in ratios for point in (ratio.over, ratio.under)}
    return joined(
        "sampling where the spread is known" if False in predicted else "",
        "for predictions the model's own, 80 %" if True in predicted else "",
        by="; ",
    )
