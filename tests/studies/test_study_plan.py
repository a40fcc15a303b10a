"""Launches and cells of a study: their order, and ids that change with what matters and with
nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadstone.core.errors import InputError
from loadstone.studies.commands import commands_of
from loadstone.studies.file import read_study
from loadstone.studies.plan import EMBEDDED_MODEL, PlannedLaunch, plan_study
from test_study_file import STUDY

ALL_EXCLUDED = STUDY.replace("engine: [vllm, sglang]", "engine: [vllm]").replace(
    '[8xh200/tp8, "8xh200/dp8,attention-dp,ep8", ', "["
)


def planned(folder: Path, text: str = STUDY) -> tuple[PlannedLaunch, ...]:
    path = folder / "study.yaml"
    path.write_text(text)
    return plan_study(read_study(path))


def test_every_deployment_is_launched_once_in_each_repeat(tmp_path: Path) -> None:
    launches = planned(tmp_path)
    assert len(launches) == 5 * 3
    assert [launch.repeat for launch in launches] == [1] * 5 + [2] * 5 + [3] * 5
    assert len({launch.id for launch in launches}) == 15
    assert launches[0].deployment == "deepseek-ai/DeepSeek-R1@8xh200/tp8,engine=vllm"
    assert (
        launches[2].deployment
        == "deepseek-ai/DeepSeek-R1@8xh200/tp8,engine=sglang,mem_fraction_static=0.85"
    )
    assert [launch.layout for launch in launches if launch.engine == "vllm"].count(
        "16xh200/tp16,nodes=2"
    ) == 0


def test_one_after_another_where_the_order_is_sequential(tmp_path: Path) -> None:
    launches = planned(tmp_path, STUDY.replace("interleaved", "sequential"))
    assert [launch.repeat for launch in launches] == [1, 2, 3] * 5


def test_one_launch_serves_all_repeats_where_nothing_is_restarted(tmp_path: Path) -> None:
    launches = planned(tmp_path, STUDY.replace("restart: repeat", "restart: never"))
    assert len(launches) == 5
    cells = launches[0].cells
    assert [cell.repeat for cell in cells] == [1] * 8 + [2] * 8 + [3] * 8
    assert len({cell.id for launch in launches for cell in launch.cells}) == 5 * 3 * 8
    apart = planned(tmp_path)
    assert not {cell.id for launch in apart for cell in launch.cells} & {cell.id for cell in cells}


def test_a_cell_is_a_workload_at_one_load(tmp_path: Path) -> None:
    cells = planned(tmp_path)[0].cells
    assert [(cell.workload, cell.load) for cell in cells] == [
        (workload, f"concurrency {users}")
        for workload in ("chat", "long")
        for users in (4, 16, 64, 256)
    ]
    assert cells[1].options == {
        "input": "1k",
        "output": "1k",
        "range-ratio": 0.8,
        "concurrency": 16,
        "seed": 0,
    }


@pytest.mark.parametrize(
    ("loads", "labels"),
    [
        ("{rate: [1, 2.5]}", ["rate 1", "rate 2.5"]),
        ('{rate: "1,2"}', ["rate 1", "rate 2"]),
        ("{rate: inf, requests: [1, 8]}", ["requests 1", "requests 8"]),
        ("[{concurrency: 4}, {rate: 1}]", ["concurrency 4", "rate 1"]),
        ('{ramp: "1:20:60s"}', ["ramp 1:20:60s"]),
    ],
)  # fmt: skip
def test_loads_are_taken_apart(tmp_path: Path, loads: str, labels: list[str]) -> None:
    launches = planned(tmp_path, STUDY.replace("{concurrency: [4, 16, 64, 256]}", loads))
    assert [cell.load for cell in launches[0].cells if cell.workload == "chat"] == labels


def test_a_changed_cell_alone_has_another_id(tmp_path: Path) -> None:
    before = planned(tmp_path)
    after = planned(tmp_path, STUDY.replace("[4, 16, 64, 256]", "[4, 16, 64, 128]"))
    assert [launch.id for launch in before] == [launch.id for launch in after]
    changed = [
        one.load
        for one, other in zip(before[0].cells, after[0].cells, strict=True)
        if one.id != other.id
    ]
    assert changed == ["concurrency 256"] * 2


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ("slo: \"ttft_p99<2s,tpot_p99<50ms\"\n", "", True),
        ("total: 12h", "total: 2h", True),
        ("order: interleaved", "order: sequential", True),
        ("mem_fraction_static: 0.85", "mem_fraction_static: 0.8", False),
        ("sglang:v0.5.23", "sglang:v0.5.24", False),
    ],
)  # fmt: skip
def test_ids_follow_what_matters(tmp_path: Path, before: str, after: str, same: bool) -> None:
    assert before in STUDY
    ids = [
        {launch.id for launch in planned(tmp_path, text)}
        for text in (STUDY, STUDY.replace(before, after))
    ]
    assert (ids[0] == ids[1]) == same


REWRITTEN = (
    "study: s\nmodel: llama-3.1-8b\ndeployments: {engine: [vllm], layout: [8xh200/tp8]}\n"
    + ("workloads: {chat: {input: 1k, output: 16}}\nloads: {concurrency: [1, 4], requests: 16}\n")
)


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ("input: 1k", "input: 1024", True),
        ("input: 1k", "input: 1000", False),
        ("input: 1k", "input: 1k, range-ratio: 1", True),
        ("input: 1k", "input: 1k, range-ratio: 0.8", False),
        ("[1, 4]", '"1, 4"', True),
        ("requests: 16", "requests: [16]", True),
        ("requests: 16", "requests: 17", False),
        ("8xh200/tp8", "8xh200/tp=8", True),
        ("8xh200/tp8", "8xh200/tp4", False),
        ("concurrency: [1, 4]", "rate: [1, 4]", False),
    ],
)  # fmt: skip
def test_what_means_the_same_has_the_same_ids(
    tmp_path: Path, before: str, after: str, same: bool
) -> None:
    assert before in REWRITTEN
    ids = [
        [[cell.id for cell in launch.cells] for launch in planned(tmp_path, text)]
        for text in (REWRITTEN, REWRITTEN.replace(before, after))
    ]
    assert (ids[0] == ids[1]) == same


@pytest.mark.parametrize("rate", ["inf", ".inf", "[inf]", "[.inf]", "Infinity"])
def test_an_endless_rate_sends_all_requests_at_once(tmp_path: Path, rate: str) -> None:
    text = REWRITTEN.replace("concurrency: [1, 4], requests: 16", f"rate: {rate}, requests: [1, 8]")
    cells = planned(tmp_path, text)[0].cells
    assert [cell.load for cell in cells] == ["requests 1", "requests 8"]
    assert len({cell.id for cell in cells}) == 2


def test_llama_cpp_without_a_model_serves_the_small_one(tmp_path: Path) -> None:
    text = "study: s\ndeployments: {engine: [llama.cpp]}\nloads: {concurrency: 1}\n"
    (launch,) = planned(tmp_path, text)
    assert (launch.model, launch.deployment) == (EMBEDDED_MODEL, None)


LAYOUT_ALONE = (
    "study: s\ndeployments: {engine: [llama.cpp], layout: [1xh100]}\nloads: {concurrency: 1}\n"
)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("study: s\ndeployments: {engine: [vllm]}\nloads: {concurrency: 1}\n", ":1:1: vllm has no model"),
        (LAYOUT_ALONE, ":2:45: 1xh100: a layout of no model"),
        ("study: s\nmodel: m\ndeployments: {}\nloads: {concurrency: 1}\n", ":3:1: no engine"),
        (STUDY.replace("input: 8k", "input: eight"), ":12:10: "),
        (STUDY.replace("[4, 16, 64, 256]", "[4, 0]"), ":13:9: "),
        (STUDY.replace("16xh200/tp16,nodes=2", "16xh200/tp16,nodes=2,eager"), "unknown option 'eager'"),
        (STUDY.replace("[4, 16, 64, 256]", "[4, 16, 4]"), ":13:1: chat, concurrency 4 is the same as"),
        (STUDY.replace("{input: 8k,", "{range-ratio: 0.8, input: 1k,"), ":12:3: long, concurrency 4 is the same as"),
        (STUDY.replace("8xh200/tp8, ", "8xh200/tp8, 8xh200/tp=8, "), ":6:1: vllm deepseek-ai/DeepSeek-R1 8xh200"),
        (STUDY.replace("{concurrency: [4", "{rate: 2, concurrency: [4"), ":13:1: --rate and --concurrency: one"),
        (ALL_EXCLUDED, ":9:3: nothing is left"),
        (STUDY.replace("[4, 16, 64, 256]", "[]"), ":13:1: this leaves nothing to measure"),
        (STUDY.replace("repeats: 3", "repeats: 1000000000"), " loads, more than 20,000; make several studies"),
        (STUDY.replace("[4, 16, 64, 256]", f"{list(range(1, 20_000))}"), " loads, more than 20,000; make"),
    ],
)  # fmt: skip
def test_what_cannot_be_planned_says_where(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        planned(tmp_path, text)
    assert problem in str(caught.value)


def test_the_small_model_gets_the_arguments_of_its_engine(tmp_path: Path) -> None:
    engine = "{engine: llama.cpp, args: {ubatch_size: 64}, IMAGE}"
    text = f"study: s\nengines: {{e: {engine}}}\nloads: {{concurrency: 1}}\ndeployments: {{}}\n"
    path = tmp_path / "s.yaml"
    for image in ("", "image: x"):
        path.write_text(text.replace("IMAGE", image).replace(", }", "}"))
        read = read_study(path)
        (launch,) = plan_study(read)
        if image:
            with pytest.raises(InputError, match="runs in no container"):
                commands_of(launch, (), 1)
        else:
            words = commands_of(launch, (), 1).ranks[0].argv
            assert words[-2:] == ("--ubatch-size", "64")


def test_a_cell_is_another_where_a_file_that_it_names_says_something_else(tmp_path: Path) -> None:
    questions, mix = tmp_path / "questions.jsonl", tmp_path / "mix.yaml"
    questions.write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    classes = (
        "classes:\n- {name: chat, share: 2, input: 64, output: 8, slo: 'ttft_p99<1s'}\n"
        f"- {{name: asks, share: 1, dataset: {questions}, output: 8}}\n"
    )
    mix.write_text(classes)
    study = (
        "study: files\ndeployments:\n  model: [llama-3.1-8b]\n  engine: [vllm]\n  layout: [1xh100]\n"
        f"workloads:\n  mixed: {{mix: {mix}}}\n  asked: {{dataset: {questions}, output: 8}}\n"
        "loads: [{rate: [4], requests: 30}]\n"
    )

    def ids() -> list[str]:
        return [cell.id for cell in planned(tmp_path, study)[0].cells]

    first = ids()
    mix.write_text(f"# The same.\n{classes}")
    assert ids() == first
    mix.write_text(classes.replace("<1s", "<2s"))
    tightened = ids()
    assert [a == b for a, b in zip(first, tightened, strict=True)] == [False, True]
    mix.write_text(classes)
    questions.write_text('{"prompt": "one"}\n{"prompt": "three"}\n')
    assert not set(ids()) & set(first)
