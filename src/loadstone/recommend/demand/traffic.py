"""The traffic that a plan must carry, at any multiple of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from loadstone.catalogue.deployment.shorthand import parse_deployment
from loadstone.core.bounds import TASK, Bound, parse_slo, split_bound
from loadstone.core.errors import InputError
from loadstone.core.plan import Plan
from loadstone.core.statistics.distribution import PERCENTILES
from loadstone.core.vectors import Floats, Ints64
from loadstone.predict.simulator.client import whole_prompts
from loadstone.predict.simulator.content import shares
from loadstone.predict.simulator.latencies import request_rows, task_times
from loadstone.predict.simulator.parts import find_busiest, hasten, take_requests, thin
from loadstone.predict.simulator.run import CellRun
from loadstone.predict.simulator.uncertainty import split_tasks
from loadstone.predict.steady_state import Lengths, SteadyState
from loadstone.predict.step_time.adapters import adapter_shares
from loadstone.predict.step_time.pictures import mean_picture_work, picture_shares
from loadstone.recommend.demand.hours import Hours, split_hours
from loadstone.recommend.demand.options import RecommendOptions
from loadstone.recommend.demand.sessions import (
    NO_SESSIONS,
    SessionFigures,
    SessionTraffic,
    find_lines,
)
from loadstone.runs.pictures import count_visual_tokens
from loadstone.workload.class_requests import ClassRequest
from loadstone.workload.draw import stagger
from loadstone.workload.load_options import LoadOptions
from loadstone.workload.options import RunOptions, SimulateOptions, SimulatorOptions
from loadstone.workload.planning import Planner
from loadstone.workload.schedule import promised_tokens

MAX_REQUESTS = 8_000
_BURSTY_REQUESTS = 24_000
_ALL_REQUESTS = 0.999
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
    traffic_class: str = ""


class TrafficLevel(NamedTuple):
    """A stretch of the traffic: how its load is to the mean, and its mean lengths."""

    times: float
    lengths: Lengths


class ClassDemand(NamedTuple):
    """Holds a class of traffic: its mean lengths, its priority, and its share of all tokens of
    prompts that are computed."""

    lengths: Lengths
    priority: int
    share: float


@dataclass(frozen=True)
class Traffic:
    """Holds what all replicas together must carry.

    plan    of one cell; `demand`: requests/s, or requests under way; of `sessions`, how many begin
            a second or are alive
    levels  of a trace those of its windows that ask for most, whatever a token of a prompt costs
            beside one of an answer; else the mean alone
    classes  of a mix, by name; `varies`: the squared coefficient of variation of what is computed
            of their prompts; `by_priority`: engines serve them by priority
    adapters  the share of requests that ask for each LoRA adapter
    texts     that a request for vectors or scores has, queries with documents as one; else 0
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
    classes: dict[str, ClassDemand] = field(default_factory=dict)
    varies: float = 0.0
    by_priority: bool = False
    adapters: tuple[float, ...] = ()
    texts: float = 0.0
    windows: dict[tuple[float, int], list[Ints64]] = field(default_factory=dict, compare=False)

    @cached_property
    def lengths(self) -> Lengths:
        if self.texts:
            return Lengths(self.input_tokens / self.texts, 1.0, texts=self.texts)
        answer = max(2.0, self.output_tokens)
        pictures = picture_shares(self.plan)
        return Lengths(self.input_tokens, answer, self.cached_tokens, self.adapters, pictures)

    @property
    def has_times(self) -> bool:
        """True where requests come at times that are to be kept: those of a trace, or in
        bunches."""
        return self.is_open and _has_times(self.plan)

    @cached_property
    def shares(self) -> bool:
        """True where requests ask for the same tokens, which the replica has that has had them."""
        return shares(self.plan, 0)

    @property
    def is_open(self) -> bool:
        return self.kind == "rate"

    @cached_property
    def longest_tokens(self) -> int:
        """Tokens of the longest request, in and out together; of texts, of the longest."""
        if self.plan.inputs is not None:
            return self.plan.inputs.longest()
        return int((whole_prompts(self.plan, 0) + self.plan.output_tokens).max())

    @property
    def calls(self) -> float:
        """Requests of what the load counts: a session's, or one."""
        return 1.0 if self.sessions is None else self.sessions.calls

    def load_at(self, level: SteadyState) -> float:
        """Return what of the load a scheduler in that state carries."""
        if self.is_open:
            return level.rate_per_s / self.calls
        if self.sessions is None:
            return max(1.0, level.users)
        return level.rate_per_s / self.calls * float(self.sessions.tasks_s(level).mean())

    def session_figures(self, run: CellRun, load: float) -> SessionFigures:
        """Return the figures of the sessions of a replica under `load`."""
        if self.sessions is None:
            return NO_SESSIONS
        ended = request_rows(run)["measured"] & ~np.isnan(run.end_s)
        cached = np.array(run.cached_tokens)[ended].sum()
        prompts = np.array(run.requests.input_tokens)[ended].sum()
        spans_s, _ = task_times(run)
        mean_s = float(spans_s.mean())
        median_s, tail_s = np.quantile(spans_s, (0.5, 0.99)).tolist()
        rate = load * self.calls
        return SessionFigures(
            alive_per_load=mean_s if self.is_open else 1.0,
            requests_per_s=rate if self.is_open else rate / mean_s,
            task_s=(median_s, tail_s),
            parts=split_tasks(run),
            cached_share=float(cached / prompts),
        )

    def latency_s(
        self, level: SteadyState, metric: str, quantile: float, traffic_class: str = ""
    ) -> float:
        """Compute by closed form a quantile of a latency, of all requests or of a class."""
        if metric == TASK and self.sessions is not None:
            return float(np.quantile(self.sessions.tasks_s(level), quantile))
        if not traffic_class:
            return level.latency_s(metric, quantile, self.output_tokens)
        of_class = self.classes[traffic_class]
        seen = self._seen_by(of_class, level)
        return seen.latency_s(metric, quantile, of_class.lengths.answer)

    def _seen_by(self, of_class: ClassDemand, level: SteadyState) -> SteadyState:
        """Return the level as a class sees it: with the way of its own prompts, and behind a queue
        of prompts that differ (Pollaczek and Khinchine); by priority, behind those that are no
        lower alone (Cobham 1954, without preemption)."""
        lengths, mean = of_class.lengths, self.lengths
        longer = (lengths.prompt - lengths.cached) - (mean.prompt - mean.cached)
        work, mean_work = (
            mean_picture_work(level.pictures, seen.pictures, prefix_cache=seen.cached > 0)
            for seen in (lengths, mean)
        )
        pictures_s = work.prepare_s + work.encode_s - mean_work.prepare_s - mean_work.encode_s
        sooner, no_later = 0.0, level.busy
        if self.by_priority:
            shares = [(rival.priority, rival.share) for rival in self.classes.values()]
            priority = of_class.priority
            sooner = level.busy * sum(share for rank, share in shares if rank > priority)
            no_later = level.busy * sum(share for rank, share in shares if rank >= priority)
        alone_s = level.queue_s * (1 - level.busy) * (1 + self.varies)
        return level._replace(
            base_s=max(level.tpot_s, level.base_s + level.prompt_token_s * longer + pictures_s),
            queue_s=alone_s / ((1 - sooner) * (1 - no_later)) if level.busy < 1 else math.inf,
        )

    def part(self, load: float, requests: int) -> Plan:
        """Return the traffic's first requests at so many per second, or so many under way."""
        cell = self.plan.cells[0]
        part = take_requests(self.plan, np.arange(min(requests, len(self.plan))))
        if self.is_open:
            scaled = msgspec.structs.replace(
                cell, value=load, time_scale=cell.time_scale * cell.value / load
            )
            return replace(part, cells=(scaled,), intended_s=part.intended_s * (cell.value / load))
        users, phase = max(1, round(load)), part.phase.copy()
        warm = min(users, len(phase) // 2)  # all of them come at once, and nobody does so later
        phase[:warm] = 0
        return replace(
            part,
            phase=phase,
            output_tokens=stagger(part.output_tokens, warm),
            cells=(msgspec.structs.replace(cell, value=float(users)),),
        )

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

    def _find_windows(self, requests: int, prompt_weight: float) -> list[Ints64]:
        if requests >= len(self.plan):
            return [np.arange(len(self.plan))]
        weight = 2.0 ** round(math.log2(max(prompt_weight, 1e-6)))
        count = 2 ** round(math.log2(requests))
        if (weight, count) not in self.windows:
            computed = self.plan.input_tokens - _count_cached(self.plan)
            work = computed * weight + self.plan.output_tokens
            busiest = find_busiest(self.plan, work, min(count, len(self.plan)), 2)
            self.windows[weight, count] = busiest
        return self.windows[weight, count]


def read_bounds(options: RecommendOptions, classes: Sequence[ClassRequest] = ()) -> list[Bound]:
    """Return the bounds that are to hold, those of classes by their names. Raises InputError where
    there is none."""
    bounds = [*parse_slo(options.load.slo)] if options.load.slo is not None else []
    for request in classes:
        bounds += [
            Bound(f"{request.name}:{name}", limit_s)
            for name, limit_s in request.traffic.slo.items()
        ]
    if not bounds:
        raise InputError("--slo: say which bounds are to hold, e.g. --slo ttft_p99<1s")
    return bounds


def traffic_of(
    options: RecommendOptions,
    seed: int = _CHOICE_SEED,
    max_tokens: int | None = None,
    classes: Sequence[ClassRequest] = (),
    pairs: int | None = None,
) -> Traffic:
    """Draw the traffic, without a seed as it is for every choice; sessions end before a call of
    more than `max_tokens`. `classes`: it is a mix of these, by their shares of the rate. `pairs`:
    as core.plan.Inputs has them. Raises InputError: no load or two, no bound that can be held."""
    _check_load(options)
    workload = options.workload
    bounds = tuple(_bound(name, limit_s) for name, limit_s in read_bounds(options, classes))
    split = [bound.name for bound in bounds if bound.metric != "e2e"]
    if options.endpoint is not None and split:
        raise InputError(f"--slo {split[0]}: vectors and scores come in one piece; bound e2e")
    turns = [workload.turns, *(request.workload.get("turns") for request in classes)]
    has_sessions = workload.agents is not None or any(count is not None for count in turns)
    if not has_sessions and any(bound.metric == TASK for bound in bounds):
        raise InputError(
            "--slo task: is the time of a session; give --agents FILE or --turns, or leave it out"
        )
    planner = Planner(_choose_run(options, seed), classes)
    plan, texts = planner.plan(max_tokens), 0.0
    if plan.inputs is not None:
        plan.inputs.pairs = pairs
        texts = float(np.mean([len(plan.inputs.sequences(row)) for row in range(len(plan))]))
        plan = replace(plan, output_tokens=np.ones_like(plan.output_tokens))
    if not len(plan):
        raise InputError(f"{workload.trace}: has no request")
    if plan.pictures is not None:
        # As the first engine counts them; others are taken to.
        search = options.search
        named = f"{options.model}@1x{search.gpus[0]}/tp1,engine={search.engine[0]}"
        plan = count_visual_tokens(plan, parse_deployment(named), None)
    paced = [bound.name for bound in bounds if bound.metric == "tpot"]
    if paced and int(plan.output_tokens.max()) < 2:
        raise InputError(
            f"--slo {paced[0]}: answers of one token have no time between tokens; give a longer"
            " --output"
        )
    calls = len(plan) / max(1, int((plan.turn <= 0).sum()))
    hours = None if workload.trace is None else split_hours(options.load, plan)
    if hours is not None:
        plan = hours.busiest
    value = options.load.rate or options.load.concurrency or plan.cells[0].value
    demand = float(value * options.load.growth)
    if options.load.rate is not None and plan.cells[0].is_open and _has_times(plan):
        plan = hasten(plan, demand / plan.cells[0].value)
    return Traffic(
        plan=plan,
        kind="concurrency" if options.load.concurrency is not None else "rate",
        demand=demand,
        input_tokens=float(whole_prompts(plan, 0).mean()),
        output_tokens=float(plan.output_tokens.mean()),
        bounds=bounds,
        hours=hours.scale(demand) if hours is not None else None,
        cached_tokens=float(_count_cached(plan).mean()),
        levels=_cut_levels(plan) if workload.trace is not None else (),
        sessions=(
            SessionTraffic(planner, max_tokens, calls, find_lines(plan)) if has_sessions else None
        ),
        classes=demand_by_class(plan),
        varies=_vary_prompts(plan) if classes else 0.0,
        adapters=() if plan.adapter is None else adapter_shares(plan.adapter),
        texts=texts,
    )


def demand_by_class(plan: Plan) -> dict[str, ClassDemand]:
    """Return what each class of a plan asks for, by its name."""
    if plan.traffic_class is None:
        return {}
    prompts, cached = whole_prompts(plan, 0), _count_cached(plan)
    computed = prompts - cached
    found = {}
    for number, of_class in enumerate(plan.classes):
        rows = plan.traffic_class == number
        lengths = Lengths(
            float(prompts[rows].mean()),
            float(max(2.0, plan.output_tokens[rows].mean())),
            float(cached[rows].mean()),
            pictures=picture_shares(plan, np.flatnonzero(rows)),
        )
        share = float(computed[rows].sum() / computed.sum())
        found[of_class.name] = ClassDemand(lengths, of_class.priority or 0, share)
    return found


def _vary_prompts(plan: Plan) -> float:
    """Return the squared coefficient of variation of what is computed of prompts."""
    computed = whole_prompts(plan, 0) - _count_cached(plan)
    return float(computed.var() / computed.mean() ** 2)


def _choose_run(options: RecommendOptions, seed: int) -> RunOptions:
    """Return the run whose requests are the traffic: a trace whole, else as many as can tell."""
    workload, load = options.workload, options.load
    has_sessions = workload.agents is not None or workload.turns is not None
    replays = workload.trace is not None and workload.agents is None
    if replays and workload.input is not None:
        raise InputError("--input: a trace has its own lengths; leave it out")
    requests = replace(workload, seed=seed, prefix=0 if replays else workload.prefix)
    if replays:
        chosen = LoadOptions(warmup=0)
    elif workload.agents is not None:
        chosen = LoadOptions(concurrency=(1,), warmup=0)
    elif load.rate is not None and not has_sessions:
        # Of one request per second: the clock is scaled to whatever rate is looked at.
        count = MAX_REQUESTS if load.burstiness in (1.0, math.inf) else _BURSTY_REQUESTS
        chosen = LoadOptions(rate=(1.0,), requests=(count,), burstiness=load.burstiness, warmup=0)
    else:
        chosen = LoadOptions(concurrency=(1,), requests=(MAX_REQUESTS,), warmup=0)
    if options.endpoint is None:
        return RunOptions(workload=requests, load=chosen)
    simulator = SimulatorOptions(deployment=options.model, endpoint=options.endpoint)
    return SimulateOptions(simulator=simulator, workload=requests, load=chosen)


def _check_load(options: RecommendOptions) -> None:
    workload, load = options.workload, options.load
    has_sessions = workload.agents is not None or workload.turns is not None
    if workload.trace is not None and (load.rate is not None or load.concurrency is not None):
        raise InputError("--trace: comes at its own times; leave --rate and --concurrency out")
    if load.rate is not None and load.concurrency is not None:
        raise InputError("--rate, --concurrency: are two loads; give one")
    if load.burstiness != 1 and (load.rate is None or has_sessions):
        raise InputError(
            "--burstiness: says how arrivals at a rate are spread; it goes with --rate, of no"
            " sessions"
        )
    if options.endpoint is not None and (
        options.search.pools or options.choice.objective != "cost"
    ):
        flag = "pools" if options.search.pools else "objective throughput"
        raise InputError(f"--endpoint and --{flag}: no text is written; leave one out")
    if options.search.pools and has_sessions:
        raise InputError("--pools: sessions are planned without pools; leave it out")
    if workload.trace is None and load.rate is None and load.concurrency is None:
        raise InputError(
            "--rate: say how much traffic there is, --rate 20 or --concurrency 200 or --trace FILE"
        )
    if options.choice.objective == "throughput" and load.concurrency is None:
        raise InputError(
            "--objective throughput: is of a batch; give --concurrency, its requests under way at"
            " once"
        )


def _has_times(plan: Plan) -> bool:
    return plan.cells[0].process not in ("poisson", "constant")


def _count_cached(plan: Plan) -> Floats:
    """Count by request the tokens that a prefix cache with enough room would have."""
    if not shares(plan, 0):
        return np.zeros(len(plan))
    prompts, shared = whole_prompts(plan, 0), promised_tokens(plan, 0)
    if plan.pictures is not None:  # with these before its text a prompt begins otherwise
        leads = np.array([shape.place == "first" for shape in plan.pictures.shapes])
        leading = leads[plan.pictures.shape] & (plan.pictures.count > 0) & (plan.turn <= 0)
        again = np.where(plan.pictures.group < 0, 0, shared + plan.pictures.tokens())
        shared = np.where(leading, again, shared)
    repeated = np.append(0, (prompts + plan.output_tokens)[:-1])  # what a later turn brings again
    return np.asarray(np.clip(np.where(shared < 0, repeated, shared), 0, prompts - 1), float)


def _cut_levels(plan: Plan) -> tuple[TrafficLevel, ...]:
    """Return the mean of a trace, and of its windows those that no other exceeds in tokens of
    prompts and of answers: whatever either costs, the most work is in one of these."""
    times_s, computed = plan.intended_s, plan.input_tokens - _count_cached(plan)
    span_s = float(times_s[-1] - times_s[0]) or 1.0
    window = np.minimum((times_s - times_s[0]) / span_s * _WINDOWS, _WINDOWS - 1).astype(int)
    counts = np.bincount(window, minlength=_WINDOWS)
    work = np.stack(
        [np.bincount(window, tokens, _WINDOWS) for tokens in (computed, plan.output_tokens)],
        axis=1,
    )
    picked: dict[int, None] = {}
    for share in (0.0, 0.05, 0.2, 0.5, 0.8, 1.0):
        weights = np.array([share, 1 - share]) / np.maximum(1.0, work.sum(axis=0))
        picked.setdefault(int(np.argmax(work @ weights)))
    levels = []
    for number in picked:
        rows = np.flatnonzero(window == number)
        if not counts[number]:
            continue
        lengths = Lengths(
            float(plan.input_tokens[rows].mean()),
            float(max(2.0, plan.output_tokens[rows].mean())),
            float((plan.input_tokens[rows] - computed[rows]).mean()),
        )
        levels.append(TrafficLevel(len(rows) * _WINDOWS / len(plan), lengths))
    return tuple(levels)


def _bound(name: str, limit_s: float) -> QuantileBound:
    traffic_class, metric, percentile = split_bound(name)
    quantile = PERCENTILES[percentile] if percentile else _ALL_REQUESTS
    return QuantileBound(name, metric, quantile, limit_s, traffic_class)
