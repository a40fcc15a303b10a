import math

import pytest

from loadstone.core.errors import InputError
from loadstone.core.units import (
    parse_counts,
    parse_list,
    parse_seconds,
    show_load,
    show_number,
    show_seconds,
    show_share,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("20us", 0.00002), ("20µs", 0.00002), ("20μs", 0.00002), ("20 us", 0.00002),
        ("250ms", 0.25), ("0.3ms", 0.0003),
        ("1.5s", 1.5), ("1.5", 1.5), (" 2m ", 120.0), ("2min", 120.0), ("1h", 3600.0),
        ("1e-3", 0.001), ("5MS", 0.005),
        ("0", 0.0), ("1e400us", None), (".5s", 0.5),
    ],
)  # fmt: skip
def test_a_duration_is_the_nearest_number_of_seconds(text: str, seconds: float | None) -> None:
    if seconds is None:
        with pytest.raises(InputError):
            parse_seconds(text, "--x")
    else:
        assert parse_seconds(text, "--x") == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s",
        "1d",
        "-1s",
        "inf",
        "nan",
        "1.2.3",
        ".",
        "1e999999999s",
        "1e99999999999999999999",
        "5ſ",
        "1_0s",
    ],
)
def test_what_is_no_duration_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(
        InputError, match=r"^--timeout: .* is not a duration; write 250ms, 1\.5s, 2m or 1h$"
    ):
        parse_seconds(text, "--timeout")


def test_lists_hold_numbers_and_infinity() -> None:
    assert parse_list("1, 2.5,inf", "--rate") == [1.0, 2.5, math.inf]


@pytest.mark.parametrize("text", ["", "1,,2", "1,x", "nan", "1 2"])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"^--rate: .*write e\.g\. 1,2,4$"):
        parse_list(text, "--rate")


def test_counts_are_whole_numbers() -> None:
    assert parse_counts("1,8,64.0,1e3,2147483647", "--concurrency") == [1, 8, 64, 1000, 2**31 - 1]


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "inf", "-inf", "1e300", "2147483648", "8,0"])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"^--concurrency: .* is not a whole number of at least 1"):
        parse_counts(text, "--concurrency")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "-"), (math.nan, "-"), (math.inf, "inf"), (0.0, "0 ms"), (0.000412, "412 µs"), (0.0112, "11.2 ms"),
        (1.13, "1.13 s"), (0.99951, "1.00 s"), (0.9994, "999 ms"), (0.00099951, "1.00 ms"), (7413.0, "7,413 s"),
        (-0.002, "-2.00 ms"),
    ],
)  # fmt: skip
def test_durations_for_people(seconds: float | None, shown: str) -> None:
    assert show_seconds(seconds) == shown


@pytest.mark.parametrize(
    ("number", "digits", "shown"),
    [
        (None, 3, "-"), (math.nan, 3, "-"), (math.inf, 3, "inf"), (0, 3, "0"), (181, 3, "181"),
        (7413.4, 3, "7,413"),
        (0.37, 3, "0.370"), (9.996, 3, "10.0"), (99.96, 3, "100"), (999.6, 3, "1,000"), (0.09996, 3, "0.100"),
        (12345.6, 4, "12,346"), (-1.5, 2, "-1.5"),
    ],
)  # fmt: skip
def test_numbers_for_people(number: float | None, digits: int, shown: str) -> None:
    assert show_number(number, digits) == shown


@pytest.mark.parametrize(
    ("share", "digits", "shown"),
    [
        (None, 0, "-"), (0, 0, "0%"), (1, 1, "100%"), (0.854, 0, "85%"), (0.854, 1, "85.4%"), (0.99, 0, "99%"),
        (0.004, 0, "< 1%"), (0.996, 0, "> 99%"), (0.996, 1, "99.6%"), (0.9996, 1, "> 99.9%"),
    ],
)  # fmt: skip
def test_a_share_is_all_or_none_only_where_it_is(
    share: float | None, digits: int, shown: str
) -> None:
    assert show_share(share, digits) == shown


@pytest.mark.parametrize(
    ("load", "shown"),
    [
        (8.0, "8"), (2.5, "2.5"), (1234567.0, "1234567"), (1e6, "1000000"), (12.3456789, "12.3457"), (0.05, "0.05"),
        (2345678.9, "2345679"), (math.inf, "inf"),
    ],
)  # fmt: skip
def test_loads_for_people(load: float, shown: str) -> None:
    assert show_load(load) == shown
