from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from loadstone.core.errors import InputError
from loadstone.core.plan import Load, Process
from loadstone.workload.arrivals import (
    arrivals,
    duration_s,
    level,
    mean,
    parse_profile,
    profile_arrivals,
)


def times(
    profile: tuple[tuple[float, float, float], ...], process: Process = "constant", seed: int = 0
) -> list[float]:
    load = Load("rate", 1.0, process, profile=profile)
    return list(profile_arrivals(load, np.random.default_rng(seed)))


@pytest.mark.parametrize("process", ["poisson", "gamma"])
def test_drawn_arrivals_fill_the_span_that_their_rate_gives_them(process: Process) -> None:
    load = Load("rate", 2.0, process, burstiness=0.5)
    drawn = [arrivals(load, 120, np.random.default_rng(seed), 60.0) for seed in range(400)]
    assert all(
        times.min() >= 0 and times.max() <= 60 and (np.diff(times) >= 0).all() for times in drawn
    )
    # Of n in a span, the last is 1/(n + 1) of it before its end on average, whatever the gaps are
    # like.
    assert np.mean([60 - times[-1] for times in drawn]) == pytest.approx(60 / 121, rel=0.3)
    # Without a span the last is anywhere.
    free = [arrivals(load, 120, np.random.default_rng(seed))[-1] for seed in range(400)]
    assert np.std(free) == pytest.approx(
        math.sqrt(120 / (1 if process == "poisson" else 0.5)) / 2, rel=0.15
    )


def test_poisson_arrivals_in_a_span_are_uniform_and_independent() -> None:
    drawn = np.array(
        [arrivals(Load("rate", 1.0), 50, np.random.default_rng(seed), 50.0) for seed in range(400)]
    )
    # Counts in a tenth of the span: binomial, so their variance is n·p·(1 − p).
    counts = (drawn < 5.0).sum(axis=1)
    assert counts.mean() == pytest.approx(5.0, abs=0.4)
    assert counts.var() == pytest.approx(4.5, rel=0.25)
    assert stats.kstest(drawn.ravel() / 50, "uniform").statistic < 0.02


def test_gaps_too_small_for_a_number_are_no_gaps() -> None:
    load = Load("rate", 1.0, "gamma", burstiness=1e-4)
    drawn = [arrivals(load, 2, np.random.default_rng(seed), 2.0) for seed in range(50)]
    assert np.isfinite(drawn).all()
    assert np.max(drawn) <= 2.0


def test_steady_arrivals_keep_their_rate() -> None:
    rng = np.random.default_rng(1)
    assert list(arrivals(Load("rate", 4.0, "constant"), 3, rng)) == [0.25, 0.5, 0.75]
    for process in ("poisson", "gamma"):
        found = arrivals(Load("rate", 4.0, process, burstiness=0.5), 20_000, rng)  # type: ignore[arg-type]
        assert found[-1] == pytest.approx(5000, rel=0.05)


def test_even_arrivals_under_a_profile_stand_where_the_expected_count_is_whole() -> None:
    # 2/s for 2 s, then 4/s: the n-th is due when ∫rate = n.
    assert times(((2, 2, 2), (4, 4, 1))) == pytest.approx([0.5, 1, 1.5, 2, 2.25, 2.5, 2.75, 3])
    # From 0 to 2/s in 4 s: ∫ = t²/4, hence t = 2·√n.
    assert times(((0, 2, 4),)) == pytest.approx([2, 2 * math.sqrt(2), 2 * math.sqrt(3), 4])
    # Down again, with a pause before it: ∫ = 2t − t²/4 from t = 1 on.
    found = times(((0, 0, 1), (2, 0, 4)))
    assert [2 * (t - 1) - (t - 1) ** 2 / 4 for t in found] == pytest.approx([1, 2, 3, 4])
    # Nothing is due in a pause at the end.
    assert times(((2, 2, 2), (0, 0, 5))) == pytest.approx([0.5, 1, 1.5, 2])


def test_drawn_arrivals_follow_the_profile() -> None:
    profile = ((0.0, 100.0, 60.0), (20.0, 20.0, 60.0))
    found = np.array(times(profile, "poisson"))
    assert np.all(np.diff(found) > 0)
    assert found[-1] < duration_s(profile) == 120
    # Poisson: within four standard deviations of what each stretch expects.
    for begin, end, expected in ((0, 30, 750), (30, 60, 2250), (60, 120, 1200)):
        count = ((found >= begin) & (found < end)).sum()
        assert abs(count - expected) < 4 * math.sqrt(expected)
    assert len(found) == 3000 + 1200
    assert times(profile, "poisson") == list(found)
    assert times(profile, "poisson", seed=1) != list(found)


def test_level_of_a_profile() -> None:
    profile = ((1.0, 9.0, 8.0), (4.0, 4.0, 2.0))
    assert [level(profile, at) for at in (0, 4, 8, 9.9, 10)] == [1, 5, 4, 4, 0]
    assert mean(profile) == (5 * 8 + 4 * 2) / 10


def test_a_profile_is_written_in_pieces() -> None:
    assert parse_profile("1:20:60s, 20:30s") == ("rate", ((1.0, 20.0, 60.0), (20.0, 20.0, 30.0)))
    assert parse_profile("0:1s,4:5s") == ("rate", ((0.0, 0.0, 1.0), (4.0, 4.0, 5.0)))
    assert parse_profile("concurrency=1:64:1m") == ("concurrency", ((1.0, 64.0, 60.0),))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a piece"),
        ("20", "is not a piece"),
        ("1:2:3:4s", "is not a piece"),
        ("-1:2:3s", "is not a piece"),
        ("1:inf:3s", "is not a piece"),
        ("1:x:3s", "is not a number"),
        ("1:2:3parsecs", "is not a duration"),
        ("1:2:0s", "takes no time"),
        ("0:0:10s", "nothing but zeros"),
        ("users=1:2:3s", "cannot ramp"),
    ],
)
def test_what_is_no_profile_is_told(text: str, said: str) -> None:
    with pytest.raises(InputError, match="--ramp.*" + said):
        parse_profile(text)
