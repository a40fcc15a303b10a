"""Shows this host: the self-test's two tables, and what their columns mean; what it has and
lacks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from loadstone.analyse.client_accuracy import Selftest, SelftestRow, Shift
from loadstone.core.text import excerpt
from loadstone.core.units import show_number, show_seconds, show_share
from loadstone.report.table import Shown, Table, table_of


def render(selftest: Selftest) -> list[Shown]:
    """Show the host, two tables, and what their columns mean."""
    about = selftest.host
    heading = [about.cpu, f"{about.cores} cores", about.system, f"Python {about.python}"]
    notes = [f"{_name(row)}: {row.note}" for row in selftest.rows if row.note]
    lines = [
        (
            "error: the client's time of a token − the server's, taken before its write; all tokens"
            " of measured requests"
        ),
        "coalesced: read together with a later token of the stream, and given that token's time",
        (
            "TTFT, ITL shift: client's − server's · receive lag, sends late, server late (written −"
            " due): p99"
        ),
        (
            "request: read by the server − sent, p50 · busy: with as many busy processes beside as"
            " cores"
        ),
    ]
    return [
        " · ".join(map(str, heading)),
        _errors(selftest.rows),
        _shifts(selftest.rows),
        *lines,
        *notes,
    ]


def _name(row: SelftestRow) -> str:
    return f"{row.streams} × {row.tokens_per_s:g}/s{' busy' if row.contended else ''}"


def _errors(rows: Sequence[SelftestRow]) -> Table:
    heads = ("error min", "p50", "p90", "p99", "p99.9", "max")
    lines = []
    for row in rows:
        if row.comparison is not None:
            error = row.comparison.error_s
            times = _times(error.min, error.p50, error.p90, error.p99, error.p999, error.max)
            counts = ("tokens/s", show_number(row.events_per_s)), ("tokens", str(error.n))
            share = "coalesced", show_share(row.comparison.coalesced, 2)
            lines.append([("streams", _name(row)), *counts, *zip(heads, times, strict=True), share])
    return table_of(lines, "streams")


def _shifts(rows: Sequence[SelftestRow]) -> Table:
    heads = (
        "TTFT shift p50",
        "p99",
        "ITL shift p50",
        "p99",
        "receive lag",
        "sends late",
        "request",
        "server late",
    )
    lines = []
    for row in rows:
        if (shifts := row.comparison) is not None:
            lags = (
                row.receive_lag_p99_s,
                row.send_lag_p99_s,
                shifts.request_s.p50,
                shifts.server_late_s.p99,
            )
            times = _times(*_both(shifts.ttft_s), *_both(shifts.itl_s), *lags)
            cores = "cores", show_number(row.client_cores, 2)
            lines.append([("streams", _name(row)), *zip(heads, times, strict=True), cores])
    return table_of(lines, "streams")


def _both(shift: Shift | None) -> tuple[float | None, float | None]:
    return (shift.p50, shift.p99) if shift is not None else (None, None)


def _times(*values: float | None) -> list[str]:
    return [show_seconds(value, 2) for value in values]


_MARKS = {"ok": "yes", "missing": "no", "warning": "look"}


def render_checks(checks: Iterable[tuple[str, str, str, str, str | None]]) -> Table:
    """Show a row for each check of `doctor`: (group, name, state, what was found, what to do)."""
    rows, before = [], ""
    for group, name, state, found, remedy in checks:
        text = excerpt(f"{found}: {remedy}" if remedy else found, 300)
        rows.append(["" if group == before else group, name, _MARKS[state], text])
        before = group
    return Table(heads=["", "", "", "found, and what to do"], align="nnnw", rows=rows)
