"""What a run costs: dollars per GPU and hour as the user gives them, and what follows for a million tokens.

    $ per million tokens = GPUs · $ per GPU and hour / 3600 / (tokens per second) · 10⁶

All GPUs of a deployment are paid for, whatever they do. A price is never guessed: of a run whose GPU, or number of
GPUs, is not known, or whose GPU has no price, no price is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from loadstone.analyse.run_facts import RunFacts, gpu_name
from loadstone.core.errors import InputError


class Prices(dict[str, float]):
    """GPU, as `key` has it, to dollars per GPU and hour."""


def parse_prices(texts: str | Sequence[str]) -> Prices:
    """Prices of `--price h200=3.2,h100=2.1`, several with commas. Raises InputError."""
    prices = Prices()
    texts = [texts] if isinstance(texts, str) else texts
    for part in (part.strip() for text in texts for part in text.split(",")):
        name, equals, price = (each.strip() for each in part.partition("="))
        try:
            dollars = float(price) if equals and name else math.nan
        except ValueError:
            dollars = math.nan
        if not (math.isfinite(dollars) and dollars > 0):
            raise InputError(
                f"--price {part!r}: write GPU=DOLLARS per GPU and hour, above 0, e.g. --price h200=3.2,h100=2.1"
            )
        if prices.setdefault(key(name), dollars) != dollars:
            raise InputError(f"--price: {name} has two prices, {prices[key(name)]:g} and {dollars:g}; give one")
    return prices


def key(gpu: str) -> str:
    """One word for all names of a GPU: `h200` for `H200`, `NVIDIA H200`, `h200-sxm-141gb`."""
    return (gpu_name(gpu) or gpu).casefold()


def dollars_per_hour(facts: RunFacts, prices: Prices) -> float | None:
    """Of all GPUs of a run together; None where a part of it is not known."""
    each = prices.get(key(facts.gpu)) if facts.gpu else None
    return each * facts.gpus if each is not None and facts.gpus else None


def per_million(dollars: float | None, tokens_per_s: float | None) -> float | None:
    """Dollars per million tokens of what costs `dollars` per hour."""
    return dollars / 3600 / tokens_per_s * 1e6 if dollars is not None and tokens_per_s else None


def without_price(runs: Iterable[tuple[str, RunFacts]], prices: Prices) -> str | None:
    """One line on the runs, given with their names, of which no price is known, and why; None where all have one."""
    reasons: dict[str, list[str]] = {}
    for name, facts in runs:
        if dollars_per_hour(facts, prices) is None:
            reasons.setdefault(_why(facts), []).append(name)
    parts = [
        f"{', '.join(names[:6])}{f' and {len(names) - 6} more' if len(names) > 6 else ''} ({why})"
        for why, names in reasons.items()
    ]
    return f"no price is known for {'; '.join(parts)}" if parts else None


def _why(facts: RunFacts) -> str:
    if not facts.gpu:
        return "the GPU is not stated"
    return "the number of GPUs is not stated" if not facts.gpus else f"--price has none for {facts.gpu}"
