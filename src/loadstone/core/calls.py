"""The calls of sessions as a graph: columns of a plan, and the selection of lists that lie end to
end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(eq=False)
class CallGraph:
    """The calls of sessions that branch and join, and whose prompts are whole; rows as in the plan.

    Row r waits for parents[offsets[r]:offsets[r + 1]], turns of its own session before its own:
    until each has ended or, where `sent`, was sent; then comes the plan's `think_s`. The first of a
    session has none, all others have one or more.
    copy   how often the same session was in the cell before it; below 0 in the warm-up. Each copy's
           words are its own
    live   the server's own answers stand in later prompts, in the place of the recorded ones
    """

    offsets: NDArray[np.int64]
    parents: NDArray[np.int32]
    sent: NDArray[np.bool_]
    copy: NDArray[np.int32]
    live: bool = False

    def take(self, rows: NDArray[np.int64]) -> CallGraph:
        """Select these rows, in their order: sessions whole, or as far as they come."""
        offsets, parents = take_lists(self.offsets, self.parents, rows)
        return CallGraph(offsets, parents, self.sent[rows], self.copy[rows], self.live)


def take_lists(
    offsets: NDArray[np.int64], ids: NDArray[np.int32], rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Select those of `rows`, in their order, from lists that lie end to end:
    ids[offsets[i]:offsets[i + 1]]."""
    import numpy as np

    lengths = np.diff(offsets)[rows]
    taken = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    within = np.arange(taken[-1]) - np.repeat(taken[:-1], lengths)
    return taken, ids[np.repeat(offsets[:-1][rows], lengths) + within]
