"""Computes the cost of a run: dollars per GPU and hour as the user gives them, and those for a
million tokens.

    $ per million tokens = GPUs · $ per GPU and hour / 3600 / (tokens per second) · 10⁶

All GPUs of a deployment are paid for, whatever they do. A price is never guessed: of a run whose
GPU, or number of GPUs, is not known, or whose GPU has no price, no price is known.
"""

import math
import re
from collections.abc import Iterable, Sequence

from loadstone.analyse.run_facts import RunFacts, gpu_name
from loadstone.catalogue.find import find_node, gpu_names, match_gpu, nearest, node_names
from loadstone.core.errors import InputError
from loadstone.core.groups import by_key
from loadstone.core.machine_figures import PoolFigures
from loadstone.core.metrics import Metrics, Window

_MAX_DOLLARS = 1_000_000
"""The most dollars for an hour of one GPU: more is a mistake, and infinite prices for tokens would
follow."""
OUTPUT_OVER_INPUT, CACHED_OVER_INPUT = 4.0, 0.1
"""What an output token, and one from a prefix cache, are sold for over an input token: usual in
price lists."""
_MANY = re.compile(r"(\d{1,6})\s*(?:[x×]\s*|\s)(.+)")


class Prices(dict[str, float]):
    """GPU, as `key` has it, to dollars per GPU and hour."""


def parse_prices(texts: str | Sequence[str]) -> Prices:
    """Parse the prices of `--price h200=3.2,h100=2.1`, several with commas. Raises InputError."""
    prices = Prices()
    texts = [texts] if isinstance(texts, str) else texts
    for part in (part.strip() for text in texts for part in text.split(",")):
        name, equals, price = (word.strip() for word in part.partition("="))
        try:
            dollars = float(price) if equals and name else math.nan
        except ValueError:
            dollars = math.nan
        if not 0 < dollars <= _MAX_DOLLARS:
            raise InputError(
                f"--price {part!r}: write GPU=DOLLARS per GPU and hour, above 0 and at most"
                f" {_MAX_DOLLARS:,}, e.g. --price h200=3.2,h100=2.1"
            )
        _refuse_machine(name, dollars)
        if prices.setdefault(key(name), dollars) != dollars:
            raise InputError(
                f"--price: {name} has two prices, {prices[key(name)]:g} and {dollars:g}; give one"
            )
    return prices


def check_prices(prices: Prices, runs: Iterable[RunFacts]) -> None:
    """Refuse a price that would change nothing, of a GPU that neither a run nor the catalogue has.
    Raises InputError.
    """
    of_runs = {key(facts.gpu): facts.gpu for facts in runs if facts.gpu}
    for name, dollars in prices.items():
        if name not in of_runs and match_gpu(name) is None:
            near = nearest(name, [*of_runs, *gpu_names()])
            raise InputError(
                f"--price {name}={dollars:g}: no run is on such a GPU, and the catalogue has none"
                + (f"; did you mean {' or '.join(near[:3])}?" if near else "")
                + (f" (the runs are on {', '.join(of_runs.values())})" if of_runs else "")
            )


def _refuse_machine(name: str, dollars: float) -> None:
    """Refuse a price of several GPUs: it would be taken for that of each. Raises InputError."""
    counted = _MANY.fullmatch(name)
    if name.casefold() in node_names():
        price = f"{find_node(name).gpu}=DOLLARS"
    elif counted and match_gpu(counted[2]):
        price = f"{key(counted[2])}={dollars / max(1, int(counted[1])):.4g}"
    else:
        return
    raise InputError(f"--price {name}={dollars:g}: give the price of one GPU, {price}")


def key(gpu: str) -> str:
    """Return one word for all names of a GPU: `h200` for `H200`, `NVIDIA H200`,
    `h200-sxm-141gb`."""
    return (gpu_name(gpu) or gpu).casefold()


def dollars_per_hour(facts: RunFacts, prices: Prices) -> float | None:
    """Add up the dollars per hour of all GPUs of a run; None where a part of it is not known."""
    parts = [pool_dollars(pool, prices) for pool in facts.pools or (facts,)]
    return None if None in parts else sum(filter(None, parts))


def pool_dollars(pool: PoolFigures | RunFacts, prices: Prices) -> float | None:
    """Return the dollars per hour of a pool's GPUs; None where they have no price."""
    dollars = prices.get(key(pool.gpu)) if pool.gpu else None
    return dollars * pool.gpus if dollars is not None and pool.gpus else None


def per_million(dollars: float | None, tokens_per_s: float | None) -> float | None:
    """Compute the dollars per million tokens at `dollars` per hour."""
    return dollars / 3600 / tokens_per_s * 1e6 if dollars is not None and tokens_per_s else None


def weigh_tokens(window: Window, metrics: Metrics) -> float | None:
    """Compute how many input tokens sell for as much as an output token and what was put in for
    it."""
    output, total, inputs = (
        window.output_tokens_per_s,
        window.total_tokens_per_s,
        metrics.input_tokens,
    )
    if not output or total is None:
        return None
    cached = min(1.0, (metrics.cached_input_tokens or 0) / inputs) if inputs else 0.0
    return (total / output - 1) * (1 - cached * (1 - CACHED_OVER_INPUT)) + OUTPUT_OVER_INPUT


def list_prices(dollars_input: float) -> dict[str, float]:
    """Return the dollars for which a million tokens of each kind must be sold, by that of input
    tokens."""
    ratios = {"input": 1.0, "cached": CACHED_OVER_INPUT, "output": OUTPUT_OVER_INPUT}
    return {kind: dollars_input * ratio for kind, ratio in ratios.items()}


def without_price(runs: Iterable[tuple[str, RunFacts]], prices: Prices) -> str | None:
    """Name in one line the runs, given with their names, that have no price, and why; None where
    all have one."""
    reasons = by_key(
        (_why(facts), name) for name, facts in runs if dollars_per_hour(facts, prices) is None
    )
    parts = [
        f"{', '.join(names[:6])}{f' and {len(names) - 6} more' if len(names) > 6 else ''} ({why})"
        for why, names in reasons.items()
    ]
    return f"no price is known for {'; '.join(parts)}" if parts else None


def _why(facts: RunFacts) -> str:
    if not facts.gpu:
        return "the GPU is not stated"
    kinds = " or ".join(dict.fromkeys(pool.gpu or "" for pool in facts.pools)) or facts.gpu
    return "the number of GPUs is not stated" if not facts.gpus else f"--price has none for {kinds}"
