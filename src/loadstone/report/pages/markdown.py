"""A report as Markdown, for an issue or a wiki: the sentences and tables of the page, without its pictures."""

from __future__ import annotations

import re
from collections.abc import Iterable

from loadstone.report.pages.document import Report
from loadstone.report.pages.study import StudyPart
from loadstone.report.pages.tables import Table

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~&$@-])")
_PLAIN = re.compile(r"\\([().+-])")


def markdown(report: Report) -> str:
    """The report's text. What engines and files said is escaped: it is neither markup nor HTML."""
    lines = [f"# {text(report.title)}", "", f"{report.size} · Loadstone {report.version}", ""]
    study = report.study
    if study is not None and study.missing:
        lines += ["## Missing", "", *(f"- {text(line)}" for line in study.missing), ""]
    answered = report.answer
    if answered is not None:
        where = f"{answered.context}{' (predicted, not measured)' if answered.predicted else ''}"
        lines += [f"**{text(where)}**", "", *(f"- {text(each)}" for each in answered.sentences), ""]
    lines += [report.verdict, ""]
    lines += ["## Tables", ""]
    for table in [*report.first_tables, *report.tables]:
        lines += [f"### {text(table.title)}", "", *_table(table)]
    differences = study.differences if study is not None else []
    lines += ["## Findings", "", *(f"- {text(difference)}" for difference in differences)]
    for where, sentences in report.by_context:
        lines += [f"### {text(where)}", ""] if where else [""]
        lines += [*(f"- {text(sentence.text)}" for sentence in sentences), ""]
    if not report.sentences:
        lines += [*([""] if differences else []), report.nothing_shown]
    for remark in report.remarks:
        lines += ["", text(remark)]
    lines += ["", "## Verdicts", "", report.verdict, ""]
    if report.verdicts.rows:
        lines += _table(report.verdicts)
    lines += [f"- passed over: {text(reason)}" for reason in report.passed_over]
    lines += ["", "### Runs", "", *_table(report.overview)]
    if study is not None:
        return "\n".join(lines + _repeat(study)).rstrip() + "\n"
    lines += ["## Again", ""]
    for part in report.parts:
        lines += [
            f"### {text(part.title)}",
            "",
            *(f"- {text(name)}: {text(value)}" for name, value in part.facts),
            "",
        ]
        if part.repeat:
            lines += ["```", part.repeat.replace("```", "'''"), "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def _repeat(study: StudyPart) -> list[str]:
    """The study's file, and what its runs were made with."""
    lines = [
        "## Repeat this",
        "",
        "Save the file, and run `loadstone study run FILE`.",
        "",
        "```yaml",
        study.file.replace("```", "'''").rstrip(),
        "```",
        "",
    ]
    for title, facts in (("All runs were made with", study.shared), *study.apart):
        lines += [f"### {text(title)}", "", *(f"- {text(name)}: {text(value)}" for name, value in facts), ""]
    return lines


def text(literal: str) -> str:
    """Literally: every character that Markdown reads is escaped, but for those that mean nothing within a line."""
    return _PLAIN.sub(r"\1", _SPECIAL.sub(r"\\\1", literal))


def _table(table: Table) -> Iterable[str]:
    yield "| " + " | ".join(text(head) or " " for head in table.heads) + " |"
    yield "|" + "|".join("---:" if side in "ru" else "---" for side in table.align) + "|"
    for row in table.rows:
        yield "| " + " | ".join(text(cell) or " " for cell in row) + " |"
    yield ""
    for note in table.notes:
        yield text(note)
        yield ""
