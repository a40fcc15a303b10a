"""Defines the reader of a tool's results: the one door for the readers shipped here and for those
of other packages."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadstone.interop.read.cell import ResultCell
from loadstone.interop.read.values import Value

ReadDocument = Callable[[Value, str], ResultCell | list[ResultCell]]
ReadRequests = Callable[[Sequence[Value], str], ResultCell]
ReadRow = Callable[[Mapping[str, str], str], ResultCell]


def _nothing(*_: object) -> None:
    """Stand for what a tool's files do not need."""


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Reads the results of a tool, which it knows by what is in a file.

    A package adds one by an entry point of the group `loadstone.readers` that names a Reader. A
    document is a Value: JSON or YAML whose odd parts are missing ones. Paths are those of
    Value.has(); the first form whose paths a document all has is read, of all readers in the order
    of their entry points' names. Where a file cannot be read, a reader raises InputError, one line.

    tools      what its results are called where none is found: `GuideLLM`
    documents  forms of a document: its paths, and what makes cells of it and of what findings call
               it
    requests   forms of a document that is one request; all of a file together are one cell
    rows       what reads the rows of a CSV with these columns; None: they are no results of it
    companion  the file beside this one with the rest of the same measurement: the sums of its
               requests, or the requests of its sums; None: none. The cell is what this one gave,
               None where it could not be read
    read_with  the file that, where it is read too, reads this one with it
    is_part    whether a file of a folder repeats what others there say, or is read with them
    finish     adds to the only cell of a file what lies beside it
    """

    tools: str
    documents: Sequence[tuple[Sequence[str], ReadDocument]] = ()
    requests: Sequence[tuple[Sequence[str], ReadRequests]] = ()
    rows: Callable[[Sequence[str]], ReadRow | None] = _nothing
    companion: Callable[[Path, ResultCell | None], Path | None] = _nothing
    read_with: Callable[[Path], Path | None] = _nothing
    is_part: Callable[[Path], bool | None] = _nothing
    finish: Callable[[ResultCell, Path], None] = _nothing
