"""A load worker: one process, one event loop, its share of every cell. Run as `python -m loadstone.client.worker`.

It takes orders on stdin (protocol.py), sends requests at their intended times over pooled connections, and journals
what it saw twice a second. If its owner goes away, however that happens, it saves what it has and exits.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import resource
import signal
import socket
import ssl
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import msgspec

from loadstone import store
from loadstone.client.clock import Clock, ask_for_stamps
from loadstone.client.connection import Address, Connection
from loadstone.client.fragments import Fragments
from loadstone.client.pacer import Pacer
from loadstone.client.protocol import Failed, FromWorker, Job, Progress, Ready, Step, StepDone, Stop, ToWorker
from loadstone.client.stream import Stream
from loadstone.errors import DiskFullError, LoadstoneError
from loadstone.records import Load, PlannedRequest, Status
from loadstone.wire.openai import RequestBody
from loadstone.workload.prompts import PromptWriter

_READY_REQUESTS = 128
_READY_BYTES = 128 * 1024 * 1024
_SWEEP_S = 0.02
_SWEEP_PARTS = 50  # every stream is looked at once in _SWEEP_S · _SWEEP_PARTS = 1 s
_FLUSH_S = 0.5
_PROGRESS_S = 0.25
_RECONNECT_S = 0.05
_PART_EVENTS = 64
_PART_NS = 5_000_000_000
"""A stream that goes on is journaled at its first sweep, then at so many new events, or after so long."""
_AFTER_DONE_NS = 1_000_000_000
"""How long after [DONE] the HTTP message may still take to end before the answer counts as ended."""


class Worker:
    """Everything of one worker. `run()` returns the process's exit code."""

    def __init__(self, job: Job, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.clock = Clock(job.origin_ns)
        self.held_limit_bytes = job.held_limit_bytes
        self._job = job
        self._plan = store.read_plan(Path(job.folder))
        self._journal = store.JournalWriter(Path(job.folder), job.worker)
        self._fragments = Fragments(job.worker, self.clock)
        self._fragments.warm_up()
        self._prompts = PromptWriter(job.vocabulary, seed=self._plan.seed, salt=job.salt, chat=job.endpoint == "chat")
        self._body = RequestBody(job.endpoint, job.body_fields, job.exact_with)
        head = [job.request_line, *(f"{name}: {value}" for name, value in job.headers)]
        self._head = ("\r\n".join(head) + "\r\nX-Request-Id: " + job.request_tag).encode("latin-1")
        family, sockaddr = job.address
        self._address = Address(family, tuple(sockaddr), job.tls_name, job.tunnel)
        self._tls = ssl.create_default_context() if job.tls_name is not None else None
        self._pacer = Pacer(loop, self._on_time)
        self._idle: list[Connection] = []
        self._active: dict[Stream, Connection | None] = {}
        self._ready: deque[tuple[PlannedRequest, bytes]] = deque()
        self._ready_bytes = 0
        self._refilling = False
        self._indices: Iterator[int] = iter(())
        self._step: Step | None = None
        self._load: Load | None = None
        self._stopping: str | None = None
        self._measure_start_ns: int | None = None
        self._duration_ns = 0
        self._cpu_before_s = 0.0
        self._issue_end_ns = 0
        self._progress = Progress(0, 0, 0, 0, 0)
        self._swept: list[Stream] = []
        self._exit_code = 0

    # --- a step -----------------------------------------------------------------------------------------------

    def begin(self, step: Step) -> None:
        load = self._plan.cells[step.cell]
        self._step, self._load = step, load
        self._measure_start_ns = None
        self._duration_ns = round((load.duration_s or 0.0) * 1e9)
        self._issue_end_ns = step.start_ns
        self._cpu_before_s = time.process_time()
        first = step.first + step.part
        self._indices = (
            itertools.count(first, step.parts) if step.last is None else iter(range(first, step.last, step.parts))
        )
        # What is sent at the very start is written before it, as far as memory allows.
        at_once = 8 if load.kind == "rate" else _share(int(load.value), step)
        if load.kind != "rate":
            self._preconnect(at_once - len(self._idle))
        while len(self._ready) < at_once and self._ready_bytes < _READY_BYTES and self._prepare_ahead(1):
            pass
        self._refill()
        self._pacer.wake_at(step.start_ns)

    def _on_time(self) -> None:
        """The pacer's call: the cell starts, or requests of an open loop are due."""
        step, load = self._step, self._load
        if step is None or load is None:
            return
        if load.kind == "concurrency":
            for _ in range(_share(int(load.value), step)):
                self._issue(step.start_ns)
        else:
            self._issue_due()
        self._settle()

    def _issue_due(self) -> None:
        step, load = self._step, self._load
        assert step is not None  # noqa: S101
        assert load is not None  # noqa: S101
        cap = _share(load.max_concurrency, step) if load.max_concurrency is not None else None
        while cap is None or len(self._active) < cap:
            if not self._ready and not self._prepare_ahead(1):
                self._indices_ended()
                return
            due_ns = step.start_ns + round((self._ready[0][0].intended_s or 0.0) * 1e9)
            if due_ns > time.monotonic_ns():
                self._pacer.wake_at(due_ns)
                return
            self._issue(due_ns)

    def _issue(self, intended_ns: int) -> None:
        """Send the next request of the step, if there is one."""
        if self._stopping is not None or not (self._ready or self._prepare_ahead(1)):
            self._indices_ended()
            return
        request, payload = self._ready[0]
        now = time.monotonic_ns()
        if request.phase == "measure":
            if self._measure_start_ns is None:
                self._measure_start_ns = now
                if self._duration_ns:
                    self.loop.call_later(self._duration_ns * 1e-9 + self._job.grace_s, self._end_grace, self._step)
            if self._plan.cyclic(request.cell) and now >= self._measure_start_ns + self._duration_ns:
                self._indices_ended()
                return
        self._ready.popleft()
        self._ready_bytes -= len(payload)
        self._progress.issued += 1
        self._issue_end_ns = now
        self._launch(Stream(request, payload, intended_ns), now)
        self._refill()

    def _indices_ended(self) -> None:
        self._indices = iter(())
        self._ready.clear()
        self._ready_bytes = 0

    def _end_grace(self, step: Step | None) -> None:
        if step is self._step:
            self._indices_ended()
            self._cancel_all("not ended within the grace period after the duration")
            self._settle()

    def _launch(self, stream: Stream, now_ns: int, *, fresh: bool = False) -> None:
        stream.started_ns = now_ns
        while self._idle and not fresh:
            connection = self._idle.pop()
            if not connection.closed and connection.connected:
                self._active[stream] = connection
                connection.start(stream)
                return
        try:
            connection = Connection(self, self._address, self._tls)
        except OSError as error:
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            self._active[stream] = None
            self.loop.call_soon(
                self._fail, stream, f"cannot open a socket: {error.strerror} (limit {limit}; see ulimit -n)"
            )
            return
        self._active[stream] = connection
        connection.open(self._address, stream)

    def _settle(self) -> None:
        """Report the step's end once nothing is left to send and nothing under way."""
        if self._step is not None and not self._active and not self._ready and not self._prepare_ahead(1):
            self._step = None
            self._flush()
            self._report()
            cpu_s = time.process_time() - self._cpu_before_s
            _say(StepDone(self._issue_end_ns, time.monotonic_ns(), cpu_s))

    # --- preparing requests before they are due ---------------------------------------------------------------

    def _prepare_ahead(self, count: int) -> int:
        """Write up to `count` more requests; returns how many there were."""
        if self._step is None or self._stopping is not None:
            return 0
        made = 0
        for index in itertools.islice(self._indices, count):
            request = self._plan.request(self._step.cell, index)
            body = self._body.render(self._prompts.write(request), request.output_tokens)
            head = b"%b%b\r\nContent-Length: %d\r\n\r\n" % (self._head, request.request_id.encode(), len(body))
            self._ready.append((request, head + body))
            self._ready_bytes += len(body)
            made += 1
        return made

    def _refill(self) -> None:
        """Keep requests ready, a few at a time between other work, so that none is written when it is due."""
        if not self._refilling and len(self._ready) < _READY_REQUESTS and self._ready_bytes < _READY_BYTES:
            self._refilling = True
            self.loop.call_soon(self._refill_some)

    def _refill_some(self) -> None:
        self._refilling = False
        if self._prepare_ahead(4):
            self._refill()

    # --- what connections report ------------------------------------------------------------------------------

    def ended(self, connection: Connection, stream: Stream) -> None:
        """An answer came to its end."""
        if not connection.closed:
            self._idle.append(connection)
        stream.judge(self._plan.exact_output)
        self._active.pop(stream, None)
        self._next(stream.end_ns or time.monotonic_ns())
        self._record(stream)
        self._settle()

    def broke(self, connection: Connection, stream: Stream, reason: str, *, retry: bool) -> None:
        """A connection failed under its request."""
        if retry and self._stopping is None:
            stream.reused = False
            self._launch(stream, time.monotonic_ns(), fresh=True)
            return
        # Not from here: an error may come before the caller has finished setting up.
        self.loop.call_soon(self._fail, stream, reason)

    def _preconnect(self, count: int) -> None:
        """Open what a closed loop or a burst needs before it starts, a few at a time for the server's backlog."""
        now = min(count, 64)
        for _ in range(now):
            try:
                Connection(self, self._address, self._tls).open(self._address, None)
            except OSError:
                return  # told when a request finds no socket
        if count > now:
            self.loop.call_later(0.005, self._preconnect, count - now)

    def opened(self, connection: Connection) -> None:
        """A connection opened ahead is ready."""
        self._idle.append(connection)

    def dropped(self, connection: Connection) -> None:
        """An idle connection was closed by the server."""
        if connection in self._idle:
            self._idle.remove(connection)

    def _fail(self, stream: Stream, reason: str, status: Status = "error") -> None:
        if self._active.pop(stream, self) is self:
            return  # it has ended otherwise meanwhile
        stream.status, stream.error = status, stream.error or reason
        stream.end_ns = time.monotonic_ns()
        if stream.sent_ns is None and self._step is not None:
            # No connection: a closed loop would burn its whole plan in a second; it takes a breath.
            self.loop.call_later(_RECONNECT_S, self._next_after_failure, self._step)
        else:
            self._next(stream.end_ns)
        self._record(stream)
        self._settle_soon()

    def _next_after_failure(self, step: Step) -> None:
        if step is self._step:
            self._next(time.monotonic_ns())
            self._settle()

    def _settle_soon(self) -> None:
        self.loop.call_later(_RECONNECT_S * 2, self._settle)

    def _next(self, freed_ns: int) -> None:
        """A place is free: a closed loop fills it; a capped open loop may have one waiting."""
        load = self._load
        if self._step is None or load is None:
            return
        if load.kind == "concurrency":
            self._issue(freed_ns)
        elif load.max_concurrency is not None:
            self._issue_due()

    def _record(self, stream: Stream) -> None:
        self._progress.ended += 1
        if stream.status not in ("ok", "short"):
            self._progress.failed += 1
            self._progress.last_error = stream.error
        self._fragments.add(stream)

    # --- housekeeping -----------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        """Look at a fiftieth of the streams: read what they hold, journal it, enforce timeouts."""
        self.loop.call_later(_SWEEP_S, self._sweep)
        if not self._swept:
            self._swept = list(self._active)
        for _ in range(min(len(self._swept), len(self._active) // _SWEEP_PARTS + 1)):
            stream = self._swept.pop()
            if stream in self._active:
                self._look_at(stream)

    def _look_at(self, stream: Stream) -> None:
        connection = self._active[stream]
        if connection is None:
            return
        connection.decode()
        if stream not in self._active:
            return
        now = time.monotonic_ns()
        reason = self._overdue(stream, now)
        if reason is not None:
            connection.stream = None
            connection.close()
            if stream.answer.done:
                stream.end_ns = stream.last_output_ns
                self.ended(connection, stream)
            else:
                self._fail(stream, reason, "timeout")
        elif not stream.part_ns or len(stream.arrival_s) >= _PART_EVENTS or now > stream.part_ns + _PART_NS:
            stream.part_ns = now
            self._fragments.add_part(stream)

    def _overdue(self, stream: Stream, now_ns: int) -> str | None:
        """Why a stream should end now, if it should. Measured by output: keep-alive comments do not count."""
        limits = self._job.timeouts
        if stream.sent_ns is None:
            waited, limit, what = now_ns - stream.started_ns, limits.connect_s, "connecting"
        elif stream.answer.done:
            return "ended" if now_ns - stream.last_output_ns > _AFTER_DONE_NS else None
        elif stream.answer.events == 0:
            waited, limit, what = now_ns - stream.sent_ns, limits.first_s, "the first output"
        else:
            waited, limit, what = now_ns - stream.last_output_ns, limits.idle_s, "the next output"
        if waited > limit * 1e9:
            return f"timeout: waited {limit:g} s for {what}"
        if stream.sent_ns is not None and now_ns - stream.sent_ns > limits.total_s * 1e9:
            return f"timeout: not ended {limits.total_s:g} s after sending"
        return None

    def _flush(self) -> None:
        batch = self._fragments.take()
        if batch is None:
            return
        try:
            if not self._journal.write(batch):
                self._disk_full()
        except LoadstoneError as error:
            self._die(str(error), disk_full=isinstance(error, DiskFullError))

    def _disk_full(self) -> None:
        _say(Failed(f"{self._job.folder}: disk full; the run ends early and what was measured is kept", True))

    def _flush_regularly(self) -> None:
        self.loop.call_later(_FLUSH_S, self._flush_regularly)
        self._flush()

    def _report_regularly(self) -> None:
        self.loop.call_later(_PROGRESS_S, self._report_regularly)
        self._report()

    def _report(self) -> None:
        self._progress.active = len(self._active)
        self._progress.tokens = self._fragments.events
        _say(self._progress)

    def stop(self, reason: str) -> None:
        """Send nothing more, cancel what is under way."""
        self._stopping = reason
        self._indices_ended()
        self._cancel_all(reason)
        self._settle()

    def _cancel_all(self, reason: str) -> None:
        for stream, connection in list(self._active.items()):
            if connection is not None:
                connection.decode()  # it may have ended, or have more to tell
                if stream not in self._active:
                    continue
                connection.stream = None
                connection.close()
            del self._active[stream]
            stream.status, stream.error, stream.end_ns = "cancelled", reason, time.monotonic_ns()
            self._record(stream)

    # --- the process ------------------------------------------------------------------------------------------

    def run(self, orders: Orders) -> int:
        self.loop.add_reader(0, self._on_orders, orders)
        self.loop.set_exception_handler(self._on_exception)
        for regular in (self._sweep, self._flush_regularly, self._report_regularly):
            regular()
        with socket.socket() as probe:
            stamps = ask_for_stamps(probe)
            # What lives now lives to the end, and nothing on the hot path makes cycles: no collector's pauses.
            gc.collect()
            gc.freeze()
            gc.disable()
            _say(Ready(kernel_clock=stamps))
            self.loop.run_forever()
        self._flush()
        self._journal.close()
        self._pacer.close()
        return self._exit_code

    def _on_orders(self, orders: Orders) -> None:
        for order in orders.read():
            if order is None:
                if self._active:
                    self.stop(store.INTERRUPTED)
                self.loop.stop()
            elif isinstance(order, Step):
                self.begin(order)
            elif isinstance(order, Stop):
                self.stop(order.reason)

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        if isinstance(error, BaseException):
            traceback.print_exception(error, file=sys.stderr)
        self._die(f"worker {self._job.worker} failed: {error or context.get('message')}")

    def _die(self, message: str, *, disk_full: bool = False) -> None:
        _say(Failed(message, disk_full))
        self._exit_code = 1
        self.loop.stop()


class Orders:
    """Lines from the owner's pipe."""

    def __init__(self) -> None:
        self._rest = b""
        self._decode = msgspec.json.Decoder(ToWorker).decode

    def read(self) -> list[Job | Step | Stop | None]:
        """What one read brings; None at the pipe's end."""
        data = os.read(0, 1 << 20)
        if not data:
            return [None]
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [self._decode(line) for line in lines]


def _share(total: int, step: Step) -> int:
    """This worker's part of `total` places."""
    return total // step.parts + (step.part < total % step.parts)


def _say(message: FromWorker) -> None:
    line = msgspec.json.encode(message) + b"\n"
    try:
        os.write(1, line)
    except OSError:
        pass  # nobody listens any more; the end of stdin says so too


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def main() -> int:
    # The owner decides when a run ends; Ctrl-C at the terminal reaches the whole process group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    orders = Orders()
    received: list[Job | Step | Stop | None] = []
    while not received:
        received = orders.read()
    job = received[0]
    if not isinstance(job, Job):
        return 2
    loop = _new_loop()
    try:
        worker = Worker(job, loop)
    except LoadstoneError as error:
        _say(Failed(str(error), isinstance(error, DiskFullError)))
        return 2
    try:
        return worker.run(orders)
    finally:
        loop.close()


if __name__ == "__main__":
    sys.exit(main())
