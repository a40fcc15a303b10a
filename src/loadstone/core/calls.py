"""The calls of sessions as a graph: columns of a plan, and the selection of lists that lie end to
end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadstone.core.vectors import Bools, Ints32, Ints64


@dataclass(eq=False)
class CallGraph:
    """The calls that each call of a session waits for; rows as in the plan.

    Row r waits for parents[offsets[r]:offsets[r + 1]], turns of its own session before its own:
    until each has ended or, where `sent`, was sent; then comes the plan's `think_s`. The first of a
    session has none, all others have one or more. Requests outside of sessions have none.
    copy      how often the same session was in the cell before it; below 0 in the warm-up. Each
              copy's words are its own
    recorded  calls as a file has them, with prompts that are whole; else turns, each of which
              follows the one before and adds to what was said
    live      the server's own answers stand in later prompts
    """

    offsets: Ints64
    parents: Ints32
    sent: Bools
    copy: Ints32
    recorded: bool = False
    live: bool = False

    @classmethod
    def of_turns(cls, turn: Ints32) -> CallGraph:
        """Make the chains of sessions whose turns follow one another; without any it takes no
        memory."""

        count = len(turn)
        follows = turn > 0
        offsets = np.broadcast_to(np.int64(0), count + 1)
        if follows.any():
            offsets = np.concatenate([[0], np.cumsum(follows)])
        return cls(
            offsets,
            turn[follows] - 1,
            np.broadcast_to(np.False_, count),
            np.broadcast_to(np.int32(0), count),
            live=bool((turn >= 0).any()),
        )

    def take(self, rows: Ints64) -> CallGraph:
        """Select these rows of recorded calls, in their order: sessions whole, or as far as they
        come. A row below 0 is a request outside of sessions.
        """
        offsets, parents = take_lists(self.offsets, self.parents, rows)
        inside = rows >= 0
        return CallGraph(
            offsets,
            parents,
            self.sent[rows] & inside,
            self.copy[rows] * inside,
            self.recorded,
            self.live,
        )


def take_lists(offsets: Ints64, ids: Ints32, rows: Ints64) -> tuple[Ints64, Ints32]:
    """Select those of `rows`, in their order, from lists that lie end to end:
    ids[offsets[i]:offsets[i + 1]]; an empty one for a row below 0."""

    lengths = np.where(rows < 0, 0, np.diff(offsets)[rows])
    taken = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    within = np.arange(taken[-1]) - np.repeat(taken[:-1], lengths)
    return taken, ids[np.repeat(offsets[:-1][rows], lengths) + within]
