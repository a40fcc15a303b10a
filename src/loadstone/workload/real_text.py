"""Prompts of real text with demanded lengths: windows of a file or folder, which never overlap.

The documents come in an order of the seed, the first from a place within it. A window is as long as
whatever counts tokens says; in front of it stands a mark that is new for every request, and inside
the length (prompts.py).
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import numpy as np

from loadstone.core.errors import InputError
from loadstone.core.plan import Plan
from loadstone.core.text import excerpt
from loadstone.workload.draw import ORDER, Draw, Rows, Workload
from loadstone.workload.files import decode, open_requests
from loadstone.workload.lengths import Length
from loadstone.workload.prompts import CHARACTERS_PER_TOKEN
from loadstone.workload.synthetic import Synthetic

if TYPE_CHECKING:
    import pyarrow as pa

Count = Callable[[str], int]
"""Counts all tokens of a prompt that holds this text."""

_GIVE = "give text in UTF-8, JSONL, Parquet, or a folder of these"
_COLUMNS = (
    *("text", "content", "document", "article", "body", "story", "code", "markdown"),
    *("prompt", "question", "instruction", "messages", "conversations"),
)
"""Columns that hold text, the likeliest first."""
_PARTS = ("content", "value", "text")
"""Fields of a message that hold its text."""
_TABLES = (".parquet", ".arrow", ".jsonl", ".jsonl.gz", ".ndjson")
"""A folder's files are those with the first of these ends that it has, else all texts."""
_TRIES = 40
_BROKEN_WORD = re.compile(r"\S{0,40}\s+")
"""What a window that begins within a word leaves out."""
_FILLERS = (" a", "a", ".", "\n")
"""Put behind a window that ends before a character of several tokens."""


class Source(msgspec.Struct, frozen=True):
    """Text on the disk. `column`: of its tables; "": it has none. `revision`: the commit, of a
    folder of the Hugging Face hub's cache. `left_out`: files of a folder that hold no text.
    """

    path: Path
    column: str
    files: tuple[Path, ...]
    size_bytes: int
    sha256: str
    revision: str | None = None
    left_out: int = 0

    def documents(self, rng: np.random.Generator) -> Iterator[str]:
        """Yield all texts once, in an order of `rng`, the first one from a place within it. Raises
        InputError."""
        head, seen = "", set[bytes]()
        for place in rng.permutation(len(self.files)).tolist():
            for texts in _read_file(self.files[place], self.column, rng):
                for number in rng.permutation(len(texts)).tolist():
                    text = texts[number].strip()
                    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
                    if text and digest not in seen:
                        if not seen:
                            begin = int(rng.integers(len(text)))
                            head, text = text[:begin], text[begin:]
                        seen.add(digest)
                        yield text
        yield head


class RealText(Workload, msgspec.Struct, frozen=True):
    """Windows of real text, whose lengths are drawn as those of random prompts."""

    source: Source
    lengths: Synthetic

    def describe(self, output: Length | None) -> dict[str, Any]:
        source, lengths = self.source, self.lengths
        described = msgspec.to_builtins(lengths) | {
            "kind": "text",
            "file": source.path.resolve().name,
            "column": source.column,
            "files": len(source.files),
            "files_left_out": source.left_out,
            "size_bytes": source.size_bytes,
            "sha256": source.sha256,
            "revision": source.revision,
        }
        return {name: value for name, value in described.items() if value not in (None, "", 0)}

    def rows(self, draw: Draw) -> Rows:
        return self.lengths.rows(draw)


def cut(plan: Plan, source: Source, count: Count) -> Plan:
    """Return the plan with the texts of its prompts. Cells that end by time go round fewer rows
    where there is not enough. Raises InputError where others lack some.
    """
    by_time = np.array([plan.cyclic(cell) for cell in range(len(plan.cells))])
    goes_round = by_time[plan.cell] & (plan.phase == 1)
    index = np.arange(len(plan)) - np.searchsorted(plan.cell, plan.cell)
    order = np.lexsort((plan.cell, index, goes_round))
    windows = _Windows(source.documents(np.random.default_rng([plan.seed, ORDER])), count)
    texts = list(windows.cut(plan.input_tokens[order].tolist()))
    kept = np.sort(order[: len(texts)])
    if len(texts) < (~goes_round).sum() or len(set(plan.cell[kept])) < len(plan.cells):
        raise InputError(
            f"--text {source.path}: used up after {len(texts)} of {len(plan)} prompts; give more"
            " text, or ask for fewer --requests, loads or tokens (--input)"
        )
    ranks = np.empty(len(plan), np.int32)
    ranks[order] = np.arange(len(plan))
    off = {f"{by:+d}": times for by, times in sorted(windows.off.items())}
    described = plan.workload | {"prompts": len(texts)} | ({"lengths_off": off} if off else {})
    return replace(plan.take(kept, prompt=ranks[kept]), prompts=texts, workload=described)


class _Windows:
    """Cuts windows of as many tokens as are wanted, each from behind the one before. `off`: how
    many of them are by how many tokens too long."""

    def __init__(self, documents: Iterator[str], count: Count) -> None:
        self._documents, self._count = documents, count
        self._text, self._place = "", 0
        self._characters = CHARACTERS_PER_TOKEN
        self._empty = count("")
        self.off = Counter[int]()

    def cut(self, lengths: list[int]) -> Iterator[str]:
        """Yield a window for each length, until the text is used up."""
        for tokens in lengths:
            window = self._next(tokens)
            if window is None:
                return
            yield window

    def _next(self, tokens: int) -> str | None:
        """Find the end by what the counts at two ends say of one between them."""
        empty = self._empty
        if tokens <= empty:
            raise InputError(
                f"--input {tokens}: {empty} tokens stand in every prompt besides its text; ask for"
                f" at least {empty + 1}"
            )
        self._peek(128)
        broken = _BROKEN_WORD.match(self._text, self._place)
        self._place = broken.end() if broken else self._place
        low, high = (0, empty), (0, 0)
        size = max(1, round((tokens - empty) * self._characters))
        for turn in range(_TRIES):
            window = self._peek(size)
            counted = self._count(window)
            if counted < tokens:
                if len(self._text) - self._place < size:
                    return None
                low = (size, counted)
            elif counted > tokens:
                high = (size, counted)
            else:
                break
            between = high[0] - low[0]
            if between == 1:
                window, counted = self._fill(low, tokens)
                break
            if between < 0:
                longer = size * (tokens - empty) / max(1, counted - empty)
                size += max(1, min(9 * size, round(longer) - size))
            else:
                share = 0.5 if turn % 4 == 3 else (tokens - low[1]) / (high[1] - low[1])
                size = low[0] + min(between - 1, max(1, round(share * between)))
        self._characters = max(0.1, size / (tokens - empty))
        self._place += size
        if counted != tokens:
            self.off[counted - tokens] += 1
        return window

    def _peek(self, size: int) -> str:
        """Return the next characters, without the space at their end: templates drop it."""
        while len(self._text) - self._place < size:
            document = next(self._documents, None)
            if document is None:
                break
            self._text = self._text[self._place :] + document + "\n\n"
            self._place = 0
        return self._text[self._place : self._place + size].rstrip()

    def _fill(self, low: tuple[int, int], tokens: int) -> tuple[str, int]:
        """Fill up a window which one character more would make too long."""
        size, counted = low
        window = self._peek(size)
        for filler in _FILLERS:
            filled = window + filler * (tokens - counted)
            if self._count(filled) == tokens:
                return filled, tokens
        return window, counted


# --- what lies on the disk ------------------------------------------------------------------------


def read(named: str) -> Source:
    """Find the text that `--text PATH[:COLUMN]` names, and see that the first of it can be read.
    Raises InputError."""
    path, column = Path(named), ""
    if not path.exists() and ":" in named:
        start, _, column = named.rpartition(":")
        path = Path(start)
    if not path.exists():
        raise InputError(f"--text {path}: no such file or folder; {_GIVE}")
    files, revision, left_out = _list_files(path) if path.is_dir() else ([path], None, 0)
    column = column or next(filter(None, map(_find_column, files[:1])), "")
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            file_digest = hashlib.file_digest(stream, "sha256")
        digest.update(f"{file.relative_to(path)}\0{file_digest.hexdigest()}\n".encode())
    sha256 = file_digest.hexdigest() if files == [path] else digest.hexdigest()
    size = sum(file.stat().st_size for file in files)
    source = Source(path, column, tuple(files), size, sha256, revision, left_out)
    if not any(filter(None, source.documents(np.random.default_rng(0)))):
        raise InputError(f"--text {path}: no text in it; {_GIVE}")
    return source


def _list_files(folder: Path) -> tuple[list[Path], str | None, int]:
    """List the files of a folder that hold its text; with the commit that the hub's cache keeps
    there, and how many are left out. Raises InputError."""
    revision = None
    reference = folder / "refs" / "main"
    if reference.is_file():
        revision = reference.read_text("utf-8").strip()
        folder = folder / "snapshots" / revision
    hidden = (".", "cache-")
    files = sorted(
        file
        for file in folder.rglob("*")
        if file.is_file() and not any(p.startswith(hidden) for p in file.relative_to(folder).parts)
    )
    for end in _TABLES:
        tables = [file for file in files if file.name.endswith(end)]
        if tables:
            return tables, revision, 0
    texts = [file for file in files if _decode(file.read_bytes())]
    if not texts:
        raise InputError(f"--text {folder}: none of its {len(files)} files is text; {_GIVE}")
    return texts, revision, len(files) - len(texts)


def _decode(content: bytes) -> str | None:
    """Return a text in UTF-8; None where it is none."""
    try:
        return None if b"\0" in content else content.decode()
    except UnicodeDecodeError:
        return None


def _find_column(file: Path) -> str:
    """Name the column of a table that holds its text; "" of a text."""
    if _is_parquet(file) or file.suffix == ".arrow":
        schema = next(_read_tables(file, None, None)).schema
        names = {field.name: str(field.type) for field in schema}
        strings = [name for name, kind in names.items() if "string" in kind]
    else:
        with open_requests(file, _GIVE) as requests:
            if requests.kind in ("text", "document"):
                return ""
            first = requests.peek()
            row = decode(first[1]) if first is not None else ""
        if isinstance(row, str):
            return ""
        if not isinstance(row, dict):
            raise InputError(f"{file}: its first row is neither text nor an object; {_GIVE}")
        names = row
        strings = [name for name, value in row.items() if isinstance(value, str)]
    found = [name for name in _COLUMNS if name in names]
    if found or len(strings) == 1:
        return (found or strings)[0]
    raise InputError(
        f"--text {file}: which column is the text is not clear; name it, --text"
        f" {file.name}:COLUMN, one of {excerpt(', '.join(names), 200)}"
    )


def _is_parquet(file: Path) -> bool:
    with file.open("rb") as stream:
        return stream.read(4) == b"PAR1"


def _read_file(file: Path, column: str, rng: np.random.Generator) -> Iterator[list[str]]:
    """Yield the texts of a file, as many at once as lie together there. Raises InputError."""
    if _is_parquet(file) or file.suffix == ".arrow":
        for table in _read_tables(file, column, rng):
            if column not in table.schema.names:
                _refuse_column(file, column, table.schema.names)
            yield [_text_of(value) for value in table.column(column).to_pylist()]
        return
    with open_requests(file, _GIVE) as requests:
        if not column and requests.kind in ("text", "document"):
            text = _decode(b"".join(requests.lines()))
            if text is None:
                raise InputError(f"{file}: binary, or not in UTF-8; {_GIVE}")
            yield [text]
            return

        def read_row(data: bytes) -> str:
            row = decode(data)
            if column and (not isinstance(row, dict) or column not in row):
                _refuse_column(file, column, row)
            return _text_of(row[column] if column else row)

        yield [text for _, text in requests.read(read_row)]


def _read_tables(
    file: Path, column: str | None, rng: np.random.Generator | None
) -> Iterator[pa.Table]:
    """Yield the parts of a Parquet file, in an order of `rng`, or of an Arrow stream, in its own.
    Raises InputError where it is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = 0
    try:
        if file.suffix != ".arrow":
            parquet = pq.ParquetFile(file)
            groups = np.arange(parquet.num_row_groups)
            for group in groups if rng is None else rng.permutation(groups):
                has_column = column in parquet.schema_arrow.names
                yield parquet.read_row_group(int(group), columns=[column] if has_column else None)
            return
        with pa.memory_map(str(file)) as mapped, pa.ipc.open_stream(mapped) as stream:
            for batch in stream:
                yield pa.Table.from_batches([batch])
                rows += len(batch)
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"{file}, row {rows + 1}: cannot be read ({excerpt(str(error), 120)}); copy it again"
        ) from None


def _refuse_column(file: Path, column: str, names: Any) -> NoReturn:
    shown = ", ".join(map(str, names)) if isinstance(names, dict | list) else "none"
    raise InputError(f"--text {file}: no column {column!r}; it has {excerpt(shown, 200)}")


def _text_of(value: Any) -> str:
    """Return the text of a cell: its own, or that of its messages or parts; none of an image."""
    if isinstance(value, dict):
        value = next((value[name] for name in _PARTS if value.get(name)), None)
    if isinstance(value, list):
        value = "\n\n".join(filter(None, map(_text_of, value)))
    return value if isinstance(value, str) else ""
