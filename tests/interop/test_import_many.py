"""Folders of many results: what belongs together, whose server it was, and what some tools do not
say outright."""

import copy
import itertools
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from loadstone.core import run_folder
from loadstone.interop.read import import_files
from loadstone.interop.read.run_folders import LENGTHS, _Alike
from test_import import SGLANG, VLLM, document, kinds, run, save
from test_import_fuzz import AIPERF, AIPERF_ROW, GUIDELLM

SUMS = {name: value for name, value in VLLM.items() if not isinstance(value, list)}


def test_results_that_are_named_alike_are_told_apart(tmp_path: Path) -> None:
    for name, places in (("monday", 4), ("friday", 8)):
        (tmp_path / "all" / name).mkdir(parents=True)
        save(tmp_path / "all" / name, "result.json", SGLANG | {"max_concurrency": places})
    folders = sorted((tmp_path / "all").iterdir())
    for paths in ([tmp_path / "all"], folders, [folder / "result.json" for folder in folders]):
        found = import_files(paths, tmp_path / "runs")
        files = [run_folder.read_info(folder).settings.imported.files for folder in found.runs]
        assert ["/".join(name.split("/")[-2:]) for (name,) in files] == [
            "friday/result.json",
            "monday/result.json",
        ]


def test_another_server_is_another_run(tmp_path: Path) -> None:
    """AIPerf and GuideLLM tell the server's URL; of the others results in one folder are of one
    server."""
    url = "http://user:secret@{}:8000/v1?key=secret"
    for name, host in (("a", "one"), ("b", "two"), ("c", "one")):
        (tmp_path / "all" / name).mkdir(parents=True)
        config = AIPERF["input_config"] | {
            "endpoint": {"urls": [url.format(host)]}, "phases": [{"concurrency": ord(name)}],
        }  # fmt: skip
        save(
            tmp_path / "all" / name, "profile_export_aiperf.json", AIPERF | {"input_config": config}
        )
        save(tmp_path / "all" / name, "sglang.jsonl", SGLANG | {"max_concurrency": ord(name)})
    found = import_files([tmp_path / "all"], tmp_path / "runs")
    infos = [run_folder.read_info(folder) for folder in found.runs]
    of_aiperf = [info for info in infos if info.settings.imported.tool != "sglang.bench_serving"]
    assert {info.target.url: len(info.cells) for info in of_aiperf if info.target} == {
        "http://one:8000": 2, "http://two:8000": 1,
    }  # fmt: skip
    assert len(found.runs) == len(of_aiperf) + 3
    assert "secret" not in str([info.settings for info in of_aiperf])


def test_aiperfs_rates_are_over_the_whole_phase_in_an_open_loop(tmp_path: Path) -> None:
    """The first send of a Poisson process comes after a wait, which benchmark_duration leaves
    out."""
    times = {"start_time": "2026-01-01T00:00:00.000000", "end_time": "2026-01-01T00:00:02.000000"}
    rated = (
        AIPERF | times | {"benchmark_duration": {"avg": 1.5}, "request_throughput": {"avg": 1.5}}
    )
    found = run(tmp_path, save(tmp_path, "a.json", rated))
    assert "throughput_inconsistent" not in kinds(found)
    assert document(found)["cells"][0]["duration_s"] == 2.0
    wrong = run(tmp_path, save(tmp_path, "b.json", rated | {"request_throughput": {"avg": 9.0}}))
    assert "throughput_inconsistent" in kinds(wrong)


def test_aiperfs_cached_tokens_are_kept(tmp_path: Path) -> None:
    cached = AIPERF_ROW["metrics"] | {"usage_prompt_cache_read_tokens": {"value": 5}}
    path = save(tmp_path, "a.jsonl", AIPERF_ROW | {"metrics": cached})
    (folder,) = run(tmp_path, path, given=["concurrency=1"]).runs
    assert [
        row["cached_tokens"]
        for batch in run_folder.read_records(folder)
        for row in batch.to_pylist()
    ] == [5]


@pytest.mark.parametrize(("whole", "severity"), [(1, "warning"), (40, "info")])
def test_requests_that_guidellm_cuts_at_its_end_are_no_failures(
    tmp_path: Path, whole: int, severity: str
) -> None:
    made = copy.deepcopy(GUIDELLM)
    (benchmark,) = made["benchmarks"]
    (done,) = benchmark["requests"]["successful"]
    cut = done | {"output_tokens": 1, "inter_token_latency_ms": None}
    benchmark["requests"] |= {"successful": [done] * whole, "incomplete": [cut]}
    benchmark["metrics"]["request_totals"] |= {
        "successful": whole,
        "incomplete": 1,
        "total": whole + 1,
    }
    found = run(tmp_path, save(tmp_path, "a.json", made))
    (cell,) = document(found)["cells"]
    said = {finding["kind"]: finding["severity"] for finding in cell["verdict"]["findings"]}
    assert said["cut_at_end"] == severity
    assert "request_errors" not in said
    assert cell["requests"]["cancelled"] == 1


@pytest.mark.parametrize(
    ("kind", "late"),
    [("constant", 0.25), ("constant", -1.0), ("constant", 1e30), ("concurrent", 0.25)],
)
def test_when_guidellm_meant_to_send_is_kept_of_open_loops(
    tmp_path: Path, kind: str, late: float
) -> None:
    made = copy.deepcopy(GUIDELLM)
    (benchmark,) = made["benchmarks"]
    benchmark.setdefault("config", {})["strategy"] = {"type_": kind, "rate": 2.0, "streams": 2}
    (done,) = benchmark["requests"]["successful"]
    done["info"] = {"timings": {"targeted_start": done["request_start_time"] - late}}
    (folder,) = run(tmp_path, save(tmp_path, "a.json", made)).runs
    (row,) = [row for batch in run_folder.read_records(folder) for row in batch.to_pylist()]
    if (kind, late) == ("constant", 0.25):
        assert row["sent_s"] - row["intended_s"] == pytest.approx(late)
    else:
        assert row["intended_s"] is None


def test_engines_and_gpus_have_one_name_each(tmp_path: Path) -> None:
    path = save(tmp_path, "a.json", SUMS | {"engine": "sglang", "gpu": "NVIDIA H200"})
    info = run_folder.read_info(run(tmp_path, path).runs[0])
    deployment = info.settings.deployment
    assert (deployment["engine"], deployment["gpu"]) == ("SGLang", "h200")


def test_another_month_and_other_lengths_are_other_runs(tmp_path: Path) -> None:

    def at(rate: float, **change: Any) -> dict[str, Any]:
        return SUMS | {"request_rate": rate} | change

    later, longer = (
        {"date": "20260302-030405"},
        {"total_input_tokens": 3000, "total_token_throughput": 752.25},
    )
    rows = [at(1.0), at(2.0), at(4.0, date="20260102-130405"), at(8.0, **later), at(16.0, **longer)]
    found = run(tmp_path, save(tmp_path, "a.json", *rows))
    loads = [
        [cell["load"]["value"] for cell in document(found, n)["cells"]]
        for n in range(len(found.runs))
    ]
    assert loads == [[1.0, 2.0, 4.0], [8.0], [16.0]]


def test_lengths_that_are_nearly_alike_are_one_workload() -> None:
    alike = _Alike()
    assert alike.match((1000.0, 100.0)) == (1000.0, 100.0)
    for near in ((1019.0, 98.1), (981.0, 101.9), (1000.0, 100.0)):
        assert alike.match(near) == (1000.0, 100.0)
    for other in ((1000.0, 0.0), (1021.0, 100.0), (1000.0, 97.9), (100.0, 1000.0)):
        assert alike.match(other) == other
    drawn = random.Random(1)
    seen = {(1000.0, 100.0), (1000.0, 0.0), (1021.0, 100.0), (1000.0, 97.9), (100.0, 1000.0)}
    for _ in range(500):
        lengths = (drawn.uniform(1, 1e5), drawn.uniform(1, 1e4))
        found = alike.match(lengths)
        assert all(abs(a - b) <= LENGTHS * max(a, b) for a, b in zip(found, lengths, strict=True))
        assert alike.match(lengths) == found
        seen.add(found)
    for one, other in itertools.combinations(sorted(seen), 2):
        assert any(abs(a - b) > LENGTHS * max(a, b) for a, b in zip(one, other, strict=True))


def test_a_ramp_of_vllms_is_no_burst(tmp_path: Path) -> None:
    ramp = {"request_rate": "inf", "num_prompts": 14, "ramp_up_strategy": "linear", "ramp_up_start_rps": 2,
            "ramp_up_end_rps": 16}  # fmt: skip
    (cell,) = document(run(tmp_path, save(tmp_path, "a.json", SUMS | ramp)))["cells"]
    # n requests take n·ln(16/2)/(16 − 2).
    assert cell["load"]["kind"] == "rate"
    assert cell["load"]["value"] == pytest.approx(14 / math.log(8))
    assert cell["load"]["profile"] == [[2.0, 16.0, pytest.approx(math.log(8))]]


def test_vllms_e2e_is_that_of_its_latencies(tmp_path: Path) -> None:
    (cell,) = document(
        run(tmp_path, save(tmp_path, "a.json", SUMS | {"latencies": [1.0, 2.0, 6.0]}))
    )["cells"]
    assert (cell["metrics"]["e2e_s"]["mean"], cell["metrics"]["e2e_s"]["p50"]) == (3.0, 2.0)


def test_a_client_of_another_tool_that_read_late_is_not_trusted(tmp_path: Path) -> None:
    """Half of the gaps that vLLM's client saw are none of the engine's: it read several chunks
    together."""
    count, gaps = 40, [0.0, 0.0, 0.0, 0.02] * 4
    document = {
        "duration": 10.0, "completed": count, "request_throughput": 4.0, "output_throughput": 68.0, "model_id": "m",
        "request_rate": "inf", "max_concurrency": 4, "num_prompts": count, "ttfts": [0.05] * count,
        "itls": [gaps] * count, "input_lens": [8] * count, "output_lens": [17] * count, "errors": [""] * count,
    }  # fmt: skip
    (tmp_path / "late.json").write_text(json.dumps(document))
    found = import_files([tmp_path / "late.json"], tmp_path / "runs")
    (cell,) = json.loads((found.runs[0] / "summary.json").read_text())["cells"]
    assert not cell["verdict"]["trusted"]
    (late,) = [one for one in cell["verdict"]["findings"] if one["kind"] == "client_read_late"]
    assert late["severity"] == "warning"
    assert "ITL p50 (0 ms)" in late["evidence"]
