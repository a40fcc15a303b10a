"""Sweeps, copies, and results whose keys or units are spelled in another way."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from loadstone.analyse.run_facts import run_facts
from loadstone.core import run_folder
from loadstone.interop.read import Imported, import_files
from loadstone.interop.read.values import Value, model_name
from summary_documents import summarise

SERVE = {
    "date": "20261101-101000", "backend": "openai", "model_id": "m/x", "num_prompts": 20, "request_rate": 4.0,
    "burstiness": 1.0, "max_concurrency": None, "duration": 5.5, "completed": 20, "failed": 0,
    "total_input_tokens": 2000, "total_output_tokens": 1000, "request_throughput": 20 / 5.5,
    "output_throughput": 1000 / 5.5, "total_token_throughput": 3000 / 5.5,
}  # fmt: skip
INFERENCEX = {
    "hw": "h200", "conc": 8, "image": "lmsysorg/sglang:v0.5.5", "model": "org/model", "framework": "sglang",
    "precision": "fp8", "spec_decoding": "mtp", "disagg": False, "isl": 1024, "osl": 1024, "tp": 4, "ep": 1,
    "dp_attention": "false", "tput_per_gpu": 200.0, "output_tput_per_gpu": 100.0, "median_ttft": 0.25,
    "mean_tpot": 0.01, "mean_intvty": 100.0, "p99_e2el": 12.0,
}  # fmt: skip


def measured(ttft_ms: float, **more: Any) -> dict[str, Any]:
    return SERVE | {"mean_ttft_ms": ttft_ms, "mean_e2el_ms": ttft_ms + 490} | more


def sweep(folder: Path, *, told: bool) -> Path:
    """As `vllm bench sweep serve` leaves it. `told`: each run's file has what was swept, too."""
    every = []
    for seqs in (64, 128):
        for rate in (2.0, 4.0):
            combination = (
                folder / f"20261101_101010/SERVE--max_num_seqs={seqs}-BENCH--request_rate={rate}"
            )
            combination.mkdir(parents=True)
            runs = [measured(seqs + rate + n, request_rate=rate) for n in (0, 1)]
            whole = [run | {"run_number": n, "max_num_seqs": seqs} for n, run in enumerate(runs)]
            for n, run in enumerate(whole if told else runs):
                (combination / f"run={n}.json").write_text(json.dumps(run))
            (combination / "warmup.json").write_text(
                json.dumps(whole[0] | {"run_number": -1, "mean_ttft_ms": 999})
            )
            (combination / "summary.json").write_text(json.dumps(whole))
            every += whole
    with (folder / "20261101_101010/summary.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, list(every[0]))
        table.writeheader()
        table.writerows(every)
    return folder


def cells(found: Imported) -> list[list[tuple[str | None, float, float]]]:
    """Of each run its cells: what was set up, the load, and the mean TTFT in ms."""
    runs = []
    for folder in found.runs:
        named = run_facts(run_folder.read_info(folder)).named
        made = summarise(folder)["cells"]
        runs.append(
            [
                (named, cell["load"]["value"], 1e3 * cell["metrics"]["ttft_s"]["mean"])
                for cell in made
            ]
        )
    return runs


@pytest.mark.parametrize("told", [True, False])
def test_a_sweep_is_a_run_for_each_setting_and_repeat(tmp_path: Path, told: bool) -> None:
    found = import_files([sweep(tmp_path / "sweep", told=told)], tmp_path / "runs")
    assert sorted(cells(found)) == [
        [(f"max_num_seqs={seqs}", rate, pytest.approx(seqs + rate + n)) for rate in (2.0, 4.0)]
        for seqs in (128, 64)
        for n in (0, 1)
    ]
    assert [finding["kind"] for finding in found.findings if finding["run"] is None] == ["copies"]


def test_the_table_of_a_sweep_can_be_read_alone(tmp_path: Path) -> None:
    table = sweep(tmp_path / "sweep", told=True) / "20261101_101010/summary.csv"
    assert len(import_files([table], tmp_path / "runs").runs) == 4


def test_a_copy_is_no_repeat_and_the_same_numbers_in_one_file_are(tmp_path: Path) -> None:
    text = json.dumps(measured(50))
    (tmp_path / "data").mkdir()
    for name in ("a.json", "b.json", "c.jsonl"):
        (tmp_path / "data" / name).write_text(text if name != "c.jsonl" else f"{text}\n{text}")
    found = import_files([tmp_path / "data"], tmp_path / "runs")
    assert len(found.runs) == 2
    (copies,) = [finding for finding in found.findings if finding["kind"] == "copies"]
    assert "b.json, c.jsonl, line 1" in copies["evidence"]


@pytest.mark.parametrize(
    ("keys", "milliseconds"),
    [
        ({"mean_ttft": 0.5, "p99_tpot": 0.02}, (500, 20)),
        ({"mean_ttft": 500, "p99_tpot": 20}, (500, 20)),
        ({"mean_ttft_s": 0.5, "p99_tpot_us": 20_000}, (500, 20)),
        ({"ttft_mean_ms": 500, "tpot_p99_ms": 20}, (500, 20)),
        ({"Mean TTFT (ms)": 500, "P99 time_per_output_token (sec)": 0.02}, (500, 20)),
        ({"avg_time_to_first_token_seconds": 0.5, "p99_tpot_ms": 20}, (500, 20)),
        ({"ttft_mean_of_ok_ms": 500, "p99_tpot_ms": 20}, (None, 20)),
    ],
)
def test_latencies_have_many_spellings(
    keys: dict[str, float], milliseconds: tuple[float | None, float]
) -> None:
    found = Value(SERVE | keys).read_spelled(5.5, 50.0)
    times = (found.get("ttft_s", {}).get("mean"), found.get("tpot_s", {}).get("p99"))
    assert times == tuple(
        None if time is None else pytest.approx(time / 1e3) for time in milliseconds
    )


def test_a_folder_of_hugging_faces_cache_is_not_the_models_name(tmp_path: Path) -> None:
    paths = {
        "/models/models--acme--tiny-1b/snapshots/0123456789abcdef/": "acme/tiny-1b",
        "models--gpt2": "gpt2",
        "acme/tiny-1b": "acme/tiny-1b",
        "/models/my--own/": "/models/my--own/",
    }
    assert {path: model_name(path) for path in paths} == paths
    path = tmp_path / "a.json"
    path.write_text(json.dumps(measured(50, model_id=next(iter(paths)))))
    (folder,) = import_files([path], tmp_path / "runs").runs
    assert run_facts(run_folder.read_info(folder)).model == "acme/tiny-1b"
    assert "tiny-1b" in folder.name


def imported(tmp_path: Path, *named: tuple[str, Any]) -> tuple[Any, dict[str, Any]]:
    (tmp_path / "data").mkdir()
    for name, document in named:
        (tmp_path / "data" / name).write_text(json.dumps(document))
    (folder,) = import_files([tmp_path / "data"], tmp_path / "runs").runs
    return run_facts(run_folder.read_info(folder)), summarise(folder)


def test_aggregates_of_inferencex(tmp_path: Path) -> None:
    of_metrics = (
        "tput_per_gpu",
        "output_tput_per_gpu",
        "median_ttft",
        "mean_tpot",
        "mean_intvty",
        "p99_e2el",
    )
    row = {name: value for name, value in INFERENCEX.items() if name not in (*of_metrics, "hw")}
    metrics = {name: INFERENCEX[name] for name in of_metrics}
    gpus = {"num_prefill_gpu": 4, "num_decode_gpu": 4}
    of_database = row | gpus | {"hardware": "h200", "metrics": metrics, "conc": 16}
    facts, made = imported(tmp_path, ("agg_x.json", INFERENCEX), ("rows.json", [of_database]))
    assert (facts.engine, facts.engine_version, facts.gpu, facts.gpus, facts.tp) == (
        "SGLang",
        "v0.5.5",
        "H200",
        4,
        4,
    )
    assert (facts.weights_dtype, facts.named, facts.range_ratio) == (
        "fp8",
        "mtp",
        pytest.approx(0.8, abs=1e-3),
    )
    assert [cell["load"]["value"] for cell in made["cells"]] == [8, 16]
    for cell in made["cells"]:
        metrics = cell["metrics"]
        assert (metrics["ttft_s"]["p50"], metrics["tpot_s"]["mean"], metrics["e2e_s"]["p99"]) == (
            0.25,
            0.01,
            12.0,
        )
        assert (metrics["output_tokens_per_s"], metrics["total_tokens_per_s"]) == (400, 800)


def test_rates_of_a_disaggregated_aggregate_are_of_their_own_gpus(tmp_path: Path) -> None:
    apart = INFERENCEX | {"disagg": True, "num_prefill_gpu": 4, "num_decode_gpu": 8}
    facts, made = imported(tmp_path, ("agg_x.json", apart))
    metrics = made["cells"][0]["metrics"]
    assert (metrics["output_tokens_per_s"], metrics["total_tokens_per_s"], facts.gpus) == (
        800,
        2400,
        12,
    )
    assert (facts.tp, facts.named) == (None, "mtp, 4 prefill + 8 decode GPUs")


@pytest.mark.parametrize(
    ("ttft_ms", "e2e_p99_ms", "duration_s", "failed", "kind"),
    [
        ({"median": 7e4, "p99": 14.5e4}, 15e4, 250.0, 0, "overload"),
        ({"median": 7e4}, 15e4, 250.0, 0, "overload"),
        (
            {"median": 120.0, "p99": 300.0},
            5300.0,
            250.0,
            0,
            "rate_differs",
        ),  # the client fell behind
        ({"median": 120.0, "p99": 300.0}, 5300.0, 104.0, 0, None),
        ({"median": 120.0, "p99": 300.0}, 5300.0, 205.0, 1000, None),  # as many more were sent
        ({"median": 2000.0, "p99": 2300.0}, 30e3, 135.0, 0, None),  # the last answers are long
        ({"median": 20e3, "p99": 21e3}, 45e3, 140.0, 0, None),  # so are all first tokens
    ],
)
def test_sums_of_an_open_loop_that_did_not_keep_to_its_rate(
    tmp_path: Path,
    ttft_ms: dict[str, float],
    e2e_p99_ms: float,
    duration_s: float,
    failed: int,
    kind: str | None,
) -> None:
    result = SERVE | {f"{name}_ttft_ms": value for name, value in ttft_ms.items()} | {
        "p99_e2el_ms": e2e_p99_ms, "request_rate": 10.0, "num_prompts": 1000 + failed, "completed": 1000,
        "failed": failed, "duration": duration_s, "total_input_tokens": 10**5, "total_output_tokens": 5 * 10**4,
        "request_throughput": 1000 / duration_s, "output_throughput": 5e4 / duration_s,
        "total_token_throughput": 1.5e5 / duration_s,
    }  # fmt: skip
    (tmp_path / "a.json").write_text(json.dumps(result))
    found = {one["kind"] for one in import_files([tmp_path / "a.json"], tmp_path / "out").findings}
    assert found & {"overload", "rate_differs"} == {kind} - {None}


@pytest.mark.parametrize(
    ("unit", "times"), [("milliseconds", 1), ("Microseconds", 1000), ("SEC", 0.001)]
)
def test_units_that_are_spelled_out(unit: str, times: float) -> None:
    part = Value({"time_to_first_token": {"unit": unit, "avg": 120 * times}})
    assert part.latencies({"ttft_s": "time_to_first_token"})["ttft_s"]["mean"] == pytest.approx(
        0.12
    )


@pytest.mark.parametrize(
    ("stated_ms", "severity"), [(100.0, None), (130.0, "info"), (12.0, "warning")]
)
def test_sums_that_are_not_of_the_requests_beside_them(
    tmp_path: Path, stated_ms: float, severity: str | None
) -> None:
    result = SERVE | {
        "mean_ttft_ms": stated_ms, "ttfts": [0.1] * 20, "itls": [[0.01] * 49] * 20, "input_lens": [100] * 20,
        "output_lens": [50] * 20,
    }  # fmt: skip
    (tmp_path / "a.json").write_text(json.dumps(result))
    (run,) = import_files([tmp_path / "a.json"], tmp_path / "out").runs
    (cell,) = summarise(run)["cells"]
    found = {one["kind"]: one["severity"] for one in cell["verdict"]["findings"]}
    assert found.get("stated_differs") == severity
