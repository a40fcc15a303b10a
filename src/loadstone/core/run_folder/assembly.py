"""Turns journals into records: one way for a run's normal end and for what a crash left."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from loadstone.core.errors import DiskFullError, InputError, check_room
from loadstone.core.files import check_regular
from loadstone.core.record import THINKING
from loadstone.core.run_folder.journal import Journal, wait_for_writers
from loadstone.core.run_folder.records import (
    EVENT_LISTS,
    journal_schema,
    records_schema,
    write_records,
)
from loadstone.core.vectors import Array

INTERRUPTED = "interrupted: the run ended before this request did"
DAMAGED = "a part of this request was lost with a damaged journal"

_NEARLY_ALL, _MOST = 0.9, 0.75
_COMPARED = 4
"""The fewest answers whose first texts tell whether they are alike."""
_LONGER = 2.0
"""Times the mean gap between later events that the second must come after the first: see
_drop_voids()."""
ROW_GROUP_EVENTS = 2_000_000
"""Events per Parquet row group: some 32 MB while it is built."""


def assemble(folder: Path, voids: Counter[int] | None = None) -> int:
    """Make records.parquet of the journals; returns the number of records. Who calls it owns the
    folder (store.own).

    `voids`: leave out first events that were no token, and count the requests by their cell.

    Requests without a final fragment, or without one between, become `cancelled`, with what had
    arrived. Works in one pass, holding only requests whose fragments are still incomplete. The
    journals are removed once the records are on disk; those that were damaged stay, for
    damaged_journals() to tell what is lost. Raises DiskFullError where there is no room: journals
    stay, and `loadstone recover` goes on from there; and InputError where a worker still writes,
    after waiting WRITERS_TIMEOUT_S for it to end, or a journal cannot be read.
    """

    journals = [Journal(path) for path in sorted(folder.glob("journal-*.arrow"))]
    target = folder / "records.parquet"
    if target.exists():
        # Whole, since it comes by renaming; journals beside it are what a crash left of their
        # removal.
        try:
            check_regular(target)
            count = int(pq.read_metadata(target).num_rows)
        except (OSError, pa.ArrowException) as error:
            check_room(error)
            remedy = "remove it, then recover again" if journals else "copy or measure it again"
            raise InputError(f"{target}: not a Parquet file ({error}); {remedy}") from error
        for journal in journals:
            for _ in journal:
                pass
        _remove_whole(journals)
        return count
    if not journals:
        raise InputError(
            f"{folder}: neither journals nor records; nothing was measured in this run, measure"
            " again"
        )
    wait_for_writers(folder, [journal.path for journal in journals])
    for left in [*folder.glob(".reserve-*"), *folder.glob("*.part")]:
        left.unlink(missing_ok=True)
    try:
        count = write_records(folder, _join_requests(journals, voids))
    except DiskFullError as error:
        raise DiskFullError(
            f"{folder}: disk full; all that was measured is in its journals: free some space, "
            f"then `loadstone recover {folder}`"
        ) from error
    _remove_whole(journals)
    return count


def _remove_whole(journals: Iterable[Journal]) -> None:
    for journal in journals:
        if journal.damage is None:
            journal.path.unlink()


def _join_requests(
    journals: Iterable[Journal], voids: Counter[int] | None = None
) -> Iterator[pa.Table]:
    """Yield tables of complete records, row-group sized."""

    schema = pa.schema([field for field in journal_schema() if field.name != "earlier_events"])

    def finished() -> pa.Table:
        table = pa.concat_tables(ready).combine_chunks()
        if voids is not None:
            table = _drop_voids(table, voids)
        return _fill_tokens(table.select(records_schema().names))

    ready: list[pa.Table] = []
    events = 0
    for journal in journals:
        open_requests: dict[tuple[int, str], dict[str, Any]] = {}
        for batch in journal:
            for table in _take_complete(pa.Table.from_batches([batch]), open_requests):
                ready.append(table)
                events += len(table["arrival_s"].combine_chunks().flatten()) + table.num_rows
            if events > ROW_GROUP_EVENTS:
                yield finished()
                ready, events = [], 0
        # Fragments without an end: streams in flight when the run was killed, or whose end is lost.
        for parts in open_requests.values():
            row = _join(parts)
            row["status"] = "cancelled"
            row["error"] = DAMAGED if journal.damage is not None else INTERRUPTED
            row["token_source"] = row["token_source"] or "pieces"
            ready.append(pa.Table.from_pylist([row], schema=schema))
    if ready:
        yield finished()


def _take_complete(
    batch: pa.Table, open_requests: dict[tuple[int, str], dict[str, Any]]
) -> Iterator[pa.Table]:
    """Yield what of `batch` needs no earlier fragment, as it is; then requests whose last fragment
    it brings, joined.

    A fragment of a request that has others is told by its status (missing: not the last), or by the
    events before it. `open_requests` keeps copies, so that no batch stays in memory for a single
    row of it.
    """

    statuses = batch["status"].to_pylist()
    earlier = batch["earlier_events"].to_pylist()
    batch = batch.drop_columns("earlier_events")
    if not open_requests and None not in statuses and not any(earlier):
        yield batch
        return
    keys = list(zip(batch["cell"].to_pylist(), batch["request_id"].to_pylist(), strict=True))
    in_parts = {
        key
        for key, status, events in zip(keys, statuses, earlier, strict=True)
        if status is None or events
    }
    in_parts.update(open_requests)
    alone = [i for i, key in enumerate(keys) if key not in in_parts]
    if alone:
        yield batch.take(alone)
    scalars = {
        name: batch[name].to_pylist() for name in batch.column_names if name not in EVENT_LISTS
    }
    columns = {name: _list_column(batch, name) for name in EVENT_LISTS}
    lists = {
        name: (np.asarray(column.offsets), np.asarray(column.values))
        for name, column in columns.items()
    }
    joined = []
    for i in (i for i, key in enumerate(keys) if key in in_parts):
        row = open_requests.setdefault(
            keys[i], dict.fromkeys(scalars) | {name: [] for name in EVENT_LISTS}
        )
        row.update((name, values[i]) for name, values in scalars.items() if values[i] is not None)
        arrived = sum(map(len, row["arrival_s"]))
        for name, (offsets, values) in lists.items():
            row[name].append(values[offsets[i] : offsets[i + 1]].copy())
        if statuses[i] is not None:
            whole = _join(open_requests.pop(keys[i]))
            if earlier[i] not in (None, arrived) and statuses[i] in ("ok", "short"):
                whole |= {"status": "cancelled", "error": DAMAGED}
            joined.append(whole)
    if joined:
        yield pa.Table.from_pylist(joined, schema=batch.schema)


def _join(row: dict[str, Any]) -> dict[str, Any]:
    """Join the parts of the lists of a request's row."""

    return row | {name: np.concatenate(row[name]) for name in EVENT_LISTS}


def _drop_voids(table: pa.Table, voids: Counter[int]) -> pa.Table:
    """Drop first events that were no token: those that the client knows of, and those that the
    counts tell. Answers of a cell had more events than tokens, and what follows the first few comes
    after a longer time than later ones. The counts alone would fit a last event that is none as
    well: so the first event says the same in most of them, or the last does not. Where nobody knows
    what the first says, nearly every answer has as many.
    """

    arrivals = _list_column(table, "arrival_s")
    times = arrivals.flatten().to_numpy()
    events = arrivals.value_lengths().to_numpy()
    firsts = np.cumsum(events) - events
    cell, total = table["cell"].to_numpy(), pc.fill_null(table["output_tokens"], 0).to_numpy()
    opening, closing = (pc.fill_null(table[name], 0).to_numpy() for name in ("opening", "closing"))
    void = np.minimum(pc.fill_null(table["voids"], 0).to_numpy(), events)
    ended = (
        np.array(pc.is_in(table["status"], pa.array(["ok", "short"]))) & (total > 0) & (void == 0)
    )
    ended &= np.array(pc.is_in(table["token_source"], pa.array(["final usage", "running usage"])))
    spare = np.where(ended & ~_are_summarised(table, total), events - total, 0)
    rows = np.flatnonzero(ended & (total > 1) & (events > 2))
    begun, beyond = firsts[rows], np.clip(spare[rows], 1, events[rows] - 2)
    own_s = times[begun + beyond]
    later_s = (times[begun + events[rows] - 1] - own_s) / (events[rows] - beyond - 1)
    fits = (spare[rows] > 0) & (own_s - times[begun] > _LONGER * beyond * later_s)
    for number in np.unique(cell[rows]):
        in_cell = cell[rows] == number
        signs = in_cell & (spare[rows] > 0)
        begins, ends = _are_alike(opening[rows[signs]]), _are_alike(closing[rows[signs]])
        # Where it is not known what the first says, nearly all answers have it.
        alike = begins or ends is False
        if begins is None:
            alike = signs.sum() >= _NEARLY_ALL * in_cell.sum()
        if alike and fits[signs].mean() >= _MOST:
            chosen = rows[signs & (fits | (spare[rows] == 1))]
            void[chosen] = spare[chosen]
    if not void.any():
        return table
    voids.update(cell[void > 0].tolist())
    for name in EVENT_LISTS:
        column = _list_column(table, name)
        lengths = column.value_lengths().to_numpy()
        cut = np.where(
            lengths == events, void, 0
        )  # no tokens are listed where a final count is to be spread
        place = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        offsets = np.concatenate([[0], np.cumsum(lengths - cut)]).astype(np.int32)
        values = column.flatten().filter(pa.array(place >= np.repeat(cut, lengths)))
        lists = pa.ListArray.from_arrays(pa.array(offsets), values)
        table = table.set_column(table.schema.get_field_index(name), name, lists)
    return table


def _are_summarised(table: pa.Table, total: Array) -> Array:
    """Mark the answers that begin with a summary of thinking which is hidden: more was counted than
    came, `total`."""
    thinking = pc.fill_null(table["reasoning_tokens"], 0).to_numpy()
    channels = _list_column(table, "channel")
    sizes = channels.value_lengths().to_numpy()
    begins = np.zeros(len(sizes), np.int64)
    places = (np.cumsum(sizes) - sizes)[sizes > 0]
    begins[sizes > 0] = channels.flatten().to_numpy()[places]
    return np.asarray((begins == THINKING) & (thinking > total))


def _are_alike(digests: Array) -> bool | None:
    """Tell if most of these texts are one; None where they are not known, or too few."""
    counts = np.unique(digests[digests != 0], return_counts=True)[1]
    if counts.sum() < _COMPARED or 2 * counts.sum() < len(digests):
        return None
    return bool(counts.max() >= _MOST * counts.sum())


def _fill_tokens(table: pa.Table) -> pa.Table:
    """Fill `tokens` where the journal has none: the server's final count spread evenly over the
    events, or one each.

    tokens[k] = max(1, round((k + 1) · T / n)) for event k of n and T tokens in all (T = n for
    pieces). A running count stays as the server sent it; one that broke off counts by its newest
    value, as a final one.
    """

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
    counted = running & (source == "running usage")
    values[counted[row]] = np.asarray(tokens.flatten())[
        np.repeat(counted, np.diff(np.asarray(tokens.offsets)))
    ]
    column = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values, pa.int32()))
    for name, filled in (("tokens", column), ("token_source", pa.array(source, pa.string()))):
        table = table.set_column(table.schema.get_field_index(name), name, filled)
    return table


def _list_column(table: pa.Table, name: str) -> pa.ListArray:

    chunks = table[name].chunks
    column = pa.concat_arrays(chunks) if chunks else pa.array([], table.schema.field(name).type)
    return column.fill_null([]) if column.null_count else column
