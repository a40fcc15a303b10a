"""The answer at the head of a report, in at most five sentences: who is best for which goal, by how
much, how sure, and where the lead changes hands; of one setup alone what it carries, and what
limits it.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby, islice, pairwise
from operator import itemgetter

import msgspec

from loadstone.core.groups import by_key
from loadstone.core.units import show_number
from loadstone.report.data.frames import (
    DOLLARS,
    E2E,
    INPUTS,
    OUTPUT,
    PER_GPU,
    TPOT,
    TTFT,
    Frame,
    Measure,
    best_cells,
    frames,
    load_label,
)
from loadstone.report.data.pairs import effect
from loadstone.report.data.points import CellPoint
from loadstone.report.data.series import series_of
from loadstone.report.data.wording import join, spell
from loadstone.report.findings.bottleneck import capacity
from loadstone.report.findings.leaders import contests
from loadstone.report.findings.sentence import (
    Sentence,
    doubt,
    setups,
    spans,
    value,
    warn,
    within_slo,
    work,
)

_INTERVAL = re.compile(r"\([\d.]+–[\d.]+\)")
TOY = 64
"""Tokens of prompt and answer together below which a workload leads no report."""
MOST = 5
"""Sentences of an answer."""


class Headline(msgspec.Struct, frozen=True):
    """`context`: the model and workload that it is of; `predicted`: nothing of it was measured;
    `rest`: workloads of the report beside this one; `frame`: the cells that it is of.
    """

    sentences: list[str]
    context: str
    predicted: bool
    rest: int
    frame: Frame


def answer(points: Sequence[CellPoint]) -> Headline | None:
    """Answer for the workload with the most trusted requests, then setups; measured ones first;
    None without cells."""
    measured = [point for point in points if not point.is_simulated]
    groups = frames(measured or points, "load", single=True)
    if not groups:
        return None
    frame = max(
        groups,
        key=lambda group: (
            group.mode == "online",
            not _is_toy(group.points[0]),
            _count_trusted(group.points),
            len(set(_names(group.points))),
            len(group.points),
        ),
    )
    sentences = list(islice(_sentences(frame), MOST)) or list(_describe_alone(frame))
    sentences = [spell(sentence, long=True) for sentence in sentences]
    return Headline(
        sentences,
        work(frame.points[0]),
        not measured,
        len({work(group.points[0]) for group in groups}) - 1,
        frame,
    )


def _is_toy(point: CellPoint) -> bool:
    """Tell if prompts and answers are so short that they try a connection alone."""
    return (point.demand.input_tokens or TOY) + (point.demand.output_tokens or TOY) < TOY


def _count_trusted(points: Sequence[CellPoint]) -> int:
    """Count the requests of trusted loads, where they are told."""
    return sum(point.ok or 0 for point in points if point.trusted)


def _names(points: Sequence[CellPoint]) -> list[str]:
    return [series.setup for series in series_of(points)]


def _sentences(frame: Frame) -> Iterator[str]:
    points = frame.points
    if len(set(_names(points))) == 1:
        yield from _describe_alone(frame)
        return
    met, meets = within_slo(points)
    within = " within the SLO" if meets else ""
    if meets and not met:
        bounds = next(point.demand.slo for point in points if point.demand.slo)
        yield f"No load meets its SLO ({bounds})."
    throughput = (
        PER_GPU
        if len({point.setup.gpus for point in points}) > 1
        and all(point.setup.gpus for point in points)
        else OUTPUT
    )
    if all(point.pooled is not None for point in points):
        throughput = INPUTS
    if any(DOLLARS.of(point) for point in met):
        yield from _best(met, DOLLARS, f"Cheapest output tokens{within}")
    yield from _best(met, throughput, f"Most {throughput.noun}{within}")
    yield from _crossover(frame)
    load = min(point.load for point in points)
    lightest = [point for point in points if point.load == load]
    yield from _best(lightest, TPOT, "Shortest time per token (TPOT)")
    yield from _best(lightest, TTFT, "Soonest first token (TTFT)")
    if throughput is INPUTS:
        yield from _best(lightest, E2E, "Shortest time of a request (E2E)")


def _describe_alone(frame: Frame) -> Iterator[str]:
    """Return one setup: what each of its runs carries; the rest is among the findings. Of several
    that nothing compares, what each carries.
    """
    alone = len(set(_names(frame.points))) == 1
    lines = by_key((series.run if alone else series.label, point) for point, series in frame.pairs)
    for run, points in islice(lines.items(), MOST):
        points.sort(key=lambda point: point.load)
        parts = capacity(points)
        if not parts:
            first = points[0]
            shown = [
                f"{measure.name} {value(first, measure)}"
                for measure in ((TTFT, TPOT) if first.pooled is None else (E2E,))
                if measure.of(first) and not first.cells[0].by_class
            ]
            if first.output_tokens_per_s:
                shown.insert(0, f"{show_number(first.output_tokens_per_s, 4)} output tok/s")
            if first.pooled is not None:
                shown.insert(0, value(first, INPUTS))
            parts = [f"at {load_label(first)}: {', '.join(shown) or 'nothing was timed'}"]
            if first.slo_met is not None:
                parts[0] += f"; SLO: {first.slo_words}"
        whole = f"{join(run, '; '.join(parts), by=': ')}{warn(points)}"
        for text in parts if alone and not run else [whole]:
            yield f"{text[0].upper() if alone else text[0]}{text[1:]}."


def _best(points: Sequence[CellPoint], measure: Measure, goal: str) -> Iterator[str]:
    """Say whose best cell is ahead, and of whom it cannot be told."""
    sign = 1 if measure.better == "lower" else -1
    ranked = list(best_cells(points, _names(points), measure).values())
    if len(ranked) < 2:
        return
    first, *rest = ranked
    names = setups(ranked)
    gaps = [effect(first, rival, measure) for rival in rest]
    level = [
        name for name, gap in zip(names[1:], gaps, strict=True) if gap is None or not gap.clear
    ]
    amount = (
        f"${show_number(measure.of(first))} a million"
        if measure is DOLLARS
        else value(first, measure)
    )
    text = f"{goal}: {names[0]}, {amount} at {load_label(first)}"
    if not level and gaps[0] is not None:
        text += f", {gaps[0].words} {'below' if sign > 0 else 'above'} {names[1]}"
    elif level:
        rest_of = f" and {len(level) - 1} more" if len(level) > 1 else ""
        text += f", not clearly {'below' if sign > 0 else 'above'} {level[0]}{rest_of}"
    yield f"{text}{doubt([first, rest[0]])}."


def _crossover(frame: Frame) -> Iterator[str]:
    """Say who has the most throughput up to which load, where that changes."""
    _, wins = contests(frame, frame.points, OUTPUT, without=())
    named = zip(setups([win.first for win in wins]), wins, strict=True)
    held = [
        (name, [win.x for _, win in stretch]) for name, stretch in groupby(named, key=itemgetter(0))
    ]
    if 1 < len(held) < MOST and len(dict.fromkeys(name for name, _ in held)) == len(held):
        parts = [f"{name} at {spans(stretch)}" for name, stretch in held]
        gaps = [b[0] / a[-1] for (_, a), (_, b) in pairwise(held) if a[-1]]
        near = (
            f" (nobody clearly between {held[0][1][-1]:g} and {held[1][1][0]:g})"
            if gaps and gaps[0] > 4
            else ""
        )
        yield f"Most throughput by {frame.axis_word}: {', then '.join(parts)}{near}."


def explain_intervals(sentences: Sequence[Sentence], points: Sequence[CellPoint]) -> str:
    """Say what the brackets of these findings mean, and at which level."""
    sources = {point.setup.source for point in points}
    sums = any(point.sums for point in points)
    kinds = [
        (
            "of what was measured: 95%, from the requests' spread, and that of repeats"
            if "measured" in sources
            else ""
        ),
        (
            "of imported rows: 95%, from the spread that they state, widened as no request is there"
            " (docs/statistics.md)"
            if "imported" in sources and sums
            else "of imported requests: 95%, from their spread"
            if "imported" in sources
            else ""
        ),
        (
            "of predictions: 80%, the model's error"
            if any(sentence.predicted for sentence in sentences)
            else ""
        ),
    ]
    if not any(_INTERVAL.search(sentence.text) for sentence in sentences):
        return ""
    return (
        f"In brackets is the interval of the effect {'; '.join(kind for kind in kinds if kind)};"
        " each with how much repeats of one configuration differ (TTFT 8.8%, all else 3.4%)."
        " Smaller differences are not mentioned."
    )
