"""llm-d's benchmark report, 0.1 and 0.2: what its harnesses (inference-perf, GuideLLM, vllm bench) found, converted.

Every figure has its unit beside it. The load and the stack stand under `scenario`, where it was filled in.
"""

from __future__ import annotations

from typing import Any

from loadstone.analyse.run_facts import engine_name
from loadstone.core import Load
from loadstone.interop.read.cell import Cell
from loadstone.interop.read.inference_perf import LATENCIES
from loadstone.interop.read.values import Value, in_seconds, infinite, known, lengths, load_of, positive, sum_of

_ENGINES = {"vllm", "sglang", "tensorrt-llm", "trtllm"}


def is_report(document: Value) -> bool:
    return "version" in document and (
        "aggregate" in document.at("results", "request_performance") or "latency" in document.at("metrics")
    )


def report(document: Value, where: str) -> Cell:
    new = document.at("results", "request_performance", "aggregate")
    found = new or document.at("metrics")
    asked = document.at("scenario", "load", "standardized")
    cell = Cell(
        where=where,
        tool=" ".join(part for part in (asked.text("tool", limit=40), asked.text("tool_version", limit=40)) if part)
        or "llm-d benchmark report",
        load=_load(document, asked),
        created=document.when("run", "time", "start") or found.when("time", "start"),
        deployment=_deployment(document),
        workload=_workload(asked),
    )
    cell.latencies = known({
        ours: in_seconds(found.at("latency", theirs), "units") for ours, theirs in LATENCIES.items()
    })  # fmt: skip
    sent, failed = found.whole("requests", "total"), found.whole("requests", "failures")
    ok = sent - failed if sent is not None and failed is not None and sent >= failed else None
    cell.requests = known({"sent": sent, "error": failed, "ok": ok})
    rates = found.at("throughput")
    per_s = _rate(rates, "request_rate", "requests_per_sec")
    # run.time is of the whole run, start-up included: the window is what the rates were divided by.
    cell.duration_s = ok / per_s if ok and per_s else None
    cell.totals = known({
        "requests_per_s": per_s,
        "output_tokens_per_s": _rate(rates, "output_token_rate", "output_tokens_per_sec"),
        "total_tokens_per_s": _rate(rates, "total_token_rate", "total_tokens_per_sec"),
        "input_tokens": sum_of(found.amount("requests", "input_length", "mean"), ok),
        "output_tokens": sum_of(found.amount("requests", "output_length", "mean"), ok),
    })  # fmt: skip
    return cell


def _rate(rates: Value, new: str, old: str) -> float | None:
    return rates.amount(new, "mean") if new in rates else rates.amount(old)


def _load(document: Value, asked: Value) -> Load | None:
    concurrency = None if infinite(asked.get("concurrency")) else asked.get("concurrency")
    if asked.positive("rate_qps") or positive(concurrency):
        return load_of(rate=asked.get("rate_qps"), concurrency=concurrency)
    # 0.1 keeps the harness's own arguments, and which of its stages this is.
    arguments = document.at("scenario", "load", "args")
    which = document.whole("scenario", "load", "metadata", "stage")
    rate = arguments.get("load", "stages", which if which is not None else 0, "rate")
    return load_of(
        rate=rate if rate is not None else arguments.get("request_rate"), concurrency=arguments.get("max_concurrency")
    )


def _workload(asked: Value) -> dict[str, Any]:
    ends = [asked.at(f"{end}_seq_len") for end in ("input", "output")]
    if not ends[0] or any(end and end.get("distribution") != "fixed" for end in ends):
        return {}
    prefix = asked.whole("prefix", "prefix_len", "value")
    return lengths(ends[0].get("value"), ends[1].get("value"), prefix_tokens=prefix)


def _deployment(document: Value) -> dict[str, Any]:
    """Of the engines in the stack the first; prefill and decode apart have more than one."""
    stack = [part.at("standardized") for part in document.items("scenario", "stack")]
    engine = next((part for part in stack if part.get("kind") == "inference_engine"), Value(None))
    old = document.at("scenario", "host", "accelerator", 0) or document.at("scenario", "host", "accelerator")
    accelerator = engine.at("accelerator") or old
    split = accelerator.at("parallelism")
    tool = engine.text("tool") or document.text("scenario", "platform", "engine", 0, "name")
    named = tool is not None and tool.lower() in _ENGINES
    return known({
        "model": engine.text("model", "name") or document.text("scenario", "model", "name"),
        "engine": engine_name(tool) if named else None,
        "engine_version": engine.text("tool_version") if named else None,
        "gpu": accelerator.text("model"),
        "gpus": accelerator.whole("count"),
        **{name: split.whole(name) for name in ("tp", "pp", "dp", "ep")},
    })  # fmt: skip
