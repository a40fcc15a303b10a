"""The engine's own profiler, run for a while under the load that was measured just before: by
requests of its own, which go to a folder of their own and into no figure."""

from __future__ import annotations

import dataclasses
import time

import msgspec
import numpy as np

from loadstone.core import run_folder
from loadstone.core.errors import InputError, TargetError
from loadstone.core.plan import Plan
from loadstone.core.record import ProfiledWindow
from loadstone.measure.client.pool import WorkerPool
from loadstone.measure.client.protocol import Job, Progress, StepDone
from loadstone.measure.engines.server import PATIENCE, Server
from loadstone.runs.execution import OpenRun
from loadstone.workload.options import ClientOptions

START, STOP = "/start_profile", "/stop_profile"
"""vLLM's and SGLang's, of all their processes."""
_START_S, _STOP_S = 120.0, 1200.0
"""Longest waits; vLLM took 10 minutes to write the trace of a hundred requests to a 70B model."""
_SPARE_S = 120.0
"""Of load beyond the window, for a slow start."""
_REMEDY = (
    "start vLLM with --profiler-config.profiler torch and .torch_profiler_dir, or leave it out"
)


def check(servers: list[str], headers: list[tuple[str, str]], client: ClientOptions) -> None:
    """Raise InputError where a server has no profiler that can be started."""
    for url in servers:
        with Server(url, headers, client.proxy) as server:
            answer = server.options(START)
        # A web framework refuses the method of a path that it has; without a path it is a 404.
        takes_post = "POST" in answer.headers.get("allow", "")
        if answer.status_code not in (405, 501) and not takes_post:
            raise InputError(f"--profile: {url} has no {START}; {_REMEDY}")


@dataclasses.dataclass
class Profiler:
    """Runs the profilers of a run's servers, load by load.

    jobs     of the run's workers, for whom new ones stand in here
    running  a profiler was started, and did not say that it stopped
    notes    what went wrong, a line each
    """

    run: OpenRun
    jobs: list[Job]
    urls: list[str]
    headers: list[tuple[str, str]]
    client: ClientOptions
    running: bool = False
    notes: list[str] = dataclasses.field(default_factory=list)

    def profile(self, cell: int) -> ProfiledWindow | None:
        """Profile under the load of a cell; None where it did not come to that."""
        seconds = self.client.profile_s or 0.0
        plan = plan_of(self.run.plan, cell, seconds + _SPARE_S)
        folder = self.run.folder / "profile" / str(cell)
        folder.mkdir(parents=True)
        run_folder.write_plan(folder / "plan.parquet", plan)
        salt = f"{self.jobs[0].salt}-profile-{cell}"
        jobs = [
            msgspec.structs.replace(job, folder=str(folder), salt=salt, watched=False)
            for job in self.jobs
        ]
        window = _Window(self, seconds, plan.cells[0].slots)
        with WorkerPool(jobs, self.run.folder / "log.txt") as pool:
            self.run.signals.on_first = lambda: pool.stop("interrupted")
            for message in pool.run_step(0, plan.cells[0], 0, plan.steps(0)[0][1]):
                if not isinstance(message, StepDone) and window.look(message):
                    pool.end_step()
                    window.stop()
                if self.run.signals.count:
                    break
            window.stop()
        self.notes += pool.failures
        run_folder.assemble(folder)
        origin_ns = self.jobs[0].origin_ns
        return window.seen(origin_ns)

    def ask(self, path: str, limit_s: float) -> bool:
        """Ask all servers; False, and a note, where one refused."""
        patience = PATIENCE._replace(answer_s=limit_s)
        for url in self.urls:
            try:
                with Server(url, self.headers, self.client.proxy, patience) as server:
                    answer = server.post(path, b"{}")
            except TargetError as error:
                self.notes.append(f"--profile: {error}")
                return False
            if answer.status_code != 200:
                self.notes.append(f"--profile: {url}{path}: HTTP {answer.status_code}; {_REMEDY}")
                return False
        return True


def plan_of(plan: Plan, cell: int, seconds: float) -> Plan:
    """Make the plan of the measured requests of a cell, again and again under the same load, for
    so long at least; a burst comes once."""
    rows = np.flatnonzero((plan.cell == cell) & (plan.phase == 1))
    load = msgspec.structs.replace(plan.cells[cell], profile=(), duration_s=None)
    intended_s = plan.intended_s[rows] - np.nanmin(plan.intended_s[rows], initial=np.inf)
    if load.is_closed:
        load = msgspec.structs.replace(load, duration_s=seconds)
    elif load.is_open:
        lap_s = float(np.nanmax(intended_s)) + 1 / load.value
        laps = max(1, int(np.ceil(seconds / lap_s)))
        intended_s = (intended_s + lap_s * np.arange(laps)[:, None]).ravel()
        rows = np.tile(rows, laps)
    return plan.take(rows, cells=(load,), cell=np.zeros(len(rows), np.int32), intended_s=intended_s)


class _Window:
    """The time for which the profilers run: from the moment at which the load is whole."""

    def __init__(self, profiler: Profiler, seconds: float, slots: int) -> None:
        self._profiler, self._seconds = profiler, seconds
        self._slots = max(1, slots)
        self._start_ns = self._end_ns = 0
        self._over = False

    def look(self, progress: Progress) -> bool:
        """Start the profilers in time; True once, when the load is to end."""
        if self._over:
            return False
        if not self._start_ns and progress.issued >= self._slots:
            started = self._profiler.ask(START, _START_S)
            self._start_ns = time.monotonic_ns()
            self._profiler.running = started
            self._over = not started
        elif self._start_ns:
            self._over = time.monotonic_ns() >= self._start_ns + self._seconds * 1e9
        return self._over

    def stop(self) -> None:
        """Stop the profilers, if they run."""
        if self._profiler.running:
            self._end_ns = time.monotonic_ns()
            self._profiler.running = not self._profiler.ask(STOP, _STOP_S)

    def seen(self, origin_ns: int) -> ProfiledWindow | None:
        """Return when that was, in seconds from the run's origin."""
        if not self._end_ns:
            return None
        start_s, end_s = (
            (stamp_ns - origin_ns) * 1e-9 for stamp_ns in (self._start_ns, self._end_ns)
        )
        return ProfiledWindow(start_s, end_s, stopped=not self._profiler.running)
