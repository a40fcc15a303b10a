"""Decides which setting is launched next, and when enough is known: a race of settings.

Rounds: every setting once, in random order under one plan, then those alone that may still be the
best. The race ends where the best so far is expected to lose less than `ENOUGH` against the truly
best, or where none is likely to beat the default by `MARGIN`. Then the winner and the default are
launched afresh in turn (A B B A), with plans that the search did not use: the gain comes from these
launches alone, because the best of many measurements is too good by chance.

The race is a generator: it yields turns and is sent outcomes. The same outcomes give the same
turns, so that a race that was cut off goes on where it was.
"""

import math
from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from loadstone.studies.tuning.belief import Belief, Observation, Prior, believe

DEFAULT = 0
"""The index of the setting that changes nothing."""
ENOUGH = 0.003
"""The expected regret, a logarithm, at which a search ends."""
MARGIN = 0.01
"""A gain, a logarithm, below which nobody changes a setting."""
_NOTHING = 0.008
"""What the default may be expected to lose against the best where the search ends at it."""
_UNLIKELY = 0.05
_STILL = 0.15
"""A setting stays in the race while the improvement expected of it, per second of its launches, is
this share of the largest."""
_LEAST_ROUNDS, _DEFAULT_ROUNDS = 2, 3
_LEAST_PAIRS, _MOST_PAIRS = 4, 16
_RESOLVED = 0.6
"""So many pairs are planned that half of the gain's interval is this share of the gain."""
Z95 = 1.959964

Failure = Literal[
    "does_not_start", "oom_under_load", "died", "answers_changed", "not_trusted", "misses_slo"
]
FAILURES: dict[Failure, str] = {
    "does_not_start": "does not start",
    "oom_under_load": "ran out of memory",
    "died": "died under load",
    "answers_changed": "answers otherwise",
    "not_trusted": "not trusted",
    "misses_slo": "misses the bounds",
}
"""In words, after the name of a setting."""
_AT_ONCE: tuple[Failure, ...] = ("does_not_start", "oom_under_load", "died", "answers_changed")
"""Failures that put a setting out of the race; others do where half of its launches have them, and
two at least."""

Ending = Literal["best_found", "nothing_to_gain", "no_time", "default_failed"]


class Turn(NamedTuple):
    """A launch to be made. `round`: from 0, its settings share a plan; `confirms`: it is one of the
    fresh launches that tell the gain."""

    setting: int
    round: int
    confirms: bool = False


class LaunchOutcome(NamedTuple):
    """Tells how a launch ended.

    value    the logarithm of what is to be large; None: it gave none
    failure  why it counts for nothing; `why`: in words
    seconds  that it took, its start and end included
    memory   it failed for lack of memory
    """

    value: float | None
    failure: Failure | None = None
    why: str = ""
    seconds: float = 0.0
    memory: bool = False


class RaceLimits(NamedTuple):
    """How long a race may take: seconds of launches, and launches."""

    seconds: float = math.inf
    launches: float = math.inf


class Gain(NamedTuple):
    """The winner's gain over the default by fresh launches: a ratio less 1, its 95 % interval, and
    the number of launches of each."""

    value: float
    low: float
    high: float
    launches: int


@dataclass
class Race:
    """A race as far as it has come.

    heavier     for every setting those that take at least as much of every memory
    eliminated  settings that are out of the race: the failure, and in words why
    """

    prior: Prior
    limits: RaceLimits = field(default_factory=RaceLimits)
    seed: int = 0
    heavier: Sequence[Collection[int]] = ()
    turns: list[tuple[Turn, LaunchOutcome]] = field(default_factory=list)
    eliminated: dict[int, tuple[Failure, str]] = field(default_factory=dict)
    skipped: dict[int, int] = field(default_factory=dict)
    ending: Ending = "no_time"
    belief: Belief = field(init=False)
    gain: Gain | None = None
    winner: int = DEFAULT
    round: int = 0

    def __post_init__(self) -> None:
        self.belief = believe(self.prior, (), self.random())

    # --- what is known --------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        return sum(outcome.seconds for _, outcome in self.turns)

    def observations(self) -> list[Observation]:
        """Return what was measured, of all rounds."""
        return [
            Observation(turn.setting, turn.round, outcome.value)
            for turn, outcome in self.turns
            if outcome.value is not None
        ]

    def measured(self, setting: int) -> list[float]:
        """Return the values of a setting."""
        return [launch.value for launch in self.observations() if launch.setting == setting]

    @property
    def alive(self) -> list[int]:
        """Return the settings that are in the race, the default first."""
        gone = self.eliminated.keys() | self.skipped.keys()
        return [setting for setting in range(len(self.prior.mean)) if setting not in gone]

    @property
    def running(self) -> list[int]:
        """Return the settings that are in the race and were measured, the default first."""
        seen = {launch.setting for launch in self.observations()}
        return [setting for setting in self.alive if setting in seen]

    @property
    def advised(self) -> int:
        """Return the setting to use: the winner where its gain is proven, else the default; the
        winner too where the default is out."""
        proven = self.gain is not None and self.gain.low > 0
        return self.winner if proven or DEFAULT in self.eliminated else DEFAULT

    def has_time(self, launches: int = 1) -> bool:
        """Tell whether so many more launches fit into the limits."""
        made = len(self.turns)
        if made + launches > self.limits.launches:
            return False
        mean_s = self.seconds / made if made else 0.0
        return self.seconds + launches * mean_s <= self.limits.seconds

    def random(self) -> np.random.Generator:
        """Return the round's random numbers, the same after a restart."""
        return np.random.default_rng((self.seed, self.round))

    # --- the race -------------------------------------------------------------------------------

    def run(self) -> Generator[Turn, LaunchOutcome, None]:
        """Yield the turns of the search, then those that tell the gain."""
        yield from self._search()
        while self.winner != DEFAULT and self.ending in ("best_found", "no_time"):
            failed = yield from self._confirm()
            if not failed:
                return
            self._judge()

    def _search(self) -> Generator[Turn, LaunchOutcome, None]:
        # The default first: without it there is nothing to compare with.
        todo = [DEFAULT, *(self.random().permutation(len(self.prior.mean) - 1) + 1)]
        while True:
            for setting in todo:
                if not self.has_time(1 + 2 * _LEAST_PAIRS):
                    self._judge()
                    return
                if setting in self.eliminated or setting in self.skipped:
                    continue
                yield from self._launch(Turn(int(setting), self.round))
                if self._default_failed():
                    self.ending = "default_failed"
                    return
            self.round += 1
            self._judge()
            if self.round >= _LEAST_ROUNDS and self._knows_enough():
                return
            todo = self._next_round()

    def _launch(self, turn: Turn) -> Generator[Turn, LaunchOutcome, None]:
        """Yield a turn, and take its outcome."""
        outcome = yield turn
        self.turns.append((turn, outcome))
        failure = outcome.failure
        if failure is None:
            return
        failed = [
            outcome.failure is not None
            for turn_before, outcome in self.turns
            if turn_before.setting == turn.setting
        ]
        if failure in _AT_ONCE or (sum(failed) > 1 and 2 * sum(failed) >= len(failed)):
            self.eliminated[turn.setting] = failure, outcome.why
        if outcome.memory and self.heavier:
            for larger in self.heavier[turn.setting]:
                if larger not in (DEFAULT, turn.setting) and not self.measured(larger):
                    self.skipped[larger] = turn.setting

    def _default_failed(self) -> bool:
        """Tell whether the default gives no value that others could be compared with. One that
        misses its bounds does."""
        failure = self.eliminated.get(DEFAULT)
        return failure is not None and failure[0] != "misses_slo"

    def _judge(self) -> None:
        """Compute what all launches say, and who is the best so far."""
        self.belief = believe(self.prior, self.observations(), self.random())
        self.winner = self.belief.best(self.running) if self.running else DEFAULT

    def _knows_enough(self) -> bool:
        """Tell whether the search is over, and keep how it ended."""
        belief, alive = self.belief, self.alive
        if alive == [DEFAULT] or (
            DEFAULT in self.running
            and (
                belief.regret(DEFAULT, alive) < _NOTHING
                or belief.beaten(DEFAULT, alive, MARGIN) < _UNLIKELY
            )
        ):
            self.ending, self.winner = "nothing_to_gain", DEFAULT
            return True
        if self.winner in self.running and belief.regret(self.winner, alive) < ENOUGH:
            self.ending = "best_found"
            return True
        return not alive

    def _next_round(self) -> list[int]:
        """Return the settings to launch next, in random order: the best so far, and all of which
        enough improvement is expected."""
        expected = self.belief.improvements(self.winner)
        worth = {setting: expected[setting] / self._mean_seconds(setting) for setting in self.alive}
        bar = _STILL * max(worth.values())
        chosen = [
            setting
            for setting in self.alive
            if setting == self.winner
            or worth[setting] >= bar
            or (setting == DEFAULT and len(self.measured(DEFAULT)) < _DEFAULT_ROUNDS)
        ]
        if len(chosen) == 1:
            chosen.append(DEFAULT)
        return [int(setting) for setting in self.random().permutation(chosen)]

    def _mean_seconds(self, setting: int) -> float:
        """Return how long launches of a setting take; 1 where no launch takes any time."""
        took = [outcome.seconds for turn, outcome in self.turns if turn.setting == setting]
        return float(np.mean(took)) if took and sum(took) else 1.0

    # --- fresh launches -------------------------------------------------------------------------

    def _confirm(self) -> Generator[Turn, LaunchOutcome, bool]:
        """Launch the winner and the default afresh, and compute the gain. Returns True where the
        winner failed, so that another one has to be looked at."""
        winner, gaps = self.winner, list[float]()
        pairs = self._plan_pairs()
        order = (winner, DEFAULT)
        while len(gaps) < pairs and self.has_time(2):
            values = {}
            for setting in order:
                yield from self._launch(Turn(setting, self.round, confirms=True))
                turn, outcome = self.turns[-1]
                values[turn.setting] = outcome.value
                if winner in self.eliminated:
                    return True
                if self._default_failed():
                    self.ending = "default_failed"
                    return False
            self.round += 1
            order = order[::-1]
            first, second = values[winner], values[DEFAULT]
            if first is not None and second is not None:
                gaps.append(first - second)
        if len(gaps) < 2:
            return False
        self.belief = believe(self.prior, self.observations(), self.random())
        mean = float(np.mean(gaps))
        reach = Z95 * self.belief.noise * math.sqrt(2 / len(gaps))
        self.gain = Gain(
            math.expm1(mean), math.expm1(mean - reach), math.expm1(mean + reach), len(gaps)
        )
        return False

    def _plan_pairs(self) -> int:
        """Return how many pairs of fresh launches tell a gain as large as the search expects. It is
        planned before the first of them: to stop where the gain looks good would make it too
        good."""
        expected = max(float(self.belief.mean[self.winner]), MARGIN)
        needed = 2 * (Z95 * self.belief.noise / (_RESOLVED * expected)) ** 2
        pairs = min(max(math.ceil(needed), _LEAST_PAIRS), _MOST_PAIRS)
        return pairs + pairs % 2
