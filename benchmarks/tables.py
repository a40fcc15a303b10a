"""Writes the tables of pages in benchmarks/results anew, by the commands that the pages name above
them.

    python benchmarks/tables.py PAGE [--only TEXT] [--set POINTS.csv=PATH ...]

A paragraph that begins with a command in backquotes (`python benchmarks/...`) is followed by what
the command prints: the tables up to the next such paragraph or heading are replaced. Commands that
read a file name it in capitals; `--set` has the path, and without it their tables stay.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"
COMMAND = re.compile(r"`python (benchmarks/\w+\.py[^`>]*)`")
TABLE = re.compile(r"(?:^\|.*\n)+(?:\n(?:^\|.*\n)+)*", re.MULTILINE)
GIVEN = re.compile(r"\b[A-Z]{4,}\b(?:\.csv)?|\bpoints\.csv\b")


def renew(part: str, paths: dict[str, str], only: str) -> str:
    """Returns a part of a page, which begins with its command, with the tables that the command
    prints now."""
    found = COMMAND.match(part)
    if found is None or only not in found.group(1) or TABLE.search(part) is None:
        return part
    command = GIVEN.sub(lambda name: paths.get(name.group(), name.group()), found.group(1))
    if any(name not in paths for name in GIVEN.findall(found.group(1))):
        print(f"{command}: left as it is, for want of --set", file=sys.stderr)
        return part
    print(command, file=sys.stderr)
    done = subprocess.run(
        [sys.executable, *shlex.split(command)], stdout=subprocess.PIPE, text=True, check=True
    )
    printed = "\n".join(table.group() for table in TABLE.finditer(done.stdout))
    begin = TABLE.search(part)
    assert begin is not None
    return part[: begin.start()] + printed + part[begin.end() :]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("page", help="such as statistics.md")
    parser.add_argument("--only", default="", help="commands that have this text")
    parser.add_argument("--set", action="append", default=[], help="NAME=PATH")
    given = parser.parse_args()
    path = RESULTS / given.page
    parts = re.split(r"^(?=`python benchmarks/|#)", path.read_text("utf-8"), flags=re.MULTILINE)
    paths = dict(each.split("=", 1) for each in given.set)
    path.write_text("".join(renew(part, paths, given.only) for part in parts), "utf-8")


if __name__ == "__main__":
    main()
