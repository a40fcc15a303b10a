"""How fast should it be? The plan that `bench` would run, through a simulated engine, into the same run folder."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from loadstone.analyse.ranking import Ranked, judged, ranking
from loadstone.catalogue.deployment.alternatives import expand
from loadstone.catalogue.deployment.deployment import Deployment
from loadstone.catalogue.deployment.shorthand import parse_deployment
from loadstone.catalogue.engines import engine_title, not_simulated
from loadstone.core import run_folder
from loadstone.core.errors import DiskFullError, InputError
from loadstone.core.plan import Plan
from loadstone.core.record import CellInfo, RunInfo, Target
from loadstone.core.signals import Interrupted, Signals
from loadstone.core.summary import SCHEMA, FirstToken, Summary
from loadstone.predict.scheduler import policy_of
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.client import CHARACTERS_PER_TOKEN, TURNAROUND_S, whole_prompts
from loadstone.predict.simulator.fleet import Fleet, fleet_of, fleet_with, longest_request
from loadstone.predict.simulator.interval import CellIntervals, answer_s, intervals
from loadstone.predict.simulator.run import Counters
from loadstone.predict.simulator.table import tables
from loadstone.predict.step_time import StepModel
from loadstone.predict.step_time.profile import engine_measured, remaining, unmeasured, vendor_measured
from loadstone.predict.step_time.step import first_token_s, parts_of
from loadstone.runs import execution
from loadstone.workload.options import SimulateOptions
from loadstone.workload.planning import Planner

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

DRAWS = 24
_PAUSE_S = 0.1
"""Between cells."""
_EVENT_BYTES = 12
"""Of records, for each token: its time and its number, before they are compressed."""


def simulate(options: SimulateOptions) -> dict[str, Any]:
    """Simulate a deployment; returns the summary (the `--json` document), whose `run_dir` holds the run. Of several,
    as `llama-3.1-70b@4xh200/tp={2,4}`, their summaries as `runs`, and `ranking`, the best first (analyse.ranking).

    Raises InputError, one line, where it cannot be done, of several where none can, and Interrupted, after saving the
    cells that were done, when a signal ended it.
    """
    deployments = list(dict.fromkeys(expand(options.deployment)))
    if len(deployments) == 1:
        return _simulate(dataclasses.replace(options, deployment=deployments[0]))
    document: dict[str, Any] = {"schema": SCHEMA, "runs": [], "ranking": []}
    rows: list[Ranked] = []
    for text in deployments:
        try:
            run = _simulate(dataclasses.replace(options, deployment=text))
        except DiskFullError:
            raise
        except InputError as error:
            rows.append(Ranked(deployment=text, why=str(error)))
        except Interrupted as interrupted:
            document["runs"].append(interrupted.document)
            document["ranking"] = msgspec.to_builtins(ranking(rows))
            raise Interrupted(interrupted.folder, document) from None
        else:
            document["runs"].append(run)
            rows.append(judged(text, parse_deployment(text).gpus, Summary.of(run)))
    if not document["runs"]:
        raise InputError(rows[0].why)
    return document | {"ranking": msgspec.to_builtins(ranking(rows))}


def _simulate(options: SimulateOptions) -> dict[str, Any]:
    """As simulate(), of one deployment."""
    draws = DRAWS if options.draws is None else options.draws
    deployment = parse_deployment(options.deployment)
    fleet = fleet_of(deployment, acceptance=options.acceptance, profile=options.profile, offline=options.offline)
    longest, limit = longest_request(deployment, fleet.policy)
    # What ends a measured cell early does nothing here: a simulation takes no hour, and draws no errors.
    planner = Planner(dataclasses.replace(options, stop_when=None, min_duration_s=None))
    plan = planner.plan(longest if options.trace is not None else None)
    if options.offline:
        if not all(load.is_burst for load in plan.cells):
            raise InputError("--offline: a batch is there whole; give its size with --rate inf --requests 32,64")
        plan.workload["mode"] = "offline"
    bounds = execution.bounds_of(options)
    lengths = check(plan, longest, limit)
    fleet = fleet_with(deployment, policy_of(deployment, acceptance=options.acceptance, lengths=lengths), fleet.model)
    settings = _settings(deployment, fleet, options)
    if planner.chooses_length:
        settings["expected_e2e_s"] = [answer_s(run_cell(plan, cell, fleet)) for cell in range(len(plan.cells))]
        plan = planner.plan(e2e_s=settings["expected_e2e_s"])
    if isinstance(fleet.model, StepModel):
        settings["first_token"] = msgspec.to_builtins(_first_token(fleet.model, fleet, plan))
    if plan.prompts:
        settings["characters_per_token"] = CHARACTERS_PER_TOKEN
    model, gpus = deployment.model.name.rsplit("/", 1)[-1], f"{deployment.gpus}x{deployment.gpu.name}"
    info = execution.describe(
        options,
        plan,
        _target(deployment, longest, options),
        bounds,
        source="simulated",
        name=("sim", deployment.engine, model, gpus),
        salt=None,
        settings=settings,
    )
    folder = run_folder.create(options.out, info.run_id)
    info.run_id = folder.name
    execution.check_room(folder, plan, _EVENT_BYTES)

    def run() -> None:
        basis = settings.get("profile", "a model without a profile")
        run_folder.log(folder, f"{deployment.name}, by {basis}: plan {plan.plan_id[:6]} seed {plan.seed}")
        errors = uncertainty(plan, fleet, draws, bounds)
        info.settings["intervals"] = [each.intervals for each in errors]
        if bounds:
            info.settings["slo_factors"] = [each.factors for each in errors]
        signals.on_first = lambda: None
        counters = Counters(deployment.model.name, fleet.replicas, fleet.policy.kv_tokens)
        run_folder.write_records(folder, _cells(plan, fleet, options.grace_s, folder, info, counters, signals))
        run_folder.write_server(folder, counters.table())
        _release()

    with Signals() as signals:
        return execution.execute(folder, info, plan, signals, run)


def check(plan: Plan, longest: int, what: str) -> NDArray[np.int64]:
    """Refuse before the run what the engine would refuse in it; for `longest` and `what` see longest_request(). The
    tokens of all requests, prompt and answer together. Raises InputError.
    """
    import numpy as np

    lengths = []
    for cell in range(len(plan.cells)):
        rows = plan.rows(cell)
        prompts = whole_prompts(plan, cell)
        both = prompts + plan.output_tokens[rows.start : rows.stop]
        row = int(both.argmax())
        if both[row] > longest:
            raise InputError(
                f"{prompts[row]} tokens in and {both[row] - prompts[row]} out: together beyond {what} of {longest} "
                "tokens; ask for less"
            )
        lengths.append(both)
    return np.concatenate(lengths)


def _cells(
    plan: Plan, fleet: Fleet, grace_s: float, folder: Path, info: RunInfo, counters: Counters, signals: Signals
) -> Iterator[pa.Table]:
    """The tables of all cells, one cell after another, until a signal; `info` gets when they ran."""
    start_s = _PAUSE_S
    for cell, load in enumerate(plan.cells):
        if signals.count:
            return
        begun_s = time.monotonic()
        counters.begin(start_s)
        run = run_cell(plan, cell, fleet, start_s, grace_s, counters.look)
        counters.look(run.over_s, run.states())
        yield from tables(plan, cell, run, fleet.policy)
        info.cells[cell] = CellInfo(load=load, start_s=start_s, issue_end_s=run.issue_end_s, end_s=run.over_s)
        took_s = time.monotonic() - begun_s
        run_folder.log(folder, f"{load.label}: {run.over_s - start_s:.1f} s, simulated in {took_s:.1f} s")
        start_s = run.over_s + _PAUSE_S


def uncertainty(plan: Plan, fleet: Fleet, draws: int, slo: Collection[str] = ()) -> list[CellIntervals]:
    """By cell, how far off each metric may be; see simulator.interval. Nothing where the model knows no spread."""
    model = fleet.model
    if not isinstance(model, StepModel) or draws < 1:
        return [CellIntervals({}, {}) for _ in plan.cells]
    drawn = model.draws(draws, plan.seed)
    return [intervals(plan, cell, fleet, drawn, remaining(model.profile), slo) for cell in range(len(plan.cells))]


def _release() -> None:
    """Have the C library return what was freed: a third of a gigabyte after a million requests, which glibc keeps."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _target(deployment: Deployment, longest: int, options: SimulateOptions) -> Target:
    return Target(
        url=deployment.name,
        urls=[deployment.name],
        endpoint="offline" if options.offline else "completions",
        model=options.model or deployment.model.name,
        engine=engine_title(deployment.engine),
        engine_version=deployment.engine_version,
        prompt_kind="token ids",
        max_model_tokens=longest,
    )


def _basis(deployment: Deployment, fleet: Fleet, options: SimulateOptions) -> dict[str, Any]:
    """What the prediction stands on, for verdict.prediction_findings()."""
    basis: dict[str, Any] = {"assumed": list(deployment.model.assumed)}
    towers = deployment.model.vision_parameters or any("tower" in each for each in deployment.model.assumed)
    basis["not_read"] = "images or sound" if towers else ""
    basis["not_simulated"] = not_simulated(deployment.engine, deployment.arguments)
    if isinstance(fleet.model, StepModel):
        profile = fleet.model.profile
        basis["profile"] = profile.name
        basis["unmeasured"] = unmeasured(deployment, profile)
        basis["vendor_unmeasured"] = not vendor_measured(deployment)
        basis["engine_unmeasured"] = not engine_measured(deployment)
    if deployment.nodes_crossed > 1:
        basis["nodes_crossed"], basis["own_profile"] = deployment.nodes_crossed, options.profile is not None
    if fleet.policy.speculative is not None:
        named, layers = deployment.draft, deployment.model.draft_layers
        basis["draft"] = named.model.name if named else "the model's own layers" if layers else None
        if options.acceptance is None:
            basis["assumed_acceptance"] = fleet.policy.speculative.acceptance
    return basis


def _first_token(model: StepModel, fleet: Fleet, plan: Plan) -> FirstToken:
    """Of the first measured prompt."""
    tokens = max(1, int(whole_prompts(plan, 0)[plan.warmup_count(0)]))
    # Where prompts are not cut, one takes as many as it has.
    step_tokens = fleet.policy.max_batched_tokens if fleet.policy.chunked else tokens
    return FirstToken(tokens, dict(parts_of(model, lambda each: first_token_s(each, tokens, step_tokens))))


def _settings(deployment: Deployment, fleet: Fleet, options: SimulateOptions) -> dict[str, Any]:
    """RunInfo.settings that only a simulated run has and that do not depend on its plan."""
    settings: dict[str, Any] = {
        "deployment": deployment.to_settings(),
        "policy": msgspec.to_builtins(fleet.policy),
        "schedulers": fleet.replicas,
        "sampling": {"temperature": options.temperature, "top_p": options.top_p},
        "turnaround_s": TURNAROUND_S,
        "prefix_cache": fleet.policy.prefix_cache,
        "basis": _basis(deployment, fleet, options),
    }
    if isinstance(fleet.model, StepModel):
        settings["profile"] = fleet.model.profile.name
    return settings
