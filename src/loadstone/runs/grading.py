"""Grades the answers to questions as they come, and keeps the grades in the run's folder."""

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import msgspec

from loadstone.analyse.grading.graders import grade
from loadstone.core import run_folder
from loadstone.core.plan import CHECK, Plan
from loadstone.measure.client.protocol import GradedText
from loadstone.workload.checks import Question, question_of

_MAX_MARKS = 4096
_NUMBER = re.compile(r"[0-9]{5,}")
"""Shorter numbers stand in answers by chance."""


class AnswerGrader:
    """Use: `take` answers as they come, `save` now and then. `keep`: their texts too."""

    def __init__(self, folder: Path, plan: Plan, *, keep: bool) -> None:
        self._folder, self._plan, self._keep = folder, plan, keep
        self._answers: list[run_folder.GradedAnswer] = []
        self._question = cache(question_of)
        used = set(plan.prompt[plan.phase == CHECK].tolist())
        # Numbers that one question alone asks for.
        self._asked_for = {
            needle: question.id
            for question in (self._question(plan.prompts[row]) for row in used)
            for needle in (question.answer if question.grade == "needle" else ())
            if _NUMBER.fullmatch(needle)
        }

    def take(self, answers: Sequence[GradedText]) -> None:
        self._answers += [self._grade(answer) for answer in answers]

    def save(self) -> None:
        """Write the grades so far. Raises InputError, DiskFullError."""
        if self._answers or (self._plan.phase == CHECK).any():
            run_folder.write_answers(self._folder, self._answers)

    def _grade(self, answer: GradedText) -> run_folder.GradedAnswer:
        cell, _, index = answer.request_id.partition("-")
        question = self._question(self._plan.request(int(cell), int(index)).prompt or "")
        grades = grade(question, answer.text, answer.calls, thought=answer.thought)
        calls = msgspec.json.encode(answer.calls).decode() if answer.calls else ""
        right = answer.ended and not answer.cut and grades.flexible
        return run_folder.GradedAnswer(
            request_id=answer.request_id,
            cell=int(cell),
            question=question.id,
            task=question.task,
            ended=answer.ended,
            cut=answer.cut,
            thinking=grades.thinking,
            parsed=grades.parsed,
            strict=right and grades.strict,
            right=right,
            crossed=not right and self._is_crossed(question, answer.text),
            tokens=answer.tokens,
            digest=hashlib.blake2b((answer.text + calls).encode(), digest_size=16).hexdigest(),
            marks=_marks(answer.text + calls),
            text=answer.text + calls if self._keep else None,
        )

    def _is_crossed(self, question: Question, text: str) -> bool:
        """Tell whether an answer names a number that another question asks for."""
        if question.grade != "needle":
            return False
        return any(
            self._asked_for.get(number, question.id) != question.id
            for number in _NUMBER.findall(text)
        )


def _marks(text: str) -> list[int]:
    """Hash every beginning of a text whose length is a multiple of STEP."""
    marks, so_far = [], hashlib.blake2b(digest_size=4)
    for start in range(0, min(len(text), _MAX_MARKS * run_folder.STEP), run_folder.STEP):
        so_far.update(text[start : start + run_folder.STEP].encode())
        marks.append(int.from_bytes(so_far.copy().digest()))
    return marks
