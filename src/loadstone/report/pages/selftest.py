"""Shows this host: the self-test's two tables, and what their columns mean; what it has and
lacks."""

import itertools
from collections.abc import Iterable, Sequence

from loadstone.analyse.client_accuracy import Selftest, SelftestRow, Shift
from loadstone.core.text import excerpt
from loadstone.core.units import show_number, show_seconds, show_share
from loadstone.report.table import Shown, Table


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
        conclude(selftest.rows),
        " · ".join(map(str, heading)),
        _errors(selftest.rows),
        _shifts(selftest.rows),
        *lines,
        *notes,
    ]


def conclude(rows: Sequence[SelftestRow]) -> str:
    """Say up to which load the client is exact, alone and beside busy processes."""
    parts = []
    for contended, where in ((False, "alone"), (True, "beside as many busy processes as cores")):
        tried = [row for row in rows if row.contended is contended]
        exact = list(itertools.takewhile(_is_exact, tried))
        if exact:
            last = exact[-1]
            parts.append(f"{last.streams:,} streams at {last.tokens_per_s:g} tokens/s {where}")
        elif tried:
            parts.append(f"no load {where}")
    limit = show_seconds(_EXACT_S)
    return f"The client is good to {'; '.join(parts)} (p99 of its error below {limit})."


def _is_exact(row: SelftestRow) -> bool:
    """Tell whether the client's error stayed below the limit at a level."""
    if row.comparison is None:
        return False
    error = row.comparison.error_s
    worst_s = error.max if error.p99 is None else error.p99
    return worst_s is not None and worst_s < _EXACT_S


def _name(row: SelftestRow) -> str:
    return f"{row.streams} × {row.tokens_per_s:g}/s{' busy' if row.contended else ''}"


def _errors(rows: Sequence[SelftestRow]) -> Table:
    heads = ["streams", "tokens/s", "tokens"]
    heads += [f"error {name}" for name in ("min", "p50", "p90", "p99", "p99.9", "max")]
    lines = []
    for row in rows:
        if row.comparison is None:
            continue
        error = row.comparison.error_s
        lines.append(
            [
                _name(row),
                show_number(row.events_per_s),
                str(error.n),
                *_times(error.min, error.p50, error.p90, error.p99, error.p999, error.max),
                show_share(row.comparison.coalesced, 2),
            ]
        )
    return Table(heads=[*heads, "coalesced"], align="lrrrrrrrrr", rows=lines)


def _shifts(rows: Sequence[SelftestRow]) -> Table:
    heads = ["streams", "TTFT shift p50", "p99", "ITL shift p50", "p99", "receive lag"]
    heads += ["sends late", "request", "server late", "cores"]
    lines = []
    for row in rows:
        shifts = row.comparison
        if shifts is None:
            continue
        lags = row.receive_lag_p99_s, row.send_lag_p99_s
        server = shifts.request_s.p50, shifts.server_late_s.p99
        times = _times(*_both(shifts.ttft_s), *_both(shifts.itl_s), *lags, *server)
        lines.append([_name(row), *times, show_number(row.client_cores, 2)])
    return Table(heads=heads, align="lrururrrrr", rows=lines)


def _both(shift: Shift | None) -> tuple[float | None, float | None]:
    return (shift.p50, shift.p99) if shift is not None else (None, None)


def _times(*values: float | None) -> list[str]:
    return [show_seconds(value, 2) for value in values]


_EXACT_S = 1e-3
"""Error of a token's time (p99) below which the client counts as exact."""
_MARKS = {"ok": "yes", "missing": "no", "warning": "look"}


def render_checks(checks: Iterable[tuple[str, str, str, str, str | None]]) -> Table:
    """Show a row for each check of `doctor`: (group, name, state, what was found, what to do)."""
    rows: list[list[str]] = []
    previous = ""
    for group, name, state, found, remedy in checks:
        text = excerpt(f"{found}: {remedy}" if remedy else found, 300)
        rows.append(["" if group == previous else group, name, _MARKS[state], text])
        previous = group
    return Table(heads=["", "", "", "found, and what to do"], align="nnnw", rows=rows)
