from __future__ import annotations

import numpy as np
import pytest

from loadstone.core.errors import InputError
from loadstone.workload.lengths import Think, parse_think


def test_a_pause_is_fixed_or_drawn() -> None:
    assert parse_think("2s") == Think("fixed", 2.0)
    assert parse_think("uniform:1s:3s") == Think("uniform", 2.0, low_s=1.0, high_s=3.0)
    assert parse_think("exponential:500ms") == Think("exponential", 0.5)
    assert parse_think("lognormal:2s:0.5") == Think("lognormal", 2.0, sd=0.5)


def test_drawn_pauses_are_what_they_say() -> None:
    def draw(text: str) -> np.ndarray:
        return parse_think(text).draw(np.random.default_rng(0), 20_000)

    assert set(draw("2s")) == {2.0}
    even = draw("uniform:1s:3s")
    assert 1 <= even.min() < 1.01
    assert 2.99 < even.max() <= 3
    assert draw("exponential:2s").mean() == pytest.approx(2, rel=0.05)
    assert np.median(draw("lognormal:2s:0.5")) == pytest.approx(2, rel=0.05)
    assert np.log(draw("lognormal:2s:0.5")).std() == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize(
    "text", ["", "soon", "uniform:1s", "uniform:3s:1s", "lognormal:0s:1", "normal:1s:2s", "-1s"]
)
def test_what_is_no_pause_is_told(text: str) -> None:
    with pytest.raises(InputError, match="--think-time"):
        parse_think(text)
