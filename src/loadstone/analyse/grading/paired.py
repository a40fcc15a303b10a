"""Compares the graded answers of two runs, or of two loads, to the same questions."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from loadstone.analyse.grading.pairs import LEVEL, detectable_loss, difference, mcnemar
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

    def worse(self) -> tuple[Literal["", "a", "b"], list[ComparedAnswers]]:
        """Return the side that answers worse by more than chance and enough to matter; and which
        questions: all of them, or the kinds.
        """
        differ = [each for each in (self, *self.tasks) if each.differs and each.undecided is None]
        b, a = (
            [each for each in differ if sign * (each.a - each.b) >= LEAST_LOSS] for sign in (1, -1)
        )
        return ("b", b) if b else ("a", a) if a else ("", [])


def compare_pairs(
    pairs: Sequence[Pair], again: Sequence[ComparedAnswers] = (), task: str = ""
) -> ComparedAnswers:
    """Compare answers, A's and B's to one question each; at least one. `again`: what two runs of
    one side showed."""
    count, found = len(pairs), Counter((a.right, b.right) for a, b in pairs)
    both, only_a, only_b, neither = (
        found[key] for key in ((True, True), (True, False), (False, True), (False, False))
    )
    flips = statistics.fmean(each.discordant for each in again) if again else None
    low, high = difference(both, only_a, only_b, neither)
    p, noise = mcnemar(only_a, only_b), (only_a + only_b) / count if flips is None else flips
    parting = sorted(_parting(a, b) for a, b in pairs if a.digest != b.digest)
    tasks = sorted({a.task for a, _ in pairs})
    split = {each: [pair for pair in pairs if pair[0].task == each] for each in tasks[1:] and tasks}
    why = [why_undecided(count, 0, side) for side in zip(*pairs, strict=True)]
    if count < LEAST_PAIRS:
        why = [f"{count} questions were answered on both sides, {LEAST_PAIRS} are needed"]
    return ComparedAnswers(
        task=task,
        questions=count,
        a=(both + only_a) / count,
        b=(both + only_b) / count,
        only_a=only_a,
        only_b=only_b,
        low=low,
        high=high,
        p=p,
        differs=p < LEVEL,
        would_show=detectable_loss(count, round(noise, 3)),
        flips=flips,
        identical=sum(a.digest == b.digest for a, b in pairs) / count,
        identical_again=statistics.fmean(each.identical for each in again) if again else None,
        first_difference=parting[len(parting) // 2] if parting else None,
        undecided=next(filter(None, why), None),
        tasks=[compare_pairs(own, (), each) for each, own in split.items()],
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
    ranked = sorted(
        (test for each in tested for test in (each, *each.tasks)), key=lambda each: each.p
    )
    for at, each in enumerate(ranked):
        each.p = largest = max(largest, min(1.0, each.p * (len(ranked) - at)))
        each.differs = each.p < LEVEL


def why_undecided(asked: int, failed: int, answers: Iterable[GradedAnswer]) -> str | None:
    """Say why graded answers give no verdict, where they give none."""
    ended = list(answers)
    cut, thinking = sum(each.cut for each in ended), sum(each.thinking for each in ended)
    if failed > FAILED_SHARE * asked:
        return f"{failed} of {asked} graded requests failed"
    if thinking > CUT_SHARE * asked:
        return f"{thinking} of {asked} answers are thinking without an answer"
    return (
        f"{cut} of {asked} answers were cut at the limit of their tokens"
        if cut > CUT_SHARE * asked
        else None
    )


def tell(pairs: Iterable[ComparedAnswers]) -> str:
    """Write `json 100.0 → 87.1 % of 240 (p < 0.001)` of each."""
    return ", ".join(
        f"{each.task or 'all'} {100 * each.a:.1f} → {100 * each.b:.1f}% of {each.questions}"
        f" ({show_p(each.p)})"
        for each in pairs
    )


def show_p(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p {p:.2g}"


def _take_firsts(answers: Iterable[GradedAnswer]) -> dict[str, GradedAnswer]:
    last_first = sorted(answers, key=lambda each: -int(each.request_id.rpartition("-")[2]))
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
    sums = tokens[
        np.random.default_rng(0).integers(len(tokens), size=(_RESAMPLES, len(tokens)))
    ].sum(axis=1)
    low, high = np.quantile(sums[:, 1] / sums[:, 0], [0.025, 0.975])
    ratio = tokens[:, 1].sum() / tokens[:, 0].sum()
    return {"length": float(ratio), "length_low": float(low), "length_high": float(high)}


def _parting(a: GradedAnswer, b: GradedAnswer) -> float:
    """Estimate the token at which two answers part, by the beginnings that they share: STEP
    characters apart."""
    shared: Iterator[int] = (
        at for at, (x, y) in enumerate(zip(a.marks, b.marks, strict=False)) if x != y
    )
    return next(shared, min(len(a.marks), len(b.marks))) * a.tokens / max(1, len(a.marks))
