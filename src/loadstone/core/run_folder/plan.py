"""Stores plans as Parquet: columns as Plan has them, its description in the schema's metadata."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from loadstone.core.errors import InputError, check_room
from loadstone.core.files import check_regular
from loadstone.core.plan import Blocks, Load, Plan
from loadstone.core.run_folder.folder import replace_file
from loadstone.core.run_folder.records import read_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

PLAN_SCHEMA = 3
"""In 2, arrivals were drawn otherwise; the file is the same."""
_SCHEMAS = (2, PLAN_SCHEMA)
_LONGEST = 1 << 24
"""Tokens; nothing longer can be asked for (wire.tolerant.MAX_COUNT)."""
_COUNTS = ("input_tokens", "output_tokens", "prefix_tokens")
_NUMBER = re.compile("[0-9]{1,12}")
_MOST_GAPS = 1000
"""Requests that were issued to one that is known, at most: where all but one of so many workers died."""


def write_plan(path: Path, plan: Plan) -> None:
    """Save a plan. Raises InputError as replace_file() does."""
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
    with replace_file(path) as partial:
        pq.write_table(table, partial, compression="zstd", write_page_checksum=True)


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
    if not path.exists():
        raise InputError(f"{path}: no such file; give a run folder, or a saved plan.parquet")
    try:
        check_regular(path)
        table = pq.read_table(path, page_checksum_verification=True)
        about = msgspec.json.decode(table.schema.metadata[b"loadstone.plan"], type=_PlanDescription)
        columns = {name: table[name].to_numpy() for name in Plan.COLUMNS if name != "prompt"}
        texts = table["prompt"].combine_chunks().dictionary_encode()
        blocks = _blocks(table, about.block_tokens) if about.block_tokens else None
    except OSError as error:
        check_room(error)
        raise InputError(f"{path}: cannot be read ({error.strerror or error}); give a saved plan.parquet") from error
    except (pa.ArrowException, KeyError, TypeError, ValueError, RecursionError) as error:
        check_room(error)
        raise InputError(f"{path}: not a plan this version of Loadstone can read ({error})") from error
    if about.schema not in _SCHEMAS:
        reads = " and ".join(map(str, _SCHEMAS))
        raise InputError(f"{path}: plan of schema {about.schema}; this version of Loadstone reads {reads}")
    impossible = [name for name in _COUNTS if not _check_within(columns[name], _LONGEST)]
    if not _check_within(columns["cell"], len(about.cells) - 1, 0) or (np.diff(columns["cell"]) < 0).any():
        impossible.append("cell")
    if impossible:
        raise InputError(f"{path}: not a plan: numbers in {', '.join(impossible)} are impossible")
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


def _check_within(column: NDArray[Any], most: int, least: int = -1) -> bool:
    return len(column) == 0 or (int(column.min()) >= least and int(column.max()) <= most)


def _blocks(table: pa.Table, tokens: int) -> Blocks:
    import numpy as np

    lists = table["blocks"].combine_chunks()
    offsets = np.asarray(lists.offsets).astype(np.int64)
    return Blocks(tokens, offsets - offsets[0], np.asarray(lists.flatten()).astype(np.int32))


def cut_to_issued(folder: Path, plan: Plan, cut: Collection[int] = ()) -> Plan:
    """`plan` with the rows that were really issued: cyclic cells unrolled as far as they went, by count; and those of
    `cut`, that ended early, as far as they went.

    A cell that came to no measured request stays as it was planned: there is no lap to write, but one to repeat.
    """
    import numpy as np

    rows, cells = [], list(plan.cells)
    for cell, load in enumerate(plan.cells):
        planned = np.arange(plan.rows(cell).start, plan.rows(cell).stop)
        if plan.cyclic(cell) or cell in cut:
            names = read_columns(folder, ["request_id"], cell)["request_id"].to_pylist()
            numbers = [(name or "").rpartition("-")[2] for name in names]
            count = 1 + max((int(number) for number in numbers if _NUMBER.fullmatch(number)), default=-1)
            if count > _MOST_GAPS * (1 + len(names)):
                raise InputError(f"{folder}: {len(names)} records with numbers up to {count} are of no run")
            warm = plan.warmup_count(cell)
            if count > warm and not plan.cyclic(cell):
                planned = planned[:count]
            elif count > warm:
                cells[cell] = msgspec.structs.replace(load, duration_s=None)
                lap = np.arange(count - warm) % (len(planned) - warm)
                planned = np.concatenate([planned[:warm], planned[warm + lap]])
        rows.append(planned)
    picked = np.concatenate(rows)
    columns = {name: getattr(plan, name)[picked] for name in Plan.COLUMNS}
    blocks = None if plan.blocks is None else plan.blocks.take(picked)
    return replace(plan, cells=tuple(cells), blocks=blocks, **columns)
