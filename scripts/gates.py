"""Counts what makes src/loadstone hard to read, and fails where there is more of it than its limit
below.

    .venv/bin/python scripts/gates.py        the numbers, and the places of what is over its limit
    .venv/bin/python scripts/gates.py -v     all places

A limit may only be lowered. Once a number is below its limit, lower the limit to it in the same
change.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "loadstone"
LIMITS = {
    "public class names defined twice": 0,
    "docstrings that begin with Of, What, Whose, As or Whether": 0,
    "functions over 75 lines": 1,
    "functions over 7 parameters": 4,
}
FIRST_WORDS = frozenset({"Of", "What", "Whose", "As", "Whether"})

Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = Function | ast.ClassDef | ast.Module
Places = dict[str, list[str]]


def main() -> int:
    places = count()
    status = 0
    for name, limit in LIMITS.items():
        over = len(places[name]) > limit
        status |= over
        print(f"{'over  ' if over else '      '}{len(places[name]):4} of {limit:3}  {name}")
        if over or "-v" in sys.argv:
            print(*(f"            {place}" for place in places[name]), sep="\n")
    return status


def count() -> Places:
    """Return the places of each thing that is limited."""
    twice, riddles, long, wide = LIMITS
    places: Places = {name: [] for name in LIMITS}
    classes: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        file = path.relative_to(SOURCE).as_posix()
        tree = ast.parse(path.read_text("utf-8"))
        for node in ast.walk(tree):
            place = f"{file}:{getattr(node, 'lineno', 1)}"
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(place)
            if (
                isinstance(node, Documented)
                and (ast.get_docstring(node) or "").split(" ")[0] in FIRST_WORDS
            ):
                places[riddles].append(place)
            if isinstance(node, Function):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > 75:
                    places[long].append(f"{place} {node.name}: {lines}")
                if (parameters := count_parameters(node)) > 7:
                    places[wide].append(f"{place} {node.name}: {parameters}")
    places[twice] = [
        f"{name}: {', '.join(there)}" for name, there in sorted(classes.items()) if len(there) > 1
    ]
    return places


def count_parameters(function: Function) -> int:
    arguments = function.args
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


if __name__ == "__main__":
    sys.exit(main())
