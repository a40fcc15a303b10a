"""Compares the graded answers of two runs, or of two loads, to the same questions."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from loadstone.analyse.grading.pairs import LEVEL, detectable_loss, difference, mcnemar
from loadstone.core.groups import by_key
from loadstone.core.run_folder import GradedAnswer

LEAST_LOSS = 0.01
"""A smaller loss than a point does not matter, however sure it is."""
LENGTHS = (0.9, 1.1)
"""MLPerf's bounds on mean tokens, the only public ones."""
LEAST_PAIRS = 20
CUT_SHARE, FAILED_SHARE = 0.05, 0.01
"""Shares of answers that were cut or never ended, above which nothing is said of the others."""
_RESAMPLES = 1000
Pair = tuple[GradedAnswer, GradedAnswer]


class ComparedAnswers(msgspec.Struct, kw_only=True):
    """Tells of graded answers to the same questions on two sides, as `loadstone compare --json`
    prints it.

    task              the kind of question; "": all, with each kind under `tasks`
    a, b              share that is right; only_a, only_b: questions that one side alone answered
                      right
    low, high         95 % interval of b − a
    p                 of the exact McNemar test, adjusted for loads and kinds of question; differs:
                      beyond chance
    would_show        the loss that so many questions show with a power of 80 %
    flips             share of answers that turn right or wrong between two runs of a side; None:
                      not known
    identical         share of answers that are the same text; identical_again: between two runs of
                      a side
    first_difference  median token at which others part, about
    length            mean tokens, B over A, of answers that neither side cut; length_low,
                      length_high: 95 %
    undecided         why nothing is concluded, where nothing is
    """

    task: str
    questions: int
    a: float
    b: float
    only_a: int
    only_b: int
    low: float
    high: float
    p: float
    differs: bool
    would_show: float | None
    flips: float | None
    identical: float
    identical_again: float | None
    first_difference: float | None
    length: float | None = None
    length_low: float | None = None
    length_high: float | None = None
    undecided: str | None
    tasks: list[ComparedAnswers]

    @property
    def discordant(self) -> float:
        return (self.only_a + self.only_b) / self.questions

    @property
    def drifts(self) -> bool:
        """True if answers are longer or shorter by more than LENGTHS allow, beyond doubt."""
        low, high = self.length_low, self.length_high
        return low is not None and high is not None and (high < LENGTHS[0] or low > LENGTHS[1])

    @property
    def drift(self) -> dict[str, float | None]:
        """The ratio of lengths with its interval, as a finding has it."""
        return {"ratio": self.length, "low": self.length_low, "high": self.length_high}

    def worse(self) -> tuple[Literal["", "a", "b"], list[ComparedAnswers]]:
        """Return the side that answers worse by more than chance and enough to matter; and which
        questions: all of them, or the kinds.
        """
        tests = [test for test in (self, *self.tasks) if test.differs and test.undecided is None]
        on_b = [test for test in tests if test.a - test.b >= LEAST_LOSS]
        on_a = [test for test in tests if test.b - test.a >= LEAST_LOSS]
        if on_b:
            return "b", on_b
        return ("a", on_a) if on_a else ("", [])


def compare_pairs(
    pairs: Sequence[Pair], again: Sequence[ComparedAnswers] = (), task: str = ""
) -> ComparedAnswers:
    """Compare answers, A's and B's to one question each; at least one. `again`: what two runs of
    one side showed."""
    count, found = len(pairs), Counter((a.right, b.right) for a, b in pairs)
    only_a, only_b = found[True, False], found[False, True]
    flips = statistics.fmean(test.discordant for test in again) if again else None
    low, high = difference(found[True, True], only_a, only_b, found[False, False])
    p, noise = mcnemar(only_a, only_b), (only_a + only_b) / count if flips is None else flips
    parting = sorted(_parting(a, b) for a, b in pairs if a.digest != b.digest)
    by_task = by_key((pair[0].task, pair) for pair in sorted(pairs, key=lambda pair: pair[0].task))
    why = [why_undecided(count, 0, side) for side in zip(*pairs, strict=True)]
    if count < LEAST_PAIRS:
        why = [f"{count} questions were answered on both sides, {LEAST_PAIRS} are needed"]
    return ComparedAnswers(
        task=task,
        questions=count,
        a=(found[True, True] + only_a) / count,
        b=(found[True, True] + only_b) / count,
        only_a=only_a,
        only_b=only_b,
        low=low,
        high=high,
        p=p,
        differs=p < LEVEL,
        would_show=detectable_loss(count, round(noise, 3)),
        flips=flips,
        identical=sum(a.digest == b.digest for a, b in pairs) / count,
        identical_again=statistics.fmean(test.identical for test in again) if again else None,
        first_difference=parting[len(parting) // 2] if parting else None,
        undecided=next(filter(None, why), None),
        tasks=(
            [compare_pairs(alike, (), kind) for kind, alike in by_task.items()]
            if len(by_task) > 1
            else []
        ),
        **{} if task else _lengths(pairs),
    )


def pair_answers(
    a: Iterable[GradedAnswer], b: Iterable[GradedAnswer], again: Sequence[ComparedAnswers] = ()
) -> ComparedAnswers | None:
    """Compare the first answers to each question; None where no question is on both sides."""
    on_a, on_b = _take_firsts(a), _take_firsts(b)
    pairs = [(answer, on_b[name]) for name, answer in on_a.items() if name in on_b]
    return compare_pairs(pairs, again) if pairs else None


def adjust(tested: Iterable[ComparedAnswers]) -> None:
    """Adjust the p values of tests that are made together, those of kinds of question among them
    (Holm)."""
    largest = 0.0
    tests = [test for answers in tested for test in (answers, *answers.tasks)]
    for rank, test in enumerate(sorted(tests, key=lambda test: test.p)):
        largest = max(largest, min(1.0, test.p * (len(tests) - rank)))
        test.p, test.differs = largest, largest < LEVEL


def why_undecided(graded: int, failed: int, answers: Iterable[GradedAnswer]) -> str | None:
    """Say why graded answers give no verdict, where they give none."""
    ended = list(answers)
    cut = sum(answer.cut for answer in ended)
    thinking = sum(answer.thinking for answer in ended)
    if failed > FAILED_SHARE * graded:
        return f"{failed} of {graded} graded requests failed"
    if thinking > CUT_SHARE * graded:
        return f"{thinking} of {graded} answers are thinking without an answer"
    if cut > CUT_SHARE * graded:
        return f"{cut} of {graded} answers were cut at the limit of their tokens"
    return None


def tell(pairs: Iterable[ComparedAnswers]) -> str:
    """Write `json 100.0 → 87.1 % of 240 (p < 0.001)` of each."""
    return ", ".join(
        f"{test.task or 'all'} {100 * test.a:.1f} → {100 * test.b:.1f}% of {test.questions}"
        f" ({show_p(test.p)})"
        for test in pairs
    )


def show_p(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p {p:.2g}"


def _take_firsts(answers: Iterable[GradedAnswer]) -> dict[str, GradedAnswer]:
    last_first = sorted(answers, key=lambda answer: -int(answer.request_id.rpartition("-")[2]))
    return {answer.question: answer for answer in last_first if answer.ended}


def _lengths(pairs: Sequence[Pair]) -> dict[str, float]:
    """Compute the ratio of mean tokens with its 95 % interval, by bootstrap over questions; nothing
    of too few."""
    import numpy as np

    whole = [
        (a.tokens, b.tokens) for a, b in pairs if not (a.cut or b.cut) and a.tokens and b.tokens
    ]
    if len(whole) < LEAST_PAIRS:
        return {}
    tokens = np.array(whole, np.float64)
    drawn = np.random.default_rng(0).integers(len(tokens), size=(_RESAMPLES, len(tokens)))
    sums = tokens[drawn].sum(axis=1)
    low, high = np.quantile(sums[:, 1] / sums[:, 0], [0.025, 0.975])
    ratio = tokens[:, 1].sum() / tokens[:, 0].sum()
    return {"length": float(ratio), "length_low": float(low), "length_high": float(high)}


def _parting(a: GradedAnswer, b: GradedAnswer) -> float:
    """Estimate the token at which two answers part, by the beginnings that they share: STEP
    characters apart."""
    shared = min(len(a.marks), len(b.marks))
    for index, (mark_a, mark_b) in enumerate(zip(a.marks, b.marks, strict=False)):
        if mark_a != mark_b:
            shared = index
            break
    return shared * a.tokens / max(1, len(a.marks))
