"""Keeps to the load of a step: which of its requests may be sent at this moment, and when to ask
again."""

import hashlib
import heapq
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import msgspec

from loadstone.core.plan import Plan, PlannedRequest
from loadstone.core.record import VectorFacts
from loadstone.core.secrets import blank
from loadstone.core.sessions import OpenSessions
from loadstone.measure.client.protocol import Step, StepDone
from loadstone.measure.client.stream import Stream, digest_of
from loadstone.measure.wire.request import RequestBody
from loadstone.measure.wire.vectors import AnswerVectors
from loadstone.workload.arrivals import level
from loadstone.workload.media import picture_bytes
from loadstone.workload.pictures import FilledBody, PictureWriter, has_marks
from loadstone.workload.prompts import PromptWriter

_READY_REQUESTS = 128
_READY_BYTES = 128 * 1024 * 1024
_LATE_NS = 1_000_000
"""Of a wait for pictures: a later turn's are begun when the answer before it has ended."""


class Due(NamedTuple):
    """A request ready to be sent.

    due_ns   monotonic; of a closed loop's starters the step's start
    order    among those due at the same time: the index
    opened   the prompt so far, where a turn follows whose prompt begins with it, or has the answer
    replica  where the session is, None where that is not settled
    """

    due_ns: int
    order: int
    request: PlannedRequest
    body: FilledBody | Future[FilledBody]
    opened: bytes
    replica: int | None


class Feed:
    """Use: `begin(step)`, then look at `starter` and `later`, take them, and `follow` answers,
    until `ended`."""

    def __init__(
        self,
        plan: Plan,
        prompts: PromptWriter,
        bodies: Sequence[Mapping[int, RequestBody]],
        graded: RequestBody,
        soon: Callable[..., object],
        *,
        stored: bool,
        pictures: PictureWriter | None = None,
    ) -> None:
        """`bodies`: of requests, by class and adapter; `graded`: the body of requests whose answers
        are graded. `soon(callback)`: call back when there is time. `stored`: later turns name the
        server's stored answers. `pictures`: makes those of bodies, which a thread does ahead of
        time."""
        self._plan = plan
        self._prompts = prompts
        self._bodies, self._graded = bodies, graded
        self._soon = soon
        self._pictures = pictures
        self._thread = None if pictures is None else ThreadPoolExecutor(1, "pictures")
        queues = max(1, len(plan.class_slots))
        self._ready: list[deque[Due]] = [deque() for _ in range(queues)]
        """Starters; where slots are a class's own, of each class."""
        self._ready_bytes = 0
        self._later: list[Due] = []
        self.sessions: OpenSessions | None = None
        self._answers: dict[str, dict[int, str]] = {}
        """Those that later prompts hold, of each session by turn."""
        self._stored: dict[str, dict[int, str]] | None = {} if stored else None
        """The server's names of these, where it stores them."""
        self._refilling = False
        self._indices: list[Iterator[int]] = [iter(())] * queues
        """Those of each class that are not written yet."""
        self._cell = 0
        self._start_ns = 0

    def begin(self, step: Step, at_once: int) -> None:
        """`at_once`: how many are wanted at the very start; they are written now, as far as memory
        allows."""
        self._cell, self._start_ns = step.cell, step.start_ns
        if self._plan.has_sessions:
            self.sessions = OpenSessions(self._plan, step.cell, per_s=1e9)
        for number in range(len(self._ready)):
            indices = self._starters(step, number)
            self._indices[number] = itertools.islice(indices, step.part, None, step.parts)
        while self._count_ready() < at_once and self._ready_bytes < _READY_BYTES:
            if not self._prepare(1):
                break
        self._refill()

    def _starters(self, step: Step, number: int) -> Iterator[int]:
        """Return the indices of a step's requests and first turns in one of the queues."""
        indices: Iterator[int] = itertools.islice(itertools.count(), step.first, step.last)
        plan = self._plan
        if self.sessions is not None:
            indices = (i for i in indices if plan.turn[plan.row(step.cell, i)] <= 0)
        if plan.class_slots:
            indices = (i for i in indices if plan.class_of(plan.row(step.cell, i)) == number)
        return indices

    def _count_ready(self) -> int:
        return sum(map(len, self._ready))

    def end(self) -> None:
        """Send nothing more."""
        self._indices = [iter(())] * len(self._ready)
        for ready in self._ready:
            for due in ready:
                if isinstance(due.body, Future):
                    due.body.cancel()
            ready.clear()
        self._later.clear()
        self._ready_bytes = 0

    @property
    def ended(self) -> bool:
        starters = (self.next_starter(number) for number in range(len(self._ready)))
        return self.next_later() is None and not any(starters)

    def next_starter(self, number: int = 0) -> Due | None:
        """Return the next request (first turn) of the plan; where slots are a class's own, of that
        class."""
        ready = self._ready[number]
        if not ready:
            self._prepare(1, number)
        return ready[0] if ready else None

    def next_later(self) -> Due | None:
        """Return the next later turn."""
        while (
            self._later
            and self.sessions is not None
            and self.sessions.is_given_up(self._later[0].order)
        ):
            heapq.heappop(self._later)
        return self._later[0] if self._later else None

    def take_starter(self, number: int = 0) -> Due:
        due = self._ready[number].popleft()
        self._ready_bytes -= _size(due)
        self._refill()
        return due

    def take_later(self) -> Due:
        return heapq.heappop(self._later)

    def follow_sent(self, request: PlannedRequest, now_ns: int, replica: int | None) -> None:
        """Make the calls that follow from the sending of `request`, and keep that its session has
        begun."""
        if self.sessions is not None and request.turn is not None:
            for due_ns, index in self.sessions.sent(request.index, now_ns):
                following = self._plan.request(self._cell, index)
                due = self._write(following, b"", round(due_ns), replica)
                heapq.heappush(self._later, due)

    def follow(self, stream: Stream, opened: bytes, replica: int | None) -> None:
        """Make the turns after an answer, due `think_s` after its end."""
        request, answer = stream.request, stream.answer.text
        if self.sessions is None or request.turn is None:
            return
        if opened:
            self._answers.setdefault(request.session_id or "", {})[request.turn] = answer
            if self._stored is not None and stream.answer.stored_id is not None:
                names = self._stored.setdefault(request.session_id or "", {})
                names[request.turn] = stream.answer.stored_id
        for due_ns, index in self.sessions.ended(request.index, stream.end_ns or 0):
            following = self._plan.request(self._cell, index)
            history = self._prompts.answered(opened, answer, following)
            due = self._write(following, history, round(due_ns), replica)
            heapq.heappush(self._later, due)

    def close(self, request: PlannedRequest) -> bool:
        """Tell whether the session of a request that ended is over."""
        if self.sessions is None or request.turn is None:
            return True
        over = self.sessions.close(request.index)
        if over:
            for kept in (self._answers, self._stored or {}):
                kept.pop(request.session_id or "", None)
        return over

    def _write(
        self, request: PlannedRequest, history: bytes, due_ns: int, replica: int | None
    ) -> Due:
        answers = self._answers.get(request.session_id or "") if request.answers else None
        opened = self._prompts.opened(request, history, answers or {})
        of_class = self._bodies[request.traffic_class][request.adapter]
        of_phase = self._graded if request.phase == "check" else of_class
        prompt = self._prompts.closed(opened, request)
        body = of_phase.render(prompt, request.output_tokens, self._find_stored(request))
        filled: FilledBody | Future[FilledBody] = FilledBody(body, 0)
        if request.pictures is not None and request.pictures.shape.files:
            filled = FilledBody(body, picture_bytes(request.prompt or ""))
        elif self._pictures is not None and self._thread is not None and has_marks(body):
            filled = self._thread.submit(self._pictures.fill, body)
        if not self._keeps(request):
            opened = b""
        return Due(due_ns, request.index, request, filled, opened, replica)

    def _find_stored(self, request: PlannedRequest) -> str | None:
        """Return the server's name of the last answer in a later turn's prompt; None where it is
        not stored."""
        if self._stored is None or not request.turn:
            return None
        turn = request.turn - 1
        if request.messages:
            place, turn = request.answers[-1] if request.answers else (0, -1)
            index = request.index - request.turn + max(0, turn)
            messages = self._plan.request(self._cell, index).messages
            following_turn = map(msgspec.json.decode, request.messages[place + 1 :])
            # What was said meanwhile, or of tools that the server did not call, it has not stored.
            if messages != request.messages[:place] or any(
                m.get("role") != "user" for m in following_turn
            ):
                return None
        return self._stored.get(request.session_id or "", {}).get(turn)

    def _keeps(self, request: PlannedRequest) -> bool:
        """Tell whether a later turn's prompt holds this one, or its answer."""
        if request.turn is None or not self._plan.graph.live:
            return False
        rows = self._plan.rows(self._cell)
        row = self._plan.row(self._cell, request.index) + 1
        return row < rows.stop and bool(self._plan.turn[row] > 0)

    def _prepare(self, count: int, number: int | None = None) -> int:
        """Write up to `count` more starters, of class `number` or of that with the fewest; returns
        how many there were."""
        if number is None:
            number = min(range(len(self._ready)), key=lambda place: len(self._ready[place]))
        made = 0
        for index in itertools.islice(self._indices[number], count):
            request = self._plan.request(self._cell, index)
            due_ns = self._start_ns + round((request.intended_s or 0.0) * 1e9)
            due = self._write(request, b"", due_ns, None)
            self._ready[number].append(due)
            self._ready_bytes += _size(due)
            made += 1
        return made

    def _refill(self) -> None:
        """Keep requests ready, a few at a time between other work, so that none is written when it
        is due."""
        if (
            not self._refilling
            and self._count_ready() < _READY_REQUESTS
            and self._ready_bytes < _READY_BYTES
        ):
            self._refilling = True
            self._soon(self._refill_some)

    def _refill_some(self) -> None:
        self._refilling = False
        if self._prepare(4):
            self._refill()


def _size(due: Due) -> int:
    """Return about how many bytes a request takes while it is ready; PNG of noise is largest."""
    pictures = due.request.pictures
    if isinstance(due.body, FilledBody):
        return len(due.body.body)
    return 0 if pictures is None else 4 * pictures.images * pictures.shape.pixels


_NAMES = 20
"""Names of models, and of fields, that are kept apart."""
_COMPARED = 32
"""Measured answers of a worker whose text is kept to be compared: such are parsed event by event.
"""
_KEPT_VECTORS = 65_536
_COMPARED_TOKENS = 8
"""Tokens from which an answer is more than a yes."""


class StepLoad:
    """A step under way, as far as one worker has it.

    A slot of a closed loop holds a request under way, or a session with its pauses.
    """

    def __init__(
        self,
        step: Step,
        plan: Plan,
        feed: Feed,
        asked: Mapping[tuple[int, int], str] | None = None,
    ) -> None:
        """`asked`: the model that requests name, by class and adapter, where the run's is not."""
        load = plan.cells[step.cell]
        self.begun = False
        """Its start has come."""
        self.result = StepDone(step.start_ns, step.start_ns, step.start_ns)
        self._cpu_before_s = time.process_time()
        self._comparing = _COMPARED
        self._vectors: set[bytes] = set()
        """Digests of the first vectors of earlier answers."""
        self.wake_ns: int | None = None
        """The time to ask `next` again; None: when a request ends."""
        self.duration_s = load.duration_s or 0.0
        """From the first measured request; 0: it ends by count."""
        self.follows_profile = load.is_closed and bool(load.profile)
        self.connects_ahead = not load.is_open
        self._step = step
        self._load = load
        self._feed = feed
        self._cyclic = plan.cyclic(step.cell)
        self._asked = asked or {}
        self._classes = plan.classes
        self._cap = math.inf if load.max_concurrency is None else self._share(load.max_concurrency)
        self._class_slots = plan.class_slots
        self._taken = [0] * max(1, len(self._class_slots))
        """Slots that hold a request or a session; where slots are a class's own, of each class."""
        self._measure_start_ns: int | None = None
        self.cut = False
        """It is to end now, though it has more to send."""

    @property
    def at_once(self) -> int:
        """Return the number of requests sent at the very start."""
        return 8 if self._load.is_open else self._share(int(self._load.value))

    def next(self, freed_ns: int, under_way: int) -> tuple[Due, int] | None:
        """Return a request to send now, and when that was intended; None: there is none yet, see
        `wake_ns`.

        `freed_ns`: when a slot of a closed loop came free, which is when its next request should
        begin.
        """
        self.wake_ns = None
        if self._cyclic and self.is_over():
            self._feed.end()
            return None
        if under_way >= self._cap:
            return None  # the end of a request makes room
        now_ns = time.monotonic_ns()
        following_turn = self._feed.next_later()
        if following_turn is not None and following_turn.due_ns <= now_ns:
            return self._feed.take_later(), following_turn.due_ns
        starter = None if self._load.is_closed else self._feed.next_starter()
        if self._load.is_closed:
            for number, taken in enumerate(self._taken):
                if taken < self._count_slots(number) and self._feed.next_starter(number):
                    self._taken[number] += 1
                    return self._feed.take_starter(number), freed_ns
        elif starter is not None:
            if starter.due_ns <= now_ns:
                return self._feed.take_starter(), starter.due_ns
            self.wake_ns = starter.due_ns
        if following_turn is not None:
            self.wake_ns = min(following_turn.due_ns, self.wake_ns or following_turn.due_ns)
        return None

    def take_body(self, due: Due) -> FilledBody:
        """Return a body to be sent now; one whose pictures are not made yet is waited for."""
        if isinstance(due.body, FilledBody):
            return due.body
        asked_ns = time.monotonic_ns()
        body = due.body.result()
        self.result.pictures_late += time.monotonic_ns() - asked_ns > _LATE_NS
        return body

    def note_sent(self, request: PlannedRequest, now_ns: int) -> bool:
        """Keep that a request was sent; True if it is the first that is measured."""
        self.result.issue_end_ns = now_ns
        if request.phase != "measure" or self._measure_start_ns is not None:
            return False
        self._measure_start_ns = now_ns
        return True

    def note_answer(self, stream: Stream, keys: list[str]) -> None:
        """Keep what a whole answer tells of the server; of names without end, those after the first
        few are one."""
        result = self.result
        self._note_vectors(stream.answer.vectors)
        result.hidden_tokens += stream.hidden_tokens()
        opening, _ = stream.answer.ends
        if opening is not None:
            name = str(digest_of(opening)) if opening.strip() else ""
            kept = name if name in result.openings or len(result.openings) < _NAMES else "others"
            result.openings[kept] = result.openings.get(kept, 0) + 1
        model = [stream.answer.model] if stream.answer.model is not None else []
        model_asked = self._asked.get((stream.request.traffic_class, stream.request.adapter))
        if model_asked is not None and model and model != [model_asked]:
            name = self._classes[stream.request.traffic_class].name
            result.misnamed[name] = result.misnamed.get(name, 0) + 1
        for counts, names in ((result.models, model), (result.unlisted, stream.answer.unlisted)):
            for name in (blank(name, keys) for name in names):
                kept = name if name in counts or len(counts) < _NAMES else "others"
                counts[kept] = counts.get(kept, 0) + 1

    def _note_vectors(self, vectors: AnswerVectors | None) -> None:
        """Keep what an answer's vectors or scores look like, and whether an earlier answer has the
        same."""
        if vectors is None:
            return
        alike = vectors.alike or (vectors.digest in self._vectors and bool(vectors.digest))
        if len(self._vectors) < _KEPT_VECTORS:
            self._vectors.add(vectors.digest)
        lengths = {str(length): count for length, count in vectors.lengths.most_common(_NAMES)}
        self.result.vectors += VectorFacts(1, int(vectors.faulty), int(alike), lengths)

    def keeps_text(self, request: PlannedRequest) -> bool:
        """Return True if the text of its answer is one of those that are compared."""
        if request.phase != "measure" or not self._comparing:
            return False
        self._comparing -= 1
        return True

    def note_text(self, stream: Stream, body: bytes) -> None:
        """Keep that a request of this body was answered so, and how long the text of its events
        is."""
        answer, tokens = stream.answer, stream.output_tokens()
        lengths = answer.text_lengths()
        if not answer.text or tokens < _COMPARED_TOKENS:
            return
        self.result.texts[_digest(body)] = _digest(answer.text.encode(errors="surrogatepass"))
        if not answer.thought and len(lengths) == answer.events - answer.voids:
            squares = sum(length * length for length in lengths)
            self.result.text_sizes.append((tokens, len(lengths), sum(lengths), squares))

    def finish(self) -> StepDone:
        """Return what came of the step, of which all was sent and has ended."""
        self.result.end_ns = time.monotonic_ns()
        self.result.cpu_s = time.process_time() - self._cpu_before_s
        return self.result

    def free_slot(self, request: PlannedRequest) -> None:
        self._taken[request.traffic_class if self._class_slots else 0] -= 1

    def is_over(self) -> bool:
        """Return whether the cell's time is up."""
        if self.cut:
            return True
        if not self.duration_s or self._measure_start_ns is None:
            return False
        return time.monotonic_ns() >= self._measure_start_ns + self.duration_s * 1e9

    def _count_slots(self, number: int) -> int:
        """Count the slots of a queue of a closed loop at this moment."""
        if self._class_slots:
            return self._share(self._class_slots[number])
        profile, start_ns = self._load.profile, self._measure_start_ns
        if not profile:
            return self._share(int(self._load.value))
        if start_ns is None:
            return self._share(max(1, math.ceil(profile[0][0])))
        return self._share(int(level(profile, (time.monotonic_ns() - start_ns) * 1e-9)))

    def _share(self, total: int) -> int:
        """Return this worker's part of `total` slots."""
        return total // self._step.parts + (self._step.part < total % self._step.parts)


def _digest(of: bytes) -> str:
    return hashlib.blake2b(of, digest_size=8).hexdigest()
