"""Questions with answers: read from files, made from a seed, and mixed into a plan."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.core.plan import CHECK
from loadstone.measure.wire.request import RequestBody
from loadstone.workload.checks import CheckSet, question_of, read_checks
from loadstone.workload.options import Options
from loadstone.workload.planning import Planner, plan_of
from loadstone.workload.prompts import PromptWriter, Vocabulary
from loadstone.workload.request import LENGTH, PROMPT

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def read(tmp_path: Path, *items: Any, count: str = "") -> CheckSet:
    path = tmp_path / "q.jsonl"
    path.write_text(
        "\n".join(item if isinstance(item, str) else json.dumps(item) for item in items)
    )
    return read_checks(f"{path}{count}", seed=0, prompt_tokens=100, most_tokens=None)


@pytest.mark.parametrize(
    ("item", "grade", "answer", "asks"),
    [
        ({"question": "How many?", "answer": "2 + 3\n#### 1,005"}, "number", "1,005", "#### [number]"),
        ({"question": "Which?", "choices": ["x", "y"], "answer": 1, "subject": "law"}, "letter", "B", "A. x\nB. y"),
        ({"question": "Which?", "options": ["x", "y"], "answer": "A", "answer_index": 0}, "letter", "A", "(X)"),
        ({"question": "Which?", "choices": {"text": ["x", "y"], "label": ["1", "2"]}, "answerKey": "2"}, "letter",
        "B", ""),
        ({"question": {"stem": "Which?", "choices": [{"text": "x", "label": "1"}, {"text": "y", "label": "2"}]},
        "answerKey": "1"}, "letter", "A", "A. x\nB. y"),
        ({"question": "Which?", "options": {"A": "x", "B": "y"}, "answer": "B"}, "letter", "B", "A. x\nB. y"),
        ({"question": "How many?", "answer": "2\n####5"}, "number", "5", "#### [number]"),
        ({"problem": "How many?", "answer": "204", "grade": "number"}, "number", "204", "How many?"),
        ({"problem": "P?", "answer": "\\frac{1}{2}"}, "maths", "\\frac{1}{2}", "boxed{}"),
        ({"problem": "P?", "solution": "so \\boxed{\\frac{1}{2}}."}, "maths", "\\frac{1}{2}", "boxed{}"),
        ({"question": "Who?", "answer": ["Ann", "Annie"]}, "text", ["Ann", "Annie"], "Who?"),
        ({"question": "Who?", "answer": {"value": "Ann", "aliases": ["A."]}}, "text", ["Ann", "A."], "Who?"),
        ({"question": "Q?", "article": "It rained.", "options": ["x", "y"], "answer": "A"}, "letter", "A",
        "It rained.\n\nQ?"),
        ({"prompt": "x", "answer": 18.0, "grade": "number"}, "number", "18", "x"),
        ({"prompt": "Call", "tools": [TOOL], "answer": {"name": "f"}}, "tool", {"name": "f", "arguments": {}},
        "Call"),
        ({"input": "The number is 7.", "outputs": ["7"]}, "needle", ["7"], "number is 7"),
        ({"prompt": "Say it", "answer": "it"}, "text", "it", "Say it"),
        ({"messages": [{"role": "user", "content": "JSON"}], "answer": {"name": "f"}}, "json", {"name": "f"}, "JSON"),
        ({"prompt": "Shape", "schema": '{"type": "object"}'}, "schema", None, "Shape"),
        ({"prompt": "Call", "tools": [TOOL]}, "tool", None, '"tools"'),
        ({"kind": "exact", "task": "add", "prompt": "1+1", "answer": "2", "max_tokens": 9}, "exact", "2", "1+1"),
    ],
)  # fmt: skip
def test_items_as_they_are_published(
    tmp_path: Path, item: Any, grade: str, answer: Any, asks: str
) -> None:
    checks = read(tmp_path, item)
    question = question_of(checks.texts[0])
    assert (question.grade, question.answer) == (grade, answer)
    assert asks in checks.texts[0].replace("\\n", "\n")
    assert checks.max_tokens[0] == item.get("max_tokens", checks.max_tokens[0])


@pytest.mark.parametrize(
    ("items", "complaint"),
    [
        ([{"question": "How many?"}], "line 1: no answer to grade by"),
        ([{"prompt": "x", "answer": "many", "grade": "number"}], "'many' is none that grade number can find"),
        ([{"prompt": "x", "answer": "Z", "grade": "letter"}], "none that grade letter can find"),
        ([{"question": "x", "choices": ["a", "b"], "answer": 2}], "'2' is none of its 2 options"),
        ([{"question": "x", "choices": ["a", "b"], "answer": "(B)"}], "'(B)' is none of its 2 options"),
        ([{"question": "Is it?", "answer": True}], "'True' is none that grade text can find"),
        ([{"problem": "x", "solution": "it is seven"}], "no answer to grade by"),
        ([{"prompt": "x", "tools": [TOOL], "answer": {"name": "f", "arguments": "[1]"}}], "none that grade tool can"),
        ([{"prompt": "x", "tools": [TOOL], "answer": {"name": "f", "arguments": "{}"}}], "none that grade tool can"),
        ([{"question": "x", "choices": 7, "answer": 0}], "'choices' is not a list of 2 to 10"),
        ([{"question": "x", "choices": ["a"], "answer": 0}], "'choices' is not a list of 2 to 10"),
        ([{"prompt": "x", "grade": "schema", "schema": {"type": "elephant"}}], "no JSON schema"),
        ([{"prompt": "x", "schema": {"type": "string", "pattern": "(?=a)b"}}], "no JSON schema (Invalid regular"),
        ([{"prompt": "x", "schema": {"items": {"patternProperties": {"(a|aa)+$": {}}}}}], "has patternProperties"),
        ([{"prompt": "x", "schema": {"$ref": "http://127.0.0.1/x"}}], "a $ref to what is not in it"),
        ([{"prompt": "x", "tools": [TOOL], "answer": {"name": "g"}}], "'g', which is none of its tools"),
        ([{"question": "x", "answer": "5\n#### five"}], "'five' is none that grade number can find"),
        ([{"prompt": "x", "grade": "tool", "answer": {"name": "f"}}], "no tools that can be called"),
        ([{"prompt": "x", "grade": "python", "answer": "1"}], "grade 'python': unknown; choose one of"),
        ([{"answer": "1", "grade": "text"}], "no question: name the field"),
        ([{"prompt": "x", "answer": "1", "max_tokens": -1}], "not a count of tokens"),
        ([{"prompt": "x", "answer": "1", "id": 1}, {"prompt": "y", "answer": "1", "id": 1}], "share an id"),
        (['{"prompt": "x", '], "broken JSON"),
        (["[[1, 2]]"], "not an object"),
        ([""], "no questions with answers"),
        (["What is this?"], "no questions with answers"),
    ],
)  # fmt: skip
def test_what_cannot_be_graded_is_refused_in_one_line(
    tmp_path: Path, items: list[Any], complaint: str
) -> None:
    with pytest.raises(InputError, match=r"q\.jsonl") as caught:
        read(tmp_path, *items)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_said_of_answers_without_questions_is_refused() -> None:
    with pytest.raises(InputError, match="nothing is graded"):
        plan_of(Options.read(concurrency="1", check_min="90%"))


def test_an_id_of_zero_is_one(tmp_path: Path) -> None:
    items = [{"prompt": "x", "answer": "1", "id": number} for number in (0, 1)]
    assert {question_of(text).id for text in read(tmp_path, *items).texts} == {"0", "1"}


def test_more_than_there_is_and_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the file has 1 questions"):
        read(tmp_path, {"prompt": "x", "answer": "1"}, count=":2")
    with pytest.raises(InputError, match=r"No such file"):
        read_checks(str(tmp_path / "none.jsonl"), seed=0, prompt_tokens=1, most_tokens=None)
    with pytest.raises(InputError, match="write FILE:N"):
        read_checks("generated:0", seed=0, prompt_tokens=1, most_tokens=None)


def test_a_sample_of_a_large_file_is_random_and_follows_from_the_seed(tmp_path: Path) -> None:
    path = tmp_path / "large.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.writelines(
            json.dumps({"prompt": f"{n}?", "answer": n, "id": n}) + "\n" for n in range(20_000)
        )
    ids = [
        [
            int(question_of(text).id)
            for text in read_checks(
                f"{path}:50", seed=seed, prompt_tokens=1, most_tokens=None
            ).texts
        ]
        for seed in (1, 1, 2)
    ]
    assert ids[0] == ids[1] != ids[2]
    assert 6_000 < np.mean(ids[0]) < 14_000


def test_generated_questions_have_numbers_of_their_own() -> None:
    checks = read_checks("generated:300", seed=3, prompt_tokens=2000, most_tokens=None)
    questions = [question_of(text) for text in checks.texts]
    assert [question.task for question in questions[:3]] == ["copy", "add", "look-up"]
    needles = [question.answer[0] for question in questions if question.grade == "needle"]
    assert len(set(needles)) == 100
    assert all(
        text.count(needle) == 2 for text, needle in zip(checks.texts[2::3], needles, strict=True)
    )
    assert checks.texts[2].count("The number of") == 100
    assert (
        checks.texts
        == read_checks("generated:300", seed=3, prompt_tokens=2000, most_tokens=None).texts
    )


@pytest.mark.parametrize(
    "load", [{"concurrency": "2,8"}, {"rate": "5,20"}, {"rate": "inf", "requests": "90"}]
)
def test_graded_rows_stand_between_measured_ones_which_stay_as_they_were(
    load: dict[str, str],
) -> None:
    plan = plan_of(Options.read(check="generated", check_share="10%", **load))
    bare = plan_of(Options.read(**load))
    others = plan.phase != CHECK
    for name in plan.COLUMNS[:-1]:
        assert np.array_equal(
            getattr(plan, name)[others], getattr(bare, name), equal_nan=name == "intended_s"
        )
    assert plan.plan_id != bare.plan_id
    for cell in range(len(plan.cells)):
        rows = plan.rows(cell)
        phases, times = plan.phase[rows.start : rows.stop], plan.intended_s[rows.start : rows.stop]
        assert 0.05 < (phases == CHECK).sum() / (phases > 0).sum() <= 0.1
        assert phases[plan.warmup_count(cell)] == 1
        assert np.isnan(times).all() or (np.diff(times) >= 0).all()


def test_requests_are_added_until_the_questions_asked_for_fit() -> None:
    plan = plan_of(Options.read(check="generated:40", concurrency="1,2"))
    assert [
        (plan.phase[plan.rows(c).start : plan.rows(c).stop] == CHECK).sum() for c in (0, 1)
    ] == [40, 40]
    with pytest.raises(InputError, match="over 10% of all; ask for 360"):
        plan_of(Options.read(check="generated:40", concurrency="1", requests="50"))
    with pytest.raises(InputError, match="--plan and --check"):
        Planner(Options.read(check="generated", plan="somewhere"))


def test_a_plan_with_questions_is_stored_whole(tmp_path: Path) -> None:
    plan = plan_of(
        Options.read(
            check="generated:9", check_share="0.5", concurrency="2", turns="2", requests="20"
        )
    )
    run_folder.write_plan(tmp_path / "plan.parquet", plan)
    again = run_folder.read_plan(tmp_path)
    assert again.plan_id == plan.plan_id
    graded = [request for request in again if request.phase == "check"]
    assert len(graded) == 9
    assert all(
        request.chat and request.turn is None and question_of(request.prompt or "")
        for request in graded
    )


@pytest.mark.parametrize("chat", [True, False])
def test_the_right_answer_and_a_salt_are_never_sent(tmp_path: Path, chat: bool) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(
        json.dumps({"prompt": "Where?", "answer": "Samarkand", "tools": [TOOL], "grade": "text"})
    )
    plan = plan_of(Options.read(check=str(path), check_share="0.5", concurrency="1"))
    writer = PromptWriter(Vocabulary("text", words=("a", "b")), seed=0, salt="salt", chat=chat)
    [request] = [request for request in plan if request.phase == "check"]
    body = RequestBody({"messages" if chat else "prompt": PROMPT, "max_tokens": LENGTH})
    sent = json.loads(body.render(writer.write(request), request.output_tokens))
    assert "Samarkand" not in json.dumps(sent)
    assert sent.get("messages", sent.get("prompt")) == (
        [{"role": "user", "content": "Where?"}] if chat else "Where?"
    )
    assert ("tools" in sent) == chat
    assert sent["max_tokens"] == 128
