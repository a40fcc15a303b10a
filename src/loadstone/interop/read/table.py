"""Plain CSV: a row per cell, columns by our names or mapped to them (`--map ttft_p50_ms="Median TTFT"`).

Names are `<metric>_<statistic>_<unit>` of ttft, tpot, itl, e2e (mean, std, min, max, p50 … p99; s, ms, us), and those
of FACTS, LOADS and TOTALS. Columns of the points table that `loadstone validate` reads are known by their own names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from loadstone.core import Load
from loadstone.core.errors import InputError
from loadstone.core.statistics import STATISTICS
from loadstone.core.summary import TOTALS
from loadstone.interop.read.cell import Cell
from loadstone.interop.read.source import NoResult
from loadstone.interop.read.values import amount, known, lengths, positive, text, whole

FACTS = ("engine", "engine_version", "model", "gpu", "weights_dtype", "kv_dtype")
COUNTS = ("gpus", "nodes", "tp", "pp", "dp", "ep")
LOADS = ("concurrency", "rate", "burst")
OTHERS = ("input", "output", "range_ratio", "prefix", "requests", "failed", "duration_s", "mode", "tool")
_LATENCY = re.compile(rf"(ttft|tpot|itl|e2e)_({'|'.join(STATISTICS)})_(s|ms|us)")
_SCALES = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_POINTS = {
    "num_gpus": "gpus", "precision": "weights_dtype", "input_len": "input", "output_len": "output",
    "prefix_len": "prefix", "num_prompts": "requests", "output_tok_s": "output_tokens_per_s",
    "total_tok_s": "total_tokens_per_s", "source": "tool",
    **{f"{name}_ms_median": f"{name}_p50_ms" for name in ("ttft", "tpot", "itl", "e2e")},
}  # fmt: skip
_ARRIVALS = {"concurrency": "concurrency", "rate": "rate", "burst": "burst", "batch": "burst", "offline": "burst"}


def parse_map(pairs: list[str]) -> dict[str, str]:
    """{our name: column} of `--map NAME=COLUMN`. Raises InputError for a name that is none of ours."""
    found = {}
    for pair in pairs:
        name, sign, column = pair.partition("=")
        if not sign or not is_name(name.strip()):
            raise InputError(
                f"--map {pair!r}: write NAME=COLUMN, NAME being e.g. concurrency, rate, input, engine, gpu, "
                "ttft_p50_ms, tpot_mean_s, output_tokens_per_s (docs/import.md has all)"
            )
        found[name.strip()] = column.strip()
    return found


def is_name(name: str) -> bool:
    return name in {*FACTS, *COUNTS, *LOADS, *OTHERS, *TOTALS} or _LATENCY.fullmatch(name) is not None


def columns(header: list[str], given: Mapping[str, str], what: str) -> dict[str, int]:
    """Our names to column numbers. Raises InputError where a mapped column is not there, or nothing is measured."""
    at = {column: index for index, column in enumerate(header)}
    missing = [column for column in given.values() if column not in at]
    if missing:
        raise InputError(f"{what}: no column {missing[0]!r}; it has {', '.join(map(repr, header[:20]))}")
    found = {name: index for column, index in at.items() if is_name(name := _POINTS.get(column, column))}
    found |= {name: at[column] for name, column in given.items()}
    measured = [name for name in found if _LATENCY.fullmatch(name) or name in TOTALS]
    if not measured:
        raise NoResult(
            f"{what}: not a result of a known tool, and no column has a known name; name the columns, e.g. "
            '--map concurrency=users --map ttft_p50_ms="Median TTFT"'
        )
    return found


def row(cells: list[str], names: Mapping[str, int], header: list[str], where: str) -> Cell:
    said = {
        name: cells[index].strip() for name, index in names.items() if index < len(cells) and cells[index].strip()
    }
    extra = {name: cells[index].strip() for index, name in enumerate(header) if index < len(cells)}
    cell = Cell(where=where, tool=text(said.get("tool"), 80) or "CSV", load=_load(said, extra))
    cell.deployment = known({
        **{name: text(said.get(name), 120) for name in FACTS},
        **{name: whole(said.get(name)) for name in COUNTS},
    })  # fmt: skip
    cell.workload = lengths(
        said.get("input"),
        said.get("output"),
        said.get("range_ratio"),
        prefix_tokens=whole(said.get("prefix")),
    )
    if (said.get("mode") or "").lower() in ("offline", "static"):
        cell.workload["mode"] = "offline"
    failed = whole(said.get("failed"))
    done = whole(said.get("requests"))
    cell.requests = known({"ok": done, "error": failed})
    cell.duration_s = positive(said.get("duration_s"))
    for name, value in said.items():
        if match := _LATENCY.fullmatch(name):
            found = amount(value)
            if found is None:
                cell.say("no_number", "warning", f"{where}: {name} is {text(value, 40)!r}", "Left out.")
            else:
                cell.latencies.setdefault(f"{match[1]}_s", {})[match[2]] = found * _SCALES[match[3]]
    cell.totals = known({name: amount(said.get(name)) for name in TOTALS})
    if text(extra.get("exclude")):
        cell.say(
            "excluded",
            "warning",
            f"{where}: the table itself excludes the row: {text(extra['exclude'])}",
            "Do not fit on it or score with it.",
        )
    return cell


def _load(said: Mapping[str, str], extra: Mapping[str, str]) -> Load | None:
    for kind in LOADS:
        if (value := positive(said.get(kind))) is not None:
            return Load(kind, value)  # type: ignore[arg-type]
    arrival = _ARRIVALS.get(extra.get("arrival", "").lower())
    value = positive(extra.get("arrival_value"))
    if value is None and (arrival == "burst" or extra.get("arrival_value", "").lower() == "inf"):
        arrival, value = "burst", positive(said.get("requests"))  # all at once
    return Load(arrival, value) if arrival is not None and value is not None else None  # type: ignore[arg-type]
