"""Shows what a machine has and lacks, on one screen."""

from __future__ import annotations

from collections.abc import Iterable

from loadstone.report.data.wording import clean
from loadstone.report.table import Shown, Table

_MARKS = {"ok": "yes", "missing": "no", "warning": "look"}


def render(checks: Iterable[tuple[str, str, str, str, str | None]]) -> list[Shown]:
    """Show a row for each check: (group, name, state, what was found, what to do)."""
    rows = [
        [group, name, _MARKS[state], clean(f"{found}: {remedy}" if remedy else found, 300)]
        for group, name, state, found, remedy in checks
    ]
    for at in range(len(rows) - 1, 0, -1):
        if rows[at][0] == rows[at - 1][0]:
            rows[at][0] = ""
    return [Table(heads=["", "", "", "found, and what to do"], align="nnnw", rows=rows)]
