"""Was all that was measured kept?"""

from __future__ import annotations

from collections.abc import Sequence

from loadstone.analyse.verdict.finding import Finding
from loadstone.core import JournalDamage, RunInfo


def kept_findings(info: RunInfo, cell: int, records: int, planned: int) -> list[Finding]:
    """Findings of one cell. `records`: that it has; `planned`: requests."""
    found = [
        journal_damaged([each for each in info.journals_damaged if _may_be_of(each, cell)]),
        records_missing(info, cell, records, planned),
    ]
    return [finding for finding in found if finding is not None]


def _may_be_of(damage: JournalDamage, cell: int) -> bool:
    return damage.first_cell <= cell and (damage.last_cell is None or cell <= damage.last_cell)


def journal_damaged(damaged: Sequence[JournalDamage]) -> Finding | None:
    if not damaged:
        return None
    parts = [
        f"{each.bytes:,} bytes of {each.file} from byte {each.at:,} on cannot be read"
        + (f", with them {each.batches:,} or more of its batches of records" if each.batches else "")
        for each in damaged
    ]
    return Finding(
        "journal_damaged",
        "error",
        f"{'; '.join(parts)}; what they held is lost",
        "Measure again, and check this host's disk and memory. The damaged journal stays in the run's folder.",
    )


def records_missing(info: RunInfo, cell: int, records: int, planned: int) -> Finding | None:
    """A cell that ends by count has a record of each request, whatever became of it."""
    asked = info.cells[cell]
    if info.source != "measured" or asked.end_s is None or asked.load.duration_s is not None or records >= planned:
        return None
    return Finding(
        "records_missing",
        "error",
        f"{planned - records:,} of the {planned:,} requests of this cell have no record, though it ran to its end",
        "Measure it again: these requests were sent, and what became of them is lost.",
    )
