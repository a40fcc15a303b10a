"""Engines that schedule the next step while one runs: who comes meanwhile waits for both."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from loadstone.calibrate import cases
from loadstone.calibrate.cases import run
from loadstone.predict.scheduler import EnginePolicy
from loadstone.predict.simulator.fleet import Fleet

POLICY = EnginePolicy(kv_blocks=100_000, max_batched_tokens=8192, max_seqs=64, schedules_ahead=True)


class Times:
    """Steps of 10 ms, of 30 ms with prompts; nothing before and after."""

    request_s = request_token_s = stream_s = window_s = 0.0
    window_tokens = float("inf")

    def step_s(self, decodes: int, context: float, chunks: object, met: int | None = None) -> float:
        return 0.03 if chunks else 0.01

    def decode_line(self, decodes: int) -> tuple[float, float]:
        return 0.01, 0.0


def ttft_s(policy: EnginePolicy) -> list[float]:
    tokens = np.array([100, 100])
    outcome = run(Fleet(policy, Times()), 2, tokens, np.array([50, 5]), times=np.array([0.0, 0.105]))
    return [float(value) for value in outcome.ttft_s]


def test_who_comes_in_the_middle_of_a_step_waits_for_the_next_one_too() -> None:
    plain = msgspec.structs.replace(POLICY, schedules_ahead=False)
    assert ttft_s(plain) == pytest.approx([0.03, 0.005 + 0.03])
    assert ttft_s(POLICY) == pytest.approx([0.03, 0.005 + 0.01 + 0.03])


@pytest.mark.parametrize("seqs", [4, 64])
@pytest.mark.parametrize("order", ["mixed", "prefill-first"])
def test_both_loops_agree(order: str, seqs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = msgspec.structs.replace(POLICY, order=order, max_seqs=seqs)
    rng = np.random.default_rng(1)
    inputs, outputs = rng.integers(50, 9000, 300), rng.integers(2, 80, 300)
    times = np.cumsum(rng.exponential(0.02, 300))
    quick = [run(Fleet(policy, Times()), 8, inputs, outputs, times=at) for at in (times, None)]
    monkeypatch.setattr(cases, "_holds_all", lambda *_: False)
    general = [run(Fleet(policy, Times()), 8, inputs, outputs, times=at) for at in (times, None)]
    for one, other in zip(quick, general, strict=True):
        assert np.array_equal(one.ttft_s, other.ttft_s)
        assert np.array_equal(one.e2e_s, other.e2e_s)
