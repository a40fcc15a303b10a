"""Files of requests, whatever they hold: opened, unpacked, named by their digest, told by their
content, and read line by line or element by element. What is wrong on the way is one line.
"""

import contextlib
import gzip
import hashlib
import io
import itertools
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal, NoReturn, TypeVar, cast

import msgspec

from loadstone.core.errors import InputError

Kind = Literal["array", "lines", "document", "text"]
_T = TypeVar("_T")

_BOM = b"\xef\xbb\xbf"
_HEAD_BYTES = 1 << 24
"""Of the first line, to tell the format: more than the longest prompt, less than a big file."""
MAX_LINE_BYTES = 1 << 28
"""Of any line: one that does not end there is no prompt, and would not fit into memory."""
MAX_ARRAY_BYTES = 1 << 32
"""Of an array, or of an object over several lines."""
MAX_UNPACKED = 100
"""Times the size of a gzip file: text is packed to a fifth or a tenth."""
_MIN_UNPACKED_BYTES = 1 << 26
_BUFFER_BYTES = 1 << 20
MAX_BLANK_LINES = 1_000_000
"""One after another."""
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_ARRAY = re.compile(rb'\[\s*(["{\[\]]|$)')
_OBJECT = re.compile(rb'\{\s*(["}]|$)')
_UNREADABLE = b"{"
"""Stands for the element at which an array breaks."""
_INK = re.compile(r"[^ \t\n\r]|\Z")


class BadLine(Exception):
    """Something is wrong with one line or element; the text has what, and the remedy; `reason` is
    the name under which such ones are counted.
    """

    def __init__(self, reason: str, what: str, remedy: str = "correct it") -> None:
        super().__init__(f"{what}; {remedy}")
        self.reason = reason


class BadItem(BadLine):
    """Something is wrong with an item; the text has what, and the remedy."""

    def __init__(self, problem: str) -> None:
        Exception.__init__(self, problem)
        self.reason = "bad item"


def bad_block_count(count: int, tokens: int, size: int) -> BadLine:
    """Say that a prompt of `tokens` has not so many blocks of this size."""
    blocks = -(-tokens // size)
    return BadLine(
        "hash_ids do not fit",
        f"{count} hash_ids, but {tokens} tokens are {blocks} blocks of {size}",
        "correct it (blocks of another size: state 'block_tokens')",
    )


class _Unpacked(io.RawIOBase):
    """The content of a gzip file, up to as much as text can be packed into so few bytes. Raises
    InputError beyond."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._unpacked = gzip.GzipFile(fileobj=file)
        self._limit = max(_MIN_UNPACKED_BYTES, MAX_UNPACKED * path.stat().st_size)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._unpacked.seek(offset, whence)

    def readinto(self, buffer: Any) -> int:
        data = self._unpacked.read(len(buffer))
        if self._unpacked.tell() > self._limit:
            raise InputError(
                f"{self._path}: a gzip file of over {self._limit:,} bytes; unpack it, if you"
                " trust it"
            )
        buffer[: len(data)] = data
        return len(data)


class RequestFile:
    """A file of requests while it is read.

    kind     array, lines (a JSON value on each), document (an object over several lines), text
    unit     `line`, or of an array `element`
    head     its first line that is not blank; `first`: the number of that
    pieces   the lines that are not blank, without their ends, or the elements, still as JSON;
             numbered from 1. They can be read once
    skipped  lines or elements that are left out: reason to count
    """

    def __init__(
        self,
        path: Path,
        stream: BinaryIO,
        sha256: str,
        give: str,
        skip_bad: bool,
        documents: bool,
    ) -> None:
        self.path, self.sha256 = path, sha256
        self.skipped = Counter[str]()
        self._stream, self._give, self._skip_bad = stream, give, skip_bad
        self.first, head = _first_line(path, stream, give)
        self.head = head.strip()
        self.kind = _kind_of(self.head, documents)
        self.unit = "element" if self.kind == "array" else "line"
        self.pieces: Iterator[tuple[int, bytes]] = self._read_pieces()

    def peek(self) -> tuple[int, bytes] | None:
        """Return the first of the pieces, which stays there; None where there is none."""
        piece = next(self.pieces, None)
        if piece is not None:
            self.pieces = itertools.chain([piece], self.pieces)
        return piece

    def read(self, parse: Callable[[bytes], _T]) -> Iterator[tuple[int, _T]]:
        """Yield what `parse` makes of the pieces, each with its number. Those for which it raises
        BadLine are left out.
        """
        for number, data in self.pieces:
            try:
                value = parse(data)
            except BadLine as bad:
                self.leave_out(number, bad)
            else:
                yield number, value

    def leave_out(self, number: int, bad: BadLine, *, expected: bool = False) -> None:
        """Count a line or element as left out. Raises InputError where that was not asked for,
        unless the format `expected` it."""
        if not (self._skip_bad or expected):
            self.refuse(number, f"{bad}, or leave such {self.unit}s out with --skip-bad")
        self.skipped[bad.reason] += 1

    def refuse(self, number: int, problem: str) -> NoReturn:
        """Raise InputError about a line or element."""
        raise InputError(f"{self.path}, {self.unit} {number}: {problem}") from None

    def refuse_empty(self, what: str) -> NoReturn:
        """Raise InputError: the file holds none of `what`."""
        counts = [f"{count} left out ({reason})" for reason, count in self.skipped.items()]
        why = ": " * bool(counts) + ", ".join(counts)
        raise InputError(f"{self.path}: no {what}{why}; {self._give}")

    def lines(self) -> Iterator[bytes]:
        """Yield the lines with their ends. Raises InputError where one is too long, or too many are
        blank."""
        number = blank = 0
        while line := self._stream.readline(MAX_LINE_BYTES + 1):
            number += 1
            blank = blank + 1 if line.isspace() else 0
            if len(line) > MAX_LINE_BYTES:
                self.refuse(number, f"over {MAX_LINE_BYTES:,} bytes; give an item on each line")
            _check_blank(self.path, number, blank)
            yield line

    def _read_pieces(self) -> Iterator[tuple[int, bytes]]:
        if self.kind == "array":
            yield from enumerate(self._elements(), 1)
        elif self.kind == "document":
            yield self.first, bytes(self._read_whole())
        else:
            for number, line in enumerate(self.lines(), 1):
                if line.strip():
                    yield number, line.rstrip(b"\r\n")

    def _read_whole(self) -> bytearray:
        data = bytearray()
        while part := self._stream.read(_BUFFER_BYTES):
            data += part
            if len(data) > MAX_ARRAY_BYTES:
                name = "array" if self.kind == "array" else "object"
                raise InputError(
                    f"{self.path}: an {name} of over {MAX_ARRAY_BYTES:,} bytes; give JSONL, read"
                    " line by line"
                )
        return data

    def _elements(self) -> Iterator[bytes]:
        """Yield the elements of an array, still as JSON: decoded all at once they would take many
        times the file. Where it breaks, those before are left with --skip-bad.
        """
        data = self._read_whole()
        try:
            elements = msgspec.json.decode(data, type=list[msgspec.Raw])
        except (ValueError, RecursionError) as error:
            if self._skip_bad:
                yield from _salvage(data.decode("utf-8", "replace"))
                return
            byte = re.search(r"\(byte (\d+)\)", str(error))
            line = data.count(b"\n", 0, int(byte[1]) if byte else len(data.rstrip())) + 1
            raise InputError(
                f"{self.path}, line {line}: {_describe_broken(error)}; correct it, give JSONL, or"
                " keep what can be read with --skip-bad"
            ) from None
        yield from map(bytes, elements)


@contextlib.contextmanager
def open_requests(
    path: Path, give: str, *, skip_bad: bool = False, documents: bool = False
) -> Iterator[RequestFile]:
    """Open a file of requests, gzip or not.

    `give`: what it should be, for messages. `skip_bad`: lines that cannot be used are left out and
    counted. `documents`: it may be one object over several lines. Raises InputError where it cannot
    be read, here or while it is, or is no text in UTF-8.
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
            bounded = io.BufferedReader(_Unpacked(path, file), _BUFFER_BYTES) if packed else file
            yield RequestFile(path, cast(BinaryIO, bounded), sha256, give, skip_bad, documents)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(
            f"{path}: damaged gzip file ({error}); copy or compress it again"
        ) from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; check the path and who may read it") from None


def decode(data: bytes, kind: Any = Any) -> Any:
    """Decode JSON as `kind`. Raises BadLine where it is not of this kind."""
    try:
        return msgspec.json.decode(data, type=kind)
    except UnicodeDecodeError:
        raise BadLine("broken line", "broken JSON: invalid UTF-8", "save it in UTF-8") from None
    except msgspec.ValidationError as error:
        raise BadLine("not as the format has it", str(error)) from None
    except (ValueError, RecursionError) as error:
        raise BadLine(
            "broken line", _describe_broken(error), "give one whole JSON value on each line"
        ) from None


def _describe_broken(error: Exception) -> str:
    return f"broken JSON: {str(error).removeprefix('JSON is malformed: ')}"


def _kind_of(head: bytes, documents: bool) -> Kind:
    """Tell the kind of a file by its first line with content."""
    if _ARRAY.match(head):
        return "array"
    if _OBJECT.match(head):
        return "document" if documents and not _is_whole(head) else "lines"
    # Prose may open with a quotation mark; only a whole JSON string is one.
    try:
        msgspec.json.decode(head, type=str)
    except ValueError:
        return "text"
    return "lines"


def _is_whole(head: bytes) -> bool:
    """Tell whether a line that begins an object is one, or is meant to be: a file of one
    pretty-printed object has its first line end in the middle.
    """
    try:
        msgspec.json.decode(head, type=msgspec.Raw)
    except (ValueError, RecursionError):
        return not head.endswith((b"{", b"[", b","))
    return True


def _first_line(path: Path, stream: BinaryIO, give: str) -> tuple[int, bytes]:
    """Find the number of the first line that is not blank, from 1, and its beginning; empty where
    all are. Leaves the stream behind the byte order mark. Raises InputError: it is no text in
    UTF-8.
    """
    begin = len(_BOM) if stream.read(len(_BOM)) == _BOM else 0
    stream.seek(begin)
    number, head = 1, stream.readline(_HEAD_BYTES)
    while head.isspace():
        number, head = number + 1, stream.readline(_HEAD_BYTES)
        _check_blank(path, number, number)
    if head.startswith(_UTF16):
        raise InputError(f"{path}: text in UTF-16; save it in UTF-8")
    if b"\0" in head:
        raise InputError(f"{path}: binary, not text; {give}")
    stream.seek(begin)
    return number, head


def _check_blank(path: Path, number: int, blank: int) -> None:
    if blank > MAX_BLANK_LINES:
        raise InputError(
            f"{path}, line {number}: {MAX_BLANK_LINES:,} blank lines before it; take them out"
        )


def _salvage(text: str) -> Iterator[bytes]:
    """Yield the elements of an array up to where it breaks; what is after that is one that cannot
    be read.

    Half of a surrogate pair breaks the strict decoder, and not this one: its element alone is then
    found to be bad.
    """
    parse = json.JSONDecoder().raw_decode
    place = text.index("[") + 1
    try:
        while True:
            place = _skip_blanks(text, place)
            element, place = parse(text, place)
            yield json.dumps(element).encode()
            place = _skip_blanks(text, place)
            if text[place : place + 1] != ",":
                break
            place += 1
    except (ValueError, RecursionError):
        yield _UNREADABLE
        return
    if text[place : place + 1] != "]" or text[place + 1 :].strip():
        yield _UNREADABLE


def _skip_blanks(text: str, place: int) -> int:
    match = _INK.search(text, place)
    return match.start() if match else len(text)
