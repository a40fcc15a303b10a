"""Whether an open loop keeps up: queues of known capacity, in whichever order they are taken, and
chance."""

import heapq

import numpy as np
import pytest

from loadstone.core import arrays
from loadstone.core.pace import Behind, Pace, pace_of
from loadstone.core.plan import Load

Floats = np.ndarray
TTFT_S, ITL_S, PLACES = 0.04, 0.008, 4


def taken(due_s: Floats, took_s: Floats, order: str, places: int = PLACES) -> Floats:
    """When each is taken up by a server of so many places: in turn, the shortest or the newest
    first."""
    began_s, ends, queue, index = (
        np.zeros(len(due_s)),
        [-np.inf] * places,
        list[tuple[float, int]](),
        0,
    )
    while index < len(due_s) or queue:
        free_s = ends[0] if queue else max(ends[0], due_s[index])
        while index < len(due_s) and due_s[index] <= free_s:
            key = {"in turn": index, "shortest": took_s[index], "newest": -index}[order]
            heapq.heappush(queue, (float(key), index))
            index += 1
        _, which = heapq.heappop(queue)
        began_s[which] = max(free_s, due_s[which])
        heapq.heapreplace(ends, began_s[which] + took_s[which])
    return began_s


def pace(
    order: str,
    rate: float,
    count: int,
    seed: int,
    tokens: tuple[int, int] = (64, 64),
    known: bool = False,
) -> Pace:
    """`order`: also `router`: every third request to one place, the others to four. Four take 7.35
    requests/s."""
    rng = np.random.default_rng(seed)
    warm = max(1, round(min(rate, count / 10)))
    rows = np.zeros(warm + count, arrays.ROW)
    rows["measured"][warm:] = True
    warm_s, due_s = rng.uniform(-warm / rate, 0, warm), rng.uniform(0, count / rate, count)
    rows["intended"] = rows["sent"] = np.sort(np.concatenate([warm_s, due_s]))
    rows["tokens"] = rng.integers(tokens[0], tokens[1] + 1, len(rows))
    took_s, small = TTFT_S + ITL_S * (rows["tokens"] - 1), np.arange(len(rows)) % 3 == 0
    if order == "router":
        for those, places in ((small, 1), (~small, PLACES)):
            rows["first"][those] = taken(rows["sent"][those], took_s[those], "in turn", places)
        rows["replica"] = np.where(small & known, 1.0, 0.0)
    else:
        rows["first"] = taken(rows["sent"], took_s, order)
    rows["last"] = rows["end"] = rows["first"] + took_s
    rows["first"] += TTFT_S
    return pace_of(Load("rate", rate), rows)


@pytest.mark.parametrize(
    ("order", "rate", "count", "tokens"),
    [
        ("shortest", 12, 300, (8, 120)),
        ("shortest", 9, 300, (8, 120)),
        ("newest", 11, 300, (64, 64)),
        ("router", 9, 270, (64, 64)),
        ("in turn", 9, 150, (64, 64)),
        ("in turn", 30, 48, (64, 64)),
        ("in turn", 30, 16, (64, 64)),
        ("newest", 15, 48, (64, 64)),
    ],
)
def test_what_is_too_much_shows_in_whichever_order_it_is_taken(
    order: str, rate: float, count: int, tokens: tuple[int, int]
) -> None:
    found = [pace(order, rate, count, seed, tokens).keeps_up for seed in range(40)]
    assert found.count(False) >= 39


@pytest.mark.parametrize("order", ["in turn", "shortest", "newest"])
@pytest.mark.parametrize("count", [16, 48, 100, 300])
def test_four_fifths_of_the_capacity_is_not_too_much(order: str, count: int) -> None:
    found = [pace(order, 0.8 * 7.35, count, seed, (8, 120)).keeps_up for seed in range(50)]
    assert found.count(False) <= 1
    assert found.count(True) >= {16: 0, 48: 30, 100: 40, 300: 45}[count]


def test_the_server_of_a_fleet_that_does_not_keep_up_is_named() -> None:
    found = pace("router", 9, 150, 1, known=True)
    assert found.keeps_up is False
    assert isinstance(found.why, Behind)
    few = [pace("router", 6.5, 600, seed, known=True) for seed in range(10)]
    assert sum(each.keeps_up is False for each in few) >= 8


def test_waits_that_are_long_by_chance_are_no_queue() -> None:
    wrong = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        rows = np.zeros(100, arrays.ROW)
        rows["measured"], rows["tokens"] = True, rng.integers(8, 120, 100)
        rows["intended"] = rows["sent"] = np.sort(rng.uniform(0, 5, 100))
        rows["first"] = rows["sent"] + rng.lognormal(-2, 0.8, 100)
        rows["last"] = rows["end"] = rows["first"] + 0.01 * rows["tokens"]
        wrong += pace_of(Load("rate", 20.0), rows).keeps_up is False
    assert wrong <= 2


def test_requests_that_never_end_and_too_few_tell_nothing() -> None:
    rows = np.zeros(60, arrays.ROW)
    rows["measured"], rows["intended"] = True, np.arange(60.0)
    for name in ("first", "last", "end", "tokens"):
        rows[name] = np.nan
    assert pace_of(Load("rate", 1.0), rows).keeps_up is False
    assert pace_of(Load("rate", 1.0), rows[:40]).keeps_up is None
    assert pace_of(Load("rate", 1.0), rows[:1]).keeps_up is None
