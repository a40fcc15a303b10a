"""What a reader should know of a run that none of its cells can tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadstone.analyse.verdict.damage import journal_damaged
from loadstone.analyse.verdict.finding import Finding
from loadstone.core import JournalDamage, Load


def run_findings(
    loads: Sequence[Load],
    begun: Sequence[bool],
    workload: Mapping[str, Any],
    why: str,
    deployment: Mapping[str, Any] | None = None,
    damaged: Sequence[JournalDamage] = (),
) -> list[Finding]:
    """Findings of one run.

    `loads`: of its cells, as planned; `begun`: whether anything of each was sent; `workload`: as Plan.workload;
    `why`: what ended the run; `deployment`: what it was said to run on; `damaged`: journals; both as in run.json.
    """
    found = [
        cells_not_begun([load for load, sent in zip(loads, begun, strict=True) if not sent], len(loads), why),
        journal_damaged(damaged),
        lines_left_out(workload),
        prompts_lengthened(workload),
        deployment_doubted(deployment or {}),
    ]
    return [finding for finding in found if finding is not None]


def cells_not_begun(missing: Sequence[Load], planned: int, why: str) -> Finding | None:
    if not missing:
        return None
    return Finding(
        "cells_not_begun",
        "warning",
        f"{len(missing)} of {planned} planned cells never began ({', '.join(load.label for load in missing)}): {why}",
        "Run them again; the plan still has them (--plan with this folder).",
    )


def lines_left_out(workload: Mapping[str, Any]) -> Finding | None:
    """Of a file: lines that could not be used, and items that hold no prompt to send."""
    reasons = workload.get("skipped")
    if isinstance(reasons, Mapping):
        kept = workload.get("requests") or 0
        parts = dict(reasons)
    else:
        kept = workload.get("prompts") or 0
        parts = {
            "cannot be read": workload.get("bad") or 0,
            "no prompt to send": reasons or 0,
            "too long for the model": workload.get("too_long") or 0,
        }
    left = sum(parts.values())
    if not left:
        return None
    said = ", ".join(f"{count:,} {reason}" for reason, count in parts.items() if count)
    return Finding(
        "lines_left_out",
        "info",
        f"{left:,} of the file's items were left out ({said}), {kept:,} remain to be sent",
        "Check whether they are of one kind, e.g. all long: only the rest was sent.",
    )


def prompts_lengthened(workload: Mapping[str, Any]) -> Finding | None:
    count = workload.get("lengthened")
    if not count:
        return None
    return Finding(
        "prompts_lengthened",
        "info",
        f"{count:,} of the trace's prompts are shorter than what the server adds to every prompt, and were "
        "lengthened to that",
        "Nothing; or use an endpoint without a chat template (--endpoint completions).",
    )


def deployment_doubted(deployment: Mapping[str, Any]) -> Finding | None:
    doubts = deployment.get("doubts")
    if not doubts:
        return None
    return Finding(
        "deployment_doubted",
        "info",  # a name may be an alias
        f"the server may not be the deployment that was stated: {'; '.join(map(str, doubts))}",
        "State what is served (--deployment): roofline, prices and comparisons rely on it.",
    )
