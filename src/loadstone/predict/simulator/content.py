"""The segments by which a prefix cache finds the blocks that prompts have in common.

A prompt is made of a group's prefix, a trace's blocks, what a session said. A segment's key is a
number for the path of these up to the one that its blocks end in.
"""

from collections.abc import Hashable, Iterator
from typing import NamedTuple

from loadstone.core.plan import Blocks, Plan
from loadstone.predict.scheduler.blocks import Segment
from loadstone.predict.simulator.client import CellRequests
from loadstone.predict.simulator.pictures import picture_names
from loadstone.workload.block_tree import BlockTree
from loadstone.workload.prompts import text_tokens


def shares(plan: Plan, cell: int) -> bool:
    """Tell whether any requests of a cell ask for the same tokens."""
    cell_rows = plan.span(cell)
    if plan.pictures is not None and (plan.pictures.group[cell_rows] >= 0).any():
        return True
    texts = plan.prompt[cell_rows]
    texts = texts[texts >= 0]
    return (
        plan.blocks is not None
        or bool((plan.prefix_tokens[cell_rows] > 0).any())
        or bool((plan.turn[cell_rows] > 0).any())
        or (len(texts) > 0 and (plan.cyclic(cell) or len(set(texts.tolist())) < len(texts)))
    )


_Parts = list[tuple[Hashable, int]]


class _Path(NamedTuple):
    """Holds the part of a prompt walked over: segments; name, number and tokens of the last; the
    tokens of all."""

    segments: list[Segment] = []  # noqa: RUF012  (is never changed)
    name: Hashable = None
    number: int = 0
    tokens: int = 0
    end: int = 0


class Contents:
    """The segments of a cell's requests, `block_tokens` to a block. The warm-up shares nothing but
    prefixes."""

    def __init__(self, plan: Plan, cell: int, requests: CellRequests, block_tokens: int) -> None:
        self._plan = plan
        self._cell, self._start = cell, plan.rows(cell).start
        self._requests = requests
        self._block = block_tokens
        self._paths: dict[Hashable, int] = {}
        self._tree: BlockTree | None = None
        self._by_parts: dict[tuple[tuple[Hashable, int], ...], list[Segment]] = {}
        self._said: dict[int, _Path] = {}  # by a session's last turn so far

    def segments(self, index: int) -> list[Segment]:
        """Return the segments of the full blocks, from the first on, that another request may ask
        for too."""
        requests = self._requests
        row = requests.row(index)
        turn = requests.turn[row]
        if self._plan.blocks is not None:
            return self._walk(_Path(), self._call(index, row)).segments
        if turn < 0:
            parts = tuple(self._alone(index))
            if parts not in self._by_parts:
                self._by_parts[parts] = self._walk(_Path(), iter(parts)).segments
            return self._by_parts[parts]
        follows = requests.turn_follows(index)
        path = self._said.pop(index - 1, None)
        first = index if path is not None else index - turn
        path = path or _Path()
        for past in range(first, index + 1):
            path = self._walk(path, self._turn(past, index - turn, past < index or follows))
        if follows:
            self._said[index] = path
        return path.segments

    def _walk(self, begun: _Path, parts: Iterator[tuple[Hashable, int]]) -> _Path:
        """Go on with a path. Parts of one name that follow one another are one segment, wherever
        requests end in it."""
        segments, name, number, tokens, end = (
            list(begun.segments),
            begun.name,
            begun.number,
            begun.tokens,
            begun.end,
        )
        paths, block = self._paths, self._block
        blocks = end // block
        for next_name, added in parts:
            if next_name != name:
                # The same part cut elsewhere is another path from there on.
                path = paths.setdefault((number, tokens), len(paths) + 1)
                number, name, tokens = (
                    paths.setdefault((path, next_name), len(paths) + 1),
                    next_name,
                    0,
                )
            tokens += added
            end += added
            if end // block > blocks:
                blocks = end // block
                if segments and segments[-1][0] == number:
                    segments.pop()
                segments.append((number, blocks))
        return _Path(segments, name, number, tokens, end)

    def _turn(self, index: int, first: int, answered: bool) -> Iterator[tuple[Hashable, int]]:
        """List (name, tokens) of what a turn adds; `answered`: a later turn has its answer too."""
        requests, plan = self._requests, self._plan
        row = requests.row(index)
        leading, _ = self._pictures(index)
        text_tokens = self._own(index)
        if requests.turn[row] <= 0:
            yield from leading
            text_tokens -= sum(tokens for _, tokens in leading)
        prefix = int(plan.prefix_tokens[self._start + row])
        if prefix:
            yield ("prefix", int(plan.prefix_group[self._start + row])), prefix
        answer = requests.output_tokens[row] if answered else 0
        yield ("said", first), text_tokens - prefix + answer

    def _pictures(self, index: int) -> tuple[_Parts, _Parts]:
        """List (name, tokens) of a request's pictures before its text, and behind it."""
        plan, place = self._plan, self._start + self._requests.row(index)
        planned = None if plan.pictures is None else plan.pictures.of_row(place)
        if planned is None:
            return [], []
        tokens = (planned.shape.tokens or 0) + planned.shape.markers
        parts: _Parts = [(("picture", name), tokens) for name in picture_names(planned, index)]
        return (parts, []) if planned.shape.place == "first" else ([], parts)

    def _alone(self, index: int) -> Iterator[tuple[Hashable, int]]:
        """List (name, tokens) of a request outside of sessions, as far as they are not its own."""
        requests, plan = self._requests, self._plan
        row = requests.row(index)
        place = self._start + row
        leading, behind = self._pictures(index)
        yield from leading
        if plan.prefix_tokens[place]:
            yield ("prefix", int(plan.prefix_group[place])), int(plan.prefix_tokens[place])
        if plan.prompt[place] >= 0:
            pictured = sum(tokens for _, tokens in (*leading, *behind))
            yield ("text", int(plan.prompt[place])), requests.input_tokens[row] - pictured
            yield from behind

    def _call(self, index: int, row: int) -> Iterator[tuple[Hashable, int]]:
        """List (name, tokens) of a request that brings its whole prompt: blocks, or messages and
        answers."""
        requests, plan, graph = self._requests, self._plan, self._plan.graph
        left, blocks = requests.input_tokens[row], plan.blocks
        if blocks is None:
            return
        copy = plan.copy(self._cell, index)
        if blocks.tokens and not graph.live:
            if self._tree is None:
                self._tree = BlockTree(blocks, plan.rows(self._cell), graph.copy)
            parts: Iterator[tuple[Hashable, int]] = (
                (node, (end - begin) * blocks.tokens) for node, begin, end in self._tree.path(row)
            )
        else:
            parts = self._messages(index, self._start + row, blocks)
        for name, tokens in parts:
            if left <= 0:
                return
            yield (copy, name), min(left, tokens)
            left -= tokens
        if graph.live:
            yield (copy, ("answered", index)), requests.output_tokens[row]

    def _messages(self, index: int, at: int, blocks: Blocks) -> Iterator[tuple[Hashable, int]]:
        requests, plan = self._requests, self._plan
        first = index - requests.turn[requests.row(index)]
        answers = dict(plan.live_answers(at))
        for place, block in enumerate(blocks.take_row(at).tolist()):
            if place in answers:
                answered = first + answers[place]
                yield ("answered", answered), requests.output_tokens[requests.row(answered)]
            else:
                yield block, blocks.tokens or text_tokens(plan.prompts[block])

    def _own(self, index: int) -> int:
        """Count the prompt tokens of a turn that no turn before it had."""
        requests = self._requests
        row = requests.row(index)
        if requests.turn[row] <= 0:
            return requests.input_tokens[row]
        past = requests.row(index - 1)
        return (
            requests.input_tokens[row] - requests.input_tokens[past] - requests.output_tokens[past]
        )
