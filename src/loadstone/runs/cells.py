"""The cells of a measured run, one after another, by the workers of a pool."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from loadstone.analyse.stopping import Stopping, Watch
from loadstone.core import run_folder
from loadstone.core.plan import Plan
from loadstone.core.record import CellInfo, RunInfo, Stop
from loadstone.core.settings import WorkerClock
from loadstone.measure.client.pool import WorkerPool
from loadstone.measure.client.protocol import NOTHING_YET, Progress, StepDone
from loadstone.runs.execution import OpenRun
from loadstone.runs.profiler import Profiler


class Event(msgspec.Struct, kw_only=True):
    """Something to show while a run goes on."""

    kind: Literal["attached", "cell", "progress", "cell_end", "note"]
    text: str = ""
    cell: int | None = None
    progress: Progress | None = None
    info: RunInfo | None = None
    plan: Plan | None = None
    folder: Path | None = None


Listener = Callable[[Event], None]


_GROWTH = 1.05
"""Throughput that grows by less from one load of a sweep to the next has stopped growing."""


@dataclasses.dataclass(kw_only=True)
class CellLoop:
    """Measures all cells of a run, until a signal or a worker's failure.

    before_cell   is called before each cell
    profiler      profiles after each cell; `profiler_switch`: of the engine, that has it profile
    sweeps        leaves out the loads after one at which throughput has stopped growing
    sample        samples the servers' metrics at the beginning and end of each cell
    engine_ended  says why an engine that was started for the run is gone, if it is
    """

    run: OpenRun
    pool: WorkerPool
    on_event: Listener
    stopping: Stopping = Stopping()  # noqa: RUF009 - immutable
    profiler: Profiler | None = None
    profiler_switch: str | None = None
    sweeps: bool = False
    _tokens_before: int = 0
    before_cell: Callable[[], None] = lambda: None
    sample: Callable[[], None] = lambda: None
    engine_ended: Callable[[], str | None] = lambda: None

    def measure(self) -> None:
        """Measure the cells; run.json is kept up to date on disk."""
        folder, info, plan, signals = self.run
        pool = self.pool
        info.origin_ns = pool.origin_ns
        info.origin_unix_ns = time.time_ns() - time.monotonic_ns() + pool.origin_ns
        with pool:
            info.clock = pool.clock
            info.settings.worker_clocks = [
                WorkerClock(worker, ready.clock_offset_ns * 1e-9, ready.clock_within_ns * 1e-9)
                for worker, ready in sorted(pool.clocks.items())
            ]
            run_folder.write_info(
                folder, info
            )  # for `recover`, should this be all that is ever written
            signals.on_first = lambda: pool.stop("interrupted")
            previous = 0.0
            for cell in range(len(plan.cells)):
                if signals.count or pool.failures:
                    break
                self.before_cell()
                self.sample()
                self._tell("cell", cell)
                measured = self._measure_cell(cell)
                if measured is None:
                    continue
                info.cells[cell] = measured
                self.sample()
                self._tell("cell_end", cell)
                if self.profiler is not None:
                    measured.profiled = self.profiler.profile(cell)
                    signals.on_first = lambda: pool.stop("interrupted")
                run_folder.write_info(folder, info)
                if self.sweeps:
                    tokens = pool.progress.tokens - self._tokens_before
                    rate = tokens / max(1e-9, (measured.end_s or 0.0) - (measured.start_s or 0.0))
                    if rate < _GROWTH * previous:
                        info.settings.sweep_ended = True
                        break
                    previous = rate
            # Closing the pool lets workers write their last rows: not to be cut short by
            # impatience.
            signals.on_first = lambda: None

    def _tell(
        self,
        kind: Literal["cell", "progress", "cell_end"],
        cell: int,
        progress: Progress | None = None,
    ) -> None:
        self.on_event(
            Event(kind=kind, cell=cell, progress=progress, info=self.run.info, plan=self.run.plan)
        )

    def _measure_cell(self, cell: int) -> CellInfo | None:
        """Run the steps of one cell; times are those of the last, after the warm-up. None where it
        was cut short."""
        load, origin_ns, resent = self.run.plan.cells[cell], self.pool.origin_ns, 0
        ending = (
            _Ending(self.pool, Watch(self.stopping, load.slots))
            if self.stopping != Stopping()
            else None
        )
        steps = self.run.plan.steps(cell)
        for first, last in steps:
            done = self._run_step(cell, first, last, ending if (first, last) == steps[-1] else None)
            if done is None:
                return None
            step = done
            resent += step.resent
        return CellInfo(
            load=load,
            start_s=(step.start_ns - origin_ns) * 1e-9,
            issue_end_s=(step.issue_end_ns - origin_ns) * 1e-9,
            end_s=(step.end_ns - origin_ns) * 1e-9,
            client_cpu_s=step.cpu_s,
            clocks_apart_s=step.clocks_apart_ns * 1e-9 or None,
            requests_resent=resent,
            packets_missed=step.packets_missed,
            packets_lost=step.packets_lost,
            pictures_late=step.pictures_late,
            models=dict(step.models),
            misnamed=dict(step.misnamed),
            unlisted=dict(step.unlisted),
            hidden_tokens=step.hidden_tokens,
            text_sizes=step.text_sizes,
            vectors=step.vectors if step.vectors.answers else None,
            openings=sum(step.openings.values()),
            openings_alike=max(
                (count for name, count in step.openings.items() if name != "others"), default=0
            ),
            openings_blank=step.openings.get("", 0),
            prompts_compared=len(step.texts),
            texts_compared=len(set(step.texts.values())),
            stopped=ending.conclude() if ending is not None else None,
            profiler=self._profiler_seen(),
        )

    def _profiler_seen(self) -> str | None:
        if self.profiler is not None and self.profiler.running:
            return "one that --profile started has not stopped"
        return self.profiler_switch

    def _run_step(
        self, cell: int, first: int, last: int | None, ending: _Ending | None
    ) -> StepDone | None:
        """Run one step of a cell; None where a signal or a failure cut it short."""
        pool, signals, cut = self.pool, self.run.signals, False
        if self.sweeps:
            self._tokens_before = pool.progress.tokens
        done = None
        if ending is not None:
            ending.begin()
        for message in pool.run_step(cell, self.run.plan.cells[cell], first, last):
            if isinstance(message, StepDone):
                done = message
            else:
                self._tell("progress", cell, message)
                if ending is not None:
                    ending.look(message)
                if not pool.failures and (why := self.engine_ended()) is not None:
                    pool.failures.append(why)
            if signals.count > 1:
                break
            if pool.failures and not cut:
                # What goes on without a worker is not the load that was planned.
                pool.stop(pool.failures[0])
                cut = True
        return None if signals.count or pool.failures else done


class _Ending:
    """Ends a step once its cell's rules are met."""

    def __init__(self, pool: WorkerPool, watch: Watch) -> None:
        self._pool, self._watch = pool, watch
        self._begun_s, self._before = 0.0, NOTHING_YET
        self._stop: Stop | None = None

    def begin(self) -> None:
        self._begun_s, self._before = time.monotonic(), self._pool.progress

    def look(self, progress: Progress) -> None:
        """End the step where the rules are met by now."""
        if self._stop is None:
            so_far, took_s = progress - self._before, time.monotonic() - self._begun_s
            self._stop = self._watch.look(took_s, so_far.ended, so_far.failed, self._pool.watched)
            if self._stop is not None:
                self._pool.end_step()

    def conclude(self) -> Stop | None:
        """Return what ended the cell early; None: nothing did."""
        return self._stop or self._watch.over(self._pool.watched)
