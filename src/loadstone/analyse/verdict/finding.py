"""What a verdict is made of."""

from __future__ import annotations

from typing import Literal

import msgspec

Severity = Literal["info", "warning", "error"]


MORE_PROCESSOR_TIME = (
    "Give the client more processor time: stop other processes, add --workers, or use another machine. Of an engine "
    "on this machine, start both from one shell, or run loadstone with sudo; else set "
    "kernel.sched_autogroup_enabled=0 (sysctl) before it starts, or pin it to other cores (taskset)."
)


class Finding(msgspec.Struct, frozen=True):
    """One thing to know about a cell: what was seen, in numbers, and what to do about it.

    info     a reader should know it; it spoils nothing
    warning  some of the numbers do not mean what they seem to
    error    some of what was asked for was not measured
    """

    kind: str
    severity: Severity
    evidence: str
    remedy: str


class Verdict(msgspec.Struct, frozen=True):
    trusted: bool
    findings: list[Finding]


def judge(findings: list[Finding]) -> Verdict:
    order = ("error", "warning", "info")
    ranked = sorted(findings, key=lambda finding: order.index(finding.severity))
    return Verdict(all(finding.severity == "info" for finding in ranked), ranked)
