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


class FileSize(NamedTuple):
    """Holds the pixels of a picture's file; turned: it says that they change places, as cameras
    do."""

    width: int
    height: int
    turned: bool = False

    @property
    def pixels(self) -> int:
        return self.width * self.height


class PictureShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Describes pictures of a kind, sizes in pixels; or all of a data set's prompt.

    quality  of JPEG; place: before the text of its message, or behind it
    files    of a prompt that has them: nothing is made, width and height are the first one's, and
             tokens and markers are of all
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
    files: tuple[FileSize, ...] = ()

    @property
    def sizes(self) -> tuple[FileSize, ...]:
        return self.files or (FileSize(self.width, self.height),)

    @property
    def images(self) -> int:
        return len(self.sizes)

    @property
    def size(self) -> str:
        """Write the size; of several pictures those of the smallest and the largest."""
        ordered = sorted(self.sizes, key=lambda file: file.pixels)
        texts = [f"{file.width}x{file.height}" for file in (ordered[0], ordered[-1])]
        return " and ".join(dict.fromkeys(texts))

    @property
    def pixels(self) -> int:
        """Count those of all its pictures."""
        return sum(file.pixels for file in self.sizes)


class PlannedPictures(NamedTuple):
    """Holds the pictures of one request. number: of their shape in the plan's table; times: how
    often that; group: None where each is new."""

    shape: PictureShape
    number: int
    times: int
    group: int | None

    @property
    def images(self) -> int:
        return self.times * self.shape.images


@dataclass(eq=False)
class Pictures:
    """Holds the pictures of a plan: a table of shapes, and of each row its number in it, how many
    times that, u1, and the group that shares them, −1: each is new."""

    shapes: tuple[PictureShape, ...]
    shape: Ints32
    count: NDArray[np.uint8]
    group: Ints32

    def take(self, rows: Ints64) -> Pictures:
        """Select those of these rows; none for a row below 0."""
        count = np.where(rows < 0, 0, self.count[rows]).astype(np.uint8)
        return replace(self, shape=self.shape[rows], count=count, group=self.group[rows])

    def tokens(self) -> Ints64:
        """Return the tokens of each row's pictures, with what is around them."""
        tokens = np.array([(shape.tokens or 0) + shape.markers for shape in self.shapes], np.int64)
        return np.asarray(tokens[self.shape] * self.count)

    def of_row(self, row: int) -> PlannedPictures | None:
        count, number, group = int(self.count[row]), int(self.shape[row]), int(self.group[row])
        if not count:
            return None
        return PlannedPictures(self.shapes[number], number, count, None if group < 0 else group)

    def images(self, rows: Ints64) -> Ints64:
        """Return how many pictures each of these rows has."""
        return self._sum([shape.images for shape in self.shapes], rows)

    def facts(self, rows: Ints64) -> dict[str, Ints64]:
        """Return what records say of these rows' pictures, at a server that counts as planned."""
        tokens = self._sum([shape.tokens or 0 for shape in self.shapes], rows)
        pixels = self._sum([shape.pixels for shape in self.shapes], rows)
        images = {"images": self.images(rows), "pixels": pixels}
        return images | dict.fromkeys(("visual_tokens_planned", "visual_tokens"), tokens)

    def _sum(self, of_shapes: list[int], rows: Ints64) -> Ints64:
        return np.asarray(self.count[rows] * np.array(of_shapes, np.int64)[self.shape[rows]])

    def digest(self) -> bytes:
        """Return what a plan's id follows from: not how many tokens they become somewhere."""
        bare: dict[str, Any] = {"tokens": None, "full": None, "markers": 0, "limit": None}
        shapes = [msgspec.structs.replace(shape, **bare) for shape in self.shapes]
        columns = self.shape.tobytes() + self.count.tobytes() + self.group.tobytes()
        return msgspec.json.encode(shapes) + columns
