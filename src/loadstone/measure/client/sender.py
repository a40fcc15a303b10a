"""Sends the requests of a step when the load lets them begin, and follows each to its end."""

import asyncio
import resource
import time
from collections.abc import Callable

import msgspec

from loadstone.core.plan import Plan, PlannedRequest
from loadstone.core.record import Status, WatchedRequest
from loadstone.core.secrets import blank
from loadstone.core.trace_ids import traceparent
from loadstone.measure.client.clock import Pacer, RunClock
from loadstone.measure.client.connection import Connection
from loadstone.measure.client.fleet import ServerFleet
from loadstone.measure.client.load import Due, Feed, StepLoad
from loadstone.measure.client.packets import PacketRing
from loadstone.measure.client.protocol import (
    ClassWire,
    Destination,
    GradedText,
    Job,
    Progress,
    Step,
)
from loadstone.measure.client.stream import Fragments, Stream
from loadstone.measure.wire.request import RequestBody
from loadstone.measure.wire.tolerant import count
from loadstone.measure.wire.wire import find_wire
from loadstone.workload.pictures import PictureWriter
from loadstone.workload.prompts import PromptWriter

_SWEEP_S = 0.02
# every stream is looked at once in _SWEEP_S · _SWEEP_PARTS = 1 s, sooner where a timeout is short
_SWEEP_PARTS = 50
_LATENESS = 0.1
"""Share of the shortest timeout by which, and by _SWEEP_S, a request may be cut late."""
_RECONNECT_S = 0.05
_QUIET_NS = 500_000_000
"""A connection of which nothing was heard for so long is asked."""
_PROFILE_S = 0.01
"""The interval at which a closed loop that ramps looks how many slots it has."""
_RACE_NS = 2_000_000_000
"""A server that closes a kept connection while a request is on its way to it cuts it within a round
trip; one that takes seconds had the request, and dropped it."""
_WAITING_PACKETS = 4096
"""So many are taken out of the ring together: a few at a time cost five times as much each."""
_GRADED_CHARACTERS = 1 << 20
_PART_EVENTS = 64
_PART_NS = 5_000_000_000
"""A stream that goes on is journaled at its first sweep, then at so many new events, or after so
long."""


class Sender:
    """Use: `begin(step)`, which ends with a call of `settled`; `sweep` from the first moment on;
    `close` at the end.

    It is the Owner of its connections. `progress` counts; `fragments` gets what is to be journaled.
    """

    def __init__(
        self,
        job: Job,
        plan: Plan,
        loop: asyncio.AbstractEventLoop,
        clock: RunClock,
        fragments: Fragments,
        settled: Callable[[StepLoad], None],
    ) -> None:
        self.loop = loop
        self.clock = clock
        self.held_limit_bytes = job.held_limit_bytes
        self.progress = Progress(0, 0, 0, 0, 0)
        self.watched: list[WatchedRequest] = []
        """Those that nobody was told of yet."""
        self.answers: list[GradedText] = []
        """Answers to be graded, of which nobody was told yet."""
        self._job = job
        self._keys = job.destinations[0].secrets
        self._plan = plan
        self._fragments = fragments
        self._settled = settled
        wire = find_wire(job.endpoint)
        self._new_answer = wire.answer
        prompts = PromptWriter(
            job.vocabulary, seed=plan.seed, salt=job.salt, chat=wire.takes_messages
        )
        classes = job.classes or [ClassWire(body=job.body)]
        self._feed = Feed(
            plan,
            prompts,
            [
                {
                    adapter: RequestBody(of_class.body_of(adapter), wire.spell)
                    for adapter in (0, *of_class.adapters)
                }
                for of_class in classes
            ],
            RequestBody(job.graded_body, wire.spell),
            loop.call_soon,
            stored=job.stored,
            pictures=None
            if plan.pictures is None
            else PictureWriter(plan.pictures.shapes, seed=plan.seed, salt=job.salt),
        )
        self._asked = {
            (number, adapter): model
            for number, of_class in enumerate(classes)
            for adapter in (0, *of_class.adapters)
            if (model := str(of_class.body_of(adapter).get("model"))) != job.body.get("model")
        }
        self.packets = _open_ring(job) if job.packets else None
        self._fleet = ServerFleet(self, job.destinations, job.route)
        self._heads = [
            [_head(destination, of_class.headers, job.request_tag) for of_class in classes]
            for destination in job.destinations
        ]
        """Of each destination, for each class."""
        self._pacer = Pacer(loop, self._pump)
        self._active: dict[Stream, Connection | None] = {}
        self._sessions: dict[Stream, bytes] = {}
        """Streams whose session goes on, with the prompt that its next turn begins with."""
        self._compared: dict[Stream, bytes] = {}
        """Streams whose text is compared, with the request's body."""
        self._step: StepLoad | None = None
        self._stopping = False
        self._swept: list[Stream] = []
        shortest_s = min(msgspec.structs.astuple(job.timeouts))
        self._sweep_parts = max(1, min(_SWEEP_PARTS, int(shortest_s * _LATENESS / _SWEEP_S)))

    # --- a step -----------------------------------------------------------------------------------

    def begin(self, step: Step) -> None:
        self._step = load = StepLoad(step, self._plan, self._feed, self._asked)
        if load.connects_ahead:
            self._fleet.preconnect(load.at_once, self.loop.call_later)
        if not self._stopping:
            # What is sent at the very start is written before it.
            self._feed.begin(step, load.at_once)
        self._pacer.wake_at(load.result.start_ns)
        if load.follows_profile:
            self._follow_profile(load)

    def _pump(self) -> None:
        """Send what is due, at the pacer's call."""
        load = self._step
        if load is None:
            return
        freed_ns = time.monotonic_ns() if load.begun else load.result.start_ns
        load.begun = True
        self._send_due(freed_ns)
        self._settle()

    def _follow_profile(self, load: StepLoad) -> None:
        if load is self._step:
            self.loop.call_later(_PROFILE_S, self._follow_profile, load)
            if load.begun:
                self._pump()

    def _send_due(self, freed_ns: int) -> None:
        """Send what may be sent now, and have the pacer call for what comes next."""
        load = self._step
        if load is None or not load.begun or self._stopping:
            return
        while due := load.next(freed_ns, len(self._active)):
            self._send(load, *due)
        if load.wake_ns is not None:
            self._pacer.wake_at(load.wake_ns)

    def _send(self, load: StepLoad, due: Due, intended_ns: int) -> None:
        request = due.request
        now_ns = time.monotonic_ns()
        if load.note_sent(request, now_ns) and load.duration_s:
            self.loop.call_later(load.duration_s, self._time_is_up, load)
            self.loop.call_later(load.duration_s + self._job.grace_s, self._end_grace, load)
        self.progress.issued += 1
        body, picture_bytes = load.take_body(due)
        compared = load.keeps_text(request)
        kept = bool(due.opened) or compared or request.phase == "check"
        stream = Stream(
            request,
            b"",
            intended_ns,
            self._new_answer(stream=self._job.streams, keep_text=kept),
        )
        if compared:
            self._compared[stream] = body
        stream.replica = self._fleet.choose(request) if due.replica is None else due.replica
        stream.payload = b"%b%b\r\nContent-Length: %d\r\n\r\n%b" % (
            self._heads[stream.replica][request.traffic_class],
            self._name(request).encode(),
            len(body),
            body,
        )
        stream.body_bytes, stream.picture_bytes = len(body), picture_bytes
        if due.opened:
            self._sessions[stream] = due.opened
        self._feed.follow_sent(request, now_ns, stream.replica if self._fleet.sticky else None)
        self._launch(stream, now_ns)

    def _name(self, request: PlannedRequest) -> str:
        """Return the id of a request, with its trace where one is told."""
        run, name = self._job.traced_as, request.request_id
        if run is None:
            return name
        return f"{name}\r\ntraceparent: {traceparent(run, name, request.session_id)}"

    def _time_is_up(self, load: StepLoad) -> None:
        if load is self._step:
            self._pump()

    def _end_grace(self, load: StepLoad) -> None:
        if load is self._step:
            self._feed.end()
            self._cancel_all("not ended within the grace period after the load's end")
            self._settle()

    def _launch(self, stream: Stream, now_ns: int, *, fresh: bool = False) -> None:
        stream.started_ns = now_ns
        self._active[stream] = None
        try:
            connection = self._fleet.launch(stream, fresh=fresh)
        except OSError as error:
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            self.loop.call_soon(
                self._fail,
                stream,
                f"cannot open a socket: {error.strerror} (limit {limit}; see ulimit -n)",
            )
            return
        if connection.stream is stream:  # else it broke at once, and the stream is elsewhere
            self._active[stream] = connection

    def _settle(self) -> None:
        """End the step once nothing is left to send and nothing under way."""
        load = self._step
        if load is not None and load.begun and not self._active and self._feed.ended:
            self._step = None
            if self.packets is not None:
                load.result.packets_missed, load.result.packets_lost = self.packets.take_counts()
            self._settled(load)

    # --- what connections report ------------------------------------------------------------------

    def on_ended(self, connection: Connection, stream: Stream) -> None:
        """Take an answer that came to its end."""
        self._fleet.keep(connection, stream)
        exact = self._plan.exact_output and stream.request.phase != "check"
        stream.judge(exact, count(self._job.body.get("top_n")))
        if stream.status in ("ok", "short"):
            reason = stream.find_exceeded(self._job.timeouts, self.clock)
            if reason is not None:
                stream.status, stream.error = "timeout", reason
        if self._active.pop(stream, self) is not self:
            self._fleet.free(stream)
        if self._step is not None and stream.status in ("ok", "short"):
            self._step.note_answer(stream, self._keys)
        self._go_on(stream, stream.end_ns or time.monotonic_ns())
        self._record(stream)
        self._settle()

    def on_broke(self, connection: Connection, stream: Stream, reason: str, *, retry: bool) -> None:
        """Take a request whose connection failed: send it again, or end it."""
        self._fleet.drop(connection, stream)
        now_ns = time.monotonic_ns()
        if retry and not self._stopping and now_ns - (stream.sent_ns or 0) < _RACE_NS:
            if self._step is not None:
                self._step.result.resent += 1
            self._fleet.note_cut(stream)
            stream.reused = False
            self._launch(stream, now_ns, fresh=True)
            return
        self._fleet.note_failure(stream)
        self._active[stream] = None
        # Not from here: an error may come before the caller has finished setting up.
        self.loop.call_soon(self._fail, stream, reason)

    def on_opened(self, connection: Connection) -> None:
        """Take a connection opened ahead, which is ready."""
        self._fleet.keep(connection)

    def on_dropped(self, connection: Connection) -> None:
        """Drop an idle connection that the server closed."""
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

    def _after_failure(self, stream: Stream, load: StepLoad) -> None:
        if load is self._step:
            self._go_on(stream, time.monotonic_ns())
            self._settle()

    def _go_on(self, stream: Stream, freed_ns: int) -> None:
        """Go on after a request: with its session's next turn, or its slot is free for another."""
        opened = self._sessions.pop(stream, b"")
        load = self._step
        if load is None:
            return
        sessions, request = self._feed.sessions, stream.request
        if sessions is not None and request.turn is not None:
            if stream.status not in ("ok", "short"):
                self._give_up(sessions.failed(request.index), stream)
            elif self._stopping or load.is_over():
                sessions.stopped(request.index)
            else:
                self._feed.follow(stream, opened, stream.replica if self._fleet.sticky else None)
        if self._feed.close(request):
            load.free_slot(request)
        self._send_due(freed_ns)

    def _give_up(self, indices: list[int], failed: Stream) -> None:
        """Record turns that can no longer be asked, as one of their session failed: nothing is
        dropped."""
        now_ns = time.monotonic_ns()
        for index in indices:
            request = self._plan.request(failed.request.cell, index)
            stream = Stream(request, b"", now_ns, self._new_answer())
            stream.status, stream.end_ns = "cancelled", now_ns
            stream.error = f"turn {failed.request.turn} of its session failed"
            self.progress.issued += 1
            self._record(stream)

    def _record(self, stream: Stream) -> None:
        self.progress.ended += 1
        # A server may repeat the key that it refuses.
        if stream.error is not None:
            stream.error = blank(stream.error, self._keys)
        if stream.answer.finish_reason is not None:
            stream.answer.finish_reason = blank(stream.answer.finish_reason, self._keys)
        body = self._compared.pop(stream, None)
        if stream.status not in ("ok", "short"):
            self.progress.failed += 1
            self.progress.last_error = stream.error
        elif body is not None and self._step is not None:
            self._step.note_text(stream, body)
        if stream.request.phase == "check":
            self._keep_answer(stream)
        self._fragments.add(stream)
        self._count_latencies(stream)

    def _keep_answer(self, stream: Stream) -> None:
        """Keep an answer for whoever grades it."""
        answer = stream.answer
        text = blank(_whole(answer.text[:_GRADED_CHARACTERS]), self._keys)
        calls = [
            {name: blank(_whole(text), self._keys) for name, text in call.items()}
            for call in answer.calls
        ]
        self.answers.append(
            GradedText(
                request_id=stream.request.request_id,
                ended=stream.status == "ok",
                cut=answer.is_cut,
                tokens=stream.output_tokens(),
                text=text,
                thought=answer.thought,
                calls=calls,
            )
        )

    def _count_latencies(self, stream: Stream) -> None:
        """Count latencies for whoever watches; results are computed from the journals."""
        first_s, last_s, progress = stream.first_s, stream.journaled_until_s, self.progress
        if first_s is None or last_s is None or stream.status not in ("ok", "short"):
            return
        if stream.request.phase == "measure":
            is_closed = self._plan.cells[stream.request.cell].is_closed
            begin_ns = (
                stream.sent_ns if is_closed and stream.sent_ns is not None else stream.intended_ns
            )
            begin_s, tpot_s = self.clock.since_origin_s(begin_ns), None
            is_pooled = self._plan.inputs is not None
            progress.ttfts += 1
            progress.ttft_s += (last_s if is_pooled else first_s) - begin_s
            tokens = stream.output_tokens()
            if tokens > 1 and not is_pooled:
                tpot_s = (last_s - first_s) / (tokens - 1)
                progress.tpots += 1
                progress.tpot_s += tpot_s
            if self._job.watched and stream.sent_ns is not None:
                sent_s = self.clock.since_origin_s(stream.sent_ns)
                self.watched.append(
                    WatchedRequest(sent_s, last_s, first_s - begin_s, tpot_s, last_s - begin_s)
                )

    # --- meanwhile, and at the end ----------------------------------------------------------------

    def sweep(self) -> None:
        """Look at a part of the streams: read what they hold, journal it, enforce timeouts."""
        self.loop.call_later(_SWEEP_S, self.sweep)
        if self.packets is not None:
            self.packets.drain(_WAITING_PACKETS)
        if not self._swept:
            self._swept = list(self._active)
        for _ in range(min(len(self._swept), len(self._active) // self._sweep_parts + 1)):
            stream = self._swept.pop()
            if stream in self._active:
                self._look_at(stream)

    def _look_at(self, stream: Stream) -> None:
        connection = self._active[stream]
        if connection is None:
            return
        now_ns = time.monotonic_ns()
        if now_ns - stream.last_output_ns > _QUIET_NS:
            connection.ask()
        connection.decode()
        if stream not in self._active:
            return
        reason = stream.find_overdue(self._job.timeouts, now_ns) or stream.find_exceeded(
            self._job.timeouts, self.clock
        )
        if reason is not None:
            connection.stream = None
            connection.close()
            if stream.answer.done:
                stream.end_ns = stream.last_output_ns
                self.on_ended(connection, stream)
            else:
                self._fleet.drop(connection, stream)
                if stream.sent_ns is None:
                    self._fleet.note_failure(stream)
                self._fail(stream, reason, "timeout")
        elif (
            not stream.part_ns
            or len(stream.arrival_s) >= _PART_EVENTS
            or now_ns > stream.part_ns + _PART_NS
        ):
            stream.part_ns = now_ns
            self._fragments.add(stream)

    def end_step(self) -> None:
        """Send nothing more of the step; what is under way has the grace period to end."""
        load = self._step
        if load is not None:
            load.cut = True
            self._feed.end()
            self.loop.call_later(self._job.grace_s, self._end_grace, load)
            self._settle()

    def stop(self, reason: str) -> None:
        """Send nothing more, cancel what is under way."""
        self._stopping = True
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
                self._fleet.drop(connection, stream)
            del self._active[stream]
            self._sessions.pop(stream, None)
            stream.status, stream.error, stream.end_ns = "cancelled", reason, time.monotonic_ns()
            self._record(stream)

    @property
    def under_way(self) -> int:
        """Count the requests taken up and not ended."""
        return len(self._active)

    def close(self) -> None:
        """Close what is open, once the loop has stopped."""
        self._pacer.close()
        if self.packets is not None:
            self.packets.close()


def _open_ring(job: Job) -> PacketRing:
    addresses = [to.address for to in job.destinations]
    return PacketRing(addresses[0].family, [address.sockaddr[1] for address in addresses])


def _whole(text: str) -> str:
    """Replace halves of surrogate pairs, which JSON can write and no text holds."""
    return text.encode("utf-8", "replace").decode()


def _head(destination: Destination, headers: list[tuple[str, str]], request_tag: str) -> bytes:
    """Write the head of a request up to its id; `headers`: in place of those of the same name."""
    replaced = {name.lower() for name, _ in headers}
    kept = [header for header in destination.headers if header[0].lower() not in replaced]
    lines = [f"{name}: {value}" for name, value in [*kept, *headers]]
    return "\r\n".join([destination.request_line, *lines, f"X-Request-Id: {request_tag}"]).encode(
        "latin-1"
    )
