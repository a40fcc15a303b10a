"""Counts the graded answers of a run's cells, and finds loads under which they are wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loadstone.analyse import metrics
from loadstone.analyse.grading.paired import (
    LEAST_PAIRS,
    ComparedAnswers,
    adjust,
    pair_answers,
    tell,
    why_undecided,
)
from loadstone.analyse.grading.pairs import wilson
from loadstone.analyse.run_facts import mapping
from loadstone.analyse.verdict.finding import Findings, finding
from loadstone.core import arrays, run_folder
from loadstone.core.groups import by_key
from loadstone.core.parts import Part
from loadstone.core.plan import CHECK, Plan
from loadstone.core.record import RunInfo
from loadstone.core.run_folder import GradedAnswer
from loadstone.core.summary import Accuracy, CellSummary, TaskAccuracy

if TYPE_CHECKING:
    import pyarrow as pa

_FORM = 0.01
"""Difference between answers right however said and in the form asked for, from which it is told.
"""
_SAME_TEXT, _LEAST_SAME, _RIGHT_BY_CHANCE = 0.5, 10, 0.05
"""Share and least number of different questions with one answer, from which no model answers, if
that is right less often than a letter would be by chance."""
_SAME_AGAIN, _LONG = 0.8, 50
"""Share of answers that are the same at another load, and their mean tokens, that sampling does not
give."""


def grade_cells(folder: Path, info: RunInfo, plan: Plan, cells: Mapping[int, CellSummary]) -> None:
    """Add to each cell, by its number, what its graded answers tell, and findings about them."""
    if info.source != "measured" or not (plan.phase == CHECK).any():
        return
    answers: dict[int, list[GradedAnswer]] = {number: [] for number in cells}
    for answer in run_folder.read_answers(folder):
        if answer.cell in answers:
            answers[answer.cell].append(answer)
    pairs = _against_lightest(cells, answers)
    least = (info.settings.check or {}).get("least")
    for number, cell in cells.items():
        cell.graded = _accuracy(folder, info, plan, number, answers[number])
        findings = find_in_answers(cell.graded, least, answers[number], pairs.get(number))
        cell.verdict.findings.extend(findings)


def _accuracy(
    folder: Path, info: RunInfo, plan: Plan, number: int, answers: Sequence[GradedAnswer]
) -> Accuracy:
    file, settings = mapping(plan.workload.get("check")), info.settings.check or {}
    phases = plan.phase[plan.span(number)]
    ended = [answer for answer in answers if answer.ended]
    tasks = sorted({answer.task for answer in ended})
    failed = len(answers) - len(ended)
    return Accuracy(
        name=str(file.get("name", "")),
        share=float((phases == CHECK).sum() / (phases > 0).sum()),
        asked=len(answers),
        failed=failed,
        cut=sum(answer.cut for answer in ended),
        thinking=sum(answer.thinking for answer in ended),
        unparsed=sum(not (answer.parsed or answer.cut or answer.thinking) for answer in ended),
        crossed=sum(answer.crossed for answer in ended),
        strict=sum(answer.strict for answer in ended) / len(ended) if ended else None,
        temperature=settings.get("temperature"),
        undecided=why_undecided(len(answers), failed, ended) if answers else "no answers were kept",
        tasks=[TaskAccuracy(**_shares(ended, task)) for task in tasks if tasks[1:]],
        part=_part(folder, info, number),
        **_shares(ended),
    )


def _shares(answers: Sequence[GradedAnswer], task: str = "") -> dict[str, Any]:
    """Count different questions and the share that is answered right, with its interval; a question
    counts once, by the mean of its answers.
    """
    chosen = [answer for answer in answers if task in ("", answer.task)]
    by_question = by_key((answer.question, answer.right) for answer in chosen)
    right = sum(sum(graded) / len(graded) for graded in by_question.values())
    low, high = wilson(right, len(by_question))
    accuracy = right / len(by_question) if by_question else None
    return {
        "task": task,
        "questions": len(by_question),
        "accuracy": accuracy,
        "low": low,
        "high": high,
    }


def _part(folder: Path, info: RunInfo, number: int) -> Part | None:
    """Compute the latencies of graded requests, which are those of the phase `check`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def read() -> Iterator[pa.RecordBatch]:
        for batch in run_folder.read_records(folder, number, arrays.COLUMNS):
            chosen = batch.filter(pc.equal(batch["phase"], "check"))
            phase = pa.array(["measure"] * chosen.num_rows, pa.string())
            yield chosen.set_column(chosen.schema.get_field_index("phase"), "phase", phase)

    return metrics.parts(
        read, lambda batch: np.zeros(batch.num_rows, np.int64), streams=info.streams
    ).get(0)


# --- findings -------------------------------------------------------------------------------------


def _against_lightest(
    cells: Mapping[int, CellSummary], answers: Mapping[int, Sequence[GradedAnswer]]
) -> dict[int, ComparedAnswers]:
    """Pair each load's answers with those of the lightest load of its kind."""
    found = {}
    for number, cell in cells.items():
        alike = [key for key, candidate in cells.items() if candidate.load.kind == cell.load.kind]
        lightest = min(alike, key=lambda key: cells[key].load.value)
        if lightest != number:
            pairs = pair_answers(answers[lightest], answers[number])
            if pairs is not None:
                found[number] = pairs
    adjust(found.values())
    return found


def find_in_answers(
    graded: Accuracy, least: object, answers: Sequence[GradedAnswer], pairs: ComparedAnswers | None
) -> Findings:
    """Find answers of a load that are wrong, of another length, or no model's; `pairs`: beside the
    lightest load."""
    ended = [answer for answer in answers if answer.ended]
    if graded.crossed:
        yield finding("answers_wrong.crossed", crossed=graded.crossed, answers=graded.asked)
    cut = [answer.tokens for answer in ended if answer.cut]
    if cut and len(cut) == len(answers):
        limit = max(cut)
        yield finding("answers_undecided.cut", answers=len(cut), limit=limit, more=4 * limit)
        return
    yield from _find_same(ended, graded.temperature or 0.0, pairs)
    if graded.undecided is not None:
        yield finding("answers_undecided", why=graded.undecided, answers=graded.asked)
        return
    if isinstance(least, int | float) and graded.high < least:
        worst = min(graded.tasks, key=lambda task: task.accuracy or 0, default=None)
        yield finding(
            "answers_wrong",
            accuracy=graded.accuracy or 0.0,
            questions=graded.questions,
            low_percent=100 * graded.low,
            high_percent=100 * graded.high,
            least=least,
            task=worst.task if worst else None,
            task_accuracy=(worst.accuracy or 0.0) if worst else None,
            task_questions=worst.questions if worst else None,
        )
    elif pairs is not None and pairs.worse()[0] == "b":
        yield finding("answers_wrong.load", worse=tell(pairs.worse()[1]))
    if pairs is not None and pairs.drifts:
        yield finding("length_drifts", **pairs.drift)
    right = sum(answer.right for answer in ended) / len(ended) if ended else 0.0
    if graded.strict is not None and right - graded.strict > _FORM:
        yield finding("answers_in_other_form", right=right, strict=graded.strict)


def _find_same(
    answers: Sequence[GradedAnswer], temperature: float, pairs: ComparedAnswers | None
) -> Findings:
    """Find one answer to different questions, and sampled ones that are the same at another
    load."""
    different = {answer.question: answer for answer in answers}.values()
    by_text = by_key((answer.digest, answer.right) for answer in different)
    same = max(by_text.values(), key=len, default=[])
    frequent = len(same) >= max(_LEAST_SAME, _SAME_TEXT * len(different))
    if frequent and sum(same) <= _RIGHT_BY_CHANCE * len(same):
        yield finding("answers_identical.graded", same=len(same), questions=len(different))
    long = sum(answer.tokens for answer in answers) >= _LONG * len(answers)
    if not temperature or not long or pairs is None:
        return
    if pairs.questions >= LEAST_PAIRS and pairs.identical >= _SAME_AGAIN:
        yield finding(
            "answers_identical.sampled",
            identical_share=pairs.identical,
            temperature=temperature,
        )


def show_drift(pairs: ComparedAnswers) -> str:
    """Write `answers are 0.80 times as long (95 %: 0.78 to 0.83) as`."""
    return (
        f"answers are {pairs.length:.2f} times as long (95%: {pairs.length_low:.2f} to"
        f" {pairs.length_high:.2f}) as"
    )
