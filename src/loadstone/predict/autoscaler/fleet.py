"""A cell on replicas that come and go: what cell.py does, with an autoscaler in the loop.

A replica is asked for, starts, takes requests, and drains: it is out of the router at once, and is
paid for until it is empty or its grace is over, which cuts off what it still has. Requests that
find no replica, or none with room, wait at the router. Metrics are read every `scrape_s`, and a
decision sees the readings of some time ago.
"""

from __future__ import annotations

import gc
import math
from collections import deque
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple, Protocol

import numpy as np

from loadstone.core.plan import Plan
from loadstone.predict.autoscaler.policy import QUANTILE, Autoscaler, FleetSignals
from loadstone.predict.scheduler import Sequence
from loadstone.predict.scheduler.queue import Refusal
from loadstone.predict.simulator.cell import arrive, turn_away
from loadstone.predict.simulator.client import NEVER, CellRequests, SimulatedClient
from loadstone.predict.simulator.content import Contents, shares
from loadstone.predict.simulator.engine import Replica
from loadstone.predict.simulator.fleet import Fleet, sharing
from loadstone.predict.simulator.pipeline import Unit, complete, engines_of, next_s_of, route
from loadstone.predict.simulator.run import CellRun, Look, State, paused_in, states_of

START_UP_SPREAD = 0.12
"""Standard deviation of the time that a replica takes to start, over its mean, where it was not
measured: a log-normal time."""
_CUT = "its replica was stopped, after the time that it may drain"
_START_UP = 11
_READY, _SCRAPE, _POLL, _GRACE = range(4)
"""What is due, in its order at one moment."""
_LATENCY_WINDOW_S = 60.0
"""Over which latencies are read, where no window is given."""


class Decider(Protocol):
    """Controller of policy.py, or what a test puts in its place."""

    def decide(self, now_s: float, count: int, ready: int, signals: FleetSignals, /) -> int: ...


class FleetChange(NamedTuple):
    """Replicas from a moment on: that are wanted, that serve, and that are paid for."""

    at_s: float
    wanted: int
    ready: int
    paid: int


@dataclass
class FleetLog:
    """Holds what a fleet did over a cell.

    readings   of the metric that decides first, by time
    paid_s     seconds of all replicas, from being asked for to their end
    starts     replicas that were asked for after the beginning
    cut        requests that the end of a grace cut off; `held`: that found no replica
    """

    changes: list[FleetChange] = field(default_factory=list)
    readings: list[tuple[float, float]] = field(default_factory=list)
    paid_s: float = 0.0
    starts: int = 0
    cut: int = 0
    held: int = 0


class _Member:
    """A replica with its schedulers, and how many requests it has; `drains` while it takes no
    more."""

    __slots__ = ("asked_s", "drains", "gone", "replicas", "taken", "unit")

    def __init__(self, unit: Unit, replicas: list[Replica], asked_s: float) -> None:
        self.unit, self.replicas, self.asked_s = unit, replicas, asked_s
        self.drains = self.gone = False
        self.taken = 0


class _Reading(NamedTuple):
    at_s: float
    arrived: int
    running: int
    queued: int
    waiting: int
    kv: tuple[float, ...]
    queues: tuple[int, ...]


class ScaledFleet:
    """The replicas of a cell, the router before them and the autoscaler beside them.

    next_s  when something is due that no request brings
    units   that work: those that serve and those that drain
    """

    def __init__(
        self,
        run: CellRun,
        fleet: Fleet,
        scaler: Autoscaler,
        decider: Decider,
        look: Look | None = None,
    ) -> None:
        self.run, self.log, self.units = run, FleetLog(), list[Unit]()
        self.owner: dict[int, _Member] = {}
        self.held: deque[Sequence] = deque()
        self.refused: list[Refusal] = []
        self.arrived = 0
        self._fleet, self._scaler, self._decider, self._look = fleet, scaler, decider, look
        self._starting: list[_Member] = []
        self._ready: list[_Member] = []
        self._serving: list[Unit] = []
        self._draining = set[_Member]()
        self._due: list[tuple[float, int, int, _Member | None]] = []
        self._order = count()
        self._turn = 0
        self._now_s = run.start_s
        self._readings: deque[_Reading] = deque()
        self._firsts: deque[tuple[float, float]] = deque()  # when, TTFT
        self._ends: deque[tuple[float, float, int, int]] = deque()  # when, TPOT, tokens in and out
        self._awaited: list[int] = []
        self._watches = scaler.policy in ("slo", "planner")
        spread = START_UP_SPREAD if scaler.start_up_spread is None else scaler.start_up_spread
        self._spread = math.sqrt(math.log1p(spread**2))  # of its logarithm
        self._rng = np.random.default_rng([run.requests.plan.seed, _START_UP])
        for _ in range(scaler.first):
            self._begin(self._ask(run.start_s))
        self._note()
        self._push(run.start_s + scaler.scrape_s, _SCRAPE)
        self._push(run.start_s + scaler.poll_s, _POLL)

    @property
    def next_s(self) -> float:
        return self._due[0][0]

    def take(self, sequence: Sequence, now_s: float) -> None:
        """Give a request to a replica, or hold it until there is one."""
        self._now_s = now_s
        self.arrived += 1
        if self._watches:
            self._awaited.append(sequence.row)
        if self.held or not self._route(sequence, now_s):
            self.log.held += 1
            self.held.append(sequence)

    def note_end(self, index: int, now_s: float) -> None:
        """Note that an answer has ended."""
        if self._watches:
            requests = self.run.requests
            row = requests.row(index)
            output = requests.output_tokens[row]
            tpot_s = (now_s - self.run.journal.first_s[index]) / max(1, output - 1)
            self._ends.append((now_s, tpot_s, requests.input_tokens[row], output))
        self._leave(index, now_s)

    def turn_away(self, client: SimulatedClient, now_s: float) -> None:
        """Tell the client whom replicas turned away."""
        gone = [refusal.sequence.row for refusal in self.refused]
        turn_away(self.run, client, self.refused, now_s)
        for index in gone:
            self._leave(index, now_s)

    def _leave(self, index: int, now_s: float) -> None:
        """A replica has a request no more; of one that drains it may be the last."""
        member = self.owner.pop(index)
        member.taken -= 1
        if member.drains and not member.unit.load:
            self._now_s = now_s
            self._end(member)
            self._note()
        if self.held:
            self._release(now_s)

    def act(self) -> list[int]:
        """Do what is due; returns the requests that it cuts off."""
        self._now_s, kind, _, member = heappop(self._due)
        cut: list[int] = []
        if kind == _SCRAPE:
            self._scrape()
        elif kind == _POLL:
            self._poll()
        elif member is not None and not member.gone:
            if kind == _READY:
                self._begin(member)
            elif member.drains:
                cut = self._cut(member)
            self._note()
        return cut

    def finish(self, at_s: float) -> None:
        """Count what is paid for until the end."""
        members = (*self._starting, *self._ready, *self._draining)
        self.log.paid_s += sum(at_s - member.asked_s for member in members)

    # --- replicas ---------------------------------------------------------------------------------

    def _ask(self, now_s: float) -> _Member:
        run = self.run
        replicas, units = engines_of(
            self._fleet,
            run.journal,
            shared=run.contents is not None,
            seed=run.requests.plan.seed,
            first=len(run.replicas),
        )
        for replica in replicas:
            replica.scheduler.refused = self.refused
        run.replicas += replicas
        return _Member(units[0], replicas, now_s)

    def _begin(self, member: _Member) -> None:
        """Let a replica take requests, first those that were held."""
        if member in self._starting:
            self._starting.remove(member)
        self._ready.append(member)
        self._serving.append(member.unit)
        self.units.append(member.unit)
        self._release(self._now_s)

    def _end(self, member: _Member) -> None:
        member.gone = True
        self._draining.discard(member)
        if member.unit in self.units:
            self.units.remove(member.unit)
        self.log.paid_s += self._now_s - member.asked_s

    def _release(self, now_s: float) -> None:
        """Send what was held, as far as there is room."""
        while self.held and self._route(self.held[0], now_s):
            self.held.popleft()

    def _route(self, sequence: Sequence, now_s: float) -> bool:
        """Give a request to a replica; False: none takes it now."""
        members, units, hold = self._ready, self._serving, self._scaler.hold
        if hold is not None:
            members = [member for member in members if member.taken < hold]
            units = [member.unit for member in members]
        if not units:
            return False
        self._turn += 1
        how = self.run.route or self._fleet.policy.route
        unit = units[0] if len(units) == 1 else route(units, self._turn, how, sequence)
        self.owner[sequence.row] = member = members[units.index(unit)]
        member.taken += 1
        unit.add(sequence, now_s)
        return True

    def _cut(self, member: _Member) -> list[int]:
        """End a replica whose grace is over, with all that it has."""
        cut = [index for index, owner in self.owner.items() if owner is member]
        self.run.paused |= paused_in(member.replicas)
        for index in cut:
            del self.owner[index]
            self.run.refused[index] = self._now_s, 502, _CUT
        self.log.cut += len(cut)
        self._end(member)
        return cut

    def scale(self, wanted: int) -> None:
        """Ask for replicas, or give up some: those that start first, then the newest."""
        scaler, now_s = self._scaler, self._now_s
        surplus = len(self._starting) + len(self._ready) - wanted
        for _ in range(-surplus):
            member = self._ask(now_s)
            self.log.starts += 1
            self._starting.append(member)
            mean_s, spread = scaler.start_up_s or 0.0, self._spread
            takes_s = mean_s * math.exp(spread * self._rng.standard_normal() - spread**2 / 2)
            self._push(now_s + takes_s, _READY, member)
        for _ in range(surplus):
            if self._starting:
                self._end(self._starting.pop())
                continue
            member = self._ready.pop()
            self._serving.pop()
            member.drains = True
            self._draining.add(member)
            if member.unit.load:
                self._push(now_s + scaler.drain_s, _GRACE, member)
            else:
                self._end(member)
        self._note()

    def _push(self, at_s: float, kind: int, member: _Member | None = None) -> None:
        heappush(self._due, (at_s, kind, next(self._order), member))

    def _note(self) -> None:
        ready, starting = len(self._ready), len(self._starting)
        paid = ready + starting + len(self._draining)
        change = FleetChange(self._now_s, ready + starting, ready, paid)
        changes = self.log.changes
        if changes and changes[-1].at_s == change.at_s:
            changes[-1] = change
        elif not changes or changes[-1][1:] != change[1:]:
            changes.append(change)

    # --- metrics ----------------------------------------------------------------------------------

    def _scrape(self) -> None:
        """Read the metrics, as whoever scrapes them does."""
        now_s, scaler = self._now_s, self._scaler
        self._push(now_s + scaler.scrape_s, _SCRAPE)
        states = [states_of(member.replicas, now_s) for member in self._ready]
        room = self._fleet.policy.kv_tokens
        kv = tuple(
            sum(state.used_tokens for state in replicas) / (len(replicas) * room)
            for replicas in states
        )
        queues = tuple(sum(state.waiting for state in replicas) for replicas in states)
        reading = _Reading(
            now_s, self.arrived, len(self.owner), len(self.held), sum(queues), kv, queues
        )
        self._readings.append(reading)
        reach_s = now_s - scaler.age_s - scaler.window_s - 2 * scaler.scrape_s
        while self._readings[0].at_s < reach_s:
            self._readings.popleft()
        if self._watches:
            self._watch()
        if self._look is not None:
            self._look(now_s, [self._sum(states, reading)])

    def _sum(self, states: list[list[State]], reading: _Reading) -> State:
        """Return the ready replicas as one engine; what waits at the router waits."""
        every = [state for replicas in states for state in replicas]
        mean_kv = sum(reading.kv) / max(1, len(reading.kv))
        return State(
            running=sum(state.running for state in every),
            waiting=reading.waiting + reading.queued,
            used_tokens=round(mean_kv * self._fleet.policy.kv_tokens),
            prompt_tokens=sum(batch.scheduler.prompt_tokens for batch in self.run.replicas),
            written_tokens=sum(batch.scheduler.written_tokens for batch in self.run.replicas),
        )

    def _watch(self) -> None:
        """Note the first tokens that came since the reading before."""
        first_s, sent_s = self.run.journal.first_s, self.run.requests.sent_s_of
        waiting = []
        for index in self._awaited:
            if first_s[index] <= self._now_s:
                self._firsts.append((first_s[index], first_s[index] - sent_s[index]))
            elif index not in self.run.refused:
                waiting.append(index)
        self._awaited = waiting

    def _poll(self) -> None:
        now_s = self._now_s
        self._push(now_s + self._scaler.poll_s, _POLL)
        starting, ready = len(self._starting), len(self._ready)
        signals = self._signals(now_s - self._scaler.age_s)
        wanted = self._decider.decide(now_s, starting + ready, ready, signals)
        metrics = self._scaler.metrics
        deciding = metrics[0].metric if metrics else "in_flight"
        self.log.readings.append((now_s, signals.totals.get(deciding, 0.0)))
        if wanted != starting + ready:
            self.scale(wanted)

    def _signals(self, until_s: float) -> FleetSignals:
        """Return what a decision sees: the readings up to then, over the window."""
        window_s = self._scaler.window_s
        seen = [reading for reading in self._readings if reading.at_s <= until_s]
        if not seen:
            return FleetSignals({"in_flight": 0.0, "rate": 0.0})
        recent = [reading for reading in seen if reading.at_s > until_s - window_s] or seen[-1:]
        size = len(recent)
        previous = seen[-size - 1] if len(seen) > size else None
        begun_s, begun = (previous.at_s, previous.arrived) if previous else (self.run.start_s, 0)
        newest = recent[-1]
        running = sum(reading.running for reading in recent) / size
        queued = sum(reading.queued for reading in recent) / size
        kv = [sum(reading.kv) / len(reading.kv) for reading in recent if reading.kv]
        totals = {
            "running": running,
            "queued": queued,
            "in_flight": running + queued,
            "waiting": sum(reading.waiting for reading in recent) / size,
            "rate": (newest.arrived - begun) / (newest.at_s - begun_s),
            "kv_usage": sum(kv) / max(1, len(kv)),
        }
        if self._watches:
            totals |= self._latencies(until_s)
        return FleetSignals(totals, newest.kv, newest.queues)

    def _latencies(self, until_s: float) -> dict[str, float]:
        """Return the latencies of the window, as quantiles, and the mean lengths."""
        since_s = until_s - (self._scaler.window_s or _LATENCY_WINDOW_S)
        for kept in (self._firsts, self._ends):
            while kept and kept[0][0] <= since_s:
                kept.popleft()
        ttft = [ttft_s for at_s, ttft_s in self._firsts if at_s <= until_s]
        ends = [end for end in self._ends if end[0] <= until_s]
        found = {"ttft_s": _quantile(ttft), "tpot_s": _quantile([end[1] for end in ends])}
        if ends:
            found["input_tokens"] = sum(end[2] for end in ends) / len(ends)
            found["output_tokens"] = sum(end[3] for end in ends) / len(ends)
        return found


def _quantile(values: list[float]) -> float:
    return float(np.quantile(values, QUANTILE)) if values else math.nan


def run_scaled(
    plan: Plan,
    cell: int,
    fleet: Fleet,
    scaler: Autoscaler,
    decider: Decider,
    start_s: float = 0.0,
    look: Look | None = None,
) -> tuple[CellRun, FleetLog]:
    """Simulate one cell of an open load on replicas of `fleet`, a deployment of one engine, that an
    autoscaler adds and removes."""
    requests = CellRequests(plan, cell, fleet.model.request_s, fleet.model.request_token_s)
    run = CellRun(requests, start_s, fleet.model.stream_s)
    run.route = fleet.route
    if fleet.policy.prefix_cache and shares(plan, cell):
        fleet = replace(fleet, policy=sharing(fleet.policy))
        run.contents = Contents(plan, cell, requests, fleet.policy.block_tokens)
    client = SimulatedClient(requests, plan.cells[cell], 0, requests.count, start_s)
    scaled = ScaledFleet(run, fleet, scaler, decider, look)
    collecting = gc.isenabled()
    gc.disable()  # as in run_cell()
    try:
        _drive(run, client, scaled)
    finally:
        if collecting:
            gc.enable()
    scaled.finish(run.over_s)
    run.issue_end_s = client.issue_end_s
    return run, scaled.log


def _drive(run: CellRun, client: SimulatedClient, scaled: ScaledFleet) -> None:
    """Go from event to event until all is answered."""
    arrivals, pop, answered, units = client.arrivals, client.pop, client.ended, scaled.units
    end_s, cached_tokens, stream_s = run.end_s, run.cached_tokens, run.stream_s
    now_s = run.start_s
    while True:
        unit = min(units, key=next_s_of, default=None)
        next_s = NEVER if unit is None else unit.next_s
        arrival_s = arrivals[0][0] if arrivals else NEVER
        timer_s = client.timer_s
        soonest_s = min(next_s, arrival_s, timer_s)
        if soonest_s == NEVER and not scaled.held:
            return
        if scaled.next_s < soonest_s:
            now_s = scaled.next_s
            for index in scaled.act():
                run.over_s = now_s
                client.failed(index, now_s)
        elif timer_s < arrival_s and timer_s <= next_s:
            client.act()
        elif arrival_s <= next_s:
            now_s, index = pop(arrivals)
            scaled.take(arrive(run, client, run.contents, index, now_s, None), now_s)
        elif unit is not None:
            now_s = next_s
            for sequence in complete(unit):
                index = sequence.row
                end_s[index] = now_s
                if sequence.cached_tokens:
                    cached_tokens[index] = sequence.cached_tokens
                run.over_s = now_s + stream_s
                answered(index, run.over_s)
                scaled.note_end(index, now_s)
        if scaled.refused:
            scaled.turn_away(client, now_s)
