"""A load worker: one process, one event loop, its share of every cell.

It is run as `python -m loadstone.measure.client.worker`.

It takes orders on stdin (protocol.py), has its Sender send requests at their intended times
(sender.py), and journals what it saw twice a second. If its owner goes away, however that happens,
it saves what it has and exits.
"""

import asyncio
import gc
import resource
import signal
import socket
import sys
import traceback
from pathlib import Path

from loadstone.core import run_folder
from loadstone.core.errors import DiskFullError, LoadstoneError, NoRoomError, lacks_room
from loadstone.core.signals import SIGNALS
from loadstone.measure.client.clock import RunClock, ask_for_stamps, new_event_loop
from loadstone.measure.client.load import StepLoad
from loadstone.measure.client.priority import WeightGuard, leads_session, rise
from loadstone.measure.client.protocol import (
    EndedAnswers,
    EndedRequests,
    EndStep,
    Failed,
    Job,
    Leave,
    MessageReader,
    Ready,
    Step,
    StopRun,
    ToWorker,
    decode_order,
    report,
)
from loadstone.measure.client.sender import Sender
from loadstone.measure.client.stream import Fragments

_FLUSH_S = 0.5
_PROGRESS_S = 0.25


class LoadWorker:
    """One load worker. `run()` returns the process's exit code."""

    def __init__(self, job: Job, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._job = job
        self._clock = RunClock(job.origin_ns)
        plan = run_folder.read_plan(Path(job.folder))
        self._journal = run_folder.JournalWriter(Path(job.folder), job.worker)
        self._fragments = Fragments(job.worker, self._clock)
        self._fragments.warm_up()
        self._sender = Sender(job, plan, loop, self._clock, self._fragments, self._on_settled)
        self._exit_code = 0

    def run(self, orders: MessageReader[ToWorker]) -> int:
        self._loop.add_reader(0, self._on_orders, orders)
        self._loop.set_exception_handler(self._on_exception)
        for regular in (self._sender.sweep, self._flush_regularly, self._report_regularly):
            regular()
        if leads_session():
            WeightGuard(self._loop).watch()
        with socket.socket() as probe:
            stamps = ask_for_stamps(probe)
            # What lives now lives to the end, and nothing on the hot path makes cycles: no
            # collector's pauses.
            gc.collect()
            gc.freeze()
            gc.disable()
            report(Ready(kernel_clock=stamps))
            self._loop.run_forever()
        self._sender.close()
        self._flush()
        self._journal.close()
        return self._exit_code

    def _on_orders(self, orders: MessageReader[ToWorker]) -> None:
        received = orders.read()
        for order in [Leave()] if received is None else received:
            if isinstance(order, Leave):
                if self._sender.under_way:
                    self._sender.stop(run_folder.INTERRUPTED)
                self._loop.stop()
            elif isinstance(order, Step):
                self._sender.begin(order)
            elif isinstance(order, EndStep):
                self._sender.end_step()
            elif isinstance(order, StopRun):
                self._sender.stop(order.reason)

    def _on_settled(self, load: StepLoad) -> None:
        """All of a step was sent, and has ended."""
        self._flush()
        self._report()
        report(load.finish())

    def _flush_regularly(self) -> None:
        self._loop.call_later(_FLUSH_S, self._flush_regularly)
        self._clock.resample()
        self._flush()

    def _flush(self) -> None:
        batch = self._fragments.take()
        if batch is None:
            return
        try:
            if not self._journal.write(batch):
                report(
                    Failed(
                        f"{self._job.folder}: disk full; the run ends early and what was measured"
                        " is kept",
                        True,
                    )
                )
        except LoadstoneError as error:
            self._die(str(error), disk_full=isinstance(error, DiskFullError))

    def _report_regularly(self) -> None:
        self._loop.call_later(_PROGRESS_S, self._report_regularly)
        self._report()

    def _report(self) -> None:
        progress = self._sender.progress
        progress.active = self._sender.under_way
        progress.tokens = self._fragments.events
        report(progress)
        if self._sender.watched:
            report(EndedRequests(self._sender.watched))
            self._sender.watched = []
        if self._sender.answers:
            report(EndedAnswers(self._sender.answers))
            self._sender.answers = []

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        if isinstance(error, BaseException):
            traceback.print_exception(error, file=sys.stderr)
        self._die(f"worker {self._job.worker} failed: {error or context.get('message')}")

    def _die(self, message: str, *, disk_full: bool = False) -> None:
        report(Failed(message, disk_full))
        self._exit_code = 1
        self._loop.stop()


def main() -> int:
    # The owner decides when a run ends; a terminal, or what runs jobs, signals every process that
    # there is.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    rise()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    orders = MessageReader(0, decode_order)
    job = orders.first()
    if not isinstance(job, Job):
        return 2
    loop = new_event_loop()
    try:
        worker = LoadWorker(job, loop)
    except LoadstoneError as error:
        report(Failed(str(error), isinstance(error, DiskFullError)))
        return 2
    except Exception as error:
        if not (isinstance(error, MemoryError) or lacks_room(error)):
            raise
        report(Failed(str(NoRoomError(error))))
        return 2
    try:
        return worker.run(orders)
    finally:
        loop.close()


if __name__ == "__main__":
    sys.exit(main())
