"""Errors of predictions as people read them: of all, and by source, engine, GPU, model and
regime."""

from collections import Counter
from collections.abc import Iterator, Sequence

from loadstone.calibrate.validate import Errors, Scored, summarise
from loadstone.core.units import show_share
from loadstone.predict.step_time.profile import FEW_ROWS, Quantity
from loadstone.report.table import Shown, Table

_TITLES: dict[Quantity, str] = {"tpot": "TPOT", "ttft": "TTFT", "throughput": "output tok/s"}


def render(rows: Sequence[Scored]) -> list[Shown]:
    """Show the errors of all rows that could be predicted, and why others could not."""
    heads = ["", *(head for title in _TITLES.values() for head in (title, "n", "in 80%"))]
    lines = []
    for way, groups in summarise(rows).items():
        if way != "all":
            lines.append([f"by {way}", *[""] * (len(heads) - 1)])
        for which, by_quantity in groups.items():
            cells = [cell for name in _TITLES for cell in _cells(by_quantity.get(name))]
            lines.append([which if way == "all" else f"  {which[:48]}", *cells])
    return [Table(heads=heads, align="n" + "ruu" * len(_TITLES), rows=lines), *explain(rows)]


def _cells(errors: Errors | None) -> tuple[str, ...]:
    if errors is None:
        return ("",) * 3
    return (
        show_share(errors.median_error, 1),
        str(errors.n),
        show_share(errors.coverage),
    )


def explain(rows: Sequence[Scored]) -> list[str]:
    """Say how many points were predicted, what the columns mean, and why the others were left
    out."""
    scored = [point for point in rows if point.skipped_because is None]
    reasons = Counter(point.skipped_because for point in rows if point.skipped_because)
    return [
        f"{len(scored)} of {len(rows)} points predicted{_fits(scored)}",
        *_left(scored),
        "median |predicted/measured − 1|; share inside the 80% interval",
        *(f"left out, {count}: {reason}" for reason, count in reasons.most_common(8)),
    ]


_FITTED = {
    True: "with coefficients fitted without their model family",
    False: "of model families that were in no fit",
    None: "with a profile of your own, which may have been fitted on them",
}


def _fits(scored: Sequence[Scored]) -> str:
    counts = {held: sum(point.held_out is held for point in scored) for held in _FITTED}
    return "".join(f"; {count} {_FITTED[held]}" for held, count in counts.items() if count)


def _left(scored: Sequence[Scored]) -> Iterator[str]:
    """Say on how few measurements predictions rest, and which of them no measurement covers."""
    counts = Counter(
        (point.profile, point.rows_left)
        for point in scored
        if point.held_out and point.rows_left < FEW_ROWS
    )
    for (profile, left), count in counts.most_common(8):
        yield (
            f"{count} by {profile} without their family, which leaves {left or 'none'} of its"
            " measurements"
        )
    for gap, count in Counter(gap for point in scored for gap in point.uncovered).most_common(8):
        yield (
            f"{count} with wider intervals: no measurement covers {gap}; two points for"
            " `calibrate` would"
        )
