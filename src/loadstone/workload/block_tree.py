"""Prompts made of blocks as a tree, by which prompts are found that begin alike."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from loadstone.core.plan import Blocks
from loadstone.core.vectors import Array, Ints32


class BlockTree:
    """The blocks of some requests. A node is a run of them: all prompts that go on with its first
    block have it, as far as they come, and nothing in it parts them.

    `copies` of a session, by row, have words of their own, so that each has a tree. It costs as
    much as the blocks that calls add to those before them: what they keep of these is not walked
    over again.
    """

    def __init__(self, blocks: Blocks, rows: range, copies: Ints32) -> None:
        self.known: list[int] = []
        """By request: how many blocks its prompt begins with that one before it has too, in the
        plan's order."""
        self._ends: list[tuple[_Node, int]] = []
        roots: dict[int, _Node] = {}
        self._count = 0
        for place, row in enumerate(rows):
            kept = int(blocks.kept[row])
            back = int(blocks.back[row]) if kept else 0
            root = roots.setdefault(int(copies[row]), _Node(None, 0, blocks.ids[:0]))
            node = self._ends[place - back][0] if back else root
            node, alike = self._insert(node.up_to(kept), kept, blocks.own(row))
            self.known.append(alike)
            self._ends.append((node, kept + len(blocks.own(row))))

    def path(self, place: int) -> Iterator[tuple[int, int, int]]:
        """Yield the nodes of a prompt from the root: a number, from which block on, to before
        which."""
        last, end = self._ends[place]
        node: _Node | None = last.up_to(end)
        nodes = []
        while node is not None and node.parent is not None:
            nodes.append(node)
            node = node.parent
        return (
            (node.number, node.start, min(node.start + len(node.ids), end)) for node in nodes[::-1]
        )

    def _insert(self, node: _Node, depth: int, ids: Ints32) -> tuple[_Node, int]:
        """Put blocks behind the first `depth` of a node's path; returns their node and how many
        blocks were there."""
        place = 0
        while place < len(ids):
            ahead = node.ids[depth - node.start :]
            if not len(ahead):
                following = node.children.get(int(ids[place]))
                if following is None and node.parent is not None and not node.children:
                    node.ids = np.concatenate([node.ids, ids[place:]])
                    return node, depth
                if following is None:
                    self._count += 1
                    node.children[int(ids[place])] = following = _Node(
                        node, depth, ids[place:], self._count
                    )
                    return following, depth
                node = following
                continue
            same = count_alike(ahead, ids[place:])
            depth += same
            place += same
            if same < len(ahead) and place < len(ids):
                self._count += 1
                node = node.split(depth, self._count)
        return node, depth


class _Node:
    """Holds the blocks from place `start` of a prompt on, until prompts part; by its first block
    what follows."""

    __slots__ = ("children", "ids", "number", "parent", "start")

    def __init__(self, parent: _Node | None, start: int, ids: Ints32, number: int = 0) -> None:
        self.parent, self.start, self.ids, self.number = parent, start, ids, number
        self.children: dict[int, _Node] = {}

    def up_to(self, depth: int) -> _Node:
        """Return the node of this path in which its first `depth` blocks end."""
        node = self
        while node.parent is not None and node.start >= depth:
            node = node.parent
        return node

    def split(self, depth: int, number: int) -> _Node:
        """Part this node; returns a new one with what is before place `depth`."""
        upper = _Node(self.parent, self.start, self.ids[: depth - self.start], number)
        if self.parent is not None:
            self.parent.children[int(self.ids[0])] = upper
        self.ids = self.ids[depth - self.start :]
        self.parent, self.start = upper, depth
        upper.children[int(self.ids[0])] = self
        return upper


def count_alike(blocks: Array, prompt: Array) -> int:
    """Count with how many of the same blocks both begin."""
    short = min(len(blocks), len(prompt))
    apart = blocks[:short] != prompt[:short]
    first = int(apart.argmax()) if short else 0
    return first if short and apart[first] else short
