"""Stores plans as Parquet: columns as Plan has them, its description in the schema's metadata."""

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from loadstone.core.calls import CallGraph
from loadstone.core.errors import InputError, check_room
from loadstone.core.files import check_regular
from loadstone.core.pictures import Pictures, PictureShape
from loadstone.core.plan import (
    Blocks,
    Inputs,
    Load,
    Plan,
    PoolingTask,
    TrafficClass,
    rank_by_first_use,
)
from loadstone.core.run_folder.folder import replace_file
from loadstone.core.run_folder.records import read_columns
from loadstone.core.vectors import Array, Ints32, Ints64

PLAN_SCHEMA = 3
"""In 2, arrivals were drawn otherwise; the file is the same."""
_GRAPH_SCHEMA = 4
"""With recorded calls; other sessions are chains, which follow from the turns."""
_CLASS_SCHEMA = 5
"""With classes of traffic."""
_INPUTS_SCHEMA = 6
"""With texts of which vectors or scores are asked for."""
_PICTURE_SCHEMA = 7
"""With pictures."""
_SCHEMAS = (2, PLAN_SCHEMA, _GRAPH_SCHEMA, _CLASS_SCHEMA, _INPUTS_SCHEMA, _PICTURE_SCHEMA)
_PICTURE_COLUMNS = {"picture": np.int32, "pictures": np.uint8, "picture_group": np.int32}
_LONGEST = 1 << 24
"""Tokens; nothing longer can be asked for (wire.tolerant.MAX_COUNT)."""
_COUNTS = ("input_tokens", "output_tokens", "prefix_tokens")
_NUMBER = re.compile("[0-9]{1,12}")
_MOST_GAPS = 1000
"""Requests that were issued to one that is known, at most: where all but one of so many workers
died."""


def write_plan(path: Path, plan: Plan) -> None:
    """Save a plan. Raises InputError as replace_file() does."""

    columns = {name: pa.array(getattr(plan, name)) for name in Plan.COLUMNS}
    columns["prompt"] = pa.array(
        [None if i < 0 else plan.prompts[i] for i in plan.prompt], pa.large_string()
    )
    if plan.blocks is not None:
        columns["blocks"] = _lists(plan.blocks.offsets, plan.blocks.ids)
    if plan.graph.recorded:
        columns |= _graph_columns(plan)
    schema = _GRAPH_SCHEMA if plan.graph.recorded else PLAN_SCHEMA
    if plan.traffic_class is not None:
        columns["class"] = pa.array(plan.traffic_class)
        schema = _CLASS_SCHEMA
    if plan.adapter is not None:
        columns["adapter"] = pa.array(plan.adapter)
    if plan.inputs is not None:
        columns["inputs"] = _lists(plan.inputs.offsets, plan.inputs.tokens)
        schema = _INPUTS_SCHEMA
    pictures = plan.pictures
    if pictures is not None:
        values = (pictures.shape, pictures.count, pictures.group)
        columns |= dict(zip(_PICTURE_COLUMNS, map(pa.array, values), strict=True))
        schema = _PICTURE_SCHEMA
    table = pa.table(columns)
    description = _PlanDescription(
        schema,
        plan.seed,
        plan.cells,
        plan.workload,
        plan.exact_output,
        plan.chat,
        0 if plan.blocks is None else plan.blocks.tokens,
        plan.graph.recorded and plan.graph.live,
        plan.classes,
        None if plan.inputs is None else plan.inputs.task,
        () if pictures is None else pictures.shapes,
    )
    table = table.replace_schema_metadata({"loadstone.plan": msgspec.json.encode(description)})
    with replace_file(path) as partial:
        pq.write_table(table, partial, compression="zstd", write_page_checksum=True)


def _lists(offsets: Ints64, values: Any) -> pa.Array:
    """Make a column of lists that lie end to end."""

    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values))


def _graph_columns(plan: Plan) -> dict[str, pa.Array]:
    """Make the columns that only recorded sessions have. A message is stored where it is first
    used, and numbered so."""

    graph, blocks = plan.graph, plan.blocks
    columns = {
        "sent": pa.array(graph.sent),
        "copy": pa.array(graph.copy),
        "parents": _lists(graph.offsets, graph.parents),
    }
    if blocks is None:
        return columns
    columns |= {"back": pa.array(blocks.back), "kept": pa.array(blocks.kept)}
    if not blocks.tokens:
        ranks, used, first = rank_by_first_use(blocks.ids)
        columns["blocks"] = _lists(blocks.offsets, ranks)
        texts = pa.array([plan.prompts[number] for number in used.tolist()], pa.large_string())
        columns["messages"] = _lists(np.searchsorted(first, blocks.offsets), texts)
    return columns


class _PlanDescription(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    schema: int
    seed: int
    cells: tuple[Load, ...]
    workload: dict[str, Any]
    exact_output: bool
    chat: bool
    block_tokens: int
    live: bool = False
    classes: tuple[TrafficClass, ...] = ()
    task: PoolingTask | None = None
    pictures: tuple[PictureShape, ...] = ()


def read_plan(path: Path) -> Plan:
    """Load a saved plan. Raises InputError where the file is not one, or of another version."""

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
        blocks = _blocks(table, about.block_tokens) if "blocks" in table.column_names else None
        classes = table["class"].to_numpy().astype(np.uint8) if about.classes else None
        adapter = table["adapter"].to_numpy() if "adapter" in table.column_names else None
        inputs = None if about.task is None else _inputs(table, about.task)
        pictures = _pictures(table, about.pictures) if about.pictures else None
        graph = CallGraph.of_turns(columns["turn"])
        if about.schema == _GRAPH_SCHEMA:
            graph = _graph(table, about.live)
        messages = (
            _ids(table, "messages")[1].to_pylist()
            if blocks is not None and not blocks.tokens
            else []
        )
    except OSError as error:
        check_room(error)
        raise InputError(
            f"{path}: cannot be read ({error.strerror or error}); give a saved plan.parquet"
        ) from error
    except (pa.ArrowException, KeyError, TypeError, ValueError, RecursionError) as error:
        check_room(error)
        raise InputError(
            f"{path}: not a plan this version of Loadstone can read ({error})"
        ) from error
    if about.schema not in _SCHEMAS:
        reads = f"{_SCHEMAS[0]} to {_SCHEMAS[-1]}"
        raise InputError(
            f"{path}: plan of schema {about.schema}; this version of Loadstone reads {reads}"
        )
    impossible = [name for name in _COUNTS if not _check_within(columns[name], _LONGEST)]
    if (
        not _check_within(columns["cell"], len(about.cells) - 1, 0)
        or (np.diff(columns["cell"]) < 0).any()
    ):
        impossible.append("cell")
    if classes is not None and not _check_within(classes, len(about.classes) - 1, 0):
        impossible.append("class")
    adapters = {name for kind in about.classes for name in kind.adapter_names}
    if adapter is not None and not _check_within(adapter, len(adapters), 0):
        impossible.append("adapter")
    if inputs is not None and not _is_possible(inputs, columns["output_tokens"]):
        impossible.append("inputs")
    impossible += _find_impossible(blocks, graph, columns["turn"], len(messages))
    if impossible:
        raise InputError(f"{path}: not a plan: numbers in {', '.join(impossible)} are impossible")
    picks = texts.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
    columns["prompt"] = np.where(picks < 0, -1, picks + len(messages)).astype(np.int32)
    return Plan(
        about.seed,
        about.cells,
        about.workload,
        about.exact_output,
        chat=about.chat,
        prompts=[*messages, *texts.dictionary.to_pylist()],
        blocks=blocks,
        graph=graph,
        classes=about.classes,
        traffic_class=classes,
        adapter=adapter,
        inputs=inputs,
        pictures=pictures,
        **columns,
    )


def _inputs(table: pa.Table, task: PoolingTask) -> Inputs:
    offsets, tokens = _ids(table, "inputs")
    return Inputs(task, offsets, np.asarray(tokens).astype(np.int32))


def _is_possible(inputs: Inputs, tokens: Ints32) -> bool:
    """Tell whether each row has the texts of what it asks for."""
    texts = np.diff(inputs.offsets) - inputs.has_queries
    return np.array_equal(texts, tokens) and _check_within(inputs.tokens, _LONGEST, 1)


def _check_within(column: Array, highest: int, lowest: int = -1) -> bool:
    return len(column) == 0 or (int(column.min()) >= lowest and int(column.max()) <= highest)


def _ids(table: pa.Table, name: str) -> tuple[Ints64, pa.Array]:
    """Read a column of lists: where each begins, and all of them end to end."""

    lists = table[name].combine_chunks()
    offsets = np.asarray(lists.offsets).astype(np.int64)
    return offsets - offsets[0], lists.flatten()


def _blocks(table: pa.Table, tokens: int) -> Blocks:

    offsets, column = _ids(table, "blocks")
    ids = np.asarray(column).astype(np.int32)
    if "kept" not in table.column_names:
        return Blocks.whole(tokens, offsets, ids)
    back, kept = (table[name].to_numpy().astype(np.int32) for name in ("back", "kept"))
    return Blocks(tokens, offsets, ids, back, kept)


def _pictures(table: pa.Table, shapes: tuple[PictureShape, ...]) -> Pictures:
    """Read the pictures of rows. Raises ValueError: of a shape that there is not."""
    shape, count, group = (
        table[name].to_numpy().astype(kind) for name, kind in _PICTURE_COLUMNS.items()
    )
    if not _check_within(shape, len(shapes) - 1, 0):
        raise ValueError("a picture of no shape")
    return Pictures(shapes, shape, count, group)


def _graph(table: pa.Table, live: bool) -> CallGraph:

    offsets, parents = _ids(table, "parents")
    sent, copy = np.array(table["sent"].to_numpy(), bool), table["copy"].to_numpy().astype(np.int32)
    return CallGraph(offsets, np.asarray(parents).astype(np.int32), sent, copy, True, live)


def _find_impossible(
    blocks: Blocks | None, graph: CallGraph, turn: Ints32, messages: int
) -> Iterator[str]:
    """Name the columns of sessions in which numbers point to rows or messages that are not
    there."""

    edges = np.diff(graph.offsets)
    within = (graph.parents >= 0) & (graph.parents < np.repeat(turn, edges))
    if not within.all() or ((edges == 0) & (turn > 0)).any():
        yield "parents"
    if blocks is None:
        return
    back, kept = blocks.back, blocks.kept
    whole = np.diff(blocks.offsets) + kept
    base = (np.arange(len(back)) - back).clip(0, max(0, len(back) - 1))
    wrong = (kept < 0) | ((kept > 0) & ((back == 0) | (kept > whole[base])))
    if ((back < 0) | (back > turn.clip(0)) | wrong).any():
        yield "kept"
    if not blocks.tokens and not _check_within(blocks.ids, messages - 1, 0):
        yield "blocks"


def cut_to_issued(folder: Path, plan: Plan, cut: Collection[int] = ()) -> Plan:
    """`plan` with the rows that were really issued: cyclic cells unrolled as far as they went, by
    count; and those of `cut`, that ended early, as far as they went.

    A cell that came to no measured request stays as it was planned: there is no lap to write, but
    one to repeat.
    """

    rows, cells = [], list(plan.cells)
    for cell, load in enumerate(plan.cells):
        planned = np.arange(plan.rows(cell).start, plan.rows(cell).stop)
        if plan.cyclic(cell) or cell in cut:
            count, warm = _count_issued(folder, plan, cell), plan.warmup_count(cell)
            if count > warm and not plan.cyclic(cell):
                planned = planned[:count]
            elif count > warm:
                if not plan.class_slots:
                    # Slots of classes came to unlike numbers, and end together by time alone.
                    cells[cell] = msgspec.structs.replace(load, duration_s=None)
                lap = np.arange(count - warm) % (len(planned) - warm)
                planned = np.concatenate([planned[:warm], planned[warm + lap]])
        rows.append(planned)
    cut_plan = plan.take(np.concatenate(rows), cells=tuple(cells))
    if plan.graph.recorded:
        copies = [
            plan.copy(cell, index)
            for cell, issued in enumerate(rows)
            for index in range(len(issued))
        ]
        cut_plan.graph.copy = np.array(copies, np.int32)
    return cut_plan


def _count_issued(folder: Path, plan: Plan, cell: int) -> int:
    """Count the requests of a cell up to the last that has a record; a recorded session that was
    begun is planned whole."""
    names = read_columns(folder, ["request_id"], cell)["request_id"].to_pylist()
    numbers = [(name or "").rpartition("-")[2] for name in names]
    count = 1 + max((int(number) for number in numbers if _NUMBER.fullmatch(number)), default=-1)
    if count > _MOST_GAPS * (1 + len(names)):
        raise InputError(f"{folder}: {len(names)} records with numbers up to {count} are of no run")
    last = len(plan.rows(cell))
    if plan.graph.recorded and count > plan.warmup_count(cell):
        while (plan.cyclic(cell) or count < last) and plan.turn[plan.row(cell, count)] > 0:
            count += 1
    return count
