"""The compact loop that fits and `validate` use, beside the simulator: the same step times, lengths and rules."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from loadstone.calibrate import closed_loop
from loadstone.calibrate.deployments import rules_of
from loadstone.calibrate.sources import Arguments
from loadstone.catalogue.deployment import parse_deployment
from loadstone.options import Options, plan_of
from loadstone.perfmodel import StepModel
from loadstone.simulator.cell import run_cell
from loadstone.simulator.fleet import fleet_of

LLAMA = "llama-3.1-8b@1xh100"


@dataclass(frozen=True)
class Both:
    """TTFT and TPOT of each request, s, output tokens/s and preemptions, by either."""

    simulated: tuple[NDArray[np.float64], NDArray[np.float64], float, int]
    compact: tuple[NDArray[np.float64], NDArray[np.float64], float, int]

    def off(self, quantity: int, middle: str = "median") -> float:
        """|compact/simulated − 1|."""
        one, other = self.compact[quantity], self.simulated[quantity]
        return abs(float(getattr(np, middle)(one)) / float(getattr(np, middle)(other)) - 1)


def both(deployment: str, tokens: tuple[int, int], ratio: float, requests: int, **load: list[float]) -> Both:
    deployed = parse_deployment(deployment)
    fleet = fleet_of(deployed)
    assert isinstance(fleet.model, StepModel)
    assert fleet.replicas == 1
    text = {"input": str(tokens[0]), "output": str(tokens[1])}
    count = {"requests": [requests]} if "concurrency" in load else {"requests_per_rate": requests / load["rate"][0]}
    plan = plan_of(Options(**text, range_ratio=ratio, warmup=0, **count, **load))  # type: ignore[arg-type]
    done = run_cell(plan, 0, fleet)
    asked = done.asked
    inputs, outputs = np.array(asked.input_tokens), np.array(asked.output_tokens)
    sent, first = np.array(asked.sent_s_of), np.array(done.journal.first_s)
    end = np.array(done.end_s)
    simulated = (
        first + done.stream_s - sent,
        (end - first) / (outputs - 1),
        float(outputs.sum() / (end.max() + done.stream_s)),
        sum(replica.scheduler.preemptions for replica in done.replicas),
    )
    rules = rules_of(deployed, Arguments(), int(inputs.max()))
    users = int(load["concurrency"][0]) if "concurrency" in load else asked.count
    times = sent if "rate" in load else None
    found = closed_loop.run(fleet.model, rules, users, inputs, outputs, 3, times)
    rate = found.output_tokens / found.duration_s
    return Both(simulated, (found.ttft_s, found.tpot_s, rate, found.preemptions))


@pytest.mark.parametrize(
    ("deployment", "tokens", "ratio", "users"),
    [
        (LLAMA, (1024, 128), 1.0, 1),
        (LLAMA, (1024, 128), 1.0, 32),
        (LLAMA, (1024, 128), 0.5, 32),
        (f"{LLAMA}/engine=sglang", (1024, 128), 1.0, 32),
        (f"{LLAMA}/engine=sglang", (4000, 300), 0.8, 128),
        (f"{LLAMA}/engine=tensorrt-llm", (1024, 128), 1.0, 32),
        (f"{LLAMA}/engine=tensorrt-llm", (2000, 1000), 0.5, 400),
        ("llama-3.1-70b:fp8@4xh200/tp4,engine=sglang", (1024, 1024), 0.8, 64),
        ("deepseek-r1@8xh200/tp8,engine=sglang,version=0.4.3", (3200, 800), 1.0, 128),
    ],
)
def test_closed_loops_agree(deployment: str, tokens: tuple[int, int], ratio: float, users: int) -> None:
    found = both(deployment, tokens, ratio, 6 * max(users, 10), concurrency=[users])
    assert found.off(0) < 0.03
    assert found.off(0, "mean") < 0.04
    assert found.off(1) < 0.01
    assert found.off(1, "mean") < 0.015
    assert found.off(2) < 0.01


@pytest.mark.parametrize(
    ("deployment", "tokens", "ratio", "users"),
    [
        (LLAMA, (4000, 300), 0.8, 128),
        (LLAMA, (2000, 1000), 0.5, 400),
        ("llama-3.1-8b@1xl4", (2000, 500), 0.8, 64),
    ],
)
def test_they_agree_where_the_cache_runs_short(
    deployment: str, tokens: tuple[int, int], ratio: float, users: int
) -> None:
    found = both(deployment, tokens, ratio, 6 * users, concurrency=[users])
    assert found.simulated[3] > 20
    assert found.compact[3] == pytest.approx(found.simulated[3], rel=0.4)
    assert found.off(0) < 0.04
    assert found.off(1) < 0.02
    assert found.off(2) < 0.03


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_requests_at_given_times_agree(engine: str) -> None:
    found = both(f"{LLAMA}/engine={engine}", (1024, 256), 0.5, 300, rate=[12.0])
    assert found.off(0) < 0.03
    assert found.off(1) < 0.01
    assert found.off(2) < 0.01
