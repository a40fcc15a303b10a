"""Grades one answer. An answer is hostile text: it is never executed, and every pattern takes linear time.

`number` extracts and compares as lm-evaluation-harness's task gsm8k does (strict and flexible), text against text:
18.00 is not 18. Of what is between marks of thinking nothing counts; without an end mark there is no answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import msgspec

from loadstone.workload.checks import LETTERS, Question, find_pattern

INVALID = "[invalid]"
_STRICT = re.compile(r"#### (-?[0-9.,]+)")
_FLEXIBLE = re.compile(r"-?[$0-9.,]{2,}|-?[0-9]+")
_STATED = re.compile(rf"(?i:answer is:? ?|answer: ?)\(?\**([{LETTERS}])\b")
_ALONE = re.compile(rf"(?<![A-Za-z0-9'])([{LETTERS}])(?![A-Za-z0-9'])")
_FENCE = re.compile(r"\A\s*```[a-zA-Z]*[ \t]*\n")
_OF_A_WORD = r"[^\W\u3040-\u30ff\u3400-\u9fff]"
"""A letter or digit, but of scripts that set no space between words."""
_PUNCTUATION = " \t.,:;()[]*\"'`"
_MOST_CHARACTERS = 1 << 20
"""Of an answer that are looked at: no question needs more."""


class Grade(msgspec.Struct, frozen=True):
    """Says how an answer is right or wrong.

    strict    right in the form that was asked for; flexible: right, however it is said
    parsed    something was found that could be the answer
    thinking  it is thinking alone, without an answer
    """

    strict: bool = False
    flexible: bool = False
    parsed: bool = False
    thinking: bool = False


def grade(question: Question, text: str, calls: list[Any], *, thought: bool) -> Grade:
    """Grade an answer's text, or the calls of tools that it made. `thought`: thinking came apart from it."""
    _, thinks, answer = text[:_MOST_CHARACTERS].rpartition("</think>")
    unended = not thinks and "<think>" in answer
    if unended or (not answer.strip() and not calls):
        return Grade(thinking=unended or thought or bool(thinks))
    if question.grade == "tool":
        right = _is_valid_call(question, calls)
        return Grade(right, right, bool(calls))
    return _GRADERS[question.grade](question, answer)


# --- numbers ------------------------------------------------------------------------------------------------------


def extract_strict(text: str) -> str:
    """Return the first number behind `#### `; INVALID where there is none."""
    found = _STRICT.search(text)
    return found[1] if found else INVALID


def extract_flexible(text: str) -> str:
    """Return the last number; INVALID where there is none."""
    return next(reversed(_FLEXIBLE.findall(text)), INVALID)


def same_number(found: str, answer: str) -> bool:
    """Compare as text, without commas, dollars, one full stop at the end, and what comes before the answer's mark."""
    return _plain_number(found) == _plain_number(answer)


def _plain_number(text: str) -> str:
    return text.rpartition("#### ")[2].replace(",", "").replace("$", "").removesuffix(".").lower()


def _grade_number(question: Question, text: str) -> Grade:
    strict, flexible = extract_strict(text), extract_flexible(text)
    return Grade(same_number(strict, question.answer), same_number(flexible, question.answer), flexible != INVALID)


# --- letters and texts --------------------------------------------------------------------------------------------


def _grade_letter(question: Question, text: str) -> Grade:
    """Strict: the first line is the letter, or it is stated as the answer; flexible: the last that stands alone."""
    first = text.strip().split("\n", 1)[0].strip(_PUNCTUATION)
    stated = first.upper() if len(first) == 1 and first.upper() in LETTERS else ""
    for match in _STATED.finditer(text):
        stated = match[1]
    loose = stated or next(reversed(_ALONE.findall(text)), "")
    return Grade(stated == question.answer, loose == question.answer, bool(loose))


def _grade_text(question: Question, text: str) -> Grade:
    """Strict: the answer is all that is said; flexible: it stands in what is said, as words of their own."""
    right = question.answer.strip()
    strict = text.strip() == right
    part = rf"(?<!{_OF_A_WORD}){re.escape(right.casefold())}(?!{_OF_A_WORD})"
    loose = question.grade == "text" and re.search(part, text.casefold()) is not None
    return Grade(strict, strict or loose, True)


def _grade_needle(question: Question, text: str) -> Grade:
    """Right: every needle is named, in whatever case."""
    lowered = text.casefold()
    right = all(each.casefold() in lowered for each in question.answer)
    return Grade(text.strip() == question.answer[0] if len(question.answer) == 1 else right, right, True)


# --- JSON and calls of tools --------------------------------------------------------------------------------------


def _parse(text: str) -> tuple[bool, Any]:
    """Read JSON; (False, None) where it is none."""
    try:
        return True, msgspec.json.decode(text.strip().encode())
    except (ValueError, RecursionError):
        return False, None


def _grade_json(question: Question, text: str) -> Grade:
    """Strict: the JSON value is all that is said; flexible: it may stand in a code fence."""
    fence = _FENCE.match(text)
    parsed, value = _parse(text[fence.end() :].rpartition("```")[0] if fence else text)
    valid = _is_valid(question.schema, value) if question.grade == "schema" else _is_same(value, question.answer)
    right = parsed and valid
    return Grade(right and not fence, right, parsed)


def _canonical(value: Any) -> bytes:
    return msgspec.json.encode(value, order="deterministic")


def _is_same(value: Any, answer: Any) -> bool:
    """Compare values of JSON; True is not 1."""
    try:
        return _canonical(value) == _canonical(answer)
    except (ValueError, RecursionError):
        return False


@cache
def _validator() -> Any:
    """Make jsonschema's class for Draft 2020-12, with keywords that take linear time of any value."""
    from jsonschema import Draft202012Validator, ValidationError
    from jsonschema.validators import extend

    def pattern(_: Any, wanted: str, value: Any, _schema: Any) -> Iterator[ValidationError]:
        if isinstance(value, str) and not find_pattern(wanted, value):
            yield ValidationError("pattern")

    def unique(_: Any, wanted: bool, value: Any, _schema: Any) -> Iterator[ValidationError]:
        if wanted and isinstance(value, list) and len(set(map(_canonical, value))) < len(value):
            yield ValidationError("uniqueItems")

    return extend(Draft202012Validator, {"pattern": pattern, "uniqueItems": unique})


def _is_valid(schema: Any, value: Any) -> bool:
    """Tell whether a value fits a schema, formats too. Nothing is fetched: what refers elsewhere fits none."""
    from jsonschema import FormatChecker
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    try:
        return bool(_validator()(schema, registry=Registry(), format_checker=FormatChecker()).is_valid(value))
    except (RecursionError, ArithmeticError, ValueError, Unresolvable, re.error):
        return False


def _is_valid_call(question: Question, calls: list[Any]) -> bool:
    """Right: every call names a tool that there is, with arguments that fit; and it is the one expected, if that is
    known.
    """
    known = {tool["name"]: tool["parameters"] for tool in question.tools}
    made = []
    for call in calls:
        parsed, arguments = _parse(str(call.get("arguments") or "{}"))
        if call.get("name") not in known or not parsed or not isinstance(arguments, dict):
            return False
        if not _is_valid(known[call["name"]], arguments):
            return False
        made.append({"name": call["name"], "arguments": arguments})
    expected = question.answer
    return bool(made) and (expected is None or any(_is_same(each, {"arguments": {}, **expected}) for each in made))


_GRADERS: dict[str, Callable[[Question, str], Grade]] = {
    "number": _grade_number, "letter": _grade_letter, "text": _grade_text, "exact": _grade_text,
    "needle": _grade_needle, "json": _grade_json, "schema": _grade_json,
}  # fmt: skip
