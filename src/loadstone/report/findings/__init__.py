"""Findings in words: what the points show beyond doubt, each with its size and interval; silent
about the rest."""

from collections.abc import Sequence

from msgspec.structs import replace

from loadstone.report.data.frames import Frame, frames
from loadstone.report.data.pairs import Fact, gpu_ratios, more_gpus, switches
from loadstone.report.data.points import CellPoint
from loadstone.report.findings.answer import Headline, answer, explain_intervals
from loadstone.report.findings.bottleneck import bottlenecks
from loadstone.report.findings.changes import (
    find_scaling,
    find_switches,
    follow_length,
    gpu_against_gpu,
)
from loadstone.report.findings.leaders import cheapest, leaders, peaks
from loadstone.report.findings.sentence import Sentence

__all__ = ["Headline", "Sentence", "answer", "explain_intervals", "find_silent", "observations"]


def observations(points: Sequence[CellPoint]) -> list[Sentence]:
    """Return all findings of these points, those about the most of them first within each kind; of
    simulated ones apart, and only of those that are not find_silent(), marked as predictions.
    """
    quiet = {id(point) for point in find_silent(points)}
    simulated = [point for point in points if point.is_simulated and id(point) not in quiet]
    sentences = _observe([point for point in points if not point.is_simulated])
    sentences += [replace(sentence, predicted=True) for sentence in _observe(simulated)]
    return list({sentence.whole: sentence for sentence in sentences}.values())


def find_silent(points: Sequence[CellPoint]) -> list[CellPoint]:
    """Return simulated points beside which others of the same model and workload stand: nothing is
    said of these."""
    questions = {_question(point) for point in points if not point.is_simulated}
    return [point for point in points if point.is_simulated and _question(point) in questions]


def _question(point: CellPoint) -> tuple[object, ...]:
    return (
        point.setup.model,
        point.demand.near_input,
        point.demand.near_output,
        point.demand.prefix,
        point.demand.offline,
    )


def _observe(real: Sequence[CellPoint]) -> list[Sentence]:
    sentences: list[Sentence] = []
    for frame in frames(real, "load", single=True):
        sentences += cheapest(frame)
    sweeps, by_output, by_input = (
        frames(real, "load"),
        frames(real, "output"),
        frames(real, "input"),
    )
    for frame in sweeps:
        sentences += peaks(frame)
    for frame in sweeps:
        sentences += leaders(frame)
        sentences += bottlenecks(frame)
    for frame in _alone(real, [*sweeps, *by_output, *by_input]):
        sentences += leaders(frame)
    for frame in by_output:
        if frame.offline:
            continue  # the sweeps over batches of each length have said it
        sentences += leaders(frame)
        sentences += follow_length(frame)
    for frame in by_input:
        sentences += follow_length(frame)
    facts: tuple[Fact, ...] = ("prefix", "parallel", "context", "settings")
    for fact in facts:
        sentences += find_switches(switches(real, fact), fact)
    return [*sentences, *find_scaling(more_gpus(real)), *gpu_against_gpu(gpu_ratios(real))]


def _alone(points: Sequence[CellPoint], others: Sequence[Frame]) -> list[Frame]:
    """Return setups that were compared at one load and one length, which are in no other frame."""
    seen = {id(point) for frame in others for point in frame.points}
    return [
        frame
        for frame in frames(points, "load", single=True)
        if not any(id(point) in seen for point in frame.points)
    ]
