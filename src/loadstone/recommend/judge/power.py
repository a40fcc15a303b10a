"""Predicts the watts that plans draw, and which of them a --power-budget feeds."""

from collections.abc import Sequence
from functools import lru_cache

from loadstone.analyse.power import unknown_power
from loadstone.core.errors import InputError
from loadstone.core.machine_figures import PredictedPower
from loadstone.predict.power import Power, board_power
from loadstone.predict.step_time.roofline import RooflineModel
from loadstone.recommend.demand.planning import Planning
from loadstone.recommend.judge.choices import PlanChoice
from loadstone.recommend.search.measured import MeasuredRun

_limits = lru_cache(maxsize=256)(RooflineModel)


def plan_power(
    choice: PlanChoice, planning: Planning, measured: Sequence[MeasuredRun]
) -> PredictedPower:
    """Predict what all boards of a plan draw under its traffic."""
    traffic, terms = planning.traffic, planning.electricity
    worker, replicas = choice.finalist.candidate.worker, choice.replicas
    policy = choice.finalist.candidate.policy
    if choice.finalist.deployment.is_split or policy.speculative is not None:
        unknown = "no row has prefill and decode apart, or guessed tokens"
        return PredictedPower(boundary=terms.boundary, unknown=unknown)
    gaps = [gap.gap for run in measured for gap in run.power if gap.gpu == worker.gpu.name]
    power = _load_power(choice, planning, gaps)
    if power is None:
        return PredictedPower(boundary=terms.boundary, unknown=unknown_power(worker.gpu.name))
    rate = choice.finalist.curve.output_tokens_per_s(traffic.demand / replicas) * replicas
    both = rate * (1 + traffic.input_tokens / max(1.0, traffic.output_tokens))
    w, low, high = (choice.gpus * watts for watts in power)
    drawn_w = terms.drawn_w(w, choice.gpus)
    return PredictedPower(
        boundary=terms.boundary,
        boards_w=w,
        power_w=[low, high],
        j_per_output_token=[low / rate, high / rate],
        j_per_total_token=[low / both, high / both],
        drawn_w=drawn_w,
        usd_per_mtok=terms.usd_per_mtok(drawn_w, rate),
    )


def _load_power(choice: PlanChoice, planning: Planning, gaps: Sequence[float]) -> Power | None:
    """Predict a board's watts at the simulated load that is nearest to a replica's share."""
    traffic = planning.traffic
    worker = choice.finalist.candidate.worker
    limits = _limits(worker)
    point = choice.finalist.curve.nearest(traffic.demand / choice.replicas)
    rate, tokens = point.requests_per_s, traffic.output_tokens
    cached = (point.sessions.cached_share or 0.0) * traffic.input_tokens
    flops = limits.flops(traffic.input_tokens - cached, cached, tokens)
    decoding = rate * point.tpot_p50_s * max(0.0, tokens - 1)
    if decoding <= 0:
        return None
    slots = float("inf") if traffic.is_open else max(1.0, point.load)
    step = limits.decode(decoding, slots, traffic.input_tokens + tokens / 2)
    mbu, mfu = step.reading_s / point.tpot_p50_s, rate * flops / limits.peak_flops_per_s
    return board_power(worker.gpu, mbu, mfu, gaps)


def fed_by(
    choices: Sequence[PlanChoice], planning: Planning, measured: Sequence[MeasuredRun]
) -> list[PlanChoice]:
    """Return the choices that --power-budget feeds, whose watts at the upper end of the interval
    are within it; where these are not known, all boards count at their limit. Raises InputError
    where there are none."""
    budget_w = planning.choice.power_budget
    if budget_w is None:
        return list(choices)

    def most_w(choice: PlanChoice) -> float:
        power = plan_power(choice, planning, measured).power_w
        if power is None or power[1] is None:
            return choice.replicas * choice.finalist.candidate.most_w(planning)
        return planning.electricity.drawn_w(power[1], choice.gpus)

    drawn = [(most_w(choice), choice) for choice in choices]
    kept = [choice for watts, choice in drawn if watts <= budget_w]
    if not kept:
        watts, least = min(drawn, key=lambda pair: pair[0])
        raise InputError(
            f"--power-budget: {budget_w / 1e3:g} kW is too little; the plan that draws least,"
            f" {least.shorthand}, may draw {watts / 1e3:.3g} kW"
            f" ({planning.electricity.boundary})"
        )
    return kept
