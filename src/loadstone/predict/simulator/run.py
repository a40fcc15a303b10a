"""The record that a simulated cell leaves behind, its state on the way, and what its engines
report.

The latter has vLLM's names, as measure/engines/observe.py keeps it of real ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from loadstone.core.errors import InputError
from loadstone.engines.habits import Route
from loadstone.predict.scheduler import Scheduler
from loadstone.predict.scheduler.queue import Refusal
from loadstone.predict.simulator.client import CellRequests
from loadstone.predict.simulator.content import Contents
from loadstone.predict.simulator.encoders import EncoderWork
from loadstone.predict.simulator.engine import NEVER, Replica, RequestLog
from loadstone.predict.simulator.pictures import PromptPictures

if TYPE_CHECKING:
    import pyarrow as pa


_MAX_KEPT = 20_000
MAX_REQUESTS = 5_000_000
"""Of a cell that runs by time; one that would have more is refused."""
_TELLING_REQUESTS = 5_000
"""From their pace it can be told, within a factor of two, how many the whole cell will have."""


class State(NamedTuple):
    """An engine at one moment, as its /metrics would have it. Counters count from the cell's
    beginning.

    used_tokens  of the KV cache, in whole blocks (of a cell with shared prompts, those of
                 fleet.sharing())
    """

    running: int
    waiting: int
    used_tokens: int
    prompt_tokens: int
    written_tokens: int
    preemptions: int = 0
    cache_queries: int = 0
    cache_hits: int = 0


Look = Callable[[float, Sequence[State]], float]
"""Called with a moment and each engine's state then; returns the moment it wants to see next."""


class LookBuffer:
    """Keeps states until it is sure that they happened."""

    def __init__(self) -> None:
        self._kept: list[tuple[float, Sequence[State]]] = []
        self._every_s = 1.0

    def look(self, at_s: float, states: Sequence[State]) -> float:
        self._kept.append((at_s, states))
        if len(self._kept) > _MAX_KEPT:
            del self._kept[1::2]
            self._every_s *= 2
        return at_s + self._every_s

    def show(self, look: Look) -> None:
        """Show the states to `look`, as often as it asks for."""
        next_s = -math.inf
        for at_s, states in self._kept:
            if at_s >= next_s:
                next_s = look(at_s, states)


class PoolTimes(msgspec.Struct):
    """How long requests of a cell took on each part of their way, in seconds of all together;
    `transfers`: how many.

    workers    that prefill
    room_s     wait for room in the decode pool
    prefill_s  in the prefill pool: its queue and its steps
    link_s     until the cache was there: hand-over, link and the wait for it; `waited_s`: that
               alone
    busy_s     steps of the prefill workers
    """

    workers: int
    transfers: int = 0
    prompt_tokens: int = 0
    room_s: float = 0.0
    prefill_s: float = 0.0
    link_s: float = 0.0
    waited_s: float = 0.0
    busy_s: float = 0.0


class CellRun:
    """The events of a cell, by index; NaN where something did not happen.

    end_s    end of the step that wrote the last token; the client has it `stream_s` later
    stop_s   when all that was still under way was cancelled; NEVER where nothing was
    over_s   when the last answer was at the client
    route    of the router before the replicas; None: the engine's own
    prefill_replicas, pool_times   where prefill and decode are apart; `replicas` are then those
                                   that decode
    paused   of those that were preempted and did not go on, the tokens written by then
    refused  those that were turned away, or cut off with their replica: the client's time, the
             status and the reason
    pictures of prompts; None: they have none
    encoders of these, where they have workers of their own
    contents of prompts, where requests share some
    """

    def __init__(self, requests: CellRequests, start_s: float, stream_s: float) -> None:
        self.requests = requests
        self.start_s = self.issue_end_s = self.over_s = start_s
        self.stream_s = stream_s
        self.stop_s = NEVER
        self.paused: dict[int, int] = {}
        self.refused: dict[int, tuple[float, int, str]] = {}
        self.contents: Contents | None = None
        self.pictures: PromptPictures | None = None
        self.encoders: EncoderWork | None = None
        self.journal = RequestLog(requests.count)
        self.replicas: list[Replica] = []
        self.prefill_replicas: list[Replica] = []
        self.pool_times: PoolTimes | None = None
        self.route: Route | None = None
        self.end_s: list[float] = [math.nan] * requests.count
        self.cached_tokens: list[int] = [0] * requests.count

    def grow(self, share: float) -> None:
        """Room for another round of a cell that runs by time, of which that share is over. Raises
        InputError where it will take too many requests, as soon as that can be told.
        """
        count = self.requests.count
        will_be = (
            len(self.end_s) / share if share > 0 and len(self.end_s) > _TELLING_REQUESTS else 0.0
        )
        if max(will_be / 2, len(self.end_s) + count) > MAX_REQUESTS:
            estimate = f"about {will_be:.1e}" if will_be else f"more than {MAX_REQUESTS:,}"
            raise InputError(
                f"--duration: {estimate} requests in one load, and {MAX_REQUESTS:,} can be"
                " simulated; shorten it"
            )
        self.journal.grow(count)
        self.end_s += [math.nan] * count
        self.cached_tokens += [0] * count

    @property
    def adapter_loads(self) -> tuple[int | None, int | None]:
        """The loads of LoRA adapters, and the slots for them; None where there are none."""
        slots = self.replicas[0].scheduler.policy.adapters
        if slots is None:
            return None, None
        residents = [replica.adapters for replica in (*self.replicas, *self.prefill_replicas)]
        loads = sum(resident.loads for resident in residents if resident is not None)
        return loads, slots.slots

    def stop(self, at_s: float) -> None:
        """All that the client has not heard the end of by then is cancelled."""
        self.stop_s = self.over_s = at_s
        self.end_s = [math.nan if end_s + self.stream_s > at_s else end_s for end_s in self.end_s]
        self.paused |= paused_in(self.replicas)

    def turn_away(self, refusal: Refusal, at_s: float) -> None:
        """A request was turned away, and its client knows of it at `at_s`."""
        sequence, status, reason = refusal
        self.refused[sequence.row] = at_s, status, reason
        if sequence.emitted:
            self.paused[sequence.row] = sequence.emitted

    def states(self, at_s: float | None = None) -> list[State]:
        """Return the engines as they stand at `at_s`, before the end of what is under way; None: at
        its beginning."""
        states = states_of(self.replicas, at_s)
        if self.prefill_replicas:  # whose first tokens count where they are shown
            states += [
                state._replace(written_tokens=0) for state in states_of(self.prefill_replicas, at_s)
            ]
        return states


def paused_in(replicas: Sequence[Replica]) -> dict[int, int]:
    """Return the tokens written by those that were preempted and have not gone on, by index."""
    return {
        sequence.row: sequence.emitted
        for replica in replicas
        for sequence in (*replica.scheduler.waiting, *replica.scheduler.running)
        if sequence.emitted and not sequence.end_tick
    }


def states_of(replicas: Sequence[Replica], at_s: float | None = None) -> list[State]:
    """Return a state for each engine, whose batches under way follow one another in `replicas`."""
    batches = replicas[0].scheduler.policy.pipeline
    return [
        _state(replicas[first : first + batches], at_s)
        for first in range(0, len(replicas), batches)
    ]


def _state(replicas: Sequence[Replica], at_s: float | None) -> State:
    """Return the state of one engine: queue and blocks are those of all batches together."""
    batches = [replica.scheduler for replica in replicas]
    over = [0 if at_s is None else replica.steps_over(at_s) for replica in replicas]
    grown = sum(
        batch.growth_blocks(steps) for batch, steps in zip(batches, over, strict=True) if steps
    )
    return State(
        running=sum(len(batch.running) for batch in batches),
        waiting=len(batches[0].waiting),
        used_tokens=(batches[0].used_blocks() + grown) * batches[0].policy.block_tokens,
        prompt_tokens=sum(batch.prompt_tokens for batch in batches),
        written_tokens=sum(map(_written, batches, over)) + _written_before(batches[0]),
        preemptions=sum(batch.preemptions for batch in batches),
        cache_queries=sum(batch.cache_queries for batch in batches),
        cache_hits=sum(batch.cache_hits for batch in batches),
    )


def _written(scheduler: Scheduler, over: int) -> int:
    return scheduler.written_tokens + sum(
        scheduler.written_by(sequence, over)
        for sequence in scheduler.running
        # Those of a static batch that have ended are counted already.
        if not 0 < sequence.end_tick <= scheduler.tick
    )


def _written_before(scheduler: Scheduler) -> int:
    """Count what those wrote that were preempted and wait to go on: in front of all others, where
    there are no priorities."""
    waiting = scheduler.waiting
    if scheduler.policy.priorities:
        return sum(sequence.emitted for sequence in waiting)
    preempted = takewhile(lambda sequence: sequence.preempted, waiting)
    return sum(sequence.emitted for sequence in preempted)


_MAX_SAMPLES = 20_000
"""Samples of a run; beyond it every other one is dropped, and the next are taken half as often."""
_GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
_COUNTERS = (
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:num_preemptions_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
)
_METRICS = _GAUGES + _COUNTERS

Sample = tuple[float, list[tuple[float, ...]]]


class Counters:
    """Samples of all replicas over a run. `look` is what run_cell calls; counters go on from cell
    to cell."""

    def __init__(
        self,
        model: str,
        replicas: int,
        kv_tokens: int | Sequence[int],
        max_samples: int = _MAX_SAMPLES,
    ) -> None:
        self._max_samples = max_samples
        self._kv_tokens = [kv_tokens] * replicas if isinstance(kv_tokens, int) else kv_tokens
        self._labels = [
            json.dumps({"engine": str(number), "model_name": model}, separators=(",", ":"))
            for number in range(replicas)
        ]
        self._samples: list[Sample] = []
        self._before = [(0.0,) * len(_COUNTERS)] * replicas
        self._last = list(self._before)
        self._every_s = 1.0

    def begin(self, at_s: float) -> None:
        """A cell begins, at rest."""
        self._before = list(self._last)
        self._keep(at_s, [(0.0, 0.0, 0.0, *counts) for counts in self._before])

    def look(self, at_s: float, states: Sequence[State]) -> float:
        """Take a sample, of a cell that goes on or is over; returns when to take the next."""
        rows = []
        for number, state in enumerate(states):
            counts = (
                state.prompt_tokens,
                state.written_tokens,
                state.preemptions,
                state.cache_queries,
                state.cache_hits,
            )
            total = tuple(
                past + count for past, count in zip(self._before[number], counts, strict=True)
            )
            self._last[number] = total
            # Blocks of shared prompts may be larger than the engine's, and their last one not
            # whole; see sharing().
            usage = min(1.0, state.used_tokens / self._kv_tokens[number])
            rows.append((state.running, state.waiting, usage, *total))
        self._keep(at_s, rows)
        return at_s + self._every_s

    def _keep(self, at_s: float, rows: list[tuple[float, ...]]) -> None:
        self._samples.append((at_s, rows))
        if len(self._samples) * len(rows) > self._max_samples:
            del self._samples[1::2]
            self._every_s *= 2

    def table(self) -> pa.Table:
        """Return the samples as server_schema() has them."""
        import pyarrow as pa

        from loadstone.core.run_folder import server_schema

        rows = [
            (at_s, 0, name, label, value)
            for at_s, replicas in self._samples
            for label, row in zip(self._labels, replicas, strict=True)
            for name, value in zip(_METRICS, row, strict=True)
        ]
        schema = server_schema()
        columns = zip(*rows, strict=True) if rows else [()] * len(schema)
        return pa.table([*map(list, columns)], schema=schema)
