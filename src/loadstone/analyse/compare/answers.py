"""Compares graded answers: the same questions, under the same load, on both sides; and either side
with itself."""

import itertools
from collections.abc import Sequence

from loadstone.analyse.compare.sides import RunCell
from loadstone.analyse.grading.paired import ComparedAnswers, pair_answers, show_p, tell
from loadstone.analyse.run_facts import mapping
from loadstone.analyse.verdict.finding import Findings, finding
from loadstone.core import run_folder

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
    repeats = [_pair(*runs) for side in (a, b) for runs in itertools.pairwise(side)]
    if abs(on_a.share - on_b.share) > _SHARES_ALIKE:
        return f"they are {on_a.share:.1%} of A's requests and {on_b.share:.1%} of B's"
    pairs = None
    if _questions(a[0]) == _questions(b[0]):
        pairs = _pair(a[0], b[0], [pair for pair in repeats if pair])
    return pairs or f"no question of {on_a.name} (A) and {on_b.name} (B) is on both sides"


def _questions(cell: RunCell) -> object:
    """Return what is equal for cells that ask questions of one file."""
    return mapping(cell.run.info.settings.workload.get("check")).get("sha256")


def _pair(a: RunCell, b: RunCell, again: Sequence[ComparedAnswers] = ()) -> ComparedAnswers | None:
    on_a, on_b = (run_folder.read_answers(cell.run.folder, cell.number) for cell in (a, b))
    return pair_answers(on_a, on_b, again)


def answer_findings(load: str, answers: ComparedAnswers | str) -> Findings:
    """Find answers that are wrong on one side alone, that are of another length, or cannot be
    compared."""
    if isinstance(answers, str):
        yield finding("answers_not_alike", load=load, why=answers)
        return
    side, worse = answers.worse()
    if side:
        yield finding("answers_wrong.side", load=load, side=side.upper(), worse=tell(worse))
    if answers.undecided is None and answers.drifts:
        yield finding("length_drifts.sides", load=load, **answers.drift)


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
    elif answers.would_show is not None:
        head += f", not told apart; {100 * answers.would_show:.1f} points would show"
    else:
        head += ", not told apart; no loss would show"
    share, sides = answers.flips, "A against A"
    if share is None:
        share = answers.discordant
        sides = "A against B; measure A twice to know A against A"
    lost = [task for task in answers.tasks if task.differs]
    tasks = f"; told apart: {tell(lost)}" if lost else ""
    return f"{head} ({100 * share:.2g}% of answers flip {sides}){tasks}"
