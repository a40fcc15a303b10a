"""Build findings in words: their parts, and the doubts that they state."""

from collections.abc import Collection, Iterable, Sequence

import msgspec

from loadstone.analyse.slo import SURE
from loadstone.core.units import show_number, show_seconds
from loadstone.report.data.frames import Measure
from loadstone.report.data.points import CellPoint, alike
from loadstone.report.data.series import series_of, workload_label
from loadstone.report.data.wording import join


class Sentence(msgspec.Struct, kw_only=True, frozen=True):
    """One observation. `about`: the pictures' section it belongs to; `kind`: what sort of
    observation.

    context    the model and the workload that it is of, said once for all that share it; "" where
               it is of several
    predicted  of simulated cells: its intervals are the model's, 80 %
    """

    text: str
    kind: str
    about: str
    context: str = ""
    predicted: bool = False

    @property
    def whole(self) -> str:
        """The sentence as it can be read alone."""
        return join("Predicted" if self.predicted else "", self.context, self.text, by=": ")


def setup(point: CellPoint) -> str:
    """Write `vLLM on 8×H200`, or what a study calls it."""
    return point.setup.study or join(point.setup.engine, point.setup.hardware, by=" on ")


def setups(points: Sequence[CellPoint], *, without: Collection[str] = ()) -> list[str]:
    """Write `vLLM on 8×H200`, the precision where they differ in it, and what else tells them apart
    where that does not: `vLLM on 8×H200, fp8`, `vLLM on 8×H200, fp8, tp4`. `without`: what the
    sentence says in another place.
    """
    names = [setup(point) for point in points]
    if all(point.setup.study for point in points):
        return names
    if len({point.setup.precision for point in points}) > 1:
        names = [
            f"{name}, {point.setup.precision or 'precision not stated'}"
            for name, point in zip(names, points, strict=True)
        ]
    details = [
        series.setup
        for series in series_of(
            points, without=("engine", "gpu", "gpus", "model", "precision", *without)
        )
    ]
    times = {
        name: len({rest for label, rest in zip(names, details, strict=True) if label == name})
        for name in names
    }
    return [
        f"{name}, {rest}" if times[name] > 1 else name
        for name, rest in zip(names, details, strict=True)
    ]


def throughput(point: CellPoint) -> str:
    """Write both, where both are known: nobody can take output for total tokens then."""
    output, total = point.output_tokens_per_s, point.total_tokens_per_s
    if total is not None and output is not None:
        return (
            f"{show_number(total, 4)} tok/s of input and output ({show_number(output, 4)} of"
            " output)"
        )
    if output is not None:
        return f"{show_number(output, 4)} output tok/s"
    return f"{show_number(total, 4)} tok/s of input and output"


def value(point: CellPoint, measure: Measure) -> str:
    figure = measure.of(point)
    return (
        show_seconds(figure) if measure.unit == "s" else f"{show_number(figure, 4)} {measure.unit}"
    )


def spans(values: Sequence[float]) -> str:
    """Write `4 to 64`, `128`, `4 and 16`."""
    if len(values) == 1:
        return f"{values[0]:g}"
    return f"{values[0]:g} {'to' if len(values) > 2 else 'and'} {values[-1]:g}"


def ranges(xs: Sequence[float], every: Sequence[float]) -> str:
    """Join neighbours of the sweep: `4 to 64 and 256`, `4, 8 and 32 to 128`."""
    runs: list[list[float]] = []
    for x in xs:
        if runs and every.index(x) == every.index(runs[-1][-1]) + 1:
            runs[-1].append(x)
        else:
            runs.append([x])
    parts = [
        part
        for run in runs
        for part in ([spans(run)] if len(run) > 2 else map(spans, zip(run, strict=True)))
    ]
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def work(point: CellPoint) -> str:
    """Write `DeepSeek-R1, 3,200 tokens in, 800 out`."""
    return join(point.setup.model, workload_label(point))


def within_slo(points: Sequence[CellPoint]) -> tuple[list[CellPoint], str]:
    """Take the points that meet the bounds asked for (all, if none were), and say how many of how
    many do."""
    if all(point.slo_met is None for point in points):
        return list(points), ""
    missed = {
        (point.setup.study, alike(point)) for point in points if point.slo_met is False
    }  # by one repeat, or more
    met = [
        point for point in points if point.holds and (point.setup.study, alike(point)) not in missed
    ]
    asked_for = " or ".join(dict.fromkeys(point.demand.slo for point in points if point.demand.slo))
    unsure = sum(not is_surely_met(point) for point in met)
    maybe = f", {unsure} of them with a probability below {SURE:.0%}" if unsure else ""
    return met, f"of the {len(met)} of {len(points)} loads that meet {asked_for}{maybe}"


def is_surely_met(point: CellPoint) -> bool:
    """Tell whether a cell meets its bounds with a probability of slo.SURE or more; True if none is
    known."""
    return point.p_met is None or point.p_met >= SURE


def doubt(points: Sequence[CellPoint]) -> str:
    """Say that some of the cells that a sentence rests on are not trusted."""
    doubtful = sum(not point.trusted for point in points)
    if doubtful == len(points) == 1:
        return f"; this load carries a warning{_name_unmeasured(points)}"
    if doubtful == len(points) == 2:
        return f"; both of these loads carry a warning{_name_unmeasured(points)}"
    verb = "carries" if doubtful == 1 else "carry"
    return (
        f"; {doubtful} of these {len(points)} loads {verb} a warning{_name_unmeasured(points)}"
        if doubtful
        else ""
    )


def _name_unmeasured(points: Iterable[CellPoint]) -> str:
    """Name GPUs of whose vendor nothing was measured: what is predicted of them comes from data
    sheets."""
    gpus = dict.fromkeys(point.setup.gpu for point in points if "unmeasured" in point.warnings)
    return (
        f" ({' and '.join(gpus)}: from the data sheet, without a measurement of that vendor's GPUs)"
        if gpus
        else ""
    )


def warn(points: Iterable[CellPoint]) -> str:
    """Say that some of many cells are not trusted."""
    points = list(points)
    return (
        ""
        if all(point.trusted for point in points)
        else f"; some of these loads carry a warning{_name_unmeasured(points)}"
    )
