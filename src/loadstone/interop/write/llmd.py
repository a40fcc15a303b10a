"""Writes llm-d's benchmark report 0.2.1: a JSON document for each load, one a line where a run has
several.

What its schema has no field for (exact counts, GPUs of an engine whose number nobody knows, loads
other than a rate or a concurrency) stands in `native.config.loadstone`: its readers pass it by,
`loadstone import` finds it.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec

from loadstone.analyse.run_facts import RunFacts
from loadstone.analyse.stored_run import StoredRun, read_run
from loadstone.core.errors import InputError
from loadstone.core.metrics import Latency, finite
from loadstone.core.summary import CellSummary
from loadstone.interop.read.values import COUNTS, FACTS, drop_missing

_LATENCIES = {
    "time_to_first_token": ("ttft_s", "s"),
    "time_per_output_token": ("tpot_s", "s/token"),
    "inter_token_latency": ("itl_s", "s/token"),
    "request_latency": ("e2e_s", "s"),
}
_STATISTICS = {"std": "stddev"} | {
    name: name for name in ("mean", "min", "p50", "p90", "p95", "p99", "max")
}
_TOTALS = ("input_tokens", "output_tokens", "cached_input_tokens")


def lines(folder: Path) -> bytes:
    """Write one line per cell. Raises InputError where the run has none."""
    run = read_run(folder)
    if not run.summary.cells:
        raise InputError(f"{folder}: nothing was sent in this run; there is nothing to export")
    reports = [_make_report(run, number, cell) for number, cell in enumerate(run.summary.cells)]
    text = "".join(
        json.dumps(report, ensure_ascii=False, allow_nan=False) + "\n" for report in reports
    )
    return text.encode("utf-8", "replace")


def _make_report(run: StoredRun, number: int, cell: CellSummary) -> dict[str, Any]:
    info, trust = run.info, "trusted" if cell.verdict.trusted else "not trusted"
    doubts = [finding.evidence for finding in cell.verdict.findings if finding.severity != "info"]
    lasted = drop_missing({"duration": cell.duration_s and f"PT{cell.duration_s:.6f}S"})
    about = {
        "uid": f"{info.run_id}-{number}",
        "eid": info.run_id,
        "time": {"start": info.created} | lasted,
        "description": ". ".join([f"{info.source}, {trust}", *doubts]),
        "keywords": [info.source, trust],
    }
    results = {"request_performance": {"aggregate": _make_aggregate(cell)}}
    scenario = {"stack": _make_stack(run), "load": _make_load(run, cell)}
    return {"version": "0.2.1", "run": about, "scenario": scenario, "results": results}


def _make_stack(run: StoredRun) -> list[dict[str, Any]]:
    """Describe the engine, or what works in each pool; GPUs are those of all its workers."""
    facts, whole = run.facts, _make_engine(run.facts)
    if not facts.pools or "accelerator" not in whole["standardized"]:
        return [whole]
    stack = []
    for pool, stored in zip(facts.pools, run.info.settings.deployed.pools, strict=True):
        accelerator = {
            "model": pool.gpu or facts.gpu,
            "count": pool.gpus,
            "parallelism": {name: getattr(stored, name) or 1 for name in ("tp", "pp", "dp", "ep")},
        }
        worker = {"role": pool.role, "replicas": stored.workers, "accelerator": accelerator}
        about = {"metadata": whole["metadata"] | {"label": pool.role}}
        stack.append(whole | about | {"standardized": whole["standardized"] | worker})
    return stack


def _make_engine(facts: RunFacts) -> dict[str, Any]:
    """Describe the engine; as a generic component where its model or its GPUs are not known, which
    the other kind requires.
    """
    stated = drop_missing({name: getattr(facts, name) for name in (*FACTS, *COUNTS)})
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
    return {"metadata": {"label": "engine"}, "standardized": engine} | _keep(
        stated, {"label": "engine"}
    )


def _make_load(run: StoredRun, cell: CellSummary) -> dict[str, Any]:
    info = run.info
    facts = run.facts
    load = cell.load
    workload = run.info.settings.workload
    totals = {name: getattr(cell.metrics, name) for name in _TOTALS}
    kept = {"source": info.source, "load": load, "duration_s": cell.duration_s, "totals": totals}
    lengths = {"input_seq_len": facts.input_tokens or 0, "output_seq_len": facts.output_tokens}
    described = {
        "tool": (
            "loadstone simulate" if info.source == "simulated" else cell.measured_by or "loadstone"
        ),
        "tool_version": info.loadstone if info.source != "imported" else "",
        "source": {"synthetic": "random", None: "unknown"}.get(facts.workload, "sampled"),
        **{
            name: _make_length(workload.get(name.partition("_")[0]), mean)
            for name, mean in lengths.items()
        },
        "rate_qps": load.value or None if load.is_open else None,
        "concurrency": int(load.value) or None if load.is_closed else None,
    }
    return {"standardized": drop_missing(described)} | _keep(kept, {"description": load.label})


def _make_length(length: Any, mean: float | None) -> dict[str, Any] | None:
    """Describe lengths as the plan drew them; `other` where that is none of the schema's
    distributions."""
    drawn = length if isinstance(length, dict) else {}
    kind = drawn.get("kind") if drawn.get("kind") in ("fixed", "uniform") else "other"
    ends = (
        drop_missing({"min": drawn.get("low"), "max": drawn.get("high")})
        if kind == "uniform"
        else {}
    )
    return None if mean is None else {"distribution": kind, "value": mean, **ends}


def _keep(content: Any, about: dict[str, str]) -> dict[str, Any]:
    """Make the parts of a component that hold what others do not read."""
    text = msgspec.json.encode(content, order="sorted")
    metadata = about | {"cfg_id": hashlib.sha256(text).hexdigest()[:32]}
    return {"metadata": metadata, "native": {"config": {"loadstone": msgspec.json.decode(text)}}}


def _make_aggregate(cell: CellSummary) -> dict[str, Any]:
    requests, metrics = cell.requests, cell.metrics
    done = requests.completed
    output = metrics.output_tokens_per_s
    total = metrics.total_tokens_per_s
    lengths = {
        f"{end}_length": _mean(tokens / done if tokens is not None and done else None, "count")
        for end, tokens in (("input", metrics.input_tokens), ("output", metrics.output_tokens))
    }
    counts = {
        "total": requests.sent if requests.sent is not None else done + requests.failed,
        "failures": requests.failed if requests.error is not None else None,
        "incomplete": requests.cancelled,
    }
    rates = {
        "input_token_rate": _mean(
            total - output if total is not None and output is not None else None, "tokens/s"
        ),
        "output_token_rate": _mean(output, "tokens/s"),
        "total_token_rate": _mean(total, "tokens/s"),
        "request_rate": _mean(metrics.requests_per_s, "queries/s"),
    }
    latencies = {
        name: _statistics(metrics.latency(metric), unit)
        for name, (metric, unit) in _LATENCIES.items()
    }
    parts: dict[str, dict[str, Any]] = {
        "requests": counts | lengths,
        "latency": latencies,
        "throughput": rates,
    }
    return {name: drop_missing(part) for name, part in parts.items()}


def _statistics(values: Latency | None, unit: str) -> dict[str, Any] | None:
    """Write a latency; None without a mean, which the schema requires."""
    if values is None or finite(values.mean) is None:
        return None
    return {"units": unit} | drop_missing(
        {name: finite(getattr(values, statistic)) for statistic, name in _STATISTICS.items()}
    )


def _mean(value: float | None, unit: str) -> dict[str, Any] | None:
    return None if finite(value) is None else {"units": unit, "mean": value}
