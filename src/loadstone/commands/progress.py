"""The progress of a run: a live bar on a terminal, a line now and then elsewhere; always on stderr,
and in the run's log.txt.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from loadstone.core import run_folder
from loadstone.core.plan import Load, Plan
from loadstone.core.text import excerpt
from loadstone.core.units import show_number, show_seconds
from loadstone.measure.client.protocol import NOTHING_YET
from loadstone.runs.cells import Event

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.progress import Progress as Bar

_LOG_EVERY_S = 10.0


@contextlib.contextmanager
def working(text: str, shown: bool = True) -> Iterator[Callable[[str], None]]:
    """Show that the command works at something, with the time it took so far, until the block ends;
    on a terminal alone. Yields what changes the text.
    """
    if not (shown and sys.stderr.isatty()):
        yield lambda text: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(text)
        yield lambda text: bar.update(task, description=text)


class Display:
    """Shows the events of `bench`. Close it (`with`) before printing anything else."""

    def __init__(self) -> None:
        self._live: Live | None = None
        self._bar: Bar | None = None
        self._figures = ""
        self._folder: Path | None = None
        self._last = self._before = NOTHING_YET
        """The last of all cells together, and the last before this one."""
        self._planned: int | None = None
        self._duration_s: float | None = None
        self._cell_start = 0.0
        self._line_at = 0.0
        self._warm = self._is_pooled = False

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = self._bar = None

    def __call__(self, event: Event) -> None:
        if event.kind == "attached" and event.info is not None and event.plan is not None:
            self._folder = event.folder
            self._before = self._last = (
                NOTHING_YET  # a search is many runs, each of which counts from 0
            )
            self._say(_announce(event))
            if sys.stderr.isatty():
                self._start_live()
        elif event.kind == "cell" and event.plan is not None and event.cell is not None:
            self._begin(event.plan, event.cell)
        elif event.kind == "progress":
            self._progress(event)
        elif event.kind == "cell_end" and event.plan is not None and event.cell is not None:
            seconds = time.monotonic() - self._cell_start
            count = event.plan.warmup_count(event.cell)
            warm = f", {count} of them warm-up," if count else ""
            self._say(
                f"{_label(event.plan.cells[event.cell])}: {self._ended} requests{warm} in"
                f" {seconds:.1f} s" + (f", {self._show_failed()}" if self._failed else ""),
                live=False,
            )
        elif event.text:
            self._say(event.text)

    def _start_live(self) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar
        from rich.table import Column

        # Where the terminal is narrow, the label takes several lines: the time left is never cut.
        label = TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold"))
        bar = BarColumn(24, table_column=Column(no_wrap=True))
        self._bar = Bar(
            label, bar, TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True))
        )
        self._live = Live(get_renderable=self._render, console=Console(stderr=True), transient=True)
        self._live.start()

    def _render(self) -> RenderableType:
        """Draw the bar with the time left; below it the figures, on as many lines as they need."""
        from rich.console import Group
        from rich.text import Text

        assert self._bar is not None  # noqa: S101
        return Group(self._bar, Text(self._figures, overflow="fold"))

    def _begin(self, plan: Plan, cell: int) -> None:
        self._cell_start = self._line_at = time.monotonic()
        self._before = self._last
        self._warm = plan.warmup_count(cell) > 0
        self._is_pooled = plan.inputs is not None
        label = f"{_label(plan.cells[cell])} ({cell + 1}/{len(plan.cells)})"
        self._duration_s = plan.cells[cell].duration_s if plan.cyclic(cell) else None
        self._planned = None if plan.cyclic(cell) else len(plan.rows(cell))
        total = self._duration_s if self._planned is None else self._planned
        if self._bar is not None:
            for task in self._bar.task_ids:
                self._bar.remove_task(task)
            self._figures = ""
            self._bar.add_task(label, total=total)
        self._say(label, live=False)

    def _progress(self, event: Event) -> None:
        progress = event.progress
        if progress is None:
            return
        self._last, now_s = progress, time.monotonic()
        cell = progress - self._before
        elapsed = max(1e-3, now_s - self._cell_start)
        figures = f"{cell.ended:,}" + (
            f" of {self._planned:,}" if self._planned is not None else ""
        )
        figures += f" done, {cell.active:,} under way"
        if cell.ttfts:
            name = "E2E" if self._is_pooled else "TTFT"
            figures += f", {name} ⌀ {show_seconds(cell.ttft_s / cell.ttfts)}"
        if cell.tpots:
            figures += f", TPOT ⌀ {show_seconds(cell.tpot_s / cell.tpots)}"
        if not self._is_pooled:
            figures += f", {show_number(cell.tokens / elapsed)} tokens/s"
        figures += f", {show_number(cell.ended / elapsed)} req/s"
        if cell.failed:
            figures += f", {self._show_failed()}: {excerpt(cell.last_error or '', 200)}"
        if self._bar is not None:
            self._figures = figures
            completed = cell.ended if self._duration_s is None else min(elapsed, self._duration_s)
            for task in self._bar.task_ids:
                self._bar.update(task, completed=completed)
        elif now_s - self._line_at >= _LOG_EVERY_S:
            self._line_at = now_s
            self._say(figures)

    @property
    def _ended(self) -> int:
        return (self._last - self._before).ended

    @property
    def _failed(self) -> int:
        return (self._last - self._before).failed

    def _show_failed(self) -> str:
        """Say how many failed; workers count every request, the table the measured ones alone."""
        return f"{self._failed} failed" + (", warm-up included" if self._warm else "")

    def _say(self, text: str, *, live: bool = True) -> None:
        if self._folder is not None:
            run_folder.log(self._folder, text)
        if self._live is not None and not live:
            return
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)


def _label(load: Load) -> str:
    """Name a load; a trace's rate is its mean, of which three digits are enough."""
    shown = (
        msgspec.structs.replace(load, value=float(f"{load.value:.3g}"))
        if load.process == "trace"
        else load
    )
    return shown.label


def _announce(event: Event) -> str:
    info, plan = event.info, event.plan
    assert info is not None  # noqa: S101
    assert plan is not None  # noqa: S101
    target = info.target
    engine = (
        " ".join(part for part in (target.engine, target.engine_version) if part) if target else ""
    )
    model = excerpt(target.model, 120) if target else "?"
    prompts = target.prompt_kind if target else "?"
    # What runs by time is another plan when it has ended: that of what was sent.
    cyclic = any(plan.cyclic(cell) for cell in range(len(plan.cells)))
    planned = f"seed {plan.seed}" if cyclic else f"plan {plan.plan_id[:6]} seed {plan.seed}"
    cells = f"{len(plan.cells)} load{'s' if len(plan.cells) > 1 else ''}"
    warm = sum(plan.warmup_count(cell) for cell in range(len(plan.cells)))
    requests = (
        "" if cyclic else f", {len(plan)} requests" + (f" ({warm} of them warm-up)" if warm else "")
    )
    bounds = ", ".join(f"{name} < {show_seconds(limit_s)}" for name, limit_s in info.slo.items())
    return (
        f"{engine or 'unknown engine'} · {model} · {target.endpoint if target else '?'}, prompts as"
        f" {prompts} · {planned} · {cells}{requests} ·"
        f" {f'SLO {bounds} · ' if bounds else ''}{event.folder}"
    )
