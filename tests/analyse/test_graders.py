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
    length = 1 << 18
    texts = (
        "1" * length,
        "#### " * (length // 5),
        "<think>" * (length // 7),
        "(" * length,
        "[" * length,
        "```" * (length // 3),
        "\\text{" * (length // 6),
        "\\boxed{" * (length // 7),
        "$a" * (length // 2),
        "answer: " * (length // 8),
        "a" + "\u0301\u0323" * (length // 2),
        "\x1b[2J" * 9,
        "\ufffd" * length,
    )
    begun_s = time.process_time()
    for question in questions:
        for text in texts:
            assert not grade(question, text, [], thought=False).flexible or question.grade in (
                "needle",
            )
    assert time.process_time() - begun_s < 30


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("Option D is correct. A and B are wrong.", "D"), ("The correct option is D, while A describes more.", "D"),
        ("The best choice is (C). Compare (A): too small.", "C"), ("Answer – C. The others, such as B, fail.", "C"),
        ("Final Answer = C, and not B", "C"), ("<answer>C</answer> since B fails", "C"), ("b. two", "B"),
        ("b) two", "B"), ("(b) two", "B"), ("B. two, as A is too small", "B"), ("\\boxed{\\text{C}}, not (A)", "C"),
        ("A. one\nB. two\nC. three\nSo it is C", "C"), ("I would choose B over (A)", "B"), ("答案是C，不是A", "C"),
        ("The answer is not B. It is D", "D"), ("(A) is too small, so (C)", "C"), ("(C) fits; (A) is wrong", "C"),
        ("I don't think the answer is A. The answer is B", "B"), ("Die Antwort ist C, nicht B", "C"),
        ("(D) is the right one, unlike (B)", "D"),
        ("It must be D. A and B are wrong.", "D"), ("C – since B fails", "C"), ("C, because A is larger", "C"),
        ("C because B is not", "C"), ("A, B and D are wrong; so C", "C"), ("The answer should be D rather than A", "D"),
        ("I'd say D, but B is near", "D"), ("Neither A nor B. It's C", "C"), ("A is wrong, (B) is right", "B"),
    ],
)  # fmt: skip
def test_a_letter_that_is_stated_goes_before_those_discussed(text: str, letter: str) -> None:
    for answer in "ABCD":
        found = grade(Question("1", "letter", "choice", answer), text, [], thought=False)
        assert found.flexible == (answer == letter)


@pytest.mark.parametrize(
    ("key", "text", "right"),
    [
        ("257", "#### 257 (that is 250 and 7)", True), ("257", "The answer is 257. It took 3 steps.", True),
        ("1000", "It is 1,000.0", True), ("12000", "12 000", True), ("12,000", "12\u202f000 in all", True),
        ("18", "18.00", True), ("18", "\\boxed{18} in 2 days", True), ("573", "It is certainly not 573", False),
        ("573", "#### 57", False), ("573", "It isn't 573 but 574", False), ("574", "It isn't 573 but 574", True),
        ("7", "#### 257 (250 and 7)", False), ("18", "$18", True), ("2", "#### 18.2", False), ("-5", "-5", True),
        ("300", "rooms 12 300", True), ("9", "#### 8, no: #### 9", True),
        ("1234", "1'234.0", True), ("1234567", "The answer is 1 234 567 in 2 steps", True), ("-5", "It is −5", True),
        ("5", "10-5", True), ("0.5", "1/2", True), ("123", "1,2,3", False), ("257", "#### 250 + 7 = 257", True),
        ("257", "#### **257** for 3 people", True), ("257", "The answer is 9. #### 257 (9 checks)", True),
        ("573", "573 cannot be right", False), ("573", "Answer: 573. No wait, that is wrong.", False),
        ("573", "573? No.", False), ("573", "I doubt that it is 573", False), ("573", "not, I think, 573", False),
        ("573", "I do not doubt that it is 573", True), ("573", "It is not 12 but 573", True),
    ],
)  # fmt: skip
def test_numbers_are_compared_by_value(key: str, text: str, right: bool) -> None:
    assert number(text, key).flexible == right


@pytest.mark.parametrize(
    ("key", "text", "right"),
    [
        ("1\\frac{1}{2}", "\\boxed{\\frac{3}{2}}", True), ("1\\frac{1}{2}", "\\boxed{1.5}", True),
        ("1\\frac{1}{2}", "\\boxed{\\frac{11}{2}}", False), ("\\frac{11}{2}", "\\boxed{1\\frac{1}{2}}", False),
        ("3/2", "\\boxed{1½}", True), ("3/2", "\\boxed{1 1/2}", True), ("11/2", "\\boxed{1 1/2}", False),
        ("-3/2", "\\boxed{-1\\tfrac12}", True), ("1/2", "\\boxed{½}", True), ("3/2", "It is 1 1/2.", True),
        ("11/2", "It is 11/2", True), ("1,000", "\\boxed{1000.0}", True), ("5", "It is not 5", False),
        ("1000", "\\boxed{1'000}", True), ("1000", "1 000", True), ("5", "\\boxed{5} is wrong", False),
        ("5", "It is not $\\boxed{5}$", False), ("5", "It is $5$, not $6$.", True), ("6", "It is $5$, not $6$.", False),
        ("1/2", "It is \\(\\frac12\\), rather than \\(2\\).", True), ("5", "The answer is 5. It took 3 steps.", True),
    ],
)  # fmt: skip
def test_mixed_numbers(key: str, text: str, right: bool) -> None:
    found = grade(Question("1", "maths", "m", key), text, [], thought=False)
    assert found.flexible == right


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        ("<|channel>thought\n", "<channel|>"), ("<thought>", "</thought>"), ("<thinking>", "</thinking>"),
        ("<Think>", "</Think>"), ("◁think▷", "◁/think▷"), ("<seed:think>", "</seed:think>"),
        ("<|START_THINKING|>", "<|END_THINKING|>"), ("<|begin_of_thought|>", "<|end_of_thought|>"),
        ("<reasoning>", "</reasoning>"), ("[THINK]", "[/THINK]"), ("<unused94>thought\n", "<unused95>"),
        ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
        ("<|inner_prefix|>", "<|inner_suffix|>"),
        ("Here is my thought process: ", " Here is my response: "),
    ],
)  # fmt: skip
def test_thinking_is_no_answer_in_any_spelling(begin: str, end: str) -> None:
    question = Question("1", "text", "t", "Paris")
    for text in (f"{begin}Maybe Paris{end}Oslo", f"Maybe Paris{end}Oslo"):
        assert not grade(question, text, [], thought=False).flexible
    assert grade(question, f"{begin}Maybe Oslo{end}Paris", [], thought=False).flexible
    assert grade(question, f"{begin}Maybe Paris", [], thought=False) == Grade(thinking=True)


@pytest.mark.parametrize(
    ("kind", "answer", "text", "right"),
    [
        ("text", "Paris", "It is certainly not Paris", False), ("text", "573", "not 573. It is 573", True),
        ("needle", ["573"], "It is 15734", False), ("needle", ["573"], "certainly not 573", False),
        ("needle", ["573"], "It is 573.", True), ("text", "cat", "concatenate", False), ("text", "42", "1420", False),
        ("text", "cat", "cat-like", False), ("text", "cat", "not a dog but a cat", True),
        ("text", "cat", "cat is wrong", False), ("text", "cat", "It is a cat. A dog, unlike a cat, barks", True),
        ("text", "cat", "A cat? It is certainly not a cat", False), ("text", "cat", "A cat, but that is false", False),
        ("text", "Paris", "Paris is not far from Rome", True), ("text", "Paris", "Not only Paris", True),
        ("text", "Paris", "anything but Paris", False), ("text", "1420", "1,420", True), ("text", "1,420", "1420.0", True),
        ("text", "420", "1'420", False), ("needle", ["1234567"], "1 234 567", True),
        ("needle", ["42", "57"], "42, but 57 is wrong", False), ("needle", ["42"], "42 is not the number", False),
        ("letter", "B", "(B) cannot be right", False), ("letter", "B", "anything but B", False),
    ],
)  # fmt: skip
def test_what_is_denied_or_part_of_another_is_not_right(
    kind: str, answer: Any, text: str, right: bool
) -> None:
    assert grade(Question("1", kind, kind, answer), text, [], thought=False).flexible == right


def test_a_call_beside_the_right_one_is_wrong() -> None:
    tools = [{"name": "f", "parameters": {"type": "object"}}]
    call, other = ({"name": "f", "arguments": json.dumps({"a": n})} for n in (1, 2))
    expected = {"name": "f", "arguments": {"a": 1}}
    for answer, calls, right in (
        (expected, [call], True),
        (expected, [call, other], False),
        (expected, [call, call], False),
        (None, [call, other], True),
        (None, [call, call], False),
    ):
        found = grade(Question("1", "tool", "t", answer, None, tools), "", calls, thought=False)
        assert found.flexible == right


@pytest.mark.parametrize(
    ("kind", "text", "right", "wrong"),
    [
        ("text", "It used to be Paris, now it is Lyon.", "Lyon", "Paris"),
        ("text", "The capital was once Bonn; it is now Berlin.", "Berlin", "Bonn"),
        ("text", "It used to be called Byzantium, but today it is Istanbul.", "Byzantium", "Paris"),
        ("text", "It was 1969, which is now long ago.", "1969", "69"),
        ("text", "Many would say 42. They are mistaken.", "mistaken", "42"),
        ("text", "Some believe it is Paris, but it is Lyon.", "Lyon", "Paris"),
        ("text", "Many would say Paris, and they are right.", "Paris", "Lyon"),
        ("text", "Some might say Lyon. In fact it is Paris.", "Paris", "Lyon"),
        ("text", "Paris. No, wait: Lyon.", "Lyon", "Paris"), ("text", "Paris. Wait, let me see. Yes.", "Paris", "let us"),
        ("text", "Paris, I mean Lyon.", "Lyon", "Paris"), ("text", "Paris. I mean it.", "Paris", "Lyon"),
        ("text", "Paris. Sorry, it took a while.", "Paris", "Lyon"), ("text", "Paris. Correction of it: none.", "Paris", "Lyon"),
        ("text", "Paris, I mean, of course", "Paris", "Lyon"), ("text", "Paris, actually correct", "Paris", "Lyon"),
        ("text", "Paris. No, really.", "Paris", "Lyon"), ("text", "Lyon, or rather Paris", "Paris", "Lyon"),
        ("text", "Lyon. Actually, Paris.", "Paris", "Lyon"), ("text", "Paris. Sorry for the delay.", "Paris", "Lyon"),
        ("text", "It would be wrong to say Lyon; it is Paris.", "Paris", "Lyon"),
        ("text", "By no means Lyon: Paris", "Paris", "Lyon"), ("text", "None other than Paris", "Paris", "Lyon"),
        ("text", "We can rule out Lyon. So Paris", "Paris", "Lyon"), ("text", "Lyon is a common mistake. Paris", "Paris", "Lyon"),
        ("text", "1.5k", "1500", "5"), ("text", "1.2 million", "1200000", "2"), ("text", "1.234.567", "1234567", "567"),
        ("text", "2.000", "2.000", "2000"), ("needle", "It is 15k.", ["15000"], ["15"]),
        ("number", "1.5k", "1500", "1.5"), ("number", "It is $1.2 million.", "1200000", "2"),
        ("number", "1.2M", "1200000", "1.2"), ("number", "8 million", "8", "8000"), ("number", "#### 3 billion", "3000000000", "1"),
        ("number", "2 dozen", "24", "12"), ("number", "5 m", "5", "5000000"), ("number", "18 km", "18", "18000"),
        ("number", "The answer is 1.234.567 euros", "1234567", "1.234"), ("number", "1.234,56", "1234.56", "56"),
        ("number", "1.234", "1.234", "1234"), ("number", "0,5", "0.5", "5"), ("number", "€1.234.567,00", "1234567", "0"),
        ("number", "2 1/2", "2.5", "0.5"), ("number", "2½", "2.5", "0.5"), ("number", "The answer is 2 3/4 cups", "2.75", "2"),
        ("number", "21/2", "10.5", "2.5"), ("number", "-2½", "-2.5", "2.5"), ("maths", "1.2\\text{ million}", "1200000", "2"),
        ("number", "48213 (harbor-17)", "48213", "17"), ("number", "It is 12 in room B-7", "12", "7"),
        ("number", "48213 (row 17)", "48213", "7"), ("number", "The answer is 42. No wait, 43.", "43", "42"),
        ("number", "The answer is 42. Let me check: 6 x 7 = 42.", "42", "6"),
        ("letter", "Many would say A. They are mistaken. B", "B", "A"), ("letter", "A. No, wait: B", "B", "A"),
    ],
)  # fmt: skip
def test_what_an_answer_takes_back_and_numbers_as_people_write_them(
    kind: str, text: str, right: Any, wrong: Any
) -> None:
    graded = [
        grade(Question("1", kind, kind, answer), text, [], thought=False).flexible
        for answer in (right, wrong)
    ]
    assert graded == [True, False]
