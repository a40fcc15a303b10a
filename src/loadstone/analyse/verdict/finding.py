"""What a verdict is made of."""

from __future__ import annotations

from loadstone.core.summary import Finding, Verdict

__all__ = ["MORE_PROCESSOR_TIME", "Finding", "Verdict", "judge"]

MORE_PROCESSOR_TIME = (
    "Give the client more processor time: stop other processes, add --workers, or use another machine. Of an engine "
    "on this machine, start both from one shell, or run loadstone with sudo; else set "
    "kernel.sched_autogroup_enabled=0 (sysctl) before it starts, or pin it to other cores (taskset)."
)


def judge(findings: list[Finding]) -> Verdict:
    order = ("error", "warning", "info")
    ranked = sorted(findings, key=lambda finding: order.index(finding.severity))
    return Verdict(all(finding.severity == "info" for finding in ranked), ranked)
