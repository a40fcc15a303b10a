"""Compares graded answers: the same questions, under the same load, on both sides; and either side
with itself."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from loadstone.analyse.compare.sides import RunCell
from loadstone.analyse.grading.accuracy import show_drift
from loadstone.analyse.grading.paired import ComparedAnswers, pair_answers, show_p, tell
from loadstone.analyse.run_facts import mapping
from loadstone.core import run_folder
from loadstone.core.summary import Finding

_SHARES_ALIKE = 0.02
"""Difference of the shares of graded requests up to which two loads are one."""


def compare_answers(a: Sequence[RunCell], b: Sequence[RunCell]) -> ComparedAnswers | str | None:
    """Pair the answers of the first run of either side, with what differs between runs of a side;
    or say why they cannot be compared; None where one side has none.
    """
    on_a, on_b = a[0].cell.graded, b[0].cell.graded
    if on_a is None or on_b is None:
        return None
    if on_a.share is None or on_b.share is None:
        return f"{'A' if on_a.share is None else 'B'} states their number alone"
    again = [
        pair
        for side in (a, b)
        for pair in itertools.starmap(_pair, itertools.pairwise(side))
        if pair
    ]
    if abs(on_a.share - on_b.share) > _SHARES_ALIKE:
        return f"they are {on_a.share:.1%} of A's requests and {on_b.share:.1%} of B's"
    digests = [
        mapping(place.run.info.settings.workload.get("check")).get("sha256")
        for place in (a[0], b[0])
    ]
    pairs = _pair(a[0], b[0], again) if digests[0] == digests[1] else None
    return pairs or f"no question of {on_a.name} (A) and {on_b.name} (B) is on both sides"


def _pair(a: RunCell, b: RunCell, again: Sequence[ComparedAnswers] = ()) -> ComparedAnswers | None:
    on_a, on_b = (run_folder.read_answers(place.run.folder, place.number) for place in (a, b))
    return pair_answers(on_a, on_b, again)


def answer_findings(load: str, answers: ComparedAnswers | str) -> Iterator[Finding]:
    """Find answers that are wrong on one side alone, that are of another length, or cannot be
    compared."""
    if isinstance(answers, str):
        evidence = f"at {load} graded answers cannot be compared: {answers}"
        yield Finding(
            "answers_not_alike", "warning", evidence, "Measure both with one plan: --plan RUN_A."
        )
        return
    side, worse = answers.worse()
    if side:
        evidence = (
            f"at {load} {side.upper()} has fewer right answers than the other side: {tell(worse)}"
        )
        remedy = (
            "Speed with wrong answers does not win: look at what differs in the setup, one switch"
            " at a time."
        )
        yield Finding("answers_wrong", "error", evidence, remedy)
    if answers.undecided is None and answers.drifts:
        evidence = f"at {load} B's {show_drift(answers)} A's, to the same questions"
        remedy = (
            "Answers of another length are another workload: look at stops, templates and"
            " precision."
        )
        yield Finding("length_drifts", "warning", evidence, remedy)


def tell_answers(answers: ComparedAnswers) -> str:
    """Say in one sentence whether the answers are still right."""
    head = f"{100 * answers.a:.1f} → {100 * answers.b:.1f}% of {answers.questions}"
    if answers.undecided is not None:
        return f"{head}, no verdict: {answers.undecided}"
    if answers.differs:
        head += (
            f", told apart ({show_p(answers.p)}, {100 * answers.low:+.1f} to"
            f" {100 * answers.high:+.1f} points)"
        )
    else:
        shown = (
            f"{100 * answers.would_show:.1f} points"
            if answers.would_show is not None
            else "no loss"
        )
        head += f", not told apart; {shown} would show"
    share = answers.discordant if answers.flips is None else answers.flips
    of = (
        "A against A"
        if answers.flips is not None
        else "A against B; measure A twice to know A against A"
    )
    lost = [each for each in answers.tasks if each.differs]
    return f"{head} ({100 * share:.2g}% of answers flip {of})" + (
        f"; told apart: {tell(lost)}" if lost else ""
    )
