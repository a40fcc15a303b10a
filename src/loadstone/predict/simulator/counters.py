"""What the simulated engines say of themselves, under vLLM's names, as engines/observe.py keeps it of real ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from loadstone.predict.simulator.run import State

if TYPE_CHECKING:
    import pyarrow as pa

_MOST = 20_000
"""Samples of a run; beyond it every other one is dropped, and the next are taken half as often."""
_GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
_COUNTERS = (
    "vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:num_preemptions_total",
    "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total",
)  # fmt: skip

Sample = tuple[float, list[tuple[float, ...]]]


class Counters:
    """Samples of all replicas over a run. `look` is what run_cell calls; counters go on from cell to cell."""

    def __init__(self, model: str, replicas: int, kv_tokens: int) -> None:
        self._labels = [
            json.dumps({"engine": str(number), "model_name": model}, separators=(",", ":"))
            for number in range(replicas)
        ]
        self._kv_tokens = kv_tokens
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
                state.prompt_tokens, state.written_tokens, state.preemptions, state.cache_queries, state.cache_hits,
            )  # fmt: skip
            total = tuple(before + more for before, more in zip(self._before[number], counts, strict=True))
            self._last[number] = total
            # Blocks of shared prompts may be larger than the engine's, and their last one not whole; see sharing().
            usage = min(1.0, state.used_tokens / self._kv_tokens)
            rows.append((state.running, state.waiting, usage, *total))
        self._keep(at_s, rows)
        return at_s + self._every_s

    def _keep(self, at_s: float, rows: list[tuple[float, ...]]) -> None:
        self._samples.append((at_s, rows))
        if len(self._samples) * len(rows) > _MOST:
            del self._samples[1::2]
            self._every_s *= 2

    def table(self) -> pa.Table:
        """As store.server_schema()."""
        import pyarrow as pa

        from loadstone.core.run_folder import server_schema

        names = _GAUGES + _COUNTERS
        times: list[float] = []
        labels: list[str] = []
        kinds: list[str] = []
        values: list[float] = []
        for at_s, rows in self._samples:
            for label, row in zip(self._labels, rows, strict=True):
                times += [at_s] * len(names)
                labels += [label] * len(names)
                kinds += names
                values += row
        return pa.table(
            [
                pa.array(times, pa.float64()),
                pa.array([0] * len(times), pa.int32()),
                pa.array(kinds, pa.string()),
                pa.array(labels, pa.string()),
                pa.array(values, pa.float64()),
            ],
            schema=server_schema(),
        )
