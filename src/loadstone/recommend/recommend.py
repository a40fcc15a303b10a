"""The deployments for a model's traffic, in four steps: what is asked, what is searched, what is
judged, what is told."""

from __future__ import annotations

import time

from loadstone.core.errors import InputError
from loadstone.recommend.demand.effort import FULL, Effort
from loadstone.recommend.demand.options import RecommendOptions
from loadstone.recommend.demand.planning import plan_for
from loadstone.recommend.judge.judgement import judge_finalists
from loadstone.recommend.search.finalists import rank_candidates, simulate_finalists
from loadstone.recommend.tell.document import Recommendation
from loadstone.recommend.tell.progress import show_progress
from loadstone.recommend.tell.recommendation import write_recommendation
from loadstone.recommend.tell.refusal import explain_refusal


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
