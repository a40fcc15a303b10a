"""Stores grades of answers in answers.parquet: one row per graded request, with the answer's text
only on request."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from loadstone.core.errors import InputError, check_room
from loadstone.core.files import check_regular
from loadstone.core.run_folder.folder import replace_file

NAME = "answers.parquet"
STEP = 8
"""Characters between two of the marks by which two texts show where they part."""


class GradedAnswer(msgspec.Struct, kw_only=True, frozen=True):
    """The grade of the answer to one request of the phase `check`.

    question  its id; `task`: the kind of question
    ended     it came to its end, and is no error; `cut`: at the limit of its tokens
    thinking  it is thinking without an answer; `parsed`: something in it could be the answer
    strict    right in the form that was asked for; `right`: right, however it is said
    crossed   wrong, with what another question asks for: the answer to another request
    digest    of the text; marks: hashes of its beginnings, STEP characters apart
    text      None where it was not kept
    """

    request_id: str
    cell: int
    question: str
    task: str
    ended: bool
    cut: bool
    thinking: bool
    parsed: bool
    strict: bool
    right: bool
    crossed: bool
    tokens: int
    digest: str
    marks: list[int]
    text: str | None = None


def write_answers(folder: Path, answers: Sequence[GradedAnswer]) -> None:
    """Write answers.parquet anew. Raises InputError as replace_file() does."""

    kinds = {bool: pa.bool_(), int: pa.int32(), list[int]: pa.list_(pa.uint32())}
    hints = GradedAnswer.__annotations__
    schema = pa.schema(
        [(name, kinds.get(hints[name], pa.string())) for name in GradedAnswer.__struct_fields__]
    )
    table = pa.Table.from_pylist(
        [msgspec.structs.asdict(answer) for answer in answers], schema=schema
    )
    with replace_file(folder / NAME) as partial:
        pq.write_table(table, partial, compression="zstd", write_page_checksum=True)


def read_answers(folder: Path, cell: int | None = None) -> list[GradedAnswer]:
    """Read the grades of a run, of one cell or of all; none where nothing was graded. Raises
    InputError where the file is damaged.
    """

    path = folder / NAME
    if not path.exists():
        return []
    try:
        check_regular(path)
        rows = pq.read_table(path, page_checksum_verification=True).to_pylist()
        answers = msgspec.convert(rows, list[GradedAnswer])
    except (OSError, pa.ArrowException, msgspec.ValidationError, ValueError) as error:
        check_room(error)
        raise InputError(
            f"{path}: not grades of answers ({error}); move it away, or measure again"
        ) from error
    return [answer for answer in answers if cell is None or answer.cell == cell]
