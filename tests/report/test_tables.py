"""The table that a person reads."""

import re
from typing import Any

from loadstone.core.summary import Summary
from loadstone.report.pages.terminal import render
from loadstone.report.table import Table, fit, to_text

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
    target = {
        "url": "http://a",
        "urls": ["http://a"],
        "prompt_kind": "text",
        "engine": "vLLM",
        "engine_version": "0.32.0",
        "model": "m",
        "endpoint": "completions",
    }
    run = {"schema": 1, "run_id": "r", "run_dir": "r", "source": "measured", "status": "done"}
    return run | {"target": target, "plan_id": "0123456789ab", "seed": 0, "cells": [cell]}


def shown(doc: dict[str, Any], width: int = 120) -> str:
    return to_text(render(Summary.of(doc)), width)


def test_a_wide_table_is_turned_and_rows_of_which_nothing_is_known_are_left_out() -> None:
    rows = [["all", *"12345678"], ["kind", *"123", *[""] * 5]]
    wide = Table(heads=["of", *(f"number {at}" for at in range(8))], align="l" + "r" * 8, rows=rows)
    turned = fit(wide, 50)
    assert turned.heads == ["of", "all", "kind"]
    assert turned.rows[0] == ["number 0", "1", "1"]
    assert turned.rows[7] == ["number 7", "8", ""]
    rows[0][8] = "-"
    assert [row[0] for row in fit(wide, 50).rows] == [f"number {at}" for at in range(7)]


def test_every_column_fits_into_120() -> None:
    lines = [line.rstrip() for line in shown(document()).splitlines()]
    assert lines[0] == "vLLM 0.32.0 · m · completions · plan 012345 seed 0"
    heads = "conc ok failed out tok/s TTFT p50 p99 TPOT p50 p99 ITL p99 E2E p50 p99 trusted"
    assert lines[2].split() == heads.split()
    row = lines[4]
    assert row.split()[:3] == ["1024", "99000", "1000"]
    assert "123,457" in row
    assert row.count("12.3 s") == 7
    assert row.count("~12.3 s") == 3
    assert row.endswith("NO (1)")
    assert "…" not in "\n".join(lines)
    assert lines[-1] == "(1) k: e. r."
    assert max(map(len, lines)) <= 120


def test_where_the_hardware_is_known_the_roofline_has_a_column() -> None:
    doc = document()
    (first,) = doc["cells"]
    first["light"] = {
        "tpot_s": 1.0,
        "ttft_s": None,
        "tpot_ratio": 0.784,
        "ttft_ratio": None,
        "mbu": 0.71,
        "mfu": 0.004,
    }
    first["requests"] |= {"ok": 100000, "error": 0}
    doc["cells"].append(
        first | {"light": first["light"] | {"tpot_ratio": None, "mbu": None, "mfu": 0.12}}
    )
    text = shown(doc)
    lines = [line.rstrip() for line in text.splitlines()]
    # Nothing failed, so that an empty column makes room.
    heads = "conc ok out tok/s TTFT p50 p99 TPOT p50 p99 ITL p99 E2E p50 p99 roofline trusted"
    assert lines[1].startswith("most throughput: ")
    assert lines[3].split() == heads.split()
    assert [line.split()[-4:] for line in lines[5:7]] == [
        ["s", "78%", "NO", "(1)"],
        ["s", "-", "NO", "(1)"],
    ]
    assert (
        "roofline: TPOT that the hardware allows / TPOT p50 · MBU 71% of memory bandwidth · "
        in text
    )
    assert "MFU < 1% to 12% of peak FLOP/s" in text
    assert max(map(len, lines)) <= 120
    first["requests"]["error"] = 1
    first["requests"]["sent"] += 1
    assert "failed" in shown(doc, 160).splitlines()[3]
    for cell in doc["cells"]:
        cell["light"] = None
    assert "roofline" not in shown(doc)


def test_a_throughput_has_its_interval_beside_it() -> None:
    doc = document()
    (cell,) = doc["cells"]
    steady = {"start_s": 0.0, "end_s": 3.0, "output_tokens_per_s": 260.0, "requests_per_s": 4.0}
    for bounds, said in (
        ([0.0, 907.0], "260.0 ±249%"),
        ([258.0, 262.0], "260.0 ±<1%"),
        ([None, None], "260.0 "),
    ):
        cell["metrics"]["steady"] = steady | {"ci95": {"output_tokens_per_s": bounds}}
        lines = shown(doc).splitlines()
        assert said in lines[4]
        assert ("out tok/s ± 95% over the steady window" in "\n".join(lines)) == ("±" in said)
    cell["verdict"]["findings"][0]["kind"] = "interval_unknown"
    assert "260.0 ±?" in shown(doc).splitlines()[4]


def test_a_p99_without_any_bound_is_marked_unless_another_tool_states_it() -> None:
    """Too few generations of requests leave both sides open; of an imported number nobody knows the
    sample."""
    doc = document()
    for values in (
        each
        for each in doc["cells"][0]["metrics"].values()
        if isinstance(each, dict) and "ci95" in each
    ):
        values["ci95"]["p99"] = [None, None]
    assert shown(doc).splitlines()[4].count("~12.3 s") == 3
    doc["cells"][0]["measured_by"] = "vllm bench"
    assert shown(doc).splitlines()[4].count("~12.3 s") == 3  # its requests were in the file
    doc["cells"][0]["requests"]["short"] = None  # sums alone
    assert "~" not in shown(doc)


def test_an_open_loop_is_read_from_the_intended_time() -> None:
    doc = document("rate")
    doc["cells"][0]["metrics"]["ttft_intended_s"] = latency(7.0)
    text = shown(doc)
    assert "7.00 s" in text
    assert "from the intended time (open loop)" in text
    assert "req/s" in text


def test_intervals_of_an_open_loop_are_by_the_tables_clock() -> None:
    for kind, said in (
        ("rate", "TTFT p50 6.00 s to 8.00 s"),
        ("concurrency", "TTFT p50 1.00 s to 2.00 s"),
    ):
        doc = document(kind) | {"source": "simulated"}
        metrics = doc["cells"][0]["metrics"]
        metrics["ttft_s"] |= {"low": 1.0, "high": 2.0}
        metrics["ttft_intended_s"] |= {"low": 6.0, "high": 8.0}
        assert said in shown(doc)


def test_what_the_cap_held_back_was_not_sent_late_by_the_client() -> None:
    assert "(worst load)" in shown(document("rate"))
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


def test_a_mark_is_explained_whichever_column_it_is_in() -> None:
    doc = document()
    metrics = doc["cells"][0]["metrics"]
    for name in ("ttft_s", "e2e_s"):
        metrics[name] = latency(1.0)
    assert "~12.3 s" in shown(doc)
    assert "~ too few requests for a reliable p99" in shown(doc)
    metrics["tpot_s"] = latency(1.0)
    assert "~" not in shown(doc)


def two_rates(finding: str) -> dict[str, Any]:
    """Two loads; the second has a finding, and the first none."""
    doc = document("rate")
    (last,) = doc["cells"]
    last["verdict"]["findings"][0]["kind"] = finding
    first = last | {
        "load": {"kind": "rate", "value": 2.0},
        "verdict": {"trusted": True, "findings": []},
    }
    for cell, window, whole in ((first, 90.0, 80.0), (last, 756.0, 2372.0)):
        steady = {
            "start_s": 0.0,
            "end_s": 9.0,
            "output_tokens_per_s": window,
            "requests_per_s": 1.0,
            "ci95": {},
        }
        cell["metrics"] = cell["metrics"] | {"output_tokens_per_s": whole, "steady": steady}
    doc["cells"] = [first, last]
    return doc


def test_a_load_that_the_server_does_not_keep_up_with_has_no_steady_state() -> None:
    for finding in ("overload", "queue_grows"):
        text = shown(two_rates(finding))
        assert text.splitlines()[5].split()[3] == "90.00"
        assert "2,372" in text.splitlines()[6]
        assert "out tok/s over the steady window, at 1024 over the whole load" in " ".join(
            text.split()
        )
    doc = two_rates("overload")
    doc["cells"] = doc["cells"][1:]
    assert "out tok/s over the whole load" in " ".join(shown(doc).split())
    assert "at 1024" not in " ".join(shown(doc).split())
    text = shown(two_rates("short_outputs"))
    assert "756.0" in text.splitlines()[6]
    assert "whole load" not in text


def test_the_interval_that_is_told_is_of_the_largest_trusted_load() -> None:
    doc = two_rates("overload") | {"source": "simulated"}
    for cell, low in zip(doc["cells"], (3.0, 5.0), strict=True):
        own = cell["metrics"]["ttft_intended_s"] | {"low": low, "high": 2 * low}
        cell["metrics"] = cell["metrics"] | {"ttft_intended_s": own}
    assert "80% intervals at 2 req/s: TTFT p50 3.00 s to 6.00 s" in shown(doc)
    doc["cells"][0]["verdict"]["trusted"] = False
    assert "80% intervals at 1024 req/s: TTFT p50 5.00 s to 10.0 s" in shown(doc)


def test_loads_of_two_kinds_are_named() -> None:
    doc = document("rate")
    (burst,) = document("burst")["cells"]
    doc["cells"].append(burst)
    words = " ".join(shown(doc, 140).split())
    assert "load ok" in words
    assert re.search(r"1024 req/s 99000 .* 1024 burst 99000 ", words)


def test_a_note_about_a_load_does_not_look_like_a_finding() -> None:
    doc = document("rate")
    bound = {
        "bound": "ttft_p99<1s",
        "metric": "ttft_p99",
        "limit_s": 1.0,
        "measured_s": 2.0,
        "met": False,
    }
    cell = doc["cells"][0]
    cell |= {"slo": [bound], "slo_per_request_s": {"ttft": 0.5, "tpot": 0.03}}
    cell["load"]["value"] = 1.0
    cell["metrics"] |= {"attainment": 0.9999, "goodput_per_s": 2.5}
    said = (
        "1 req/s: ttft_p99 < 1.00 s MISSED (2.00 s); "
        "> 99.9% of requests sent meet ttft < 500 ms and tpot < 30.0 ms, goodput 2.50 req/s"
    )
    assert said in " ".join(shown(doc).split())
    for share, words in (
        (1, "100%"),
        (0, "0%"),
        (0.0001, "< 0.1%"),
        (0.9996, "> 99.9%"),
        (0.42, "42.0%"),
    ):
        cell["metrics"]["attainment"] = share
        assert f"; {words} of requests sent" in " ".join(shown(doc).split())
    del cell["slo_per_request_s"]
    assert "of requests sent meet these limits, goodput" in " ".join(shown(doc).split())


def test_a_table_of_turns_says_which_turn_and_load_at_any_width() -> None:
    doc = document()
    cell = doc["cells"][0]
    part = {
        "requests": cell["requests"], "cached_input_tokens": 5, "input_tokens": 10, "mean_input_tokens": 5.0,
        "mean_output_tokens": 5.0, "output_tokens": 10, "token_share": 0.5,
    }  # fmt: skip
    part |= {name: cell["metrics"][name] for name in ("ttft_s", "tpot_s", "e2e_s")}
    cell["by_turn"] = [part | {"turn": turn} for turn in range(2)]
    turns = [each for each in render(Summary.of(doc)) if isinstance(each, Table)][1]
    assert [row[0] for row in fit(turns, 200).rows] == ["1024 · 1", "1024 · 2"]
    assert fit(turns, 60).heads == ["conc · turn", "1024 · 1", "1024 · 2"]


def test_counts_in_another_tools_words_are_whole() -> None:
    doc = document()
    figures = {"completed": 115, "peak": 638.0, "many": 123456, "none": 0, "rate": 3.21987}
    doc["cells"][0]["dialect"] = {
        "name": "tool", "tool": "a tool", "metrics": figures, "definitions": dict.fromkeys(figures, "it"),
    }  # fmt: skip
    text = shown(doc)
    told = {"completed": "115", "peak": "638", "many": "123,456", "none": "0", "rate": "3.220"}
    assert all(re.search(rf"{name} +{value} +it", text) for name, value in told.items())


def test_of_a_fleet_the_first_server_alone_is_known() -> None:
    doc = document()
    doc["target"]["urls"] = ["http://a", "http://b"]
    assert shown(doc).startswith("first of 2 servers: vLLM 0.32.0 · m")
    doc["target"]["urls"] = ["http://a"]
    assert shown(doc).startswith("vLLM 0.32.0 · m")
