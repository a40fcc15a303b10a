"""docs/verdict.md and the rules say the same."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def kinds_in_code() -> dict[str, set[str]]:
    """Each kind that a rule makes a Finding of, with the severities that it can have."""
    kinds: dict[str, set[str]] = {}
    for module in (ROOT / "src" / "loadstone" / "analyse" / "verdict").glob("*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding":
                kind, severity = node.args[:2]
                assert isinstance(kind, ast.Constant), f"{module.name}:{node.lineno}: the kind is no plain text"
                either = [severity.body, severity.orelse] if isinstance(severity, ast.IfExp) else [severity]
                named = {part.value for part in either if isinstance(part, ast.Constant)}
                kinds.setdefault(str(kind.value), set()).update(map(str, named))
    return kinds


def test_every_finding_is_documented_with_its_severity() -> None:
    text = (ROOT / "docs" / "verdict.md").read_text()
    lines = re.findall(r"^\| `(\w+)` \| ((?:info|warning|error|, )+) \|", text, re.MULTILINE)
    documented = {kind: set(severities.split(", ")) for kind, severities in lines}
    assert len(documented) == len(lines)
    assert documented == kinds_in_code()
