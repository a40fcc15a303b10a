"""docs/reliability.md claims what tests show: each one that it names is there."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "reliability.md").read_text()
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT)


def named_in(file: str) -> set[str]:
    body = ast.parse((ROOT / file).read_text()).body
    return {
        node.name
        for node in body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_every_named_test_exists() -> None:
    assert len(NAMED) > 40
    for file, name in NAMED:
        assert name in named_in(file), f"{file} has no {name}"


def test_every_row_names_its_tests() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("- **")]
    assert len(rows) > 40
    for row in rows:
        assert re.search(
            r"\(`tests/[\w/]+\.py::test_\w+`(, `tests/[\w/]+\.py::test_\w+`)*\)$", row
        ), row


def test_every_end_of_a_run_that_a_test_tries_has_a_row() -> None:
    for file in ("tests/e2e/test_crash.py", "tests/e2e/test_tls.py"):
        assert named_in(file) == {name for named, name in NAMED if named == file}
