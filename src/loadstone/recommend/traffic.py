"""The traffic that a plan must carry, at any multiple of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadstone.analyse.summary import parse_slo
from loadstone.core.errors import InputError
from loadstone.core.plan import Plan
from loadstone.core.statistics.distribution import PERCENTILES
from loadstone.core.summary import TASK
from loadstone.predict.simulator.bound_errors import split_tasks
from loadstone.predict.simulator.client import whole_prompts
from loadstone.predict.simulator.content import shares
from loadstone.predict.simulator.latencies import request_rows, task_times
from loadstone.predict.simulator.parts import Rows, find_busiest, hasten, take_requests, thin
from loadstone.predict.simulator.run import CellRun
from loadstone.predict.steady_state import Lengths, SteadyState
from loadstone.recommend.by_hour import Hours, split_hours
from loadstone.recommend.options import RecommendOptions
from loadstone.recommend.sessions import NO_SESSIONS, SessionFigures, SessionTraffic, find_lines
from loadstone.workload.draw import stagger
from loadstone.workload.options import SimulateOptions, options_of
from loadstone.workload.planning import Planner
from loadstone.workload.schedule import promised_tokens

LEAST_REQUESTS, MOST_REQUESTS = 800, 8_000
_BURSTY_REQUESTS = 24_000
_EVERY_REQUEST = 0.999
"""A bound on every request is taken as one on this share of them, where plans are chosen."""
_WINDOWS = 10
"""A trace is cut into so many, of which each has its own mean lengths."""
_CHOICE_SEED = 0
"""Plans are chosen by the same random numbers, whatever the user's seed is."""


class QuantileBound(msgspec.Struct, frozen=True):
    """An upper bound on a quantile of a latency, in seconds; `name` as --slo has it."""

    name: str
    metric: str
    quantile: float
    bound_s: float


class TrafficLevel(NamedTuple):
    """A stretch of the traffic: how its load is to the mean, and its mean lengths."""

    times: float
    lengths: Lengths


@dataclass(frozen=True)
class Traffic:
    """Holds what all replicas together must carry.

    plan    of one cell; `demand`: requests/s, or requests under way; of `sessions`, how many begin
            a second or are alive
    levels  of a trace those of its windows that ask for most, whatever a token of a prompt costs
            beside one of an answer; else the mean alone
    """

    plan: Plan
    kind: Literal["rate", "concurrency"]
    demand: float
    input_tokens: float
    output_tokens: float
    bounds: tuple[QuantileBound, ...]
    hours: Hours | None = None
    cached_tokens: float = 0.0
    levels: tuple[TrafficLevel, ...] = ()
    sessions: SessionTraffic | None = None
    windows: dict[tuple[float, int], list[Rows]] = field(default_factory=dict, compare=False)

    @property
    def lengths(self) -> Lengths:
        return Lengths(self.input_tokens, self.output_tokens, self.cached_tokens)

    @property
    def has_times(self) -> bool:
        """Tell whether requests come at times that are to be kept: those of a trace, or in
        bunches."""
        return self.is_open and self.plan.cells[0].process not in ("poisson", "constant")

    @property
    def is_open(self) -> bool:
        return self.kind == "rate"

    @cached_property
    def longest_tokens(self) -> int:
        """Tokens of the longest request, in and out together."""
        return int((whole_prompts(self.plan, 0) + self.plan.output_tokens).max())

    @property
    def calls(self) -> float:
        """Requests of what the load counts: a session's, or one."""
        return 1.0 if self.sessions is None else self.sessions.calls

    def load_at(self, level: SteadyState) -> float:
        """Return what of the load a scheduler in that state carries."""
        if self.sessions is None or self.is_open:
            return level.rate_per_s / self.calls if self.is_open else max(1.0, level.users)
        return level.rate_per_s / self.calls * float(self.sessions.tasks_s(level).mean())

    def session_figures(self, run: CellRun, load: float) -> SessionFigures:
        """Return the figures of the sessions of a replica under `load`."""
        if self.sessions is None:
            return NO_SESSIONS
        spans, ended = task_times(run)[0], request_rows(run)["measured"] & ~np.isnan(run.end_s)
        cached, prompts = (
            np.array(each)[ended].sum() for each in (run.cached_tokens, run.requests.input_tokens)
        )
        each_s, (p50, p99) = float(spans.mean()), np.quantile(spans, (0.5, 0.99)).tolist()
        alive_each, rate = (
            (each_s, load * self.calls) if self.is_open else (1.0, load * self.calls / each_s)
        )
        return SessionFigures(
            alive_each, rate, (p50, p99), split_tasks(run), float(cached / prompts)
        )

    def latency_s(self, level: SteadyState, metric: str, quantile: float) -> float:
        """Return by closed form a quantile of a latency."""
        if metric == TASK and self.sessions is not None:
            return float(np.quantile(self.sessions.tasks_s(level), quantile))
        return level.latency_s(metric, quantile, self.output_tokens)

    def part(self, load: float, requests: int) -> Plan:
        """Return the traffic's first requests at so many per second, or so many under way."""
        plan, cell = self.plan, self.plan.cells[0]
        part = take_requests(plan, np.arange(min(requests, len(plan))))
        if self.is_open:
            cell = msgspec.structs.replace(
                cell, value=load, time_scale=cell.time_scale * cell.value / load
            )
            return replace(
                part, cells=(cell,), intended_s=part.intended_s * (plan.cells[0].value / load)
            )
        users, phase = max(1, round(load)), part.phase.copy()
        warm = min(users, len(phase) // 2)  # all of them come at once, and nobody does so later
        phase[:warm] = 0
        output_tokens, cell = (
            stagger(part.output_tokens, warm),
            msgspec.structs.replace(cell, value=float(users)),
        )
        return replace(part, phase=phase, output_tokens=output_tokens, cells=(cell,))

    def parts(self, load: float, requests: int, prompt_weight: float) -> list[Plan]:
        """Return plans of so many per second: of requests that have times of their own a share, in
        the windows of so many `requests` that ask for most, all of them where there are no more.
        `prompt_weight`: what a token of a prompt costs, in tokens of an answer."""
        if not self.has_times:
            return [self.part(load, requests)]
        share = load / self.plan.cells[0].value
        windows = self._find_windows(requests, prompt_weight)
        return [
            thin(take_requests(self.plan, rows, self.plan.intended_s[rows[0]]), share)
            for rows in windows
        ]

    def _find_windows(self, requests: int, prompt_weight: float) -> list[Rows]:
        if requests >= len(self.plan):
            return [np.arange(len(self.plan))]
        key = 2.0 ** round(math.log2(max(prompt_weight, 1e-6))), 2 ** round(math.log2(requests))
        if key not in self.windows:
            work = (self.plan.input_tokens - _cached(self.plan)) * key[0] + self.plan.output_tokens
            self.windows[key] = find_busiest(self.plan, work, min(key[1], len(self.plan)), 2)
        return self.windows[key]


def traffic_of(
    options: RecommendOptions, seed: int | None = None, max_tokens: int | None = None
) -> Traffic:
    """Draw the traffic, without a seed as it is for every choice; sessions end before a call of
    more than `max_tokens`. Raises InputError: no load or two, no bound that can be held."""
    _check_load(options)
    bounds = tuple(_bound(name, limit_s) for name, limit_s in parse_slo(options.slo))
    given: dict[str, Any] = {
        name: getattr(options, name)
        for name in (
            "input",
            "output",
            "range_ratio",
            "prefix",
            "prefix_groups",
            "turns",
            "think_time",
        )
    }
    given |= {"deployment": "", "warmup": 0, "seed": _CHOICE_SEED if seed is None else seed}
    has_sessions = options.agents is not None or options.turns is not None
    if not has_sessions and any(each.metric == TASK for each in bounds):
        raise InputError(
            "--slo task: is the time of a session; give --agents FILE or --turns, or leave it out"
        )
    if options.agents is not None:
        given |= {"agents": options.agents, "trace": options.trace, "concurrency": 1}
    elif options.trace is not None:
        if options.input is not None:
            raise InputError("--input: a trace has its own lengths; leave it out")
        given |= {"trace": options.trace, "input": None, "prefix": 0}
    elif options.rate is not None and not has_sessions:
        # Of one request per second: the clock is scaled to whatever rate is looked at.
        count = MOST_REQUESTS if options.burstiness in (1.0, math.inf) else _BURSTY_REQUESTS
        given |= {"rate": 1.0, "requests": count, "burstiness": options.burstiness}
    else:
        given |= {"concurrency": 1, "requests": MOST_REQUESTS}
    planner = Planner(options_of(given, SimulateOptions))
    plan = planner.plan(max_tokens)
    if not len(plan):
        raise InputError(f"{options.trace}: has no request")
    if int(plan.output_tokens.max()) < 2 and (
        name := next((b.name for b in bounds if b.metric == "tpot"), None)
    ):
        raise InputError(
            f"--slo {name}: answers of one token have no time between tokens; give a longer"
            " --output"
        )
    hours = split_hours(options, plan) if options.trace is not None else None
    plan = plan if hours is None else hours.busiest
    demand = float((options.rate or options.concurrency or plan.cells[0].value) * options.growth)
    calls = len(plan) / max(1, int((plan.turn <= 0).sum()))
    sessions = (
        SessionTraffic(planner, max_tokens, calls, find_lines(plan)) if has_sessions else None
    )
    if (
        plan.cells[0].is_open
        and options.rate is not None
        and plan.cells[0].process not in ("poisson", "constant")
    ):
        plan = hasten(plan, demand / plan.cells[0].value)
    cached = float(_cached(plan).mean())
    return Traffic(
        plan=plan,
        kind="concurrency" if options.concurrency is not None else "rate",
        demand=demand,
        input_tokens=float(whole_prompts(plan, 0).mean()),
        output_tokens=float(max(2.0, plan.output_tokens.mean())),
        bounds=bounds,
        hours=hours.scale(demand) if hours is not None else None,
        cached_tokens=cached,
        levels=_cut_levels(plan) if options.trace is not None else (),
        sessions=sessions,
    )


def _check_load(options: RecommendOptions) -> None:
    if options.trace is not None and (options.rate is not None or options.concurrency is not None):
        raise InputError("--trace: comes at its own times; leave --rate and --concurrency out")
    if options.rate is not None and options.concurrency is not None:
        raise InputError("--rate, --concurrency: are two loads; give one")
    if options.burstiness != 1 and (options.rate is None or options.agents or options.turns):
        raise InputError(
            "--burstiness: says how arrivals at a rate are spread; it goes with --rate, of no"
            " sessions"
        )
    if options.pools and (options.agents or options.turns):
        raise InputError("--pools: sessions are planned without pools; leave it out")
    if options.trace is None and options.rate is None and options.concurrency is None:
        raise InputError(
            "--rate: say how much traffic there is, --rate 20 or --concurrency 200 or --trace FILE"
        )
    if options.objective == "throughput" and options.concurrency is None:
        raise InputError(
            "--objective throughput: is of a batch; give --concurrency, its requests under way at"
            " once"
        )


def _cached(plan: Plan) -> NDArray[np.float64]:
    """Count by request the tokens that a prefix cache with enough room would have."""
    if not shares(plan, 0):
        return np.zeros(len(plan))
    prompts, shared = whole_prompts(plan, 0), promised_tokens(plan, 0)
    said = np.append(0, (prompts + plan.output_tokens)[:-1])  # what a later turn brings again
    return np.asarray(np.clip(np.where(shared < 0, said, shared), 0, prompts - 1), float)


def _cut_levels(plan: Plan) -> tuple[TrafficLevel, ...]:
    """Return the mean of a trace, and of its windows those that no other exceeds in tokens of
    prompts and of answers: whatever either costs, the most work is in one of these."""
    times_s, new = plan.intended_s, plan.input_tokens - _cached(plan)
    span_s = float(times_s[-1] - times_s[0]) or 1.0
    window = np.minimum((times_s - times_s[0]) / span_s * _WINDOWS, _WINDOWS - 1).astype(int)
    counts = np.bincount(window, minlength=_WINDOWS)
    asked = np.stack(
        [np.bincount(window, each, _WINDOWS) for each in (new, plan.output_tokens)], axis=1
    )
    picked: dict[int, None] = {}
    for angle in (0.0, 0.05, 0.2, 0.5, 0.8, 1.0):
        weights = np.array([angle, 1 - angle]) / np.maximum(1.0, asked.sum(axis=0))
        picked.setdefault(int(np.argmax(asked @ weights)))
    rows = [np.flatnonzero(window == each) for each in picked if counts[each]]
    return tuple(
        TrafficLevel(
            len(each) * _WINDOWS / len(plan),
            Lengths(
                float(plan.input_tokens[each].mean()),
                float(max(2.0, plan.output_tokens[each].mean())),
                float((plan.input_tokens[each] - new[each]).mean()),
            ),
        )
        for each in rows
    )


def asked_workload(options: RecommendOptions, traffic: Traffic, replicas: int) -> dict[str, Any]:
    """Return the options of `bench` that say what one of so many replicas is asked, but for the
    load."""
    if options.trace is not None:
        return dict(replayed(options, traffic, replicas))
    drawn, prefix = options.agents is None, options.prefix or None
    named = {
        "agents": None if drawn else str(options.agents),
        "input": options.input or "1024" if drawn else None,
        "output": options.output or ("128" if drawn else None),
        "range-ratio": options.range_ratio if options.range_ratio < 1 else None,
        "prefix": prefix,
        "prefix-groups": prefix and options.prefix_groups,
        "turns": options.turns,
        "think-time": options.think_time,
    }
    return {name: value for name, value in named.items() if value is not None}


def replayed(options: RecommendOptions, traffic: Traffic, replicas: int) -> dict[str, str]:
    """Return options of `bench` that give one replica its share of the trace, of its busiest
    window."""
    share, named = options.growth / replicas, {"trace": str(options.trace)}
    if traffic.hours is not None:
        named["trace-window"] = traffic.hours.window
    if share < 1:
        named["trace-sample"] = f"{share:.3g}"
    return named if share <= 1 else named | {"time-scale": f"{1 / share:.3g}"}


def _bound(name: str, limit_s: float) -> QuantileBound:
    metric, _, percentile = name.partition("_")
    return QuantileBound(
        name, metric, PERCENTILES[percentile] if percentile else _EVERY_REQUEST, limit_s
    )
