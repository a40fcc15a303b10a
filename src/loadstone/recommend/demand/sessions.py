"""Traffic that is sessions: plans of any number of them, and how long one takes by closed form."""

import copy
import dataclasses
import math
from typing import NamedTuple

import numpy as np

from loadstone.core.plan import Plan
from loadstone.core.vectors import Floats
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.fleet import Fleet
from loadstone.predict.simulator.run import CellRun
from loadstone.predict.steady_state import SteadyState
from loadstone.recommend.demand.effort import Effort
from loadstone.workload.load_options import LoadOptions
from loadstone.workload.mix import Mix
from loadstone.workload.planning import Planner

MAX_CALLS = 12_000
"""Of a simulation, where that leaves a few sessions more than are alive."""
_MIN_BESIDE = 8
_GOLDEN = (math.sqrt(5) - 1) / 2
"""Multiples of it fill the time between 0 and 1 evenly, whatever their number."""


class SessionFigures(NamedTuple):
    """Holds what the sessions of a replica came to, all 0 where there are none.

    alive_per_load  sessions alive on average for each of the load
    task_s          p50 and p99 of the time of one; `parts`: shares of it up to first tokens, and
                    from there to the last
    cached_share    of prompts
    """

    alive_per_load: float = 0.0
    requests_per_s: float = 0.0
    task_s: tuple[float, float] = (0.0, 0.0)
    parts: tuple[float, float] = (0.0, 0.0)
    cached_share: float = 0.0


NO_SESSIONS = SessionFigures()


@dataclasses.dataclass(frozen=True)
class SessionTraffic:
    """Holds the sessions of a traffic: mean calls of one, and by session the calls that wait for
    one another longest: `lines` of their number, tokens of answers, seconds of pauses."""

    planner: Planner
    max_tokens: int | None
    calls: float
    lines: Floats

    def tasks_s(self, level: SteadyState) -> Floats:
        """Compute by closed form how long each session takes."""
        first_s = level.base_s + level.busy * level.queue_s if level.busy < 1 else math.inf
        return np.asarray(self.lines @ np.array([first_s - level.tpot_s, level.tpot_s, 1.0]))

    def draw(self, load: float, level: SteadyState, effort: Effort, *, is_open: bool) -> Plan:
        """Draw sessions, whole ones: `load` that begin a second, or are alive. Those before the
        measured ones are as many as are alive; in a closed loop a quarter more, until a
        router has dealt them out, and as many come last, beside which the load falls."""
        task_s = float(self.tasks_s(level).mean())
        alive = max(1, math.ceil(load * task_s if is_open else round(load)))
        beside = 0 if is_open else alive + alive // 4
        room = int(MAX_CALLS / self.calls) - alive - beside
        wanted = max(effort.sessions, alive, round(effort.calls / self.calls))
        sessions = max(_MIN_BESIDE, min(room, wanted)) + beside
        planner = copy.copy(self.planner)
        mixed = isinstance(planner.workload, Mix)  # whose requests are counted where they begin
        planner.options = dataclasses.replace(
            planner.options,
            load=LoadOptions(
                rate=(load,) if is_open else (),
                concurrency=() if is_open else (alive,),
                warmup=alive,
                requests=(math.ceil((sessions + 1) * (1 if mixed else self.calls)),),
            ),
        )
        plan = planner.plan(self.max_tokens)
        # The last one is not whole.
        plan = plan.take(np.arange(np.flatnonzero(plan.turn <= 0)[-1]))
        return plan if is_open else put_out_of_step(plan, alive, task_s / self.calls)


def put_out_of_step(plan: Plan, alive: int, cycle_s: float) -> Plan:
    """Return the sessions of a closed loop as if they had begun at any time: each of the first has
    a first pause of its own, of up to `cycle_s`. Those and a quarter more are not measured; the
    last are as short as leaves the load as it is until the one before them ends."""
    begins, phase = np.flatnonzero(plan.turn <= 0), plan.phase.copy()
    phase[: begins[alive + alive // 4]] = 0
    lengths = np.diff(np.append(begins, len(plan)))
    # One call alone has no pause: where others have some, it comes twice.
    alone = (lengths[:alive] == 1) & (lengths.max() > 1) & (not plan.graph.recorded)
    left = np.ceil(lengths[-alive:] * (alive - np.arange(alive)) / alive)
    kept = plan.turn < np.repeat(np.append(lengths[:-alive], left), lengths)
    rows = np.sort(np.concatenate([np.flatnonzero(kept), begins[:alive][alone]]))
    turn, think_s = plan.turn[rows], plan.think_s[rows]
    turn[1:][np.diff(rows) == 0] = 1
    second = np.flatnonzero((turn == 1) & (rows < begins[alive]))
    think_s[second] = np.mod((np.arange(len(second)) + 1) * _GOLDEN, 1.0) * cycle_s
    return plan.take(rows, phase=phase[rows], turn=turn, think_s=think_s)


def find_lines(plan: Plan) -> Floats:
    """Find the longest line of each session, as SessionTraffic has them."""
    begins, graph = np.flatnonzero(plan.turn <= 0), plan.graph
    calls = np.stack([np.ones(len(plan)), plan.output_tokens, plan.think_s], axis=1)
    if not graph.recorded:  # a chain is its own longest line
        return np.asarray(np.add.reduceat(calls, begins))
    lines = calls.copy()
    for row in range(len(plan)):
        parents = row - plan.turn[row] + graph.parents[graph.offsets[row] : graph.offsets[row + 1]]
        if len(parents):
            longest = parents[np.argmax(lines[parents, 0])]
            lines[row] += lines[longest]
            # It does not wait for an answer that was already sent on.
            lines[row, :2] -= graph.sent[row] * calls[longest, :2]
    sessions = np.split(lines, begins[1:])
    return np.array([session[np.argmax(session[:, 0])] for session in sessions])


def run_steady(plan: Plan, fleet: Fleet) -> CellRun:
    """Simulate a plan; of a closed loop of sessions without those that are the last in their slots,
    beside which fewer and fewer are alive."""
    run, load = run_cell(plan, 0, fleet, grace_s=math.inf), plan.cells[0]
    if load.unit == "sessions" and load.is_closed:
        first = int(np.flatnonzero(plan.turn <= 0)[-int(load.value)])
        run.end_s[first:] = [math.nan] * (len(run.end_s) - first)
    return run
