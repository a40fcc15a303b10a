"""The result of a race, typed: `loadstone tune --json` prints it, texts and pages show it."""

import math
from typing import Literal

import msgspec
import numpy as np

from loadstone.core.document import Document
from loadstone.core.vectors import Floats
from loadstone.studies.supervise import CELLS
from loadstone.studies.tuning.contest import Contest
from loadstone.studies.tuning.race import DEFAULT, MARGIN, Ending, Failure, Race
from loadstone.studies.tuning.settings import Setting, Value

State = Literal["default", "winner", "raced", "failed", "skipped", "not_measured", "refused"]


class GainSpan(msgspec.Struct, frozen=True):
    """A gain over the default, as a ratio less 1: 95 %."""

    value: float
    low: float
    high: float


class SettingResult(msgspec.Struct, kw_only=True, frozen=True):
    """Holds the results of a setting.

    gain      over the default by all launches (Bayesian, 90 %); None where it was not measured
    values    what each launch gave, in the objective's unit
    failure   why it counts for nothing; `why`: in words
    """

    name: str
    flags: dict[str, Value]
    layout: str
    state: State
    launches: int = 0
    values: list[float] = []
    gain: GainSpan | None = None
    p_near_best: float | None = None
    failure: Failure | None = None
    why: str = ""


class TunedFlagResult(msgspec.Struct, kw_only=True, frozen=True):
    """Tells whether a flag's values make a difference, all else equal. `spread`: between the best
    and the worst value (90 % interval)."""

    flag: str
    spread: GainSpan
    matters: bool | None


class RaceStep(msgspec.Struct, frozen=True):
    """A launch of the race, as its page draws it. `at_s`: seconds of launches until its end."""

    setting: str
    round: int
    confirms: bool
    at_s: float
    value: float | None
    failure: str | None


class TuneResult(Document, msgspec.Struct, kw_only=True):
    """The document of `loadstone tune --json`.

    ending       best_found; nothing_to_gain; no_time; default_failed
    advised      the setting to use; `proven`: its gain is above 0 in fresh launches
    gain         of the winner over the default, from fresh launches alone, `fresh` of each
    p_near_best  probability that the winner is within 1 % of the best
    runner_up    and by how much it may be better than the winner (expected regret of not taking it)
    command      what starts the advised setting
    """

    schema: int = 1
    race: str
    target: str
    objective: str
    ending: Ending
    winner: str
    advised: str
    proven: bool
    gain: GainSpan | None = None
    fresh: int = 0
    p_near_best: float | None = None
    runner_up: str | None = None
    runner_up_regret: float | None = None
    command: list[str]
    settings: list[SettingResult]
    flags: list[TunedFlagResult]
    steps: list[RaceStep]
    launches: int
    seconds: float
    noise: float | None
    folder: str
    cells: str


def _value(objective: str, logarithm: float) -> float:
    sign = 1 if objective in ("throughput", "rate") else -1
    return math.exp(sign * logarithm)


def result_of(contest: Contest, race: Race, command: list[str], folder: str) -> TuneResult:
    """Return the document of a race that has ended."""
    belief, running = race.belief, race.running
    near = runner = regret = None
    if running:
        near = belief.near_best(race.winner, running, MARGIN)
        rivals = [setting for setting in running if setting != race.winner]
        if rivals:
            best = belief.best(rivals)
            runner, regret = (
                contest.settings[best].name,
                float(belief.improvements(race.winner)[best]),
            )
    at_s, steps = 0.0, []
    for turn, outcome in race.turns:
        at_s += outcome.seconds
        value = None if outcome.value is None else _value(contest.objective, outcome.value)
        name = contest.settings[turn.setting].name
        steps.append(RaceStep(name, turn.round, turn.confirms, at_s, value, outcome.failure))
    gain = race.gain
    return TuneResult(
        race=contest.name,
        target=contest.target,
        objective=contest.objective,
        ending=race.ending,
        winner=contest.settings[race.winner].name,
        advised=contest.settings[race.advised].name,
        proven=gain is not None and gain.low > 0,
        gain=None if gain is None else GainSpan(gain.value, gain.low, gain.high),
        fresh=0 if gain is None else gain.launches,
        p_near_best=near,
        runner_up=runner,
        runner_up_regret=regret,
        command=command,
        settings=[
            *(_setting(contest, race, number) for number in range(len(contest.settings))),
            *_refused(contest),
        ],
        flags=_flags(contest, race),
        steps=steps,
        launches=len(race.turns),
        seconds=race.seconds,
        noise=belief.noise if race.turns else None,
        folder=folder,
        cells=f"{folder}/{CELLS}",
    )


def _span(gaps: Floats) -> GainSpan:
    """Return the median and the 90 % interval of drawn gaps, which are logarithms."""
    low, middle, high = np.expm1(np.quantile(gaps, (0.05, 0.5, 0.95))).tolist()
    return GainSpan(middle, low, high)


def _setting(contest: Contest, race: Race, number: int) -> SettingResult:
    setting, belief = contest.settings[number], race.belief
    values = [_value(contest.objective, value) for value in race.measured(number)]
    failure, why = race.eliminated.get(number, (None, ""))
    state: State = "raced" if values else "not_measured"
    if failure is not None:
        state = "failed"
    elif number in race.skipped:
        state = "skipped"
        why = f"takes more memory than {contest.settings[race.skipped[number]].name}"
    elif number == race.winner and number != DEFAULT:
        state = "winner"
    elif number == DEFAULT:
        state = "default"
    gain = near = None
    if number in race.running:
        gaps = belief.draws[:, number] - belief.draws[:, DEFAULT]
        gain = _span(gaps)
        near = belief.near_best(number, race.running, MARGIN)
    return SettingResult(
        name=setting.name,
        flags=dict(setting.values),
        layout=setting.layout,
        state=state,
        launches=sum(turn.setting == number for turn, _ in race.turns),
        values=values,
        gain=gain,
        p_near_best=near,
        failure=failure,
        why=why,
    )


def _refused(contest: Contest) -> list[SettingResult]:
    return [
        SettingResult(
            name=refused.setting.name,
            flags=dict(refused.setting.values),
            layout=refused.setting.layout,
            state="refused",
            why=refused.why,
        )
        for refused in contest.refused
    ]


def _flags(contest: Contest, race: Race) -> list[TunedFlagResult]:
    """Return for each flag whether its values make a difference, by the settings that differ by it
    alone."""
    found: list[TunedFlagResult] = []
    running = set(race.running)
    for tuned in contest.flags:
        groups = _groups(contest.settings, running, tuned.flags)
        gaps = [
            np.ptp(race.belief.draws[:, group], axis=1)
            for group in groups.values()
            if len(group) > 1
        ]
        if not gaps:
            continue
        spread = _span(np.mean(gaps, axis=0))
        matters = True if spread.low > MARGIN else False if spread.high < 2 * MARGIN else None
        found.append(TunedFlagResult(flag="+".join(tuned.flags), spread=spread, matters=matters))
    return found


def _groups(
    settings: list[Setting], running: set[int], flags: tuple[str, ...]
) -> dict[object, list[int]]:
    """Return the settings in the race that are equal but for these flags."""
    groups: dict[object, list[int]] = {}
    for number, setting in enumerate(settings):
        if number in running:
            rest = tuple(pair for pair in setting.values if pair[0] not in flags)
            groups.setdefault((setting.layout, rest), []).append(number)
    return groups
