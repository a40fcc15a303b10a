"""The traffic that a plan must carry, at any multiple of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec
import numpy as np

from loadstone.analyse.summary import parse_slo
from loadstone.core.errors import InputError
from loadstone.core.plan import Plan
from loadstone.core.statistics.distribution import PERCENTILES
from loadstone.recommend.by_hour import Hours, split_hours
from loadstone.recommend.options import RecommendOptions
from loadstone.workload.options import SimulateOptions, options_of
from loadstone.workload.planning import Planner

LEAST_REQUESTS, MOST_REQUESTS = 800, 8_000
_EVERY_REQUEST = 0.999
"""A bound on every request is taken as one on this share of them."""


class QuantileBound(msgspec.Struct, frozen=True):
    """An upper bound on a quantile of a latency, in seconds; `name` as --slo has it."""

    name: str
    metric: str
    quantile: float
    bound_s: float


@dataclass(frozen=True)
class Traffic:
    """plan: of one cell. `demand`: requests/s, or requests under way, that all replicas together must carry."""

    plan: Plan
    kind: Literal["rate", "concurrency"]
    demand: float
    input_tokens: float
    output_tokens: float
    bounds: tuple[QuantileBound, ...]
    hours: Hours | None = None

    @property
    def is_open(self) -> bool:
        return self.kind == "rate"

    @property
    def longest_tokens(self) -> int:
        """Tokens of the longest request, in and out together."""
        return int((self.plan.input_tokens + self.plan.output_tokens).max())

    def part(self, load: float, requests: int) -> Plan:
        """Return the traffic's first requests at so many per second, or so many under way."""
        plan, count = self.plan, min(requests, len(self.plan))
        columns: dict[str, Any] = {name: getattr(plan, name)[:count] for name in Plan.COLUMNS}
        cell = plan.cells[0]
        if self.is_open:
            columns["intended_s"] = columns["intended_s"] * (cell.value / load)
            cell = msgspec.structs.replace(cell, value=load, time_scale=cell.time_scale * cell.value / load)
        else:
            cell = msgspec.structs.replace(cell, value=float(max(1, round(load))))
        blocks = None if plan.blocks is None else plan.blocks.take(np.arange(count))
        return replace(plan, cells=(cell,), blocks=blocks, **columns)


def traffic_of(options: RecommendOptions) -> Traffic:
    """Draw the traffic. Raises InputError: no load or two, no bound that can be held."""
    if options.trace is not None and (options.rate is not None or options.concurrency is not None):
        raise InputError("--trace: comes at its own times; leave --rate and --concurrency out")
    if options.trace is None and (options.rate is None) == (options.concurrency is None):
        raise InputError("--rate: say how much traffic there is, --rate 20 or --concurrency 200 or --trace FILE")
    bounds = tuple(_bound(name, limit_s) for name, limit_s in parse_slo(options.slo))
    given: dict[str, Any] = {
        name: getattr(options, name) for name in ("input", "output", "range_ratio", "prefix", "prefix_groups", "seed")
    }
    given |= {"deployment": "", "warmup": 0}
    if options.trace is not None:
        if options.input is not None:
            raise InputError("--input: a trace has its own lengths; leave it out")
        given |= {"trace": options.trace, "input": None, "prefix": 0}
    elif options.rate is not None:
        # Of one request per second: the clock is scaled to whatever rate is looked at.
        given |= {"rate": 1.0, "requests": MOST_REQUESTS}
    else:
        given |= {"concurrency": 1, "requests": MOST_REQUESTS}
    plan = Planner(options_of(given, SimulateOptions)).plan()
    if not len(plan):
        raise InputError(f"{options.trace}: has no request")
    hours = split_hours(options, plan) if options.trace is not None else None
    plan = plan if hours is None else hours.busiest
    demand = (options.rate or options.concurrency or plan.cells[0].value) * options.growth
    return Traffic(
        plan=plan,
        kind="concurrency" if options.concurrency is not None else "rate",
        demand=float(demand),
        input_tokens=float(plan.input_tokens.mean()),
        output_tokens=float(max(2.0, plan.output_tokens.mean())),
        bounds=bounds,
        hours=hours.scale(demand) if hours is not None else None,
    )


def replayed(options: RecommendOptions, traffic: Traffic, replicas: int) -> dict[str, str]:
    """Return options of `bench` that give one replica its share of the trace, of its busiest window."""
    share, named = options.growth / replicas, {"trace": str(options.trace)}
    if traffic.hours is not None:
        named["trace-window"] = traffic.hours.window
    if share < 1:
        named["trace-sample"] = f"{share:.3g}"
    return named if share <= 1 else named | {"time-scale": f"{1 / share:.3g}"}


def _bound(name: str, limit_s: float) -> QuantileBound:
    metric, _, percentile = name.partition("_")
    return QuantileBound(name, metric, PERCENTILES[percentile] if percentile else _EVERY_REQUEST, limit_s)
