"""The race against settings whose truth is known: what it chooses, states and refuses to state."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from loadstone.studies.tuning.belief import Observation, Prior, believe
from loadstone.studies.tuning.race import Failure, LaunchOutcome, Race, RaceLimits, Turn

Fails = Callable[[Turn, int], Failure | None]


def run(
    truth: list[float], noise: float, seed: int, fails: Fails = lambda turn, number: None,
    limits: RaceLimits | None = None, heavier: list[set[int]] | None = None,
) -> Race:  # fmt: skip
    rng = np.random.default_rng(seed)
    race = Race(Prior.flat(len(truth)), limits or RaceLimits(), seed, heavier or ())
    turns = race.run()
    turn = next(turns)
    while True:
        failure = fails(turn, len(race.turns))
        value = math.log(truth[turn.setting]) + rng.normal(0, noise)
        outcome = LaunchOutcome(value, seconds=60.0)
        if failure is not None:
            memory = failure == "oom_under_load"
            outcome = LaunchOutcome(None, failure, "why", 60.0, memory)
        try:
            turn = turns.send(outcome)
        except StopIteration:
            return race


def test_a_clear_winner_is_found_and_its_gain_is_stated() -> None:
    for seed in range(10):
        race = run([100, 110], 0.01, seed)
        assert race.advised == 1
        assert race.gain is not None
        assert race.gain.value == pytest.approx(0.10, abs=0.02)
        searched = [turn for turn, _ in race.turns if not turn.confirms]
        assert max(turn.round for turn in searched) <= 4


def test_settings_that_noise_cannot_tell_apart_leave_the_default() -> None:
    advised = [run([100, 101, 99], 0.03, seed).advised for seed in range(30)]
    assert advised.count(0) >= 27


def test_equal_settings_leave_the_default() -> None:
    races = [run([100.0] * 16, 0.03, seed) for seed in range(30)]
    assert sum(race.advised == 0 for race in races) >= 28
    assert np.mean([len(race.turns) for race in races]) <= 60


def test_many_settings_of_five_per_cent() -> None:
    regrets, launches, gaps = [], [], []
    for seed in range(30):
        truth = np.exp(np.random.default_rng(1_000 + seed).normal(0, 0.05, 16)) * 100
        race = run(list(truth), 0.03, seed)
        regrets.append(math.log(truth.max() / truth[race.advised]))
        launches.append(len(race.turns))
        if race.gain is not None:
            gaps.append(race.gain.value - (truth[race.winner] / truth[0] - 1))
    assert np.mean(regrets) < 0.01
    assert np.mean(launches) <= 70
    # The standard error of the mean of thirty gaps is about 0.4 points.
    assert abs(np.mean(gaps)) < 0.015


def test_the_gain_uses_no_launch_of_the_search() -> None:
    race = run([100, 120, 90], 0.02, 3)
    fresh = [(turn, outcome) for turn, outcome in race.turns if turn.confirms]
    assert race.gain is not None
    assert race.gain.launches * 2 == len(fresh)
    values = {index: [o.value for t, o in fresh if t.setting == index] for index in (0, 1)}
    mean = np.mean([a - b for a, b in zip(values[1], values[0], strict=True)])  # type: ignore[operator]
    assert race.gain.value == pytest.approx(math.expm1(mean))
    assert [turn.setting for turn, _ in fresh][:4] == [1, 0, 0, 1]


@pytest.mark.parametrize("failure", ["does_not_start", "died", "answers_changed", "oom_under_load"])
def test_a_failing_setting_is_named_and_never_chosen(failure: Failure) -> None:
    def fails(turn: Turn, number: int) -> Failure | None:
        return failure if turn.setting == 2 else None

    for seed in range(5):
        race = run([100, 105, 200, 101], 0.01, seed, fails)
        assert race.eliminated[2][0] == failure
        assert race.advised == 1
        assert sum(turn.setting == 2 for turn, _ in race.turns) == 1


def test_a_winner_that_dies_as_it_is_confirmed_is_not_advised() -> None:
    def fails(turn: Turn, number: int) -> Failure | None:
        return "died" if turn.setting == 1 and turn.confirms else None

    race = run([100, 120, 110, 100], 0.01, 0, fails)
    assert 1 in race.eliminated
    assert race.advised == 2


def test_one_untrusted_launch_puts_nobody_out() -> None:
    def fails(turn: Turn, number: int) -> Failure | None:
        return "not_trusted" if turn.round == 0 and turn.setting in (0, 1) else None

    race = run([100, 120, 90], 0.01, 0, fails)
    assert race.advised == 1


def test_a_default_that_does_not_start_ends_the_race() -> None:
    def fails(turn: Turn, number: int) -> Failure | None:
        return "does_not_start" if turn.setting == 0 else None

    race = run([100, 120], 0.01, 0, fails)
    assert race.ending == "default_failed"
    assert len(race.turns) == 1


def test_what_takes_more_memory_than_one_that_ran_out_is_skipped() -> None:
    def fails(turn: Turn, number: int) -> Failure | None:
        return "oom_under_load" if turn.setting in (1, 2) else None

    heavier: list[set[int]] = [set(), {2}, set(), set()]
    launched = set()
    for seed in range(6):
        race = run([100, 120, 130, 105], 0.01, seed, fails, heavier=heavier)
        assert race.advised == 3
        launched.add(any(turn.setting == 2 for turn, _ in race.turns))
        assert 2 in race.eliminated or race.skipped == {2: 1}
    assert False in launched


def test_time_is_kept_for_the_fresh_launches() -> None:
    race = run([100.0 + index for index in range(16)], 0.05, 0, limits=RaceLimits(seconds=60 * 30))
    assert race.seconds <= 60 * 30
    assert len(race.turns) <= 30
    assert race.ending == "no_time"
    confirmed = sum(turn.confirms for turn, _ in race.turns)
    assert confirmed >= 4 or race.advised == 0


def test_the_same_outcomes_give_the_same_turns() -> None:
    whole = run([100, 103, 101, 99], 0.02, 5)
    again = Race(Prior.flat(4), seed=5)
    turns = again.run()
    turn = next(turns)
    for expected, outcome in whole.turns:
        assert turn == expected
        try:
            turn = turns.send(outcome)
        except StopIteration:
            break
    assert again.turns == whole.turns


def test_a_round_that_is_slow_for_all_moves_nothing() -> None:
    rng = np.random.default_rng(0)
    seen = [
        Observation(setting, number, value + (0.5 if number == 1 else 0) + rng.normal(0, 0.005))
        for number in range(4)
        for setting, value in enumerate((0.0, 0.1))
    ]
    belief = believe(Prior.flat(2), seen, rng)
    assert float(belief.mean[1]) == pytest.approx(0.1, abs=0.02)
    assert belief.noise < 0.02


def test_what_the_model_expects_is_believed_until_launches_say_otherwise() -> None:
    prior = Prior(np.array([0.0, 0.2]), np.diag([0.0, 0.05**2]))
    rng = np.random.default_rng(0)
    assert float(believe(prior, (), rng).mean[1]) == pytest.approx(0.2, abs=0.02)
    seen = [Observation(setting, number, 0.0) for number in range(6) for setting in (0, 1)]
    assert abs(float(believe(prior, seen, rng).mean[1])) < 0.05
