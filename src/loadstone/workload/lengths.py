"""How long prompts and answers are, how many turns conversations have, and the pauses between."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Literal

import msgspec

from loadstone.core.errors import InputError
from loadstone.core.units import TOKEN_UNITS, parse_seconds
from loadstone.core.vectors import Floats, Ints32

if TYPE_CHECKING:
    import numpy as np

MAX_TOKENS = 16_777_216
_UNIT = re.compile(r"([0-9]{1,9})([kKmM])")


class Length(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A distribution of lengths in tokens; every draw is a whole number ≥ 1.

    fixed      always `mean`
    uniform    whole numbers from `low` to `high`, both included
    normal     mean `mean`, standard deviation `sd` tokens
    lognormal  median `mean`, `sd` the standard deviation of the logarithm
    """

    kind: Literal["fixed", "uniform", "normal", "lognormal"]
    mean: float
    sd: float = 0.0
    low: int = 1
    high: int = MAX_TOKENS

    def draw(self, rng: np.random.Generator, count: int) -> Ints32:
        """Draw `count` lengths, int32."""
        import numpy as np

        if self.kind == "fixed":
            return np.full(count, int(self.mean), np.int32)
        if self.kind == "uniform":
            return rng.integers(self.low, self.high, size=count, endpoint=True, dtype=np.int32)
        if self.kind == "normal":
            values = rng.normal(self.mean, self.sd, count)
        else:
            values = rng.lognormal(math.log(self.mean), self.sd, count)
        return np.clip(np.rint(values), self.low, self.high).astype(np.int32)

    @property
    def smallest(self) -> int:
        return int(self.mean) if self.kind == "fixed" else self.low


def parse_length(text: str, range_ratio: float, what: str, minimum: int = 1) -> Length:
    """Read a Length from `1024`, `8k`, `uniform:512:1024`, `normal:1024:128` or
    `lognormal:1024:0.5`; k is 1024.

    A plain number with `range_ratio` r < 1 is uniform in [r·n, n], as vLLM's and SGLang's
    benchmarks at ratio r (InferenceX's 0.8 among them). `what` names the flag; `minimum` may be 0
    for a plain number or a uniform one. Raises InputError.
    """
    kind, *numbers = text.strip().split(":")
    if not numbers:
        kind, numbers = "fixed", [kind]
    expected = {"fixed": 1, "uniform": 2, "normal": 2, "lognormal": 2}.get(kind)
    try:
        values = [_number(number) for number in numbers]
    except ValueError:
        values = []
    if expected is None or len(values) != expected or not all(map(math.isfinite, values)):
        raise InputError(
            f"{what}: {text!r} is not a length; write 1024, uniform:512:1024, normal:1024:128 or"
            " lognormal:1024:0.5"
        )
    first, second = values[0], values[-1]
    whole = kind in ("fixed", "uniform")
    lowest = minimum if whole else 1
    if not lowest <= first <= MAX_TOKENS or (whole and any(v != int(v) for v in values)):
        form = "a whole number" if whole else "a number"
        raise InputError(f"{what}: write {form} from {lowest} to {MAX_TOKENS:,}, not {text!r}")
    if kind == "uniform":
        if not first <= second <= MAX_TOKENS:
            raise InputError(
                f"{what}: {text!r} goes from {first:g} down to {second:g}; write the smaller one"
                " first"
            )
        return Length("uniform", (first + second) / 2, low=int(first), high=int(second))
    if kind != "fixed":
        if second < 0:
            raise InputError(f"{what}: the spread in {text!r} is negative")
        return Length(kind, first, sd=second)  # type: ignore[arg-type]
    if range_ratio < 1:
        low = max(1, int(first * range_ratio))  # rounded down, as they do
        return Length("uniform", (low + first) / 2, low=low, high=int(first))
    return Length("fixed", first)


def parse_tokens(text: str, what: str) -> int:
    """Read a count of tokens from 0, `2000` or `2k`; `what` names the flag. Raises InputError."""
    try:
        value = _number(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= MAX_TOKENS or value != int(value):
        raise InputError(
            f"{what}: {text!r} is not a number of tokens from 0 to {MAX_TOKENS:,}; write e.g. 2000"
            " or 2k"
        )
    return int(value)


def _number(text: str) -> float:
    """Read a number; after a whole one k is 1024 and m 1024², as "128k" of 131,072. Raises
    ValueError."""
    match = _UNIT.fullmatch(text.strip())
    return float(text) if match is None else float(int(match[1]) * TOKEN_UNITS[match[2].lower()])


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

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """Draw `count` pauses, f8 seconds."""
        import numpy as np

        if self.kind == "uniform":
            return rng.uniform(self.low_s, self.high_s, count)
        if self.kind == "exponential":
            return rng.exponential(self.mean_s, count)
        if self.kind == "lognormal":
            return rng.lognormal(math.log(self.mean_s), self.sd, count)
        return np.full(count, self.mean_s)


class Sessions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Conversations of `turns` turns, in which requests come. Each turn asks with all that was said
    before.

    Of a dataset's conversations `turns` is the most that is taken.
    """

    turns: Length
    think: Think = Think()


def parse_think(text: str, what: str = "--think-time") -> Think:
    """Read a Think from `2s`, `uniform:1s:3s`, `exponential:2s` or `lognormal:2s:0.5`; `what` names
    the flag. Raises InputError.
    """
    kind, *numbers = text.strip().split(":")
    if not numbers:
        kind, numbers = "fixed", [kind]
    expected = {"fixed": 1, "uniform": 2, "exponential": 1, "lognormal": 2}.get(kind)
    if expected != len(numbers):
        raise InputError(
            f"{what}: {text!r} is not a pause; write 2s, uniform:1s:3s, exponential:2s or"
            " lognormal:2s:0.5"
        )
    first = parse_seconds(numbers[0], what)
    if kind == "uniform":
        high_s = parse_seconds(numbers[1], what)
        if high_s < first:
            raise InputError(
                f"{what}: {text!r} goes from more to less; write the shorter time first"
            )
        return Think("uniform", (first + high_s) / 2, low_s=first, high_s=high_s)
    if kind == "lognormal":
        sd = parse_seconds(numbers[1], f"{what}: the spread in {text!r}")
        if first <= 0:
            raise InputError(f"{what}: {text!r}: a lognormal pause needs a median above 0")
        return Think("lognormal", first, sd=sd)
    return Think(kind, first)  # type: ignore[arg-type]
