"""How far off may the ratio of two values be because the performance model is, where a side is simulated?

Each simulated run has an 80 % interval of its own (simulator.interval). Two such runs may share what is wrong with
them. How much, published measurements say (docs/compare.md): on one user's machines the errors of two predictions go
together by two thirds, of one profile and one model by four fifths; and one deployment asked the same has one error,
which the ratio does not have.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadstone.comparison import interval
from loadstone.comparison.interval import Reach
from loadstone.comparison.metric import Metric
from loadstone.comparison.sides import Place, Run

TOGETHER = 2 / 3
"""Correlation of the errors of two predictions: machine, launch and client are one user's in both."""
ALIKE = 0.8
"""The same with the coefficients of one profile, for one model."""
_ONE_ERROR = ("deployment", "policy", "schedulers", "profile", "workload")
"""Settings of a run that, all alike, make two simulations of a load wrong by the same."""


def is_simulated(run: Run) -> bool:
    return run.info.source == "simulated"


def together(a: Sequence[Run], b: Sequence[Run]) -> float:
    """Correlation of the errors of two sides: 1, ALIKE or TOGETHER; 0 where one is measured."""
    runs = [*a, *b]
    if not all(map(is_simulated, runs)):
        return 0.0
    settings, first = [run.info.settings for run in runs], runs[0].info.settings
    if all(each.get(name) == first.get(name) for each in settings for name in _ONE_ERROR):
        return 1.0
    profile, model = first.get("profile"), runs[0].facts.model
    known = profile is not None and model is not None
    alike = all(each.get("profile") == profile for each in settings) and all(run.facts.model == model for run in runs)
    return ALIKE if known and alike else TOGETHER


def reach(a: Sequence[Place], b: Sequence[Place], metric: Metric, *, intended: bool) -> Reach | None:
    """How far the ratio B/A may be off, 80 %, on a log scale; None where no model has a part in it, and where it is
    not known (`--draws 0`).
    """
    go_together = together([run for run, _ in a], [run for run, _ in b])
    if go_together == 1 or not any(is_simulated(run) for run, _ in (*a, *b)):
        return None
    on_a, on_b = (_of_side(side, metric, intended) for side in (a, b))
    return None if on_a is None or on_b is None else interval.ratio(on_a, on_b, go_together)


def _of_side(places: Sequence[Place], metric: Metric, intended: bool) -> Reach | None:
    """The widest of its runs: repeats of a simulation do not make the model better. Measured ones have none."""
    found = [
        metric.model_reach(run.document["cells"][position], intended) for run, position in places if is_simulated(run)
    ]
    known = [each for each in found if each is not None]
    if len(known) < len(found):
        return None
    return max((each[0] for each in known), default=0.0), max((each[1] for each in known), default=0.0)
