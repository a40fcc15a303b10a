"""What an open loop that keeps up gives in the long run is what comes: its rate, and no chance of
its arrivals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadstone import simulate
from loadstone.analyse import metrics
from loadstone.core import arrays
from loadstone.core.metrics import Sustained
from loadstone.core.pace import pace_of
from loadstone.core.plan import Load
from loadstone.core.statistics.growth import growth


def rows(due_s: np.ndarray, took_s: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    found = np.zeros(len(due_s), arrays.ROW)
    found["measured"], found["input"], found["tokens"] = True, 100.0, tokens
    found["intended"] = found["sent"] = due_s
    found["first"], found["last"], found["end"] = due_s + 0.1, due_s + took_s, due_s + took_s
    return found


def sustained_of(load: Load, measured: np.ndarray) -> Sustained | None:
    return metrics.sustained_of(load, measured, pace_of(load, measured) if load.is_open else None)


def arrivals(seed: int, rate: float, n: int) -> np.ndarray:
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate, n))


def served(due_s: np.ndarray, each_s: float) -> np.ndarray:
    """Ends of one server that takes them in turn."""
    ends, free = [], 0.0
    for due in due_s:
        free = max(free, due) + each_s
        ends.append(free)
    return np.array(ends)


def test_a_queue_that_grows_has_the_growth_of_its_load() -> None:
    """1.25 times what the server takes: each request waits 0.25 s longer per second."""
    due_s = np.arange(400) / 10
    found = growth(due_s, served(due_s, 0.125))
    assert found is None or found[0] == pytest.approx(0.25, abs=0.01)
    assert growth(due_s[:100], served(due_s[:100], 0.125)) == pytest.approx((0.25, 0.0), abs=0.01)
    slope, reach = growth(due_s, served(due_s, 0.05)) or (1.0, 0.0)
    assert abs(slope) + reach < 1e-9


@pytest.mark.parametrize("seed", range(20))
def test_the_rate_is_the_estimate_whatever_arrivals_were_drawn(seed: int) -> None:
    """Unconditioned: delivered are 40 to 200 tokens/s of 128."""
    due_s = arrivals(seed, 1.0, 60)
    found = sustained_of(Load("rate", 1.0), rows(due_s, np.full(60, 2.0), np.full(60, 128.0)))
    assert found is not None
    assert (found.output_tokens_per_s, found.total_tokens_per_s, found.requests_per_s) == (
        128,
        228,
        1,
    )
    low, high = found.ci95["output_tokens_per_s"]
    assert 0.9 * 128 < low <= 128 == high


def test_spread_lengths_are_known_as_far_as_their_mean_is() -> None:
    held = 0
    for seed in range(300):
        rng = np.random.default_rng([seed, 1])
        tokens = rng.integers(64, 193, 100).astype(float)
        found = sustained_of(
            Load("rate", 2.0), rows(arrivals(seed, 2.0, 100), 0.01 * tokens, tokens)
        )
        assert found is not None
        low, high = found.ci95["output_tokens_per_s"]
        held += low <= 256 <= high
    assert 0.91 < held / 300 < 0.99


@pytest.mark.parametrize(
    "load",
    [Load("concurrency", 4), Load("rate", 1.0, process="trace"), Load("rate", 1.0, profile=((1, 2, 60),)),
     Load("rate", 1.0, unit="sessions")],
)  # fmt: skip
def test_a_rate_that_nobody_asked_for_is_no_estimate(load: Load) -> None:
    assert sustained_of(load, rows(np.arange(60.0), np.full(60, 2.0), np.full(60, 128.0))) is None


def test_nor_is_one_that_is_not_kept_up_with_or_fails() -> None:
    due_s = np.arange(400) / 10
    slow = rows(due_s, served(due_s, 0.12) - due_s, np.full(400, 128.0))
    assert sustained_of(Load("rate", 10.0), slow[:150]) is None  # a growth of 0.2
    fine = rows(due_s, np.full(400, 2.0), np.full(400, 128.0))
    assert sustained_of(Load("rate", 10.0), fine) is not None
    fine["status"][7] = arrays.STATUSES.index("error")
    assert sustained_of(Load("rate", 10.0), fine) is None


def test_a_predicted_interval_holds_what_the_rate_gives(tmp_path: Path) -> None:
    options: dict[str, Any] = {"rate": [1.0, 4.0], "requests": [150], "out": tmp_path, "draws": 4}
    for seed in range(3):
        for cell in simulate("llama-3.1-70b@4xh100", seed=seed, **options).document()["cells"]:
            found, truth = (
                cell["metrics"]["interval"]["output_tokens_per_s"],
                cell["load"]["value"] * 128,
            )
            assert found["low"] <= truth == found["value"] <= found["high"]
            assert found["high"] / found["low"] < 1.1
