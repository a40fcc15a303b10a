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
    intended_s_of, sent_s_of   filled by the client, by index
    """

    def __init__(self, plan: Plan, cell: int, request_s: float, request_token_s: float) -> None:
        rows = plan.rows(cell)
        cell_rows = slice(rows.start, rows.stop)
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
        self.intended_s: list[float] = plan.intended_s[cell_rows].tolist()
        self.turn: list[int] = plan.turn[cell_rows].tolist()
        self.request_s: list[float] = (request_s + request_token_s * tokens).tolist()
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


def whole_prompts(plan: Plan, cell: int) -> Ints64:
    """Prompt tokens of each request of a cell as the engine gets them.

    Of a later turn: all prompts and answers of its session before it, and its own. Of texts: about
    CHARACTERS_PER_TOKEN characters each.
    """
    rows = plan.rows(cell)
    added = plan.input_tokens[rows.start : rows.stop].astype(np.int64)
    texts = added < 0
    if texts.any():
        added = np.where(texts, count_text_tokens(plan, cell), added)
    turn = plan.turn[rows.start : rows.stop]
    if plan.blocks is not None or not (turn > 0).any():
        return added
    so_far = np.cumsum(added + plan.output_tokens[rows.start : rows.stop])
    previous = np.concatenate([[0], so_far[:-1]])
    first = np.maximum.accumulate(np.where(turn > 0, 0, np.arange(len(turn))))
    return np.asarray(previous - previous[first] + added, np.int64)


NEVER = math.inf
_PROFILE_S = 0.01
"""How often a ramp of concurrency is looked at, as the real client does."""


class SimulatedClient:
    """One step of a cell: requests `first` to before `last` by index; `last` None: round and round.

    `arrivals` has (s when it reaches the scheduler, index), the earliest first; `pop(arrivals)`
    takes that. `act()` wants to be called at `timer_s`, `ended(index, s)` where an answer ends at
    the client.
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
        self._taken = self._active = 0  # slots of a closed loop; requests under way
        self._ending: list[tuple[float, int]] = []  # answers that end at the client: when, index
        self._later: list[tuple[float, int]] = []  # later turns: due, index
        self._first = self._next = first
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
        if plain and self._closed and not load.profile:
            self.ended = self._start_next
        self._act(start_s)

    @property
    def issue_end_s(self) -> float:
        """The last sending so far; at first the step's beginning."""
        sent_s = self._requests.sent_s_of[self._first : self._last]
        return max((time_s for time_s in sent_s if not math.isnan(time_s)), default=self._start_s)

    def _send_all(self) -> None:
        """Send everything at its own time, whatever is answered."""
        requests, unsent = self._requests, range(self._next, self._last)
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
        following = self._next
        if following < self._last:
            self._next = following + 1
            requests = self._requests
            sent_s = requests.sent_s_of[following] = at_s + requests.turnaround_s[following]
            requests.intended_s_of[following] = at_s
            heappush(self._heap, (sent_s + requests.request_s[following], following))

    def _note_end(self, index: int, at_s: float) -> None:
        heappush(self._ending, (at_s, index))
        self.timer_s = min(self.timer_s, at_s)

    def act(self) -> None:
        """It is `timer_s` now."""
        now_s = self.timer_s
        while self._ending and self._ending[0][0] <= now_s:
            _, index = heappop(self._ending)
            self._active -= 1
            sessions = self._sessions
            if sessions is None:
                self._taken -= 1
                continue
            if self._is_over(now_s):
                sessions.stopped(index)
            else:
                for due in sessions.ended(index, now_s):
                    heappush(self._later, due)
            self._taken -= sessions.close(index)
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
                self._send(index, due_s, now_s, at_once=False)
                continue
            starter_s = self._next_start_s()
            if starter_s > now_s:
                break
            index = self._next
            self._next += 1
            self._taken += 1
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
            self.timer_s = min(ending_s, later_s, self._next_start_s())

    def _next_start_s(self) -> float:
        """Find when the next request that begins something may be sent; of sessions those are the
        first turns."""
        requests = self._requests
        while (
            self._next < self._last
            and self._sessions is not None
            and requests.turn[requests.row(self._next)] > 0
        ):
            self._next += 1
        if self._next >= self._last:
            return NEVER
        if not self._closed:
            return self._start_s + requests.intended_s[self._next]
        if self._is_over(self._now_s):
            return NEVER
        if self._taken < self._slot_count():
            return self._now_s
        return self._now_s + _PROFILE_S if self._load.profile else NEVER

    def _slot_count(self) -> int:
        """Count the slots of a closed loop at this moment."""
        load = self._load
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
        if index >= len(requests.sent_s_of):
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
