"""Compares the graded answers of two runs, or of two loads, to the same questions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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


@dataclass
class AnswerPairs:
    """The first answers to each question that both sides answered without an error, and what they tell.

    p         of the exact McNemar test, adjusted for all tests made together by judge()
    noise     the share of answers that flip between two runs of one side; None where that was not measured
    """

    pairs: list[Pair]
    p: float = 1.0
    noise: float | None = None

    def __post_init__(self) -> None:
        found = [0, 0, 0, 0]
        for a, b in self.pairs:
            found[(not a.right) * 2 + (not b.right)] += 1
        self.both, self.only_a, self.only_b, self.neither = found
        self.p = mcnemar(self.only_a, self.only_b)

    @property
    def count(self) -> int:
        return len(self.pairs)

    @property
    def a(self) -> float:
        return (self.both + self.only_a) / self.count

    @property
    def b(self) -> float:
        return (self.both + self.only_b) / self.count

    @property
    def discordant(self) -> float:
        return (self.only_a + self.only_b) / self.count

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of B's accuracy less A's."""
        return difference(self.both, self.only_a, self.only_b, self.neither)

    @property
    def differs(self) -> bool:
        """True if B answers otherwise than A by more than chance."""
        return self.p < LEVEL

    @property
    def worse(self) -> bool:
        """True if B is worse than A by more than chance, and by enough to matter."""
        return self.differs and self.a - self.b >= LEAST_LOSS

    @property
    def would_show(self) -> float | None:
        """The loss that so many pairs show with a power of 80 %; None where they can show none."""
        return detectable_loss(self.count, round(self.discordant if self.noise is None else self.noise, 4))

    @property
    def identical(self) -> float:
        return sum(a.digest == b.digest for a, b in self.pairs) / self.count

    @property
    def first_difference(self) -> float | None:
        """The token, about, at which answers that differ part: the median. STEP characters are as near as it gets."""
        found = sorted(_parting(a, b) for a, b in self.pairs if a.digest != b.digest)
        return found[len(found) // 2] if found else None

    @property
    def lengths(self) -> tuple[float, float, float] | None:
        """The ratio of mean tokens B/A with its 95 % interval, by bootstrap over questions neither side cut."""
        import numpy as np

        whole = [(a.tokens, b.tokens) for a, b in self.pairs if not (a.cut or b.cut) and a.tokens and b.tokens]
        if len(whole) < LEAST_PAIRS:
            return None
        tokens = np.array(whole, np.float64)
        picks = np.random.default_rng(0).integers(len(tokens), size=(_RESAMPLES, len(tokens)))
        sums = np.stack([tokens[picks, side].sum(axis=1) for side in (0, 1)])
        low, high = np.quantile(sums[1] / sums[0], [0.025, 0.975])
        return float(tokens[:, 1].sum() / tokens[:, 0].sum()), float(low), float(high)

    @property
    def drifts(self) -> bool:
        """True if answers are longer or shorter by more than LENGTHS allow, beyond doubt."""
        lengths = self.lengths
        return lengths is not None and (lengths[2] < LENGTHS[0] or lengths[1] > LENGTHS[1])

    @property
    def undecided(self) -> str | None:
        """Say why nothing is concluded from the pairs, where nothing is."""
        cut = max(sum(pair[side].cut for pair in self.pairs) for side in (0, 1)) if self.pairs else 0
        thinking = max(sum(pair[side].thinking for pair in self.pairs) for side in (0, 1)) if self.pairs else 0
        if self.count < LEAST_PAIRS:
            return f"{self.count} questions were answered on both sides, {LEAST_PAIRS} are needed"
        return why_undecided(self.count, 0, cut, thinking)


def pair_answers(a: Iterable[GradedAnswer], b: Iterable[GradedAnswer]) -> list[Pair]:
    """Pair the first answers to each question."""
    on_a, on_b = _take_firsts(a), _take_firsts(b)
    return [(answer, on_b[name]) for name, answer in on_a.items() if name in on_b]


def by_task(pairs: list[Pair]) -> dict[str, AnswerPairs]:
    """Split pairs by the kind of question; nothing where all are of one."""
    tasks = sorted({a.task for a, _ in pairs})
    return (
        {}
        if len(tasks) < 2
        else {task: AnswerPairs([pair for pair in pairs if pair[0].task == task]) for task in tasks}
    )


def adjust(tested: Iterable[AnswerPairs]) -> None:
    """Adjust p values of tests that are made together (Holm)."""
    largest = 0.0
    ranked = sorted(tested, key=lambda each: each.p)
    for at, each in enumerate(ranked):
        largest = max(largest, min(1.0, each.p * (len(ranked) - at)))
        each.p = largest


def why_undecided(asked: int, failed: int, cut: int, thinking: int) -> str | None:
    """Say why graded answers give no verdict, where they give none."""
    if failed > FAILED_SHARE * asked:
        return f"{failed} of {asked} graded requests failed"
    if thinking > CUT_SHARE * asked:
        return f"{thinking} of {asked} answers are thinking without an answer"
    return f"{cut} of {asked} answers were cut at the limit of their tokens" if cut > CUT_SHARE * asked else None


def _take_firsts(answers: Iterable[GradedAnswer]) -> dict[str, GradedAnswer]:
    firsts: dict[str, GradedAnswer] = {}
    for answer in sorted(answers, key=lambda each: int(each.request_id.rpartition("-")[2])):
        if answer.ended:
            firsts.setdefault(answer.question, answer)
    return firsts


def _parting(a: GradedAnswer, b: GradedAnswer) -> float:
    """Estimate the token at which two answers part, by the beginnings that they share."""
    shared = next((at for at, (x, y) in enumerate(zip(a.marks, b.marks, strict=False)) if x != y), None)
    shared = min(len(a.marks), len(b.marks)) if shared is None else shared
    return shared * a.tokens / max(1, len(a.marks))
