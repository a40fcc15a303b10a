"""Findings in words: what the points show beyond doubt, each with its size and interval; silent about the rest."""

from __future__ import annotations

from collections.abc import Sequence

from loadstone.report.charts.bars import gpu_ratios, switches
from loadstone.report.charts.frames import frames
from loadstone.report.findings.bottleneck import bottlenecks
from loadstone.report.findings.changes import by_length, gpu_against_gpu, switched
from loadstone.report.findings.leaders import leaders, peaks
from loadstone.report.findings.sentence import Sentence
from loadstone.report.points import Point

__all__ = ["Sentence", "observations"]


def observations(points: Sequence[Point]) -> list[Sentence]:
    """All findings of these points, those about the most of them first within each kind."""
    found: list[Sentence] = []
    real = [point for point in points if point.source != "simulated"] or list(points)
    sweeps = frames(real, "load")
    for frame in sweeps:
        found += peaks(frame)
    for frame in sweeps:
        found += leaders(frame)
        found += bottlenecks(frame)
    for frame in frames(real, "output"):
        if frame.offline:
            continue  # the sweeps over batches of each length have said it
        found += leaders(frame)
        found += by_length(frame)
    for frame in frames(real, "input"):
        found += by_length(frame)
    for fact in ("prefix", "parallel", "context"):
        found += switched(switches(real, fact), fact)
    found += gpu_against_gpu(gpu_ratios(real))
    return list({sentence.text: sentence for sentence in found}.values())
