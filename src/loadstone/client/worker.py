"""A load worker: one process, one event loop, its share of every cell. Run as `python -m loadstone.client.worker`.

It takes orders on stdin (protocol.py), sends requests at their intended times over pooled connections, and journals
what it saw twice a second. If its owner goes away, however that happens, it saves what it has and exits.
"""

from __future__ import annotations

import asyncio
import gc
import math
import os
import resource
import signal
import socket
import sys
import time
import traceback
from pathlib import Path

import msgspec

from loadstone import store
from loadstone.arrivals import level
from loadstone.client.clock import Clock, ask_for_stamps
from loadstone.client.feed import Due, Feed
from loadstone.client.fleet import AnyConnection, Fleet
from loadstone.client.fragments import Fragments
from loadstone.client.grpc import Channels, shut
from loadstone.client.pacer import Pacer
from loadstone.client.protocol import Failed, FromWorker, Job, Progress, Ready, Step, StepDone, Stop, ToWorker
from loadstone.client.stream import Stream
from loadstone.errors import DiskFullError, LoadstoneError
from loadstone.records import Load, PlannedRequest, Status
from loadstone.wire.ask import RequestBody
from loadstone.wire.dialects import new_answer
from loadstone.workload.prompts import PromptWriter

_SWEEP_S = 0.02
_SWEEP_PARTS = 50  # every stream is looked at once in _SWEEP_S · _SWEEP_PARTS = 1 s
_FLUSH_S = 0.5
_PROGRESS_S = 0.25
_RECONNECT_S = 0.05
_PROFILE_S = 0.01
"""How often a closed loop that ramps looks how many places it has."""
_PART_EVENTS = 64
_PART_NS = 5_000_000_000
"""A stream that goes on is journaled at its first sweep, then at so many new events, or after so long."""
_AFTER_DONE_NS = 1_000_000_000
"""How long after [DONE] the HTTP message may still take to end before the answer counts as ended."""


class Worker:
    """Everything of one worker. `run()` returns the process's exit code.

    A *place* is what a closed loop has so many of: a request under way, or a session with its pauses.
    """

    def __init__(self, job: Job, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.clock = Clock(job.origin_ns)
        self.held_limit_bytes = job.held_limit_bytes
        self._job = job
        self._plan = store.read_plan(Path(job.folder))
        self._journal = store.JournalWriter(Path(job.folder), job.worker)
        self._fragments = Fragments(job.worker, self.clock)
        self._fragments.warm_up()
        prompts = PromptWriter(job.vocabulary, seed=self._plan.seed, salt=job.salt, chat=job.endpoint == "chat")
        self._feed = Feed(self._plan, prompts, RequestBody(job.body), loop.call_soon)
        self._grpc = (
            Channels(headers=job.destinations[0].headers, request_tag=job.request_tag)
            if job.endpoint == "triton-grpc"
            else None
        )
        self._fleet = Fleet(self, job.destinations, job.route, self._grpc)
        tag = f"X-Request-Id: {job.request_tag}"
        self._heads = [
            "\r\n".join([to.request_line, *(f"{name}: {value}" for name, value in to.headers), tag]).encode("latin-1")
            for to in job.destinations
        ]
        self._pacer = Pacer(loop, self._pump)
        self._active: dict[Stream, AnyConnection | None] = {}
        self._sessions: dict[Stream, bytes] = {}
        """Of streams whose session goes on: the prompt that its next turn begins with."""
        self._places = 0
        self._step: Step | None = None
        self._load: Load | None = None
        self._begun = False
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
        self._begun = False
        self._places = 0
        self._measure_start_ns = None
        self._duration_ns = round((load.duration_s or 0.0) * 1e9)
        self._issue_end_ns = step.start_ns
        self._cpu_before_s = time.process_time()
        # What is sent at the very start is written before it.
        at_once = 8 if load.kind == "rate" else _share(int(load.value), step)
        if load.kind != "rate":
            self._fleet.preconnect(at_once, self.loop.call_later)
        if self._stopping is None:
            self._feed.begin(step, at_once)
        self._pacer.wake_at(step.start_ns)
        if load.kind == "concurrency" and load.profile:
            self._follow_profile(step)

    def _pump(self) -> None:
        """The pacer's call: send what is due."""
        if self._step is None:
            return
        freed_ns = time.monotonic_ns() if self._begun else self._step.start_ns
        self._begun = True
        self._send_due(freed_ns)
        self._settle()

    def _follow_profile(self, step: Step) -> None:
        if step is self._step:
            self.loop.call_later(_PROFILE_S, self._follow_profile, step)
            if self._begun:
                self._pump()

    def _send_due(self, freed_ns: int) -> None:
        """Send what may be sent now, and have the pacer call for what comes next.

        `freed_ns`: when a place of a closed loop came free, which is when its next request should begin.
        """
        step, load = self._step, self._load
        if step is None or load is None or not self._begun or self._stopping is not None:
            return
        if self._plan.cyclic(step.cell) and self._over():
            self._feed.end()
            return
        cap = _share(load.max_concurrency, step) if load.max_concurrency is not None else None
        while cap is None or len(self._active) < cap:
            due = self._feed.later()
            if due is not None and due.due_ns <= time.monotonic_ns():
                self._send(self._feed.take_later(), due.due_ns)
                continue
            starter = self._feed.starter()
            if load.kind == "concurrency":
                if starter is None or self._places >= self._slots():
                    break
                self._places += 1
                self._send(self._feed.take_starter(), freed_ns)
                continue
            if starter is not None and starter.due_ns <= time.monotonic_ns():
                self._places += 1
                self._send(self._feed.take_starter(), starter.due_ns)
                continue
            if starter is not None and (due is None or starter.due_ns < due.due_ns):
                due = starter
            break
        else:
            return  # the end of a request makes room, and calls again
        if due is not None:
            self._pacer.wake_at(due.due_ns)

    def _slots(self) -> int:
        """Places of a closed loop at this moment."""
        step, load = self._step, self._load
        assert step is not None  # noqa: S101
        assert load is not None  # noqa: S101
        value = load.value
        if load.profile:
            if self._measure_start_ns is None:
                value = max(1.0, math.ceil(load.profile[0][0]))
            else:
                value = level(load.profile, (time.monotonic_ns() - self._measure_start_ns) * 1e-9)
        return _share(int(value), step)

    def _send(self, due: Due, intended_ns: int) -> None:
        request = due.request
        now = time.monotonic_ns()
        if request.phase == "measure" and self._measure_start_ns is None:
            self._measure_start_ns = now
            if self._duration_ns:
                self.loop.call_later(self._duration_ns * 1e-9, self._time_is_up, self._step)
                self.loop.call_later(self._duration_ns * 1e-9 + self._job.grace_s, self._end_grace, self._step)
        self._progress.issued += 1
        self._issue_end_ns = now
        stream = Stream(request, b"", intended_ns, new_answer(
            self._job.endpoint, stream=self._job.streams, keep_text=bool(due.opened)
        ))  # fmt: skip
        stream.replica = self._fleet.choose(request) if due.replica is None else due.replica
        if self._grpc is not None:
            stream.payload = due.body
        else:
            stream.payload = b"%b%b\r\nContent-Length: %d\r\n\r\n%b" % (
                self._heads[stream.replica], request.request_id.encode(), len(due.body), due.body
            )  # fmt: skip
        if due.opened:
            self._sessions[stream] = due.opened
        self._launch(stream, now)

    def _time_is_up(self, step: Step | None) -> None:
        if step is self._step:
            self._pump()

    def _end_grace(self, step: Step | None) -> None:
        if step is self._step:
            self._feed.end()
            self._cancel_all("not ended within the grace period after the duration")
            self._settle()

    def _launch(self, stream: Stream, now_ns: int, *, fresh: bool = False) -> None:
        stream.started_ns = now_ns
        self._active[stream] = None
        try:
            connection = self._fleet.launch(stream, fresh=fresh)
        except OSError as error:
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            self.loop.call_soon(
                self._fail, stream, f"cannot open a socket: {error.strerror} (limit {limit}; see ulimit -n)"
            )
            return
        if connection.stream is stream:  # else it broke at once, and the stream is elsewhere
            self._active[stream] = connection

    def _settle(self) -> None:
        """Report the step's end once nothing is left to send and nothing under way."""
        if self._step is not None and self._begun and not self._active and self._feed.ended:
            self._step = None
            self._flush()
            self._report()
            cpu_s = time.process_time() - self._cpu_before_s
            _say(StepDone(self._issue_end_ns, time.monotonic_ns(), cpu_s))

    # --- what connections report ------------------------------------------------------------------------------

    def ended(self, connection: AnyConnection, stream: Stream) -> None:
        """An answer came to its end."""
        self._fleet.keep(connection)
        stream.judge(self._plan.exact_output)
        if self._active.pop(stream, self) is not self:
            self._fleet.free(stream)
        self._go_on(stream, stream.end_ns or time.monotonic_ns())
        self._record(stream)
        self._settle()

    def broke(self, connection: AnyConnection, stream: Stream, reason: str, *, retry: bool) -> None:
        """A connection failed under its request."""
        self._fleet.drop(connection)
        self._fleet.free(stream)
        if retry and self._stopping is None:
            stream.reused = False
            self._launch(stream, time.monotonic_ns(), fresh=True)
            return
        self._fleet.failed(stream)
        self._active[stream] = None
        # Not from here: an error may come before the caller has finished setting up.
        self.loop.call_soon(self._fail, stream, reason)

    def opened(self, connection: AnyConnection) -> None:
        """A connection opened ahead is ready."""
        self._fleet.keep(connection)

    def dropped(self, connection: AnyConnection) -> None:
        """An idle connection was closed by the server."""
        self._fleet.drop(connection)

    def _fail(self, stream: Stream, reason: str, status: Status = "error") -> None:
        if self._active.pop(stream, self) is self:
            return  # it has ended otherwise meanwhile
        stream.status, stream.error = status, stream.error or reason
        stream.end_ns = time.monotonic_ns()
        if stream.sent_ns is None and self._step is not None:
            # No connection: a closed loop would burn its whole plan in a second; it takes a breath.
            self.loop.call_later(_RECONNECT_S, self._after_failure, stream, self._step)
        else:
            self._go_on(stream, stream.end_ns)
        self._record(stream)
        self.loop.call_later(_RECONNECT_S * 2, self._settle)

    def _after_failure(self, stream: Stream, step: Step) -> None:
        if step is self._step:
            self._go_on(stream, time.monotonic_ns())
            self._settle()

    def _go_on(self, stream: Stream, freed_ns: int) -> None:
        """After a request: its session's next turn, or its place is free for another."""
        opened = self._sessions.pop(stream, b"")
        following = self._plan.next_turn(stream.request) if opened and self._stopping is None else None
        if following is not None and stream.status not in ("ok", "short"):
            self._give_up(following, f"turn {stream.request.turn} of its session failed")
            following = None
        if following is not None and not self._over():
            self._feed.follow(stream, opened, following, stream.replica if self._fleet.sticky else None)
        else:
            self._places -= 1
        self._send_due(freed_ns)

    def _over(self) -> bool:
        """The cell's time is up."""
        return bool(
            self._duration_ns
            and self._measure_start_ns is not None
            and time.monotonic_ns() >= self._measure_start_ns + self._duration_ns
        )

    def _give_up(self, following: PlannedRequest | None, reason: str) -> None:
        """Turns that can no longer be asked: nothing is dropped."""
        now = time.monotonic_ns()
        while following is not None:
            stream = Stream(following, b"", now)
            stream.status, stream.error, stream.end_ns = "cancelled", reason, now
            self._progress.issued += 1
            self._record(stream)
            following = self._plan.next_turn(following)

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
                self._fleet.drop(connection)
                self._fleet.free(stream)
                if stream.sent_ns is None:
                    self._fleet.failed(stream)
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
        self.clock.resample()
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
        self._feed.end()
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
                self._fleet.drop(connection)
                self._fleet.free(stream)
            del self._active[stream]
            self._sessions.pop(stream, None)
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
            _say(Ready(kernel_clock=stamps and self._grpc is None))
            self.loop.run_forever()
        if self._grpc is not None:
            shut(self.loop)
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
