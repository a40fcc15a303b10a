"""Writes llm-d's benchmark report 0.2.1: a JSON document for each load, one a line where a run has several.

What its schema has no field for (exact counts, GPUs of an engine whose number nobody knows, loads other than a rate
or a concurrency) stands in `native.config.loadstone`: its readers pass it by, `loadstone import` finds it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec

from loadstone.analyse.run_facts import RunFacts
from loadstone.analyse.stored_run import StoredRun, read_run
from loadstone.core.errors import InputError
from loadstone.core.summary import CellSummary, GpuFigures, Latency, Level, ServerFigures, finite
from loadstone.interop.read.values import COUNTS, FACTS, drop_missing

LATENCIES = {
    "time_to_first_token": ("ttft_s", "s"), "time_per_output_token": ("tpot_s", "s/token"),
    "inter_token_latency": ("itl_s", "s/token"), "request_latency": ("e2e_s", "s"),
}  # fmt: skip
_STATISTICS = {"std": "stddev"} | {name: name for name in ("min", "p50", "p90", "p95", "p99", "max")}
_TOTALS = ("input_tokens", "output_tokens", "cached_input_tokens")


def lines(folder: Path) -> bytes:
    """Write one line per cell. Raises InputError where the run has none."""
    run = read_run(folder)
    if not run.summary.cells:
        raise InputError(f"{folder}: nothing was sent in this run; there is nothing to export")
    reports = [_make_report(run, number, cell) for number, cell in enumerate(run.summary.cells)]
    return "".join(json.dumps(one, ensure_ascii=False, allow_nan=False) + "\n" for one in reports).encode(
        "utf-8", "replace"
    )


def _make_report(run: StoredRun, number: int, cell: CellSummary) -> dict[str, Any]:
    info, engine = run.info, _make_engine(run.facts)
    verdict = "trusted" if cell.verdict.trusted else "not trusted"
    doubts = [each.evidence for each in cell.verdict.findings if each.severity != "info"]
    watched = _make_observed(cell.server, cell.gpu)
    return {
        "version": "0.2.1",
        "run": {
            "uid": f"{info.run_id}-{number}",
            "eid": info.run_id,
            "time": {"start": info.created}
            | ({} if cell.duration_s is None else {"duration": f"PT{cell.duration_s:.6f}S"}),
            "description": ". ".join([f"{info.source.capitalize()} run, {verdict}", *doubts]),
            "keywords": [info.source, verdict],
        },
        "scenario": {"stack": [engine], "load": _make_load(run, cell)},
        "results": {
            "request_performance": {"aggregate": _make_aggregate(cell)},
            **({"observability": {"components": [watched]}} if watched else {}),
        },
    }


def _make_engine(facts: RunFacts) -> dict[str, Any]:
    """Describe the engine; as a generic component where its model or its GPUs are not known, which the other kind
    requires.
    """
    told = drop_missing({name: getattr(facts, name) for name in (*FACTS, *COUNTS) if hasattr(facts, name)})
    engine: dict[str, Any] = {
        "kind": "generic",
        "tool": facts.engine or "",
        "tool_version": facts.engine_version or "",
    }
    if facts.model and facts.gpu and facts.gpus:
        split = {name: getattr(facts, name) or 1 for name in ("tp", "pp", "dp", "ep")}
        engine |= {
            "kind": "inference_engine",
            "role": "replica",
            "replicas": 1,
            "model": {"name": facts.model},
            "accelerator": {"model": facts.gpu, "count": facts.gpus, "parallelism": split},
        }
    return {"metadata": _name("engine", told), "standardized": engine, "native": {"config": {"loadstone": told}}}


def _make_load(run: StoredRun, cell: CellSummary) -> dict[str, Any]:
    facts, load = run.facts, cell.load
    workload = run.info.settings.workload
    kept = {
        "source": run.info.source,
        "load": msgspec.to_builtins(load),
        "duration_s": cell.duration_s,
        "totals": {name: getattr(cell.metrics, name) for name in _TOTALS},
    }
    described = {
        "tool": "loadstone simulate" if run.info.source == "simulated" else cell.measured_by or "loadstone",
        "tool_version": run.info.loadstone if run.info.source != "imported" else "",
        "source": "random" if facts.workload == "synthetic" else "unknown" if facts.workload is None else "sampled",
        "stage": 0,
        "input_seq_len": _make_length(workload.get("input"), facts.input_tokens),
        **({} if facts.output_tokens is None else {
            "output_seq_len": _make_length(workload.get("output"), facts.output_tokens)
        }),
        **({"rate_qps": load.value} if load.is_open and load.value else {}),
        **({"concurrency": int(load.value)} if load.is_closed and load.value >= 1 else {}),
    }  # fmt: skip
    metadata = {name: value for name, value in _name("load", kept).items() if name != "label"}
    return {
        "metadata": metadata | {"description": load.label},
        "standardized": described,
        "native": {"config": {"loadstone": kept}},
    }


def _make_length(length: Any, mean: float | None) -> dict[str, Any]:
    """Describe lengths as the plan drew them; `other` where that is none of the schema's distributions."""
    told = length if isinstance(length, dict) else {}
    kind = told.get("kind") if told.get("kind") in ("fixed", "uniform") else "other"
    ends = {"min": told.get("low"), "max": told.get("high")} if kind == "uniform" else {}
    return {"distribution": kind, "value": mean or 0, **drop_missing(ends)}


def _name(label: str, content: Any) -> dict[str, Any]:
    digest = hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()[:32]
    return {"label": label, "cfg_id": digest}


def _make_aggregate(cell: CellSummary) -> dict[str, Any]:
    requests, metrics = cell.requests, cell.metrics
    done = requests.completed
    sent = requests.sent if requests.sent is not None else done + requests.failed
    lengths = {"input_length": metrics.input_tokens, "output_length": metrics.output_tokens}
    inputs = None if metrics.total_tokens_per_s is None else finite(
        metrics.total_tokens_per_s - (metrics.output_tokens_per_s or 0)
    )  # fmt: skip
    rates = {
        "input_token_rate": (inputs, "tokens/s"), "output_token_rate": (metrics.output_tokens_per_s, "tokens/s"),
        "total_token_rate": (metrics.total_tokens_per_s, "tokens/s"),
        "request_rate": (metrics.requests_per_s, "queries/s"),
    }  # fmt: skip
    return drop_missing({
        "requests": drop_missing({
            "total": sent,
            "failures": requests.failed if requests.error is not None else None,
            "incomplete": requests.cancelled,
            **{name: _mean(total / done if total is not None and done else None, "count")
               for name, total in lengths.items()},
        }),
        "latency": drop_missing({
            name: _statistics(metrics.latency(metric), unit) for name, (metric, unit) in LATENCIES.items()
        }),
        "throughput": drop_missing({name: _mean(*rate) for name, rate in rates.items()}),
    })  # fmt: skip


def _statistics(values: Latency | None, unit: str) -> dict[str, Any] | None:
    """Write a latency; None without a mean, which the schema requires."""
    if values is None or finite(values.mean) is None:
        return None
    told = {theirs: finite(getattr(values, ours)) for ours, theirs in _STATISTICS.items()}
    return {"units": unit, "mean": values.mean} | drop_missing(told)


def _mean(value: float | None, unit: str) -> dict[str, Any] | None:
    return None if finite(value) is None else {"units": unit, "mean": value}


def _make_observed(server: ServerFigures | None, gpu: GpuFigures | None) -> dict[str, Any]:
    """Describe what was read of the engine and its GPUs meanwhile; empty where nothing was."""
    levels: dict[str, tuple[Level | None, str, float]] = {}
    if server is not None:
        levels |= {"running_requests": (server.running, "count", 1), "waiting_requests": (server.waiting, "count", 1)}
        levels |= {"kv_cache_usage": (server.kv_usage, "percent", 100)}
    if gpu is not None:
        levels |= {
            "power_consumption": (gpu.power_w, "Watts", 1),
            "gpu_utilization": (gpu.busy_share, "percent", 100),
        }
    told = {
        name: {"units": unit, "mean": level.mean * scale, "max": level.max * scale}
        for name, (level, unit, scale) in levels.items()
        if level is not None
    }
    if server is not None and server.prefix_queries:
        told["cache_hit_rate"] = {
            "units": "percent", "mean": 100 * (server.prefix_hits or 0) / server.prefix_queries
        }  # fmt: skip
    return {"component_label": "engine", "aggregate": told} if told else {}
