"""Say what one sweep shows: its knee, its capacity, the load that its SLO allows, where it stops
gaining, and which resource it lacks there: KV room, slots, prefill compute, decode bandwidth, the
host; unknown where nothing tells.
"""

import itertools
import math
from collections.abc import Iterator, Sequence

from loadstone.core.groups import by_key
from loadstone.core.units import show_number, show_seconds, show_share
from loadstone.report.data.frames import E2E, OUTPUT, TPOT, TTFT, Frame, Measure, knee, load_label
from loadstone.report.data.points import CellPoint
from loadstone.report.data.wording import join
from loadstone.report.findings.sentence import (
    Sentence,
    doubt,
    is_surely_met,
    setups,
    warn,
    work,
)

GAIN = 0.07
"""Throughput grows by less than load to this power, 5 % for twice the load: it has stopped growing
…"""
REST = 1.15
"""… if nothing later in the sweep is more than this above it."""
FREE = 0.85
"""… by more than load to this power: more requests cost nearly nothing."""
STILL = 1.02
"""Above this it is said to grow, if hardly."""
FULL = 0.95
"""Share of the KV cache in use from which there is no room."""
WAITING = 0.1
"""Mean requests that wait, of those that run, from which something other than the first moments
makes them wait."""
HOST = 0.33
"""Share of the roofline below which the steps of the lightest load are bound by something else."""
BOUND = 0.35
"""Share of the peak FLOP/s, or of twice it of the bandwidth, from which that is the resource:
engines reach some 50 % of the one and 80 % of the other at best (docs/perfmodel.md).
"""
FLAT = 0.25
"""A latency that grows by less than load to this power does not follow it."""
FOLLOWS = 0.7


def bottlenecks(frame: Frame) -> Iterator[Sentence]:
    """Say for each series of a sweep its knee, capacity and SLO; where it stops growing, and why;
    and how near its lightest load is to the roofline.
    """
    if frame.axis != "load":
        return
    names = setups(frame.points, without=("parallel",))
    lines = by_key(
        ((join(name, point.setup.parallel, series.run), series), point)
        for name, (point, series) in zip(names, frame.pairs, strict=True)
    )
    for (name, _), points in lines.items():
        if points[0].setup.engine == "timing server":
            continue  # nothing bounds it but its fixed times
        points.sort(key=lambda point: point.load)
        for kind, text in _describe_sweep(points):
            yield Sentence(
                text=f"{name}: {text}.", kind=kind, about=frame.section, context=work(points[0])
            )


def _describe_sweep(points: Sequence[CellPoint]) -> Iterator[tuple[str, str]]:
    """Yield (kind, text) of what one series shows, its lightest load first."""
    first, last = points[0], points[-1]
    carried = capacity(points)
    if len(points) > 1 and first.kind != "burst" and carried:
        yield "capacity", f"{'; '.join(carried)}{warn(points)}"
    if first.kind == "rate":
        return
    stop = _stop(points)
    if stop is not None:
        peak, heavier = stop
        grows = (heavier.output_tokens_per_s or 0.0) > STILL * (peak.output_tokens_per_s or 0.0)
        yield (
            "bottleneck",
            f"output throughput {'hardly grows beyond' if grows else 'stops growing at'} "
            f"{load_label(peak)} ({show_number(peak.output_tokens_per_s, 4)} tok/s; "
            f"{show_number(heavier.output_tokens_per_s, 4)} at {heavier.load:g}), limited by "
            f"{limit(peak, heavier)}{warn(point for point in points if point.load >= peak.load)}",
        )
    if first.roofline.tpot_s and first.tpot is not None:
        comparison = _compare_roofline(first, first.roofline.tpot_s, first.tpot.value)
        yield "light", f"{comparison}{doubt([first])}"
    gains = [gain for _, _, gain in _gains(points)]
    if stop is None and len(gains) > 1 and min(gains) > FREE:
        yield (
            "bottleneck",
            "output throughput grows with the load all the way"
            f" ({show_number(first.output_tokens_per_s, 4)} tok/s at {first.load:g} to"
            f" {show_number(last.output_tokens_per_s, 4)} at {last.load:g}): steps take about"
            " as long with more requests in them, so they are not bound by compute but by a"
            " fixed cost of each step: reading the weights (memory bandwidth), or host"
            f" time{warn(points)}",
        )


def capacity(points: Sequence[CellPoint]) -> list[str]:
    """Say up to where every request of one series meets its SLO, with the share that does beyond,
    its most throughput and its knee; nothing where no throughput is known. `points`: lightest load
    first.
    """
    served = [point for point in points if point.output_tokens_per_s and not point.failed]
    if len(served) < 2:
        return []
    peak = max(served, key=lambda point: point.output_tokens_per_s or 0.0)
    bend = knee(served)
    parts = [
        _describe_slo(points),
        f"most throughput at {load_label(peak)} ({_describe(peak)})",
        (
            f"knee, from where latency grows faster than throughput, at {load_label(bend)}"
            f" ({_describe(bend)})"
            if bend is not None and bend is not peak
            else ""
        ),
    ]
    return [part for part in parts if part]


def _describe(point: CellPoint) -> str:
    e2e = E2E.of(point)
    return join(
        f"{show_number(point.output_tokens_per_s, 4)} output tok/s",
        f"{show_seconds(e2e)} a request" if e2e else "",
    )


def _describe_slo(points: Sequence[CellPoint]) -> str:
    judged = [point for point in points if point.slo_met is not None]
    if not judged:
        return ""
    holds = list(itertools.takewhile(lambda point: point.holds, judged))
    fails = judged[len(holds)] if len(holds) < len(judged) else None
    slo = judged[0].demand.slo
    where = f"meets {slo} up to {load_label(holds[-1])}{_doubt(holds[-1])}" if holds else ""
    if fails is None:
        return f"{where}, the highest load"
    if holds:
        place, unsure, fails_words, do = f"at {fails.load:g}", "unsure", "not", "do"
    else:
        place = f"{slo} at {load_label(fails)}, the lightest load"
        unsure, fails_words, do = "unsure to meet", "misses", "meet it"
    if fails.slo_words.startswith("unsure"):
        text = f"{unsure} {place} ({show_share(fails.p_met)})"
    else:
        text = f"{fails_words} {place}"
        if fails.attainment is not None:
            text += f" ({show_share(fails.attainment, 1)} of requests {do})"
    return join(where, text)


def _doubt(point: CellPoint) -> str:
    """Write the probability that a point meets its bounds, where that is not sure."""
    return "" if is_surely_met(point) else f" (with a probability of {show_share(point.p_met)})"


def _gains(points: Sequence[CellPoint]) -> Iterator[tuple[CellPoint, CellPoint, float]]:
    """Yield neighbouring loads, and the power of the load by which throughput grows there."""
    for lighter, heavier in itertools.pairwise(points):
        gain = _slope(lighter, heavier, OUTPUT) if lighter.load < heavier.load else None
        if gain is not None:
            yield lighter, heavier, gain


def _stop(points: Sequence[CellPoint]) -> tuple[CellPoint, CellPoint] | None:
    """Find the last load up to which throughput grew, and the next; a pause in growth is not its
    end."""
    for lighter, heavier, gain in _gains(points):
        level = REST * (lighter.output_tokens_per_s or 0.0)
        rates = (point.output_tokens_per_s or 0.0 for point in points if point.load > lighter.load)
        if gain < GAIN and max(rates) <= level:
            return lighter, heavier
    return None


def _compare_roofline(point: CellPoint, light_s: float, tpot_s: float) -> str:
    """Hold the lightest load against the roofline: there a decode step reads weights and does
    little else."""
    share = light_s / tpot_s
    comparison = (
        f"at {load_label(point)} TPOT is {show_seconds(tpot_s)}, where the memory's bandwidth"
        f" allows {show_seconds(light_s)} ({share:.0%} of the roofline)"
    )
    others_s = _prefills_s(point)
    if others_s is not None and light_s < HOST * (tpot_s - others_s):
        return (
            f"{comparison}: most of a step goes not to weights or KV cache, but to the host,"
            " launches or links"
        )
    if share > 1:
        comparison += (
            ": faster than possible with one token a step, so it uses speculative decoding without"
            " stating it, or its stated deployment is wrong"
        )
    return comparison


def _prefills_s(point: CellPoint) -> float | None:
    """Bound by how much the prompts of others can have lengthened TPOT: while one request gets its
    tokens, each of the others under way begins once, and that takes a TTFT at most; None where it
    is not known.
    """
    if point.load <= 1:
        return 0.0
    if point.ttft is None or not point.demand.output_tokens or point.demand.output_tokens < 2:
        return None
    return (point.load - 1) * point.ttft.value / (point.demand.output_tokens - 1)


def limit(lighter: CellPoint, heavier: CellPoint) -> str:
    """Name the resource that is lacking, with the evidence: the engine's metrics first, then the
    hardware's use; if only latencies are known, what they leave open.
    """
    server, light = heavier.cells[0].server, heavier.roofline
    running = server.running.mean if server is not None and server.running is not None else None
    waiting = server.waiting.mean if server is not None and server.waiting is not None else None
    usage = server.kv_usage.max if server is not None and server.kv_usage is not None else None
    preempted = server.preemptions if server is not None else None
    queued = waiting is not None and waiting >= WAITING * max(running or 0.0, 1.0)
    if usage is not None and usage >= FULL and queued:
        return f"KV room: the cache is {show_share(usage)} full while {waiting:,.0f} requests wait"
    if preempted is not None and preempted > 0:
        return f"KV room: {preempted:,.0f} requests were preempted"
    if queued and usage is not None and heavier.load > 1.1 * ((running or 0.0) + 1):
        return (
            f"slots: {waiting:,.0f} requests wait and {running or 0:,.0f} run though the KV cache"
            f" is at most {show_share(usage)} full; see the engine's limit on sequences (or its"
            " budget for prompts)"
        )
    mfu, mbu = light.mfu or 0.0, light.mbu or 0.0
    if max(mfu, mbu / 2) >= BOUND:
        if mfu >= mbu / 2:
            return f"prefill compute: MFU is {show_share(mfu)}"
        return f"decode bandwidth: MBU is {show_share(mbu)}"
    ttft, tpot = _slope(lighter, heavier, TTFT), _slope(lighter, heavier, TPOT)
    if ttft is not None and tpot is not None:
        if tpot < FLAT and ttft > FOLLOWS:
            times = (
                heavier.ttft.value / lighter.ttft.value
                if lighter.ttft is not None and heavier.ttft is not None
                else 1.0
            )
            waits = (
                f"requests wait before their first token (TTFT {times:.3g}×, TPOT hardly changed)"
            )
            return (
                f"an unknown resource: {waits}, for a slot, for KV room or for prompts before them"
            )
        if tpot > FOLLOWS:
            return (
                "an unknown resource: steps take longer in proportion to the requests in them (TPOT"
                " follows the load), by compute or by KV reads"
            )
    return "an unknown resource: neither metrics nor latencies tell"


def _slope(a: CellPoint, b: CellPoint, measure: Measure) -> float | None:
    """Return d log(value) / d log(load)."""
    of_a, of_b = measure.of(a), measure.of(b)
    if not of_a or not of_b or of_a < 0 or of_b < 0:
        return None
    return math.log(of_b / of_a) / math.log(b.load / a.load)
