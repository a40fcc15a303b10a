"""The rows of a recommendation: plans, what was passed over, what to measure next, points for
charts."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Callable, Collection, Sequence

import msgspec
import numpy as np

from loadstone.analyse.compare.price import per_million
from loadstone.analyse.verdict.run import LIMITS
from loadstone.catalogue import parse_deployment
from loadstone.catalogue.deployment.deployment import Deployment
from loadstone.catalogue.engines import engine_title
from loadstone.core.plan import Plan
from loadstone.core.statistics.distribution import Z80
from loadstone.predict.step_time.step import parts_of
from loadstone.recommend.asked_load import AskedLoad
from loadstone.recommend.by_hour import Hours
from loadstone.recommend.candidates import Candidate, Refused, Search
from loadstone.recommend.confirm import ConfirmedPlan
from loadstone.recommend.curve import Array, fleet_size, simulate_load
from loadstone.recommend.decide import MeasurementValue, PlanChoice
from loadstone.recommend.finalists import MeasuredRun, SimulatedCandidate
from loadstone.recommend.options import HOURS_PER_MONTH, RecommendOptions
from loadstone.recommend.result import (
    ByHour,
    DeploymentPlan,
    FinalistPoint,
    GpuChoice,
    LatencySpan,
    MeasureNext,
    Rejected,
    Span,
)
from loadstone.recommend.start import describe_start
from loadstone.recommend.traffic import Traffic, asked_workload

_MOST_REJECTED = 40


def describe_plan(
    confirmed: ConfirmedPlan,
    options: RecommendOptions,
    traffic: Traffic,
    found: Search,
    measured: Sequence[MeasuredRun],
) -> DeploymentPlan:
    """Return the plan with its capacity, cost, latencies and launch commands."""
    choice, asked, priced = confirmed.choice, confirmed.asked, bool(options.price)
    finalist, replicas, sessions = choice.finalist, choice.replicas, asked.sessions
    deployment = finalist.deployment
    spread = np.sqrt(np.diag(asked.error.covariance))
    month = choice.cost * HOURS_PER_MONTH
    carried = float(np.median(finalist.capacities)) * replicas
    per_s, rate = traffic.calls, traffic.demand * traffic.calls * traffic.output_tokens
    if not traffic.is_open:
        per_s = asked.requests_per_s / (traffic.demand / replicas)
        rate = asked.output_tokens_per_s * (replicas - options.reserve)
    needed = np.minimum(
        finalist.replicas_needed(traffic, options.reserve), options.gpus_max // deployment.gpus
    )
    costs = np.quantile(needed, (0.1, 0.9)) * choice.cost / replicas
    months = costs
    if options.objective == "throughput":  # what is paid is given, and what it gives is not sure
        costs, months = (
            choice.cost * np.exp(np.array([-Z80, Z80]) * spread[1]),
            np.full(2, choice.cost),
        )
    return DeploymentPlan(
        deployment=deployment.name,
        replicas=replicas,
        gpus=replicas * deployment.gpus,
        p_slo=round(asked.p_slo, 3),
        capacity_per_s=carried * per_s,
        headroom=carried / traffic.demand - 1,
        usd_per_mtok=(
            _span(lambda dollars: per_million(dollars, rate) or 0.0, choice.cost, costs)
            if priced
            else None
        ),
        usd_per_month=(
            _span(lambda dollars: dollars * HOURS_PER_MONTH, choice.cost, months)
            if priced
            else None
        ),
        ttft_s=_latency(*asked.ttft_s, float(spread[0])),
        tpot_s=_latency(*asked.tpot_s, float(spread[1])),
        binds=_tightest_bound(finalist, traffic),
        helps=_best_change(finalist.candidate, found),
        regret=choice.regret * _unit_of_regret(options),
        output_tokens_per_s=rate,
        source=(
            "measured" if deployment.name in {each.deployment for each in measured} else "simulated"
        ),
        **describe_start(finalist.candidate, replicas, options, traffic),
        by_hour=(
            None if traffic.hours is None else follow_hours(choice, traffic.hours, options, traffic)
        ),
        why=_explain_probability(asked),
        usd_per_month_one_down=month / replicas * (replicas + 1) if priced else None,
        usd_per_month_whole_nodes=_price_whole_nodes(choice) if priced else None,
        checked=_describe_check(confirmed, traffic) if traffic.has_times else None,
        sessions_per_gpu=(
            carried * sessions.alive_each / (replicas * deployment.gpus)
            if traffic.sessions
            else None
        ),
        task_s=_latency(*sessions.task_s, float(spread[1])) if traffic.sessions else None,
        cached_share=sessions.cached_share if traffic.sessions else None,
    )


def _unit_of_regret(options: RecommendOptions) -> float:
    return HOURS_PER_MONTH if options.price and options.objective == "cost" else 1.0


_HELD = (
    (0.9, "90% or more", 91),
    (0.8, "80 to 90%", 78),
    (0.7, "70 to 80%", 68),
    (0.6, "60 to 70%", 62),
)
"""How often what was stated held, by benchmarks/planner_choice.py."""


def _explain_probability(asked: AskedLoad) -> str:
    name, missed = asked.weakest
    cause, share = asked.cause
    at = 0 if name.startswith("ttft") else 1
    off = math.expm1(Z80 * math.sqrt(float(asked.error.covariance[at, at])))
    held = next(
        (
            f"; of what was stated with {words}, {often}% held"
            for least, words, often in _HELD
            if asked.p_slo >= least
        ),
        "",
    )
    return (
        f"{asked.p_slo:.0%} because {name} breaks in {missed:.0%} of the draws: its time may be off"
        f" by {off:.0%}, and {share:.0%} of that variance is {cause}{held}"
    )


def _price_whole_nodes(choice: PlanChoice) -> float | None:
    """Return dollars a month of the nodes that the plan stands on; None where it fills them."""
    deployment, per_node = choice.finalist.deployment, choice.finalist.deployment.gpu.per_node
    if deployment.gpus < per_node:
        nodes = -(-choice.replicas // (per_node // deployment.gpus))
    else:
        nodes = choice.replicas * -(-deployment.gpus // per_node)
    gpus = choice.replicas * deployment.gpus
    return (
        None
        if nodes * per_node == gpus
        else choice.cost / gpus * nodes * per_node * HOURS_PER_MONTH
    )


def _describe_check(confirmed: ConfirmedPlan, traffic: Traffic) -> str:
    asked, replicas = confirmed.asked, confirmed.choice.replicas
    size = fleet_size(confirmed.choice.finalist.candidate, replicas, traffic)
    of = "trace" if traffic.plan.cells[0].process == "trace" else "drawn traffic"
    of = "busiest window" if traffic.hours is not None else of
    where = (
        f"the whole {of}"
        if asked.whole or confirmed.on_whole
        else f"the windows of the {of} that ask for most"
    )
    count = confirmed.on_whole or asked.requests
    share = "" if size == replicas else f", the share of {size} of {replicas} replicas"
    verdict = (
        "the bounds hold by the best prediction"
        if asked.met
        else "the bounds break by the best prediction"
    )
    return f"simulated on {where} ({count:,} requests{share}): {verdict}"


def choose_by_gpu(
    confirmed: Sequence[ConfirmedPlan], refused: Sequence[Refused], options: RecommendOptions
) -> list[GpuChoice]:
    """Return the best plan of each kind of GPU that was named, beside the first plan."""
    first, rows = confirmed[0].choice, []
    for name in options.gpus:
        gpu = parse_deployment(f"{options.model}@1x{name}/tp1").gpu.name
        best = next(
            (each for each in confirmed if each.choice.finalist.deployment.gpu.name == gpu), None
        )
        if best is None:
            whys = [each for each in refused if parse_deployment(each.deployment).gpu.name == gpu]
            few = [each for each in whys if each.gpus_needed]
            nearest = (
                min(few, key=lambda each: each.gpus_needed)
                if few
                else max(whys, key=lambda each: each.alike, default=None)
            )
            rows.append(
                GpuChoice(gpu=gpu, deployment=None, why="" if nearest is None else nearest.why)
            )
            continue
        choice, deployment = best.choice, best.choice.finalist.deployment
        more = (choice.cost - first.cost) * HOURS_PER_MONTH
        rows.append(
            GpuChoice(
                gpu=gpu,
                deployment=deployment.name,
                replicas=choice.replicas,
                gpus=choice.replicas * deployment.gpus,
                p_slo=round(best.asked.p_slo, 3),
                usd_per_month=choice.cost * HOURS_PER_MONTH if options.price else None,
                more_usd_per_month=more if options.price else None,
                more_p_slo=round(best.asked.p_slo - confirmed[0].asked.p_slo, 3),
            )
        )
    return rows


def explain_order(confirmed: Sequence[ConfirmedPlan], options: RecommendOptions) -> list[str]:
    """Return why the first plan stands before those that are cheaper."""
    first, lines = confirmed[0], []
    for number, other in enumerate(confirmed[1:], 2):
        less = first.choice.cost - other.choice.cost
        if less <= 0:
            continue
        what = f"${less * HOURS_PER_MONTH:,.0f} a month" if options.price else f"{less:g} GPUs"
        surer = first.asked.p_slo - other.asked.p_slo
        why = f"holds with {other.asked.p_slo:.0%}, below --confidence {options.confidence:.0%}"
        if other.asked.p_slo >= options.confidence and options.objective == "throughput":
            why = "gives fewer tokens/s"
        elif other.asked.p_slo >= options.confidence:
            why = (
                f"breaks the bounds {surer:.0%} more often, which --miss-cost {options.miss_cost:g}"
                " counts for more"
            )
        lines.append(f"plan {number} is cheaper by {what}, and stands behind plan 1 since it {why}")
    return lines


def _span(convert: Callable[[float], float], cost: float, costs: Array) -> Span:
    low, high = float(costs[0]), float(costs[1])
    return Span(convert(cost), convert(min(low, cost)), convert(max(high, cost)))


def _latency(p50: float, p99: float, spread: float) -> LatencySpan:
    factor = math.exp(Z80 * spread)
    return LatencySpan(p50, p99, p50 / factor, p50 * factor)


def follow_hours(
    choice: PlanChoice, hours: Hours, options: RecommendOptions, traffic: Traffic
) -> ByHour:
    """Return the plan whose replicas follow the trace."""
    finalist, replicas, reserve = choice.finalist, choice.replicas, options.reserve
    holds = _window_test(finalist.candidate, traffic)
    by_rate = hours.followed(replicas, reserve)
    here = by_rate.copy()
    broken = 0
    for at, window in enumerate(hours.plans):
        held = not len(window)
        while not held:
            held = holds(window, int(here[at]) - reserve)
            if not held and here[at] >= replicas:
                broken += 1
                break
            here[at] += not held
    drawn = hours.replicas(np.maximum(finalist.capacities, 1e-9)[:, None], reserve) + (
        here - by_rate
    )
    most = options.gpus_max // finalist.deployment.gpus
    drawn = drawn[drawn.max(axis=1) <= most]  # in the others nothing holds, at any cost
    mean = float(hours.mean(here))
    low, high = np.quantile(hours.mean(drawn), (0.1, 0.9)).tolist() if len(drawn) else (mean, mean)
    month = choice.cost / replicas * HOURS_PER_MONTH if options.price else None
    return ByHour(
        replicas=[int(each) for each in here],
        every_s=hours.every_s,
        start_up_s=hours.start_up_s,
        gpus=mean * finalist.deployment.gpus,
        usd_per_month=(
            Span(mean * month, min(low, mean) * month, max(high, mean) * month) if month else None
        ),
        saves=1 - mean / replicas,
        broken=broken,
    )


def _window_test(candidate: Candidate, traffic: Traffic) -> Callable[[Plan, int], bool]:
    """Return the test whether so many replicas hold the bounds in a window of the trace, by the
    best prediction."""
    growth = traffic.demand / traffic.plan.cells[0].value

    def holds(window: Plan, replicas: int) -> bool:
        load = growth * window.cells[0].value / replicas
        part = dataclasses.replace(traffic, plan=window, windows={})
        simulated = simulate_load(
            candidate, part, load, replicas
        )  # it ends, so that latencies alone count
        return all(simulated.figures[each.name] <= each.bound_s for each in traffic.bounds)

    return holds


def _tightest_bound(finalist: SimulatedCandidate, traffic: Traffic) -> str:
    """Name the bound that breaks first, and what its time mostly is."""
    candidate, points = finalist.candidate, finalist.curve.points
    broken = next((each for each in points if not each.holds(traffic.bounds)), points[-1])
    name = "throughput"
    if broken.keeps_up:
        name = max(traffic.bounds, key=lambda each: broken.figures[each.name] / each.bound_s).name
    batch = max(1, round(candidate.level.decoding / candidate.policy.pipeline))
    context = batch * (traffic.input_tokens + traffic.output_tokens / 2)
    parts = parts_of(candidate.model, lambda model: model.step_s(batch, context, ()))
    whole_s = sum(part.seconds for part in parts)
    mostly = " and ".join(f"{part.seconds / whole_s:.0%} {part.name}" for part in parts[:2])
    full = f"; {LIMITS[broken.limit]}" if broken.limit else ""
    return f"{name} breaks first{full}; a decode step of {batch} requests is {mostly}"


_AXES = ("engine", "weights_dtype", "kv_dtype", "tp", "pp", "dp", "ep", "arguments")


def _best_change(candidate: Candidate, found: Search) -> str:
    """Name the one change on the same GPUs that would carry most more of the traffic per GPU, by
    closed form."""
    mine = candidate.deployment
    best, what = 1.03, "no single change would carry more per GPU"
    for other in found.candidates:
        its = other.deployment
        if its.gpu.name != mine.gpu.name or its.is_split or mine.is_split:
            continue
        changed = [axis for axis in _AXES if getattr(its, axis) != getattr(mine, axis)]
        layout = [axis for axis in changed if axis in ("tp", "pp", "dp", "ep")]
        if len(changed) - len(layout) + bool(layout or its.gpus != mine.gpus) != 1:
            continue
        gain = (other.load / its.gpus) / (candidate.load / mine.gpus)
        if gain > best:
            best, what = gain, f"{_name_change(mine, its)} would carry {gain - 1:.0%} more per GPU"
    return what


def _name_change(mine: Deployment, its: Deployment) -> str:
    if mine.engine != its.engine:
        return engine_title(its.engine)
    if mine.weights_dtype != its.weights_dtype:
        return f"weights in {its.weights_dtype}"
    if mine.kv_dtype != its.kv_dtype:
        return f"kv={its.kv_dtype}"
    if mine.arguments != its.arguments:
        new = [
            f"{name}={value}"
            for name, value in its.arguments
            if (name, value) not in mine.arguments
        ]
        return ", ".join(new) or "the engine's own limits"
    many = "one GPU" if its.gpus == 1 else f"{its.gpus} GPUs"
    ways = [
        f"{name}{getattr(its, name)}" for name in ("tp", "pp", "dp", "ep") if getattr(its, name) > 1
    ]
    return f"{many} a replica with {', '.join(ways) or 'tp1'}"


def list_rejected(
    choices: Sequence[PlanChoice],
    plans: Sequence[DeploymentPlan],
    refused: Sequence[Refused],
    found: Search,
    *,
    priced: bool,
) -> list[Rejected]:
    """List what is not advised: finalists that are no plan, dearer candidates, and what cannot
    carry the traffic."""
    shown = {plan.deployment for plan in plans}
    rows = []
    for choice in choices:
        if choice.finalist.name in shown:
            continue
        cost = (
            f"${choice.cost * HOURS_PER_MONTH:,.0f} a month" if priced else f"{choice.cost:g} GPUs"
        )
        why = f"{choice.replicas} replicas, {cost}, hold with a probability of {choice.p_slo:.0%}"
        rows.append(Rejected(choice.finalist.name, why))
    dearer = len(found.candidates) - len(choices)
    if dearer > 0:
        worst = found.candidates[-1]
        why = f"carries it with {worst.gpus} GPUs; not among the cheapest"
        rows.append(Rejected(worst.deployment.name, why, dearer))
    kinds = sorted(refused, key=lambda each: -each.alike)
    rows += [Rejected(each.deployment, each.why, each.alike) for each in kinds]
    return rows[:_MOST_REJECTED]


def next_measurement(
    best: MeasurementValue,
    choices: Sequence[PlanChoice],
    options: RecommendOptions,
    traffic: Traffic,
) -> MeasureNext | None:
    """Return the command that measures the finalist under its share of the traffic; None: that is
    worth nothing."""
    if best.regret_after >= best.regret_now:
        return None
    deployment = best.finalist.deployment
    replicas = (
        next(each.replicas for each in choices if each.finalist is best.finalist) - options.reserve
    )
    load = traffic.demand / replicas
    words = ["loadstone", "bench"]
    if deployment.nodes > 1 or deployment.is_split:
        words += ["http://HOST:PORT", "--deployment", deployment.name]
    else:
        words += ["--launch", deployment.name]
    for flag, value in asked_workload(options, traffic, replicas).items():
        words += [f"--{flag}", f"{value:g}" if isinstance(value, float) else str(value)]
    if options.trace is None:
        words += (
            ["--rate", f"{load:.3g}"]
            if traffic.is_open
            else ["--concurrency", str(max(1, round(load)))]
        )
        words += ["--burstiness", f"{options.burstiness:g}"] if options.burstiness != 1 else []
    words += ["--duration", f"{round(best.minutes) - 2}m", "--slo", options.slo]
    unit = _unit_of_regret(options)
    return MeasureNext(
        command=shlex.join(words),
        minutes=round(best.minutes),
        regret_now=best.regret_now * unit,
        regret_after=best.regret_after * unit,
        deployment=deployment.name,
        requests=round(best.requests) if math.isfinite(best.requests) else None,
    )


def write_notes(
    finalists: Sequence[SimulatedCandidate],
    options: RecommendOptions,
    measured: Sequence[MeasuredRun],
) -> list[str]:
    """Return sentences on what was assumed and learned."""
    notes = []
    if not options.price:
        notes.append(
            "no prices are given: plans are ranked by their number of GPUs (--price h200=3.2,…)"
        )
    if any(each.candidate.policy.speculative for each in finalists) and options.acceptance is None:
        notes.append(
            "drafts are taken to be accepted in 0.7 ± 0.1 of cases; give --acceptance if you"
            " know it"
        )
    for run in measured:
        if run.wrong:
            notes.append(f"plans with the precision of {run.deployment} are left out: {run.wrong}")
            continue
        factors = zip(("TTFT", "TPOT"), np.exp(run.gaps), strict=True)
        shown = ", ".join(
            f"{name} {factor:.2f}×" for name, factor in factors if math.isfinite(factor)
        )
        notes.append(f"{run.deployment} was measured: {shown} of what was predicted")
    owed = {
        (each.weights_dtype, each.kv_dtype): each.name
        for each in reversed([finalist.deployment for finalist in finalists if measured])
        if not any(run.graded and run.has_precision_of(each) for run in measured)
        and (each.weights_dtype, each.kv_dtype) != (each.model.weights_dtype, each.model.kv_dtype)
    }
    return notes + [
        f"nobody graded answers with {weights} weights and {kv} KV cache: measure {name} with bench"
        " --check, and give that run to --with"
        for (weights, kv), name in owed.items()
    ]


def chart_points(
    choices: Sequence[PlanChoice],
    asked: Collection[str],
    options: RecommendOptions,
    traffic: Traffic,
) -> list[FinalistPoint]:
    """Return a point for each finalist, of its best plan; `front` marks those that none is cheaper
    and surer than. `asked`: those that were simulated under the asked load."""
    points = [_chart_point(each, each.finalist.name in asked, options, traffic) for each in choices]
    costs = [(point.usd_per_month or float(point.gpus), -point.p_slo) for point in points]

    def dominated(mine: tuple[float, float]) -> bool:
        return any(each[0] <= mine[0] and each[1] <= mine[1] and each != mine for each in costs)

    return [
        msgspec.structs.replace(point, front=not dominated(mine))
        for point, mine in zip(points, costs, strict=True)
    ]


def _chart_point(
    choice: PlanChoice, asked: bool, options: RecommendOptions, traffic: Traffic
) -> FinalistPoint:
    finalist, gpus = choice.finalist, choice.finalist.deployment.gpus
    at_share = finalist.curve.nearest(traffic.demand / choice.replicas)
    needed = np.minimum(
        finalist.replicas_needed(traffic, options.reserve), options.gpus_max // gpus
    )
    low, high = np.quantile(needed, (0.1, 0.9)) / choice.replicas
    points = finalist.curve.points
    return FinalistPoint(
        deployment=finalist.name,
        replicas=choice.replicas,
        gpus=choice.replicas * gpus,
        p_slo=round(choice.p_slo, 3),
        usd_per_month=choice.cost * HOURS_PER_MONTH if options.price else None,
        output_tokens_per_s_per_gpu=at_share.output_tokens_per_s / gpus,
        output_tokens_per_s_per_user=1 / at_share.tpot_p50_s if at_share.tpot_p50_s > 0 else 0.0,
        loads=[each.load for each in points],
        worst=[
            max(each.figures[bound.name] / bound.bound_s for bound in traffic.bounds)
            for each in points
        ],
        front=False,
        needed_low=float(low),
        needed_high=float(high),
        asked=asked,
    )
