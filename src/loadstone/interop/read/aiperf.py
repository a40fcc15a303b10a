"""Reads results of AIPerf (profile_export_aiperf.json, profile_export.jsonl) and of genai-perf and
perf_analyzer before it (profile_export_genai_perf.json, profile_export.json).

Its "inter token latency" is our TPOT: (E2E − TTFT)/(n − 1) per request. Its gaps between chunks
stand for ITL.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from itertools import accumulate
from pathlib import Path

import msgspec

from loadstone.interop.read.cell import ResultCell, ResultRequest, read_failure
from loadstone.interop.read.values import (
    Value,
    count_ended,
    make_lengths,
    make_load,
    make_sessions,
    origin,
)

# What a document has that is one of these.
SUMMARY = ("request_latency.avg", "aiperf_version|input_config")
REQUEST = ("metadata.request_start_ns", "metrics")
PROFILE = ("experiments.0.requests", "experiments.0.experiment")

TOOLS = ("AIPerf", "genai-perf")
REQUESTS, ACCURACY = "profile_export.jsonl", "accuracy_results.csv"
_MOST_REQUESTS = 2_000_000
_LATENCIES = {
    "ttft_s": "time_to_first_token",
    "tpot_s": "inter_token_latency",
    "itl_s": "inter_chunk_latency",
    "e2e_s": "request_latency",
}
_MODEL = "models.items.0.name|model_names.0|endpoint.model_names.0|model"


def summary_path(requests: Path) -> Path:
    return requests.with_name("profile_export_aiperf.json")


def summary(document: Value, where: str) -> ResultCell:
    config = document.at("input_config")
    version = document.text("aiperf_version", limit=40)
    prompts = config.at("datasets.0.prompts")
    fixed = bool(config.items("datasets")) and not any(
        prompts.positive(f"{end}.stddev") for end in ("isl", "osl")
    )
    turns, pause_ms = (
        config.positive(f"datasets.0.{name}.mean") for name in ("turns", "turn_delay")
    )
    # The measured phase: the last that is not left out of the results; older files have `loadgen`
    # instead.
    phases = [phase for phase in config.items("phases") if not phase.get("exclude_from_results")]
    phase = phases[-1] if phases else config.at("loadgen")
    constant = phase.get("type") == "constant" or phase.get("request_rate_mode") == "constant"
    stimulus = config.at("perf_analyzer.stimulus")  # genai-perf's
    cell = ResultCell(
        where=where,
        tool=f"AIPerf {version}" if version else "genai-perf",
        load=make_load(
            rate=phase.get("rate|request_rate") or stimulus.get("request_rate"),
            concurrency=phase.get("concurrency")
            or stimulus.get("concurrency")
            or config.get("concurrency"),
            burstiness=phase.get("arrival_smoothness|smoothness"),
            process="constant" if constant else "",
        ),
        url=origin(config.get("endpoint.urls.0|endpoint.url")),
        identity=document.text("benchmark_id"),
        endpoint=config.text("endpoint.type|endpoint_type"),
        created=document.when("start_time"),
        deployment=config.fields(model=_MODEL),
        workload=(make_lengths(prompts.get("isl.mean"), prompts.get("osl.mean")) if fixed else {})
        | make_sessions(turns, pause_ms and pause_ms / 1e3),
        definitions="aiperf" if version else None,
        latencies=document.latencies(_LATENCIES),
        totals=document.fields(
            input_tokens="total_isl.avg",
            output_tokens="total_osl.avg",
            requests_per_s="request_throughput.avg",
            output_tokens_per_s="output_token_throughput.avg",
            total_tokens_per_s="total_token_throughput.avg",
            goodput_per_s="goodput.avg",
        ),
    )
    if turns is not None and turns > 1 and cell.load is not None and cell.load.is_closed:
        # Its places are held by conversations, pauses included.
        cell.load = msgspec.structs.replace(cell.load, unit="sessions")
    if document.get("was_cancelled") is True:
        cell.say("interrupted", "the tool was stopped before it had sent all requests")
    failed = document.whole("error_request_count.avg")
    if failed is None and document.has("error_summary"):
        failed = sum(item.whole("count") or 0 for item in document.items("error_summary"))
    cell.requests = count_ended(document.whole("request_count.avg"), failed)
    cell.duration_s = _find_duration_s(document, cell.completed)
    cell.add_rates("total_tokens_per_s")
    return cell


def _find_duration_s(document: Value, ok: int | None) -> float | None:
    """Find the duration that its rates are over: mostly `benchmark_duration`, from the first send
    to the last end; in an open loop the whole phase, which begins when the first send begins to be
    waited for.
    """
    span_s, per_s = (
        document.positive("benchmark_duration.avg"),
        document.positive("request_throughput.avg"),
    )
    try:
        start, end = (
            datetime.fromisoformat(document.get(f"{which}_time")) for which in ("start", "end")
        )
        whole_s = (end - start).total_seconds()
    except (TypeError, ValueError):
        return span_s
    if span_s is None or per_s is None or not ok or whole_s <= 0:
        return span_s
    return min(span_s, whole_s, key=lambda seconds: abs(per_s * seconds - ok))


# --- requests -------------------------------------------------------------------------------------


def requests(rows: Sequence[Value], where: str) -> ResultCell:
    """Read profile_export.jsonl."""
    cell = ResultCell(where=where, tool="AIPerf", load=None, definitions="aiperf")
    each = [_read_request(row) for row in rows]
    starts = [request.start for request in each if request.start is not None]
    cell.add_requests(each, per_s=1e9, origin=min(starts, default=0))
    return cell


def _read_request(row: Value) -> ResultRequest:
    metrics = row.at("metrics")
    ttft_ms, latency_ms = (
        metrics.amount(f"{name}.value") for name in ("time_to_first_token", "request_latency")
    )
    gaps_ms = [gap.amount() or 0.0 for gap in metrics.items("inter_chunk_latency.value")]
    offsets_ms = accumulate([ttft_ms, *gaps_ms]) if ttft_ms is not None else ()
    cancelled = row.get("metadata.was_cancelled") is True
    return ResultRequest(
        start=_find_start_ns(row.at("metadata")),
        due=row.whole("metadata.credit_issued_ns"),
        offsets_s=[offset_ms / 1e3 for offset_ms in offsets_ms],
        end_s=latency_ms / 1e3 if latency_ms is not None else None,
        input_tokens=metrics.whole("usage_prompt_tokens.value")
        or metrics.whole("input_sequence_length.value"),
        output_tokens=metrics.whole("usage_completion_tokens.value"),
        counted_tokens=metrics.whole("output_sequence_length.value"),
        cached_tokens=metrics.whole("usage_prompt_cache_read_tokens.value"),
        reasoning_tokens=metrics.whole("reasoning_token_count.value"),
        status="cancelled" if cancelled else None,
        error=read_failure(row.at("error"), "message"),
        phase="warmup" if row.get("metadata.benchmark_phase") == "warmup" else "measure",
        session_id=row.text("metadata.x_correlation_id"),
        turn=row.whole("metadata.turn_index"),
    )


def _find_start_ns(metadata: Value) -> int | None:
    """Find when a request was sent. AIPerf 0.13 begins one that it cancels itself when it cancels
    it, and ends it later by the time that it took: such a begin is put back by as much, where that
    is not before the request was handed out.
    """
    start, end = metadata.whole("request_start_ns"), metadata.whole("request_end_ns")
    issued = metadata.whole("credit_issued_ns")
    if start is None or end is None or issued is None or metadata.get("was_cancelled") is not True:
        return start
    return 2 * start - end if issued <= 2 * start - end <= start else start


# --- perf_analyzer --------------------------------------------------------------------------------


def profile(document: Value, where: str) -> list[ResultCell]:
    """Read profile_export.json: each request with the times of its responses, which may be chunks
    or token by token.
    """
    cells = []
    for count, experiment in enumerate(document.items("experiments"), 1):
        mode, value = experiment.get("experiment.mode"), experiment.get("experiment.value")
        cell = ResultCell(
            where=f"{where}, experiment {count}",
            tool="perf_analyzer",
            load=make_load(
                rate=value if mode == "request_rate" else None,
                concurrency=value if mode == "concurrency" else None,
            ),
            endpoint=document.text("endpoint|service_kind"),
        )
        rows = experiment.items("requests")[:_MOST_REQUESTS]
        requests = [
            _read_answered(row, start)
            for row in rows
            if (start := row.whole("timestamp")) is not None
        ]
        cell.add_requests(requests, per_s=1e9)
        if any(record.output_tokens is None and record.arrival_s for record in cell.records):
            cell.say("no_usage", "no token counts; each response is counted as one token")
        if cell.records:
            cells.append(cell)
    return cells


def _read_answered(row: Value, start: int) -> ResultRequest:
    times = [time.number() for time in row.items("response_timestamps")]
    outputs = [_read_output(output) for output in row.items("response_outputs")[: len(times)]]
    outputs += [(True, None)] * (len(times) - len(outputs))
    counts = [tokens for _, tokens in outputs if tokens is not None]
    return ResultRequest(
        start=start,
        offsets_s=[
            (time_ns - start) / 1e9
            for time_ns, (has_output, _) in zip(times, outputs, strict=True)
            if has_output and time_ns is not None and time_ns >= start
        ],
        output_tokens=counts[-1] if counts else None,
        end_s=max((time_ns for time_ns in times if time_ns is not None), default=start) / 1e9
        - start / 1e9,
    )


def _read_output(output: Value) -> tuple[bool, int | None]:
    """Tell whether a response carries output, and its completion_tokens where stated."""
    body = output.raw
    if not isinstance(body, str):
        body = output.get("text_output") if output.has("text_output") else output.get("response")
    if not isinstance(body, str):
        return body is not None, None
    body = body.strip().removeprefix("data:").strip()
    if body in ("", "[DONE]"):
        return False, None
    try:
        event = Value(json.loads(body))
    except (ValueError, RecursionError):
        return True, None
    if not isinstance(event.raw, dict):
        return True, None
    tokens = event.whole("usage.completion_tokens")
    choice = event.at("choices.0")
    if choice.raw is None:
        return not event.has("choices") and tokens is None, tokens
    pieces = (
        "delta.content",
        "delta.reasoning_content",
        "delta.tool_calls",
        "message.content",
        "text",
    )
    return any(choice.get(piece) for piece in pieces), tokens
