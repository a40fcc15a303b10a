"""A comparison as people read it: what differs in the setup, a table for each load, what its words
mean."""

from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec import UNSET

from loadstone.analyse.compare.answers import tell_answers
from loadstone.analyse.compare.result import (
    BoundResult,
    CellResult,
    Comparison,
    Difference,
    MetricRow,
    name_class,
    name_loads,
)
from loadstone.analyse.grading.accuracy import show_drift
from loadstone.core.text import excerpt
from loadstone.core.units import show_number, show_seconds, show_share
from loadstone.report.data.wording import show_finding, show_name
from loadstone.report.table import Footnote, Shown, Table, first_notes

_HEADS = ("A", "B", "B/A", "95%", "p", "p adjusted", "detectable")
_MAIN = ("ttft_p50", "ttft_p99", "tpot_p50", "output_tokens_per_s", "failed_share")
_ENDS = ("e2e_p50", "e2e_p99", "inputs_per_s", "documents_per_s", *_MAIN[-2:])
"""Metrics that are always shown, of answers that come a token at a time, and in one piece."""
_MAX_REPEATS = 200
"""Runs a side that anybody would measure to show a difference."""
_WORDS = {
    "same": "the same",
    "within_model": "within the model's uncertainty",
    "may_be_chance": "may be chance",
    "not_shown": "no difference shown",
    "too_little": "too little data to tell",
    "runs_differ": "differ between these two runs",
    "not_all_measured": "not all of the better side was measured",
}
"""Conclusions that name no side. What they mean stands below the table, where one needs it."""
_MISSING = "missing on one side"


def render(comparison: Comparison, explain: bool = True) -> list[Shown]:
    """Show the conclusion, what differs in the setup, and a table of all loads.

    explain: a table for each load in place of it, with tests, and what their words mean.
    """
    parts: list[Shown] = [conclude(comparison)]
    for name, side in (("A", comparison.a), ("B", comparison.b)):
        runs = ", ".join(side.runs[:4]) + (" …" if len(side.runs) > 4 else "")
        parts.append(f"{name}  {plain(side.label)}  ({plain(runs, 200)})")
    reservation = (
        ""
        if comparison.flags_known is UNSET
        else ", as far as it is known: how engines were started is not"
    )
    parts.append("Setup:" if comparison.setup else f"Setup: the same{reservation}")
    parts += [f"  {line}" for line in setup_lines(comparison.setup)]
    notes = [show_finding(finding) for finding in comparison.findings]
    bounds = [f"{bound.bound}: {explain_bound(bound)}" for bound in comparison.fail_on or ()]
    only = [f"only {line}" for line in unmatched_lines(comparison)]
    if not explain:
        table = main_table(comparison)
        parts += [table] if table.rows else []
        parts += [*answer_lines(comparison), *only, *first_notes(notes)]
        return [*parts, *bounds, Footnote("95% intervals; --explain has every metric and test")]
    parts += [part for table in metric_tables(comparison) for part in (table.title, table)]
    parts += [*answer_lines(comparison), *only]
    if any(row.p is not None for cell in comparison.parts for row in cell.metrics):
        parts.append(explain_heads(comparison))
    return [*parts, *explain_conclusions(comparison), *notes, *bounds]


def conclude(comparison: Comparison) -> str:
    """Say which side is better, in which metrics, at how many of the loads."""
    count = len(comparison.cells)
    texts = []
    for side in ("a", "b"):
        found = Counter(
            (cell.name or "", row.name)
            for cell in comparison.parts
            for row in cell.metrics
            if row.better == side
        )
        if found:
            names = [
                f"{traffic_class} {show_name(name)}".lstrip()
                + (f" (at {loads} of {count} loads)" if loads < count else "")
                for (traffic_class, name), loads in found.items()
            ]
            texts.append(f"{side.upper()} is better in {', '.join(names)}")
    return f"{'; '.join(texts)}." if texts else "No difference is shown between A and B."


def main_table(comparison: Comparison) -> Table:
    """Make one table of all loads: the main metrics, and all others in which a side is better."""
    rows: list[list[str]] = []
    for cell in comparison.parts:
        load = f"· {cell.name}" if cell.name else f"{cell.load.kind} {cell.load.value:g}"
        stated = [row for row in cell.metrics if row.a is not None or row.b is not None]
        streams = any(row.name.startswith("ttft") for row in stated)
        for row in stated:
            if row.name in (_MAIN if streams else _ENDS) or row.better:
                rows.append([load, *show_metric(row)[:5], show_conclusion(row)])
                load = ""
    heads = ["load", "metric", *_HEADS[:4], "conclusion"]
    return Table(
        title="B over A",
        heads=heads,
        align="nnrrrrw",
        rows=rows,
        style=_style,
        spare=("95%",),
        words=True,
    )


def answer_lines(comparison: Comparison) -> Iterator[str]:
    """Say of each load with graded answers whether they are still right, and how alike they are."""
    for cell in comparison.cells:
        answers = cell.answers
        if answers is UNSET:
            continue
        yield f"answers at {cell.load.label}: {tell_answers(answers)}"
        again = (
            ""
            if answers.identical_again is None
            else f" (A against A {show_share(answers.identical_again)})"
        )
        parts = [f"{show_share(answers.identical)} identical{again}"]
        if answers.first_difference is not None:
            parts.append(f"others part at token {answers.first_difference:.0f} or so")
        if answers.length is not None:
            parts.append(f"{show_drift(answers)} A's")
        yield f"  {', '.join(parts)}"


def metric_tables(comparison: Comparison) -> list[Table]:
    """Make a table for each load: a row for each metric that one side has at least."""
    tables = [
        Table(
            key="cell",
            title=name_cell(cell),
            heads=["metric", *_HEADS, "conclusion"],
            align="n" + "r" * len(_HEADS) + "w",
            rows=[
                [*show_metric(row), show_conclusion(row)]
                for row in cell.metrics
                if row.a is not None or row.b is not None
            ],
            style=_style,
            spare=("p", "detectable"),
        )
        for cell in comparison.parts
    ]
    return [table for table in tables if table.rows]


def explain_heads(comparison: Comparison) -> str:
    """Say what the two heads mean that are not a comparison's own."""
    return (
        f"p adjusted: for testing all metrics of all loads together, {100 * comparison.level:.0f}%"
        " false alarms · detectable: the smallest difference that these data can show"
    )


def _style(conclusion: str) -> str:
    return "bold" if conclusion.endswith("is better") else "" if conclusion == _MISSING else "dim"


def unmatched_lines(comparison: Comparison) -> list[str]:
    """Write `A has concurrency 2, 8`, for each side that has loads, or classes, which the other has
    not."""
    alone = comparison.unmatched
    loads = (("A", alone.a), ("B", alone.b))
    classes = (("A", alone.a_classes or ()), ("B", alone.b_classes or ()))
    return [f"{side} has {name_loads(names)}" for side, names in loads if names] + [
        f"{side} has class {', '.join(names)}" for side, names in classes if names
    ]


def explain_bound(bound: BoundResult) -> str:
    """Say whether a bound of --fail-on is met, and why not."""
    where = f" at {', '.join(bound.at)}" if bound.at else ""
    how = " (by point values, untested)" if bound.untested else ""
    result = f"MET{where}{how}" if bound.met else "not met"
    if bound.failing:
        result += (
            f"; NOT PASSED at {', '.join(bound.failing)}: B has an error there; --allow-errors lets"
            " it pass"
        )
    if bound.missing:
        result = "UNKNOWN: no load has the metric on both sides"
    if bound.one_run:
        result += (
            f"; exceeded at {', '.join(bound.one_run)}, but by one run a side, which decides"
            " nothing"
        )
    if bound.not_shown:
        result += f"; exceeded at {', '.join(bound.not_shown)}, but that may be chance"
    if bound.repeats_needed:
        result += f" ({_show_repeats(bound.repeats_needed)})"
    return result


def explain_conclusions(comparison: Comparison) -> list[str]:
    """Say what those conclusions mean that do not explain themselves."""
    conclusions = {row.conclusion for cell in comparison.parts for row in cell.metrics}
    meaning = {
        "same": (
            f"the same: to within {100 * comparison.resolution:g}%; less counts as no difference"
        ),
        "may_be_chance": (
            "may be chance: only one of the test (over all metrics together) and the interval (of"
            " this metric alone) finds a difference"
        ),
        "not_all_measured": (
            "not all of the better side was measured: its load has an error finding, and what"
            " failed or is lost is not in the number"
        ),
        "within_model": (
            "within the model's uncertainty: the simulations differ, but by less than the"
            " performance model may be off in their ratio (80%)"
        ),
    }
    return [text for conclusion, text in meaning.items() if conclusion in conclusions]


def setup_lines(setup: Sequence[Difference]) -> list[str]:
    """Write a line for each difference, and one for all that one side alone tells."""
    lines = [
        f"{difference.what}: {plain(difference.a)} → {plain(difference.b)}"
        for difference in setup
        if None not in (difference.a, difference.b)
    ]
    only_a = [f"{alone.what} {plain(alone.a)}" for alone in setup if alone.b is None]
    only_b = [f"{alone.what} {plain(alone.b)}" for alone in setup if alone.a is None]
    for side, facts in (("A", only_a), ("B", only_b)):
        if facts:
            lines.append(f"only {side} states {', '.join(facts)}")
    return lines


def show_metric(row: MetricRow) -> list[str]:
    """Write a metric's row: its name, then its numbers as the heads say."""
    return [
        show_name(row.name),
        _value(row.name, row.a),
        _value(row.name, row.b),
        _ratio(row.ratio),
        f"{_ratio(row.low)} – {_ratio(row.high)}" if row.low is not None else "-",
        _p(row.p),
        _p(row.p_family),
        _least(row.would_show),
    ]


def name_cell(cell: CellResult) -> str:
    """Name the load, and by what it was tested."""
    units = cell.units
    tested = f"{units.a} and {units.b} {units.kind}" + (", in pairs" if units.paired else "")
    name = name_class(f"{cell.load.kind} {cell.load.value:g}", cell.name)
    return f"{name} ({tested if units.kind else 'no test'})"


def show_conclusion(row: MetricRow) -> str:
    """Say in words what is concluded on a metric."""
    if row.ratio is None and (row.name != "failed_share" or None in (row.a, row.b)):
        return _MISSING
    if row.better:
        return f"{row.better.upper()} is better"
    words, repeats = _WORDS.get(row.conclusion or "", ""), row.repeats_needed
    if repeats and repeats <= _MAX_REPEATS and row.conclusion == "runs_differ":
        words += f"; repeat {repeats} times to know"
    elif repeats and row.conclusion in ("runs_differ", "not_shown", "may_be_chance", "too_little"):
        words += f"; {_show_repeats(repeats)}"
    return words


def _show_repeats(runs: int) -> str:
    if runs > _MAX_REPEATS:
        return "too small for repeats to show it"
    return f"{runs} runs a side would show it"


def _value(metric: str, value: float | None) -> str:
    if value is not None and metric in ("attainment", "failed_share"):
        return show_share(value, 1)
    if value is not None and metric.startswith("dollars"):
        return f"${show_number(value)}"
    if metric.startswith("j_per"):
        return f"{show_number(value)} J" if value is not None else "-"
    return show_number(value, 4) if metric.endswith("per_s") else show_seconds(value)


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}" if value < 10 else f"{value:.3g}"


def _least(ratio: float | None) -> str:
    if ratio is None:
        return "-"
    share = 100 * (ratio - 1)
    return f"×{ratio:.3g}" if ratio >= 2 else f"±{share:.2g}%" if share >= 0.01 else "< 0.01%"


def _p(value: float | None) -> str:
    return "-" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"


def _flat(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_flat(part)}" for name, part in value.items()) or "-"
    if isinstance(value, list):
        return ", ".join(map(_flat, value)) or "-"
    if isinstance(value, float):
        return f"{value:g}"
    return "-" if value is None else str(value)


def plain(value: object, limit: int = 120) -> str:
    """Shorten text of engines or files to one plain line."""
    return excerpt(_flat(value), limit)
