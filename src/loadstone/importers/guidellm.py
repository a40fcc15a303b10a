"""Results of GuideLLM (benchmarks.json of 0.2 and later).

Its "inter token latency" is our TPOT, (tT − t1)/(n − 1) per request, weighted by tokens in its sums; what it calls
TPOT counts the first token's wait and is left out. Requests tell their first and last token, not those between: the
spread of ITL cannot be known.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from loadstone.records import Load, Status

_LATENCIES = {"ttft_s": ("time_to_first_token_ms", 1e-3), "e2e_s": ("request_latency", 1.0)}
_STATUS: dict[str, Status] = {"successful": "ok", "errored": "error", "incomplete": "cancelled"}


def is_report(document: Mapping[str, Any]) -> bool:
    first = at(document, "benchmarks", 0)
    return "metrics" in mapping(first) and "requests" in mapping(first)


def report(document: Mapping[str, Any], where: str) -> list[Cell]:
    version = text(at(document, "metadata", "guidellm_version"), 40)
    spec = mapping(at(document, "config", "spec")) or mapping(document.get("args"))
    cells = []
    for count, benchmark in enumerate(items(document.get("benchmarks")), 1):
        if isinstance(benchmark, Mapping):
            cells.append(_cell(benchmark, spec, version, f"{where}, benchmark {count}"))
    return cells


def _cell(benchmark: Mapping[str, Any], spec: Mapping[str, Any], version: str | None, where: str) -> Cell:
    config = mapping(benchmark.get("config")) or mapping(benchmark.get("args"))
    backend = mapping(spec.get("backend")) or mapping(config.get("backend"))
    data = mapping(at(items(spec.get("data")), 0))
    totals = mapping(at(benchmark, "metrics", "request_totals"))
    cell = Cell(
        where=where,
        tool=f"GuideLLM {version}" if version else "GuideLLM",
        load=_load(config, totals),
        endpoint=text(backend.get("request_format")),
        created=when(benchmark.get("start_time")),
        deployment=known({"model": text(backend.get("model")) or text(at(benchmark, "worker", "backend_model"))}),
        workload=_workload(data),
        definitions="guidellm",
    )
    ok, failed, cut = (whole(totals.get(name)) for name in _STATUS)
    cell.requests = known({"ok": ok, "error": failed, "cancelled": cut, "sent": whole(totals.get("total"))})
    metrics = mapping(benchmark.get("metrics"))

    def of(name: str) -> Mapping[str, Any]:
        found = mapping(at(metrics, name, "successful"))
        return {**found, **mapping(found.get("percentiles"))}

    for ours, (theirs, scale) in _LATENCIES.items():
        if found := statistics(of(theirs), scale):
            cell.latencies[ours] = found
    if found := statistics(of("inter_token_latency_ms"), 1e-3):
        cell.latencies["tpot_s"] = found
    cell.duration_s = positive(benchmark.get("duration"))
    inputs, outputs = (whole(of(f"{end}_token_count").get("total_sum")) for end in ("prompt", "output"))
    cell.totals = known({
        "input_tokens": inputs,
        "output_tokens": outputs,
        # Its own means are over moments, each weighted by how long it lasted: the sums are plain.
        "output_tokens_per_s": outputs / cell.duration_s if outputs is not None and cell.duration_s else None,
        "total_tokens_per_s": (inputs + outputs) / cell.duration_s
        if inputs is not None and outputs is not None and cell.duration_s
        else None,
        "requests_per_s": ok / cell.duration_s if ok is not None and cell.duration_s else None,
    })  # fmt: skip
    cell.under_way = amount(of("request_concurrency").get("mean"))
    _requests(cell, mapping(benchmark.get("requests")))
    return cell


def _load(config: Mapping[str, Any], totals: Mapping[str, Any]) -> Load | None:
    strategy = mapping(config.get("strategy"))
    kind = strategy.get("type_")
    if kind == "synchronous":
        return Load("concurrency", 1)
    if kind in ("concurrent", "throughput"):
        places = positive(strategy.get("streams")) or positive(strategy.get("max_concurrency"))
        return load_of(concurrency=places) or load_of(rate="inf", prompts=totals.get("total"))
    if kind in ("constant", "poisson", "async"):
        # max_concurrency of these is what its workers hold at most, far from reached.
        return load_of(rate=strategy.get("rate"), process=kind)
    return None


def _workload(data: Mapping[str, Any]) -> dict[str, Any]:
    ends = [data.get(f"{end}_tokens") for end in ("prompt", "output")]
    spread = any(positive(data.get(f"{end}_tokens_stdev")) for end in ("prompt", "output"))
    prefix = at(items(data.get("prefix_buckets")), 0, "prefix_tokens")
    return (
        lengths(*ends, prefix_tokens=whole(prefix) or 0)
        if data.get("kind") == "synthetic_text" and not spread
        else {}
    )


def _requests(cell: Cell, groups: Mapping[str, Any]) -> None:
    rows = [(name, row) for name in _STATUS for row in items(groups.get(name)) if isinstance(row, Mapping)]
    if len(rows) < (cell.requests.get("sent") or 0) or not rows:
        return  # a sample of them, or none: the sums say more
    starts = [number(_either(row, "request_start_time", "start_time")) for _, row in rows]
    if None in starts:
        return
    order = sorted(range(len(rows)), key=lambda row: starts[row] or 0.0)
    origin_s = starts[order[0]] or 0.0
    for index, at_row in enumerate(order):
        (group, row), start = rows[at_row], starts[at_row] or 0.0
        made = whole(row.get("output_tokens"))
        ttft, gap = amount(row.get("time_to_first_token_ms")), amount(row.get("inter_token_latency_ms"))
        end = number(_either(row, "request_end_time", "end_time"))
        offsets = [] if ttft is None else [ttft / 1e3]
        if offsets and made is not None and made > 1 and gap is not None:
            offsets.append(offsets[0] + gap / 1e3 * (made - 1))
        cell.records.append(
            record(
                index=index,
                sent_s=start - origin_s,
                offsets_s=offsets,
                output_tokens=made if offsets else None,
                input_tokens=whole(row.get("prompt_tokens")),
                cached_tokens=whole(row.get("cached_tokens")),
                end_s=end - start if end is not None and end >= start else None,
                status=_STATUS[group],
                error=text(at(row, "info", "error")) if group == "errored" else None,
            )
        )
    cell.unknown = ("itl_s", "output_events")


def _either(row: Mapping[str, Any], *names: str) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), None)
