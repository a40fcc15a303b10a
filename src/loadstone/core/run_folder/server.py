"""Stores what the servers report of themselves, as samples: server.arrow while the run goes on,
server.parquet after.
"""

import contextlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from loadstone.core.errors import InputError
from loadstone.core.files import check_regular
from loadstone.core.run_folder.folder import replace_file
from loadstone.core.run_folder.journal import read_stream


def server_schema() -> pa.Schema:
    """Samples of the servers' /metrics, one row each: time_s since the run's origin, replica (which
    of the target's URLs), name, labels (a JSON object, keys in order), value.
    """

    return pa.schema(
        [
            ("time_s", pa.float64()),
            ("replica", pa.int32()),
            ("name", pa.string()),
            ("labels", pa.string()),
            ("value", pa.float64()),
        ],
        metadata={"loadstone.server": "1"},
    )


def read_server(folder: Path) -> pa.Table | None:
    """The samples of /metrics of a run, in the order they were taken; None where there are none
    that can be read.

    Nothing depends on them, so nothing fails for want of them.
    """

    schema = server_schema()
    try:
        if (folder / "server.parquet").exists():
            check_regular(folder / "server.parquet")
            table = pq.read_table(folder / "server.parquet", columns=schema.names).cast(schema)
        else:
            batches = [
                batch for batch, _ in read_stream(folder / "server.arrow") if batch is not None
            ]
            table = pa.Table.from_batches(batches, schema)
    except (OSError, ValueError, KeyError):  # Arrow's errors are among these
        return None
    return table if table.num_rows else None


def write_server(folder: Path, table: pa.Table) -> None:
    """Write server.parquet, columns as server_schema(). Raises InputError as replace_file()
    does."""

    with replace_file(folder / "server.parquet") as partial:
        pq.write_table(table, partial, compression="zstd")


def seal_server(folder: Path) -> None:
    """Make server.parquet of server.arrow. Where that cannot be, server.arrow stays, and is read in
    its place."""
    table = read_server(folder)
    with contextlib.suppress(InputError, OSError):
        if table is not None and not (folder / "server.parquet").exists():
            write_server(folder, table)
        (folder / "server.arrow").unlink(missing_ok=True)
