"""SQL over run folders, by DuckDB on the files themselves: no server, no import step."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from loadstone.errors import InputError

_VIEWS = {
    "records": (
        "records.parquet",
        "select regexp_extract(filename, '([^/]+)/[^/]+$', 1) as run, * exclude (filename) "
        "from read_parquet({files}, filename = true, union_by_name = true)",
    ),
    "runs": (
        "run.json",
        "select run_id as run, * exclude (run_id) from read_json({files}, union_by_name = true, "
        "maximum_object_size = 67108864)",
    ),
    "cells": (
        "summary.json",
        "select run_id as run, unnest(cells, recursive := false) as cell from read_json({files}, "
        "union_by_name = true, maximum_object_size = 67108864)",
    ),
}
_STATEMENTS = frozenset({"SELECT", "MULTI", "EXPLAIN", "CREATE", "INSERT", "UPDATE", "DELETE", "DROP"})
"""What a query may consist of; MULTI is a PIVOT."""
_COPY = re.compile(r"\bcopy\b", re.IGNORECASE)
"""DuckDB writes what it may read, and `copy` can stand in a WITH, behind EXPLAIN ANALYZE or around a PIVOT. It would
be the end of a run's records; so the word is refused wherever it stands, in a text too.
"""


def rows_of(sql: str, runs: Path) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Column names and rows of a query over `runs`' folders. Raises InputError, one line, on bad SQL or no runs.

    The query reads these runs' files and nothing else: other files and the network are closed to it, and it writes
    none. Tables that it creates are in memory.
    """
    import duckdb

    folders = sorted(path.parent for path in runs.glob("*/run.json"))
    if not folders:
        raise InputError(f"{runs}: no run folders here; measure something first, or name the folder with --runs")
    readable: list[str] = []
    with duckdb.connect() as connection:
        try:
            for name, (file, view) in _VIEWS.items():
                files = [folder / file for folder in folders if (folder / file).exists()]
                if files:
                    # A list of files cannot be a parameter of a view.
                    connection.execute(f"create view {name} as {view.format(files=_quoted(map(_literally, files)))}")
                    readable += [*map(str, files), *map(_literally, files)]
            connection.execute(f"set allowed_paths = {_quoted(readable)}")
            connection.execute("set enable_external_access = false")
            kinds = {statement.type.name for statement in duckdb.extract_statements(sql)}
            if not kinds <= _STATEMENTS or _COPY.search(sql):
                raise InputError("query: runs are read here, and no file is written; write a select, without `copy`")
            cursor = connection.execute(sql)
            if cursor is None:
                raise InputError('query: no statement; write e.g. "select run, cell.load.value from cells"')
            return [column[0] for column in cursor.description or ()], cursor.fetchall()
        except duckdb.Error as error:
            raise InputError(f"query: {' '.join(str(error).split())}") from error


def _literally(path: Path) -> str:
    """A pattern that matches this path alone: DuckDB takes every file name for one."""
    return re.sub(r"([*?\[])", r"[\1]", str(path))


def _quoted(texts: Iterable[str]) -> str:
    """A list of strings in SQL."""
    return "[" + ", ".join("'" + text.replace("'", "''") + "'" for text in texts) + "]"
