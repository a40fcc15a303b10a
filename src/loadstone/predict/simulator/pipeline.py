"""One engine as its driver sees it, and a pipeline: one whose stages work on several batches at a
time.

A step of a batch takes what StepTimes says, in equal parts on the stages; a stage takes one batch
after the other, in the order in which they were scheduled. So one batch alone takes the sum of the
stages, with the others idle, and many take turns at the pace of the longest of them.

A batch is scheduled when one has ended or the pipeline is empty, and takes all that it may. Who
arrives meanwhile waits for that, though a stage be idle: so do the engines, which block until the
oldest batch has ended. Few requests may all go with one batch, then, and stay with it (vLLM issue
41682, pull requests 39165 and 19873 complain of it).
"""

from collections import deque
from operator import attrgetter
from typing import Protocol

from loadstone.engines.habits import Route
from loadstone.predict.scheduler import Sequence, batches_of
from loadstone.predict.simulator.engine import (
    NEVER,
    LockstepGroup,
    Replica,
    RequestLog,
    choose_replica,
)
from loadstone.predict.simulator.fleet import Fleet


class Pipeline:
    """To its driver it is one Replica.

    slots  a Replica for each batch under way; or a LockstepGroup of them, one for each of the ranks
           that go in step
    """

    def __init__(self, slots: list[Replica] | list[LockstepGroup]) -> None:
        self._slots: list[Replica | LockstepGroup] = [*slots]
        self._under_way: deque[Replica | LockstepGroup] = deque()  # in the order in which they end
        self._stages_s = [0.0] * len(slots)  # when each stage has done all that was scheduled
        self._ended = self._slots[0]
        self._alone = False  # one batch walks over several steps, while nothing else is there
        self.now_s = 0.0
        self.next_s = NEVER
        self._turn = 0

    @property
    def ending(self) -> list[Replica]:
        return _members(self._under_way[0])

    @property
    def load(self) -> int:
        return sum(self._loads())

    def _loads(self) -> list[int]:
        """Return Replica.load of each rank: its batches have one queue."""
        ranks = zip(*map(_members, self._slots), strict=True)
        return [rank[0].load + sum(batch.running_load for batch in rank[1:]) for rank in ranks]

    def add(self, sequence: Sequence, at_s: float) -> None:
        ranks = _members(self._slots[0])
        self._turn += 1
        rank = choose_replica(
            self._loads(), self._turn, ranks[0].scheduler.policy.route, sequence, ranks
        )
        ranks[rank].scheduler.add(sequence)
        if not self._under_way:
            self.now_s = at_s
            self.go_on()
        elif self._alone:
            slot = self._under_way[0]
            slot.cut(at_s)
            self.next_s = slot.next_s

    def finish(self) -> list[Sequence]:
        """The oldest batch has ended."""
        self._ended = slot = self._under_way.popleft()
        self.now_s = self.next_s
        ended = slot.finish()
        slot.next_s = NEVER
        for member in _members(slot):
            member.next_s = NEVER
        return ended

    def go_on(self) -> None:
        """Schedule a batch for every slot that is idle, of the one that has ended first, as far as
        there is work."""
        self._alone = False
        for slot in sorted(self._slots, key=lambda each: each is not self._ended):
            if slot in self._under_way or not _has_work(slot):
                continue
            a, b, steps = slot.plan()
            if not steps:
                continue
            slot.now_s = self.now_s
            shared = any(_has_work(member) for member in self._slots if member is not slot)
            if steps > 1 and not shared:
                self._alone = True
                slot.begin(a, b, steps)
            else:
                slot.begin(self._leaves_at_s(a) - self.now_s, 0.0, 1)
            self._under_way.append(slot)
        self.next_s = self._under_way[0].next_s if self._under_way else NEVER

    def _leaves_at_s(self, step_s: float) -> float:
        """Return when a batch of so long a step, entering now, leaves the last stage."""
        at_s = self.now_s
        stages_s = self._stages_s
        each_s = step_s / len(stages_s)
        for stage, free_s in enumerate(stages_s):
            stages_s[stage] = at_s = max(at_s, free_s) + each_s
        return at_s


def _members(slot: Replica | LockstepGroup) -> list[Replica]:
    return slot.members if isinstance(slot, LockstepGroup) else [slot]


def _has_work(slot: Replica | LockstepGroup) -> bool:
    """Tell whether something runs in it, or prompts wait that might go with it."""
    return any(
        member.scheduler.running or member.scheduler.has_prompts for member in _members(slot)
    )


Unit = Replica | LockstepGroup | Pipeline


def route(units: list[Unit], turn: int, how: Route, sequence: Sequence) -> Unit:
    """Choose who takes the `turn`-th request."""
    replicas = [*map(first_of, units)] if how == "prefix" else None
    return units[choose_replica([unit.load for unit in units], turn, how, sequence, replicas)]


def first_of(unit: Unit) -> Replica:
    """Return the first replica of a unit, whose cache stands for all of it."""
    return _members(unit._slots[0] if isinstance(unit, Pipeline) else unit)[0]


next_s_of = attrgetter("next_s")


class _Driven(Protocol):
    def finish(self) -> list[Sequence]: ...
    def go_on(self) -> None: ...


def complete(unit: _Driven) -> list[Sequence]:
    """Go to the unit's `next_s`, and begin what comes next; returns who ended there."""
    ended = unit.finish()
    unit.go_on()
    return ended


def engines_of(
    fleet: Fleet,
    journal: RequestLog | None,
    *,
    shared: bool,
    seed: int = 0,
    at_once: int = 1 << 30,
    first: int = 0,
) -> tuple[list[Replica], list[Unit]]:
    """Make the replicas of a fleet, the batches of one engine after another, with numbers from
    `first` on; and the units that a driver sees."""
    policy, batches = fleet.policy, fleet.policy.pipeline
    schedulers = [
        scheduler
        for _ in range(fleet.replicas)
        for scheduler in batches_of(policy, shared=shared, seed=seed)
    ]
    replicas = [
        Replica(scheduler, fleet.model, journal, number=number, at_once=at_once)
        for number, scheduler in enumerate(schedulers, first)
    ]
    size = len(replicas) // fleet.workers
    if policy.turns_away:
        for number, scheduler in enumerate(schedulers):
            first = number // size * size
            scheduler.peers = schedulers[first : first + size]
    if fleet.in_step and size > batches:
        workers = [replicas[first : first + size] for first in range(0, len(replicas), size)]
        if batches == 1:
            return replicas, [LockstepGroup(worker) for worker in workers]
        return replicas, [
            Pipeline([LockstepGroup(worker[batch::batches]) for batch in range(batches)])
            for worker in workers
        ]
    if batches == 1:
        return replicas, [*replicas]
    return replicas, [
        Pipeline(replicas[first : first + batches]) for first in range(0, len(replicas), batches)
    ]
