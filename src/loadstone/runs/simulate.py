"""How fast should it be? The plan that `bench` would run, through a simulated engine, into the same run folder."""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadstone.catalogue.deployment.deployment import Deployment
from loadstone.catalogue.deployment.shorthand import parse_deployment
from loadstone.core import CellInfo, Plan, RunInfo, Target, host, run_folder
from loadstone.core.errors import InputError
from loadstone.core.signals import Interrupted, Signals
from loadstone.core.version import __version__
from loadstone.analyse.other_tools import DIALECTS
from loadstone.predict.scheduler import policy_of
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.run import Counters
from loadstone.predict.simulator.fleet import Fleet, fleet_of, fleet_with, longest_request
from loadstone.predict.simulator.interval import Off, answer_s, intervals
from loadstone.predict.simulator.client import CHARACTERS_PER_TOKEN, TURNAROUND_S, whole_prompts
from loadstone.predict.simulator.table import tables
from loadstone.predict.step_time import StepModel
from loadstone.predict.step_time.step import FirstToken, first_token_s, parts_of
from loadstone.predict.step_time.profile import engine_measured, remaining, unmeasured, vendor_measured
from loadstone.analyse.summary import conclude, parse_slo
from loadstone.workload.options import Options
from loadstone.workload.planning import by_default, plan_of

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

DRAWS = 24
_MOST_DRAWS = 1000
_PAUSE_S = 0.1
"""Between cells."""
_ENGINE_NAMES = {"vllm": "vLLM", "sglang": "SGLang", "tensorrt-llm": "TensorRT-LLM"}


def simulate(
    deployment: str,
    options: Options,
    *,
    acceptance: float | None = None,
    draws: int | None = None,
    profile: str | None = None,
) -> dict[str, Any]:
    """Simulate a deployment; returns the summary (the `--json` document), whose `run_dir` holds the run.

    `acceptance`: of a guessed token, where the deployment decodes speculatively; None: 0.7. `draws`: of the
    coefficients, for the intervals; 0: none; None: 24. `profile`: one that `calibrate` made; None: the shipped one.
    Raises InputError, one line, where it cannot be done, and Interrupted, after saving the cells that were done, when
    a signal ended it.
    """
    draws = DRAWS if draws is None else draws
    if not 0 <= draws <= _MOST_DRAWS:
        raise InputError(f"--draws {draws}: must be 0 (no intervals) to {_MOST_DRAWS:,}")
    deployed = parse_deployment(deployment)
    fleet = fleet_of(deployed, acceptance=acceptance, profile=profile)
    longest, what = longest_request(deployed, fleet.policy)
    plan = plan_of(options, longest if options.trace is not None else None)
    slo = parse_slo(options.slo) if options.slo is not None else {}
    if options.dialect is not None and options.dialect not in DIALECTS:
        raise InputError(f"--dialect {options.dialect}: unknown; choose one of {', '.join(DIALECTS)}")
    lengths = check(plan, longest, what)
    fleet = fleet_with(deployed, policy_of(deployed, acceptance=acceptance, lengths=lengths), fleet.model)
    expected_s = (
        [answer_s(run_cell(plan, cell, fleet)) for cell in range(len(plan.cells))] if by_default(options) else []
    )
    if expected_s:
        plan = plan_of(options, e2e_s=expected_s)
    info = _run_info(deployed, fleet, longest, options, plan, slo)
    info.settings["basis"] = _basis(deployed, fleet, acceptance, profile)
    if expected_s:
        info.settings["expected_e2e_s"] = expected_s
    folder = run_folder.create(options.out, info.run_id)
    info.run_id = folder.name
    with run_folder.own(folder):
        run_folder.write_info(folder, info)
        run_folder.write_plan(folder / "plan.parquet", plan)
        by = info.settings.get("profile", "a model without a profile")
        run_folder.log(folder, f"{deployed.name}, by {by}: plan {plan.plan_id[:6]} seed {plan.seed}")
        counters = Counters(deployed.model.name, fleet.replicas, fleet.policy.kv_tokens)
        try:
            with Signals() as signals:
                off = uncertainty(plan, fleet, draws, slo)
                info.settings["intervals"] = [each.intervals for each in off]
                if slo:
                    info.settings["slo_factors"] = [each.factors for each in off]
                signals.on_first = lambda: None
                run_folder.write_records(
                    folder, _cells(plan, fleet, options.grace_s, folder, info, counters, signals)
                )
            run_folder.write_server(folder, counters.table())
        except (KeyboardInterrupt, Exception) as error:
            run_folder.write_failure(folder, info, error, "simulated")
            raise
        _release()
        info.status = "done"
        if signals.count:
            info.status, info.error = "interrupted", "interrupted by a signal"
        document = conclude(folder, info, plan)
        if signals.count:
            run_folder.log(folder, str(info.error))
            raise Interrupted(folder, document)
        return document


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


def uncertainty(plan: Plan, fleet: Fleet, draws: int, slo: Collection[str] = ()) -> list[Off]:
    """By cell, how far off each metric may be; see simulator.interval. Nothing where the model knows no spread."""
    model = fleet.model
    if not isinstance(model, StepModel) or draws < 1:
        return [Off({}, {}) for _ in plan.cells]
    drawn = model.draws(draws, plan.seed)
    return [intervals(plan, cell, fleet, drawn, remaining(model.profile), slo) for cell in range(len(plan.cells))]


def _release() -> None:
    """Have the C library return what was freed: a third of a gigabyte after a million requests, which glibc keeps."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _run_info(
    deployment: Deployment, fleet: Fleet, longest: int, options: Options, plan: Plan, slo: dict[str, float]
) -> RunInfo:
    now = datetime.now(UTC)
    model, gpus = deployment.model.name.rsplit("/", 1)[-1], f"{deployment.gpus}x{deployment.gpu.name}"
    return RunInfo(
        run_id=run_folder.run_id(now, "sim", deployment.engine, model, gpus),
        source="simulated",
        created=now.isoformat(timespec="seconds"),
        command=list(options.command),
        loadstone=__version__,
        host=host.describe(),
        target=Target(
            url=deployment.name,
            urls=[deployment.name],
            endpoint="completions",
            model=options.model or deployment.model.name,
            engine=_ENGINE_NAMES.get(deployment.engine, deployment.engine),
            engine_version=deployment.engine_version,
            prompt_kind="token ids",
            max_model_tokens=longest,
        ),
        plan_id=plan.plan_id,
        seed=plan.seed,
        salt=None,
        slo=slo,
        settings=_settings(deployment, fleet, options, plan),
        cells=[CellInfo(load=load) for load in plan.cells],
    )


def _basis(deployment: Deployment, fleet: Fleet, acceptance: float | None, own: str | None) -> dict[str, Any]:
    """What the prediction stands on, for verdict.prediction_findings(). `own`: the user's profile."""
    basis: dict[str, Any] = {"assumed": list(deployment.model.assumed)}
    if isinstance(fleet.model, StepModel):
        profile = fleet.model.profile
        basis["profile"] = profile.name
        basis["unmeasured"] = unmeasured(deployment, profile)
        basis["vendor_unmeasured"] = not vendor_measured(deployment)
        basis["engine_unmeasured"] = not engine_measured(deployment)
    if deployment.nodes_crossed > 1:
        basis["nodes_crossed"], basis["own_profile"] = deployment.nodes_crossed, own is not None
    if fleet.policy.speculative is not None:
        named, layers = deployment.draft, deployment.model.draft_layers
        basis["draft"] = named.model.name if named else "the model's own layers" if layers else None
        if acceptance is None:
            basis["assumed_acceptance"] = fleet.policy.speculative.acceptance
    return basis


def _first_token(model: StepModel, fleet: Fleet, plan: Plan) -> FirstToken:
    """Of the first measured prompt."""
    tokens = max(1, int(whole_prompts(plan, 0)[plan.warmup_count(0)]))
    # Where prompts are not cut, one takes as many as it has.
    step_tokens = fleet.policy.max_batched_tokens if fleet.policy.chunked else tokens
    return FirstToken(tokens, parts_of(model, lambda each: first_token_s(each, tokens, step_tokens)))


def _settings(deployment: Deployment, fleet: Fleet, options: Options, plan: Plan) -> dict[str, Any]:
    import msgspec

    model = fleet.model
    settings: dict[str, Any] = {
        "deployment": deployment.papers(),
        "label": options.label,
        "policy": msgspec.to_builtins(fleet.policy),
        "schedulers": fleet.replicas,
        "workload": plan.workload,
        "sampling": {"temperature": options.temperature, "top_p": options.top_p},
        "dialect": options.dialect,
        "grace_s": options.grace_s,
        "turnaround_s": TURNAROUND_S,
        "prefix_cache": fleet.policy.prefix_cache,
    }
    if isinstance(model, StepModel):
        settings["profile"] = model.profile.name
        settings["first_token"] = msgspec.to_builtins(_first_token(model, fleet, plan))
    if plan.prompts:
        settings["characters_per_token"] = CHARACTERS_PER_TOKEN
    return settings
