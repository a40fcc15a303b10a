"""Reading and writing quantities with their units. Inside the program everything is SI: seconds, bytes, tokens."""

from __future__ import annotations

import math
import re

from loadstone.errors import InputError

_SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_DURATION = re.compile(r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*(us|µs|ms|s|min|m|h)?\s*", re.IGNORECASE)


def parse_seconds(text: str, what: str) -> float:
    """Seconds from `250ms`, `1.5s`, `2m`, `1h`, or a bare number of seconds.

    `what` names the flag for the error. Raises InputError unless finite and ≥ 0.
    """
    match = _DURATION.fullmatch(text)
    try:
        value = float(match[1]) * _SECONDS[(match[2] or "s").lower()] if match else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{what}: {text!r} is no duration; write 250ms, 1.5s, 2m or 1h")
    return value


def parse_list(text: str, what: str) -> list[float]:
    """Numbers from a comma-separated list; `inf` is allowed. Raises InputError on anything else."""
    values = []
    for part in text.split(","):
        try:
            values.append(float(part))
        except ValueError:
            raise InputError(f"{what}: {part.strip()!r} in {text!r} is no number; write e.g. 1,2,4") from None
    if any(math.isnan(value) for value in values):
        raise InputError(f"{what}: nan in {text!r} is no number; write e.g. 1,2,4")
    return values


def parse_counts(text: str, what: str) -> list[int]:
    """Whole numbers ≥ 1 from a comma-separated list. Raises InputError on anything else."""
    values = parse_list(text, what)
    for value in values:
        if not (value >= 1 and value == int(value) if math.isfinite(value) else False):
            raise InputError(f"{what}: {value:g} is not a whole number of at least 1; write e.g. 1,8,64")
    return [int(value) for value in values]


def show_seconds(value: float | None, digits: int = 3) -> str:
    """A duration for people, to `digits` significant digits: `412 µs`, `11.2 ms`, `1.13 s`, `-` when missing."""
    if value is None or math.isnan(value):
        return "-"
    if math.isinf(value):
        return "inf"
    magnitude = abs(value)
    if magnitude >= 0.9995:
        return f"{show_number(value, digits)} s"
    if magnitude >= 0.9995e-3 or magnitude == 0:
        return f"{show_number(value * 1e3, digits)} ms"
    return f"{show_number(value * 1e6, digits)} µs"


def show_number(value: float | None, digits: int = 3) -> str:
    """A number for people, to `digits` significant digits, thousands apart: `7 410`, `181`, `0.37`."""
    if value is None or math.isnan(value):
        return "-"
    if math.isinf(value):
        return "inf"
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}".replace(",", "\u202f")
