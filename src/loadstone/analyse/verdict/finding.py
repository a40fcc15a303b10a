"""Makes findings of values, by their rows in findings.toml, and a verdict of findings."""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

import msgspec
import numpy as np

from loadstone.core.record import Source
from loadstone.core.units import show_number, show_seconds
from loadstone.core.verdict import Finding, Severity, Verdict

Findings = Iterator[Finding]
"""What a rule yields."""

_FIELD = re.compile(r"\{(\w+)(?::([^}]*))?\}")
_CHOICE = re.compile(r"\[([^]]*)\]")
_ABSENT: tuple[object, ...] = (None, "", [])


def judge(findings: Sequence[Finding]) -> Verdict:
    """Judge a cell by all of its findings, which are put into order by their severity."""
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
    evidence: str
    remedy: str
    means: str | None = None
    when: str | None = None
    parts: dict[str, str] = {}
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


@functools.cache
def finding_rows() -> dict[str, FindingRow]:
    """Read findings.toml: a row for each `kind`, and for each `kind.case`, which has the fields of
    its kind but for its own.
    """
    table = msgspec.toml.decode(files(__package__).joinpath("findings.toml").read_bytes())
    rows = {}
    for kind, fields in table.items():
        cases = {name: fields.pop(name) for name in fields.keys() - FindingRow.__struct_fields__}
        rows[kind] = msgspec.convert(fields, FindingRow)
        for case, changed in cases.items():
            rows[f"{kind}.{case}"] = msgspec.convert(fields | changed, FindingRow)
    return rows


def can_hold(finding: Finding, origin: Origin) -> bool:
    """Tell if records of this origin can show a finding of this kind, whatever the case."""
    rows = finding_rows().items()
    return any(row.holds(origin) for name, row in rows if name.partition(".")[0] == finding.kind)


def finding(name: str, **values: Any) -> Finding:
    """Make a finding by the row `name` of findings.toml. Values that are None are left out."""
    row = finding_rows()[name]
    given = {
        key: value.item() if isinstance(value, np.generic) else value
        for key, value in values.items()
        if value is not None
    }
    evidence, remedy = (_write(text, given, row.parts) for text in (row.evidence, row.remedy))
    # A full stop follows, also where a server's words end with one.
    evidence = evidence.removesuffix(".")
    return Finding(name.partition(".")[0], row.severity, evidence, remedy, given)


def _write(template: str, values: Mapping[str, Any], parts: Mapping[str, str]) -> str:
    """Fill in a template, whose form findings.toml describes."""

    def choose(choice: re.Match[str]) -> str:
        for form in choice[1].split("|"):
            if all(values.get(name) not in _ABSENT for name, _ in _FIELD.findall(form)):
                return form
        return ""

    def show(field: re.Match[str]) -> str:
        name, form = field[1], field[2] or ""
        value = values[name]
        if isinstance(value, list):
            entries = [_write(parts[name], part, {}) for part in value] if name in parts else value
            return (form or ", ").join(entries)
        if form.startswith("# "):
            return f"{value} {form[2:]}{'s' if value != 1 else ''}"
        if form.isdigit() or not form:
            digits = int(form or 3)
            if name.endswith("_s") and not name.endswith("_per_s"):
                return show_seconds(value, digits)
            return show_number(value, digits) if form else str(value)
        return format(value, form)

    return _FIELD.sub(show, _CHOICE.sub(choose, template))
