"""Names the lines of a chart, and gives them colours and shapes, by the facts in which points
differ."""

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from loadstone.catalogue.engines import ALL_ENGINES
from loadstone.core.groups import by_key
from loadstone.report.data.points import FACTS, CellPoint, Look
from loadstone.report.data.wording import join

SETUP = (
    "engine",
    "gpu",
    "model",
    "gpus",
    "parallel",
    "version",
    "precision",
    "context",
    "settings",
    "prefix",
    "source",
)
"""The facts that may tell one series from another, in the order in which a name has them."""
ALWAYS_TOLD = ("precision", "source")
"""In a name wherever they differ, even if another fact tells the series apart already: precision
changes the answers, not their speed alone; source says whether anything was measured."""


class ChartSeries(msgspec.Struct, frozen=True):
    """Holds the name of a line in three parts.

    colour  the first fact in which lines differ, shown by colour
    facts   the other facts, shown with `run` by dashes and shapes; "" where there are none
    run     which of several repeats of a setup; "" where there is one
    """

    colour: str
    facts: str
    run: str = ""

    @property
    def variant(self) -> str:
        return join(self.facts, self.run, by=" · ")

    @property
    def setup(self) -> str:
        return join(self.colour, self.facts, by=" · ")

    @property
    def label(self) -> str:
        return join(self.setup, self.run, by=" · ")


_WORDS: dict[str, Callable[[CellPoint], str]] = {fact: FACTS[fact] for fact in SETUP} | {
    "gpus": lambda point: f"{point.setup.gpus}×" if point.setup.gpus else "",
    "study": lambda point: point.setup.study,
}
"""Writes a fact of SETUP, or the study's name for the setup, of a point."""


def series_of(points: Sequence[CellPoint], *, without: Collection[str] = ()) -> list[ChartSeries]:
    """Return the series of each point, in order, named by the facts in which points differ, and by
    runs where no fact tells them apart.

    `without`: facts that the chart shows in another way, on an axis or as panels.
    """
    facts = [fact for fact in SETUP if fact not in without]
    if all(point.setup.study for point in points):
        facts = ["study", "source"]
    telling: list[str] = []
    distinct = 1
    for fact in facts:
        # A fact that follows from the others (the model, where each engine has its own) adds
        # nothing.
        count = len({tuple(_WORDS[name](point) for name in (*telling, fact)) for point in points})
        differs = len({_WORDS[fact](point) for point in points}) > 1
        if count > distinct or (fact in ALWAYS_TOLD and differs):
            telling.append(fact)
            distinct = count
    first, *rest = telling or facts[:1]
    keys = [
        (
            _WORDS[first](point) or f"{first} not stated",
            join(*(_WORDS[fact](point) for fact in rest), by=" · "),
        )
        for point in points
    ]
    repeats = _find_repeats(points, keys, [fact for fact in SETUP if fact in without])

    def name_run(key: tuple[str, str], run: int) -> str:
        if key not in repeats:
            return ""
        # With several setups, repeats are numbered within each: a dash for every run of the report
        # would be more than anybody tells apart.
        return f"repeat {repeats[key].index(run) + 1}" if len(repeats) > 1 else f"run {run}"

    return [
        ChartSeries(*key, name_run(key, point.number))
        for key, point in zip(keys, points, strict=True)
    ]


def _find_repeats(
    points: Sequence[CellPoint], keys: Sequence[tuple[str, str]], shown: Sequence[str]
) -> dict[tuple[str, str], list[int]]:
    """Return the run numbers of each series that has points of several runs at one place: there
    only the run tells them apart, and it becomes part of the name. `shown`: facts that the chart
    shows in another way."""
    places = by_key(
        ((key, *_place(point), *(_WORDS[fact](point) for fact in shown)), point.run)
        for key, point in zip(keys, points, strict=True)
    )
    ambiguous = {place[0] for place, runs in places.items() if len(set(runs)) > 1}
    runs_of = by_key(
        (key, point.number) for key, point in zip(keys, points, strict=True) if key in ambiguous
    )
    return {key: sorted(set(runs)) for key, runs in runs_of.items()}


def _place(point: CellPoint) -> tuple[Any, ...]:
    """Return the load and the workload of a point, by which it has its place in a chart."""
    demand = point.demand
    lengths = demand.near_input, demand.near_output
    return point.kind, point.load, *lengths, demand.work, demand.prefix


HUES = 8
"""Colours that can be told apart in one report."""


def number_engines(names: Iterable[str]) -> dict[str, int]:
    """Return a number for each engine's name, which gives its colour: of a known engine the same in
    all reports."""
    numbers: dict[str, int] = {}
    names = list(names)
    for name in names:
        places = [place for place, engine in enumerate(ALL_ENGINES) if engine in name.lower()]
        if places and places[0] not in numbers.values():
            numbers[name] = places[0]
    free = (place for place in itertools.count() if place not in numbers.values())
    for name in names:
        if name not in numbers:
            numbers[name] = next(free)
    return numbers


def assign_hues(points: Sequence[CellPoint]) -> list[CellPoint]:
    """Return the points with their Look: a name, and the numbers of colour and shape that it has in
    all charts of a report.

    Where engines and GPUs differ, the colour is the engine's and the shape the GPU's, so that pages
    can be laid side by side. Else colours go to the finest names of which there are at most HUES:
    with runs, without them, or the first fact alone.
    """
    series = series_of(points)
    measured = [point for point in points if not point.is_simulated] or points
    engines = number_engines(point.setup.engine for point in (*measured, *points))
    gpus = list(dict.fromkeys(point.setup.gpu for point in points))
    by_engine = (
        len({point.setup.engine for point in measured}) > 1
        and len(engines) <= HUES
        and 1 < len(gpus) <= HUES
    )
    for names in ([s.label for s in series], [s.setup for s in series], [s.colour for s in series]):
        numbers = {name: place for place, name in enumerate(dict.fromkeys(names))}
        if len(numbers) <= HUES:
            break
    return [
        replace(
            point,
            look=Look(name, engines[point.setup.engine], gpus.index(point.setup.gpu))
            if by_engine
            else Look(name, numbers[name]),
        )
        for point, name in zip(points, names, strict=True)
    ]


def list_common(points: Sequence[CellPoint], *, without: Collection[str] = ()) -> list[str]:
    """Return in words the facts that all points share, which stand in the title instead of the
    legend."""
    shared: list[str] = []
    for fact in SETUP:
        values = {_WORDS[fact](point) for point in points}
        if fact not in {*without, "source", "context"} and len(values) == 1:
            shared += values
    if len({point.setup.hardware for point in points}) == 1:
        setup = points[0].setup
        shared = [part for part in shared if part not in (setup.gpu, f"{setup.gpus}×")]
        shared.insert(0, setup.hardware)
    shared = [
        f"{part[:-1]} GPU{'s' * (part != '1×')} each" if part.endswith("×") else part
        for part in shared
    ]
    return [part for part in shared if part]


def workload_label(point: CellPoint) -> str:
    """Return the workload in words: `3,200 tokens in, 800 out, a prefix shared`."""
    return join(lengths_label(point), point.demand.prefix, point.demand.work)


def lengths_label(point: CellPoint) -> str:
    """Return the lengths in words: `3,200 tokens in, 800 out`."""
    tokens_in, tokens_out = point.demand.input_tokens, point.demand.output_tokens
    noun = "tokens out" if tokens_in is None else "out"
    return join(
        None if tokens_in is None else f"{tokens_in:,} tokens in",
        None if tokens_out is None else f"{tokens_out:,} {noun}",
    )
