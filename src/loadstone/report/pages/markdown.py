"""A report as Markdown, for an issue or a wiki: the sentences and tables of the page, without its
pictures."""

from __future__ import annotations

from loadstone.report.pages.document import Report
from loadstone.report.pages.study import StudyPart
from loadstone.report.table import escape, to_markdown


def markdown(report: Report) -> str:
    """Write the report's text. What engines and files said is escaped: it is neither markup nor
    HTML."""
    lines = [f"# {escape(report.title)}", "", f"{report.size} · Loadstone {report.version}", ""]
    study = report.study
    if study is not None and study.missing:
        lines += ["## Missing", "", *(f"- {escape(line)}" for line in study.missing), ""]
    answered = report.answer
    if answered is not None:
        where = f"{answered.context}{' (predicted, not measured)' if answered.predicted else ''}"
        lines += [
            f"**{escape(where)}**",
            "",
            *(f"- {escape(sentence)}" for sentence in answered.sentences),
            "",
        ]
    lines += [report.verdict, ""]
    lines += ["## Tables", ""]
    for table in [*report.first_tables, *report.tables]:
        lines += [f"### {escape(table.title)}", "", *to_markdown(table)]
    differences = study.differences if study is not None else []
    lines += ["## Findings", "", *(f"- {escape(difference)}" for difference in differences)]
    for where, sentences in report.by_context:
        lines += [f"### {escape(where)}", ""] if where else [""]
        lines += [*(f"- {escape(sentence.text)}" for sentence in sentences), ""]
    if not report.sentences:
        lines += [*([""] if differences else []), report.nothing_shown]
    for remark in report.remarks:
        lines += ["", escape(remark)]
    lines += ["", "## Verdicts", "", report.verdict, ""]
    if report.verdicts.rows:
        lines += to_markdown(report.verdicts)
    lines += [f"- passed over: {escape(reason)}" for reason in report.passed_over]
    lines += ["", "### Runs", "", *to_markdown(report.overview)]
    if study is not None:
        return "\n".join(lines + _repeat(study)).rstrip() + "\n"
    lines += ["## Again", ""]
    for part in report.parts:
        lines += [
            f"### {escape(part.title)}",
            "",
            *(f"- {escape(name)}: {escape(value)}" for name, value in part.facts),
            "",
        ]
        if part.repeat:
            lines += ["```", part.repeat.replace("```", "'''"), "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def _repeat(study: StudyPart) -> list[str]:
    """Return the study's file, and what its runs were made with."""
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
        lines += [
            f"### {escape(title)}",
            "",
            *(f"- {escape(name)}: {escape(value)}" for name, value in facts),
            "",
        ]
    return lines
