"""Where a deployment's memory goes, stacked: weights, KV cache, activations, what the engine leaves, what is free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadstone.core.errors import InputError
from loadstone.report.charts.colours import BLUE, GREEN, GREY, ORANGE, SKY
from loadstone.report.charts.theme import Figure, data, figure
from loadstone.report.data.wording import clean

PARTS = (("weights", BLUE), ("activations, runtime", ORANGE), ("KV asked for", GREEN), ("KV room left", SKY),
         ("left by the engine", GREY))  # fmt: skip
"""In the order they are stacked."""
MOST_BARS = 40
_GIB = 1 << 30


def memory_picture(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """One bar per row of `loadstone size --json`, in GiB per GPU (mean over a pipeline's stages), with a line where
    the GPU ends; what lies beyond it does not fit. Raises InputError where there is nothing, or too much, to draw.
    """
    import altair as alt

    if not rows:
        raise InputError("--picture: no rows to draw")
    if len(rows) > MOST_BARS:
        raise InputError(f"--picture: {len(rows)} bars are too many to read; ask for at most {MOST_BARS} deployments")
    names = _names(rows)
    values = [
        {"deployment": name, "part": part, "order": order, "gib": gib, "why": clean(str(row["why"]), 200),
         "ends": row["usable_bytes"] / row["gpus"] / _GIB}
        for name, row in zip(names, rows, strict=True)
        for order, (part, gib) in enumerate(_parts(row).items())
    ]  # fmt: skip
    parts, colours = zip(*PARTS, strict=True)
    bars = (
        alt.Chart(data(values))
        .mark_bar(size=20)
        .encode(
            y=alt.Y("deployment:N", title=None, sort=names, axis=alt.Axis(labelLimit=340, ticks=False)),
            x=alt.X("gib:Q", title="GiB per GPU", stack="zero"),
            color=alt.Color("part:N", title=None, scale=alt.Scale(domain=parts, range=colours)),
            order="order:Q",
            tooltip=["deployment:N", "part:N", alt.Tooltip("gib:Q", title="GiB", format=".2f"), "why:N"],
        )
    )
    ends = (
        alt.Chart(data(values))
        .mark_tick(color="black", thickness=3, size=28)
        .encode(y=alt.Y("deployment:N", sort=names), x="ends:Q")
    )
    rules = ", ".join(dict.fromkeys(str(row["engine"]) for row in rows))
    batches = ", ".join(dict.fromkeys(f"{row['batch']} × {row['context_tokens']:,} tokens" for row in rows))
    chart = (bars + ends).properties(width=520, height={"step": 34})
    return figure(
        "memory",
        "Memory of each GPU",
        [
            f"Memory rules of {rules}. KV asked for: {batches}.",
            "Black: the end of the GPU's memory, as its driver reports it; bars beyond it do not fit.",
        ],
        chart,
        section="sizing",
        summary="; ".join(
            f"{name}: {'fits' if row['fits'] else 'does not fit'}, longest context {row['max_context_tokens']:,}"
            for name, row in zip(names, rows, strict=True)
        ),
    )


def _parts(row: Mapping[str, Any]) -> dict[str, float]:
    """GiB per GPU, none negative: what lacks shows as a bar that is too long."""
    gpus = row["gpus"] * _GIB
    given = (row["weights_bytes"], row["activation_bytes"], row["kv_bytes"], row["free_bytes"], row["reserve_bytes"])
    return {part: max(0.0, value) / gpus for (part, _), value in zip(PARTS, given, strict=True)}


def _names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """`llama-3.1-70b fp8 on 2×h100 tp2`, with more of what tells two apart where that is needed."""
    named = [
        f"{str(row['model']).rpartition('/')[2]} {row['weights_dtype']} on {row['gpus']}×{row['gpu']}" for row in rows
    ]
    for fact in ("tp", "pp", "dp", "ep", "engine", "kv_dtype", "context_tokens", "batch"):
        more = [f"{name} {_fact(fact, row[fact])}" for name, row in zip(named, rows, strict=True)]
        if len(set(more)) > len(set(named)):
            named = more
    # Rows that are equal in all that is shown would share a bar.
    return [clean(name) + "\u200b" * named[:index].count(name) for index, name in enumerate(named)]


def _fact(fact: str, value: Any) -> str:
    spelt = {"engine": f"{value}", "kv_dtype": f"kv {value}", "batch": f"× {value}"}
    return f"{value:,} tokens" if fact == "context_tokens" else spelt.get(fact, f"{fact}{value}")
