"""What two runs' graded answers tell of one another: false alarms, power, and what is said."""

import random
from collections.abc import Callable

import pytest

from loadstone.analyse.compare.answers import answer_findings, tell_answers
from loadstone.analyse.grading.accuracy import find_in_answers
from loadstone.analyse.grading.paired import ComparedAnswers, adjust, compare_pairs, pair_answers
from loadstone.analyse.grading.pairs import detectable_loss, difference, mcnemar, power, wilson
from loadstone.core.run_folder import GradedAnswer
from loadstone.core.summary import Accuracy
from tiers import further


def answer(
    number: int,
    *,
    right: bool,
    tokens: int = 100,
    cut: bool = False,
    task: str = "t",
    text: str = "",
) -> GradedAnswer:
    return GradedAnswer(
        request_id=f"0-{number}", cell=0, question=str(number), task=task, ended=True, cut=cut, thinking=False,
        parsed=True, strict=right, right=right, crossed=False, tokens=tokens, digest=text or str(right),
        marks=[0, 1, 2, int(right)],
    )  # fmt: skip


def side(count: int, right: Callable[[int], bool], tokens: int = 100) -> list[GradedAnswer]:
    return [answer(number, right=right(number), tokens=tokens) for number in range(count)]


def flipping(count: int, noise: float, lost: float, rng: random.Random) -> ComparedAnswers:
    """A server of 80% right answers that flips `noise` of them either way, and one that loses some
    besides."""
    pairs = []
    for number in range(count):
        drawn, share = rng.random(), noise / 2
        a = drawn < share + lost or (drawn >= 2 * share + lost and rng.random() < 0.8)
        b = share + lost <= drawn < 2 * share + lost or (drawn >= 2 * share + lost and a)
        pairs.append((answer(number, right=a), answer(number, right=b)))
    return compare_pairs(pairs)


@pytest.mark.parametrize("noise", [0.13, *further(0.02)])
def test_servers_that_flip_answers_are_not_told_apart_from_themselves(noise: float) -> None:
    rng = random.Random(f"alarms {noise}")
    assert sum(flipping(500, noise, 0.0, rng).differs for _ in range(100)) <= 5


@pytest.mark.parametrize("noise", [0.13, *further(0.02)])
def test_a_loss_as_large_as_is_said_to_show_shows(noise: float) -> None:
    rng = random.Random(f"power {noise}")
    loss = detectable_loss(500, noise)
    assert loss is not None
    found = sum(flipping(500, noise, loss, rng).differs for _ in range(100))
    assert 68 <= found <= 92
    assert power(500, noise / 2 + loss, noise / 2) == pytest.approx(0.8, abs=0.01)


def test_the_statistics_are_those_of_published_tables() -> None:
    losses = {
        100: [7.8, 9.6, 11.6, 15.4, 19.0],
        500: [1.6, 2.8, 3.8, 5.5, 7.3],
        1319: [0.6, 1.5, 2.1, 3.2, 4.2],
    }
    for count, points in losses.items():
        found = [detectable_loss(count, noise) for noise in (0, 0.02, 0.05, 0.13, 0.25)]
        assert [round(100 * (loss or 0), 1) for loss in found] == points
    assert wilson(475, 500) == pytest.approx((0.927, 0.966), abs=5e-4)
    assert mcnemar(33, 1) == pytest.approx(4.07e-9, rel=0.01)
    assert mcnemar(5, 0) == pytest.approx(0.0625)
    # Newcombe 1998, table II: 36 and 33 of 50 pairs (method 10).
    assert difference(36, 12, 2, 0) == pytest.approx((-0.3215, -0.0535), abs=0.02)
    assert detectable_loss(3, 0.0) is None


def test_worse_answers_are_said_to_be_so_and_by_whom() -> None:
    right, lost = side(500, lambda n: True), side(500, lambda n: n % 20 > 0)
    pairs = pair_answers(right, lost)
    assert pairs is not None
    adjust([pairs])
    told = tell_answers(pairs)
    assert told.startswith("100.0 → 95.0% of 500, told apart (p < 0.001, ")
    [wrong] = answer_findings("concurrency 8", pairs)
    assert (wrong.kind, wrong.severity) == ("answers_wrong", "error")
    turned = pair_answers(lost, right)
    assert turned is not None
    assert "B has fewer right answers" in wrong.evidence
    assert "A has fewer right answers" in next(answer_findings("concurrency 8", turned)).evidence
    assert pairs.first_difference == 75  # at the last of four marks of 100 tokens


def test_what_is_not_told_apart_comes_with_what_would_show() -> None:
    again = pair_answers(side(500, lambda n: n > 30), side(500, lambda n: n > 20))
    assert again is not None
    pairs = pair_answers(side(500, lambda n: n > 30), side(500, lambda n: n > 31), [again])
    assert pairs is not None
    assert tell_answers(pairs) == (
        "93.8 → 93.6% of 500, not told apart; 2.8 points would show (2% of answers flip A against A)"
    )
    assert not list(answer_findings("rate 4", pairs))


@pytest.mark.parametrize(
    ("tokens", "drifts"), [(100, False), (105, False), (120, True), (80, True)]
)
def test_answers_of_another_length_are_found(tokens: int, drifts: bool) -> None:
    pairs = pair_answers(side(60, lambda n: True), side(60, lambda n: True, tokens))
    assert pairs is not None
    assert [each.kind for each in answer_findings("rate 4", pairs)] == ["length_drifts"] * drifts


def test_cut_answers_and_few_questions_give_no_verdict() -> None:
    whole = side(100, lambda n: True)
    cut = [answer(n, right=n >= 20, cut=n < 20) for n in range(100)]
    for a, b, why in (
        (whole, cut, "20 of 100 answers were cut"),
        (whole[:9], side(9, lambda n: False), "20 are needed"),
    ):
        pairs = pair_answers(a, b)
        assert pairs is not None
        assert why in tell_answers(pairs)
        assert not list(answer_findings("rate 4", pairs))
    assert pair_answers(whole, [answer(500, right=True)]) is None


def test_one_kind_of_question_is_found_among_others() -> None:
    tasks = ("add", "copy", "json", "max", "sort")
    a = [answer(n, right=True, task=tasks[n % 5]) for n in range(600)]
    b = [answer(n, right=n % 5 != 2 or n % 6 > 0, task=tasks[n % 5]) for n in range(600)]
    pairs = pair_answers(a, b)
    assert pairs is not None
    adjust([pairs])
    assert [each.task for each in pairs.worse()[1]] == ["", "json"]


def graded(
    answers: list[GradedAnswer], other: list[GradedAnswer], temperature: float = 0.0
) -> set[str]:
    """Kinds of findings on a load, beside the lightest."""
    right = sum(each.right for each in answers) / len(answers)
    told = Accuracy(
        name="q", share=0.1, asked=len(answers), failed=0, questions=len(answers), accuracy=right, low=0.0, high=1.0,
        strict=right, temperature=temperature,
    )  # fmt: skip
    return {
        each.kind for each in find_in_answers(told, None, answers, pair_answers(other, answers))
    }


def test_a_load_whose_answers_were_all_cut_is_not_graded() -> None:
    cut = [answer(n, right=False, tokens=64, cut=True, text="Okay, so") for n in range(30)]
    told = Accuracy(
        name="q", share=0.1, asked=30, failed=0, questions=30, accuracy=0.0, low=0.0, high=0.1,
        strict=0.0, temperature=0.0, undecided="30 of 30",
    )  # fmt: skip
    found = {each.kind: each for each in find_in_answers(told, 0.9, cut, None)}
    undecided = found["answers_undecided"]
    assert (undecided.severity, undecided.values) == (
        "info",
        {"answers": 30, "limit": 64, "more": 256},
    )
    assert set(found) == {"answers_undecided"}  # beginnings that are the same are no answers


def test_one_answer_to_many_questions_is_a_cache_s() -> None:
    def said(
        right: Callable[[int], bool], text: Callable[[int], str], tokens: int = 100
    ) -> list[GradedAnswer]:
        return [answer(n, right=right(n), text=text(n), tokens=tokens) for n in range(60)]

    own = said(lambda n: True, str)
    assert "answers_identical" in graded(
        said(lambda n: n % 2 > 0, lambda n: "x" if n % 2 == 0 else str(n)), own
    )
    # A model that says B to all questions is right now and then; so is one whose questions have one
    # answer.
    assert "answers_identical" not in graded(said(lambda n: n % 4 == 0, lambda n: "B"), own)
    assert "answers_identical" not in graded(said(lambda n: True, lambda n: "yes"), own)
    # Sampling does not write a long text twice.
    assert "answers_identical" in graded(own, own, temperature=0.7)
    assert "answers_identical" not in graded(own, own)
    short = said(lambda n: True, str, tokens=4)
    assert "answers_identical" not in graded(short, short, temperature=0.7)
