"""Simulates under an autoscaler, beside fleets of fixed size and one that knows the future."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from loadstone.analyse.metrics import meets_bounds
from loadstone.analyse.server_figures import drop_repeats
from loadstone.analyse.slo import request_bounds
from loadstone.catalogue.deployment.deployment import Deployment
from loadstone.core import arrays, run_folder
from loadstone.core.bounds import Bound, split_bound
from loadstone.core.errors import InputError
from loadstone.core.plan import Load, Plan
from loadstone.core.settings import FleetFigures, FleetPoint
from loadstone.core.statistics.distribution import PERCENTILES, percentile
from loadstone.core.vectors import Array, Bools, Floats, Ints64
from loadstone.predict.autoscaler.fleet import FleetLog, run_scaled
from loadstone.predict.autoscaler.policy import (
    Autoscaler,
    CapacityOf,
    Controller,
    FleetSignals,
    StartUp,
)
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.fleet import Fleet
from loadstone.predict.simulator.latencies import classes_of, request_rows
from loadstone.predict.simulator.parts import take_requests
from loadstone.predict.simulator.pipeline import engines_of
from loadstone.predict.simulator.run import CellRun, Look
from loadstone.predict.steady_state import Lengths, steady_states
from loadstone.predict.step_time import StepModel

_WINDOWS = 96
"""Of a run, for attainment over time and for the oracle: quarters of an hour of a day."""
_LEAST_WINDOW_S = 60.0
_MOST_REQUESTS = 50_000
"""That static fleets and oracle are simulated with; of more a part, window by window."""
_WHOLE = -1
"""In the place of a window: all of a run."""
_MOST_REPLICAS = 4096
_MOST_POINTS = 2000
"""Readings that a run keeps."""
_MOST_RUNS = 2000
"""Folders that are looked into for measured starts."""


# --- what is asked --------------------------------------------------------------------------------


def check_scaled(
    deployment: Deployment, fleet: Fleet, loads: Sequence[Load], flow_control: str | None = None
) -> None:
    """Refuse what no autoscaler is simulated with. Raises InputError."""
    if flow_control is not None:
        raise InputError(
            "--autoscale and --flow-control: are not simulated together; leave one out (hold, in"
            " the autoscaler's file, has the router hold requests)"
        )
    if fleet.prefill is not None:
        raise InputError("--autoscale: pools are not scaled; give a deployment without prefill=")
    if len(engines_of(fleet, None, shared=False)[1]) > 1:
        raise InputError(
            f"--autoscale: {deployment.name} is several replicas; give one of them, without dp, and"
            " the number in the autoscaler's file"
        )
    if len(loads) != 1 or not loads[0].is_open:
        raise InputError(
            "--autoscale: needs one load that comes by the clock; give --trace FILE, or one --rate"
        )


def with_start_up(scaler: Autoscaler, deployment: Deployment, out: Path) -> tuple[Autoscaler, str]:
    """Return the autoscaler with the time that a replica takes to start, and where it is from:
    given, measured by runs in `out` that started this deployment, or assumed."""
    if scaler.start_up_s is not None:
        return scaler, "given"
    measured = [] if scaler.start_up else _measured_starts(deployment, out)
    if measured:
        mean_s = float(np.mean(measured))
        spread = scaler.start_up_spread
        if spread is None and len(measured) > 1:
            spread = float(np.std(measured, ddof=1)) / mean_s
        scaler = replace(scaler, start_up_s=mean_s, start_up_spread=spread)
        return scaler, f"measured, {len(measured)} starts"
    parts, worker = scaler.start_up or StartUp(), deployment.decoder
    weights = worker.model.weights_bytes(worker.weights_dtype)
    return replace(scaler, start_up_s=parts.seconds(weights)), "assumed"


def _measured_starts(deployment: Deployment, out: Path) -> list[float]:
    found = []
    for file in sorted(out.glob("*/run.json"))[-_MOST_RUNS:]:
        try:
            settings = run_folder.read_info(file.parent).settings
        except InputError:
            continue
        start_s = settings.provenance.start_up_s
        if start_s and settings.deployed.name == deployment.name:
            found.append(start_s)
    return found


def capacity_of(fleet: Fleet, scaler: Autoscaler) -> CapacityOf | None:
    """Return what the planner takes for the requests/s of a replica: by the closed form, the most
    at which means of TTFT and TPOT are within its bounds."""
    model, in_step = fleet.model, fleet.replicas if fleet.in_step else 1
    if scaler.policy != "planner" or not isinstance(model, StepModel):
        return None

    most_ttft_s, most_tpot_s = scaler.ttft_s or math.inf, scaler.tpot_s or math.inf

    @cache
    def capacity(prompt: int, answer: int) -> float:
        rates = [1e-9]
        for seldom in (True, False):
            lengths = Lengths(prompt, answer)
            for state in steady_states(model, fleet.policy, in_step, lengths, seldom=seldom):
                ttft_s = state.base_s + state.busy * state.queue_s if state.busy < 1 else math.inf
                if ttft_s <= most_ttft_s and state.tpot_s <= most_tpot_s:
                    rates.append(state.rate_per_s * in_step)
        return max(rates)

    return lambda prompt, answer: capacity(round(prompt), max(1, round(answer)))


# --- how it went ----------------------------------------------------------------------------------


class ServedRequests(NamedTuple):
    """The measured requests of a run: an arrays.ROW of each, and the place of its class."""

    rows: Array
    classes: Ints64


def requests_of(run: CellRun, plan: Plan) -> ServedRequests:
    rows, classes = request_rows(run), classes_of(run, plan)
    measured = rows["measured"]
    return ServedRequests(rows[measured], classes[measured])


@dataclass(frozen=True)
class Judge:
    """Judges the requests of a plan by the bounds of its run."""

    plan: Plan
    slo: Mapping[str, float]

    def good(self, served: ServedRequests) -> Bools | None:
        """Mark the requests that end within the bounds of their class; None where none has any."""
        if not self.slo:
            return None
        good: Bools = ~np.isnan(served.rows["end"])
        for name, of_class in self._members(served).items():
            bounds = [
                Bound(metric.rpartition(":")[2], limit_s)
                for metric, limit_s in self.slo.items()
                if split_bound(metric).traffic_class == name
            ]
            met = meets_bounds(served.rows, self.plan.cells[0], request_bounds(bounds))
            good &= met | ~of_class
        return good

    def point(self, served: ServedRequests, paid_s: float, gpus: int, span_s: float) -> FleetPoint:
        """Return the point of a fleet that was paid for so long."""
        good = self.good(served)
        by_class = {}
        if good is not None and self.plan.classes:
            by_class = {
                name: float(good[of_class].mean())
                for name, of_class in self._members(served).items()
                if of_class.any()
            }
        return FleetPoint(
            replicas=paid_s / max(span_s, 1e-9),
            gpu_hours=paid_s * gpus / 3600,
            attainment=None if good is None or not len(good) else float(good.mean()),
            by_class=by_class,
            met=self.met(served),
        )

    def met(self, served: ServedRequests) -> bool | None:
        """Tell whether all bounds hold; of a request that failed, none does."""
        if not self.slo:
            return None
        rows, members = served.rows, self._members(served)
        failed = np.isnan(rows["end"])
        origin_s = arrays.origin_s(rows, self.plan.cells[0])
        tpot_s = np.where(rows["tokens"] > 1, arrays.tpot_s(rows), 0.0)
        for name, limit_s in self.slo.items():
            traffic_class, base, quantile = split_bound(name)
            last = "first" if base in ("ttft", "answer") else "last"
            values = tpot_s if base == "tpot" else rows[last] - origin_s
            values = np.where(failed, np.inf, values)[members[traffic_class]]
            if not len(values):
                continue
            of_all = 1.0 if not quantile else PERCENTILES[quantile]
            value = percentile(np.sort(values), of_all)
            if value is None or not value <= limit_s:
                return False
        return True

    def _members(self, served: ServedRequests) -> dict[str, Bools]:
        """Mark the requests of each class, by its name; of one kind of requests all are of ""."""
        names = [kind.name for kind in self.plan.classes]
        members = {name: served.classes == place for place, name in enumerate(names)}
        return members or {"": np.ones(len(served.rows), np.bool_)}


# --- the fleets beside it -------------------------------------------------------------------------


class _Forecast:
    """Decides as who knows the future: each window's replicas, asked for as long before it as they
    take to start."""

    def __init__(self, needed: Sequence[int], window_s: float, start_up_s: float) -> None:
        self._needed, self._window_s, self._start_up_s = needed, window_s, start_up_s

    def decide(self, now_s: float, count: int, ready: int, signals: FleetSignals) -> int:
        first = min(int(now_s / self._window_s), len(self._needed) - 1)
        last = min(int((now_s + self._start_up_s) / self._window_s + 1e-9), len(self._needed) - 1)
        return max(self._needed[first : last + 1])


@dataclass
class References:
    """Simulates fleets of fixed size, and the oracle, with a plan of one load."""

    plan: Plan
    fleet: Fleet
    judge: Judge
    gpus: int
    span_s: float
    start_up_s: float
    _served: dict[tuple[int, int], ServedRequests] = field(default_factory=dict)

    def __post_init__(self) -> None:
        times_s = _begins_s(self.plan)
        last_s = float(times_s[-1]) if len(times_s) else 0.0
        self.window_s = max(_LEAST_WINDOW_S, last_s / _WINDOWS)
        window = (times_s / self.window_s).astype(np.int64)
        self._windows = [
            np.flatnonzero(window == number) for number in range(int(window.max()) + 1)
        ]
        every = max(1, math.ceil(len(self.plan) / _MOST_REQUESTS))
        self._taken = [n for n, rows in enumerate(self._windows) if len(rows)][every // 2 :: every]
        self._whole = every == 1
        total = sum(len(self._windows[number]) for number in self._taken)
        self.sampled = total / max(1, len(self.plan))
        self._parts = {_WHOLE: self.plan}

    def static(self, replicas: int) -> FleetPoint:
        """Return the point of so many replicas, all the time."""
        paid_s = replicas * self.span_s
        return self.judge.point(self._serve(replicas), paid_s, self.gpus, self.span_s)

    def fewest(self, guess: int) -> FleetPoint | None:
        """Find the fewest replicas that hold the bounds, near a guess; None where not even one for
        each request would."""
        limit = min(_MOST_REPLICAS, len(self.plan))
        found = _fewest(lambda n: bool(self.judge.met(self._serve(n))), guess, limit)
        return None if found is None else self.static(found)

    def oracle(self) -> FleetPoint | None:
        """Return the point of who knows the future; None where a window's bounds hold with no
        number."""
        needed: dict[int, int] = {}
        guess = 1
        for number in self._taken:
            limit = min(_MOST_REPLICAS, len(self._windows[number]))
            found = _fewest(lambda n, at=number: self._holds(at, n), guess, limit)  # type: ignore[misc]
            if found is None:
                return None
            needed[number] = guess = found
        counts = self._between(needed)
        paid_s = self._paid_s(counts)
        if self._whole:
            scaler = Autoscaler(
                policy="fixed",
                replicas=counts[0],
                poll_s=min(5.0, self.window_s / 4),
                scrape_s=60.0,
                start_up_s=self.start_up_s,
                start_up_spread=0.0,
                drain_s=math.inf,
            )
            forecast = _Forecast(counts, self.window_s, self.start_up_s + scaler.poll_s)
            run, log = run_scaled(self.plan, 0, self.fleet, scaler, forecast)
            served, paid_s = requests_of(run, self.plan), log.paid_s
        else:
            served = _join([self._window(number, n) for number, n in needed.items()])
        return self.judge.point(served, paid_s, self.gpus, self.span_s)

    def _between(self, needed: Mapping[int, int]) -> list[int]:
        """Return the replicas of every window: of those that were not simulated, as of one with as
        much work."""
        tokens = 0.2 * self.plan.input_tokens + self.plan.output_tokens
        work = [float(tokens[rows].sum()) for rows in self._windows]
        measured = sorted((work[number], count) for number, count in needed.items())
        levels, counts = np.array(measured).T
        counts = np.maximum.accumulate(counts)
        return [
            needed.get(number, math.ceil(float(np.interp(work[number], levels, counts)) - 1e-9))
            if len(rows)
            else 1
            for number, rows in enumerate(self._windows)
        ]

    def _paid_s(self, counts: Sequence[int]) -> float:
        """Sum the seconds of the replicas, each from `start_up_s` before its window."""
        moments_s = np.arange(0.0, self.span_s, min(5.0, self.window_s / 4))
        forecast = _Forecast(counts, self.window_s, self.start_up_s)
        paid = [forecast.decide(at_s, 0, 0, FleetSignals({})) for at_s in moments_s.tolist()]
        return float(np.mean(paid)) * self.span_s

    def _holds(self, window: int, replicas: int) -> bool:
        return bool(self.judge.met(self._window(window, replicas)))

    def _serve(self, replicas: int) -> ServedRequests:
        """Simulate so many replicas all the time: with the whole plan, or with parts of it."""
        taken = [_WHOLE] if self._whole else self._taken
        return _join([self._window(number, replicas) for number in taken])

    def _window(self, window: int, replicas: int) -> ServedRequests:
        """Simulate a window alone, from rest, or the whole."""
        key = window, replicas
        if key not in self._served:
            if window not in self._parts:
                rows, start_s = self._windows[window], window * self.window_s
                rate = len(rows) / self.window_s
                self._parts[window] = take_requests(self.plan, rows, start_s, rate)
            plan, count = self._parts[window], self.fleet.replicas * replicas
            fleet = replace(self.fleet, replicas=count, workers=replicas)
            self._served[key] = requests_of(run_cell(plan, 0, fleet), plan)
        return self._served[key]


def _begins_s(plan: Plan) -> Floats:
    """Return when each request is meant to begin; of later turns of a session, when that is."""
    times_s = plan.intended_s
    stated = np.where(np.isnan(times_s), 0, np.arange(len(times_s)))
    return np.asarray(times_s[np.maximum.accumulate(stated)])


def _join(served: Sequence[ServedRequests]) -> ServedRequests:
    rows, classes = zip(*served, strict=True)
    return ServedRequests(np.concatenate(rows), np.concatenate(classes))


def _fewest(holds: Callable[[int], bool], guess: int, limit: int) -> int | None:
    """Find the least number from 1 to `limit` that holds, where more always do; None: none."""
    high, step = min(max(1, guess), limit), 1
    low = 0  # the largest that is known not to hold
    while not holds(high):
        if high == limit:
            return None
        low, high, step = high, min(limit, high + step), 2 * step
    step = 1
    while high - low > 1:
        middle = max(low + 1, high - step) if not low else (low + high) // 2
        if holds(middle):
            high, step = middle, 2 * step
        else:
            low = middle
    return high


# --- the run --------------------------------------------------------------------------------------


class ScaledRun(NamedTuple):
    """A simulation under an autoscaler, and what it came to."""

    run: CellRun
    log: FleetLog
    point: FleetPoint


@dataclass(frozen=True)
class Scaling:
    """Says what is simulated under an autoscaler. `gpus`: of a replica; `start_up_from`: see
    with_start_up()."""

    plan: Plan
    fleet: Fleet
    scaler: Autoscaler
    slo: Mapping[str, float]
    gpus: int
    start_up_from: str

    @property
    def judge(self) -> Judge:
        return Judge(self.plan, self.slo)

    def simulate(
        self, scaler: Autoscaler, start_s: float = 0.0, look: Look | None = None
    ) -> ScaledRun:
        """Simulate the plan under an autoscaler."""
        controller = Controller(scaler, capacity_of(self.fleet, scaler), start_s)
        run, log = run_scaled(self.plan, 0, self.fleet, scaler, controller, start_s, look)
        served = requests_of(run, self.plan)
        point = self.judge.point(served, log.paid_s, self.gpus, run.over_s - start_s)
        return ScaledRun(run, log, point)

    def references(self, span_s: float) -> References:
        """Return the fleets beside it, paid for over so many seconds."""
        start_up_s = self.scaler.start_up_s or 0.0
        return References(self.plan, self.fleet, self.judge, self.gpus, span_s, start_up_s)

    def figures(self, scaled: ScaledRun) -> FleetFigures:
        """Collect what a run under the autoscaler keeps, with the fleets beside it."""
        run, log, point = scaled
        start_s, scaler = run.start_s, self.scaler
        references = self.references(run.over_s - start_s)
        guess = max(1, round(point.replicas))
        bounded = bool(self.slo)
        every = max(1, len(log.readings) // _MOST_POINTS)
        return FleetFigures(
            autoscaler=scaler.name or scaler.policy,
            policy=scaler.policy,
            gpu_hours=point.gpu_hours,
            attainment=point.attainment,
            replicas=drop_repeats(
                [(change.at_s - start_s, change.ready) for change in log.changes]
            ),
            wanted=drop_repeats([(change.at_s - start_s, change.wanted) for change in log.changes]),
            paid=drop_repeats([(change.at_s - start_s, change.paid) for change in log.changes]),
            metric=scaler.metrics[0].metric if scaler.metrics else "in_flight",
            readings=[(at_s - start_s, value) for at_s, value in log.readings[::every]],
            attained=self._attained(run, references.window_s),
            start_up_s=scaler.start_up_s,
            start_up_from=self.start_up_from,
            starts=log.starts,
            held=log.held,
            cut=log.cut,
            point=point,
            static=references.fewest(guess) if bounded else None,
            mean=references.static(guess),
            oracle=references.oracle() if bounded else None,
            sampled=references.sampled,
        )

    def _attained(self, run: CellRun, window_s: float) -> list[tuple[float, float]]:
        """Return the attainment of what came in each window."""
        served = requests_of(run, self.plan)
        good = self.judge.good(served)
        if good is None:
            return []
        begun_s = arrays.origin_s(served.rows, self.plan.cells[0]) - run.start_s
        window = np.maximum(0, begun_s // window_s).astype(np.int64)
        sent, met = np.bincount(window), np.bincount(window, good)
        return [
            (float(number * window_s), float(met[number] / sent[number]))
            for number in np.flatnonzero(sent).tolist()
        ]
