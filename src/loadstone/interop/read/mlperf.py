"""Reads MLPerf LoadGen's mlperf_log_summary.txt: lines `name : value`, latencies in whole
nanoseconds.

Latencies count from the time a query was scheduled, so they are our `_intended` ones; percentiles
are order statistics without interpolation (loadgen/results.cc).
"""

from __future__ import annotations

from loadstone.core.plan import Load
from loadstone.interop.read.cell import ResultCell
from loadstone.interop.read.values import Value, drop_missing, make_burst, make_load, text

_TITLE = "MLPerf Results Summary"
_LENGTH = 1 << 20
# A line's name: the statistic, and this.
_LATENCIES = {
    "e2e_intended_s": "latency (ns)",
    "ttft_intended_s": "first token latency (ns)",
    "tpot_s": "time to output token (ns)",
}
_STATISTICS = {name: name for name in ("min", "max", "mean")} | {
    f"p{q}": f"{q}-00 percentile" for q in (50, 90, 95, 99)
}


def is_summary(content: str) -> bool:
    return _TITLE in content[:65536]


def summary(content: str, where: str) -> ResultCell:
    # A client may have said more before it; its own lines begin with the title.
    start = content.index(_TITLE)
    lines = content[start : start + _LENGTH].splitlines()
    values: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            name = " ".join(name.lower().split()).replace(
                "time per output token", "time to output token"
            )
            # Dots join the steps of a path.
            values.setdefault(name.replace(".", "-"), value.strip())
    document = Value(values)
    scenario = values.get("scenario", "").replace(" ", "").lower()
    latencies = {
        ours: {
            each: time_ns / 1e9
            for each, words in _STATISTICS.items()
            if (time_ns := document.number(f"{words} {theirs}")) is not None
        }
        for ours, theirs in _LATENCIES.items()
    }
    cell = ResultCell(
        where=where,
        tool="MLPerf LoadGen",
        load=_read_load(scenario, document),
        workload={"mode": "offline"} if scenario == "offline" else {},
        latencies=drop_missing(latencies),
        # Server says `completed` before its rates, Offline does not.
        totals=document.fields(
            requests_per_s="completed samples per second|samples per second",
            output_tokens_per_s="completed tokens per second|tokens per second",
            achieved_rate_per_s="scheduled samples per second",
        ),
    )
    result = document.text("result is", limit=40)
    if result is not None and result.upper() != "VALID":
        missed = [text(line) or "" for line in lines if line.rstrip().upper().endswith(": NO")]
        cell.say(
            "result_invalid",
            f"LoadGen calls the result {result}" + (f" ({'; '.join(missed)})" if missed else ""),
        )
    return cell


def _read_load(scenario: str, document: Value) -> Load | None:
    samples = document.whole("samples_per_query")
    match scenario:
        case "server":
            return make_load(rate=document.get("target_qps"))
        case "singlestream":
            return Load("concurrency", 1)
        case "multistream":
            return make_load(concurrency=samples)
        case "offline":
            return make_burst((document.whole("min_query_count") or 0) * (samples or 1))
    return None
