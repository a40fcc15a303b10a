import math

import numpy as np
import pytest

from loadstone.core.errors import InputError
from loadstone.core.plan import Load, Plan
from loadstone.workload.arrivals import SPANS, arrivals, default_requests, default_warmup
from loadstone.workload.dataset import Dataset
from loadstone.workload.draw import CYCLE_MIN_REQUESTS
from loadstone.workload.lengths import Length, Sessions, Think
from loadstone.workload.options import Options
from loadstone.workload.planning import plan_of
from loadstone.workload.schedule import make_plan
from loadstone.workload.synthetic import Synthetic

FIXED = Synthetic(Length("fixed", 64), Length("fixed", 40))
MIXED = Synthetic(Length("uniform", 60, low=20, high=100), Length("uniform", 50, low=1, high=99))


def data(count: int, tokens: int | None = 5) -> Dataset:
    return Dataset("text", [f"prompt {i}" for i in range(count)], [tokens] * count, "00", 0)


def measured(plan: Plan, cell: int, column: str) -> list[float]:
    rows = plan.rows(cell)
    return getattr(plan, column)[rows.start + plan.warmup_count(cell) : rows.stop].tolist()


def warm(plan: Plan, cell: int, column: str) -> list[float]:
    rows = plan.rows(cell)
    return getattr(plan, column)[rows.start : rows.start + plan.warmup_count(cell)].tolist()


def texts(plan: Plan, cell: int, phase: str) -> list[str | None]:
    return [request.prompt for request in plan if request.cell == cell and request.phase == phase]


def test_constant_arrivals() -> None:
    load = Load("rate", 4.0, process="constant")
    assert arrivals(load, 4, np.random.default_rng(0)).tolist() == [0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize(
    ("load", "variation"),
    [
        (Load("rate", 5.0), 1.0),
        (Load("rate", 5.0, process="gamma", burstiness=0.25), 2.0),
        (Load("rate", 5.0, process="gamma", burstiness=4.0), 0.5),
    ],
)
def test_random_arrivals_have_the_rate_and_the_variation_asked_for(
    load: Load, variation: float
) -> None:
    gaps = np.diff(arrivals(load, 50_000, np.random.default_rng(0)), prepend=0.0)
    assert gaps.min() >= 0
    assert gaps.mean() == pytest.approx(0.2, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.03)


@pytest.mark.parametrize(
    ("load", "requests", "warmup"),
    [
        (Load("burst", 7), 7, 1),
        (Load("rate", 0.1), 32, 1),
        (Load("rate", 2.5), 150, 3),
        (Load("rate", 100, max_concurrency=8), 6000, 8),
        (Load("concurrency", 1), 32, 1),
        (Load("concurrency", 16), 256, 16),
        (Load("concurrency", 256), 2048, 256),
    ],
)
def test_how_many_requests_when_nothing_is_said(load: Load, requests: int, warmup: int) -> None:
    assert (default_requests(load), default_warmup(load)) == (requests, warmup)
    plan = make_plan(FIXED, [load])
    assert (len(plan), plan.warmup_count(0)) == (requests + warmup, warmup)


def test_arrivals_last_for_several_times_as_long_as_a_request() -> None:
    load = Load("rate", 2.0)
    assert [default_requests(load, e2e_s) for e2e_s in (0, 0.9, 12, 12.1, 59)] == [
        120,
        120,
        120,
        240,
        960,
    ]
    for value in (0.1, 3.3, 50):
        for e2e_s in (1.0, 30.0, 200.0):
            assert default_requests(Load("rate", value), e2e_s) / value >= SPANS * e2e_s
    assert default_requests(Load("concurrency", 16), 59) == 256
    assert default_requests(Load("burst", 7), 59) == 7


def test_the_warm_up_of_a_rate_is_at_most_a_tenth_of_what_is_measured() -> None:
    loads = [Load("rate", 1e4), Load("rate", 2.0)]
    plan = make_plan(FIXED, loads, requests=[100, 100])
    assert [plan.warmup_count(cell) for cell in (0, 1)] == [10, 2]
    short = make_plan(FIXED, [Load("rate", 1000.0, "constant", duration_s=0.05)])
    assert (short.warmup_count(0), len(short) - short.warmup_count(0)) == (
        5,
        pytest.approx(50, abs=1),
    )
    # A closed loop's places are all taken, however few requests are measured.
    assert make_plan(FIXED, [Load("concurrency", 16)], requests=[4]).warmup_count(0) == 16


def test_requests_per_cell_count_the_measured_ones_alone() -> None:
    plan = make_plan(FIXED, [Load("rate", 1.0), Load("rate", 2.0)], requests=[10, 20], warmup=3)
    assert [len(plan.rows(cell)) for cell in (0, 1)] == [13, 23]
    assert [plan.warmup_count(cell) for cell in (0, 1)] == [3, 3]
    assert make_plan(FIXED, [Load("rate", 1.0)], requests=[4], warmup=0).phase.tolist() == [
        1,
        1,
        1,
        1,
    ]


def test_the_warm_up_comes_first_in_each_cell() -> None:
    plan = make_plan(FIXED, [Load("burst", 3), Load("burst", 2)], warmup=2)
    assert plan.phase.tolist() == [0, 0, 1, 1, 1, 0, 0, 1, 1]
    assert plan.cell.tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1]
    assert plan.intended_s.tolist() == [0.0] * 9


def test_measured_lengths_are_the_same_in_every_cell_whatever_the_warm_up() -> None:
    plan = make_plan(MIXED, [Load("concurrency", c) for c in (1, 4, 16)], requests=[20, 30, 50])
    for column in ("input_tokens", "output_tokens"):
        longest = measured(plan, 2, column)
        assert measured(plan, 0, column) == longest[:20]
        assert measured(plan, 1, column) == longest[:30]
        assert len(set(longest)) > 20
    other = make_plan(MIXED, [Load("concurrency", 4)], requests=[30], warmup=0)
    assert measured(other, 0, "input_tokens") == measured(plan, 1, "input_tokens")


def test_a_closed_loop_has_no_intended_times_and_begins_as_if_long_under_way() -> None:
    plan = make_plan(FIXED, [Load("concurrency", 4)], requests=[6])
    assert np.isnan(plan.intended_s).all()
    assert warm(plan, 0, "output_tokens") == [10, 20, 30, 40]
    assert measured(plan, 0, "output_tokens") == [40] * 6
    one = Synthetic(Length("fixed", 64), Length("fixed", 1))
    assert warm(make_plan(one, [Load("concurrency", 4)]), 0, "output_tokens") == [1, 1, 1, 1]


def test_only_a_closed_loop_staggers_its_warm_up() -> None:
    assert warm(make_plan(FIXED, [Load("rate", 4.0)]), 0, "output_tokens") == [40] * 4


def test_a_plan_says_how_its_users_begin() -> None:
    load = Load("concurrency", 4)
    assert make_plan(FIXED, [load]).workload["start"] == "staggered"
    assert make_plan(FIXED, [load], warmup=0).workload["start"] == "together"
    assert "start" not in make_plan(FIXED, [Load("rate", 4.0)]).workload


def test_users_that_begin_together_have_no_warm_up() -> None:
    asked = {"input": "64", "output": "40", "start": "together"}
    plan = plan_of(Options.read(**asked, concurrency=[4], requests=[12]))
    assert (plan.warmup_count(0), plan.workload["start"]) == (0, "together")
    with pytest.raises(InputError, match="--start together: a closed loop starts so"):
        plan_of(Options.read(**asked, rate=[4.0]))
    with pytest.raises(InputError, match="--start together and --warmup"):
        plan_of(Options.read(**asked, concurrency=[4], warmup=4))


def test_a_seed_draws_each_purpose_apart() -> None:
    loads = [Load("rate", 5.0), Load("rate", 5.0)]
    plan = make_plan(MIXED, loads, seed=3, requests=[50, 50], warmup=0)
    assert measured(plan, 0, "intended_s") != measured(plan, 1, "intended_s")
    grouped = make_plan(
        Synthetic(MIXED.input, MIXED.output, prefix_tokens=8, prefix_groups=3),
        loads,
        seed=3,
        requests=[50, 50],
        warmup=0,
    )
    for column in ("input_tokens", "output_tokens", "intended_s"):
        assert (getattr(plan, column) == getattr(grouped, column)).all()
    other = make_plan(MIXED, loads, seed=4, requests=[50, 50], warmup=0)
    for column in ("input_tokens", "output_tokens", "intended_s"):
        assert (getattr(plan, column) != getattr(other, column)).any()


@pytest.mark.parametrize("warmup", [0, 5])
@pytest.mark.parametrize("process", ["poisson", "constant"])
def test_a_rate_by_time_intends_everything_within_the_duration(process: str, warmup: int) -> None:
    load = Load("rate", 20.0, process=process, duration_s=10.0)  # type: ignore[arg-type]
    plan = make_plan(FIXED, [load], warmup=warmup)
    start = warm(plan, 0, "intended_s")[-1] if warmup else 0.0
    times = measured(plan, 0, "intended_s")
    lead = warmup / 20.0
    assert all(start <= lead < time < lead + 10.0 + 1e-9 for time in times)
    assert len(times) == 200
    assert len(plan) == len(plan.input_tokens) == len(plan.prompt) == len(times) + warmup


def test_very_uneven_arrivals_still_fill_the_duration() -> None:
    load = Load("rate", 1.0, process="gamma", burstiness=0.01, duration_s=50.0)
    last = [make_plan(FIXED, [load], seed=seed, warmup=0).intended_s[-1] for seed in range(20)]
    assert all(time <= 50.0 for time in last)
    assert max(last) > 30.0


def test_a_duration_has_at_least_one_request() -> None:
    plan = make_plan(FIXED, [Load("rate", 0.001, process="constant", duration_s=1.0)], warmup=0)
    assert plan.intended_s.tolist() == [1.0]


@pytest.mark.parametrize(
    "sessions", [None, Sessions(Length("uniform", 3, low=2, high=4), Think("fixed", 0.0))]
)
@pytest.mark.parametrize("rate", [1.0, 2.0])
def test_every_seed_has_the_rate_that_was_asked_for(rate: float, sessions: Sessions | None) -> None:
    """Over 20 seeds, measured requests fill the time that so many take, right after the
    warm-up's."""
    for seed in range(20):
        plan = make_plan(
            FIXED, [Load("rate", rate)], seed=seed, sessions=sessions, requests=[120], warmup=4
        )
        times = np.array(measured(plan, 0, "intended_s"))
        times = times[~np.isnan(times)] - 4 / rate
        assert len(times) == 120 or sessions is not None
        assert times.min() > 0
        assert 0.8 * len(times) / rate < times.max() < len(times) / rate


def test_the_warm_up_moves_arrivals_as_a_whole() -> None:
    with_it, without = (
        make_plan(FIXED, [Load("rate", 2.0)], requests=[30], warmup=warmup) for warmup in (4, 0)
    )
    assert np.subtract(measured(with_it, 0, "intended_s"), 2.0) == pytest.approx(
        measured(without, 0, "intended_s")
    )


def test_a_closed_loop_by_time_goes_round_enough_requests() -> None:
    for value, lap in ((2, CYCLE_MIN_REQUESTS), (500, 2000)):
        plan = make_plan(FIXED, [Load("concurrency", value, duration_s=60.0)], warmup=1)
        assert plan.cyclic(0)
        assert len(plan) == lap + 1


def test_prefix_groups() -> None:
    workload = Synthetic(Length("fixed", 64), Length("fixed", 2), prefix_tokens=32, prefix_groups=4)
    plan = make_plan(workload, [Load("burst", 400)], warmup=0)
    counts = np.bincount(plan.prefix_group)
    assert len(counts) == 4
    assert counts.min() > 70
    assert set(plan.prefix_tokens.tolist()) == {32}
    assert set(make_plan(FIXED, [Load("burst", 4)]).prefix_group.tolist()) == {-1}


def test_a_dataset_is_asked_in_an_order_shuffled_by_the_seed() -> None:
    plans = [make_plan(data(50), [Load("burst", 50)], seed=seed, warmup=0) for seed in (0, 0, 1)]
    order, again, other = (texts(plan, 0, "measure") for plan in plans)
    assert order == again
    assert order != other
    assert sorted(map(str, order)) == sorted(data(50).prompts) == sorted(map(str, other))
    assert plans[0].plan_id == plans[1].plan_id != plans[2].plan_id


def test_a_dataset_s_warm_up_takes_other_prompts_while_there_are_enough() -> None:
    plan = make_plan(data(30), [Load("concurrency", 10)], requests=[20])
    assert not set(texts(plan, 0, "warmup")) & set(texts(plan, 0, "measure"))
    assert len(set(texts(plan, 0, "warmup"))) == 10
    small = make_plan(data(3), [Load("concurrency", 10)], requests=[20])
    assert len(small) == 30
    assert len(small.prompts) == 3


def test_every_cell_measures_the_same_prompts_of_a_dataset() -> None:
    plan = make_plan(data(100), [Load("concurrency", 1), Load("concurrency", 8)], requests=[20, 20])
    assert texts(plan, 0, "measure") == texts(plan, 1, "measure")


def test_a_dataset_s_unused_prompts_are_not_kept() -> None:
    plan = make_plan(data(1000), [Load("burst", 5)], warmup=0)
    assert plan.prompts == texts(plan, 0, "measure")
    assert plan.prompt.tolist() == [0, 1, 2, 3, 4]


def test_output_lengths_come_from_the_file_or_else_from_the_flag() -> None:
    mixed = Dataset("text", ["a", "b", "c"], [7, None, 9], "00", 0)
    plan = make_plan(mixed, [Load("burst", 3)], warmup=0, output=Length("fixed", 50))
    assert {request.prompt: request.output_tokens for request in plan} == {"a": 7, "b": 50, "c": 9}
    assert plan.exact_output
    assert plan.input_tokens.tolist() == [-1, -1, -1]
    assert not make_plan(data(3), [Load("burst", 3)]).exact_output
    with pytest.raises(
        InputError, match=r"^--output: the dataset does not say how long answers should be"
    ):
        make_plan(mixed, [Load("burst", 3)])


def test_a_plan_describes_its_workload() -> None:
    assert make_plan(FIXED, [Load("burst", 1)]).workload["kind"] == "synthetic"
    described = make_plan(data(3), [Load("burst", 1)], output=Length("fixed", 50)).workload
    assert {name: described[name] for name in ("kind", "format", "sha256", "prompts", "skipped")} == {
        "kind": "dataset", "format": "text", "sha256": "00", "prompts": 3, "skipped": 0,
    }  # fmt: skip
    assert described["output"]["mean"] == 50
    assert not math.isnan(described["output"]["sd"])
