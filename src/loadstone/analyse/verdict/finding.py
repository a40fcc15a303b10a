"""Makes findings from their rows in findings.toml, and a verdict of findings."""

from __future__ import annotations

import functools
from importlib.resources import files
from typing import NamedTuple

import msgspec

from loadstone.core.record import Source
from loadstone.core.summary import Finding, Severity, Verdict


def judge(findings: list[Finding]) -> Verdict:
    """Make the verdict on a cell with these findings."""
    order = ("error", "warning", "info")
    ranked = sorted(findings, key=lambda finding: order.index(finding.severity))
    return Verdict(all(finding.severity == "info" for finding in ranked), ranked)


class Origin(NamedTuple):
    """Tells where a cell's records come from, and what an imported file leaves out of them.

    common_clock  False: each request's times count from its own send
    every_event   False: of a stream only the first and the last event are known
    cut_at_end    requests that the tool cancelled when its time was up, as it is meant to, are no
                  failures
    """

    source: Source = "measured"
    common_clock: bool = True
    every_event: bool = True
    cut_at_end: bool = False


class FindingRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of findings.toml, which says what its fields mean."""

    severity: Severity
    remedy: str
    sources: frozenset[Source] = frozenset({"measured", "simulated", "imported"})
    relative_times: bool = False
    every_event: bool = False

    def holds(self, origin: Origin) -> bool:
        """Tell if records of this origin can show the finding."""
        return (
            origin.source in self.sources
            and (origin.common_clock or self.relative_times)
            and (origin.every_event or not self.every_event)
        )


def finding_row(name: str) -> FindingRow:
    """Look up the row of findings.toml of a `kind`, or of a `kind.case` where a kind has several
    severities or remedies.
    """
    return _rows()[name]


@functools.cache
def _rows() -> dict[str, FindingRow]:
    table = msgspec.toml.decode(files(__package__).joinpath("findings.toml").read_bytes())
    by_name = {}
    for kind, fields in table.items():
        common = {name: value for name, value in fields.items() if not isinstance(value, dict)}
        by_name[kind] = msgspec.convert(common, FindingRow)
        for case, own in fields.items():
            if isinstance(own, dict):
                by_name[f"{kind}.{case}"] = msgspec.convert(common | own, FindingRow)
    return by_name


def finding(name: str, evidence: str, **values: object) -> Finding:
    """Make a finding of the row `name` of findings.toml; `values` fill the braces of its remedy."""
    row = finding_row(name)
    return Finding(name.partition(".")[0], row.severity, evidence, row.remedy.format(**values))
