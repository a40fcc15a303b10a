"""docs/verdict.md, findings.toml and the rules say the same."""

import ast
from pathlib import Path

from loadstone.analyse.verdict.finding import finding_rows
from verdict_tables import PAGE, listed, severities, write_tables

ROOT = Path(__file__).resolve().parents[2]


def rows_in_code() -> set[str]:
    """Collect the rows of findings.toml that the code of analyse names; of a name that is put
    together, all cases of the kind.
    """
    names: set[str] = set()
    for module in (ROOT / "src" / "loadstone" / "analyse").rglob("*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Constant) and node.value in finding_rows():
                names.add(str(node.value))
            if isinstance(node, ast.JoinedStr):
                kind = str(getattr(node.values[0], "value", "")).rstrip(".")
                names |= {row for row in finding_rows() if row.partition(".")[0] == kind}
    return names


def test_rules_make_the_findings_of_the_table() -> None:
    assert rows_in_code() == finding_rows().keys()


def test_the_page_has_the_lists_of_the_findings() -> None:
    """`python tests/docs/verdict_tables.py --write` writes them."""
    text = PAGE.read_text("utf-8")
    assert write_tables(text) == text
    for kind, graded in severities().items():
        assert text.count(f"\n- **`{kind}`** ({graded}): ") == 1


def test_a_kind_has_all_of_its_severities_in_the_page() -> None:
    assert severities()["stopped"] == "info, warning, error"
    assert "- **`stopped`** (info, warning, error): A rule ended the load. " in listed(
        "records_missing", "few_samples"
    )
