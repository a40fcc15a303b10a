"""Estimates what a study will take, before anything of it starts: requests, hours, dollars, and
what cannot be.

In closed form, so that thousands of cells take a second: nothing is simulated. Of a scheduler whose
batch holds B requests of P prompt tokens and O output tokens each, of C context tokens in the mean,

    E2E = O/t · step(B, B·C) + B · prompt(P)

where t are the tokens of a step (more than one with speculative decoding), and prompt(P) is what a
prompt adds to the steps of the others: while a request is served, each of the others' places takes
in one prompt. B is the load's share of the scheduler, as far as its KV cache and its limits hold
it. That each step is a mean one is what this leaves out: `study run --simulate` does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from loadstone.analyse.compare.price import Prices, key
from loadstone.catalogue.deployment.deployment import Deployment
from loadstone.core.errors import InputError
from loadstone.core.groups import by_key
from loadstone.core.plan import Plan
from loadstone.predict.simulator.client import whole_prompts
from loadstone.predict.simulator.fleet import fleet_of, longest_request
from loadstone.predict.simulator.pictures import known_times
from loadstone.predict.step_time.pictures import mean_picture_work, picture_shares
from loadstone.predict.step_time.step import StepModel
from loadstone.runs.find_max import LONGEST_S
from loadstone.runs.pictures import count_visual_tokens
from loadstone.runs.simulate import check
from loadstone.studies.file import ACCEPTANCE, StudyFile
from loadstone.studies.plan import PlannedLaunch
from loadstone.studies.status import deployment_name
from loadstone.workload.option_fields import options_of
from loadstone.workload.options import Options, pooling_task
from loadstone.workload.planning import Planner

_ROUNDS = 12
"""Of Little's law, for the requests that an open loop has under way."""
_SAME = 0.01


class CellEstimate(msgspec.Struct, frozen=True):
    """One cell of a deployment, in each repeat.

    requests  that are sent, warm-up included; None: as many as its time allows, which cannot be
              predicted
    seconds   from the first request to the last answer, of a search at most; None: cannot be
              predicted
    e2e_s     of a request on average, without waiting for a place
    users     requests under way at a time, as the load asks for them
    at_once   of these, how many the engine serves; the others wait
    problem   why it cannot be measured, or not predicted
    """

    workload: str
    load: str
    requests: int | None
    seconds: float | None = None
    e2e_s: float | None = None
    users: float | None = None
    at_once: float | None = None
    problem: str = ""


class DeploymentEstimate(msgspec.Struct, frozen=True):
    """One deployment of a study. Totals are of all its repeats, of what can be predicted; without
    the starts of the engine.

    engine  its name in the study
    usd     None: no price is known
    """

    engine: str
    deployment: str
    launches: int
    repeats: int
    gpus: int | None
    requests: int
    seconds: float
    gpu_hours: float
    usd: float | None
    cells: list[CellEstimate]


class StudyEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `loadstone study show --json`; sums as in DeploymentEstimate.

    unpredicted  cells, of all repeats, that are in no sum of seconds
    """

    schema: int = 1
    study: str
    launches: int
    cells: int
    requests: int
    seconds: float
    gpu_hours: float
    usd: float | None
    unpredicted: int
    deployments: list[DeploymentEstimate]


class _Asked(NamedTuple):
    """A cell's plan, and its requests on average. Tokens of a prompt: all, and those that no
    earlier request brought."""

    plan: Plan
    planner: Planner
    prompt_tokens: float
    new_tokens: float
    output_tokens: float
    think_s: float


class _Served(NamedTuple):
    """A load as it is served: requests, seconds, e2e_s, users, at_once as in CellEstimate."""

    requests: int
    seconds: float
    e2e_s: float
    users: float
    at_once: float


def estimate(read: StudyFile, launches: Sequence[PlannedLaunch], prices: Prices) -> StudyEstimate:
    """Estimate what a study takes. Raises InputError where a file that it names cannot be read."""
    plans: dict[bytes, _Asked] = {}
    by_deployment = by_key(
        (f"{launch.engine} {deployment_name(launch)}", launch) for launch in launches
    )
    deployments = [
        _deployment(read, launches_of_one, plans, prices)
        for launches_of_one in by_deployment.values()
    ]
    cells = [(cell, deployment.repeats) for deployment in deployments for cell in deployment.cells]
    dollars = [deployment.usd for deployment in deployments if deployment.usd is not None]
    return StudyEstimate(
        study=read.study.study,
        launches=len(launches),
        cells=sum(len(launch.cells) for launch in launches),
        requests=sum(deployment.requests for deployment in deployments),
        seconds=sum(deployment.seconds for deployment in deployments),
        gpu_hours=sum(deployment.gpu_hours for deployment in deployments),
        usd=sum(dollars) if len(dollars) == len(deployments) else None,
        unpredicted=sum(repeats for cell, repeats in cells if cell.seconds is None),
        deployments=deployments,
    )


def _deployment(
    read: StudyFile,
    launches: list[PlannedLaunch],
    requests_by_name: dict[bytes, _Asked],
    prices: Prices,
) -> DeploymentEstimate:
    launch = launches[0]
    engine, deployment, problem = None, launch.parsed, ""
    if deployment is None:
        problem = "no layout or model by which its time could be predicted"
    else:
        try:
            engine = _Engine(deployment)
        except InputError as error:
            problem = str(error)
    cells = []
    for cell in launch.cells:
        if cell.repeat != launch.repeat:
            continue
        name = msgspec.json.encode(cell.options)
        if name not in requests_by_name:
            options = {name.replace("-", "_"): value for name, value in cell.options.items()}
            options.pop(ACCEPTANCE, None)
            planner = Planner(options_of(options, Options))
            requests_by_name[name] = _asked(planner.plan(), planner)
        given = requests_by_name[name].planner.options
        longest_s = given.early_end.max_duration_s if isinstance(given, Options) else None
        search_s = None if given.load.find_max is None else longest_s or LONGEST_S
        most_s = read.study.limits.cell
        cells.append(
            _cell(
                cell.workload, cell.load, requests_by_name[name], engine, problem, most_s, search_s
            )
        )
    repeats = read.study.repeats
    seconds = repeats * sum(cell.seconds or 0.0 for cell in cells)
    gpus = deployment.gpus if deployment is not None else None
    gpu_hours = (gpus or 0) * seconds / 3600
    price = prices.get(key(deployment.decoder.gpu.name)) if deployment is not None else None
    return DeploymentEstimate(
        engine=launch.engine,
        deployment=deployment_name(launch),
        launches=len(launches),
        repeats=repeats,
        gpus=gpus,
        requests=repeats * sum(cell.requests or 0 for cell in cells),
        seconds=seconds,
        gpu_hours=gpu_hours,
        usd=None if price is None else price * gpu_hours,
        cells=cells,
    )


def _cell(
    workload: str,
    load: str,
    request: _Asked,
    engine: _Engine | None,
    problem: str,
    most_s: float,
    search_s: float | None,
) -> CellEstimate:
    """Estimate a cell. `search_s`: seconds that a search may take, at most."""
    if engine is not None:
        try:
            served = engine.cell(request)
            if search_s is not None:
                return CellEstimate(workload, load, None, min(search_s, most_s))
            return CellEstimate(
                workload, load, *served._replace(seconds=min(served.seconds, most_s))
            )
        except InputError as error:
            problem = str(error)
    if search_s is not None:
        return CellEstimate(
            workload, load, None, min(search_s, most_s) if engine is None else None, problem=problem
        )
    counted = request.plan.cells[0].duration_s is None and not request.planner.chooses_length
    return CellEstimate(workload, load, len(request.plan) if counted else None, problem=problem)


def _asked(plan: Plan, planner: Planner) -> _Asked:
    prompts = np.concatenate([whole_prompts(plan, cell) for cell in range(len(plan.cells))])
    new = np.where((plan.input_tokens >= 0) & (plan.turn > 0), plan.input_tokens, prompts)
    new = np.where(plan.turn > 0, new, new - plan.prefix_tokens)
    output = np.zeros(len(plan)) if plan.inputs is not None else plan.output_tokens
    means = (float(column.mean()) for column in (prompts, np.maximum(new, 1), output, plan.think_s))
    return _Asked(plan, planner, *means)


def remarks(read: StudyFile, found: StudyEstimate) -> Iterator[str]:
    """Yield lines on what the sums leave out, on what will not fit and what waits."""
    limits = read.study.limits
    yield (
        f"Before that, each of {found.launches:,} launches takes its time to start, at most"
        f" {limits.ready:g} s."
    )
    if found.unpredicted:
        yield (
            f"{found.unpredicted:,} of {found.cells:,} loads are in no sum of hours: nothing"
            " predicts them."
        )
    if found.seconds > limits.total:
        yield (
            f"One run ends after {limits.total / 3600:.2f} hours (limits: total); run it again to"
            " go on."
        )
    for deployment in found.deployments:
        for problem, cells in by_key(
            (cell.problem, cell) for cell in deployment.cells if cell.problem
        ).items():
            which = (
                ""
                if len(cells) == len(deployment.cells)
                else f", {cells[0].workload}, {cells[0].load}"
            )
            further = f" and {len(cells) - 1} more loads" if which and len(cells) > 1 else ""
            yield f"{deployment.deployment}{which}{further}: {problem}"
        waiting = [
            (cell.users, cell.at_once, cell)
            for cell in deployment.cells
            if cell.users and cell.at_once
        ]
        waiting = [
            (users, at_once, cell) for users, at_once, cell in waiting if at_once < 0.99 * users
        ]
        if waiting:
            users, at_once, cell = max(waiting, key=lambda one: one[0])
            which = f"{cell.workload}, {cell.load}" + (
                f" and {len(waiting) - 1} more loads" if waiting[1:] else ""
            )
            served = f"{at_once:.0f} of {users:.0f} requests are served at once"
            yield f"{deployment.deployment}: {served} in {which}; others wait"


class _Engine:
    """Serves a deployment on average. Raises InputError where it does not fit, or nothing predicts
    it."""

    def __init__(self, deployment: Deployment) -> None:
        fleet = fleet_of(deployment)
        if not isinstance(fleet.model, StepModel):
            raise InputError(f"{deployment.name}: nothing predicts its steps")
        self._deployment = deployment
        self._policy, self._model, self._replicas = fleet.policy, fleet.model, fleet.replicas
        self._longest = longest_request(deployment, fleet.policy)

    def cell(self, request: _Asked) -> _Served:
        """Serve a cell. Raises InputError where a request is longer than the engine takes, or of a
        kind that the model does not answer."""
        planner = request.planner
        self._deployment.asked_for(pooling_task(planner.options))
        request = self._count_pictures(request)
        check(request.plan, *self._longest)
        if planner.chooses_length:
            times_s = [self._cell(request).e2e_s] * len(request.plan.cells)
            request = self._count_pictures(_asked(planner.plan(e2e_s=times_s), planner))
        return self._cell(request)

    def _count_pictures(self, request: _Asked) -> _Asked:
        """Return the requests with the tokens of their pictures. Raises InputError."""
        if request.plan.pictures is None:
            return request
        known_times(self._model.pictures)
        plan = count_visual_tokens(request.plan, self._deployment, None)
        return _asked(plan, request.planner)

    def _cell(self, request: _Asked) -> _Served:
        """Serve all loads of a plan: a load that is left out is several."""
        loads = [self._load(request, cell) for cell in range(len(request.plan.cells))]
        largest = max(loads, key=lambda served: served.users)
        return largest._replace(
            requests=sum(served.requests for served in loads),
            seconds=sum(served.seconds for served in loads),
        )

    def _load(self, request: _Asked, cell: int) -> _Served:
        plan = request.plan
        load, count, warm = plan.cells[cell], len(plan.rows(cell)), plan.warmup_count(cell)
        if load.is_open:
            intended_s = plan.intended_s[plan.span(cell)]
            ends = intended_s[~np.isnan(intended_s)]
            issued_s = float(ends.max()) if len(ends) else 0.0
            limit, rate = min(count, load.max_concurrency or count), count / max(issued_s, 1e-9)
            users, previous = 1.0, 0.0
            for _ in range(_ROUNDS):
                e2e_s, at_once = self._e2e_s(users, request)
                if abs(users - previous) < _SAME * users:
                    break
                previous, users = users, max(1.0, min(limit, rate * e2e_s))
            seconds = max(issued_s, count * e2e_s / at_once) + e2e_s
            return _Served(count, seconds, e2e_s, users, at_once)
        users = min(load.value, load.max_concurrency or math.inf)
        e2e_s, at_once = self._e2e_s(users, request)
        each_s = max(e2e_s + request.think_s, users * e2e_s / at_once) / users
        if load.duration_s is not None:
            count = warm + max(1, math.floor(load.duration_s / each_s))
            return _Served(count, load.duration_s + warm * each_s + e2e_s, e2e_s, users, at_once)
        if load.is_burst:  # from rest: its warm-up is over before it
            warm_s = (
                self._e2e_s(min(users, warm), request)[0] * max(1.0, warm / users) if warm else 0.0
            )
            return _Served(
                count, warm_s + max((count - warm) * each_s, e2e_s), e2e_s, users, at_once
            )
        return _Served(count, max(count * each_s, e2e_s), e2e_s, users, at_once)

    def _e2e_s(self, users: float, request: _Asked) -> tuple[float, float]:
        """Return the seconds of a request that has a slot, and how many of `users` have one."""
        policy, model = self._policy, self._model
        prompt, output = request.prompt_tokens, request.output_tokens
        request_tokens = policy.reserved_tokens or prompt + output
        seqs = max(
            1.0, min(users / self._replicas, policy.max_seqs, policy.kv_tokens / request_tokens)
        )
        batch = max(1, round(seqs / policy.pipeline))
        context = batch * (prompt + output / 2)
        decode_s = model.step_s(batch, context, ())
        # Where vectors or scores are asked for, nothing is decoded beside a prompt.
        beside = (batch, context, decode_s) if output else (0, 0.0, 0.0)
        per_step = policy.tokens_per_step
        new = max(1, round(request.new_tokens if policy.prefix_cache else prompt))
        prompt_s = self._prompt_s(new, round(prompt) - new, *beside)
        shares = picture_shares(request.plan)
        work = mean_picture_work(model.pictures, shares, prefix_cache=policy.prefix_cache)
        e2e_s = output / per_step * decode_s + batch * (prompt_s + work.encode_s) + work.prepare_s
        e2e_s += model.request_s + model.request_token_s * prompt + model.stream_s
        return float(e2e_s), min(users, seqs * self._replicas)

    def _prompt_s(
        self, new: int, cached: int, batch: int, context: float, decode_s: float
    ) -> float:
        """Return the seconds that one prompt adds to the time of a batch."""
        policy, model = self._policy, self._model
        mixed = policy.order == "mixed"
        budget = policy.max_batched_tokens - (batch * policy.decode_tokens if mixed else 0)
        budget = max(budget, 1) if policy.chunked else new
        # Prompts that go alone and find others waiting share a step with them.
        together = 1 if mixed else max(1, min(batch, policy.max_batched_tokens // new))
        seconds = 0.0
        while new > 0:
            tokens = min(new, budget)
            chunks = [(tokens, cached)] * together
            if mixed:
                seconds += max(0.0, model.step_s(batch, context, chunks) - decode_s)
            else:
                seconds += model.step_s(0, 0.0, chunks) / together
            new, cached = new - tokens, cached + tokens
        return seconds
