"""Which pictures a set of points asks for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Literal

import msgspec

from loadstone.report.charts.bands import predicted, predictions
from loadstone.report.charts.bars import ratio_figures, side_by_side
from loadstone.report.charts.lines import against, pareto, price_by_pace, trade_off
from loadstone.report.charts.theme import SEQUENCE, SHAPES, Figure
from loadstone.report.data.frames import (
    BATCH_S,
    E2E,
    ENERGY,
    ITL,
    OUTPUT,
    PER_USER,
    TOTAL,
    TPOT,
    TTFT,
    Frame,
    Measure,
    frames,
    outliers,
    pace,
)
from loadstone.report.data.pairs import gpu_ratios, switches
from loadstone.report.data.points import Point
from loadstone.report.data.series import Series
from loadstone.report.data.wording import joined

MAX_FIGURES = 120
MAX_LINES = 24
"""Series in one picture; a frame with more, or with more variants than there are looks for, is cut to those with the
most points, of these the fastest."""

_SWITCHED: tuple[tuple[Literal["prefix", "parallel"], str, str, tuple[Measure, ...]], ...] = (
    ("prefix", "shared prefix or not", "no prefix shared", (OUTPUT, TTFT, TPOT, E2E)),
    ("parallel", "by parallelism", "not stated", (OUTPUT, TTFT, TPOT, ITL)),
)
"""What may differ alone, in a title, what it is called where there is none, and the measures that are drawn."""


def figures(points: Sequence[Point]) -> list[Figure]:
    """All pictures of these points, at most MAX_FIGURES, in the order of a report."""
    made = list(islice((figure for figure in _all(points) if figure is not None), MAX_FIGURES))
    keys: dict[str, int] = defaultdict(int)
    for figure in made:
        keys[figure.key] += 1
        if keys[figure.key] > 1:
            figure.key += f"-{keys[figure.key]}"
    return made


def _all(points: Sequence[Point]) -> Iterator[Figure | None]:
    """None for each picture that would have too little in it."""
    sweeps, by_length, by_model = _framed(points)
    served = [frame for frame in sweeps if not frame.offline]
    for frame in served:
        yield from _served(frame)
    for frame in served:
        for measure in (TTFT, TPOT, ITL, E2E, OUTPUT, ENERGY):
            yield from _line(frame, measure)
    for frame in sweeps:
        if frame.mode != "online":
            yield trade_off(frame, BATCH_S, _widest(frame), section="offline", key=f"{frame.mode}-throughput-latency")
            for measure in (_widest(frame), BATCH_S):
                if frame.offline or measure is not OUTPUT:
                    yield from _line(frame, measure)
    for frame in by_length:
        if frame.offline and not _full(frame):
            continue
        measures = (_widest(frame), BATCH_S) if frame.offline else (TTFT, TPOT, E2E, _widest(frame), BATCH_S)
        for measure in measures:
            yield from _line(frame, measure)
    for fact, what, none, shown in _SWITCHED:
        switch_sets = switches(points, fact)
        for measure in shown:
            yield side_by_side(switch_sets, measure, fact, what, none=none)
    yield from ratio_figures(gpu_ratios(points))
    for frame in by_model:
        yield trade_off(frame, pace(frame.points), OUTPUT, section="models", key="models")
    for pair in predictions(points):
        for measure in (TTFT, TPOT, ITL, E2E, OUTPUT, BATCH_S):
            yield predicted(pair, measure)


def _framed(points: Sequence[Point]) -> list[list[Frame]]:
    """All frames: sweeps, by length, by model. They know one another's variants, where there are several to tell."""
    framed = [
        [_cut(frame) for frame in group]
        for group in (
            frames(points, "load"),
            [*frames(points, "output"), *frames(points, "input")],
            frames(points, "load", by="model"),
        )
    ]
    variants_of = [dict.fromkeys(series.variant for series in frame.series) for group in framed for frame in group]
    variants = tuple(dict.fromkeys(variant for own in variants_of if len(own) > 1 for variant in own))
    return [[msgspec.structs.replace(frame, variants=variants) for frame in group] for group in framed]


def _served(frame: Frame) -> Iterator[Figure | None]:
    total = _widest(frame)
    for latency, throughput in ((E2E, total), (TPOT, OUTPUT), (ITL, OUTPUT), (PER_USER, OUTPUT)):
        yield trade_off(frame, latency, throughput, section="throughput", key=f"throughput-{latency.key}")
    if len({series.label for series in frame.series}) > 1:
        yield pareto(frame)
    yield price_by_pace(frame)


def _line(frame: Frame, measure: Measure) -> Iterator[Figure | None]:
    key = f"{'offline-' if frame.offline else ''}{measure.key}-by-{frame.axis}"
    yield against(frame, measure, key=key)
    rest = outliers(frame, measure)
    if rest is not None:
        yield against(rest[0], measure, key=f"{key}-rest", suffix=f", without {rest[1]}")


def _widest(frame: Frame) -> Measure:
    """Total tokens where every point has them: what offline results are given in."""
    return TOTAL if all(point.total_tokens_per_s is not None for point in frame.points) else OUTPUT


def _full(frame: Frame) -> bool:
    """Whether most series of the frame have more than one length."""
    xs = frame.xs
    return 2 * sum(len(each) > 1 for each in xs.values()) > len(xs)


def _cut(frame: Frame) -> Frame:
    weights: dict[Series, tuple[int, float]] = {}
    for point, series in frame.pairs:
        many, most = weights.get(series, (0, 0.0))
        weights[series] = many + 1, max(most, point.output_tokens_per_s or 0.0)
    looks = len(SHAPES if len({series.colour for series in weights}) > 1 else SEQUENCE)
    chosen: dict[Series, str] = {}
    for series in sorted(weights, key=weights.__getitem__, reverse=True):
        if len(chosen) < MAX_LINES and len({*chosen.values(), series.variant}) <= looks:
            chosen[series] = series.variant
    if len(chosen) == len(weights):
        return frame
    cut = frame.only(lambda _, series: series in chosen)
    words = joined(cut.words, f"{len(chosen)} of {len(weights)} series", by=" · ")
    return msgspec.structs.replace(cut, words=words)
