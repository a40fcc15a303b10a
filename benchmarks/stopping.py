"""How often the intervals of --stop-when miss the truth, and at how many requests they stop.

    python benchmarks/stopping.py [--runs 300]

at every look: independent requests, one look after each of 3,000; a miss is one at any of them.
Beside it the intervals for a number of requests that is fixed before.

when stopped: a closed loop of so many slots, whose generations share a factor (log-normal, 20 %)
that is correlated from one to the next; looked at after each twentieth more until the interval is
within 5 %.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import NormalDist

import numpy as np

from loadstone.analyse.stopping import interval_of, sequential_ranks
from loadstone.core.statistics import PERCENTILES, Dependence, percentile_bounds

LOOKS = 3000
MOST = 20_000
OWN, SHARED, WITHIN = 0.2, 0.2, 0.05
LOOPS = ((1, 0.0, "p50"), (4, 0.5, "p50"), (16, 0.0, "p50"), (16, 0.5, "p50"), (16, 0.5, "p90"))
"""Places, correlation of neighbouring generations, percentile."""
Ranks = Callable[[int, float], tuple[int | None, int | None]]


def misses_at_every_look(ranks: Ranks, q: float, runs: int, draw: np.random.Generator) -> float:
    """Share of runs in which the interval is wrong at any look."""
    bounds = [ranks(n, q) for n in range(1, LOOKS + 1)]
    low = np.array([each[0] or 0 for each in bounds])
    high = np.array([each[1] or LOOKS + 1 for each in bounds])
    missed = 0
    for _ in range(runs):
        below = np.cumsum(draw.random(LOOKS) <= q)
        missed += bool(((below < low) | (below >= high)).any())
    return missed / runs


def stopped(
    places: int, correlation: float, name: str, draw: np.random.Generator
) -> tuple[int, bool] | None:
    """After how many requests a run stops, and whether its interval then holds the truth; None: it
    never stops."""
    truth = float(np.exp(np.hypot(OWN, SHARED) * NormalDist().inv_cdf(PERCENTILES[name])))
    shared = draw.standard_normal(MOST // places)
    for i in range(1, len(shared)):
        shared[i] = correlation * shared[i - 1] + np.sqrt(1 - correlation**2) * shared[i]
    values = np.exp(
        SHARED * np.repeat(shared, places) + OWN * draw.standard_normal(len(shared) * places)
    )
    generation = np.repeat(np.arange(len(shared), dtype=np.float64), places)
    n = 30
    while n <= len(values):
        dependence = Dependence.of(generation[:n], generation[:n] + 1, places=places)
        known = interval_of(values[:n], name, dependence)
        if (
            known is not None
            and known.is_within(WITHIN)
            and known.low is not None
            and known.high is not None
        ):
            return n, known.low <= truth <= known.high
        n = int(n * 1.05) + 1
    return None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=300)
    runs = parser.parse_args().runs
    draw = np.random.default_rng(1)
    print("| at every look | --stop-when | fixed number |\n|---|---:|---:|")
    for name in ("p50", "p90", "p99"):
        both = (misses_at_every_look(ranks, PERCENTILES[name], runs, draw) for ranks in RANKS)
        print(f"| {name} | {' | '.join(f'{share:.1%}' for share in both)} |", flush=True)
    print("\n| when stopped | missed | stopped | median requests |\n|---|---:|---:|---:|")
    for places, correlation, name in LOOPS:
        ends = [
            end
            for _ in range(runs)
            if (end := stopped(places, correlation, name, draw)) is not None
        ]
        missed = sum(not held for _, held in ends) / max(1, len(ends))
        median = np.median([n for n, _ in ends]) if ends else np.nan
        what = f"{name}, {places} slots, correlation {correlation:g}"
        print(f"| {what} | {missed:.1%} | {len(ends)} of {runs} | {median:,.0f} |", flush=True)


RANKS: tuple[Ranks, Ranks] = (sequential_ranks, percentile_bounds)

if __name__ == "__main__":
    main()
