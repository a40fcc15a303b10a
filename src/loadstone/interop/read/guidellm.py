"""Results of GuideLLM (benchmarks.json of 0.2 and later).

Its "inter token latency" is our TPOT, (tT − t1)/(n − 1) per request, weighted by tokens in its sums; what it calls
TPOT counts the first token's wait and is left out. Requests tell their first and last token, not those between: the
spread of ITL cannot be known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadstone.analyse.imported_run import CUT_AT_END
from loadstone.analyse.run_facts import mapping
from loadstone.core import Load, Status
from loadstone.interop.read.cell import Cell
from loadstone.interop.read.requests import earliest, record
from loadstone.interop.read.values import Value, known, lengths, load_of, origin, sessions, sum_per_s

CUT_SHARE = 0.05
MOST_LATE_S = 86_400.0
_LATENCIES = {
    "ttft_s": ("time_to_first_token_ms", 1e-3),
    "e2e_s": ("request_latency", 1.0),
    "tpot_s": ("inter_token_latency_ms", 1e-3),
}
_STATUS: dict[str, Status] = {"successful": "ok", "errored": "error", "incomplete": "cancelled"}


def is_report(document: Value) -> bool:
    return document.at("benchmarks", 0).has("metrics", "requests")


def report(document: Value, where: str) -> list[Cell]:
    version = document.text("metadata", "guidellm_version", limit=40)
    spec = document.at("config", "spec") or document.at("args")
    return [
        _cell(benchmark, spec, version, f"{where}, benchmark {count}")
        for count, benchmark in enumerate(document.items("benchmarks"), 1)
        if isinstance(benchmark.raw, Mapping)
    ]


def _cell(benchmark: Value, spec: Value, version: str | None, where: str) -> Cell:
    config = benchmark.at("config") or benchmark.at("args")
    # Until 0.6 `backend` of the arguments is a name, and the rest is beside it.
    parts = (spec.at("backend"), spec.at("backend_kwargs"), config.at("backend"))
    backend = next((part for part in parts if isinstance(part.raw, Mapping)), Value(None))
    data = spec.at("data", 0)
    totals = benchmark.at("metrics", "request_totals")
    cell = Cell(
        where=where,
        tool=f"GuideLLM {version}" if version else "GuideLLM",
        load=_load(config, totals),
        url=origin(backend.get("target")),
        identity=config.text("id_"),
        endpoint=backend.text("request_format"),
        created=benchmark.when("start_time"),
        deployment=known({"model": backend.text("model") or benchmark.text("worker", "backend_model")}),
        workload=_workload(data),
        definitions="guidellm",
    )
    ok, failed, cut = (totals.whole(name) for name in _STATUS)
    cell.requests = known({"ok": ok, "error": failed, "cancelled": cut, "sent": totals.whole("total")})
    metrics = benchmark.at("metrics")

    def of(name: str) -> Value:
        found = mapping(metrics.get(name, "successful"))
        return Value({**found, **mapping(found.get("percentiles"))})

    cell.latencies = known({ours: of(theirs).statistics(scale=scale) for ours, (theirs, scale) in _LATENCIES.items()})
    window = _window(benchmark)
    # Sums count what a window cuts in two whole: over its length they are no rates, and its own means are.
    cell.duration_s = benchmark.positive("duration") if window is None else None
    inputs, outputs = (of(f"{end}_token_count").whole("total_sum") for end in ("prompt", "output"))
    rates = {
        "output_tokens_per_s": ("output_tokens_per_second", (outputs,)),
        "total_tokens_per_s": ("tokens_per_second", (inputs, outputs)),
        "requests_per_s": ("requests_per_second", (ok,)),
    }
    cell.totals = known({
        "input_tokens": inputs,
        "output_tokens": outputs,
        **{
            name: sum_per_s(cell.duration_s, *counts) if window is None else of(theirs).amount("mean")
            for name, (theirs, counts) in rates.items()
        },
    })  # fmt: skip
    cell.under_way = of("request_concurrency").amount("mean")
    _requests(cell, benchmark.at("requests"), window)
    # What was sent as time was up stands among the requests, but in no count.
    measured = [record for record in cell.records if record.phase == "measure"]
    cut = sum(record.status == "cancelled" for record in measured) or cut
    sent = len(measured) or cell.requests.get("sent")
    if cut and sent:
        cell.say(
            CUT_AT_END,
            "warning" if cut > CUT_SHARE * sent else "info",
            f"{where}: {cut} of {sent} requests were cut off when the tool's time was up",
            "Percentiles leave them out, and long requests are cut off more often: measure longer.",
        )
    return cell


def _load(config: Value, totals: Value) -> Load | None:
    strategy = config.at("strategy")
    kind = strategy.get("type_")
    if kind == "synchronous":
        return Load("concurrency", 1)
    if kind in ("concurrent", "throughput"):
        places = strategy.positive("streams") or strategy.positive("max_concurrency")
        return load_of(concurrency=places) or load_of(rate="inf", prompts=totals.get("total"))
    if kind in ("constant", "poisson", "async"):
        # max_concurrency of these is what its workers hold at most, far from reached.
        return load_of(rate=strategy.get("rate"), process=kind)
    return None


def _workload(data: Value) -> dict[str, Any]:
    ends = [data.get(f"{end}_tokens") for end in ("prompt", "output")]
    spread = any(data.positive(f"{end}_tokens_stdev") for end in ("prompt", "output"))
    if data.get("kind") != "synthetic_text":
        return {}
    prefix = data.whole("prefix_buckets", 0, "prefix_tokens") or 0
    return ({} if spread else lengths(*ends, prefix_tokens=prefix)) | sessions(data.positive("turns"))


def _window(benchmark: Value) -> tuple[float, float] | None:
    """Where what is measured begins and ends, between a warm-up and a cool-down; None where there was neither."""
    if not any(benchmark.positive(f"{name}_duration") for name in ("warmup", "cooldown")):
        return None
    begin, end = (benchmark.positive("scheduler_metrics", f"measure_{name}_time") for name in ("start", "end"))
    return None if begin is None or end is None else (begin, end)


def _requests(cell: Cell, groups: Value, window: tuple[float, float] | None) -> None:
    rows = [(name, row) for name in _STATUS for row in groups.items(name) if isinstance(row.raw, Mapping)]
    if len(rows) < (cell.requests.get("sent") or 0) or not rows:
        return  # a sample of them, or none: the sums say more
    starts = [start for _, row in rows if (start := _either(row, "request_start_time", "start_time")) is not None]
    if len(starts) < len(rows):
        return
    # An open loop's; in a closed loop it is when the run began.
    rated = cell.load is not None and cell.load.kind == "rate"
    due = [_due(row, start) if rated else None for (_, row), start in zip(rows, starts, strict=True)]
    origin_s = earliest([*starts, *due])
    several = any(row.whole("info", "turn_index") for _, row in rows)
    for (group, row), start, intended in zip(rows, starts, due, strict=True):
        made = row.whole("output_tokens")
        ttft, gap = row.amount("time_to_first_token_ms"), row.amount("inter_token_latency_ms")
        end = _either(row, "request_end_time", "end_time")
        offsets = [] if ttft is None else [ttft / 1e3]
        if offsets and made is not None and made > 1 and gap is not None:
            offsets.append(offsets[0] + gap / 1e3 * (made - 1))
        cell.records.append(
            record(
                sent_s=start - origin_s,
                intended_s=None if intended is None else intended - origin_s,
                offsets_s=offsets,
                output_tokens=made if offsets else None,
                input_tokens=row.whole("prompt_tokens"),
                cached_tokens=row.whole("cached_tokens"),
                end_s=end - start if end is not None and end >= start else None,
                status=_STATUS[group],
                error=row.text("info", "error") if group == "errored" else None,
                # As it counts: all that touch the window. What came after is as little measured as what came before.
                phase="measure" if window is None or _touches(window, start, end) else "warmup",
                session_id=row.text("info", "conversation_id") if several else None,
                turn=row.whole("info", "turn_index") if several else None,
            )
        )
    cell.unknown = ("itl_s", "output_events")


def _due(row: Value, start: float) -> float | None:
    """When a request was to start; None where that is not told, or cannot be."""
    targeted = row.number("info", "timings", "targeted_start")
    return targeted if targeted is not None and 0 <= start - targeted <= MOST_LATE_S else None


def _touches(window: tuple[float, float], start: float, end: float | None) -> bool:
    return end is not None and end >= window[0] and start <= window[1]


def _either(row: Value, *names: str) -> float | None:
    return next((row.number(name) for name in names if row.get(name) is not None), None)
