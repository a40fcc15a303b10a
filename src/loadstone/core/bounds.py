"""Reads upper bounds on latencies, as --slo has them: of each request, of a percentile, of a class
of traffic; and holds whether they were met."""

import math
from collections.abc import Iterable
from typing import NamedTuple

from loadstone.core.document import DocumentPart, null
from loadstone.core.errors import InputError
from loadstone.core.statistics.distribution import PERCENTILES
from loadstone.core.units import parse_seconds

SLO_KEYS = ("ttft", "tpot", "e2e", "answer")
"""Latencies on which a request may have a bound."""
TASK = "task"
"""The time of a session, from its first call's sending to its last one's end, whose percentiles may
have bounds."""
_MAX_BARE_S = 10.0
"""The least bound, in seconds, that needs a unit: without one it is more likely to be meant in
milliseconds."""


class Bound(NamedTuple):
    """An upper bound in seconds: `ttft` of each request, `ttft_p99` of all together, or
    `chat:ttft_p99` of one class of traffic."""

    name: str
    limit_s: float


class BoundName(NamedTuple):
    """The parts of a bound's name. `traffic_class` "": all requests; `percentile` "": each."""

    traffic_class: str
    base: str
    percentile: str


def split_bound(name: str) -> BoundName:
    """Split the name of a bound: `chat:ttft_p99` is (chat, ttft, p99)."""
    traffic_class, _, metric = name.rpartition(":")
    base, _, percentile = metric.partition("_")
    return BoundName(traffic_class, base, percentile)


def parse_slo(text: str) -> tuple[Bound, ...]:
    """Parse bounds, in seconds, from `ttft<500ms,tpot_p99<30ms`: per request (`ttft`), or on a
    percentile (`tpot_p99`); of a class of traffic, `chat:ttft_p99<1s`.

    A small number without a unit is seconds. Raises InputError.
    """
    bounds: dict[str, float] = {}
    for part in text.split(","):
        name, sign, limit = part.partition("<")
        _, base, percentile = split_bound(name.strip())
        is_joint = "_" in name.rpartition(":")[2]
        has_metric = base in (*SLO_KEYS, TASK) and (not is_joint or percentile in PERCENTILES)
        if not sign or not has_metric:
            raise InputError(
                f"--slo: {part.strip()!r} is not a bound; write e.g. ttft<500ms,tpot_p99<30ms "
                f"({', '.join(SLO_KEYS)}; of sessions task; {', '.join(PERCENTILES)})"
            )
        if base == TASK and not is_joint:
            raise InputError(
                f"--slo: {part.strip()!r}: is on a percentile of sessions; write e.g. task_p90<120s"
            )
        if name.strip() in bounds:
            raise InputError(f"--slo: {name.strip()} has two bounds; give one")
        limit = limit.removeprefix("=").strip()
        limit_s = parse_seconds(limit, "--slo")
        bounds[name.strip()] = limit_s
        if limit_s >= _MAX_BARE_S and limit[-1] in "0123456789.":
            # Other tools' bounds are milliseconds without saying so.
            raise InputError(
                f"--slo: {part.strip()!r}: {limit} seconds? write {limit}ms or {limit}s"
            )
        if not limit_s > 0:
            raise InputError(f"--slo: {part.strip()!r} can never be met; write a time above 0")
    return tuple(Bound(name, limit_s) for name, limit_s in bounds.items())


class SloBound(DocumentPart, kw_only=True, frozen=True):
    """A bound on a latency, and whether it was met.

    bound            as it was written: `tpot_p99<30ms`; `metric` is its left side, `limit_s` its
                     right
    measured_s, value  seconds (both the same); of a bound on every request that of the slowest;
                       None where nothing
                     has one
    p_met            probability that a cell of as many requests in the long run, or on the real
                     machine, meets the bound; None where a prediction does not say how far it may
                     be off. A bound that failed requests miss has 0.
    p_most           the most that so many requests can say of a percentile, whatever its tail
    """

    bound: str
    metric: str
    limit_s: float
    measured_s: float | None = null()
    value: float | None = null()
    met: bool
    p_met: float | None = null()
    p_most: float | None = None

    @property
    def is_short_of_requests(self) -> bool:
        """Tell whether it was met, and the number of requests alone makes that unsure."""
        return self.met and self.p_met == self.p_most and (self.p_most or 1.0) < 0.5


def joint_probability(bounds: Iterable[SloBound]) -> float | None:
    """Return the probability that all bounds are met: those on one measure of one class stand and
    fall together, others are independent."""
    lowest: dict[str, float] = {}
    for bound in bounds:
        if bound.p_met is None:
            return None
        measure = bound.metric.rpartition("_")[0] or bound.metric
        lowest[measure] = min(bound.p_met, lowest.get(measure, 1.0))
    return math.prod(lowest.values()) if lowest else None
