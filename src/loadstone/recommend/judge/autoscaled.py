"""A plan under autoscalers: which target, and how many replicas at least, hold the bounds for the
least cost, beside as many replicas all the time as hold them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from loadstone.core.errors import InputError
from loadstone.core.plan import Plan
from loadstone.core.settings import FleetPoint
from loadstone.predict.autoscaler.file import presets, read_autoscaler
from loadstone.predict.autoscaler.policy import Autoscaler, MetricTarget
from loadstone.predict.simulator.fleet import fleet_of
from loadstone.predict.simulator.parts import find_busiest, take_requests, thin
from loadstone.recommend.demand.planning import Planning
from loadstone.recommend.judge.choices import PlanChoice
from loadstone.runs.autoscale import Scaling, check_scaled

_MOST_REQUESTS = 40_000
"""Of a trace that is simulated under an autoscaler; of more, the busiest part."""
_TARGETS = (16.0, 8.0, 4.0, 2.0, 1.0, 0.5, 0.25)
"""Times the target of a preset, the cheapest first."""
_AHEAD = 2
"""Times the replicas that hold the bounds all the time, to which an autoscaler may go."""


class AutoscaledPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A plan under an autoscaler, by the best prediction.

    target     of `metric`, a replica's; None: the law has none, and its own values were kept
    point      what it comes to; `static`: the fewest replicas that hold the bounds all the time;
               None: no number does
    requests   of the trace that were simulated
    """

    autoscaler: str
    metric: str | None
    target: float | None
    min: int
    max: int
    point: FleetPoint
    static: FleetPoint | None
    requests: int


def autoscale_plan(
    choice: PlanChoice, names: Sequence[str], planning: Planning
) -> list[AutoscaledPlan]:
    """Return the plan under each autoscaler, with the values that hold the bounds for the fewest
    GPU-hours; where none does, with those of the most requests within them. Raises InputError where
    the trace is missing, or the plan is not one engine a replica."""
    if planning.options.workload.trace is None:
        raise InputError("--autoscale: replicas follow a trace; give --trace FILE")
    traffic, deployment = planning.traffic, choice.finalist.deployment
    slo = {bound.name: bound.bound_s for bound in traffic.bounds}
    scalers = [_read(name, planning) for name in names]
    plan = _asked(planning)
    fleet = fleet_of(deployment, route=choice.route)
    check_scaled(deployment, fleet, plan.cells)
    found, static = [], None
    for number, scaler in enumerate(scalers):
        scaling = Scaling(plan, fleet, scaler, slo, deployment.gpus, "given")
        if not number:
            span_s = float(np.nanmax(plan.intended_s))
            static = scaling.references(span_s).fewest(choice.replicas)
        held = round(static.replicas) if static is not None else choice.replicas
        planning.show(f"simulating {scaler.name} on {choice.shorthand}")
        best, point = _cheapest(scaling, held)
        target = best.metrics[0] if best.metrics else None
        found.append(
            AutoscaledPlan(
                autoscaler=scaler.name,
                metric=target.metric if target is not None else None,
                target=target.target if target is not None else None,
                min=best.min,
                max=best.max,
                point=point,
                static=static,
                requests=len(plan),
            )
        )
    return found


def _read(name: str, planning: Planning) -> Autoscaler:
    """Read an autoscaler; presets that plan by bounds have those of the traffic."""
    limits = {bound.name: bound.bound_s for bound in planning.traffic.bounds}
    scaler = replace(read_autoscaler(name, limits), start_up_s=planning.options.load.start_up_s)
    if scaler.policy == "planner" and name in presets():
        by_metric = {bound.metric: bound.bound_s for bound in planning.traffic.bounds}
        scaler = replace(scaler, ttft_s=by_metric.get("ttft"), tpot_s=by_metric.get("tpot"))
    return scaler


def _asked(planning: Planning) -> Plan:
    """Return the trace under the asked load, or the busiest part of it."""
    traffic = planning.traffic
    hours = traffic.hours
    plan = traffic.plan if hours is None or hours.whole is None else hours.whole
    growth = traffic.demand / traffic.plan.cells[0].value
    if abs(growth - 1) > 1e-9:
        plan = thin(plan, growth)
    if len(plan) > _MOST_REQUESTS:
        work = (0.2 * plan.input_tokens + plan.output_tokens).astype(float)
        (rows,) = find_busiest(plan, work, _MOST_REQUESTS, 1)
        plan = take_requests(plan, rows, float(plan.intended_s[rows[0]]))
    return plan


def _cheapest(scaling: Scaling, held: int) -> tuple[Autoscaler, FleetPoint]:
    """Return the values that hold the bounds for the fewest GPU-hours. `held`: replicas that hold
    them all the time."""
    best: tuple[Autoscaler, FleetPoint] | None = None
    nearest: tuple[Autoscaler, FleetPoint] | None = None
    for least in sorted({1, (held + 1) // 2, held}):
        for scaler in _tries(replace(scaling.scaler, min=least, max=_AHEAD * held)):
            point = scaling.simulate(scaler).point
            if nearest is None or (point.attainment or 0) > (nearest[1].attainment or 0):
                nearest = scaler, point
            if best is not None and (point.gpu_hours or 0) >= (best[1].gpu_hours or 0):
                break  # lower targets cost more
            if point.met:
                best = scaler, point
                break
    assert nearest is not None  # noqa: S101 - there is a least at least
    return best or nearest


def _tries(scaler: Autoscaler) -> Iterator[Autoscaler]:
    """Yield an autoscaler with its targets, the highest and cheapest first."""
    if not scaler.metrics:
        yield scaler
        return
    first, *further = scaler.metrics
    for times in _TARGETS:
        target = MetricTarget(first.metric, first.target * times)
        if target.metric != "kv_usage" or target.target <= 1:
            yield replace(scaler, metrics=(target, *further))
