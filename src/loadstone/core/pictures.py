"""Defines which pictures a plan's requests have; pixels are workload/pictures.py's business."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadstone.core.vectors import Ints32, Ints64

FORMATS = ("jpeg", "png")
CONTENTS = ("photo", "noise", "solid")


class PictureShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Describes pictures of a kind, sizes in pixels.

    quality  of JPEG; place: before the text of its message, or behind it
    tokens   of the prompt that one becomes, markers left out, at the server to be measured; full:
             by the model's own processor; None: not known
    markers  tokens of text that the processor puts around one; limit: the most tokens of any
             picture there
    """

    width: int
    height: int
    format: Literal["jpeg", "png"] = "jpeg"
    quality: int = 85
    content: Literal["photo", "noise", "solid"] = "photo"
    place: Literal["first", "last"] = "first"
    tokens: int | None = None
    full: int | None = None
    markers: int = 0
    limit: int | None = None

    @property
    def size(self) -> str:
        return f"{self.width}x{self.height}"

    @property
    def pixels(self) -> int:
        return self.width * self.height


class PlannedPictures(NamedTuple):
    """Holds the pictures of one request. number: of their shape in the plan's table; images: how
    many; group: None where each is new."""

    shape: PictureShape
    number: int
    images: int
    group: int | None


@dataclass(eq=False)
class Pictures:
    """Holds the pictures of a plan: a table of shapes, and of each row its number in it, how many
    pictures, u1, and the group that shares them, −1: each is new."""

    shapes: tuple[PictureShape, ...]
    shape: Ints32
    count: NDArray[np.uint8]
    group: Ints32

    def take(self, rows: Ints64) -> Pictures:
        """Select those of these rows; none for a row below 0."""
        count = np.where(rows < 0, 0, self.count[rows]).astype(np.uint8)
        return replace(self, shape=self.shape[rows], count=count, group=self.group[rows])

    def of_row(self, row: int) -> PlannedPictures | None:
        count, number, group = int(self.count[row]), int(self.shape[row]), int(self.group[row])
        if not count:
            return None
        return PlannedPictures(self.shapes[number], number, count, None if group < 0 else group)

    def digest(self) -> bytes:
        """Return what a plan's id follows from: not how many tokens they become somewhere."""
        bare: dict[str, Any] = {"tokens": None, "full": None, "markers": 0, "limit": None}
        shapes = [msgspec.structs.replace(shape, **bare) for shape in self.shapes]
        columns = self.shape.tobytes() + self.count.tobytes() + self.group.tobytes()
        return msgspec.json.encode(shapes) + columns
