"""Sessions of agents, read from a file in whichever of the usual formats it is. The content tells
the format.

weka      a session per file, line or element: `requests` with hash_ids of `block_size` tokens, and
          sub-agents
otel      OpenTelemetry GenAI spans: `spans`, or OTLP's resourceSpans; a session for each trace
mlperf    a message per line: conversation_id, turn, role; an answer's line is a call
messages  {"messages": [...], "tools": [...]}: OpenAI's; every assistant's message is the answer to
          a call
tracelab  a call per line, with prefix_tokens and newly_append_tokens and no text
rows      a call per line: Mooncake's fields with session_id, Dynamo's with wait_for; or our own:
          session_id, id, after, trigger, delay_s, input_tokens, output_tokens, hash_ids with
          block_tokens, or messages

A call waits for its parents. Where the file does not name them they follow from its times: a call
follows the one before it of its agent; of a sub-agent the first follows the call of its parent that
ended last, and the parent's next call waits for the sub-agents that had ended by then.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from loadstone.core.calls import CallGraph
from loadstone.core.errors import InputError
from loadstone.core.plan import Blocks
from loadstone.core.vectors import Array, Ints32, Ints64
from loadstone.workload.agent_formats import GIVE, READERS, format_of
from loadstone.workload.agent_formats.session import RawSession
from loadstone.workload.block_tree import count_alike
from loadstone.workload.draw import Draw, Rows, ServerLimits, Workload, text_rows
from loadstone.workload.files import open_requests
from loadstone.workload.lengths import Length, Think
from loadstone.workload.prompts import text_tokens

_CANDIDATES = 8
"""Earlier calls of a session, the latest first, whose prompts one is compared with."""


class Call(NamedTuple):
    """A call of a session: after which others of it, `delay_s` after that; and its prompt.

    parents        places in the session, before its own; empty for the first call alone
    sent           it follows the sending of those, not their end
    base, kept     its prompt begins with the first `kept` blocks or messages of that call's;
                   `added` come after them
    input_tokens   of messages: an estimate
    output_tokens  0: the file does not say
    fields         number of the text with the request's other fields, −1: none
    """

    parents: tuple[int, ...]
    sent: bool
    delay_s: float
    input_tokens: int
    output_tokens: int
    base: int
    kept: int
    added: Ints32
    fields: int = -1


class AgentTrace(Workload, msgspec.Struct, frozen=True, eq=False):
    """Sessions of a file, each its calls in the order in which they were made.

    block_tokens  tokens of a block; 0: prompts are messages, numbers of `prompts`, each as JSON
    skipped       lines left out: reason to count
    dropped       what cannot be sent, though it changes what is asked: name to items that have it
    live          the server's own answers stand in later prompts
    overflowed    sessions that end where a call is beyond the model's context, and the calls that
                  this leaves out
    """

    format: str
    sessions: list[list[Call]]
    block_tokens: int
    prompts: list[str]
    sha256: str
    skipped: dict[str, int] = {}
    dropped: dict[str, int] = {}
    live: bool = False
    overflowed: dict[str, int] = {}

    @property
    def calls(self) -> int:
        return sum(map(len, self.sessions))

    def describe(self, output: Length | None) -> dict[str, Any]:
        described = {
            "kind": "agents",
            "format": self.format,
            "sha256": self.sha256,
            "sessions": len(self.sessions),
            "calls": self.calls,
            "skipped": self.skipped,
            "answers": "live" if self.live else "recorded",
        }
        present = {"dropped": self.dropped, "overflowed": self.overflowed}
        return described | {name: value for name, value in present.items() if value}

    def rows(self, draw: Draw) -> Rows:
        """Make the rows of a cell. `session`, `place`: of the file's each row is which call of
        which; `begin`: the place of the first one that is sent; `copy`: see CallGraph."""
        session, begin, end, copy = self._choose(draw)
        lengths = end - begin
        rows = draw.frame(lengths, draw.starts_s(len(lengths) - draw.warm))
        rows |= {
            "session": np.repeat(session, lengths),
            "begin": np.repeat(begin, lengths),
            "copy": np.repeat(copy, lengths).astype(np.int32),
        }
        rows["place"] = rows["begin"] + rows["turn"]
        chosen = zip(rows["session"].tolist(), rows["place"].tolist(), strict=True)
        calls = [self.sessions[number][place] for number, place in chosen]
        rows |= text_rows(
            np.array([call.fields for call in calls], np.int32),
            np.array([call.output_tokens for call in calls]),
        )
        if self.block_tokens:
            rows["input_tokens"] = np.array([call.input_tokens for call in calls], np.int32)
        rows["think_s"] = np.where(rows["turn"] > 0, [call.delay_s for call in calls], 0.0)
        return rows

    def _choose(self, draw: Draw) -> Ints64:
        """Choose a cell's sessions, the warm-up's first: measured ones take the file's shuffled by
        seed, again and again where it has too few, until there are as many, or as many calls as
        are requested. Returns which, from which call to before which, and the how-many-th copy.

        The warm-up of a closed loop has as many sessions begin in their midst, evenly spread, so
        that measuring begins in a steady state.
        """
        load, warm = draw.load, draw.warm
        sizes = np.array([len(calls) for calls in self.sessions])
        if draw.requested is not None:
            count = math.ceil(draw.requested / sizes.mean()) + len(sizes)
        elif load.is_burst or (load.is_open and (load.duration_s is not None or load.profile)):
            count = draw.count(None)
        else:
            count = max(len(sizes), int(2 * load.value) if load.is_closed else 0)
        picks = draw.choose(len(sizes), count)
        ends = sizes[picks]
        begins = np.zeros(len(picks), np.int64)
        if draw.staggers:
            lead = ends[count:]
            begins[count:] = lead - np.maximum(1, np.rint(lead * (np.arange(warm) + 1) / warm))
        if draw.requested is not None:
            sizes_asked = ends[:count]
            ends[:count] = np.minimum(
                sizes_asked, draw.requested - (np.cumsum(sizes_asked) - sizes_asked)
            )
        copies = np.concatenate(
            [np.arange(count) // len(sizes), -1 - np.arange(warm) // len(sizes)]
        )
        chosen = np.roll(np.stack([picks, begins, ends, copies]), warm, axis=1)
        return chosen[:, chosen[2] > 0]

    def finish(self, rows: Rows, draw: Draw) -> dict[str, Any]:
        """Put together what the rows of all cells wait for, and what their prompts are made of."""
        parents: list[tuple[int, ...]] = []
        sent, back, kept, added = [], [], [], []
        calls_of_rows = (rows[name].tolist() for name in ("session", "begin", "place"))
        for session, begin, place in zip(*calls_of_rows, strict=True):
            calls = self.sessions[session]
            call = calls[place]
            waits = tuple(parent - begin for parent in call.parents if parent >= begin)
            lost = place > begin and not waits
            # Where a session begins in its midst, what waited for calls before that follows the
            # first one's sending.
            parents.append((0,) if lost else waits)
            sent.append(call.sent or lost)
            whole = call.kept > 0 and call.base < begin
            back.append(0 if whole or not call.kept else place - call.base)
            kept.append(0 if whole else call.kept)
            added.append(_whole_prompt(calls, call) if whole else call.added)
        offsets, block_offsets = (
            np.cumsum([0, *map(len, lists)]).astype(np.int64) for lists in (parents, added)
        )
        return {
            "prompts": self.prompts,
            "chat": not self.block_tokens,
            "graph": CallGraph(
                offsets,
                np.array(list(itertools.chain.from_iterable(parents)), np.int32),
                np.array(sent, bool),
                rows["copy"],
                recorded=True,
                live=self.live,
            ),
            "blocks": Blocks(
                self.block_tokens,
                block_offsets,
                np.concatenate(added).astype(np.int32),
                np.array(back, np.int32),
                np.array(kept, np.int32),
            ),
        }

    def fit(self, limits: ServerLimits) -> AgentTrace:
        return self if limits.max_tokens is None else self.within(limits.max_tokens)

    def with_pauses(self, scale: float, drawn: Think | None, seed: int) -> AgentTrace:
        """Scale the pauses between calls, or draw them."""
        rng = np.random.default_rng([seed, 6])

        def paused(call: Call) -> Call:
            if not call.parents:
                return call
            return call._replace(
                delay_s=float(drawn.draw(rng, 1)[0]) if drawn is not None else call.delay_s * scale
            )

        return msgspec.structs.replace(
            self, sessions=[[paused(call) for call in calls] for calls in self.sessions]
        )

    def with_outputs(self, lengths: Ints32) -> AgentTrace:
        """Give answers whose length the file does not say the next of `lengths`."""
        rest = iter(lengths.tolist())
        return msgspec.structs.replace(
            self,
            sessions=[
                [
                    call if call.output_tokens else call._replace(output_tokens=next(rest))
                    for call in calls
                ]
                for calls in self.sessions
            ],
        )

    def within(self, max_tokens: int) -> AgentTrace:
        """End each session before its first call that a model does not take, input and output
        together. Raises InputError where nothing is left.
        """
        sessions, ended = [], Counter[str]()
        for calls in self.sessions:
            fit = [call.input_tokens + call.output_tokens <= max_tokens for call in calls]
            upto = fit.index(False) if False in fit else len(calls)
            if upto < len(calls):
                ended.update(sessions=1, calls=len(calls) - upto)
            if upto:
                sessions.append(calls[:upto])
        if not sessions:
            raise InputError(
                f"--agents: the first call of every session is beyond the {max_tokens} tokens that"
                " the model takes; give a model, or start the server, with a longer context"
            )
        return (
            msgspec.structs.replace(self, sessions=sessions, overflowed=dict(ended))
            if ended
            else self
        )


def _whole_prompt(calls: Sequence[Call], call: Call) -> Ints32:
    pieces, kept = [call.added], call.kept
    while kept:
        call = calls[call.base]
        pieces.append(call.added[: max(0, kept - call.kept)])
        kept = min(kept, call.kept)
    return np.concatenate(pieces[::-1])


def read(path: Path, *, skip_bad: bool = False) -> AgentTrace:
    """Read the sessions of a file, gzip or not.

    With `skip_bad` lines that cannot be used are left out and counted. Raises InputError, with the
    line, where the file cannot be read, is of no known format, or (without `skip_bad`) a line
    cannot be used.
    """
    with open_requests(path, GIVE, skip_bad=skip_bad, documents=True) as file:
        name = format_of(file)
        store = _Store()
        for session in READERS[name](file, store.dropped):
            store.add(session)
        if not store.sessions:
            file.refuse_empty("sessions")
    if len(store.block_tokens) > 1:
        sizes = " and of ".join(map(str, sorted(store.block_tokens)))
        raise InputError(f"{path}: blocks of {sizes} tokens (0: messages); give files of one kind")
    return AgentTrace(
        name,
        store.sessions,
        store.block_tokens.pop(),
        store.prompts,
        file.sha256,
        dict(file.skipped),
        dict(store.dropped),
    )


class _Store:
    """Sessions as they are read; numbers blocks and texts anew."""

    def __init__(self) -> None:
        self.sessions: list[list[Call]] = []
        self.prompts: list[str] = []
        self.block_tokens: set[int] = set()
        self.dropped: Counter[str] = Counter()
        self._sizes: list[int] = []
        self._texts: dict[str, int] = {}
        self._shared: dict[int, int] = {}
        self._count = 0

    def add(self, session: RawSession) -> None:
        self.block_tokens.add(session.block_tokens)
        numbers: dict[int, int] = {} if session.is_local else self._shared
        calls: list[Call] = []
        prompts: list[Array] = []
        sums: list[int] = []
        for raw in session.calls:
            ids = (
                raw.blocks
                if session.block_tokens
                else np.array([self._text(text) for text in raw.messages])
            )
            base, kept = _begin_alike(prompts, ids, raw.parents)
            added = ids[kept:]
            tokens = raw.input_tokens
            if session.block_tokens:
                added = np.array(self._number(numbers, added.tolist()))
            else:
                goes_on = kept > 0 and kept == len(prompts[base])
                sums.append(
                    sum([self._sizes[number] for number in (added if goes_on else ids).tolist()])
                )
                sums[-1] += sums[base] if goes_on else 0
                tokens = sums[-1]
            fields = -1 if raw.fields is None else self._text(raw.fields)
            tokens += 0 if raw.fields is None else self._sizes[fields]
            new = added.astype(np.int32)
            calls.append(Call(*raw[:3], tokens, raw.output_tokens, base, kept, new, fields))
            prompts.append(ids)
        self.sessions.append(calls)

    def _number(self, numbers: dict[int, int], blocks: list[int]) -> list[int]:
        new = dict.fromkeys(block for block in blocks if block not in numbers)
        numbers.update(zip(new, range(self._count, self._count + len(new)), strict=True))
        self._count += len(new)
        return [numbers[block] for block in blocks]

    def _text(self, text: str) -> int:
        number = self._texts.setdefault(text, len(self.prompts))
        if number == len(self.prompts):
            self.prompts.append(text)
            self._sizes.append(text_tokens(text))
        return number


def _begin_alike(prompts: list[Array], ids: Array, parents: tuple[int, ...]) -> tuple[int, int]:
    """Find the earlier prompt with which `ids` has most of its beginning in common, among the
    call's parents and the last ones: (its place, how much).
    """
    best, kept = 0, 0
    for place in dict.fromkeys(
        [*parents, *range(len(prompts) - 1, max(-1, len(prompts) - 1 - _CANDIDATES), -1)]
    ):
        prompt = prompts[place]
        if kept and (len(prompt) <= kept or prompt[kept] != ids[kept]):
            continue
        same = count_alike(ids, prompt)
        if same > kept:
            best, kept = place, same
        if kept == len(ids):
            break
    return best, kept
