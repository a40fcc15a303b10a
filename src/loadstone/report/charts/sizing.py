"""Sizing as pictures: where a GPU's memory goes, and the longest context of each model on each
machine."""

from collections import defaultdict
from collections.abc import Collection, Sequence

import altair as alt

from loadstone.analyse.run_facts import gpu_name
from loadstone.core.errors import InputError
from loadstone.predict.sizing.size import Row
from loadstone.report.charts.theme import (
    BLUE,
    CYAN,
    GREEN,
    GREY,
    VERMILION,
    Figure,
    data,
    figure,
    tooltips,
)
from loadstone.report.data.wording import clean

PARTS = (
    ("weights", BLUE),
    ("activations, runtime", VERMILION),
    ("KV needed", GREEN),
    ("KV room left", CYAN),
    ("left by the engine", GREY),
)
"""In the order they are stacked."""
_MOST = 40
"""Bars, rows or columns that can still be read."""
_GIB = 1 << 30


def memory_picture(rows: Sequence[Row]) -> Figure:
    """Draw one bar per row, in GiB per GPU (mean over a pipeline's stages), with a line where the
    GPU ends; what lies beyond it does not fit. Raises InputError where there is nothing, or too
    much, to draw.
    """
    if not rows:
        raise InputError("--picture: no rows to draw")
    if len(rows) > _MOST:
        raise InputError(
            f"--picture: {len(rows)} bars are too many to read; ask for at most {_MOST} deployments"
        )
    names = _names(rows)
    values = [
        {
            "deployment": name,
            "part": part,
            "order": order,
            "gib": gib,
            "why": clean(row.why, 200),
            "ends": row.usable_bytes / row.gpus / _GIB,
        }
        for name, row in zip(names, rows, strict=True)
        for order, (part, gib) in enumerate(_parts(row).items())
    ]
    parts, colours = zip(*PARTS, strict=True)
    bars = (
        alt.Chart(data(values))
        .mark_bar(size=20)
        .encode(
            y=alt.Y("deployment:N", title=None, sort=names).axis(labelLimit=420, ticks=False),
            x=alt.X("gib:Q", title="GiB per GPU", stack="zero"),
            color=alt.Color("part:N", title=None).scale(domain=parts, range=colours),
            order="order:Q",
            tooltip=tooltips(("deployment:N",), ("part:N",), ("gib:Q", "GiB", ".2f"), ("why:N",)),
        )
    )
    ends = (
        alt.Chart(data(values))
        .mark_tick(color="black", thickness=3, size=28)
        .encode(y=alt.Y("deployment:N", sort=names), x="ends:Q")
    )
    rules = ", ".join(dict.fromkeys(row.engine for row in rows))
    batches = ", ".join(
        dict.fromkeys(f"{row.batch} × {row.context_tokens:,} tokens" for row in rows)
    )
    chart = (bars + ends).properties(width=520, height={"step": 34})
    return figure(
        "memory",
        "Memory of each GPU",
        [
            f"Memory rules of {rules}. KV needed: {batches}.",
            (
                "Black: the end of the GPU's memory, as its driver reports it; bars beyond it do"
                " not fit."
            ),
        ],
        chart,
        section="sizing",
        summary="; ".join(
            f"{name}: {'fits' if row.fits else 'does not fit'}"
            + (f", longest context {row.max_context_tokens:,}" if row.pool != "encode" else "")
            for name, row in zip(names, rows, strict=True)
        ),
    )


def _parts(row: Row) -> dict[str, float]:
    """Return GiB per GPU, none negative: what lacks shows as a bar that is too long."""
    gpus = row.gpus * _GIB
    sizes = (
        row.weights_bytes + (row.adapters_bytes or 0.0),
        row.activation_bytes + row.pictures_bytes,
        row.kv_bytes,
        row.free_bytes,
        row.reserve_bytes,
    )
    return {part: max(0.0, value) / gpus for (part, _), value in zip(PARTS, sizes, strict=True)}


def _names(rows: Sequence[Row]) -> list[str]:
    """Write `llama-3.1-70b fp8 on 2×h100 tp2`, with more of what tells two apart where that is
    needed."""
    named = [f"{row.model.rpartition('/')[2]} {row.weights_dtype} on {row.machine}" for row in rows]
    for fact in ("tp", "pp", "dp", "ep", "engine", "kv_dtype", "context_tokens", "batch"):
        longer = [
            f"{name} {_fact(fact, getattr(row, fact))}"
            for name, row in zip(named, rows, strict=True)
        ]
        if len(set(longer)) > len(set(named)):
            named = longer
    # Rows that are equal in all that is shown would share a bar.
    return [clean(name) + "\u200b" * named[:index].count(name) for index, name in enumerate(named)]


def _fact(fact: str, value: str | int) -> str:
    spelt = {"engine": f"{value}", "kv_dtype": f"kv {value}", "batch": f"× {value}"}
    return f"{value:,} tokens" if fact == "context_tokens" else spelt.get(fact, f"{fact}{value}")


def contexts_picture(rows: Sequence[Row]) -> Figure:
    """Draw the longest context of each model on each number of GPUs, whatever else differs, which
    the notes say. Raises InputError where they are too many to read.
    """
    boxes: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        where = clean(f"{row.gpus}×{gpu_name(row.gpu)}")
        model = clean(row.model.rpartition("/")[2])
        boxes[model, where].append(row)
    longest = {
        place: max(row.max_context_tokens for row in rows_of) for place, rows_of in boxes.items()
    }
    values = [
        {"model": model, "where": where, "tokens": tokens, "text": _short(tokens)}
        for (model, where), tokens in longest.items()
    ]
    models, machines = (list(dict.fromkeys(names)) for names in zip(*boxes, strict=True))
    if len(models) > _MOST or len(machines) > _MOST:
        raise InputError(
            f"--context-map: {len(models)} models on {len(machines)} machines; ask for at most"
            f" {_MOST} each"
        )
    fitting = [tokens for tokens in longest.values() if tokens]
    edge = (min(fitting) * max(fitting)) ** 0.5 if fitting else 1
    base = alt.Chart(data(values)).encode(
        x=alt.X("where:N", title=None, sort=machines).axis(
            orient="top", labelAngle=0 if len(machines) < 7 else -40
        ),
        y=alt.Y("model:N", title=None, sort=models).axis(labelLimit=260),
    )
    colour = alt.Color("tokens:Q", legend=None).scale(type="log", scheme="viridis")
    chart = (
        base.transform_filter("datum.tokens > 0")
        .mark_rect(stroke="white", strokeWidth=2)
        .encode(color=colour)
        + base.transform_filter("datum.tokens == 0").mark_rect(
            stroke="white", strokeWidth=2, color="#bbbbbb"
        )
        + base.mark_text(fontSize=14, fontWeight=600).encode(
            text="text:N",
            color=alt.condition(
                f"datum.tokens > {edge} || datum.tokens == 0",
                alt.value("#111111"),
                alt.value("white"),
            ),
        )
    )
    batches = sorted({row.batch for row in rows})
    counts = " or ".join(map(str, batches))
    held = (
        "tokens of one request"
        if batches == [1]
        else f"tokens of each of {counts} requests at once"
    )
    size = {"width": max(240, 74 * len(machines)), "height": 44 * len(models)}
    return figure(
        "contexts",
        "Longest context that fits",
        [
            f"{held}, beside weights and activations; grey: the model does not fit",
            _best_of(boxes.values()),
        ],
        chart.properties(**size),
        section="sizing",
        summary="; ".join(f"{v['model']} on {v['where']}: {v['text']}" for v in values[:40]),
    )


def _best_of(boxes: Collection[Sequence[Row]]) -> str:
    """Say what differs among the rows of a box, which has the longest of them."""
    facts = {
        "engine": "engines",
        "weights_dtype": "precisions",
        "kv_dtype": "KV precisions",
        "batch": "batches",
    }
    facts |= dict.fromkeys(("tp", "pp", "dp", "ep"), "splits")
    differing = [
        plural
        for fact, plural in facts.items()
        for rows in boxes
        if len({getattr(row, fact) for row in rows}) > 1
    ]
    return (
        f"each is the longest over several {' and '.join(dict.fromkeys(differing))}"
        if differing
        else ""
    )


def _short(tokens: int) -> str:
    if tokens <= 0:
        return "–"
    return f"{tokens / 1024:.0f}k" if tokens >= 1024 else str(tokens)
