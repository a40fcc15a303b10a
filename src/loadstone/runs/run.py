"""A run as its options ask for it: measured, simulated, or a search of many runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from loadstone.workload.option_fields import change
from loadstone.workload.options import Options, RunOptions, SimulateOptions

if TYPE_CHECKING:
    from loadstone.core.ranked_runs import RankedRuns
    from loadstone.core.summary import Summary
    from loadstone.runs.cells import Event

SWEEP = tuple(1 << step for step in range(10))
"""Concurrencies of a sweep that ends by itself."""


def run(
    options: RunOptions,
    on_event: Callable[[Event], None] = lambda event: None,
    *,
    sweeps: bool = False,
) -> Summary | RankedRuns:
    """Do what the options ask for. Raises as bench() and simulate() do.

    sweeps: an engine for which no load is named is measured under more and more load, until its
    throughput stops growing
    """
    if options.load.find_max is not None:
        from loadstone.runs.find_max import find_max

        return find_max(options, on_event)
    without = options.workload.without
    if isinstance(options, SimulateOptions):
        from loadstone.runs import simulate

        if without is not None:
            from loadstone.runs.class_cost import run_without

            return run_without(options, simulate.simulate)
        return simulate.simulate_alternatives(options)
    assert isinstance(options, Options)  # noqa: S101 - there is no third kind
    from loadstone.runs import bench

    if without is not None:
        from loadstone.runs.class_cost import run_without

        return run_without(options, lambda chosen: bench.bench(chosen, on_event))
    if sweeps and _names_no_load(options):
        return bench.bench(change(options, concurrency=SWEEP), on_event, sweeps=True)
    return bench.bench(options, on_event)


def _names_no_load(options: Options) -> bool:
    """Tell whether nothing says what load is to be measured: no flag, and no trace or sessions."""
    load, workload = options.load, options.workload
    flags = load.rate, load.concurrency, load.ramp, load.max_concurrency
    planned = workload.plan, workload.trace, workload.agents, workload.turns, workload.mix
    return not any((*flags, *planned, *workload.classes))
