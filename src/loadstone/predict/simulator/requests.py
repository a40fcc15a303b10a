"""What a cell of a plan asks for, as the simulator wants it: lists by request, whole prompts, seconds of way."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from loadstone.core import Plan

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TURNAROUND_S = 0.001
"""Mean of the exponential time that a client takes from an answer's end to the request that follows from it."""
CHARACTERS_PER_TOKEN = 4.0
"""Where a file's text decides how long a prompt is: OpenAI's rule of thumb for English."""
_TURNAROUND = 7


class Asked:
    """The requests of one cell. An index counts within the cell; in a cell that goes round by time, past its end.

    input_tokens    of each request whole: later turns of a session bring all that was said before
    request_s       from being sent to the scheduler
    turnaround_s    of the client before it
    intended_s_of, sent_s_of   filled by the client, by index
    """

    def __init__(self, plan: Plan, cell: int, request_s: float, request_token_s: float) -> None:
        import numpy as np

        rows = plan.rows(cell)
        here = slice(rows.start, rows.stop)
        self.plan, self.cell = plan, cell
        self.count = len(rows)
        self.warm = plan.warmup_count(cell)
        self.cyclic = plan.cyclic(cell)
        tokens = whole_prompts(plan, cell)
        turnaround = np.random.default_rng([plan.seed, _TURNAROUND, cell]).exponential(TURNAROUND_S, len(rows))
        self.input_tokens: list[int] = tokens.tolist()
        self.output_tokens: list[int] = plan.output_tokens[here].tolist()
        self.intended_s: list[float] = plan.intended_s[here].tolist()
        self.turn: list[int] = plan.turn[here].tolist()
        self.think_s: list[float] = plan.think_s[here].tolist()
        self.request_s: list[float] = (request_s + request_token_s * tokens).tolist()
        self.turnaround_s: list[float] = turnaround.tolist()
        self.intended_s_of = [math.nan] * self.count
        self.sent_s_of = [math.nan] * self.count

    def row(self, index: int) -> int:
        """The place of request `index` in the lists."""
        count = self.count
        return index if index < count else self.warm + (index - self.warm) % (count - self.warm)

    def turn_follows(self, index: int) -> bool:
        """Whether the next request is a later turn of the same session."""
        if not self.cyclic and index + 1 >= self.count:
            return False
        return self.turn[self.row(index + 1)] > 0


def whole_prompts(plan: Plan, cell: int) -> NDArray[np.int64]:
    """Prompt tokens of each request of a cell as the engine gets them.

    Of a later turn: all prompts and answers of its session before it, and its own. Of texts: about
    CHARACTERS_PER_TOKEN characters each.
    """
    import numpy as np

    rows = plan.rows(cell)
    own = plan.input_tokens[rows.start : rows.stop].astype(np.int64)
    texts = own < 0
    if texts.any():
        lengths = np.array([text_tokens(prompt) for prompt in plan.prompts] or [1], np.int64)
        own = np.where(texts, lengths[plan.prompt[rows.start : rows.stop]], own)
    turn = plan.turn[rows.start : rows.stop]
    if not (turn > 0).any():
        return own
    said = np.cumsum(own + plan.output_tokens[rows.start : rows.stop])
    before = np.concatenate([[0], said[:-1]])
    first = np.maximum.accumulate(np.where(turn > 0, 0, np.arange(len(turn))))
    return np.asarray(before - before[first] + own, np.int64)


def text_tokens(prompt: str) -> int:
    return max(1, math.ceil(len(prompt) / CHARACTERS_PER_TOKEN))
