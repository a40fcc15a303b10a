"""Conversations: how many turns, and how long the user thinks between them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import msgspec

from loadstone.core.errors import InputError
from loadstone.core.units import parse_seconds
from loadstone.workload.lengths import Length

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Think(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The pause between an answer's end and the next turn, in seconds.

    fixed        always `mean_s`
    uniform      from `low_s` to `high_s`
    exponential  mean `mean_s`
    lognormal    median `mean_s`, `sd` the standard deviation of the logarithm
    """

    kind: Literal["fixed", "uniform", "exponential", "lognormal"] = "fixed"
    mean_s: float = 0.0
    sd: float = 0.0
    low_s: float = 0.0
    high_s: float = 0.0

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
        """`count` pauses, f8 seconds."""
        import numpy as np

        if self.kind == "uniform":
            return rng.uniform(self.low_s, self.high_s, count)
        if self.kind == "exponential":
            return rng.exponential(self.mean_s, count)
        if self.kind == "lognormal":
            return rng.lognormal(math.log(self.mean_s), self.sd, count)
        return np.full(count, self.mean_s)


class Sessions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requests come in conversations of `turns` turns. Each turn asks with all that was said before.

    Of a dataset's conversations `turns` is the most that is taken.
    """

    turns: Length
    think: Think = Think()


def parse_think(text: str) -> Think:
    """A Think from `2s`, `uniform:1s:3s`, `exponential:2s` or `lognormal:2s:0.5`. Raises InputError."""
    kind, *given = text.strip().split(":")
    if not given:
        return Think("fixed", parse_seconds(kind, "--think-time"))
    wanted = {"fixed": 1, "uniform": 2, "exponential": 1, "lognormal": 2}.get(kind)
    if wanted != len(given):
        raise InputError(
            f"--think-time: {text!r} is not a pause; write 2s, uniform:1s:3s, exponential:2s or lognormal:2s:0.5"
        )
    first = parse_seconds(given[0], "--think-time")
    if kind == "uniform":
        high_s = parse_seconds(given[1], "--think-time")
        if high_s < first:
            raise InputError(f"--think-time: {text!r} goes from more to less; write the shorter time first")
        return Think("uniform", (first + high_s) / 2, low_s=first, high_s=high_s)
    if kind == "lognormal":
        sd = parse_seconds(given[1], f"--think-time: the spread in {text!r}")
        if first <= 0:
            raise InputError(f"--think-time: {text!r}: a lognormal pause needs a median above 0")
        return Think("lognormal", first, sd=sd)
    return Think("exponential" if kind == "exponential" else "fixed", first)
