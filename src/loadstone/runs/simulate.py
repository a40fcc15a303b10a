"""A simulated run: the plan that `bench` would run goes through a simulated engine, into the same
kind of folder."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, cast

import msgspec
import numpy as np
from msgspec.structs import asdict

from loadstone.analyse.ranking import judged, ranking
from loadstone.catalogue.deployment.alternatives import expand
from loadstone.catalogue.deployment.deployment import Deployment
from loadstone.catalogue.deployment.shorthand import parse_deployment
from loadstone.catalogue.engines import engine_title, not_simulated
from loadstone.core import run_folder
from loadstone.core.errors import DiskFullError, InputError
from loadstone.core.plan import Plan
from loadstone.core.ranked_runs import Ranked, RankedRuns
from loadstone.core.record import CellInfo, Target
from loadstone.core.settings import FirstToken, PredictionBasis, RunSettings
from loadstone.core.signals import Interrupted, Signals
from loadstone.core.summary import SCHEMA, Summary
from loadstone.core.vectors import Ints64
from loadstone.engines import rules_of
from loadstone.predict.autoscaler.file import read_autoscaler
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.client import TURNAROUND_S, whole_prompts
from loadstone.predict.simulator.engine import picture_times_of
from loadstone.predict.simulator.fleet import Fleet, fleet_for, fleet_of, longest_request
from loadstone.predict.simulator.flow_control import FlowControl
from loadstone.predict.simulator.latencies import answer_s
from loadstone.predict.simulator.pool_figures import describe_pools
from loadstone.predict.simulator.run import Counters
from loadstone.predict.simulator.table import tables
from loadstone.predict.simulator.uncertainty import cell_uncertainties, find_uncovered_load
from loadstone.predict.step_time import StepModel
from loadstone.predict.step_time.exchange import guesses_network
from loadstone.predict.step_time.profile import (
    engine_measured,
    is_own,
    uncovered_classes,
    unmeasured,
    vendor_measured,
)
from loadstone.predict.step_time.step import first_token_s, parts_of
from loadstone.runs import execution
from loadstone.runs.autoscale import Scaling, check_scaled, with_start_up
from loadstone.runs.pictures import count_visual_tokens, needed_endpoint
from loadstone.workload.option_fields import change
from loadstone.workload.options import SimulateOptions, SimulatorOptions, pooling_task
from loadstone.workload.planning import Planner
from loadstone.workload.prompts import CHARACTERS_PER_TOKEN

if TYPE_CHECKING:
    import pyarrow as pa

DRAWS = 24
_PAUSE_S = 0.1
"""Between cells."""
_EVENT_BYTES = 12
"""Of records, for each token: its time and its number, before they are compressed."""


def simulate_alternatives(options: SimulateOptions) -> Summary | RankedRuns:
    """Simulate a deployment as simulate() does, or several, such as
    `llama-3.1-70b@4xh200/tp={2,4}`, which are ranked.

    Raises InputError, one line, where none of them can be simulated, and Interrupted as simulate().
    """
    texts = list(dict.fromkeys(expand(options.simulator.deployment)))
    if len(texts) == 1:
        return simulate(change(options, deployment=texts[0]))
    runs: list[Summary] = []
    rows: list[Ranked] = []
    for text in texts:
        try:
            run = simulate(change(options, deployment=text))
        except DiskFullError:
            raise
        except InputError as error:
            rows.append(Ranked(deployment=text, why=str(error)))
        except Interrupted as interrupted:
            runs.append(cast(Summary, interrupted.result))
            so_far = RankedRuns(schema=SCHEMA, runs=runs, ranking=ranking(rows))
            raise Interrupted(interrupted.folder, so_far) from None
        else:
            runs.append(run)
            rows.append(judged(text, parse_deployment(text).gpus, run))
    if not runs:
        raise InputError(rows[0].why)
    return RankedRuns(schema=SCHEMA, runs=runs, ranking=ranking(rows))


def simulate(options: SimulateOptions) -> Summary:
    """Simulate one deployment; returns the summary, whose `run_dir` holds the run.

    Raises InputError, one line, where it cannot be done, and Interrupted, after saving the cells
    that were done, when a signal ended it.
    """
    with Signals() as signals:
        simulation = _open(options, signals)
        return execution.execute(simulation.run, simulation.simulate)


def _open(options: SimulateOptions, signals: Signals) -> _Simulation:
    """Make the plan and the folder of a simulation. Raises InputError."""
    simulator, output = options.simulator, options.output
    task = pooling_task(options)
    deployment = parse_deployment(simulator.deployment).asked_for(task)
    fleet = fleet_of(
        deployment,
        acceptance=simulator.acceptance,
        profile=simulator.profile,
        offline=simulator.offline,
        route=simulator.route,
    )
    if simulator.acceptance is None and isinstance(fleet.model, StepModel):
        simulator = dataclasses.replace(simulator, acceptance=fleet.model.profile.acceptance)
    longest, limit = longest_request(deployment, fleet.policy)
    planner = Planner(options)
    has_lengths = options.workload.trace is not None or options.workload.agents is not None
    plan = plan_for(planner, fleet, longest if has_lengths else None)
    plan = count_visual_tokens(plan, deployment, None)
    if simulator.offline:
        if not all(load.is_burst for load in plan.cells):
            raise InputError(
                "--offline: a batch is there whole; give its size with --rate inf --requests 32,64"
            )
        plan.workload["mode"] = "offline"
    slo = execution.bounds_of(output, plan)
    scaler = None
    if simulator.autoscale is not None:
        scaler = read_autoscaler(simulator.autoscale, slo)
        check_scaled(deployment, fleet, plan.cells, simulator.flow_control)
    check_adapters(plan, deployment)
    lengths = check(plan, longest, limit)
    fleet = fleet_for(
        fleet, deployment, lengths, acceptance=simulator.acceptance, route=simulator.route
    )
    if simulator.flow_control is not None:
        if fleet.prefill is not None:
            raise InputError(
                "--flow-control: is not simulated where prefill and decode are apart; leave it out"
            )
        fleet = dataclasses.replace(fleet, flow_control=FlowControl.parse(simulator.flow_control))
    settings = _settings(deployment, fleet, simulator)
    _note_pictures(plan, fleet, settings)
    if len({kind.priority for kind in plan.classes}) > 1 and settings.basis is not None:
        served = fleet.policy.priorities or fleet.flow_control is not None
        settings.basis.priorities_unused = not served
    if planner.chooses_length:
        settings.expected_e2e_s = [
            answer_s(run_cell(plan, cell, fleet)) for cell in range(len(plan.cells))
        ]
        plan = plan_for(planner, fleet, e2e_s=settings.expected_e2e_s)
        plan = count_visual_tokens(plan, deployment, None)
    if isinstance(fleet.model, StepModel) and task is None:
        settings.first_token = _first_token(_models(fleet)[0], fleet, plan)
    if plan.prompts:
        settings.characters_per_token = CHARACTERS_PER_TOKEN
    model, gpus = (
        deployment.model.name.rsplit("/", 1)[-1],
        f"{deployment.gpus}x{deployment.decoder.gpu.name}",
    )
    target = _target(deployment, longest, simulator, plan)
    if task is not None:
        target.endpoint, target.streams = task, False
        target.pairs, target.overhead_tokens = fleet.pairs is not None, fleet.pairs or 0
    name = ("sim", deployment.decoder.engine, model, gpus)
    info = execution.describe(options, plan, target, settings, source="simulated", name=name)
    run = execution.open_run(output.out, info, plan, signals, _EVENT_BYTES)
    draws = DRAWS if simulator.draws is None else simulator.draws
    simulation = _Simulation(
        run, deployment, fleet, draws, options.load.grace_s, simulator.acceptance is not None
    )
    if scaler is not None:
        scaler, source = with_start_up(scaler, deployment, output.out)
        simulation.scaling = Scaling(plan, fleet, scaler, slo, deployment.gpus, source)
    return simulation


@dataclasses.dataclass
class _Simulation:
    """A run of a fleet whose folder is open. `draws`: for the intervals; `grace_s`: as in
    LoadOptions; `acceptance_known`: the user gave that of drafts; `scaling`: under an
    autoscaler."""

    run: execution.OpenRun
    deployment: Deployment
    fleet: Fleet
    draws: int
    grace_s: float
    acceptance_known: bool = False
    scaling: Scaling | None = None

    def simulate(self) -> None:
        """Simulate all cells, and write their records."""
        folder, info, plan, signals = self.run
        basis = info.settings.profile or "a model without a profile"
        run_folder.log(
            folder, f"{self.deployment.name}, by {basis}: plan {plan.plan_id[:6]} seed {plan.seed}"
        )
        if self.scaling is not None:
            self._simulate_scaled(self.scaling)
            return
        if info.settings.basis is not None:
            loads = [
                load
                for cell in range(len(plan.cells))
                for load in find_uncovered_load(plan, cell, self.fleet)
            ]
            if any(_moves_in_waves(plan, cell) for cell in range(len(plan.cells))):
                info.settings.basis.moves_in_waves = True
            info.settings.basis.uncovered += list(dict.fromkeys(load.what for load in loads))
        errors = cell_uncertainties(
            plan, self.fleet, self.draws, info.slo, acceptance_known=self.acceptance_known
        )
        info.settings.intervals = [error.intervals for error in errors]
        if info.slo:
            info.settings.slo_factors = [error.factors for error in errors]
        signals.on_first = lambda: None
        kv_tokens = [
            pool.policy.kv_tokens for pool in self.fleet.pools for _ in range(pool.replicas)
        ]
        counters = Counters(self.deployment.model.name, len(kv_tokens), kv_tokens)
        run_folder.write_records(folder, self._cells(counters))
        run_folder.write_server(folder, counters.table())
        _release()

    def _simulate_scaled(self, scaling: Scaling) -> None:
        """Simulate the cell under an autoscaler, whose fleet is one engine in the samples."""
        folder, info, plan, signals = self.run
        signals.on_first = lambda: None
        policy = self.fleet.policy
        counters = Counters(self.deployment.model.name, 1, policy.kv_tokens)
        counters.begin(_PAUSE_S)
        scaled = scaling.simulate(scaling.scaler, _PAUSE_S, counters.look)
        run = scaled.run
        run_folder.write_records(folder, tables(plan, 0, run, policy))
        run_folder.write_server(folder, counters.table())
        info.cells[0] = CellInfo(
            load=plan.cells[0], start_s=_PAUSE_S, issue_end_s=run.issue_end_s, end_s=run.over_s
        )
        info.settings.fleet = scaling.figures(scaled)
        _release()

    def _cells(self, counters: Counters) -> Iterator[pa.Table]:
        """Yield the tables of all cells, one cell after another, until a signal; run.json gets when
        they ran."""
        folder, info, plan, signals = self.run
        start_s = _PAUSE_S
        for cell, load in enumerate(plan.cells):
            if signals.count:
                return
            begun_s = time.monotonic()
            counters.begin(start_s)
            run = run_cell(plan, cell, self.fleet, start_s, self.grace_s, counters.look)
            counters.look(run.over_s, run.states())
            yield from tables(plan, cell, run, self.fleet.policy)
            pools = describe_pools(run)
            if pools is not None:
                info.settings.pools.append(pools)
            loads, slots = run.adapter_loads
            info.cells[cell] = CellInfo(
                load=load,
                start_s=start_s,
                issue_end_s=run.issue_end_s,
                end_s=run.over_s,
                adapter_loads=loads,
                adapter_slots=slots,
            )
            took_s = time.monotonic() - begun_s
            run_folder.log(
                folder, f"{load.label}: {run.over_s - start_s:.1f} s, simulated in {took_s:.1f} s"
            )
            start_s = run.over_s + _PAUSE_S


def plan_for(
    planner: Planner, fleet: Fleet, max_tokens: int | None = None, e2e_s: Sequence[float] = ()
) -> Plan:
    """Make the plan of a fleet, whose model reads texts one by one or in pairs. Raises
    InputError."""
    plan = planner.plan(max_tokens, e2e_s=e2e_s)
    if plan.inputs is not None:
        plan.inputs.pairs = fleet.pairs
    return plan


def check(plan: Plan, longest: int, what: str) -> Ints64:
    """Refuse before the run what the engine would refuse in it; for `longest` and `what` see
    longest_request(). Returns the tokens of all requests, prompt and answer together. Raises
    InputError.
    """
    if plan.inputs is not None:
        longest_text = plan.inputs.longest()
        if longest_text > longest:
            raise InputError(
                f"texts of {longest_text} tokens (--input, --document): beyond {what} of {longest}"
                " tokens, which are read at once; ask for less"
            )
        rows = range(len(plan))
        return np.array([n for row in rows for n in plan.inputs.sequences(row)], np.int64)
    lengths = []
    for cell in range(len(plan.cells)):
        prompts = whole_prompts(plan, cell)
        both = prompts + plan.output_tokens[plan.span(cell)]
        row = int(both.argmax())
        if both[row] > longest:
            raise InputError(
                f"{prompts[row]} tokens in and {both[row] - prompts[row]} out: together beyond"
                f" {what} of {longest} tokens; ask for less"
            )
        lengths.append(both)
    return np.concatenate(lengths)


def check_adapters(plan: Plan, deployment: Deployment) -> None:
    """Refuse adapters that the deployment has no slots for. Raises InputError."""
    slots = rules_of(deployment.decoder).adapter_slots
    for of_class in plan.classes:
        if of_class.adapter is None:
            continue
        if slots is None:
            raise InputError(
                f"class {of_class.name}: adapter: the deployment has no slots for any; add e.g."
                f" max_loras=4 to {deployment.name}"
            )
        if (of_class.adapter_rank or 0) > slots.rank:
            raise InputError(
                f"class {of_class.name}: adapter of rank {of_class.adapter_rank}: slots have room"
                f" for rank {slots.rank}; raise max_lora_rank"
            )


def _moves_in_waves(plan: Plan, cell: int) -> bool:
    """Tell whether users of a closed loop end together and come back together, as none is shorter
    than another."""
    of_cell = plan.span(cell)
    alike = all(
        len(set(column[of_cell].tolist())) == 1
        for column in (plan.input_tokens, plan.output_tokens)
    )
    return plan.cells[cell].slots > 1 and alike and not plan.has_sessions


def _release() -> None:
    """Have the C library return what was freed: a third of a gigabyte after a million requests,
    which glibc keeps."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _target(deployment: Deployment, longest: int, options: SimulatorOptions, plan: Plan) -> Target:
    return Target(
        url=deployment.name,
        urls=[deployment.name],
        endpoint="offline" if options.offline else needed_endpoint(plan) or "completions",
        model=options.model or deployment.model.name,
        engine=engine_title(deployment.decoder.engine),
        engine_version=deployment.decoder.engine_version,
        prompt_kind="token ids",
        max_model_tokens=longest,
    )


def _basis(deployment: Deployment, fleet: Fleet, options: SimulatorOptions) -> PredictionBasis:
    """Collect what the prediction rests on, for verdict.prediction_findings()."""
    towers = deployment.model.vision_parameters or any(
        "tower" in assumption for assumption in deployment.model.assumed
    )
    workers = [pool.worker for pool in deployment.language]
    basis = PredictionBasis(
        assumed=list(deployment.model.assumed),
        not_read="images or sound" if towers else "",
        not_simulated=_distinct(
            not_simulated(worker.engine, worker.arguments) for worker in workers
        ),
    )
    if isinstance(fleet.model, StepModel):
        profile = fleet.model.profile
        basis.profile = profile.name
        if fleet.model.adapters is not None and fleet.model.adapters.guessed:
            basis.adapters_guessed = fleet.model.adapters.guessed
        unmeasured_parts = [
            unmeasured(worker, model.profile)
            for worker, model in zip(workers, _models(fleet), strict=True)
        ]
        basis.unmeasured = next(filter(None, unmeasured_parts), "")
        basis.vendor_unmeasured = not all(map(vendor_measured, workers))
        basis.engine_unmeasured = not engine_measured(deployment.decoder)
        if not is_own(profile):
            basis.uncovered = _distinct(
                [uncovered.what for uncovered in uncovered_classes(worker)] for worker in workers
            )
    crossed = [worker.nodes_crossed for worker in workers if guesses_network(worker)]
    if crossed:
        basis.nodes_crossed, basis.own_profile = max(crossed), options.profile is not None
    if fleet.policy.speculative is not None:
        named, layers = deployment.decoder.draft, deployment.model.draft_layers
        basis.draft = named.model.name if named else "the model's own layers" if layers else None
        if options.acceptance is None:
            basis.assumed_acceptance = fleet.policy.speculative.acceptance
    return basis


def _note_pictures(plan: Plan, fleet: Fleet, settings: RunSettings) -> None:
    """Note in what a prediction rests on that prompts have pictures."""
    encoders = fleet.encoders
    times = picture_times_of(fleet.pools[-1].model) if encoders is None else encoders.times
    if plan.pictures is not None and settings.basis is not None and times is not None:
        settings.basis.not_read, settings.basis.pictures_guessed = "", times.guessed


def _distinct(lists: Iterable[list[str]]) -> list[str]:
    return list(dict.fromkeys(text for texts in lists for text in texts))


def _models(fleet: Fleet) -> list[StepModel]:
    """Return the model of each pool's steps, prefill first."""
    return [pool.model for pool in reversed(fleet.pools) if isinstance(pool.model, StepModel)]


def _first_token(model: StepModel, fleet: Fleet, plan: Plan) -> FirstToken:
    """Predict the first token of the first measured prompt."""
    tokens = max(1, int(whole_prompts(plan, 0)[plan.warmup_count(0)]))
    # Where prompts are not cut, one takes as many as it has.
    policy = fleet.pools[-1].policy
    step_tokens = policy.max_batched_tokens if policy.chunked else tokens
    parts = dict(parts_of(model, lambda each: first_token_s(each, tokens, step_tokens)))
    pool = fleet.prefill
    if pool is not None:
        parts["the cache's way to the decode pool"] = pool.link.latency_s + pool.link.transfer_s(
            tokens
        )
        if pool.rules.first_by == "decode":
            parts["the first decode step"] = fleet.model.step_s(1, tokens, ())
    return FirstToken(tokens, parts)


def _settings(deployment: Deployment, fleet: Fleet, options: SimulatorOptions) -> RunSettings:
    """Return the settings that only a simulated run has and that do not depend on its plan."""
    return RunSettings(
        deployment=deployment.to_settings(),
        policy=msgspec.to_builtins(fleet.policy),
        flow_control=None if fleet.flow_control is None else asdict(fleet.flow_control),
        schedulers=fleet.replicas,
        sampling={"temperature": options.temperature, "top_p": options.top_p},
        turnaround_s=TURNAROUND_S,
        prefix_cache=fleet.policy.prefix_cache,
        basis=_basis(deployment, fleet, options),
        profile=fleet.model.profile.name if isinstance(fleet.model, StepModel) else None,
        electricity=options.electricity,
        own_power=(
            fleet.model.profile.power.get(deployment.decoder.gpu.name, [])
            if isinstance(fleet.model, StepModel)
            else []
        ),
    )
