r"""Counts how often graders are right: ours, math-verify's, and lm-evaluation-harness's rules.

    pip install math-verify; pip install --no-deps lm_eval
    python benchmarks/grading_peers.py [--vectors 3000] [--wrong]

Answers of known truth are drawn by a seed: a key, and a phrase that states it, denies it, or states
another. `--wrong` prints those that ours grades wrong.

The harness's rules are those of its tasks: gsm8k's last number (numbers), aime's comparison of
boxes (maths), gpqa's filter of letters, and RULER's (the key stands somewhere in the answer).
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from loadstone.analyse.grading.graders import grade
from loadstone.workload.checks import Question

STATED = (
    "{x}", "{x}.", "The answer is {x}.", "**{x}**", "Answer: {x}", "It is {x}.", "So it is {x}.",
    "Final answer: {x}", "The final answer is **{x}**.", "It must be {x}.", "I get {x}.",
    "After all of that, it comes to {x}", "Hence {x}", "The answer is: {x}", "the answer is {x}",
    "It is not {y} but {x}.", "It isn't {y}. It is {x}.", "{y} is wrong; it is {x}.",
    "At first I thought {y}, but that is wrong. It is {x}.", "Not {y}: {x}.", "{y}? No, {x}.",
    "There is no doubt: {x}", "Without a doubt, {x}", "I do not doubt that it is {x}.",
    "<think>Is it {y}?</think>{x}", "Let me see.\n\n{x}\n", "{y} cannot be right, so {x}.",
    "The answer is {x}, not {y}.", "The answer is {x} rather than {y}.", "{x}, since {y} is too large.",
)  # fmt: skip
"""Phrases that say x: where x is the key, they are right, and where y is, wrong."""
DENIED = (
    "It is certainly not {x}.", "{x} is not the answer.", "It cannot be {x}.", "{x} is wrong.",
    "I do not think that it is {x}.", "The answer is not {x}.", "{x}? No.", "{x} is certainly wrong.",
    "The answer can't be {x}", "I doubt that it is {x}.", "{x} would be incorrect.", "Anything but {x}.",
    "It is no longer {x}.", "{x} cannot be right.", "Some say {x}, but that is wrong.", "{x} isn't right.",
)  # fmt: skip
NUMBERS = (
    "#### {x}", "#### {x}\nI checked it in {n} ways.", "#### {x} ({n} steps)", "{x} in {n} steps\n#### {x}",
    "#### {x}. This took {n} steps.", "#### **{x}**", "The answer is {x}. It took {n} steps.",
    "\\boxed{{{x}}} after {n} steps", "Answer: {x} ({n} steps)", "Step {n}: it is {x}.", "#### ${x}",
    "The total is {x}. This took {n} steps.", "{n} and more, so {x}", "They have {x} left after {n} days.",
)  # fmt: skip
BOXED = (
    "\\boxed{{{x}}}", "$\\boxed{{{x}}}$", "So $\\boxed{{{x}}}$, in {n} steps.", "The answer is $\\boxed{{{x}}}$.",
    "\\boxed{{{y}}} is wrong. \\boxed{{{x}}}", "Therefore $x = {x}$.", "\\[ \\boxed{{{x}}} \\]",
)  # fmt: skip
LETTERS = (
    "({x})", "{x})", "The answer is ({x}).", "Option {x} is correct. {y} is not.", "I would choose {x} over ({y})",
    "({x}) fits; ({y}) is wrong.", "{x}, because {y} is too small", "The correct option is {x}, while {y} is less.",
    "({y}) fails, so ({x})", "<answer>{x}</answer>", "({x}) is the right one, unlike ({y})", "The best choice is {x}.",
)  # fmt: skip
WORDS = (
    "cat", "Paris", "iron", "Ann", "red", "ten", "Oslo", "Rome", "gold", "Mars", "car", "art", "sea", "rat",
)  # fmt: skip
LONGER = ("con{x}enate", "{x}s", "un{x}ed", "{x}land", "super{x}", "{x}ical")


class Vector(NamedTuple):
    """An answer, the key that was asked for, and what it says: the key, another, or a denial."""

    kind: str
    key: str
    text: str
    says: str

    @property
    def right(self) -> bool:
        return self.says == "key"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--vectors", type=int, default=3000)
    parser.add_argument("--wrong", action="store_true")
    options = parser.parse_args()
    rng = random.Random(20)
    drawn = [vector for _ in range(options.vectors // 4) for vector in draw(rng)]
    peers: dict[str, Callable[[Vector], bool]] = {
        "loadstone": ours, "math-verify": math_verify(), "lm-evaluation-harness": harness(),
    }  # fmt: skip
    counts = count(drawn)
    print(f"{'':22}" + "".join(f"  {kind:>14}" for kind in counts))
    for name, peer in peers.items():
        right = count([vector for vector in drawn if peer(vector) == vector.right])
        cells = (f"{right[kind]:,} of {asked:,}" for kind, asked in counts.items())
        print(f"{name:22}" + "".join(f"  {cell:>14}" for cell in cells))
    if options.wrong:
        for vector in drawn:
            if ours(vector) != vector.right:
                print(vector)


def count(vectors: list[Vector]) -> Counter[str]:
    """Count vectors by kind, and those that say the key, another, or that it is not the key."""
    counts = Counter(vector.kind for vector in vectors)
    counts.update(vector.says for vector in vectors)
    counts["all"] = len(vectors)
    return counts


def draw(rng: random.Random) -> Iterator[Vector]:
    """Draw one vector of each kind."""
    value = rng.choice((rng.randrange(2, 99), rng.randrange(100, 999), rng.randrange(1000, 10**7)))
    yield phrase(rng, "number", str(value), written(rng, value), str(value + 7), NUMBERS)
    key, ways = rng.choice(FORMULAS)
    yield phrase(rng, "maths", key, rng.choice(ways), "\\frac{7}{9}", BOXED)
    letter, other = rng.sample("ABCD", 2)
    yield phrase(rng, "letter", letter, letter, other, LETTERS)
    word, second = rng.sample(WORDS, 2)
    if rng.random() < 0.5:
        word, second = str(value), str(value + 7)
    if rng.random() < 0.25:
        longer = (
            f"{rng.randrange(1, 9)}{{x}}{rng.randrange(9)}"
            if word.isdecimal()
            else rng.choice(LONGER)
        )
        text = rng.choice(STATED[:13]).format(x=longer.format(x=word))
        yield Vector("text", word, text, "another")
    else:
        spelled = written(rng, value) if word.isdecimal() else word
        yield phrase(rng, "text", word, spelled, second, ())


FORMULAS = (
    ("\\frac{1}{2}", ("\\frac{1}{2}", "\\dfrac12", "1/2", "0.5", ".5", "\\frac{2}{4}")),
    ("\\frac{3}{2}", ("1\\frac{1}{2}", "1.5", "3/2", "\\tfrac{3}{2}")),
    ("10080", ("10,080", "10{,}080", "10080", "10\\,080", "10080.0")),
    ("-5", ("-5", "-5.0", "−5")),
    ("204", ("204", "204^\\circ", "204\\text{ cm}", "\\$204")),
    ("2\\sqrt{3}", ("2\\sqrt{3}", "2\\sqrt3", "2 \\sqrt{3}")),
    ("x^2+1", ("x^2+1", "x^{2} + 1")),
)  # fmt: skip
"""Keys of problems, and ways to write each."""


def written(rng: random.Random, value: int) -> str:
    """Write a number in one of the ways that people do."""
    comma = f"{value:,}"
    ways = (
        str(value),
        comma,
        comma.replace(",", " "),
        comma.replace(",", "'"),
        f"{value}.0",
        f"{comma}.00",
    )
    return rng.choice((*ways[:1] * 3, *ways, comma.replace(",", "\u202f")))


def phrase(
    rng: random.Random, kind: str, key: str, spelled: str, other: str, own: tuple[str, ...]
) -> Vector:
    """Say the key, or something else, or that it is not the key."""
    numbers = {"n": rng.randrange(2, 9)}
    drawn = rng.random()
    mark = rng.choice(("${}$", "\\({}\\)")) if kind == "maths" else "{}"
    marked = mark.format
    if drawn < 0.25:
        return Vector(kind, key, rng.choice(DENIED).format(x=marked(spelled)), "denial")
    said, says = rng.choice((*STATED, *own)), "key" if drawn < 0.7 else "another"
    x, y = (spelled, other) if says == "key" else (other, spelled)
    if said not in own:
        x, y = marked(x), marked(y)
    return Vector(kind, key, said.format(x=x, y=y, **numbers), says)


# --- graders --------------------------------------------------------------------------------------


def ours(vector: Vector) -> bool:
    return grade(
        Question("1", vector.kind, "", vector.key), vector.text, [], thought=False
    ).flexible


def math_verify() -> Callable[[Vector], bool]:
    """Make a grader of math-verify; texts, which it has no rule for, are compared as RULER does."""
    from math_verify import StringExtractionConfig, parse, verify

    logging.disable(logging.CRITICAL)

    def graded(vector: Vector) -> bool:
        if vector.kind == "text":
            return vector.key.lower() in vector.text.lower()
        letters = (
            {"extraction_config": [StringExtractionConfig()]} if vector.kind == "letter" else {}
        )
        gold = vector.key if vector.kind == "letter" else f"${vector.key}$"
        return bool(verify(parse(gold, **letters), parse(vector.text, **letters)))

    return graded


def harness() -> Callable[[Vector], bool]:
    """Make a grader of lm-evaluation-harness's filters."""
    from lm_eval.filters import extraction

    package = importlib.util.find_spec("lm_eval")
    assert package is not None
    assert package.origin is not None
    aime = Path(package.origin).parent / "tasks" / "aime" / "utils.py"
    spec = importlib.util.spec_from_file_location("aime_utils", aime)
    assert spec is not None
    assert spec.loader is not None
    utils: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(utils)
    number = extraction.RegexFilter(regex_pattern=r"(-?[$0-9.,]{2,})|(-?[0-9]+)", group_select=-1)
    letter = extraction.MultiChoiceRegexFilter(
        regex_pattern=r"(\([A-Z]\))", group_select=-1, ignore_case=True, ignore_punctuation=True
    )

    def graded(vector: Vector) -> bool:
        if vector.kind == "text":
            return vector.key.lower() in vector.text.lower()
        if vector.kind == "maths":
            return bool(utils.process_results({"answer": vector.key}, [vector.text])["exact_match"])
        if vector.kind == "letter":
            document = {"choices": ["w-w", "x-x", "y-y", "z-z"]}
            return bool(letter.apply([[vector.text]], [document])[0][0] == f"({vector.key})")
        found = str(number.apply([[vector.text]], [{}])[0][0])
        return found.replace(",", "").replace("$", "").removesuffix(".") == vector.key

    return graded


if __name__ == "__main__":
    main()
