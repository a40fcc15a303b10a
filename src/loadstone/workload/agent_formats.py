"""The formats of agents' sessions: what a file's lines hold becomes RawSession, calls in order with their parents."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from loadstone.core.errors import InputError
from loadstone.core.plan import ASSISTANT
from loadstone.workload.files import first_line, lines
from loadstone.workload.prompts import text_tokens
from loadstone.workload.trace import BadLine

GIVE = (
    "give sessions of agents as a Weka trace, Mooncake or Dynamo rows with session_id, MLPerf's agentic rows, OpenAI "
    "messages with tools, or OpenTelemetry GenAI spans, as JSON or JSONL in UTF-8"
)
_MOST_BYTES = 1 << 31
_DYNAMO_BLOCK, _MOONCAKE_BLOCK = 64, 512
_UNKNOWN_OUTPUT = 1000
"""Tokens of a span's answer of which neither the length nor the text is known, nor a limit."""

_MOST_SECONDS = 1e12
Seconds = Annotated[float, Meta(ge=0, le=_MOST_SECONDS)]
Tokens = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Id = Annotated[int, Meta(ge=0)]
_Kind = TypeVar("_Kind")


class RawCall(NamedTuple):
    """A call as it was recorded; see agents.Call. `after` are places in its session."""

    after: tuple[int, ...]
    sent: bool
    delay_s: float
    input_tokens: int
    output_tokens: int
    blocks: NDArray[np.uint64]
    messages: Sequence[str] = ()
    fields: str | None = None


class RawSession(NamedTuple):
    """Calls, each behind those that it follows. `is_local`: its blocks' numbers mean nothing in other sessions."""

    calls: list[RawCall]
    block_tokens: int
    is_local: bool = False


class BadSession(NamedTuple):
    """A session that turned out to be impossible once the file was read, by one of its lines."""

    line: int
    error: BadLine


class Reader(Protocol):
    """Reads a format. `dropped` counts what cannot be sent, by name."""

    def __init__(self, dropped: Counter[str]) -> None: ...

    def add(self, line: int, value: bytes) -> Iterator[RawSession]:
        """Take a document; yield sessions that are whole. Raises BadLine."""

    def finish(self) -> Iterator[RawSession | BadSession]:
        """Yield what is whole at the file's end."""


def documents(path: Path, stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the JSON objects of a file, with their line or, of an array, their place: one to a line, in an array, or
    one that is the whole file. Raises InputError.
    """
    line, head = first_line(path, stream, GIVE)
    text = head.strip()
    if not text:
        raise InputError(f"{path}: empty; {GIVE}")
    if text[:1] == b"{" and _is_whole(text):
        for number, data in enumerate(lines(path, stream), 1):
            if data.strip():
                yield number, data
        return
    if text[:1] not in (b"{", b"["):
        raise InputError(f"{path}, line {line}: no JSON object; {GIVE}")
    data = stream.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise InputError(f"{path}: over {_MOST_BYTES:,} bytes in one JSON value; give JSONL, an object on each line")
    if text[:1] == b"{":
        yield line, data
        return
    try:
        elements = msgspec.json.decode(data, type=list[msgspec.Raw])
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: {_broken(error)}; correct it, or give JSONL") from None
    yield from ((number, bytes(element)) for number, element in enumerate(elements, 1))


def _is_whole(text: bytes) -> bool:
    """Tell whether a line that begins an object is one, or is meant to be: a file of one pretty-printed object has
    its first line end in the middle.
    """
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (ValueError, RecursionError):
        return not text.rstrip(b"\r\n").endswith((b"{", b"[", b","))
    return True


def _broken(error: Exception) -> str:
    return f"broken JSON: {str(error).removeprefix('JSON is malformed: ')}"


def read_as(kind: type[_Kind], value: bytes) -> _Kind:
    """Decode a document. Raises BadLine where it is not of this kind."""
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.ValidationError as error:
        raise BadLine("not as the format has it", str(error)) from None
    except (ValueError, RecursionError) as error:
        raise BadLine("broken line", _broken(error), "give one whole object on each line") from None


def format_of(path: Path, line: int, value: bytes) -> str:
    """Tell the format by the keys of the first object. Raises InputError where it is none."""
    try:
        keys = set(msgspec.json.decode(value, type=dict[str, msgspec.Raw]))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}, line {line}: {_broken(error)}; the first object determines the format") from None
    for name, needed in _KEYS:
        if needed <= keys:
            return name
    raise InputError(f"{path}, line {line}: not an agents' session, but {', '.join(sorted(keys)[:12])}; {GIVE}")


_KEYS = (
    ("weka", {"requests", "block_size"}), ("otel", {"spans"}), ("otel", {"resourceSpans"}),
    ("mlperf", {"conversation_id", "role"}), ("rows", {"session_id", "messages"}),
    ("rows", {"input_length", "output_length"}), ("rows", {"input_tokens", "output_tokens"}),
    ("messages", {"messages"}),
)  # fmt: skip
_NO_BLOCKS = np.empty(0, np.uint64)


def _block_array(ids: Sequence[int], tokens: int, block_tokens: int) -> NDArray[np.uint64]:
    """Make an array of a prompt's blocks. Raises BadLine where they are more than it has, but for one too many."""
    blocks = -(-tokens // block_tokens) if block_tokens else 0
    if block_tokens and len(ids) > blocks + 1:
        what = f"{len(ids)} hash_ids, but {tokens} tokens are {blocks} blocks of {block_tokens}"
        raise BadLine("hash_ids do not fit", what, "correct it (blocks of another size: state 'block_tokens')")
    try:
        return np.array(ids[:blocks], np.uint64)
    except OverflowError:
        raise BadLine("hash_ids do not fit", "a number of hash_ids is beyond 64 bits") from None


# --- messages --------------------------------------------------------------------------------------------------

_SENT = ("content", "reasoning_content", "reasoning", "name", "tool_calls", "function_call", "tool_call_id")
"""What a server takes of a message besides its role, which comes first."""


class _Message(Struct):
    role: str
    content: str | list[dict[str, Any]] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    function_call: dict[str, Any] | None = None
    tool_call_id: str | None = None


def _text_of(message: _Message, dropped: Counter[str]) -> str:
    """Write a message as it is sent, as JSON. Parts that are no text cannot be sent, and are counted."""
    content = message.content
    if isinstance(content, list):
        kinds = [str(part.get("type")) for part in content]
        dropped.update({kind for kind in kinds if kind != "text"})
        content = [part for part, kind in zip(content, kinds, strict=True) if kind == "text"]
    sent = {name: getattr(message, name) for name in _SENT if getattr(message, name) is not None}
    if content is not None or not (message.tool_calls or message.function_call):
        sent["content"] = content or ""
    return msgspec.json.encode({"role": message.role, **sent}).decode()


def _answer_tokens(text: str) -> int:
    """Estimate the tokens of an answer from its JSON, without the frame of a message."""
    return text_tokens(text[len(ASSISTANT) + len(',"content":""}') :])


def _fields_of(item: Mapping[str, Any]) -> str | None:
    fields = {name: item[name] for name in ("tools", "tool_choice", "parallel_tool_calls") if item.get(name)}
    return msgspec.json.encode(fields).decode() if fields else None


def _call_of_messages(
    messages: Sequence[str], place: int, output_tokens: int, fields: str | None, delay_s: float = 0.0
) -> RawCall:
    """Make the call at this place of a session in which each follows the one before."""
    after = (place - 1,) if place else ()
    return RawCall(after, False, delay_s if place else 0.0, 1, output_tokens, _NO_BLOCKS, tuple(messages), fields)


class _Conversation(Struct):
    messages: list[_Message]
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None


class MessagesReader:
    """Reads OpenAI's messages: an assistant's message is the answer to a call, and what stands last asks for one."""

    def __init__(self, dropped: Counter[str]) -> None:
        self._dropped = dropped

    def add(self, line: int, value: bytes) -> Iterator[RawSession]:
        item = read_as(_Conversation, value)
        fields = _fields_of(msgspec.structs.asdict(item))
        calls: list[RawCall] = []
        messages: list[str] = []
        for message in item.messages:
            text = _text_of(message, self._dropped)
            if message.role == "assistant" and messages and not messages[-1].startswith(ASSISTANT):
                calls.append(_call_of_messages(messages, len(calls), _answer_tokens(text), fields))
            messages.append(text)
        if messages and not messages[-1].startswith(ASSISTANT):
            calls.append(_call_of_messages(messages, len(calls), 0, fields))
        if not calls:
            raise BadLine("no calls", "no message that asks for an answer", "leave it out")
        yield RawSession(calls, 0)

    def finish(self) -> Iterator[RawSession | BadSession]:
        yield from ()


class _ToolResult(Struct):
    tool_call_id: str
    content: str | list[dict[str, Any]] | None = None


class _Turn(_Message, kw_only=True):
    conversation_id: str | int
    turn: int | None = None
    system: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_results: list[_ToolResult] | None = None
    delay_seconds: Seconds | None = None


class MlperfReader:
    """Reads MLPerf's agentic rows: messages, those of a conversation one after another."""

    def __init__(self, dropped: Counter[str]) -> None:
        self._dropped = dropped
        self._name: str | int | None = None
        self._seen: set[str | int] = set()
        self._begin()

    def _begin(self) -> None:
        self._calls: list[RawCall] = []
        self._messages: list[str] = []
        self._fields: str | None = None
        self._delay_s = 0.0

    def add(self, line: int, value: bytes) -> Iterator[RawSession]:
        row = read_as(_Turn, value)
        if row.conversation_id != self._name:
            if row.conversation_id in self._seen:
                what = f"conversation {str(row.conversation_id)[:40]!r} goes on after another"
                raise BadLine("unsorted", what, "keep its rows together")
            yield from self._end()
            self._begin()
            self._name = row.conversation_id
            self._seen.add(row.conversation_id)
        if row.system and not self._messages:
            self._messages.append(_text_of(_Message("system", row.system), self._dropped))
        if row.tools:
            self._fields = _fields_of({"tools": row.tools})
        self._delay_s += row.delay_seconds or 0.0
        if row.role == "assistant":
            text = _text_of(row, self._dropped)
            if self._messages and not self._messages[-1].startswith(ASSISTANT):
                self._end_call(_answer_tokens(text))
            self._messages.append(text)
        elif row.tool_results is not None:
            self._messages += [
                _text_of(_Message("tool", each.content, tool_call_id=each.tool_call_id), self._dropped)
                for each in row.tool_results
            ]
        else:
            self._messages.append(_text_of(row, self._dropped))

    def _end_call(self, output_tokens: int) -> None:
        call = _call_of_messages(self._messages, len(self._calls), output_tokens, self._fields, self._delay_s)
        self._calls.append(call)
        self._delay_s = 0.0

    def finish(self) -> Iterator[RawSession | BadSession]:
        yield from self._end()

    def _end(self) -> Iterator[RawSession]:
        if self._messages and not self._messages[-1].startswith(ASSISTANT):
            self._end_call(0)
        if self._calls:
            yield RawSession(self._calls, 0)


# --- Weka ------------------------------------------------------------------------------------------------------


class _WekaCall(Struct):
    t: Seconds
    type: str = "n"
    tokens: Tokens = msgspec.field(default=0, name="in")
    out: Tokens = 0
    hash_ids: list[Id] = []
    api_time: Seconds | None = None
    agent_id: str | None = None
    requests: list[_WekaCall] = []


class _WekaSession(Struct):
    block_size: Annotated[int, Meta(ge=1, le=1 << 20)]
    requests: list[_WekaCall]
    hash_id_scope: str = "local"


class _Timed(NamedTuple):
    """A call with its times, in seconds, and the agent that made it; `parent`: that agent's, None: there is none."""

    start: float
    end: float
    agent: int
    parent: int | None
    blocks: NDArray[np.uint64]
    tokens: int
    out: int


class WekaReader:
    """Reads Weka traces: a document is a session."""

    def __init__(self, dropped: Counter[str]) -> None:
        self._dropped = dropped

    def add(self, line: int, value: bytes) -> Iterator[RawSession]:
        item = read_as(_WekaSession, value)
        timed: list[_Timed] = []
        agents = _flatten(item.requests, item.block_size, (0, None), 0.0, 1, timed)
        if not timed:
            raise BadLine("no calls", "a session without requests", "leave it out")
        timed.sort(key=lambda each: each.start)
        links = link_agents(timed, agents)
        calls = [
            RawCall(*link, max(1, each.tokens), max(1, each.out), each.blocks)
            for each, link in zip(timed, links, strict=True)
        ]
        yield RawSession(calls, item.block_size, is_local=item.hash_id_scope != "global")

    def finish(self) -> Iterator[RawSession | BadSession]:
        yield from ()


def _flatten(
    requests: Sequence[_WekaCall],
    block: int,
    whose: tuple[int, int | None],
    begin_s: float,
    agents: int,
    into: list[_Timed],
) -> int:
    """List the calls of an agent and of its sub-agents, in absolute times; return how many agents there are now.
    `whose`: the agent and its parent.
    """
    for each in requests:
        # Within a sub-agent times are absolute, or count from its beginning.
        start = each.t + begin_s if each.t < begin_s else each.t
        if each.type == "subagent" or each.requests:
            agents = _flatten(each.requests, block, (agents, whose[0]), start, agents + 1, into)
            continue
        blocks = _block_array(each.hash_ids, each.tokens, block)
        into.append(_Timed(start, start + (each.api_time or 0.0), *whose, blocks, each.tokens, each.out))
    return agents


_Link = tuple[tuple[int, ...], bool, float]
"""After which places, whether after their sending, and how long after."""


def link_agents(calls: Sequence[_Timed], agents: int) -> list[_Link]:
    """Find what each call waited for, in order of their starts: see the head of agents.py."""
    chains = _chains(calls, agents)
    chain_of = {place: number for number, chain in enumerate(chains) for place in chain}
    spawner: dict[int, int] = {}
    after: list[list[int]] = [[] for _ in calls]
    sent = [False] * len(calls)
    for place, call in enumerate(calls[1:], 1):
        chain = chains[chain_of[place]]
        at = chain.index(place) if chain[0] != place else 0
        if at:
            after[place] = [chain[at - 1]]
            continue
        # A sub-agent of an agent, or a part of the same agent's work that goes on beside the rest of it.
        home = call.agent if call.parent is None or _has_begun(calls, place, call.agent) else call.parent
        near = [each for each in range(place) if calls[each].agent == home] or list(range(place))
        over = [each for each in near if calls[each].end <= call.start]
        sent[place] = not over
        after[place] = [max(over, key=lambda each: calls[each].end) if over else near[-1]]
        spawner[chain_of[place]] = chain_of[after[place][0]]
    for number, home_chain in spawner.items():
        last = chains[number][-1]
        joins = (each for each in chains[home_chain] if calls[each].start >= calls[last].end and each > last)
        join = next(joins, None)
        if join is not None and not sent[join] and last not in after[join]:
            after[join].append(last)
    links: list[_Link] = []
    for place, call in enumerate(calls):
        parents = after[place]
        begun = max((calls[each].start if sent[place] else calls[each].end for each in parents), default=call.start)
        links.append((tuple(parents), sent[place], max(0.0, call.start - begun)))
    return links


def _has_begun(calls: Sequence[_Timed], place: int, agent: int) -> bool:
    return any(each.agent == agent for each in calls[:place])


def _chains(calls: Sequence[_Timed], agents: int) -> list[list[int]]:
    """Divide calls, in order of their starts, into chains of one after another: an agent's, and of an agent that did
    several things at once, those whose prompts go on from one another.
    """
    chains: list[list[int]] = []
    of_agent: list[list[int]] = [[] for _ in range(agents)]
    for place, call in enumerate(calls):
        free = [number for number in of_agent[call.agent] if calls[chains[number][-1]].end <= call.start]
        if free:
            best = free[0]
            if len(of_agent[call.agent]) > 1:
                best = max(free, key=lambda number: _share_kept(calls[chains[number][-1]].blocks, call.blocks))
            chains[best].append(place)
        else:
            of_agent[call.agent].append(len(chains))
            chains.append([place])
    return chains


def _share_kept(before: NDArray[np.uint64], blocks: NDArray[np.uint64]) -> float:
    """Return the share of an earlier prompt with which one begins."""
    short = min(len(before), len(blocks))
    apart = np.flatnonzero(before[:short] != blocks[:short])
    return float(apart[0] if len(apart) else short) / max(1, len(before))


# --- rows ------------------------------------------------------------------------------------------------------


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
    messages: list[_Message] | None = None
    message_mode: str = "history"
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None


class RowsReader:
    """Reads a call per line. Sessions may be interleaved; parents may stand in other sessions, which are then one."""

    def __init__(self, dropped: Counter[str]) -> None:
        self._dropped = dropped
        self._rows: list[tuple[int, _Row]] = []
        self._block = 0
        self._line = 0  # of the row that is being made a call

    def add(self, line: int, value: bytes) -> Iterator[RawSession]:
        row = read_as(_Row, value)
        if row.message_mode != "history":
            raise BadLine("live only", f"message_mode {row.message_mode!r}", "give whole histories, with the answers")
        if row.trigger not in ("sent", "ended"):
            raise BadLine("not as the format has it", f"'trigger' is {row.trigger[:40]!r}", "write sent or ended")
        if not row.messages and (row.messages is not None or not (row.input_length or row.input_tokens)):
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
                    line, BadLine("repeated id", f"{str(name)[:40]!r} names two calls", "rename one")
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
                circle = BadLine("circle", "it waits for a call that waits for it", "take one of these parents away")
                yield BadSession(self._rows[at][0], circle)
                continue
            try:
                yield self._session(order, known)
            except BadLine as bad_line:
                yield BadSession(self._line, bad_line)

    def _parents(self, places: Mapping[str | int, int]) -> list[list[int] | BadSession]:
        """List the parents of each row: those that it names, else the row before it of its session."""
        last: dict[str | int, int] = {}
        found: list[list[int] | BadSession] = []
        for at, (line, row) in enumerate(self._rows):
            named = row.wait_for if row.wait_for is not None else row.after
            before = last.get(row.session_id) if row.session_id is not None else None
            if row.session_id is not None:
                last[row.session_id] = at
            if named is None:
                found.append([] if before is None else [before])
                continue
            missing = [each for each in named if each not in places]
            if missing:
                what = f"it waits for {str(missing[0])[:40]!r}, which is no call of the file"
                found.append(BadSession(line, BadLine("no such parent", what, "give that call, or another")))
            else:
                found.append([places[each] for each in dict.fromkeys(named)])
        return found

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
                # Only when it began is known: it keeps that distance from the sending of the one that it follows.
                first = rows[after[-1] if after else 0].timestamp
                sent, delay_s = True, max(0.0, row.timestamp - (first or 0.0)) / 1000
            if place and not after:
                after, sent = (0,), True
            out = row.output_length if row.output_length is not None else row.output_tokens or 0
            tokens = row.input_length or row.input_tokens or 1
            messages = [_text_of(each, self._dropped) for each in row.messages or ()]
            if (row.messages is None) == (rows[0].messages is not None):
                raise BadLine("no input", "a session of which some calls have messages and some have not")
            fields = _fields_of({"tools": row.tools, "tool_choice": row.tool_choice})
            blocks = _block_array(row.hash_ids, tokens, block)
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
        """Tell how many tokens a block has, which Mooncake's format does not say: what most prompts' lengths fit."""
        if self._block:
            return self._block
        sizes = (_MOONCAKE_BLOCK, _DYNAMO_BLOCK, 16, 32, 128, 256, 1024)
        told = [(len(row.hash_ids), row.input_length or row.input_tokens or 1) for _, row in self._rows[:1000]]
        fits = {size: sum(-(-tokens // size) == count for count, tokens in told if count) for size in sizes}
        self._block = max(sizes, key=lambda size: fits[size])
        return self._block


def _connected(parents: Sequence[Sequence[int]], names: Sequence[str | int | None]) -> list[list[int]]:
    """Divide rows into sessions: those of one name, and those that wait for one another, are together."""
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
    groups: dict[int, list[int]] = {}
    for at in range(len(parents)):
        groups.setdefault(find(at), []).append(at)
    return list(groups.values())


def _sort_parents_first(members: Sequence[int], parents: Sequence[Sequence[int]]) -> list[int]:
    """Order a session's rows so that each comes after those that it waits for; without those of a circle."""
    import heapq

    left = {at: len(parents[at]) for at in members}
    children: dict[int, list[int]] = {}
    for at in members:
        for each in parents[at]:
            children.setdefault(each, []).append(at)
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


# --- OpenTelemetry ---------------------------------------------------------------------------------------------


class OtelReader:
    """Reads GenAI spans: a document has all spans of a session, or of several, by trace_id."""

    def __init__(self, dropped: Counter[str]) -> None:
        self._dropped = dropped

    def add(self, line: int, value: bytes) -> Iterator[RawSession]:
        traces: dict[str, list[dict[str, Any]]] = {}
        for span in _spans(read_as(dict[str, Any], value)):
            if isinstance(span, dict) and isinstance(span.get("attributes"), dict):
                traces.setdefault(str(span.get("trace_id") or span.get("traceId")), []).append(span)
        found = False
        for spans in traces.values():
            timed = [call for call in map(self._call, spans) if call is not None]
            if timed:
                found = True
                yield _session_of_spans(timed)
        if not found:
            raise BadLine("no calls", "no span with gen_ai.input.messages", "record what is asked, or leave it out")

    def finish(self) -> Iterator[RawSession | BadSession]:
        yield from ()

    def _call(self, span: dict[str, Any]) -> tuple[float, float, RawCall] | None:
        """Make a call of a span, with its times; None where it is none."""
        facts = span["attributes"]
        asked = facts.get("gen_ai.input.messages", facts.get("gen_ai.prompt"))
        if asked is None or facts.get("gen_ai.operation.name") in ("execute_tool", "embeddings", "invoke_agent"):
            return None
        messages = [_text_of(each, self._dropped) for each in _span_messages(asked, "user")]
        if not messages:
            return None
        names = ("gen_ai.output.messages", "gen_ai.output.text", "gen_ai.output", "gen_ai.completion")
        answer = next((facts[name] for name in names if facts.get(name)), None)
        counted = facts.get("gen_ai.usage.output_tokens", facts.get("gen_ai.usage.completion_tokens"))
        if counted is None and answer is not None:
            counted = text_tokens("".join(_text_of(each, Counter()) for each in _span_messages(answer, "assistant")))
        if counted is None:
            counted = facts.get("gen_ai.request.max_tokens") or _UNKNOWN_OUTPUT
        tools = _decoded(facts.get("gen_ai.tool.definitions"))
        fields = _fields_of({"tools": tools if isinstance(tools, list) else None})
        start, end = _seconds(span, "start"), _seconds(span, "end")
        out = _whole(counted, "output tokens")
        return start, max(start, end), RawCall((), False, 0.0, 1, max(1, out), _NO_BLOCKS, messages, fields)


def _session_of_spans(timed: list[tuple[float, float, RawCall]]) -> RawSession:
    """Link calls by their times: each follows all that had ended by then, but those that these followed."""
    timed.sort(key=lambda each: each[:2])
    starts, ends = (np.array([each[at] for each in timed]) for at in (0, 1))
    calls = []
    for place, (start, _, call) in enumerate(timed):
        over = np.flatnonzero(ends[:place] <= start)
        sent = not len(over)
        after = over[ends[over] > starts[over].max(initial=-math.inf)] if len(over) else np.array([place - 1])
        if not len(after) and len(over):
            after = over[-1:]  # calls that took no time
        since = float((starts if sent else ends)[after].max()) if place else start
        links = tuple(after.tolist()) if place else ()
        calls.append(call._replace(after=links, sent=sent and place > 0, delay_s=max(0.0, start - since)))
    return RawSession(calls, 0)


def _spans(item: dict[str, Any]) -> Iterator[Any]:
    """Yield the spans of a document, OTLP's with its attributes as plain values."""
    if isinstance(item.get("spans"), list):
        yield from item["spans"]
    for resource in _objects(item, "resourceSpans"):
        for scope in _objects(resource, "scopeSpans"):
            for span in _objects(scope, "spans"):
                named = _objects(span, "attributes")
                yield {**span, "attributes": {str(each.get("key")): _plain(each.get("value")) for each in named}}


def _objects(item: dict[str, Any], name: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a list; nothing where there is no list."""
    value = item.get(name)
    yield from (each for each in value if isinstance(each, dict)) if isinstance(value, list) else ()


def _plain(value: Any) -> Any:
    return next(iter(value.values()), None) if isinstance(value, dict) else value


def _decoded(value: Any) -> Any:
    """Decode what is JSON as text; text that is none stays as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return msgspec.json.decode(value)
        except (ValueError, RecursionError):
            return value
    return value


def _span_messages(value: Any, role: str) -> list[_Message]:
    """Read messages of a span: OpenAI's, or with the semantic conventions' parts, or a text of this `role`."""
    value = _decoded(value)
    if isinstance(value, str):
        return [_Message(role, value)]
    found: list[_Message] = []
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, dict):
            raise BadLine("not as the format has it", "a message that is no object")
        parts = item.get("parts")
        found += _of_parts(item, parts) if isinstance(parts, list) else [_convert({"role": role, **item})]
    return found


def _convert(item: dict[str, Any]) -> _Message:
    try:
        return msgspec.convert(item, _Message)
    except msgspec.ValidationError as error:
        raise BadLine("not as the format has it", str(error)) from None


def _of_parts(item: dict[str, Any], parts: list[Any]) -> list[_Message]:
    """Make OpenAI's messages of one with parts: a tool's results are messages of their own."""
    message = _Message(str(item.get("role") or "user"))
    results: list[_Message] = []
    texts: list[str] = []
    others: list[dict[str, Any]] = []
    for part in (each for each in parts if isinstance(each, dict)):
        kind = part.get("type")
        if kind == "text":
            texts.append(str(part.get("content") or part.get("text") or ""))
        elif kind in ("reasoning", "thinking"):
            message.reasoning_content = (message.reasoning_content or "") + str(part.get("content") or "")
        elif kind == "tool_call":
            arguments = part.get("arguments")
            text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
            function = {"name": part.get("name"), "arguments": text}
            call = {"id": part.get("id"), "type": "function", "function": function}
            message.tool_calls = [*(message.tool_calls or ()), call]
        elif kind == "tool_call_response":
            result = part.get("response", part.get("result"))
            text = result if isinstance(result, str) else msgspec.json.encode(result).decode()
            results.append(_Message("tool", text, tool_call_id=str(part.get("id"))))
        else:
            others.append({"type": str(kind)})
    message.content = [*({"type": "text", "text": each} for each in texts), *others] if others else "\n".join(texts)
    if not texts and message.tool_calls:
        message.content = None
    alone = results and not texts and not others and not message.tool_calls
    return results if alone else [message, *results]


def _seconds(span: dict[str, Any], which: str) -> float:
    """Read a span's time. Raises BadLine."""
    nanos = span.get(f"{which}TimeUnixNano")
    try:
        value = int(nanos) / 1e9 if nanos is not None else span.get(f"{which}_time")
        if not isinstance(value, int | float):
            time = datetime.fromisoformat(str(value))
            value = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = math.inf
    if abs(seconds) > _MOST_SECONDS:
        raise BadLine("not a number", f"no time in a span's {which}_time", "give it as ISO 8601")
    return seconds


def _whole(value: Any, what: str) -> int:
    """Read a count that may be text, as OTLP's integers are. Raises BadLine."""
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if not 0 <= number < 2**31:
        raise BadLine("not a number", f"{what} are {str(value)[:40]!r}", "give a whole number")
    return number


READERS: dict[str, type[Reader]] = {
    "weka": WekaReader, "otel": OtelReader, "mlperf": MlperfReader, "messages": MessagesReader, "rows": RowsReader,
}  # fmt: skip
