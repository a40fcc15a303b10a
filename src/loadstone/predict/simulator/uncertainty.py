"""How far the predictions of a cell may be off: one rule for tables, bounds and plans.

ln(measured/predicted) has the spread of the profile's coefficients; what remained when the profile
was fitted; and, of an assumed acceptance, its own. Of loads that no measurement covers it is wider.

tables  `intervals`: the beginning of a cell is simulated at coefficients drawn from the profile's
        covariance. The logarithm of each figure's ratio to that with the best ones, plus the spread
        that remained (of quantities, ln(measured/predicted)), has the 80 % interval between its
        10 % and 90 % quantiles
bounds  `bound_factors`: what both do to figures that are bounded, by which `simulate --slo` and
        reports state probabilities. TTFT and TPOT are one vector, whose covariance is J·C·Jᵀ + s²
        with the slopes J of a steady state; its tails are Student's. In a draw in which steps take
        m times as long, the load is simulated m times as fast on the engine's clock, and times are
        multiplied by m; so a queue grows as it would
plans   the same vectors of several deployments together (recommend)
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from statistics import NormalDist
from typing import NamedTuple, cast

import numpy as np

from loadstone.core.bounds import TASK, split_bound
from loadstone.core.metrics import latency_field
from loadstone.core.plan import Load, Plan
from loadstone.core.statistics.distribution import PERCENTILES, Z80
from loadstone.core.statistics.quantiles import maxwell_quantile
from loadstone.core.vectors import Floats
from loadstone.predict.scheduler import EnginePolicy
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.fleet import Fleet
from loadstone.predict.simulator.latencies import (
    answered_classes,
    answered_rows,
    latencies_s,
    simulated_pace,
    task_times,
)
from loadstone.predict.simulator.parts import beginning, hasten
from loadstone.predict.simulator.run import CellRun
from loadstone.predict.steady_state import Lengths, steady_state
from loadstone.predict.step_time import StepModel
from loadstone.predict.step_time.adapters import adapter_shares
from loadstone.predict.step_time.coefficients import slopes_of
from loadstone.predict.step_time.coverage import Uncovered, uncovered_load
from loadstone.predict.step_time.pictures import TERMS, picture_shares
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
LOW, HIGH = 0.1, 0.9
_ACCEPTANCE_SPREAD = 0.1
"""Standard deviation of an assumed acceptance."""
_BOUNDED_REQUESTS = 2_000
"""Of a cell, for the errors of what is bounded."""
_DRAWS = 256
_DEVIATIONS = (-1.5, 0.6, 1.2, 2.0, 3.0)
"""How slow engines are that are simulated, in standard deviations of ln TPOT; between these it is
interpolated."""
_FAR, _FAR_OFF = {"tpot": 1.0, "itl_": 1.0}, 4.0
"""Times a bound, by metric, at which it is not looked at what still slower engines do: TTFT has an
error of its own."""
_BROKEN = 1e6
"""A factor that breaks any bound, of a draw that does not keep up."""
_RATE = "output_tokens_per_s"
_QUANTITY_OF: dict[str, Quantity] = {
    "ttft_s": "ttft",
    "ttft_intended_s": "ttft",
    "tpot_s": "tpot",
    # A step, as TPOT is: nothing more is known of the one than of the other.
    "itl_s": "tpot",
}
_MEDIANS = (*_QUANTITY_OF, "e2e_s", "e2e_intended_s")
_NORMAL_POINTS = np.array([NormalDist().inv_cdf((point + 0.5) / 25) for point in range(25)])

Interval = tuple[float, float]


class CellUncertainty(NamedTuple):
    """How far a cell's figures may be off.

    intervals  by metric, what its p50 is multiplied by for the low and the high end of the 80 %
               interval
    factors    by bound of the SLO, equally likely factors of its figure, draw by draw
    """

    intervals: dict[str, Interval]
    factors: dict[str, list[float]]


def cell_uncertainties(
    plan: Plan,
    fleet: Fleet,
    draws: int,
    slo: Collection[str] = (),
    *,
    acceptance_known: bool = False,
) -> list[CellUncertainty]:
    """Compute by cell how far off its figures may be. Nothing where the model knows no spread."""
    if not isinstance(fleet.model, StepModel) or draws < 1:
        return [CellUncertainty({}, {}) for _ in plan.cells]
    drawn = fleet.draws(draws, plan.seed)
    found = []
    for cell in range(len(plan.cells)):
        factors: dict[str, list[float]] = {}
        if slo:
            part = beginning(plan, cell, _BOUNDED_REQUESTS)
            run = run_cell(part, 0, fleet, grace_s=math.inf)
            error = estimate_error(run, fleet, acceptance_known=acceptance_known)
            # By name alone: each bound has a probability of its own, however far others are broken.
            factors = bound_factors(part, run, fleet, list(slo), error)
        margins = margins_of(plan, cell, fleet)
        found.append(CellUncertainty(intervals(plan, cell, fleet, drawn, margins), factors))
    return found


class Margins(NamedTuple):
    """Holds the spreads beside those of the coefficients: the spread that remains of each quantity,
    in ln; how many times as wide all of it is under a load; and what draws of the profile count."""

    remains: Mapping[Quantity, float]
    wider: float = 1.0
    drawn: float = 1.0


def margins_of(plan: Plan, cell: int, fleet: Fleet) -> Margins:
    """Return the margins of a cell under a fleet whose steps are those of a StepModel."""
    profile = cast(StepModel, fleet.model).profile
    loads = find_uncovered_load(plan, cell, fleet)
    return Margins(remaining(profile), profile.wider_for(loads), profile.wider)


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


# --- intervals of medians and rates ---------------------------------------------------------------


def intervals(
    plan: Plan, cell: int, fleet: Fleet, drawn: Sequence[Fleet], margins: Margins
) -> dict[str, Interval]:
    """Simulate the beginning of a cell at each draw; returns the intervals as CellUncertainty has
    them."""
    part = beginning(plan, cell)
    runs = [run_cell(part, 0, drawn_fleet, grace_s=0.0) for drawn_fleet in (fleet, *drawn)]
    best, *figures = (median_figures(run) for run in runs)
    ratios: dict[str, Floats] = {}
    for name, value in best.items():
        moved = [figure[name] for figure in figures if figure.get(name, 0) > 0 and value > 0]
        ratios[name] = np.log([draw / value for draw in moved] or [1.0])
    leaving, *drawn_leaving = (_share_leaving(run, part.cells[0]) for run in runs)
    keeps_up = leaving == 1
    if keeps_up:
        # No more leaves than comes; where a draw's queue is too long to tell, what came out in all
        # that time tells.
        shares = [
            min(1.0, figure[_RATE] / best[_RATE]) if share is None else share
            for figure, share in zip(figures, drawn_leaving, strict=True)
        ]
        ratios[_RATE] = np.log(shares or [1.0])
    found: dict[str, Interval] = {}
    limits = _limit_draws(runs[0], fleet, margins)
    for name, by_draw in ratios.items():
        bounded_rate = keeps_up and name == _RATE
        remains = _remaining_spread(name, best, ratios, margins.remains)
        if bounded_rate and not by_draw.any():
            remains = 0.0
        # A sum of times that are each drawn log-normal is in the middle above the best.
        centred = by_draw if bounded_rate else by_draw - np.median(by_draw)
        limit = limits[_QUANTITY_OF.get(name, "tpot")]
        moved_by = np.clip(margins.drawn * centred, -limit, limit)
        logs = margins.wider * (moved_by[:, None] + remains * _NORMAL_POINTS[None, :])
        low, high = (float(end) for end in np.exp(np.quantile(logs, (LOW, HIGH))))
        found[name] = min(1.0, low), 1.0 if bounded_rate else max(1.0, high)
    return found


def _limit_draws(run: CellRun, fleet: Fleet, margins: Margins) -> dict[Quantity, float]:
    """Return how far figures of draws may be off in ln, by quantity. Of a profile that is wider
    than its fit, as far as two standard deviations of bounds and plans: a small term that may be
    many times as large would drown all others."""
    if margins.drawn == 1:
        return dict.fromkeys(QUANTITIES, math.inf)
    slopes = fleet_slopes(fleet, *observe_batch(run, fleet))
    covariance = np.array(cast(StepModel, fleet.model).profile.covariance)
    spreads = np.sqrt(np.diag(slopes @ covariance @ slopes.T))
    return dict(zip(QUANTITIES, (2 * spreads).tolist(), strict=True))


def _remaining_spread(
    name: str,
    best: Mapping[str, float],
    ratios: Mapping[str, Floats],
    remains: Mapping[Quantity, float],
) -> float:
    """Return the part of the spread of ln(measured/predicted) of a metric that the coefficients do
    not explain.

    E2E is TTFT and then tokens: the two spreads, each by its share of the time, as if independent.
    Throughput follows E2E as far as it does in the draws: one for one in a closed loop, not at all
    in an open one below saturation.
    """
    if name == _RATE:
        e2e = float(ratios["e2e_s"].std())
        follows = min(1.0, float(ratios[name].std()) / e2e) if e2e > 0 else 1.0
        return follows * _remaining_spread("e2e_s", best, ratios, remains)
    if not name.startswith("e2e"):
        return remains.get(_QUANTITY_OF[name], 0.0)
    first = best[name.replace("e2e", "ttft")] / best[name] if best[name] > 0 else 0.0
    return math.hypot(first * remains.get("ttft", 0.0), (1 - first) * remains.get("tpot", 0.0))


def median_figures(run: CellRun) -> dict[str, float]:
    """Return of measured requests that ended the p50 of each latency, and output tokens per
    second."""
    rows = answered_rows(run)
    latencies = latencies_s(rows)
    figures = {name: float(np.median(latencies[name])) for name in _MEDIANS if len(latencies[name])}
    length_s = float(rows["end"].max() - rows["sent"].min()) if len(rows) else 0.0
    if length_s > 0:
        figures[_RATE] = float(rows["tokens"].sum()) / length_s
    return figures


def _share_leaving(run: CellRun, load: Load) -> float | None:
    """Return the share of requests at a steady rate that leaves in the same time; None where it is
    unknown."""
    if not load.steady:
        return None
    pace = simulated_pace(run, load)
    if pace.growth is None:
        return None
    return 1.0 if pace.keeps_up else 1 / (1 + max(0.0, pace.growth[0]))


# --- the vector of TTFT and TPOT ------------------------------------------------------------------


class PredictionError(NamedTuple):
    """Mean and covariance of ln(measured/predicted) of (TTFT, TPOT)."""

    mean: Floats
    covariance: Floats

    def draw_factors(self) -> Floats:
        """Return equally likely factors of TTFT and TPOT, draws × 2: the same draws for every
        deployment."""
        spread, axes = np.linalg.eigh(self.covariance)
        scaled = _student_draws() * np.sqrt(np.maximum(spread, 0.0))
        return np.asarray(np.exp(self.mean + scaled @ axes.T))


@cache
def _student_draws() -> Floats:
    """Return draws × 2 of Student's t with TAILS degrees, both errors of a draw with one width."""
    golden = 1.2207440846057596  # the root of x⁴ = x + 1: its powers fill three dimensions
    shares = np.mod(0.5 + np.arange(1, _DRAWS + 1)[:, None] / golden ** np.arange(1, 4), 1.0)
    normal = np.vectorize(NormalDist().inv_cdf)(shares[:, :2])
    # Half of chi-square with three degrees is Maxwell's, squared.
    wide = AS_WIDE * np.sqrt(TAILS / 2) / np.vectorize(maxwell_quantile)(shares[:, 2:])
    return np.asarray(normal * wide)


def estimate_error(
    run: CellRun, fleet: Fleet, *, acceptance_known: bool = False
) -> PredictionError:
    """Return how far predictions of this run may be off."""
    return sum_causes(split_error(run, fleet, acceptance_known=acceptance_known))


UNEXPLAINED = "what no fit explains of a model on an engine and GPU"
"""The cause of error that a measurement of the model on the GPU removes."""


def sum_causes(causes: Mapping[str, Floats]) -> PredictionError:
    """Return the error that independent causes make together, each given by its covariance."""
    return PredictionError(np.zeros(2), np.sum(list(causes.values()), axis=0))


def split_error(run: CellRun, fleet: Fleet, *, acceptance_known: bool = False) -> dict[str, Floats]:
    """Return the covariance of the error of a run by its cause, at the batch in which its requests
    were.

    The fleet's steps are those of a StepModel."""
    profile, policy = cast(StepModel, fleet.model).profile, fleet.policy
    margins = margins_of(run.requests.plan, run.requests.cell, fleet)
    slopes = fleet_slopes(fleet, *observe_batch(run, fleet))
    remains = [margins.remains.get(quantity, UNKNOWN) for quantity in QUANTITIES]
    causes = {
        "the profile's coefficients": slopes @ np.array(profile.covariance) @ slopes.T,
        UNEXPLAINED: np.diag(np.square(remains)),
    }
    if not acceptance_known and policy.speculative is not None:
        causes["the assumed acceptance of drafts"] = np.diag([0.0, acceptance_spread(policy) ** 2])
    model = cast(StepModel, fleet.model)
    if model.adapters is not None:
        adapters = model.adapters
        by = _moved_slopes(
            fleet,
            lambda factor: model.with_adapters(adapters.at(factor)),
            *observe_batch(run, fleet),
        )
        causes["the times of LoRA adapters"] = np.outer(by, by) * model.adapters.spread**2
    if run.pictures is not None:
        causes["the times of pictures"] = _picture_error(fleet, slopes, *observe_batch(run, fleet))
    if run.requests.sequences:  # of one time, there is one error
        causes = {cause: np.full((2, 2), value[0, 0]) for cause, value in causes.items()}
    return {cause: margins.wider**2 * covariance for cause, covariance in causes.items()}


def predict_slopes(
    model: StepModel, policy: EnginePolicy, in_step: int, decoding: float, lengths: Lengths
) -> Floats:
    """Return d ln (TTFT, TPOT) / d ln coefficient where so many requests decode, 2 ×
    coefficients."""

    def logarithms(values: Floats) -> Floats:
        state = steady_state(model.at(values), policy, in_step, decoding, lengths)
        return np.asarray(np.log(np.array([state.base_s, state.tpot_s])))

    return np.nan_to_num(slopes_of(logarithms, model.values), posinf=0.0, neginf=0.0)


def fleet_slopes(fleet: Fleet, decoding: float, lengths: Lengths) -> Floats:
    """Return predict_slopes() of a fleet: of pools TTFT is the prefill pool's, TPOT the decode
    pool's."""
    model, policy = cast(StepModel, fleet.model), fleet.policy
    ranks = fleet.replicas // fleet.workers if fleet.in_step else 1
    pool = fleet.prefill
    if pool is None:
        return predict_slopes(model, policy, ranks, decoding, lengths)
    # Prompts take nothing of the decode pool, nor answers of the prefill pool.
    prompts_alone = lengths._replace(answer=2.0)
    prefill = cast(StepModel, pool.fleet.model)
    first = predict_slopes(prefill, pool.fleet.policy, 1, 1.0, prompts_alone)
    answers_alone = lengths._replace(cached=lengths.prompt - 1)
    return np.stack([first[0], predict_slopes(model, policy, ranks, decoding, answers_alone)[1]])


def _moved_slopes(
    fleet: Fleet, moved: Callable[[float], StepModel], decoding: float, lengths: Lengths
) -> Floats:
    """Return d ln (TTFT, TPOT) / d ln of what `moved` multiplies in a fleet's model."""
    states = (
        steady_state(moved(factor), fleet.policy, 1, decoding, lengths) for factor in (0.9, 1.1)
    )
    low, high = (np.log([state.base_s, state.tpot_s]) for state in states)
    return np.asarray(np.nan_to_num((high - low) / math.log(1.1 / 0.9)))


def _picture_error(fleet: Fleet, slopes: Floats, decoding: float, lengths: Lengths) -> Floats:
    """Return the covariance that the times of pictures add to that of coefficients with these
    slopes; of pools TTFT's alone, for those that decode see no picture."""
    prompts = fleet if fleet.prefill is None else fleet.prefill.fleet
    model = cast(StepModel, prompts.model)
    times = model.pictures
    assert times is not None  # noqa: S101

    def slopes_of_term(axis: Floats) -> Floats:
        def moved(factor: float) -> StepModel:
            return model.with_pictures(times.at(math.log(factor) * axis))

        return _moved_slopes(prompts, moved, decoding, lengths)

    rows = [slopes_of_term(axis) for axis in np.identity(len(TERMS))]
    by = np.array(rows).T * [[1.0], [fleet is prompts]]
    shared = by @ np.array(times.terms.shared or np.zeros((len(TERMS), slopes.shape[1])))
    cross = shared @ slopes.T
    return np.asarray(by @ np.array(times.terms.covariance) @ by.T + cross + cross.T)


def acceptance_spread(policy: EnginePolicy) -> float:
    """Return the relative spread of TPOT by what is not known of a draft's acceptance."""
    speculative = policy.speculative
    if speculative is None:
        return 0.0
    drafts, rate = speculative.draft_tokens, speculative.acceptance
    slope = sum(power * rate ** (power - 1) for power in range(1, drafts + 1))
    return _ACCEPTANCE_SPREAD * slope / speculative.tokens_per_step


def observe_batch(run: CellRun, fleet: Fleet) -> tuple[float, Lengths]:
    """Return how many requests of a scheduler decode while one of them does, on average; and the
    mean lengths."""
    rows, requests = answered_rows(run), run.requests
    first, last = np.sort(rows["first"]), np.sort(rows["last"])
    middle_s = (rows["first"] + rows["last"]) / 2
    begun, over = (
        np.searchsorted(first, middle_s, "right"),
        np.searchsorted(last, middle_s, "right"),
    )
    measured = slice(requests.warm, None)
    prompts = requests.input_tokens[measured]
    if requests.sequences:  # what a step takes whole is one of a request's texts
        prompts = [tokens for texts in requests.sequences[measured] for tokens in texts]
    lengths = Lengths(
        float(np.mean(prompts)),
        max(2.0, float(np.mean(requests.output_tokens[measured]))),
        float(np.mean(run.cached_tokens[measured])),
        adapter_shares(requests.adapter[measured]),
        picture_shares(requests.plan),
        len(prompts) / len(requests.output_tokens[measured]) if requests.sequences else 0.0,
    )
    return max(1.0, float((begun - over).mean()) / fleet.replicas), lengths


# --- bounded figures ------------------------------------------------------------------------------


def bound_factors(
    part: Plan,
    run: CellRun,
    fleet: Fleet,
    slo: Collection[str],
    error: PredictionError,
    factors: Floats | None = None,
) -> dict[str, list[float]]:
    """Return what the figure of each bound is multiplied by, in one draw of the error after
    another. `factors`: these draws of TTFT and TPOT; None: the error's own.

    `part`: the load, a plan of one cell; `run`: its simulation; `slo`: the bounds, where seconds
    go with them only as slow engines are simulated as decide whether they hold.
    """
    load = part.cells[0]
    best = bounded_figures(run, part, slo)
    factors = error.draw_factors() if factors is None else factors
    slower = np.log(factors[:, 1])
    spread = math.sqrt(max(0.0, float(error.covariance[1, 1])))
    paces, logs = [0.0], {name: [0.0] for name in best}
    # A closed loop without pauses, and requests that come at once, wait for a slow engine: their
    # times are all as much longer.
    apart = load.is_open or bool(part.think_s.any())
    deviations = _DEVIATIONS if apart and spread > 0 and not load.is_burst else ()
    keeps_up = simulated_pace(run, load).keeps_up is not False if load.is_open else True
    broken_from, limits = math.inf, slo if isinstance(slo, Mapping) else {}
    met = bool(limits) and all(value <= limits[name] for name, value in best.items())
    for deviation in deviations:
        if met and deviation < 0:
            continue
        pace = float(error.mean[1]) + deviation * spread
        sooner = hasten(part, math.exp(pace))
        moved = run_cell(sooner, 0, fleet, grace_s=math.inf)
        if keeps_up and pace > 0 and simulated_pace(moved, sooner.cells[0]).keeps_up is False:
            broken_from = (pace + max(slow for slow in paces if slow < pace)) / 2
            break
        figures = bounded_figures(moved, part, slo)
        paces.append(pace)
        for name, value in best.items():
            logs[name].append(math.log(max(figures.get(name, value), 1e-9) / max(value, 1e-9)))
        if pace > 0 and any(
            figure * math.exp(pace)
            > _FAR.get(split_bound(name).base[:4], _FAR_OFF) * limits.get(name, math.inf)
            for name, figure in figures.items()
        ):
            broken_from = pace
            break
    order = np.argsort(paces)
    ends = np.array(paces)[order]
    found = {}
    for name, values in logs.items():
        # A slower engine is not faster: that is noise.
        risen = np.maximum.accumulate(np.array(values)[order])
        queued = np.interp(slower, ends, risen)
        if len(ends) > 1:
            queued = queued + 4 * np.maximum(0.0, slower - ends[-1])
        whole = np.minimum(_mix_factors(name, run, factors) * np.exp(queued), _BROKEN)
        found[name] = np.where(slower >= broken_from, _BROKEN, whole).tolist()
    return found


def _mix_factors(name: str, run: CellRun, factors: Floats) -> Floats:
    """Return a bounded figure's own factor by draw: of E2E by the shares of TTFT and of what comes
    then; of a task so for its calls, and tools take as long as they take."""
    base = split_bound(name).base
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
    """Return the figure that each bound bounds, in seconds: a percentile, or of a bound on every
    request the slowest; of requests that ended."""
    rows, load = answered_rows(run), part.cells[0]
    by_class = {"": latencies_s(rows)}
    if part.traffic_class is not None:
        classes = answered_classes(run, part)
        for number, of_class in enumerate(part.classes):
            by_class[of_class.name] = latencies_s(rows[classes == number])
    found = {}
    for name in slo:
        traffic_class, base, percentile = split_bound(name)
        latencies = by_class.get(traffic_class, {})
        values = (
            task_times(run)[0] if base == TASK else latencies.get(latency_field(base, load), ())
        )
        if len(values):
            found[name] = float(np.quantile(values, PERCENTILES[percentile] if percentile else 1.0))
    return found
