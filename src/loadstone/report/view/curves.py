"""Curves of a run while it goes on: counts and latencies per stretch of time, from fragments of
requests.

A run of any length takes the same room: BINS stretches of equal length, which doubles when the run
outgrows them. Latencies are counted in buckets of equal ratio (RATIO), so that a percentile is
known to ±3 %.
"""

import math
from typing import Any

import numpy as np
import pyarrow as pa

from loadstone.core.plan import LoadKind
from loadstone.core.vectors import Floats, Ints64

BINS = 240
FIRST_BIN_S = 0.5
LONGEST_S = 1e7
"""Times beyond are no run's, and are left out."""
LOW_S, HIGH_S = 1e-4, 1e3
"""Latencies beyond are counted at the edge: events of one read have no gap at all."""
RATIO = 1.06
BUCKETS = math.ceil(math.log(HIGH_S / LOW_S) / math.log(RATIO))
SURE_S, LATE_S = 1.5, 7.0
"""A journal is so far behind: half a second between its appends and a second until a new stream is
looked at; of a stream under way, five seconds more between two parts."""


class CellCurve:
    """Counts of one cell; `warm`: of them, the warm-up. Latencies are of measured requests
    alone."""

    def __init__(self) -> None:
        self.begin_s = math.inf
        self.sent = self.warm = self.ok = self.short = self.failed = self.cancelled = 0
        self.events = self.ended_events = self.ended_tokens = 0
        self.event_bins: Ints64 = np.zeros(BINS, np.int64)
        self.ttft: Ints64 = np.zeros(BUCKETS, np.int64)
        self.gap: Ints64 = np.zeros(BUCKETS, np.int64)

    @property
    def ended(self) -> int:
        return self.ok + self.short + self.failed + self.cancelled

    @property
    def tokens_per_event(self) -> float:
        """Tokens per event of the requests that ended: only then the server's count is known."""
        return self.ended_tokens / self.ended_events if self.ended_events else 1.0


class Curves:
    """Feed it batches of a run's journals in their order, of each journal; `kinds`: of the run's
    cells."""

    def __init__(self, kinds: list[LoadKind]) -> None:
        self._kinds = kinds
        self._open: dict[tuple[int, str], tuple[bool, float, bool, int]] = {}
        """Requests under way: sent, newest time known of it, output began, events so far."""
        self.bin_s = FIRST_BIN_S
        self.newest_s = 0.0
        self.cells: dict[int, CellCurve] = {}
        self.sent: Ints64 = np.zeros(BINS, np.int64)
        self.ended: Ints64 = np.zeros(BINS, np.int64)
        self.failed: Ints64 = np.zeros(BINS, np.int64)
        self.ttft: Ints64 = np.zeros((BINS, BUCKETS), np.int64)
        self.gap: Ints64 = np.zeros((BINS, BUCKETS), np.int64)

    def add(self, batch: pa.RecordBatch) -> None:
        columns = {
            name: batch.column(name).to_pylist()
            for name in (
                "cell",
                "request_id",
                "phase",
                "intended_s",
                "sent_s",
                "end_s",
                "status",
                "output_tokens",
            )
        }
        lists = batch.column("arrival_s")
        offsets = np.asarray(lists.offsets)
        arrivals = np.asarray(lists.values, dtype=np.float64)
        for row, cell in enumerate(columns["cell"]):
            if cell is None or not 0 <= cell < len(self._kinds):
                continue
            arrival = arrivals[offsets[row] : offsets[row + 1]]
            arrival = arrival[(arrival >= 0) & (arrival < LONGEST_S)]
            self._request(cell, {name: values[row] for name, values in columns.items()}, arrival)

    def _request(self, number: int, row: dict[str, Any], arrival: Floats) -> None:
        cell = self.cells.setdefault(number, CellCurve())
        sent_s, end_s, status = _time(row["sent_s"]), _time(row["end_s"]), row["status"]
        times = [time for time in (sent_s, end_s, *arrival[-1:].tolist()) if time is not None]
        self._reach(max(times, default=0.0))
        key = number, str(row["request_id"])
        sent, last_s, begun, events = self._open.pop(key, (False, 0.0, False, 0))
        if not sent and (sent_s is not None or status is not None):
            sent = True
            at_s = sent_s if sent_s is not None else end_s if end_s is not None else self.newest_s
            self.sent[self._bin(at_s)] += 1
            cell.sent += 1
            cell.warm += row["phase"] == "warmup"
            cell.begin_s = min(cell.begin_s, at_s)
        if len(arrival):
            origin_s = sent_s if self._kinds[number] == "concurrency" else _time(row["intended_s"])
            self._events(
                cell, row["phase"] == "measure", arrival, last_s if begun else None, origin_s
            )
        events += len(arrival)
        last_s = max(times, default=last_s)
        if status is None:
            self._open[key] = sent, last_s, begun or len(arrival) > 0, events
        else:
            self._end(
                cell, status, end_s if end_s is not None else last_s, events, row["output_tokens"]
            )

    def _events(
        self,
        cell: CellCurve,
        measured: bool,
        arrival: Floats,
        before_s: float | None,
        origin_s: float | None,
    ) -> None:
        bins = np.minimum((arrival / self.bin_s).astype(np.int64), BINS - 1)
        cell.events += len(arrival)
        np.add.at(cell.event_bins, bins, 1)
        if not measured:
            return
        if before_s is None and origin_s is not None:
            bucket = _buckets(arrival[:1] - origin_s)
            self.ttft[bins[0], bucket[0]] += 1
            cell.ttft[bucket[0]] += 1
        gaps = np.diff(arrival) if before_s is None else np.diff(arrival, prepend=before_s)
        bucket = _buckets(gaps)
        np.add.at(self.gap, (bins[len(bins) - len(gaps) :], bucket), 1)
        np.add.at(cell.gap, bucket, 1)

    def _end(
        self, cell: CellCurve, status: str, end_s: float, events: int, tokens: int | None
    ) -> None:
        place = self._bin(end_s)
        self.ended[place] += 1
        if status in ("ok", "short", "cancelled"):
            setattr(cell, status, getattr(cell, status) + 1)
        else:
            cell.failed += 1
            self.failed[place] += 1
        if events and tokens is not None and 0 < tokens < 2**31:
            cell.ended_events += events
            cell.ended_tokens += tokens

    def _bin(self, time_s: float) -> int:
        return min(int(time_s / self.bin_s), BINS - 1)

    def _reach(self, time_s: float) -> None:
        """Make room up to `time_s`: two bins become one until there is."""
        self.newest_s = max(self.newest_s, time_s)
        while time_s >= BINS * self.bin_s:
            self.bin_s *= 2
            for owner in (self, *self.cells.values()):
                for name in (
                    ("sent", "ended", "failed", "ttft", "gap") if owner is self else ("event_bins",)
                ):
                    old = getattr(owner, name)
                    halves = np.zeros_like(old)
                    halves[: BINS // 2] = old.reshape(BINS // 2, 2, *old.shape[1:]).sum(axis=1)
                    setattr(owner, name, halves)

    def complete_until_s(self, running: bool) -> float:
        """Return the time before which nothing more will come, see SURE_S; the end of a run that is
        over."""
        if not running:
            return self.newest_s
        awaited_s = min((last_s for _, last_s, _, _ in self._open.values()), default=self.newest_s)
        return max(0.0, min(self.newest_s - SURE_S, max(awaited_s, self.newest_s - LATE_S)))

    def series(self, running: bool) -> dict[str, list[float | None]]:
        """Return a value for each bin that is over; rates per second, percentiles None where
        nothing was counted."""
        until_s = self.complete_until_s(running)
        bins = (
            int(until_s / self.bin_s)
            if running
            else min(BINS, math.ceil(until_s / self.bin_s + 1e-9))
        )
        tokens = sum(
            (cell.event_bins * cell.tokens_per_event for cell in self.cells.values()),
            np.zeros(BINS),
        )
        return {
            "output_tokens_per_s": _round(tokens[:bins] / self.bin_s),
            "requests_per_s": _round(self.ended[:bins] / self.bin_s),
            "failed_per_s": _round(self.failed[:bins] / self.bin_s),
            "under_way": _round(np.cumsum(self.sent - self.ended)[:bins]),
            "ttft_p50_s": percentile(self.ttft[:bins], 0.5),
            "ttft_p90_s": percentile(self.ttft[:bins], 0.9),
            "gap_p50_s": percentile(self.gap[:bins], 0.5),
            "gap_p99_s": percentile(self.gap[:bins], 0.99),
        }


def percentile(counts: Ints64, level: float) -> list[float | None]:
    """Return the bucket in which the level-quantile of each row lies, its geometric middle; None
    for a row of nothing.
    """
    if not len(counts):
        return []
    reached = np.cumsum(counts, axis=1)
    total = reached[:, -1]
    bucket = (reached < np.ceil(level * total)[:, None]).sum(axis=1)
    values = LOW_S * RATIO ** (bucket + 0.5)
    return [float(f"{value:.3g}") if n else None for value, n in zip(values, total, strict=True)]


def _buckets(seconds: Floats) -> Ints64:
    buckets: Ints64 = (np.log(np.clip(seconds, LOW_S, HIGH_S) / LOW_S) / math.log(RATIO)).astype(
        np.int64
    )
    return np.clip(buckets, 0, BUCKETS - 1)


def _round(values: Any) -> list[float | None]:
    return [float(f"{value:.5g}") for value in values]


def _time(value: Any) -> float | None:
    return float(value) if value is not None and 0 <= value < LONGEST_S else None
