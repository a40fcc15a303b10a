"""A traffic to plan for, and plans from a few short simulations."""

from __future__ import annotations

from typing import Any

import numpy as np

from loadstone.catalogue import parse_deployment
from loadstone.recommend.demand.effort import Effort
from loadstone.recommend.demand.options import RecommendOptions
from loadstone.recommend.demand.planning import Planning, plan_for
from loadstone.recommend.judge.errors import UncertainFinalist
from loadstone.recommend.recommend import recommend
from loadstone.recommend.search.candidates import Candidate
from loadstone.recommend.tell.document import Recommendation
from loadstone.workload.option_fields import options_of

BOUNDS = "ttft_p99<1s,tpot_p99<30ms"
ASKED = {
    "model": "llama-3.1-8b", "input": "1024", "output": "128", "rate": 40, "slo": BOUNDS, "gpus": "h100,h200",
    "gpus_max": 8, "engine": "vllm,sglang", "price": "h100=2,h200=3",
}  # fmt: skip
SMALL = {
    "gpus": "h100", "gpus_max": 64, "engine": "vllm", "price": "h100=2", "weights_dtype": "bf16", "kv_dtype": "bf16",
    "tp": (1,),
}  # fmt: skip
"""Few candidates, so that a plan takes a fraction of a second."""
FEW = Effort(
    curve_requests=(150, 800),
    asked_requests=(400, 800),
    draws=256,
    cheapest=2,
    of_groups=1,
)
"""Two finalists or three, each simulated with few requests."""
PLANNED: dict[str, Recommendation] = {}


def options(**changed: Any) -> RecommendOptions:
    return options_of(ASKED | changed, RecommendOptions)


def small_options(**changed: Any) -> RecommendOptions:
    return options_of(ASKED | SMALL | changed, RecommendOptions)


def planning(**changed: Any) -> Planning:
    """What is asked by options(), without prices unless there are some."""
    return plan_for(options(**changed))


def small_planning(**changed: Any) -> Planning:
    return plan_for(small_options(**changed))


def plans(**changed: Any) -> Recommendation:
    """recommend() of small_options() with FEW."""
    asked = small_options(**changed)
    if repr(asked) not in PLANNED:
        PLANNED[repr(asked)] = recommend(asked, FEW)
    return PLANNED[repr(asked)]


def finalist(
    name: str, capacities: list[float], price: float = 2.0, replicas: int = 4
) -> UncertainFinalist:
    """A deployment that carries `capacities`, by draw; a slower draw has times that are longer in
    proportion."""
    deployment = parse_deployment(name)
    cost = replicas * deployment.gpus * price
    candidate = Candidate(deployment, None, None, capacities[0], replicas, cost, None)  # type: ignore[arg-type]
    carried = np.array(capacities, float)
    factors = np.column_stack([carried.max() / carried] * 2)
    return UncertainFinalist(candidate, None, None, factors, carried)  # type: ignore[arg-type]
