"""Choose the points of one picture: they differ by what is compared and by one thing more, the x
axis."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from loadstone.analyse.verdict.thresholds import BUNCHED_S
from loadstone.core.groups import by_key
from loadstone.core.units import show_load
from loadstone.core.verdict import QUEUE_GROWS
from loadstone.report.data.points import CellPoint, point_of_class
from loadstone.report.data.repeats import merge_repeats
from loadstone.report.data.series import ChartSeries, lengths_label, list_common, series_of
from loadstone.report.data.statistic import Estimate
from loadstone.report.data.wording import clean, join

Axis = Literal["load", "output", "input"]


class Measure(msgspec.Struct, frozen=True):
    """Names what a picture shows of a point, in SI units; `better` is the direction of improvement.

    take    a figure with what is known of it, or a plain number; None where the point has none
    pooled  whether its statistics are of tokens, of all requests together
    """

    key: str
    name: str
    unit: str
    definition: str
    take: Callable[[CellPoint], Estimate | float | None]
    better: Literal["lower", "higher"] = "lower"
    pooled: bool = False

    @property
    def noun(self) -> str:
        """The name within a sentence: `output throughput`, but `TTFT`."""
        return self.name[0].lower() + self.name[1:] if self.name[1].islower() else self.name

    def stat(self, point: CellPoint) -> Estimate | None:
        taken = self.take(point)
        return taken if isinstance(taken, Estimate) else None

    def of(self, point: CellPoint) -> float | None:
        taken = self.take(point)
        return taken.value if isinstance(taken, Estimate) else taken

    def values(self, points: Iterable[CellPoint]) -> Iterator[tuple[CellPoint, float]]:
        """Yield the points that have a value, each with it."""
        for point in points:
            value = self.of(point)
            if value is not None:
                yield point, value


def _drop_bunched(stat: Estimate | None) -> Estimate | None:
    """Drop a time where most tokens arrived together: no time between them was seen, and 0 is not
    the best of all."""
    return stat if stat is not None and stat.value > BUNCHED_S else None


_AXES: dict[Axis, Callable[[CellPoint], float | None]] = {
    "load": lambda point: point.load,
    "output": lambda point: point.demand.near_output,
    "input": lambda point: point.demand.near_input,
}
"""What may be the x axis."""


def is_bunched(point: CellPoint, measure: Measure) -> bool:
    """Tell whether a time between tokens is left out because most of them arrived together."""
    stat = {"tpot": point.tpot, "itl": point.itl, "user_tok_s": point.tpot}.get(measure.key)
    return stat is not None and measure.of(point) is None


def is_unsettled(point: CellPoint, measure: Measure) -> bool:
    """Tell whether a latency has a wait in it that is as long as the cell lasted."""
    return measure.key in ("ttft", "e2e") and not QUEUE_GROWS.isdisjoint(point.warnings)


TTFT = Measure("ttft", "TTFT", "s", "TTFT = first token − {since}", lambda p: p.ttft)
TPOT = Measure(
    "tpot",
    "TPOT",
    "s",
    "TPOT = (last − first token) / (tokens − 1) of a request",
    lambda p: _drop_bunched(p.tpot),
)
ITL = Measure(
    "itl",
    "ITL",
    "s",
    "ITL = time between neighbouring tokens, all requests pooled",
    lambda p: _drop_bunched(p.itl),
    pooled=True,
)
E2E = Measure("e2e", "E2E latency", "s", "E2E = last token − {since}", lambda p: p.e2e)
OUTPUT = Measure(
    "output_tok_s",
    "Output throughput",
    "tok/s",
    "output tokens of all requests per second, {window}",
    lambda p: p.output,
    better="higher",
)
INPUTS = Measure(
    "inputs_s",
    "Text throughput",
    "texts/s",
    "inputs, or documents that are scored, of all requests per second, {window}",
    lambda p: p.pooled,
    better="higher",
)
TOTAL = Measure(
    "total_tok_s",
    "Total throughput",
    "tok/s",
    "input and output tokens of all requests per second, {window}",
    lambda p: p.total,
    better="higher",
)
PER_USER = Measure(
    "user_tok_s",
    "Pace per user",
    "tok/s",
    "pace per user = 1 / TPOT: how fast one user receives tokens",
    lambda p: p.tokens_per_s_per_user if _drop_bunched(p.tpot) else None,
    better="higher",
)
PER_GPU = Measure(
    "gpu_tok_s",
    "Output throughput per GPU",
    "tok/s",
    "output tok/s / GPUs, {window}",
    lambda p: p.tokens_per_s_per_gpu,
    better="higher",
)
DOLLARS = Measure(
    "dollars_output",
    "Price per million output tokens",
    "$",
    "$ per hour of all its GPUs / output tok/s, {window}",
    lambda p: p.dollars.output,
)
ENERGY = Measure(
    "j_output",
    "Energy per output token",
    "J",
    "energy of all GPUs that were read / output tokens, {window}",
    lambda p: p.joules.output,
)
GOODPUT = Measure(
    "goodput",
    "Goodput",
    "requests/s",
    "requests that meet every bound of the SLO, per second of the whole load",
    lambda p: p.goodput_per_s,
    better="higher",
)
HIT = Measure(
    "hit_share",
    "Prompts found in the cache",
    "%",
    "tokens of prompts that were in a prefix cache / all of them",
    lambda p: 100 * p.hit_share if p.hit_share is not None else None,
    better="higher",
)
BATCH_S = Measure(
    "batch_s",
    "Batch latency",
    "s",
    "from the batch's start to its last token",
    lambda p: p.duration_s if p.kind == "burst" else None,
)


def pace(points: Iterable[CellPoint]) -> Measure:
    """Choose the time between tokens that most points have: TPOT, or ITL where more of them have
    that."""
    points = list(points)
    return max(
        (TPOT, ITL), key=lambda measure: sum(measure.of(point) is not None for point in points)
    )


class Frame(msgspec.Struct, frozen=True):
    """The points of one picture, each with its series, x by `axis`. `words`: what they have in
    common, in a line. `variants`: of all pictures of a report, so that each has the same dashes and
    points in all.
    """

    axis: Axis
    points: tuple[CellPoint, ...]
    series: tuple[ChartSeries, ...]
    words: str
    variants: tuple[str, ...] = ()

    def x(self, point: CellPoint) -> float | None:
        return _AXES[self.axis](point)

    @property
    def pairs(self) -> Iterator[tuple[CellPoint, ChartSeries]]:
        """Each point with its series."""
        return zip(self.points, self.series, strict=True)

    @property
    def xs(self) -> dict[ChartSeries, set[float | None]]:
        """Lists the x values at which each series has points."""
        result: dict[ChartSeries, set[float | None]] = defaultdict(set)
        for point, series in self.pairs:
            result[series].add(self.x(point))
        return result

    @property
    def offline(self) -> bool:
        return self.points[0].demand.offline

    @property
    def of_sessions(self) -> bool:
        """Tell whether sessions of agents were served, at several loads."""
        return self.axis == "load" and all(point.sessions is not None for point in self.points)

    @property
    def mode(self) -> Literal["online", "burst", "offline"]:
        """Names how the requests came: those of a burst come at once, as in an offline batch, but
        to a server."""
        if self.offline:
            return "offline"
        return "burst" if self.points[0].kind == "burst" else "online"

    @property
    def section(self) -> str:
        """Names the section of a report in which it is shown."""
        return self.axis if self.mode == "online" else "offline"

    @property
    def x_title(self) -> str:
        return load_title(self.points[0]) if self.axis == "load" else f"{self.axis_word} (tokens)"

    @property
    def axis_word(self) -> str:
        return load_word(self.points[0]) if self.axis == "load" else f"{self.axis} length"

    @property
    def by_class(self) -> Frame:
        """The points of each class of traffic, as series of their own; itself without classes."""
        if not any(point.cells[0].by_class for point in self.points):
            return self
        several = len(set(self.series)) > 1
        pairs = [
            (point_of_class(point, number), ChartSeries(clean(part.name), series.label * several))
            for point, series in self.pairs
            for number, part in enumerate(point.cells[0].by_class)
        ]
        points, series = zip(*pairs, strict=True)
        return replace(self, points=points, series=series)

    def only(self, keep: Callable[[CellPoint, ChartSeries], bool]) -> Frame:
        chosen = [(point, series) for point, series in self.pairs if keep(point, series)]
        return replace(
            self,
            points=tuple(point for point, _ in chosen),
            series=tuple(series for _, series in chosen),
        )


def frames(
    points: Sequence[CellPoint],
    axis: Axis,
    *,
    by: Literal["setup", "model"] = "setup",
    single: bool = False,
) -> list[Frame]:
    """Return all groups of points that are comparable but for their series and x, where at least
    one series has two x.

    by setup: one model, whatever runs it. by model: one engine and hardware, whatever model it
    runs. `single`: also where each series has one x: no line can be drawn of them, but they can be
    compared.
    """
    shown = [
        point
        for point in points
        if axis != "output"
        or (point.demand.near_output is not None and (point.demand.offline or point.kind != "rate"))
    ]
    groups = by_key((comparable(point, axis, by), point) for point in shown)
    result = []
    for group in groups.values():
        if by == "model" and len({point.setup.model for point in group}) < 2:
            continue
        frame = _frame(group, axis)
        spread = frame.xs
        if single or any(len(xs) > 1 for xs in spread.values()):
            result.append(frame)
    return result


def comparable(
    point: CellPoint, axis: Axis, by: Literal["setup", "model"] = "setup"
) -> tuple[Any, ...]:
    """Make a key that is equal for points of one picture."""
    setup, demand = point.setup, point.demand
    machine = (setup.model,) if by == "setup" else (setup.engine, setup.hardware)
    fixed = tuple(None if name == axis else value(point) for name, value in _AXES.items())
    return point.kind, demand.offline, demand.work, demand.prefix, *machine, *fixed


def _frame(group: Sequence[CellPoint], axis: Axis) -> Frame:
    """Make a frame; its words are the title's second half: model, lengths and loads that all points
    share."""
    first = group[0]
    lengths = {(point.demand.near_input, point.demand.near_output) for point in group}
    words = list_common(group, without=("prefix",))
    if len(lengths) == 1:
        words.append(lengths_label(first))
    elif axis == "output" and first.demand.near_input:
        words.append(f"{first.demand.near_input:,} in")
    elif axis == "input" and first.demand.near_output:
        words.append(f"{first.demand.near_output:,} out")
    loads = {point.load for point in group}
    if axis != "load" and len(loads) == 1:
        words.append(load_label(first))
    line = join(*words, first.demand.prefix, first.demand.work, by=" · ")
    return Frame(axis, tuple(group), tuple(series_of(group, without=("prefix",))), line)


_LOADS = {
    "concurrency": ("concurrency", "requests under way", "concurrency {}"),
    "rate": ("arrival rate", "requests/s", "{} requests/s"),
    "burst": ("burst", "requests at once", "burst of {}"),
    "batch": ("batch size", "requests", "batch {}"),
}
"""What a kind of load is called, what it is counted in, and one of them."""


def _load_words(point: CellPoint) -> tuple[str, str, str]:
    return _LOADS["batch" if point.demand.offline and point.kind == "burst" else point.kind]


def load_word(point: CellPoint) -> str:
    return _load_words(point)[0]


def load_title(point: CellPoint) -> str:
    word, unit, _ = _load_words(point)
    return f"{word} ({unit})"


def load_label(point: CellPoint) -> str:
    shown = show_load(point.load)
    return (
        _load_words(point)[2]
        .format(shown)
        .replace("requests", "request" if point.load == 1 else "requests")
    )


def best_cells(
    points: Sequence[CellPoint], names: Sequence[str], measure: Measure
) -> dict[str, CellPoint]:
    """Find each name's best cell by a measure, the best of all first; cells with errors are left
    out."""
    sign = 1 if measure.better == "lower" else -1
    best: dict[str, tuple[float, CellPoint]] = {}
    for name, point in merge_repeats(points, names):
        value = None if point.failed else measure.of(point)
        # Nobody is best with nothing: 0 tok/s is where every request failed.
        if value is None or (value == 0 and sign < 0):
            continue
        if name not in best or sign * value < best[name][0]:
            best[name] = sign * value, point
    return {name: point for name, (_, point) in sorted(best.items(), key=lambda entry: entry[1][0])}


def knee(points: Sequence[CellPoint]) -> CellPoint | None:
    """Return the load of the most throughput for its latency (E2E): Kleinrock's power ("Power and
    deterministic rules of thumb for probabilistic problems in computer communications", ICC 1979);
    None at an end of the sweep.
    """
    power: dict[int, float] = {}
    for place, point in enumerate(points):
        e2e = E2E.of(point)
        if e2e:
            power[place] = (point.output_tokens_per_s or 0.0) / e2e
    best = max(power, key=power.__getitem__, default=0)
    return points[best] if 0 < best < len(points) - 1 else None


FALL = 0.8
"""Throughput has fallen where it is less than so much of the best at lighter loads."""


def cliff(points: Sequence[CellPoint]) -> CellPoint | None:
    """Return the last load before throughput falls, as it does where sessions no longer fit into
    the cache."""
    best = 0.0
    for lighter, heavier in itertools.pairwise(points):
        best = max(best, lighter.output_tokens_per_s or 0.0)
        if (heavier.output_tokens_per_s or 0.0) < FALL * best:
            return lighter
    return None
