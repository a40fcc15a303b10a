"""A report as Markdown, for an issue or a wiki: the sentences and tables of the page, without its
pictures."""

from loadstone.report.pages.document import Report
from loadstone.report.pages.html import render


def markdown(report: Report) -> str:
    """Write the report's text."""
    return render("report.md", report=report).rstrip() + "\n"
