"""Errors and intervals of the shipped profile, and without each row's model family, on rows of fits
and of no fit.

    python research/calibration/unseen.py POINTS.csv… [--history HISTORY.csv] [--by-source]

Rows count as seen where the fit had their source, by the profiles' own account; those of the
history are of a source that the fit had, on other dates, and are lines of their own. With drafts
are rows whose engine guesses tokens. × is an interval's high over low, in the median.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

import history
from loadstone.calibrate.cases import case_of
from loadstone.calibrate.points import Point, read_points
from loadstone.calibrate.validate import Scored, errors, score
from loadstone.predict.step_time.profile import Quantity, shipped_profiles

HISTORY = "the programme's history"


def points_of(arguments: argparse.Namespace) -> Iterator[tuple[str, Point]]:
    fitted = {
        name for profile in shipped_profiles().values() for name in profile.provenance.sources
    }
    for path in arguments.points:
        for point in read_points(path):
            if not point.exclude:
                yield "seen" if point.source in fitted else "unseen", point
    if arguments.history:
        with arguments.history.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["disagg"] == "0"]
        yield from (
            (HISTORY, history.point_of(at, cell)) for at, cell in enumerate(history.cells(rows), 1)
        )


def groups_of(
    rows: Sequence[Scored], whose: Sequence[str], by_source: bool
) -> dict[str, list[Scored]]:
    groups: dict[str, list[Scored]] = defaultdict(list)
    for which, row in zip(whose, rows, strict=True):
        if row.skipped_because:
            continue
        drafts = "plain" if case_of(row.point).policy.speculative is None else "drafts"
        groups[f"{which}, {drafts}"].append(row)
        if which != "seen":
            groups[f"not fitted on, {drafts}"].append(row)
        if which != "seen" and not row.uncovered:
            groups[f"not fitted on, {drafts}, of measured kinds"].append(row)
        if by_source:
            groups[f"{which}: {row.point.source}"].append(row)
    return groups


def bias_of(rows: Sequence[Scored], quantity: Quantity) -> float:
    """Return the median of predicted/measured, less 1, of the rows that have the quantity."""
    ratios = [
        row.predicted[quantity] / row.measured[quantity] for row in rows if quantity in row.measured
    ]
    return float(np.median(ratios) - 1)


def width_of(rows: Sequence[Scored], quantity: Quantity) -> float:
    """Return the median of high over low, of the rows that have the quantity."""
    return float(
        np.median(
            [row.high[quantity] / row.low[quantity] for row in rows if quantity in row.measured]
        )
    )


def show(name: str, rows: Sequence[Scored]) -> None:
    parts = [f"{name[:44]:44s}"]
    for quantity, found in errors(rows).items():
        bias, width = bias_of(rows, quantity), width_of(rows, quantity)
        numbers = f"{found.median_error:6.1%} {bias:+5.0%} in {found.coverage:4.0%} ×{width:.2f}"
        parts.append(f"{quantity} n {found.n:4d} {numbers}")
    print(" | ".join(parts))


def show_sources(groups: Mapping[str, Sequence[Scored]]) -> None:
    """Print the median of the medians of the sources of no fit."""
    medians: dict[Quantity, list[float]] = defaultdict(list)
    for name, rows in groups.items():
        if name.startswith("unseen: "):
            for quantity, found in errors(rows).items():
                medians[quantity].append(found.median_error)
    for quantity, each in medians.items():
        print(f"  {quantity} of {len(each)} sources of no fit: {np.median(each):.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("points", type=Path, nargs="*")
    parser.add_argument("--history", type=Path)
    parser.add_argument("--by-source", action="store_true")
    arguments = parser.parse_args()
    found = [
        (which, msgspec.structs.replace(point, row=at))
        for at, (which, point) in enumerate(points_of(arguments), 1)
    ]
    for hold_out in (False, True):
        print("family held out" if hold_out else "shipped profile")
        rows = score([point for _, point in found], hold_out=hold_out)
        groups = groups_of(rows, [which for which, _ in found], arguments.by_source)
        for name, members in sorted(groups.items()):
            show(f"  {name}", members)
        show_sources(groups)


if __name__ == "__main__":
    main()
