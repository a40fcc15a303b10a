"""The deployments for a model's traffic: candidates by closed form, finalists by simulation, plans
by regret."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from loadstone.analyse.compare.price import Prices, key, parse_prices
from loadstone.catalogue import parse_deployment
from loadstone.core.errors import InputError
from loadstone.recommend.candidates import context_of, search
from loadstone.recommend.confirm import confirm_plans, join_confirmed, show_with_seed
from loadstone.recommend.decide import PlanChoice, affordable, rank_choices, value_measurements
from loadstone.recommend.finalists import (
    SimulatedCandidate,
    choose_finalists,
    read_measured,
    refuse_wrong,
    simulate_finalists,
)
from loadstone.recommend.host_memory import weigh_host_memory
from loadstone.recommend.options import RecommendOptions
from loadstone.recommend.plans import (
    chart_points,
    choose_by_gpu,
    describe_plan,
    explain_order,
    list_rejected,
    next_measurement,
    write_notes,
)
from loadstone.recommend.pools import compare_split, search_pools, tell_split
from loadstone.recommend.progress import show_progress
from loadstone.recommend.refusal import explain_refusal
from loadstone.recommend.result import BoundText, MeasureNext, Recommendation, TrafficText
from loadstone.recommend.study import write_study
from loadstone.recommend.traffic import Traffic, traffic_of
from loadstone.workload.options import check_limits


def recommend(options: RecommendOptions) -> Recommendation:
    """Choose what to deploy. Raises InputError: names that mean nothing; nothing that carries the
    traffic, with the nearest that would."""
    check_limits(options)
    traffic = traffic_of(options, max_tokens=context_of(options))
    prices = parse_prices(options.price) if options.price else Prices()
    _check_prices(options, prices)
    begun_s = time.monotonic()
    show_progress("ranking deployments by closed form")
    found = search_pools(search(options, traffic, prices), options, traffic, prices)
    searched_s = time.monotonic()
    if not found.candidates:
        raise InputError(explain_refusal(found, options, traffic))
    measured = [read_measured(Path(run), force=options.force) for run in options.measured]
    right, wrong = refuse_wrong(found.candidates, measured)
    if not right:
        raise InputError(
            f"--with: {wrong[0].deployment}: {wrong[0].why}; and nothing else carries the traffic"
        )
    candidates = choose_finalists(right, measured, options, traffic, prices)
    finalists, refused = simulate_finalists(candidates, measured, traffic, options)
    refused += wrong
    simulated_s = time.monotonic()
    paid = affordable(choices := rank_choices(finalists, traffic, options), traffic, options)
    confirmed = confirm_plans(paid, traffic, options, learned=bool(measured))
    if options.seed:
        redrawn = traffic_of(options, options.seed, context_of(options))
        confirmed = show_with_seed(confirmed, redrawn, options, learned=bool(measured))
    shown = confirmed[: options.plans]
    plans = [describe_plan(each, options, traffic, found, measured) for each in shown]
    judged, asked = (
        join_confirmed(choices, confirmed),
        {each.choice.finalist.name for each in confirmed},
    )
    split = compare_split(paid, confirmed, finalists, traffic, options) if options.pools else None
    host_memory = weigh_host_memory(shown[0].choice, options, traffic, prices)
    show_progress()
    decided_s = time.monotonic()
    if options.study is not None:
        write_study(
            options.study, options, traffic, [each.deployment for each in plans], plans[0].replicas
        )
    notes = [
        *explain_order(shown, options),
        *write_notes(finalists, options, measured),
        *_note_context(traffic),
    ]
    notes += (
        tell_split(split, plans[0], _describe_traffic(options, traffic).unit)
        if options.pools
        else []
    )
    return Recommendation(
        model=finalists[0].deployment.model.name,
        traffic=_describe_traffic(options, traffic),
        slo=[BoundText(each.metric, each.quantile, each.bound_s) for each in traffic.bounds],
        plans=plans,
        rejected=list_rejected(
            judged, plans, [*found.refused, *refused], found, priced=bool(options.price)
        ),
        measure_next=_measure_next(paid, choices, finalists, traffic, options),
        study=str(options.study) if options.study is not None else None,
        notes=notes,
        split=split,
        finalists=chart_points(judged, asked, options, traffic),
        deployments_ranked=found.looked_at,
        confidence=options.confidence,
        objective=options.objective,
        holds=plans[0].p_slo >= options.confidence,
        host_memory=host_memory,
        by_gpu=choose_by_gpu(confirmed, [*found.refused, *refused], options),
        seconds={
            "ranking": round(searched_s - begun_s, 3),
            "simulating": round(simulated_s - searched_s, 3),
            "deciding": round(decided_s - simulated_s, 3),
        },
    )


def _describe_traffic(options: RecommendOptions, traffic: Traffic) -> TrafficText:
    trace, calls = (
        str(options.trace) if options.trace else None,
        (traffic.calls if traffic.sessions else None),
    )
    return TrafficText(
        traffic.kind, traffic.demand, traffic.input_tokens, traffic.output_tokens, trace, calls
    )


def _note_context(traffic: Traffic) -> list[str]:
    over = traffic.plan.workload.get("overflowed")
    return (
        [f"{over['sessions']:,} of the file's sessions end early, where the model's context does"]
        if over
        else []
    )


def _measure_next(
    paid: Sequence[PlanChoice],
    choices: Sequence[PlanChoice],
    finalists: Sequence[SimulatedCandidate],
    traffic: Traffic,
    options: RecommendOptions,
) -> MeasureNext | None:
    """Return the measurement that is worth most, by how many requests each would get in its
    time."""
    replicas = {
        choice.finalist.name: choice.replicas - options.reserve for choice in reversed(paid)
    }
    rates = []
    for each in finalists:
        share = traffic.demand / replicas.get(each.name, each.candidate.replicas)
        near = each.curve.nearest(share)
        rates.append(share if traffic.is_open else near.requests_per_s * share / near.load)
    best = value_measurements(
        paid, finalists, rates, max(each.quantile for each in traffic.bounds)
    )[0]
    return next_measurement(best, choices, options, traffic)


def _check_prices(options: RecommendOptions, prices: Prices) -> None:
    if not prices:
        return
    for gpu in options.gpus:
        name = parse_deployment(f"{options.model}@1x{gpu}/tp1").gpu.name
        if key(name) not in prices:
            raise InputError(
                f"--price: none is given for {gpu}; add {gpu}=DOLLARS, or leave it out of --gpus"
            )
