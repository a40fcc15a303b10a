"""Cells that end early, by real runs: what ended them is told, and every request that was sent has
its record."""

from __future__ import annotations

from conftest import QUICK, Ask, Loadstone, Outcome, ScriptedServer, Send, answer, whole
from loadstone.core import run_folder
from loadstone.core.record import Stop

PRECISE = ("--stop-when", "tpot_p50±30%,e2e_p50±40%", "--json")


def stop_of(outcome: Outcome) -> Stop:
    assert outcome.code == 0, outcome
    stop = run_folder.read_info(outcome.folder).cells[0].stopped
    assert stop is not None
    assert outcome.cell["stopped"] == {"rule": stop.rule, "evidence": stop.evidence}
    assert "stopped" in outcome.findings
    assert "records_missing" not in outcome.findings
    assert len(outcome.records) == outcome.cell["requests"]["sent"]
    assert {record["status"] for record in outcome.records} <= {
        "ok",
        "error",
    }  # nothing was cut off
    return stop


def test_a_cell_ends_once_it_is_precise(loadstone: Loadstone) -> None:
    outcome = loadstone(
        "bench", "ttft=5ms,itl=2ms", "--sim", *QUICK, "--concurrency", 3, "--workers", 2, *PRECISE
    )
    stop = stop_of(outcome)
    assert stop.rule == "precise"
    assert "tpot_p50±30%: " in stop.evidence
    assert 20 < outcome.cell["requests"]["ok"] < 5000
    assert outcome.cell["duration_s"] < 60
    plan = run_folder.read_plan(outcome.folder)
    assert len(plan.rows(0)) >= len(outcome.records)  # it can be replayed as it was


def test_an_open_loop_ends_so_too_and_its_plan_is_what_was_issued(loadstone: Loadstone) -> None:
    # Long enough that a busy machine's delays are small beside it.
    words = ("--rate", 100, "--requests", 3000, "--stop-when", "e2e_p50±40%", "--json")
    outcome = loadstone("bench", "ttft=100ms,itl=20ms", "--sim", *QUICK, *words)
    assert stop_of(outcome).rule == "precise"
    plan = run_folder.read_plan(outcome.folder)
    assert len(outcome.records) == len(plan.rows(0)) < 3000


def test_the_next_cell_is_measured_all_the_same(loadstone: Loadstone) -> None:
    words = ("--concurrency", "1,2", "--requests", 3000, "--max-duration", "1s", "--json")
    outcome = loadstone("bench", "ttft=5ms,itl=2ms", "--sim", *QUICK, *words)
    assert [cell["stopped"]["rule"] for cell in outcome.document["cells"]] == ["time", "time"]
    assert all(cell["requests"]["ok"] > 10 for cell in outcome.document["cells"])
    assert all(0.9 < cell["duration_s"] < 10 for cell in outcome.document["cells"])


def test_what_was_not_known_so_well_is_a_warning(loadstone: Loadstone) -> None:
    words = ("--concurrency", 1, "--requests", 12, "--stop-when", "ttft_p99±1%", "--json")
    outcome = loadstone("bench", "ttft=5ms,itl=2ms", "--sim", *QUICK, *words)
    assert stop_of(outcome).rule == "imprecise"
    assert outcome.cell["requests"]["ok"] == 12
    assert not outcome.cell["verdict"]["trusted"]


def test_too_many_errors_end_a_cell(loadstone: Loadstone) -> None:
    def reply(ask: Ask, send: Send) -> None:
        if ask.number % 2:
            send(whole("503 Busy", b""))
        else:
            answer(ask, send)

    words = (*QUICK, "--concurrency", 2, "--requests", 20_000, "--max-errors", "5%", "--json")
    with ScriptedServer(reply) as server:
        outcome = loadstone("bench", server.url, *words)
    stop = stop_of(outcome)
    assert stop.rule == "errors"
    assert "more than --max-errors 5%" in stop.evidence
    assert outcome.cell["requests"]["sent"] < 10_000


def test_a_simulation_has_no_such_end(loadstone: Loadstone) -> None:
    words = ("llama-3.1-8b@1xh100", *QUICK, "--concurrency", 1, "--requests", 8, "--json")
    assert loadstone("simulate", *words, "--stop-when", "tpot_p50±2%").code == 2
    assert "stopped" not in loadstone("simulate", *words).cell
