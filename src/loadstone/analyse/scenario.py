"""Holds what a load turned out to be against the rules of the scenario that it was asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from loadstone.analyse.verdict.finding import Findings, finding
from loadstone.core.plan import Plan
from loadstone.core.record import RunInfo
from loadstone.core.summary import CellSummary, PerGpu, ScenarioResult
from loadstone.workload.scenarios import scenarios

if TYPE_CHECKING:
    import pyarrow as pa

_SURE = 0.975
"""Probability from which on bounds surely hold, or fail; both ends make an interval of 95 %."""


def scenario_findings(
    info: RunInfo, plan: Plan, number: int, records: pa.Table, summary: CellSummary
) -> Findings:
    """Find the rules of the run's scenario that a cell breaks. `records`: a row a request."""
    scenario = scenarios().get(info.settings.scenario or "")
    if scenario is None:
        return
    model = (info.target.model if info.target is not None else "").lower()
    facts = dict(_facts(info, plan, number, records, summary))
    for rule in scenario.rule:
        value = facts.get(rule.fact)
        if rule.model in model and value is not None and not rule.holds(value):
            shown = f"{value:,.6g}" if isinstance(value, int | float) else str(value)
            if isinstance(value, bool):
                shown = "not so"
            yield finding("scenario_broken", scenario=scenario.name, rule=rule.name, seen=shown)


def _facts(
    info: RunInfo, plan: Plan, number: int, records: pa.Table, summary: CellSummary
) -> Iterator[tuple[str, Any]]:
    """Yield what is known of a cell, by the names that rules have for it."""
    about, load, workload = info.cells[number], plan.cells[number], plan.workload
    rows = plan.span(number)
    sessions = summary.sessions
    yield "format", str(workload.get("format") or workload.get("kind"))
    yield "streams", info.streams
    yield "exact_output", plan.exact_output and _takes_exact(info)
    yield "salted", info.source == "simulated" or info.salt is not None
    yield "closed_loop", load.is_closed
    yield "sessions_in_closed_loop", load.is_closed and plan.has_sessions
    yield "overflowed", dict(workload.get("overflowed") or {}).get("calls", 0)
    yield "turns_max", int(plan.turn[rows].max(initial=-1)) + 1
    if sessions is not None:
        yield "sessions", sessions.sessions
        yield "unfinished", sessions.sessions - sessions.finished
    if about.start_s is not None and about.issue_end_s is not None:
        yield "duration_s", about.issue_end_s - about.start_s
    table = records.filter(np.array(records["phase"].to_pylist()) == "measure")
    for name in ("input", "output"):
        values = table[f"{name}_tokens"].drop_null().to_numpy().astype(float)
        if len(values):
            yield f"{name}_mean", float(values.mean())
            yield f"{name}_max", float(values.max())
            yield f"{name}_p50", float(np.quantile(values, 0.5))
            yield f"{name}_p95", float(np.quantile(values, 0.95))
    sent, ended = (table[name].to_numpy().astype(float) for name in ("sent_s", "end_s"))
    under_way = ~np.isnan(sent) & ~np.isnan(ended)
    order = np.argsort(sent[under_way])
    until = np.maximum.accumulate(ended[under_way][order])
    yield "idle_s", float((sent[under_way][order][1:] - until[:-1]).max(initial=0.0))


def _takes_exact(info: RunInfo) -> bool:
    """Tell whether the engine goes on after its end token where it is told to."""
    return info.target is None or info.target.accepts.get("ignore_eos", True)


def scenario_result(
    info: RunInfo, cells: Sequence[CellSummary], gpus: int | None
) -> ScenarioResult | None:
    """Put together what a run says of its scenario: whether all its loads keep the rules that are
    checked, and how many agents a GPU, and a megawatt, carries within the bounds."""
    scenario = scenarios().get(info.settings.scenario or "")
    if scenario is None:
        return None
    broken = {
        str(found.values["rule"])
        for cell in cells
        for found in cell.verdict.findings
        if found.kind == "scenario_broken"
    }
    closed = [cell for cell in cells if cell.load.is_closed and cell.slo]
    best = max((cell for cell in closed if _share(cell) >= 0.5), key=_agents, default=None)
    agents = None
    if scenario.per_gpu and gpus and best is not None:
        sure = max((_agents(cell) for cell in closed if _share(cell) >= _SURE), default=0.0)
        fails = min((_agents(cell) for cell in closed if _share(cell) <= 1 - _SURE), default=None)
        watched = best.gpu is not None and best.gpu.samples > 0
        watts = best.gpu.power_w.mean if watched and best.gpu and best.gpu.power_w else None
        agents = PerGpu(
            value=_agents(best) / gpus,
            low=sure / gpus,
            high=None if fails is None else fails / gpus,
            per_mw=_agents(best) / (watts * 1e-6) if watts else None,
            boundary="the GPUs alone" if watts else None,
        )
    return ScenarioResult(
        name=scenario.name,
        source=scenario.source,
        keeps_rules=not broken,
        broken=sorted(broken),
        unchecked=scenario.unchecked,
        agents_per_gpu=agents,
    )


def _agents(cell: CellSummary) -> float:
    return cell.load.value


def _share(cell: CellSummary) -> float:
    """Return the probability that all bounds hold, each taken for itself."""
    return min((bound.p_met if bound.p_met is not None else 0.0 for bound in cell.slo), default=0.0)
