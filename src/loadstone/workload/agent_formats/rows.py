"""Reads a call per line: Mooncake's and Dynamo's rows, and rows of one's own."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from loadstone.core.groups import by_key
from loadstone.workload.agent_formats.messages import Message, fields_of, text_of
from loadstone.workload.agent_formats.session import (
    BadSession,
    Id,
    RawCall,
    RawSession,
    Reader,
    Seconds,
    Tokens,
    make_blocks,
    read_as,
)
from loadstone.workload.trace import BadLine

_DYNAMO_BLOCK, _MOONCAKE_BLOCK = 64, 512


class _Row(Struct):
    session_id: str | int | None = None
    request_id: str | int | None = None
    id: str | int | None = None
    wait_for: list[str | int] | None = None
    after: list[str | int] | None = None
    trigger: str = "ended"
    timestamp: Seconds | None = None
    delay: Seconds | None = None
    tool_wait_ms: Seconds | None = None
    delay_s: Seconds | None = None
    input_length: Tokens | None = None
    input_tokens: Tokens | None = None
    output_length: Tokens | None = None
    output_tokens: Tokens | None = None
    hash_ids: list[Id] = []
    block_tokens: Annotated[int, Meta(ge=1, le=1 << 20)] | None = None
    messages: list[Message] | None = None
    message_mode: str = "history"
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None


class RowsReader(Reader):
    """Reads a call per line. Sessions may be interleaved; parents may stand in other sessions,
    which are then one."""

    def __init__(self, dropped: Counter[str]) -> None:
        super().__init__(dropped)
        self._rows: list[tuple[int, _Row]] = []
        self._block = 0
        self._line = 0  # of the row that is being made a call

    def add(self, line: int, value: bytes) -> Iterator[RawSession]:
        row = read_as(_Row, value)
        if row.message_mode != "history":
            raise BadLine(
                "live only",
                f"message_mode {row.message_mode!r}",
                "give whole histories, with the answers",
            )
        if row.trigger not in ("sent", "ended"):
            raise BadLine(
                "not as the format has it",
                f"'trigger' is {row.trigger[:40]!r}",
                "write sent or ended",
            )
        if not row.messages and (
            row.messages is not None or not (row.input_length or row.input_tokens)
        ):
            raise BadLine("no input", "neither messages nor a length of input above 0")
        if row.block_tokens is not None and self._block not in (0, row.block_tokens):
            what = f"blocks of {row.block_tokens} tokens here, of {self._block} further up"
            raise BadLine("hash_ids do not fit", what, "give all lines the same 'block_tokens'")
        self._block = row.block_tokens or self._block
        self._rows.append((line, row))
        yield from ()

    def finish(self) -> Iterator[RawSession | BadSession]:
        places: dict[str | int, int] = {}
        repeated: dict[int, BadSession] = {}
        for at, (line, row) in enumerate(self._rows):
            name = row.request_id if row.request_id is not None else row.id
            if name is not None and places.setdefault(name, at) != at:
                repeated[at] = BadSession(
                    line,
                    BadLine("repeated id", f"{str(name)[:40]!r} names two calls", "rename one"),
                )
        parents = [repeated.get(at, each) for at, each in enumerate(self._parents(places))]
        yield from (each for each in parents if isinstance(each, BadSession))
        known = [each if isinstance(each, list) else [] for each in parents]
        for members in _connected(known, [row.session_id for _, row in self._rows]):
            if any(isinstance(parents[at], BadSession) for at in members):
                continue
            order = _sort_parents_first(members, known)
            if len(order) < len(members):
                at = next(each for each in members if each not in set(order))
                circle = BadLine(
                    "circle",
                    "it waits for a call that waits for it",
                    "take one of these parents away",
                )
                yield BadSession(self._rows[at][0], circle)
                continue
            try:
                yield self._session(order, known)
            except BadLine as bad_line:
                yield BadSession(self._line, bad_line)

    def _parents(self, places: Mapping[str | int, int]) -> Iterator[list[int] | BadSession]:
        """Yield the parents of each row: those that it names, else the row before it of its
        session."""
        last: dict[str | int, int] = {}
        for at, (line, row) in enumerate(self._rows):
            named = row.wait_for if row.wait_for is not None else row.after
            before = last.get(row.session_id) if row.session_id is not None else None
            if row.session_id is not None:
                last[row.session_id] = at
            if named is None:
                yield [] if before is None else [before]
                continue
            missing = [each for each in named if each not in places]
            if missing:
                what = f"it waits for {str(missing[0])[:40]!r}, which is no call of the file"
                yield BadSession(
                    line, BadLine("no such parent", what, "give that call, or another")
                )
            else:
                yield [places[each] for each in dict.fromkeys(named)]

    def _session(self, order: Sequence[int], parents: Sequence[Sequence[int]]) -> RawSession:
        rows = [self._rows[at][1] for at in order]
        place_of = {at: place for place, at in enumerate(order)}
        block = 0 if rows[0].messages is not None else self._block_tokens()
        calls = []
        for place, (at, row) in enumerate(zip(order, rows, strict=True)):
            self._line = self._rows[at][0]
            after = tuple(sorted(place_of[each] for each in parents[at]))
            sent, delay_s = row.trigger == "sent", self._delay_s(row)
            if place and delay_s is None and row.timestamp is not None:
                # Only when it began is known: it keeps that distance from the sending of the one
                # that it follows.
                first = rows[after[-1] if after else 0].timestamp
                sent, delay_s = True, max(0.0, row.timestamp - (first or 0.0)) / 1000
            if place and not after:
                after, sent = (0,), True
            out = row.output_length if row.output_length is not None else row.output_tokens or 0
            tokens = row.input_length or row.input_tokens or 1
            messages = [text_of(each, self._dropped) for each in row.messages or ()]
            if (row.messages is None) == (rows[0].messages is not None):
                raise BadLine(
                    "no input", "a session of which some calls have messages and some have not"
                )
            fields = fields_of({"tools": row.tools, "tool_choice": row.tool_choice})
            blocks = make_blocks(row.hash_ids, tokens, block)
            pause_s = delay_s or 0.0 if place else 0.0
            calls.append(RawCall(after, sent, pause_s, tokens, out, blocks, messages, fields))
        return RawSession(calls, block)

    def _delay_s(self, row: _Row) -> float | None:
        if row.delay_s is not None:
            return row.delay_s
        if row.delay is None and row.tool_wait_ms is None:
            return None
        return ((row.delay or 0.0) + (row.tool_wait_ms or 0.0)) / 1000

    def _block_tokens(self) -> int:
        """Tell how many tokens a block has, which Mooncake's format does not say: what most
        prompts' lengths fit."""
        if self._block:
            return self._block
        sizes = (_MOONCAKE_BLOCK, _DYNAMO_BLOCK, 16, 32, 128, 256, 1024)
        told = [
            (len(row.hash_ids), row.input_length or row.input_tokens or 1)
            for _, row in self._rows[:1000]
        ]
        fits = {
            size: sum(-(-tokens // size) == count for count, tokens in told if count)
            for size in sizes
        }
        self._block = max(sizes, key=lambda size: fits[size])
        return self._block


def _connected(
    parents: Sequence[Sequence[int]], names: Sequence[str | int | None]
) -> list[list[int]]:
    """Divide rows into sessions: those of one name, and those that wait for one another, are
    together."""
    root = list(range(len(parents)))

    def find(at: int) -> int:
        while root[at] != at:
            root[at] = root[root[at]]
            at = root[at]
        return at

    first: dict[str | int, int] = {}
    for at, name in enumerate(names):
        for other in [*parents[at], *([] if name is None else [first.setdefault(name, at)])]:
            one, two = sorted((find(at), find(other)))
            root[two] = one
    return list(by_key((find(at), at) for at in range(len(parents))).values())


def _sort_parents_first(members: Sequence[int], parents: Sequence[Sequence[int]]) -> list[int]:
    """Order a session's rows so that each comes after those that it waits for; without those of a
    circle."""
    left = {at: len(parents[at]) for at in members}
    children = by_key((each, at) for at in members for each in parents[at])
    ready = [at for at in members if not left[at]]
    order = []
    while ready:
        at = heapq.heappop(ready)
        order.append(at)
        for child in children.get(at, ()):
            left[child] -= 1
            if not left[child]:
                heapq.heappush(ready, child)
    return order
