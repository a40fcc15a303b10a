"""Name what differs among points: the names, colours and dashes of the lines of a picture."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import msgspec

from loadstone.catalogue.engines import ALL_ENGINES
from loadstone.report.data.points import CellPoint
from loadstone.report.data.wording import join

SETUP: tuple[tuple[str, Callable[[CellPoint], str]], ...] = (
    ("engine", lambda point: point.engine),
    ("gpu", lambda point: point.gpu),
    ("model", lambda point: point.model),
    ("gpus", lambda point: f"{point.gpus}×" if point.gpus else ""),
    ("parallel", lambda point: point.parallel),
    ("version", lambda point: point.version),
    ("precision", lambda point: point.precision),
    ("context", lambda point: point.context),
    ("settings", lambda point: point.settings),
    ("prefix", lambda point: point.prefix),
    ("source", lambda point: point.source),
)
"""What tells one series from another, in the order in which it is told."""
ALWAYS_TOLD = ("precision", "source")
"""Told wherever they differ, also where another fact would do: one changes the answers, not their
speed alone; the other says whether anything was measured."""


class ChartSeries(msgspec.Struct, frozen=True):
    """A line of a chart: `colour` is said by colour, `variant` by dashes and shapes; "" where there
    is one only.

    run  which of the repeats of a setup, where there are several
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


def series_of(points: Sequence[CellPoint], *, without: Collection[str] = ()) -> list[ChartSeries]:
    """Return a series for each point, named by what differs among them; by their runs where nothing
    else tells them apart.

    `without`: what the chart shows in another way, on an axis or as panels.
    """
    facts = [(name, of) for name, of in SETUP if name not in without]
    if all(point.study for point in points):
        facts = [("study", lambda point: point.study), ("source", lambda point: point.source)]
    elsewhere = [of for name, of in SETUP if name in without]
    telling: list[Callable[[CellPoint], str]] = []
    known = 1
    for name, of in facts:
        # A fact that goes with others (the model, where each engine has its own) tells nothing
        # more.
        distinct = len({tuple(each(point) for each in (*telling, of)) for point in points})
        if distinct > known or (name in ALWAYS_TOLD and len({of(point) for point in points}) > 1):
            telling.append(of)
            known = distinct
    first, *rest = telling or [facts[0][1]]
    keys = [
        (first(point) or "not stated", join(*(of(point) for of in rest), by=" · "))
        for point in points
    ]
    # Two points of one series under the same load cannot be told apart: then the run is part of the
    # name.
    places: dict[tuple[Any, ...], set[str]] = {}
    for key, point in zip(keys, points, strict=True):
        place = (
            key,
            point.kind,
            point.load,
            point.near_input,
            point.near_output,
            point.work,
            point.prefix,
            *(of(point) for of in elsewhere),
        )
        places.setdefault(place, set()).add(point.run)
    ambiguous = {place[0] for place, runs in places.items() if len(runs) > 1}
    repeats: dict[tuple[str, str], list[int]] = {key: [] for key in ambiguous}
    for number, key in sorted((point.number, key) for key, point in zip(keys, points, strict=True)):
        if key in ambiguous and number not in repeats[key]:
            repeats[key].append(number)

    def which(key: tuple[str, str], number: int) -> str:
        if key not in ambiguous:
            return ""
        # Of several setups, repeats are counted: a dash for each run of all would be more than
        # anybody tells apart.
        return f"repeat {repeats[key].index(number) + 1}" if len(ambiguous) > 1 else f"run {number}"

    return [
        ChartSeries(*key, which(key, point.number)) for key, point in zip(keys, points, strict=True)
    ]


HUES = 8
"""Colours that can be told apart in one report."""


def number_engines(names: Iterable[str]) -> dict[str, int]:
    """Number engines for their colours, so that a known one has the same on all pages."""
    places = {
        name: [at for at, each in enumerate(ALL_ENGINES) if each in name.lower()] for name in names
    }
    numbers: dict[str, int] = {}
    for name, at in places.items():
        if at and at[0] not in numbers.values():
            numbers[name] = at[0]
    free = (at for at in itertools.count() if at not in numbers.values())
    for name in places:
        if name not in numbers:
            numbers[name] = next(free)
    return numbers


def assign_hues(points: Sequence[CellPoint]) -> list[CellPoint]:
    """Return the points, each with whose it is in all pictures of a report, and the numbers of its
    colour and shape.

    Where engines and GPUs differ, the colour is the engine's and the shape the GPU's, so that pages
    can be laid side by side; else a setup has a colour where there are HUES of them at most, or the
    first thing in which all differ.
    """
    series = series_of(points)
    measured = [point for point in points if point.source != "simulated"] or points
    engines = number_engines(point.engine for point in (*measured, *points))
    gpus = list(dict.fromkeys(point.gpu for point in points))
    by_engine = (
        len({point.engine for point in measured}) > 1
        and len(engines) <= HUES
        and 1 < len(gpus) <= HUES
    )
    for names in ([s.label for s in series], [s.setup for s in series], [s.colour for s in series]):
        numbers = {name: at for at, name in enumerate(dict.fromkeys(names))}
        if len(numbers) <= HUES:
            break
    return [
        msgspec.structs.replace(
            point,
            who=name,
            hue=engines[point.engine] if by_engine else numbers[name],
            shape=gpus.index(point.gpu) if by_engine else None,
        )
        for point, name in zip(points, names, strict=True)
    ]


def list_common(points: Sequence[CellPoint], *, without: Collection[str] = ()) -> list[str]:
    """List in words what all points are known to have in common: it stands in the title instead of
    the legend."""
    shared = []
    for name, of in SETUP:
        values = {of(point) for point in points}
        if name not in {*without, "source", "context"} and len(values) == 1:
            shared.append(next(iter(values)))
    if len({point.hardware for point in points}) == 1:
        shared = [part for part in shared if part not in (points[0].gpu, f"{points[0].gpus}×")]
        shared.insert(0, points[0].hardware)
    shared = [
        f"{part[:-1]} GPU{'s' * (part != '1×')} each" if part.endswith("×") else part
        for part in shared
    ]
    return [part for part in shared if part]


def workload_label(point: CellPoint) -> str:
    """Name the workload: `3,200 tokens in, 800 out, a prefix shared`."""
    return join(lengths_label(point), point.prefix, point.work)


def lengths_label(point: CellPoint) -> str:
    """Name the lengths: `3,200 tokens in, 800 out`."""
    out = "out" if point.input_tokens is not None else "tokens out"
    tokens = (point.input_tokens, "tokens in"), (point.output_tokens, out)
    return ", ".join(f"{many:,} {name}" for many, name in tokens if many is not None)
