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
from loadstone.analyse.verdict.finding import finding
from loadstone.core import arrays, run_folder
from loadstone.core.groups import by_key
from loadstone.core.plan import CHECK, Plan
from loadstone.core.record import RunInfo
from loadstone.core.run_folder import GradedAnswer
from loadstone.core.summary import Accuracy, CellSummary, Finding, Part, TaskAccuracy

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


def grade_cells(
    folder: Path, info: RunInfo, plan: Plan, cells: Mapping[int, CellSummary]
) -> dict[int, list[Finding]]:
    """Add to each cell, by its number, what its graded answers tell; return findings about them."""
    if info.source != "measured" or not (plan.phase == CHECK).any():
        return {}
    every = run_folder.read_answers(folder)
    answers = {number: [each for each in every if each.cell == number] for number in cells}
    pairs, least = _against_lightest(cells, answers), (info.settings.check or {}).get("least")
    found = {}
    for number, cell in cells.items():
        cell.graded = _accuracy(folder, info, plan, number, answers[number])
        found[number] = list(
            find_in_answers(cell.graded, least, answers[number], pairs.get(number))
        )
    return found


def _accuracy(
    folder: Path, info: RunInfo, plan: Plan, number: int, answers: Sequence[GradedAnswer]
) -> Accuracy:
    told, settings = mapping(plan.workload.get("check")), info.settings.check or {}
    phases = plan.phase[plan.rows(number).start : plan.rows(number).stop]
    ended = [each for each in answers if each.ended]
    tasks = sorted({each.task for each in ended})
    failed = len(answers) - len(ended)
    return Accuracy(
        name=str(told.get("name", "")),
        share=float((phases == CHECK).sum() / (phases > 0).sum()),
        asked=len(answers),
        failed=failed,
        unparsed=sum(not (each.parsed or each.cut or each.thinking) for each in ended),
        strict=sum(each.strict for each in ended) / len(ended) if ended else None,
        temperature=settings.get("temperature"),
        undecided=why_undecided(len(answers), failed, ended) if answers else "no answers were kept",
        tasks=[TaskAccuracy(**_shares(ended, task)) for task in tasks if tasks[1:]],
        part=_part(folder, info, number),
        **_shares(ended),
        **{
            name: sum(getattr(each, name) for each in ended)
            for name in ("cut", "thinking", "crossed")
        },
    )


def _shares(answers: Sequence[GradedAnswer], task: str = "") -> dict[str, Any]:
    """Count different questions and the share that is answered right, with its interval; a question
    counts once, by the mean of its answers.
    """
    by_question = by_key((each.question, each.right) for each in answers if task in ("", each.task))
    right = sum(sum(own) / len(own) for own in by_question.values())
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
        alike = [other for other, each in cells.items() if each.load.kind == cell.load.kind]
        lightest = min(alike, key=lambda other: cells[other].load.value)
        if lightest != number and (pairs := pair_answers(answers[lightest], answers[number])):
            found[number] = pairs
    adjust(found.values())
    return found


def find_in_answers(
    graded: Accuracy, least: object, answers: Sequence[GradedAnswer], pairs: ComparedAnswers | None
) -> Iterator[Finding]:
    """Find answers of a load that are wrong, of another length, or no model's; `pairs`: beside the
    lightest load."""
    if graded.crossed:
        evidence = (
            f"{graded.crossed} of {graded.asked} answers have the number that another request"
            " asks for"
        )
        yield finding("answers_wrong.crossed", evidence)
    yield from _find_same(
        [each for each in answers if each.ended], graded.temperature or 0.0, pairs
    )
    if graded.undecided is not None:
        yield finding(
            "answers_undecided", f"{graded.undecided}: no verdict on the {graded.asked} graded ones"
        )
        return
    if isinstance(least, int | float) and graded.high < least:
        worst = min(graded.tasks, key=lambda task: task.accuracy or 0, default=None)
        where = (
            f"; lowest {worst.task}, {worst.accuracy or 0:.1%} of {worst.questions}"
            if worst
            else ""
        )
        evidence = (
            f"{100 * (graded.accuracy or 0):.1f}% of {graded.questions} questions are answered"
            f" right (95%: {100 * graded.low:.1f} to {100 * graded.high:.1f}%), and at least"
            f" {least:.1%} should be{where}"
        )
        yield finding("answers_wrong", evidence)
    elif pairs is not None and pairs.worse()[0] == "b":
        evidence = (
            f"fewer answers are right than at the run's lightest load: {tell(pairs.worse()[1])}"
        )
        yield finding("answers_wrong.load", evidence)
    if pairs is not None and pairs.drifts:
        yield finding(
            "length_drifts",
            f"{show_drift(pairs)} at the run's lightest load, to the same questions",
        )
    ended = [each.right for each in answers if each.ended]
    if graded.strict is not None and sum(ended) / len(ended) - graded.strict > _FORM:
        evidence = (
            f"{sum(ended) / len(ended):.1%} are right, and {graded.strict:.1%} in the form that was"
            " asked for"
        )
        yield finding("answers_in_other_form", evidence)


def _find_same(
    answers: Sequence[GradedAnswer], temperature: float, pairs: ComparedAnswers | None
) -> Iterator[Finding]:
    """Find one answer to different questions, and sampled ones that are the same at another
    load."""
    different = {answer.question: answer for answer in answers}.values()
    by_text = by_key((each.digest, each.right) for each in different)
    same, count = max(by_text.values(), key=len, default=[]), sum(map(len, by_text.values()))
    if len(same) >= max(_LEAST_SAME, _SAME_TEXT * count) and sum(same) <= _RIGHT_BY_CHANCE * len(
        same
    ):
        yield finding(
            "answers_identical.graded",
            f"{len(same)} of {count} different questions got the same answer",
        )
    long = sum(each.tokens for each in answers) >= _LONG * len(answers)
    if (
        temperature
        and long
        and pairs
        and pairs.questions >= LEAST_PAIRS
        and pairs.identical >= _SAME_AGAIN
    ):
        evidence = f"{pairs.identical:.0%} of answers are the very texts of the run's lightest load"
        yield finding("answers_identical.graded", f"{evidence}, at temperature {temperature:g}")


def show_drift(pairs: ComparedAnswers) -> str:
    """Write `answers are 0.80 times as long (95 %: 0.78 to 0.83) as`."""
    return (
        f"answers are {pairs.length:.2f} times as long (95%: {pairs.length_low:.2f} to"
        f" {pairs.length_high:.2f}) as"
    )
