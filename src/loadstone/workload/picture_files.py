"""Reads the size of a picture from the beginning of its file."""

import contextlib
import io
import struct
import warnings
from importlib.util import find_spec
from typing import NamedTuple

from loadstone.core.pictures import FileSize

MOST_SIDE = 65_535
"""Pixels: JPEG's own limit."""
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""JPEG's markers of a frame, which says its size."""
_EXIF, _ORIENTATION, _WITH_EXIF = 0xE1, 0x0112, 8


class PictureFile(NamedTuple):
    """Says what a picture's file is: its media type, and its size."""

    media: str
    size: FileSize


def read_picture(data: bytes) -> PictureFile | None:
    """Return what a file is: PNG, JPEG, WebP or GIF, and with Pillow whatever that knows; None: no
    such, broken, or with a side of no pixels or more than MOST_SIDE."""
    found = None
    with contextlib.suppress(struct.error, IndexError):
        if data.startswith(b"\x89PNG\r\n\x1a\n"):
            width, height = struct.unpack_from(">II", data, 16)
            found = PictureFile("image/png", FileSize(width, height, _is_png_turned(data)))
        elif data.startswith(b"\xff\xd8"):
            found = PictureFile("image/jpeg", _read_jpeg(data))
        elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            size = _read_webp(data)._replace(turned=_is_webp_turned(data))
            found = PictureFile("image/webp", size)
        elif data.startswith((b"GIF87a", b"GIF89a")):
            found = PictureFile("image/gif", FileSize(*struct.unpack_from("<HH", data, 6)))
        else:
            found = _ask_pillow(data)
    if found is None or not all(1 <= side <= MOST_SIDE for side in found.size[:2]):
        return None
    return found


def _read_jpeg(data: bytes) -> FileSize:
    """Go over segments until a frame begins. Raises IndexError, struct.error."""
    place, turned = 2, False
    while data[place + 1] not in _FRAMES:
        if data[place] != 0xFF:
            raise IndexError(place)
        if data[place + 1] == 0xFF:  # a byte that fills
            place += 1
            continue
        (size,) = struct.unpack_from(">H", data, place + 2)
        if data[place + 1] == _EXIF:
            turned |= _is_turned(data[place + 4 : place + 2 + size])
        place += 2 + size
    height, width = struct.unpack_from(">HH", data, place + 5)
    return FileSize(width, height, turned)


def _is_png_turned(data: bytes) -> bool:
    """Go over chunks until pixels begin. Raises IndexError, struct.error."""
    place = 8
    while True:
        size, kind = struct.unpack_from(">I4s", data, place)
        if kind == b"IDAT":
            return False
        content = data[place + 8 : place + 8 + size]
        if len(content) < size:
            raise IndexError(place)
        if kind == b"eXIf":
            return _is_turned(content)
        place += 12 + size


def _is_webp_turned(data: bytes) -> bool:
    """Go over chunks until the camera's, where the first says that there is one. Raises IndexError,
    struct.error."""
    place = 12
    while data[12:16] == b"VP8X" and data[20] & _WITH_EXIF:
        kind, size = struct.unpack_from("<4sI", data, place)
        content = data[place + 8 : place + 8 + size]
        if kind == b"EXIF" and len(content) == size:
            return _is_turned(content)
        place += 8 + size + size % 2
    return False


def _is_turned(exif: bytes) -> bool:
    """Return whether a camera that was held upright says so: width and height change places."""
    tiff = exif.removeprefix(b"Exif\0\0")
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None:
        return False
    with contextlib.suppress(struct.error):
        (first,) = struct.unpack_from(f"{order}I", tiff, 4)
        (count,) = struct.unpack_from(f"{order}H", tiff, first)
        for entry in range(first + 2, first + 2 + 12 * count, 12):
            tag, _, _, value = struct.unpack_from(f"{order}HHIH", tiff, entry)
            if tag == _ORIENTATION:
                return bool(5 <= value <= 8)
    return False


def _read_webp(data: bytes) -> FileSize:
    """Read the size of the first chunk: lossy, lossless or extended. Raises struct.error."""
    kind = data[12:16]
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return FileSize(width & 0x3FFF, height & 0x3FFF)
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return FileSize((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    if kind == b"VP8X":
        width, wide, height, high = struct.unpack_from("<HBHB", data, 24)  # 24 bits each
        return FileSize((wide << 16) + width + 1, (high << 16) + height + 1)
    return FileSize(0, 0)


def _ask_pillow(data: bytes) -> PictureFile | None:
    if find_spec("PIL") is None:
        return None
    from PIL import Image

    with warnings.catch_warnings(), contextlib.suppress(Exception):
        # It warns of sizes that it would not decode; nothing is decoded here.
        warnings.simplefilter("ignore")
        with Image.open(io.BytesIO(data)) as image:
            return PictureFile(Image.MIME.get(image.format or "", ""), FileSize(*image.size))
    return None
