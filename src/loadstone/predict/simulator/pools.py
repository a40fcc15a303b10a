"""Prefill and decode in pools of workers of their own: a router, two fleets of schedulers, and the
way between them.

A request goes to a prefill worker, which computes its prompt and no more; its KV cache goes over a
link to a decode worker, where it decodes without a step of prompts. In which order room is kept,
who holds which blocks until when, and who makes the first token is the engine's (`Handover`,
engines/rules.py, with sources):

reserves first   (SGLang) the decode rank is chosen on arrival, and the prompt waits until that has
                 room. So a full decode pool stops prefill, and shows in TTFT
else             (vLLM, TensorRT-LLM) the prompt is computed, and its blocks stay on the prefill
                 rank until a decode rank has room and has read them. So a full decode pool fills
                 the prefill pool's caches, then stops it

A prefill rank takes prompts as far as its cache has room beside those that still wait to be read. A
link is one prefill rank's and one decode rank's: transfers of either follow one another.
"""

from collections import deque
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Generic, Protocol, TypeVar, cast

from loadstone.core.errors import InputError
from loadstone.engines.habits import Handover, Route
from loadstone.predict.scheduler import Scheduler, Sequence, batches_of
from loadstone.predict.simulator.engine import (
    NEVER,
    LockstepGroup,
    Replica,
    RequestLog,
    choose_replica,
)
from loadstone.predict.simulator.fleet import Fleet, sharing
from loadstone.predict.simulator.gateway import Gateway
from loadstone.predict.simulator.pipeline import Unit as _Engine
from loadstone.predict.simulator.pipeline import engines_of, first_of, next_s_of
from loadstone.predict.simulator.pipeline import route as choose_engine
from loadstone.predict.simulator.run import PoolTimes
from loadstone.workload.routing import choose_by_prefix

_Rank = TypeVar("_Rank")
_Chosen = TypeVar("_Chosen", bound="_Loaded")


class _Loaded(Protocol):
    @property
    def load(self) -> int: ...


class DecodeReplica(Replica):
    """A replica whose requests come with the KV caches of their prompts.

    promised_tokens  of prompts for which it keeps room, but which do not decode yet
    whole_tokens     of prompts and answers of all that it has or awaits, `there` of them
    queue            who waits for room here
    shown            whose first token, made by the prefill side, was shown as a step began; a
                     driver in real time writes and empties it
    unit             the group that it goes in step with, or itself
    """

    def __init__(
        self,
        fleet: Fleet,
        scheduler: Scheduler,
        journal: RequestLog | None,
        number: int,
        at_once: int,
    ) -> None:
        super().__init__(scheduler, fleet.model, journal, number, at_once)
        self.promised_tokens = self.whole_tokens = self.there = 0
        self.queue: deque[_Request] = deque()
        self.link_free_s = 0.0
        self.shown: list[Sequence] = []
        self.unit: _Engine = self

    @property
    def load(self) -> int:
        return self.there + len(self.queue)

    def begin(self, a: float, b: float, steps: int) -> None:
        joined = self.scheduler.joined
        if joined:
            self.scheduler.joined = []
            self._join(joined, a)
        Replica.begin(self, a, b, steps)

    def show_only(self, sequence: Sequence, at_s: float) -> None:
        """Show the one token of an answer."""
        self.now_s, under_way_s = at_s, self.now_s
        self._join([sequence], 0.0)
        self.scheduler.written_tokens += 1
        self.now_s = under_way_s

    def _join(self, joined: list[Sequence], step_s: float) -> None:
        """Note the first tokens of those that decode from now on, in a step of so many seconds."""
        journal = self._journal
        for sequence in joined:
            self.promised_tokens -= sequence.prompt_tokens
            if journal is None:
                if sequence.emitted == 0:
                    self.shown.append(sequence)
                continue
            late = sequence.emitted < 0  # its first token is that of the step
            journal.first_s[sequence.row] = self.now_s + step_s if late else self.now_s
            journal.first_tick[sequence.row] = self.scheduler.tick + late
            journal.replica[sequence.row] = self._number


class _Worker(Generic[_Rank]):
    """A worker of either pool: its ranks, how many requests it has, and how many it ever had."""

    __slots__ = ("load", "ranks", "turn")

    def __init__(self, ranks: list[_Rank]) -> None:
        self.ranks = ranks
        self.load = self.turn = 0


class _PrefillRank:
    """A scheduler of the prefill pool: `replica` of a group that goes in step, or (None) the whole
    unit.

    held_tokens  of prompts that it has or computes and that were not read yet
    """

    def __init__(self, unit: _Engine, replica: Replica | None, kv_tokens: int) -> None:
        self.unit, self.replica, self.kv_tokens = unit, replica, kv_tokens
        self.held_tokens = self.load = 0
        self.queue: deque[_Request] = deque()
        self.link_free_s = 0.0

    def cached_blocks(self, sequence: Sequence) -> int:
        return (self.replica or first_of(self.unit)).scheduler.cached_blocks(sequence)


class _Request:
    """A request on its way, and the ranks that have it; `since_s`: when the stage that it is in
    began."""

    __slots__ = ("decode", "decoder", "prefill", "prefiller", "sequence", "since_s")
    prefiller: _Worker[_PrefillRank]
    prefill: _PrefillRank
    decoder: _Worker[DecodeReplica]
    decode: DecodeReplica

    def __init__(self, sequence: Sequence, since_s: float) -> None:
        self.sequence, self.since_s = sequence, since_s


class Pools:
    """Both pools; to their driver they are one Replica."""

    def __init__(
        self,
        fleet: Fleet,
        journal: RequestLog | None,
        *,
        shared: bool,
        seed: int = 0,
        at_once: int = 1 << 30,
    ) -> None:
        pool = fleet.prefill
        assert pool is not None  # noqa: S101
        self.times = PoolTimes(pool.fleet.workers)
        self.next_s = NEVER
        self.load = 0
        self.shown: list[Sequence] = []
        self._rules: Handover = pool.rules
        self._link, self._policy, self._kv_tokens = pool.link, fleet.policy, fleet.policy.kv_tokens
        self._link_s: dict[int, float] = {}
        self._slots = pool.rules.slots(fleet.policy.max_seqs)
        self._route, self._prompt_limit = pool.route, pool.context_limit
        self.replicas: list[DecodeReplica] = []
        for number in range(fleet.replicas):
            (scheduler,) = batches_of(fleet.policy, seed=seed)
            replica = DecodeReplica(fleet, scheduler, journal, number, at_once)
            replica.shown = self.shown
            self.replicas.append(replica)
        size = fleet.replicas // fleet.workers
        self._decode: list[_Worker[DecodeReplica]] = []
        for first in range(0, fleet.replicas, size):
            members = self.replicas[first : first + size]
            self._decode.append(_Worker(members))
            if fleet.in_step and size > 1:
                group = LockstepGroup([*members])
                for member in members:
                    member.unit = group
        units = dict.fromkeys(replica.unit for replica in self.replicas)
        computing = replace(pool.fleet, policy=sharing(pool.fleet.policy)) if shared else pool.fleet
        self.prefill_replicas, prefills = engines_of(computing, None, shared=shared, seed=seed)
        self._prefill = _prefill_workers(prefills, computing)
        self._is_prefill = set(map(id, prefills))
        self._share = pool.fleet.workers / len(prefills)
        self._units = [*prefills, *units]
        self._next = self._units[0]
        self._requests: dict[int, _Request] = {}
        self._coming: list[tuple[float, int, _Request]] = []
        self._serial = count()
        self._turn = 0
        self._random = Random(seed)
        self._chunk = pool.fleet.policy.max_batched_tokens if pool.rules.by_chunk else 1 << 62
        self._finished: _Engine | None = None
        self._freed: dict[DecodeReplica, None] = {}

    # --- as its driver sees it --------------------------------------------------------------------

    @property
    def ending(self) -> list[Replica]:
        """The decode replicas whose step is the next event, if it is one."""
        if (self._coming and self._coming[0][0] <= self.next_s) or id(
            self._next
        ) in self._is_prefill:
            return []
        return self._next.ending

    def check(self, prompt_tokens: int, answer_tokens: int) -> None:
        """Raise InputError for a request that would never have room."""
        spare = self._rules.spare_tokens
        limit, held = self._kv_tokens, prompt_tokens + (answer_tokens if spare is None else spare)
        if held > limit or prompt_tokens + answer_tokens > limit:
            kept = f", with {spare} kept free" if spare else ""
            raise InputError(
                f"a decode worker's KV cache of {limit} tokens has no room for one request of"
                f" {prompt_tokens} + {answer_tokens} tokens{kept}; ask for less, or give the decode"
                " pool more memory"
            )
        if self._prompt_limit is not None and prompt_tokens >= self._prompt_limit:
            raise InputError(
                f"a prefill worker's context of {self._prompt_limit} tokens has no room for"
                f" {prompt_tokens} and the first of the answer; ask for less"
            )
        limit = self._prefill[0].ranks[0].kv_tokens
        if prompt_tokens > limit:
            raise InputError(
                f"a prefill worker's KV cache of {limit} tokens has no room for {prompt_tokens};"
                " ask for less"
            )

    def drop(self, sequence: Sequence) -> None:
        """Its client has gone, and the scheduler that decodes it knows."""
        request = self._requests.pop(sequence.row)
        if not sequence.end_tick and not sequence.preempted:
            request.decode.promised_tokens -= sequence.prompt_tokens
        self._leave(request)

    def add(self, sequence: Sequence, at_s: float) -> None:
        self.check(sequence.prompt_tokens, sequence.output_tokens)
        self._turn += 1
        request = self._requests[sequence.row] = _Request(sequence, at_s)
        if self._rules.reserves_first:
            self._ask_for_room(request, at_s)
        else:
            self._to_prefill(request, at_s)
        self._see_next()

    def finish(self) -> list[Sequence]:
        """Go to `next_s`; return whose last token was written there."""
        now_s = self.next_s
        if self._coming and self._coming[0][0] <= now_s:
            self._finished = None
            return self._arrive(heappop(self._coming)[2], now_s)
        unit = self._finished = self._next
        if id(unit) in self._is_prefill:
            self.times.busy_s += (now_s - unit.now_s) * self._share
            for sequence in unit.finish():
                self._computed(self._requests[sequence.row], sequence, now_s)
            return []
        ended = unit.finish()
        for sequence in ended:
            self._leave(self._requests.pop(sequence.row))
        return ended

    def go_on(self) -> None:
        if self._finished is not None:
            now_s = self._finished.now_s
            self._finished.go_on()
            if self._freed:
                freed, self._freed = self._freed, {}
                for replica in freed:
                    self._let_in(replica, now_s)
            self._next = min(self._units, key=next_s_of)
        self._see_next()

    def _hand(self, unit: _Engine, member: Replica | None, sequence: Sequence, at_s: float) -> None:
        """Give a unit a request, for that member of a group. What it does may end sooner then."""
        if isinstance(unit, LockstepGroup):
            unit.add(sequence, at_s, member)
        else:
            unit.add(sequence, at_s)
        if unit.next_s <= self._next.next_s:
            self._next = min(self._units, key=next_s_of)

    def _see_next(self) -> None:
        next_s, coming = self._next.next_s, self._coming
        self.next_s = coming[0][0] if coming and coming[0][0] < next_s else next_s

    # --- the way of a request ---------------------------------------------------------------------

    def _ask_for_room(self, request: _Request, at_s: float) -> None:
        """Choose its decode rank, and take room there, or wait for it."""
        request.since_s = at_s
        worker = request.decoder = self._choose(self._decode, self._route, self._turn, request)
        worker.load += 1
        worker.turn += 1
        route = self._policy.route
        replica = request.decode = self._choose(worker.ranks, route, worker.turn, request)
        replica.queue.append(request)
        self._let_in(replica, at_s)

    def _choose(
        self,
        choices: list[_Chosen],
        how: Route,
        turn: int,
        request: _Request,
        found: list[int] | None = None,
    ) -> _Chosen:
        """Choose among workers or ranks for the `turn`-th request. `found`: blocks of the prompt in
        the cache of each."""
        if len(choices) == 1:
            return choices[0]
        loads = [choice.load for choice in choices]
        if how == "prefix" and found is not None:
            return choices[choose_by_prefix(found, loads, turn)]
        return choices[choose_replica(loads, turn, how, request.sequence)]

    def _let_in(self, replica: DecodeReplica, at_s: float) -> None:
        """Give room to those who wait for it, in their order, as far as there is any."""
        while replica.queue and self._has_room(replica, replica.queue[0].sequence):
            request = replica.queue.popleft()
            sequence = request.sequence
            replica.there += 1
            replica.promised_tokens += sequence.prompt_tokens
            replica.whole_tokens += sequence.prompt_tokens + sequence.output_tokens
            self.times.room_s += at_s - request.since_s
            if self._rules.reserves_first:
                self._to_prefill(request, at_s)
            else:
                self._send(request, at_s)

    def _has_room(self, replica: DecodeReplica, sequence: Sequence) -> bool:
        spare, tokens = self._rules.spare_tokens, sequence.prompt_tokens
        if spare is None:
            tokens += replica.whole_tokens + sequence.output_tokens
        else:
            tokens += (
                int(replica.scheduler.context_tokens)
                + replica.promised_tokens
                + spare * (replica.there + 1)
            )
        if tokens > self._kv_tokens:
            return False
        if self._rules.takes_slot:
            return replica.there < self._slots
        return len(replica.scheduler.running) + len(replica.scheduler.waiting) < self._slots

    def _to_prefill(self, request: _Request, at_s: float) -> None:
        request.since_s = at_s
        found: list[int] | None = None
        if self._route == "prefix":
            found = [
                max(rank.cached_blocks(request.sequence) for rank in worker.ranks)
                for worker in self._prefill
            ]
        worker = request.prefiller = self._choose(
            self._prefill, self._route, self._turn, request, found
        )
        ranks = worker.ranks
        if self._rules.by_room and len(ranks) > 1:
            rank = ranks[int(self._random.random() * len(ranks))]
        else:
            rank = self._choose(ranks, self._route, self._turn, request)
        request.prefill = rank
        worker.load += 1
        rank.load += 1
        rank.queue.append(request)
        self._feed(rank, at_s)

    def _feed(self, rank: _PrefillRank, at_s: float) -> None:
        """Have a rank compute the prompts that its cache has room for beside those not read yet."""
        while rank.queue:
            sequence = rank.queue[0].sequence
            held = rank.held_tokens + sequence.prompt_tokens
            if held > rank.kv_tokens and rank.held_tokens:
                return
            rank.held_tokens = held
            rank.queue.popleft()
            prompt = Sequence(sequence.row, sequence.prompt_tokens, 1)
            prompt.adapter, prompt.pictures = sequence.adapter, sequence.pictures
            prompt.states = sequence.states
            if sequence.shared_blocks:
                prompt.share(sequence.segments, sequence.shared_blocks)
            self._hand(rank.unit, rank.replica, prompt, at_s)

    def _computed(self, request: _Request, computed: Sequence, at_s: float) -> None:
        """Its prompt is computed."""
        request.sequence.cached_tokens = computed.cached_tokens
        self.times.prefill_s += at_s - request.since_s
        if self._rules.reserves_first:
            self._send(request, at_s)
        else:
            self._ask_for_room(request, at_s)

    def _send(self, request: _Request, at_s: float) -> None:
        """Put its cache on the link."""
        prefill, replica = request.prefill, request.decode
        tokens = request.sequence.prompt_tokens
        request.since_s = at_s
        takes_s = self._takes_s(tokens)
        sooner_s = (
            takes_s - self._takes_s(tokens % self._chunk or self._chunk)
            if tokens > self._chunk
            else 0.0
        )
        start_s = at_s - sooner_s
        if prefill.link_free_s > start_s or replica.link_free_s > start_s:
            start_s = max(prefill.link_free_s, replica.link_free_s)
            self.times.waited_s += max(0.0, start_s - at_s)
        prefill.link_free_s = replica.link_free_s = over_s = max(start_s + takes_s, at_s)
        heappush(self._coming, (over_s + self._link.latency_s, next(self._serial), request))

    def _takes_s(self, tokens: int) -> float:
        """Return the link's own time, kept by length."""
        takes_s = self._link_s.get(tokens)
        if takes_s is None:
            takes_s = self._link_s[tokens] = self._link.transfer_s(tokens)
        return takes_s

    def _arrive(self, request: _Request, at_s: float) -> list[Sequence]:
        """Its cache is there, and the prefill side's is free; return it where nothing is left to
        decode."""
        prefill, replica, sequence = request.prefill, request.decode, request.sequence
        times = self.times
        times.transfers += 1
        times.prompt_tokens += sequence.prompt_tokens
        times.link_s += at_s - request.since_s
        prefill.load -= 1
        request.prefiller.load -= 1
        prefill.held_tokens -= sequence.prompt_tokens
        self._feed(prefill, at_s)
        if sequence.shared_blocks:
            sequence.share((), 0)
        if self._rules.first_by == "decode":
            sequence.emitted, sequence.target = -1, sequence.prompt_tokens - 1
        elif sequence.output_tokens == 1:
            replica.show_only(sequence, at_s)
            self._leave(self._requests.pop(sequence.row))
            self._let_in(replica, at_s)
            return [sequence]
        sequence.computed = sequence.target
        self._hand(replica.unit, replica, sequence, at_s)
        return []

    def _leave(self, request: _Request) -> None:
        """It has ended, or its client has gone, and its room is free."""
        replica, sequence = request.decode, request.sequence
        request.decoder.load -= 1
        replica.there -= 1
        replica.whole_tokens -= sequence.prompt_tokens + sequence.output_tokens
        if replica.queue:
            self._freed[replica] = None


def _prefill_workers(units: list[_Engine], fleet: Fleet) -> list[_Worker[_PrefillRank]]:
    """Return the ranks of each prefill worker."""
    tokens, size = fleet.policy.kv_tokens, fleet.replicas // fleet.workers
    if fleet.in_step and len(units) == fleet.workers:
        return [_Worker(_group_ranks(unit, tokens, size)) for unit in units]
    ranks = [_PrefillRank(unit, None, tokens) for unit in units]
    size = len(units) // fleet.workers
    return [_Worker(ranks[first : first + size]) for first in range(0, len(ranks), size)]


def _group_ranks(unit: _Engine, tokens: int, size: int) -> list[_PrefillRank]:
    """Return the ranks of a group that goes in step; one where a pipeline hides them."""
    if isinstance(unit, LockstepGroup):
        return [_PrefillRank(unit, member, tokens) for member in unit.members]
    return [_PrefillRank(unit, None, tokens * size)]


Unit = _Engine | Pools | Gateway


def route(units: list[Unit], turn: int, how: Route, sequence: Sequence) -> Unit:
    """Choose who takes the `turn`-th request; pools and gateways have routers of their own."""
    if isinstance(units[0], Pools | Gateway):
        return units[0]
    return choose_engine(cast(list[_Engine], units), turn, how, sequence)
