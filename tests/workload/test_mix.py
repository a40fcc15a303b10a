from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.core.plan import Plan
from loadstone.workload.mix import divide
from loadstone.workload.options import SimulateOptions
from loadstone.workload.planning import plan_of

CHAT = "chat,share=0.7,input=lognormal:600:0.8,output=uniform:10:200,slo=ttft_p99<1s,tpot_p99<30ms"
BATCH = "batch,share=0.3,input=4k,output=400,priority=low"


def mixed(*classes: str, **others: Any) -> Plan:
    options = {"deployment": "llama-3.1-8b@1xh100", "rate": "10", "requests": "100"} | others
    return plan_of(SimulateOptions.read(class_=list(classes), **options))


def rows_of(plan: Plan, number: int) -> np.ndarray[Any, Any]:
    assert plan.traffic_class is not None
    return np.flatnonzero(plan.traffic_class == number)


def measured_of(plan: Plan, number: int) -> np.ndarray[Any, Any]:
    rows = rows_of(plan, number)
    return rows[plan.phase[rows] == 1]


def test_every_class_gets_its_share_to_a_request_and_its_own_lengths() -> None:
    plan = mixed(CHAT, BATCH)
    assert [len(measured_of(plan, number)) for number in (0, 1)] == [70, 30]
    assert set(plan.input_tokens[rows_of(plan, 1)]) == {4096}
    assert plan.classes[0].slo == {"ttft_p99": 1.0, "tpot_p99": 0.03}
    assert plan.classes[1].priority == -1
    assert (np.diff(plan.intended_s) >= 0).all()
    assert (np.diff(plan.phase.astype(int)) >= 0).all()
    last_s = [plan.intended_s[measured_of(plan, number)].max() for number in (0, 1)]
    assert all(8 < time_s < 11.1 for time_s in last_s)


def test_another_class_changes_nothing_of_a_class() -> None:
    alone, both = (
        mixed(CHAT.replace("share=0.7", "rate=7"), rate=None, requests="70"),
        mixed(CHAT.replace("share=0.7", "rate=7"), BATCH),
    )
    for column in ("input_tokens", "output_tokens"):
        in_both = getattr(both, column)[measured_of(both, 0)]
        assert in_both.tolist() == getattr(alone, column)[measured_of(alone, 0)].tolist()
    warm_up_s = [plan.intended_s[measured_of(plan, 0)][0] for plan in (alone, both)]
    times_s = [
        plan.intended_s[measured_of(plan, 0)] - first_s
        for plan, first_s in zip((alone, both), warm_up_s, strict=True)
    ]
    np.testing.assert_allclose(*times_s, rtol=1e-9)


@pytest.mark.parametrize(
    "workload",
    [
        {"input": "lognormal:600:0.8", "output": "uniform:10:200"},
        {"input": "64", "output": "20", "turns": "3", "think_time": "1s"},
        {"input": "512", "output": "20", "prefix": "256", "prefix_groups": "4"},
    ],
)
def test_a_mix_of_one_class_is_the_run_without_classes(workload: dict[str, str]) -> None:
    keys = ",".join(f"{name}={value}" for name, value in workload.items())
    mix = mixed(f"all,share=1,{keys}")
    options = {"deployment": "llama-3.1-8b@1xh100", "rate": "10", "requests": "100"}
    plain = plan_of(SimulateOptions.read(**options, **workload))
    assert mix.cells == plain.cells
    for column in Plan.COLUMNS:
        np.testing.assert_array_equal(getattr(mix, column), getattr(plain, column))


def test_sessions_of_a_class_stay_whole_between_requests_of_others() -> None:
    plan = mixed("agents,share=0.2,input=64,output=20,turns=4,think_time=2s", BATCH)
    turns = plan.turn[rows_of(plan, 0)]
    assert turns.tolist() == [0, 1, 2, 3] * (len(turns) // 4)
    first = np.flatnonzero(plan.turn == 0)
    assert (plan.traffic_class[first + 3] == 0).all()  # type: ignore[index]
    assert set(plan.turn[rows_of(plan, 1)]) == {-1}


def test_groups_of_prefixes_are_not_shared_by_classes() -> None:
    text = "share=1,input=512,output=8,prefix=256,prefix_groups=2"
    plan = mixed(f"a,{text}", f"b,{text}")
    groups = [set(plan.prefix_group[rows_of(plan, number)]) for number in (0, 1)]
    assert len(groups[0]) == len(groups[1]) == 2
    assert not groups[0] & groups[1]


def test_slots_make_a_closed_loop_by_time() -> None:
    plan = mixed(
        "a,slots=3,input=8,output=4", "b,slots=5,input=8,output=40", rate=None, requests=None
    )
    (load,) = plan.cells
    assert load.is_closed
    assert (load.value, load.duration_s) == (8, 60.0)
    assert plan.class_slots == [3, 5]
    assert plan.warmup_count(0) == 8


def test_a_plan_with_classes_is_stored_and_taken_in_part(tmp_path: Path) -> None:
    plan = mixed(CHAT, BATCH)
    run_folder.write_plan(tmp_path / "plan.parquet", plan)
    again = run_folder.read_plan(tmp_path / "plan.parquet")
    assert again.plan_id == plan.plan_id
    assert again.classes == plan.classes
    without = again.take(rows_of(again, 0))
    assert without.plan_id != plan.plan_id
    assert set(without.traffic_class.tolist()) == {0}  # type: ignore[union-attr]


def test_texts_of_two_files_are_kept_apart(tmp_path: Path) -> None:
    for name in ("left", "right"):
        lines = "".join(f'{{"prompt": "{name} {number}"}}\n' for number in range(5))
        (tmp_path / f"{name}.jsonl").write_text(lines)
    plan = mixed(
        *(f"{name},share=1,dataset={tmp_path / name}.jsonl,output=8" for name in ("left", "right"))
    )
    for number, name in enumerate(("left", "right")):
        texts = {plan.prompts[place] for place in plan.prompt[rows_of(plan, number)]}
        assert len(texts) == 5
        assert all(text.startswith(name) for text in texts)


def test_a_file_says_the_same_as_flags(tmp_path: Path) -> None:
    path = tmp_path / "mix.yaml"
    path.write_text(
        "mix: 1\nclasses:\n"
        "  - {name: chat, share: 70%, input: 'lognormal:600:0.8', output: 'uniform:10:200',"
        " slo: 'ttft_p99<1s,tpot_p99<30ms'}\n"
        "  - {name: batch, share: 0.3, input: 4k, output: 400, priority: low}\n"
    )
    options = {"deployment": "llama-3.1-8b@1xh100", "rate": "10", "requests": "100"}
    assert plan_of(SimulateOptions.read(mix=path, **options)).plan_id == mixed(CHAT, BATCH).plan_id


def test_whole_numbers_are_divided_by_the_largest_remainder() -> None:
    assert divide(10, [0.1] * 10) == [1] * 10
    assert divide(100, [0.333, 0.333, 0.334]) == [33, 33, 34]
    assert sum(divide(7, [0.5, 0.3, 0.2])) == 7


@pytest.mark.parametrize(
    ("classes", "others", "message"),
    [
        (["chat,input=8"], {}, "class chat: needs one of share, rate .* and slots"),
        (["chat,share=1,inptu=8"], {}, "class chat: 'inptu' is no key of a class"),
        (["chat,share=1", "chat,share=1"], {}, "two classes have this name"),
        (["ch:at,share=1"], {}, "needs a name of letters"),
        (["chat,share=0"], {}, "class chat: share '0' must be a number above 0"),
        (["chat,slots=2.5"], {"rate": None}, "slots 2.5 is no whole number"),
        (["chat,share=1,slo=ttft<x"], {}, "class chat: slo"),
        (["chat,share=1,slo=task_p90<9s"], {}, "bounds of a class are on"),
        (["chat,share=1,priority=urgent"], {}, "priority 'urgent' must be high"),
        (["chat,share=1,input=-3"], {}, "class chat: --input"),
        (["chat,share=1"], {"rate": None, "concurrency": "4"}, "give each class slots"),
        (["chat,share=1"], {"rate": None}, "need the --rate that they share"),
        (["chat,share=1", "b,rate=20"], {}, "nothing is left for those with a share"),
        (["chat,slots=2", "b,share=1"], {}, "another class has slots"),
        (["chat,slots=2"], {}, "leave out --rate"),
        (["chat,share=1,share=2"], {}, "share is given twice"),
        (["chat,rate=50%"], {}, "class chat: rate '50%' must be a number above 0"),
        (["chat,share=1,text=x.txt"], {}, "'text' is no key of a class"),
        (["chat,share=1"], {"text": "x.txt"}, "--mix and --text: do not go together"),
        (["chat,share=1"], {"input": "8"}, "--mix and --input: each class says this of itself"),
        (["chat,share=1", "rare,share=0.0001"], {}, "class rare: none of 100 requests"),
    ],
)
def test_what_is_no_mix_is_refused_in_one_line(
    classes: list[str], others: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        mixed(*classes, **others)


def test_keys_are_refused_among_headers(tmp_path: Path) -> None:
    path = tmp_path / "mix.yaml"
    path.write_text("classes: [{name: a, share: 1, headers: {Authorization: Bearer secret-key}}]")
    with pytest.raises(InputError, match="name its variable under key_env") as refused:
        plan_of(SimulateOptions.read(deployment="llama-3.1-8b@1xh100", mix=path, rate="1"))
    assert "secret-key" not in str(refused.value)


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ('{x-team: "a\\r\\nInjected: yes"}', "not an HTTP header"),
        ('{"a\\nb": x}', "not an HTTP header"),
        ("{x-team: ☃}", "not an HTTP header"),
        ('{content-length: "3"}', "follows from the request"),
        ("{x-upstream: Bearer sk-0123456789}", "holds a key"),
    ],
)
def test_headers_that_cannot_be_sent_or_kept_are_refused(
    tmp_path: Path, headers: str, message: str
) -> None:
    path = tmp_path / "mix.yaml"
    path.write_text(f"classes: [{{name: a, share: 1, headers: {headers}}}]")
    with pytest.raises(InputError, match=message) as refused:
        plan_of(SimulateOptions.read(deployment="llama-3.1-8b@1xh100", mix=path, rate="1"))
    assert "sk-0123456789" not in str(refused.value)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[1]",
        "classes: []",
        "classes: [1]",
        "mix: 2\nclasses: [{name: a, share: 1}]",
        "oops: 1\nclasses: [{name: a}]",
        "\0",
    ],
)
def test_what_is_no_file_of_classes_is_refused_in_one_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "mix.yaml"
    path.write_text(content)
    with pytest.raises(InputError, match="--mix"):
        plan_of(SimulateOptions.read(deployment="llama-3.1-8b@1xh100", mix=path, rate="1"))


def write_trace(path: Path, count: int, classes: str = "") -> Path:
    names = classes.split()
    lines = ["timestamp_s,input_tokens,output_tokens" + (",class" if names else "")]
    for number in range(count):
        of_class = f",{names[number % len(names)]}" if names else ""
        lines.append(f"{number * 0.5},{100 + number},{10 + number}{of_class}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_trace_names_the_classes_of_its_rows(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "day.csv", 30, "chat chat batch")
    plan = mixed("batch,priority=low", trace=path, rate=None, requests=None, warmup=3)
    assert plan.class_names == ["batch", "chat"]
    batch = measured_of(plan, 0)
    assert plan.input_tokens[batch].tolist() == list(range(102, 130, 3))
    times_s = plan.intended_s[plan.phase == 1]
    np.testing.assert_allclose(times_s - times_s[0], np.arange(30) * 0.5)
    first = mixed(trace=path, rate=None, requests="7", time_scale="0.1")
    assert [len(measured_of(first, number)) for number in (0, 1)] == [5, 2]


def test_a_class_has_a_trace_of_its_own_beside_a_share(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "legal.csv", 40)
    plan = mixed("chat,share=1,input=8,output=8", f"legal,trace={path}", rate="6", requests=None)
    legal, chat = measured_of(plan, 1), measured_of(plan, 0)
    assert plan.output_tokens[legal].tolist() == list(range(10, 50))
    np.testing.assert_allclose(np.diff(plan.intended_s[legal]), 0.5)
    assert len(chat) / 19.5 == pytest.approx(6 - 2, rel=0.05)
    assert (np.diff(plan.intended_s) >= 0).all()


def test_blocks_are_shared_within_a_file_and_not_between_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        lines = (
            f'{{"timestamp_s": {time}, "input_tokens": 32, "output_tokens": 4,'
            f' "hash_ids": [7, {time}], "block_tokens": 16}}\n'
            for time in range(5)
        )
        (tmp_path / f"{name}.jsonl").write_text("".join(lines) + "\n" * (name == "b"))
    plan = mixed(
        *(f"{name},trace={tmp_path / name}.jsonl" for name in ("a", "b")),
        "plain,share=1,input=8,output=4", rate="5", requests=None, warmup=0,
    )  # fmt: skip
    assert plan.blocks is not None
    blocks = plan.blocks
    ids = [{int(id) for row in rows_of(plan, kind) for id in blocks.own(row)} for kind in range(3)]
    assert [len(of_class) for of_class in ids] == [6, 6, 0]
    assert not ids[0] & ids[1]


@pytest.mark.parametrize(
    ("classes", "others", "message"),
    [
        (["legal,trace=DIR/legal.csv,input=8"], {"rate": None}, "the trace says what is asked"),
        (["chat"], {"trace": "DIR/legal.csv", "rate": None}, "names a class"),
        (["chat,input=4"], {"trace": "DIR/day.csv", "rate": None}, "rows say what is asked"),
        (["chat"], {"trace": "DIR/day.csv"}, "leave --rate out"),
        (["none"], {"trace": "DIR/day.csv", "rate": None}, "in class none"),
    ],
)
def test_classes_that_do_not_fit_their_trace_are_refused(
    tmp_path: Path, classes: list[str], others: dict[str, Any], message: str
) -> None:
    write_trace(tmp_path / "legal.csv", 4)
    write_trace(tmp_path / "day.csv", 4, "chat batch")
    options = {key: value and value.replace("DIR", str(tmp_path)) for key, value in others.items()}
    with pytest.raises(InputError, match=message):
        mixed(*(text.replace("DIR", str(tmp_path)) for text in classes), requests=None, **options)
