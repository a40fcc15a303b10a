"""The paged KV cache where requests share what is in it: which full blocks are kept, and who uses them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence


class PrefixCache:
    """Full blocks by key. A key stands for the content of a block and of all before it.

    A block that nobody uses is kept until its room is needed: the least recently used goes first, and of one request
    the last block first (vLLM's free queue; SGLang's tree gives up leaves first, which comes to the same).
    `idle_blocks` of them are kept; what is in use, the scheduler counts.
    """

    def __init__(self) -> None:
        self.idle_blocks = 0
        self._users: dict[Hashable, int] = {}
        self._idle: OrderedDict[Hashable, int] = (
            OrderedDict()
        )  # key to blocks: several where they are of no one's use

    def match(self, keys: Sequence[Hashable]) -> int:
        """Count the keys from the first on that are there."""
        users, idle = self._users, self._idle
        for count, key in enumerate(keys):
            if key not in users and key not in idle:
                return count
        return len(keys)

    def unused(self, keys: Iterable[Hashable]) -> int:
        """Count those of `keys` that nobody uses now: blocks that taking them brings into use."""
        users = self._users
        return sum(key not in users for key in keys)

    def take(self, keys: Iterable[Hashable]) -> int:
        """Use these blocks, there or not; returns how many nobody used before."""
        users, idle = self._users, self._idle
        fresh = 0
        for key in keys:
            if key in users:
                users[key] += 1
            else:
                users[key] = 1
                fresh += 1
                if idle.pop(key, 0):
                    self.idle_blocks -= 1
        return fresh

    def own_blocks_left(self, owner: Hashable) -> int:
        """Count its own blocks, from the first on, that are still there: of one that gave them back for a while."""
        return self._idle.get(owner, 0)

    def take_own(self, owner: Hashable) -> None:
        """It goes on, and takes what is left of its own blocks, or computes them again."""
        self.idle_blocks -= self._idle.pop(owner, 0)

    def give_back(self, keys: Sequence[Hashable], own_blocks: int, owner: Hashable | None = None) -> int:
        """No longer use them, nor `own_blocks` full blocks behind them that no other request can ask for, and its
        `owner` only if it is to go on.

        Returns how many of `keys` nobody uses any more.
        """
        users, idle = self._users, self._idle
        if own_blocks:
            idle[owner or object()] = own_blocks
            self.idle_blocks += own_blocks
        freed = 0
        for key in reversed(keys):
            if users[key] > 1:
                users[key] -= 1
            else:
                del users[key]
                idle[key] = 1
                freed += 1
        self.idle_blocks += freed
        return freed

    def shrink(self, blocks: int) -> None:
        """Keep at most so many idle blocks."""
        idle = self._idle
        while self.idle_blocks > blocks:
            key, count = next(iter(idle.items()))
            gone = min(count, self.idle_blocks - blocks)
            if gone < count:
                idle[key] = count - gone
            else:
                del idle[key]
            self.idle_blocks -= gone
