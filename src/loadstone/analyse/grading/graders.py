r"""Grades one answer. An answer is hostile text: it is never executed, and every pattern takes
linear time.

`number` extracts and compares as lm-evaluation-harness's task gsm8k does (strict and flexible),
text against text: 18.00 is not 18. `maths` takes what stands in \boxed{}, and compares values. Of
what is between marks of thinking nothing counts; without an end mark there is no answer.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache
from typing import Any

import msgspec

from loadstone.workload.checks import LETTERS, Question, find_boxed, find_pattern

INVALID = "[invalid]"
_THOUGHT_BEGINS = re.compile(r"<think>|\[THINK\]|<\|channel\|>analysis<\|message\|>")
_THOUGHT_ENDS = re.compile(r"</think>|\[/THINK\]|<\|end\|>(?=<\|(?:start|channel)\|>)")
"""Marks that a server without a parser of thinking leaves in an answer."""
_STRICT = re.compile(r"#### (-?[0-9.,]+)")
_FLEXIBLE = re.compile(r"-?[$0-9.,]{2,}|-?[0-9]+")
_STATED = re.compile(
    r"(?i:answer is:?|answer:)\s*(?i:option )?\(?([A-J](?![\w'])|[a-j](?![\w']| [a-z]))"
)
_ALONE = re.compile(r"(?<![A-Za-z0-9'])(?:[AI](?! [a-z])|[B-HJ])(?![A-Za-z0-9'])")
"""A letter, but of "A cat" and "I think" none."""
_MARKDOWN = re.compile(r"[*_`$\"{}]|\\(?:boxed|text|mathrm)")
_FENCE = re.compile(r"```[a-zA-Z]*[ \t]*\r?\n")
_OF_A_WORD = r"[^\W\u3040-\u30ff\u3400-\u9fff]"
"""A letter or digit, but of scripts that set no space between words."""
_PUNCTUATION = " \t.,:;()[]*\"'`"
_MAX_CHARACTERS = 1 << 20
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
    """Grade an answer's text, or the calls of tools that it made. `thought`: thinking came apart
    from it."""
    *thinking, answer = _THOUGHT_ENDS.split(text[:_MAX_CHARACTERS])
    unended = _THOUGHT_BEGINS.search(answer) is not None
    if unended or (not answer.strip() and not calls):
        return Grade(thinking=unended or thought or bool(thinking))
    if question.grade == "tool":
        right = _is_valid_call(question, calls)
        return Grade(right, right, bool(calls))
    return _GRADERS[question.grade](question, answer)


# --- numbers --------------------------------------------------------------------------------------


def extract_strict(text: str) -> str:
    """Return the first number behind `#### `; INVALID where there is none."""
    found = _STRICT.search(text)
    return found[1] if found else INVALID


def extract_flexible(text: str) -> str:
    """Return the last number; INVALID where there is none."""
    return next(reversed(_FLEXIBLE.findall(text)), INVALID)


def same_number(found: str, answer: str) -> bool:
    """Compare as text, without commas, dollars, one full stop at the end, and what comes before the
    answer's mark."""
    return _plain_number(found) == _plain_number(answer)


def _plain_number(text: str) -> str:
    return text.rpartition("#### ")[2].replace(",", "").replace("$", "").removesuffix(".").lower()


def _grade_number(question: Question, text: str) -> Grade:
    strict, flexible = extract_strict(text), extract_flexible(text)
    return Grade(
        same_number(strict, question.answer),
        same_number(flexible, question.answer),
        flexible != INVALID,
    )


_LATEX = (
    (re.compile(r"(?<!\\)\\(?:left|right|displaystyle|[!;: ])|\^\{?\\circ\}?|°|\\?[$%]|\s"), ""),
    (
        re.compile(r"(?<=.)\\(?:text|mathrm|mbox)\{[^{}]*\}(?:\^\{?\d\}?)?\.?\Z|\.\Z|\A[A-Za-z]="),
        "",
    ),
    (re.compile(r"(?<=\d)(?:\{,\}|\\?,)(?=\d{3}(?!\d))|\\(?:text|mathrm|mbox|mathbf)(?=\{)"), ""),
    (re.compile(r"\\[dtc]?frac(?:\{([^{}]*)\}|(\d))(?:\{([^{}]*)\}|(\d))"), r"{\1\2}/{\3\4}"),
    (re.compile(r"\{(-?\w+)\}"), r"\1"),
)
"""What makes one value of several ways to write it: no spaces, marks, units, name, and no commas of
thousands."""
_VALUE = re.compile(r"-?(?:\d{1,100}(?:/0{0,99}[1-9]\d{0,99})?|\d{0,100}\.\d{1,100})")


def _value_of(text: str) -> Fraction | str:
    for pattern, by in _LATEX:
        text = pattern.sub(by, text)
    return Fraction(text) if _VALUE.fullmatch(text) else text


def _grade_maths(question: Question, text: str) -> Grade:
    """Strict: the last box has the answer; flexible: without a box, the last that stands between
    dollars, or the last number.
    """
    boxed, right = find_boxed(text), _value_of(question.answer)
    found = (
        [boxed]
        if boxed
        else [*re.findall(r"\$([^$]+)\$", text)[-1:], extract_flexible(text).rstrip(".,")]
    )
    loose = right in map(_value_of, found)
    return Grade(bool(boxed) and loose, loose, found != [INVALID])


# --- letters and texts ----------------------------------------------------------------------------


def _grade_letter(question: Question, text: str) -> Grade:
    """Strict: the first line is the letter, or it is stated; flexible: the last one in brackets, or
    alone."""
    text = _MARKDOWN.sub("", _fold(text))
    first = text.strip().split("\n", 1)[0].strip(_PUNCTUATION).upper()
    stated = first if len(first) == 1 and first in LETTERS else ""
    stated = next(reversed(_STATED.findall(text)), stated).upper()
    loose = stated or next(reversed(re.findall(r"\(([A-J])\)", text) or _ALONE.findall(text)), "")
    return Grade(stated == question.answer, loose == question.answer, bool(loose))


def _fold(text: str) -> str:
    # Short texts alone are written in one form: that takes more than linear time.
    return unicodedata.normalize("NFKC", text) if len(text) <= 4096 else text


def _grade_text(question: Question, text: str) -> Grade:
    """Strict: one of the answers is all that is said; flexible: it stands in what is said, as words
    of their own."""
    answers = question.answer if isinstance(question.answer, list) else [question.answer]
    strict = text.strip() in map(str.strip, answers)
    loose = question.grade == "text" and any(
        _stands_in(_fold(text).casefold(), answer) for answer in answers
    )
    return Grade(strict, strict or loose, True)


def _stands_in(text: str, answer: str) -> bool:
    """Tell whether a text has an answer that is no part of a longer word or number."""
    wanted = _fold(answer).strip().casefold()
    begin = rf"(?<!{_OF_A_WORD})" + r"(?<!\.)(?<!\d,)(?<![\s(=]-)" * wanted[:1].isdecimal()
    end = rf"(?!{_OF_A_WORD})" + r"(?!\.\d|,\d{3})" * wanted[-1:].isdecimal()
    return re.search(begin + re.escape(wanted) + end, f" {text}") is not None


def _grade_needle(question: Question, text: str) -> Grade:
    """Right: every needle is named, in whatever case."""
    lowered = text.casefold()
    right = all(needle.casefold() in lowered for needle in question.answer)
    return Grade(
        text.strip() == question.answer[0] if len(question.answer) == 1 else right, right, True
    )


# --- JSON and calls of tools ----------------------------------------------------------------------


def _parse(text: str) -> tuple[bool, Any]:
    """Read JSON; (False, None) where it is none."""
    try:
        return True, msgspec.json.decode(text.strip().encode())
    except (ValueError, RecursionError):
        return False, None


def _grade_json(question: Question, text: str) -> Grade:
    """Strict: the JSON value is all that is said; flexible: it may stand in a code fence, or among
    words."""
    parsed, value = _parse(text)
    strict = parsed
    fence = _FENCE.search(text)
    if not parsed and fence:
        parsed, value = _parse(text[fence.end() :].partition("```")[0])
    bracket = re.search(r"[\[{]", text)
    if not parsed and bracket:
        parsed, value = _parse(text[bracket.start() : max(text.rfind("]"), text.rfind("}")) + 1])
    if question.grade == "schema":
        right = parsed and _is_valid(question.schema, value)
    else:
        right = parsed and _is_same(value, question.answer)
    return Grade(right and strict, right, parsed)


def _canonical(value: Any) -> bytes:
    return msgspec.json.encode(value, order="deterministic")


def _is_same(value: Any, answer: Any) -> bool:
    """Compare values of JSON: 1.0 is 1, True is not."""
    if isinstance(value, dict) and isinstance(answer, dict):
        return value.keys() == answer.keys() and all(
            _is_same(part, answer[name]) for name, part in value.items()
        )
    if isinstance(value, list) and isinstance(answer, list):
        return len(value) == len(answer) and all(map(_is_same, value, answer))
    return isinstance(value, bool) == isinstance(answer, bool) and bool(value == answer)


@cache
def _validator() -> Any:
    """Make jsonschema's class for Draft 2020-12, with keywords that take linear time of any
    value."""
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
    """Tell whether a value fits a schema, formats too. Nothing is fetched: what refers elsewhere
    fits none."""
    from jsonschema import FormatChecker
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    try:
        return bool(
            _validator()(schema, registry=Registry(), format_checker=FormatChecker()).is_valid(
                value
            )
        )
    except (RecursionError, ArithmeticError, ValueError, Unresolvable, re.error):
        return False


def _is_valid_call(question: Question, calls: list[Any]) -> bool:
    """Right: every call names a tool that there is, with arguments that fit; and it is the one
    expected, if that is known.
    """
    tools = {tool["name"]: tool["parameters"] for tool in question.tools}
    made = []
    for call in calls:
        parsed, arguments = _parse(str(call.get("arguments") or "{}"))
        if call.get("name") not in tools or not parsed or not isinstance(arguments, dict):
            return False
        if not _is_valid(tools[call["name"]], arguments):
            return False
        made.append({"name": call["name"], "arguments": arguments})
    expected = question.answer
    return bool(made) and (expected is None or any(_is_same(call, expected) for call in made))


_GRADERS: dict[str, Callable[[Question, str], Grade]] = {
    "number": _grade_number,
    "maths": _grade_maths,
    "letter": _grade_letter,
    "needle": _grade_needle,
    "text": _grade_text,
    "exact": _grade_text,
    "json": _grade_json,
    "schema": _grade_json,
}
