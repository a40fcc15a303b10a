"""Explains why nothing carries the traffic, and what is nearest to doing so."""

from __future__ import annotations

import math
from collections.abc import Sequence

from loadstone.catalogue import parse_deployment
from loadstone.core.summary import TASK
from loadstone.core.units import show_seconds
from loadstone.predict.scheduler import policy_of
from loadstone.predict.steady_state import SELDOM, steady_state
from loadstone.predict.step_time import StepModel
from loadstone.recommend.candidates import Refused, Search, schedulers_in_step
from loadstone.recommend.options import RecommendOptions
from loadstone.recommend.traffic import Traffic


def explain_refusal(found: Search, options: RecommendOptions, traffic: Traffic) -> str:
    """Return one line: the flag that stands in the way, the nearest deployment, and the remedy."""
    too_few = [each for each in found.refused if each.gpus_needed]
    if too_few:
        nearest = min(too_few, key=lambda each: each.gpus_needed)
        return (
            f"--gpus-max {options.gpus_max}: nothing carries this within so many; the nearest,"
            f" {nearest.deployment}, {nearest.why}: {nearest.gpus_needed - options.gpus_max:,} more"
        )
    slow = [each for each in found.refused if each.missed_s]
    if slow:
        nearest = min(slow, key=lambda each: each.missed_s)
        return _explain_roofline(slow, traffic) or (
            f"--slo: {nearest.deployment} comes nearest, and {nearest.why}; widen the bound"
        )
    if found.refused:
        first = max(found.refused, key=lambda each: each.alike)
        return f"{first.deployment}: {first.why}"
    flag = "--tp" if options.tp else "--gpus"
    return (
        f"{flag}: no deployment can be made of these; give more GPUs, or other precisions or powers"
        " of two"
    )


def _explain_roofline(slow: Sequence[Refused], traffic: Traffic) -> str | None:
    """Say so where no engine could be fast enough, since a bound is below the roofline."""
    fastest: dict[str, tuple[float, str]] = {}
    for each in slow:
        deployment = parse_deployment(each.deployment)
        model, policy = StepModel(deployment).light(), policy_of(deployment)
        schedulers = schedulers_in_step(deployment)
        level = steady_state(model, policy, schedulers, SELDOM, traffic.lengths)
        for bound in traffic.bounds:
            value = traffic.latency_s(level, bound.metric, 0.5)
            fastest[bound.name] = min(
                fastest.get(bound.name, (math.inf, "")), (value, each.deployment)
            )
    for bound in traffic.bounds:
        value, name = fastest.get(bound.name, (0.0, ""))
        if value > bound.bound_s and bound.metric != TASK:
            return (
                f"--slo: {bound.name} < {show_seconds(bound.bound_s)} is faster than the hardware"
                f" allows: the memory and products of {name} take {show_seconds(value)} with"
                " nothing lost; ask for more than that"
            )
    return None
