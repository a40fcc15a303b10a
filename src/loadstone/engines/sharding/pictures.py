"""Says how an engine encodes pictures, and what memory that takes."""

import math
from functools import lru_cache

import msgspec

from loadstone.catalogue.architecture.model import Model
from loadstone.catalogue.architecture.precision import FORMATS
from loadstone.catalogue.visual.rules import Counted
from loadstone.catalogue.visual.visual import TowerShape, Visual

UNLIMITED = 1 << 30
_SIDE, _MOST_LONG = 8192, 12
"""Of pictures that are as large as any processor leaves them: their longer side in pixels, and how
many times the shorter."""


class Encoder(msgspec.Struct, frozen=True):
    """Holds how an engine encodes pictures for a scheduler.

    visual       how it counts them
    largest      what the picture of most embeddings becomes
    step_tokens  embeddings that a step makes at most, and that its cache of embeddings holds
    copies       every rank has the whole tower, and pictures are dealt out; else each has a part
    whole        a picture is not split over steps
    threads      that decode pictures' files, of each worker
    processors   that make a model's input of them, one request's at a time
    kept         embeddings that stay in its cache for others who ask for the same picture
    prepared     patches of prepared pictures that the host keeps, likewise
    profiled     largest pictures in the step by which the engine profiles its memory at start
    """

    visual: Visual
    tower: TowerShape
    largest: Counted
    step_tokens: int = UNLIMITED
    copies: bool = False
    whole: bool = False
    threads: int = 1
    processors: int = 1
    kept: int = 0
    prepared: int = 0
    profiled: int = 1

    def cache_bytes(self, model: Model) -> float:
        """Return the bytes of a rank's cache of embeddings: tokens · hidden · (1 + deepstack)."""
        numbers = self.step_tokens * model.hidden * (1 + self.tower.deepstack)
        return numbers * FORMATS[model.dtype].bytes

    def activation_bytes(self, model: Model, tp: int) -> float:
        """Return the bytes of a rank's intermediate results for the pictures of that step, of n
        patches together: n · (max(3 · width, inner) + 2 · width), of which tensor parallelism cuts
        the former, unless it deals the pictures out."""
        tower, ways = self.tower, 1 if self.copies else tp
        layer = max(3 * tower.width, tower.inner) / ways + 2 * tower.width
        pictures = math.ceil(self.profiled / tp) if self.copies else self.profiled
        return pictures * self.largest.patches * layer * FORMATS[model.dtype].bytes


def encoder_of(visual: Visual | None) -> Encoder | None:
    """Return an encoder without limits; None: the model's rule or its tower is not known."""
    if visual is None or visual.tower is None:
        return None
    return Encoder(visual, visual.tower, _find_largest(_Key(visual)))


class _Key:
    """A rule as a key: its numbers are a dictionary, which is none."""

    def __init__(self, visual: Visual) -> None:
        self.visual = visual
        self._facts = visual.rule, tuple(visual.numbers.items()), visual.resolutions

    def __hash__(self) -> int:
        return hash(self._facts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self._facts == other._facts


@lru_cache(maxsize=256)
def _find_largest(key: _Key) -> Counted:
    """Find what the picture of most embeddings becomes, among the shapes of a large one."""
    sides = range(1, _MOST_LONG + 1)
    shapes = [(a, b) for a in sides for b in sides if math.gcd(a, b) == 1]
    counts = [key.visual.count(a * _SIDE // max(a, b), b * _SIDE // max(a, b)) for a, b in shapes]
    return max(counts, key=lambda counted: (counted.seen, counted.patches))
