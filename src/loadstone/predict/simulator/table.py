"""From what replicas noted to records: the steps' clock expanded into a time for each token, table
by table."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from loadstone.core.plan import PHASES, Plan
from loadstone.core.vectors import Array, Bools, Floats, Ints64
from loadstone.predict.scheduler import EnginePolicy
from loadstone.predict.scheduler.running import gains
from loadstone.predict.simulator.run import CellRun

if TYPE_CHECKING:
    import pyarrow as pa

_CUT_OFF = "not ended within the grace period after the duration"
_MAX_EVENTS = 2_000_000
"""Of one table: a row group, some 32 MB while it is built."""


def tables(
    plan: Plan, cell: int, run: CellRun, policy: EnginePolicy, max_events: int = _MAX_EVENTS
) -> Iterator[pa.Table]:
    """Yield the cell's records, as tables of records_schema(), in the order of their index. A table
    of several requests has at most so many events.

    Every token is an event of its own, and with speculation every step. There are no socket reads:
    `read` is null.
    """
    return _Records(plan, cell, run, policy).tables(max_events)


class _Records:
    def __init__(self, plan: Plan, cell: int, run: CellRun, policy: EnginePolicy) -> None:
        requests, journal = run.requests, run.journal
        self._plan, self._cell, self._run, self._policy = plan, cell, run, policy
        sent = np.array(requests.sent_s_of)
        self._index = index = np.flatnonzero(~np.isnan(sent))
        count, warm = requests.count, requests.warm
        self._row = row = np.where(
            index < count, index, warm + (index - warm) % max(1, count - warm)
        )
        self._sent = sent[index]
        self._intended = np.array(requests.intended_s_of)[index]
        self._first = np.array(journal.first_s)[index]
        self._end = np.array(run.end_s)[index]
        self._output = np.array(requests.output_tokens, np.int64)[row]
        self._input = np.array(requests.input_tokens, np.int64)[row]
        self._cached = np.array(run.cached_tokens, np.int64)[index]
        # All replicas' clocks end to end, and each request's tick among them.
        clocks = [replica.clock.times(replica.under_way_tick) for replica in run.replicas]
        starts = np.cumsum([0, *map(len, clocks)])
        self._clock = np.concatenate(clocks)
        self._clock_ends = starts[1:]
        self._replica = np.array(journal.replica, np.int64)[index]
        self._tick = np.array(journal.first_tick, np.int64)[index] + starts[self._replica]
        self._starts = starts
        self._events = np.where(np.isnan(self._first), 0, self._output)
        self._refused = np.isin(index, [*run.refused])
        self._odd = self._odd_ones()
        self._odd_at = np.array(sorted(self._odd), np.int64)
        for place, (times, _) in self._odd.items():
            self._events[place] = len(times)

    def tables(self, max_events: int) -> Iterator[pa.Table]:
        ends = np.cumsum(self._events)
        start = 0
        while start < len(self._index):
            past = int(ends[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, past + max_events, side="right")))
            yield self._table(start, stop)
            start = stop

    # --- those that are not simply a first token and one more with each step ----------------------

    def _odd_ones(self) -> dict[int, tuple[Floats, Ints64]]:
        """Times and cumulative tokens of those that were cut off, preempted, or written several
        tokens at a time."""
        run = self._run
        if self._plan.inputs is not None:
            return self._answers_in_one()
        again: dict[int, list[tuple[float, int, int, int]]] = {}
        for index, at_s, replica, tick, written in run.journal.pieces:
            again.setdefault(index, []).append((at_s, replica, tick, written))
        cut = np.isnan(self._end) & ~np.isnan(self._first)
        odd = cut | np.isin(self._index, list(again))
        if self._policy.speculative is not None:
            odd |= ~np.isnan(self._first)
        return {
            int(place): self._pieces(int(place), again.get(int(self._index[place]), []))
            for place in np.flatnonzero(odd)
        }

    def _answers_in_one(self) -> dict[int, tuple[Floats, Ints64]]:
        """Return the end of each answer in one piece, with all of its vectors or scores."""
        rows = self._plan.rows(self._cell).start + self._row
        pieces = self._plan.output_tokens[rows].astype(np.int64)
        ended = ~np.isnan(self._end)
        spans = {place: slice(place, place + int(ended[place])) for place in range(len(ended))}
        return {place: (self._end[span], pieces[span]) for place, span in spans.items()}

    def _pieces(self, at: int, again: list[tuple[float, int, int, int]]) -> tuple[Floats, Ints64]:
        index, output = int(self._index[at]), int(self._output[at])
        replica = int(self._replica[at])
        begun = [
            (float(self._first[at]), replica, int(self._tick[at]) - int(self._starts[replica]), 0),
            *again,
        ]
        times: list[Floats] = []
        tokens: list[Ints64] = []
        for number, (at_s, replica, tick, written) in enumerate(begun):
            start, stop = int(self._starts[replica]), int(self._clock_ends[replica])
            until = (
                begun[number + 1][3]
                if number + 1 < len(begun)
                else self._run.paused.get(index, output)
            )
            counts = self._counts(index, written, output)
            counts = counts[counts <= until]
            steps = self._clock[start + tick + 1 : min(stop, start + tick + len(counts))]
            times.append(np.concatenate([[at_s], steps]))
            tokens.append(counts[: len(steps) + 1])
        all_times, all_tokens = np.concatenate(times), np.concatenate(tokens)
        stop_s = self._run.refused.get(index, (self._run.stop_s,))[0]
        if math.isfinite(stop_s):
            seen = all_times + self._run.stream_s <= stop_s
            all_times, all_tokens = all_times[seen], all_tokens[seen]
        return all_times, all_tokens

    def _counts(self, index: int, written: int, output: int) -> Ints64:
        """Tokens written after each event, from the one that ends the prompt (or its being computed
        again) on."""
        speculative = self._policy.speculative
        if speculative is None:
            return np.arange(written + 1, output + 1)
        steps = gains(speculative, self._plan.seed, index, written, output - written - 1)
        return np.minimum(written + 1 + np.array([0, *steps], np.int64), output)

    # --- tables -----------------------------------------------------------------------------------

    def _table(self, start: int, stop: int) -> pa.Table:
        import pyarrow as pa

        from loadstone.core.run_folder import records_schema

        run, part = self._run, slice(start, stop)
        events = self._events[part]
        offsets = np.concatenate([[0], np.cumsum(events)])
        total = int(offsets[-1])
        steps = np.arange(total) + np.repeat(self._tick[part] - offsets[:-1], events)
        arrival = self._clock.take(
            steps, mode="clip"
        )  # beyond the end are only odd ones, which follow below
        some = events > 0
        arrival[offsets[:-1][some]] = self._first[part][some]
        tokens = np.arange(1, total + 1, dtype=np.int32) - np.repeat(
            offsets[:-1].astype(np.int32), events
        )
        low, high = np.searchsorted(self._odd_at, (start, stop)).tolist()
        for place in self._odd_at[low:high].tolist():
            span = slice(offsets[place - start], offsets[place - start + 1])
            arrival[span], tokens[span] = self._odd[place]
        arrival += run.stream_s
        written = np.zeros(stop - start, np.int64)
        written[some] = tokens[offsets[1:][some] - 1]
        done = ~np.isnan(self._end[part])
        columns = self._columns(part, done, written)
        lists = pa.array(offsets, pa.int32())
        columns["arrival_s"] = pa.ListArray.from_arrays(lists, pa.array(arrival))
        columns["tokens"] = pa.ListArray.from_arrays(lists, pa.array(tokens))
        schema = records_schema()
        count = stop - start
        return pa.table(
            [
                columns[field.name] if field.name in columns else pa.nulls(count, field.type)
                for field in schema
            ],
            schema=schema,
        )

    def _columns(self, span: slice, done: Bools, written: Ints64) -> dict[str, Any]:
        """All but the lists."""
        import pyarrow as pa
        import pyarrow.compute as pc

        plan, run = self._plan, self._run
        index, row = self._index[span], self._row[span]
        refused = self._refused[span]
        end = np.where(done, self._end[span] + run.stream_s, run.stop_s)
        turned_away = [run.refused[place] for place in index[refused].tolist()]
        if turned_away:
            end[refused] = [at_s for at_s, _, _ in turned_away]

        def named(numbers: Array) -> pa.Array:
            return pc.binary_join_element_wise(
                str(self._cell), pa.array(numbers).cast(pa.string()), "-"
            )

        def one_of(chosen: Array, *words: str | None) -> pa.Array:
            return pa.array(words, pa.string()).take(pa.array(chosen.astype(np.int64)))

        columns = {
            "request_id": named(index),
            "cell": pa.array(np.full(len(index), self._cell, np.int32)),
            "phase": one_of(plan.phase[plan.rows(self._cell).start + row], *PHASES),
            "intended_s": pa.array(self._intended[span]),
            "sent_s": pa.array(self._sent[span]),
            "end_s": pa.array(end),
            "input_tokens": pa.array(self._input[span]),
            "output_tokens": pa.array(written),
            "token_source": one_of(np.zeros(len(index)), "running usage"),
            "finish_reason": one_of(done, None, "length"),
            "status": one_of(np.where(refused, 2, done), "cancelled", "ok", "error"),
        }
        if not done.all():
            errors = np.full(len(index), _CUT_OFF, object)
            errors[done] = None
            errors[refused] = [reason for _, _, reason in turned_away]
            columns["error"] = pa.array(errors, pa.string())
        if turned_away:
            statuses = np.full(len(index), 0)
            statuses[refused] = [status for _, status, _ in turned_away]
            columns["http_status"] = pa.array(statuses, pa.int32(), mask=~refused)
        if self._policy.prefix_cache:
            columns["cached_tokens"] = pa.array(self._cached[span], mask=~done)  # told with the end
        if plan.pictures is not None:
            rows = plan.rows(self._cell).start + row
            without = plan.pictures.count[rows] == 0
            facts = plan.pictures.facts(rows)
            columns |= {name: pa.array(fact, mask=without) for name, fact in facts.items()}
        if plan.has_sessions:
            turn = plan.turn[plan.rows(self._cell).start + row].astype(np.int64)
            alone = pa.array(turn < 0)
            columns["turn"] = pc.if_else(alone, None, pa.array(turn, pa.int32()))
            columns["session_id"] = pc.if_else(alone, None, named(index - turn))
        return columns
