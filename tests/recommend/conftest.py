"""A traffic to plan for, and plans from short simulations."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from loadstone.recommend import curve
from loadstone.recommend.options import RecommendOptions
from loadstone.recommend.recommend import recommend
from loadstone.recommend.result import Recommendation
from loadstone.workload.options import options_of

ASKED = {
    "model": "llama-3.1-8b", "input": "1024", "output": "128", "rate": 40, "slo": "ttft_p99<1s,tpot_p99<30ms",
    "gpus": "h100,h200", "gpus_max": 8, "engine": "vllm,sglang", "price": "h100=2,h200=3",
}  # fmt: skip
SMALL = {"gpus": "h100", "gpus_max": 64, "engine": "vllm", "price": "h100=2", "kv_dtype": "bf16", "tp": (1,)}
"""Few candidates, so that a plan takes a fraction of a second."""

Options = Callable[..., RecommendOptions]
Plans = Callable[..., Recommendation]


@pytest.fixture(scope="session")
def options() -> Options:
    return lambda **changed: options_of(ASKED | changed, RecommendOptions)


@pytest.fixture(scope="session")
def small_options() -> Options:
    return lambda **changed: options_of(ASKED | SMALL | changed, RecommendOptions)


@pytest.fixture
def plans(small_options: Options, monkeypatch: pytest.MonkeyPatch) -> Plans:
    """recommend() of few candidates, each simulated with few requests."""
    monkeypatch.setattr(curve, "LEAST_REQUESTS", 150)
    monkeypatch.setattr(curve, "MOST_REQUESTS", 600)
    return lambda **changed: recommend(small_options(**changed))
