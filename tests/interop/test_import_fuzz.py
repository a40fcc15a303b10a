"""Files that are almost results: whatever stands where a value should, an import ends well or in
one line."""

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest

from loadstone.core.errors import InputError
from loadstone.interop.read import import_files
from summary_documents import summarise
from test_import import SGLANG, VLLM

ODD: list[Any] = [
    None, True, -1, 0, 1e308, float("nan"), float("inf"), 10**400, "", "x" * 10_000, "\x00\x1b[31m", "<script>",
    "\ud800", [], {}, [[[]]], {"a": {"b": None}}, [None], "2026-01-01", -0.5, 2**63, "1e5",
]  # fmt: skip
AIPERF_ROW = {
    "metadata": {"request_start_ns": 10**18, "credit_issued_ns": 10**18, "benchmark_phase": "profiling"},
    "metrics": {
        "time_to_first_token": {"value": 20.0, "unit": "ms"}, "inter_chunk_latency": {"value": [1.0], "unit": "ms"},
        "request_latency": {"value": 21.0}, "output_sequence_length": {"value": 2},
        "usage_completion_tokens": {"value": 2},
    },
    "error": None,
}  # fmt: skip
AIPERF = {
    "aiperf_version": "0.13.0", "start_time": "2026-01-01T00:00:00", "end_time": "2026-01-01T00:00:02",
    "request_latency": {"unit": "ms", "avg": 9.0, "p50": 9.0},
    "request_count": {"avg": 3.0}, "request_throughput": {"avg": 2.0}, "benchmark_duration": {"avg": 1.5},
    "input_config": {"phases": [{"type": "concurrency", "concurrency": 4}], "models": {"items": [{"name": "m"}]}},
}  # fmt: skip
GUIDELLM = {
    "metadata": {"guidellm_version": "0.8"},
    "config": {"spec": {
        "backend": {"model": "m", "target": "http://x:8"}, "data": [{"kind": "synthetic_text", "prompt_tokens": 8}],
    }},
    "benchmarks": [{
        "config": {"strategy": {"type_": "concurrent", "streams": 4}}, "duration": 2.0, "start_time": 1.7e9,
        "metrics": {
            "request_totals": {"successful": 1, "errored": 0, "incomplete": 0, "total": 1},
            "time_to_first_token_ms": {"successful": {"mean": 5.0, "percentiles": {"p50": 5.0}}},
        },
        "requests": {"successful": [{
            "request_start_time": 1.7e9, "request_end_time": 1.7e9 + 1, "output_tokens": 3, "prompt_tokens": 8,
            "time_to_first_token_ms": 5.0, "inter_token_latency_ms": 1.0,
        }], "errored": [], "incomplete": []},
    }],
}  # fmt: skip
INFERENCE_PERF = {
    "load_summary": {"count": 2, "requested_rate": 4.0}, "failures": {"count": 0},
    "successes": {
        "count": 2, "latency": {"time_to_first_token": {"mean": 1.0}}, "throughput": {"requests_per_sec": 2.0},
    },
}  # fmt: skip
LLM_D = {
    "version": "0.2", "scenario": {"load": {"standardized": {"rate_qps": 2}}, "stack": [{"standardized": {}}]},
    "results": {"request_performance": {"aggregate": {
        "latency": {"time_to_first_token": {"units": "ms", "mean": 3.0}}, "requests": {"total": 4, "failures": 1},
        "throughput": {"request_rate": {"mean": 2.0}},
    }}},
}  # fmt: skip
RAMP = {name: value for name, value in VLLM.items() if not isinstance(value, list)} | {
    "request_rate": "inf", "ramp_up_strategy": "linear", "ramp_up_start_rps": 2, "ramp_up_end_rps": 16,
    "latencies": [1.0, 2.0, 3.0],
}  # fmt: skip
DOCUMENTS = [SGLANG, VLLM, RAMP, AIPERF, AIPERF_ROW, GUIDELLM, INFERENCE_PERF, LLM_D]


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where every value stands."""
    children = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    )
    return [path, *(found for key, value in children for found in places(value, (*path, key)))]


def changed(document: Any, rng: random.Random) -> Any:
    made = copy.deepcopy(document)
    for _ in range(rng.randint(1, 3)):
        path = rng.choice(places(made)[1:])
        holder = made
        for key in path[:-1]:
            holder = holder[key]
        if rng.random() < 0.2 and isinstance(holder, dict):
            del holder[path[-1]]
        else:
            holder[path[-1]] = copy.deepcopy(rng.choice(ODD))
    return made


@pytest.mark.parametrize("document", DOCUMENTS, ids=range(len(DOCUMENTS)))
def test_odd_values_anywhere(tmp_path: Path, document: dict[str, Any]) -> None:
    rng = random.Random(7)
    came_in, refused = 0, []
    for attempt in range(40):
        path = tmp_path / f"{attempt}.json"
        path.write_text(json.dumps(changed(document, rng)))
        try:
            found = import_files(
                [path], tmp_path / "runs", given=["concurrency=4"] if attempt % 2 else []
            )
        except InputError as error:
            refused.append(str(error))
            continue
        came_in += 1
        for run in found.runs:
            said = json.dumps(summarise(run), allow_nan=False)
            assert "\\u001b" not in said
    assert came_in > 10
    assert not any("\n" in said for said in refused)
