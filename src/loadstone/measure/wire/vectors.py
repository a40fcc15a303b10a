"""Looks at the vectors and scores of one answer: how long they are, whether they are numbers, and
whether different texts have the same. No I/O.
"""

import base64
import hashlib
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from loadstone.core.vectors import Floats


class AnswerVectors(NamedTuple):
    """Describes what is in one answer.

    lengths  numbers of each vector, and how many have as many; empty of scores
    faulty   some are no finite numbers, or a vector is all zeros
    alike    different texts have the same
    digest   of the first vector; empty of scores, which may well be the same in several answers
    """

    lengths: Counter[int]
    faulty: bool
    alike: bool
    digest: bytes = b""


def inspect_vectors(found: Iterable[Any]) -> AnswerVectors:
    """Look at vectors, each as base64 of 32-bit floats or as a list. Raises ValueError
    and TypeError of what is none."""
    vectors = [_read_vector(text) for text in found]
    digests = [hashlib.blake2b(vector.tobytes(), digest_size=8).digest() for vector in vectors]
    faulty = not all(np.isfinite(vector).all() and vector.any() for vector in vectors)
    lengths = Counter(len(vector) for vector in vectors)
    return AnswerVectors(lengths, faulty, len(set(digests)) < len(digests), digests[0])


def inspect_scores(found: Iterable[Any]) -> AnswerVectors:
    """Look at scores, each a number, or a list whose first is one. Raises ValueError
    and TypeError of what is none."""
    firsts = [score[0] if isinstance(score, list) and score else score for score in found]
    if not all(isinstance(score, int | float | str) for score in firsts):
        raise TypeError("an entry has no score")
    scores = [float(score) for score in firsts]
    alike = len(scores) > 1 and len(set(scores)) == 1
    return AnswerVectors(Counter(), not np.isfinite(scores).all(), alike)


def _read_vector(written: Any) -> Floats:
    if isinstance(written, str):
        try:
            return np.frombuffer(base64.b64decode(written, validate=True), "<f4")
        except ValueError as error:
            raise ValueError(f"no base64 of 32-bit floats ({error})") from None
    if not isinstance(written, list):
        raise TypeError("an entry has no list of numbers")
    vector = np.array([np.nan if number is None else number for number in written], np.float64)
    if vector.ndim != 1 or not len(vector):
        raise ValueError("a vector is no list of numbers")
    return vector
