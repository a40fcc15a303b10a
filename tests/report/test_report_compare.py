"""A report of simulated runs says what a comparison of them says."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from loadstone import compare
from loadstone import simulate as simulate_run
from loadstone.analyse.stored_run import read_run
from loadstone.core.units import show_number
from loadstone.report.data.frames import E2E, OUTPUT, TPOT, TTFT
from loadstone.report.data.pairs import effect
from loadstone.report.data.points import points_of
from loadstone.report.findings import observations
from loadstone.report.findings.answer import answer
from loadstone.runs import simulate
from loadstone.workload.options import SimulateOptions

MEASURES = {"ttft_p50": TTFT, "tpot_p50": TPOT, "e2e_p50": E2E, "output_tokens_per_s": OUTPUT}
Deployment = tuple[str, str, int]
DEPLOYMENTS: list[Deployment] = list(
    itertools.product(("vllm", "sglang"), ("h100", "h200"), (1, 2))
)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, Deployment], Path]:
    """A run of each deployment and each load."""
    out = tmp_path_factory.mktemp("sweep")
    loads = {
        "users": {"concurrency": [1, 16], "requests": [96]},
        "open": {"rate": [8.0], "requests": [200]},
    }
    return {
        (name, (engine, gpu, gpus)): Path(
            simulate.simulate(
                SimulateOptions.read(
                    deployment=f"llama-3.1-8b@{gpus}x{gpu}/tp{gpus},engine={engine}",
                    input="512",
                    output="64",
                    range_ratio=0.5,
                    label=f"{n}",
                    out=out / name,
                    draws=8,
                    **load,
                )
            ).run_dir
        )
        for name, load in loads.items()
        for n, (engine, gpu, gpus) in enumerate(DEPLOYMENTS)
    }


@pytest.mark.slow
@pytest.mark.parametrize("load", ["users", "open"])
def test_what_a_comparison_calls_better_a_report_does_too(
    sweep: dict[tuple[str, Deployment], Path], load: str
) -> None:
    """Of all pairs of a sweep effects go the same way, and of those that differ in one thing a
    sentence says so."""
    better = silent = 0
    for one, other in itertools.combinations(DEPLOYMENTS, 2):
        a, b = sweep[load, one], sweep[load, other]
        document = compare([a], [b]).document()
        points = points_of([read_run(folder) for folder in (a, b)])
        told = " ".join(each.text for each in observations(points))
        half = len(points) // 2
        for cell, on_a, on_b in zip(document["cells"], points[:half], points[half:], strict=True):
            for row in cell["metrics"]:
                measure = MEASURES.get(row["metric"])
                if measure is None:
                    continue
                found = effect(on_b, on_a, measure)
                if row["better"] is None:
                    silent += 1
                    assert row["conclusion"] != "within_model" or found is None or not found.clear
                    continue
                better += 1
                where = f"{a.name} {b.name} {cell['load']} {row['metric']} {row['ratio']} {found}"
                assert found is not None, where
                assert found.clear, where
                assert (found.ratio > 1) == (row["ratio"] > 1), where
                if sum(x != y for x, y in zip(one, other, strict=True)) == 1:
                    assert measure.noun in told, where
    assert min(better, silent) >= 10  # of either there is enough to see it by


def test_the_error_that_two_predictions_share_is_in_no_finding(tmp_path: Path) -> None:
    """Two simulations whose 80% intervals overlap, and whose ratio is sure to less than either."""
    load = {
        "concurrency": [8],
        "requests": [64],
        "input": "512",
        "output": "64",
        "out": tmp_path,
        "draws": 8,
    }
    deployments = (f"llama-3.1-8b@{gpus}xh100/tp{gpus}" for gpus in (1, 2))
    runs = [
        Path(simulate.simulate(SimulateOptions.read(deployment=name, **load)).run_dir)
        for name in deployments
    ]
    slow, fast = points_of([read_run(folder) for folder in runs])
    assert slow.tpot is not None
    assert fast.tpot is not None
    assert slow.tpot.low is not None
    assert fast.tpot.high is not None
    assert slow.tpot.low < fast.tpot.high
    found = effect(slow, fast, TPOT)
    assert found is not None
    assert found.clear
    (row,) = [
        row
        for row in compare([runs[1]], [runs[0]]).document()["cells"][0]["metrics"]
        if row["metric"] == "tpot_p50"
    ]
    assert (found.low, found.high) == pytest.approx((row["model_low"], row["model_high"]))
    assert any("TPOT" in each.text for each in observations([slow, fast]))


def test_texts_and_their_tokens_are_counted_over_one_window(tmp_path: Path) -> None:
    """Also where one of the runs was never steady, so that whole loads are shown."""
    asked = {"endpoint": "embeddings", "inputs": 3, "input": 40, "out": tmp_path, "draws": 0}
    runs = [
        simulate_run("bge-m3@1xl4", concurrency=2, requests=9, **asked),
        simulate_run("bge-m3@1xl4", rate="inf", requests=5, **asked),
    ]
    points = points_of([read_run(Path(run.document()["run_dir"])) for run in runs])
    for point in points:
        assert point.pooled is not None
        assert point.input_tokens_per_s == pytest.approx(40 * point.pooled.value)
    said = answer(points[:1])
    assert said is not None
    assert said.sentences[0].startswith(
        f"At concurrency 2: {show_number(points[0].pooled.value, 4)} texts/s"
    )
