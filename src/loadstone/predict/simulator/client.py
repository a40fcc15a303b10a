"""The client of a simulated run: what a cell asks for, sent by the rules of the real client
(measure/client/).

What follows from an answer is sent a moment after it (TURNAROUND_S), with a spread. The spread
matters: without it all slots of a closed loop stay in lock-step with the engine's steps, and miss
steps that a real client meets.
"""

import math
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

import numpy as np

from loadstone.core.plan import Load, Plan
from loadstone.core.sessions import OpenSessions
from loadstone.core.vectors import Ints64
from loadstone.workload.arrivals import level
from loadstone.workload.prompts import count_text_tokens

TURNAROUND_S = 0.001
"""Mean of the exponential time that a client takes from an answer's end to the request that follows
from it."""
_TURNAROUND = 7


class CellRequests:
    """The requests of one cell. An index counts within the cell; in a cell that goes round by time,
    past its end.

    input_tokens    of each request whole: later turns of a session bring all that was said before
    request_s       from being sent to the scheduler
    turnaround_s    of the client before it
    sequences       of requests for vectors or scores, the tokens of what is read for each
    traffic_class   where slots are a class's own
    priority        of each request; the larger is served first
    adapter         of each request, its number from 1 on; 0: none
    intended_s_of, sent_s_of   filled by the client, by index
    """

    def __init__(
        self,
        plan: Plan,
        cell: int,
        request_s: float,
        request_token_s: float,
        unset_priority: int = 0,
        text_share: float = 0.0,
    ) -> None:
        """`text_share`: of request_s, what each text of a request after the first takes."""
        rows, cell_rows = plan.rows(cell), plan.span(cell)
        self.plan, self.cell = plan, cell
        self.count = len(rows)
        self.warm = plan.warmup_count(cell)
        self.cyclic = plan.cyclic(cell)
        tokens = whole_prompts(plan, cell)
        turnaround = np.random.default_rng([plan.seed, _TURNAROUND, cell]).exponential(
            TURNAROUND_S, len(rows)
        )
        self.input_tokens: list[int] = tokens.tolist()
        self.output_tokens: list[int] = plan.output_tokens[cell_rows].tolist()
        self.sequences: list[list[int]] = []
        if plan.inputs is not None:
            # Each ends with the step that has read it.
            self.output_tokens = [1] * self.count
            self.sequences = [plan.inputs.sequences(row) for row in rows]
        self.intended_s: list[float] = plan.intended_s[cell_rows].tolist()
        self.turn: list[int] = plan.turn[cell_rows].tolist()
        self.traffic_class = [0] * self.count
        if plan.class_slots and plan.traffic_class is not None:
            self.traffic_class = plan.traffic_class[cell_rows].tolist()
        self.priority = _priorities(plan, cell, unset_priority)
        self.adapter = [0] * self.count
        if plan.adapter is not None:
            self.adapter = plan.adapter[cell_rows].tolist()
        texts = tokens if plan.pictures is None else tokens - _visual_tokens(plan, cell)
        further = np.array([len(read) - 1 for read in self.sequences] or 0)
        frontend_s = request_s * (1 + text_share * further) + request_token_s * texts
        self.request_s: list[float] = frontend_s.tolist()
        self.turnaround_s: list[float] = turnaround.tolist()
        self.intended_s_of = [math.nan] * self.count
        self.sent_s_of = [math.nan] * self.count

    def row(self, index: int) -> int:
        """The place of request `index` in the lists."""
        count = self.count
        return index if index < count else self.warm + (index - self.warm) % (count - self.warm)

    def turn_follows(self, index: int) -> bool:
        """Tell whether the next request is a later turn of the same session."""
        if not self.cyclic and index + 1 >= self.count:
            return False
        return self.turn[self.row(index + 1)] > 0


def _priorities(plan: Plan, cell: int, unset: int) -> list[int]:
    """Return the priorities of a cell's requests, `unset` where they have none."""
    if plan.traffic_class is None:
        return [unset] * len(plan.rows(cell))
    by_class = np.array(
        [unset if kind.priority is None else kind.priority for kind in plan.classes]
    )
    priorities: list[int] = by_class[plan.traffic_class[plan.span(cell)]].tolist()
    return priorities


def whole_prompts(plan: Plan, cell: int) -> Ints64:
    """Prompt tokens of each request of a cell as the engine gets them.

    Of a later turn: all prompts and answers of its session before it, and its own. Of texts: about
    CHARACTERS_PER_TOKEN characters each.
    """
    if plan.inputs is not None:
        return np.array([sum(plan.inputs.sequences(row)) for row in plan.rows(cell)], np.int64)
    rows = plan.span(cell)
    added = plan.input_tokens[rows].astype(np.int64)
    texts = added < 0
    if texts.any():
        added = np.where(texts, count_text_tokens(plan, cell), added)
    if plan.pictures is not None:
        added = added + _visual_tokens(plan, cell)
    turn = plan.turn[rows]
    if plan.blocks is not None or not (turn > 0).any():
        return added
    so_far = np.cumsum(added + plan.output_tokens[rows])
    previous = np.concatenate([[0], so_far[:-1]])
    first = np.maximum.accumulate(np.where(turn > 0, 0, np.arange(len(turn))))
    return np.asarray(previous - previous[first] + added, np.int64)


def _visual_tokens(plan: Plan, cell: int) -> Ints64:
    """Return the tokens of each request's own pictures, with what is around them."""
    assert plan.pictures is not None  # noqa: S101
    return plan.pictures.tokens()[plan.span(cell)]


NEVER = math.inf
_PROFILE_S = 0.01
"""How often a ramp of concurrency is looked at, as the real client does."""


class SimulatedClient:
    """One step of a cell: requests `first` to before `last` by index; `last` None: round and round.

    `arrivals` has (s when it reaches the scheduler, index), the earliest first; `pop(arrivals)`
    takes that. `act()` wants to be called at `timer_s`, `ended(index, s)` where an answer ends at
    the client, or `failed(index, s)`.
    """

    def __init__(
        self, requests: CellRequests, load: Load, first: int, last: int | None, start_s: float
    ) -> None:
        self._heap: list[tuple[float, int]] = []
        self.arrivals: list[tuple[float, int]] | deque[tuple[float, int]] = self._heap
        self.pop: Callable[[Any], tuple[float, int]] = heappop
        self.timer_s = NEVER
        self.measure_start_s: float | None = None
        self._requests = requests
        self._load = load
        self._start_s = self._now_s = start_s
        self._closed = load.is_closed
        self._cap = load.max_concurrency or (1 << 62)
        self._class_slots = requests.plan.class_slots
        self._taken = [0] * max(1, len(self._class_slots))  # slots of a closed loop, of each class
        self._active = 0  # requests under way
        self._ending: list[tuple[float, int]] = []  # answers that end at the client: when, index
        self._later: list[tuple[float, int]] = []  # later turns: due, index
        self._failed: set[int] = set()  # that were turned away
        self._first = first
        self._next = [first] * len(self._taken)
        self._last = (1 << 62) if last is None else last
        self._sessions = (
            OpenSessions(requests.plan, requests.cell)
            if any(t >= 0 for t in requests.turn)
            else None
        )
        # The commonest cases: the end of an answer starts the next request, or nothing.
        plain = not self._sessions and load.duration_s is None
        self.ended: Callable[[int, float], None] = self._note_end
        if plain and not self._closed and load.max_concurrency is None:
            self.ended = _ignore_end
            self._send_all()
            return
        if plain and self._closed and not load.profile and not self._class_slots:
            self.ended = self._start_next
        self._act(start_s)

    @property
    def issue_end_s(self) -> float:
        """The last sending so far; at first the step's beginning."""
        sent_s = self._requests.sent_s_of[self._first : self._last]
        return max((time_s for time_s in sent_s if not math.isnan(time_s)), default=self._start_s)

    def _send_all(self) -> None:
        """Send everything at its own time, whatever is answered."""
        requests, unsent = self._requests, range(self._first, self._last)
        times_s = [self._start_s + requests.intended_s[index] for index in unsent]
        requests.intended_s_of[unsent.start : unsent.stop] = requests.sent_s_of[
            unsent.start : unsent.stop
        ] = times_s
        ways = zip(times_s, requests.request_s[unsent.start : unsent.stop], unsent, strict=True)
        self.arrivals = deque(
            sorted((sent_s + request_s, index) for sent_s, request_s, index in ways)
        )
        self.pop = deque.popleft

    def _start_next(self, _: int, at_s: float) -> None:
        """Send the next request of a closed loop, where an answer ends at the client at `at_s`."""
        following = self._next[0]
        if following < self._last:
            self._next[0] = following + 1
            requests = self._requests
            sent_s = requests.sent_s_of[following] = at_s + requests.turnaround_s[following]
            requests.intended_s_of[following] = at_s
            heappush(self._heap, (sent_s + requests.request_s[following], following))

    def _note_end(self, index: int, at_s: float) -> None:
        heappush(self._ending, (at_s, index))
        self.timer_s = min(self.timer_s, at_s)

    def failed(self, index: int, at_s: float) -> None:
        """Note that a request was turned away, which ends its session too."""
        self._failed.add(index)
        self.ended(index, at_s)

    def act(self) -> None:
        """It is `timer_s` now."""
        now_s = self.timer_s
        while self._ending and self._ending[0][0] <= now_s:
            _, index = heappop(self._ending)
            self._active -= 1
            sessions = self._sessions
            number = self._queue_of(index)
            if sessions is None:
                self._taken[number] -= 1
                continue
            if index in self._failed:
                sessions.failed(index)
            elif self._is_over(now_s):
                sessions.stopped(index)
            else:
                for due in sessions.ended(index, now_s):
                    heappush(self._later, due)
            self._taken[number] -= sessions.close(index)
        self._act(now_s)

    def _act(self, now_s: float) -> None:
        """Send what may be sent now: later turns that are due, then what the load lets begin."""
        self._now_s = now_s
        later_turns = self._later
        cyclic = self._requests.cyclic
        if cyclic and self._is_over(now_s):
            later_turns.clear()  # sessions that pause have no further turn
        while self._active < self._cap:
            if later_turns and later_turns[0][0] <= now_s:
                due_s, index = heappop(later_turns)
                if self._failed and self._sessions and self._sessions.is_given_up(index):
                    continue
                self._send(index, due_s, now_s, at_once=False)
                continue
            starter_s, number = self._next_start()
            if starter_s > now_s:
                break
            index = self._next[number]
            self._next[number] += 1
            self._taken[number] += 1
            self._send(index, now_s if self._closed else starter_s, now_s, at_once=not self._closed)
        ending_s = self._ending[0][0] if self._ending else NEVER
        if self._active >= self._cap:
            self.timer_s = ending_s  # the end of an answer makes room
        else:
            later_s = later_turns[0][0] if later_turns else NEVER
            if later_turns and cyclic:
                later_s = min(
                    later_s, self._time_up_s()
                )  # nobody waits for pauses that end after that
            self.timer_s = min(ending_s, later_s, self._next_start()[0])

    def _next_start(self) -> tuple[float, int]:
        """Find when the next request that begins something may be sent, and of which queue it is;
        of sessions those are the first turns."""
        if not self._class_slots:
            return self._next_start_s(0), 0
        return min((self._next_start_s(number), number) for number in range(len(self._taken)))

    def _next_start_s(self, number: int) -> float:
        """Find when the next request of a queue may be sent."""
        requests = self._requests
        if self._sessions is not None or self._class_slots:
            self._skip(number)
        following = self._next[number]
        if following >= self._last:
            return NEVER
        if not self._closed:
            return self._start_s + requests.intended_s[following]
        if self._is_over(self._now_s):
            return NEVER
        if self._taken[number] < self._slot_count(number):
            return self._now_s
        return self._now_s + _PROFILE_S if self._load.profile else NEVER

    def _skip(self, number: int) -> None:
        """Pass over later turns, and over requests of other queues."""
        requests = self._requests
        while self._next[number] < self._last:
            row = requests.row(self._next[number])
            is_later = self._sessions is not None and requests.turn[row] > 0
            if not is_later and (not self._class_slots or requests.traffic_class[row] == number):
                return
            self._next[number] += 1

    def _queue_of(self, index: int) -> int:
        return self._requests.traffic_class[self._requests.row(index)]

    def _slot_count(self, number: int) -> int:
        """Count the slots of a queue of a closed loop at this moment."""
        load = self._load
        if self._class_slots:
            return self._class_slots[number]
        if not load.profile:
            return int(load.value)
        if self.measure_start_s is None:
            return max(1, math.ceil(load.profile[0][0]))
        return int(level(load.profile, self._now_s - self.measure_start_s))

    def _time_up_s(self) -> float:
        """Find when the cell's time is up."""
        start_s, duration_s = self.measure_start_s, self._load.duration_s
        return NEVER if duration_s is None or start_s is None else start_s + duration_s

    def _is_over(self, now_s: float) -> bool:
        return now_s >= self._time_up_s()

    def _send(self, index: int, intended_s: float, now_s: float, *, at_once: bool) -> None:
        """Send a request. `at_once`: the clock says when, and the client was ready, unless it is
        late already."""
        requests = self._requests
        while index >= len(requests.sent_s_of):
            room = [math.nan] * requests.count
            requests.intended_s_of += room
            requests.sent_s_of += room
        row = requests.row(index)
        sent_s = now_s if at_once and intended_s >= now_s else now_s + requests.turnaround_s[row]
        requests.intended_s_of[index] = intended_s
        requests.sent_s_of[index] = sent_s
        self._active += 1
        if self._sessions is not None:
            for due in self._sessions.sent(index, sent_s):
                heappush(self._later, due)
        if self.measure_start_s is None and row >= requests.warm:
            self.measure_start_s = sent_s
        heappush(self._heap, (sent_s + requests.request_s[row], index))


def _ignore_end(_index: int, _at_s: float) -> None:
    """Nothing follows from an answer's end."""
