"""What should be deployed? Candidates by closed form, finalists by simulation, plans by expected regret."""

from __future__ import annotations

import dataclasses
import math
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadstone.analyse.compare.price import Prices, key, parse_prices
from loadstone.analyse.compare.price import per_million as usd_per_million
from loadstone.calibrate.cases import simulate
from loadstone.catalogue import parse_deployment
from loadstone.catalogue.deployment.deployment import Deployment
from loadstone.core.errors import InputError
from loadstone.core.plan import Plan as WorkPlan
from loadstone.core.statistics.distribution import Z80
from loadstone.core.units import show_seconds
from loadstone.engines import launch_of
from loadstone.predict.scheduler import policy_of
from loadstone.predict.simulator.fleet import fleet_with
from loadstone.predict.steady_state import level_at
from loadstone.predict.step_time import StepModel
from loadstone.predict.step_time.profile import profile_of
from loadstone.predict.step_time.step import parts_of
from loadstone.recommend.by_hour import by_hour
from loadstone.recommend.candidates import Candidate, Refused, Search, candidate_of, in_step, search, shape_of
from loadstone.recommend.curve import Curve, Seen, curve_of, simulated
from loadstone.recommend.decide import Advice, Choice, Outlook, advice, outlook
from loadstone.recommend.errors import Errors, errors_of, noise
from loadstone.recommend.options import HOURS_PER_MONTH, RecommendOptions
from loadstone.recommend.result import (
    BoundText,
    LatencySpan,
    MeasureNext,
    Plan,
    Point,
    Recommendation,
    Rejected,
    Span,
    TrafficText,
)
from loadstone.recommend.study import write_study
from loadstone.recommend.traffic import Traffic, replayed, traffic_of
from loadstone.runs.calibrate import cases_of_runs, deployment_of_runs
from loadstone.workload.options import check_limits

_CHEAPEST, _OF_GROUPS = 10, 8
"""Finalists: so many of the cheapest layouts, and the cheapest of so many engines and GPUs besides."""
_MINUTES = 10.0
_MOST_REJECTED = 40


class _Finals(NamedTuple):
    """What was asked, and what is known of the finalists, in one order."""

    options: RecommendOptions
    traffic: Traffic
    candidates: Sequence[Candidate]
    curves: Sequence[Curve]
    errors: Errors
    view: Outlook


class _Measured(NamedTuple):
    """What runs say of a deployment: ln(measured/predicted) of TTFT and TPOT."""

    deployment: str
    gaps: NDArray[np.float64]


def recommend(options: RecommendOptions) -> Recommendation:
    """Raises InputError: names that mean nothing; nothing that carries the traffic, with the nearest that would."""
    check_limits(options)
    traffic = traffic_of(options)
    prices = parse_prices(options.price) if options.price else Prices()
    _check_prices(options, prices)
    begun_s = time.monotonic()
    found = search(options, traffic, prices)
    searched_s = time.monotonic()
    if not found.candidates:
        raise InputError(_nothing(found, options, traffic))
    measured = [_measured(Path(run), force=options.force) for run in options.measured]
    finalists = _finalists(found.candidates, measured, options, traffic, prices)
    curves: list[Curve] = []
    kept: list[Candidate] = []
    refused = list(found.refused)
    for candidate in finalists:
        try:
            curve = curve_of(candidate, traffic, candidate.replicas)
        except InputError as error:
            refused.append(Refused(candidate.deployment.name, str(error)))
            continue
        if curve.capacity > 0:
            kept.append(candidate)
            curves.append(curve)
        else:
            why = "holds the bounds by closed form, and under no load that was simulated"
            refused.append(Refused(candidate.deployment.name, why))
    if not kept:
        raise InputError(f"--slo: {refused[-1].deployment}: {refused[-1].why}; widen the bounds, or give more GPUs")
    simulated_s = time.monotonic()
    errors = errors_of(kept, traffic)
    for run in measured:
        errors = _learned(errors, kept, run)
    view = outlook(kept, curves, traffic, errors, options.gpus_max, options.seed, options.miss_cost, options.reserve)
    paid = _paid(view, kept, traffic, options)
    advised = advice(paid, errors, len(kept))
    finals = _Finals(options, traffic, kept, curves, errors, view)
    affordable = finals._replace(view=paid)
    plans = [_plan(each, affordable, found, measured) for each in list(paid.best.values())[: options.plans]]
    best = advised[0] if advised and advised[0].regret_after < advised[0].regret_now else None
    decided_s = time.monotonic()
    study, trace = None, str(options.trace) if options.trace else None
    if options.study is not None:
        write_study(options.study, options, traffic, [each.deployment for each in plans], plans[0].replicas)
        study = str(options.study)
    return Recommendation(
        model=kept[0].deployment.model.name,
        traffic=TrafficText(traffic.kind, traffic.demand, traffic.input_tokens, traffic.output_tokens, trace),
        slo=[BoundText(each.metric, each.quantile, each.bound_s) for each in traffic.bounds],
        plans=plans,
        rejected=_rejected(finals, refused, plans, found),
        measure_next=_next(best, finals) if best else None,
        study=study,
        notes=_notes(finals, measured),
        finalists=_points(finals),
        deployments_ranked=found.looked_at,
        seconds={
            "ranking": round(searched_s - begun_s, 3),
            "simulating": round(simulated_s - searched_s, 3),
            "deciding": round(decided_s - simulated_s, 3),
        },
    )


def _check_prices(options: RecommendOptions, prices: Prices) -> None:
    if not prices:
        return
    for gpu in options.gpus:
        name = parse_deployment(f"{options.model}@1x{gpu}/tp1").gpu.name
        if key(name) not in prices:
            raise InputError(f"--price: none is given for {gpu}; add {gpu}=DOLLARS, or leave it out of --gpus")


# --- finalists ----------------------------------------------------------------------------------------------------


def _finalists(
    candidates: Sequence[Candidate],
    measured: Sequence[_Measured],
    options: RecommendOptions,
    traffic: Traffic,
    prices: Prices,
) -> list[Candidate]:
    """Of each layout the best limits; the cheapest of all, and the cheapest of each engine and GPU."""
    layouts: dict[tuple[object, ...], Candidate] = {}
    for each in candidates:
        now = layouts.setdefault(shape_of(each.deployment), each)
        # Engines' own limits, unless others carry more.
        if each.load > 1.02 * now.load or (
            each.load > 0.98 * now.load and len(each.deployment.arguments) < len(now.deployment.arguments)
        ):
            layouts[shape_of(each.deployment)] = each
    ordered = sorted(layouts.values(), key=lambda each: (each.cost, -each.load * each.replicas))
    chosen = ordered[:_CHEAPEST]
    for each in ordered[_CHEAPEST:]:
        if len(chosen) >= _CHEAPEST + _OF_GROUPS:
            break
        if each.group not in {one.group for one in chosen}:
            chosen.append(each)
    for run in measured:
        if run.deployment not in {each.deployment.name for each in chosen}:
            candidate = candidate_of(parse_deployment(run.deployment), options, traffic, prices, {})
            if candidate.replicas:
                chosen.append(candidate)
    return chosen


def _measured(run: Path, *, force: bool) -> _Measured:
    """Raises InputError where it is no measured run of a known deployment, or, unless `force`, not trusted."""
    deployment = deployment_of_runs([run])
    gaps = []
    for case in cases_of_runs([run], deployment, force=force):
        outcome, _ = simulate(case, profile_of(case.deployment).values())
        for_ttft = math.log(case.point.ttft_s / float(np.median(outcome.ttft_s))) if case.point.ttft_s else math.nan
        tpot_s = case.point.tpot_s or math.nan
        gaps.append((for_ttft, math.log(tpot_s / float(np.median(outcome.tpot_s)))))
    return _Measured(deployment.name, np.nanmedian(np.array(gaps), axis=0))


def _learned(errors: Errors, candidates: Sequence[Candidate], run: _Measured) -> Errors:
    """What the run says of the deployment, and so of all that have errors in common with it."""
    at = next((at for at, each in enumerate(candidates) if each.deployment.name == run.deployment), None)
    if at is None:
        return errors
    known = np.flatnonzero(np.isfinite(run.gaps))
    return errors.after([2 * at + int(each) for each in known], run.gaps[known], noise()[known])


# --- plans --------------------------------------------------------------------------------------------------------


def _plan(choice: Choice, finals: _Finals, found: Search, measured: Sequence[_Measured]) -> Plan:
    options, traffic, candidates, curves, errors, view = finals
    priced = bool(options.price)
    at, replicas = choice.candidate, choice.replicas
    candidate, curve = candidates[at], curves[at]
    share = traffic.demand / replicas
    seen = curve.at(share)
    mean = np.exp(errors.mean[2 * at : 2 * at + 2])
    spread = np.sqrt(np.diag(errors.covariance)[2 * at : 2 * at + 2])
    carried = float(np.median(view.capacities[at]))
    per_s = seen.requests_per_s / seen.load if not traffic.is_open else 1.0
    hourly = choice.cost
    rate = seen.output_tokens_per_s * replicas if not traffic.is_open else traffic.demand * traffic.output_tokens
    needed = np.ceil(traffic.demand / np.maximum(view.capacities[at], 1e-9) * (1 - 1e-9)) + options.reserve
    deployment = candidate.deployment
    most = options.gpus_max // deployment.gpus
    there = np.quantile(np.minimum(needed, most), (0.1, 0.9)) * hourly / replicas
    return Plan(
        deployment=deployment.name,
        replicas=replicas,
        gpus=replicas * deployment.gpus,
        p_slo=round(choice.p_slo, 3),
        capacity_per_s=carried * replicas * per_s,
        headroom=carried * replicas / traffic.demand - 1,
        usd_per_mtok=_span(lambda dollars: usd_per_million(dollars, rate) or 0.0, hourly, there) if priced else None,
        usd_per_month=_span(lambda dollars: dollars * HOURS_PER_MONTH, hourly, there) if priced else None,
        ttft_s=_latency(seen.ttft_p50_s, seen.ttft_p99_s, float(mean[0]), float(spread[0])),
        tpot_s=_latency(seen.tpot_p50_s, seen.tpot_p99_s, float(mean[1]), float(spread[1])),
        binds=_binds(candidate, curve, traffic),
        helps=_helps(candidate, found),
        regret=choice.regret * (HOURS_PER_MONTH if priced else 1.0),
        source="measured" if deployment.name in {each.deployment for each in measured} else "simulated",
        launch=list(launch_of(deployment).shell_lines()),
        by_hour=by_hour(
            traffic.hours, replicas, options.reserve, view.capacities[at], most,
            gpus=deployment.gpus, dollars_per_hour=hourly / replicas if priced else None,
            holds=_holds(candidate, traffic),
        ) if traffic.hours is not None else None,
    )  # fmt: skip


def _holds(candidate: Candidate, traffic: Traffic) -> Callable[[WorkPlan, int], bool]:
    """Whether so many replicas hold the bounds in a window of the trace, by the best prediction."""
    fleet = fleet_with(candidate.deployment, candidate.policy, candidate.model)
    growth = traffic.demand / traffic.plan.cells[0].value

    def holds(window: WorkPlan, replicas: int) -> bool:
        load = growth * window.cells[0].value / replicas
        part = dataclasses.replace(traffic, plan=window)
        seen = simulated(candidate, fleet, part, load, replicas)  # it ends, so that latencies alone count
        return all(seen.figures[each.name] <= each.bound_s for each in traffic.bounds)

    return holds


def _paid(view: Outlook, candidates: Sequence[Candidate], traffic: Traffic, options: RecommendOptions) -> Outlook:
    """The choices that --budget pays for, by the hour where there is a day. Raises InputError where there
    are none."""
    if options.budget is None:
        return view
    if not options.price:
        raise InputError("--budget: needs prices; add e.g. --price h200=3.2")

    def month(choice: Choice) -> float:
        dollars, hours = choice.cost * HOURS_PER_MONTH, traffic.hours
        if hours is None:
            return dollars
        return dollars * float(hours.mean(hours.followed(choice.replicas, options.reserve))) / choice.replicas

    kept = [at for at, choice in enumerate(view.choices) if month(choice) <= options.budget]
    if not kept:
        least = min(view.choices, key=month)
        raise InputError(
            f"--budget: ${options.budget:,.0f} a month is too little; the cheapest plan, {least.replicas} × "
            f"{candidates[least.candidate].deployment.name}, takes ${month(least):,.0f}"
        )
    return view._replace(choices=[view.choices[at] for at in kept], regrets=view.regrets[kept])


def _span(of: Callable[[float], float], hourly: float, there: NDArray[np.float64]) -> Span:
    low, high = float(there[0]), float(there[1])
    return Span(of(hourly), of(min(low, hourly)), of(max(high, hourly)))


def _latency(p50: float, p99: float, mean: float, spread: float) -> LatencySpan:
    factor = math.exp(Z80 * spread)
    return LatencySpan(p50 * mean, p99 * mean, p50 * mean / factor, p50 * mean * factor)


def _binds(candidate: Candidate, curve: Curve, traffic: Traffic) -> str:
    """The bound that breaks first, and what its time mostly is."""
    beyond = next((each for each in curve.seen if not each.holds(traffic.bounds)), None)
    at = beyond or curve.seen[-1]
    name = "throughput"
    if at.keeps_up:
        name = max(traffic.bounds, key=lambda each: at.figures[each.name] / each.bound_s).name
    batch = max(1, round(candidate.level.decoding / candidate.policy.pipeline))
    context = batch * (traffic.input_tokens + traffic.output_tokens / 2)
    parts = parts_of(candidate.model, lambda model: model.step_s(batch, context, ()))
    whole = sum(part.seconds for part in parts)
    mostly = " and ".join(f"{part.seconds / whole:.0%} {part.name}" for part in parts[:2])
    return f"{name} binds; a decode step of {batch} requests is {mostly}"


_AXES = ("engine", "weights_dtype", "kv_dtype", "tp", "pp", "dp", "ep", "arguments")


def _helps(candidate: Candidate, found: Search) -> str:
    """One change on the same GPUs that would carry most more of the traffic per GPU, by closed form."""
    mine = candidate.deployment
    best, what = 1.03, "no single change would carry more per GPU"
    for other in found.candidates:
        its = other.deployment
        if its.gpu.name != mine.gpu.name:
            continue
        changed = [axis for axis in _AXES if getattr(its, axis) != getattr(mine, axis)]
        layout = [axis for axis in changed if axis in ("tp", "pp", "dp", "ep")]
        if len(changed) - len(layout) + bool(layout or its.gpus != mine.gpus) != 1:
            continue
        gain = (other.load / its.gpus) / (candidate.load / mine.gpus)
        if gain > best:
            best, what = gain, f"{_change(mine, its)} would carry {gain - 1:.0%} more per GPU"
    return what


def _change(mine: Deployment, its: Deployment) -> str:
    if mine.engine != its.engine:
        return str(its.engine)
    if mine.weights_dtype != its.weights_dtype:
        return f"weights in {its.weights_dtype}"
    if mine.kv_dtype != its.kv_dtype:
        return f"kv={its.kv_dtype}"
    if mine.arguments != its.arguments:
        new = [f"{name}={value}" for name, value in its.arguments if (name, value) not in mine.arguments]
        return ", ".join(new) or "the engine's own limits"
    many = "one GPU" if its.gpus == 1 else f"{its.gpus} GPUs"
    ways = [f"{name}{getattr(its, name)}" for name in ("tp", "pp", "dp", "ep") if getattr(its, name) > 1]
    return f"{many} a replica with {', '.join(ways) or 'tp1'}"


# --- what was passed over, what is worth measuring ------------------------------------------------------------------


def _rejected(finals: _Finals, refused: Sequence[Refused], plans: Sequence[Plan], found: Search) -> list[Rejected]:
    candidates = finals.candidates
    shown = {plan.deployment for plan in plans}
    rows = []
    for choice in finals.view.best.values():
        name = candidates[choice.candidate].deployment.name
        if name in shown:
            continue
        cost = f"${choice.cost * HOURS_PER_MONTH:,.0f} a month" if finals.options.price else f"{choice.cost:g} GPUs"
        rows.append(Rejected(name, f"{choice.replicas} replicas, {cost}, hold with P {choice.p_slo:.0%}"))
    dearer = len(found.candidates) - len(candidates)
    if dearer > 0:
        worst = found.candidates[-1]
        rows.append(
            Rejected(worst.deployment.name, f"carries it with {worst.gpus} GPUs; not among the cheapest", dearer)
        )
    kinds = sorted(refused, key=lambda each: -each.alike)
    rows += [Rejected(each.deployment, each.why, each.alike) for each in kinds]
    return rows[:_MOST_REJECTED]


def _next(best: Advice, finals: _Finals) -> MeasureNext:
    options, traffic = finals.options, finals.traffic
    candidate = finals.candidates[best.candidate]
    replicas = finals.view.best[best.candidate].replicas
    load = traffic.demand / replicas
    name = candidate.deployment.name
    words = ["loadstone", "bench"]
    if candidate.deployment.nodes > 1:
        words += ["http://HOST:PORT", "--deployment", name]
    else:
        words += ["--launch", name]
    if options.trace is not None:
        for flag, value in replayed(options, traffic, replicas).items():
            words += [f"--{flag}", value]
    else:
        words += ["--input", options.input or "1024", "--output", options.output or "128"]
        if options.range_ratio < 1:
            words += ["--range-ratio", f"{options.range_ratio:g}"]
        if options.prefix:
            words += ["--prefix", str(options.prefix), "--prefix-groups", str(options.prefix_groups)]
        words += ["--rate", f"{load:.3g}"] if traffic.is_open else ["--concurrency", str(max(1, round(load)))]
    words += ["--duration", f"{_MINUTES - 2:g}m", "--slo", options.slo]
    unit = HOURS_PER_MONTH if options.price else 1.0
    return MeasureNext(
        command=shlex.join(words),
        minutes=_MINUTES,
        regret_now=best.regret_now * unit,
        regret_after=best.regret_after * unit,
        deployment=name,
    )


def _gpus_needed(refused: Refused) -> int:
    return int(refused.why.split()[1].replace(",", ""))


def _nothing(found: Search, options: RecommendOptions, traffic: Traffic) -> str:
    """Why nothing carries it, and what is nearest to doing so."""
    too_many = [each for each in found.refused if each.why.startswith("takes ")]
    if too_many:
        nearest = min(too_many, key=_gpus_needed)
        need = _gpus_needed(nearest)
        return (
            f"--gpus-max {options.gpus_max}: nothing carries this within so many; the nearest, {nearest.deployment}, "
            f"{nearest.why}: {need - options.gpus_max:,} more"
        )
    slow = [each for each in found.refused if each.why.startswith("misses ")]
    if slow:
        light = _light(slow, traffic)
        nearest = min(slow, key=_milliseconds)
        if light:
            return light
        return f"--slo: {nearest.deployment} comes nearest, and {nearest.why}; widen the bound"
    if found.refused:
        first = max(found.refused, key=lambda each: each.alike)
        return f"{first.deployment}: {first.why}"
    flag = "--tp" if options.tp else "--gpus"
    return f"{flag}: no deployment can be made of these; give more GPUs, or other precisions or powers of two"


def _milliseconds(refused: Refused) -> float:
    value, unit = refused.why.partition(": ")[2].split()[:2]
    return float(value) * (1e3 if unit.startswith("s") else 1.0)


def _light(slow: Sequence[Refused], traffic: Traffic) -> str | None:
    """Where no engine could be fast enough, whatever it does: below the speed of light."""
    fastest: dict[str, tuple[float, str]] = {}
    for each in slow:
        candidate = parse_deployment(each.deployment)
        model = StepModel(candidate).light()
        level = level_at(
            model, policy_of(candidate), in_step(candidate), 1.0, traffic.input_tokens, traffic.output_tokens
        )
        for bound in traffic.bounds:
            value = level.latency_s(bound.metric, 0.5, traffic.output_tokens)
            fastest[bound.name] = min(fastest.get(bound.name, (math.inf, "")), (value, each.deployment))
    for bound in traffic.bounds:
        value, name = fastest.get(bound.name, (0.0, ""))
        if value > bound.bound_s:
            return (
                f"--slo: {bound.name} < {show_seconds(bound.bound_s)} is below the speed of light: the memory and "
                f"products of {name} take {show_seconds(value)} with nothing lost; ask for more than that"
            )
    return None


def _notes(finals: _Finals, measured: Sequence[_Measured]) -> list[str]:
    options, candidates = finals.options, finals.candidates
    notes = []
    if not options.price:
        notes.append("no prices are given: plans are ranked by their number of GPUs (--price h200=3.2,…)")
    own = {each.deployment.weights_dtype for each in candidates} - {candidates[0].deployment.model.weights_dtype}
    if own:
        notes.append(
            f"weights in {' and '.join(sorted(own))} are not the checkpoint's: look at the quality of its answers"
        )
    if any(each.policy.speculative for each in candidates) and options.acceptance is None:
        notes.append("drafts are taken to be accepted in 0.7 ± 0.1 of cases; give --acceptance if you know it")
    for run in measured:
        factors = np.exp(run.gaps)
        shown = ", ".join(
            f"{name} {factor:.2f}×"
            for name, factor in zip(("TTFT", "TPOT"), factors, strict=True)
            if math.isfinite(factor)
        )
        notes.append(f"{run.deployment} was measured: {shown} of what was predicted")
    return notes


def _points(finals: _Finals) -> list[Point]:
    options, traffic, candidates, curves, _, view = finals
    rows = []
    for at, (candidate, curve) in enumerate(zip(candidates, curves, strict=True)):
        choice = view.best[at]
        seen: Seen = curve.at(traffic.demand / choice.replicas)
        needed = traffic.demand / np.maximum(view.capacities[at], 1e-9) + options.reserve
        most = options.gpus_max // candidate.deployment.gpus
        low, high = np.quantile(np.ceil(np.minimum(needed, most)), (0.1, 0.9)) / choice.replicas
        rows.append(
            Point(
                deployment=candidate.deployment.name,
                replicas=choice.replicas,
                gpus=choice.replicas * candidate.deployment.gpus,
                p_slo=choice.p_slo,
                usd_per_month=choice.cost * HOURS_PER_MONTH if options.price else None,
                output_tokens_per_s_per_gpu=seen.output_tokens_per_s / candidate.deployment.gpus,
                output_tokens_per_s_per_user=1 / seen.tpot_p50_s if seen.tpot_p50_s > 0 else 0.0,
                loads=[each.load for each in curve.seen],
                worst=[
                    max(each.figures[bound.name] / bound.bound_s for bound in traffic.bounds) for each in curve.seen
                ],
                front=False,
                needed_low=float(low),
                needed_high=float(high),
            )
        )
    cost = [point.usd_per_month or float(point.gpus) for point in rows]

    def dominated(at: int) -> bool:
        return any(
            cost[other] <= cost[at]
            and rows[other].p_slo >= rows[at].p_slo
            and (cost[other], -rows[other].p_slo) != (cost[at], -rows[at].p_slo)
            for other in range(len(rows))
        )

    return [msgspec.structs.replace(each, front=not dominated(at)) for at, each in enumerate(rows)]
