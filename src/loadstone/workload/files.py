"""Files of a workload as bytes: opened, named by their digest, unpacked; what goes wrong on the
way, in one line."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from loadstone.core.errors import InputError

BOM = b"\xef\xbb\xbf"
HEAD_BYTES = 1 << 24
"""Of the first line, to tell the format: more than the longest prompt, less than a big file."""
MOST_LINE_BYTES = 1 << 28
"""Of any line: one that does not end there is no prompt, and would not fit into memory."""
MOST_UNPACKED = 100
"""Times the size of a gzip file: text is packed to a fifth or a tenth."""
_LEAST_UNPACKED_BYTES = 1 << 26
_BUFFER_BYTES = 1 << 20
MOST_BLANK_LINES = 1_000_000
"""One after another."""
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


class _Unpacked(io.RawIOBase):
    """The content of a gzip file, up to as much as text can be packed into so few bytes. Raises
    InputError beyond."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._unpacked = gzip.GzipFile(fileobj=file)
        self._most = max(_LEAST_UNPACKED_BYTES, MOST_UNPACKED * path.stat().st_size)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._unpacked.seek(offset, whence)

    def readinto(self, buffer: Any) -> int:
        data = self._unpacked.read(len(buffer))
        if self._unpacked.tell() > self._most:
            raise InputError(
                f"{self._path}: a gzip file of over {self._most:,} bytes; unpack it, if you"
                " trust it"
            )
        buffer[: len(data)] = data
        return len(data)


@contextlib.contextmanager
def open_bytes(path: Path, give: str) -> Iterator[tuple[BinaryIO, str]]:
    """Open the bytes of a file, gzip or not, and the SHA-256 of it as it lies on disk, hexadecimal.

    `give`: what it should be, for the message. Raises InputError where it cannot be read, here or
    while it is.
    """
    try:
        if "\0" in str(path):
            raise InputError(f"{str(path)!r}: no file can be called so; {give}")
        if path.is_fifo() or path.is_socket():
            raise InputError(
                f"{path}: a pipe, and what it brings is read more than once; save it in a file"
            )
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: not a file; {give}")
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            bounded = io.BufferedReader(_Unpacked(path, file), _BUFFER_BYTES) if packed else None
            yield cast(BinaryIO, bounded) if bounded else file, sha256
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(
            f"{path}: damaged gzip file ({error}); copy or compress it again"
        ) from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; check the path and who may read it") from None


def first_line(path: Path, stream: BinaryIO, give: str) -> tuple[int, bytes]:
    """Find the number of the first line that is not blank, from 1, and its beginning; empty where
    all are. Leaves the stream behind the byte order mark. Raises InputError: it is no text in
    UTF-8.
    """
    begin = len(BOM) if stream.read(len(BOM)) == BOM else 0
    stream.seek(begin)
    number, head = 1, stream.readline(HEAD_BYTES)
    while head.isspace():
        number, head = number + 1, stream.readline(HEAD_BYTES)
        _check_blank(path, number, number)
    if head.startswith(_UTF16):
        raise InputError(f"{path}: text in UTF-16; save it in UTF-8")
    if b"\0" in head:
        raise InputError(f"{path}: binary, not text; {give}")
    stream.seek(begin)
    return number, head


def lines(path: Path, stream: BinaryIO) -> Iterator[bytes]:
    """Yield the lines with their ends. Raises InputError where one is too long, or too many are
    blank."""
    number = blank = 0
    while line := stream.readline(MOST_LINE_BYTES + 1):
        number += 1
        blank = blank + 1 if line.isspace() else 0
        if len(line) > MOST_LINE_BYTES:
            raise InputError(
                f"{path}, line {number}: over {MOST_LINE_BYTES:,} bytes; give an item on each line"
            )
        _check_blank(path, number, blank)
        yield line


def _check_blank(path: Path, number: int, blank: int) -> None:
    if blank > MOST_BLANK_LINES:
        raise InputError(
            f"{path}, line {number}: {MOST_BLANK_LINES:,} blank lines before it; take them out"
        )


def describe_broken(error: Exception) -> str:
    """Say what is wrong with JSON that cannot be read."""
    return f"broken JSON: {str(error).removeprefix('JSON is malformed: ')}"
