"""The table that a person reads."""

import io
from typing import Any

from rich.console import Console

from loadstone.report.terminal import render

ESCAPE = "\x1b]0;owned\x07[bold]x[/bold]"


def latency(value: float, *, bounded: bool = True) -> dict[str, Any]:
    return dict.fromkeys(("mean", "p50", "p90", "p95", "p99"), value) | {
        "ci95": {"p50": [value, value], "p99": [value, value if bounded else None]}
    }


def document(kind: str = "concurrency", **finding: str) -> dict[str, Any]:
    names = ("ttft_s", "tpot_s", "itl_s", "e2e_s", "ttft_intended_s", "e2e_intended_s")
    metrics: dict[str, Any] = {name: latency(12.345678, bounded=False) for name in names}
    metrics |= {"output_tokens_per_s": 123456.7, "steady": None}
    findings = [{"kind": "k", "severity": "warning", "evidence": "e", "remedy": "r."} | finding]
    cell = {
        "load": {"kind": kind, "value": 1024.0},
        "requests": {"sent": 100000, "ok": 99000, "short": 0, "error": 1000},
        "metrics": metrics,
        "client": {"clock": "kernel", "receive_lag_p99_s": 4e-5, "send_lag_p99_s": 1e-4},
        "verdict": {"trusted": False, "findings": findings},
    }
    target = {"engine": "vLLM", "engine_version": "0.32.0", "model": "m", "endpoint": "completions"}
    return {"target": target, "plan_id": "0123456789ab", "seed": 0, "cells": [cell]}


def shown(doc: dict[str, Any], width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(render(doc))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def test_every_column_fits_into_120() -> None:
    lines = [line.rstrip() for line in shown(document()).splitlines()]
    assert lines[0] == "vLLM 0.32.0 · m · completions · plan 012345 seed 0"
    heads = "conc ok failed out tok/s TTFT p50 p99 TPOT p50 p99 ITL p99 E2E p50 p99 trusted"
    assert lines[2].split() == heads.split()
    row = lines[4]
    assert row.split()[:3] == ["1024", "99000", "1000"]
    assert "123\u202f457" in row
    assert row.count("12.3 s") == 7
    assert row.count("≥ 12.3 s") == 3
    assert row.endswith("NO (1)")
    assert "…" not in "\n".join(lines)
    assert lines[-1] == "(1) k: e. r."
    assert max(map(len, lines)) <= 120


def test_a_p99_without_any_bound_is_marked_unless_another_tool_states_it() -> None:
    """Too few generations of requests leave both sides open; of an imported number nobody knows the sample."""
    doc = document()
    for values in (each for each in doc["cells"][0]["metrics"].values() if isinstance(each, dict) and "ci95" in each):
        values["ci95"]["p99"] = [None, None]
    assert shown(doc).splitlines()[4].count("≥ 12.3 s") == 3
    doc["cells"][0]["measured_by"] = "vllm bench"
    assert shown(doc).splitlines()[4].count("≥ 12.3 s") == 3  # its requests were in the file
    doc["cells"][0]["requests"]["short"] = None  # sums alone
    assert "≥" not in shown(doc)


def test_an_open_loop_is_read_from_the_intended_time() -> None:
    doc = document("rate")
    doc["cells"][0]["metrics"]["ttft_intended_s"] = latency(7.0)
    text = shown(doc)
    assert "7.00 s" in text
    assert "from the intended time (open loop)" in text
    assert "req/s" in text


def test_intervals_of_an_open_loop_are_by_the_tables_clock() -> None:
    for kind, said in (("rate", "TTFT p50 6.00 s to 8.00 s"), ("concurrency", "TTFT p50 1.00 s to 2.00 s")):
        doc = document(kind) | {"source": "simulated"}
        metrics = doc["cells"][0]["metrics"]
        metrics["ttft_s"] |= {"low": 1.0, "high": 2.0}
        metrics["ttft_intended_s"] |= {"low": 6.0, "high": 8.0}
        assert said in shown(doc)


def test_what_the_cap_held_back_was_not_sent_late_by_the_client() -> None:
    assert "(largest cell)" in shown(document("rate"))
    capped = document("rate")
    capped["cells"][0]["verdict"]["findings"][0]["kind"] = "cap_held_back"
    assert "held back by --max-concurrency, not by the client" in " ".join(shown(capped).split())


def test_what_the_server_says_is_plain_text() -> None:
    doc = document()
    doc["target"]["model"] = ESCAPE
    text = shown(doc)
    assert "[bold]x[/bold]" in text
    assert "\x1b" not in text
    assert "\x07" not in text


def test_nothing_sent() -> None:
    assert shown(document() | {"cells": []}).strip() == "nothing was sent"


def test_missing_values_are_dashes() -> None:
    doc = document()
    for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s"):
        doc["cells"][0]["metrics"][name] = None
    doc["cells"][0]["client"] |= {"receive_lag_p99_s": None, "send_lag_p99_s": None}
    row = shown(doc).splitlines()[4]
    assert row.split().count("-") == 7
