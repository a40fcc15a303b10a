"""Reads results of llmperf (token_benchmark_ray.py): `…_summary.json`, and
`…_individual_responses.json` beside it.

Its "inter token latency" is E2E/n, which has TTFT in it and is none of our metrics: it is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loadstone.interop.read.cell import ResultCell, ResultRequest
from loadstone.interop.read.values import (
    Value,
    count_ended,
    drop_missing,
    make_lengths,
    make_load,
    multiply,
    statistics,
)

# What a document has that is one of these.
SUMMARY = ("results_ttft_s_mean", "results_num_completed_requests")
REQUEST = ("ttft_s", "end_to_end_latency_s", "number_output_tokens")

TOOL = "llmperf"
_LATENCIES = {"ttft_s": "ttft_s", "e2e_s": "end_to_end_latency_s"}
_NAMES = (
    "mean",
    "stddev",
    "min",
    "max",
    "quantiles_p50",
    "quantiles_p90",
    "quantiles_p95",
    "quantiles_p99",
)
_ENDS = ("_summary.json", "_individual_responses.json")


def name_partner(path: Path, wanted: int) -> Path:
    """Name the file of the summary (0) or the requests (1) of the same measurement."""
    return path.with_name(path.name.replace(_ENDS[1 - wanted], _ENDS[wanted]))


def summary(document: Value, where: str) -> ResultCell:
    done, failed = (
        document.whole("results_num_completed_requests"),
        document.whole("results_number_errors"),
    )
    per_minute = document.positive("results_num_completed_requests_per_min")
    ends = ("input", "output")
    fixed = not any(document.positive(f"stddev_{end}_tokens") for end in ends)
    counts = [multiply(document.number(f"results_number_{end}_tokens_mean"), done) for end in ends]
    cell = ResultCell(
        where=where,
        tool=TOOL,
        load=make_load(concurrency=document.get("num_concurrent_requests")),
        created=document.when("timestamp"),
        deployment=document.fields(model="model"),
        workload=(
            make_lengths(*(document.get(f"mean_{end}_tokens") for end in ends)) if fixed else {}
        ),
        definitions=TOOL,
        requests=count_ended(done, failed),
        duration_s=60 * done / per_minute if done and per_minute else None,
        latencies=drop_missing(
            {
                ours: statistics(
                    {
                        name.removeprefix("quantiles_"): document.get(f"results_{theirs}_{name}")
                        for name in _NAMES
                    }
                )
                for ours, theirs in _LATENCIES.items()
            }
        ),
        totals=drop_missing({"input_tokens": counts[0], "output_tokens": counts[1]})
        | document.fields(output_tokens_per_s="results_mean_output_throughput_token_per_s"),
    )
    cell.add_rates("requests_per_s", "total_tokens_per_s")
    return cell


def requests(rows: Sequence[Value], where: str) -> ResultCell:
    cell = ResultCell(
        where=where, tool=TOOL, load=None, definitions=TOOL, unknown=("itl_s", "output_events")
    )
    cell.add_requests([_read_request(row) for row in rows])
    return cell


def _read_request(row: Value) -> ResultRequest:
    ttft_s, end_s, tokens = (
        row.positive("ttft_s"),
        row.positive("end_to_end_latency_s"),
        row.whole(REQUEST[2]),
    )
    code = row.get("error_code")
    failed = code is not None and (row.text("error_msg") or f"error {code}")
    return ResultRequest(
        start=None,
        offsets_s=(
            [] if failed or ttft_s is None or end_s is None else [ttft_s, end_s][: tokens or 2]
        ),
        end_s=end_s,
        input_tokens=row.whole("number_input_tokens"),
        counted_tokens=tokens,
        error=failed or None,
    )
