"""Writes runs as tables: CSV with a row per cell, and per class of traffic of it, in names that
`loadstone import` reads; Parquet with a row per request.
"""

from pathlib import Path
from typing import Any

from loadstone.analyse.classes import cell_of_class, class_columns
from loadstone.analyse.run_facts import RunFacts, run_facts
from loadstone.analyse.summary import summary_of
from loadstone.core import arrays, run_folder
from loadstone.core.errors import InputError
from loadstone.core.metrics import LATENCIES, TOTALS, Latency
from loadstone.core.record import RunInfo
from loadstone.core.statistics import STATISTICS
from loadstone.core.summary import CellSummary, Summary
from loadstone.core.text import printable, to_csv

_FACTS = (
    "tool",
    "engine",
    "engine_version",
    "model",
    "gpu",
    "gpus",
    "nodes",
    "tp",
    "pp",
    "dp",
    "ep",
    "weights_dtype",
    "kv_dtype",
    "mode",
)
_EACH = (
    "ttft_s",
    "tpot_s",
    "e2e_s",
    "answer_s",
    "answer_tokens_per_s",
    "thinking_tokens",
    "tool_call_tokens",
)
_OF_CLASS = {
    "class": "name",
    "class_model": "model",
    "priority": "priority",
    "share": "share",
    "planned_share": "planned_share",
    "rejected": "rejected",
}
"""Columns of rows of a class: what ClassPart calls them."""
_OF_POOLED = ("inputs_per_s", "documents_per_s", "input_tokens_per_s")
"""Columns that only runs for vectors or scores have."""


def cells_csv(folder: Path, info: RunInfo) -> bytes:
    """Write one row per cell: what ran, the load, counts, and every statistic as
    `<metric>_<statistic>_s`. Where there are classes of traffic, a row for each follows.

    Raises InputError.
    """
    summary = summary_of(folder)
    facts = run_facts(info, summary)
    has_classes = any(cell.by_class for cell in summary.cells)
    rows = []
    for cell in summary.cells:
        row = _make_row(summary, facts, cell)
        if cell.rate_name in _OF_POOLED:
            row |= {name: getattr(cell.metrics, name) for name in _OF_POOLED}
        rows.append(row | dict.fromkeys(_OF_CLASS if has_classes else ()))
        rows += [
            _make_row(summary, facts, cell_of_class(cell, part))
            | {name: getattr(part, field) for name, field in _OF_CLASS.items()}
            for part in cell.by_class
        ]
    if not rows:
        raise InputError(f"{folder}: nothing was sent in this run; there is nothing to export")
    shown = (
        (printable(value) if isinstance(value, str) else value for value in row.values())
        for row in rows
    )
    return to_csv(rows[0], shown).encode("utf-8", "replace")


def _make_row(summary: Summary, facts: RunFacts, cell: CellSummary) -> dict[str, Any]:
    requests = cell.requests
    metrics = cell.metrics
    load = cell.load
    done = None if requests.ok is None else requests.completed
    row: dict[str, Any] = {
        "run": summary.run_id,
        "source": summary.source,
        **{name: getattr(facts, name) for name in _FACTS},
        "input": facts.input_tokens,
        "output": facts.output_tokens,
        "range_ratio": facts.range_ratio,
        "prefix": facts.prefix_tokens,
        **{
            kind: load.value if load.kind == kind else None
            for kind in ("concurrency", "rate", "burst")
        },
        "requests": done,
        "failed": None if requests.sent is None or done is None else requests.sent - done,
        "duration_s": cell.duration_s,
        "trusted": cell.verdict.trusted,
    }
    row |= {name: getattr(metrics, name) for name in TOTALS}
    for name in LATENCIES:
        values = metrics.latency(name) or Latency()
        row |= {
            f"{name.removesuffix('_s')}_{statistic}_s": values.value(statistic)
            for statistic in STATISTICS
        }
    return row


def write_parquet(folder: Path, info: RunInfo, out: Path) -> None:
    """Write the records, each with its class of traffic where there are any, its load, its TTFT,
    TPOT, E2E and time to the answer in seconds from its send, the answer's tokens per second, and
    its tokens that are thinking and tool calls.

    Raises InputError.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = run_folder.records_schema()
    plan = run_folder.read_plan(folder) if info.source != "imported" else None

    def of_classes(batch: pa.RecordBatch) -> dict[str, pa.Array]:
        return {} if plan is None or not plan.classes else class_columns(batch, plan)

    of_class = of_classes(pa.RecordBatch.from_pylist([], schema=schema))
    for name, kind in (
        *((name, column.type) for name, column in of_class.items()),
        ("load_kind", pa.string()),
        *((name, pa.float64()) for name in ("load_value", *_EACH)),
    ):
        schema = schema.append(pa.field(name, kind))
    kinds = pa.array([cell.load.kind for cell in info.cells], pa.string())
    values = pa.array([cell.load.value for cell in info.cells], pa.float64())
    run_folder.check_cells(folder, len(info.cells))
    partial = out.with_name(out.name + ".part")
    try:
        with pq.ParquetWriter(partial, schema, compression="zstd") as writer:
            for batch in run_folder.read_records(folder):
                rows = arrays.rows(batch, arrays.events(batch))
                times = (
                    rows["first"] - rows["sent"],
                    arrays.tpot_s(rows),
                    rows["last"] - rows["sent"],
                )
                answer = (rows["answer"] - rows["sent"], arrays.answer_rate_per_s(rows))
                cells = batch.column("cell")
                columns = [
                    *batch.columns,
                    *of_classes(batch).values(),
                    kinds.take(cells),
                    values.take(cells),
                    # NaN is null
                    *(
                        pa.array(v, from_pandas=True)
                        for v in (*times, *answer, rows["thinking"], rows["tool"])
                    ),
                ]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
        partial.replace(out)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise InputError(
            f"{out}: cannot be written ({error.strerror}); give another file with -o"
        ) from error
