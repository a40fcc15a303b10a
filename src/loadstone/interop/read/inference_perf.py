"""Results of inference-perf (stage_N_lifecycle_metrics.json, per_request_lifecycle_metrics.json), all in seconds.

Its `time_per_output_token` is our TPOT; `normalized_time_per_output_token`, E2E/n, has no counterpart.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadstone.interop.read.cell import Cell
from loadstone.interop.read.requests import SERVERS_COUNT, earliest, failure, record, say_recounted
from loadstone.interop.read.values import Value, known, load_of, sum_of

LATENCIES = {
    "ttft_s": "time_to_first_token",
    "tpot_s": "time_per_output_token",
    "itl_s": "inter_token_latency",
    "e2e_s": "request_latency",
}
REQUESTS = "per_request_lifecycle_metrics.json"


def stages_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("stage_*_lifecycle_metrics.json"))


def is_stage(document: Value) -> bool:
    return "latency" in document.at("successes") and "load_summary" in document


def stage(document: Value, where: str) -> Cell:
    asked, done = document.at("load_summary"), document.at("successes")
    cell = Cell(
        where=where,
        tool="inference-perf",
        # A closed loop's `requested_rate` is its count of requests over one second.
        load=load_of(concurrency=asked.get("concurrency") or asked.get("concurrency_level"))
        or load_of(rate=asked.get("requested_rate")),
        definitions="inference-perf",
    )
    cell.latencies = known({ours: done.statistics("latency", theirs) for ours, theirs in LATENCIES.items()})
    ok, failed = done.whole("count"), document.whole("failures", "count")
    cell.requests = known({"ok": ok, "error": failed, "sent": asked.whole("count")})
    rates = done.at("throughput")
    per_s = rates.positive("requests_per_sec")
    # Its window is not named in older files; what it divided by, it did for requests too.
    cell.duration_s = document.positive("benchmark_time_seconds") or (ok / per_s if ok and per_s else None)
    cell.totals = known({
        "input_tokens": done.whole("prompt_tokens", "total") or sum_of(done.number("prompt_len", "mean"), ok),
        # By the client's count, as its TPOT and rates; the server's, where it has both, is `output_tokens`.
        "output_tokens": sum_of(done.number("output_len", "mean"), ok) or done.whole("output_tokens", "total"),
        "requests_per_s": per_s,
        "output_tokens_per_s": rates.amount("output_tokens_per_sec"),
        "total_tokens_per_s": rates.amount("total_tokens_per_sec"),
        "achieved_rate_per_s": asked.amount("achieved_rate"),
    })  # fmt: skip
    mismatches = done.whole("token_count_mismatches") or 0
    say_recounted(
        cell, mismatches, ok, "TPOT and tokens/s use the client's count unless the tool was told otherwise."
    )
    return cell


def is_requests(document: Value) -> bool:
    return document.at(0).has("start_time", "end_time", "info", "request")


def requests(rows: Sequence[Value], where: str) -> Cell:
    """per_request_lifecycle_metrics.json. Which stage a request was of, and at what rate, it does not tell."""
    cell = Cell(where=where, tool="inference-perf", load=None, definitions="inference-perf")
    starts = [row.number("start_time") for row in rows]
    origin_s = earliest(starts)
    recounted = 0
    for row, start in zip(rows, starts, strict=True):
        if start is None:
            continue
        answer = row.at("info", "response_metrics")
        stated, counted = answer.whole("server_usage", "completion_tokens"), answer.whole("output_tokens")
        recounted += stated is not None and counted is not None and stated != counted
        times = answer.items("chunk_times") or answer.items("output_token_times")
        offsets = [at - start for time in times if (at := time.number()) is not None and at >= start]
        end, error = row.number("end_time"), failure(row.at("error"), "error_msg")
        cell.records.append(
            record(
                sent_s=start - origin_s,
                offsets_s=offsets,
                output_tokens=stated if stated is not None else counted,
                input_tokens=answer.whole("server_usage", "prompt_tokens") or row.whole("info", "input_tokens"),
                end_s=end - start if end is not None and end >= start else None,
                status="error" if error else "ok",
                error=error,
            )
        )
        if "model" not in cell.deployment and (model := _model(row.get("request"))):
            cell.deployment["model"] = model
    say_recounted(cell, recounted, len(rows), SERVERS_COUNT)
    return cell


def _model(request: Any) -> str | None:
    try:
        return Value(json.loads(request) if isinstance(request, str) else request).text("model")
    except (ValueError, RecursionError):
        return None
