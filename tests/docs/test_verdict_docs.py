"""docs/verdict.md, findings.toml and the rules say the same."""

import ast
import re
from pathlib import Path

from loadstone.analyse.verdict.finding import _rows as rules

ROOT = Path(__file__).resolve().parents[2]


def rows_in_code() -> set[str]:
    """Each row of findings.toml that a rule makes a finding of."""
    names: set[str] = set()
    analyse = ROOT / "src" / "loadstone" / "analyse"
    for module in [*analyse.glob("verdict/*.py"), *analyse.glob("grading/*.py")]:
        for node in ast.walk(ast.parse(module.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "finding"
            ):
                either = (
                    [node.args[0].body, node.args[0].orelse]
                    if isinstance(node.args[0], ast.IfExp)
                    else node.args[:1]
                )
                for name in either:
                    if isinstance(name, ast.JoinedStr):  # a kind, and one of its cases
                        kind = getattr(name.values[0], "value", None)
                        names |= {row for row in rules() if row.partition(".")[0] == kind}
                        continue
                    assert isinstance(name, ast.Constant), (
                        f"{module.name}:{node.lineno}: the name is no plain text"
                    )
                    names.add(str(name.value))
    return names


def test_rules_make_the_findings_of_the_table() -> None:
    assert rows_in_code() == rules().keys()


def test_every_finding_is_documented_with_its_severity() -> None:
    text = (ROOT / "docs" / "verdict.md").read_text()
    lines = re.findall(r"^\| `(\w+)` \| ((?:info|warning|error|, )+) \|", text, re.MULTILINE)
    documented = {kind: set(severities.split(", ")) for kind, severities in lines}
    assert len(documented) == len(lines)
    severities: dict[str, set[str]] = {}
    for name, rule in rules().items():
        severities.setdefault(name.partition(".")[0], set()).add(rule.severity)
    assert documented == severities
