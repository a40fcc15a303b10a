"""The keys by which a prefix cache finds the blocks that prompts have in common.

A key stands for a block's content and all before it. It is made of segments (a group's prefix, a trace's block, what
a session said): a number for the path of segments up to the one that the block ends in, and the block's number.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from loadstone.core.plan import Plan
from loadstone.predict.simulator.client import CellRequests
from loadstone.workload.prompts import text_tokens

_PLACE_BITS = 24


def shares(plan: Plan, cell: int) -> bool:
    """Tell whether any requests of a cell ask for the same tokens."""
    rows = plan.rows(cell)
    here = slice(rows.start, rows.stop)
    texts = plan.prompt[here]
    texts = texts[texts >= 0]
    return (
        plan.blocks is not None
        or bool((plan.prefix_tokens[here] > 0).any())
        or bool((plan.turn[here] > 0).any())
        or (len(texts) > 0 and (plan.cyclic(cell) or len(set(texts.tolist())) < len(texts)))
    )


class Contents:
    """The keys of a cell's requests, `block_tokens` to a block. The warm-up shares nothing but prefixes."""

    def __init__(self, plan: Plan, cell: int, requests: CellRequests, block_tokens: int) -> None:
        self._plan = plan
        self._cell, self._start = cell, plan.rows(cell).start
        self._requests = requests
        self._block = block_tokens
        self._paths: dict[Hashable, int] = {}

    def keys(self, index: int) -> list[int]:
        """Return keys of the full blocks, from the first on, that another request may ask for too."""
        keys: list[int] = []
        path = 0
        end = 0
        block = self._block
        for name, tokens in self._segments(index):
            before = (path, name)
            number = self._paths.setdefault(before, len(self._paths) + 1)
            end += tokens
            full = end // block
            keys += [number << _PLACE_BITS | place for place in range(len(keys), full)]
            # The same segment cut elsewhere is another path from there on.
            path = self._paths.setdefault((number, tokens), len(self._paths) + 1)
        return keys

    def _segments(self, index: int) -> Iterator[tuple[Hashable, int]]:
        """List (name, tokens) from the first token on, as far as they are not one request's own."""
        requests, plan = self._requests, self._plan
        row = requests.row(index)
        at = self._start + row
        turn = requests.turn[row]
        if plan.graph is not None:
            yield from self._of_call(index, row)
            return
        if turn >= 0:
            first = index - turn
            for past in range(first, index + 1):
                prefix = int(plan.prefix_tokens[self._start + requests.row(past)])
                if prefix:
                    yield ("prefix", int(plan.prefix_group[self._start + requests.row(past)])), prefix
                yield ("prompt", past), self._own(past) - prefix
                if past < index or requests.turn_follows(index):
                    yield ("answered", past), requests.output_tokens[requests.row(past)]
            return
        tokens = requests.input_tokens[row]
        if plan.prefix_tokens[at]:
            yield ("prefix", int(plan.prefix_group[at])), int(plan.prefix_tokens[at])
        if plan.blocks is not None:
            for block in plan.blocks.take_row(at).tolist():
                if tokens <= 0:
                    return
                yield ("block", block), min(tokens, plan.blocks.tokens)
                tokens -= plan.blocks.tokens
        elif plan.prompt[at] >= 0:
            yield ("text", int(plan.prompt[at])), tokens

    def _of_call(self, index: int, row: int) -> Iterator[tuple[Hashable, int]]:
        """List (name, tokens) of a call that brings its whole prompt: blocks, or messages and answers."""
        requests, plan = self._requests, self._plan
        tokens, blocks = requests.input_tokens[row], plan.blocks
        if blocks is None:
            return
        at, copy = self._start + row, plan.copy(self._cell, index)
        first = index - requests.turn[row]
        answers = dict(plan.live_answers(at))
        for place, block in enumerate(blocks.take_row(at).tolist()):
            if tokens <= 0:
                return
            size = blocks.tokens or text_tokens(plan.prompts[block])
            name: Hashable = (copy, block)
            if place in answers:
                name = ("answered", first + answers[place])
                size = requests.output_tokens[requests.row(first + answers[place])]
            yield name, min(tokens, size)
            tokens -= size
        if plan.graph is not None and plan.graph.live:
            yield ("answered", index), requests.output_tokens[row]

    def _own(self, index: int) -> int:
        """Count the prompt tokens of a turn that no turn before it had."""
        requests = self._requests
        row = requests.row(index)
        if requests.turn[row] <= 0:
            return requests.input_tokens[row]
        past = requests.row(index - 1)
        return requests.input_tokens[row] - requests.input_tokens[past] - requests.output_tokens[past]
