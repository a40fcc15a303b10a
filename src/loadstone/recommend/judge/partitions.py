"""Fleets for the classes of a mix: one for all, or one for each set of classes.

A fleet for a set of classes is found as for any traffic. A division of the classes into fleets
holds in a draw of the model's errors in which all its fleets do: the errors of all finalists of all
fleets are drawn together, since what is wrong about an engine on a GPU is wrong in every fleet.
Of divisions that hold with --confidence the cheapest is first, of equal ones the surest. What their
misses are expected to cost is told besides; of a miss the fleet's own share counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from loadstone.catalogue.deployment.deployment import Deployment
from loadstone.core.errors import InputError
from loadstone.core.vectors import Floats
from loadstone.engines import rules_of
from loadstone.predict.scheduler import policy_of
from loadstone.predict.step_time import StepModel
from loadstone.recommend.demand.classes import Classes, ClassSet
from loadstone.recommend.demand.effort import OF_A_SET, OF_PRIORITIES, Effort
from loadstone.recommend.demand.options import HOURS_PER_MONTH
from loadstone.recommend.demand.planning import Planning, plan_for
from loadstone.recommend.judge.choices import affordable, rank_choices
from loadstone.recommend.judge.confirm import Confirmation, ConfirmedPlan
from loadstone.recommend.judge.errors import draw_joint_errors
from loadstone.recommend.judge.power import fed_by
from loadstone.recommend.search.candidates import Candidate, Search
from loadstone.recommend.search.finalists import (
    Finalists,
    rank_candidates,
    simulate_finalists,
)

_MAX_ADDED = 8
"""Times that a fleet of a division gets more replicas until all of them hold together."""
_WORTH = 0.002
"""By how much surer a division has to be for them."""


class FleetSearch(NamedTuple):
    """The finalists of a fleet for a set of classes."""

    classes: ClassSet
    planning: Planning
    found: Search
    finalists: Finalists


class ClassFleet(NamedTuple):
    """A fleet for a set of classes, as it was bought."""

    search: FleetSearch
    confirmation: Confirmation
    plan: ConfirmedPlan

    @property
    def classes(self) -> ClassSet:
        return self.search.classes

    @property
    def by_priority(self) -> bool:
        return self.search.planning.by_priority

    @property
    def needed_costs(self) -> Floats:
        """Return by draw what as many replicas cost as hold, as far as --gpus-max goes."""
        choice, planning = self.plan.choice, self.search.planning
        given = planning.search.gpus_max // choice.finalist.deployment.gpus
        needed = np.minimum(choice.finalist.replicas_needed(planning), given)
        return np.asarray(needed * choice.finalist.candidate.replica_cost)


@dataclass(frozen=True)
class Division:
    """The classes of a mix divided into fleets."""

    fleets: tuple[ClassFleet, ...]

    @property
    def gpus(self) -> int:
        return sum(fleet.plan.choice.gpus for fleet in self.fleets)

    @property
    def cost(self) -> float:
        """Return dollars per hour, or GPUs where no price is known."""
        return sum(fleet.plan.choice.cost for fleet in self.fleets)

    @property
    def expected_cost(self) -> float:
        """Return the cost with that of expected misses."""
        return sum(fleet.plan.cost for fleet in self.fleets)

    @property
    def p_slo(self) -> float:
        """Return the probability that every class holds: in the same draw, or of one fleet as it
        states it."""
        alone = [fleet.plan.figures.p_slo for fleet in self.fleets]
        if len(alone) == 1:
            return alone[0]
        by_draw = np.prod([fleet.plan.figures.by_draw for fleet in self.fleets], axis=0)
        return min(*alone, float(by_draw.mean()))

    @property
    def needed_costs(self) -> Floats:
        return np.asarray(sum(fleet.needed_costs for fleet in self.fleets))

    @property
    def sets(self) -> tuple[ClassSet, ...]:
        return tuple(fleet.classes for fleet in self.fleets)


class RefusedDivision(NamedTuple):
    """A division that cannot be, and why."""

    sets: tuple[ClassSet, ...]
    by_priority: bool
    why: str


class Saving(msgspec.Struct, frozen=True):
    """Says what the first division saves beside the second, in dollars a month, or GPUs: as both
    were bought, with the 80 % interval of what both need; in which share of the draws of the
    model's errors the first needs less, and in which as much."""

    value: float
    low: float
    high: float
    unit: Literal["usd_per_month", "gpus"]
    probability: float
    equal: float


class Divisions(NamedTuple):
    """The divisions that can be, the best first, and those that cannot; how many deployments were
    ranked and simulated."""

    ranked: list[Division]
    refused: list[RefusedDivision]
    saving: Saving | None
    regrets: list[float]
    looked_at: int
    simulated: int


@dataclass(frozen=True)
class FleetFinder:
    """Searches fleets for sets of classes. `show`: is given lines that say what is being done;
    `explain`: says why nothing carries a traffic; `effort`: None as usual."""

    classes: Classes
    show: Callable[[str], None]
    explain: Callable[[Search, Planning], str]
    effort: Effort | None = None
    models: dict[tuple[object, ...], StepModel] = field(default_factory=dict)

    def search(self, chosen: ClassSet, *, by_priority: bool) -> FleetSearch:
        """Search the fleets of a set. Raises InputError where nothing carries it."""
        options, requests = self.classes.ask(chosen)
        names = " + ".join(self.classes.names(chosen))
        effort = self.effort or (OF_PRIORITIES if by_priority else OF_A_SET)
        planning = plan_for(
            replace(options, plans=1), lambda line: self.show(f"{names}: {line}"), effort, requests
        )
        traffic = replace(planning.traffic, by_priority=by_priority)
        planning = replace(
            planning,
            is_mixed=True,
            by_priority=by_priority,
            traffic=traffic,
            models=self.models,
        )
        found = rank_candidates(planning)
        if not found.candidates:
            raise InputError(self.explain(found, planning))
        kept = found.candidates
        if self.classes.has_adapters(chosen):
            kept = [
                candidate
                for candidate in kept
                if candidate.fleet is None and rules_of(candidate.worker).adapter_slots
            ]
            if not kept:
                raise InputError("--engine: of none of these adapters are simulated")
        if by_priority:
            kept = [*filter(None, map(_serve_by_priority, kept))]
            if not kept:
                raise InputError("--engine: none of these serves by priority as it is simulated")
        found = found._replace(candidates=kept)
        return FleetSearch(chosen, planning, found, simulate_finalists(found, planning))


def divide_classes(finder: FleetFinder) -> Divisions:
    """Find the fleets of every division. Raises InputError where no division can be, with why the
    first cannot."""
    classes = finder.classes
    partitions = classes.list_partitions()
    every_set = {chosen for partition in partitions for chosen in partition}
    sets = sorted(every_set, key=lambda chosen: (-len(chosen), chosen))
    refusals: dict[tuple[ClassSet, bool], str] = {}
    searches: list[FleetSearch] = []
    for chosen, by_priority in product(sets, (False, True)):
        if by_priority and not classes.has_priorities(chosen):
            continue
        try:
            searches.append(finder.search(chosen, by_priority=by_priority))
        except InputError as error:
            refusals[chosen, by_priority] = str(error)
    if not searches:
        raise InputError(next(iter(refusals.values())))
    planning = searches[0].planning
    fleets: dict[tuple[ClassSet, bool], ClassFleet] = {}
    drawn = draw_joint_errors([(search.finalists, search.planning) for search in searches])
    for search, finalists in zip(searches, drawn, strict=True):
        key = search.classes, search.planning.by_priority
        try:
            paid = affordable(rank_choices(finalists, search.planning), search.planning)
            choices = fed_by(paid, search.planning, search.finalists.measured)
        except InputError as error:
            refusals[key] = str(error)
            continue
        confirmation = Confirmation(choices, search.planning)
        fleets[key] = ClassFleet(search, confirmation, confirmation.confirm()[0])
    divisions, refused = [], []
    for partition in partitions:
        for keys in _variants(partition, fleets, refusals):
            missing = [key for key in keys if key not in fleets]
            made = None if missing else _hold_together([fleets[key] for key in keys])
            why = refusals[missing[0]] if missing else _exceeds(made, planning)
            if made is None or why:
                refused.append(RefusedDivision(partition, any(flag for _, flag in keys), why))
            else:
                divisions.append(made)
    if not divisions:
        raise InputError(refused[0].why)
    confidence = planning.choice.confidence
    ranked = sorted(divisions, key=lambda division: _order(division, confidence))
    least = np.min([division.needed_costs for division in ranked], axis=0)
    return Divisions(
        ranked,
        refused,
        _save(ranked, planning),
        [division.expected_cost - float(least.mean()) for division in ranked],
        sum(search.found.looked_at for search in searches),
        sum(len(search.finalists.simulated) for search in searches),
    )


def _order(division: Division, confidence: float) -> tuple[float, ...]:
    sure = round(division.p_slo, 2)  # what is as sure to a hundredth is simpler
    priorities = sum(fleet.by_priority for fleet in division.fleets)
    if division.p_slo < confidence:
        return 1, -sure, division.cost, len(division.fleets), priorities
    return 0, division.cost, -sure, len(division.fleets), priorities


def _variants(
    sets: Sequence[ClassSet],
    fleets: dict[tuple[ClassSet, bool], ClassFleet],
    refusals: dict[tuple[ClassSet, bool], str],
) -> Iterator[list[tuple[ClassSet, bool]]]:
    """List how the fleets of a division may serve: one alone without priorities and with them, of
    several each in the cheaper way."""
    if len(sets) == 1:
        yield [(sets[0], False)]
        if (sets[0], True) in {*fleets, *refusals}:
            yield [(sets[0], True)]
        return
    keys = []
    for chosen in sets:
        ways = [(chosen, flag) for flag in (False, True) if (chosen, flag) in fleets]
        cheapest = min(ways, key=lambda way: _worth(fleets[way]), default=(chosen, False))
        keys.append(cheapest)
    yield keys


def _worth(fleet: ClassFleet) -> tuple[bool, float]:
    return not fleet.confirmation.holds(fleet.plan), fleet.plan.cost


def _serve_by_priority(candidate: Candidate) -> Candidate | None:
    """Return the candidate started so that it serves by priority; None where that is not
    simulated."""
    worker = candidate.worker
    argument = rules_of(worker).priority_argument
    if argument is None or candidate.fleet is not None:
        return None
    kept = [pair for pair in worker.arguments if pair[0] != argument[0]]
    worker = msgspec.structs.replace(worker, arguments=(*kept, argument))
    speculative = candidate.policy.speculative
    acceptance = None if speculative is None else speculative.acceptance
    policy = policy_of(worker, acceptance=acceptance)
    if not policy.priorities:
        return None
    return candidate._replace(deployment=Deployment.of(worker), policy=policy)


def _hold_together(fleets: Sequence[ClassFleet]) -> Division:
    """Return the fleets with as many replicas as let all hold in the same draw with --confidence,
    as far as more of them help: those of the least sure first."""
    division, places = Division(tuple(fleets)), [*range(len(fleets))]
    confidence = fleets[0].search.planning.choice.confidence
    for _ in range(_MAX_ADDED):
        if division.p_slo >= confidence or len(fleets) == 1 or not places:
            break
        place = min(places, key=lambda place: division.fleets[place].plan.figures.p_slo)
        fleet, grown = division.fleets[place], list(division.fleets)
        larger = fleet.confirmation.enlarge(fleet.plan)
        grown[place] = fleet._replace(plan=larger or fleet.plan)
        surer = Division(tuple(grown))
        if surer.p_slo < division.p_slo + _WORTH:
            places.remove(place)
        else:
            division = surer
    return division


def _exceeds(division: Division | None, planning: Planning) -> str:
    """Say why there is not enough for a division; empty where there is."""
    if division is None:
        return ""
    gpus_max, budget = planning.search.gpus_max, planning.choice.budget
    if division.gpus > gpus_max:
        return f"--gpus-max {gpus_max}: it takes {division.gpus}"
    month = division.cost * HOURS_PER_MONTH
    if budget is not None and month > budget:
        return f"--budget: ${budget:,.0f} a month is too little; it takes ${month:,.0f}"
    return ""


def _save(ranked: Sequence[Division], planning: Planning) -> Saving | None:
    if len(ranked) < 2:
        return None
    first, second = ranked[:2]
    unit = HOURS_PER_MONTH if planning.prices else 1.0
    by_draw = second.needed_costs - first.needed_costs
    value = (second.cost - first.cost) * unit
    low, high = (np.quantile(by_draw, (0.1, 0.9)) * unit).tolist()
    return Saving(
        value,
        min(low, value),
        max(high, value),
        "usd_per_month" if planning.prices else "gpus",
        round(float(np.mean(by_draw > 0)), 3),
        round(float(np.mean(by_draw == 0)), 3),
    )
