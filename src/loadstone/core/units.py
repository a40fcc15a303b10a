"""Reads and writes quantities with their units. Inside the program everything is SI: seconds,
bytes, tokens."""

import math
import re
from decimal import Decimal

from loadstone.core.errors import InputError

_SECONDS = {"us": "1e-6", "ms": "1e-3", "s": "1", "": "1", "m": "60", "min": "60", "h": "3600"}
_DURATION = re.compile(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-z]*)")
TOKEN_UNITS = {"": 1, "k": 1024, "m": 1024 * 1024}
"""Factors of token counts: "128k" is 131,072."""
_MICRO = str.maketrans("µμ", "uu")  # the sign, and the Greek letter


def parse_seconds(text: str, what: str) -> float:
    """Parse seconds from `20us`, `250ms`, `1.5s`, `2m`, `1h`, or a bare number of seconds.

    `what` names the flag for the error. Raises InputError unless finite and ≥ 0.
    """
    match = _DURATION.fullmatch(text.strip().lower().translate(_MICRO))
    try:
        # Decimal: 20us is then the number nearest to 0.00002.
        value = float(Decimal(match[1]) * Decimal(_SECONDS[match[2]])) if match else math.nan
    except (ArithmeticError, KeyError):
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{what}: {text!r} is not a duration; write 250ms, 1.5s, 2m or 1h")
    return value


def parse_list(text: str, what: str) -> list[float]:
    """Parse numbers from a comma-separated list; `inf` is allowed. Raises InputError on anything
    else."""
    values = []
    for part in text.split(","):
        try:
            values.append(float(part))
        except ValueError:
            raise InputError(
                f"{what}: {part.strip()!r} in {text!r} is not a number; write e.g. 1,2,4"
            ) from None
    if any(math.isnan(value) for value in values):
        raise InputError(f"{what}: nan in {text!r} is not a number; write e.g. 1,2,4")
    return values


def parse_counts(text: str, what: str) -> list[int]:
    """Parse whole numbers from 1 to 2³¹ − 1 from a comma-separated list. Raises InputError on
    anything else."""
    values = parse_list(text, what)
    for value in values:
        if not (1 <= value < 2**31 and value == int(value)):
            raise InputError(
                f"{what}: {value:g} is not a whole number of at least 1; write e.g. 1,8,64"
            )
    return [int(value) for value in values]


def show_seconds(value: float | None, digits: int = 3) -> str:
    """Write a duration for people, to `digits` significant digits: `412 µs`, `11.2 ms`, `1.13 s`,
    `-` when missing.
    """
    if value is None or not math.isfinite(value):
        return show_number(value)
    magnitude = abs(value)
    if magnitude >= 0.9995:
        return f"{show_number(value, digits)} s"
    if magnitude >= 0.9995e-3 or magnitude == 0:
        return f"{show_number(value * 1e3, digits)} ms"
    return f"{show_number(value * 1e6, digits)} µs"


def show_load(value: float) -> str:
    """Write a load for people, as it was asked for: `8`, `2.5`, `1234567`; six digits where it is
    no whole number."""
    whole = math.isfinite(value) and (value.is_integer() or abs(value) >= 1e6)
    return f"{value:.0f}" if whole else f"{value:g}"


def show_number(value: float | None, digits: int = 3) -> str:
    """Write a number for people, to `digits` significant digits but never without a whole one:
    `7,413`, `181`, `0.370`.
    """
    if value is None or math.isnan(value):
        return "-"
    if math.isinf(value):
        return "inf"
    if value == 0:
        return "0"
    exponent = int(
        f"{value:.{digits - 1}e}".partition("e")[2]
    )  # of the rounded number: 9.996 has two digits
    return f"{value:,.{max(0, digits - 1 - exponent)}f}"


def show_share(share: float | None, digits: int = 0) -> str:
    """Write a share or probability in per cent: `85%`, `< 1%`, `-` when missing; 0% and 100% are
    none and all."""
    if share is None:
        return "-"
    least = 10.0**-digits
    if 0 < 100 * share < least:
        return f"< {least:g}%"
    if 100 - least < 100 * share < 100:
        return f"> {100 - least:g}%"
    return f"{share:.{0 if share in (0, 1) else digits}%}"


def show_gpus(count: float) -> str:
    """Write `1 GPU`, `8 GPUs`."""
    return f"{count:,g} GPU{'s' * (count != 1)}"


def show_met(met: bool | None, probability: float | None) -> str:
    """Write whether a bound is met: `met`, `met (98%)`, `MISSED`, and `unsure (45%)` where the
    probability that it is met says otherwise than the number; `-` where nothing was bounded.
    """
    word = judge_met(met, probability)
    return word if probability is None or met is None else f"{word} ({show_share(probability)})"


def judge_met(met: bool | None, probability: float | None) -> str:
    """Judge a bound in one word: `met`, `MISSED`, `unsure` where the probability that it is met
    says otherwise than the number; `-` where nothing was bounded."""
    if met is None:
        return "-"
    if probability is not None and (probability >= 0.5) != met:
        return "unsure"
    return "met" if met else "MISSED"


MOST_SIDE = 16_384
"""Pixels of a picture's side, for what is made here."""


def parse_picture_size(text: str, where: str) -> tuple[int, int]:
    """Return width and height of `1024x768`, in pixels. Raises InputError."""
    match = re.fullmatch(r"([0-9]{1,6})[x×]([0-9]{1,6})", text.strip().lower())
    sides = (int(match[1]), int(match[2])) if match else (0, 0)
    if not all(1 <= side <= MOST_SIDE for side in sides):
        raise InputError(
            f"{where}: {text[:40]!r} is no size of a picture; write width x height in pixels, each"
            f" 1 to {MOST_SIDE:,}, e.g. 1024x768"
        )
    return sides
