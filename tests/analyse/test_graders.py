"""Graders of answers: against published vectors, against lm-evaluation-harness, and against hostile
answers."""

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from loadstone.analyse.grading import graders
from loadstone.analyse.grading.graders import Grade, grade
from loadstone.workload.checks import Question, question_of, read_checks

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
TRAPS = (
    "18", "$18", "18.00", "$1,234.", "-5", "070", "####", "#### ", "#### 18", "####18", "#### $18", "#### 12 000",
    "...",
    "10-12 days", "（18）", "１８", "\\boxed{18}", "**18**", "%", "\n", " ", "1e5", "18 dollars (in 2 days)", "½",
    ",", "--3",
    "#### -1,000.50.", "The answer is 18.", "<think>7</think>", "\u0000", "18.5.2", "$", ".", "\u200b18", "0x12",
    "12000.0",
)  # fmt: skip


def number(text: str, answer: str = "18") -> Grade:
    return grade(Question("1", "number", "math", answer), text, [], thought=False)


@pytest.mark.skipif(not (SHARED / "quality").is_dir(), reason="the published vectors are not here")
def test_numbers_are_graded_as_the_published_vectors_have_them() -> None:
    lines = (SHARED / "quality" / "gsm8k_vectors.jsonl").read_text("utf-8").splitlines()
    assert len(lines) == 37
    for vector in map(json.loads, lines):
        found = {
            "strict": graders.extract_strict(vector["text"]),
            "flexible": graders.extract_flexible(vector["text"]),
        }
        for name, extracted in found.items():
            assert extracted == vector[f"{name}_extract"], vector
            assert graders.same_number(extracted, vector["gold"]) == vector[name], vector


@pytest.mark.skipif(not (SHARED / "prompts").is_dir(), reason="GSM8K is not here")
def test_every_reference_answer_of_gsm8k_is_right() -> None:
    path = SHARED / "prompts" / "gsm8k_test.jsonl"
    answers = [json.loads(line)["answer"] for line in path.read_text("utf-8").splitlines()]
    texts = read_checks(str(path), seed=1, prompt_tokens=1, most_tokens=None).texts
    questions = [question_of(text) for text in texts]
    assert len(questions) == 1319
    for question in questions:
        assert grade(question, answers[int(question.id) - 1], [], thought=False) == Grade(
            True, True, True
        )
        assert question.answer not in texts[int(question.id) - 1].partition('"check"')[0][-40:]


def test_numbers_are_extracted_as_lm_evaluation_harness_does() -> None:
    extraction = pytest.importorskip(
        "lm_eval.filters.extraction", reason="pip install --no-deps lm_eval"
    )
    strict = extraction.RegexFilter(regex_pattern=r"#### (\-?[0-9\.\,]+)")
    flexible = extraction.RegexFilter(regex_pattern=r"(-?[$0-9.,]{2,})|(-?[0-9]+)", group_select=-1)
    rng = random.Random(5)
    texts = ["".join(rng.choices(TRAPS, k=rng.randrange(1, 9))) for _ in range(500)]
    assert strict.apply([texts], [{}]) == [[graders.extract_strict(text) for text in texts]]
    assert flexible.apply([texts], [{}]) == [[graders.extract_flexible(text) for text in texts]]


@pytest.mark.parametrize(
    ("text", "right", "strict"),
    [
        ("B", True, True), ("b.", True, True), ("The answer is (B).", True, True), ("A cat, so (B)", True, False),
        ("Answer: **B**", True, True), ("A or C? It is B", True, False), ("A", False, False),
        ("a banana", False, False),
        ("The answer is (A). No: the answer is (B)", True, True),
        ("The answer is b", True, True), ("The answer is a b", False, False),
        ("", False, False), ("<think>B", False, False),
        ("<think>A</think>B", True, True),
    ],
)  # fmt: skip
def test_letters(text: str, right: bool, strict: bool) -> None:
    found = grade(Question("1", "letter", "choice", "B"), text, [], thought=False)
    assert (found.flexible, found.strict) == (right, strict)


@pytest.mark.parametrize(
    ("kind", "answer", "text", "right", "strict"),
    [
        ("text", "145", "145", True, True), ("text", "145", "It is 145.", True, False),
        ("text", "145",
        "1450", False, False),
        ("text", "東京", "答えは東京です。", True, False), ("text", "-5", "3-5", False, False),
        ("exact", "145", " 145\n", True, True), ("exact", "145", "It is 145", False, False),
        ("needle", ["7421", "x"], "X and 7421", True, True), ("needle", ["7421"], "7422", False, False),
        ("json", {"a": 1}, '{"a": 1}', True, True), ("json", {"a": 1}, '```json\n{"a":1}\n```', True, False),
        ("json", {"a": 1}, '{"a": true}', False, False), ("json", {"a": 1}, '{"a": 1', False, False),
        ("json", [1], "[" * 100_000, False, False),
    ],
)  # fmt: skip
def test_texts_needles_and_json(
    kind: str, answer: Any, text: str, right: bool, strict: bool
) -> None:
    found = grade(Question("1", kind, kind, answer), text, [], thought=False)
    assert (found.flexible, found.strict) == (right, strict)


def test_calls_of_tools_must_name_a_tool_and_fit_its_schema() -> None:
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    }
    tools = [{"name": "weather", "parameters": parameters}]

    def right(calls: list[dict[str, str]], answer: Any = None) -> bool:
        return grade(
            Question("1", "tool", "tool", answer, None, tools), "", calls, thought=False
        ).flexible

    rome = {"name": "weather", "arguments": '{"city": "Rome"}'}
    assert right([rome])
    assert right([rome], {"name": "weather", "arguments": {"city": "Rome"}})
    assert not right([rome], {"name": "weather", "arguments": {"city": "Paris"}})
    for bad in ('{"city": 7}', "{", "[]", "null", '{"town": "Rome"}'):
        assert not right([{**rome, "arguments": bad}])
    assert not right([{**rome, "name": "weathr"}])
    assert not right([])


def test_thinking_without_an_answer_is_told() -> None:
    for text, thought in (("<think>18", False), ("", True), ("<think>18</think>", False)):
        assert grade(Question("1", "number", "m", "18"), text, [], thought=thought) == Grade(
            thinking=True
        )
    assert number("") == Grade()


@pytest.mark.parametrize(
    ("schema", "value", "fits"),
    [
        ({"pattern": "(a|aa)+$"}, "a" * 300_000 + "b", False),
        ({"pattern": "((a+))+$"}, "a" * 300_000 + "b", False),
        ({"pattern": "^[0-9]{4}-x$"}, "2024-x", True),
        ({"uniqueItems": True}, [*range(50_000), *map(str, range(50_000))], True),
        ({"uniqueItems": True}, [1, "1", {"a": 1, "b": 2}, {"b": 2, "a": 1}], False),
        ({"multipleOf": 0.1}, 1e308, False),
    ],
)
def test_no_answer_makes_a_schema_last(schema: Any, value: Any, fits: bool) -> None:
    begun_s = time.process_time()
    found = grade(Question("1", "schema", "s", None, schema), json.dumps(value), [], thought=False)
    assert found.flexible == fits
    assert time.process_time() - begun_s < 20


def test_hostile_answers_are_graded_in_little_time() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    questions = [
        Question("1", kind, kind, "B" if kind == "letter" else "18")
        for kind in ("number", "letter", "text")
    ]
    questions += [Question("1", "needle", "n", ["18"]), Question("1", "schema", "s", None, schema)]
    questions += [Question("1", "maths", "m", "18")]
    million = 1 << 20
    texts = (
        "1" * million,
        "#### " * (million // 5),
        "<think>" * (million // 7),
        "(" * million,
        "[" * million,
        "```" * (million // 3),
        "\\text{" * (million // 6),
        "\\boxed{" * (million // 7),
        "$a" * (million // 2),
        "answer: " * (million // 8),
        "a" + "\u0301\u0323" * (million // 2),
        "\x1b[2J" * 9,
        "\ufffd" * million,
    )
    begun_s = time.process_time()
    for question in questions:
        for text in texts:
            assert not grade(question, text, [], thought=False).flexible or question.grade in (
                "needle",
            )
    assert time.process_time() - begun_s < 60
