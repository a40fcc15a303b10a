"""A Plan is drawn from a workload and loads: which requests, how long, when. Everything is drawn
here, before the run.

Each purpose has its own generator, seeded by (seed, purpose, …), so that one choice never shifts
another. Measured requests have the same sequence of lengths in every cell of a run: cells then
differ by their load alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadstone.core.calls import CallGraph
from loadstone.core.errors import InputError
from loadstone.core.plan import Blocks, Load, Plan, rank_by_first_use
from loadstone.workload.agents import AgentTrace, Call
from loadstone.workload.arrivals import (
    arrivals,
    default_requests,
    default_warmup,
    duration_s,
    mean,
    profile_arrivals,
)
from loadstone.workload.block_tree import BlockTree
from loadstone.workload.dataset import Dataset
from loadstone.workload.lengths import Length, Sessions, Synthetic
from loadstone.workload.prompts import text_tokens
from loadstone.workload.trace import Trace

Rows = dict[str, NDArray[Any]]
"""Columns of a plan's cell, by their name in the Plan."""
Workload = Synthetic | Dataset | Trace | AgentTrace


_LENGTHS, _GROUPS, _ARRIVALS, _ORDER, _TURNS, _THINK = range(6)

CYCLE_MIN_REQUESTS = 1024
"""A closed loop that runs by time goes round at least this many requests."""
WARMUP_S = 1.0
"""The warm-up of a trace or a ramp is spread evenly over so long before it begins."""


def make_plan(
    workload: Workload,
    loads: Sequence[Load],
    *,
    seed: int = 0,
    requests: Sequence[int] | None = None,
    warmup: int | None = None,
    output: Length | None = None,
    sessions: Sessions | None = None,
    exact: bool = True,
) -> Plan:
    """Make the plan of a run with one cell per load.

    requests  measured requests per cell; None: `default_requests`, or the duration's worth, or the
              whole trace
    warmup    requests (sessions) per cell before the measured ones; None: `default_warmup`
    output    for datasets: demanded lengths where the file states none
    sessions  turns per session and pauses; loads then count sessions, `requests` still requests
    exact     lengths of answers are demanded, where they are said
    Raises InputError where a dataset has no length to ask for.
    """
    columns: dict[str, list[NDArray[Any]]] = {name: [] for name in Plan.COLUMNS}
    traced: list[NDArray[np.int64]] = []
    called: list[_CopyOfSession] = []
    for cell, load in enumerate(loads):
        requested = requests[cell] if requests is not None else None
        measured = (
            workload.count if isinstance(workload, Trace) and load.process == "trace" else None
        )
        warm = (
            default_warmup(load, measured if requested is None else requested)
            if warmup is None
            else warmup
        )
        if isinstance(workload, Trace):
            rows = _trace_rows(workload, load, warm, requested, seed, cell)
            traced.append(rows.pop("line"))
        elif isinstance(workload, AgentTrace):
            chosen = _choose_sessions(workload, load, warm, requested, seed)
            rows = _agent_rows(workload, chosen, load, [seed, _ARRIVALS, cell])
            called += chosen
        else:
            rows = _draw_rows(workload, load, warm, requested, sessions, output, seed, cell)
        count = len(rows["intended_s"])
        columns["cell"].append(np.full(count, cell, np.int32))
        for name, values in rows.items():
            columns[name].append(values)
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    joined["prompt"], prompts = _texts(workload, sessions, joined["prompt"])
    graph, blocks = CallGraph.of_turns(joined["turn"]), None
    if isinstance(workload, AgentTrace):
        graph, blocks = _graph_of(workload, called)
    if isinstance(workload, Trace) and workload.block_tokens:
        whole = Blocks.whole(workload.block_tokens, workload.block_offsets, workload.block_ids)
        blocks = whole.take(np.concatenate(traced))
    chats = isinstance(workload, Dataset) and (sessions is not None or workload.chat)
    demanded = isinstance(workload, Synthetic | Trace | AgentTrace) or output is not None
    return Plan(
        seed=seed,
        cells=tuple(loads),
        workload=describe(workload, output, sessions),
        exact_output=exact and demanded,
        prompts=prompts,
        chat=chats or (isinstance(workload, AgentTrace) and not workload.block_tokens),
        blocks=blocks,
        graph=graph,
        **joined,
    )


def _texts(
    workload: Workload, sessions: Sessions | None, picks: NDArray[np.int32]
) -> tuple[NDArray[np.int32], list[str]]:
    """Return the texts that rows pick, and the picks among these."""
    if isinstance(workload, AgentTrace):
        return picks, workload.prompts
    if isinstance(workload, Synthetic) or not workload.prompts:
        return picks, []
    texts = workload.prompts
    if sessions is not None and isinstance(workload, Dataset):
        texts = [turn for turns in workload.turns for turn in turns]
    ranks, used, _ = rank_by_first_use(picks)
    return ranks, [texts[number] for number in used.tolist()]


def promised_tokens(plan: Plan, cell: int) -> NDArray[np.int32]:
    """Count the tokens at the start of each of a cell's prompts that its plan shares with earlier
    ones on purpose.

    A group's prefix, or the leading blocks that any earlier request of the cell had too: what a
    prefix cache without bounds could give. Later turns of a session share all that was said, which
    only the answers tell: −1; of sessions of calls 0 where the answers are live.
    """
    rows, blocks = plan.rows(cell), plan.blocks
    cells_rows = slice(rows.start, rows.stop)
    if blocks is None:
        promised = np.where(plan.turn[cells_rows] > 0, -1, plan.prefix_tokens[cells_rows])
        return promised.astype(np.int32)
    if plan.graph.live:
        return np.zeros(len(rows), np.int32)
    known = BlockTree(blocks, rows, plan.graph.copy).known
    if blocks.tokens:
        shared = np.array(known, np.int64) * blocks.tokens
        return np.minimum(shared, plan.input_tokens[cells_rows]).astype(np.int32)
    sizes = np.array([text_tokens(text) for text in plan.prompts])
    alike = zip(rows, known, strict=True)
    return np.array([sizes[blocks.take_row(row)[:count]].sum() for row, count in alike], np.int32)


def describe(
    workload: Workload, output: Length | None, sessions: Sessions | None = None
) -> dict[str, Any]:
    """Describe the workload as run.json has it."""
    if isinstance(workload, Synthetic):
        described = msgspec.to_builtins(workload)
    elif isinstance(workload, Trace):
        described = {
            "kind": "trace",
            "format": workload.format,
            "sha256": workload.sha256,
            "requests": workload.count,
            "skipped": workload.skipped,
            "simultaneous": workload.simultaneous,
        }
        if workload.doubted_per_s is not None:
            described["doubted_per_s"] = workload.doubted_per_s
    elif isinstance(workload, AgentTrace):
        described = {
            "kind": "agents",
            "format": workload.format,
            "sha256": workload.sha256,
            "sessions": len(workload.sessions),
            "calls": workload.calls,
            "skipped": workload.skipped,
            "answers": "live" if workload.live else "recorded",
            **({"dropped": workload.dropped} if workload.dropped else {}),
        }
    else:
        described = {
            "kind": "dataset",
            "format": workload.format,
            "sha256": workload.sha256,
            "prompts": len(workload.prompts),
            "skipped": workload.skipped,
            "bad": workload.bad,
            "output": msgspec.to_builtins(output),
            **({"dropped": workload.dropped} if workload.dropped else {}),
        }
    return (
        described if sessions is None else {**described, "sessions": msgspec.to_builtins(sessions)}
    )


# --- drawn workloads ------------------------------------------------------------------------------


def _draw_rows(
    workload: Synthetic | Dataset,
    load: Load,
    warm: int,
    requested: int | None,
    sessions: Sessions | None,
    output: Length | None,
    seed: int,
    cell: int,
) -> Rows:
    """Draw the rows of one cell, warm-up first; `warm` counts sessions where there are any,
    `requested` requests."""
    mean_turns = 1.0 if sessions is None else _mean_turns(workload, sessions)
    begin = _count_measured(load, None if requested is None else math.ceil(requested / mean_turns))
    if sessions is None:
        turns = np.ones(warm + begin, np.int64)
    else:
        turns = _session_turns(workload, sessions, load, warm, begin, requested, seed)
    begun = _draw_starts(load, warm, len(turns) - warm, [seed, _ARRIVALS, cell])
    first = np.cumsum(turns) - turns
    count, warm_rows = int(turns.sum()), int(turns[:warm].sum())
    intended = np.full(count, np.nan)
    intended[first] = begun
    phase = (np.arange(count) >= warm_rows).astype(np.uint8)
    if isinstance(workload, Synthetic):
        rows = _synthetic(workload, count, seed)
    elif sessions is None:
        rows = _dataset(workload, count, warm, output, seed)
    else:
        rows = _conversations(workload, turns, warm, output, seed)
    # Drawn with the measured ones first: how long the warm-up is does not shift what is measured.
    rows = {name: np.roll(values, warm_rows) for name, values in rows.items()}
    turn = np.full(count, -1, np.int32)
    think = np.zeros(count)
    if sessions is not None:
        turn = (np.arange(count) - np.repeat(first, turns)).astype(np.int32)
        drawn = sessions.think.draw(np.random.default_rng([seed, _THINK]), count)
        think = np.where(turn > 0, np.roll(drawn, warm_rows), 0.0)
        # All turns of a session belong to its group, whose system prompt comes on top of the first
        # one's own words.
        rows["prefix_group"] = np.repeat(rows["prefix_group"][first], turns)
        rows["prefix_tokens"] = np.where(turn == 0, rows["prefix_tokens"], 0).astype(np.int32)
        rows["input_tokens"] = rows["input_tokens"] + rows["prefix_tokens"]
    elif load.is_closed and warm > 1:
        rows["output_tokens"] = stagger(rows["output_tokens"], warm)
    return {"phase": phase, "intended_s": intended, "turn": turn, "think_s": think, **rows}


def _count_measured(load: Load, requested: int | None) -> int:
    """Count the requests (sessions) that begin after the warm-up, but for those of later laps."""
    if requested is not None:
        return requested
    if load.is_open and load.profile:
        expected = round(mean(load.profile) * duration_s(load.profile))
        if expected < 1:
            raise InputError(
                "--ramp: nothing would be sent in so short a time at so low a rate; give it more"
            )
        return expected
    if load.is_open and load.duration_s is not None:
        return max(1, round(load.value * load.duration_s))
    return (
        default_requests(load)
        if load.duration_s is None
        else max(CYCLE_MIN_REQUESTS, 4 * int(load.value))
    )


def _draw_starts(load: Load, warm: int, measured: int, key: list[int]) -> NDArray[np.float64]:
    """Draw when requests (first turns) are to be sent, seconds from the cell's start; NaN where an
    answer decides.

    Of a rate the measured ones fall into the time that so many take at that rate, or the duration,
    wherever their process has them in it: their number is no matter of chance, so the load is the
    one that was asked for.
    """
    rng = np.random.default_rng(key)
    if load.is_open and load.profile:
        # The warm-up comes before the profile begins, as in a trace.
        lead = np.linspace(0, WARMUP_S, warm, endpoint=False)
        return np.concatenate(
            [lead, profile_arrivals(load, rng, measured) + (WARMUP_S if warm else 0.0)]
        )
    if not load.is_open:
        return np.full(warm + measured, 0.0 if load.is_burst else np.nan)
    # Drawn first, as lengths are: how long the warm-up is shifts what is measured as a whole.
    times = arrivals(load, measured, rng, load.duration_s or measured / load.value)
    lead_s = warm / load.value
    return np.concatenate([arrivals(load, warm, rng, lead_s), times + lead_s])


def _synthetic(workload: Synthetic, count: int, seed: int) -> Rows:
    # A stream for each: a longer cell begins like a shorter one.
    inputs, outputs = np.random.default_rng([seed, _LENGTHS]).spawn(2)
    prefix = workload.prefix_tokens > 0
    groups = np.random.default_rng([seed, _GROUPS]).integers(
        workload.prefix_groups, size=count, dtype=np.int32
    )
    return {
        "input_tokens": workload.input.draw(inputs, count),
        "output_tokens": workload.output.draw(outputs, count),
        "prefix_group": groups if prefix else np.full(count, -1, np.int32),
        "prefix_tokens": np.full(count, workload.prefix_tokens, np.int32),
        "prompt": np.full(count, -1, np.int32),
    }


def _dataset(workload: Dataset, count: int, warm: int, output: Length | None, seed: int) -> Rows:
    picks = _pick_items(len(workload.prompts), count - warm, warm, seed)
    lengths = np.array([-1 if n is None else n for n in workload.output_tokens], np.int32)[picks]
    if output is not None:
        drawn = output.draw(np.random.default_rng([seed, _LENGTHS]), count)
        lengths = np.where(lengths < 0, drawn, lengths)
    elif (lengths < 0).any():
        raise InputError(
            "--output: the dataset does not say how long answers should be; give e.g. --output 256"
        )
    return _rows_of_texts(picks, lengths)


def _pick_items(items: int, measured: int, warm: int, seed: int) -> NDArray[np.int64]:
    """Choose which of a file's items each request or session takes: measured ones, here first, take
    them shuffled by seed, the warm-up from the end of that.
    """
    order = np.random.default_rng([seed, _ORDER]).permutation(items)
    return np.concatenate(
        [order[np.arange(measured) % items], order[::-1][np.arange(warm) % items]]
    )


def _rows_of_texts(picks: NDArray[Any], output_tokens: NDArray[Any]) -> Rows:
    """Make rows of prompts that are given as texts."""
    count = len(picks)
    return {
        "input_tokens": np.full(count, -1, np.int32),
        "output_tokens": output_tokens.astype(np.int32),
        "prefix_group": np.full(count, -1, np.int32),
        "prefix_tokens": np.zeros(count, np.int32),
        "prompt": picks.astype(np.int32),
    }


# --- sessions -------------------------------------------------------------------------------------


def _mean_turns(workload: Synthetic | Dataset, sessions: Sessions) -> float:
    """Estimate how many turns a session has: to know how many sessions give the requests asked
    for."""
    if isinstance(workload, Dataset):
        return sum(min(len(turns), sessions.turns.mean) for turns in workload.turns) / len(
            workload.turns
        )
    return max(1.0, sessions.turns.mean)


def _session_turns(
    workload: Synthetic | Dataset,
    sessions: Sessions,
    load: Load,
    warm: int,
    measured: int,
    requested: int | None,
    seed: int,
) -> NDArray[np.int64]:
    """Draw how many turns each session has, warm-up first: of `measured` sessions, or of as many as
    have the turns that are `requested`, if these are said.
    """
    if isinstance(workload, Dataset):
        available = np.minimum([len(turns) for turns in workload.turns], int(sessions.turns.mean))
        turns = available[_pick_items(len(available), measured, warm, seed)]
    else:
        turns = sessions.turns.draw(np.random.default_rng([seed, _TURNS]), warm + measured).astype(
            np.int64
        )
    mine, before = turns[:measured], turns[measured:]
    if requested is not None:
        reached = np.cumsum(mine)
        if reached[-1] < requested:
            # Sessions turned out shorter than the mean: more of them.
            return _session_turns(workload, sessions, load, warm, 2 * measured + 1, requested, seed)
        last = int(np.searchsorted(reached, requested))
        mine = mine[: last + 1].copy()
        mine[last] -= reached[last] - requested
    if load.is_closed and warm > 1:
        # Slots that begin in step would meet all their long prompts together; see stagger().
        before = np.maximum(1, np.rint(before * (np.arange(warm) + 1) / warm)).astype(np.int64)
    return np.concatenate([before, mine]).astype(np.int64)


def _conversations(
    workload: Dataset, turns: NDArray[np.int64], warm: int, output: Length | None, seed: int
) -> Rows:
    """Make a row per turn, measured sessions first (`turns` has the warm-up's first)."""
    if output is None:
        raise InputError(
            "--output: give the length of the answers in a conversation, e.g. --output 256"
        )
    lengths = np.concatenate([turns[warm:], turns[:warm]])
    order = _pick_items(len(workload.turns), len(turns) - warm, warm, seed)
    offsets = np.cumsum(
        [0, *map(len, workload.turns)]
    )  # where a conversation's texts begin, all laid end to end
    first = np.cumsum(lengths) - lengths
    picks = np.repeat(offsets[order] - first, lengths) + np.arange(lengths.sum())
    return _rows_of_texts(picks, output.draw(np.random.default_rng([seed, _LENGTHS]), len(picks)))


# --- sessions of agents ---------------------------------------------------------------------------


class _CopyOfSession(NamedTuple):
    """A session of a file as a cell has it: from call `first` to before `end`, the `copy`-th time;
    see CallGraph."""

    session: int
    first: int
    end: int
    copy: int


def _choose_sessions(
    workload: AgentTrace, load: Load, warm: int, requested: int | None, seed: int
) -> list[_CopyOfSession]:
    """Choose a cell's sessions, the warm-up's first: measured ones take the file's shuffled by
    seed, again and again where it has too few, until there are as many, or as many calls as
    `requested`.

    The warm-up of a closed loop has as many sessions begin in their midst, evenly spread, so that
    measuring begins in a steady state.
    """
    lengths = np.array([len(calls) for calls in workload.sessions])
    count = _count_measured(load, None) if load.is_open or load.is_burst else 0
    if not load.is_open or (load.duration_s is None and not load.profile):
        count = (
            count
            if load.is_burst
            else max(len(lengths), int(2 * load.value) if load.is_closed else 0)
        )
    if requested is not None:
        count = math.ceil(requested / lengths.mean()) + len(lengths)
    picks = _pick_items(len(lengths), count, warm, seed)
    ends = lengths[picks]
    chosen = []
    begun = np.cumsum(ends[:count]) - ends[:count]
    for at in range(count):
        end = int(ends[at]) if requested is None else int(min(ends[at], requested - begun[at]))
        if end > 0:
            chosen.append(_CopyOfSession(int(picks[at]), 0, end, at // len(lengths)))
    before = []
    for at in range(warm):
        whole = int(ends[count + at])
        left = max(1, round(whole * (at + 1) / warm)) if load.is_closed and warm > 1 else whole
        before.append(
            _CopyOfSession(int(picks[count + at]), whole - left, whole, -1 - at // len(lengths))
        )
    return before + chosen


def _agent_rows(
    workload: AgentTrace, chosen: Sequence[_CopyOfSession], load: Load, key: list[int]
) -> Rows:
    calls = [
        call for each in chosen for call in workload.sessions[each.session][each.first : each.end]
    ]
    lengths = np.array([each.end - each.first for each in chosen])
    first = np.cumsum(lengths) - lengths
    warm = sum(each.copy < 0 for each in chosen)
    count = len(calls)
    intended = np.full(count, np.nan)
    intended[first] = _draw_starts(load, warm, len(chosen) - warm, key)
    phase = (np.arange(count) >= lengths[:warm].sum()).astype(np.uint8)
    texts = np.array([call.fields for call in calls], np.int32)
    turn = (np.arange(count) - np.repeat(first, lengths)).astype(np.int32)
    rows = _rows_of_texts(texts, np.array([call.output_tokens for call in calls]))
    if workload.block_tokens:
        rows["input_tokens"] = np.array([call.input_tokens for call in calls], np.int32)
    think = np.where(turn > 0, [call.delay_s for call in calls], 0.0)
    return {"phase": phase, "intended_s": intended, "turn": turn, "think_s": think, **rows}


def _graph_of(workload: AgentTrace, chosen: Sequence[_CopyOfSession]) -> tuple[CallGraph, Blocks]:
    """Put together what the rows of all cells wait for, and what their prompts are made of."""
    parents: list[tuple[int, ...]] = []
    sent, copies, back, kept, own = [], [], [], [], []
    for each in chosen:
        calls = workload.sessions[each.session]
        for place in range(each.first, each.end):
            call = calls[place]
            known = tuple(parent - each.first for parent in call.after if parent >= each.first)
            lost = place > each.first and not known
            # Where a session begins in its midst, what waited for calls before that follows the
            # first one's sending.
            parents.append((0,) if lost else known)
            sent.append(call.sent or lost)
            copies.append(each.copy)
            whole = call.kept and call.base < each.first
            back.append(0 if whole or not call.kept else place - call.base)
            kept.append(0 if whole else call.kept)
            own.append(_whole_prompt(calls, call) if whole else call.own)
    offsets, block_offsets = (
        np.cumsum([0, *map(len, lists)]).astype(np.int64) for lists in (parents, own)
    )
    graph = CallGraph(
        offsets,
        np.array([each for of in parents for each in of], np.int32),
        np.array(sent, bool),
        np.array(copies, np.int32),
        True,
        workload.live,
    )
    ids = np.concatenate(own).astype(np.int32)
    before = np.array(back, np.int32), np.array(kept, np.int32)
    return graph, Blocks(workload.block_tokens, block_offsets, ids, *before)


def _whole_prompt(calls: Sequence[Call], call: Call) -> NDArray[np.int32]:
    pieces, kept = [call.own], call.kept
    while kept:
        call = calls[call.base]
        pieces.append(call.own[: max(0, kept - call.kept)])
        kept = min(kept, call.kept)
    return np.concatenate(pieces[::-1])


# --- traces ---------------------------------------------------------------------------------------


def _trace_rows(
    workload: Trace, load: Load, warm: int, requested: int | None, seed: int, cell: int
) -> Rows:
    """Make the trace's rows in their order, behind `warm` requests as long as its first but with
    prompts of their own.

    `line`: the trace's row of each, −1 for the warm-up. Raises InputError where the load takes more
    requests than the trace has: only a closed loop that runs by time goes round.
    """
    most = workload.count
    if load.process == "trace":
        count = most if requested is None else requested
        lead = np.linspace(0, WARMUP_S, warm, endpoint=False)
        times = workload.time_s[:count] * load.time_scale
        intended = np.concatenate([lead, times + (WARMUP_S if warm else 0.0)])
    else:
        if load.is_closed and load.duration_s is not None:
            requested = most
        elif (
            requested is None and load.duration_s is None and not load.is_burst and not load.profile
        ):
            requested = min(most, default_requests(load))
        count = _count_measured(load, requested)
        intended = _draw_starts(load, warm, count, [seed, _ARRIVALS, cell])
    if count > most:
        raise InputError(
            f"{load.label}: {count:,} requests, and the trace has {most:,}; send fewer (--requests,"
            " --duration), or replay more of it"
        )
    line = np.concatenate([np.full(warm, -1), np.arange(count)])
    source = np.concatenate([np.arange(warm) % most, np.arange(count)])
    output = workload.output_tokens[source].astype(np.int32)
    if load.is_closed and warm > 1:
        output = stagger(output, warm)
    prompt = source if workload.prompts else np.full(len(line), -1)
    rows = _rows_of_texts(prompt, output)
    if not workload.prompts:
        rows["input_tokens"] = workload.input_tokens[source].astype(np.int32)
    return {
        "phase": (line >= 0).astype(np.uint8),
        "intended_s": intended,
        "turn": np.full(len(line), -1, np.int32),
        "think_s": np.zeros(len(line)),
        "line": line,
        **rows,
    }


def stagger(output_tokens: NDArray[np.int32], warm: int) -> NDArray[np.int32]:
    """Cut the warm-up answers of a closed loop to evenly spread parts of their length.

    All slots start at once. With whole answers they would also end at once, and prefill bursts
    would go round the loop for the whole cell; with the remaining lives of a loop long under way
    (uniform, for equal lengths) the first measured requests already meet the steady state.
    """
    shares = (np.arange(warm) + 1) / warm
    staggered = output_tokens.copy()
    staggered[:warm] = np.maximum(1, np.rint(output_tokens[:warm] * shares))
    return staggered
