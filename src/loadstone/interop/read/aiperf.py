"""Results of AIPerf (profile_export_aiperf.json, profile_export.jsonl) and of genai-perf and perf_analyzer before it
(profile_export_genai_perf.json, profile_export.json).

Its "inter token latency" is our TPOT: (E2E − TTFT)/(n − 1) per request. Its gaps between chunks stand for ITL.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from itertools import accumulate
from pathlib import Path

import msgspec

from loadstone.core import Load
from loadstone.interop.read.cell import Cell
from loadstone.interop.read.requests import SERVERS_COUNT, earliest, failure, record, say_recounted
from loadstone.interop.read.values import (
    Value,
    ended,
    in_seconds,
    known,
    lengths,
    load_of,
    origin,
    sessions,
    sum_per_s,
)

_LATENCIES = {
    "ttft_s": "time_to_first_token",
    "tpot_s": "inter_token_latency",
    "itl_s": "inter_chunk_latency",
    "e2e_s": "request_latency",
}
REQUESTS = "profile_export.jsonl"
_MOST_REQUESTS = 2_000_000


def summary_beside(requests: Path) -> Path:
    return requests.with_name("profile_export_aiperf.json")


def is_summary(document: Value) -> bool:
    return "avg" in document.at("request_latency") and ("aiperf_version" in document or "input_config" in document)


def summary(document: Value, where: str) -> Cell:
    config = document.at("input_config")
    version = document.text("aiperf_version", limit=40)
    phase = _phase(config)
    stated = [item.at("prompts") for item in config.items("datasets")]
    asked = [stated[0].get(end, "mean") if stated else None for end in ("isl", "osl")]
    spread = any(stated[0].positive(end, "stddev") for end in ("isl", "osl")) if stated else True
    turns, pause = (config.positive("datasets", 0, name, "mean") for name in ("turns", "turn_delay"))
    cell = Cell(
        where=where,
        tool=f"AIPerf {version}" if version else "genai-perf",
        load=_load(phase, config),
        url=origin(config.get("endpoint", "urls", 0) or config.get("endpoint", "url")),
        identity=document.text("benchmark_id"),
        endpoint=config.text("endpoint", "type") or config.text("endpoint_type"),
        created=document.when("start_time"),
        deployment=known({"model": _model(config)}),
        workload=(lengths(*asked) if not spread else {}) | sessions(turns, pause and pause / 1e3),
        definitions="aiperf" if version else None,
    )
    if turns is not None and turns > 1 and cell.load is not None and cell.load.kind == "concurrency":
        # Its places are held by conversations, pauses included.
        cell.load = msgspec.structs.replace(cell.load, unit="sessions")
    if document.get("was_cancelled") is True:
        said = f"{where}: the tool was stopped before it had sent all requests"
        cell.say("interrupted", "warning", said, "Measure again to the end.")
    cell.latencies = known({ours: in_seconds(document.at(theirs), "unit") for ours, theirs in _LATENCIES.items()})
    ok, failed = (document.whole(f"{name}request_count", "avg") for name in ("", "error_"))
    if failed is None and "error_summary" in document:
        failed = sum(item.whole("count") or 0 for item in document.items("error_summary"))
    cell.requests = ended(ok, failed)
    cell.duration_s = _duration_s(document, ok)
    inputs, outputs = (document.whole(f"total_{end}", "avg") for end in ("isl", "osl"))
    both = document.amount("total_token_throughput", "avg")
    cell.totals = known({
        "input_tokens": inputs,
        "output_tokens": outputs,
        "requests_per_s": document.amount("request_throughput", "avg"),
        "output_tokens_per_s": document.amount("output_token_throughput", "avg"),
        "total_tokens_per_s": sum_per_s(cell.duration_s, inputs, outputs) if both is None else both,
        "goodput_per_s": document.amount("goodput", "avg"),
    })  # fmt: skip
    return cell


def _duration_s(document: Value, ok: int | None) -> float | None:
    """What its rates are over: mostly `benchmark_duration`, from the first send to the last end; in an open loop the
    whole phase, which begins when the first send begins to be waited for.
    """
    span, per_s = document.positive("benchmark_duration", "avg"), document.positive("request_throughput", "avg")
    try:
        start, end = (datetime.fromisoformat(document.get(f"{which}_time")) for which in ("start", "end"))
        whole = (end - start).total_seconds()
    except (TypeError, ValueError):
        return span
    if span is None or per_s is None or not ok or whole <= 0:
        return span
    return min(span, whole, key=lambda over: abs(per_s * over - ok))


def _phase(config: Value) -> Value:
    """The measured phase: the last that is not left out of the results; older files have `loadgen` instead."""
    phases = [phase for phase in config.items("phases") if not phase.get("exclude_from_results")]
    return phases[-1] if phases else config.at("loadgen")


def _load(phase: Value, config: Value) -> Load | None:
    stimulus = config.at("perf_analyzer", "stimulus")  # genai-perf's
    rate = phase.get("rate") or phase.get("request_rate") or stimulus.get("request_rate")
    return load_of(
        rate=rate,
        concurrency=phase.get("concurrency") or stimulus.get("concurrency") or config.get("concurrency"),
        burstiness=phase.get("arrival_smoothness") or phase.get("smoothness"),
        process="constant" if phase.get("type") == "constant" or phase.get("request_rate_mode") == "constant" else "",
    )


def _model(config: Value) -> str | None:
    for path in (("models", "items", 0, "name"), ("model_names", 0), ("endpoint", "model_names", 0), ("model",)):
        if said := config.text(*path):
            return said
    return None


# --- requests --------------------------------------------------------------------------------------------------


def is_request(row: Value) -> bool:
    return "request_start_ns" in row.at("metadata") and "metrics" in row


def requests(rows: Sequence[Value], cell: Cell) -> None:
    """Fills `cell` (of the summary beside it, or bare) with the records of profile_export.jsonl."""
    starts = [_start_ns(row.at("metadata")) for row in rows]
    origin_ns = earliest(starts)
    several = any(row.whole("metadata", "turn_index") for row in rows)
    recounted = 0
    for row, start in zip(rows, starts, strict=True):
        metrics = row.at("metrics")
        ttft = metrics.amount("time_to_first_token", "value")
        gaps = [gap.amount() for gap in metrics.items("inter_chunk_latency", "value")]
        stated = metrics.whole("usage_completion_tokens", "value")
        counted = metrics.whole("output_sequence_length", "value")
        recounted += stated is not None and counted is not None and stated != counted
        offsets = list(accumulate([ttft, *(gap or 0.0 for gap in gaps)])) if ttft is not None else []
        latency, credit = metrics.amount("request_latency", "value"), row.whole("metadata", "credit_issued_ns")
        error = failure(row.at("error"), "message")
        cancelled = row.get("metadata", "was_cancelled") is True
        warm = row.get("metadata", "benchmark_phase") == "warmup"
        made = record(
            sent_s=(start - origin_ns) / 1e9 if start is not None else None,
            session_id=row.text("metadata", "x_correlation_id") if several else None,
            turn=row.whole("metadata", "turn_index") if several else None,
            offsets_s=[offset / 1e3 for offset in offsets],
            output_tokens=stated if stated is not None else counted,
            input_tokens=metrics.whole("usage_prompt_tokens", "value")
            or metrics.whole("input_sequence_length", "value"),
            end_s=latency / 1e3 if latency is not None else None,
            status="cancelled" if cancelled else "error" if error else "ok",
            error=error,
            phase="warmup" if warm else "measure",
            cached_tokens=metrics.whole("usage_prompt_cache_read_tokens", "value"),
            intended_s=(credit - origin_ns) / 1e9 if credit is not None and start is not None else None,
            reasoning_tokens=metrics.whole("reasoning_token_count", "value"),
        )
        cell.records.append(made)
    cell.relative = None in starts
    say_recounted(cell, recounted, len(rows), SERVERS_COUNT)


def _start_ns(metadata: Value) -> int | None:
    """When a request was sent. AIPerf 0.13 begins one that it cancels itself when it cancels it, and ends it later by
    the time that it took: such a begin is put back by as much, where that is not before the request was handed out.
    """
    start, end = metadata.whole("request_start_ns"), metadata.whole("request_end_ns")
    issued = metadata.whole("credit_issued_ns")
    if start is None or end is None or issued is None or metadata.get("was_cancelled") is not True:
        return start
    return 2 * start - end if issued <= 2 * start - end <= start else start


# --- perf_analyzer ---------------------------------------------------------------------------------------------


def is_profile(document: Value) -> bool:
    return "requests" in document.at("experiments", 0) and "experiment" in document.at("experiments", 0)


def profile(document: Value, where: str) -> list[Cell]:
    """profile_export.json: each request with the times of its responses, which may be chunks or token by token."""
    cells = []
    for number, experiment in enumerate(document.items("experiments"), 1):
        asked = experiment.at("experiment")
        mode, value = asked.get("mode"), asked.get("value")
        cell = Cell(
            where=f"{where}, experiment {number}",
            tool="perf_analyzer",
            load=load_of(
                rate=value if mode == "request_rate" else None, concurrency=value if mode == "concurrency" else None
            ),
            endpoint=document.text("endpoint") or document.text("service_kind"),
        )
        _responses(cell, experiment.items("requests")[:_MOST_REQUESTS])
        if cell.records:
            cells.append(cell)
    return cells


def _responses(cell: Cell, rows: Sequence[Value]) -> None:
    starts = [row.whole("timestamp") for row in rows]
    origin_ns = earliest(starts)
    for row, start in zip(rows, starts, strict=True):
        if start is None:
            continue
        times = [time.number() for time in row.items("response_timestamps")]
        outputs = row.items("response_outputs")
        offsets, tokens = [], None
        for index, time_ns in enumerate(times):
            said = _spoken(outputs[index]) if index < len(outputs) else (True, None)
            tokens = said[1] if said[1] is not None else tokens
            if said[0] and time_ns is not None and time_ns >= start:
                offsets.append((time_ns - start) / 1e9)
        cell.records.append(
            record(
                sent_s=(start - origin_ns) / 1e9,
                offsets_s=offsets,
                output_tokens=tokens,
                end_s=max((t for t in times if t is not None), default=start) / 1e9 - start / 1e9,
            )
        )
    if any(made.output_tokens is None and made.arrival_s for made in cell.records):
        cell.say(
            "no_usage",
            "info",
            f"{cell.where}: no token counts; each response is counted as one token",
            "Where the server bundles tokens, TPOT and tokens/s are per response, not per token.",
        )


def _spoken(output: Value) -> tuple[bool, int | None]:
    """Whether a response carries output, and its completion_tokens where stated."""
    said = output.raw
    if not isinstance(said, str):
        said = output.get("text_output") if "text_output" in output else output.get("response")
    if not isinstance(said, str):
        return said is not None, None
    body = said.strip().removeprefix("data:").strip()
    if body in ("", "[DONE]"):
        return False, None
    try:
        event = Value(json.loads(body))
    except (ValueError, RecursionError):
        return True, None
    if not isinstance(event.raw, dict):
        return True, None
    tokens = event.whole("usage", "completion_tokens")
    choice = event.at("choices", 0)
    if choice.raw is None:
        return "choices" not in event and tokens is None, tokens
    delta, message = choice.at("delta"), choice.at("message")
    pieces = (delta.get("content"), delta.get("reasoning_content"), delta.get("tool_calls"), message.get("content"))
    return any(pieces) or bool(choice.get("text")), tokens
