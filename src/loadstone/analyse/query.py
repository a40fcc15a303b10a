"""SQL over run folders, by DuckDB on the files themselves: no server, no import step."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from loadstone.core.errors import InputError

if TYPE_CHECKING:
    import duckdb
    import pyarrow.dataset as ds

_TABLES = {
    "runs": (
        "run.json",
        "select run_id as run, * exclude (run_id) replace (try_cast(created as timestamp) as created)",
    ),
    "cells": ("summary.json", "select run_id as run, unnest(cells, recursive := false) as cell"),
}
_OF_PARQUET = ("records", "server")
_READ = (
    "from read_json(?, format = 'unstructured', sample_size = -1, map_inference_threshold = -1, "
    "field_appearance_threshold = 0, maximum_object_size = ?)"
)
"""All of it is looked at for its shape; what only some runs have is a field still."""
_NO_TABLE = re.compile(r"Catalog Error: Table with name (.+?) does not exist!")
_MOST_BYTES = 64 * 1024 * 1024
"""More than any run's papers."""


def rows_of(sql: str, runs: Path) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Column names and rows of a query over `runs`' folders, or over one run. Raises InputError, one line, on bad SQL
    or no runs.

    A query has no file to open, and so none to write, whatever its words: papers are read before it, records by
    pyarrow beside it. (What DuckDB may read by itself it may write, too.) Tables that it creates are in memory.
    """
    import duckdb

    folders = [runs] if (runs / "run.json").exists() else sorted(path.parent for path in runs.glob("*/run.json"))
    if not folders:
        raise InputError(f"{runs}: no run folders here; measure something first, or name the folder with --runs")
    with duckdb.connect() as connection:
        try:
            connection.execute("set timezone = 'UTC'")
            for name, (file, select) in _TABLES.items():
                files = [folder / file for folder in folders if (folder / file).exists()]
                if files:
                    with tempfile.TemporaryDirectory() as scratch:
                        _join(files, Path(scratch) / file)
                        statement = f"create table {name} as {select} {_READ}"
                        connection.execute(statement, [str(Path(scratch) / file), _MOST_BYTES + 1])
            for name in _OF_PARQUET:
                files = [path for folder in folders if (path := folder / f"{name}.parquet").exists()]
                if files:
                    connection.register(name, _rows_of_runs(files))
            connection.execute("set enable_external_access = false")
            cursor = connection.execute(sql)
            if cursor is None:
                raise InputError('query: no statement; write e.g. "select run, cell.load.value from cells"')
            return [column[0] for column in cursor.description or ()], cursor.fetchall()
        except duckdb.Error as error:
            if "'pytz'" in str(error):
                raise InputError(
                    "query: the result has times with a time zone; cast them, e.g. now()::timestamp"
                ) from error
            if (missing := _NO_TABLE.match(str(error))) is not None:
                raise InputError(f"query: {_no_table(missing[1], connection)}") from error
            raise InputError(f"query: {' '.join(str(error).split())}") from error


def document_of(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """What `loadstone query --json` prints: rows by their columns' names."""
    named = [dict(zip(columns, row, strict=True)) for row in rows]
    return {"schema": 1, "columns": list(columns), "rows": named}


def _no_table(name: str, connection: duckdb.DuckDBPyConnection) -> str:
    """One line about a table that is not there: what DuckDB would suggest are its own."""
    there = [table for (table,) in connection.execute("select table_name from information_schema.tables").fetchall()]
    if name.lower() in (*_TABLES, *_OF_PARQUET):
        return f"these runs hold no data for the table {name}; there are {', '.join(sorted(there))}"
    return f"no table {name!r}; there are {', '.join(sorted(there))}"


def _join(files: Sequence[Path], target: Path) -> None:
    """Write these JSON objects into one file: of each that it reads, DuckDB holds 128 MiB. Raises InputError."""
    with target.open("wb") as whole:
        for path in files:
            try:
                if path.stat().st_size > _MOST_BYTES:
                    raise InputError(f"{path}: more than {_MOST_BYTES} bytes; run files are smaller")
                body = path.read_bytes()
                msgspec.json.decode(body, type=dict[str, msgspec.Raw])
            except OSError as error:
                raise InputError(f"{path}: cannot be read ({error.strerror})") from error
            except (msgspec.DecodeError, RecursionError) as error:
                raise InputError(f"{path}: not the JSON object of a run ({error}); move it away") from error
            whole.write(body + b"\n")


def _rows_of_runs(files: Sequence[Path]) -> ds.Dataset:
    """The rows of these files as one table, each row with its folder's name as `run`. Raises InputError."""
    import pyarrow as pa
    import pyarrow.dataset as ds
    from pyarrow.fs import LocalFileSystem

    parquet, files_here = ds.ParquetFileFormat(), LocalFileSystem()
    schema = pa.schema([("run", pa.string())])
    parts = []
    for path in files:
        part = parquet.make_fragment(str(path), files_here, ds.field("run") == path.parent.name)
        try:
            schema = pa.unify_schemas([schema, part.physical_schema], promote_options="permissive")
        except (OSError, pa.ArrowException) as error:
            raise InputError(f"{path}: cannot be read ({' '.join(str(error).split())})") from error
        parts.append(part)
    return ds.FileSystemDataset(parts, schema, parquet, files_here)
