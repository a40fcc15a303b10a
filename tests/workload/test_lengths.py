import numpy as np
import pytest

from loadstone.core.errors import InputError
from loadstone.workload.lengths import MAX_TOKENS, Length, parse_length
from loadstone.workload.synthetic import Synthetic


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("1024", Length("fixed", 1024)),
        ("fixed:7", Length("fixed", 7)),
        (" 1e3 ", Length("fixed", 1000)),
        ("8k", Length("fixed", 8192)),
        ("uniform:512:1K", Length("uniform", 768, low=512, high=1024)),
        ("fixed:1m", Length("fixed", 1024 * 1024)),
        ("uniform:512:1024", Length("uniform", 768, low=512, high=1024)),
        ("uniform:3:3", Length("uniform", 3, low=3, high=3)),
        ("normal:1024:128", Length("normal", 1024, sd=128)),
        ("lognormal:1024:0.5", Length("lognormal", 1024, sd=0.5)),
    ],
)
def test_every_kind_of_length(text: str, length: Length) -> None:
    assert parse_length(text, 1.0, "--input") == length


@pytest.mark.parametrize(
    ("text", "ratio", "low"),
    [("1000", 0.8, 800), ("1024", 0.8, 819), ("100", 0.07, 7), ("3", 0.01, 1)],
)
def test_a_range_ratio_makes_a_plain_number_uniform_below_it(
    text: str, ratio: float, low: int
) -> None:
    high = int(text)
    assert parse_length(text, ratio, "--input") == Length(
        "uniform", (low + high) / 2, low=low, high=high
    )


def test_a_range_ratio_leaves_other_kinds_alone() -> None:
    assert parse_length("normal:100:5", 0.5, "--input") == Length("normal", 100, sd=5)


@pytest.mark.parametrize(
    "text",
    ["", "x", "0", "-5", "1.5", "1.5k", "k", "0k", "1kk", "inf", "nan",
     str(MAX_TOKENS + 1), "uniform:1", "uniform:1:2:3", "uniform:0:5",
     "uniform:5:4", "uniform:1:1.5", "uniform:1:99999999", "normal:100:-1", "normal:0.5:1", "zipf:1:2",
     "lognormal:10"],
)  # fmt: skip
def test_what_is_no_length_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(InputError, match=r"^--output: ") as raised:
        parse_length(text, 1.0, "--output")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "mean", "spread"),
    [
        ("100", 100, 0), ("uniform:50:150", 100, 101 / 12**0.5), ("normal:100:10", 100, 10),
        ("lognormal:100:0.5", 100 * np.exp(0.125), 100 * np.exp(0.125) * np.expm1(0.25) ** 0.5),
    ],
)  # fmt: skip
def test_draws_have_the_mean_and_spread_asked_for(text: str, mean: float, spread: float) -> None:
    drawn = parse_length(text, 1.0, "--input").draw(rng(), 20_000)
    assert drawn.dtype == np.int32
    assert drawn.mean() == pytest.approx(mean, rel=0.01)
    assert drawn.std() == pytest.approx(spread, rel=0.03)


@pytest.mark.parametrize(
    "text", ["1", "uniform:1:2", "normal:1:100", "lognormal:1:5", "lognormal:1:1000"]
)
def test_no_length_is_below_one_or_above_the_most(text: str) -> None:
    drawn = parse_length(text, 1.0, "--input").draw(rng(), 5000)
    assert drawn.min() >= 1
    assert drawn.max() <= MAX_TOKENS


def test_uniform_lengths_include_both_ends() -> None:
    assert set(parse_length("uniform:3:5", 1.0, "--input").draw(rng(), 200).tolist()) == {3, 4, 5}


def test_more_draws_begin_like_fewer() -> None:
    for text in ("uniform:1:900", "normal:100:20", "lognormal:100:1"):
        length = parse_length(text, 1.0, "--input")
        assert length.draw(rng(), 50).tolist() == length.draw(rng(), 500)[:50].tolist()


def test_a_prefix_must_be_shorter_than_every_input() -> None:
    output = Length("fixed", 1)
    Synthetic(Length("fixed", 10), output, prefix_tokens=9)
    for length in (
        Length("fixed", 10),
        Length("uniform", 15, low=10, high=20),
        Length("normal", 50, sd=1),
    ):
        with pytest.raises(InputError, match=r"^--prefix 10: inputs may be as short as "):
            Synthetic(length, output, prefix_tokens=10)


def test_a_workload_describes_itself() -> None:
    described = Synthetic(Length("fixed", 10), Length("fixed", 2), 4, 3).describe(None)
    assert described["kind"] == "synthetic"
    assert (described["prefix_tokens"], described["prefix_groups"]) == (4, 3)
    assert described["input"]["mean"] == 10
