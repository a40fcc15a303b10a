"""MLPerf LoadGen's mlperf_log_summary.txt: lines `name : value`, latencies in whole nanoseconds.

Latencies count from the time a query was scheduled, so they are our `_intended` ones; percentiles are order
statistics without interpolation (loadgen/results.cc).
"""

from __future__ import annotations

from collections.abc import Mapping

from loadstone.core import Load
from loadstone.interop.read.cell import Cell
from loadstone.interop.read.values import amount, known, load_of, number, positive, text, whole

_TITLE = "MLPerf Results Summary"
_LINES = 2000
# What stands in a line's name for each statistic of (E2E, TTFT, TPOT).
_NAMES = {
    "e2e_intended_s": ("{} latency (ns)", "{} percentile latency (ns)"),
    "ttft_intended_s": ("{} first token latency (ns)", "{} percentile first token latency (ns)"),
    "tpot_s": ("{} time to output token (ns)", "{} percentile time to output token (ns)"),
}


def is_summary(said: str) -> bool:
    return _TITLE in said[:65536]


def summary(said: str, where: str) -> Cell:
    # A client may have said more before it; its own lines begin with the title.
    lines = said[said.index(_TITLE) :].splitlines()[:_LINES]
    values: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            name = " ".join(name.lower().split()).replace("time per output token", "time to output token")
            values.setdefault(name, value.strip())
    scenario = (values.get("scenario") or "").replace(" ", "").lower()
    cell = Cell(
        where=where,
        tool="MLPerf LoadGen",
        load=_load(scenario, values),
        workload={"mode": "offline"} if scenario == "offline" else {},
        definitions="mlperf",
    )
    for ours, (moment, percentile) in _NAMES.items():
        found = {
            **{word: number(values.get(moment.format(word))) for word in ("min", "max", "mean")},
            **{f"p{q}": number(values.get(percentile.format(f"{q}.00"))) for q in (50, 90, 95, 99)},
        }
        if stated := {name: value / 1e9 for name, value in found.items() if value is not None}:
            cell.latencies[ours] = stated
    cell.totals = known({
        "requests_per_s": _rate(values, "samples per second"),
        "output_tokens_per_s": _rate(values, "tokens per second"),
        "achieved_rate_per_s": amount(values.get("scheduled samples per second")),
    })  # fmt: skip
    _result(cell, values, lines)
    return cell


def _rate(values: Mapping[str, str], name: str) -> float | None:
    """Server says `completed` before it, Offline does not."""
    return amount(values.get(f"completed {name}", values.get(name)))


def _load(scenario: str, values: Mapping[str, str]) -> Load | None:
    if scenario == "server":
        return load_of(rate=values.get("target_qps"))
    if scenario == "singlestream":
        return Load("concurrency", 1)
    if scenario == "multistream":
        return load_of(concurrency=positive(values.get("samples_per_query")))
    count = whole(values.get("min_query_count"))
    samples = whole(values.get("samples_per_query")) or 1
    return Load("burst", count * samples) if scenario == "offline" and count else None


def _result(cell: Cell, values: Mapping[str, str], lines: list[str]) -> None:
    said = text(values.get("result is"), 40)
    if said is not None and said.upper() != "VALID":
        missed = [text(line) or "" for line in lines if line.rstrip().upper().endswith(": NO")]
        cell.say(
            "result_invalid",
            "warning",
            f"{cell.where}: LoadGen calls the result {said}" + (f" ({'; '.join(missed)})" if missed else ""),
            "Run it again within its constraints, or read it as a run that missed them.",
        )
