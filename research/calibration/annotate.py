"""Published measurements, with what their sources say in other places than in the row.

    python research/calibration/annotate.py POINTS.csv > annotated.csv

`facts.csv` has, for rows of the points file (counted from 1, without the header), the cells that
take the place of the row's own: the deployment with the arguments that the source's scripts gave
the engine, the lengths and the number of requests that were really sent, what statistic the times
are, why a row must not be predicted (`exclude`), and why it must not be fitted on (`unfitted`).
facts.md has the evidence.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

FACTS = Path(__file__).with_name("facts.csv")


def numbers_of(text: str) -> Iterator[int]:
    """The row numbers of `3-5 9`: 3, 4, 5 and 9."""
    for part in text.split():
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def annotated(points: Path) -> Iterator[dict[str, str]]:
    """The rows of a points file, each with its facts; all have the same columns."""
    with FACTS.open(newline="", encoding="utf-8") as file:
        facts = {
            number: row for row in csv.DictReader(file) for number in numbers_of(row.pop("rows"))
        }
    added = dict.fromkeys(next(iter(facts.values())), "")
    with points.open(newline="", encoding="utf-8-sig") as file:
        for number, row in enumerate(csv.DictReader(file), 1):
            yield added | row | {name: cell for name, cell in facts.get(number, {}).items() if cell}


def main() -> None:
    rows = list(annotated(Path(sys.argv[1])))
    writer = csv.DictWriter(sys.stdout, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)


if __name__ == "__main__":
    main()
