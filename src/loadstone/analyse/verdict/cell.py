"""All rules, applied to one cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from loadstone.analyse.metrics import CellMetrics
from loadstone.analyse.verdict import answers, client, gpu, load, server, steady, tokens
from loadstone.analyse.verdict.facts import Events, gather
from loadstone.analyse.verdict.finding import Finding
from loadstone.core import CellInfo, Clock, Plan, Target
from loadstone.core.summary import GpuFigures, ServerFigures

if TYPE_CHECKING:
    import pyarrow as pa


def cell_findings(
    metrics: CellMetrics,
    scalars: pa.Table,
    events: Events,
    plan: Plan,
    cell: int,
    clock: Clock,
    interrupted: str | None,
    *,
    target: Target | None = None,
    measured_live: bool = True,
    simulated: bool = False,
    info: CellInfo | None = None,
    replicas: Sequence[Mapping[str, Any]] = (),
    figures: ServerFigures | None = None,
    gpus: GpuFigures | None = None,
) -> list[Finding]:
    """Findings of one cell.

    `scalars`: the cell's records, columns SCALARS; `events`: of the same records, in the same order.
    `interrupted`: why it ended early. `target`: the live server. `measured_live`: False for simulated and imported
    records, whose arrivals may well be all alike. `simulated`: there was no client whose doing it could be. `info`:
    when it ran, and what answered. `replicas`: the summary's figures of each server of a fleet. `figures`: what
    servers said. `gpus`: what GPUs said.
    """
    streams = target is None or target.streams
    choices = 1 if target is None else target.choices
    asked = plan.cells[cell]
    facts = gather(scalars, events)
    measured = facts.pick(facts.measured)
    done = measured.pick(measured.completed)
    found = [
        load.interrupted(interrupted),
        answers.request_errors(metrics, measured, interrupted is not None),
        server.engine_restarted(figures),
        server.engines_in_turns(figures),
        gpu.gpu_throttled(gpus),
        gpu.gpu_read_seldom(gpus),
        None if simulated else load.sends_late(metrics, asked, measured),
        load.rate_not_reached(asked, measured),
        load.rate_by_chance(asked, measured),
        load.cap_held_back(metrics, asked, measured),
        load.warmup_leaked(asked, facts),
        steady.overload(asked, measured, streams)
        or steady.queue_grows(asked, measured)
        or steady.not_stationary(metrics, asked, measured, plan, cell, streams),
        steady.phases_locked(asked, measured, streams),
        answers.short_outputs(metrics, choices),
        answers.other_model(target, info.models if info else None),
        answers.answers_repeated(info.prompts_compared, info.texts_compared) if info else None,
        _not_streamed(streams),
        answers.several_answers(choices, streams),
        steady.few_samples(metrics),
        load.fleet_imbalance(replicas),
        server.preemptions(figures),
    ]
    if not simulated:
        found += [
            client.client_saturated(facts, info.client_cpu_s if info else None, _duration_s(info)),
            client.arrivals_bunched(metrics, done),
            client.events_together(metrics, done, streams)
            or (None if measured_live else client.gaps_unmeasured(metrics)),
            client.tpot_understated(metrics, done),
            client.ttft_overstated(metrics, done),
            client.connections_not_kept(metrics, facts),
            client.requests_resent(info.requests_resent if info else None, facts),
            client.user_clock(clock),
        ]
    found += [
        answers.input_length(measured, plan, cell),
        # The other answers to a prompt find it there.
        tokens.prefix_cache_helped(facts, plan, cell, target.overhead_tokens if target else 0, figures)
        if choices == 1
        else None,
        tokens.prompts_repeated(measured, plan, cell),
        answers.empty_answers(done, plan, cell, streams),
        answers.output_length(done, plan, cell, choices),
        answers.finish_reasons(done, plan),
        answers.answers_identical(done) if measured_live else None,
        tokens.no_usage(done, streams),
        tokens.tokens_and_events(done) if streams else None,
    ]
    return [finding for finding in found if finding is not None]


def _duration_s(info: CellInfo | None) -> float | None:
    if info is None or info.start_s is None or info.end_s is None:
        return None
    return info.end_s - info.start_s


def _not_streamed(streams: bool) -> Finding | None:
    if streams:
        return None
    return Finding(
        "not_streamed",
        "info",
        "answers came in one piece: only E2E is measured, not TTFT, TPOT and ITL",
        "Leave out --no-stream to measure them.",
    )
