"""Where a sweep stops gaining, and what the records show of the reason: queue, KV room, compute, bandwidth, host."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from loadstone.core.units import show_number, show_seconds
from loadstone.report.data.frames import OUTPUT, TPOT, TTFT, Frame, Measure, load_label
from loadstone.report.data.points import Point
from loadstone.report.data.series import Series
from loadstone.report.data.wording import joined
from loadstone.report.findings.sentence import Sentence, doubt, setups, warned, work

GAIN = 0.15
"""Throughput grows by less than load to this power: it has stopped growing …"""
REST = 1.15
"""… if nothing later in the sweep is more than this above it."""
FREE = 0.85
"""… by more than load to this power: more requests cost nearly nothing."""
STILL = 1.02
"""Above this it is said to grow, if hardly."""
FULL = 0.95
"""Share of the KV cache in use from which there is no room."""
WAITING = 0.5
"""Mean requests that the server says are waiting."""
HOST = 0.33
"""Share of the speed of light below which the steps of the lightest load are bound by something else."""
FLAT = 0.25
"""A latency that grows by less than load to this power does not follow it."""
FOLLOWS = 0.7


def bottlenecks(frame: Frame) -> Iterable[Sentence]:
    """A sentence for each series whose throughput stops growing within the sweep, and for those that grow freely."""
    if frame.axis != "load" or frame.points[0].kind == "rate":
        return
    lines: dict[tuple[str, Series], list[Point]] = defaultdict(list)
    names = setups(frame.points, without=("parallel",))
    for name, (point, series) in zip(names, frame.pairs, strict=True):
        lines[joined(name, point.parallel, work(point), series.run), series].append(point)
    for (name, _), points in lines.items():
        if points[0].engine == "timing server":
            continue  # nothing bounds it but its law
        points.sort(key=lambda point: point.load)
        steps = [(a, b) for a, b in itertools.pairwise(points) if a.load < b.load]
        gains = [(a, b, gain) for a, b in steps if (gain := _slope(a, b, OUTPUT)) is not None]
        if not gains:
            continue
        stop = next((entry for entry in gains if entry[2] < GAIN and not _recovers(entry[0], points)), None)
        if stop is not None:
            before, after, _ = stop
            grows = (after.output_tokens_per_s or 0.0) > STILL * (before.output_tokens_per_s or 0.0)
            text = (
                f"{name}: output throughput {'hardly grows beyond' if grows else 'stops growing at'} "
                f"{load_label(before)} ({show_number(before.output_tokens_per_s, 4)} tok/s; "
                f"{show_number(after.output_tokens_per_s, 4)} at {after.load:g})"
            )
            text = joined(text, _reason(before, after), by=": ")
            text += warned(point for point in points if point.load >= before.load)
            yield Sentence(text=f"{text}.", kind="bottleneck", about=frame.section)
        first = points[0]
        if first.roofline.tpot_s and first.tpot is not None:
            text = f"{name}: {_against_light(first, first.roofline.tpot_s, first.tpot.value)}{doubt([first])}."
            yield Sentence(text=text, kind="light", about=frame.section)
        if stop is None and all(gain > FREE for _, _, gain in gains) and len(gains) > 1:
            last = points[-1]
            text = (
                f"{name}: output throughput grows with the load all the way "
                f"({show_number(first.output_tokens_per_s, 4)} tok/s at {first.load:g} to "
                f"{show_number(last.output_tokens_per_s, 4)} at {last.load:g}): steps take about as long with more "
                "requests in them, so they are not bound by compute but by a fixed cost of each step: reading the "
                f"weights (memory bandwidth), or host time{warned(points)}."
            )
            yield Sentence(text=text, kind="bottleneck", about=frame.section)


def _recovers(before: Point, points: Sequence[Point]) -> bool:
    """Whether a heavier load has a throughput well above it: a pause in growth is not its end."""
    level = REST * (before.output_tokens_per_s or 0.0)
    return any((point.output_tokens_per_s or 0.0) > level for point in points if point.load > before.load)


def _against_light(point: Point, light_s: float, tpot_s: float) -> str:
    """At the lightest load a decode step reads weights and does next to nothing else."""
    share = light_s / tpot_s
    comparison = (
        f"at {load_label(point)} TPOT is {show_seconds(tpot_s)}, where the memory's bandwidth allows "
        f"{show_seconds(light_s)} ({100 * share:.0f} % of the speed of light)"
    )
    others_s = _prefills_s(point)
    if others_s is not None and light_s < HOST * (tpot_s - others_s):
        return f"{comparison}: most of a step goes not to weights or KV cache, but to the host, launches or links"
    if share > 1:
        comparison += (
            ": faster than possible with one token a step, so it uses speculative decoding without stating it, or "
            "its stated deployment is wrong"
        )
    return comparison


def _prefills_s(point: Point) -> float | None:
    """The most by which the prompts of others can have lengthened TPOT: while one request gets its tokens, each of
    the others under way begins once, and that takes a TTFT at most; None where it is not known.
    """
    if point.load <= 1:
        return 0.0
    if point.ttft is None or not point.output_tokens or point.output_tokens < 2:
        return None
    return (point.load - 1) * point.ttft.value / (point.output_tokens - 1)


def _reason(before: Point, after: Point) -> str | None:
    """What the records show, most direct evidence first; None where they show nothing."""
    server = after.server
    waiting = server.waiting.mean if server is not None and server.waiting is not None else None
    usage = server.kv_usage.max if server is not None and server.kv_usage is not None else None
    preempted = server.preemptions if server is not None else None
    if usage is not None and usage >= FULL and waiting is not None and waiting >= WAITING:
        return f"KV cache: it is {usage:.0%} full and {show_number(waiting)} requests wait, by the metrics"
    if preempted is not None and preempted > 0:
        return f"KV cache: {show_number(preempted)} requests were preempted, by the metrics"
    if waiting is not None and waiting >= WAITING:
        return f"queue: {show_number(waiting)} requests wait on average, the KV cache has room, by the metrics"
    ttft, tpot = _slope(before, after, TTFT), _slope(before, after, TPOT)
    if ttft is None or tpot is None:
        return None
    if tpot < FLAT and ttft > FOLLOWS:
        times = after.ttft.value / before.ttft.value if before.ttft is not None and after.ttft is not None else 1.0
        waits = f"additional requests wait before their first token (TTFT {times:.3g}×, TPOT hardly changed)"
        return f"queue: {waits}, for a slot or for KV cache"
    if tpot > FOLLOWS:
        return "compute or KV reads: steps take longer in proportion to the requests in them (TPOT follows the load)"
    return None


def _slope(a: Point, b: Point, measure: Measure) -> float | None:
    """d log(value) / d log(load)."""
    of_a, of_b = measure.of(a), measure.of(b)
    if not of_a or not of_b or of_a < 0 or of_b < 0:
        return None
    return math.log(of_b / of_a) / math.log(b.load / a.load)
