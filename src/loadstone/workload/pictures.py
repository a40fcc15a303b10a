"""Pictures in prompts: which are asked for, and how each is made.

A picture follows from (plan seed, salt, cell, index, place) alone, or with groups from (…, group,
place): its pixels are the same on every platform and with every version of a library, and it is new
to every cache also after it was scaled down. Files may differ between versions.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import struct
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadstone.core.errors import InputError
from loadstone.core.extras import require
from loadstone.core.pictures import CONTENTS, FORMATS, Pictures, PictureShape, PlannedPictures
from loadstone.core.plan import Plan, PlannedRequest
from loadstone.core.units import parse_picture_size
from loadstone.workload.draw import PICTURES, Draw, Rows, ServerLimits, Workload
from loadstone.workload.lengths import Length, parse_length

MOST = 64
"""Pictures of a request."""
DEFAULT_SIZE, DEFAULT_FORMAT = "1024x768", "jpeg:85"
_DRAWN = 256
"""Sizes that a uniform distribution has: the plan's table stays small."""
_TILE = 32
"""Pixels between the colours of a photo, which lie on a grid."""
_KEPT = 16
"""Files kept: of groups and sessions the same ones come again."""
_MARK = re.compile(rb"\\u0002picture:([0-9]+):([^\\]+)\\u0003")


# --- asking ---------------------------------------------------------------------------------------


class PictureRequest(msgspec.Struct, frozen=True):
    """Says which pictures requests have. sizes: (width, height), each with its weight; `uniform`:
    the two are the smallest and the largest."""

    count: Length
    sizes: tuple[tuple[int, int], ...]
    weights: tuple[float, ...]
    uniform: bool
    shape: PictureShape
    groups: int | None = None

    def shapes(self, seed: int) -> tuple[PictureShape, ...]:
        """Return all shapes, of which each request has one."""
        sizes: Sequence[Sequence[int]] = self.sizes
        if self.uniform:
            rng = np.random.default_rng([seed, PICTURES, _DRAWN])
            smallest, largest = self.sizes
            sizes = rng.integers(smallest, largest, (_DRAWN, 2), endpoint=True).tolist()
        return tuple(
            msgspec.structs.replace(self.shape, width=wide, height=high) for wide, high in sizes
        )


class Pictured(Workload):
    """A workload whose requests have pictures, too."""

    __slots__ = ("asked", "inner")

    def __init__(self, inner: Workload, asked: PictureRequest) -> None:
        self.inner, self.asked = inner, asked

    @property
    def chat(self) -> bool:
        return getattr(self.inner, "chat", False)

    def length(self, load: Any) -> int | None:
        return self.inner.length(load)

    def describe(self, output: Length | None) -> dict[str, Any]:
        pictures = msgspec.to_builtins(self.asked)
        return self.inner.describe(output) | {"pictures": pictures}

    def fit(self, limits: ServerLimits) -> Workload:
        return Pictured(self.inner.fit(limits), self.asked)

    def check(self, plan: Plan, limits: ServerLimits, name: str) -> None:
        self.inner.check(plan, limits, name)

    def rows(self, draw: Draw) -> Rows:
        rows, asked = self.inner.rows(draw), self.asked
        size, warm = len(rows["turn"]), int((rows["phase"] == 0).sum())
        counts, picks, groups = draw.generator(PICTURES).spawn(3)
        weights = np.array(asked.weights) / sum(asked.weights)
        shapes = 0 if asked.uniform else len(weights)
        shares = weights if shapes else None
        group = np.full(size, -1)
        number = picks.choice(shapes or _DRAWN, size, p=shares)
        if asked.groups is not None:
            group = groups.integers(asked.groups, size=size)
            # The pictures of a group are always the same, of one size.
            number = picks.choice(shapes or _DRAWN, asked.groups, p=shares)[group]
        drawn: Rows = {
            "pictures": asked.count.draw(counts, size).clip(0, MOST).astype(np.uint8),
            "picture": number.astype(np.int32),
            "picture_group": group.astype(np.int32),
        }
        # Measured ones were drawn first, and the warm-up stands first.
        return rows | {name: np.roll(column, warm) for name, column in drawn.items()}

    def finish(self, rows: Rows, draw: Draw) -> dict[str, Any]:
        made = Pictures(
            self.asked.shapes(draw.seed), rows["picture"], rows["pictures"], rows["picture_group"]
        )
        contents = self.inner.finish(rows, draw)
        if "pictures" in contents:
            raise InputError(
                "--images: prompts of this data set have pictures of their own; leave it out"
            )
        return contents | {"pictures": made}


def parse_pictures(
    images: str, size: str | None, form: str | None, content: str, groups: int | None, place: str
) -> PictureRequest:
    """Read the options for pictures. Raises InputError, which names the flag."""
    count = parse_length(images, 1.0, "--images", minimum=0)
    if count.smallest > MOST or (count.kind == "uniform" and count.high > MOST):
        raise InputError(f"--images {images}: at most {MOST} pictures in a request")
    text = size or DEFAULT_SIZE
    uniform = text.startswith("uniform:")
    sizes, weights = [], []
    for part in text.removeprefix("uniform:").split(":" if uniform else ","):
        of_size, _, weight = part.partition(":")
        sizes.append(parse_picture_size(of_size, "--image-size"))
        weights.append(_weight(weight, part))
    if uniform and (len(sizes) != 2 or not all(map(int.__le__, *sizes))):
        raise InputError(
            f"--image-size {text}: write the smallest and the largest size, e.g."
            " uniform:256x256:1536x1536"
        )
    # Where some have a weight, it is a share of 1, and the others divide the rest.
    given = sum(weight for weight in weights if weight is not None)
    rest = [weight for weight in weights if weight is None]
    spare = max(0.0, 1.0 - given) / len(rest) if given and rest else 1.0
    if not spare:
        raise InputError(f"--image-size {text}: nothing is left for a size without a weight")
    kind, _, quality = (form or DEFAULT_FORMAT).partition(":")
    grade = int(quality) if quality.isdecimal() else 85
    if kind not in FORMATS or (quality and (kind == "png" or str(grade) != quality)):
        raise InputError(f"--image-format {form}: write png, or jpeg with its quality, jpeg:85")
    if not 1 <= grade <= 95:
        raise InputError(f"--image-format {form}: the quality must be from 1 to 95")
    if content not in CONTENTS:
        raise InputError(f"--image-content {content}: choose one of {', '.join(CONTENTS)}")
    shares = tuple(spare if weight is None else weight for weight in weights)
    described = {"width": 1, "height": 1, "format": kind, "quality": grade, "content": content}
    shape = msgspec.convert(described | {"place": place}, PictureShape)
    return PictureRequest(count, tuple(sizes), shares, uniform, shape, groups)


def _weight(text: str, part: str) -> float | None:
    if not text:
        return None
    try:
        weight = float(text)
    except ValueError:
        weight = 0.0
    if not 0 < weight < 1e9:
        raise InputError(f"--image-size {part}: the weight must be a number above 0")
    return weight


# --- making ---------------------------------------------------------------------------------------


class FilledBody(NamedTuple):
    """A request's body with its pictures, and the bytes of their files."""

    body: bytes
    picture_bytes: int


def mark_pictures(request: PlannedRequest, pictures: PlannedPictures) -> list[dict[str, Any]]:
    """Return the parts of a message that are a request's pictures, each with a mark in the place of
    its file in base64."""
    shape, group = pictures.shape, pictures.group
    name = request.request_id if group is None else f"{request.cell}/{group}"
    return [
        {
            "type": "image_url",
            "image_url": {
                "url": f"data:image/{shape.format};base64,"
                f"\x02picture:{pictures.number}:{name}-{place}\x03"
            },
        }
        for place in range(pictures.times)
    ]


def has_marks(body: bytes) -> bool:
    """Return whether a body is to be filled."""
    return b"\\u0002picture:" in body


class PictureWriter:
    """Makes the pictures of a plan. It may be used by several threads."""

    def __init__(self, shapes: Sequence[PictureShape], *, seed: int, salt: str | None) -> None:
        self._shapes, self._key = shapes, f"{seed}/{salt}/picture/"
        self._encoded = lru_cache(maxsize=_KEPT)(self._encode)

    def fill(self, body: bytes) -> FilledBody:
        """Put the pictures into a body that has their marks."""
        pieces = _MARK.split(body)
        size = 0
        for place in range(1, len(pieces), 3):
            number, name = int(pieces[place]), pieces[place + 1].decode()
            pieces[place] = self._encoded(number, name)
            pieces[place + 1] = b""
            size += len(pieces[place]) * 3 // 4
        return FilledBody(b"".join(pieces), size)

    def pixels(self, number: int, name: str) -> NDArray[np.uint8]:
        """Return a picture's rows of (red, green, blue)."""
        shape = self._shapes[number]
        return draw_pixels(f"{self._key}{name}", shape.width, shape.height, shape.content)

    def _encode(self, number: int, name: str) -> bytes:
        return base64.b64encode(encode(self.pixels(number, name), self._shapes[number]))


def draw_pixels(key: str, width: int, height: int, content: str) -> NDArray[np.uint8]:
    """Draw a picture that follows from `key`: noise, one colour, or for a photo colours on a grid,
    with whole numbers between them, so that it compresses like one."""
    rows, columns = -(-height // _TILE), -(-width // _TILE)
    shape = {"noise": (height, width), "solid": (1, 1), "photo": (rows + 1, columns + 1)}[content]
    # SHAKE-128 gives the same bytes everywhere, which no library's generator promises.
    raw = hashlib.shake_128(key.encode()).digest(3 * shape[0] * shape[1])
    grid = np.frombuffer(raw, np.uint8).reshape(*shape, 3)
    if content == "noise":
        return grid
    if content == "solid":
        return np.broadcast_to(grid, (height, width, 3))
    colours = grid.astype(np.uint16)
    share = (np.arange(width, dtype=np.uint16) % _TILE)[None, :, None]
    left = np.arange(width) // _TILE
    wide = (colours[:, left] * (_TILE - share) + colours[:, left + 1] * share) // _TILE
    wide = wide.reshape(rows + 1, width * 3)
    below = np.arange(_TILE, dtype=np.uint16)[:, None]
    made = np.empty((rows, _TILE, width * 3), np.uint8)
    for row in range(rows):
        made[row] = (wide[row] * (_TILE - below) + wide[row + 1] * below) // _TILE
    return made.reshape(-1, width, 3)[:height]


def encode(pixels: NDArray[np.uint8], shape: PictureShape) -> bytes:
    """Return the file of a picture: JPEG by Pillow, PNG without it. Raises InputError where there
    is no Pillow."""
    if shape.format == "png":
        return _encode_png(pixels)
    require("PIL", "images", "--image-format jpeg")
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "JPEG", quality=shape.quality)
    return file.getvalue()


def _encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """Write each row as its difference from the one above, which PNG calls filter 2."""
    height, width, _ = pixels.shape
    rows = np.zeros((height, 1 + 3 * width), np.uint8)
    flat = pixels.reshape(height, 3 * width)
    rows[:, 0] = 2
    rows[0, 1:] = flat[0]
    rows[1:, 1:] = flat[1:] - flat[:-1]
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def describe_making(plan: Plan, salt: str | None) -> dict[str, str] | None:
    """Return what made a plan's pictures, for run.json: the library, and the SHA-256 of the pixels
    of picture 0-0-0; None where none are made. Raises InputError where what makes them lacks."""
    shapes = () if plan.pictures is None else plan.pictures.shapes
    made = [number for number, shape in enumerate(shapes) if not shape.files]
    if not made:
        return None
    library = "zlib"
    if any(shapes[number].format == "jpeg" for number in made):
        require("PIL", "images", "--image-format jpeg")
        import PIL

        library = f"Pillow {PIL.__version__}"
    pixels = PictureWriter(shapes, seed=plan.seed, salt=salt).pixels(made[0], "0-0-0")
    return {"library": library, "sha256": hashlib.sha256(pixels.tobytes()).hexdigest()}
