"""Questions whose answers can be graded, from a file or made from a seed, and their places in a plan.

A file is JSONL or a JSON array, gzip or not. The first fields that fit tell what an item is:

{"question", "answer": "… #### N"}                     GSM8K: a number
{"question", "choices" | "options", "answer" | …}      multiple choice: MMLU, MMLU-Pro, ARC
{"input", "outputs": [text, …]}                        RULER: needles that the answer has to name
{"messages" | "prompt", "grade", "answer", …}          an item of one's own; see GRADES

A question's row in a plan has the phase `check`. Its text there is an object with `messages`, further fields of the
body (`tools`, `stop`), and under `check` what the grader needs, which is never sent.
"""

from __future__ import annotations

import hashlib
import math
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadstone.core.errors import InputError
from loadstone.core.plan import CHECK, Blocks, Plan
from loadstone.workload.dataset import ItemError, kind_of, pieces, value_of
from loadstone.workload.files import open_bytes

GENERATED = "generated"
"""Names the built-in set in place of a file."""
GRADES = ("number", "letter", "text", "exact", "json", "schema", "tool", "needle")
Grader = Literal["number", "letter", "text", "exact", "json", "schema", "tool", "needle"]
LETTERS = "ABCDEFGHIJ"
_GIVE = "give JSONL, a question with its answer on each line"
_MOST_QUESTIONS = 100_000
_MOST_ITEM_BYTES = 1 << 22
_LIMITS = {"number": 1024, "letter": 1024, "json": 1024, "schema": 1024, "tool": 1024}
_LIMIT = 128
"""Tokens that an answer may have where its item does not say."""
_GSM8K_END = "End your response with the answer on the last line, formatted as: #### [number]"
_LETTER_END = 'End your response with "The answer is (X)", where X is the letter of the right option.'
_BODY = ("tools", "tool_choice", "response_format", "stop")
"""Fields of an item that its request has too."""
_SLOW = re.compile(r'"pattern(?:Properties)?":[^\n]{0,2000}?\([^()"]*[+*}][^()"]*\)[+*{]')
"""A repetition within another, over which a hostile answer can make a search take for ever."""
_SCHEMA_EXTRA = "needs the package jsonschema: pip install 'loadstone[check]'"


class Question(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the grader of an answer needs. `task`: questions of a kind are counted together.

    answer  a number, letter or text; of a needle a list of texts; of json any value; of a tool the call, if known
    """

    id: str
    grade: Grader
    task: str
    answer: Any = None
    schema: Any = None
    tools: list[Any] = []


class CheckSet(msgspec.Struct, frozen=True):
    """Questions to mix into a load: `texts` as a plan has them, and the most tokens of each answer."""

    name: str
    format: str
    sha256: str
    texts: list[str]
    max_tokens: list[int]


def question_of(text: str) -> Question:
    """Read the question of a plan's row of the phase `check`. Raises InputError where it is none."""
    try:
        return msgspec.convert(msgspec.json.decode(text)["check"], Question)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"a graded prompt of the plan cannot be read ({error}); measure again with --check"
        ) from None


def read_checks(given: str, *, seed: int, prompt_tokens: int, most_tokens: int | None) -> tuple[CheckSet, int | None]:
    """Read the questions of `FILE[:N]` or `generated[:N]`, in an order that follows from the seed, and N.

    `prompt_tokens`: about how long prompts of the load are, for the generated ones that look something up in a long
    prompt. `most_tokens`: of each answer, in place of what items say. Raises InputError, one line.
    """
    name, colon, count = given.rpartition(":")
    if not colon or not count.strip().isdecimal() or Path(given).exists():
        name, count = given, ""
    asked = int(count[:12]) if count else None
    if asked == 0 or (asked or 0) > _MOST_QUESTIONS:
        raise InputError(f"--check {given}: write FILE:N with 1 to {_MOST_QUESTIONS:,} questions")
    if name == GENERATED:
        items = generate(asked or 1000, seed, prompt_tokens)
        sha256 = hashlib.sha256(msgspec.json.encode([seed, prompt_tokens, len(items)])).hexdigest()
        return _check_set(GENERATED, GENERATED, sha256, items, most_tokens), asked
    path = Path(name)
    with open_bytes(path, _GIVE) as (stream, sha256):
        kind = kind_of(path, stream)
        if kind == "text":
            raise InputError(f"{path}: plain text has no answers to grade by; {_GIVE}")
        kept = _sample(((at, bytes(each)) for at, each in pieces(path, stream, kind, False)), asked, seed, path)
    if not kept:
        raise InputError(f"{path}: no questions; {_GIVE}")
    items, unit = [], "line" if kind == "lines" else "element"
    for number, data in kept:
        if len(data) > _MOST_ITEM_BYTES:
            raise InputError(f"--check {path}, {unit} {number}: over {_MOST_ITEM_BYTES:,} bytes; shorten it")
        try:
            items.append(_item(value_of(data, kind), number))
        except ItemError as error:
            raise InputError(
                f"--check {path}, {'line' if kind == 'lines' else 'element'} {number}: {error}"
            ) from None
    if asked is not None and len(items) < asked:
        raise InputError(f"--check {given}: the file has {len(items):,} questions; ask for no more")
    named = {item["check"].id for item, _ in items}
    if len(named) < len(items):
        raise InputError(f"--check {path}: items share an id; give each its own")
    return _check_set(path.name, str(items[0][0]["check"].task), sha256, items, most_tokens), asked


def _sample(items: Any, asked: int | None, seed: int, path: Path) -> list[tuple[int, bytes]]:
    """Take `asked` items at random, or all, in random order: a reservoir, since a file may be of any size."""
    rng, kept = random.Random(seed), []
    for seen, item in enumerate(items):
        if asked is None or len(kept) < asked:
            if len(kept) == _MOST_QUESTIONS:
                raise InputError(f"--check {path}: over {_MOST_QUESTIONS:,} questions; say how many, FILE:N")
            kept.append(item)
        elif (at := rng.randrange(seen + 1)) < asked:
            kept[at] = item
    rng.shuffle(kept)
    return kept


_Item = tuple[dict[str, Any], int | None]
"""The object that a plan has of a question, and the most tokens of its answer where it says them."""


def _check_set(name: str, format: str, sha256: str, items: Sequence[_Item], most: int | None) -> CheckSet:
    limits = [most or limit or _LIMITS.get(item["check"].grade, _LIMIT) for item, limit in items]
    return CheckSet(name, format, sha256, [msgspec.json.encode(item).decode() for item, _ in items], limits)


# --- items of files -----------------------------------------------------------------------------------------------


def _item(value: Any, number: int) -> _Item:
    """Read one item. Raises ItemError where it is no question, or cannot be graded."""
    if not isinstance(value, dict):
        raise ItemError(f"not an object; {_GIVE}")
    grade = value.get("grade") or (value.get("kind") if value.get("kind") in GRADES else None)
    task = value.get("task") or value.get("kind") or value.get("subject") or value.get("category")
    text, answer = value.get("prompt"), value.get("answer", value.get("answerKey"))
    if grade is None and isinstance(value.get("outputs"), list):
        grade, text, answer, task = "needle", value.get("input"), value["outputs"], task or "needle"
    options = value.get("choices") or value.get("options")
    if grade in (None, "letter") and options is not None and "question" in value:
        grade, (text, answer), task = "letter", _choice(value, options, answer), task or "choice"
    elif text is None and isinstance(value.get("question"), str):
        text = value["question"]
        if grade in (None, "number") and isinstance(answer, str) and "####" in answer:
            text, grade, task = f"Question: {text}\n{_GSM8K_END}\nAnswer:", "number", task or "gsm8k"
    if grade is None:
        grade = _guess(value, answer)
    if grade not in GRADES:
        raise ItemError(f"grade {str(grade)[:40]!r}: unknown; choose one of {', '.join(GRADES)}")
    question = Question(
        id=str(value.get("id") or value.get("unique_id") or number)[:200],
        grade=grade,
        task=str(task or grade)[:60],
        answer=_checked_answer(grade, answer),
        schema=_schema(value) if grade == "schema" else None,
        tools=_tools(value) if grade == "tool" else [],
    )
    body = {name: value[name] for name in _BODY if value.get(name) is not None}
    limit = value.get("max_tokens")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit < 1 << 24):
        raise ItemError(f"'max_tokens' is {str(limit)[:40]}, not a count of tokens")
    return {"messages": _messages(value, text), **body, "check": question}, limit


def _messages(value: dict[str, Any], text: Any) -> list[Any]:
    messages = value.get("messages")
    if messages is None and isinstance(text, str) and text.strip():
        messages = [{"role": "user", "content": text}]
    if not isinstance(messages, list) or not messages:
        raise ItemError("no question: name the field one of messages, prompt, question")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ItemError("a message lacks 'role' as a string; correct it or leave it out")
    return messages


def _guess(value: dict[str, Any], answer: Any) -> str:
    if value.get("tools"):
        return "tool"
    if value.get("schema") is not None or value.get("json_schema") is not None:
        return "schema"
    return "json" if isinstance(answer, dict | list) else "text"


def _choice(value: dict[str, Any], options: Any, answer: Any) -> tuple[str, Any]:
    """Write a question with its options, and find the letter of the right one."""
    labels = None
    if isinstance(options, dict):  # ARC
        options, labels = options.get("text"), options.get("label")
    if not (isinstance(options, list) and 2 <= len(options) <= len(LETTERS)):
        raise ItemError(f"'choices' is not a list of 2 to {len(LETTERS)} options")
    if isinstance(value.get("answer_index"), int):
        answer = value["answer_index"]
    if isinstance(labels, list) and answer in labels:
        answer = labels.index(answer)
    if isinstance(answer, str) and answer not in LETTERS[: len(options)] and answer in options:
        answer = options.index(answer)
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(options):
        answer = LETTERS[answer]
    if not isinstance(answer, str) or len(answer) != 1 or answer not in LETTERS[: len(options)]:
        raise ItemError("no right option: give 'answer' as a letter, a number from 0, or the option's text")
    shown = "\n".join(f"{letter}. {option}" for letter, option in zip(LETTERS, options, strict=False))
    return f"{value['question']}\n{shown}\n{_LETTER_END}", answer


def _checked_answer(grade: str, answer: Any) -> Any:
    """Return the right answer as its grader takes it. Raises ItemError where there is none, or it is impossible."""
    if grade == "schema" or (grade == "tool" and answer is None):
        return None
    if answer is None or answer in ("", [], {}):
        raise ItemError("no answer to grade by: give it under 'answer'")
    if grade == "number":
        text = str(answer).rpartition("#### ")[2].strip()
        if isinstance(answer, bool) or not re.fullmatch(r"-?\$?[0-9][0-9,]*(\.[0-9]+)?\.?", text[:400]):
            raise ItemError(f"the answer {text[:40]!r} is not a number, as its grader needs")
        return text
    if grade == "letter" and not (isinstance(answer, str) and len(answer) == 1 and answer in LETTERS):
        raise ItemError(f"the answer {str(answer)[:40]!r} is not a letter from A to {LETTERS[-1]}")
    if grade == "needle":
        answer = answer if isinstance(answer, list) else [answer]
        if not all(isinstance(each, str | int) and str(each).strip() for each in answer):
            raise ItemError("a needle is not text")
        return [str(each) for each in answer]
    if grade in ("text", "exact"):
        if not isinstance(answer, str | int | float) or not str(answer).strip():
            raise ItemError("the answer is not text; grade json compares values")
        return str(answer)
    if grade == "tool" and not (isinstance(answer, dict) and isinstance(answer.get("name"), str)):
        raise ItemError("the answer of grade tool is no call: give {name, arguments}")
    return answer


def _schema(value: dict[str, Any]) -> Any:
    schema = value.get("schema", value.get("json_schema"))
    if isinstance(schema, str):
        try:
            schema = msgspec.json.decode(schema)
        except (ValueError, RecursionError):
            raise ItemError("its schema is broken JSON") from None
    return _check_schema(schema)


def _check_schema(schema: Any) -> Any:
    if not isinstance(schema, dict | bool):
        raise ItemError("no JSON schema: give it as an object under 'schema'")
    try:
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import SchemaError
    except ImportError:
        raise ItemError(_SCHEMA_EXTRA) from None
    try:
        Draft202012Validator.check_schema(schema)
        if _SLOW.search(msgspec.json.encode(schema).decode()):
            raise ItemError("a pattern of its schema repeats what repeats, and may take for ever; write it otherwise")
    except (SchemaError, RecursionError) as error:
        raise ItemError(f"no JSON schema ({str(getattr(error, 'message', error))[:80]})") from None
    return schema


def _tools(value: dict[str, Any]) -> list[Any]:
    """Return the functions that may be called. Raises ItemError where there are none."""
    tools = value.get("tools")
    functions = (
        [each.get("function", each) for each in tools if isinstance(each, dict)] if isinstance(tools, list) else []
    )
    if not functions or not all(isinstance(each, dict) and isinstance(each.get("name"), str) for each in functions):
        raise ItemError("no tools that can be called: give them under 'tools' as OpenAI has them")
    return [{"name": each["name"], "parameters": _check_schema(each.get("parameters") or {})} for each in functions]


# --- the built-in set ---------------------------------------------------------------------------------------------

_WORDS = (
    "amber", "basil", "cedar", "delta", "ember", "fjord", "grove", "haven", "ivory", "jade", "kelp", "lotus", "maple",
    "north", "onyx", "pearl", "quartz", "river", "slate", "topaz", "umbra", "violet", "willow", "xenon", "yarrow",
)  # fmt: skip
_LINE_TOKENS = 20
_MOST_LINES = 400


def generate(count: int, seed: int, prompt_tokens: int) -> list[_Item]:
    """Make questions that need no file: to copy, to add, to look up a number in a prompt about as long as the load's.

    Each has numbers of its own, so that an answer with those of another request shows.
    """
    lines = max(4, min(_MOST_LINES, prompt_tokens // _LINE_TOKENS))
    numbers = random.Random(f"{seed}/numbers").sample(range(1_000_000, 10_000_000), count)
    return [_generated(at, random.Random(f"{seed}/{at}"), number, lines) for at, number in enumerate(numbers)]


def _generated(at: int, rng: random.Random, number: int, lines: int) -> _Item:
    task = ("copy", "add", "look-up")[at % 3]
    if task == "add":
        a, b = rng.randrange(100, 1000), rng.randrange(100, 1000)
        text, answer = f"What is {a} + {b}? Answer with the number alone.", str(a + b)
    elif task == "copy":
        answer = f"{rng.choice(_WORDS)}-{number}-{rng.choice(_WORDS)}"
        text = f"Repeat this exactly, and say nothing else: {answer}"
    else:
        names = rng.sample([f"{a} {b}" for a in _WORDS for b in _WORDS if a != b], lines)
        others = [rng.randrange(1_000_000, 10_000_000) for _ in names]
        place = rng.randrange(lines)
        others[place] = number
        told = "\n".join(f"The number of {name} is {each}." for name, each in zip(names, others, strict=True))
        text, answer = f"{told}\nWhat is the number of {names[place]}? Answer with the number alone.", str(number)
    question = Question(
        f"{task}-{at}", "needle" if task == "look-up" else "text", task, [answer] if task == "look-up" else answer
    )
    return {"messages": [{"role": "user", "content": text}], "check": question}, 48


# --- their places in a plan ---------------------------------------------------------------------------------------


def mix(plan: Plan, checks: CheckSet, share: float, asked: int | None) -> Plan:
    """Put questions between the measured requests of each cell: evenly, the same ones first everywhere, `asked` of
    them or as many as may be at most `share` of both together. Raises InputError where that is none, or too few.
    """
    at_rows: list[NDArray[np.int64]] = []
    counts = []
    for cell, load in enumerate(plan.cells):
        rows = plan.rows(cell)
        measured = np.arange(rows.start, rows.stop)[plan.phase[rows.start : rows.stop] == 1]
        most = math.floor(round(len(measured) * share / (1 - share), 6))
        count = min(len(checks.texts), most) if asked is None else asked
        if count > most or not count:
            needed = math.ceil((count or 1) * (1 - share) / share)
            raise InputError(
                f"--check: {load.label} has {len(measured):,} requests, and {count or 1:,} graded ones would be over "
                f"{share:.0%} of all; ask for {needed:,} (--requests), for fewer questions, or raise --check-share"
            )
        begins = measured[plan.turn[measured] <= 0]
        at_rows.append(begins[((np.arange(count) + 0.5) * len(begins) / count).astype(np.int64)])
        counts.append(count)
    told = {
        "name": checks.name, "format": checks.format, "sha256": checks.sha256, "share": share, "questions": counts,
    }  # fmt: skip
    mixed = _insert(plan, np.concatenate(at_rows), np.concatenate([np.arange(count) for count in counts]), checks)
    return replace(mixed, workload={**plan.workload, "check": told})


def _insert(plan: Plan, at: NDArray[np.int64], picks: NDArray[np.int64], checks: CheckSet) -> Plan:
    """Insert a row for each question in front of the rows `at`."""
    times = plan.intended_s[at]
    before = plan.intended_s[np.maximum(at - 1, 0)]
    follows = (at > 0) & (plan.cell[np.maximum(at - 1, 0)] == plan.cell[at]) & (before <= times)
    new = {
        "cell": plan.cell[at], "phase": CHECK, "intended_s": np.where(follows, (before + times) / 2, times),
        "input_tokens": -1, "output_tokens": np.array(checks.max_tokens)[picks], "prefix_group": -1,
        "prefix_tokens": 0, "turn": -1, "think_s": 0.0, "prompt": len(plan.prompts) + picks,
    }  # fmt: skip
    columns = {name: np.insert(getattr(plan, name), at, values) for name, values in new.items()}
    blocks = plan.blocks
    if blocks is not None:
        lengths = np.insert(np.diff(blocks.offsets), at, 0)
        blocks = Blocks(blocks.tokens, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), blocks.ids)
    prompts = [*plan.prompts, *checks.texts[: int(picks.max()) + 1]]
    return replace(plan, blocks=blocks, prompts=prompts, **columns)
