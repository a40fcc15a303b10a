"""Results of vLLM's own clients: `vllm bench serve` (and benchmark_serving.py before it), `throughput`, `latency`.

Keys: vllm/benchmarks/serve.py, throughput.py, latency.py; all but the oldest optional. `backend` names the client's
way of asking (`openai-chat`), which tells the engine only where it is an engine's name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from loadstone.analyse.run_facts import engine_name, mapping
from loadstone.core import Load
from loadstone.core.statistics import STATISTICS, distribution
from loadstone.core.units import show_seconds
from loadstone.interop.read.cell import Cell
from loadstone.interop.read.requests import MOST_S, from_gaps
from loadstone.interop.read.values import (
    Value,
    ended,
    items,
    keyed,
    known,
    lengths,
    load_of,
    number,
    statistics,
    sum_per_s,
    text,
    whole,
)

WAIT_SHARE = 0.05
"""Mean wait before sending, as a share of the mean E2E, from which latencies that lack it are told."""
_ENGINES = {"vllm", "sglang", "tgi", "tensorrt-llm", "lmdeploy", "deepspeed-mii", "llama.cpp"}
_LATENCIES = {"ttft_s": "ttft_ms", "tpot_s": "tpot_ms", "itl_s": "itl_ms", "e2e_s": "e2el_ms"}
# What people give as --metadata, which lands between the tool's own keys.
_METADATA = {
    "engine": "engine", "version": "engine_version", "engine_version": "engine_version", "vllm_version":
    "engine_version", "gpu": "gpu", "gpu_type": "gpu", "hardware": "gpu", "precision": "weights_dtype", "dtype":
    "weights_dtype", "quantization": "weights_dtype", "kv_cache_dtype": "kv_dtype",
}  # fmt: skip
_COUNTS = {
    "tp": "tp", "tensor_parallel_size": "tp", "pp": "pp", "pipeline_parallel_size": "pp", "dp": "dp",
    "data_parallel_size": "dp", "ep": "ep", "gpus": "gpus", "num_gpus": "gpus", "nodes": "nodes",
}  # fmt: skip


def is_serve(document: Value) -> bool:
    return document.has("duration", "completed", "request_throughput", "output_throughput") and (
        "total_token_throughput" in document or "model_id" in document
    )


def serve(document: Value, where: str) -> Cell:
    backend = document.text("backend") or document.text("endpoint_type")
    cell = Cell(
        where=where,
        tool="vllm bench serve",
        load=_load(document),
        endpoint=backend,
        created=document.when("date"),
        deployment=_deployment(document, backend),
        workload=_workload(document),
        definitions="vllm",
    )
    completed, failed = document.whole("completed"), document.whole("failed")
    errors = [error for error in document.items("errors") if error.text()]
    if failed is None and "errors" in document:
        failed = len(errors)
    cell.requests = ended(completed, failed)
    cell.duration_s = document.positive("duration")
    cell.latencies = known({ours: keyed(document, theirs) for ours, theirs in _LATENCIES.items()})
    each = document.items("latencies")
    # Of a default run newer releases give no sums of E2E, but all of its values.
    if "e2e_s" not in cell.latencies and completed == len(each) and (found := _spread_of(each)):
        cell.latencies["e2e_s"] = found
    cell.totals = known({
        "input_tokens": document.whole("total_input_tokens"),
        "output_tokens": document.whole("total_output_tokens"),
        "requests_per_s": document.amount("request_throughput"),
        "output_tokens_per_s": document.amount("output_throughput"),
        "total_tokens_per_s": document.amount("total_token_throughput"),
        "goodput_per_s": document.amount("request_goodput"),
    })  # fmt: skip
    from_gaps(cell, document)
    if not cell.records:
        _waits(cell, document.items("queue_times"))
    return cell


def _waits(cell: Cell, times: Sequence[Value]) -> None:
    """Of sums, which count from sending: how long the requests of an open loop had waited for a place by then."""
    each = [wait for time in times if (wait := time.amount()) is not None]
    e2e_s = cell.latencies.get("e2e_s", {}).get("mean")
    if cell.load is None or cell.load.kind != "rate" or not each or e2e_s is None:
        return
    mean_s = sum(each) / len(each)
    if mean_s > WAIT_SHARE * e2e_s:
        cell.say(
            "waits_left_out",
            "warning",
            f"{cell.where}: requests waited {show_seconds(mean_s)} on average to be sent, at most "
            f"{show_seconds(max(each))}; the stated latencies count from sending",
            "Measure with --save-detailed: latencies then count from when requests should have been sent.",
        )


def _load(document: Value) -> Load | None:
    start, end = (document.positive(f"ramp_up_{which}_rps") for which in ("start", "end"))
    prompts = document.positive("num_prompts")
    if document.get("ramp_up_strategy") is not None:
        # `request_rate` then says inf.
        return _ramp(start, end, prompts, document.text("ramp_up_strategy")) if start and end and prompts else None
    return load_of(
        rate=document.get("request_rate"),
        concurrency=document.get("max_concurrency"),
        prompts=document.get("num_prompts"),
        burstiness=document.get("burstiness"),
    )


def _ramp(start: float, end: float, prompts: float, strategy: str | None) -> Load | None:
    """Its rate goes from start to end with the requests that were sent, evenly or by equal factors, not with time:
    it takes n·∫ dp/r(p) to send n, which is n·ln(e/s)/(e − s), and n·(1/s − 1/e)/ln(e/s).
    """
    ratio = math.log(end) - math.log(start)
    if abs(ratio) < 1e-9:
        return Load("rate", start)
    each_s = (1 / start - 1 / end) / ratio if strategy == "exponential" else ratio / (end - start)
    took_s = prompts * each_s
    return Load("rate", 1 / each_s, profile=((start, end, took_s),)) if each_s > 0 and took_s <= MOST_S else None


def _spread_of(values: Sequence[Value]) -> dict[str, float]:
    import numpy as np

    each = [value for item in values if (value := item.positive()) is not None]
    found = distribution(np.array(each)) if each and len(each) == len(values) else None
    return {} if found is None else {name: getattr(found, name) for name in STATISTICS}


def _deployment(document: Value, backend: str | None) -> dict[str, Any]:
    engine = backend if backend in _ENGINES else None
    found = known({"model": document.text("model_id"), "engine": engine_name(engine)})
    for theirs, ours in _METADATA.items():
        if said := document.text(theirs):
            found[ours] = said
    for theirs, ours in _COUNTS.items():
        # --metadata values are texts.
        if count := document.whole(theirs):
            found[ours] = count
    return found


def _workload(document: Value) -> dict[str, Any]:
    """Lengths where all requests have the same; the file does not name the data set."""
    given, made = (items(document.get(name)) for name in ("input_lens", "output_lens"))
    if given and made and len(set(map(str, given))) == 1 and len(set(map(str, made))) == 1:
        return lengths(given[0], made[0])
    return {}


def is_throughput(document: Value) -> bool:
    return document.has("elapsed_time", "num_requests", "tokens_per_second")


def throughput(document: Value, where: str) -> Cell:
    """Offline: all requests at once, without a server. `tokens_per_second` counts input and output."""
    count = document.whole("num_requests")
    return Cell(
        where=where,
        tool="vllm bench throughput",
        load=Load("burst", count) if count else None,
        workload={"mode": "offline"},
        requests=known({"ok": count, "sent": count}),
        duration_s=document.positive("elapsed_time"),
        totals=known({
            "requests_per_s": document.amount("requests_per_second"),
            "total_tokens_per_s": document.amount("tokens_per_second"),
        }),
    )  # fmt: skip


def is_latency(document: Value) -> bool:
    return document.has("avg_latency", "percentiles")


def latency(document: Value, where: str) -> Cell:
    """Offline: one batch after another, each timed as a whole. How large a batch is, the file does not tell."""
    stated = {f"p{key}": value for key, value in mapping(document.get("percentiles")).items()}
    found = statistics(stated | {"mean": document.get("avg_latency")})
    found = _spread_of(document.items("latencies")) or found
    return Cell(
        where=where,
        tool="vllm bench latency",
        load=None,
        workload={"mode": "offline"},
        latencies={"e2e_s": found} if "mean" in found else {},
    )


def is_table(header: list[str]) -> bool:
    return {"backend", "elapsed_time", "num_requests", "tokens_per_second"} <= set(header)


def table_row(row: Mapping[str, str], where: str) -> Cell:
    """One line of a CSV of the throughput benchmark's keys with GPU, backend and lengths, as dstack publishes."""
    values = {name: value for name, value in row.items() if value.strip()}
    cell = throughput(Value({name: number(value) for name, value in values.items()}), where)
    cell.deployment = known({
        "engine": engine_name(text(values.get("backend"), 60)),
        "gpu": text(values.get("GPU") or values.get("gpu"), 60),
    })  # fmt: skip
    cell.workload = lengths(values.get("input_len"), values.get("output_len"), mode="offline")
    cell.totals |= known({f"{end}_tokens": whole(values.get(f"total_{end}_tokens")) for end in ("input", "output")})
    cell.totals |= known({"output_tokens_per_s": sum_per_s(cell.duration_s, cell.totals.get("output_tokens"))})
    return cell
