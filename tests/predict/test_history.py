"""InferenceX's history as cells: repeats are one, and GPUs are those of tp."""

from __future__ import annotations

import history
from loadstone.calibrate.points import deployment_of

ROW = {
    "gpu": "b200", "framework": "trt", "precision": "fp8", "spec_method": "none", "disagg": "0", "decode_tp": "8",
    "decode_ep": "8", "decode_dp_attention": "0", "decode_gpus": "64", "input_len": "1024", "output_len": "1024",
    "concurrency": "4", "ttft_ms_median": "133", "tpot_ms_median": "14.6", "output_tok_s_per_gpu": "32.8",
    "ttft_ms_p99": "400", "tpot_ms_p99": "15", "date": "2025-12-10",
}  # fmt: skip


def test_repeats_of_a_setup_and_release_are_one_cell() -> None:
    again = ROW | {"date": "2025-12-12", "tpot_ms_median": "15.0"}
    other = ROW | {"concurrency": "8"}
    apart, unknown = ROW | {"disagg": "1"}, ROW | {"date": "2025-01-01"}
    cells = history.cells([again, ROW, other, apart, unknown])
    assert [(cell["concurrency"], cell["repeats"]) for cell in cells] == [("4", "2"), ("8", "1")]
    assert (cells[0]["date"], cells[0]["tpot_ms_median"]) == ("2025-12-10", "14.8")


def test_gpus_are_those_of_tp_whatever_ep() -> None:
    (cell,) = history.cells([ROW])
    point = history.point_of(1, cell)
    deployed = deployment_of(point).worker
    assert (deployed.gpus, deployed.tp, deployed.ep) == (8, 8, 8)
    assert point.output_tokens_per_s == 32.8 * 8
    assert deployed.engine_version == "1.1.0"
