"""The lists of docs/verdict.md, made of findings.toml.

    python tests/docs/verdict_tables.py --write    write them into the page

A list stands after `<!-- findings FIRST to LAST -->`: the kinds between these, in the order of
findings.toml.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from loadstone.analyse.verdict.finding import finding_rows

PAGE = Path(__file__).resolve().parents[2] / "docs" / "verdict.md"
_LIST = re.compile(r"(<!-- findings (\w+) to (\w+) -->\n\n)(?:- .*\n)*")


def severities() -> dict[str, str]:
    """List the severities of each kind that the page tells of."""
    kinds: dict[str, list[str]] = {}
    for name, row in finding_rows().items():
        if row.means is not None:
            kinds.setdefault(name.partition(".")[0], []).append(row.severity)
    order = ("info", "warning", "error")
    return {kind: ", ".join(sorted(set(graded), key=order.index)) for kind, graded in kinds.items()}


def listed(first: str, last: str) -> str:
    """Write the list of these kinds and those between them."""
    kinds = list(severities())
    lines: list[str] = []
    for kind in kinds[kinds.index(first) : kinds.index(last) + 1]:
        row = finding_rows()[kind]
        lines.append(f"- **`{kind}`** ({severities()[kind]}): {row.means} *When:* {row.when}.")
    return "".join(f"{line}\n" for line in lines)


def write_tables(text: str) -> str:
    """Put the lists into the text of the page."""
    return _LIST.sub(lambda found: found[1] + listed(found[2], found[3]), text)


if __name__ == "__main__" and "--write" in sys.argv:
    PAGE.write_text(write_tables(PAGE.read_text("utf-8")), "utf-8")
