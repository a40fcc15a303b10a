"""The longest context of each model on each machine, as a map."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from loadstone.analyse.run_facts import gpu_name
from loadstone.core.errors import InputError
from loadstone.report.charts.theme import Figure, data, figure
from loadstone.report.data.wording import clean

_MOST = 40
"""Rows, or columns, that can still be read."""


def contexts_picture(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """`rows` as `loadstone size --json` has them: model, gpu, gpus, max_context_tokens (None or 0: does not fit).

    The longest of each model on each number of GPUs, whatever else differs, which is said. Raises InputError where
    they are too many to read.
    """
    import altair as alt

    boxes: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        where = clean(f"{row['gpus']}×{gpu_name(str(row['gpu']))}")
        model = clean(str(row["model"]).rsplit("/", 1)[-1])
        boxes[model, where].append(row)
    values: list[dict[str, Any]] = []
    for (model, where), own in boxes.items():
        tokens = max(row.get("max_context_tokens") or 0 for row in own)
        values.append({"model": model, "where": where, "tokens": tokens, "text": _short(tokens)})
    models, machines = (list(dict.fromkeys(value[name] for value in values)) for name in ("model", "where"))
    if len(models) > _MOST or len(machines) > _MOST:
        raise InputError(
            f"--context-map: {len(models)} models on {len(machines)} machines; ask for at most {_MOST} each"
        )
    fitting = [value["tokens"] for value in values if value["tokens"]]
    edge = (min(fitting) * max(fitting)) ** 0.5 if fitting else 1
    base = alt.Chart(data(values)).encode(
        x=alt.X(
            "where:N",
            title=None,
            sort=machines,
            axis=alt.Axis(orient="top", labelAngle=0 if len(machines) < 7 else -40),
        ),
        y=alt.Y("model:N", title=None, sort=models, axis=alt.Axis(labelLimit=260)),
    )
    colour = alt.Color("tokens:Q", scale=alt.Scale(type="log", scheme="viridis"), legend=None)
    chart = (
        base.transform_filter("datum.tokens > 0").mark_rect(stroke="white", strokeWidth=2).encode(color=colour)
        + base.transform_filter("datum.tokens == 0").mark_rect(stroke="white", strokeWidth=2, color="#bbbbbb")
        + base.mark_text(fontSize=14, fontWeight=600).encode(
            text="text:N",
            color=alt.condition(
                f"datum.tokens > {edge} || datum.tokens == 0", alt.value("#111111"), alt.value("white")
            ),
        )
    )
    batches = sorted({row.get("batch") or 1 for row in rows})
    many = " or ".join(map(str, batches))
    held = "tokens of one request" if batches == [1] else f"tokens of each of {many} requests at once"
    size = {"width": max(240, 74 * len(machines)), "height": 44 * len(models)}
    return figure(
        "contexts",
        "Longest context that fits",
        [f"{held}, beside weights and activations; grey: the model does not fit", _best_of(boxes.values())],
        chart.properties(**size),
        section="sizing",
        summary="; ".join(f"{v['model']} on {v['where']}: {v['text']}" for v in values[:40]),
    )


def _best_of(boxes: Collection[Sequence[Mapping[str, Any]]]) -> str:
    """What differs among the rows of a box, of which it has the longest."""
    facts = {"engine": "engines", "weights_dtype": "precisions", "kv_dtype": "KV precisions", "batch": "batches"}
    facts |= dict.fromkeys(("tp", "pp", "dp", "ep"), "splits")
    told = [many for fact, many in facts.items() for rows in boxes if len({str(row.get(fact)) for row in rows}) > 1]
    return f"each is the longest over several {' and '.join(dict.fromkeys(told))}" if told else ""


def _short(tokens: int) -> str:
    if tokens <= 0:
        return "–"
    return f"{tokens / 1024:.0f}k" if tokens >= 1024 else str(tokens)
