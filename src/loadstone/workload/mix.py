"""Mixes classes of traffic: each asks for its own requests, and comes at its own share of a load.

A class draws its lengths and times from generators of its own, so that another class changes
nothing of it. The first has those of a run without classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import numpy as np

from loadstone.core.errors import InputError
from loadstone.core.pictures import Pictures
from loadstone.core.plan import Blocks, Load, Plan, adapter_names
from loadstone.core.vectors import Array, Floats, Ints32, Ints64
from loadstone.workload.class_requests import ClassRequest
from loadstone.workload.draw import WARMUP_S, Draw, Rows, ServerLimits, Workload
from loadstone.workload.lengths import Length, Sessions
from loadstone.workload.trace import Trace, replay_loads

_ADAPTERS = 11
"""The purpose of the generator that draws them."""
_GROUPS = 1 << 20
"""Prefix groups that a class may have: those of two classes are never one."""


class MixedPart(NamedTuple):
    """Says what a class asks: its workload, lengths of answers where a file does not say, turns,
    and whether bad lines of its file are left out."""

    request: ClassRequest
    workload: Workload
    output: Length | None = None
    sessions: Sessions | None = None
    skip_bad: bool = False


class Mix(Workload):
    """Several classes of traffic in one cell."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[MixedPart]) -> None:
        self.parts = tuple(parts)
        kinds = {type(getattr(part.workload, "inner", part.workload)) for part in parts}
        if len(kinds) > 1 and self._have_chats:
            raise InputError(
                "--mix: one class has prompts of messages and another synthetic ones, which would"
                " be no messages; give each class a data set, or none"
            )

    @property
    def _have_chats(self) -> bool:
        return any(getattr(part.workload, "chat", False) for part in self.parts)

    def describe(self, output: Length | None) -> dict[str, Any]:
        described = []
        for part in self.parts:
            workload = part.workload.describe(part.output) | {"class": part.request.name}
            if part.sessions is not None:
                workload["sessions"] = msgspec.to_builtins(part.sessions)
            described.append(workload)
        return {"kind": "mix", "classes": described}

    def fit(self, limits: ServerLimits) -> Mix:
        parts = []
        for part in self.parts:
            least = 1 if part.output is None else part.output.smallest
            class_limits = limits._replace(
                skip_bad=part.skip_bad or limits.skip_bad, shortest_answer=least, requests=None
            )
            parts.append(part._replace(workload=part.workload.fit(class_limits)))
        return Mix(parts)

    def check(self, plan: Plan, limits: ServerLimits, name: str) -> None:
        for number, part in enumerate(self.parts):
            class_plan = plan.take(np.flatnonzero(plan.traffic_class == number))
            part.workload.check(class_plan, limits, f"class {part.request.name}")

    def length(self, load: Load) -> int | None:
        return len(self._own_times()[0]) if load.process == "trace" else None

    def loads(self, time_scales: Sequence[float], max_concurrency: int | None) -> list[Load]:
        """Make the loads of classes that all come at the times of their traces, multiplied by each
        of these."""
        return replay_loads(self._own_times()[0], time_scales, max_concurrency)

    def _own_times(self) -> tuple[Floats, Ints64]:
        """Return the times of all classes' traces in their order, and of which class each is."""
        traces = [part.workload for part in self.parts if isinstance(part.workload, Trace)]
        times_s = np.concatenate([trace.time_s for trace in traces])
        owners = np.repeat(np.arange(len(traces)), [trace.count for trace in traces])
        order = np.argsort(times_s, kind="stable")
        return times_s[order], owners[order]

    def rows(self, draw: Draw) -> Rows:
        """Draw the rows of each class, and put them in the order in which they begin."""
        drawn = [
            part.workload.rows(of_class)
            for part, of_class in zip(self.parts, self._draws(draw), strict=True)
        ]
        groups = np.repeat(np.arange(len(drawn)), [len(rows["turn"]) for rows in drawn])
        merged = {
            name: np.concatenate([rows.get(name, np.full(len(rows["turn"]), -1)) for rows in drawn])
            for name in dict.fromkeys(name for rows in drawn for name in rows)
        }
        shared = merged["prefix_group"]
        merged["prefix_group"] = np.where(shared < 0, -1, shared + groups * _GROUPS).astype(
            np.int32
        )
        merged["traffic_class"] = groups.astype(np.uint8)
        order = _order_of_begins(merged)
        return {name: column[order] for name, column in merged.items()}

    def _draws(self, draw: Draw) -> list[Draw]:
        """Return how each class is drawn: its part of the load, of the requests and of the
        warm-up."""
        load = draw.load
        if len(self.parts) == 1:
            part = self.parts[0]
            return [replace(draw, output=part.output, sessions=part.sessions)]
        if load.is_closed:
            loads = [
                msgspec.structs.replace(load, value=part.request.traffic.slots)
                for part in self.parts
            ]
            counts: list[int | None] = [None] * len(loads)
            warm = [int(part.value) if draw.warm else 0 for part in loads]
            lead_s = None
        else:
            loads, begins = self._divide_open(draw)
            counts = [*begins]
            warm = divide(draw.warm, [part.value for part in loads])
            lead_s = draw.warm / load.value
            if load.process == "trace":
                lead_s = WARMUP_S if draw.warm else 0.0
        return [
            replace(
                draw,
                load=of_class,
                seed=draw.seed if not number else _seed_of(draw.seed, number),
                requested=count if mixed.sessions is None else None,
                begin=count,
                warm=lead,
                lead_s=lead_s,
                output=mixed.output,
                sessions=mixed.sessions,
            )
            for number, (mixed, of_class, count, lead) in enumerate(
                zip(self.parts, loads, counts, warm, strict=True)
            )
        ]

    def _divide_open(self, draw: Draw) -> tuple[list[Load], list[int]]:
        """Return the load of each class at a rate, and how many of its requests begin: of a trace
        those of the time that the load takes, or of the first that are asked for."""
        load, requests = draw.load, [part.request for part in self.parts]
        replace_in = msgspec.structs.replace
        measured = draw.count(draw.requested)
        if load.process == "trace":
            owners = self._own_times()[1]
            if measured > len(owners):
                raise InputError(
                    f"--requests {measured:,}: the traces have {len(owners):,}; ask for no more"
                )
            loads = [replace_in(load, value=request.rate) for request in requests]
            counts = np.bincount(owners[:measured], minlength=len(loads)).tolist()
        else:
            shares = rate_shares(requests, load.value)
            span_s = load.duration_s or measured / load.value
            loads = [
                replace_in(load, value=load.value * share, duration_s=span_s) for share in shares
            ]
            counts = divide(measured, shares)
            for place, part in enumerate(self.parts):
                if part.request.replays and isinstance(part.workload, Trace):
                    loads[place] = replace_in(loads[place], process="trace")
                    counts[place] = int(np.searchsorted(part.workload.time_s, span_s, "right"))
        for request, count in zip(requests, counts, strict=True):
            if not count:
                raise InputError(
                    f"class {request.name}: none of {measured} requests is of this class;"
                    " ask for more (--requests), or for a larger share"
                )
        return loads, counts

    def finish(self, rows: Rows, draw: Draw) -> dict[str, Any]:
        """Make the contents of a plan: the texts of each class's prompts, one after another."""
        prompts: list[str] = []
        blocks: list[tuple[str, Ints64, Blocks]] = []
        prompt = rows["prompt"].copy()
        has_chat, has_exact = False, True
        zeros, group = np.zeros(len(prompt), np.int32), np.full(len(prompt), -1, np.int32)
        pictures = Pictures((), zeros, zeros.astype(np.uint8), group)
        for number, part in enumerate(self.parts):
            chosen = rows["traffic_class"] == number
            of_class = {name: column[chosen] for name, column in rows.items()}
            of_draw = replace(draw, output=part.output, sessions=part.sessions)
            contents = part.workload.finish(of_class, of_draw)
            places = contents.get("prompt", of_class["prompt"])
            prompt[chosen] = np.where(places < 0, -1, places + len(prompts))
            prompts += contents.get("prompts", [])
            if "blocks" in contents:
                source = getattr(part.workload, "sha256", part.request.name)
                blocks.append((source, np.flatnonzero(chosen), contents["blocks"]))
            has_chat |= contents.get("chat", False)
            has_exact &= contents.get("exact_output", True)
            shown: Pictures | None = contents.get("pictures")
            if shown is not None:
                pictures.shape[chosen] = shown.shape + len(pictures.shapes)
                pictures.count[chosen] = shown.count
                group[chosen] = np.where(shown.group < 0, -1, shown.group + number * _GROUPS)
                pictures.shapes += shown.shapes
        return {
            "pictures": pictures if pictures.shapes else None,
            "prompt": prompt.astype(np.int32),
            "prompts": prompts,
            "chat": has_chat,
            "exact_output": has_exact,
            "classes": tuple(part.request.traffic for part in self.parts),
            "traffic_class": rows["traffic_class"],
            "adapter": self._adapters(rows, draw.seed),
            "blocks": _merge_blocks(rows, blocks) if blocks else None,
        }

    def _adapters(self, rows: Rows, seed: int) -> Ints32 | None:
        """Draw the adapter of each row, the same for the turns of a session: its number among those
        of all classes."""
        names = adapter_names([part.request.traffic for part in self.parts])
        if not names:
            return None
        numbers = {name: number for number, name in enumerate(names, start=1)}
        drawn = np.zeros(len(rows["turn"]), np.int32)
        for place, part in enumerate(self.parts):
            of_class = part.request.traffic
            chosen = rows["traffic_class"] == place
            session = np.cumsum(np.asarray(rows["turn"])[chosen] <= 0) - 1
            if not of_class.adapter_names or not len(session):
                continue
            # What is measured of cells is drawn alike, as all else of them is.
            parts = 2 * rows["cell"][chosen] + (rows["phase"][chosen] > 0)
            session -= session[np.searchsorted(parts, parts)]
            shares = np.arange(1, len(of_class.adapter_names) + 1) ** -of_class.popularity
            luck = np.random.default_rng([seed, place, _ADAPTERS]).random(session.max() + 1)
            picks = np.searchsorted(np.cumsum(shares / shares.sum()), luck, "right")
            class_numbers = np.array([numbers[name] for name in of_class.adapter_names], np.int32)
            drawn[chosen] = class_numbers[picks.clip(0, len(class_numbers) - 1)][session]
        return drawn


def _merge_blocks(rows: Rows, found: Sequence[tuple[str, Ints64, Blocks]]) -> Blocks:
    """Make the blocks of all rows of those of some classes: (file, its rows, their blocks). Classes
    of one file share what its requests share. Raises InputError."""
    sizes = {blocks.tokens for _, _, blocks in found}
    if len(sizes) > 1:
        raise InputError(
            f"--mix: traces have blocks of {' and '.join(map(str, sorted(sizes)))} tokens, and a"
            " run has blocks of one size; leave one out"
        )
    if (rows["turn"] > 0).any() or (rows["prefix_group"] >= 0).any():
        raise InputError(
            "--mix: a class has turns or a prefix, and another's trace says block by block what is"
            " shared; leave one out"
        )
    counts = np.zeros(len(rows["turn"]), np.int64)
    for _, places, blocks in found:
        counts[places] = np.diff(blocks.offsets)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    ids = np.empty(offsets[-1], np.int32)
    source, base, top = "", 0, 0
    for file, places, blocks in sorted(found, key=lambda each: each[0]):
        source, base = file, base if file == source else top
        shift = np.repeat(offsets[places] - blocks.offsets[:-1], counts[places])
        ids[shift + np.arange(len(blocks.ids))] = blocks.ids + base
        top = max(top, base + int(blocks.ids.max(initial=-1)) + 1)
    return Blocks.whole(sizes.pop(), offsets, ids)


def leave_out(plan: Plan, name: str) -> Plan:
    """Return the plan without the requests of a class; those of the others are as they were."""
    number = [of_class.name for of_class in plan.classes].index(name)
    kinds = np.asarray(plan.traffic_class)
    rows = np.flatnonzero(kinds != number)
    begins = (plan.turn <= 0) & (plan.phase == 1)
    loads = []
    for cell, load in enumerate(plan.cells):
        of_cell = begins & (plan.cell == cell)
        value = load.value * float((of_cell & (kinds != number)).sum() / max(1, of_cell.sum()))
        if load.is_closed:
            value = load.value - plan.classes[number].slots
        loads.append(msgspec.structs.replace(load, value=value))
    kept = plan.take(rows, cells=tuple(loads))
    return replace(
        kept,
        classes=tuple(of_class for of_class in plan.classes if of_class.name != name),
        traffic_class=np.where(kinds[rows] > number, kinds[rows] - 1, kinds[rows]).astype(np.uint8),
    )


def rate_shares(requests: Sequence[ClassRequest], rate: float) -> list[float]:
    """Return each class's share of a load of `rate` requests/s: fixed rates first, the shares
    divide what is left. Raises InputError where nothing is left for them."""
    fixed = sum(request.rate or 0.0 for request in requests)
    total = sum(request.share or 0.0 for request in requests)
    left = rate - fixed
    if total and left <= 1e-9 * rate:
        raise InputError(
            f"--rate {rate:g}: classes with a rate of their own take {fixed:g} requests/s, and"
            " nothing is left for those with a share; give a higher rate"
        )
    if not total and abs(left) > 1e-9 * rate:
        raise InputError(
            f"--rate {rate:g}: the classes' own rates add up to {fixed:g} requests/s; leave --rate"
            " out"
        )
    return [
        request.rate / rate if request.rate else (request.share or 0.0) / total * left / rate
        for request in requests
    ]


def divide(count: int, shares: Sequence[float]) -> list[int]:
    """Divide a whole number by shares, so that the parts add up to it: each as near to its share
    as can be (largest remainder)."""
    exact = np.asarray(shares) * count / sum(shares)
    parts = np.floor(exact + 1e-9).astype(int)
    order = np.argsort(parts - exact, kind="stable")
    parts[order[: count - int(parts.sum())]] += 1
    return [int(part) for part in parts]


def _seed_of(seed: int, number: int) -> int:
    """Return a seed for the class at a place behind the first."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0] >> 1)


def _order_of_begins(rows: Rows) -> Ints64:
    """Order rows by when their session begins, the warm-up first; where answers decide, so that
    each class is spread evenly over the others."""
    begins = rows["turn"] <= 0
    session = np.cumsum(begins) - 1
    intended = np.asarray(rows["intended_s"])[begins]
    timed = np.where(np.isnan(intended), _spread(rows, begins), intended)
    phase = np.asarray(rows["phase"])[begins]
    order = np.lexsort((np.arange(len(timed)), timed, phase))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return np.argsort(rank[session], kind="stable")


def _spread(rows: Rows, begins: Array) -> Array:
    """Return for each session how far it is within those of its class and phase, from 0 to 1."""
    classes = np.asarray(rows["traffic_class"])[begins].astype(int) * 2
    kinds = classes + np.asarray(rows["phase"])[begins]
    places = np.zeros(len(kinds))
    for kind in np.unique(kinds):
        chosen = kinds == kind
        places[chosen] = (np.arange(chosen.sum()) + 0.5) / chosen.sum()
    return places
