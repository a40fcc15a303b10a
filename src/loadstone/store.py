"""Run folders: written as the run goes, whole again after any crash, readable by everything that reads Parquet.

    runs/<run_id>/
        run.json           RunInfo, from the first moment
        plan.parquet       the plan; its description in the schema's metadata
        journal-<w>.arrow  while running: what worker w saw, appended once a second
        server.arrow       while running: what the servers said of themselves in /metrics, where they do
        records.parquet    after: one row per request, columns as RequestRecord
        server.parquet     after: what server.arrow held
        summary.json       after: the numbers, as `loadstone bench --json` prints them
        log.txt            what was said

A journal holds fragments: rows of the records' own schema. A request's fragments share its cell and id; list
columns are continued from one to the next, and the last fragment, the one with a status, has the final scalars.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from loadstone.errors import DiskFullError, InputError
from loadstone.records import Blocks, Load, Plan, RequestRecord, RunInfo

if TYPE_CHECKING:
    import pyarrow as pa

RUN_SCHEMA = 1
RECORDS_SCHEMA = 1
PLAN_SCHEMA = 2
_TEXTS = ("request_id", "phase", "session_id", "token_source", "finish_reason", "status", "error")
_GROUP_EVENTS = 2_000_000
"""Events per Parquet row group: some 32 MB while it is built."""

INTERRUPTED = "interrupted: the run ended before this request did"


def records_schema() -> pa.Schema:
    """Arrow schema of records and journals: the fields of RequestRecord, in order."""
    import pyarrow as pa

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
    }
    counts = {"input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens"}
    fields = []
    for name in RequestRecord.__struct_fields__:
        kind = pa.int64() if name in counts else pa.string() if name in _TEXTS else pa.float64()
        fields.append(pa.field(name, types.get(name, kind)))
    return pa.schema(fields, metadata={"loadstone.records": str(RECORDS_SCHEMA)})


# --- the folder -----------------------------------------------------------------------------------------------


def create(parent: Path, run_id: str) -> Path:
    """A new run folder `parent/run_id`, with a number behind it where that is taken. Raises InputError, one line."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, 1000):
            folder = parent / (run_id if attempt == 1 else f"{run_id}-{attempt}")
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            return folder
    except OSError as error:
        raise _unwritable(error, parent) from error
    raise InputError(f"{parent}: a thousand runs named {run_id}; give another folder with --out")


def _unwritable(error: OSError, path: Path) -> InputError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(f"{path}: disk full; free some room, or give another folder with --out")
    return InputError(f"{path}: cannot write here ({error.strerror}); give another folder with --out")


def write_json(path: Path, value: Any) -> None:
    """Replace `path` by `value` as JSON, whole or not at all. Raises InputError, one line, where it cannot."""
    partial = path.with_name(path.name + ".part")
    try:
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise _unwritable(error, path) from error


def write_info(folder: Path, info: RunInfo) -> None:
    write_json(folder / "run.json", info)


def read_info(folder: Path) -> RunInfo:
    """A run's papers; fields that later versions added are passed over.

    Raises InputError where `folder` is no run folder, or its schema another than this version of the program reads.
    """
    path = folder / "run.json"
    try:
        info = msgspec.json.decode(path.read_bytes(), type=RunInfo)
    except OSError as error:
        raise InputError(f"{folder}: no run folder ({path.name}: {error.strerror}); give one under runs/") from error
    except msgspec.DecodeError as error:
        raise InputError(f"{path}: not a run this version of Loadstone can read ({error})") from error
    if info.schema != RUN_SCHEMA:
        raise InputError(f"{path}: run of schema {info.schema}, and this version of Loadstone reads {RUN_SCHEMA}")
    return info


# --- the plan -------------------------------------------------------------------------------------------------


def write_plan(path: Path, plan: Plan) -> None:
    """Save a plan. Raises InputError, one line, where it cannot be written."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {name: pa.array(getattr(plan, name)) for name in Plan.COLUMNS}
    columns["prompt"] = pa.array([None if i < 0 else plan.prompts[i] for i in plan.prompt], pa.large_string())
    if plan.blocks is not None:
        columns["blocks"] = pa.LargeListArray.from_arrays(pa.array(plan.blocks.offsets), pa.array(plan.blocks.ids))
    table = pa.table(columns)
    description = {
        "schema": PLAN_SCHEMA,
        "seed": plan.seed,
        "cells": plan.cells,
        "workload": plan.workload,
        "exact_output": plan.exact_output,
        "chat": plan.chat,
        "block_tokens": 0 if plan.blocks is None else plan.blocks.tokens,
    }
    table = table.replace_schema_metadata({"loadstone.plan": msgspec.json.encode(description)})
    partial = path.with_name(path.name + ".part")
    try:
        pq.write_table(table, partial, compression="zstd")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise _unwritable(error, path) from error


class _PlanDescription(msgspec.Struct, forbid_unknown_fields=True):
    schema: int
    seed: int
    cells: tuple[Load, ...]
    workload: dict[str, Any]
    exact_output: bool
    chat: bool
    block_tokens: int


def read_plan(path: Path) -> Plan:
    """Load a saved plan. Raises InputError where the file is not one, or of another version."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.is_dir():
        path = path / "plan.parquet"
    try:
        table = pq.read_table(path)
        about = msgspec.json.decode(table.schema.metadata[b"loadstone.plan"], type=_PlanDescription)
        columns = {name: table[name].to_numpy() for name in Plan.COLUMNS if name != "prompt"}
        texts = table["prompt"].combine_chunks().dictionary_encode()
        blocks = _blocks(table, about.block_tokens) if about.block_tokens else None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}); give a saved plan.parquet") from error
    except (pa.ArrowInvalid, KeyError, TypeError, msgspec.DecodeError) as error:
        raise InputError(f"{path}: not a plan this version of Loadstone can read ({error})") from error
    if about.schema != PLAN_SCHEMA:
        raise InputError(f"{path}: plan of schema {about.schema}; this version of Loadstone reads {PLAN_SCHEMA}")
    columns["prompt"] = texts.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
    return Plan(
        seed=about.seed,
        cells=about.cells,
        workload=about.workload,
        exact_output=about.exact_output,
        chat=about.chat,
        prompts=texts.dictionary.to_pylist(),
        blocks=blocks,
        **columns,
    )


def _blocks(table: pa.Table, tokens: int) -> Blocks:
    import numpy as np

    lists = table["blocks"].combine_chunks()
    offsets = np.asarray(lists.offsets).astype(np.int64)
    return Blocks(tokens, offsets - offsets[0], np.asarray(lists.flatten()).astype(np.int32))


# --- the journal and its assembly -----------------------------------------------------------------------------


_LISTS = ("arrival_s", "read", "tokens")
RESERVE_BYTES = 32 * 1024 * 1024
_WRITERS_S = 5.0


class JournalWriter:
    """Appends record batches to one worker's journal, an Arrow IPC stream. What was written survives kill −9.

    On a full disk the reserve file is given up, so that what was measured so far still finds room.
    """

    def __init__(self, folder: Path, worker: int) -> None:
        self._path = folder / f"journal-{worker}.arrow"
        self._reserve = folder / f".reserve-{worker}"
        try:
            with self._reserve.open("wb") as file:
                if sys.platform == "linux":
                    os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
                else:
                    file.write(bytes(RESERVE_BYTES))
            self._file = self._path.open("wb", buffering=0)
            fcntl.flock(self._file, fcntl.LOCK_EX)  # held while this process lives: told from a journal left behind
            self._append(records_schema().serialize())
        except OSError as error:
            self._reserve.unlink(missing_ok=True)
            raise _unwritable(error, folder) from error

    def write(self, batch: pa.RecordBatch) -> bool:
        """Append `batch`. False if the disk was full: the batch is safe in the reserve's room, the run should end."""
        message = batch.serialize()
        try:
            self._append(message)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._reserve.exists():
                raise _unwritable(error, self._path) from error
            self._reserve.unlink()
            try:
                self._append(message)
            except OSError as again:
                raise _unwritable(again, self._path) from again
            return False
        return True

    def _append(self, message: pa.Buffer) -> None:
        """All of `message` or none of it: half a message would end the stream for every reader."""
        start = self._file.tell()
        view = memoryview(message)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError:
            self._file.truncate(start)
            self._file.seek(start)
            raise

    def close(self) -> None:
        self._file.close()
        self._reserve.unlink(missing_ok=True)


def read_journal(path: Path) -> Iterator[pa.RecordBatch]:
    """Batches of a journal, as far as they are whole: a torn end, as a crash leaves it, just ends it."""
    import pyarrow as pa

    try:
        with pa.OSFile(str(path), "rb") as file, pa.ipc.open_stream(file) as reader:
            while True:
                try:
                    yield reader.read_next_batch()
                except StopIteration:
                    return
    except (pa.ArrowInvalid, OSError):
        return


def assemble(folder: Path) -> int:
    """Make records.parquet of the journals; returns the number of records.

    Requests without a final fragment become `cancelled`, with what had arrived. Works in one pass, holding only
    requests whose fragments are still incomplete. The journals are removed once the records are on disk.
    Raises DiskFullError where there is no room: journals stay, and `loadstone recover` goes on from there; and
    InputError where a worker still writes, after waiting _WRITERS_S for it to end.
    """
    import pyarrow.parquet as pq

    journals = sorted(folder.glob("journal-*.arrow"))
    target = folder / "records.parquet"
    if target.exists():
        # Whole, since it comes by renaming; journals beside it are what a crash left of their removal.
        for journal in journals:
            journal.unlink()
        return int(pq.read_metadata(target).num_rows)
    if not journals:
        raise InputError(f"{folder}: neither journals nor records; nothing was measured in this run")
    _wait_for_writers(folder, journals)
    for reserve in folder.glob(".reserve-*"):
        reserve.unlink(missing_ok=True)
    try:
        count = write_records(folder, _whole_requests(journals))
    except DiskFullError as error:
        raise DiskFullError(
            f"{folder}: disk full; all that was measured is in its journals: free some room, "
            f"then `loadstone recover {folder}`"
        ) from error
    for journal in journals:
        journal.unlink()
    return count


def write_records(folder: Path, tables: Iterable[pa.Table]) -> int:
    """Write records.parquet, a row group for each table, whole or not at all; returns the number of records.

    Raises InputError, one line, where it cannot be written; DiskFullError where there is no room.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    partial = folder / "records.parquet.part"
    count = 0
    try:
        # A file of our own: a writer that fails on a full disk leaves its own open, and the room taken.
        with (
            pa.OSFile(str(partial), "wb") as file,
            # Numbers seldom repeat, and a dictionary of them costs more to make than it saves.
            pq.ParquetWriter(file, records_schema(), compression="zstd", use_dictionary=list(_TEXTS)) as writer,
        ):
            for table in _ahead(tables):
                writer.write_table(table)
                count += table.num_rows
        partial.replace(folder / "records.parquet")
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise _unwritable(error, folder / "records.parquet") from error
    return count


def _ahead(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same tables; while one is used, a thread makes the next. Arrow and numpy leave it a core."""
    coming = iter(tables)
    with ThreadPoolExecutor(1, "tables") as thread:
        following = thread.submit(next, coming, None)
        while (table := following.result()) is not None:
            following = thread.submit(next, coming, None)
            yield table


def _wait_for_writers(folder: Path, journals: Iterable[Path]) -> None:
    """Return once no worker has a journal open: one that lost its owner still saves what it has.

    Raises InputError where one goes on for longer than _WRITERS_S.
    """
    deadline = time.monotonic() + _WRITERS_S
    for journal in journals:
        with journal.open("rb") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise InputError(
                            f"{folder}: this run is still going on; wait for its end, or stop it"
                        ) from None
                    time.sleep(0.05)


def _whole_requests(journals: Iterable[Path]) -> Iterator[pa.Table]:
    """Tables of complete records, row-group sized."""
    import pyarrow as pa

    schema = records_schema()
    ready: list[pa.Table] = []
    events = 0
    for journal in journals:
        open_requests: dict[tuple[int, str], dict[str, Any]] = {}
        for batch in read_journal(journal):
            for table in _complete(pa.Table.from_batches([batch]), open_requests):
                ready.append(table)
                events += len(table["arrival_s"].combine_chunks().flatten()) + table.num_rows
            if events > _GROUP_EVENTS:
                yield _with_tokens(pa.concat_tables(ready))
                ready, events = [], 0
        # Fragments without an end: streams in flight when the run was killed.
        for parts in open_requests.values():
            row = _joined(parts)
            row["status"], row["error"] = "cancelled", INTERRUPTED
            row["token_source"] = row["token_source"] or "pieces"
            ready.append(pa.Table.from_pylist([row], schema=schema))
    if ready:
        yield _with_tokens(pa.concat_tables(ready))


def _complete(batch: pa.Table, open_requests: dict[tuple[int, str], dict[str, Any]]) -> Iterator[pa.Table]:
    """What of `batch` needs no earlier fragment, as it is; then requests whose last fragment it brings, joined.

    A fragment of a request that has others is told by its status (missing: not the last) or by being awaited.
    `open_requests` keeps copies, so that no batch stays in memory for a single row of it.
    """
    import numpy as np
    import pyarrow as pa

    statuses = batch["status"].to_pylist()
    if not open_requests and None not in statuses:
        yield batch
        return
    keys = list(zip(batch["cell"].to_pylist(), batch["request_id"].to_pylist(), strict=True))
    in_parts = {key for key, status in zip(keys, statuses, strict=True) if status is None}.union(open_requests)
    alone = [i for i, key in enumerate(keys) if key not in in_parts]
    if alone:
        yield batch.take(alone)
    scalars = {name: batch[name].to_pylist() for name in batch.column_names if name not in _LISTS}
    columns = {name: _list_column(batch, name) for name in _LISTS}
    lists = {name: (np.asarray(column.offsets), np.asarray(column.values)) for name, column in columns.items()}
    joined = []
    for i in (i for i, key in enumerate(keys) if key in in_parts):
        row = open_requests.setdefault(keys[i], dict.fromkeys(scalars) | {name: [] for name in _LISTS})
        row.update((name, values[i]) for name, values in scalars.items() if values[i] is not None)
        for name, (offsets, values) in lists.items():
            row[name].append(values[offsets[i] : offsets[i + 1]].copy())
        if statuses[i] is not None:
            joined.append(_joined(open_requests.pop(keys[i])))
    if joined:
        yield pa.Table.from_pylist(joined, schema=batch.schema)


def _joined(row: dict[str, Any]) -> dict[str, Any]:
    """A request's row whose lists are still in parts, made whole."""
    import numpy as np

    return row | {name: np.concatenate(row[name]) for name in _LISTS}


def _with_tokens(table: pa.Table) -> pa.Table:
    """Fill `tokens` where the journal has none: the server's final count spread evenly over the events, or one each.

    tokens[k] = max(1, round((k + 1) · T / n)) for event k of n and T tokens in all (T = n for pieces).
    A running count stays as the server sent it; one that broke off counts by its newest value, as a final one.
    """
    import numpy as np
    import pyarrow as pa

    table = table.combine_chunks()
    arrivals = _list_column(table, "arrival_s")
    tokens = _list_column(table, "tokens")
    offsets = np.asarray(arrivals.offsets)
    offsets = offsets - offsets[0]
    events = np.diff(offsets)
    running = np.diff(np.asarray(tokens.offsets)) == events
    total = table["output_tokens"].to_numpy().astype(float)
    source = np.asarray(table["token_source"].to_pylist(), dtype=object)
    source[(source == "running usage") & ~running] = "final usage"
    total = np.where((source == "final usage") & (total > 0), total, events)
    row = np.repeat(np.arange(len(events)), events)
    position = np.arange(offsets[-1]) - offsets[row] + 1
    values = np.maximum(1, np.rint(position * total[row] / events[row])).astype(np.int32)
    given = running & (source == "running usage")
    values[given[row]] = np.asarray(tokens.flatten())[np.repeat(given, np.diff(np.asarray(tokens.offsets)))]
    column = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values, pa.int32()))
    for name, filled in (("tokens", column), ("token_source", pa.array(source, pa.string()))):
        table = table.set_column(table.schema.get_field_index(name), name, filled)
    return table


def _list_column(table: pa.Table, name: str) -> pa.ListArray:
    import pyarrow as pa

    chunks = table[name].chunks
    column = pa.concat_arrays(chunks) if chunks else pa.array([], table.schema.field(name).type)
    return column.fill_null([]) if column.null_count else column


def issued(folder: Path, plan: Plan) -> Plan:
    """`plan` with the rows that were really issued: cyclic cells unrolled as far as they went, by count."""
    import numpy as np

    rows = []
    for cell in range(len(plan.cells)):
        planned = np.arange(plan.rows(cell).start, plan.rows(cell).stop)
        if plan.cyclic(cell):
            names = read_columns(folder, ["request_id"], cell)["request_id"].to_pylist()
            count = 1 + max((int(name.rpartition("-")[2]) for name in names), default=-1)
            warm = plan.warmup_count(cell)
            # A cell that came to no measured request keeps its rows: there is no lap to write, but one to repeat.
            if count > warm:
                lap = np.arange(count - warm) % (len(planned) - warm)
                planned = np.concatenate([planned[:warm], planned[warm + lap]])
        rows.append(planned)
    picked = np.concatenate(rows)
    columns = {name: getattr(plan, name)[picked] for name in Plan.COLUMNS}
    cells = [
        msgspec.structs.replace(load, duration_s=None) if plan.cyclic(cell) else load
        for cell, load in enumerate(plan.cells)
    ]
    blocks = None if plan.blocks is None else plan.blocks.take(picked)
    return replace(plan, cells=tuple(cells), blocks=blocks, **columns)


def read_records(
    folder: Path, cell: int | None = None, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Batches of a run's records, row group by row group, of one cell or of all; whole, or some columns of them."""
    for table in _ahead(_row_groups(folder, columns, cell)):
        yield from table.to_batches()


def read_columns(folder: Path, columns: Sequence[str], cell: int) -> pa.Table:
    """Some columns of one cell's records, whole."""
    import pyarrow as pa

    tables = list(_row_groups(folder, columns, cell))
    if tables:
        return pa.concat_tables(tables)
    schema = records_schema()
    return pa.schema([schema.field(name) for name in columns]).empty_table()


def _row_groups(folder: Path, columns: Sequence[str] | None, cell: int | None) -> Iterator[pa.Table]:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(folder / "records.parquet")
    except OSError as error:
        raise InputError(f"{folder}: no records; if the run was cut off, `loadstone recover {folder}`") from error
    except pa.ArrowInvalid as error:
        raise InputError(
            f"{folder / 'records.parquet'}: no Parquet file ({error}); fetch or measure it again"
        ) from error
    at = file.schema_arrow.get_field_index("cell")
    with file:
        for group in range(file.num_row_groups):
            statistics = file.metadata.row_group(group).column(at).statistics
            if cell is not None and statistics is not None and not statistics.min <= cell <= statistics.max:
                continue
            others = cell is not None and (statistics is None or statistics.min != statistics.max)
            wanted = None if columns is None else [*columns, "cell"]
            table = file.read_row_group(group, columns=wanted)
            if others:
                table = table.filter(pc.equal(table["cell"], cell))
            yield table if columns is None else table.select(columns)


# --- what the servers say of themselves ---------------------------------------------------------------------------


def server_schema() -> pa.Schema:
    """Samples of the servers' /metrics, one row each: time_s since the run's origin, replica (which of the target's
    URLs), name, labels (a JSON object, keys in order), value.
    """
    import pyarrow as pa

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
    """The samples of /metrics of a run, in the order they were taken; None where there are none that can be read.

    Nothing depends on them, so nothing fails for want of them.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = server_schema()
    try:
        if (folder / "server.parquet").exists():
            table = pq.read_table(folder / "server.parquet", columns=schema.names).cast(schema)
        else:
            table = pa.Table.from_batches(read_journal(folder / "server.arrow"), schema)
    except (OSError, ValueError, KeyError):  # Arrow's errors are among these
        return None
    return table if table.num_rows else None


def write_server(folder: Path, table: pa.Table) -> None:
    """Write server.parquet, columns as server_schema(). Raises InputError, one line, where it cannot be written."""
    import pyarrow.parquet as pq

    partial = folder / "server.parquet.part"
    try:
        pq.write_table(table, partial, compression="zstd")
        partial.replace(folder / "server.parquet")
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise _unwritable(error, folder / "server.parquet") from error


def seal_server(folder: Path) -> None:
    """Make server.parquet of server.arrow. Where that cannot be, server.arrow stays, and is read in its place."""
    import pyarrow.parquet as pq

    table = read_server(folder)
    partial = folder / "server.parquet.part"
    try:
        if table is not None and not (folder / "server.parquet").exists():
            pq.write_table(table, partial, compression="zstd")
            partial.replace(folder / "server.parquet")
        (folder / "server.arrow").unlink(missing_ok=True)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
