"""llm-d's benchmark report, 0.1 and 0.2: what its harnesses (inference-perf, GuideLLM, vllm bench) found, converted.

Every figure has its unit beside it. The load and the stack stand under `scenario`, where it was filled in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadstone.importers.cell import Cell
from loadstone.importers.values import (
    amount,
    at,
    infinite,
    items,
    known,
    lengths,
    load_of,
    mapping,
    positive,
    statistics,
    text,
    when,
    whole,
)
from loadstone.records import Load
from loadstone.runfacts import engine_name

_SCALES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "s/token": 1.0, "ms/token": 1e-3, "seconds": 1.0}
_LATENCIES = {
    "ttft_s": "time_to_first_token",
    "tpot_s": "time_per_output_token",
    "itl_s": "inter_token_latency",
    "e2e_s": "request_latency",
}
_ENGINES = {"vllm", "sglang", "tensorrt-llm", "trtllm"}


def is_report(document: Mapping[str, Any]) -> bool:
    return "version" in document and (
        "aggregate" in mapping(at(document, "results", "request_performance"))
        or "latency" in mapping(document.get("metrics"))
    )


def report(document: Mapping[str, Any], where: str) -> Cell:
    new = mapping(at(document, "results", "request_performance", "aggregate"))
    found = new or mapping(document.get("metrics"))
    asked = mapping(at(document, "scenario", "load", "standardized"))
    cell = Cell(
        where=where,
        tool=" ".join(part for part in (text(asked.get("tool"), 40), text(asked.get("tool_version"), 40)) if part)
        or "llm-d benchmark report",
        load=_load(document, asked),
        created=when(at(document, "run", "time", "start")) or when(at(found, "time", "start")),
        deployment=_deployment(document),
        workload=_workload(asked),
    )
    for ours, theirs in _LATENCIES.items():
        each = mapping(at(found, "latency", theirs))
        scale = _SCALES.get(str(each.get("units")))
        if scale is not None and (numbers := statistics(each, scale)):
            cell.latencies[ours] = numbers
    sent, failed = whole(at(found, "requests", "total")), whole(at(found, "requests", "failures"))
    ok = sent - failed if sent is not None and failed is not None and sent >= failed else None
    cell.requests = known({"sent": sent, "error": failed, "ok": ok})
    rates = mapping(found.get("throughput"))
    per_s = _rate(rates, "request_rate", "requests_per_sec")
    # run.time is of the whole run, start-up included: the window is what the rates were divided by.
    cell.duration_s = ok / per_s if ok and per_s else None
    cell.totals = known({
        "requests_per_s": per_s,
        "output_tokens_per_s": _rate(rates, "output_token_rate", "output_tokens_per_sec"),
        "total_tokens_per_s": _rate(rates, "total_token_rate", "total_tokens_per_sec"),
        "input_tokens": _sum(at(found, "requests", "input_length", "mean"), ok),
        "output_tokens": _sum(at(found, "requests", "output_length", "mean"), ok),
    })  # fmt: skip
    return cell


def _rate(rates: Mapping[str, Any], new: str, old: str) -> float | None:
    return amount(at(rates, new, "mean")) if new in rates else amount(rates.get(old))


def _sum(each: Any, count: int | None) -> int | None:
    tokens = amount(each)
    return round(tokens * count) if tokens is not None and count is not None else None


def _load(document: Mapping[str, Any], asked: Mapping[str, Any]) -> Load | None:
    concurrency = None if infinite(asked.get("concurrency")) else asked.get("concurrency")
    if positive(asked.get("rate_qps")) or positive(concurrency):
        return load_of(rate=asked.get("rate_qps"), concurrency=concurrency)
    # 0.1 keeps the harness's own arguments, and which of its stages this is.
    arguments = mapping(at(document, "scenario", "load", "args"))
    which = whole(at(document, "scenario", "load", "metadata", "stage"))
    rate = at(items(at(arguments, "load", "stages")), which if which is not None else 0, "rate")
    return load_of(
        rate=rate if rate is not None else arguments.get("request_rate"), concurrency=arguments.get("max_concurrency")
    )


def _workload(asked: Mapping[str, Any]) -> dict[str, Any]:
    ends = [mapping(asked.get(f"{end}_seq_len")) for end in ("input", "output")]
    if not ends[0] or any(end and end.get("distribution") != "fixed" for end in ends):
        return {}
    prefix = whole(at(asked, "prefix", "prefix_len", "value"))
    return lengths(ends[0].get("value"), ends[1].get("value"), prefix_tokens=prefix)


def _deployment(document: Mapping[str, Any]) -> dict[str, Any]:
    """Of the engines in the stack the first; prefill and decode apart have more than one."""
    stack = [mapping(at(part, "standardized")) for part in items(at(document, "scenario", "stack"))]
    engine: Mapping[str, Any] = next((part for part in stack if part.get("kind") == "inference_engine"), {})
    old = mapping(at(document, "scenario", "host", "accelerator", 0)) or mapping(
        at(document, "scenario", "host", "accelerator")
    )
    accelerator = mapping(engine.get("accelerator")) or old
    split = mapping(accelerator.get("parallelism"))
    tool = text(engine.get("tool")) or text(at(document, "scenario", "platform", "engine", 0, "name"))
    named = tool is not None and tool.lower() in _ENGINES
    return known({
        "model": text(at(engine, "model", "name")) or text(at(document, "scenario", "model", "name")),
        "engine": engine_name(tool) if named else None,
        "engine_version": text(engine.get("tool_version")) if named else None,
        "gpu": text(accelerator.get("model")),
        "gpus": whole(accelerator.get("count")),
        **{name: whole(split.get(name)) for name in ("tp", "pp", "dp", "ep")},
    })  # fmt: skip
