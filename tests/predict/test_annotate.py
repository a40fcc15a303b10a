"""Facts about published measurements that their rows do not have: where they go, and that each can
be predicted."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from annotate import FACTS, annotated, numbers_of
from loadstone.calibrate.cases import case_of
from loadstone.calibrate.points import deployment_of, read_points

POINTS = Path(__file__).resolve().parents[3] / "shared" / "data" / "points.csv"


def test_facts_take_the_place_of_cells(tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    path.write_text("engine,stat\nvllm,\n" * 1 + "vllm,median\n" * 400)
    rows = list(annotated(path))
    assert list(numbers_of("3-5 9")) == [3, 4, 5, 9]
    with FACTS.open(newline="") as file:
        first = next(row for row in csv.DictReader(file) if row["stat"] == "mean")
    (number, *_) = numbers_of(first["rows"])
    assert rows[number - 1]["stat"] == "mean"
    assert {row["stat"] for row in rows} == {"", "median", "mean"}
    assert all(row.keys() == rows[0].keys() for row in rows)


def test_all_deployments_of_the_facts_can_be_read(tmp_path: Path) -> None:
    for point in read_points(FACTS):
        assert bool(point.deployment or point.stat or point.exclude)
        assert not point.wrong
        if point.deployment and not point.exclude:
            assert deployment_of(point).decoder.engine_version


@pytest.mark.skipif(
    not POINTS.exists(), reason="the shared measurements are not beside the checkout"
)
def test_rows_with_their_facts(tmp_path: Path) -> None:
    """GPUs that were counted twice, users of several copies, versions by month."""
    rows = list(annotated(POINTS))
    with (tmp_path / "points.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    points = read_points(tmp_path / "points.csv")
    squared = [
        (row, point)
        for row, point in zip(rows, points, strict=True)
        if row["num_gpus"] == "64" == row["tp"]
    ]
    assert {deployment_of(point).gpus for _, point in squared if point.deployment} <= {8, 64}
    copies = [point for point in points if point.unfitted == "users of several copies"]
    assert {case_of(point).worker.engine_version for point in copies} == {"1.3.0rc5"}
    months = [
        deployment_of(point).decoder.engine_version
        for row, point in zip(rows, points, strict=True)
        if not row["engine_version"] and "measured=2026-04" in row["notes"] and point.deployment
    ]
    assert set(months) <= {"0.19", "0.5.10", "1.1.0"}
