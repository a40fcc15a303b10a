"""Counts what makes src/loadstone hard to read, and fails where there is more of it than its limit below.

    .venv/bin/python scripts/gates.py        the numbers, and the places of what is over its limit
    .venv/bin/python scripts/gates.py -v     all places

A limit may only be lowered. Once a number is below its limit, lower the limit to it in the same change.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "loadstone"
LIMITS = {
    "public class names defined twice": 49,  # aim: 5
    "docstrings that begin with Of, What, Whose, As or Whether": 546,  # aim: 0
    "functions over 60 lines": 13,  # aim: 5
    "functions over 7 parameters": 16,  # aim: 5
    "functions of a complexity over 20": 63,  # aim: 10
    "files that name an engine, outside engines/ and interop/": 28,  # aim: 6
}
FIRST_WORDS = frozenset({"Of", "What", "Whose", "As", "Whether"})
ENGINE = re.compile(r"_*(vllm|sglang|tensorrt.?llm|trtllm|llama.?cpp|llama.server|mlx.lm)[\w.:-]*", re.IGNORECASE)
"""The whole of an identifier or string; a sentence that mentions an engine, as an example, is none."""

BRANCHES = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.Assert, ast.match_case)
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
    twice, riddles, long, wide, branching, engines = LIMITS
    places: Places = {name: [] for name in LIMITS}
    classes: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        file = path.relative_to(SOURCE).as_posix()
        tree = ast.parse(path.read_text("utf-8"))
        for node in ast.walk(tree):
            place = f"{file}:{getattr(node, 'lineno', 1)}"
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(place)
            if isinstance(node, Documented) and (ast.get_docstring(node) or "").split(" ")[0] in FIRST_WORDS:
                places[riddles].append(place)
            if isinstance(node, Function):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > 60:
                    places[long].append(f"{place} {node.name}: {lines}")
                if (parameters := count_parameters(node)) > 7:
                    places[wide].append(f"{place} {node.name}: {parameters}")
                if (ways := complexity(node)) > 20:
                    places[branching].append(f"{place} {node.name}: {ways}")
        if not file.startswith(("engines/", "interop/")) and (names := sorted(set(engine_names(tree)))):
            places[engines].append(f"{file}: {', '.join(names)}")
    places[twice] = [f"{name}: {', '.join(there)}" for name, there in sorted(classes.items()) if len(there) > 1]
    return places


def count_parameters(function: Function) -> int:
    arguments = function.args
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def engine_names(tree: ast.Module) -> Iterator[str]:
    """Yield the identifiers and strings that are an engine's name, or begin with one."""
    for node in ast.walk(tree):
        for field in ("id", "attr", "name", "arg", "value"):
            word = getattr(node, field, None)
            if isinstance(word, str) and ENGINE.fullmatch(word):
                yield word


def complexity(function: Function) -> int:
    """Count the ways through a function: one, and one more for each place where it branches (McCabe), with those
    inside conditions and comprehensions."""
    ways = 1
    for node in ast.walk(function):
        if isinstance(node, ast.BoolOp):
            ways += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            ways += 1 + len(node.ifs)
        elif isinstance(node, BRANCHES):
            ways += 1
    return ways


if __name__ == "__main__":
    sys.exit(main())
