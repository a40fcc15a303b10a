"""A deployment's engine in real time: the simulator's replicas, with a clock on the wall.

Every event has a nominal time: a request reaches the scheduler `request_s` after it was read, a
step ends when the one before did plus what it takes, a token leaves `stream_s` after its step.
Events happen in that order and at those times as far as the engine knows; a process that wakes late
writes late, and its clock does not slip.
"""

import asyncio
import heapq
import itertools
import time
from collections import deque
from dataclasses import replace

from loadstone.core.errors import InputError
from loadstone.measure.client.clock import Pacer
from loadstone.measure.simulated_server.stream import AnswerWriter
from loadstone.predict.scheduler import Scheduler, Sequence
from loadstone.predict.scheduler.blocks import SingleBlocks
from loadstone.predict.scheduler.queue import Refusal
from loadstone.predict.simulator.engine import NEVER, Replica, text_share_of
from loadstone.predict.simulator.fleet import Fleet, sharing
from loadstone.predict.simulator.pipeline import engines_of, next_s_of
from loadstone.predict.simulator.pools import Pools, Unit, route
from loadstone.predict.simulator.run import State, states_of

_WRITES_PER_TURN = 256  # then sockets are read again
_WAKE_GAP_S = 0.0002
"""Wakes come no closer than this; see stream.py."""


class RealTimeEngine:
    """Takes streams with `submit`, and has them write as the deployment would.

    `block_tokens`: of the prefix cache, for the streams' keys; 0: there is none. `priority_sign`:
    as EnginePolicy has it. `refuses_first`: who is turned away is told so before the head of an
    answer. `pools`: both,
    where there are two. `accepted`: by engine, how many steps accepted exactly 0, 1, … guesses;
    none where nothing is guessed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, fleet: Fleet) -> None:
        computing = fleet.pools[-1].policy
        if fleet.policy.prefix_cache:
            fleet, computing = replace(fleet, policy=sharing(fleet.policy)), sharing(computing)
        policy, model = fleet.policy, fleet.model
        self.block_tokens = computing.block_tokens if policy.prefix_cache else 0
        self._model = model
        self._policy = policy
        self.priority_sign = policy.priority_sign
        self.refuses_first = (
            policy.max_under_way is not None or policy.max_queued_tokens is not None
        )
        self.kv_tokens, self._longest_tokens = policy.kv_tokens, policy.longest_tokens
        self._route = policy.route
        guesses = policy.draft_tokens
        self.accepted = [[0] * (guesses + 1) for _ in range(fleet.replicas if guesses else 0)]
        self.pools: Pools | None = None
        self._replicas: list[Replica]
        self._units: list[Unit]
        if fleet.prefill is not None:
            self.pools = Pools(fleet, None, shared=policy.prefix_cache, at_once=1)
            self._replicas, self._units = [*self.pools.replicas], [self.pools]
        else:
            self._replicas, engines = engines_of(fleet, None, shared=policy.prefix_cache, at_once=1)
            self._units = [*engines]
        self._refused: list[Refusal] = []
        for replica in self._replicas:
            replica.scheduler.refused = self._refused
        self._reasons: dict[int, str] = {}
        self._engines = {
            replica.scheduler: number // policy.pipeline
            for number, replica in enumerate(self._replicas)
        }
        self._serial = itertools.count()
        self._turn = 0
        self._arrivals: list[tuple[float, int, AnswerWriter]] = []
        self._streams: dict[int, AnswerWriter] = {}
        self._where: dict[int, Unit] = {}
        self._gone: dict[int, Sequence] = {}
        self._sequences: dict[int, Sequence] = {}
        self._writes: deque[tuple[float, deque[tuple[int, int]]]] = deque()
        self._pacer = Pacer(loop, self._run)
        self.close = self._pacer.close

    def submit(self, stream: AnswerWriter, arrival_ns: int) -> None:
        """Take a request that was read. Raises InputError where it would never fit."""
        tokens = max(stream.sequences, default=stream.input_tokens + stream.output_tokens)
        if tokens > self._longest_tokens:
            raise InputError(
                f"{tokens} tokens do not fit into the KV cache of {self.kv_tokens} tokens"
            )
        if self.pools is not None:
            self.pools.check(stream.input_tokens, stream.output_tokens)
        further = text_share_of(self._model) * max(0, len(stream.sequences) - 1)
        due_s = (
            arrival_ns * 1e-9
            + self._model.request_s * (1 + further)
            + self._model.request_token_s * stream.input_tokens
        )
        stream.serial, stream.left = next(self._serial), len(stream.sequences)
        if self.accepted:
            stream.answer.accepted = [0 for _ in self.accepted[0]]
        self._streams[stream.serial] = stream
        heapq.heappush(self._arrivals, (due_s, stream.serial, stream))
        if self._arrivals[0][2] is stream:
            self._wake()

    def abandon(self, stream: AnswerWriter) -> None:
        """Drop a stream whose client has gone, when the step under way is over."""
        sequence = self._sequences.get(stream.serial)
        if sequence is not None:
            self._gone[stream.serial] = sequence
        else:
            self._streams.pop(stream.serial, None)

    def states(self) -> list[State]:
        """Return the engines as they stand."""
        return states_of(self._replicas)

    # --- events -----------------------------------------------------------------------------------

    def _run(self) -> None:
        now_s = time.monotonic()
        while True:
            unit = min(self._units, key=next_s_of)
            arrival_s = self._arrivals[0][0] if self._arrivals else NEVER
            if arrival_s <= unit.next_s and arrival_s <= now_s:
                self._arrive()
            elif unit.next_s <= now_s:
                self._step(unit)
            else:
                break
        self._write_due()
        self._wake()

    def _wake(self) -> None:
        due_s = min(map(next_s_of, self._units))
        if self._writes:
            due_s = min(due_s, self._writes[0][0])
        if self._arrivals:
            due_s = min(due_s, self._arrivals[0][0])
        if due_s < NEVER:
            self._pacer.wake_at(int(max(due_s, time.monotonic() + _WAKE_GAP_S) * 1e9))

    def _arrive(self) -> None:
        due_s, serial, stream = heapq.heappop(self._arrivals)
        if serial not in self._streams:
            return
        sequence = Sequence(serial, stream.input_tokens, stream.output_tokens)
        if stream.priority is None:
            sequence.priority = self._policy.unset_priority
        else:
            sequence.priority = self.priority_sign * stream.priority
        sequence.share(SingleBlocks(stream.keys), len(stream.keys))
        sequence.adapter = stream.adapter
        self._turn += 1
        unit = route(self._units, self._turn, self._route, sequence)
        self._sequences[serial] = sequence
        self._where[serial] = unit
        for tokens in stream.sequences:
            unit.add(Sequence(serial, tokens, 1), due_s)
        if not stream.sequences:
            unit.add(sequence, due_s)
        self._turn_away(due_s)
        if serial not in self._reasons:
            stream.open()

    def _turn_away(self, at_s: float) -> None:
        """Those who were turned away will be told."""
        for sequence, _, reason in self._refused:
            self._reasons[sequence.row] = reason
            self._writes.append((at_s + self._model.stream_s, deque([(sequence.row, 0)])))
        self._refused.clear()

    def _step(self, unit: Unit) -> None:
        """A step is over: who wrote a token, and the next one is under way."""
        members = unit.ending
        wrote = [
            (sequence, member.scheduler)
            for member in members
            if member.scheduler.decoding
            for sequence in member.scheduler.running
            if sequence.end_tick > member.scheduler.tick
        ]
        at_s = unit.next_s
        unit.finish()
        if self.accepted:
            self._count_accepted(wrote)
        wrote += [
            (sequence, member.scheduler)
            for member in members
            for sequence in member.scheduler.begun
        ]
        due = deque(
            (
                sequence.row,
                scheduler.written_by(sequence) if sequence.end_tick else sequence.emitted + 1,
            )
            for sequence, scheduler in wrote
        )
        if due:
            self._writes.append((at_s + self._model.stream_s, due))
        for serial, sequence in list(self._gone.items()):
            if self._where.get(serial) is not unit:
                continue
            runs_in = [
                replica for replica in self._replicas if sequence in replica.scheduler.running
            ]
            if runs_in and runs_in[0] not in members:
                continue  # its batch is still on its way through the pipeline
            schedulers = [
                member.scheduler
                for member in members
                if sequence in (*member.scheduler.running, *member.scheduler.waiting)
            ]
            for scheduler in schedulers:
                scheduler.abort(sequence)
            if self.pools is not None:
                if not schedulers:
                    # it is on its way to the decode pool, or its worker's step is under way
                    continue
                self.pools.drop(sequence)
            self._forget(serial)
        unit.go_on()
        self._turn_away(at_s)
        if self.pools is not None and self.pools.shown:
            firsts = deque((sequence.row, 1) for sequence in self.pools.shown)
            self._writes.append((at_s + self._model.stream_s, firsts))
            self.pools.shown.clear()

    def _count_accepted(self, wrote: list[tuple[Sequence, Scheduler]]) -> None:
        for sequence, scheduler in wrote:
            accepted = scheduler.accepted_by(sequence)
            if accepted is not None:
                self.accepted[self._engines[scheduler]][accepted] += 1
                stream = self._streams.get(sequence.row)
                if stream is not None:
                    stream.answer.accepted[accepted] += 1

    def _write_due(self) -> None:
        """Some of the tokens that are due; the rest follow once the sockets have been read."""
        left = _WRITES_PER_TURN
        writes = self._writes
        now_s = time.monotonic()
        while writes and writes[0][0] <= now_s:
            due = writes[0][1]
            while due:
                if not left:
                    return
                left -= 1
                serial, written = due.popleft()
                stream = self._streams.get(serial)
                if stream is None:
                    continue
                if serial in self._reasons:
                    stream.turn_away(self._reasons[serial])
                    self._forget(serial)
                    continue
                if stream.sequences:
                    stream.left -= 1
                    if stream.left:
                        continue
                    written = stream.output_tokens
                stream.cached_tokens = self._sequences[serial].cached_tokens
                if not stream.write(written):
                    self.abandon(stream)
                elif written == stream.output_tokens:
                    self._forget(serial)
            writes.popleft()

    def _forget(self, serial: int) -> None:
        for table in (self._streams, self._sequences, self._where, self._gone):
            table.pop(serial, None)
        self._reasons.pop(serial, None)
