"""Writes the document of what was judged, and the study of --study."""

from __future__ import annotations

from collections.abc import Mapping

from loadstone.recommend.demand.planning import Planning
from loadstone.recommend.judge.judgement import Judgement
from loadstone.recommend.search.candidates import Search
from loadstone.recommend.search.finalists import Finalists
from loadstone.recommend.tell.document import BoundText, Recommendation, TrafficText
from loadstone.recommend.tell.notes import write_notes
from loadstone.recommend.tell.plans import (
    chart_points,
    choose_by_gpu,
    describe_plan,
    list_rejected,
    next_measurement,
)
from loadstone.recommend.tell.share import write_study


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
    priced = bool(planning.prices)
    confirmed = {plan.choice.finalist.name for plan in judgement.confirmed}
    return Recommendation(
        model=judgement.finalists[0].deployment.model.name,
        traffic=described,
        slo=[BoundText(bound.metric, bound.quantile, bound.bound_s) for bound in traffic.bounds],
        plans=plans,
        rejected=list_rejected(judgement.choices, plans, refused, found, priced=priced),
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
        by_gpu=choose_by_gpu(judgement.confirmed, refused, planning),
        seconds={step: round(value, 3) for step, value in seconds.items()},
    )


def _describe_traffic(planning: Planning) -> TrafficText:
    traffic, trace = planning.traffic, planning.options.workload.trace
    return TrafficText(
        kind=traffic.kind,
        value=traffic.demand,
        input_tokens=traffic.input_tokens,
        output_tokens=traffic.output_tokens,
        trace=str(trace) if trace else None,
        sessions=traffic.calls if traffic.sessions else None,
    )
