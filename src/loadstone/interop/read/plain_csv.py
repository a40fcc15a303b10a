"""Reads plain CSV: a row per cell, columns by our names or mapped to them (`--map
ttft_p50_ms="Median TTFT"`).

Names are `<metric>_<statistic>_<unit>` of ttft, tpot, itl, e2e (mean, std, min, max, p50 … p99; s,
ms, us), and those of FACTS, LOADS and TOTALS. Columns of the points table that `loadstone validate`
reads are known by their own names.
"""

import re
from collections.abc import Mapping

from loadstone.core.errors import InputError
from loadstone.core.metrics import TOTALS
from loadstone.core.plan import Load
from loadstone.core.statistics import STATISTICS
from loadstone.interop.read.cell import ResultCell
from loadstone.interop.read.files import NoResult
from loadstone.interop.read.values import (
    COUNTS,
    FACTS,
    SECONDS,
    Value,
    amount,
    find_own_verdict,
    make_burst,
    make_lengths,
    text,
)

LOADS = ("concurrency", "rate", "burst")
OTHERS = (
    "input",
    "output",
    "range_ratio",
    "prefix",
    "requests",
    "failed",
    "duration_s",
    "mode",
    "tool",
)
_LATENCY = re.compile(rf"(ttft|tpot|itl|e2e)_({'|'.join(STATISTICS)})_(s|ms|us)")
_POINTS = {
    "num_gpus": "gpus",
    "precision": "weights_dtype",
    "input_len": "input",
    "output_len": "output",
    "prefix_len": "prefix",
    "num_prompts": "requests",
    "output_tok_s": "output_tokens_per_s",
    "total_tok_s": "total_tokens_per_s",
    "source": "tool",
    **{f"{name}_ms_median": f"{name}_p50_ms" for name in ("ttft", "tpot", "itl", "e2e")},
}
_ARRIVALS = {
    "concurrency": "concurrency",
    "rate": "rate",
    "burst": "burst",
    "batch": "burst",
    "offline": "burst",
}


def parse_map(pairs: list[str]) -> dict[str, str]:
    """Parse `--map NAME=COLUMN` into {our name: column}. Raises InputError for a name that is none
    of ours."""
    names = {}
    for pair in pairs:
        name, sign, column = pair.partition("=")
        if not sign or not is_name(name.strip()):
            raise InputError(
                f"--map {pair!r}: write NAME=COLUMN, NAME being e.g. concurrency, rate, input,"
                " engine, gpu, ttft_p50_ms, tpot_mean_s, output_tokens_per_s (docs/import.md has"
                " all)"
            )
        names[name.strip()] = column.strip()
    return names


def is_name(name: str) -> bool:
    return (
        name in {*FACTS, *COUNTS, *LOADS, *OTHERS, *TOTALS} or _LATENCY.fullmatch(name) is not None
    )


def columns(header: list[str], mapped: Mapping[str, str], what: str) -> dict[str, str]:
    """Map our names to columns. Raises InputError where a mapped column is not there, or nothing is
    measured.
    """
    missing = [column for column in mapped.values() if column not in header]
    if missing:
        raise InputError(
            f"{what}: no column {missing[0]!r}; it has {', '.join(map(repr, header[:20]))}"
        )
    named = {_POINTS.get(column, column): column for column in dict.fromkeys(header)}
    found = {name: column for name, column in named.items() if is_name(name)} | dict(mapped)
    if not any(_LATENCY.fullmatch(name) or name in TOTALS for name in found):
        raise NoResult(
            f"{what}: not a result of a known tool, and no column has a known name; name the"
            ' columns, e.g. --map concurrency=users --map ttft_p50_ms="Median TTFT"'
        )
    return found


def leave_out_classes(
    header: list[str], rows: list[tuple[int, list[str]]]
) -> list[tuple[int, list[str]]]:
    """Leave out the rows of classes of traffic that `loadstone export` writes after each cell's."""
    if not {"class", "trusted"} <= set(header):
        return rows
    place = header.index("class")
    return [(line, row) for line, row in rows if len(row) <= place or not row[place]]


def read_row(names: Mapping[str, str], row: Mapping[str, str], where: str) -> ResultCell:
    """Read a row, which has our `names` in these columns."""
    filled = {column: value.strip() for column, value in row.items() if value.strip()}
    columns = Value(filled)
    stated = Value({name: filled[column] for name, column in names.items() if column in filled})
    cell = ResultCell(
        where=where,
        tool=stated.text("tool", 80) or "CSV",
        load=_read_load(stated, columns),
        deployment=stated.fields(*FACTS, *COUNTS),
        workload=make_lengths(
            stated.get("input"),
            stated.get("output"),
            stated.get("range_ratio"),
            prefix_tokens=stated.whole("prefix"),
            mode="offline" if (stated.get("mode") or "").lower() in ("offline", "static") else None,
        ),
        requests=stated.fields(ok="requests", error="failed"),
        duration_s=stated.positive("duration_s"),
        totals=stated.fields(*TOTALS),
    )
    for name, value in stated.raw.items():
        latency = _LATENCY.fullmatch(name)
        if latency is None:
            continue
        metric, statistic, unit = latency.groups()
        time = amount(value)
        if time is None:
            cell.say("no_number", f"{name} is {text(value, 40)!r}")
        else:
            cell.latencies.setdefault(f"{metric}_s", {})[statistic] = time * SECONDS[unit]
    cell.say_odd(stated.odd)
    own_verdict = find_own_verdict(filled)
    if own_verdict is not None:
        cell.say("invalid_by_tool", own_verdict)
    reason = columns.text("exclude")
    if reason:
        cell.say("excluded", f"the table itself excludes the row: {reason}")
    return cell


def _read_load(stated: Value, columns: Value) -> Load | None:
    load = read_load(stated)
    if load is not None:
        return load
    arrival = _ARRIVALS.get((columns.get("arrival") or "").lower())
    value = columns.positive("arrival_value")
    if value is None and (
        arrival == "burst" or (columns.get("arrival_value") or "").lower() == "inf"
    ):
        return make_burst(stated.positive("requests"))  # all at once
    if arrival is None or value is None:
        return None
    return Load(arrival, value)  # type: ignore[arg-type]


def read_load(values: Value) -> Load | None:
    """Read the load under its own name: the first of LOADS that is there."""
    for kind in LOADS:
        value = values.positive(kind)
        if value is not None:
            return Load(kind, value)  # type: ignore[arg-type]
    return None
