"""Builds the first screen of a report: the numbers of the load that stands for it, what they say of
memory and cost, and what to do next."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec

from loadstone.core.metrics import latency_field
from loadstone.core.parts import ClassPart
from loadstone.core.summary import CellSummary
from loadstone.core.units import show_met, show_number, show_seconds, show_share
from loadstone.report.data.frames import load_label
from loadstone.report.data.points import CellPoint
from loadstone.report.data.statistic import Estimate
from loadstone.report.data.wording import clean, join, spell
from loadstone.report.findings.sentence import setup
from loadstone.report.pages.columns import show_middle, show_p50, show_p99, show_tail

_MAX_CLASS_TILES = 3


class Tile(msgspec.Struct, frozen=True):
    """One number of the load. `tone`: good or bad where the SLO bounds it, else empty."""

    name: str
    value: str
    note: str
    tone: str = ""


class FirstScreen(msgspec.Struct, frozen=True):
    """`place`: which load the tiles are of. `facts`: (question, answer)."""

    place: str
    tiles: list[Tile]
    facts: list[tuple[str, str]]


def first_screen(points: Sequence[CellPoint]) -> FirstScreen | None:
    """Describe the load that stands for these; None where there is none."""
    if not points:
        return None
    point = choose(points)
    series = sorted(
        (neighbour for neighbour in points if neighbour.setup == point.setup),
        key=lambda neighbour: neighbour.load,
    )
    several = len(series) < len(points)
    place = join(load_label(point), setup(point) if several else "")
    return FirstScreen(place, list(_tiles(point)), list(_facts(point, series)))


def choose(points: Sequence[CellPoint]) -> CellPoint:
    """Choose the load of the most throughput: of those that hold the SLO, where it is given; the
    lightest where none does. Trusted loads stand before others."""
    complete = [point for point in points if not point.failed] or points
    held = [point for point in complete if point.holds]
    if not held and any(point.slo_met is not None for point in complete):
        return min(complete, key=lambda point: point.load)
    return max(held or complete, key=lambda point: (point.trusted, point.rate or 0.0))


def _tiles(point: CellPoint) -> Iterator[Tile]:
    tone = {"met": "good", "MISSED": "bad"}.get(point.slo_words.partition(" ")[0], "")
    cell = point.cells[0]
    if point.pooled is not None:
        name = "Documents/s" if point.asks_scores else "Inputs/s"
        yield Tile(name, show_number(point.rate, 4), point.measured_over)
        yield Tile("Input tok/s", show_number(point.input_tokens_per_s, 4), point.measured_over)
    else:
        rate = show_number(point.output_tokens_per_s, 4)
        yield Tile("Output tok/s", rate, point.measured_over)
    for part in cell.by_class[:_MAX_CLASS_TILES]:
        yield _class_tile(part, cell)
    times = [("TTFT", point.ttft), ("TPOT", point.tpot), ("E2E", point.e2e)]
    times = times if point.pooled is None else times[-1:]
    for name, stat in () if cell.by_class else times:
        yield _time_tile(name, stat, point)
    if point.goodput_per_s is not None:
        share = f"{show_share(point.attainment, 1)} within the SLO"
        yield Tile("Goodput req/s", show_number(point.goodput_per_s), share, tone)
    else:
        yield Tile("Requests/s", show_number(point.requests_per_s), "no SLO was given")


def _class_tile(part: ClassPart, cell: CellSummary) -> Tile:
    """Write the TTFT of a class of traffic: of all classes together it is no one's."""
    values = getattr(part, latency_field("ttft", cell.load))
    tone = {True: "good", False: "bad", None: ""}[part.slo_met]
    note = "" if part.slo_met is None else f"SLO: {show_met(part.slo_met, part.p_slo)}"
    name = f"TTFT p50 / p99 of {clean(part.name, 40)}"
    return Tile(name, f"{show_p50(values)} / {show_p99(values, cell)}", note, tone)


def _time_tile(name: str, stat: Estimate | None, point: CellPoint) -> Tile:
    bounds = [bound for bound in point.cells[0].slo if bound.metric.startswith(name.lower())]
    limits = ", ".join(
        f"{spell(bound.metric).removeprefix(f'{name} ')} < {show_seconds(bound.limit_s)}"
        for bound in bounds
    )
    tone = ("good" if all(bound.met for bound in bounds) else "bad") if bounds else ""
    value = f"{show_middle(stat)} / {show_tail(stat)}"
    return Tile(f"{name} p50 / p99", value, f"SLO: {limits}" if limits else "", tone)


def _facts(point: CellPoint, series: Sequence[CellPoint]) -> Iterator[tuple[str, str]]:
    yield "Does it fit?", _describe_memory(series) or "It ran; how full its memory was is not told."
    yield (
        "What does it cost?",
        _describe_cost(point) or "Not told: its GPUs are not (--set gpus=8).",
    )
    yield "What next?", _advise(series)


def _describe_memory(series: Sequence[CellPoint]) -> str:
    """Say how full the KV cache was at the heaviest load whose server tells, and of preemptions."""
    servers = [point.cells[0].server for point in series]
    usages = [server.kv_usage.max for server in servers if server and server.kv_usage]
    preempted = sum(server.preemptions or 0 for server in servers if server)
    if not usages or max(usages) is None:
        return ""
    text = f"Use of the KV cache at its peak: {show_share(max(usages))}"
    return f"{text}; {preempted:,.0f} requests were preempted." if preempted else f"{text}."


def _describe_cost(point: CellPoint) -> str:
    dollars, gpus, rate = point.dollars.output, point.setup.gpus, point.output_tokens_per_s
    energy = point.joules.output
    parts = []
    if dollars is not None:
        parts.append(f"${show_number(dollars.value)} per million output tokens")
    elif gpus and rate:
        hours = show_number(gpus / rate / 3600 * 1e6)
        parts.append(f"{hours} GPU hours per million output tokens (with --price: what they cost)")
    if energy is not None:
        parts.append(f"{show_number(energy.value)} J per output token")
    return f"{'; '.join(parts)}." if parts else ""


def _advise(series: Sequence[CellPoint]) -> str:
    """Say what to measure next: what a warning asks for, else where the SLO's limit is."""
    findings = [
        finding
        for point in series
        for cell in point.cells
        for finding in cell.verdict.findings
        if finding.severity != "info"
    ]
    if findings:
        worst = min(findings, key=lambda finding: finding.severity != "error")
        return clean(worst.remedy.partition(". ")[0].rstrip("."), 200) + "."
    short = [
        point for point in series if any(bound.is_short_of_requests for bound in point.cells[0].slo)
    ]
    if short:
        return f"Send more requests: so few cannot show that {load_label(short[0])} meets the SLO."
    if all(point.slo_met is None for point in series):
        return "Give bounds (--slo) to see up to which load they hold."
    if series[-1].holds:
        return f"Measure heavier loads: the SLO still holds at {load_label(series[-1])}."
    for lighter, heavier in pairwise(series):
        if lighter.holds and not heavier.holds:
            return (
                f"Measure loads between {lighter.load:g} and {heavier.load:g}: the SLO's limit is"
                " there."
            )
    return f"Measure lighter loads, or change the setup: {load_label(series[0])} is too much."
