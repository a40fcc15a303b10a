"""The deployments for a model's traffic: candidates by closed form, finalists by simulation, plans by regret."""

from __future__ import annotations

import time
from pathlib import Path

from loadstone.analyse.compare.price import Prices, key, parse_prices
from loadstone.catalogue import parse_deployment
from loadstone.core.errors import InputError
from loadstone.recommend.candidates import search
from loadstone.recommend.decide import affordable, best_of_each, rank_choices, value_measurements
from loadstone.recommend.finalists import choose_finalists, read_measured, simulate_finalists
from loadstone.recommend.options import RecommendOptions
from loadstone.recommend.plans import chart_points, describe_plan, list_rejected, next_measurement, write_notes
from loadstone.recommend.refusal import explain_refusal
from loadstone.recommend.result import BoundText, Recommendation, TrafficText
from loadstone.recommend.study import write_study
from loadstone.recommend.traffic import traffic_of
from loadstone.workload.options import check_limits


def recommend(options: RecommendOptions) -> Recommendation:
    """Choose what to deploy. Raises InputError: names that mean nothing; nothing that carries the traffic, with the
    nearest that would."""
    check_limits(options)
    traffic = traffic_of(options)
    prices = parse_prices(options.price) if options.price else Prices()
    _check_prices(options, prices)
    begun_s = time.monotonic()
    found = search(options, traffic, prices)
    searched_s = time.monotonic()
    if not found.candidates:
        raise InputError(explain_refusal(found, options, traffic))
    measured = [read_measured(Path(run), force=options.force) for run in options.measured]
    candidates = choose_finalists(found.candidates, measured, options, traffic, prices)
    finalists, refused = simulate_finalists(candidates, measured, traffic, options.seed)
    simulated_s = time.monotonic()
    choices = rank_choices(finalists, traffic, options)
    paid = affordable(choices, traffic, options)
    plans = [describe_plan(each, options, traffic, found, measured) for each in best_of_each(paid)[: options.plans]]
    best = value_measurements(paid, finalists)[0]
    decided_s = time.monotonic()
    if options.study is not None:
        write_study(options.study, options, traffic, [each.deployment for each in plans], plans[0].replicas)
    trace = str(options.trace) if options.trace else None
    return Recommendation(
        model=finalists[0].deployment.model.name,
        traffic=TrafficText(traffic.kind, traffic.demand, traffic.input_tokens, traffic.output_tokens, trace),
        slo=[BoundText(each.metric, each.quantile, each.bound_s) for each in traffic.bounds],
        plans=plans,
        rejected=list_rejected(choices, plans, [*found.refused, *refused], found, priced=bool(options.price)),
        measure_next=(
            next_measurement(best, choices, options, traffic) if best.regret_after < best.regret_now else None
        ),
        study=str(options.study) if options.study is not None else None,
        notes=write_notes(finalists, options, measured),
        finalists=chart_points(finalists, choices, options, traffic),
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
