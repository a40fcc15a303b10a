"""Questions whose answers can be graded, from a file or made from a seed, and their places in a
plan.

A file is JSONL or a JSON array, gzip or not. The first fields that fit tell what an item is:

{"question", "answer": "… #### N"}                     GSM8K: a number
{"question", "choices" | "options", "answer" | …}      multiple choice: MMLU, MMLU-Pro, ARC
{"problem", "answer" | "solution"}                     MATH, AIME: what is to stand in \\boxed{}
{"input", "outputs": [text, …]}                        RULER: needles that the answer has to name
{"messages" | "prompt", "grade", "answer", …}          an item of one's own; see GRADES

A question's row in a plan has the phase `check`. Its text there is an object with `messages`,
further fields of the body (`tools`, `stop`), and under `check` what the grader needs, which is
never sent.
"""

import hashlib
import math
import random
import re
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from loadstone.core.errors import InputError
from loadstone.core.plan import CHECK, Plan
from loadstone.core.vectors import Ints64
from loadstone.workload.files import BadItem, BadLine, decode, open_requests

GENERATED = "generated"
"""Names the built-in set in place of a file."""
GRADES = ("number", "letter", "text", "exact", "json", "schema", "tool", "needle", "maths")
LETTERS = "ABCDEFGHIJ"
_GIVE = "give JSONL, a question with its answer on each line"
_MAX_QUESTIONS = 100_000
_MAX_BYTES, _MAX_ITEM_BYTES = 1 << 28, 1 << 22
_GENERATED_QUESTIONS = 1000
_SHORT, _LONG = 128, 1024
"""Tokens that an answer may have where its item does not say: of texts and needles, and of all that
is reasoned."""
_GSM8K_END = "End your response with the answer on the last line, formatted as: #### [number]"
_LETTER_END = (
    'End your response with "The answer is (X)", where X is the letter of the right option.'
)
_BODY = ("tools", "tool_choice", "response_format", "stop")
"""Fields of an item that its request has too."""
_PATTERN = re.compile(r'"pattern":("(?:[^"\\]|\\.)*")')
_ELSEWHERE = re.compile(r'"\$ref":"(?!#)')
_NUMBER = re.compile(r"-?\$?[0-9][0-9,]{0,100}(\.[0-9]{1,100})?\.?")


class Question(msgspec.Struct, frozen=True, omit_defaults=True):
    """Holds what the grader of an answer needs. `task`: questions of a kind are counted together.

    answer  a number, letter or text; of a needle a list of texts; of json any value; of a tool the
            call, if known
    """

    id: str
    grade: str
    task: str
    answer: Any = None
    schema: Any = None
    tools: list[Any] = []


class CheckSet(NamedTuple):
    """Questions to mix into a load: `texts` as a plan has them, the most tokens of each answer, and
    how many of them each cell is to have; None: as many as fit."""

    name: str
    sha256: str
    texts: list[str]
    max_tokens: list[int]
    limit: int | None


def question_of(text: str) -> Question:
    """Read the question of a plan's row of the phase `check`. Raises InputError where it is
    none."""
    try:
        return msgspec.convert(msgspec.json.decode(text)["check"], Question)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"a graded prompt of the plan cannot be read ({error}); measure again"
        ) from None


def read_checks(given: str, *, seed: int, prompt_tokens: int, most_tokens: int | None) -> CheckSet:
    """Read the questions of `FILE[:N]` or `generated[:N]`, in an order that follows from the seed.

    `prompt_tokens`: about how long prompts of the load are, for the generated ones that look
    something up in a long prompt. `most_tokens`: of each answer, in place of what items say. Raises
    InputError, one line.
    """
    name, colon, count = given.rpartition(":")
    if not colon or not count.strip().isdecimal() or Path(given).exists():
        name, count = given, ""
    limit = int(count[:12]) if count else None
    if limit is not None and not 1 <= limit <= _MAX_QUESTIONS:
        raise InputError(f"--check {given}: write FILE:N with 1 to {_MAX_QUESTIONS:,} questions")
    if name == GENERATED:
        items = generate(limit or _GENERATED_QUESTIONS, seed, prompt_tokens)
        sha256 = hashlib.sha256(msgspec.json.encode(items)).hexdigest()
    else:
        items, sha256 = _read(Path(name), limit, seed)
    if limit is not None and len(items) < limit:
        raise InputError(f"--check {given}: the file has {len(items):,} questions; ask for no more")
    limits = [most_tokens or tokens for _, tokens in items]
    texts = [msgspec.json.encode(item).decode() for item, _ in items]
    return CheckSet(Path(name).name, sha256, texts, limits, limit)


_Item = tuple[dict[str, Any], int]
"""The object that a plan has of a question, and the most tokens of its answer."""


def _read(path: Path, limit: int | None, seed: int) -> tuple[list[_Item], str]:
    with open_requests(path, _GIVE) as file:
        if file.kind == "text":
            raise InputError(f"{path}: no questions with answers; {_GIVE}")
        if path.stat().st_size > _MAX_BYTES:
            raise InputError(f"--check {path}: over {_MAX_BYTES:,} bytes; give a part of it")
        pieces = list(islice(file.pieces, _MAX_QUESTIONS))
    random.Random(seed).shuffle(pieces)
    items = []
    for number, data in pieces[:limit]:
        where = f"--check {path}, {file.unit} {number}"
        if len(data) > _MAX_ITEM_BYTES:
            raise InputError(f"{where}: over {_MAX_ITEM_BYTES:,} bytes; shorten it")
        try:
            items.append(_item(decode(data), number))
        except BadLine as bad:
            raise InputError(f"{where}: {bad}") from None
    if not items or len({item["check"].id for item, _ in items}) < len(items):
        raise InputError(
            f"--check {path}: {'items share an id; give each its own' if items else 'no questions'}"
        )
    return items, file.sha256


# --- items of files -------------------------------------------------------------------------------


def _item(value: Any, number: int) -> _Item:
    """Read one item. Raises BadItem where it is no question, or cannot be graded."""
    if not isinstance(value, dict):
        raise BadItem(f"not an object; {_GIVE}")
    value = _own_form(value)
    schema, kind = value.get("schema", value.get("json_schema")), value.get("kind")
    guess = (
        "schema"
        if schema is not None
        else "json"
        if isinstance(value.get("answer"), dict | list)
        else "text"
    )
    grade = value.get("grade") or (
        kind if kind in GRADES else "tool" if value.get("tools") else guess
    )
    task = value.get("task") or kind or grade
    limit = value.get("max_tokens", _SHORT if grade in ("text", "exact", "needle") else _LONG)
    messages = value.get("messages", [{"role": "user", "content": value.get("prompt")}])
    if grade not in GRADES:
        raise BadItem(f"grade {str(grade)[:40]!r}: unknown; choose one of {', '.join(GRADES)}")
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit < 1 << 24:
        raise BadItem(f"'max_tokens' is {str(limit)[:40]}, not a count of tokens")
    if not (isinstance(messages, list) and messages and all(map(_is_message, messages))):
        raise BadItem("no question: name the field one of messages, prompt, question")
    name = value.get("id", value.get("unique_id"))
    schema = _schema(schema) if grade == "schema" else None
    tools, answer = (
        _tools(value.get("tools")) if grade == "tool" else [],
        _check_answer(grade, value.get("answer")),
    )
    if grade == "tool" and answer and answer["name"] not in {tool["name"] for tool in tools}:
        raise BadItem(
            f"the answer calls {answer['name'][:40]!r}, which is none of its tools; correct it"
        )
    question = Question(
        str(number if name in (None, "") else name)[:200],
        grade,
        str(task)[:60],
        answer,
        schema,
        tools,
    )
    body = {field: value[field] for field in _BODY if value.get(field) is not None}
    return {"messages": messages, **body, "check": question}, limit


def _own_form(value: dict[str, Any]) -> dict[str, Any]:
    """Write an item of a known data set as one of one's own."""
    question, answer = _either(value, "question", "problem"), _either(value, "answer", "answerKey")
    options = _either(value, "choices", "options")
    if isinstance(answer, dict) and isinstance(answer.get("aliases"), list):  # TriviaQA
        answer = [answer.get("value"), *answer["aliases"]]
    if isinstance(value.get("outputs"), list):  # RULER
        needles = {"prompt": value.get("input"), "answer": value["outputs"]}
        return value | {"grade": "needle"} | needles
    if isinstance(question, dict):  # ARC's own files
        options, question = question.get("choices"), question.get("stem")
    if not isinstance(question, str):
        return value
    context = [value.get(name) for name in ("context", "passage", "article")]
    question = "\n\n".join([*(text for text in context if isinstance(text, str)), question])
    if options is not None:
        text, answer = _choice(question, options, value.get("answer_index", answer))
        return {"task": "choice"} | value | {"grade": "letter", "prompt": text, "answer": answer}
    if isinstance(answer, str) and "####" in answer:
        text = f"Question: {question}\n{_GSM8K_END}\nAnswer:"
        solution = {"prompt": text, "answer": answer.rpartition("####")[2]}
        return {"task": "gsm8k"} | value | {"grade": "number"} | solution
    if "problem" in value:
        boxed = find_boxed(str(value.get("solution")))
        item = {"answer": boxed, "task": "maths", "grade": "maths"} | value
        end = "\nPut the final answer in \\boxed{}." if item["grade"] == "maths" else ""
        return {"prompt": question + end} | item
    grade = {"grade": "text"} if isinstance(answer, list) else {}
    return {"prompt": question} | grade | value | {"answer": answer}


def _either(value: dict[str, Any], name: str, second: str) -> Any:
    """Return what stands under a name, or where it is not there under a second one."""
    return value.get(name, value.get(second))


def _choice(question: str, options: Any, answer: Any) -> tuple[str, Any]:
    """Write a question with its options, and find the letter of the right one."""
    if isinstance(options, dict):
        labels, texts = options.get("label", [*options]), options.get("text", [*options.values()])
    else:
        listed = [
            option if isinstance(option, dict) else {"text": option} for option in _listed(options)
        ]
        labels, texts = ([option.get(name) for option in listed] for name in ("label", "text"))
    if not (isinstance(texts, list) and 2 <= len(texts) <= len(LETTERS)):
        raise BadItem(f"'choices' is not a list of 2 to {len(LETTERS)} options")
    for names in (labels, list(LETTERS[: len(texts)]), texts):
        if isinstance(names, list) and isinstance(answer, str) and answer in names:
            answer = names.index(answer)
    if type(answer) is not int or not 0 <= answer < len(texts):
        raise BadItem(
            f"the answer {str(answer)[:40]!r} is none of its {len(texts)} options; name one of them"
        )
    shown = "\n".join(f"{letter}. {option}" for letter, option in zip(LETTERS, texts, strict=False))
    return f"{question}\n{shown}\n{_LETTER_END}", LETTERS[answer]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_message(message: Any) -> bool:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        return False
    content = message.get("content")
    return (
        bool(content.strip())
        if isinstance(content, str)
        else isinstance(content, list) or "tool_calls" in message
    )


def _check_answer(grade: str, answer: Any) -> Any:
    """Return the right answer as its grader takes it. Raises BadItem where there is none, or it
    is impossible."""
    if grade == "schema" or (grade == "tool" and answer is None):
        return None
    if answer is None or answer in ("", [], {}):
        raise BadItem("no answer to grade by: give it under 'answer'")
    if grade == "tool" and isinstance(answer, dict):
        answer = {"name": answer.get("name"), "arguments": answer.get("arguments", {})}
    text = str(int(answer) if isinstance(answer, float) and answer.is_integer() else answer).strip()
    texts = answer if isinstance(answer, list) else [answer]
    possible = {
        "number": not isinstance(answer, bool) and _NUMBER.fullmatch(text) is not None,
        "letter": len(text) == 1 and text in LETTERS,
        "tool": isinstance(answer, dict) and [*map(type, answer.values())] == [str, dict],
        "json": True,
        "maths": isinstance(answer, str | int | float) and bool(text),
    }
    are_texts = all(type(part) in (str, int, float) and str(part).strip() for part in texts)
    if not possible.get(grade, are_texts):
        raise BadItem(f"the answer {text[:40]!r} is none that grade {grade} can find; correct it")
    if grade in ("json", "tool"):
        return answer
    return [*map(str, texts)] if grade == "needle" or answer is texts else text


def find_boxed(text: str) -> str | None:
    """Return what stands in the last \\boxed{} of a text."""
    _, begun, inside = text.rpartition("\\boxed{")
    opened = 1
    for place, character in enumerate(inside):
        opened += {"{": 1, "}": -1}.get(character, 0)
        if begun and not opened:
            return inside[:place]
    return None


def find_pattern(pattern: str, text: str) -> bool:
    """Search in linear time, whatever the pattern (RE2). Raises ValueError where that cannot be."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return bool(pc.match_substring_regex(pa.scalar(text), pattern).as_py())


def _schema(schema: Any) -> Any:
    """Return a JSON schema, as an object or as text. Raises BadItem where it is none, or nothing
    may fit it."""
    import jsonschema

    try:
        schema = msgspec.json.decode(schema) if isinstance(schema, str) else schema
        jsonschema.Draft202012Validator.check_schema(schema)
        text = msgspec.json.encode(schema).decode()
        for pattern in _PATTERN.findall(text):
            find_pattern(msgspec.json.decode(pattern, type=str), "")
    except (jsonschema.SchemaError, RecursionError, ValueError) as error:
        raise BadItem(f"no JSON schema ({str(getattr(error, 'message', error))[:120]})") from None
    if not isinstance(schema, dict) or '"patternProperties":' in text or _ELSEWHERE.search(text):
        raise BadItem(
            "its schema is no object, or has patternProperties or a $ref to what is not in it"
        )
    return schema


def _tools(tools: Any) -> list[Any]:
    """Return the functions that may be called. Raises BadItem where there are none."""
    functions = [tool.get("function", tool) for tool in _listed(tools) if isinstance(tool, dict)]
    if not functions or not all(
        isinstance(function, dict) and isinstance(function.get("name"), str)
        for function in functions
    ):
        raise BadItem("no tools that can be called: give them under 'tools' as OpenAI has them")
    return [
        {"name": function["name"], "parameters": _schema(function.get("parameters") or {})}
        for function in functions
    ]


# --- the built-in set -----------------------------------------------------------------------------

_LINE_TOKENS = 20
_MAX_LINES = 400


def generate(count: int, seed: int, prompt_tokens: int) -> list[_Item]:
    """Make questions that need no file: to copy, to add, to look up a number in a prompt about as
    long as the load's.

    Each has a number of its own, so that an answer with that of another request shows.
    """
    lines = max(4, min(_MAX_LINES, prompt_tokens // _LINE_TOKENS))
    numbers = random.Random(f"{seed}/numbers").sample(range(1_000_000, 10_000_000), count)
    return [
        _generated(place, random.Random(f"{seed}/{place}"), number, lines)
        for place, number in enumerate(numbers)
    ]


def _generated(place: int, rng: random.Random, number: int, lines: int) -> _Item:
    grade, answer = "text", str(number)
    if place % 3 == 0:
        task, answer = "copy", "-".join(rng.sample("abcdefghijkmnpqrstuvwxyz", 3)) + f"-{number}"
        text = f"Repeat this exactly, and say nothing else: {answer}"
    elif place % 3 == 1:
        a, b = rng.randrange(100, 1000), rng.randrange(100, 1000)
        task, answer, text = "add", str(a + b), f"What is {a} + {b}? Answer with the number alone."
    else:
        task, grade = "look-up", "needle"
        rooms = rng.sample(range(100, 1000), lines)
        number_of = {room: rng.randrange(1_000_000, 10_000_000) for room in rooms}
        wanted = rng.choice(rooms)
        number_of[wanted] = number
        shown = [f"The number of room {room} is {value}." for room, value in number_of.items()]
        question = f"What is the number of room {wanted}? Answer with the number alone."
        text = "\n".join([*shown, question])
    right = [answer] if grade == "needle" else answer
    check = Question(f"{task}-{place}", grade, task, right)
    return {"messages": [{"role": "user", "content": text}], "check": check}, 48


# --- their places in a plan -----------------------------------------------------------------------


def mix(plan: Plan, checks: CheckSet, share: float) -> Plan:
    """Put questions between the measured requests of each cell: evenly, the same ones first
    everywhere, as many as are asked for, or as may be at most `share` of both together. Raises
    InputError where that is none, or too few.
    """
    places: list[Ints64] = []
    for cell, load in enumerate(plan.cells):
        measured = np.flatnonzero((plan.cell == cell) & (plan.phase == 1))
        limit = math.floor(round(len(measured) * share / (1 - share), 6))
        count = min(len(checks.texts), limit) if checks.limit is None else checks.limit
        if count > limit or not count:
            raise InputError(
                f"--check: {load.label} has {len(measured):,} requests, and {count or 1:,} graded"
                f" ones would be over {share:.0%} of all; ask for"
                f" {math.ceil((count or 1) * (1 - share) / share):,} (--requests), for fewer"
                " questions, or raise --check-share"
            )
        begins = measured[plan.turn[measured] <= 0]
        places.append(begins[((np.arange(count) + 0.5) * len(begins) / count).astype(np.int64)])
    described = {
        "name": checks.name,
        "sha256": checks.sha256,
        "share": share,
        "questions": list(map(len, places)),
    }
    mixed = _insert(
        plan,
        np.concatenate(places),
        np.concatenate([np.arange(len(cell_places)) for cell_places in places]),
        checks,
    )
    return replace(mixed, workload={**plan.workload, "check": described})


def _insert(plan: Plan, places: Ints64, picks: Ints64, checks: CheckSet) -> Plan:
    """Insert a row for each question in front of the rows at `places`."""
    times, last = plan.intended_s[places], np.maximum(places - 1, 0)
    previous = np.where(
        (plan.cell[last] == plan.cell[places]) & (plan.intended_s[last] <= times),
        plan.intended_s[last],
        times,
    )
    question: dict[str, Any] = {
        "cell": plan.cell[places],
        "phase": CHECK,
        "intended_s": (previous + times) / 2,
        "input_tokens": -1,
        "output_tokens": np.array(checks.max_tokens)[picks],
        "prefix_group": -1,
        "prefix_tokens": 0,
        "turn": -1,
        "think_s": 0.0,
        "prompt": len(plan.prompts) + picks,
    }
    columns: dict[str, Any] = {
        name: np.insert(getattr(plan, name), places, values) for name, values in question.items()
    }
    rows = np.insert(np.arange(len(plan)), places, -1)
    prompts = [*plan.prompts, *checks.texts[: int(picks.max()) + 1]]
    return plan.take(rows, prompts=prompts, **columns)
