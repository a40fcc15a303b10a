"""When a setup became faster or slower: alarms, changes, what cannot be told."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from loadstone.analyse.stored_run import StoredRun, read_run
from loadstone.analyse.trend import ChangedMetric, TrendSeries, find_changes, least_runs
from loadstone.core.errors import InputError
from loadstone.core.metrics import Latency
from loadstone.core.plan import Load
from loadstone.report.charts.bands import trend_figure
from loadstone.report.data.wording import show_change
from loadstone.report.pages.trend import render, write_page
from test_summary import CLOSED, make_run

DEPLOYMENT = {"engine": "vLLM", "gpu": "H200", "gpus": 1, "model": "m/x"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    settings = {"deployment": DEPLOYMENT, "workload": {"kind": "synthetic"}}
    return read_run(
        make_run(
            tmp_path_factory.mktemp("trend") / "r",
            [CLOSED, Load("rate", 2.0)],
            {},
            settings=settings,
        )
    )


def make_series(
    run: StoredRun, tpot_s: list[float], releases: list[str] | None = None
) -> list[StoredRun]:
    """Runs, a day apart, with these TPOTs; TTFT and E2E vary by themselves."""
    rng, runs = np.random.default_rng(len(tpot_s)), []
    for day, value in enumerate(tpot_s):
        cells = []
        for cell in run.summary.cells:
            ttft, tpot, e2e = (
                Latency(n=9, mean=x, p50=x, p99=2 * x) for x in (rng.normal(1, 0.02), value, 9.0)
            )
            metrics = msgspec.structs.replace(
                cell.metrics, ttft_s=ttft, tpot_s=tpot, e2e_s=e2e, steady=None
            )
            verdict = msgspec.structs.replace(cell.verdict, findings=[])
            cells.append(msgspec.structs.replace(cell, metrics=metrics, verdict=verdict))
        runs.append(
            msgspec.structs.replace(
                run,
                info=msgspec.structs.replace(
                    run.info, run_id=f"run-{day}", created=f"2026-01-{1 + day:02d}T00:00:00Z"
                ),
                summary=msgspec.structs.replace(run.summary, cells=cells),
                facts=msgspec.structs.replace(
                    run.facts, engine_version=releases[day] if releases else None
                ),
            )
        )
    return runs


def noise(count: int, seed: int) -> np.ndarray:
    return np.exp(np.random.default_rng(seed).normal(0, 0.01, count))


def test_a_step_is_found_where_it_is_and_told_with_its_release(
    run: StoredRun, tmp_path: Path
) -> None:
    values = list(0.02 * noise(24, 1) * np.repeat([1, 1.05], [14, 10]))
    runs = make_series(run, values, ["0.26"] * 14 + ["0.27"] * 10)
    found = find_changes(runs[::-1])  # in whatever order they are named
    assert {change.run for change in found.changes} == {"run-14"}
    assert [change.load.kind for change in found.changes] == ["concurrency", "rate"]
    for change in found.changes:
        assert change.releases == ("0.26", "0.27")
        assert change.runs == (14, 10)
        assert [metric.metric for metric in change.metrics] == ["tpot_p50", "tpot_p99"]
        assert all(
            metric.worse and metric.ratio == pytest.approx(1.05, abs=0.01)
            for metric in change.metrics
        )
    text = str(render(found)[:2])
    assert "for the worse" in text
    assert "from 0.26 to 0.27" in text
    write_page(found, tmp_path / "trend.html")
    page = (tmp_path / "trend.html").read_text()
    assert page.count("<figure") == 6  # TPOT, TTFT and tokens/s of two loads
    assert "<h1>TPOT 5% slower since 15 Jan, and 1 more</h1>" in page
    drawn = map(json.loads, re.findall(r'application/json">(.*?)</script>', page))
    lines = {spec["title"]["text"][0]: _changes_drawn(spec) for spec in drawn}
    assert lines == {
        "TPOT p50, concurrency 1": [(14.5, "5% slower")],
        "TTFT p50, concurrency 1": [],
        "output tok/s, concurrency 1": [],
        "TPOT p50, 2 req/s": [(14.5, "5% slower")],
        "TTFT p50, 2 req/s": [],
        "output tok/s, 2 req/s": [],
    }
    assert "from 0.26 to 0.27" in page


def _changes_drawn(spec: dict[str, Any]) -> list[tuple[float, str]]:
    rows = [row for rows in spec["datasets"].values() if isinstance(rows, list) for row in rows]
    return [(row["at"], row["label"]) for row in rows if "at" in row]


def test_the_axis_of_a_trend_has_dates_and_releases(run: StoredRun) -> None:
    values = list(0.02 * noise(24, 1))
    plain, released = (
        find_changes(make_series(run, values, releases)).series[0]
        for releases in (None, ["0.26"] * 14 + ["0.27"] * 10)
    )

    def axis(series: TrendSeries) -> tuple[list[int], str]:
        spec = trend_figure(series, "tpot_p50", [], "k").spec
        found = next(
            layer["encoding"]["x"]["axis"]
            for layer in spec["layer"]
            if "axis" in layer["encoding"]["x"]
        )
        return found["values"], found["labelExpr"]

    places, labels = axis(released)
    assert places == [1, 15]
    assert '"1":["1 Jan","0.26"]' in labels
    assert '"15":["15 Jan","0.27"]' in labels
    assert axis(plain)[0] == [1, 6, 11, 16, 21]


@pytest.mark.parametrize(
    ("metric", "ratio", "words"),
    [
        ("tpot_p50", 1.12, "12% slower"),
        ("ttft_p99", 0.9, "10% faster"),
        ("output_tokens_per_s", 0.92, "8% lower"),
    ],
)
def test_a_change_is_said_in_words(metric: str, ratio: float, words: str) -> None:
    assert show_change(ChangedMetric(metric, 1.0, ratio, ratio, 0.001, True)) == words


def test_two_steps_are_two_changes_and_the_better_one_is_no_alarm(run: StoredRun) -> None:
    values = list(0.02 * noise(36, 2) * np.repeat([1, 1.2, 0.9], [12, 12, 12]))
    changes = [
        change for change in find_changes(make_series(run, values)).changes if change.series == 0
    ]
    assert [(change.run, change.worse) for change in changes] == [
        ("run-12", True),
        ("run-24", False),
    ]


def test_a_drift_is_no_step(run: StoredRun, tmp_path: Path) -> None:
    """However many runs there are; and a drift that a step cuts is told on both sides of it."""
    slope = 1.01 ** np.arange(20)
    for seed in range(8):
        (drift,) = (
            change
            for change in find_changes(
                make_series(run, list(0.02 * noise(20, seed) * slope))
            ).changes
            if change.series == 0
        )
        assert (drift.kind, drift.run, drift.runs, drift.worse) == ("drift", "run-0", (0, 20), True)
        assert [metric.metric for metric in drift.metrics] == ["tpot_p50", "tpot_p99"]
        assert drift.metrics[0].per_run == pytest.approx(1.01, abs=0.002)
        assert drift.metrics[0].ratio == pytest.approx(1.01**19, abs=0.04)
    found = find_changes(make_series(run, list(0.02 * noise(20, 1) * slope)))
    assert re.search(r"drifts, in no step: tpot_p50 .*% a run\); over 20 runs", str(render(found)))
    write_page(found, tmp_path / "trend.html")
    page = (tmp_path / "trend.html").read_text()
    assert re.search(r"<h1>TPOT [01]\.\d% slower a run since 1 Jan, and 1 more</h1>", page)
    both = list(0.02 * noise(30, 4) * 1.02 ** np.arange(30) * np.repeat([1, 1.4], 15))
    kinds = [each.kind for each in find_changes(make_series(run, both)).changes if each.series == 0]
    assert kinds == ["drift", "step", "drift"]
    steps = list(0.02 * noise(26, 5) * np.repeat([1, 1.03], 13))
    (step,) = (each for each in find_changes(make_series(run, steps)).changes if each.series == 0)
    assert (step.kind, step.metrics[0].per_run) == ("step", None)


def test_false_alarms_are_rare_even_among_outliers(run: StoredRun) -> None:
    """Of series that only vary, with heavy tails, none has a change; at 5 % few have: the rate is
    what is stated."""
    rng = np.random.default_rng(3)
    series = [
        make_series(run, list(0.02 * np.exp(0.01 * rng.standard_t(2, 20)))) for _ in range(20)
    ]
    assert sum(bool(find_changes(each).changes) for each in series) == 0
    assert sum(bool(find_changes(each, false_alarms=0.05).changes) for each in series) <= 5


def test_few_runs_are_told_to_be_few(run: StoredRun) -> None:
    found = find_changes(make_series(run, [0.02] * 6 + [0.04] * 6))
    assert not found.changes
    assert "12 runs, and 13 are needed" in str(found.series[0].why_not_tested)
    assert (least_runs(0.002), least_runs(0.05)) == (13, 8)
    assert find_changes(
        make_series(run, [0.02, 0.021] * 3 + [0.04, 0.041] * 3), false_alarms=0.05
    ).changes


def test_other_setups_are_other_series_and_equal_runs_no_change(run: StoredRun) -> None:
    other = msgspec.structs.replace(run, facts=msgspec.structs.replace(run.facts, gpu="B200"))
    found = find_changes([*make_series(run, [0.02] * 14), *make_series(other, [0.03] * 14)])
    assert len(found.series) == 4
    assert not found.changes
    with pytest.raises(InputError, match="must lie between"):
        find_changes(make_series(run, [0.02] * 14), false_alarms=0)
