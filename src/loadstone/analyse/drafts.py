"""Computes what a cell's speculative decoding came to, by what the servers counted and what each
answer stated.
The arithmetic stands in core/drafts.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
from msgspec.structs import replace

from loadstone.core.drafts import acceptance_of, pool_counts
from loadstone.core.machine_figures import DraftFigures, ServerFigures
from loadstone.core.record import RunInfo
from loadstone.engines.table import find_forced_drafts

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("phase", "draft_steps", "draft_tokens", "draft_accepted", "accepted_histogram")


def drafts_of(
    server: ServerFigures | None, records: pa.Table, info: RunInfo
) -> DraftFigures | None:
    """Compute a cell's figures; None where nobody speaks of drafts. `records`: COLUMNS of the
    cell."""
    stated, counted = _stated(records), _counted(server)
    figures = counted if counted is not None and counted.steps else stated or counted
    if figures is None and server is not None and server.accepted_length is not None:
        if server.accepted_length.mean < 1:
            return None
        figures = DraftFigures(source="gauge", accepted_length=server.accepted_length.mean)
    if figures is None:
        return None
    if stated is not None:
        figures = replace(
            figures,
            by_request=stated.by_request,
            by_position=figures.by_position or stated.by_position,
        )
    papers = msgspec.json.encode((info.settings, info.command, info.target)).decode()
    return replace(figures, forced=find_forced_drafts(papers))


def pool_drafts(cells: list[DraftFigures]) -> float | None:
    """Return the acceptance of several cells together; None where none of them has counts that were
    not forced."""
    counted = [cell for cell in cells if cell.steps and cell.drafted and not cell.forced]
    steps, drafted, accepted = (
        sum(getattr(x, n) for x in counted) for n in ("steps", "drafted", "accepted")
    )
    return acceptance_of(1 + accepted / steps, drafted / steps) if steps else None


def _counted(server: ServerFigures | None) -> DraftFigures | None:
    """Compute the figures of the servers' counters."""
    if server is None or not server.draft_tokens:
        return None
    steps = server.draft_steps
    counts = server.draft_accepted_by_position or [] if steps else []
    return pool_counts(
        "counters",
        steps,
        server.draft_tokens,
        server.draft_accepted or 0.0,
        [count / (steps or 1.0) for count in counts],
    )


def _stated(records: pa.Table) -> DraftFigures | None:
    """Compute the figures of the measured requests whose answers state them."""
    import pyarrow.compute as pc

    stated = records.filter(
        pc.and_(pc.equal(records["phase"], "measure"), pc.is_valid(records["draft_accepted"]))
    )
    if not len(stated):
        return None
    steps, drafted, accepted = (
        stated[name].to_numpy(zero_copy_only=False).astype(float)
        for name in ("draft_steps", "draft_tokens", "draft_accepted")
    )
    whole = np.isfinite(steps) & (steps > 0)
    chosen = whole if whole.any() else np.ones(len(stated), bool)
    all_drafted = float(drafted[chosen].sum()) if np.isfinite(drafted[chosen]).all() else None
    lists = [histogram for histogram in stated["accepted_histogram"].to_pylist() if histogram]
    sums = np.zeros(max(map(len, lists), default=0))
    for histogram in lists:
        sums[: len(histogram)] += histogram
    beyond = np.cumsum(sums[::-1])[::-1][1:]
    figures = pool_counts(
        "requests",
        float(steps[whole].sum()) or None,
        all_drafted,
        float(accepted[chosen].sum()),
        (beyond / sums.sum()).tolist() if lists else [],
    )
    if whole.any():
        lengths = 1 + accepted[whole] / steps[whole]
        shares = dict(
            zip(("p10", "p50", "p90"), np.percentile(lengths, (10, 50, 90)).tolist(), strict=True)
        )
        figures = replace(figures, by_request={"n": float(len(lengths)), **shares})
    return figures
