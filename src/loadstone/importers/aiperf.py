"""Results of AIPerf (profile_export_aiperf.json, profile_export.jsonl) and of genai-perf and perf_analyzer before it
(profile_export_genai_perf.json, profile_export.json).

Its "inter token latency" is our TPOT: (E2E − TTFT)/(n − 1) per request. Its gaps between chunks stand for ITL.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from loadstone.importers.cell import Cell
from loadstone.importers.requests import record
from loadstone.importers.values import (
    amount,
    at,
    items,
    known,
    lengths,
    load_of,
    mapping,
    number,
    positive,
    statistics,
    text,
    when,
    whole,
)
from loadstone.records import Load

_SCALES = {"ms": 1e-3, "us": 1e-6, "ns": 1e-9, "s": 1.0, "sec": 1.0, "seconds": 1.0}
_LATENCIES = {
    "ttft_s": "time_to_first_token",
    "tpot_s": "inter_token_latency",
    "itl_s": "inter_chunk_latency",
    "e2e_s": "request_latency",
}
_MOST_REQUESTS = 2_000_000


def is_summary(document: Mapping[str, Any]) -> bool:
    return "avg" in mapping(document.get("request_latency")) and (
        "aiperf_version" in document or "input_config" in document
    )


def summary(document: Mapping[str, Any], where: str) -> Cell:
    config = mapping(document.get("input_config"))
    version = text(document.get("aiperf_version"), 40)
    phase = _phase(config)
    stated = [mapping(at(item, "prompts")) for item in items(config.get("datasets"))]
    asked = [at(stated[0], end, "mean") if stated else None for end in ("isl", "osl")]
    spread = any(positive(at(stated[0], end, "stddev")) for end in ("isl", "osl")) if stated else True
    cell = Cell(
        where=where,
        tool=f"AIPerf {version}" if version else "genai-perf",
        load=_load(phase, config),
        endpoint=text(at(config, "endpoint", "type")) or text(config.get("endpoint_type")),
        created=when(document.get("start_time")),
        deployment=known({"model": _model(config)}),
        workload=lengths(*asked) if not spread else {},
        definitions="aiperf" if version else None,
    )
    for ours, theirs in _LATENCIES.items():
        if found := _statistics(document.get(theirs)):
            cell.latencies[ours] = found
    ok, failed = (whole(at(document, f"{name}request_count", "avg")) for name in ("", "error_"))
    if failed is None and "error_summary" in document:
        failed = sum(whole(at(item, "count")) or 0 for item in items(document.get("error_summary")))
    cell.requests = known({"ok": ok, "error": failed, "sent": ok + failed if ok is not None and failed is not None
                           else None})  # fmt: skip
    cell.duration_s = positive(at(document, "benchmark_duration", "avg"))
    inputs, outputs = (whole(at(document, f"total_{end}", "avg")) for end in ("isl", "osl"))
    output_rate = amount(at(document, "output_token_throughput", "avg"))
    both = amount(at(document, "total_token_throughput", "avg"))
    if both is None and cell.duration_s and inputs is not None and outputs is not None:
        both = (inputs + outputs) / cell.duration_s
    cell.totals = known({
        "input_tokens": inputs,
        "output_tokens": outputs,
        "requests_per_s": amount(at(document, "request_throughput", "avg")),
        "output_tokens_per_s": output_rate,
        "total_tokens_per_s": both,
        "goodput_per_s": amount(at(document, "goodput", "avg")),
    })  # fmt: skip
    return cell


def _statistics(found: Any) -> dict[str, float]:
    scale = _SCALES.get(str(at(found, "unit")))
    return statistics(mapping(found), scale) if scale is not None else {}


def _phase(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The measured phase: the last that is not left out of the results; older files have `loadgen` instead."""
    phases = [phase for phase in map(mapping, items(config.get("phases"))) if not phase.get("exclude_from_results")]
    return phases[-1] if phases else mapping(config.get("loadgen"))


def _load(phase: Mapping[str, Any], config: Mapping[str, Any]) -> Load | None:
    stimulus = mapping(at(config, "perf_analyzer", "stimulus"))  # genai-perf's
    rate = phase.get("rate") or phase.get("request_rate") or stimulus.get("request_rate")
    return load_of(
        rate=rate,
        concurrency=phase.get("concurrency") or stimulus.get("concurrency") or config.get("concurrency"),
        burstiness=phase.get("arrival_smoothness") or phase.get("smoothness"),
        process="constant" if phase.get("type") == "constant" or phase.get("request_rate_mode") == "constant" else "",
    )


def _model(config: Mapping[str, Any]) -> str | None:
    for path in (("models", "items", 0, "name"), ("model_names", 0), ("endpoint", "model_names", 0), ("model",)):
        if said := text(at(config, *path)):
            return said
    return None


# --- requests --------------------------------------------------------------------------------------------------


def is_request(row: Mapping[str, Any]) -> bool:
    return "request_start_ns" in mapping(row.get("metadata")) and "metrics" in row


def requests(rows: Sequence[Mapping[str, Any]], cell: Cell) -> None:
    """Fills `cell` (of the summary beside it, or bare) with the records of profile_export.jsonl."""
    starts = [whole(at(row, "metadata", "request_start_ns")) for row in rows]
    origin_ns = min((start for start in starts if start is not None), default=0)
    recounted = 0
    for index, (row, start) in enumerate(zip(rows, starts, strict=True)):
        metrics = mapping(row.get("metrics"))

        def value(name: str, metrics: Mapping[str, Any] = metrics) -> Any:
            return at(metrics, name, "value")

        ttft, gaps = amount(value("time_to_first_token")), list(map(amount, items(value("inter_chunk_latency"))))
        stated, counted = whole(value("usage_completion_tokens")), whole(value("output_sequence_length"))
        recounted += stated is not None and counted is not None and stated != counted
        offsets = list(accumulate([ttft, *(gap or 0.0 for gap in gaps)])) if ttft is not None else []
        latency, credit = amount(value("request_latency")), whole(at(row, "metadata", "credit_issued_ns"))
        said = at(row, "error")
        error = (text(at(said, "message")) or text(said) or "an error without a message") if said else None
        cancelled = at(row, "metadata", "was_cancelled") is True
        warm = at(row, "metadata", "benchmark_phase") == "warmup"
        made = record(
            index=index,
            sent_s=(start - origin_ns) / 1e9 if start is not None else None,
            offsets_s=[offset / 1e3 for offset in offsets],
            output_tokens=stated if stated is not None else counted,
            input_tokens=whole(value("usage_prompt_tokens")) or whole(value("input_sequence_length")),
            end_s=latency / 1e3 if latency is not None else None,
            status="cancelled" if cancelled else "error" if error else "ok",
            error=error,
            phase="warmup" if warm else "measure",
            intended_s=(credit - origin_ns) / 1e9 if credit is not None and start is not None else None,
            reasoning_tokens=whole(value("reasoning_token_count")),
        )
        cell.records.append(made)
    cell.relative = None in starts
    if recounted:
        cell.say(
            "counts_differ",
            "info",
            f"{cell.where}: for {recounted} of {len(rows)} requests the server's count of output tokens is not the "
            "client's, which counts the text anew",
            "The server's is taken; the tool's own figures go by the other.",
        )


# --- perf_analyzer ---------------------------------------------------------------------------------------------


def is_profile(document: Mapping[str, Any]) -> bool:
    return "requests" in mapping(at(document, "experiments", 0)) and "experiment" in at(document, "experiments", 0)


def profile(document: Mapping[str, Any], where: str) -> list[Cell]:
    """profile_export.json: each request with the times of its responses, which may be chunks or token by token."""
    cells = []
    for number_, experiment in enumerate(items(document.get("experiments")), 1):
        asked = mapping(at(experiment, "experiment"))
        mode, value = asked.get("mode"), asked.get("value")
        cell = Cell(
            where=f"{where}, experiment {number_}",
            tool="perf_analyzer",
            load=load_of(
                rate=value if mode == "request_rate" else None, concurrency=value if mode == "concurrency" else None
            ),
            endpoint=text(document.get("endpoint")) or text(document.get("service_kind")),
        )
        _responses(cell, items(at(experiment, "requests"))[:_MOST_REQUESTS])
        if cell.records:
            cells.append(cell)
    return cells


def _responses(cell: Cell, rows: Sequence[Any]) -> None:
    starts = [whole(at(row, "timestamp")) for row in rows]
    origin_ns = min((start for start in starts if start is not None), default=0)
    for row, start in zip(rows, starts, strict=True):
        if start is None:
            continue
        times = list(map(number, items(at(row, "response_timestamps"))))
        outputs = items(at(row, "response_outputs"))
        offsets, tokens = [], None
        for index, time_ns in enumerate(times):
            said = _spoken(outputs[index]) if index < len(outputs) else (True, None)
            tokens = said[1] if said[1] is not None else tokens
            if said[0] and time_ns is not None and time_ns >= start:
                offsets.append((time_ns - start) / 1e9)
        cell.records.append(
            record(
                index=len(cell.records),
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
            f"{cell.where}: no token counts; each response counts as one token",
            "TPOT and tokens/s are of responses, not of tokens, where the server bundles them.",
        )


def _spoken(output: Any) -> tuple[bool, int | None]:
    """Whether a response carries output, and its completion_tokens where stated."""
    if isinstance(output, str):
        said: Any = output
    else:
        said = at(output, "text_output") if "text_output" in mapping(output) else at(output, "response")
    if not isinstance(said, str):
        return said is not None, None
    body = said.strip().removeprefix("data:").strip()
    if body in ("", "[DONE]"):
        return False, None
    try:
        event = json.loads(body)
    except (ValueError, RecursionError):
        return True, None
    if not isinstance(event, dict):
        return True, None
    tokens = whole(at(event, "usage", "completion_tokens"))
    choice = at(event, "choices", 0)
    if choice is None:
        return "choices" not in event and tokens is None, tokens
    delta, message = mapping(at(choice, "delta")), mapping(at(choice, "message"))
    pieces = (delta.get("content"), delta.get("reasoning_content"), delta.get("tool_calls"), message.get("content"))
    return any(pieces) or bool(at(choice, "text")), tokens
