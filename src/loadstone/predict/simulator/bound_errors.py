"""How far predicted TTFT and TPOT may be off together, and what that does to bounded figures under
one load.

This is the rule by which `simulate --slo`, reports and `recommend` state probabilities.
ln(measured/predicted) of TTFT and TPOT is one vector. Its covariance has that of the profile's
coefficients, J·C·Jᵀ, what remained when the profile was fitted, and of an assumed acceptance its
spread; of loads that no measurement covers it is wider. Its tails are Student's. In a draw in which
steps take m times as long, the load is simulated m times as fast on the engine's clock, and times
are multiplied by m; so a queue grows as it would.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import NamedTuple, cast

import numpy as np

from loadstone.core.plan import Plan
from loadstone.core.statistics.distribution import PERCENTILES, Z80
from loadstone.core.summary import TASK, latency_field
from loadstone.predict.scheduler import EnginePolicy
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.fleet import Fleet
from loadstone.predict.simulator.latencies import (
    Floats,
    answered_rows,
    latencies_s,
    simulated_pace,
    task_times,
)
from loadstone.predict.simulator.parts import hasten
from loadstone.predict.simulator.run import CellRun
from loadstone.predict.steady_state import Lengths, steady_state
from loadstone.predict.step_time import StepModel
from loadstone.predict.step_time.coverage import Uncovered, uncovered_load
from loadstone.predict.step_time.profile import Quantity, is_own, remaining

QUANTITIES: tuple[Quantity, Quantity] = ("ttft", "tpot")
TAILS = 3.0
"""Degrees of freedom of the errors: held-out rows are far off more often than normal ones would be.
Of 2, 3 and 4 all state probabilities better than normal errors do (benchmarks/planner_choice.py).
"""
AS_WIDE = Z80 / 1.637744
"""So that the 80 % interval is that of the normal: the 0.9-quantile of it over that of t with 3
degrees."""
UNKNOWN = 0.3
"""Spread of a quantity that the profile says nothing of."""
_ACCEPTANCE_SPREAD = 0.1
"""Standard deviation of an assumed acceptance."""
_DRAWS = 256
_MOVE = 1e-3
_DEVIATIONS = (-1.5, 0.6, 1.2, 2.0, 3.0)
"""How slow engines are that are simulated, in standard deviations of ln TPOT; between these it is
interpolated."""
_BROKEN = 1e6
"""A factor that breaks any bound, of a draw that does not keep up."""


class PredictionError(NamedTuple):
    """Mean and covariance of ln(measured/predicted) of (TTFT, TPOT)."""

    mean: Floats
    covariance: Floats


def predict_slopes(
    model: StepModel, policy: EnginePolicy, in_step: int, decoding: float, lengths: Lengths
) -> Floats:
    """Return d ln (TTFT, TPOT) / d ln coefficient where so many requests decode, 2 ×
    coefficients."""

    def logarithms(moved: StepModel) -> Floats:
        level = steady_state(moved, policy, in_step, decoding, lengths)
        return np.asarray(np.log(np.array([level.base_s, level.tpot_s])))

    here = logarithms(model)
    columns = []
    for number in range(len(model.values)):
        values = model.values.copy()
        values[number] *= np.exp(_MOVE)
        columns.append((logarithms(model.at(values)) - here) / _MOVE)
    return np.nan_to_num(np.array(columns).T, posinf=0.0, neginf=0.0)


def fleet_slopes(fleet: Fleet, decoding: float, lengths: Lengths) -> Floats:
    """Return predict_slopes() of a fleet: of pools TTFT is the prefill pool's, TPOT the decode
    pool's."""
    model, policy = cast(StepModel, fleet.model), fleet.policy
    ranks = fleet.replicas // fleet.workers if fleet.in_step else 1
    if (pool := fleet.prefill) is None:
        return predict_slopes(model, policy, ranks, decoding, lengths)
    # Prompts take nothing of the decode pool, nor answers of the prefill pool.
    there, alone = lengths._replace(cached=lengths.prompt - 1), lengths._replace(answer=2.0)
    first = predict_slopes(cast(StepModel, pool.fleet.model), pool.fleet.policy, 1, 1.0, alone)
    return np.stack([first[0], predict_slopes(model, policy, ranks, decoding, there)[1]])


def split_error(run: CellRun, fleet: Fleet, *, acceptance_known: bool = False) -> dict[str, Floats]:
    """Return the covariance of the error of a run by its cause, at the batch in which its requests
    were.

    The fleet's steps are those of a StepModel."""
    model, policy = cast(StepModel, fleet.model), fleet.policy
    decoding, lengths = _observe_batch(run, fleet)
    slopes = fleet_slopes(fleet, decoding, lengths)
    profile, rest = model.profile, remaining(model.profile)
    causes = {
        "the profile's coefficients": slopes @ np.array(profile.covariance) @ slopes.T,
        "what no fit explains of a model on an engine and GPU": np.diag(
            [rest.get(each, UNKNOWN) ** 2 for each in QUANTITIES]
        ),
    }
    if not acceptance_known and policy.speculative is not None:
        causes["the assumed acceptance of drafts"] = np.diag([0.0, acceptance_spread(policy) ** 2])
    wider = profile.wider_for(find_uncovered_load(run.requests.plan, run.requests.cell, fleet))
    return {cause: wider**2 * covariance for cause, covariance in causes.items()}


def find_uncovered_load(plan: Plan, cell: int, fleet: Fleet) -> list[Uncovered]:
    """List the classes without measurements that a cell's load is in, of the shipped profiles."""
    load, model = plan.cells[cell], fleet.model
    if not isinstance(model, StepModel) or is_own(model.profile):
        return []
    at_once = int(load.value) if load.is_burst else load.slots
    burst = at_once if load.is_burst and plan.workload.get("mode") != "offline" else 0
    return uncovered_load(
        model.deployment, burst, min(at_once // fleet.replicas, fleet.policy.max_seqs)
    )


def acceptance_spread(policy: EnginePolicy) -> float:
    """Return the relative spread of TPOT by what is not known of a draft's acceptance."""
    speculative = policy.speculative
    if speculative is None:
        return 0.0
    drafts, rate = speculative.draft_tokens, speculative.acceptance
    slope = sum(power * rate ** (power - 1) for power in range(1, drafts + 1))
    return _ACCEPTANCE_SPREAD * slope / speculative.tokens_per_step


def draw_factors(error: PredictionError) -> Floats:
    """Return equally likely factors of TTFT and TPOT, draws × 2: the same draws for every
    deployment."""
    from scipy.special import gammaincinv, ndtri

    golden = 1.2207440846057596  # the root of x⁴ = x + 1: its powers fill three dimensions evenly
    shares = np.mod(0.5 + np.arange(1, _DRAWS + 1)[:, None] / golden ** np.arange(1, 4), 1.0)
    wide = AS_WIDE * np.sqrt(TAILS / (2 * gammaincinv(TAILS / 2, shares[:, 2:])))
    spread, axes = np.linalg.eigh(error.covariance)
    normal = ndtri(shares[:, :2]) * np.sqrt(np.maximum(spread, 0.0)) * wide
    return np.asarray(np.exp(error.mean + normal @ axes.T))


def estimate_error(
    run: CellRun, fleet: Fleet, *, acceptance_known: bool = False
) -> PredictionError:
    """Return how far predictions of this run may be off."""
    return sum_causes(split_error(run, fleet, acceptance_known=acceptance_known))


def sum_causes(causes: Mapping[str, Floats]) -> PredictionError:
    """Return the error that independent causes make together, each given by its covariance."""
    return PredictionError(np.zeros(2), np.sum(list(causes.values()), axis=0))


def _observe_batch(run: CellRun, fleet: Fleet) -> tuple[float, Lengths]:
    """Return how many requests of a scheduler decode while one of them does, on average; and the
    mean lengths."""
    rows, requests = answered_rows(run), run.requests
    first, last = np.sort(rows["first"]), np.sort(rows["last"])
    at_s = (rows["first"] + rows["last"]) / 2
    decoding = np.searchsorted(first, at_s, "right") - np.searchsorted(last, at_s, "right")
    lengths = Lengths(
        float(np.mean(requests.input_tokens)),
        max(2.0, float(np.mean(requests.output_tokens))),
        float(np.mean(run.cached_tokens)),
    )
    return max(1.0, float(decoding.mean()) / fleet.replicas), lengths


def bound_factors(
    part: Plan, run: CellRun, fleet: Fleet, slo: Collection[str], error: PredictionError
) -> dict[str, list[float]]:
    """Return by bound what its figure is multiplied by, in one draw of the error after another.

    `part`: the load, a plan of one cell; `run`: its simulation.
    """
    load = part.cells[0]
    best = bounded_figures(run, part, slo)
    factors = draw_factors(error)
    slower = np.log(factors[:, 1])
    spread = math.sqrt(max(0.0, float(error.covariance[1, 1])))
    known, logs = [0.0], {name: [0.0] for name in best}
    # A closed loop, and requests that come at once, wait for a slow engine: their times are all as
    # much longer.
    deviations = _DEVIATIONS if load.is_open and spread > 0 and not load.is_burst else ()
    keeps_up = simulated_pace(run, load).keeps_up is not False if load.is_open else True
    broken_from = math.inf
    for deviation in deviations:
        by = float(error.mean[1]) + deviation * spread
        sooner = hasten(part, math.exp(by))
        moved = run_cell(sooner, 0, fleet, grace_s=math.inf)
        if keeps_up and by > 0 and simulated_pace(moved, sooner.cells[0]).keeps_up is False:
            broken_from = (by + max(each for each in known if each < by)) / 2
            break
        figures = bounded_figures(moved, part, slo)
        known.append(by)
        for name, value in best.items():
            logs[name].append(math.log(max(figures.get(name, value), 1e-9) / max(value, 1e-9)))
    order = np.argsort(known)
    found = {}
    for name, values in logs.items():
        risen = np.maximum.accumulate(
            np.array(values)[order]
        )  # a slower engine is not faster: that is noise
        ends = np.array(known)[order]
        queued = np.interp(slower, ends, risen) + 4 * np.maximum(0.0, slower - ends[-1]) * (
            len(ends) > 1
        )
        own = _mix_factors(name, run, factors)
        found[name] = np.where(
            slower >= broken_from, _BROKEN, np.minimum(own * np.exp(queued), _BROKEN)
        ).tolist()
    return found


def _mix_factors(name: str, run: CellRun, factors: Floats) -> Floats:
    """Return a bounded figure's own factor by draw: of E2E by the shares of TTFT and of what comes
    then; of a task so for its calls, and tools take as long as they take."""
    base = name.partition("_")[0]
    if base == TASK:
        first, rest = split_tasks(run)
        return np.asarray(1 + first * (factors[:, 0] - 1) + rest * (factors[:, 1] - 1))
    if base != "e2e":
        return np.asarray(factors[:, 0 if base in ("ttft", "answer") else 1])
    latencies = latencies_s(answered_rows(run))
    first = float(np.median(latencies["ttft_s"]) / np.median(latencies["e2e_s"]))
    return np.asarray(first * factors[:, 0] + (1 - first) * factors[:, 1])


def split_tasks(run: CellRun) -> tuple[float, float]:
    """Return which share of the time of sessions is up to first tokens, and which from there to the
    last ones."""
    spans, busy = task_times(run)
    rows = answered_rows(run)
    model = float(busy.sum() / max(1e-9, spans.sum()))
    first = float(
        (rows["first"] - rows["sent"]).sum() / max(1e-9, (rows["end"] - rows["sent"]).sum())
    )
    return model * first, model * (1 - first)


def bounded_figures(run: CellRun, part: Plan, slo: Collection[str]) -> dict[str, float]:
    """Return by bound the figure that it bounds, in seconds: a percentile, or of a bound on every
    request the slowest; of requests that ended."""
    rows, load = answered_rows(run), part.cells[0]
    latencies = latencies_s(rows)
    found = {}
    for name in slo:
        base, _, percentile = name.partition("_")
        values = task_times(run)[0] if base == TASK else latencies[latency_field(base, load)]
        if len(values):
            found[name] = float(np.quantile(values, PERCENTILES[percentile] if percentile else 1.0))
    return found
