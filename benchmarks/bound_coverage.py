"""How often bounds on a p99 hold that a cell says hold with 90 % or more, by tail and by requests.

    python benchmarks/bound_coverage.py [--cells 1000] [--seed 0]

Latencies are drawn independently from an exponential, a lognormal, a Pareto tail, and a mixture of
a fast server with a slow state. The bound of each cell is drawn between 0.5 and 2 times the true
p99. Also printed: how often a bound of 1.5 times the true p99 is said to hold after 1,000 requests.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable

import numpy as np

from loadstone.analyse.slo import SURE, BoundedCell
from loadstone.core.bounds import Bound
from loadstone.core.metrics import Latency, Metrics, Requests
from loadstone.core.plan import Load
from loadstone.core.statistics import distribution
from loadstone.core.vectors import Floats

Draw = Callable[[np.random.Generator, int], Floats]
COUNTS = (5, 10, 20, 40, 100, 200, 400, 1000)
TRUE_SAMPLE = 4_000_000


def mixture(rng: np.random.Generator, n: int) -> Floats:
    """Draw from a server of which 2 % of answers are six times as slow."""
    return rng.exponential(1.0, n) * np.where(rng.random(n) < 0.02, 6.0, 1.0) + 0.5


TAILS: dict[str, Draw] = {
    "exponential": lambda rng, n: rng.exponential(1.0, n) + 0.2,
    "lognormal": lambda rng, n: rng.lognormal(0.0, 0.8, n),
    "Pareto": lambda rng, n: rng.pareto(2.0, n) + 1.0,
    "mixture": mixture,
}


def probability(values: Floats, limit_s: float) -> float:
    """Return how likely Loadstone says `ttft_p99 < limit_s` is, of one cell."""
    load = Load("concurrency", 8)
    requests = Requests(sent=len(values), ok=len(values), short=0)
    metrics = Metrics(ttft_s=Latency.of(distribution(values)))
    (bound,) = BoundedCell(load, requests, metrics).judge([Bound("ttft_p99", limit_s)])
    return bound.p_met or 0.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cells", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    print("| tail | said to hold, of cells | of these hold | 1.5 × p99 said to hold at n = 1,000 |")
    print("|---|---:|---:|---:|")
    for name, draw in TAILS.items():
        rng = np.random.default_rng(asked.seed)
        truth = float(np.quantile(draw(rng, TRUE_SAMPLE), 0.99))
        counts: Counter[str] = Counter()
        for number in range(asked.cells):
            n = COUNTS[number % len(COUNTS)]
            ratio = float(np.exp(rng.uniform(np.log(0.5), np.log(2.0))))
            if probability(draw(rng, n), ratio * truth) >= SURE:
                counts["said"] += 1
                counts["held"] += ratio >= 1.0
        wide = sum(probability(draw(rng, 1000), 1.5 * truth) >= SURE for _ in range(100))
        share = counts["held"] / max(1, counts["said"])
        print(f"| {name} | {counts['said']} of {asked.cells} | {share:.1%} | {wide} of 100 |")


if __name__ == "__main__":
    main()
