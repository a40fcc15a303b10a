from __future__ import annotations

import math

import numpy as np
import pytest

from loadstone.arrivals import arrivals, duration_s, level, mean, parse_profile, profile_arrivals
from loadstone.errors import InputError
from loadstone.records import Load, Process


def times(
    profile: tuple[tuple[float, float, float], ...], process: Process = "constant", seed: int = 0
) -> list[float]:
    load = Load("rate", 1.0, process, profile=profile)
    return list(profile_arrivals(load, np.random.default_rng(seed)))


def test_steady_arrivals_keep_their_rate() -> None:
    rng = np.random.default_rng(1)
    assert list(arrivals(Load("rate", 4.0, "constant"), 3, rng)) == [0.25, 0.5, 0.75]
    for process in ("poisson", "gamma"):
        found = arrivals(Load("rate", 4.0, process, burstiness=0.5), 20_000, rng)  # type: ignore[arg-type]
        assert found[-1] == pytest.approx(5000, rel=0.05)


def test_even_arrivals_under_a_profile_stand_where_the_expected_count_is_whole() -> None:
    # 2/s for 2 s, then 4/s: the n-th is due when ∫rate = n.
    assert times(((2, 2, 2), (4, 4, 1))) == pytest.approx([0.5, 1, 1.5, 2, 2.25, 2.5, 2.75])
    # From 0 to 2/s in 4 s: ∫ = t²/4, hence t = 2·√n.
    assert times(((0, 2, 4),)) == pytest.approx([2, 2 * math.sqrt(2), 2 * math.sqrt(3)])
    # Down again, with a pause before it: ∫ = 2t − t²/4 from t = 1 on.
    found = times(((0, 0, 1), (2, 0, 4)))
    assert [2 * (t - 1) - (t - 1) ** 2 / 4 for t in found] == pytest.approx([1, 2, 3])


def test_drawn_arrivals_follow_the_profile() -> None:
    profile = ((0.0, 100.0, 60.0), (20.0, 20.0, 60.0))
    found = np.array(times(profile, "poisson"))
    assert np.all(np.diff(found) > 0)
    assert found[-1] < duration_s(profile) == 120
    # Poisson: within four standard deviations of what each stretch expects.
    for begin, end, expected in ((0, 30, 750), (30, 60, 2250), (60, 120, 1200)):
        count = ((found >= begin) & (found < end)).sum()
        assert abs(count - expected) < 4 * math.sqrt(expected)
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
