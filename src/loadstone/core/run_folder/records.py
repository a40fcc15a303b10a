"""Stores records as Parquet: one row per request, columns as RequestRecord, read a row group at a
time."""

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from loadstone.core.errors import InputError, check_room
from loadstone.core.files import check_regular
from loadstone.core.plan import Phase
from loadstone.core.record import RequestRecord, Status
from loadstone.core.run_folder.folder import replace_file

RECORDS_SCHEMA = 1
_DRAFTS = ("draft_steps", "draft_tokens", "draft_accepted")
_SIZES = ("pixels", "picture_bytes", "body_bytes")
_PICTURES = ("images", *_SIZES, "visual_tokens_planned", "visual_tokens")
ADDED = frozenset({"channel", *_DRAFTS, "accepted_histogram", *_PICTURES, "sent_end_s"})
"""Columns that runs of earlier versions do not have: null there."""
_TOKENS = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens")
_COUNTS = (*_TOKENS, *_DRAFTS, *_PICTURES)
_MOST_TOKENS, _MOST_SIZE = 1 << 31, 1 << 53
EVENT_LISTS = ("arrival_s", "read", "tokens", "channel")
"""Columns with a value for each event."""
JOURNAL_COLUMNS = ("earlier_events", "voids", "opening", "closing")
"""Events that the request's earlier rows hold; its first events that turned out to be none; digests
of what the first and the last say, 0 where that is not known."""
_WORDS = {"phase": get_args(Phase), "status": get_args(Status)}
"""The values that these columns may have."""
_TEXTS = ("request_id", "phase", "session_id", "token_source", "finish_reason", "status", "error")


def records_schema() -> pa.Schema:
    """Make the Arrow schema of records: the fields of RequestRecord, in order."""

    types = {
        "cell": pa.int32(),
        "turn": pa.int32(),
        "arrival_s": pa.list_(pa.float64()),
        "read": pa.list_(pa.int32()),
        "tokens": pa.list_(pa.int32()),
        "http_status": pa.int32(),
        "worker": pa.int32(),
        "replica": pa.int32(),
        "reused_connection": pa.bool_(),
        "channel": pa.list_(pa.uint8()),
        "accepted_histogram": pa.list_(pa.int32()),
    }
    fields = []
    for name in RequestRecord.__struct_fields__:
        kind = pa.int64() if name in _COUNTS else pa.string() if name in _TEXTS else pa.float64()
        fields.append(pa.field(name, types.get(name, kind)))
    return pa.schema(fields, metadata={"loadstone.core": str(RECORDS_SCHEMA)})


def journal_schema() -> pa.Schema:
    """Make the Arrow schema of journals: records_schema(), and JOURNAL_COLUMNS."""

    added = [pa.field(name, pa.int32()) for name in JOURNAL_COLUMNS]
    return pa.schema([*records_schema(), *added], metadata=records_schema().metadata)


def write_records(folder: Path, tables: Iterable[pa.Table]) -> int:
    """Write records.parquet, a row group for each table; returns the number of records.

    Raises InputError as replace_file() does.
    """

    count = 0
    with replace_file(folder / "records.parquet") as partial:
        with (
            # A file of our own: a writer that fails on a full disk leaves its own open, and the
            # room taken.
            pa.OSFile(str(partial), "wb") as file,
            # Numbers seldom repeat, and a dictionary of them costs more to make than it saves.
            pq.ParquetWriter(
                file,
                records_schema(),
                compression="zstd",
                use_dictionary=list(_TEXTS),
                write_page_checksum=True,
            ) as writer,
        ):
            for table in _prefetch(tables):
                writer.write_table(table)
                count += table.num_rows
        # The journals are removed next: a machine that loses its power then must have the records.
        # Arrow before 25 tells no descriptor of a file that it writes.
        with partial.open("rb") as written:
            os.fsync(written.fileno())
    return count


def _prefetch(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the same tables; while one is used, a thread makes the next. Arrow and numpy leave it a
    core."""
    coming = iter(tables)
    with ThreadPoolExecutor(1, "tables") as thread:
        following = thread.submit(next, coming, None)
        while (table := following.result()) is not None:
            following = thread.submit(next, coming, None)
            yield table


def read_records(
    folder: Path, cell: int | None = None, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield batches of a run's records, row group by row group, of one cell or of all; whole, or
    some columns of them.
    """
    for table in _prefetch(_row_groups(folder, columns, cell)):
        yield from table.to_batches()


def check_cells(folder: Path, cells: int) -> None:
    """Check that every record is of one of the run's `cells` (their count), of a known phase and
    status, and has token counts that can be. Raises InputError.
    """

    for table in _row_groups(folder, ("cell", *_WORDS, *_COUNTS), None):
        for name, words in _WORDS.items():
            unknown = set(pc.unique(table[name]).to_pylist()) - set(words)
            if unknown:
                raise _refuse_records(
                    folder,
                    f"records whose {name} is"
                    f" {', '.join(map(repr, sorted(map(str, unknown))[:3]))}",
                )
        for name in _COUNTS:
            bounds = pc.min_max(table[name])
            smallest, largest = (bounds[end].as_py() or 0 for end in ("min", "max"))
            if not 0 <= smallest <= largest <= (_MOST_SIZE if name in _SIZES else _MOST_TOKENS):
                raise _refuse_records(
                    folder, f"records whose {name} cannot be ({bounds['min']} to {bounds['max']})"
                )
        if pc.any(pc.greater_equal(table["cell"], cells)).as_py():
            raise _refuse_records(folder, "records of a load that the run does not have")


def read_columns(folder: Path, columns: Sequence[str], cell: int) -> pa.Table:
    """Read some columns of one cell's records."""

    tables = list(_row_groups(folder, columns, cell))
    if tables:
        return pa.concat_tables(tables)
    schema = records_schema()
    return pa.schema([schema.field(name) for name in columns]).empty_table()


def _refuse_records(folder: Path, what: str) -> InputError:
    return InputError(f"{folder / 'records.parquet'}: {what}; copy or measure it again")


def _row_groups(
    folder: Path, columns: Sequence[str] | None, cell: int | None
) -> Iterator[pa.Table]:

    try:
        check_regular(folder / "records.parquet")
        file = pq.ParquetFile(folder / "records.parquet", page_checksum_verification=True)
    except OSError as error:
        check_room(error)
        raise InputError(
            f"{folder}: no records; if the run was cut off, `loadstone recover {folder}`"
        ) from error
    except pa.ArrowInvalid as error:
        raise _refuse_records(folder, f"not a Parquet file ({error})") from error
    names = file.schema_arrow.names
    schema = records_schema()
    missing = [
        field.name
        for field in schema
        if (field.name in names or field.name not in ADDED)
        and (names.count(field.name) != 1 or field not in file.schema_arrow)
    ]
    if missing:
        file.close()
        lacking = ", ".join(missing[:4])
        raise _refuse_records(
            folder, f"not records of this version of Loadstone (no {lacking} of their kind)"
        )
    column = file.schema_arrow.get_field_index("cell")
    with file:
        for group in range(file.num_row_groups):
            statistics = file.metadata.row_group(group).column(column).statistics
            if statistics is not None and not statistics.has_min_max:
                statistics = None
            if (
                cell is not None
                and statistics is not None
                and not statistics.min <= cell <= statistics.max
            ):
                continue
            mixed = cell is not None and (statistics is None or statistics.min != statistics.max)
            wanted = schema.names if columns is None else [*columns, "cell"]
            try:
                table = file.read_row_group(group, columns=wanted)
            except (OSError, pa.ArrowException) as error:
                check_room(error)
                raise _refuse_records(folder, f"damaged ({error})") from error
            if table["cell"].null_count or pc.any(pc.less(table["cell"], 0)).as_py():
                raise _refuse_records(folder, "records of no load")
            if mixed:
                table = table.filter(pc.equal(table["cell"], cell))
            for name in set(wanted) - set(table.column_names):
                table = table.append_column(
                    schema.field(name), pa.nulls(len(table), schema.field(name).type)
                )
            yield table.select(schema.names if columns is None else columns)
