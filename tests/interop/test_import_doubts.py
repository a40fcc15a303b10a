"""What a file says of its own validity, of speculation, and in units that cannot be."""

from pathlib import Path
from typing import Any

import pytest

import loadstone
from loadstone.core import run_folder
from test_import import document, kinds, run, save
from test_import_fuzz import AIPERF
from test_import_newest import VLLM_OPEN

SUMS: dict[str, Any] = {
    "backend": "openai", "model_id": "acme/tiny", "num_prompts": 200, "request_rate": "inf", "max_concurrency": 16,
    "duration": 20.0, "completed": 200, "failed": 0, "total_input_tokens": 20000, "total_output_tokens": 40001,
    "request_throughput": 10.0, "output_throughput": 2000.0, "total_token_throughput": 3000.0,
    "mean_ttft_ms": 50, "median_ttft_ms": 49, "mean_tpot_ms": 8.0, "median_tpot_ms": 8.0, "mean_e2el_ms": 1642.0,
}  # fmt: skip
OPEN = {"mean_e2el_ms": None, "max_concurrency": None, "request_rate": 4}
SPECULATION: dict[str, Any] = {
    "spec_decode_num_drafts": 16000, "spec_decode_draft_tokens": 48000, "spec_decode_accepted_tokens": 24000,
    "spec_decode_per_position_acceptance_rates": [0.75, 0.5, 0.25],
}  # fmt: skip


@pytest.mark.parametrize(
    "part",
    [
        {"metadata": {"submission_valid": False, "submission_invalid_reasons": ["too_long"]}},
        {"is_valid": False, "reason": "too_long"},
        {"result": {"run": {"validity": "INVALID", "invalid_reasons": "too_long"}}},
        {
            "metadata": {
                "checks": [{"valid": True}, {"name": "warm", "valid": False, "reason": "too_long"}]
            }
        },
    ],
)
def test_a_file_s_own_verdict_is_told(tmp_path: Path, part: dict[str, Any]) -> None:
    found = run(tmp_path, save(tmp_path, "a.json", AIPERF | part))
    (told,) = [finding for finding in found.findings if finding["kind"] == "invalid_by_tool"]
    assert "too_long" in told["evidence"]
    assert not document(found)["cells"][0]["verdict"]["trusted"]


def test_a_row_s_own_verdict_is_told(tmp_path: Path) -> None:
    text = "Users,Median TTFT,TPOT,tok/s,valid\n4,120,11,340,true\n16,180,14,1050,false\n64,600,25,2300,no\n"
    (tmp_path / "a.csv").write_text(text)
    mapped = ["concurrency=Users", "ttft_p50_ms=Median TTFT", "tpot_p50_ms=TPOT"]
    found = run(tmp_path, tmp_path / "a.csv", mapped=mapped)
    told = [finding for finding in found.findings if finding["kind"] == "invalid_by_tool"]
    assert len(told) == 2


def test_a_valid_file_is_not_doubted(tmp_path: Path) -> None:
    found = run(tmp_path, save(tmp_path, "a.json", AIPERF | {"metadata": {"valid": True}}))
    assert "invalid_by_tool" not in kinds(found)


def test_speculation_is_read_and_belongs_to_the_setup(tmp_path: Path) -> None:
    found = run(tmp_path, save(tmp_path, "a.json", SUMS | SPECULATION))
    drafts = document(found)["cells"][0]["drafts"]
    assert (drafts["steps"], drafts["drafted"], drafts["accepted"]) == (16000, 48000, 24000)
    assert (drafts["accepted_length"], drafts["by_position"]) == (2.5, [0.75, 0.5, 0.25])
    arguments = run_folder.read_info(found.runs[0]).settings.deployed.arguments
    assert arguments == {"num_speculative_tokens": "3"}
    plain = run(tmp_path, save(tmp_path, "b.json", SUMS))
    rows = loadstone.compare(plain.runs[0], found.runs[0]).document()["setup"]
    assert {"speculation", "engine arguments"} <= {row["what"] for row in rows}


def test_an_accepted_length_alone_is_speculation(tmp_path: Path) -> None:
    found = run(tmp_path, save(tmp_path, "a.json", SUMS | {"accept_length": 2.7}))
    assert document(found)["cells"][0]["drafts"]["accepted_length"] == 2.7
    found = run(tmp_path, save(tmp_path, "b.json", SUMS | {"accept_length": 1.0}))
    assert not document(found)["cells"][0].get("drafts")


@pytest.mark.parametrize(
    "change",
    [
        {"mean_tpot_ms": 0.008, "median_tpot_ms": 0.008},
        {"mean_ttft_ms": 0.05, "mean_tpot_ms": 0.008, "mean_e2el_ms": None},
        {"mean_itl_ms": 0.0198},
        {"mean_tpot_ms": 1592.0},  # all of the time behind the first token
        {"mean_tpot_ms": 1592.0, "total_output_tokens": 3401},
        {"mean_tpot_ms": 1592.0, "mean_e2el_ms": None},
        {
            "mean_ttft_ms": 900.0,
            "mean_tpot_ms": 0.04,
            "total_output_tokens": 3401,
            "mean_e2el_ms": 1550.0,
        },
        {
            "mean_ttft_ms": 900.0,
            "mean_tpot_ms": 0.008,
            "mean_e2el_ms": None,
            "max_concurrency": None,
            "request_rate": 10,
        },
        {
            "mean_ttft_ms": 50000.0,
            "mean_e2el_ms": None,
            "max_concurrency": None,
            "request_rate": 10,
        },
        {"mean_ttft_ms": 1700.0},
        OPEN | {"mean_ttft_ms": 0.05},
        OPEN | {"mean_ttft_ms": 0.2},
        OPEN | {"mean_ttft_ms": 1.2, "total_input_tokens": 200_000, "total_token_throughput": None},
    ],
)
def test_latencies_in_another_unit_are_doubted(tmp_path: Path, change: dict[str, Any]) -> None:
    assert "unit_doubted" not in kinds(run(tmp_path, save(tmp_path, "a.json", SUMS)))
    assert "unit_doubted" in kinds(run(tmp_path, save(tmp_path, "b.json", SUMS | change)))


@pytest.mark.parametrize("ttft_ms", [4.0, 50.0, 4000.0])
def test_a_first_token_within_a_step_is_believed(tmp_path: Path, ttft_ms: float) -> None:
    change = OPEN | {"mean_ttft_ms": ttft_ms, "median_ttft_ms": ttft_ms, "duration": 400.0}
    assert "unit_doubted" not in kinds(run(tmp_path, save(tmp_path, "a.json", SUMS | change)))


def _with_starts(starts: list[float]) -> dict[str, Any]:
    lists = {
        name: [value[0]] * len(starts)
        for name, value in VLLM_OPEN.items()
        if isinstance(value, list)
    }
    counts = {"num_prompts": len(starts), "completed": len(starts), "request_rate": "inf"}
    return VLLM_OPEN | lists | counts | {"start_times": starts, "duration": len(starts) * 0.11}


@pytest.mark.parametrize("begin", [0.0, 1.7e9])
@pytest.mark.parametrize(
    "load", [{}, {"request_rate": 9.5, "max_concurrency": None}, {"request_rate": 120}]
)
@pytest.mark.parametrize("scale", [1.0, 0.0, 1e-3, 1e3, 1e6])
def test_starts_in_another_unit_are_doubted(
    tmp_path: Path, scale: float, load: dict[str, Any], begin: float
) -> None:
    file = _with_starts([scale * (begin + 0.105 * number) for number in range(80)]) | load
    found = kinds(run(tmp_path, save(tmp_path, "a.json", file))) & {"clock_doubted", "rate_differs"}
    if scale != 1.0 or load.get("request_rate") != 120:
        assert bool(found) == (scale != 1.0)
    assert scale not in (0.0, 1e6) or "clock_doubted" in found


def test_moments_at_no_date_are_doubted(tmp_path: Path) -> None:
    """Where there are requests alone, nothing else tells their unit."""
    for scale, doubted in ((1.0, False), (1e3, True), (1e6, True), (1e9, True)):
        rows = [
            {
                "start_time": scale * (1.7e9 + number), "end_time": scale * (1.7e9 + number + 0.5), "request": "{}",
                "info": {"input_tokens": 5, "output_token_times": [scale * (1.7e9 + number + 0.4)]}, "error": None,
            }
            for number in range(9)
        ]  # fmt: skip
        path = save(tmp_path, "per_request_lifecycle_metrics.json", rows)
        assert ("clock_doubted" in kinds(run(tmp_path, path))) == doubted
