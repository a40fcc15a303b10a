"""Races settings whose truth is known, by the tuner's own code on a simulated clock, beside loops
that measure each setting once: `python benchmarks/tune_race.py [--seeds 400]`.

A world has settings with log-normal truth of a given spread, and noise from launch to launch. Told
are: how far the choice is from the best (regret), how often it is within 1 % of it, how far the
stated gain is from the true one, how often its 95 % interval holds that, and launches.

once   each setting once, the best of all is taken, with the gain that was seen
eight  the first eight of a list once each, as loops that cut their candidates at eight do
"""

import argparse
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from loadstone.core.vectors import Floats
from loadstone.studies.tuning.belief import Prior
from loadstone.studies.tuning.race import DEFAULT, LaunchOutcome, Race, Turn

WORLDS = ((16, 0.05, 0.01), (16, 0.05, 0.03), (16, 0.02, 0.03), (32, 0.05, 0.05), (16, 0.0, 0.03))
_SECONDS = 60.0


class Told(NamedTuple):
    """What a loop says in one world: its choice, the gain that it states, and its interval."""

    truth: Floats
    choice: int
    best_measured: int
    gain: float | None
    low: float
    high: float
    launches: int


def race_world(settings: int, spread: float, noise: float, seed: int) -> Told:
    """Race one world with the tuner's own code."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(0, spread, settings)
    race = Race(Prior.flat(settings), seed=seed)
    run = race.run()
    turn: Turn | None = next(run)
    while turn is not None:
        seen = float(truth[turn.setting] + rng.normal(0, noise))
        try:
            turn = run.send(LaunchOutcome(seen, seconds=_SECONDS))
        except StopIteration:
            turn = None
    launches = len(race.turns)
    if race.gain is None:
        return Told(truth, race.advised, race.winner, None, 0.0, 0.0, launches)
    value, low, high, _ = race.gain
    return Told(truth, race.advised, race.winner, value, low, high, launches)


def once_each(first: int | None) -> Callable[[int, float, float, int], Told]:
    """Return the loop that measures each setting once, or the `first` of them."""

    def measure(settings: int, spread: float, noise: float, seed: int) -> Told:
        rng = np.random.default_rng(seed)
        truth = rng.normal(0, spread, settings)
        seen = (truth + rng.normal(0, noise, settings))[:first]
        best = int(seen.argmax())
        gain = math.expm1(seen[best] - seen[DEFAULT])
        return Told(truth, best, best, gain, gain, gain, len(seen))

    return measure


LOOPS = {"race": race_world, "once": once_each(None), "eight": once_each(8)}


def row(told: list[Told]) -> Iterator[str]:
    """Yield the figures of a loop over all seeds."""
    regrets = np.array([one.truth.max() - one.truth[one.choice] for one in told])
    winners = np.array([one.truth.max() - one.truth[one.best_measured] for one in told])
    stated = [one for one in told if one.gain is not None]
    true = [math.expm1(one.truth[one.best_measured] - one.truth[DEFAULT]) for one in stated]
    gaps = [
        100 * (one.gain - gain)
        for one, gain in zip(stated, true, strict=True)
        if one.gain is not None
    ]
    held = [one.low <= gain <= one.high for one, gain in zip(stated, true, strict=True)]
    yield f"{100 * winners.mean():.2f}"
    yield f"{100 * (winners <= 0.01).mean():.0f}"
    yield f"{100 * regrets.mean():.2f}"
    yield f"{100 * (regrets <= 0.01).mean():.0f}"
    yield f"{100 * np.mean([one.choice == DEFAULT for one in told]):.0f}"
    yield f"{np.mean(gaps):+.2f}" if gaps else "-"
    yield f"{100 * np.mean(held):.0f}" if any(one.low < one.high for one in stated) else "-"
    yield f"{np.mean([one.launches for one in told]):.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=400)
    seeds = parser.parse_args().seeds
    heads = (
        "settings, spread, noise",
        "loop",
        "regret of winner %",
        "within 1 %",
        "regret of advice %",
        "within 1 %",
        "default advised %",
        "gain - truth, points",
        "95 % holds",
        "launches",
    )
    print("|", " | ".join(heads), "|")
    print("|---|---|" + "---:|" * (len(heads) - 2))
    for settings, spread, noise in WORLDS:
        for name, loop in LOOPS.items():
            told = [loop(settings, spread, noise, seed) for seed in range(seeds)]
            world = f"{settings}, {100 * spread:.0f} %, {100 * noise:.0f} %"
            print("|", " | ".join((world, name, *row(told))), "|", flush=True)


if __name__ == "__main__":
    main()
