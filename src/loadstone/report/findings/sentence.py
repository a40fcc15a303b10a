"""What a finding in words is made of."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from loadstone.analyse.slo import SURE
from loadstone.core.units import show_number, show_seconds
from loadstone.report.data.frames import Measure
from loadstone.report.data.points import Point, alike
from loadstone.report.data.series import series_of, workload_label
from loadstone.report.data.wording import joined


class Sentence(msgspec.Struct, kw_only=True, frozen=True):
    """One observation. `about`: the pictures' section it belongs to; `kind`: what sort of observation.

    context    the model and the workload that it is of, said once for all that share it; "" where it is of several
    predicted  of simulated cells: its intervals are the model's, 80 %
    """

    text: str
    kind: str
    about: str
    context: str = ""
    predicted: bool = False

    @property
    def whole(self) -> str:
        """As it can be read alone."""
        return joined("Predicted" if self.predicted else "", self.context, self.text, by=": ")


def setup(point: Point) -> str:
    """`vLLM on 8×H200`, or what a study calls it."""
    return point.study or joined(point.engine, point.hardware, by=" on ")


def setups(points: Sequence[Point], *, without: Collection[str] = ()) -> list[str]:
    """`vLLM on 8×H200`, the precision where they differ in it, and what else tells them apart where that does not:
    `vLLM on 8×H200, fp8`, `vLLM on 8×H200, fp8, tp4`. `without`: what the sentence says in another place.
    """
    names = [setup(point) for point in points]
    if all(point.study for point in points):
        return names
    if len({point.precision for point in points}) > 1:
        names = [
            f"{name}, {point.precision or 'precision not stated'}" for name, point in zip(names, points, strict=True)
        ]
    more = [
        series.setup
        for series in series_of(points, without=("engine", "gpu", "gpus", "model", "precision", *without))
    ]
    times = {name: len({rest for other, rest in zip(names, more, strict=True) if other == name}) for name in names}
    return [f"{name}, {rest}" if times[name] > 1 else name for name, rest in zip(names, more, strict=True)]


def throughput(point: Point) -> str:
    """Always both, where both are known: nobody can take output for total tokens then."""
    output, total = point.output_tokens_per_s, point.total_tokens_per_s
    if total is not None and output is not None:
        return f"{show_number(total, 4)} tok/s of input and output ({show_number(output, 4)} of output)"
    if output is not None:
        return f"{show_number(output, 4)} output tok/s"
    return f"{show_number(total, 4)} tok/s of input and output"


def value(point: Point, measure: Measure) -> str:
    much = measure.of(point)
    return show_seconds(much) if measure.unit == "s" else f"{show_number(much, 4)} {measure.unit}"


def spans(values: Sequence[float]) -> str:
    """`4 to 64`, `128`, `4 and 16`."""
    if len(values) == 1:
        return f"{values[0]:g}"
    return f"{values[0]:g} {'to' if len(values) > 2 else 'and'} {values[-1]:g}"


def ranges(xs: Sequence[float], every: Sequence[float]) -> str:
    """Neighbours of the sweep joined: `4 to 64 and 256`, `4, 8 and 32 to 128`."""
    runs: list[list[float]] = []
    for x in xs:
        if runs and every.index(x) == every.index(runs[-1][-1]) + 1:
            runs[-1].append(x)
        else:
            runs.append([x])
    parts = [part for run in runs for part in ([spans(run)] if len(run) > 2 else map(spans, zip(run, strict=True)))]
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def work(point: Point) -> str:
    """`DeepSeek-R1, 3 200 in, 800 out`."""
    return joined(point.model, workload_label(point))


def within_slo(points: Sequence[Point]) -> tuple[list[Point], str]:
    """Those that meet the bounds that were asked for, all where none were; and how many of how many do, in words."""
    if all(point.slo_met is None for point in points):
        return list(points), ""
    missed = {(point.study, alike(point)) for point in points if point.slo_met is False}  # by one repeat, or more
    met = [point for point in points if point.slo_met and (point.study, alike(point)) not in missed]
    asked_for = " or ".join(dict.fromkeys(point.slo for point in points if point.slo))
    unsure = sum(not surely_met(point) for point in met)
    maybe = f", {unsure} of them not surely" if unsure else ""
    return met, f"of the {len(met)} of {len(points)} cells that meet {asked_for}{maybe}"


def surely_met(point: Point) -> bool:
    """Whether a cell that meets its bounds does so with slo.SURE or more; as it seems where nobody can say."""
    return point.p_met is None or point.p_met >= SURE


def doubt(points: Sequence[Point]) -> str:
    """What has to be said where some of the cells that a sentence rests on are not trusted."""
    doubtful = sum(not point.trusted for point in points)
    if doubtful == len(points) == 1:
        return f"; this cell carries a warning{_unmeasured(points)}"
    if doubtful == len(points) == 2:
        return f"; both of these cells carry a warning{_unmeasured(points)}"
    verb = "carries" if doubtful == 1 else "carry"
    return f"; {doubtful} of these {len(points)} cells {verb} a warning{_unmeasured(points)}" if doubtful else ""


def _unmeasured(points: Iterable[Point]) -> str:
    """On whose vendor's GPUs nothing was measured: what is predicted of them comes from data sheets."""
    gpus = dict.fromkeys(point.gpu for point in points if "unmeasured" in point.warnings)
    return (
        f" ({' and '.join(gpus)}: from the data sheet, without a measurement of that vendor's GPUs)" if gpus else ""
    )


def warned(points: Iterable[Point]) -> str:
    """The same of a sentence that rests on many."""
    points = list(points)
    return (
        ""
        if all(point.trusted for point in points)
        else f"; some of these cells carry a warning{_unmeasured(points)}"
    )
