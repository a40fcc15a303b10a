"""Writes the document of what was judged: plans, what was passed over, what to measure next, points
for charts; and the study of --study."""

import math
from collections.abc import Collection, Mapping, Sequence

import msgspec
import numpy as np

from loadstone.analyse.compare.price import per_million
from loadstone.analyse.verdict.finding import finding
from loadstone.catalogue import parse_worker
from loadstone.core.errors import InputError
from loadstone.core.statistics.distribution import Z80
from loadstone.core.units import show_gpus
from loadstone.engines.deployment_launch import launch_deployment
from loadstone.predict.step_time.exchange import guesses_network
from loadstone.recommend.demand.options import HOURS_PER_MONTH
from loadstone.recommend.demand.planning import Planning, gpu_names
from loadstone.recommend.judge.asked_load import TPOT, TTFT
from loadstone.recommend.judge.by_hour import Span
from loadstone.recommend.judge.choices import PlanChoice
from loadstone.recommend.judge.confirm import ConfirmedPlan
from loadstone.recommend.judge.judgement import Judgement
from loadstone.recommend.judge.measurement import START_MINUTES
from loadstone.recommend.judge.power import plan_power
from loadstone.recommend.search.candidates import Refused, Search
from loadstone.recommend.search.finalists import Finalists
from loadstone.recommend.search.measured import MeasuredRun
from loadstone.recommend.search.precisions import published_precisions
from loadstone.recommend.tell.document import (
    BoundText,
    DeploymentPlan,
    FinalistPoint,
    GpuChoice,
    LatencySpan,
    MeasureNext,
    OneFewer,
    Recommendation,
    Rejected,
    TrafficText,
)
from loadstone.recommend.tell.notes import write_notes
from loadstone.recommend.tell.reasons import (
    describe_check,
    describe_further,
    explain_probability,
    name_best_change,
    name_tightest,
)
from loadstone.recommend.tell.share import bench_command, write_study
from loadstone.recommend.tell.text import show_stated

_MAX_REJECTED = 40


def write_recommendation(
    planning: Planning,
    found: Search,
    finalists: Finalists,
    judgement: Judgement,
    seconds: Mapping[str, float],
) -> Recommendation:
    """Return the document, once the study is written. Raises InputError where that cannot be
    written."""
    options, traffic = planning.options, planning.traffic
    plans = [describe_plan(plan, planning, found, finalists.measured) for plan in judgement.shown]
    write_study(planning, [plan.deployment for plan in plans], plans[0].replicas)
    described = _describe_traffic(planning)
    refused = [*found.refused, *finalists.refused]
    confirmed = {plan.choice.finalist.name for plan in judgement.confirmed}
    return Recommendation(
        model=judgement.finalists[0].deployment.model.name,
        traffic=described,
        slo=[BoundText(bound.metric, bound.quantile, bound.bound_s) for bound in traffic.bounds],
        plans=plans,
        rejected=_list_rejected(judgement.choices, plans, refused, found, planning),
        measure_next=next_measurement(judgement, planning),
        study=str(options.study) if options.study is not None else None,
        notes=write_notes(judgement, finalists.measured, plans[0], planning, described.unit),
        split=judgement.split,
        finalists=chart_points(judgement.choices, confirmed, planning),
        deployments_ranked=found.looked_at,
        confidence=planning.choice.confidence,
        objective=planning.choice.objective,
        holds=plans[0].p_slo >= planning.choice.confidence,
        host_memory=judgement.host_memory,
        autoscaled=judgement.autoscaled,
        by_gpu=choose_by_gpu(judgement.confirmed, refused, planning),
        seconds={step: round(value, 3) for step, value in seconds.items()},
    )


def _describe_traffic(planning: Planning) -> TrafficText:
    traffic, trace = planning.traffic, planning.options.workload.trace
    return TrafficText(
        kind=traffic.kind,
        value=traffic.demand,
        input_tokens=traffic.input_tokens,
        output_tokens=0.0 if traffic.texts else traffic.output_tokens,
        texts=traffic.texts,
        trace=str(trace) if trace else None,
        sessions=traffic.calls if traffic.sessions else None,
    )


def describe_plan(
    confirmed: ConfirmedPlan,
    planning: Planning,
    found: Search,
    measured: Sequence[MeasuredRun],
) -> DeploymentPlan:
    """Return the plan with its capacity, cost, latencies and launch commands."""
    traffic, priced = planning.traffic, bool(planning.prices)
    choice, figures = confirmed.choice, confirmed.figures
    sessions = figures.sessions
    finalist, replicas = choice.finalist, choice.replicas
    spread = np.sqrt(np.diag(figures.error.covariance))
    carried = float(np.median(finalist.capacities)) * replicas
    per_s, rate = traffic.calls, traffic.demand * traffic.calls * traffic.output_tokens
    if not traffic.is_open:
        per_s = figures.requests_per_s / (traffic.demand / replicas)
        rate = figures.output_tokens_per_s * (replicas - planning.choice.reserve)
    paid = rate * (traffic.input_tokens if traffic.texts else 1.0)
    costs = finalist.needed_interval(planning) * choice.cost / replicas
    tokens_costs = costs
    if planning.by_throughput:  # what is paid is given, and what it gives is not sure
        tokens_costs = choice.cost * np.exp(np.array([-Z80, Z80]) * spread[TPOT])
        costs = np.full(2, choice.cost)
    launch, files, warnings = _describe_start(confirmed)
    first_s = _latency(figures.ttft_s, float(spread[TTFT]))

    mtok = [per_million(dollars, paid) or 0.0 for dollars in (choice.cost, *tokens_costs.tolist())]
    has_sessions = traffic.sessions is not None
    return DeploymentPlan(
        deployment=finalist.name,
        replicas=replicas,
        gpus=choice.gpus,
        p_slo=round(figures.p_slo, 3),
        capacity_per_s=carried * per_s,
        headroom=carried / traffic.demand - 1,
        usd_per_mtok=Span.around(mtok[0], mtok[1:]) if priced else None,
        usd_per_month=(
            Span.around(choice.usd_per_month, costs * HOURS_PER_MONTH) if priced else None
        ),
        ttft_s=None if traffic.texts else first_s,
        tpot_s=None if traffic.texts else _latency(figures.tpot_s, float(spread[TPOT])),
        e2e_s=first_s if traffic.texts else None,
        binds=name_tightest(finalist, figures, planning),
        helps=name_best_change(finalist.candidate, found),
        regret=confirmed.regret * _unit_of_regret(planning),
        output_tokens_per_s=0.0 if traffic.texts else rate,
        source=(
            "measured" if finalist.name in {run.deployment for run in measured} else "simulated"
        ),
        launch=launch,
        route=figures.route if replicas > 1 else None,
        one_fewer=_describe_fewer(confirmed, planning),
        files=files,
        warnings=warnings,
        further=describe_further(finalist.candidate, replicas, planning),
        by_hour=confirmed.by_hour,
        why=explain_probability(figures),
        usd_per_month_one_down=(
            choice.usd_per_month / replicas * (replicas + 1) if priced else None
        ),
        usd_per_month_whole_nodes=_price_whole_nodes(choice) if priced else None,
        checked=describe_check(confirmed, planning),
        sessions_per_gpu=carried * sessions.alive_per_load / choice.gpus if has_sessions else None,
        task_s=_latency(sessions.task_s, float(spread[TPOT])) if has_sessions else None,
        cached_share=sessions.cached_share if has_sessions else None,
        power=plan_power(choice, planning, measured),
    )


def _describe_fewer(confirmed: ConfirmedPlan, planning: Planning) -> OneFewer | None:
    """Say how likely fewer replicas hold, and what those that they lack cost and save."""
    if confirmed.fewer is None:
        return None
    choice, fewer, confidence = confirmed.choice, confirmed.fewer.choice, planning.choice.confidence
    p_slo, added_replicas = (
        round(confirmed.fewer.figures.p_slo, 3),
        choice.replicas - fewer.replicas,
    )
    why = f"{fewer.replicas} would hold with {show_stated(p_slo, confidence)}"
    if confirmed.fewer.figures.p_slo < confidence:
        return OneFewer(fewer.replicas, p_slo, f"{why}, below the {confidence * 100:g}% asked for")
    added = choice.cost - fewer.cost, confirmed.fewer.misses - confirmed.misses
    costs, saves = (show_gpus(round(value, 1)) for value in added)
    if planning.prices:
        costs, saves = (f"${value * HOURS_PER_MONTH:,.0f} a month" for value in added)
    why = f"{why}; {added_replicas} more cost {costs} and save {saves} of expected misses"
    return OneFewer(fewer.replicas, p_slo, why)


def _describe_start(confirmed: ConfirmedPlan) -> tuple[list[str], dict[str, str], list[str]]:
    """Return the commands of a replica, one a rank, and of the router before several; the files
    that must lie beside them, and what is to be known before."""
    candidate, replicas = confirmed.choice.finalist.candidate, confirmed.choice.replicas
    commands: list[str] = []
    files: dict[str, str] = {}
    try:
        launch = launch_deployment(candidate.deployment)
        commands, files, warnings = launch.shell_lines(), dict(launch.files), list(launch.notes)
        if replicas > 1:
            commands += launch.front_lines(replicas, confirmed.figures.route)
    except InputError as error:  # llama.cpp, whose file of weights nobody named
        warnings = [f"`loadstone launch` starts it, which says: {error}"]
    precision = (candidate.worker.weights_dtype, candidate.worker.kv_dtype)
    if precision not in published_precisions(candidate.worker):
        warnings.append(
            f"weights in {precision[0]} with a KV cache in {precision[1]}: nobody publishes such a"
            " checkpoint; look at the quality of its answers"
        )
    if guesses_network(candidate.worker):
        guessed = finding("network_guessed", nodes=candidate.worker.nodes_crossed)
        warnings.append(f"{guessed.kind}: {guessed.evidence}")
    return commands, files, warnings


def _unit_of_regret(planning: Planning) -> float:
    return HOURS_PER_MONTH if planning.prices and not planning.by_throughput else 1.0


def _latency(latency_s: tuple[float, float], spread: float) -> LatencySpan:
    median_s, tail_s = latency_s
    factor = math.exp(Z80 * spread)
    return LatencySpan(median_s, tail_s, median_s / factor, median_s * factor)


def _price_whole_nodes(choice: PlanChoice) -> float | None:
    """Return dollars a month of the nodes that the plan stands on; None where it fills them."""
    deployment = choice.finalist.deployment
    per_node = deployment.decoder.gpu.per_node
    if deployment.gpus < per_node:
        nodes = -(-choice.replicas // (per_node // deployment.gpus))
    else:
        nodes = choice.replicas * -(-deployment.gpus // per_node)
    if nodes * per_node == choice.gpus:
        return None
    return choice.cost / choice.gpus * nodes * per_node * HOURS_PER_MONTH


def choose_by_gpu(
    confirmed: Sequence[ConfirmedPlan], refused: Sequence[Refused], planning: Planning
) -> list[GpuChoice]:
    """Return the best plan of each kind of GPU that was named, beside the first plan."""
    first = confirmed[0]
    rows = []
    for gpu in gpu_names(planning.options):
        best = next((plan for plan in confirmed if plan.choice.gpu == gpu), None)
        if best is None:
            rows.append(GpuChoice(gpu=gpu, deployment=None, why=_why_not(gpu, refused)))
            continue
        choice = best.choice
        added = (choice.cost - first.choice.cost) * HOURS_PER_MONTH
        rows.append(
            GpuChoice(
                gpu=gpu,
                deployment=choice.finalist.name,
                replicas=choice.replicas,
                gpus=choice.gpus,
                p_slo=round(best.figures.p_slo, 3),
                usd_per_month=choice.usd_per_month if planning.prices else None,
                more_usd_per_month=added if planning.prices else None,
                more_p_slo=round(best.figures.p_slo - first.figures.p_slo, 3),
            )
        )
    return rows


def _why_not(gpu: str, refused: Sequence[Refused]) -> str:
    """Say why nothing on a GPU carries the traffic: what came nearest, or the usual reason."""
    on_gpu = [row for row in refused if parse_worker(row.deployment).gpu.name == gpu]
    too_few = [row for row in on_gpu if row.gpus_needed]
    if too_few:
        return min(too_few, key=lambda row: row.gpus_needed).why
    if on_gpu:
        return max(on_gpu, key=lambda row: row.alike).why
    return ""


def _list_rejected(
    choices: Sequence[PlanChoice],
    plans: Sequence[DeploymentPlan],
    refused: Sequence[Refused],
    found: Search,
    planning: Planning,
) -> list[Rejected]:
    """List what is not advised: finalists that are no plan, dearer candidates, and what cannot
    carry the traffic."""
    shown = {plan.deployment for plan in plans}
    rows = []
    for choice in choices:
        if choice.finalist.name in shown:
            continue
        rows.append(Rejected(choice.finalist.name, _compare_to_plans(choice, plans, planning)))
    dearer = len(found.candidates) - len(choices)
    if dearer > 0:
        dearest = found.candidates[-1]
        why = f"carries it with {show_gpus(dearest.gpus)}; not among the cheapest"
        rows.append(Rejected(dearest.name, why, dearer))
    kinds = sorted(refused, key=lambda row: -row.alike)
    rows += [Rejected(row.deployment, row.why, row.alike) for row in kinds]
    return rows[:_MAX_REJECTED]


def _compare_to_plans(
    choice: PlanChoice, plans: Sequence[DeploymentPlan], planning: Planning
) -> str:
    """Say what a finalist costs and how sure it is, beside a plan that is better, or the first."""
    costs = [float(plan.gpus) for plan in plans]
    cost, show = choice.cost, show_gpus
    if planning.prices:
        costs = [plan.usd_per_month.value if plan.usd_per_month else 0.0 for plan in plans]
        cost, show = choice.usd_per_month, "${:,.0f} a month".format
    p_slo = round(choice.p_slo, 3)  # as that of a plan
    replicas = f"{choice.replicas} replica{'s' * (choice.replicas > 1)}"
    fact = f"{replicas}, {show(cost)}, {show_stated(p_slo, planning.choice.confidence)} sure"
    for number, plan in enumerate(plans, 1):
        if costs[number - 1] <= cost + 0.5 and round(plan.p_slo, 2) >= round(p_slo, 2):
            return f"{fact}; plan {number} costs no more and is as sure"
    if p_slo < planning.choice.confidence:
        return f"{fact}; that is below the {planning.choice.confidence * 100:g}% asked for"
    if cost > costs[0]:
        return f"{fact}; plan 1 is sure enough for {show(costs[0])}"
    if planning.by_throughput:
        return f"{fact}; plan 1 gives more tokens/s"
    return f"{fact}; cheaper, but --miss-cost {planning.choice.miss_cost:g} makes its errors dearer"


def next_measurement(judgement: Judgement, planning: Planning) -> MeasureNext | None:
    """Return the command that measures the finalist under its share of the traffic; None: that is
    worth nothing."""
    best = judgement.measurement
    if best.regret_after >= best.regret_now:
        return None
    deployment, minutes = best.finalist.deployment, round(best.minutes)
    serving = judgement.measured_replicas - planning.choice.reserve
    unit = _unit_of_regret(planning)
    return MeasureNext(
        command=bench_command(deployment, planning, serving, minutes - round(START_MINUTES)),
        minutes=minutes,
        regret_now=best.regret_now * unit,
        regret_after=best.regret_after * unit,
        deployment=deployment.name,
        requests=round(best.requests) if math.isfinite(best.requests) else None,
    )


def chart_points(
    choices: Sequence[PlanChoice], simulated: Collection[str], planning: Planning
) -> list[FinalistPoint]:
    """Return a point for each finalist, of its best plan; `front` marks those that none is cheaper
    and surer than. `simulated`: those that were simulated under the asked load."""
    points = [
        _chart_point(choice, choice.finalist.name in simulated, planning) for choice in choices
    ]
    costs = [(point.usd_per_month or float(point.gpus), -point.p_slo) for point in points]

    def dominated(cost: tuple[float, float]) -> bool:
        return any(rival[0] <= cost[0] and rival[1] <= cost[1] and rival != cost for rival in costs)

    return [
        msgspec.structs.replace(point, front=not dominated(cost))
        for point, cost in zip(points, costs, strict=True)
    ]


def _chart_point(choice: PlanChoice, is_simulated: bool, planning: Planning) -> FinalistPoint:
    finalist, traffic = choice.finalist, planning.traffic
    share = finalist.curve.nearest(traffic.demand / choice.replicas)
    low, high = finalist.needed_interval(planning) / choice.replicas
    points = finalist.curve.points
    return FinalistPoint(
        deployment=finalist.name,
        replicas=choice.replicas,
        gpus=choice.gpus,
        p_slo=round(choice.p_slo, 3),
        usd_per_month=choice.usd_per_month if planning.prices else None,
        output_tokens_per_s_per_gpu=share.output_tokens_per_s / finalist.deployment.gpus,
        output_tokens_per_s_per_user=1 / share.tpot_p50_s if share.tpot_p50_s > 0 else 0.0,
        loads=[point.load for point in points],
        worst=[point.worst(traffic.bounds) for point in points],
        front=False,
        needed_low=float(low),
        needed_high=float(high),
        asked=is_simulated,
    )
