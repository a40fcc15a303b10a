"""Traffic that is sessions: plans of any number of them, and how long one takes by closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadstone.core.plan import Plan
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.client import whole_prompts
from loadstone.predict.simulator.content import shares
from loadstone.predict.simulator.fleet import Fleet
from loadstone.predict.simulator.run import CellRun
from loadstone.predict.steady_state import SteadyState
from loadstone.workload.planning import Planner
from loadstone.workload.schedule import promised_tokens

_LEAST_SESSIONS = 24
_MOST_CALLS = 12_000
"""Sessions of a simulation at least, and calls at most, where that leaves a few sessions more than are alive."""
_LEAST_BESIDE = 8


@dataclass(frozen=True)
class SessionTraffic:
    """Holds the sessions of a traffic.

    plan   the sessions, each once; `prompts`: tokens of each call's prompt, `cached`: of these what its session, or
           the plan, has had before
    lines  by session the calls that wait for one another longest: their number, tokens of answers, seconds of pauses
    """

    planner: Planner
    max_tokens: int | None
    plan: Plan
    prompts: NDArray[np.int64]
    cached: NDArray[np.float64]
    lines: NDArray[np.float64]

    @property
    def calls(self) -> float:
        """Mean calls of a session."""
        return len(self.plan) / len(self.lines)

    def tasks_s(self, level: SteadyState) -> NDArray[np.float64]:
        """Return by closed form how long each session takes."""
        if level.busy >= 1:
            return np.full(len(self.lines), math.inf)
        first_s = level.base_s + level.busy * level.queue_s
        return np.asarray(self.lines @ np.array([first_s - level.tpot_s, level.tpot_s, 1.0]))

    def draw(self, load: float, *, is_open: bool, task_s: float) -> Plan:
        """Draw sessions, whole ones: `load` that begin a second, or are alive. Those before the measured ones are as
        many as are alive; in a closed loop as many as are, whose simulations end as the load falls, come on top."""
        alive = max(1, math.ceil(load * task_s) if is_open else round(load))
        room = int(_MOST_CALLS / self.calls) - alive * (1 if is_open else 2)
        sessions = max(_LEAST_BESIDE, min(room, max(_LEAST_SESSIONS, alive))) + (0 if is_open else alive)
        asked = {"rate": (load,), "concurrency": ()} if is_open else {"rate": (), "concurrency": (alive,)}
        wanted = math.ceil((sessions + 1) * self.calls)
        plan = self.planner.with_load(**asked, warmup=alive, requests=(wanted,)).plan(self.max_tokens)
        return plan.take(np.arange(np.flatnonzero(plan.turn <= 0)[-1]))  # the last one is not whole


def sessions_of(planner: Planner, max_tokens: int | None) -> SessionTraffic:
    """Read or draw the sessions. Raises InputError as the planner does."""
    plan = planner.plan(max_tokens)
    prompts = whole_prompts(plan, 0)
    cached = promised_tokens(plan, 0).astype(float) if shares(plan, 0) else np.zeros(len(plan))
    said = np.concatenate([[0], (prompts + plan.output_tokens)[:-1]])
    cached = np.where(cached < 0, said, cached)  # a later turn that brings what was said
    return SessionTraffic(planner, max_tokens, plan, prompts, np.clip(cached, 0, prompts - 1), _find_lines(plan))


def _find_lines(plan: Plan) -> NDArray[np.float64]:
    begins, graph = np.flatnonzero(plan.turn <= 0), plan.graph
    own = np.stack([np.ones(len(plan)), plan.output_tokens, plan.think_s], axis=1)
    if graph is None:
        return np.asarray(np.add.reduceat(own, begins))
    lines = own.copy()
    for row in range(len(plan)):
        parents = row - plan.turn[row] + graph.parents[graph.offsets[row] : graph.offsets[row + 1]]
        if len(parents):
            longest = parents[np.argmax(lines[parents, 0])]
            lines[row] += lines[longest]
            lines[row, :2] -= graph.sent[row] * own[longest, :2]  # it does not wait for that answer
    ends = np.append(begins[1:], len(plan))
    return np.array([lines[first + np.argmax(lines[first:end, 0])] for first, end in zip(begins, ends, strict=True)])


def run_steady(plan: Plan, fleet: Fleet) -> CellRun:
    """Simulate a plan; of a closed loop of sessions without those that are the last in their slots, beside which
    fewer and fewer are alive."""
    run, load = run_cell(plan, 0, fleet, grace_s=math.inf), plan.cells[0]
    if load.unit == "sessions" and load.is_closed:
        first = int(np.flatnonzero(plan.turn <= 0)[-int(load.value)])
        run.end_s[first:] = [math.nan] * (len(run.end_s) - first)
    return run
