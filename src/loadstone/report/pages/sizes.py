"""Sizing for people: one line per deployment, or one number of each as a table of two facts."""

from collections.abc import Collection, Sequence

import msgspec

from loadstone.core.errors import InputError
from loadstone.core.text import to_csv
from loadstone.predict.sizing.size import Row
from loadstone.report.data.wording import clean
from loadstone.report.table import Shown, Table, show_verdict

_GIB = 1 << 30

SHOWN = {
    "max-context": "max_context_tokens",
    "requests": "max_concurrent_requests",
    "kv-tokens": "kv_capacity_tokens",
    "fits": "fits",
}
"""What a table of two facts may show, and where a row has it."""
FACTS = (
    "model",
    "gpu",
    "gpus",
    "tp",
    "pp",
    "dp",
    "ep",
    "weights_dtype",
    "kv_dtype",
    "engine",
    "context_tokens",
    "batch",
    "machine",
)
"""What rows may differ in: `machine` is the GPUs and how many, 8×h200."""
Value = str | int | float


_HEADS = (
    "weights",
    "activ.",
    "KV needed",
    "KV room",
    "KV tokens",
    "context",
    "batch",
    "max context",
    "max requests",
    "sessions",
)


def render(rows: Sequence[Row]) -> list[Shown]:
    """Show what fits, and a line per row, in GiB per GPU; below the table why, by number, and what
    configs left open."""
    engines = list(
        dict.fromkeys(" ".join(filter(None, (row.engine, row.engine_version))) for row in rows)
    )
    several = len(engines) > 1
    reasons: list[str] = []
    lines = [_line(row, several, reasons) for row in rows]
    heads = ["model", "GPUs", "parallel", *(["engine"] if several else []), *_HEADS, "fits"]
    align = "wnn" + "n" * several + "r" * len(_HEADS) + "n"
    return [
        _decide(rows),
        Table(heads=heads, align=align, rows=lines, style=show_verdict),
        (
            f"GiB per GPU, by the memory rules of {', '.join(engines)} · KV needed: by the batch at"
            " its context · max context: of the batch · max requests, sessions: of the given"
            " context, under way and kept in the KV cache (with the host's memory)"
        ),
        *(f"({number}) {clean(reason, 800)}" for number, reason in enumerate(reasons, 1)),
        *_assumptions(rows),
    ]


def _decide(rows: Sequence[Row]) -> str:
    """Say whether the deployment fits; of several, how many do."""
    if len(rows) > 1:
        kind = "pools" if all(row.pool for row in rows) else "deployments"
        return f"{sum(row.fits for row in rows)} of {len(rows)} {kind} fit."
    (row,) = rows
    verb, requests = (
        ("fits", row.max_concurrent_requests) if row.fits else ("does not fit", row.batch)
    )
    return (
        f"{clean(row.model.rpartition('/')[2])} {verb} on {row.machine} with {requests:,} ×"
        f" {row.context_tokens:,} tokens at once."
    )


def _line(row: Row, several: bool, reasons: list[str]) -> list[str]:
    gib = row.gpus * _GIB
    warm = f"{row.warm_sessions:,}"
    if row.warm_sessions_host is not None:
        warm += f" ({row.warm_sessions_host:,})"
    cache = [
        f"{row.kv_bytes / gib:.1f}",
        f"{(row.free_bytes + row.kv_bytes) / gib:.1f}",
        f"{row.kv_capacity_tokens:,}",
    ]
    if not (row.kv_bytes_per_token or row.kv_bytes):
        cache, warm = ["-"] * len(cache), "-"
    requests = (
        row.context_tokens,
        row.batch,
        row.max_context_tokens,
        row.max_concurrent_requests,
    )
    return [
        f"{clean(row.model.rpartition('/')[2])} {row.weights_dtype}, KV {row.kv_dtype}",
        f"{row.pool}: {row.workers} × {row.machine}" if row.pool else row.machine,
        _parallel(row),
        *([row.engine] if several else []),
        f"{(row.weights_bytes + (row.adapters_bytes or 0.0)) / gib:.1f}",
        f"{(row.activation_bytes + row.pictures_bytes) / gib:.1f}",
        *cache,
        *("-" if row.pool == "encode" else f"{number:,}" for number in requests),
        warm,
        _fits(row, reasons),
    ]


def _assumptions(rows: Sequence[Row]) -> list[str]:
    """List what was assumed, a line for each model whose config left something open."""
    assumed = {row.model: row.assumed for row in rows if row.assumed}
    return [f"assumed for {clean(model)}: {clean(text, 400)}" for model, text in assumed.items()]


def _parallel(row: Row) -> str:
    named = (("tp", row.tp), ("pp", row.pp), ("dp", row.dp), ("ep", row.ep))
    return " ".join(f"{name}{ranks}" for name, ranks in named if ranks > 1) or "tp1"


def _fits(row: Row, reasons: list[str]) -> str:
    word = "yes" if row.fits else "NO"
    if not row.why:
        return word
    if row.why not in reasons:
        reasons.append(row.why)
    return f"{word} ({reasons.index(row.why) + 1})"


def render_pivot(rows: Sequence[Row], by: Sequence[str], shown: str) -> list[Shown]:
    """Show one number of each row, by two facts: down, across. Raises InputError: a fact that no
    row has, and rows that differ in a third.
    """
    row_names, column_names, cells = _pivot(rows, by, shown)
    lines = [
        [name, *(_show(cells.get((name, head))) for head in column_names)] for name in row_names
    ]
    table = Table(heads=[by[0], *column_names], align="w" + "r" * len(column_names), rows=lines)
    return [shown, table, *_assumptions(rows)]


def _pivot(
    rows: Sequence[Row], by: Sequence[str], shown: str
) -> tuple[list[str], list[str], dict[tuple[str, str], Value]]:
    """Return rows' names, columns' names, and the values; see render_pivot(). Raises InputError."""
    names = [name.replace("-", "_") for name in by]
    for name in names:
        if name not in FACTS:
            raise InputError(
                f"--by: {name!r} is not a fact of a row; write two of {', '.join(FACTS)}"
            )
    if len(names) != 2 or names[0] == names[1]:
        raise InputError(
            f"--by: two facts are needed; write e.g. gpus,model, of {', '.join(FACTS)}"
        )
    if shown not in SHOWN:
        raise InputError(f"--show: {shown!r} is not known; write one of {', '.join(SHOWN)}")
    row_names: dict[str, None] = {}
    column_names: dict[str, None] = {}
    cells: dict[tuple[str, str], Value] = {}
    for row in rows:
        place = clean(str(getattr(row, names[0]))), clean(str(getattr(row, names[1])))
        if place in cells:
            differing = ", ".join(_also(rows, names)) or "nothing"
            raise InputError(f"--by: rows differ in {differing} too; give one value of each")
        row_names[place[0]] = column_names[place[1]] = None
        cells[place] = getattr(row, SHOWN[shown])
    return list(row_names), list(column_names), cells


def _also(rows: Sequence[Row], names: Collection[str]) -> list[str]:
    """List the facts in which rows differ that are alike in `names`; none that follows from others,
    as tp."""
    determined, differing = list(names), []
    for name in FACTS:
        places = {tuple(getattr(row, fact) for fact in determined) for row in rows}
        if len({tuple(getattr(row, fact) for fact in (*determined, name)) for row in rows}) > len(
            places
        ):
            determined.append(name)
            differing.append(name)
    return differing


def _show(value: Value | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}"


def sizes_csv(rows: Sequence[Row]) -> str:
    """Write a line per row under the names that the JSON has."""
    values = (
        [
            str(value).lower() if isinstance(value, bool) else value
            for value in msgspec.structs.astuple(row)
        ]
        for row in rows
    )
    return to_csv(Row.__struct_fields__, values)
