"""Rows whose prefix is known to be cached, and rows of real text."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from loadstone.calibrate.cases import case_of, simulate
from loadstone.calibrate.points import Point
from loadstone.core.errors import InputError
from loadstone.predict.step_time.profile import profile_of

POINT = Point(
    row=1, deployment="llama-3.1-8b@1xh100/engine=vllm,version=0.15.1", input_tokens=4000, output_tokens=100,
    load="concurrency", load_value=4.0, requests=40, mode="serving", stat="median",
)  # fmt: skip


def ttft_s(**changes: object) -> float:
    case = case_of(msgspec.structs.replace(POINT, **changes))
    outcome, _ = simulate(case, profile_of(case.worker).values())
    assert len(outcome.ttft_s) == 40
    return float(np.median(outcome.ttft_s))


@pytest.mark.parametrize(
    "load",
    [{}, {"load": "rate", "load_value": 2.0}, {"load": "rate", "load_value": np.inf}],
    ids=str,
)
def test_a_cached_prefix_is_not_computed_again(load: dict[str, object]) -> None:
    cached, whole, rest = (
        ttft_s(cached_tokens=3200, **load),
        ttft_s(**load),
        ttft_s(input_tokens=800, **load),
    )
    assert rest * 0.9 < cached < 0.6 * whole


def test_tokens_per_second_are_of_the_burst_alone() -> None:
    case = case_of(
        msgspec.structs.replace(POINT, load="rate", load_value=np.inf, cached_tokens=3200)
    )
    outcome, _ = simulate(case, profile_of(case.worker).values())
    assert outcome.output_tokens == 4000
    assert outcome.duration_s < 60


def test_what_was_cached_has_to_be_said() -> None:
    with pytest.raises(InputError, match="what was cached is not said"):
        case_of(msgspec.structs.replace(POINT, prefix_tokens=1000))
    with pytest.raises(InputError, match="some prompts are no longer"):
        case_of(msgspec.structs.replace(POINT, cached_tokens=4000))
    off = POINT.deployment + ",prefix_caching=off"
    with pytest.raises(InputError, match="prefix caching is off"):
        case_of(msgspec.structs.replace(POINT, cached_tokens=1000, deployment=off))


def test_lengths_of_real_text_have_the_mean_and_spread_that_are_said() -> None:
    case = case_of(
        msgspec.structs.replace(POINT, input_tokens=500, length_spread=0.8, requests=4000)
    )
    assert case.inputs.mean() == pytest.approx(500, rel=0.05)
    assert case.inputs.std() / case.inputs.mean() == pytest.approx(0.8, rel=0.1)
    assert case.outputs.min() >= 2
