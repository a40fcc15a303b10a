"""A comparison as continuous integration reads it: GitHub's annotations, or JUnit's XML."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree import ElementTree

from loadstone.analyse.compare.result import BoundResult, CellResult, Comparison, MetricRow
from loadstone.core.text import printable
from loadstone.report.pages.comparison import explain_bound, plain, show_conclusion, show_metric

_ESCAPED = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_ESCAPED_TITLE = {**_ESCAPED, ":": "%3A", ",": "%2C"}
_OF_SIDES = ("a", "b")


def github(comparison: Comparison) -> str:
    """Write an annotation a line: an error for each bound that fails, a notice for each that holds and for each
    difference that is shown, a warning for each finding that is one.
    """
    lines = []
    for bound in comparison.fail_on or ():
        text = ". ".join([explain_bound(bound), *_rows_of(comparison, bound)])
        lines.append(_annotation("error" if bound.fails else "notice", bound.bound, text))
    lines += [
        _annotation("notice", f"{row.name} at {cell.load.label}", _describe(row))
        for cell, row in _rows(comparison)
        if row.better is not None
    ]
    lines += [
        _annotation("warning", each.kind, f"{each.evidence}. {each.remedy}")
        for each in comparison.findings
        if each.severity != "info"
    ]
    return "".join(line + "\n" for line in lines)


def _annotation(level: str, title: str, text: str) -> str:
    """Write a workflow command, which ends with its line."""
    shown = printable(title).translate(str.maketrans(_ESCAPED_TITLE))
    return f"::{level} title=Loadstone%3A {shown}::{printable(text).translate(str.maketrans(_ESCAPED))}"


def junit(comparison: Comparison) -> str:
    """Write a test case for each bound, and for each metric of each load: skipped where nothing is concluded."""
    sides = {"a": comparison.a, "b": comparison.b}
    suite = ElementTree.Element("testsuite", name="loadstone compare")
    properties = ElementTree.SubElement(suite, "properties")
    for name in _OF_SIDES:
        ElementTree.SubElement(properties, "property", name=name, value=plain(sides[name].label))
    failed = skipped = 0
    for bound in comparison.fail_on or ():
        case = ElementTree.SubElement(suite, "testcase", classname="bounds", name=printable(bound.bound))
        if bound.fails:
            failed += 1
            failure = ElementTree.SubElement(case, "failure", message=printable(explain_bound(bound)))
            failure.text = printable("; ".join(_rows_of(comparison, bound)))
    for cell, row in _rows(comparison):
        case = ElementTree.SubElement(suite, "testcase", classname=printable(cell.load.label), name=row.name)
        if row.conclusion in (None, "too_little"):
            skipped += 1
            ElementTree.SubElement(case, "skipped", message=printable(show_conclusion(row) or "not tested"))
        else:
            ElementTree.SubElement(case, "system-out").text = printable(_describe(row))
    suite.attrib |= {"tests": str(len(suite) - 1), "failures": str(failed), "errors": "0", "skipped": str(skipped)}
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _rows(comparison: Comparison) -> Iterator[tuple[CellResult, MetricRow]]:
    for cell in comparison.cells:
        yield from ((cell, row) for row in cell.metrics if row.a is not None or row.b is not None)


def _rows_of(comparison: Comparison, bound: BoundResult) -> list[str]:
    """Describe the metric of a bound at each load."""
    named = bound.bound.replace("<", ">").partition(">")[0].strip()
    return [f"{cell.load.label}: {_describe(row)}" for cell, row in _rows(comparison) if row.name == named]


def _describe(row: MetricRow) -> str:
    name, a, b, ratio, interval, *_ = show_metric(row)
    between = f" ({interval})" if interval != "-" else ""
    return f"{name} {a} → {b}, B/A {ratio}{between}: {show_conclusion(row) or 'not tested'}"
