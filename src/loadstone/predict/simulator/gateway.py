"""Flow control of an inference gateway (Kubernetes Gateway API, llm-d's endpoint picker), before
the replicas of a fleet.

A request waits at the gateway while the pool is saturated. Then the highest priority goes first; of
one priority the flow (tenant) by the fairness policy, of a flow the request by the ordering policy.
The pool is saturated where max(queue / queue_depth, KV / kv_utilization) is 1 or more, on average
over the engines, by metrics as they were scraped last. One request goes with each that comes, and
one with each tick of a millisecond, so that a burst may pass between two scrapes. A priority below
0 is turned away at once while the pool is saturated, by 429; who has waited for `ttl`, by 503.
(pkg/epp/flowcontrol and requestcontrol of gateway-api-inference-extension and
llm-d-inference-scheduler; newer releases of the latter let priorities below 0 wait: shed=off.)
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence as List
from heapq import heappop, heappush
from typing import NamedTuple

from loadstone.core.errors import InputError
from loadstone.core.plan import Plan, TrafficClass
from loadstone.engines.habits import Route
from loadstone.predict.scheduler import Sequence
from loadstone.predict.scheduler.queue import Refusal
from loadstone.predict.simulator.engine import NEVER, Replica
from loadstone.predict.simulator.flow_control import FlowControl
from loadstone.predict.simulator.pipeline import Unit, next_s_of, route
from loadstone.predict.simulator.run import states_of

_TICK_S = 0.001
_TTFT_HEADER = "x-slo-ttft-ms"
_SATURATED = "rejected-saturated: the pool is saturated, and the priority is below 0"
_EXPIRED = "rejected-ttl-expired: it has waited for the gateway's ttl"


class _Flow(NamedTuple):
    """Holds what a gateway reads of a class; `ttft_s`: the bound that its header has."""

    priority: int = 0
    tenant: str = ""
    ttft_s: float = math.inf

    @classmethod
    def of_class(cls, kind: TrafficClass) -> _Flow:
        """Read it. Raises InputError."""
        named = {name.lower(): value for name, value in kind.headers.items()}
        text = named.get(_TTFT_HEADER, "inf")
        try:
            ttft_s = float(text) / 1000
        except ValueError:
            raise InputError(
                f"class {kind.name}: {_TTFT_HEADER} {text!r} is no number of milliseconds"
            ) from None
        return cls(kind.priority or 0, kind.tenant or "", ttft_s)


_Held = tuple[float, int, Sequence]
"""A request that waits: what it is ordered by, its number, and itself."""


class Gateway:
    """Holds the requests of a fleet back while it is saturated; to its driver it is one Replica.

    refused  those who were turned away, until its reader empties it
    """

    def __init__(
        self,
        control: FlowControl,
        units: list[Unit],
        replicas: List[Replica],
        how: Route | None,
        requests: tuple[Plan, int],
    ) -> None:
        """`how`: a replica is chosen; None: as the engine does. `requests`: plan and cell."""
        self.next_s = NEVER
        self.refused: list[Refusal] = []
        self._control, self._units, self._replicas = control, units, replicas
        self._how: Route = how or replicas[0].scheduler.policy.route
        self._plan, self._cell = requests
        self._flows = [*map(_Flow.of_class, self._plan.classes)] or [_Flow()]
        self._bands: dict[int, dict[str, list[_Held]]] = {}
        self._last: dict[int, str] = {}
        self._expiries: deque[tuple[float, Sequence]] = deque()
        self._held: set[int] = set()
        self._came = self._handed = 0
        self._scraped_s, self._poll_s, self._tick_s = -NEVER, NEVER, NEVER
        self._saturation = 0.0
        self._ended: Unit | None = None

    @property
    def load(self) -> int:
        return len(self._held) + sum(unit.load for unit in self._units)

    @property
    def ending(self) -> list[Replica]:
        """The replicas whose step is the next event, if it is one."""
        unit = min(self._units, key=next_s_of)
        return unit.ending if unit.next_s == self.next_s else []

    def add(self, sequence: Sequence, at_s: float) -> None:
        """A request arrives."""
        control, refresh_s = self._control, self._control.refresh
        if self._poll_s == NEVER:  # nothing has happened since, and nothing runs
            scrape = math.floor(at_s / refresh_s)
            self._scrape(scrape * refresh_s)
            self._poll_s = (scrape + 1) * refresh_s
        kind = self._plan.class_of(self._plan.row(self._cell, sequence.row))
        priority, tenant, ttft_s = self._flows[kind]
        if priority < 0 and control.shed == "on" and self._is_saturated(at_s):
            self.refused.append(Refusal(sequence, 429, _SATURATED))
            self._see_next()
            return
        self._came += 1
        flow = self._bands.setdefault(priority, {}).setdefault(tenant, [])
        order_by = at_s + ttft_s if control.ordering == "slo-deadline" else at_s
        heappush(flow, (order_by, self._came, sequence))
        self._held.add(sequence.row)
        if control.ttl:
            self._expiries.append((at_s + control.ttl, sequence))
        self._dispatch(at_s)
        self._see_next()

    def finish(self) -> list[Sequence]:
        """Go to `next_s`: a step, the end of a wait, a scrape, or a tick."""
        now_s = self.next_s
        unit = self._ended = min(self._units, key=next_s_of)
        if unit.next_s == now_s:
            return unit.finish()
        self._ended = None
        if self._expiries and self._expiries[0][0] == now_s:
            sequence = self._expiries.popleft()[1]
            if sequence.row in self._held:
                self._held.discard(sequence.row)
                self.refused.append(Refusal(sequence, 503, _EXPIRED))
            return []
        if self._poll_s == now_s:
            self._scrape(now_s)
            self._poll_s = now_s + self._control.refresh
        self._dispatch(now_s)
        return []

    def go_on(self) -> None:
        if self._ended is not None:
            self._ended.go_on()
        self._see_next()

    def _see_next(self) -> None:
        step_s = min(map(next_s_of, self._units))
        if step_s == NEVER and not self._held:
            self._poll_s = self._tick_s = NEVER
        self.next_s = min(step_s, self._poll_s, self._tick_s)
        if self._expiries:
            self.next_s = min(self.next_s, self._expiries[0][0])

    # --- saturation -------------------------------------------------------------------------------

    def _scrape(self, at_s: float) -> None:
        """Read the engines' metrics."""
        control, kv_tokens = self._control, self._replicas[0].scheduler.policy.kv_tokens
        states = states_of(self._replicas, at_s)
        self._scraped_s = at_s
        self._saturation = sum(
            max(
                state.waiting / control.queue_depth,
                state.used_tokens / kv_tokens / control.kv_utilization,
            )
            for state in states
        ) / len(states)

    def _is_saturated(self, now_s: float) -> bool:
        return self._saturation >= 1 or now_s - self._scraped_s > self._control.stale

    # --- who is next ------------------------------------------------------------------------------

    def _dispatch(self, now_s: float) -> None:
        """Hand out the next one that waits, unless the pool is saturated."""
        self._tick_s = NEVER
        if not self._held or self._is_saturated(now_s):
            return
        sequence = self._take_next()
        self._handed += 1
        route(self._units, self._handed, self._how, sequence).add(sequence, now_s)
        if self._held:
            self._tick_s = now_s + _TICK_S

    def _take_next(self) -> Sequence:
        """Take the next request of the highest band out of its queue."""
        for priority in sorted(self._bands, reverse=True):
            flows = self._bands[priority]
            for tenant in list(flows):
                flow = flows[tenant]
                while flow and flow[0][2].row not in self._held:
                    heappop(flow)  # it has been turned away meanwhile
                if not flow:
                    del flows[tenant]
            if not flows:
                continue
            if self._control.fairness == "round-robin":
                last = self._last.get(priority, "")
                tenant = min(flows, key=lambda name: (name <= last, name))
                self._last[priority] = tenant
            else:
                tenant = min(flows, key=lambda name: flows[name][0])
            sequence = heappop(flows[tenant])[2]
            self._held.discard(sequence.row)
            return sequence
        raise AssertionError("a request is held in no band")
