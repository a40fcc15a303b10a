"""Counts the graded answers of a run's cells, and finds loads under which they are wrong."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from loadstone.analyse import metrics
from loadstone.analyse.grading.paired import (
    CUT_SHARE,
    LENGTHS,
    AnswerPairs,
    adjust,
    by_task,
    pair_answers,
    why_undecided,
)
from loadstone.analyse.grading.pairs import wilson
from loadstone.analyse.verdict.finding import finding
from loadstone.core import arrays, run_folder
from loadstone.core.plan import CHECK, Plan
from loadstone.core.record import RunInfo
from loadstone.core.run_folder import GradedAnswer
from loadstone.core.summary import Accuracy, CellSummary, Finding, Part, TaskAccuracy

if TYPE_CHECKING:
    import pyarrow as pa

_FORM = 0.01
"""Difference between answers right however said and in the form asked for, from which it is told."""
_SAME_TEXT, _LEAST_SAME = 0.8, 10
"""Share and least number of different questions with one answer, from which no model answers; few kinds of question
have one right answer so often, and it is wrong."""


def grade_cells(
    folder: Path, info: RunInfo, plan: Plan, cells: Mapping[int, CellSummary]
) -> dict[int, list[Finding]]:
    """Add to each cell, by its number, what its graded answers tell; return findings about them."""
    if not (plan.phase == CHECK).any():
        return {}
    every = run_folder.read_answers(folder)
    answers = {number: [each for each in every if each.cell == number] for number in cells}
    for number, cell in cells.items():
        if info.source == "measured":
            cell.graded = _accuracy(folder, info, plan, number, answers[number])
    pairs = _against_lightest(cells, answers)
    return {
        number: list(_find(cell, cell.graded, info, answers[number], pairs.get(number)))
        for number, cell in cells.items()
        if cell.graded is not None
    }


def _accuracy(
    folder: Path, info: RunInfo, plan: Plan, number: int, answers: Sequence[GradedAnswer]
) -> Accuracy | None:
    told, settings = plan.workload.get("check") or {}, info.settings.check or {}
    phases = plan.phase[plan.rows(number).start : plan.rows(number).stop]
    ended = [each for each in answers if each.ended]
    failed = len(answers) - len(ended)
    questions, right, strict = _count(ended)
    low, high = wilson(right, questions)
    cut, thinking = (sum(getattr(each, name) for each in ended) for name in ("cut", "thinking"))
    tasks = sorted({each.task for each in ended})
    undecided = why_undecided(len(answers), failed, cut, thinking) if answers else "no answers were kept"
    return Accuracy(
        name=str(told.get("name", "")),
        share=float((phases == CHECK).sum() / max(1, (phases > 0).sum())),
        asked=len(answers),
        failed=failed,
        questions=questions,
        accuracy=right / questions if questions else None,
        low=low,
        high=high,
        strict=strict / questions if questions else None,
        cut=cut,
        thinking=thinking,
        unparsed=sum(not each.parsed and not each.cut for each in ended),
        crossed=sum(each.crossed for each in ended),
        temperature=settings.get("temperature"),
        undecided=undecided,
        tasks=[_of_task(task, [each for each in ended if each.task == task]) for task in tasks if len(tasks) > 1],
        part=_part(folder, info, number),
    )


def _count(answers: Sequence[GradedAnswer]) -> tuple[int, float, float]:
    """Count different questions, and those answered right, and strictly so: each the mean of its answers."""
    by_question: dict[str, list[GradedAnswer]] = defaultdict(list)
    for each in answers:
        by_question[each.question].append(each)
    groups = by_question.values()
    return (
        len(groups),
        sum(sum(each.right for each in group) / len(group) for group in groups),
        sum(sum(each.strict for each in group) / len(group) for group in groups),
    )


def _of_task(task: str, answers: Sequence[GradedAnswer]) -> TaskAccuracy:
    questions, right, _ = _count(answers)
    low, high = wilson(right, questions)
    return TaskAccuracy(task=task, questions=questions, accuracy=right / questions, low=low, high=high)


def _part(folder: Path, info: RunInfo, number: int) -> Part | None:
    """Compute the latencies of graded requests, which are those of the phase `check`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def read() -> Iterator[pa.RecordBatch]:
        for batch in run_folder.read_records(folder, number, arrays.COLUMNS):
            chosen = batch.filter(pc.equal(batch["phase"], "check"))
            phase = pa.array(["measure"] * chosen.num_rows, pa.string())
            yield chosen.set_column(chosen.schema.get_field_index("phase"), "phase", phase)

    def keys(batch: pa.RecordBatch) -> NDArray[np.int64]:
        return np.zeros(batch.num_rows, np.int64)

    return metrics.parts(read, keys, streams=info.streams).get(0)


# --- findings -------------------------------------------------------------------------------------------------------


def _against_lightest(
    cells: Mapping[int, CellSummary], answers: Mapping[int, Sequence[GradedAnswer]]
) -> dict[int, dict[str, AnswerPairs]]:
    """Pair each load's answers with those of the lightest of its kind: all, under "", and by kind of question."""
    found = {}
    for number, cell in cells.items():
        alike = [other for other, each in cells.items() if each.load.kind == cell.load.kind]
        lightest = min(alike, key=lambda other: cells[other].load.value)
        pairs = pair_answers(answers[lightest], answers[number])
        if lightest != number and pairs:
            found[number] = {"": AnswerPairs(pairs), **by_task(pairs)}
    adjust(each for tests in found.values() for each in tests.values())
    return found


def _find(
    cell: CellSummary,
    graded: Accuracy,
    info: RunInfo,
    answers: Sequence[GradedAnswer],
    pairs: Mapping[str, AnswerPairs] | None,
) -> Iterator[Finding]:
    if graded.crossed:
        evidence = f"{graded.crossed} of {graded.asked} answers have the number that another request asks for"
        yield finding("answers_wrong.crossed", evidence)
    yield from _one_text(graded, answers)
    if graded.undecided is not None:
        yield finding("answers_undecided", f"{graded.undecided}: no verdict on the {graded.asked} graded ones")
        return
    least = (info.settings.check or {}).get("least")
    if isinstance(least, int | float) and graded.high < least:
        worst = min(graded.tasks, key=lambda task: task.accuracy or 0, default=None)
        where = f"; lowest {worst.task}, {worst.accuracy or 0:.1%} of {worst.questions}" if worst else ""
        evidence = f"{show_accuracy(graded)}, and at least {least:.1%} should be{where}"
        yield finding("answers_wrong", evidence)
    elif pairs is not None and (wrong := tell_worse(pairs)):
        yield finding("answers_wrong.load", f"{wrong} than at the run's lightest load")
    if pairs is not None and pairs[""].drifts:
        yield finding("length_drifts", f"{show_drift(pairs[''])} at the run's lightest load, to the same questions")
    if abs((graded.accuracy or 0) - (graded.strict or 0)) > _FORM and graded.strict is not None:
        evidence = f"{graded.accuracy:.1%} are right, and {graded.strict:.1%} in the form that was asked for"
        yield finding("answers_in_other_form", evidence)


def _one_text(graded: Accuracy, answers: Sequence[GradedAnswer]) -> Iterator[Finding]:
    """Find one wrong answer to most of the questions; and, of tokens drawn by chance, answers that repeat."""
    firsts = {each.question: each for each in answers if each.ended}
    same = max(Counter(each.digest for each in firsts.values()).values(), default=0)
    if len(firsts) >= _LEAST_SAME and same >= _SAME_TEXT * len(firsts) and (graded.accuracy or 0) < 0.5:
        yield finding("answers_identical.graded", f"{same} of {len(firsts)} different questions got the same answer")
        return
    texts: dict[str, set[str]] = defaultdict(set)
    for each in answers:
        texts[each.question].add(each.digest)
    again = Counter(each.question for each in answers if each.tokens > 8)
    repeated = [question for question, times in again.items() if times > 1]
    if graded.temperature and len(repeated) >= _LEAST_SAME and all(len(texts[each]) == 1 for each in repeated):
        evidence = f"at temperature {graded.temperature:g}, {len(repeated)} questions got the same text each time"
        yield finding("answers_identical.graded", evidence)


def show_accuracy(graded: Accuracy) -> str:
    """Write `94.0 % of 500 are right (95 %: 91.6 to 95.8 %)`."""
    if graded.accuracy is None:
        return "none was answered"
    cut = f", {graded.cut} of them cut" if 0 < graded.cut <= CUT_SHARE * graded.asked else ""
    return (
        f"{100 * graded.accuracy:.1f} % of {graded.questions} answers are right "
        f"(95 %: {100 * graded.low:.1f} to {100 * graded.high:.1f} %){cut}"
    )


def tell_worse(tests: Mapping[str, AnswerPairs]) -> str:
    """Say where answers are worse, of all together and of each kind of question; empty where they are nowhere."""
    parts = [
        f"{task or 'all'} {100 * each.a:.1f} → {100 * each.b:.1f} % of {each.count} (p {max(each.p, 1e-6):.2g})"
        for task, each in tests.items()
        if each.worse and each.undecided is None
    ]
    return f"fewer answers are right, {', '.join(parts)}," if parts else ""


def show_drift(pairs: AnswerPairs) -> str:
    ratio, low, high = pairs.lengths or (1.0, *LENGTHS)
    return f"answers are {ratio:.2f} times as long (95 %: {low:.2f} to {high:.2f}) as"
