"""recommend --autoscale: the target and the least replicas that hold the bounds for the least
cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from asked import plans
from loadstone.core.errors import InputError
from loadstone.recommend.tell.text import remarks

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten minutes: a request a second, and for three of the minutes eight."""
    path = tmp_path_factory.mktemp("trace") / "day.csv"
    rates = [8 if 240 <= at < 420 else 1 for at in range(600)]
    times = [at + n / rate for at, rate in enumerate(rates) for n in range(rate)]
    rows = "".join(f"{time_s:.3f},512,128\n" for time_s in times)
    path.write_text("timestamp_s,input_tokens,output_tokens\n" + rows)
    return path


@pytest.mark.slow  # the page about autoscalers runs one
def test_an_autoscaler_is_chosen_beside_the_static_fleet(day: Path) -> None:
    asked = {"trace": day, "every": "1m", "start_up": "15s", "growth": 10, "plans": 1}
    asked |= {"input": None, "output": None, "rate": None, "autoscale": ("keda", "planner")}
    document = plans(**asked)
    keda, planner = document.autoscaled
    assert (keda.autoscaler, planner.autoscaler) == ("keda", "planner")
    assert (keda.metric, planner.metric) == ("running", None)
    assert keda.static is not None
    assert keda.static.met
    assert keda.point.met
    assert keda.max == 2 * round(keda.static.replicas)
    # With as many replicas at least as hold all the time, it holds, for as much.
    assert keda.point.gpu_hours <= 1.05 * keda.static.gpu_hours
    told = [line for line in remarks(document) if line.startswith("Plan 1 under ")]
    assert len(told) == 2
    assert f"running {keda.target:g} a replica, {keda.min} to {keda.max} replicas" in told[0]
    assert "holds the bounds by the best prediction" in told[0]


def test_replicas_follow_a_trace_alone() -> None:
    with pytest.raises(InputError, match="--autoscale: replicas follow a trace"):
        plans(autoscale=("keda",))
