"""The rows of a cell are drawn here: which requests, how many, when. A `Workload` has what they
ask.

Each purpose has its own generator, seeded by (seed, purpose, …), so that one choice never shifts
another. Measured requests have the same sequence of lengths in every cell of a run: cells then
differ by their load alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from loadstone.core.errors import InputError
from loadstone.core.plan import Load, Plan
from loadstone.core.vectors import Array, Floats, Ints32, Ints64
from loadstone.workload.arrivals import (
    arrivals,
    default_requests,
    duration_s,
    mean,
    profile_arrivals,
)
from loadstone.workload.lengths import Length, Sessions

Rows = dict[str, Array]
"""Columns of a plan's cell, by their name in the Plan; and others that finish() makes contents
of."""

LENGTHS, GROUPS, ARRIVALS, ORDER, TURNS, THINK, PICTURES = range(7)
"""Purposes of generators."""

CYCLE_MIN_REQUESTS = 1024
"""A closed loop that runs by time goes round at least this many requests."""
WARMUP_S = 1.0
"""The warm-up of a trace or a ramp is spread evenly over so long before it begins."""


@dataclass(frozen=True)
class Draw:
    """Draws one cell.

    requested  measured requests, where they are given
    warm       requests (sessions) before the measured ones
    output     lengths of answers where a data set does not say
    sessions   turns per session and pauses; None: single requests, or sessions of a file
    begin      requests (sessions) that begin after the warm-up, where that is given
    lead_s     how long the warm-up takes at a rate; None: as long as so many take
    """

    load: Load
    cell: int
    seed: int
    requested: int | None
    warm: int
    output: Length | None = None
    sessions: Sessions | None = None
    begin: int | None = None
    lead_s: float | None = None

    @property
    def staggers(self) -> bool:
        """Return whether the warm-up is cut, so that slots end one after another; see stagger()."""
        return self.load.is_closed and self.warm > 1

    def generator(self, purpose: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, purpose])

    def count(self, requested: int | None) -> int:
        """Count the requests (sessions) that begin after the warm-up, but for those of later
        laps."""
        load = self.load
        requested = self.begin if requested is None else requested
        if requested is not None:
            return requested
        if load.is_open and load.profile:
            expected = round(mean(load.profile) * duration_s(load.profile))
            if expected < 1:
                raise InputError(
                    "--ramp: nothing would be sent in so short a time at so low a rate; give it"
                    " more"
                )
            return expected
        if load.duration_s is None:
            return default_requests(load)
        if load.is_open:
            return max(1, round(load.value * load.duration_s))
        return max(CYCLE_MIN_REQUESTS, 4 * int(load.value))

    def choose(self, size: int, measured: int) -> Ints64:
        """Choose which of a file's requests or sessions each of a cell's takes: measured ones, here
        first, take them shuffled by seed, the warm-up from the end of that.
        """
        order = self.generator(ORDER).permutation(size)
        return np.concatenate(
            [order[np.arange(measured) % size], order[::-1][np.arange(self.warm) % size]]
        )

    def starts_s(self, measured: int) -> Floats:
        """Draw when requests (first turns) are to be sent, seconds from the cell's start; NaN where
        an answer decides.

        Of a rate the measured ones fall into the time that so many take at that rate, or the
        duration, wherever their process has them in it: their number is no matter of chance, so the
        load is the one that was asked for.
        """
        load, warm = self.load, self.warm
        rng = np.random.default_rng([self.seed, ARRIVALS, self.cell])
        if load.is_open and load.profile:
            return self.lead_in(profile_arrivals(load, rng, measured))
        if not load.is_open:
            return np.full(warm + measured, 0.0 if load.is_burst else np.nan)
        # Drawn first, as lengths are: how long the warm-up is shifts what is measured as a whole.
        times = arrivals(load, measured, rng, load.duration_s or measured / load.value)
        lead_s = warm / load.value if self.lead_s is None else self.lead_s
        return np.concatenate([arrivals(load, warm, rng, lead_s), times + lead_s])

    def lead_in(self, times_s: Floats) -> Floats:
        """Put the warm-up, evenly spread, before times that a profile or a trace has."""
        lead_s = (WARMUP_S if self.warm else 0.0) if self.lead_s is None else self.lead_s
        lead = np.linspace(0, lead_s, self.warm, endpoint=False)
        return np.concatenate([lead, times_s + lead_s])

    def frame(self, lengths: Ints64, starts_s: Floats) -> Rows:
        """Make the columns that sessions of these lengths have, whatever they ask; warm-up
        first."""
        first = np.cumsum(lengths) - lengths
        number = np.arange(lengths.sum())
        intended = np.full(len(number), np.nan)
        intended[first] = starts_s
        return {
            "phase": (number >= lengths[: self.warm].sum()).astype(np.uint8),
            "intended_s": intended,
            "turn": (number - np.repeat(first, lengths)).astype(np.int32),
            "think_s": np.zeros(len(number)),
        }

    def single_rows(self, starts_s: Floats, rows: Rows) -> Rows:
        """Put together the rows of requests that are no sessions, warm-up first."""
        frame = self.frame(np.ones(len(starts_s), np.int64), starts_s)
        frame["turn"] = np.full(len(starts_s), -1, np.int32)
        if self.staggers:
            rows["output_tokens"] = stagger(rows["output_tokens"], self.warm)
        return frame | rows

    def turn_rows(self, lengths: Ints64, rows: Rows, sessions: Sessions) -> Rows:
        """Put together the rows of sessions, warm-up first."""
        frame = self.frame(lengths, self.starts_s(len(lengths) - self.warm))
        turn = frame["turn"]
        think = sessions.think.draw(self.generator(THINK), len(turn))
        frame["think_s"] = np.where(turn > 0, np.roll(think, lengths[: self.warm].sum()), 0.0)
        # All turns of a session belong to its group, whose system prompt comes on top of the first
        # one's own words.
        groups = rows["prefix_group"][np.cumsum(lengths) - lengths]
        rows["prefix_group"] = np.repeat(groups, lengths)
        rows["prefix_tokens"] = np.where(turn == 0, rows["prefix_tokens"], 0).astype(np.int32)
        rows["input_tokens"] = rows["input_tokens"] + rows["prefix_tokens"]
        return frame | rows

    def turn_counts(self, mean_turns: float, turns_of: Callable[[int], Array]) -> Ints64:
        """Draw how many turns each session has, warm-up first: of as many sessions as the load
        says, or as have the turns that are requested. `turns_of`: of so many measured sessions, and
        behind them the warm-up's.
        """
        requested, warm = self.requested, self.warm
        measured = self.count(None if requested is None else math.ceil(requested / mean_turns))
        turns = turns_of(measured)
        if requested is not None:
            while turns[:measured].sum() < requested:
                # Sessions turned out shorter than the mean: more of them.
                measured = 2 * measured + 1
                turns = turns_of(measured)
        measured_turns, lead = turns[:measured], turns[measured:]
        if requested is not None:
            ends = np.cumsum(measured_turns)
            last = int(np.searchsorted(ends, requested))
            measured_turns = measured_turns[: last + 1].copy()
            measured_turns[last] -= ends[last] - requested
        if self.staggers:
            # Slots that begin in step would meet all their long prompts together; see stagger().
            lead = np.maximum(1, np.rint(lead * (np.arange(warm) + 1) / warm))
        return np.concatenate([lead, measured_turns]).astype(np.int64)


def text_rows(picks: Array, output_tokens: Array) -> Rows:
    """Make the columns of prompts that are given as texts."""
    count = len(picks)
    return {
        "input_tokens": np.full(count, -1, np.int32),
        "output_tokens": output_tokens.astype(np.int32),
        "prefix_group": np.full(count, -1, np.int32),
        "prefix_tokens": np.zeros(count, np.int32),
        "prompt": picks.astype(np.int32),
    }


def roll(rows: Rows, warm_rows: int) -> Rows:
    """Put the warm-up first. Rows are drawn with the measured ones first: how long the warm-up is
    does not shift what is measured."""
    return {name: np.roll(values, warm_rows) for name, values in rows.items()}


def stagger(output_tokens: Ints32, warm: int) -> Ints32:
    """Cut the warm-up answers of a closed loop to evenly spread parts of their length.

    All slots start at once. With whole answers they would also end at once, and prefill bursts
    would go round the loop for the whole cell; with the remaining lives of a loop long under way
    (uniform, for equal lengths) the first measured requests already meet the steady state.
    """
    shares = (np.arange(warm) + 1) / warm
    staggered = output_tokens.copy()
    staggered[:warm] = np.maximum(1, np.rint(output_tokens[:warm] * shares))
    return staggered


class Beyond(Protocol):
    """Tells prompts of a file that a server does not take."""

    def __call__(self, prompt: str, chat: bool, output_tokens: int) -> int | None:
        """Count the tokens of a prompt (`chat`: messages as a JSON array) that, with so many of an
        answer, is more than the server takes; None where it is not, or where they cannot be
        counted.
        """


class ServerLimits(NamedTuple):
    """The part of a workload that can be sent.

    max_tokens        of the server's context; None: not known
    min_input_tokens  the least that a prompt can have there
    beyond            tells a file's prompts that it does not take
    shortest_answer   that is asked for where a file does not say
    skip_bad          what it does not take is left out, and is else an error
    requests          of a trace, that are replayed; None: all
    """

    max_tokens: int | None = None
    min_input_tokens: int = 1
    beyond: Beyond | None = None
    shortest_answer: int = 1
    skip_bad: bool = False
    requests: int | None = None


class Workload:
    """Describes the requests of a run. Each kind draws the rows of a cell, and makes the plan's
    contents of them."""

    __slots__ = ()

    def length(self, load: Load) -> int | None:
        """Return the requests of a cell under this load, where the workload says how many."""

    def rows(self, draw: Draw) -> Rows:
        """Draw the rows of a cell. Raises InputError where it has no length to ask for."""
        raise NotImplementedError

    def finish(self, rows: Rows, draw: Draw) -> dict[str, Any]:
        """Make the contents of a plan: the fields that it has of these rows of all cells."""
        return {}

    def describe(self, output: Length | None) -> dict[str, Any]:
        """Describe the workload as run.json has it, also what of a file is not sent, or otherwise
        than it stands there."""
        raise NotImplementedError

    def fit(self, limits: ServerLimits) -> Workload:
        """Leave out what is not to be sent. Raises InputError where nothing is left."""
        return self

    def check(self, plan: Plan, limits: ServerLimits, name: str) -> None:
        """Raise InputError where the server does not take what a plan has of this file."""
