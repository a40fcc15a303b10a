"""What an imported run says of itself beside its records, or in their place.

RunInfo.settings["import"] holds, for each cell, what the file stated and what was found about it:

    {"tool", "files", "cells": [{"where", "tool", "definitions", "relative_times", "unknown", "stated", "findings"}]}

A run of sums has no records: its summary.json is what the file stated. A run of requests has records, and a summary
computed from them; `unknown` names what these cannot tell though they look as if, and `relative_times` says that each
request's times count from its own send, so that whatever needs a common clock is as stated, or missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from loadstone.analyse import verdict
from loadstone.analyse.verdict import Finding
from loadstone.core import RunInfo
from loadstone.core.errors import InputError
from loadstone.core.units import show_seconds

_NEEDS_A_CLOCK = (
    "steady", "sustained", "achieved_rate_per_s", "output_tokens_per_s", "total_tokens_per_s", "requests_per_s",
)  # fmt: skip
CUT_AT_END = "cut_at_end"
"""Requests that a tool cuts when its time is up, as it is meant to: no failures."""
DIFFERENCE = 0.02
"""A stated mean and that of the requests of the same file differ worth a word from this share on."""


def of_cell(info: RunInfo, cell: int) -> Mapping[str, Any]:
    """What the import said of a cell; empty for runs that were not imported."""
    imported = info.settings.get("import")
    cells = imported.get("cells") if isinstance(imported, dict) else None
    found = cells[cell] if isinstance(cells, list) and cell < len(cells) else None
    return found if isinstance(found, dict) else {}


def origin(info: RunInfo, told: Mapping[str, Any]) -> verdict.Origin:
    """Where a cell's records come from, and what they cannot tell. `told`: what the import said of the cell."""
    return verdict.Origin(
        info.source,
        common_clock=not told.get("relative_times"),
        every_event="output_events" not in (told.get("unknown") or ()),
        cut_at_end=any(one["kind"] == CUT_AT_END for one in told.get("findings") or ()),
    )


def as_stated(cell: Mapping[str, Any]) -> bool:
    """Whether a summary's cell is nothing but another tool's figures: who states them does not tell short answers."""
    counts = cell.get("requests")
    return isinstance(counts, Mapping) and counts.get("short", 0) is None


def is_summary_only(folder: Path, info: RunInfo) -> bool:
    return info.source == "imported" and not (folder / "records.parquet").exists()


def read(folder: Path) -> dict[str, Any]:
    """The summary of a run that has no records. Raises InputError where there is none."""
    path = folder / "summary.json"
    try:
        document: dict[str, Any] = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise InputError(f"{folder}: neither records nor a summary; import the file again") from error
    except msgspec.DecodeError as error:
        raise InputError(f"{path}: not a summary ({error}); import the file again") from error
    if not isinstance(document.get("cells"), list):
        raise InputError(f"{path}: not a summary (it has no cells); import the file again")
    return document | {"run_dir": str(folder), "run_id": folder.name}


def lay_over(document: dict[str, Any], told: Mapping[str, Any]) -> None:
    """Puts into a cell's document, made of its records, what the file told besides; takes out what they cannot."""
    metrics = document["metrics"]
    stated = told.get("stated") or {}
    relative = bool(told.get("relative_times"))
    for name in told.get("unknown") or ():
        if name in metrics:
            metrics[name] = None
    if relative:
        document["duration_s"] = stated.get("duration_s")
        for name in _NEEDS_A_CLOCK:
            metrics[name] = stated.get("totals", {}).get(name)
    found = [msgspec.convert(one, Finding) for one in document["verdict"]["findings"]]
    found += [msgspec.convert(one, Finding) for one in told.get("findings") or ()]
    found += _differences(metrics, stated.get("latencies") or {})
    document["verdict"] = msgspec.to_builtins(verdict.judge(found))
    document["measured_by"] = told.get("tool")


def _differences(metrics: Mapping[str, Any], latencies: Mapping[str, Any]) -> list[Finding]:
    shown = []
    for name, stated in latencies.items():
        ours, theirs = metrics.get(name), stated.get("mean")
        if ours is None or theirs is None or abs(ours["mean"] - theirs) <= DIFFERENCE * max(ours["mean"], theirs):
            continue
        label = name.removesuffix("_s").upper()
        shown.append(f"{label} {show_seconds(theirs)} as stated, {show_seconds(ours['mean'])} by its requests")
    if not shown:
        return []
    return [
        Finding(
            "stated_differs",
            "info",
            f"means differ from those that the file states: {'; '.join(shown)}",
            "Definitions or token counts differ, or failed requests were counted: use the means by the requests.",
        )
    ]
