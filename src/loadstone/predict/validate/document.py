"""The document of `loadstone validate`: JSON, and the table a person reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from loadstone.predict.validate.score import Scored, summarise

if TYPE_CHECKING:
    from rich.table import Table

_KEYS = {"ttft": ("ttft_ms", 1e3), "tpot": ("tpot_ms", 1e3), "throughput": ("output_tok_s", 1.0)}
_TITLES = {"tpot": "TPOT", "ttft": "TTFT", "throughput": "output tok/s"}


def document_of(rows: Sequence[Scored]) -> dict[str, Any]:
    """Milliseconds and tokens per second, as the points file has them; null where there is no such number."""
    return {"schema": 1, "rows": [_row(each) for each in rows], "summary": summarise(rows)}


def _row(each: Scored) -> dict[str, Any]:
    row: dict[str, Any] = {"row": each.point.row}
    for name, values in (
        ("predicted", each.predicted),
        ("low", each.low),
        ("high", each.high),
        ("measured", each.measured),
    ):
        row[name] = {
            title: float(f"{values[key] * scale:.6g}") if key in values else None
            for key, (title, scale) in _KEYS.items()
        }
    row["skipped_because"] = each.skipped_because
    if each.skipped_because is None:
        row["deployment"] = each.deployment
        row["profile"] = each.profile
        row["family_held_out"] = each.held_out
    return row


def render(rows: Sequence[Scored]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="")
    table.add_column("")
    for title in _TITLES.values():
        for head in (title, "n", "bias", "in 80 %"):
            table.add_column(head, justify="right")
    for way, groups in summarise(rows).items():
        if way != "all":
            table.add_row(f"by {way}")
        for which, figures in groups.items():
            cells: list[str] = []
            for name in _TITLES:
                each = figures.get(name)
                cells += ["", "", "", ""] if each is None else _cells(each)
            table.add_row(which if way == "all" else f"  {which[:48]}", *cells)
    return table


def _cells(figures: dict[str, float]) -> list[str]:
    error, inside = f"{figures['median_error']:.1%}", f"{figures['coverage']:.0%}"
    return [error, str(int(figures["n"])), f"{figures['bias']:+.0%}", inside]


def footnote(rows: Sequence[Scored]) -> str:
    scored = [each for each in rows if each.skipped_because is None]
    lines = [
        f"{len(scored)} of {len(rows)} points predicted{_fitted(scored)}",
        "median |predicted/measured − 1|; bias: median of predicted/measured; share inside the 80 % interval",
    ]
    reasons: dict[str, int] = {}
    for each in rows:
        if each.skipped_because:
            reasons[each.skipped_because] = reasons.get(each.skipped_because, 0) + 1
    ordered = sorted(reasons.items(), key=lambda entry: -entry[1])
    lines += [f"left out, {count}: {reason}" for reason, count in ordered[:8]]
    return "\n".join(lines)


_FITTED = {
    True: "with coefficients fitted without their model family",
    False: "of model families that were in no fit",
    None: "with a profile of your own, which may have been fitted on them",
}


def _fitted(scored: Sequence[Scored]) -> str:
    counts = {held: sum(each.held_out is held for each in scored) for held in _FITTED}
    return "".join(f"; {count} {_FITTED[held]}" for held, count in counts.items() if count)
