"""Compares graded answers: the same questions, under the same load, on both sides; and either side with itself."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import msgspec

from loadstone.analyse.compare.sides import RunCell
from loadstone.analyse.grading.accuracy import show_drift, tell_worse
from loadstone.analyse.grading.paired import AnswerPairs, Pair, by_task, pair_answers
from loadstone.core import run_folder
from loadstone.core.summary import Finding

_SHARES_ALIKE = 0.02
"""Difference of the shares of graded requests up to which two loads are one."""


class TaskAnswers(msgspec.Struct, kw_only=True, frozen=True):
    """The answers to one kind of question on both sides. Fields as in ComparedAnswers."""

    task: str
    questions: int
    a: float
    b: float
    p: float
    differs: bool


class ComparedAnswers(msgspec.Struct, kw_only=True, frozen=True):
    """Graded answers to the same questions under one load on both sides, of the first run on each.

    a, b              share that is right; only_a, only_b: questions that one side alone answered right
    low, high         95 % interval of b − a; p: exact McNemar test, adjusted for loads and kinds of question
    would_show        the loss that so many questions show with a power of 80 %
    flips             share of answers that turn right or wrong between two runs of a side; None: not known
    identical         share of answers that are the same text; identical_again: between two runs of a side
    first_difference  median token at which others part, about
    length            mean tokens, B over A; length_low, length_high: 95 %
    undecided         why nothing is concluded, where nothing is
    """

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
    length: float | None
    length_low: float | None
    length_high: float | None
    undecided: str | None
    tasks: list[TaskAnswers]

    @property
    def sentence(self) -> str:
        """Say in one sentence whether the answers are still right."""
        head = f"{100 * self.a:.1f} → {100 * self.b:.1f} % of {self.questions}"
        if self.undecided is not None:
            return f"{head}, no verdict: {self.undecided}"
        told = f"told apart (p {max(self.p, 1e-6):.2g}, {100 * self.low:+.1f} to {100 * self.high:+.1f} points)"
        share = self.flips if self.flips is not None else (self.only_a + self.only_b) / self.questions
        of = "A against A" if self.flips is not None else "A against B; measure A twice to know A against A"
        shown = f"{100 * self.would_show:.1f} points" if self.would_show is not None else "no loss"
        lost = [f"{each.task} {100 * each.a:.1f} → {100 * each.b:.1f} %" for each in self.tasks if each.differs]
        return (
            f"{head}, {told if self.differs else 'not told apart'}; {shown} would show "
            f"({100 * share:.2g} % of answers flip {of})" + (f"; told apart: {', '.join(lost)}" if lost else "")
        )


class AnswerTests:
    """Holds the tests of one load's graded answers: of all, under "", and by kind of question."""

    def __init__(self, a: Sequence[RunCell], b: Sequence[RunCell]) -> None:
        self.graded = [place.cell.graded for place in (a[0], b[0])]
        self.names = [_name_questions(place) for place in (a[0], b[0])]
        pairs = _pairs(a[0], b[0]) if self.names[0] == self.names[1] is not None else []
        again = [pair for side in (a, b) for pair in itertools.starmap(_pairs, itertools.pairwise(side)) if pair]
        self.again = [AnswerPairs(each) for each in again]
        self.noise = _mean([each.discordant for each in self.again])
        self.tests = {"": AnswerPairs(pairs, noise=self.noise), **by_task(pairs)} if pairs else {}

    @property
    def worse(self) -> str:
        """The side, of `ab`, whose answers are wrong more often than the other's; empty where neither's are."""
        decided = [each for each in self.tests.values() if each.undecided is None]
        if any(each.worse for each in decided):
            return "b"
        return "a" if any(_turn(each).worse for each in decided) else ""

    def result(self) -> ComparedAnswers | None:
        """Return what the tests tell; None where no question is on both sides."""
        if not self.tests:
            return None
        every = self.tests[""]
        low, high = every.interval
        lengths = every.lengths or (None, None, None)
        return ComparedAnswers(
            questions=every.count,
            a=every.a,
            b=every.b,
            only_a=every.only_a,
            only_b=every.only_b,
            low=low,
            high=high,
            p=every.p,
            differs=every.differs,
            would_show=every.would_show,
            flips=self.noise,
            identical=every.identical,
            identical_again=_mean([each.identical for each in self.again]),
            first_difference=every.first_difference,
            length=lengths[0],
            length_low=lengths[1],
            length_high=lengths[2],
            undecided=every.undecided,
            tasks=[
                TaskAnswers(task=task, questions=each.count, a=each.a, b=each.b, p=each.p, differs=each.differs)
                for task, each in self.tests.items()
                if task
            ],
        )

    def findings(self, load: str) -> Iterator[Finding]:
        """Find answers that are wrong on one side alone, that are of another length, or cannot be compared."""
        a, b = self.graded
        if a is None or b is None:
            return
        if not self.tests or abs(a.share - b.share) > _SHARES_ALIKE:
            why = "no question is on both sides" if not self.tests else f"shares of {a.share:.0%} and {b.share:.0%}"
            evidence = f"at {load} graded answers cannot be compared: {why}, of {a.name} and {b.name}"
            yield Finding("answers_not_alike", "warning", evidence, "Measure both with one plan: --plan RUN_A.")
            return
        every, worse = self.tests[""], self.worse
        if worse:
            turned = self.tests if worse == "b" else {name: _turn(each) for name, each in self.tests.items()}
            evidence = f"at {load} {worse.upper()}: {tell_worse(turned)} than on the other side"
            remedy = "Speed with wrong answers does not win: look at what differs in the setup, one switch at a time."
            yield Finding("answers_wrong", "error", evidence, remedy)
        if every.undecided is None and every.drifts:
            evidence = f"at {load} B: {show_drift(every)} A's, to the same questions"
            remedy = "Answers of another length are another workload: look at stops, templates and precision."
            yield Finding("length_drifts", "warning", evidence, remedy)


def _turn(pairs: AnswerPairs) -> AnswerPairs:
    turned = AnswerPairs([(b, a) for a, b in pairs.pairs], noise=pairs.noise)
    turned.p = pairs.p
    return turned


def _pairs(a: RunCell, b: RunCell) -> list[Pair]:
    answers = [
        run_folder.read_answers(place.run.folder, place.number) for place in (a, b) if place.number is not None
    ]
    return pair_answers(*answers) if len(answers) == 2 else []


def _name_questions(place: RunCell) -> str | None:
    """Return the digest of the questions that a run was asked; None where none were."""
    told = place.run.info.settings.workload.get("check")
    return str(told.get("sha256")) if isinstance(told, dict) else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
