from dataclasses import replace

import msgspec
import numpy as np
import pytest

from loadstone.core.plan import Load, Plan
from loadstone.core.record import RequestRecord
from loadstone.workload.dataset import Dataset
from loadstone.workload.lengths import Length
from loadstone.workload.schedule import make_plan
from loadstone.workload.synthetic import Synthetic

WORKLOAD = Synthetic(Length("uniform", 60, low=20, high=100), Length("uniform", 5, low=2, high=8))
LOADS = [Load("concurrency", 2), Load("rate", 4.0), Load("burst", 3)]


def plan(seed: int = 0, loads: list[Load] = LOADS, **options: object) -> Plan:
    return make_plan(WORKLOAD, loads, seed=seed, **options)  # type: ignore[arg-type]


def test_what_is_missing_in_a_record_is_none() -> None:
    record = RequestRecord(request_id="0-0", cell=0, phase="measure", status="ok")
    given = {"request_id": "0-0", "cell": 0, "phase": "measure", "status": "ok"}
    empty = {"arrival_s": [], "read": [], "tokens": []}
    others = {name: None for name in RequestRecord.__struct_fields__ if name not in given | empty}
    assert msgspec.to_builtins(record) == {**given, **empty, **others}


def test_records_do_not_share_their_lists() -> None:
    one = RequestRecord(request_id="0-0", cell=0, phase="measure", status="ok")
    one.arrival_s.append(1.0)
    assert RequestRecord(request_id="0-1", cell=0, phase="measure", status="ok").arrival_s == []


def test_same_seed_same_plan_and_another_seed_another_plan() -> None:
    ids = [plan(seed).plan_id for seed in (0, 1, 2, 2**40)]
    assert ids == [plan(seed).plan_id for seed in (0, 1, 2, 2**40)]
    assert len(set(ids)) == 4
    assert all(len(one) == 12 for one in ids)


def test_the_id_changes_with_everything_that_a_plan_asks() -> None:
    base = plan()
    texts = replace(base, prompt=np.zeros_like(base.prompt), prompts=["a"])
    others = [
        base,
        texts,
        replace(texts, prompts=["b"]),
        replace(texts, chat=True),
        replace(base, exact_output=False),
        replace(base, output_tokens=base.output_tokens + 1),
        replace(base, intended_s=base.intended_s + 1),
        replace(base, cells=(*LOADS[:2], Load("burst", 3, max_concurrency=2))),
    ]
    assert len({one.plan_id for one in others}) == len(others)


def test_the_id_does_not_depend_on_how_prompts_are_kept() -> None:
    base = plan()
    first = np.arange(len(base), dtype=np.int32) % 2
    kept = replace(base, prompt=first, prompts=["a", "b"])
    turned = replace(base, prompt=1 - first, prompts=["b", "a", "never used"])
    assert kept.plan_id == turned.plan_id
    assert replace(base, prompt=first, prompts=["ab", ""]).plan_id != kept.plan_id


def test_rows_and_warm_up_of_each_cell() -> None:
    made = plan(requests=[5, 6, 3], warmup=2)
    assert [made.rows(cell) for cell in range(3)] == [range(7), range(7, 15), range(15, 20)]
    assert [made.warmup_count(cell) for cell in range(3)] == [2, 2, 2]
    assert len(made) == 20
    assert [r.request_id for r in made][5:9] == ["0-5", "0-6", "1-0", "1-1"]


def test_a_request_is_its_row() -> None:
    made = plan(requests=[5, 6, 3], warmup=2)
    request = made.request(1, 2)
    assert (request.cell, request.index, request.phase, request.request_id) == (
        1,
        2,
        "measure",
        "1-2",
    )
    assert request.intended_s == made.intended_s[9]
    assert request.input_tokens == made.input_tokens[9]
    assert request.output_tokens == made.output_tokens[9]
    assert (request.prefix_group, request.prefix_tokens, request.prompt, request.chat) == (
        None,
        0,
        None,
        False,
    )
    assert made.request(0, 0).intended_s is None
    assert made.request(0, 1).phase == "warmup"


@pytest.mark.parametrize("index", [7, 100, -1])
def test_there_is_no_request_past_the_end(index: int) -> None:
    with pytest.raises(IndexError, match="cell 0 has 7 requests"):
        plan(requests=[5, 6, 3], warmup=2).request(0, index)


def test_a_closed_loop_by_time_goes_round_its_measured_rows() -> None:
    made = plan(loads=[Load("concurrency", 2, duration_s=1.0)], warmup=3)
    lap = len(made) - 3
    assert made.cyclic(0)
    assert lap == 1024
    for index in (3, 4, 3 + lap - 1):
        first, again = made.request(0, index), made.request(0, index + 2 * lap)
        assert (again.index, again.phase) == (index + 2 * lap, "measure")
        assert (again.input_tokens, again.output_tokens) == (
            first.input_tokens,
            first.output_tokens,
        )
    assert made.request(0, 0).phase == "warmup"
    with pytest.raises(IndexError):
        made.request(0, -1)


@pytest.mark.parametrize(
    "load", [Load("rate", 5, duration_s=1.0), Load("concurrency", 2), Load("burst", 2)]
)
def test_other_cells_do_not_go_round(load: Load) -> None:
    assert not plan(loads=[load]).cyclic(0)


def test_a_dataset_s_requests_say_whether_they_are_messages() -> None:
    for format, chat in (
        ("sharegpt", True),
        ("messages", True),
        ("prompts", False),
        ("text", False),
    ):
        data = Dataset(format, ['[{"role":"user","content":"hi"}]'], [4], "00", 0)
        assert [r.chat for r in make_plan(data, [Load("burst", 2)])] == [chat] * 3


@pytest.mark.parametrize(
    ("load", "label"),
    [
        (Load("concurrency", 8), "concurrency 8"),
        (Load("rate", 0.5), "0.5 req/s"),
        (Load("burst", 32), "burst of 32"),
    ],
)
def test_labels(load: Load, label: str) -> None:
    assert load.label == label


def test_a_plans_id_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = plan()
    identifier = made.plan_id
    monkeypatch.setattr("hashlib.sha256", lambda *_: pytest.fail("made anew"))
    assert made.plan_id == identifier
