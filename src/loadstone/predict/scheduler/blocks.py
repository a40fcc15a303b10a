"""The paged KV cache where requests share what is in it: which full blocks are kept, and who uses
them.

What a request shares is a path of segments, each with a key that stands for its content and all
before it, and its end in blocks from the first of the request. Every user of a segment, and of what
is kept of it, has it from its first block on, so that two numbers tell all: a session of 200,000
tokens is a few dozen segments, not 12,500 blocks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator

Segment = tuple[Hashable, int]


class SingleBlocks:
    """Segments of one block each, of these keys."""

    def __init__(self, keys: Iterable[Hashable]) -> None:
        self._keys = keys

    def __iter__(self) -> Iterator[Segment]:
        return ((key, place) for place, key in enumerate(self._keys, 1))


class PrefixCache:
    """Full blocks by segment.

    A block that nobody uses is kept until its room is needed: the least recently used goes first,
    and of one request the last block first (vLLM's free queue; SGLang's tree gives up leaves first,
    which comes to the same). `idle_blocks` of them are kept, `evicted` have gone so far; what is in
    use, the scheduler counts.
    """

    def __init__(self) -> None:
        self.idle_blocks = 0
        self.evicted = 0
        self._runs: dict[Hashable, _Run] = {}
        self._idle: OrderedDict[_Piece, None] = OrderedDict()
        self._own: dict[Hashable, _Piece] = {}

    @property
    def used_blocks(self) -> int:
        """The shared blocks that somebody uses."""
        return sum(run.used for run in self._runs.values())

    def match(self, segments: Iterable[Segment], limit: int) -> int:
        """Count the blocks from the first on that are there, up to `limit`."""
        runs = self._runs
        start = 0
        for key, end in segments:
            run = runs.get(key)
            if run is None or start >= limit:
                break
            if start + run.kept < end:
                start += run.kept
                break
            start = end
        return min(start, limit)

    def unused(self, segments: Iterable[Segment], blocks: int) -> int:
        """Count those of the first `blocks` that nobody uses now: taking them brings so many into
        use."""
        runs = self._runs
        unused = 0
        for key, size, _ in _pieces(segments, 0, blocks):
            run = runs.get(key)
            used = 0 if run is None else run.used
            if size > used:
                unused += size - used
        return unused

    def take(self, segments: Iterable[Segment], held: int, blocks: int) -> int:
        """Use the blocks up to `blocks`, there or not, the first `held` of which it uses already;
        returns how many nobody used before."""
        runs = self._runs
        fresh = 0
        for key, size, previous in _pieces(segments, held, blocks):
            run = runs.get(key)
            if run is None:
                run = runs[key] = _Run()
            if previous:
                run.drop_user(previous)
            run.users[size] = run.users.get(size, 0) + 1
            if size > run.used:
                fresh += size - run.used
                self._use(run, size)
        return fresh

    def _use(self, run: _Run, size: int) -> None:
        """The first `size` blocks of a run are in use, and no longer idle."""
        pieces = run.pieces
        while pieces and pieces[-1].start < size:
            piece = pieces[-1]
            end = min(piece.end, size)
            self.idle_blocks -= end - piece.start
            piece.start = end  # what is left of it has its old place in the queue
            if piece.start == piece.end:
                pieces.pop()
                del self._idle[piece]
        run.used = size
        run.kept = max(run.kept, size)

    def own_blocks_left(self, owner: Hashable) -> int:
        """Count its own blocks, from the first on, that are still there: of one that gave them back
        for a while."""
        piece = self._own.get(owner)
        return piece.end if piece is not None else 0

    def take_own(self, owner: Hashable) -> None:
        """It goes on, and takes what is left of its own blocks, or computes them again."""
        piece = self._own.pop(owner, None)
        if piece is not None:
            self.idle_blocks -= piece.end
            del self._idle[piece]

    def give_back(
        self, segments: Iterable[Segment], held: int, own_blocks: int, owner: Hashable | None = None
    ) -> int:
        """No longer use the first `held`, nor `own_blocks` full blocks behind them that no other
        request can ask for, and its `owner` only if it is to go on.

        Returns how many of the first nobody uses any more.
        """
        runs, idle = self._runs, self._idle
        if own_blocks:
            piece = _Piece(None, owner, 0, own_blocks)
            idle[piece] = None
            if owner is not None:
                self._own[owner] = piece
            self.idle_blocks += own_blocks
        freed = 0
        for key, size, _ in reversed(_pieces(segments, 0, held)):
            run = runs[key]
            run.drop_user(size)
            if size == run.used and size not in run.users:
                used = max(run.users, default=0)
                piece = _Piece(run, key, used, run.used)
                run.pieces.append(piece)
                idle[piece] = None
                freed += run.used - used
                run.used = used
        self.idle_blocks += freed
        return freed

    def shrink(self, blocks: int) -> None:
        """Keep at most so many idle blocks; none where those in use are more than there are."""
        idle, kept_blocks = self._idle, max(0, blocks)
        while self.idle_blocks > kept_blocks:
            piece = next(iter(idle))
            gone = min(piece.end - piece.start, self.idle_blocks - kept_blocks)
            piece.end -= gone
            self.idle_blocks -= gone
            self.evicted += gone
            run = piece.run
            if run is not None:
                run.kept = piece.end
            if piece.start < piece.end:
                continue
            del idle[piece]
            if run is None:
                self._own.pop(piece.key, None)
            else:
                run.pieces.remove(piece)
                if not run.kept:
                    del self._runs[piece.key]


class _Run:
    """Holds what is there of one segment: `kept` blocks, the first `used` of them by somebody;
    `users`: how many use so many of them; `pieces`: those that nobody uses, as they were given
    back, the first blocks last.
    """

    __slots__ = ("kept", "pieces", "used", "users")

    def __init__(self) -> None:
        self.kept = self.used = 0
        self.users: dict[int, int] = {}
        self.pieces: list[_Piece] = []

    def drop_user(self, size: int) -> None:
        if self.users[size] > 1:
            self.users[size] -= 1
        else:
            del self.users[size]


class _Piece:
    """Idle blocks of a run that were given back together; or an owner's own, which have none."""

    __slots__ = ("end", "key", "run", "start")

    def __init__(self, run: _Run | None, key: Hashable, start: int, end: int) -> None:
        self.run, self.key, self.start, self.end = run, key, start, end


def _pieces(segments: Iterable[Segment], held: int, blocks: int) -> list[tuple[Hashable, int, int]]:
    """List, of segments with blocks from `held` to `blocks`, the key, its blocks up to there and up
    to `held`."""
    pieces: list[tuple[Hashable, int, int]] = []
    start = 0
    for key, end in segments:
        if start >= blocks:
            break
        if end > held:
            pieces.append(
                (
                    key,
                    (end if end < blocks else blocks) - start,
                    held - start if held > start else 0,
                )
            )
        start = end
    return pieces
