"""Tunes an engine: races settings of its flags by launches, and tells the best and how sure."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from loadstone.core.errors import TargetError
from loadstone.studies import measure
from loadstone.studies.file import StudyFile
from loadstone.studies.machines import make_machines
from loadstone.studies.plan import PlannedLaunch
from loadstone.studies.supervise import Machine, Measure, StudyEvent, run_study
from loadstone.studies.tuning.belief import Prior
from loadstone.studies.tuning.contest import MOST_SETTINGS, Contest, make_contest
from loadstone.studies.tuning.options import TuneOptions
from loadstone.studies.tuning.outcomes import read_outcome
from loadstone.studies.tuning.prior import expect
from loadstone.studies.tuning.race import DEFAULT, FAILURES, LaunchOutcome, Race, RaceLimits, Turn
from loadstone.studies.tuning.result import TuneResult, result_of
from loadstone.studies.tuning.settings import RefusedSetting, find_heavier


class RaceProgress(NamedTuple):
    """Tells how far a race is: a launch that begins, or with its outcome one that ended."""

    race: Race
    turn: Turn
    name: str
    outcome: LaunchOutcome | None = None


Listener = Callable[[RaceProgress], None]


def tune(
    options: TuneOptions, simulate: bool = False, on_turn: Listener = lambda told: None
) -> TuneResult:
    """Race settings until the best is known, or the time is over; asked again, the race goes on
    where it was cut off. `simulate`: simulations stand for launches.

    Raises InputError for what cannot be raced, TargetError where the default does not work.
    """
    contest = make_contest(options)
    contest, prior = _narrow(contest)
    folder = options.out / (f"{contest.name}-simulated" if simulate else contest.name)
    machines: list[Machine] = (
        [measure.Simulation()] if simulate else make_machines(contest.base, options.on)
    )
    live = measure.simulated if simulate else (lambda read: measure.live(read, lambda event: None))
    race = Race(
        prior,
        RaceLimits(options.time_s, options.launches or float("inf")),
        seed=options.workload.seed,
        heavier=find_heavier(contest.engine, contest.settings),
    )
    run = race.run()
    turn = next(run)
    while True:
        name = contest.settings[turn.setting].name
        outcome = _known(contest, turn, folder)
        if outcome is None:
            on_turn(RaceProgress(race, turn, name))
            outcome = _carry_out(contest, turn, folder, machines[:1], live)
            on_turn(RaceProgress(race, turn, name, outcome))
        try:
            turn = run.send(outcome)
        except StopIteration:
            break
    if race.ending == "default_failed":
        failure, why = race.eliminated[DEFAULT]
        remedy = "; measure longer (--requests, --duration)" if failure == "not_trusted" else ""
        raise TargetError(f"the default setting {FAILURES[failure]}: {why}{remedy}")
    made = contest.commands(contest.settings[race.advised])
    command = [] if made is None else made.shell_lines()
    return result_of(contest, race, command, str(folder))


def _narrow(contest: Contest) -> tuple[Contest, Prior]:
    """Return the contest with as many settings as a race has, those of which the model expects
    most, and what it expects of them."""
    launches = [contest.launch(setting, 0)[1] for setting in contest.settings]
    prior = expect(launches, contest.objective)
    if len(launches) <= MOST_SETTINGS:
        return contest, prior
    hopes = prior.mean + prior.covariance.diagonal() ** 0.5
    ranked = sorted(range(1, len(launches)), key=lambda number: -hopes[number])
    kept = [DEFAULT, *sorted(ranked[: MOST_SETTINGS - 1])]
    why = f"the model expects more of {MOST_SETTINGS - 1} others; name fewer values with --set"
    left = [
        RefusedSetting(contest.settings[number], why)
        for number in sorted(ranked[MOST_SETTINGS - 1 :])
    ]
    narrowed = contest._replace(
        settings=[contest.settings[number] for number in kept], refused=[*contest.refused, *left]
    )
    return narrowed, Prior(prior.mean[kept], prior.covariance[kept][:, kept])


def _known(contest: Contest, turn: Turn, folder: Path) -> LaunchOutcome | None:
    """Return the outcome of a turn that was launched before; None: it was not, or was cut off."""
    _, launch = contest.launch(contest.settings[turn.setting], turn.round)
    default: PlannedLaunch | None = None
    if turn.setting != DEFAULT:
        _, default = contest.launch(contest.settings[DEFAULT], turn.round)
    return read_outcome(folder, launch, contest.objective, default)


def _carry_out(
    contest: Contest,
    turn: Turn,
    folder: Path,
    machines: list[Machine],
    live: Callable[[StudyFile], Measure],
) -> LaunchOutcome:
    """Launch a turn, and return its outcome."""
    read, launch = contest.launch(contest.settings[turn.setting], turn.round)
    causes: list[str] = []

    def listen(event: StudyEvent) -> None:
        if event.kind == "failed":
            causes.append(event.text)

    run_study(read, (launch,), folder, machines, live(read), listen)
    outcome = _known(contest, turn, folder)
    if outcome is None:
        raise TargetError(f"{folder}: a launch left nothing; {' '.join(causes)}")
    return outcome
