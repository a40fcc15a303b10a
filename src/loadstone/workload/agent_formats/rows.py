"""Reads a call per line: Mooncake's and Dynamo's rows, and rows of one's own."""

import heapq
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from loadstone.core.groups import by_key
from loadstone.workload.agent_formats.messages import Message, fields_of, text_of
from loadstone.workload.agent_formats.session import (
    Id,
    RawCall,
    RawSession,
    Seconds,
    Tokens,
    make_blocks,
)
from loadstone.workload.files import BadLine, RequestFile, decode

_Name = tuple[str | int | None, str | int]
"""Of a call: its play's, None without plays, and its own."""
_BLOCK_SIZES = (512, 64, 16, 32, 128, 256, 1024)
"""Tokens of a block: Mooncake's, Dynamo's, then others."""


_NOT_OF_CALLS = re.compile(
    r"(?:^|_)(?:id|ids|parents?|after|before|depend\w*|waits?|waited|delay|trigger|time|timestamp"
    r"|start\w*|begin\w*|turn|order|seq\w*|branch|fork|join|spawn\w*|play|agent|m?s|us|ns)(?:_|\Z)"
    r"|(?:At|Id|Ms|Ids)\Z"
)
"""Names of fields that tell the order, time or identity of calls."""


class _Edge(Struct):
    """A call that must have been sent or have ended, and how long before."""

    request_id: str | int
    trigger: Literal["dispatch", "completion"] = "completion"
    delay_ms: Seconds = 0.0


class _Row(Struct):
    session_id: str | int | None = None
    request_id: str | int | None = None
    id: str | int | None = None
    wait_for: list[str | int] | None = None
    parents: list[str | int] | None = msgspec.field(default=None, name="after")
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
    play_id: str | int | None = None
    dependencies: list[_Edge] | None = None
    not_before_ms: Seconds | None = None
    recorded_api_time_ms: Seconds | None = None
    schema: str | None = None
    version: int | str | None = None
    block_size: Annotated[int, Meta(ge=1, le=1 << 20)] | None = None
    hash_id_scope: str = "global"

    @property
    def name(self) -> _Name | None:
        """The name of the call, which is its own within a play."""
        name = self.request_id if self.request_id is not None else self.id
        return None if name is None else (self.play_id, name)

    @property
    def group(self) -> str | int | None:
        return self.session_id if self.play_id is None else self.play_id

    @property
    def parent_names(self) -> list[_Name] | None:
        names = self.wait_for if self.wait_for is not None else self.parents
        if self.dependencies is not None:
            names = [edge.request_id for edge in self.dependencies]
        return None if names is None else [(self.play_id, name) for name in names]

    @property
    def begin_ms(self) -> float | None:
        return self.timestamp if self.not_before_ms is None else self.not_before_ms

    @property
    def end_ms(self) -> float | None:
        begin, took = self.begin_ms, self.recorded_api_time_ms
        return None if begin is None or took is None else begin + took

    @property
    def input_count(self) -> int:
        return self.input_length or self.input_tokens or 0

    @property
    def output_count(self) -> int:
        return self.output_length if self.output_length is not None else self.output_tokens or 0

    @property
    def pause_s(self) -> float | None:
        """Seconds after its parents; None where the row does not say."""
        if self.delay_s is not None:
            return self.delay_s
        if self.delay is None and self.tool_wait_ms is None:
            return None
        return ((self.delay or 0.0) + (self.tool_wait_ms or 0.0)) / 1000


_KNOWN = {field.encode_name for field in msgspec.structs.fields(_Row)}


def read_rows(file: RequestFile, dropped: Counter[str]) -> Iterator[RawSession]:
    """Read a call per line. Sessions may be interleaved; parents may stand in other sessions, which
    are then one."""
    rows = _Rows(dropped)
    rows.numbered += [(line, row) for line, row in file.read(rows.read) if row is not None]
    parents = _find_parents(file, rows.numbered)
    links = [found or [] for found in parents]
    for members in _connected(links, [row.group for _, row in rows.numbered]):
        if any(parents[place] is None for place in members):
            continue
        order = _sort_parents_first(members, links)
        if len(order) < len(members):
            place = next(place for place in members if place not in set(order))
            problem = "it waits for a call that waits for it"
            circle = BadLine("circle", problem, "take one of these parents away")
            file.leave_out(rows.numbered[place][0], circle)
            continue
        try:
            session = rows.session(order, links)
        except BadLine as bad:
            file.leave_out(rows.line, bad)
        else:
            yield session


def _find_parents(file: RequestFile, rows: Sequence[tuple[int, _Row]]) -> list[list[int] | None]:
    """Find the parents of each row: those that it names, else the row before it of its session;
    None where there cannot be such."""
    places: dict[_Name, int] = {}
    for place, (_, row) in enumerate(rows):
        if row.name is not None:
            places.setdefault(row.name, place)
    last: dict[str | int, int] = {}
    parents: list[list[int] | None] = []
    for place, (line, row) in enumerate(rows):
        previous = []
        if row.session_id is not None:
            previous = [last[row.session_id]] if row.session_id in last else []
            last[row.session_id] = place
        try:
            parents.append(_parents_of(row, place, places, previous))
        except BadLine as bad:
            file.leave_out(line, bad)
            parents.append(None)
    return parents


def _parents_of(
    row: _Row, place: int, places: Mapping[_Name, int], previous: list[int]
) -> list[int]:
    if row.name is not None and places[row.name] != place:
        raise BadLine("repeated id", f"{str(row.name[1])[:40]!r} names two calls", "rename one")
    named = row.parent_names
    if named is None:
        return previous
    missing = [name for name in named if name not in places]
    if missing:
        problem = f"it waits for {str(missing[0][1])[:40]!r}, which is no call of the file"
        raise BadLine("no such parent", problem, "give that call, or another")
    return [places[name] for name in dict.fromkeys(named)]


class _Rows:
    """Reads rows, `numbered` by their lines, and makes the calls of sessions of them."""

    def __init__(self, dropped: Counter[str]) -> None:
        self.numbered: list[tuple[int, _Row]] = []
        self.line = 0
        """Of the row that is being made a call."""
        self._dropped = dropped
        self._block, self._is_local = 0, False

    def read(self, data: bytes) -> _Row | None:
        """Read a row; None of a header. Raises BadLine."""
        row: _Row = decode(data, _Row)
        if row.schema is not None and row.input_length is None and row.messages is None:
            self._block, self._is_local = row.block_size or 0, row.hash_id_scope == "local"
            return None
        self._dropped.update(
            f"field {name[:40]}"
            for name in decode(data, dict[str, msgspec.Raw])
            if name not in _KNOWN and _NOT_OF_CALLS.search(name)
        )
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
        if not row.messages and (row.messages is not None or not row.input_count):
            raise BadLine("no input", "neither messages nor a length of input above 0")
        if row.block_tokens is not None and self._block not in (0, row.block_tokens):
            problem = f"blocks of {row.block_tokens} tokens here, of {self._block} further up"
            raise BadLine("hash_ids do not fit", problem, "give all lines the same 'block_tokens'")
        self._block = row.block_tokens or self._block
        return row

    def session(self, order: Sequence[int], parents: Sequence[Sequence[int]]) -> RawSession:
        """Make a session of the rows at these places, parents first. Raises BadLine."""
        rows = [self.numbered[place][1] for place in order]
        number_of = {place: number for number, place in enumerate(order)}
        has_messages = rows[0].messages is not None
        block = 0 if has_messages else self._block_tokens()
        calls = []
        for number, row in enumerate(rows):
            self.line = self.numbered[order[number]][0]
            if (row.messages is not None) != has_messages:
                raise BadLine(
                    "no input", "a session of which some calls have messages and some have not"
                )
            links = tuple(sorted(number_of[place] for place in parents[order[number]]))
            sent, delay_s = row.trigger == "sent", row.pause_s
            if row.dependencies:
                links, sent, delay_s = self._joined(row, links, rows)
            if number and delay_s is None and row.begin_ms is not None:
                # Only when it began is known: it keeps that distance from the sending of the one
                # that it follows.
                first = rows[links[-1] if links else 0].begin_ms
                sent, delay_s = True, max(0.0, row.begin_ms - (first or 0.0)) / 1000
            if number and not links:
                links, sent = (0,), True
            tokens = row.input_count or 1
            calls.append(
                RawCall(
                    links,
                    sent,
                    delay_s or 0.0 if number else 0.0,
                    tokens,
                    row.output_count,
                    make_blocks(row.hash_ids, tokens, block),
                    [text_of(message, self._dropped) for message in row.messages or ()],
                    fields_of({"tools": row.tools, "tool_choice": row.tool_choice}),
                )
            )
        return RawSession(calls, block, self._is_local)

    def _joined(
        self, row: _Row, links: tuple[int, ...], rows: Sequence[_Row]
    ) -> tuple[tuple[int, ...], bool, float]:
        """Return the calls of a row's edges, whether after their sending, and how long after.

        A call has one trigger and one delay. They are those of the edge that held it back when it
        was recorded; edges of the other trigger are left out, and counted.
        """
        edges = {edge.request_id: edge for edge in row.dependencies or ()}
        waits = []
        for link in links:
            parent = rows[link]
            edge = edges[parent.name[1]] if parent.name is not None else _Edge("")
            sent = edge.trigger == "dispatch"
            time = parent.begin_ms if sent else parent.end_ms
            waits.append((time, edge.delay_ms, sent, link))
        dated = all(time is not None for time, *_ in waits)
        free_ms, sent = max(
            ((time or 0.0 if dated else 0.0) + delay_ms, sent) for time, delay_ms, sent, _ in waits
        )
        kept = [wait for wait in waits if wait[2] == sent]
        if len(kept) < len(waits):
            self._dropped["dependencies"] += len(waits) - len(kept)
        latest_ms = max(time or 0.0 for time, *_ in kept) if dated else 0.0
        return tuple(link for *_, link in kept), sent, max(0.0, free_ms - latest_ms) / 1000

    def _block_tokens(self) -> int:
        """Tell how many tokens a block has, which Mooncake's format does not say: what most
        prompts' lengths fit."""
        if not self._block:
            counts = [
                (len(row.hash_ids), row.input_count or 1)
                for _, row in self.numbered[:1000]
                if row.hash_ids
            ]
            self._block = max(
                _BLOCK_SIZES,
                key=lambda size: sum(-(-tokens // size) == count for count, tokens in counts),
            )
        return self._block


def _connected(
    parents: Sequence[Sequence[int]], names: Sequence[str | int | None]
) -> list[list[int]]:
    """Divide rows into sessions: those of one name, and those that wait for one another, are
    together."""
    root = list(range(len(parents)))

    def find(place: int) -> int:
        while root[place] != place:
            root[place] = root[root[place]]
            place = root[place]
        return place

    def join(place: int, relative: int) -> None:
        lower, upper = sorted((find(place), find(relative)))
        root[upper] = lower

    first: dict[str | int, int] = {}
    for place, name in enumerate(names):
        for parent in parents[place]:
            join(place, parent)
        if name is not None:
            join(place, first.setdefault(name, place))
    return list(by_key((find(place), place) for place in range(len(parents))).values())


def _sort_parents_first(members: Sequence[int], parents: Sequence[Sequence[int]]) -> list[int]:
    """Order a session's rows so that each comes after those that it waits for; without those of a
    circle."""
    waits = {place: len(parents[place]) for place in members}
    children = by_key((parent, place) for place in members for parent in parents[place])
    ready = [place for place in members if not waits[place]]
    order = []
    while ready:
        place = heapq.heappop(ready)
        order.append(place)
        for child in children.get(place, ()):
            waits[child] -= 1
            if not waits[child]:
                heapq.heappush(ready, child)
    return order
