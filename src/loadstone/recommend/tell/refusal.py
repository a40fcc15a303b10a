"""Explains why nothing carries the traffic, and what is nearest to doing so."""

from collections.abc import Sequence

from loadstone.catalogue import parse_worker
from loadstone.core.bounds import TASK
from loadstone.core.units import show_seconds
from loadstone.predict.scheduler import policy_of
from loadstone.predict.steady_state import SELDOM, steady_state
from loadstone.predict.step_time import StepModel
from loadstone.recommend.demand.planning import Planning
from loadstone.recommend.demand.traffic import Traffic
from loadstone.recommend.search.candidates import Refused, Search
from loadstone.recommend.search.layouts import schedulers_in_step


def explain_refusal(found: Search, planning: Planning) -> str:
    """Return one line: the flag that stands in the way, the nearest deployment, and the remedy."""
    gpus_max = planning.search.gpus_max
    too_few = [refused for refused in found.refused if refused.gpus_needed]
    if too_few:
        nearest = min(too_few, key=lambda refused: refused.gpus_needed)
        return (
            f"--gpus-max {gpus_max}: nothing carries this within so many; the nearest,"
            f" {nearest.deployment}, {nearest.why}: {nearest.gpus_needed - gpus_max:,} more"
        )
    slow = [refused for refused in found.refused if refused.missed_s]
    if slow:
        nearest = min(slow, key=lambda refused: refused.missed_s)
        return _explain_roofline(slow, planning.traffic) or (
            f"--slo: {nearest.deployment} comes nearest, and {nearest.why}; widen the bound"
        )
    if found.refused:
        usual = max(found.refused, key=lambda refused: refused.alike)
        return f"{usual.deployment}: {usual.why}"
    flag = "--tp" if planning.search.tp else "--gpus"
    return (
        f"{flag}: no deployment can be made of these; give more GPUs, or other precisions or powers"
        " of two"
    )


def _explain_roofline(slow: Sequence[Refused], traffic: Traffic) -> str | None:
    """Say so where no engine could be fast enough, since a bound is below the roofline."""
    levels = []
    for refused in slow:
        worker = parse_worker(refused.deployment)
        model, policy = StepModel(worker).light(), policy_of(worker)
        schedulers = schedulers_in_step(worker)
        level = steady_state(model, policy, schedulers, SELDOM, traffic.lengths)
        levels.append((level, refused.deployment))
    for bound in traffic.bounds:
        latencies = [
            (traffic.latency_s(level, bound.metric, 0.5, bound.traffic_class), name)
            for level, name in levels
        ]
        fastest_s, name = min(latencies)
        if fastest_s > bound.bound_s and bound.metric != TASK:
            return (
                f"--slo: {bound.name} < {show_seconds(bound.bound_s)} is faster than the hardware"
                f" allows: the memory and products of {name} take {show_seconds(fastest_s)} with"
                " nothing lost; ask for more than that"
            )
    return None
