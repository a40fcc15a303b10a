"""The deployments for a model's traffic, in four steps: what is asked, what is searched, what is
judged, what is told."""

import sys
import time

from loadstone.core.errors import InputError
from loadstone.recommend.demand.classes import classes_of
from loadstone.recommend.demand.effort import FULL, Effort
from loadstone.recommend.demand.options import RecommendOptions
from loadstone.recommend.demand.planning import plan_for
from loadstone.recommend.judge.judgement import judge_finalists
from loadstone.recommend.judge.partitions import FleetFinder, divide_classes
from loadstone.recommend.search.finalists import rank_candidates, simulate_finalists
from loadstone.recommend.tell.document import Recommendation
from loadstone.recommend.tell.mixed import MixRecommendation, write_mix
from loadstone.recommend.tell.plans import write_recommendation
from loadstone.recommend.tell.refusal import explain_refusal
from loadstone.workload.option_fields import check_limits

_WIDTH = 110


def show_progress(line: str = "") -> None:
    """Write the line over the one before on a terminal's stderr; without one, wipe it. Nothing
    where stderr is no terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{line[:_WIDTH]:<{_WIDTH}}" + ("" if line else "\r"))
        sys.stderr.flush()


def advise(options: RecommendOptions) -> Recommendation | MixRecommendation:
    """Choose what to deploy, of classes of traffic which fleets. Raises InputError as recommend()
    does."""
    workload = options.workload
    if workload.mix is None and not workload.classes:
        return recommend(options)
    return recommend_mix(options)


def recommend_mix(options: RecommendOptions, effort: Effort | None = None) -> MixRecommendation:
    """Choose the fleets for the classes of a mix. Raises InputError: as recommend() does, and
    classes that cannot be planned for."""
    if options.load.autoscale:
        raise InputError("--autoscale: a mix has no trace to follow; leave it out")
    begun_s = time.monotonic()
    check_limits(options)
    classes = classes_of(options)
    found = divide_classes(FleetFinder(classes, show_progress, explain_refusal, effort))
    document = write_mix(classes, found, time.monotonic() - begun_s)
    show_progress()
    return document


def recommend(options: RecommendOptions, effort: Effort = FULL) -> Recommendation:
    """Choose what to deploy. Raises InputError: names that mean nothing; nothing that carries the
    traffic, with the nearest that would."""
    planning = plan_for(options, show_progress, effort)
    begun_s = time.monotonic()
    found = rank_candidates(planning)
    ranked_s = time.monotonic()
    if not found.candidates:
        raise InputError(explain_refusal(found, planning))
    finalists = simulate_finalists(found, planning)
    simulated_s = time.monotonic()
    judgement = judge_finalists(finalists, planning)
    show_progress()
    seconds = {
        "ranking": ranked_s - begun_s,
        "simulating": simulated_s - ranked_s,
        "deciding": time.monotonic() - simulated_s,
    }
    return write_recommendation(planning, found, finalists, judgement, seconds)
