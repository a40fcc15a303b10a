"""Arrivals: when the requests of an open loop are sent, and how a load may change in the course of
a cell."""

import math

import numpy as np

from loadstone.core.errors import InputError
from loadstone.core.plan import Load
from loadstone.core.units import parse_list, parse_seconds
from loadstone.core.vectors import Floats

SPANS = 5.0
"""Arrivals of an open loop last so many times as long as a request: the first of these fill the
engine, and as many requests as in a closed loop of several generations meet it full."""

Profile = tuple[tuple[float, float, float], ...]
"""Pieces of (from, to, seconds), one after another; linear within each."""


def arrivals(
    load: Load, count: int, rng: np.random.Generator, span_s: float | None = None
) -> Floats:
    """Draw `count` intended times in seconds at a steady rate.

    constant  gaps of one length, the first before the first
    poisson   exponential gaps
    gamma     gamma gaps, shape k = burstiness: k < 1 bunches, 1 is Poisson, k > 1 evens out

    `span_s`: they fall into so many seconds, and only where is drawn: the gaps, with the one after
    the last, are scaled to sum up to that. Poisson arrivals are then those of a Poisson process
    that had `count` in the span, as the order statistics of uniforms (Devroye 1986, ch. 5.2). None:
    gaps have mean 1/rate, and the span is random.
    """
    gaps = _gaps(load, count, rng)
    return (
        gaps.cumsum()[:count] / load.value
        if span_s is None
        else _scale_to_span(gaps, count, span_s)
    )


def profile_arrivals(load: Load, rng: np.random.Generator, count: int | None = None) -> Floats:
    """Draw intended times in seconds under `load.profile`, up to its end; `count` None: as many as
    are expected.

    Times of the same process at rate 1, put through the inverse of Λ(t), the number expected up to
    t: for Poisson gaps this is the inhomogeneous Poisson process of that rate (time rescaling;
    Çinlar 1975, ch. 4.7) that had so many arrivals.
    """
    starts, ends, seconds = np.array(load.profile).T
    expected = np.cumsum((starts + ends) / 2 * seconds)
    total = float(expected[-1])
    count = round(total) if count is None else count
    unit = _scale_to_span(_gaps(load, count, rng), count, total)
    piece = np.searchsorted(expected, unit, side="right").clip(max=len(expected) - 1)
    within = unit - np.concatenate([[0.0], expected])[piece]
    begin = np.concatenate([[0.0], np.cumsum(seconds)])[piece]
    # within = a·t + (b − a)/(2·d)·t², solved in the form that holds for a = b and for a = 0 too.
    a, slope = starts[piece], (ends[piece] - starts[piece]) / seconds[piece]
    root = np.sqrt(np.maximum(0.0, a * a + 2 * slope * within))
    return np.asarray(begin + 2 * within / np.maximum(a + root, 1e-300))


def _scale_to_span(gaps: Floats, count: int, span: float) -> Floats:
    """Return the first `count` arrivals of these gaps, whose sum becomes `span`."""
    sums = np.cumsum(gaps)
    # Very bunched gaps may all be too small for a number.
    return np.asarray(sums[:count] * (span / max(float(sums[-1]), 1e-300)) if len(sums) else sums)


def _gaps(load: Load, count: int, rng: np.random.Generator) -> Floats:
    """Draw gaps of mean 1 before `count` arrivals; of drawn ones, one more after the last."""
    if load.process == "constant":
        return np.ones(count)
    if load.process == "gamma":
        return rng.gamma(load.burstiness, 1 / load.burstiness, count + 1)
    return rng.exponential(1.0, count + 1)


def default_requests(load: Load, e2e_s: float = 0.0) -> int:
    """Choose how many requests, or sessions, a cell measures where nobody says it.

    Enough for each slot of a closed loop to turn over; a minute of arrivals, doubled until these
    take SPANS times as long as a request (`e2e_s`: about its E2E): by doubling, so that runs of
    similar servers have the same plan.
    """
    if load.is_burst:
        return int(load.value)
    if load.is_open:
        count = max(32, math.ceil(60 * load.value))
        while count < SPANS * e2e_s * load.value:
            count *= 2
        return count
    return max(32, 8 * int(load.value), min(512, 16 * int(load.value)))


def default_warmup(load: Load, measured: float | None = None) -> int:
    """Choose as many warm-up requests as fill the engine: the concurrency; a second's worth of a
    rate; one before a burst or a ramp.

    Of a rate no more than a tenth of the `measured` requests (None: `default_requests`, or the
    duration's worth): at a rate beyond the engine all of them wait behind the warm-up, which then
    must not be what they tell of.
    """
    if load.is_closed:
        return math.ceil(load.profile[0][0] if load.profile else load.value)
    if load.is_burst or load.profile:
        return 1
    if measured is None:
        measured = (
            default_requests(load) if load.duration_s is None else load.value * load.duration_s
        )
    return max(1, math.ceil(min(load.value, load.max_concurrency or math.inf, measured / 10)))


def level(profile: Profile, at_s: float) -> float:
    """Return the profile's value at a time; 0 after its end."""
    for start, end, seconds in profile:
        if at_s < seconds:
            return start + (end - start) * at_s / seconds
        at_s -= seconds
    return 0.0


def duration_s(profile: Profile) -> float:
    return sum(seconds for _, _, seconds in profile)


def mean(profile: Profile) -> float:
    """Return the profile's mean over time."""
    return sum((start + end) / 2 * seconds for start, end, seconds in profile) / duration_s(profile)


def parse_profile(text: str) -> tuple[str, Profile]:
    """Read ("rate" | "concurrency", pieces) from `1:20:60s,20:30s`: 1 to 20 in a minute, then 20
    for half a minute.

    `concurrency=1:64:60s` ramps the requests under way instead of the rate. Raises InputError.
    """
    kind, equals, pieces = text.strip().rpartition("=")
    kind = kind.strip() if equals else "rate"
    if kind not in ("rate", "concurrency"):
        raise InputError(f"--ramp: {kind!r} cannot ramp; write rate=… or concurrency=…")
    profile = []
    for piece in pieces.split(","):
        *levels, length = piece.split(":")
        values = parse_list(",".join(levels), "--ramp") if len(levels) in (1, 2) else []
        if not values or not all(0 <= value < math.inf for value in values):
            raise InputError(
                f"--ramp: {piece.strip()!r} is not a piece; write FROM:TO:TIME or LEVEL:TIME, e.g."
                " 1:20:60s"
            )
        seconds = parse_seconds(length, "--ramp")
        if seconds <= 0:
            raise InputError(
                f"--ramp: {piece.strip()!r} takes no time; give it some, e.g. 1:20:60s"
            )
        profile.append((values[0], values[-1], seconds))
    if not any(start + end for start, end, _ in profile):
        raise InputError(f"--ramp: {text!r} is nothing but zeros; write e.g. 1:20:60s")
    return kind, tuple(profile)
