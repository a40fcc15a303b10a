"""Reads results of AIPerf (profile_export_aiperf.json, profile_export.jsonl) and of genai-perf
before it (profile_export_genai_perf.json).

Its "inter token latency" is our TPOT: (E2E − TTFT)/(n − 1) per request. Its gaps between chunks
stand for ITL.
"""

from collections.abc import Sequence
from datetime import datetime
from itertools import accumulate
from pathlib import Path

import msgspec

from loadstone.interop.read import evaluations
from loadstone.interop.read.cell import ResultCell, ResultRequest, read_failure
from loadstone.interop.read.reader import Reader
from loadstone.interop.read.values import (
    Value,
    count_ended,
    keep,
    make_lengths,
    make_load,
    make_sessions,
    origin,
)

_REQUESTS, _ACCURACY = "profile_export.jsonl", "accuracy_results.csv"
_LATENCIES = {
    "ttft_s": "time_to_first_token",
    "tpot_s": "inter_token_latency",
    "itl_s": "inter_chunk_latency",
    "e2e_s": "request_latency",
}
_MODEL = "models.items.0.name|model_names.0|endpoint.model_names.0|model"


def _summary_path(path: Path) -> Path:
    return path.with_name("profile_export_aiperf.json")


def _read_summary(document: Value, where: str) -> ResultCell:
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
    span_s = document.positive("benchmark_duration.avg")
    per_s = document.positive("request_throughput.avg")
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


def _read_requests(rows: Sequence[Value], where: str) -> ResultCell:
    """Read profile_export.jsonl."""
    cell = ResultCell(where=where, tool="AIPerf", load=None, definitions="aiperf")
    sent = [_read_request(row) for row in rows]
    starts = keep(request.start for request in sent)
    cell.add_requests(sent, per_s=1e9, origin=min(starts, default=0))
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


# --- files ----------------------------------------------------------------------------------------


def _find_companion(path: Path, cell: ResultCell | None) -> Path | None:
    requests = path.with_name(_REQUESTS)
    if cell is not None:
        return _summary_path(path) if cell.records else requests
    if path != _summary_path(path) or not requests.is_file() or not requests.stat().st_size:
        return None
    return requests


def _read_with(path: Path) -> Path | None:
    """Its summary and its requests are one result: reading either reads both."""
    return _summary_path(path) if path.name == _REQUESTS else None


def _is_part(path: Path) -> bool:
    """Phases repeat the whole; accuracy is read with it."""
    if path.name == _ACCURACY:
        return _summary_path(path).exists() or path.with_name(_REQUESTS).exists()
    return "phases" in path.parts and path.name.startswith("profile_export")


def _add_accuracy(cell: ResultCell, path: Path) -> None:
    accuracy = path.with_name(_ACCURACY)
    if accuracy.is_file():
        cell.graded = evaluations.read_aiperf(accuracy)


READER = Reader(
    tools="AIPerf, genai-perf",
    documents=[(("request_latency.avg", "aiperf_version|input_config"), _read_summary)],
    requests=[(("metadata.request_start_ns", "metrics"), _read_requests)],
    companion=_find_companion,
    read_with=_read_with,
    is_part=_is_part,
    finish=_add_accuracy,
)
