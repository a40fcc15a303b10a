r"""Grades one answer. An answer is hostile text: it is never executed, and every pattern takes
linear time.

`number` is strictly graded as lm-evaluation-harness's task gsm8k does it, text against text: 18.00
is not 18; however it is said, it is compared by value. `maths` takes what stands in \boxed{}, and
compares values. Of what is between marks of thinking nothing counts; without an end mark there is
no answer.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from functools import cache
from typing import Any

import msgspec

from loadstone.analyse.grading.denials import denial_before, is_denied, is_refuted
from loadstone.analyse.grading.numerals import (
    MARKS_OF_THOUSANDS,
    NUMBER,
    SPACES,
    SPELLING,
    mark_parts,
    number_of,
    plain_number,
    readings,
    spell_fractions,
    spell_out,
    value_of,
)
from loadstone.workload.checks import LETTERS, Question, find_boxed, find_pattern

INVALID = "[invalid]"
_THOUGHTS = r"(?:\w{1,20}[:_])?(?:think|thinking|thought|thoughts|reasoning|reflection|scratchpad)"
_MARKS = re.compile(
    rf"(?P<end>[<◁](?:\|?/|\|end_of_|\|end_){_THOUGHTS}\|?[>▷]|\[/THINK\]"
    r"|<\|end\|>(?=<\|(?:start|channel)\|>)|<channel\|>|<unused95>|<\|inner_suffix\|>"
    r"|Here is my response:)"
    rf"|(?P<begin>[<◁]\|?(?:begin_of_|start_)?{_THOUGHTS}\|?[>▷]|\[THINK\]"
    r"|<\|channel\|>(?:analysis|commentary)<\|message\|>|<\|channel>(?:thought|analysis)\b"
    r"|<unused94>|<\|inner_prefix\|>|\A\s*Here is my thought process:)",
    re.IGNORECASE,
)
"""Marks of thinking, of many models, that a server without a parser of thinking leaves in an
answer."""
_STRICT = re.compile(r"#### (-?[0-9.,]+)")
_FLEXIBLE = re.compile(r"-?[$0-9.,]{2,}|-?[0-9]+")
_LETTER = r"\(?([A-J](?![\w'])|[a-j](?![\w']| [a-z]))"
_NOUN = r"(?:answer|option|choice|letter|statement|antwort|réponse|respuesta|risposta)"
_STATED = re.compile(r"(?i:answer is:?|answer:)\s*(?i:option )?" + _LETTER)
_STATEMENTS = (
    _STATED,
    re.compile(
        rf"(?i:{_NOUN}(?:\s+(?:is|ist|est|es|è|(?:w|sh)ould be|must be|(?:seem|appear)s to be)"
        r"|\s*[:=>\-–—])+"
        r"|答案(?:是|为|选)?[:：]?)\s*"
        rf"(?i:(?:the )?(?:option|choice|letter) )?{_LETTER}"
    ),
    re.compile(
        r"(?i:(?:correct|right|best|true|final)\s+(?:one|\w+)\s+(?:is|would be|must be)[:\s]\s*)"
        rf"(?i:option )?{_LETTER}"
    ),
    re.compile(
        r"(?i:\b(?:it|this|that)(?:['’]s|\s+(?:is|(?:must|has to|should|would|can only) be))\s+)"
        rf"(?i:option )?{_LETTER}"
    ),
    re.compile(
        r"(?i:(?:choose|pick|select|say|go with|chose)\s+)(?i:(?:option|choice) )?" + _LETTER
    ),
    re.compile(
        rf"(?i:(?:option|choice)\s+)?{_LETTER}\)?\s+"
        r"(?i:is\s+(?:the\s+)?(?:only\s+)?(?:correct|right|best|true|answer))"
    ),
)
"""Ways to say which letter is the answer."""
_BEGINS = re.compile(
    r"\s*(?:\(([A-Ja-j])\)|([A-Ja-j])[).:](?=\s|\Z)"
    r"|([A-J])(?=\s*(?:[–—-]\s|,(?!\s*\(?[A-J]\b)|\s(?:because|since|as|is)\b)))"
)
_BRACKETED = re.compile(r"\([A-Ja-j]\)")
_LABELS = re.compile(r"^\s*\(?([A-Ja-j])[).:]\s", re.MULTILINE)
_ALONE = re.compile(r"(?<![A-Za-z0-9'])(?:[AI](?! [a-z])|[B-HJ])(?![A-Za-z0-9'])")
"""A letter, but of "A cat" and "I think" none."""
_MARKDOWN = re.compile(r"[*_`$\"{}]|\\(?:boxed|text|mathrm)")
_STATES_NUMBER = (
    re.compile(r"####[\s*$]*(?=-?\$?\.?\d)"),
    re.compile(
        r"(?i:answer(?:\s+(?:is|are|was|would be|comes to)|\s*\**[:=])+|\\boxed\{)"
        r"\s*(?:\*\*|\$|\\\()*\s*(?=-?\$?\.?\d)"
    ),
)
"""What stands before a number that is the answer: a mark goes before words."""
_EQUATION = re.compile(r"[-$\d.,]+(?:\s*[-+*/×·÷]\s*[$\d.,]+)+\s*=\s*(?=-?\$?\.?\d)")
_OF_A_NAME = re.compile(r"[A-Za-z][-‐]?\Z")
"""What stands before a number that is part of a name: harbor-17."""
_REMARK = re.compile(r"[*$]{0,4}\s?\([^()\n]{1,80}\)[\s.*]{0,9}\Z")
"""What ends an answer and only adds to the number before it."""
_MINUS = re.compile(r"(?<![\d)] )(?<![\w)])(?:[−–]|(?i:minus|negative)\s+)(?=\$?\.?\d)")
_FENCE = re.compile(r"```[a-zA-Z]*[ \t]*\r?\n")
_OF_A_WORD = r"[^\W\u3040-\u30ff\u3400-\u9fff]"
"""A letter or digit, but of scripts that set no space between words."""
_PUNCTUATION = " \t.,:;()[]*\"'`"
_MOST_DENIED = 1000
"""Values that are looked at from the end of an answer, until one is not denied."""
_MAX_CHARACTERS, _END_CHARACTERS = 1 << 20, 1 << 16
"""Of an answer that are looked at, and of its beginning and end where a letter is looked for: no
question needs more."""


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
    answer, unended, marked = _split_thinking(text[:_MAX_CHARACTERS])
    if unended or (not answer.strip() and not calls):
        return Grade(thinking=unended or thought or marked)
    if question.grade == "tool":
        right = _is_valid_call(question, calls)
        return Grade(right, right, bool(calls))
    return _GRADERS[question.grade](question, answer)


def _split_thinking(text: str) -> tuple[str, bool, bool]:
    """Return what stands outside of thinking, whether thinking did not end, and whether there were
    marks. An end without its beginning ends thinking that the prompt began."""
    answer, inside, marked, place = "", False, False, 0
    for mark in _MARKS.finditer(text):
        if mark["begin"] and not inside:
            answer += text[place : mark.start()]
        elif mark["end"] and not inside:
            answer = ""
        inside, marked, place = mark["begin"] is not None, True, mark.end()
    return answer if inside else answer + text[place:], inside, marked


def _find_last(matches: Iterable[re.Match[str]], text: str) -> re.Match[str] | None:
    """Find the last of these values that the answer does not say to be wrong."""
    for match in reversed(list(matches)[-_MOST_DENIED:]):
        if not is_denied(text, *match.span()):
            return match
    return None


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
    return plain_number(found) == plain_number(answer)


def _grade_number(question: Question, text: str) -> Grade:
    """Strict: the first number behind `#### `, as text; flexible: the last one there, or else that
    is stated, or else the last, by value, of those that are not denied."""
    strict, right = extract_strict(text), number_of(question.answer)
    text = spell_fractions(_MINUS.sub("-", text))
    stated = (_find_last(_stated_numbers(pattern, text), text) for pattern in _STATES_NUMBER)
    number = next(filter(None, stated), None)
    is_stated = number is not None
    numbers = list(NUMBER.finditer(text))
    amounts = [found for found in numbers if not _is_of_a_name(text, found.start())]
    number = number or _find_last(amounts, text) or _find_last(numbers, text)
    found = [] if number is None else [number]
    if not is_stated and number is not None:
        beside = (amount for amount in amounts if _REMARK.match(text, amount.end()))
        found += [amount for amount in beside if not is_denied(text, *amount.span())]
    # "12 300" may be one number, or two: then the last one, or the one that is stated.
    spellings = [amount[0] for amount in found]
    spellings += [SPACES.split(spelled)[0 if is_stated else -1] for spelled in spellings]
    loose = any(right in readings(spelled) for spelled in spellings)
    return Grade(same_number(strict, question.answer) and loose, loose, number is not None)


def _is_of_a_name(text: str, begin: int) -> bool:
    return _OF_A_NAME.search(text, max(0, begin - 2), begin) is not None


def _stated_numbers(
    mark: re.Pattern[str], text: str, number: re.Pattern[str] = NUMBER
) -> Iterator[re.Match[str]]:
    """Yield the numbers behind these marks, or behind an equation that stands there."""
    for begun in mark.finditer(text):
        equation = _EQUATION.match(text, begun.end())
        found = number.match(text, (equation or begun).end())
        if found is not None:
            yield found


_LATEX = (
    (re.compile(r"(?<!\\)\\(?:left|right|displaystyle|[!;: ])|\^\{?\\circ\}?|°|\\?[$%]|\s"), ""),
    (
        re.compile(r"(?<=.)\\(?:text|mathrm|mbox)\{[^{}]*\}(?:\^\{?\d\}?)?\.?\Z|\.\Z|\A[A-Za-z]="),
        "",
    ),
    (
        re.compile(r"(?<=\d)(?:\{,\}|\\?,|'|’)(?=\d{3}(?!\d))|\\(?:text|mathrm|mbox|mathbf)(?=\{)"),
        "",
    ),
    (re.compile(r"\\[dtc]?frac(?:\{([^{}]*)\}|(\d))(?:\{([^{}]*)\}|(\d))"), r"{\1\2}/{\3\4}"),
    (re.compile(r"\{(-?\w+)\}"), r"\1"),
)
"""What makes one value of several ways to write it: no spaces, marks, units, name, and no commas of
thousands."""
_LAST_VALUE = re.compile(
    r"(?<!\\)\$(?P<formula>(?:\\.|[^$\\])+)\$|-?\d+\s+(?:and\s+)?\d+/\d+|" + NUMBER.pattern
)
_FORMULA_MARK = re.compile(r"\\[()\[\]]")


def _value_of(text: str) -> Fraction | str:
    text = mark_parts(text)
    for pattern, by in _LATEX:
        text = pattern.sub(by, text)
    return value_of(text)


def _grade_maths(question: Question, text: str) -> Grade:
    """Strict: the last box has the answer; flexible: without a box, the last formula between
    dollars, or the number that is stated or the last, of those that are not denied.
    """
    text = _MINUS.sub("-", text)
    boxed, right = find_boxed(text), _value_of(question.answer)
    if boxed:
        begin = text.rindex("\\boxed{")
        found = [boxed] * (not is_denied(text, begin, begin + 7 + len(boxed)))
    else:
        text = spell_fractions(_FORMULA_MARK.sub("$", text))
        values = list(_LAST_VALUE.finditer(text))
        chosen = (
            _find_last((value for value in values if value["formula"]), text),
            _find_last(_stated_numbers(_STATES_NUMBER[1], text, _LAST_VALUE), text)
            or _find_last((value for value in values if not value["formula"]), text),
        )
        found = [value["formula"] or value[0] for value in chosen if value is not None]
    loose = any(right in readings(text_found, _value_of) for text_found in found)
    return Grade(bool(boxed) and loose, loose, bool(found))


# --- letters and texts ----------------------------------------------------------------------------


def _grade_letter(question: Question, text: str) -> Grade:
    """Strict: the first line is the letter, or it is stated; flexible: it stands in a box, is
    stated in any way, begins the answer, or is the last one in brackets, or alone."""
    boxed = _MARKDOWN.sub("", find_boxed(text) or "").strip(_PUNCTUATION).upper()
    ends = text[:_END_CHARACTERS] + text[_END_CHARACTERS:][-_END_CHARACTERS:]
    text = _MARKDOWN.sub("", _fold(ends))
    first = text.strip().split("\n", 1)[0].strip(_PUNCTUATION).upper()
    stated = first if len(first) == 1 and first in LETTERS else ""
    stated = next(reversed(_STATED.findall(text)), stated).upper()
    loose = boxed if len(boxed) == 1 and boxed in LETTERS else _find_letter(text) or stated
    return Grade(stated == loose == question.answer, loose == question.answer, bool(loose))


def _find_letter(text: str) -> str:
    """Find the letter that an answer gives; "" where there is none."""
    statements = [
        (match.start(1), match[1].upper())
        for pattern in _STATEMENTS
        for match in pattern.finditer(text)
        if not (is_denied(text, match.start(), match.end(1)) or is_denied(text, *match.span(1)))
    ]
    if statements:
        return max(statements)[1]
    begun = _BEGINS.match(text)
    listed = {letter.upper() for letter in _LABELS.findall(text)}
    if begun is not None and len(listed) < 2 and not is_denied(text, *begun.span()):
        return (begun[1] or begun[2] or begun[3]).upper()
    brackets, letters = (
        _find_last(pattern.finditer(text), text) for pattern in (_BRACKETED, _ALONE)
    )
    alone = brackets or letters
    return alone[0].strip("()").upper() if alone is not None else ""


def _fold(text: str) -> str:
    # Short texts alone are written in one form: that takes more than linear time.
    return unicodedata.normalize("NFKC", text) if len(text) <= 4096 else text


def _grade_text(question: Question, text: str) -> Grade:
    """Strict: one of the answers is all that is said; flexible: it stands in what is said, as words
    of their own."""
    answers = question.answer if isinstance(question.answer, list) else [question.answer]
    strict = text.strip() in map(str.strip, answers)
    loose = question.grade == "text" and any(_stands_in(_fold(text), answer) for answer in answers)
    return Grade(strict, strict or loose, True)


def _stands_in(text: str, answer: str) -> bool:
    """Tell whether a text says an answer that is no part of a longer word or number. What is said
    of it last counts, but in passing."""
    text, wanted = f" {text}", _fold(answer).strip().casefold()
    plain = SPELLING.sub("", wanted)
    return _stands_so(text.casefold(), wanted) or (
        plain.isdecimal() and _stands_so(SPELLING.sub("", spell_out(text).casefold()), plain)
    )


def _stands_so(text: str, wanted: str) -> bool:
    begin = rf"(?<!{_OF_A_WORD})(?<!{_OF_A_WORD}[-‐])"
    begin += rf"(?<!\.)(?<!\d[,{MARKS_OF_THOUSANDS}])(?<![\s(=]-)" * wanted[:1].isdecimal()
    end = (
        rf"(?!{_OF_A_WORD}|[-‐]{_OF_A_WORD})"
        + rf"(?!\.\d|[,{MARKS_OF_THOUSANDS}]\d{{3}})" * wanted[-1:].isdecimal()
    )
    for match in reversed(list(re.finditer(begin + re.escape(wanted) + end, text))):
        denied = denial_before(text, match.start())
        if denied is None or not denied["beside"]:
            return denied is None and not is_refuted(text, *match.span())
    return False


def _grade_needle(question: Question, text: str) -> Grade:
    """Right: every needle is named as words of its own, in whatever case."""
    folded = _fold(text)
    right = all(_stands_in(folded, needle) for needle in question.answer)
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
    """Right: every call names a tool that there is, with arguments that fit, and is made once; and
    it is the only one, the one expected, if that is known.
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
    if expected is not None:
        return len(made) == 1 and _is_same(made[0], expected)
    return bool(made) and len(set(map(_canonical, made))) == len(made)


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
