"""Reads results of inference-perf (stage_N_lifecycle_metrics.json,
per_request_lifecycle_metrics.json), all in seconds; and llm-d's benchmark report, 0.1 to 0.2.1:
what its harnesses (inference-perf, GuideLLM, vllm bench) measured, converted, every figure with its
unit beside it, the load and the stack under `scenario`, where it was filled in.

`time_per_output_token` is our TPOT; `normalized_time_per_output_token`, E2E/n, has no counterpart.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadstone.analyse.run_facts import engine_name
from loadstone.core.plan import Load
from loadstone.interop.read.cell import ResultCell, ResultRequest, offset_from, read_failure
from loadstone.interop.read.reader import Reader
from loadstone.interop.read.values import (
    COUNTS,
    FACTS,
    Value,
    drop_missing,
    is_infinite,
    keep,
    make_burst,
    make_lengths,
    make_load,
    multiply,
)

_LATENCIES = {
    "ttft_s": "latency.time_to_first_token",
    "tpot_s": "latency.time_per_output_token",
    "itl_s": "latency.inter_token_latency",
    "e2e_s": "latency.request_latency",
}
_TOOL = "inference-perf"
_REQUESTS = "per_request_lifecycle_metrics.json"
_ENGINES = {"vllm", "sglang", "tensorrt-llm", "trtllm"}


def _list_stages(folder: Path) -> list[Path]:
    return sorted(folder.glob("stage_*_lifecycle_metrics.json"))


def _read_stage(document: Value, where: str) -> ResultCell:
    done = document.at("successes")
    cell = ResultCell(
        where=where,
        tool=_TOOL,
        # A closed loop's `requested_rate` is its count of requests over one second.
        load=make_load(
            concurrency=document.get("load_summary.concurrency|load_summary.concurrency_level")
        )
        or make_load(rate=document.get("load_summary.requested_rate")),
        definitions="inference-perf",
        latencies=done.latencies(_LATENCIES, 1.0),
        requests=document.fields(
            ok="successes.count", error="failures.count", sent="load_summary.count"
        ),
    )
    ok = cell.completed
    per_s = done.positive("throughput.requests_per_sec")
    # Its window is not named in older files; what it divided by, it did for requests too.
    cell.duration_s = document.positive("benchmark_time_seconds") or (
        ok / per_s if ok and per_s else None
    )
    inputs, outputs = (done.whole(f"{name}_tokens.total") for name in ("prompt", "output"))
    cell.totals = drop_missing(
        {
            "input_tokens": inputs or multiply(done.number("prompt_len.mean"), ok),
            # By the client's count, as its TPOT and rates; the server's, where it has both, is
            # `output_tokens`.
            "output_tokens": multiply(done.number("output_len.mean"), ok) or outputs,
            "requests_per_s": per_s,
        }
    )
    cell.totals |= document.fields(
        output_tokens_per_s="successes.throughput.output_tokens_per_sec",
        total_tokens_per_s="successes.throughput.total_tokens_per_sec",
        achieved_rate_per_s="load_summary.achieved_rate",
    )
    remedy = "TPOT and tokens/s use the client's count unless the tool was told otherwise."
    cell.say_recounted(done.whole("token_count_mismatches") or 0, ok, remedy)
    return cell


def _read_requests(rows: Sequence[Value], where: str) -> ResultCell:
    """Read per_request_lifecycle_metrics.json. Which stage a request was of, and at what rate, it
    does not tell."""
    model = next(filter(None, (_read_model(row.get("request")) for row in rows)), None)
    cell = ResultCell(
        where=where,
        tool=_TOOL,
        load=None,
        definitions="inference-perf",
        deployment=drop_missing({"model": model}),
    )
    cell.add_requests(keep(_read_request(row, row.number("start_time")) for row in rows))
    return cell


def _read_request(row: Value, start: float | None) -> ResultRequest | None:
    if start is None:
        return None
    answer = row.at("info.response_metrics")
    times = answer.items("chunk_times") or answer.items("output_token_times")
    return ResultRequest(
        start=start,
        offsets_s=keep(offset_from(start, time.number()) for time in times),
        end_s=offset_from(start, row.number("end_time")),
        input_tokens=answer.whole("server_usage.prompt_tokens") or row.whole("info.input_tokens"),
        output_tokens=answer.whole("server_usage.completion_tokens"),
        counted_tokens=answer.whole("output_tokens"),
        error=read_failure(row.at("error"), "error_msg"),
    )


def _read_model(request: Any) -> str | None:
    try:
        return Value(json.loads(request) if isinstance(request, str) else request).text("model")
    except (ValueError, RecursionError):
        return None


# --- llm-d ----------------------------------------------------------------------------------------

_SPLIT = {name: f"parallelism.{name}" for name in ("tp", "pp", "dp", "ep")}


def _read_llmd(document: Value, where: str) -> ResultCell:
    results = document.at("results.request_performance.aggregate") or document.at("metrics")
    load = document.at("scenario.load.standardized")
    native = document.at("scenario.load.native.config.loadstone")
    tool = [load.text("tool", limit=40), load.text("tool_version", limit=40)]
    cell = ResultCell(
        where=where,
        tool=" ".join(filter(None, tool)) or "llm-d benchmark report",
        load=_read_llmd_load(document.at("scenario.load"), load),
        created=document.when("run.time.start") or results.when("time.start"),
        deployment=_read_llmd_deployment(document.at("scenario")),
        workload=_read_llmd_workload(load),
        latencies=results.latencies(_LATENCIES),
        requests=results.fields(
            sent="requests.total", error="requests.failures", cancelled="requests.incomplete"
        ),
        totals=results.fields(
            requests_per_s="throughput.request_rate.mean|throughput.requests_per_sec",
            output_tokens_per_s=(
                "throughput.output_token_rate.mean|throughput.output_tokens_per_sec"
            ),
            total_tokens_per_s="throughput.total_token_rate.mean|throughput.total_tokens_per_sec",
        ),
    )
    sent, failed = cell.requests.get("sent"), cell.requests.get("error")
    if sent is None or failed is None or sent < failed:
        return cell
    ok = max(0, sent - failed - (cell.requests.get("cancelled") or 0))
    per_s = cell.totals.get("requests_per_s")
    cell.requests["ok"] = ok
    # run.time is of the whole run, start-up included: the window is what the rates were divided by.
    cell.duration_s = native.positive("duration_s") or (ok / per_s if ok and per_s else None)
    means = {
        f"{end}_tokens": results.amount(f"requests.{end}_length.mean")
        for end in ("input", "output")
    }
    cell.totals |= drop_missing({name: multiply(mean, ok) for name, mean in means.items()})
    cell.totals |= native.at("totals").fields(*means, "cached_input_tokens")
    return cell


def _read_llmd_load(load: Value, standardized: Value) -> Load | None:
    rate, concurrency = standardized.get("rate_qps"), standardized.get("concurrency")
    concurrency = None if is_infinite(concurrency) else concurrency
    native = load.at("native.config.loadstone.load")
    if native.get("kind") == "burst":
        return make_burst(native.positive("value"))
    stated = make_load(
        rate=rate,
        concurrency=concurrency or native.get("max_concurrency"),
        process=native.get("process"),
        burstiness=native.get("burstiness"),
    )
    if stated is not None:
        return stated
    # 0.1 keeps the harness's native arguments, and which of its stages this is.
    which = load.whole("metadata.stage") or 0
    return make_load(
        rate=load.get(f"args.load.stages.{which}.rate|args.request_rate"),
        concurrency=load.get("args.max_concurrency"),
    )


def _read_llmd_workload(load: Value) -> dict[str, Any]:
    ends = [load.at(f"{end}_seq_len") for end in ("input", "output")]
    spans = {_read_span(end) for end in ends if end}
    if not ends[0] or None in spans or len(spans) != 1:
        return {}
    first, second = (
        end.get("max" if end.get("distribution") == "uniform" else "value") for end in ends
    )
    return make_lengths(
        first, second, spans.pop(), prefix_tokens=load.whole("prefix.prefix_len.value")
    )


def _read_span(length: Value) -> float | None:
    """Read the least over the greatest length; None where these are not told."""
    if length.get("distribution") != "uniform":
        return 1.0 if length.get("distribution") == "fixed" else None
    lower, upper = length.positive("min"), length.positive("max")
    return lower / upper if lower and upper and lower <= upper else None


def _read_llmd_deployment(scenario: Value) -> dict[str, Any]:
    """Read the first of the engines in the stack, or of prefill and decode apart the GPUs of
    both."""
    stack = [part.at("standardized") for part in scenario.items("stack")]
    engine = next((part for part in stack if part.get("kind") == "inference_engine"), Value(None))
    native = scenario.at("stack.0.native.config.loadstone").fields(*FACTS, *COUNTS)
    accelerator = engine.at("accelerator") or scenario.at("host.accelerator.0|host.accelerator")
    tool = engine.text("tool") or scenario.text("platform.engine.0.name")
    deployment = drop_missing({"model": engine.text("model.name") or scenario.text("model.name")})
    if tool is not None and tool.lower() in _ENGINES:
        deployment |= drop_missing({"engine": engine_name(tool)}) | engine.fields(
            engine_version="tool_version"
        )
    pools = list(filter(None, (_read_llmd_pool(stack, role) for role in ("prefill", "decode"))))
    if len(pools) == 2:
        gpus = sum(pool["workers"] * pool["gpus"] for pool in pools)
        whole = {
            name: value for name, value in pools[-1].items() if name not in ("role", "workers")
        }
        return deployment | whole | {"gpus": gpus, "pools": pools} | native
    return deployment | accelerator.fields(gpu="model", gpus="count", **_SPLIT) | native


def _read_llmd_pool(stack: Sequence[Value], role: str) -> dict[str, Any]:
    """Read the workers of one role; nothing where there are none, or their GPUs are not told."""
    parts = [part for part in stack if part.get("role") == role]
    workers = sum(part.whole("replicas") or 1 for part in parts)
    gpus = sum(part.whole("accelerator.count") or 0 for part in parts)
    if not gpus:
        return {}
    if gpus % workers:
        workers = 1  # the GPUs of one are not told
    counted = {"role": role, "workers": workers, "gpus": gpus // workers}
    return counted | parts[0].at("accelerator").fields(gpu="model", **_SPLIT)


# --- files ----------------------------------------------------------------------------------------


def _find_companion(path: Path, cell: ResultCell | None) -> Path | None:
    """One stage states its requests' load; with several, none states which requests are its."""
    stages = _list_stages(path.parent)
    return stages[0] if cell is not None and cell.records and len(stages) == 1 else None


def _is_part(path: Path) -> bool:
    """Stages and requests tell what the summary and the report do, and one stage is read with its
    requests."""
    stages, requests = _list_stages(path.parent), path.parent / _REQUESTS
    if path.name == "summary_lifecycle_metrics.json" or path.name.startswith("inference-perf."):
        return bool(stages)
    if path in stages:
        return len(stages) == 1 and requests.exists()
    return path == requests and len(stages) > 1


READER = Reader(
    tools="inference-perf, llm-d's benchmark report",
    documents=[
        (("successes.latency", "load_summary"), _read_stage),
        (("version", "results.request_performance.aggregate|metrics.latency"), _read_llmd),
    ],
    requests=[(("start_time", "end_time", "info", "request"), _read_requests)],
    companion=_find_companion,
    is_part=_is_part,
)
