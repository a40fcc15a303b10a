"""Defines what is requested, and when: Load, PlannedRequest, Plan. A plan's `intended_s` counts
from the start of its cell.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadstone.core.calls import CallGraph, take_lists
from loadstone.core.pictures import Pictures, PlannedPictures
from loadstone.core.units import show_load
from loadstone.core.vectors import Array, Floats, Ints32, Ints64

LoadKind = Literal["concurrency", "rate", "burst"]
Process = Literal["poisson", "constant", "gamma", "trace"]
Unit = Literal["requests", "sessions"]
Phase = Literal["warmup", "measure", "check"]
"""`check`: mixed into the load to be graded, and apart from what is measured."""

PoolingTask = Literal["embeddings", "rerank", "score"]
"""What is asked of models that write no text: a vector for each input, or how well each document
fits a query."""

POOLING_TASKS: tuple[PoolingTask, ...] = get_args(PoolingTask)
PHASES: tuple[Phase, ...] = ("warmup", "measure", "check")
CHECK = PHASES.index("check")
ASSISTANT = '{"role":"assistant"'
"""How the JSON of an answer begins, of messages that are blocks."""


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Says when the requests of one cell are sent.

    concurrency  closed loop: `value` requests under way, each end starts the next
    rate         open loop: `value` requests/s, arrivals by `process` (gamma: shape = `burstiness`;
                 trace: as they were recorded, times multiplied by `time_scale`, and `value` is
                 their mean)
    burst        all `value` requests at once
    `max_concurrency` caps an open loop; waiting for a slot counts from the intended time.
    `duration_s` ends issuing by time instead of by count. `profile`: the rate or concurrency
    follows pieces of (from, to, seconds), linear within each; `value` is then the mean of the rate,
    the largest concurrency. `unit`: what is counted; of sessions, the first turns follow the load
    and the others their answers.
    """

    kind: LoadKind
    value: float
    process: Process = "poisson"
    burstiness: float = 1.0
    max_concurrency: int | None = None
    duration_s: float | None = None
    profile: tuple[tuple[float, float, float], ...] = ()
    unit: Unit = "requests"
    time_scale: float = 1.0

    def __post_init__(self) -> None:
        # 8 and 8.0 are the same load, and must be the same in a plan's id.
        msgspec.structs.force_setattr(self, "value", float(self.value))
        if self.duration_s is not None:
            msgspec.structs.force_setattr(self, "duration_s", float(self.duration_s))

    @property
    def is_closed(self) -> bool:
        """True if each end starts the next request; see arrays.origin_s() for what follows for
        latencies."""
        return self.kind == "concurrency"

    @property
    def is_open(self) -> bool:
        """True if requests are sent at a rate, whatever becomes of those before."""
        return self.kind == "rate"

    @property
    def is_burst(self) -> bool:
        """True if all requests are sent at once."""
        return self.kind == "burst"

    @property
    def slots(self) -> int:
        """The concurrency of a closed loop that keeps it all the time; 0 for any other load."""
        return int(self.value) if self.is_closed and not self.profile else 0

    @property
    def steady(self) -> bool:
        """True if it is requests at one rate that is known: no trace, ramp or sessions."""
        return (
            self.is_open
            and not self.profile
            and self.process != "trace"
            and self.unit == "requests"
        )

    @property
    def label(self) -> str:
        value = show_load(self.value)
        rate = " req/s" if self.unit == "requests" else " sessions/s"
        if self.profile:
            unit = rate if self.is_open else ""
            value = ", ".join(
                (
                    f"{start:g}{unit} for {seconds:g} s"
                    if start == end
                    else f"{start:g}–{end:g}{unit} in {seconds:g} s"
                )
                for start, end, seconds in self.profile
            )
        label = {
            "concurrency": (
                f"concurrency {value}" + (" sessions" if self.unit == "sessions" else "")
            ),
            "rate": value if self.profile else value + rate,
            "burst": f"burst of {value}",
        }[self.kind]
        return (
            f"trace at {1 / self.time_scale:g}× speed, {label}"
            if self.process == "trace"
            else label
        )


class TrafficClass(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One of the kinds of requests that a plan mixes.

    slots     of a closed loop, that it alone fills; 0: its load is open
    slo       bounds on its latencies, by metric (`ttft_p99`), in seconds
    priority  larger is served first; None: requests say nothing
    tenant    sent as the header of gateways that are fair between tenants
    headers   sent with its requests, beside those of the run
    key_env   name of the variable that holds its API key
    model     name that its requests use, of a model or an adapter; None: that of the run
    adapter   name of the LoRA adapter that its requests ask for; None: of none
    adapters  above 0: it has so many, `adapter`-1 and on, the n-th asked for by n^−popularity
    adapter_rank, adapter_path   of each, where they are known
    """

    name: str
    slots: int = 0
    slo: dict[str, float] = {}
    priority: int | None = None
    tenant: str | None = None
    headers: dict[str, str] = {}
    key_env: str | None = None
    model: str | None = None
    adapter: str | None = None
    adapters: int = 0
    popularity: float = 0.0
    adapter_rank: int | None = None
    adapter_path: str | None = None

    @property
    def adapter_names(self) -> list[str]:
        """List its adapters, the most popular first."""
        if self.adapter is None:
            return []
        numbers = range(1, self.adapters + 1)
        return [f"{self.adapter}-{number}" for number in numbers] or [self.adapter]


def adapter_names(classes: Iterable[TrafficClass]) -> list[str]:
    """List the LoRA adapters of several classes, each once."""
    return list(dict.fromkeys(name for kind in classes for name in kind.adapter_names))


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One row of a plan. `index` counts within the cell, warm-up included, and with `cell` names
    the request.

    `prompt` is None where it is synthetic; `chat`: it is messages as a JSON array, not text. `turn`
    counts from 0 within a session, None outside of one; `think_s` lies between the answer to the
    turn before and this one. `blocks`: the prompt is made of these, `block_tokens` each, shared
    with all that name them too. `messages`: the whole prompt, each as JSON; `prompt` has then the
    body's further fields, as a JSON object. `answers`: which of the messages, by place, the
    server's own answer to a turn of the session replaces. `copy`: of a session that a cell has
    several times, which one it is: each has its own words. `traffic_class`: place of its class in
    the plan's; `adapter`: its number among the plan's, 0: none. `inputs`: the tokens of each of its
    texts, see Inputs. `pictures`: made for it.
    """

    cell: int
    index: int
    phase: Phase
    intended_s: float | None
    input_tokens: int
    output_tokens: int
    prefix_group: int | None
    prefix_tokens: int
    prompt: str | None
    chat: bool = False
    turn: int | None = None
    think_s: float = 0.0
    blocks: tuple[int, ...] = ()
    block_tokens: int = 0
    messages: tuple[str, ...] = ()
    answers: tuple[tuple[int, int], ...] = ()
    copy: int = 0
    traffic_class: int = 0
    adapter: int = 0
    inputs: tuple[int, ...] = ()
    pictures: PlannedPictures | None = None

    @property
    def request_id(self) -> str:
        return f"{self.cell}-{self.index}"

    @property
    def session_id(self) -> str | None:
        """Named after its first request; turns of a session have indices in sequence."""
        return None if self.turn is None else f"{self.cell}-{self.index - self.turn}"


@dataclass(eq=False)
class Inputs:
    """The texts of each row's request for vectors or scores: a row's are as long as
    tokens[offsets[row]:offsets[row + 1]]. Where documents are judged, its first is the query.

    offsets i8, one more than rows; tokens i4. `pairs`: a model that is simulated reads the query
    with each document, and so many tokens more; None: each text by itself. No file has it.
    """

    task: PoolingTask
    offsets: Ints64
    tokens: Ints32
    pairs: int | None = None

    def own(self, row: int) -> Ints32:
        return self.tokens[self.offsets[row] : self.offsets[row + 1]]

    def take(self, rows: Ints64) -> Inputs:
        """Select the texts of these rows, in their order."""
        return Inputs(self.task, *take_lists(self.offsets, self.tokens, rows), self.pairs)

    @property
    def has_queries(self) -> bool:
        return self.task != "embeddings"

    def sequences(self, row: int) -> list[int]:
        """Return the tokens of each sequence that a model reads for a row."""
        texts: list[int] = self.own(row).tolist()
        if self.pairs is None or not self.has_queries:
            return texts
        return [texts[0] + document + self.pairs for document in texts[1:]]

    def longest(self) -> int:
        """Return the tokens of the longest sequence, of a query and a document together."""
        if not self.has_queries:
            return int(self.tokens.max())
        queries = self.offsets[:-1]
        documents = np.delete(self.tokens, queries)
        return int(self.tokens[queries].max()) + int(documents.max()) + (self.pairs or 0)


@dataclass(eq=False)
class Blocks:
    """The blocks that each row's prompt is made of, `tokens` tokens each; 0: they are messages,
    numbers of `prompts`.

    A row's own are ids[offsets[row]:offsets[row + 1]]. They follow the first `kept` blocks of the
    row that is `back` rows before it. offsets i8, one more than rows; ids, back, kept i4. The last
    block of a row may be cut by its length.
    """

    tokens: int
    offsets: Ints64
    ids: Ints32
    back: Ints32
    kept: Ints32

    @classmethod
    def whole(cls, tokens: int, offsets: Ints64, ids: Ints32) -> Blocks:
        """Make the blocks of rows of which each has all of its own."""

        zeros = np.broadcast_to(np.int32(0), len(offsets) - 1)
        return cls(tokens, offsets, ids, zeros, zeros)

    def own(self, row: int) -> Ints32:
        return self.ids[self.offsets[row] : self.offsets[row + 1]]

    def size(self, row: int) -> int:
        """Count the blocks of a row's prompt."""
        return int(self.kept[row]) + int(self.offsets[row + 1] - self.offsets[row])

    def lineage(self, row: int) -> Iterator[tuple[int, int, int]]:
        """Yield (row, first, end): whose own blocks stand in this row's prompt from place `first`
        to before `end`, from the last to the first.
        """
        end = self.size(row)
        while True:
            kept = int(self.kept[row])
            end = min(end, self.size(row))
            if end > kept:
                yield row, kept, end
            end = min(end, kept)
            if not end or not self.back[row]:
                return
            row -= int(self.back[row])

    def take_row(self, row: int) -> Ints32:

        pieces = [self.own(source)[: end - first] for source, first, end in self.lineage(row)]
        return np.concatenate(pieces[::-1]) if pieces else self.own(row)

    def take(self, rows: Ints64) -> Blocks:
        """Select the blocks of these rows, in their order; none for a row below 0."""

        offsets, ids = take_lists(self.offsets, self.ids, rows)
        if not self.kept.any():
            return Blocks.whole(self.tokens, offsets, ids)
        inside = rows >= 0
        back, kept = self.back[rows] * inside, self.kept[rows] * inside
        base = np.arange(len(rows)) - back
        lost = np.flatnonzero((kept > 0) & ((base < 0) | (rows[base.clip(0)] != rows - back)))
        if len(lost):
            # The row that they go on from is not among these.
            pieces = np.split(ids, offsets[1:-1])
            for place in lost.tolist():
                pieces[place] = self.take_row(int(rows[place]))
                back[place] = kept[place] = 0
            offsets = np.cumsum([0, *map(len, pieces)]).astype(np.int64)
            ids = np.concatenate(pieces)
        return Blocks(self.tokens, offsets, ids, back, kept)


def rank_by_first_use(
    numbers: Ints32,
) -> tuple[Ints32, Ints32, Ints64]:
    """Number anew in the order of first use: (the new numbers, the old one of each new, where it is
    first used)."""

    used, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(used), np.int32)
    rank[order] = np.arange(len(used))
    return rank[inverse], used[order], first[order]


@dataclass(eq=False)
class Plan:
    """Every request of a run, fixed before the first is sent: the same seed gives the same plan.

    Columns have one entry per request, cells one after another, warm-up first within a cell: cell
    i4; phase u1 (index into PHASES); intended_s f8 (NaN in a closed loop: the moment a slot frees;
    and for later turns of a session: `think_s` after the answer before); input_tokens i4 (total
    demanded, prefix included; of later turns, what they add; −1 where a dataset's text decides);
    output_tokens i4; prefix_group i4 (−1: none); prefix_tokens i4; turn i4 (from 0; −1: no
    session); think_s f8; prompt i4 (index into `prompts`; −1: synthetic).

    Turns of a session follow one another. `prompts` holds texts or, with `chat`, messages as JSON
    arrays. `blocks`: what synthetic prompts of a trace share, or the messages of sessions; None
    where there are none. `graph`: what the calls of sessions wait for. `exact_output`: output
    lengths are demanded, not a cap. `cyclic`: cells that run by time in a closed loop go round
    their rows again with new indices. `traffic_class` u1: index into `classes`; None where requests
    are of one kind. `adapter` i4: index into `adapter_names` from 1 on, 0: none; None where no
    class has any. `inputs`: the texts of requests for vectors or scores, `input_tokens` all of
    theirs and `output_tokens` how many vectors or scores they ask for; None where text is written.
    `pictures`: of requests; None where they have none.
    """

    seed: int
    cells: tuple[Load, ...]
    workload: dict[str, Any]
    exact_output: bool
    cell: Ints32
    phase: NDArray[np.uint8]
    intended_s: Floats
    input_tokens: Ints32
    output_tokens: Ints32
    prefix_group: Ints32
    prefix_tokens: Ints32
    turn: Ints32
    think_s: Floats
    prompt: Ints32
    graph: CallGraph
    prompts: list[str] = field(default_factory=list)
    chat: bool = False
    blocks: Blocks | None = None
    classes: tuple[TrafficClass, ...] = ()
    traffic_class: NDArray[np.uint8] | None = None
    adapter: Ints32 | None = None
    inputs: Inputs | None = None
    pictures: Pictures | None = None

    COLUMNS = (
        "cell",
        "phase",
        "intended_s",
        "input_tokens",
        "output_tokens",
        "prefix_group",
        "prefix_tokens",
        "turn",
        "think_s",
        "prompt",
    )

    def __len__(self) -> int:
        return len(self.cell)

    @cached_property
    def plan_id(self) -> str:
        """Twelve hex digits over everything the plan holds; equal plans have equal ids. A plan is
        not changed once it is made, so they are made once.
        """

        digest = hashlib.sha256(
            msgspec.json.encode([self.seed, self.cells, self.exact_output, self.chat])
        )
        for name in self.COLUMNS[:-1]:
            digest.update(getattr(self, name).tobytes())
        # Of prompts, what each row asks: not in which order they are kept, nor what no row uses.
        # The last is for −1.
        texts = [hashlib.sha256(prompt.encode()).digest() for prompt in self.prompts]
        digests = np.frombuffer(b"".join([*texts, bytes(32)]), np.uint8).reshape(-1, 32)
        digest.update(digests[self.prompt].tobytes())
        blocks, graph = self.blocks, self.graph
        if blocks is not None:
            digest.update(msgspec.json.encode(blocks.tokens))
            ids = blocks.ids if blocks.tokens else digests[blocks.ids]
            digest.update(blocks.offsets.tobytes() + ids.tobytes())
        if graph.recorded:
            # Chains follow from the turns.
            digest.update(msgspec.json.encode(graph.live))
            columns: list[Array] = [graph.offsets, graph.parents, graph.sent, graph.copy]
            if blocks is not None:
                columns += [blocks.back, blocks.kept]
            digest.update(b"".join([column.tobytes() for column in columns]))
        if self.traffic_class is not None:
            digest.update(msgspec.json.encode(self.classes) + self.traffic_class.tobytes())
        if self.adapter is not None:
            digest.update(self.adapter.tobytes())
        if self.inputs is not None:
            digest.update(self.inputs.task.encode() + self.inputs.offsets.tobytes())
            digest.update(self.inputs.tokens.tobytes())
        if self.pictures is not None:
            digest.update(self.pictures.digest())
        return digest.hexdigest()[:12]

    @cached_property
    def _starts(self) -> list[int]:
        """First row of each cell, and the end."""

        starts: list[int] = np.searchsorted(
            self.cell, np.arange(len(self.cells) + 1, dtype=np.int32)
        ).tolist()
        return starts

    def rows(self, cell: int) -> range:
        """Return the rows of one cell (they are contiguous)."""
        return range(self._starts[cell], self._starts[cell + 1])

    def span(self, cell: int) -> slice:
        """Return the place of a cell's rows in each column."""
        return slice(self._starts[cell], self._starts[cell + 1])

    def cyclic(self, cell: int) -> bool:
        load = self.cells[cell]
        return load.is_closed and load.duration_s is not None

    @cached_property
    def has_texts(self) -> bool:
        """True if prompts of the load, not graded ones alone, are texts of a length of their
        own."""
        return bool(((self.prompt >= 0) & (self.input_tokens < 0) & (self.phase != CHECK)).any())

    @property
    def is_real_text(self) -> bool:
        """True if prompts are real text, cut to the lengths that are demanded."""
        return self.workload.get("kind") == "text"

    def warmup_count(self, cell: int) -> int:
        return int((self.phase[self.span(cell)] == 0).sum())

    def steps(self, cell: int) -> list[tuple[int, int | None]]:
        """List the index ranges of a cell that run one after another, each from rest; end None:
        endless.

        A burst begins from rest, so its warm-up is a step of its own.
        """
        count, warm = len(self.rows(cell)), self.warmup_count(cell)
        if self.cells[cell].is_burst and warm:
            return [(0, warm), (warm, count)]
        return [(0, None if self.cyclic(cell) else count)]

    @cached_property
    def has_sessions(self) -> bool:
        return bool((self.turn >= 0).any())

    def row(self, cell: int, index: int) -> int:
        """Find the row of request `index` of `cell`. In a cyclic cell any index ≥ 0 exists: laps
        repeat the measured rows.

        Raises IndexError where there is no such request.
        """
        rows = self.rows(cell)
        if 0 <= index < len(rows):
            return rows[index]
        if index >= 0 and self.cyclic(cell):
            warm = self.warmup_count(cell)
            return rows[warm + (index - warm) % (len(rows) - warm)]
        raise IndexError(f"cell {cell} has {len(rows)} requests; there is none with index {index}")

    def copy(self, cell: int, index: int) -> int:
        """Return which copy of its session a request is of, counted over all laps of a cell that
        goes round."""
        if not self.graph.recorded:
            return 0
        rows = self.rows(cell)
        copy = int(self.graph.copy[self.row(cell, index)])
        if index < len(rows):
            return copy
        warm = self.warmup_count(cell)
        lap = (index - warm) // (len(rows) - warm)
        return copy + lap * (1 + int(self.graph.copy[self.span(cell)].max()))

    def take(self, rows: Ints64, **changes: Any) -> Plan:
        """Return a plan of these rows, in their order, with other columns where `changes` has
        them; a row below 0 is a new request outside of sessions."""
        columns = {name: getattr(self, name)[rows] for name in self.COLUMNS} | changes
        recorded, classes = self.graph.recorded, self.traffic_class
        adapter = self.adapter
        return replace(
            self,
            traffic_class=None if classes is None else classes[rows],
            adapter=None if adapter is None else adapter[rows],
            pictures=None if self.pictures is None else self.pictures.take(rows),
            blocks=None if self.blocks is None else self.blocks.take(rows),
            inputs=None if self.inputs is None else self.inputs.take(rows),
            graph=self.graph.take(rows) if recorded else CallGraph.of_turns(columns["turn"]),
            **columns,
        )

    def request(self, cell: int, index: int) -> PlannedRequest:
        """Return request `index` of `cell`. Raises IndexError where there is no such request."""
        row = self.row(cell, index)
        intended = float(self.intended_s[row])
        group = int(self.prefix_group[row])
        text = int(self.prompt[row])
        turn = int(self.turn[row])
        blocks = self.blocks
        ids: list[int] = [] if blocks is None else blocks.take_row(row).tolist()
        of_messages = blocks is not None and not blocks.tokens
        return PlannedRequest(
            cell=cell,
            index=index,
            phase=PHASES[self.phase[row]],
            intended_s=None if math.isnan(intended) else intended,
            input_tokens=int(self.input_tokens[row]),
            output_tokens=int(self.output_tokens[row]),
            prefix_group=None if group < 0 else group,
            prefix_tokens=int(self.prefix_tokens[row]),
            prompt=None if text < 0 else self.prompts[text],
            chat=(self.chat or self.phase[row] == CHECK) and (text >= 0 or of_messages),
            turn=None if turn < 0 else turn,
            think_s=float(self.think_s[row]),
            blocks=() if of_messages else tuple(ids),
            block_tokens=0 if blocks is None else blocks.tokens,
            messages=tuple([self.prompts[number] for number in ids]) if of_messages else (),
            answers=tuple(self.live_answers(row)),
            copy=self.copy(cell, index),
            traffic_class=self.class_of(row),
            adapter=0 if self.adapter is None else int(self.adapter[row]),
            inputs=() if self.inputs is None else tuple(self.inputs.own(row).tolist()),
            pictures=None if self.pictures is None else self.pictures.of_row(row),
        )

    @property
    def adapter_names(self) -> list[str]:
        """List the LoRA adapters of all classes."""
        return adapter_names(self.classes)

    @property
    def class_slots(self) -> list[int]:
        """The slots of each class, where slots are a class's own; else empty."""
        slots = [kind.slots for kind in self.classes]
        return slots if any(slots) else []

    @property
    def class_names(self) -> list[str]:
        return [kind.name for kind in self.classes]

    def class_of(self, row: int) -> int:
        """Return the place in `classes` of a row's class; 0 where there is one kind of requests."""
        return 0 if self.traffic_class is None else int(self.traffic_class[row])

    def find_rows(self, cells: Ints32, indices: Ints64) -> Ints64:
        """Return the rows of requests by their cell and index, laps included; −1 where there is no
        such request."""
        numbers = range(len(self.cells))
        first = np.array(self._starts)[cells]
        count = np.array(self._starts)[cells + 1] - first
        warm = np.array([self.warmup_count(cell) for cell in numbers])[cells]
        goes_round = np.array([self.cyclic(cell) for cell in numbers])[cells]
        lapped = goes_round & (indices >= count)
        places = np.where(lapped, warm + (indices - warm) % np.maximum(1, count - warm), indices)
        exists = (places >= 0) & (places < count)
        return np.where(exists, first + places, -1)

    def live_answers(self, row: int) -> Iterator[tuple[int, int]]:
        """Yield (place, turn): which messages of a row's prompt the server's own answer to a turn
        replaces."""
        blocks = self.blocks
        if not self.graph.live or blocks is None:
            return
        for source, first, _ in blocks.lineage(row):
            base = source - int(blocks.back[source])
            begin = self.prompts[blocks.own(source)[0]]
            if base != source and first == blocks.size(base) and begin.startswith(ASSISTANT):
                yield first, int(self.turn[base])

    def __iter__(self) -> Iterator[PlannedRequest]:
        for cell in range(len(self.cells)):
            for index in range(len(self.rows(cell))):
                yield self.request(cell, index)
