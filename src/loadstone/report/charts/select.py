"""Choose the pictures that a set of points asks for."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice, zip_longest
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from loadstone.core.groups import by_key
from loadstone.report.charts.bands import draw_prediction, tails
from loadstone.report.charts.bars import ratio_figures, side_by_side
from loadstone.report.charts.lines import against, front, trade_off
from loadstone.report.charts.theme import SHAPES, Figure
from loadstone.report.data.frames import (
    BATCH_S,
    DOLLARS,
    E2E,
    ENERGY,
    GOODPUT,
    HIT,
    INPUTS,
    ITL,
    OUTPUT,
    PER_GPU,
    TOTAL,
    TPOT,
    TTFT,
    Frame,
    Measure,
    comparable,
    frames,
    pace,
)
from loadstone.report.data.pairs import gpu_ratios, pair_predictions, switches
from loadstone.report.data.points import CellPoint
from loadstone.report.data.series import ChartSeries, assign_hues, workload_label
from loadstone.report.data.wording import join

MAX_FIGURES = 80
MAX_TABS = 6
"""Workloads whose first pictures stand above all others."""
MAX_LINES = 24
"""Series in one picture; a frame with more, or with more variants than there are looks for, is cut
to those with the most points, of these the fastest."""

_SWITCHED: tuple[tuple[Literal["prefix", "parallel"], str, str, tuple[Measure, ...]], ...] = (
    ("prefix", "shared prefix or not", "no prefix shared", (OUTPUT, TTFT, TPOT, E2E)),
    ("parallel", "by parallelism", "not stated", (OUTPUT, TTFT, TPOT, ITL)),
)
"""What may differ alone, in a title, what it is called where there is none, and the measures that
are drawn."""


class Drawn(msgspec.Struct, frozen=True):
    """`tabs`: the first pictures of each workload, by its name, those of the answer first, and
    `places`: its number, by what its points have in common; `left_out`: how many of each section
    are not drawn, being of the fewest cells.
    """

    tabs: list[tuple[str, list[Figure]]]
    figures: list[Figure]
    left_out: dict[str, int]
    places: dict[tuple[Any, ...], int]

    def place(self, point: CellPoint) -> int:
        """Return the number of a point's tab, from 1; one more than there are where it has none."""
        return self.places.get(comparable(point, "load"), len(self.tabs) + 1)

    @property
    def hero(self) -> Figure | None:
        """The picture of the answer, if there is any to draw."""
        return self.tabs[0][1][0] if self.tabs else None


class _Wanted(NamedTuple):
    """A picture that may be made: of which kind and section, of which cells, and how."""

    kind: str
    section: str
    points: Sequence[CellPoint]
    make: Callable[[], Figure | None]


HEROES = ("sessions-", "price-price", "throughput-pareto", "throughput-throughput-e2e", "offline-")
"""Kinds of pictures that show an answer, the first that can be drawn: what a pace per user costs,
then gives."""


def draw_pictures(points: Sequence[CellPoint], main: Frame | None = None) -> Drawn:
    """Return the pictures of these points in the order of a report, at most MAX_FIGURES: of each
    kind in turn those of the most cells, so that no kind is missing. `main`: the cells of the hero.
    """
    points = assign_hues(points)
    wanted = list(_all(points))
    tabs: list[tuple[str, list[Figure]]] = []
    leads: list[_Wanted] = []
    places = {}
    for number, frame in enumerate(_leading(points, main), 1):
        heroes = list(_heroes(points, wanted, frame))
        latencies = tails(frame.by_class, (TTFT, TPOT), key=f"latencies-{number}")
        figures = [figure for _, figure in heroes] + ([latencies] if latencies else [])
        if figures:
            tabs.append((_name_tab(frame), figures))
            places[comparable(frame.points[0], "load")] = len(tabs)
            leads += [lead for lead, _ in heroes if lead is not None]
    chosen = _most_telling(wanted)
    made: list[Figure] = []
    keys: dict[str, int] = defaultdict(int)
    for picture in wanted:
        figure = picture.make() if id(picture) in chosen and picture not in leads else None
        if figure is not None:
            keys[figure.key] += 1
            figure.key += f"-{keys[figure.key]}" if keys[figure.key] > 1 else ""
            made.append(figure)
    if not tabs and made:
        tabs.append(("", [made.pop(0)]))
    if tabs:
        tabs[0][1][0].section = "hero"
    left_out = Counter(
        picture.section for picture in wanted if id(picture) not in chosen and picture not in leads
    )
    return Drawn(tabs, made, dict(left_out), places)


def _leading(points: Sequence[CellPoint], main: Frame | None) -> list[Frame]:
    """Return the frames of the first pictures: that of the answer, then those of the most trusted
    requests."""
    if main is None:
        return []
    places = {(point.number, point.cell) for point in main.points}
    every = [frame for frame in frames(points, "load", single=True) if frame.mode == main.mode]
    every.sort(key=lambda frame: -sum(point.ok or 0 for point in frame.points if point.trusted))
    every.sort(key=lambda frame: (frame.points[0].number, frame.points[0].cell) not in places)
    return [_cut(frame) for frame in every[:MAX_TABS]]


def _name_tab(frame: Frame) -> str:
    point = frame.points[0]
    return join(point.setup.model, workload_label(point), f"by {frame.axis_word}")


def _most_telling(wanted: Sequence[_Wanted]) -> set[int]:
    by_kind = by_key(
        (picture.kind, picture)
        for picture in sorted(wanted, key=lambda picture: -len(picture.points))
    )
    turns = zip_longest(*by_kind.values())
    return {
        id(picture)
        for picture in islice(
            (picture for turn in turns for picture in turn if picture is not None), MAX_FIGURES
        )
    }


def _heroes(
    points: Sequence[CellPoint], wanted: Sequence[_Wanted], main: Frame
) -> Iterator[tuple[_Wanted | None, Figure]]:
    """Draw the picture of the answer's cells, which stands in no section; beside a price what a GPU
    gives, for setups with one load each a front."""
    places = {(point.number, point.cell) for point in main.points}
    drawn = ""
    for kind in HEROES:
        for picture in wanted:
            if (
                (not drawn or (drawn, kind) == HEROES[1:3])
                and picture.kind.startswith(kind)
                and {(point.number, point.cell) for point in picture.points} <= places
            ):
                figure = picture.make()
                if figure is not None:
                    drawn = kind
                    yield picture, figure
    if drawn:
        return
    answered = [point for point in points if (point.number, point.cell) in places]
    for frame in frames(answered, main.axis, single=True):
        priced = any(point.dollars.output for point in frame.points)
        measure = DOLLARS if priced else _per_gpu(frame)
        figure = front(_cut(frame), measure, section="hero", key="hero")
        if figure is not None:
            yield None, figure


def _all(points: Sequence[CellPoint]) -> Iterator[_Wanted]:
    """Return every picture that these points may give; one that has too little in it is None when
    it is made."""
    sweeps, by_length, by_model = _make_frames(points)
    served = [frame for frame in sweeps if not frame.offline]
    for frame in served:
        yield from _trade_offs(frame)
    for frame in served:
        for measure in (TTFT, TPOT, ITL, E2E, OUTPUT, INPUTS, GOODPUT, ENERGY):
            yield _line(frame.by_class if measure in (TTFT, TPOT, E2E) else frame, measure)
    for frame in sweeps:
        if frame.mode != "online":
            yield from _batches(frame)
    for frame in by_length:
        yield from _lengths(frame)
    for fact, words, absence, measures in _SWITCHED:
        sets = switches(points, fact)
        every = [point for switched in sets for point in switched]
        for measure in measures:
            make = partial(side_by_side, sets, measure, fact, words, absence=absence)
            yield _Wanted(f"{fact}-{measure.key}", fact, every, make)
    for picture in ratio_figures(gpu_ratios(points)):
        yield _Wanted("gpus", "gpus", points, partial(_as_is, picture))
    for frame in by_model:
        yield _trade(frame, pace(frame.points), OUTPUT, "models", "models")
    for pair in pair_predictions(points):
        for measure in (TTFT, TPOT, ITL, E2E, OUTPUT, INPUTS, BATCH_S):
            make = partial(draw_prediction, pair, measure)
            yield _Wanted(f"predicted-{measure.key}", "predicted", pair[1], make)


def _trade_offs(frame: Frame) -> Iterator[_Wanted]:
    """Return what a sweep gives for what: of sessions, throughput for latency, cost for pace."""
    if frame.of_sessions:
        make = partial(against, frame, _per_gpu(frame), key="sessions")
        yield _Wanted("sessions-throughput", "sessions", frame.points, make)
        yield _line(frame, HIT)
    for latency, throughput in ((E2E, _widest(frame)), (TPOT, OUTPUT), (ITL, OUTPUT)):
        yield _trade(frame, latency, throughput, "throughput", f"throughput-{latency.key}")
    for section, key, measure in (
        ("throughput", "pareto", _per_gpu(frame)),
        ("price", "price", DOLLARS),
    ):
        make = partial(front, frame, measure, section=section, key=key)
        yield _Wanted(f"{section}-{key}", section, frame.points, make)


def _batches(frame: Frame) -> Iterator[_Wanted]:
    """Return what batches, or bursts, of several sizes give."""
    widest = _widest(frame)
    yield _trade(frame, BATCH_S, widest, "offline", f"{frame.mode}-throughput-latency")
    for measure in (widest, BATCH_S):
        if frame.offline or measure is not OUTPUT:
            yield _line(frame, measure)


def _lengths(frame: Frame) -> Iterator[_Wanted]:
    widest = _widest(frame)
    if not frame.offline:
        for measure in (TTFT, TPOT, E2E, widest, BATCH_S):
            yield _line(frame, measure)
    elif _full(frame):
        for measure in (widest, BATCH_S):
            yield _line(frame, measure)


def _line(frame: Frame, measure: Measure) -> _Wanted:
    key = f"{'offline-' if frame.offline else ''}{measure.key}-by-{frame.axis}"
    make = partial(against, frame, measure, key=key)
    return _Wanted(f"{frame.section}-{key}", frame.section, frame.points, make)


def _trade(frame: Frame, latency: Measure, measure: Measure, section: str, key: str) -> _Wanted:
    make = partial(trade_off, frame, latency, measure, section=section, key=key)
    return _Wanted(f"{section}-{key}", section, frame.points, make)


def _as_is(figure: Figure) -> Figure:
    return figure


def _make_frames(points: Sequence[CellPoint]) -> list[list[Frame]]:
    """Return all frames: sweeps, by length, by model. They know one another's variants, where there
    are several to tell.
    """
    framed = [
        [_cut(frame) for frame in group]
        for group in (
            frames(points, "load"),
            [*frames(points, "output"), *frames(points, "input")],
            frames(points, "load", by="model"),
        )
    ]
    variants_of = [
        dict.fromkeys(series.variant for series in frame.series)
        for group in framed
        for frame in group
    ]
    variants = tuple(
        dict.fromkeys(
            variant for distinct in variants_of if len(distinct) > 1 for variant in distinct
        )
    )
    return [[replace(frame, variants=variants) for frame in group] for group in framed]


def _per_gpu(frame: Frame) -> Measure:
    """Return tokens of a GPU where it is known how many there are, so that setups of any size can
    be compared."""
    return PER_GPU if all(point.setup.gpus for point in frame.points) else OUTPUT


def _widest(frame: Frame) -> Measure:
    """Return total tokens where every point has them: what offline results are given in; inputs
    where no text is written."""
    if all(point.pooled is not None for point in frame.points):
        return INPUTS
    return TOTAL if all(point.total_tokens_per_s is not None for point in frame.points) else OUTPUT


def _full(frame: Frame) -> bool:
    """Tell whether most series of the frame have more than one length."""
    xs = frame.xs
    return 2 * sum(len(places) > 1 for places in xs.values()) > len(xs)


def _cut(frame: Frame) -> Frame:
    """Return the frame with as many series as can be told apart: those of the most points, then of
    the most throughput."""
    rates = by_key((series, point.rate or 0.0) for point, series in frame.pairs)
    ranked = sorted(
        rates, key=lambda series: (len(rates[series]), max(rates[series])), reverse=True
    )
    chosen: dict[ChartSeries, str] = {}
    for series in ranked:
        if len(chosen) < MAX_LINES and len({*chosen.values(), series.variant}) <= len(SHAPES):
            chosen[series] = series.variant
    if len(chosen) == len(rates):
        return frame
    cut = frame.only(lambda _, series: series in chosen)
    words = join(cut.words, f"{len(chosen)} of {len(rates)} series", by=" · ")
    return replace(cut, words=words)
