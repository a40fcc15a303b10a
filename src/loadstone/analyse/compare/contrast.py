"""How sure is the ratio of two values? The one rule of `loadstone compare` and of reports.

Three things make a ratio uncertain, and each is known in its own way:

sampling   what was drawn in each run: from the intervals of the two values, 95 %
repeats    what differs from run to run of one setup, which a single measured run cannot show: published repeats stand
           for it. It is added to sampling. A simulation repeats itself and has none
model      how far the performance model may be off, 80 %: of predictions, less what both share (model.together)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from loadstone.analyse.compare import interval, model
from loadstone.analyse.compare.interval import Reach

REPEATS = {"ttft": 0.088}
OTHER_REPEATS = 0.034
"""How far two runs of one configuration are apart: three quarters of published repeats differ by less, 8.8 % in TTFT
and 3.4 % in TPOT (docs/reports.md)."""
_QUARTILE = 1.150
"""The upper quartile of |x|, x of a normal law with a standard deviation of 1."""


class Side(NamedTuple):
    """What is known of one value: how far its interval goes; None where it is not known, or there is no model in it.

    `bases`: of its runs, of each what its prediction rests on; None: it was measured, or imported.
    """

    sampling: Reach | None
    model: Reach | None
    bases: Sequence[model.Basis | None]

    @property
    def repeats_missing(self) -> bool:
        """Whether it is of one run that another run of the same setup would differ from."""
        return len(self.bases) == 1 and self.bases[0] is None


class Contrast(NamedTuple):
    """How far a ratio may be off, on a log scale; None where it is not known, or nothing of that sort is in it."""

    sampling: Reach | None
    model: Reach | None


def contrast(a: Side, b: Side, base: str, *, paired: float = 0.0) -> Contrast:
    """Of b over a. `base`: what is compared, as `ttft`; `paired`: correlation of what was drawn on both sides."""
    sampling = off = None
    if a.sampling is not None and b.sampling is not None:
        more = repeats(base) * ((a.repeats_missing + b.repeats_missing) / 2) ** 0.5
        sampling = interval.ratio(a.sampling, b.sampling, paired, more)
    bases = [*a.bases, *b.bases]
    shared = model.together(bases)
    known = all(side.model is not None or not any(side.bases) for side in (a, b))
    if any(bases) and shared < 1 and known:
        off = interval.ratio(a.model or (0.0, 0.0), b.model or (0.0, 0.0), shared)
    return Contrast(sampling, off)


def repeats(base: str) -> float:
    """How far two runs of one setup are apart in TTFT, or in something else."""
    return REPEATS.get(base, OTHER_REPEATS)


def published_spread(base: str) -> float:
    """The standard deviation from run to run that goes with it, on a log scale."""
    return repeats(base) / _QUARTILE / 2**0.5
