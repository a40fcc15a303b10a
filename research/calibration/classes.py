"""What rows of points files say of the classes without measurements
(predict/step_time/coverage.py).

    python research/calibration/classes.py POINTS.csv… [--history HISTORY.csv]

By class: how far off TPOT, TTFT and tokens per second are with the model family held out, and how
many of the rows lie inside the 80 % interval, as wide as it is, and as it would be without the
class. Only rows in a class are predicted.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from collections.abc import Iterator
from math import exp, log
from pathlib import Path

import msgspec
import numpy as np

import history
from loadstone.calibrate.cases import case_of
from loadstone.calibrate.points import Point, read_points
from loadstone.calibrate.validate import QUANTITIES, Scored, count_at_once, score
from loadstone.core.errors import InputError
from loadstone.predict.step_time.coverage import uncovered_load
from loadstone.predict.step_time.profile import profile_of, uncovered_classes


def points_of(arguments: argparse.Namespace) -> Iterator[Point]:
    for path in arguments.points:
        yield from (point for point in read_points(path) if not point.exclude)
    if arguments.history:
        with arguments.history.open(newline="", encoding="utf-8") as file:
            yield from (
                history.point_of(at, cell)
                for at, cell in enumerate(history.cells(csv.DictReader(file)))
            )


def members(points: Iterator[Point]) -> tuple[list[Point], list[float]]:
    """Keep the points in a class, and how many times as wide as otherwise their intervals are."""
    kept: list[Point] = []
    times: list[float] = []
    for point in points:
        try:
            case = case_of(point)
        except InputError:
            continue
        loads = uncovered_load(case.worker, *count_at_once(case))
        if loads or uncovered_classes(case.worker):
            profile = profile_of(case.worker, published=True)
            kept.append(msgspec.structs.replace(point, row=len(kept) + 1))
            times.append(profile.wider * profile.wider_for(loads))
    return kept, times


def show(what: str, rows: list[tuple[Scored, float]]) -> None:
    text = f"{what[:46]:46s}"
    for name in QUANTITIES:
        here = [(row, times) for row, times in rows if name in row.measured]
        if not here:
            continue
        gaps = np.array([log(row.predicted[name] / row.measured[name]) for row, _ in here])
        width = np.array([log(row.high[name] / row.predicted[name]) for row, _ in here])
        plain = width / np.array([times for _, times in here])
        text += (
            f" | {name} n {len(here):3d} {np.median(np.abs(np.expm1(gaps))):4.0%}"
            f" {exp(np.median(gaps)) - 1:+4.0%}"
        )
        text += (
            f" in {np.mean(np.abs(gaps) <= width):4.0%}, else {np.mean(np.abs(gaps) <= plain):4.0%}"
        )
    print(text)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("points", type=Path, nargs="*")
    parser.add_argument("--history", type=Path)
    points, times = members(points_of(parser.parse_args()))
    groups: dict[str, list[tuple[Scored, float]]] = defaultdict(list)
    for row, wider in zip(score(points), times, strict=True):
        for what in row.uncovered:
            groups[what].append((row, wider))
    for what, rows in sorted(groups.items()):
        show(what, rows)


if __name__ == "__main__":
    main()
