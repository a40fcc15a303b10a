"""Shows trends: each step in a sentence, each series in a row, and a page with a picture of
each."""

import math
from pathlib import Path

from loadstone.analyse.trend import ChangedMetric, ChangePoint, Trend
from loadstone.core.errors import InputError
from loadstone.core.files import explain_os_error
from loadstone.core.units import show_number, show_seconds
from loadstone.report.data.wording import clean, show_change, show_day, show_name, spell
from loadstone.report.table import Shown, Table

_MOST_SERIES = 12
"""Series that a page draws, those with steps first."""
_DRAWN = ("tpot_p50", "ttft_p50", "output_tokens_per_s")
_DRAWN_ENDS = ("e2e_p50", "inputs_per_s", "documents_per_s")
"""Of answers that come in one piece."""


def render(trend: Trend) -> list[Shown]:
    """Show the steps, then the series."""
    return [_head(trend), *map(_sentence, trend.changes), table_series(trend), _note(trend)]


def _head(trend: Trend) -> str:
    tested = sum(series.why_not_tested is None for series in trend.series)
    if not tested:
        return "Nothing could be tested: too few runs of one setup at one load."
    worse = sum(change.worse for change in trend.changes)
    return (
        f"Changes: {len(trend.changes) or 'none'} in {tested:,} series, {worse or 'none'} for the"
        " worse."
    )


def _sentence(change: ChangePoint) -> str:
    previous, release_of = change.releases
    release = f", from {previous or '?'} to {release_of or '?'}" if previous != release_of else ""
    parts = ", ".join(_show(metric) for metric in change.metrics)
    if change.kind == "drift":
        return (
            f"From {clean(change.run)} ({change.created[:10]}{clean(release, 80)}) on,"
            f" {clean(change.setup, 120)} at {change.load.label} drifts, in no step: {parts};"
            f" over {change.runs[1]} runs, p = {change.p:.1g}."
        )
    return (
        f"Since {clean(change.run)} ({change.created[:10]}{clean(release, 80)}),"
        f" {clean(change.setup, 120)} at {change.load.label}: {parts}; {change.runs[0]} runs before"
        f" and {change.runs[1]} after, p = {change.p:.1g}."
    )


def _show(metric: ChangedMetric) -> str:
    show = show_number if metric.metric.endswith("per_s") else show_seconds
    verdict = "worse" if metric.worse else "better"
    pace = "" if metric.per_run is None else f", {100 * (metric.per_run - 1):+.1f}% a run"
    share = f"{100 * (metric.ratio - 1):+.1f}%, {verdict}{pace}".replace("-", "−")
    return f"{metric.metric} {show(metric.before)} → {show(metric.after)} ({share})"


def name_change(trend: Trend) -> str:
    """Say in a title the largest change, of what became worse if there is something."""
    if not trend.changes:
        return _head(trend)
    found = [(change, metric) for change in trend.changes for metric in change.metrics]
    change, metric = max(found, key=lambda pair: (pair[1].worse, abs(math.log(pair[1].ratio))))
    further = len(trend.changes) - 1
    also = f", and {further} more" if further else ""
    name = show_name(metric.metric).removesuffix(" p50")
    return f"{name} {show_change(metric)} since {show_day(change.created)}{also}"


def table_series(trend: Trend) -> Table:
    """Make a row for each series."""
    rows = []
    for number, series in enumerate(trend.series):
        steps = sum(change.series == number for change in trend.changes)
        left_out = f"; {series.left_out} left out for errors" if series.left_out else ""
        result = (series.why_not_tested or f"{steps or 'no'} change{'s' * (steps > 1)}") + left_out
        rows.append([clean(series.setup, 120), series.load.label, str(len(series.points)), result])
    return Table(
        key="series",
        title="Series",
        heads=["setup", "load", "runs", "result"],
        align="wwrw",
        rows=rows,
        words=True,
    )


def _note(trend: Trend) -> str:
    return (
        f"Where nothing changed, the chance of any alarm is at most {100 * trend.false_alarms:g}%,"
        " over all metrics, places and series together, if runs are exchangeable: a machine that"
        " drifts changes too."
    )


def write_page(trend: Trend, path: Path) -> None:
    """Write the page. Raises InputError where it cannot be written."""
    from loadstone.report.charts.bands import trend_figure
    from loadstone.report.pages.html import frame_page, render

    if path.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"-o {path}: a trend is an HTML page; name it e.g. trend.html")
    changes_of = {
        number: [change for change in trend.changes if change.series == number]
        for number in range(len(trend.series))
    }
    shown = sorted(
        (number for number, series in enumerate(trend.series) if series.points),
        key=lambda number: not changes_of[number],
    )
    figures = [
        trend_figure(trend.series[number], metric, changes_of[number], f"trend-{number}-{metric}")
        for number in shown[:_MOST_SERIES]
        for metric in (_DRAWN if "ttft_p50" in trend.series[number].metrics else _DRAWN_ENDS)
        if metric in trend.series[number].metrics
    ]
    content = render(
        "trend.html",
        title=name_change(trend),
        head=_head(trend),
        sentences=[spell(_sentence(change)) for change in trend.changes],
        figures=figures,
        series=table_series(trend),
        note=_note(trend),
        hidden=len(shown[_MOST_SERIES:]),
    )
    with explain_os_error(f"-o {path}: cannot be written", "name another file"):
        path.write_text(frame_page(name_change(trend), content), encoding="utf-8")
