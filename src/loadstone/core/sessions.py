"""Sessions as graphs of calls: what each call waits for, and which calls become due as others are
sent and end.

One implementation for the client and the simulator: `OpenSessions`.
"""

from dataclasses import dataclass, field

import numpy as np

from loadstone.core.plan import Plan
from loadstone.core.vectors import Array


def time_tasks(
    turn: Array, sent_s: Array, end_s: Array, chosen: Array
) -> tuple[list[float], list[float]]:
    """Return of each `chosen` session of a cell the time from its first call's sending to its last
    one's end, and how much of that calls were under way.
    """

    begins = np.append(np.flatnonzero(turn <= 0), len(turn))
    spans, busy = [], []
    for session in np.flatnonzero(chosen).tolist():
        calls = slice(begins[session], begins[session + 1])
        order = np.argsort(sent_s[calls])
        sent, end = sent_s[calls][order], end_s[calls][order]
        until = np.maximum.accumulate(end)
        from_s = np.maximum(sent, np.concatenate([[-np.inf], until[:-1]]))
        spans.append(float(until[-1] - sent[0]))
        busy.append(float(np.maximum(0.0, end - from_s).sum()))
    return spans, busy


@dataclass(slots=True)
class _Session:
    """One that has begun. `left` of its calls have not ended; with `given_up` no more of them are
    sent."""

    left: int
    active: int = 0
    given_up: bool = False
    begun: set[int] = field(default_factory=set)
    waits: dict[int, int] = field(default_factory=dict)
    """By index of a call that joins several: how many of them it still waits for."""


class OpenSessions:
    """The sessions of a cell that have begun. Told what was sent and what ended, it tells what
    becomes due.

    An index counts within the cell; times are in the unit of which `per_s` are a second. Of each
    call that was sent one of ended(), failed() and stopped() is told.
    """

    def __init__(self, plan: Plan, cell: int, per_s: float = 1.0) -> None:
        rows, cells_rows = plan.rows(cell), plan.span(cell)
        turn, graph = plan.turn[cells_rows], plan.graph
        count = len(rows)
        edges = np.diff(graph.offsets[rows.start : rows.stop + 1])
        follows = np.repeat(np.arange(count), edges)
        inside = graph.parents[graph.offsets[rows.start] : graph.offsets[rows.stop]]
        parents = follows - turn[follows] + inside
        order = np.argsort(parents, kind="stable")
        begins = np.flatnonzero(turn <= 0)
        lengths = np.diff(np.append(begins, count))
        self._count, self._warm = count, plan.warmup_count(cell)
        self._turn: list[int] = turn.clip(0).tolist()
        self._length: list[int] = np.repeat(lengths, lengths).tolist()
        self._think: list[float] = (plan.think_s[cells_rows] * per_s).tolist()
        self._sent: list[bool] = graph.sent[cells_rows].tolist()
        self._parents: list[int] = np.bincount(follows, minlength=count).tolist()
        self._children: list[int] = follows[order].tolist()
        self._child_at: list[int] = np.searchsorted(parents[order], np.arange(count + 1)).tolist()
        self._sessions: dict[int, _Session] = {}

    def _row(self, index: int) -> int:
        """Find the place in the lists, of a cell that may go round; see Plan.row()."""
        count = self._count
        return index if index < count else self._warm + (index - self._warm) % (count - self._warm)

    def sent(self, index: int, at: float) -> list[tuple[float, int]]:
        """Note that a call was sent; list when each call that follows from that is due, and its
        index."""
        row = self._row(index)
        first = index - self._turn[row]
        session = self._sessions.get(first)
        if session is None:
            session = self._sessions[first] = _Session(self._length[row])
        session.active += 1
        session.begun.add(index)
        return self._follow(session, index, row, at, sent=True)

    def ended(self, index: int, at: float) -> list[tuple[float, int]]:
        """Note that a call ended well; list when each call that follows from that is due, and its
        index."""
        return self._follow(self._end(index), index, self._row(index), at, sent=False)

    def failed(self, index: int) -> list[int]:
        """Note that a call failed, which ends its session; list the calls that are never sent
        because of that."""
        session = self._end(index)
        if session.given_up:
            return []
        session.given_up = True
        row = self._row(index)
        first = index - self._turn[row]
        return [
            call for call in range(first, first + self._length[row]) if call not in session.begun
        ]

    def stopped(self, index: int) -> None:
        """Note that a call ended when nothing more is to be sent."""
        self._end(index).given_up = True

    def is_given_up(self, index: int) -> bool:
        """Tell whether a call that is due is not to be sent after all."""
        session = self._sessions.get(index - self._turn[self._row(index)])
        return session is None or session.given_up

    def close(self, index: int) -> bool:
        """Tell whether the session of a call that ended is over, which then is forgotten."""
        first = index - self._turn[self._row(index)]
        session = self._sessions[first]
        if session.active or (session.left and not session.given_up):
            return False
        del self._sessions[first]
        return True

    def _end(self, index: int) -> _Session:
        session = self._sessions[index - self._turn[self._row(index)]]
        session.active -= 1
        session.left -= 1
        return session

    def _follow(
        self, session: _Session, index: int, row: int, at: float, *, sent: bool
    ) -> list[tuple[float, int]]:
        due: list[tuple[float, int]] = []
        if session.given_up:
            return due
        for child in self._children[self._child_at[row] : self._child_at[row + 1]]:
            if self._sent[child] != sent:
                continue
            following = index + child - row
            if self._parents[child] > 1:
                left = session.waits[following] = (
                    session.waits.get(following, self._parents[child]) - 1
                )
                if left:
                    continue
            due.append((at + self._think[child], following))
        return due
