"""Results of GuideLLM (benchmarks.json of 0.2 and later).

Its "inter token latency" is our TPOT, (tT − t1)/(n − 1) per request, weighted by tokens in its
sums; what it calls TPOT counts the first token's wait and is left out. Requests tell their first
and last token, not those between: the spread of ITL cannot be known.
"""

from typing import Any

from loadstone.analyse.imported_run import CUT_AT_END
from loadstone.core.plan import Load
from loadstone.core.record import Status
from loadstone.interop.read.cell import ResultCell, ResultRequest, offset_from
from loadstone.interop.read.reader import Reader
from loadstone.interop.read.values import Value, make_lengths, make_load, make_sessions, origin

CUT_SHARE = 0.05
MAX_LATE_S = 86_400.0
_STATUS: dict[str, Status] = {"successful": "ok", "errored": "error", "incomplete": "cancelled"}


def _read_report(document: Value, where: str) -> list[ResultCell]:
    version = document.text("metadata.guidellm_version", limit=40)
    spec = document.at("config.spec") or document.at("args")
    return [
        _cell(
            benchmark,
            spec,
            f"GuideLLM {version}" if version else "GuideLLM",
            f"{where}, benchmark {count}",
        )
        for count, benchmark in enumerate(document.items("benchmarks"), 1)
        if isinstance(benchmark.raw, dict)
    ]


def _cell(benchmark: Value, spec: Value, tool: str, where: str) -> ResultCell:
    config = benchmark.at("config") or benchmark.at("args")
    # Until 0.6 `backend` of the arguments is a name, and the rest is beside it.
    backend = Value(
        spec.mapping("backend") or spec.mapping("backend_kwargs") or config.mapping("backend")
    )
    metrics = benchmark.at("metrics")
    window = _find_window(benchmark)
    cell = ResultCell(
        where=where,
        tool=tool,
        load=_read_load(config.at("strategy"), metrics.get("request_totals.total")),
        url=origin(backend.get("target")),
        identity=config.text("id_"),
        endpoint=backend.text("request_format"),
        created=benchmark.when("start_time"),
        deployment=backend.fields(model="model") or benchmark.fields(model="worker.backend_model"),
        workload=_read_workload(spec.at("data.0")),
        definitions="guidellm",
        requests=metrics.at("request_totals").fields(
            ok="successful", error="errored", cancelled="incomplete", sent="total"
        ),
        # Sums count what a window cuts in two whole: over its length they are no rates, and its own
        # means are.
        duration_s=benchmark.positive("duration") if window is None else None,
        latencies=_read_latencies(metrics),
        totals=metrics.fields(
            input_tokens="prompt_token_count.successful.total_sum",
            output_tokens="output_token_count.successful.total_sum",
        ),
        under_way=metrics.amount("request_concurrency.successful.mean"),
    )
    if window is None:
        cell.add_rates(*cell.counts)
    else:
        cell.totals |= metrics.fields(
            requests_per_s="requests_per_second.successful.mean",
            output_tokens_per_s="output_tokens_per_second.successful.mean",
            total_tokens_per_s="tokens_per_second.successful.mean",
        )
    _add_requests(cell, benchmark.at("requests"), window)
    # What was sent as time was up stands among the requests, but in no count.
    measured = [record for record in cell.records if record.phase == "measure"]
    cut = sum(record.status == "cancelled" for record in measured) or cell.requests.get("cancelled")
    sent = len(measured) or cell.requests.get("sent")
    if cut and sent:
        severity = "warning" if cut > CUT_SHARE * sent else "info"
        cell.say(
            CUT_AT_END,
            f"{cut} of {sent} requests were cut off when the tool's time was up",
            severity,
        )
    return cell


def _read_latencies(metrics: Value) -> dict[str, dict[str, float]]:
    """Read latencies: percentiles stand beside the moments, under a name of their own."""
    flat = {
        name: (
            metrics.mapping(f"{name}.successful")
            | metrics.mapping(f"{name}.successful.percentiles")
        )
        for name in ("time_to_first_token_ms", "inter_token_latency_ms", "request_latency")
    }
    in_ms = {"ttft_s": "time_to_first_token_ms", "tpot_s": "inter_token_latency_ms"}
    return Value(flat).latencies(in_ms, 1e-3) | Value(flat).latencies(
        {"e2e_s": "request_latency"}, 1.0
    )


def _read_load(strategy: Value, total: Any) -> Load | None:
    kind = strategy.get("type_")
    if kind == "synchronous":
        return Load("concurrency", 1)
    if kind in ("concurrent", "throughput"):
        return make_load(
            rate="inf", concurrency=strategy.positive("streams|max_concurrency"), prompts=total
        )
    if kind in ("constant", "poisson", "async"):
        # max_concurrency of these is what its workers hold at most, far from reached.
        return make_load(rate=strategy.get("rate"), process=kind)
    return None


def _read_workload(data: Value) -> dict[str, Any]:
    if data.get("kind") != "synthetic_text":
        return {}
    spread = data.positive("prompt_tokens_stdev|output_tokens_stdev")
    prefix = data.whole("prefix_buckets.0.prefix_tokens") or 0
    fixed = (
        {}
        if spread
        else make_lengths(
            data.get("prompt_tokens"), data.get("output_tokens"), prefix_tokens=prefix
        )
    )
    return fixed | make_sessions(data.positive("turns"))


def _find_window(benchmark: Value) -> tuple[float, float] | None:
    """Find where the measurement begins and ends, between a warm-up and a cool-down; None where
    there was neither."""
    if benchmark.positive("warmup_duration|cooldown_duration") is None:
        return None
    begin, end = (
        benchmark.positive(f"scheduler_metrics.measure_{name}_time") for name in ("start", "end")
    )
    return None if begin is None or end is None else (begin, end)


def _add_requests(cell: ResultCell, groups: Value, window: tuple[float, float] | None) -> None:
    rows = [
        (name, row) for name in _STATUS for row in groups.items(name) if isinstance(row.raw, dict)
    ]
    if len(rows) < (cell.requests.get("sent") or 0) or not rows:
        return  # a sample of them, or none: the sums say more
    requests = []
    for group, row in rows:
        start = row.number("request_start_time|start_time")
        end = row.number("request_end_time|end_time")
        if start is None:
            return
        tokens = row.whole("output_tokens")
        ttft_ms, gap_ms = row.amount("time_to_first_token_ms"), row.amount("inter_token_latency_ms")
        offsets = [] if ttft_ms is None else [ttft_ms / 1e3]
        if offsets and tokens is not None and tokens > 1 and gap_ms is not None:
            offsets.append(offsets[0] + gap_ms / 1e3 * (tokens - 1))
        # When it was to start is told of an open loop; in a closed one it is when the run began.
        due = row.number("info.timings.targeted_start") if cell.is_open else None
        # As it counts: all that touch the window. What came after is as little measured as what
        # came before.
        measured = window is None or (end is not None and end >= window[0] and start <= window[1])
        requests.append(
            ResultRequest(
                start=start,
                due=due if due is not None and 0 <= start - due <= MAX_LATE_S else None,
                offsets_s=offsets,
                end_s=offset_from(start, end),
                input_tokens=row.whole("prompt_tokens"),
                output_tokens=tokens if offsets else None,
                cached_tokens=row.whole("cached_tokens"),
                status=_STATUS[group],
                error=row.text("info.error") if group == "errored" else None,
                phase="measure" if measured else "warmup",
                session_id=row.text("info.conversation_id"),
                turn=row.whole("info.turn_index"),
            )
        )
    cell.add_requests(requests)
    cell.unknown = ("itl_s", "output_events")


READER = Reader(
    tools="GuideLLM", documents=[(("benchmarks.0.metrics", "benchmarks.0.requests"), _read_report)]
)
