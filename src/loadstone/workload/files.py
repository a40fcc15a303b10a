"""Files of a workload as bytes: opened, named by their digest, unpacked; what goes wrong on the way, in one line."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from loadstone.core.errors import InputError

BOM = b"\xef\xbb\xbf"
HEAD_BYTES = 1 << 24
"""Of the first line, to tell the format: more than the longest prompt, less than a big file."""
MOST_LINE_BYTES = 1 << 28
"""Of any line: one that does not end there is no prompt, and would not fit into memory."""
MOST_BLANK_LINES = 1_000_000
"""A gzip file of a megabyte has a thousand times as many, which take minutes to read."""
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


@contextlib.contextmanager
def opened(path: Path, give: str) -> Iterator[tuple[BinaryIO, str]]:
    """The bytes of a file, gzip or not, and the SHA-256 of it as it lies on disk, hexadecimal.

    `give`: what it should be, for the message. Raises InputError where it cannot be read, here or while it is.
    """
    try:
        if path.is_fifo() or path.is_socket():
            raise InputError(f"{path}: a pipe, and what it brings is read more than once; save it in a file")
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: not a file; {give}")
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            yield cast(BinaryIO, gzip.GzipFile(fileobj=file)) if packed else file, sha256
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path}: damaged gzip file ({error}); copy or compress it again") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; check the path and who may read it") from None


def check_text(path: Path, head: bytes, give: str) -> None:
    """Raises InputError where a file that begins so is no text in UTF-8."""
    if head.startswith(_UTF16):
        raise InputError(f"{path}: text in UTF-16; save it in UTF-8")
    if b"\0" in head:
        raise InputError(f"{path}: binary, not text; {give}")


def first_line(path: Path, stream: BinaryIO) -> tuple[int, bytes]:
    """Number and beginning of the first line that is not blank; b"" where there is none. No byte order mark."""
    number, head = 1, stream.readline(HEAD_BYTES).removeprefix(BOM)
    while head and not head.strip():
        if number > MOST_BLANK_LINES:
            raise _too_blank(path)
        number, head = number + 1, stream.readline(HEAD_BYTES)
    return number, head


def _too_blank(path: Path) -> InputError:
    return InputError(f"{path}: more than {MOST_BLANK_LINES:,} empty lines; leave them out")


def lines(path: Path, stream: BinaryIO) -> Iterator[bytes]:
    """The lines with their ends, the first without a byte order mark. Raises InputError where one is too long."""
    line = stream.readline(MOST_LINE_BYTES + 1).removeprefix(BOM)
    number, blank = 1, 0
    while line:
        blank += line.isspace()
        if blank > MOST_BLANK_LINES:
            raise _too_blank(path)
        if len(line) > MOST_LINE_BYTES:
            raise InputError(f"{path}, line {number}: over {MOST_LINE_BYTES:,} bytes; give an item on each line")
        yield line
        line = stream.readline(MOST_LINE_BYTES + 1)
        number += 1
