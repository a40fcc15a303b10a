"""Odd answers to items as they are published: what a person calls right is right, and what is wrong
is wrong."""

import importlib.util
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from loadstone.analyse.grading.graders import Grade, grade
from loadstone.workload.checks import Question, question_of, read_checks

WRONG, RIGHT, STRICT = range(3)
"""Of answers: wrong, right however it is said, and right in the form that was asked for."""


def own(kind: str, answer: Any) -> dict[str, Any]:
    return {"prompt": "?", "grade": kind, "answer": answer}


LETTER = {"question": "?", "choices": ["w", "x", "y", "z"], "answer": 1}
NUMBER = {"question": "?", "answer": "9 + 9\n#### 18"}
NAMES = {"question": "?", "answer": {"value": "Ann", "aliases": ["Annie", "Ann M."]}}
HALF = {"problem": "?", "answer": "\\frac{1}{2}"}
AIME = {"problem": "?", "answer": "204"}
OBJECT = own("json", {"a": 1})
SCHEMA = {
    "prompt": "?", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
}  # fmt: skip

CASES: list[tuple[dict[str, Any], int, tuple[str, ...]]] = [
    (LETTER, STRICT, (
        "**B**", "B)", "The answer is **(B)**.", "**Answer:** B", "**Answer: (B)** x", "The answer is:\nB", "b",
        "the answer is option B", "$\\boxed{\\text{B}}$", "The answer is b.", "Ｂ", "（B）",
        "<think>A</think>B", "[THINK]A[/THINK]B", "The answer is A. Wait: the answer is B because it is x",
        )),
    (LETTER, RIGHT, (
        "B, I think.", "B. A cat is no dog.", "(B) It is x. I am sure.", "Option B is right; A is not.", "答案是B。",
        "\x00B\ufffd", "\u200bB",
        )),
    (LETTER, WRONG, (
        "A", "I do not know.", "A, B, C and D are all possible.", "<think>The answer is B", "[THINK]B",
        "<think>A</think><think>B", "The answer is a b",
        )),
    (NUMBER, STRICT, ("#### 18", "#### 18.", "#### 18\x00", "#### 18\ufffd", "<think>17</think>#### 18")),
    (NUMBER, RIGHT, ("18", "\\boxed{18}", "$18$", "#### 17\n#### 18", "#### $18")),
    (NUMBER, WRONG, ("-18", "１８", "\u0661\u0668", "1818", "eighteen", "#### 1\u00a08")),
    (own("number", 18.0), RIGHT, ("18", "It is 18.")),
    (own("text", "145"), STRICT, ("145", " 145\n")),
    (own("text", "145"), RIGHT, ("It is 145.", "$145", "145%", "**145**, or so", "n=145", "１４５")),
    (own("text", "145"), WRONG, ("1,145", "145,000", "145.5", "0.145", "1450", "-145", "(-145)")),
    (own("text", "-5"), RIGHT, ("It is -5",)),
    (own("text", "café"), RIGHT, ("A CAFE\u0301",)),
    (own("text", "C++"), RIGHT, ("It is C++.",)),
    (own("exact", ["yes", "Yes"]), STRICT, ("Yes", "<think>no</think>\n\nyes")),
    (own("exact", "yes"), WRONG, ("Yes", "yes.", "yes yes")),
    (own("text", "x"), WRONG, ("<|channel|>analysis<|message|>x",)),
    (own("text", "x"), RIGHT, ("<|channel|>analysis<|message|>y<|end|><|channel|>final<|message|>x",)),
    (own("text", "x"), STRICT, ("y</think>x", "y[/THINK]\nx")),
    (NAMES, STRICT, ("Ann", "Annie")),
    (NAMES, RIGHT, ("It was Ann M., of course",)),
    (NAMES, WRONG, ("Anna", "")),
    (OBJECT, STRICT, ('{"a": 1}', '{"a": 1.0}', '{"a": 1, "a": 1}', '<think>{}</think>{"a":1}')),
    (OBJECT, RIGHT, (
        '```json\n{"a": 1}\n```', 'Here:\n```JSON\r\n{"a": 1}\r\n```\nDone.', 'Sure! {"a": 1}',
        '{"a":1} I hope it helps', '~~~\n{"a":1}\n~~~',
        )),
    (OBJECT, WRONG, (
        '{"a": 1', '{"a":1}{"a":1}', "{'a': 1}", '{"a": true}', '{"a": "1"}', '{"a": NaN}', '{"a": 1e400}',
        '{"a": "\\ud800"}', '[{"a": 1}]', "a: 1",
        )),
    (own("json", [1, [2]]), RIGHT, ("The list is [1, [2]].",)),
    (SCHEMA, STRICT, ('{"a": 1}', '{"a": 1.0}')),
    (SCHEMA, RIGHT, ('Of course:\n```\n{"a": 1}\n```',)),
    (SCHEMA, WRONG, ('{"a": "1"}', "{}", '```json\n{"a": "1"}\n```')),
    (HALF, STRICT, (
        "\\boxed{\\frac{1}{2}}", "$\\boxed{\\dfrac{1}{2}}$.", "\\boxed{\\frac12}", "\\boxed{1/2}", "\\boxed{0.5}",
        "\\boxed{ .5 }", "\\boxed{x = \\tfrac{1}{2}}", "\\boxed{\\frac{1}{3}} no: \\boxed{\\frac{1}{2}}",
        )),
    (HALF, RIGHT, ("It is $x$, so $\\frac{1}{2}$.", "It is 0.5.")),
    (HALF, WRONG, (
        "\\frac{1}{2}, no: \\boxed{\\frac{1}{3}}", "\\boxed{\\frac{1}{0}}", "\\boxed{-\\frac{1}{2}}", "\\boxed{}",
        "half",
        )),
    (AIME, STRICT, (
        "\\boxed{204}", "\\boxed{204\\text{ cm}^2}", "\\boxed{204^\\circ}", "\\boxed{\\$204}", "\\boxed{n=204}",
        )),
    (AIME, RIGHT, ("The final answer is 204.",)),
    (AIME, WRONG, ("204 cats, but the answer is \\boxed{205}", "\\boxed{2040}", "204, or 205")),
    ({"problem": "?", "answer": "10{,}080"}, STRICT, ("\\boxed{10,\\!080}", "\\boxed{10080}", "\\boxed{10,080}")),
    ({"problem": "?", "answer": "(3,4)"}, STRICT, ("\\boxed{\\left( 3, 4 \\right)}",)),
    ({"problem": "?", "answer": "(3,4)"}, WRONG, ("\\boxed{34}", "\\boxed{(4,3)}")),
    ({"problem": "?", "answer": "2\\sqrt{3}"}, STRICT, ("\\boxed{2\\sqrt3}",)),
    ({"problem": "?", "answer": "\\text{Evelyn}"}, STRICT, ("\\boxed{Evelyn}",)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("item", "wanted", "text"),
    [(item, wanted, text) for item, wanted, texts in CASES for text in texts],
)
def test_odd_answers(tmp_path: Path, item: dict[str, Any], wanted: int, text: str) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(json.dumps(item))
    question = question_of(
        read_checks(str(path), seed=1, prompt_tokens=1, most_tokens=None).texts[0]
    )
    found = grade(question, text, [], thought=False)
    assert (found.flexible, found.strict) == (wanted >= RIGHT, wanted == STRICT)


def test_maths_is_right_wherever_lm_evaluation_harness_says_so() -> None:
    package = importlib.util.find_spec("lm_eval")
    if package is None or package.origin is None:
        pytest.skip("pip install --no-deps lm_eval")
    path = Path(package.origin).parent / "tasks" / "aime" / "utils.py"
    spec = importlib.util.spec_from_file_location("aime_utils", path)
    assert spec is not None
    assert spec.loader is not None
    utils = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(utils)
    values = (
        "\\frac{1}{2}", "\\dfrac{1}{2}", "\\frac12", "1/2", "0.5", ".5", "-\\frac{1}{2}", "204", "2 04", "10,080",
        "10,\\!080", "(3,4)", "\\left( 3, 4 \\right)", "2\\sqrt{3}", "2\\sqrt3", "204\\text{ cm}", "204^\\circ",
        "\\$204", "204^{\\circ}", "204\\%", "n=204", "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}",
        "\\begin{pmatrix}1\\\\2\\end{pmatrix}", "x^2+1", "x^{2}+1", "\\pi", "1,2,3", "1, 2, 3", "\\infty", "-5",
        "\\frac{\\pi}{2}", "\\frac{1}{0}", "\\text{(C)}",
    )  # fmt: skip
    for answer, said in itertools.product(values, values):
        text = f"so \\boxed{{{said}}}."
        if utils.process_results({"answer": answer}, [text])["exact_match"]:
            assert grade(Question("1", "maths", "m", answer), text, [], thought=False) == Grade(
                True, True, True
            )
