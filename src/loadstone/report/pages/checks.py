"""A comparison as continuous integration reads it: GitHub's annotations, or JUnit's XML."""

from collections.abc import Iterator
from xml.etree import ElementTree

from loadstone.analyse.compare.result import BoundResult, Comparison, MetricRow, name_class
from loadstone.core.text import printable
from loadstone.report.pages.comparison import explain_bound, show_conclusion, show_metric

_TEXT = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_TITLE = _TEXT | str.maketrans({":": "%3A", ",": "%2C"})


def github(comparison: Comparison) -> str:
    """Write an annotation a line: an error for each bound that fails, a notice for each that holds
    and for each difference that is shown, a warning for each finding that is one.
    """
    notes = []
    for bound in comparison.fail_on or ():
        text = "; ".join([explain_bound(bound), *_rows_of(comparison, bound)])
        notes.append(("error" if bound.fails else "notice", bound.bound, text))
    differing = (entry for entry in _rows(comparison) if entry[1].better is not None)
    notes += [("notice", f"{row.name} at {where}", _describe(row)) for where, row in differing]
    findings = (entry for entry in comparison.findings if entry.severity != "info")
    notes += [("warning", entry.kind, f"{entry.evidence}. {entry.remedy}") for entry in findings]
    shown = (
        (level, printable(title).translate(_TITLE), printable(text).translate(_TEXT))
        for level, title, text in notes
    )
    return "".join(
        f"::{level} title=Loadstone%3A {title}::{text}\n" for level, title, text in shown
    )


def junit(comparison: Comparison) -> str:
    """Write a test case for each bound, and for each metric of each load: skipped where nothing is
    concluded."""
    suite = ElementTree.Element("testsuite", name="loadstone compare")

    def add(group: str, name: str, tag: str, words: str) -> None:
        text = printable(words)
        case = ElementTree.SubElement(
            suite, "testcase", classname=printable(group), name=printable(name)
        )
        ElementTree.SubElement(
            case, tag, {} if tag == "system-out" else {"message": text}
        ).text = text

    for bound in comparison.fail_on or ():
        text = "; ".join([explain_bound(bound), *_rows_of(comparison, bound)])
        add("bounds", bound.bound, "failure" if bound.fails else "system-out", text)
    for where, row in _rows(comparison):
        add(
            where,
            row.name,
            "skipped" if row.conclusion in (None, "too_little") else "system-out",
            _describe(row),
        )
    counts = {"failures": "failure", "skipped": "skipped"}
    suite.attrib |= {"tests": str(len(suite))} | {
        name: str(len(suite.findall(f"*/{tag}"))) for name, tag in counts.items()
    }
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _rows(comparison: Comparison) -> Iterator[tuple[str, MetricRow]]:
    for cell in comparison.parts:
        label = name_class(cell.load.label, cell.name)
        yield from ((label, row) for row in cell.metrics if row.a is not None or row.b is not None)


def _rows_of(comparison: Comparison, bound: BoundResult) -> list[str]:
    """Describe the metric of a bound at each load."""
    bounded = bound.bound.replace("<", ">").partition(">")[0].strip()
    traffic_class, _, named = bounded.rpartition(":")
    return [
        f"{where}: {_describe(row)}"
        for where, row in _rows(comparison)
        if row.name == named and (not traffic_class or where.endswith(f" · {traffic_class}"))
    ]


def _describe(row: MetricRow) -> str:
    name, a, b, ratio, interval, *_ = show_metric(row)
    return f"{name} {a} → {b}, B/A {ratio} ({interval}): {show_conclusion(row) or 'not tested'}"
