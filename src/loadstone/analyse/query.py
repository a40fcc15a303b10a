"""SQL over run folders, by DuckDB on the files themselves: no server, no import step."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from loadstone.analyse.classes import COLUMNS as CLASS_COLUMNS
from loadstone.analyse.classes import class_columns
from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.core.extras import require
from loadstone.core.files import TemporaryFolder, check_regular, read_json

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa
    import pyarrow.dataset as ds

_T = TypeVar("_T")

_TABLES = {
    "runs": (
        "run.json",
        (
            "select run_id as run, * exclude (run_id) replace (try_cast(created as timestamp) as"
            " created)"
        ),
    ),
    "cells": ("summary.json", "select *"),
    "classes": ("summary.json", "select *"),
}
_OF_PARQUET = ("records", "server")
_READ = (
    "from read_json(?, format = 'unstructured', sample_size = -1, map_inference_threshold = -1, "
    "field_appearance_threshold = 0, maximum_object_size = ?)"
)
"""All of it is looked at for its shape; what only some runs have is a field still."""
_LATENCIES = {
    "ttft_s": "arrival_s[1] - sent_s",
    "tpot_s": "case when {tokens} >= 2 then (arrival_s[-1] - arrival_s[1]) / ({tokens} - 1) end",
    "e2e_s": "arrival_s[-1] - sent_s",
    "ttft_intended_s": "arrival_s[1] - intended_s",
    "e2e_intended_s": "arrival_s[-1] - intended_s",
}
"""Columns of `records` that follow from others, by the definitions of metrics.py."""
_TOKENS = (
    "(case when status in ('ok', 'short') then coalesce(output_tokens, tokens[-1]) else tokens[-1]"
    " end)"
)
_NEED_STREAM = ("ttft_s", "tpot_s", "ttft_intended_s")
_MADE_OF = {"arrival_s", "tokens", "output_tokens", "status", "sent_s", "intended_s"}
_FUNCTIONS = {
    "unnest",
    "range",
    "generate_series",
    "repeat",
    "repeat_row",
    "json_each",
    "json_tree",
    "histogram",
    "histogram_values",
}
"""Functions that may stand for a table. Others act: they write logs, change settings, open files.
"""
_NO_TABLE = re.compile(r"Catalog Error: Table with name (.+?) does not exist!")
_WHERE = re.compile(r"\s*LINE \d+: .*")
MAX_VALUES = 10_000_000
"""The most values of a result, with those in its lists: about a gigabyte of Python's objects."""
MAX_MEMORY_BYTES = 4 << 30
"""The most memory of DuckDB, which gets no more than half of the free memory."""
_BATCH_ROWS = 10_000
_MAX_BYTES = 64 * 1024 * 1024
"""No run's run.json or summary.json is larger."""


class QueryResult(NamedTuple):
    """The result of a query: the names of its columns, and its rows."""

    columns: list[str]
    rows: list[tuple[Any, ...]]

    def document(self) -> dict[str, Any]:
        """Return what `loadstone query --json` prints: each row by the names of its columns."""
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        return {"schema": 1, "columns": self.columns, "rows": rows}


class _Streams(msgspec.Struct):
    """The field of run.json's target that tells if answers came in a stream."""

    streams: bool = True


class _Run(msgspec.Struct):
    target: _Streams | None = None
    marks: dict[str, str] = {}
    status: str = "running"


class _Summary(msgspec.Struct):
    run_id: str
    cells: list[dict[str, Any]] = []


def rows_of(
    sql: str,
    runs: Path,
    *,
    max_values: int = MAX_VALUES,
    max_memory_bytes: int = MAX_MEMORY_BYTES,
) -> QueryResult:
    """Run a query over `runs`' folders, or over one run. Raises InputError, one line, on bad SQL or
    no runs.

    One statement that selects is run, and nothing else: it has no file to open, and so none to
    write, whatever its words. JSON is read before it, records by pyarrow beside it. (What DuckDB
    may read by itself it may write, too.)
    """
    require("duckdb", "sql", "query")
    import duckdb

    folders = _folders(runs)
    if not folders:
        raise InputError(
            f"{runs}: no run folders here; measure something first, or name the folder with --runs"
        )
    for folder in folders:
        marks = _read(folder / "run.json", _Run).marks
        altered = run_folder.find_changed(folder, marks) if marks else []
        if altered:
            raise InputError(
                f"{folder / altered[0]}: was changed after it was written; move the run away"
            )
    with duckdb.connect() as connection, ThreadPoolExecutor(1) as worker:
        # In a thread: where DuckDB waits for threads of its own, it hears no signal.
        half = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
        connection.execute(f"set memory_limit = '{min(max_memory_bytes, half)}B'")
        result = worker.submit(_run_query, sql, folders, connection, max_values)
        try:
            return result.result()
        except KeyboardInterrupt:
            while not result.done():
                connection.interrupt()  # once may be too early
                wait([result], timeout=0.05)
            raise
        except duckdb.Error as error:
            if "'pytz'" in str(error):
                raise InputError(
                    "query: the result has times with a time zone; cast them, e.g. now()::timestamp"
                ) from error
            missing = _NO_TABLE.match(str(error))
            if missing is not None:
                raise InputError(f"query: {_no_table(missing[1], connection)}") from error
            # DuckDB repeats the line and points at the place below it; what it says before is
            # enough.
            message = " ".join(_WHERE.sub("", " ".join(str(error).split())).split())
            raise InputError(
                f'query: {message}; loadstone query "describe cells" lists columns'
            ) from error


def _run_query(
    sql: str, folders: Sequence[Path], connection: duckdb.DuckDBPyConnection, max_values: int
) -> QueryResult:
    connection.execute("set timezone = 'UTC'")
    connection.execute("set temp_directory = ''")
    for name, (file, select) in _TABLES.items():
        with TemporaryFolder() as scratch:
            joined = scratch / file
            if _write_lines(joined, _ROWS[name](_existing(folders, file))):
                connection.execute(
                    f"create table {name} as {select} {_READ}", [str(joined), 2 * _MAX_BYTES]
                )
    for name in _OF_PARQUET:
        files = _existing(folders, f"{name}.parquet")
        if files:
            connection.register(f"_{name}", _dataset(files))
            source = f"_{name}"
            classes = _classes_of_requests(folders) if name == "records" else None
            if classes is not None:
                connection.register("_classes", classes)
                source += " left join _classes using (run, request_id)"
            selected = ", ".join(_columns(name, connection))
            connection.execute(f"create view {name} as select {selected} from {source}")  # noqa: S608
    connection.execute("set enable_external_access = false")
    connection.execute("set lock_configuration = true")
    check_statement(sql, connection)
    cursor = connection.execute(sql)
    columns = [column[0] for column in cursor.description or ()]
    return QueryResult(columns, _bounded(cursor, max_values))


def _existing(folders: Sequence[Path], name: str) -> list[Path]:
    return [folder / name for folder in folders if (folder / name).exists()]


def _bounded(cursor: duckdb.DuckDBPyConnection, max_values: int) -> list[tuple[object, ...]]:
    """The rows, taken piece by piece, between which a signal is heard. Raises InputError where they
    are too many."""
    rows: list[tuple[object, ...]] = []
    values = 0
    while batch := cursor.fetchmany(_BATCH_ROWS):
        rows += batch
        values += sum(
            len(value) if isinstance(value, list) else 1 for row in batch for value in row
        )
        if values > max_values:
            raise InputError(
                f"query: over {max_values:,} values in {len(rows):,} rows; add a limit, or"
                " aggregate"
            )
    return rows


def check_statement(sql: str, connection: duckdb.DuckDBPyConnection) -> None:
    """Raises InputError where it is not one statement that only selects, duckdb.Error where it is
    no SQL."""
    statements = connection.extract_statements(sql)
    if not statements:
        raise InputError('query: no statement; write e.g. "select run, cell.load.value from cells"')
    if len(statements) > 1:
        raise InputError(f"query: {len(statements)} statements; give one")
    if statements[0].type.name != "SELECT":
        raise InputError(
            f"query: {statements[0].type.name} is not run; write one statement that selects"
        )
    if statements[0].query.rstrip("; \n") not in sql:  # some versions rewrite PRAGMA as a selection
        raise InputError("query: PRAGMA is not run; write one statement that selects")
    (text,) = connection.execute(
        "select json_serialize_sql(?::varchar)::varchar", [sql]
    ).fetchone() or ("{}",)
    for function in _table_functions(msgspec.json.decode(text)):
        if function not in _FUNCTIONS:
            raise InputError(f"query: {function}() is not run; select from the tables of the runs")


def _table_functions(node: object) -> Iterator[str]:
    """Names of the functions that stand for a table, anywhere in a parsed statement."""
    if isinstance(node, list):
        for child in node:
            yield from _table_functions(child)
    elif isinstance(node, dict):
        if node.get("type") == "TABLE_FUNCTION":
            yield str(node["function"].get("function_name")).lower()
        for child in node.values():
            yield from _table_functions(child)


def _no_table(name: str, connection: duckdb.DuckDBPyConnection) -> str:
    """One line about a table that is not there: what DuckDB would suggest are its own."""
    query = (
        "select table_name from information_schema.tables where not starts_with(table_name, '_')"
    )
    tables = ", ".join(sorted(table for (table,) in connection.execute(query).fetchall()))
    if name.lower() in (*_TABLES, *_OF_PARQUET):
        return f"these runs hold no data for the table {name}; there are {tables}"
    return f"no table {name!r}; there are {tables}"


# --- what the tables are made of ------------------------------------------------------------------


def _write_lines(target: Path, lines: Iterator[bytes]) -> int:
    """JSON objects in one file: of each file that it reads, DuckDB holds 128 MiB. Returns its
    bytes."""
    with target.open("wb") as file:
        return sum(file.write(line + b"\n") for line in lines)


def _runs(files: Sequence[Path]) -> Iterator[bytes]:
    for path in files:
        yield msgspec.json.encode(_read(path, dict[str, msgspec.Raw]))


def find_unsealed(runs: Path) -> list[str]:
    """List the concluded runs, by their folders' names, of which nobody can tell whether they were
    changed: run.json has no digests of their files."""
    read = [(folder, _read(folder / "run.json", _Run)) for folder in _folders(runs)]
    return [
        folder.name
        for folder, run in read
        if not run.marks and run_folder.find_changed(folder, run.marks, run.status)
    ]


def _folders(runs: Path) -> list[Path]:
    if (runs / "run.json").exists():
        return [runs]
    return sorted(path.parent for path in runs.glob("*/run.json"))


def _cells(files: Sequence[Path]) -> Iterator[bytes]:
    """Make a row of each cell, with its numbers as columns."""
    for path in files:
        summary = _read(path, _Summary)
        for cell in summary.cells:
            yield msgspec.json.encode({"run": summary.run_id, **dict(_flat(cell)), "cell": cell})


def _classes(files: Sequence[Path]) -> Iterator[bytes]:
    """Make a row of each class of traffic of each cell, as of cells."""
    for path in files:
        summary = _read(path, _Summary)
        for cell in summary.cells:
            load = dict(_flat({"load": cell.get("load")}))
            for part in cell.get("by_class") or []:
                numbers = dict(_flat(part))
                row = {"run": summary.run_id, "class": numbers.pop("name", None), **load}
                row |= {"priority": None, "model": None, "rejected": 0} | numbers
                yield msgspec.json.encode(row)


_ROWS = {"runs": _runs, "cells": _cells, "classes": _classes}
"""What makes the rows of each table of _TABLES."""


def _classes_of_requests(folders: Sequence[Path]) -> pa.Table | None:
    """Tell of each request of runs with classes its class, priority, model and why it was
    rejected; None where no run has any."""
    import pyarrow as pa

    tables = []
    for folder in folders:
        if not (folder / "summary.json").exists() or not (folder / "records.parquet").exists():
            continue
        if not any(cell.get("by_class") for cell in _read(folder / "summary.json", _Summary).cells):
            continue
        plan = run_folder.read_plan(folder)
        for batch in run_folder.read_records(folder, columns=CLASS_COLUMNS):
            ids = batch.column("request_id")
            runs = pa.repeat(folder.name, len(ids))
            tables.append(pa.table({"run": runs, "request_id": ids} | class_columns(batch, plan)))
    return pa.concat_tables(tables) if tables else None


def _flat(values: dict[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """The numbers and words within a cell by their path, without `metrics`: `load_value`,
    `ttft_s_p50`."""
    for name, value in values.items():
        path = f"{prefix}{name}"
        if isinstance(value, dict):
            yield from _flat(value, "" if path == "metrics" else f"{path}_")
        elif not isinstance(value, list):
            yield path, value


def _read(path: Path, kind: type[_T]) -> _T:
    return read_json(path, kind, _MAX_BYTES, "the JSON object of a run", "move it away")


def _dataset(files: Sequence[Path]) -> ds.Dataset:
    """The rows of these files as one table, each row with its folder's name as `run`, and whether
    it was streamed. Raises InputError.
    """
    import pyarrow as pa
    import pyarrow.dataset as ds
    from pyarrow.fs import LocalFileSystem

    parquet, files_here = ds.ParquetFileFormat(), LocalFileSystem()
    schema = pa.schema([("run", pa.string()), ("_streams", pa.bool_())])
    parts = []
    for path in files:
        target = _read(path.with_name("run.json"), _Run).target
        of_run = (ds.field("run") == path.parent.name) & (
            ds.field("_streams") == (target is None or target.streams)
        )
        try:
            check_regular(path)
            part = parquet.make_fragment(str(path), files_here, of_run)
            schema = pa.unify_schemas([schema, part.physical_schema], promote_options="permissive")
        except (OSError, pa.ArrowException) as error:
            raise InputError(f"{path}: cannot be read ({' '.join(str(error).split())})") from error
        parts.append(part)
    return ds.FileSystemDataset(parts, schema, parquet, files_here)


def _columns(name: str, connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Write what a view selects of its dataset: its columns, and of records their latencies, from
    sending as in `cells`."""
    columns = {row[0] for row in connection.execute(f"describe _{name}").fetchall()}
    latencies = []
    if columns >= _MADE_OF:
        for latency, formula in _LATENCIES.items():
            value = formula.format(tokens=_TOKENS)
            shown = f"case when _streams then {value} end" if latency in _NEED_STREAM else value
            latencies.append(f"{shown} as {latency}")
    return ["* exclude (_streams)", *latencies]
