"""Measures if an open loop keeps up: by how much longer requests take for each second that they are
due later.

Where requests leave at a rate μ and come at λ, each that is due a second later leaves λ/μ seconds
later: it takes λ/μ − 1 longer. So λ/(1 + growth) is the rate at which they leave, and a growth of 0
that at which they come.
"""

import math

import numpy as np

from loadstone.core.statistics.dependence import (
    LEAST_BLOCKS,
    student,
)
from loadstone.core.vectors import Floats

SURE = 0.02
"""The growth from which, at 95 %, a loop does not keep up. A smaller one is the ups and downs of a
queue."""
_GENERATIONS = 3.0
"""The least length of the sends, in mean E2E. A shorter cell ends before as many leave as come."""
_BLOCKS = 10


def growth(due_s: Floats, end_s: Floats) -> tuple[float, float] | None:
    """Compute (seconds longer per second, its 95 % margin), from the middle of the sends to the
    last of them.

    `due_s`, `end_s`: of all requests, in any order. They are taken to leave in the order in which
    they are due: so the n-th to leave tells how far behind the server is, whoever it is. What
    leaves after the last send is left out, for it has the server to itself. Least squares; errors
    of blocks of neighbours (Liang and Zeger 1986). None where the requests are too few, or were
    sent in too short a time, to tell.
    """
    if not len(due_s):
        return None
    due_s, end_s = np.sort(due_s), np.sort(end_s)
    took_s = end_s - due_s
    if not due_s[-1] - due_s[0] > _GENERATIONS * float(took_s.mean()):
        return None
    chosen = slice(len(due_s) // 2, int(np.searchsorted(end_s, due_s[-1], side="right")))
    late_s, took_s = due_s[chosen], took_s[chosen]
    blocks = min(_BLOCKS, len(late_s) // 2)
    if blocks < LEAST_BLOCKS or late_s[0] == late_s[-1]:
        return None
    late_s, took_s = late_s - late_s.mean(), took_s - took_s.mean()
    sum_of_squares = float(late_s @ late_s)
    slope = float(late_s @ took_s) / sum_of_squares
    scores = np.add.reduceat(
        late_s * (took_s - slope * late_s), np.arange(blocks) * len(late_s) // blocks
    )
    error = math.sqrt(float(scores @ scores) * blocks / (blocks - 1)) / sum_of_squares
    return slope, student(blocks - 1.0) * error
