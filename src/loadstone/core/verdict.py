"""Holds what is to be known of a cell's numbers: its findings, and whether it can be trusted."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from loadstone.core.document import DocumentPart

QUEUE_GROWS = frozenset({"overload", "queue_grows"})
"""Findings on open loops in which requests begin faster than they end."""
Severity = Literal["info", "warning", "error"]


class Finding(DocumentPart, frozen=True):
    """A fact to know about a cell: the evidence, in words, and a remedy.

    severity  info: a reader should know it, and it spoils nothing; warning: some of the numbers do
              not mean what they seem to; error: some of what was asked for was not measured
    values    the numbers and names of which the words were made, with their units in their names;
              none where another program or an earlier version found it
    """

    kind: str
    severity: Severity
    evidence: str
    remedy: str
    values: dict[str, Any] = {}


class Verdict(msgspec.Struct, frozen=True):
    """`trusted`: no finding is a warning or an error. Findings are ordered by severity, errors
    first."""

    trusted: bool
    findings: list[Finding]

    def has(self, *kinds: str) -> bool:
        """Tell if one of the findings is of one of these kinds."""
        return any(finding.kind in kinds for finding in self.findings)

    def kinds(self, *severities: Severity) -> list[str]:
        """List the kinds of its findings of these severities, each once."""
        chosen = [finding.kind for finding in self.findings if finding.severity in severities]
        return list(dict.fromkeys(chosen))
