"""Results of inference-perf (stage_N_lifecycle_metrics.json, per_request_lifecycle_metrics.json), all in seconds.

Its `time_per_output_token` is our TPOT; `normalized_time_per_output_token`, E2E/n, has no counterpart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from loadstone.importers.cell import Cell
from loadstone.importers.requests import record
from loadstone.importers.values import (
    amount,
    at,
    items,
    known,
    load_of,
    mapping,
    number,
    positive,
    statistics,
    text,
    whole,
)

_LATENCIES = {
    "ttft_s": "time_to_first_token",
    "tpot_s": "time_per_output_token",
    "itl_s": "inter_token_latency",
    "e2e_s": "request_latency",
}


def is_stage(document: Mapping[str, Any]) -> bool:
    return "latency" in mapping(document.get("successes")) and "load_summary" in document


def stage(document: Mapping[str, Any], where: str) -> Cell:
    asked, done = mapping(document.get("load_summary")), mapping(document.get("successes"))
    cell = Cell(
        where=where,
        tool="inference-perf",
        load=load_of(rate=asked.get("requested_rate"), concurrency=asked.get("concurrency"))
        or load_of(concurrency=asked.get("concurrency_level")),
        definitions="inference-perf",
    )
    for ours, theirs in _LATENCIES.items():
        if found := statistics(mapping(at(done, "latency", theirs))):
            cell.latencies[ours] = found
    ok, failed = whole(done.get("count")), whole(at(document, "failures", "count"))
    cell.requests = known({"ok": ok, "error": failed, "sent": whole(asked.get("count"))})
    rates = mapping(done.get("throughput"))
    per_s = positive(rates.get("requests_per_sec"))
    # Its window is not named in older files; what it divided by, it did for requests too.
    cell.duration_s = positive(document.get("benchmark_time_seconds")) or (ok / per_s if ok and per_s else None)
    cell.totals = known({
        "input_tokens": whole(at(done, "prompt_tokens", "total")) or _sum(done.get("prompt_len"), ok),
        # By the client's count, as its TPOT and rates; the server's, where it has both, is `output_tokens`.
        "output_tokens": _sum(done.get("output_len"), ok) or whole(at(done, "output_tokens", "total")),
        "requests_per_s": per_s,
        "output_tokens_per_s": amount(rates.get("output_tokens_per_sec")),
        "total_tokens_per_s": amount(rates.get("total_tokens_per_sec")),
        "achieved_rate_per_s": amount(asked.get("achieved_rate")),
    })  # fmt: skip
    if mismatches := whole(done.get("token_count_mismatches")):
        cell.say(
            "counts_differ",
            "info",
            f"{where}: for {mismatches} of {ok} requests the server's count of output tokens is not the client's, "
            "which counts the text anew",
            "TPOT and tokens/s go by the client's count unless the tool was told otherwise.",
        )
    return cell


def _sum(lengths: Any, count: int | None) -> int | None:
    each = number(at(lengths, "mean"))
    return round(each * count) if each is not None and count is not None else None


def is_requests(document: Any) -> bool:
    first = mapping(at(items(document), 0))
    return {"start_time", "end_time", "info"} <= first.keys() and "request" in first


def requests(rows: Sequence[Any], where: str) -> Cell:
    """per_request_lifecycle_metrics.json. Which stage a request was of, and at what rate, it does not tell."""
    cell = Cell(where=where, tool="inference-perf", load=None, definitions="inference-perf")
    starts = [number(at(row, "start_time")) for row in rows]
    origin_s = min((start for start in starts if start is not None), default=0.0)
    recounted = 0
    for row, start in zip(rows, starts, strict=True):
        if start is None:
            continue
        answer = mapping(at(row, "info", "response_metrics"))
        stated, counted = whole(at(answer, "server_usage", "completion_tokens")), whole(answer.get("output_tokens"))
        recounted += stated is not None and counted is not None and stated != counted
        times = items(answer.get("chunk_times")) or items(answer.get("output_token_times"))
        offsets = [time - start for time in map(number, times) if time is not None and time >= start]
        end, said = number(at(row, "end_time")), at(row, "error")
        error = (text(at(said, "error_msg")) or text(said) or "an error without a message") if said else None
        cell.records.append(
            record(
                index=len(cell.records),
                sent_s=start - origin_s,
                offsets_s=offsets,
                output_tokens=stated if stated is not None else counted,
                input_tokens=whole(at(answer, "server_usage", "prompt_tokens"))
                or whole(at(row, "info", "input_tokens")),
                end_s=end - start if end is not None and end >= start else None,
                status="error" if error else "ok",
                error=error,
            )
        )
        if "model" not in cell.deployment and (model := _model(at(row, "request"))):
            cell.deployment["model"] = model
    if recounted:
        cell.say(
            "counts_differ",
            "info",
            f"{where}: for {recounted} of {len(rows)} requests the server's count of output tokens is not the "
            "client's, which counts the text anew",
            "The server's is taken; the tool's own figures go by the other.",
        )
    return cell


def _model(request: Any) -> str | None:
    try:
        return text(at(json.loads(request), "model")) if isinstance(request, str) else text(at(request, "model"))
    except (ValueError, RecursionError):
        return None
