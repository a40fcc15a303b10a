"""Starts the workers for the run's owner, gives them their steps, listens, and survives the loss of
any of them."""

from __future__ import annotations

import contextlib
import math
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from loadstone.core.errors import DiskFullError, LoadstoneError
from loadstone.core.host import count_processors
from loadstone.core.plan import Load
from loadstone.core.record import Clock, WatchedRequest
from loadstone.measure.client.priority import needs_own_session
from loadstone.measure.client.protocol import (
    NOTHING_YET,
    EndedAnswers,
    EndedRequests,
    EndStep,
    Failed,
    FromWorker,
    GradedText,
    Job,
    Leave,
    MessageReader,
    Progress,
    Ready,
    Step,
    StepDone,
    StopRun,
    ToWorker,
    decode_report,
)

_START_S = 30.0
_REMOTE_START_S = 120.0
_CLOSE_S = 60.0
_LEAD_S = 0.1
_REMOTE_LEAD_S = 0.5
_CONNECT_S = 150e-6
"""Time allowed per connection to be opened before a step starts."""


def choose_workers(loads: tuple[Load, ...]) -> int:
    """Choose how many workers the heaviest cell needs, within the processors it may use; one
    carries some 80,000 events/s."""

    def needed(load: Load) -> float:
        return load.value / (1000 if load.is_open else 4000)

    return max(1, min(count_processors(), math.ceil(max(map(needed, loads)))))


class WorkerPool:
    """Workers of one run. A context manager: however the block ends, they save what they have and
    go."""

    def __init__(
        self,
        jobs: list[Job],
        log: Path,
        take_answers: Callable[[list[GradedText]], None] = lambda answers: None,
    ) -> None:
        """`take_answers`: is given the answers to be graded, as they come."""
        self._take_answers = take_answers
        self.failures: list[str] = []
        self.disk_full = False
        self.clock: Clock = "packets" if jobs[0].packets else "kernel"
        self.clocks: dict[int, Ready] = {}
        """The clock of each worker on another machine, beside the one here."""
        self.watched: list[WatchedRequest] = []
        """Measured requests of the step that ended well, where the jobs say `watched`."""
        self.origin_ns = jobs[0].origin_ns
        self._selector = selectors.DefaultSelector()
        self._workers: list[_Worker] = []
        self._jobs = jobs
        is_remote = any(job.ray is not None for job in jobs)
        self._lead_s = _REMOTE_LEAD_S if is_remote else _LEAD_S
        self._start_s = _REMOTE_START_S if is_remote else _START_S
        self._log = log

    def __enter__(self) -> WorkerPool:
        try:
            addresses = [to.address for job in self._jobs for to in job.destinations]
            apart = needs_own_session({address.sockaddr[1] for address in addresses})
            with self._log.open("ab") as log:
                for job in self._jobs:
                    self._workers.append(_Worker(job, log.fileno(), apart=apart))
            for worker in self._workers:
                self._selector.register(worker.stdout, selectors.EVENT_READ, worker)
                worker.tell(worker.job)
            waiting = set(self._workers)
            deadline = time.monotonic() + self._start_s
            while waiting and not self.failures and time.monotonic() < deadline:
                for worker, message in self._listen(0.1):
                    if isinstance(message, Ready):
                        self.clock = self.clock if message.kernel_clock else "user"
                        waiting.discard(worker)
                        if worker.job.ray is not None:
                            self.clocks[worker.job.worker] = message
        except BaseException:
            self.close()
            raise
        if waiting:
            self.close()
            late = f"workers did not start within {self._start_s:.0f} s; see {self._log}"
            kind = DiskFullError if self.disk_full else LoadstoneError
            raise kind(self.failures[0] if self.failures else late)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run_step(
        self, cell: int, load: Load, first: int, last: int | None
    ) -> Iterator[Progress | StepDone]:
        """Run requests `first` … `last` of a cell; yields progress several times a second, then the
        result."""
        workers = [worker for worker in self._workers if worker.alive]
        if not load.is_open:
            workers = workers[: max(1, int(load.value))]
        connections = 0 if load.is_open else load.value / max(1, len(workers))
        start_ns = time.monotonic_ns() + round((self._lead_s + connections * _CONNECT_S) * 1e9)
        result = StepDone(start_ns, start_ns, start_ns)
        self.watched = []
        step = Step(
            cell=cell, first=first, last=last, part=0, parts=len(workers), start_ns=start_ns
        )
        for part, worker in enumerate(workers):
            worker.tell(msgspec.structs.replace(step, part=part))
        busy = set(workers)
        while busy:
            for worker, message in self._listen(0.25):
                if isinstance(message, StepDone):
                    busy.discard(worker)
                    result.add(message)
            busy = {worker for worker in busy if worker.alive}
            yield self.progress
        result.end_ns = max(result.end_ns, result.issue_end_ns)
        yield result

    @property
    def progress(self) -> Progress:
        """Sum the progress of all workers and all steps so far."""
        return sum((worker.progress for worker in self._workers), NOTHING_YET)

    def end_step(self) -> None:
        """Have every worker send nothing more of its step, and wait for what is under way."""
        for worker in self._workers:
            worker.tell(EndStep())

    def stop(self, reason: str) -> None:
        """Have every worker cancel what is under way and send nothing more."""
        for worker in self._workers:
            worker.tell(StopRun(reason))

    def _listen(self, timeout_s: float) -> Iterator[tuple[_Worker, FromWorker]]:
        for key, _ in self._selector.select(timeout_s):
            worker: _Worker = key.data
            messages = worker.read()
            if messages is None:
                self._selector.unregister(worker.stdout)
                if not worker.failed:
                    self.failures.append(
                        f"worker {worker.job.worker} died ({worker.how_it_ended()})"
                    )
            for message in messages or ():
                if isinstance(message, Progress):
                    worker.progress = message
                elif isinstance(message, EndedRequests):
                    self.watched += message.requests
                elif isinstance(message, EndedAnswers):
                    self._take_answers(message.answers)
                elif isinstance(message, Failed):
                    worker.failed = not message.disk_full
                    if not (message.disk_full and self.disk_full):
                        self.failures.append(message.message)
                    if message.disk_full:
                        self.disk_full = True
                        self.stop("the disk is full")
                yield worker, message

    def close(self) -> None:
        """Have the workers save and exit; wait for them. Idempotent."""
        for worker in self._workers:
            worker.hang_up()
        deadline = time.monotonic() + _CLOSE_S
        for worker in self._workers:
            worker.wait(max(0.1, deadline - time.monotonic()))
        self._selector.close()
        self._workers = [worker for worker in self._workers if worker.alive]


class _Worker:
    """One worker process and its pipes."""

    def __init__(self, job: Job, log: int, *, apart: bool) -> None:
        self.job = job
        self.alive = True
        self.failed = False
        self.progress = NOTHING_YET
        module = "worker" if job.ray is None else "ray_worker"
        self._process = subprocess.Popen(
            # -P: a file called queue.py in the current folder must not be taken for the library's.
            [sys.executable, "-P", "-m", f"loadstone.measure.client.{module}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            # Either way Ctrl-C in the terminal reaches only the owner.
            start_new_session=apart,
            process_group=None if apart else 0,
        )
        if self._process.stdout is None or self._process.stdin is None:
            raise LoadstoneError("a worker started without pipes")
        self.stdout = self._process.stdout
        self._messages = MessageReader(self.stdout.fileno(), decode_report)
        self._stdin = self._process.stdin

    def tell(self, message: ToWorker) -> None:
        with contextlib.suppress(OSError, ValueError):  # a dead worker is noticed when it is read
            self._stdin.write(msgspec.json.encode(message) + b"\n")
            self._stdin.flush()

    def read(self) -> list[FromWorker] | None:
        """Return the messages that came; None when the worker is gone."""
        messages = self._messages.read()
        self.alive = messages is not None
        return messages

    def how_it_ended(self) -> str:
        code = self._process.wait()
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def hang_up(self) -> None:
        self.tell(Leave())
        with contextlib.suppress(OSError):
            self._stdin.close()

    def wait(self, timeout_s: float) -> None:
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.alive = False
        self.stdout.close()
