"""Findings about a run as a whole: what was planned and never began, what of a file was not
sent."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from loadstone.analyse.verdict.run import kept_findings, run_findings, session_findings
from loadstone.core.parts import SessionNumbers
from loadstone.core.plan import Load
from loadstone.core.record import CellInfo
from loadstone.core.verdict import Finding
from loadstone.report.data.runs import read_runs
from loadstone.report.pages.document import build
from summary_documents import summarise, trusted
from test_summary import make_run
from test_tables import shown
from verdict_cells import PLAN, TARGET, info_of


def of_workload(workload: dict[str, Any]) -> list[Finding]:
    return list(run_findings(info_of(), dataclasses.replace(PLAN, workload=workload), []))


@pytest.mark.parametrize(
    ("finished", "failed", "severity"),
    [(20, 0, None), (18, 0, "info"), (17, 0, "warning"), (10, 0, "warning"), (19, 1, "warning")],
)
def test_sessions_that_did_not_end_bias_the_time_of_a_task(
    finished: int, failed: int, severity: str | None
) -> None:
    numbers = SessionNumbers(sessions=20, finished=finished, failed=failed)
    assert [each.severity for each in session_findings(PLAN, numbers)] == [severity] * bool(
        severity
    )


LOADS = [Load("concurrency", 1), Load("concurrency", 4), Load("rate", 2.5)]


def test_cells_that_never_began_are_named() -> None:
    (finding,) = run_findings(
        info_of(LOADS, error="the run was cut off"), PLAN, [True, False, False]
    )
    assert (finding.kind, finding.severity) == ("cells_not_begun", "warning")
    assert finding.evidence == (
        "2 of 3 planned loads never began (concurrency 4, 2.5 req/s): the run was cut off"
    )
    assert not list(run_findings(info_of(LOADS), PLAN, [True, True, True]))


def test_what_was_left_out_of_a_file_is_counted_by_its_reason() -> None:
    trace = {
        "kind": "trace",
        "requests": 1200,
        "skipped": {"broken line": 2, "too long for the model": 1000},
    }
    (finding,) = of_workload(trace)
    assert (finding.kind, finding.severity) == ("lines_left_out", "info")
    assert finding.evidence == (
        "1,002 of the file's items were left out (2 broken line, 1,000 too long for the model), "
        "1,200 remain to be sent"
    )
    dataset = {"kind": "dataset", "prompts": 9, "skipped": 4, "bad": 1}
    (finding,) = of_workload(dataset)
    assert finding.evidence == (
        "5 of the file's items were left out (1 cannot be read, 4 no prompt to send), 9 remain to be sent"
    )
    (finding,) = of_workload({"kind": "dataset", "bad": 2})
    assert finding.evidence.endswith("(2 cannot be read), 0 remain to be sent")
    (finding,) = of_workload({"kind": "trace", "skipped": {"broken line": 2}})
    assert finding.evidence.endswith("(2 broken line), 0 remain to be sent")
    assert not of_workload({"kind": "dataset", "prompts": 9, "skipped": 0, "bad": 0})
    assert not of_workload({"kind": "trace", "requests": 9, "skipped": {}})
    assert not of_workload({"kind": "synthetic", "input": {}})


def test_prompts_beyond_the_model_are_counted_and_a_doubted_deployment_is_told() -> None:
    (finding,) = of_workload({"kind": "dataset", "prompts": 9, "too_long": 3})
    assert finding.evidence.startswith(
        "3 of the file's items were left out (3 too long for the model)"
    )
    stated = {"doubts": ["the server names its model tiny", "it has 2 B parameters"]}
    (finding,) = run_findings(info_of(settings={"deployment": stated}), PLAN, [])
    assert (finding.kind, finding.severity) == ("deployment_doubted", "info")
    assert finding.evidence.endswith("tiny; it has 2 B parameters")
    assert not list(run_findings(info_of(settings={"deployment": {"model": "tiny"}}), PLAN, []))


def test_a_fleet_of_two_engines_is_told() -> None:
    def of(*engines: str | None) -> list[Finding]:
        urls = [f"http://{i}" for i in range(2)]
        fleet = structs.replace(TARGET, urls=urls, engines=list(engines))
        return list(run_findings(info_of(target=fleet), PLAN, []))

    assert not of()
    (finding,) = of("vLLM", None)
    assert (finding.kind, finding.severity) == ("engines_differ", "warning")
    assert finding.evidence.endswith("http://0 is vLLM, http://1 is unknown")


def test_prompts_that_were_lengthened_are_counted() -> None:
    (finding,) = of_workload({"kind": "trace", "requests": 5, "skipped": {}, "lengthened": 3})
    assert (finding.kind, finding.severity) == ("prompts_lengthened", "info")
    assert finding.evidence.startswith("3 of the trace's prompts")


def test_a_run_that_was_cut_off_tells_of_its_other_cells_everywhere(tmp_path: Path) -> None:
    over = CellInfo(load=LOADS[0], start_s=0.0, issue_end_s=4.0, end_s=9.0)
    never = {f"1-{i}": {"status": "never sent"} for i in range(5)}
    folder = make_run(
        tmp_path / "r",
        LOADS[:2],
        never,
        cells=[over, CellInfo(load=LOADS[1])],
        status="interrupted",
        error="cut off",
    )
    document = summarise(folder)
    assert len(document["cells"]) == 1
    (said,) = document["findings"]
    assert said["kind"] == "cells_not_begun"
    assert said["evidence"].endswith("(concurrency 4): cut off")
    assert not trusted(document)
    assert "cells_not_begun: 1 of 2 planned loads" in shown(document, 400)
    runs, _ = read_runs([folder])
    report = build(runs, inside=False)
    assert ["warning", "cells not begun"] in [row[:2] for row in report.verdicts.rows]
    assert any("never began" in note for note in report.parts[0].notes)


def test_a_run_of_which_nothing_began_still_says_what_was_planned(tmp_path: Path) -> None:
    never = {f"0-{i}": {"status": "never sent"} for i in range(5)}
    folder = make_run(tmp_path / "r", LOADS[:1], never, status="interrupted", error="cut off")
    said = shown(summarise(folder), 400)
    assert "nothing was sent" in said
    assert "1 of 1 planned loads never began (concurrency 1)" in said


def of_prompts(
    workload: dict[str, Any], prompts: list[str], endpoint: str, **load: Any
) -> list[Finding]:
    plan = dataclasses.replace(PLAN, workload=workload, prompts=prompts, chat=True)
    info = info_of([Load("rate", 2.0, **load)], target=structs.replace(TARGET, endpoint=endpoint))
    return [
        each for each in kept_findings(info, plan, 0, len(plan)) if each.kind != "records_missing"
    ]


def test_what_a_file_asks_and_is_not_sent_spoils_trust() -> None:
    called = '[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":[{"id":"1"}]}]'
    talks_of_it = '[{"role":"user","content":",\\"tool_calls\\":[{"}]'
    prompts = [called, talks_of_it, '{"messages":[],"tools":[{}]}']
    assert of_prompts({"kind": "dataset"}, prompts, "chat") == []
    (finding,) = of_prompts({"kind": "dataset"}, prompts, "completions")
    assert (finding.kind, finding.severity) == ("messages_dropped", "warning")
    assert finding.evidence.endswith(": tools of 1, tool calls of 1 items")
    (finding,) = of_prompts({"kind": "dataset", "dropped": {"image_url": 1200}}, [], "chat")
    assert finding.evidence.endswith(": image_url of 1,200 items")


def test_a_trace_whose_unit_is_doubted_is_not_trusted_at_its_own_times() -> None:
    (finding,) = of_prompts({"kind": "trace", "doubted_per_s": 1000.0}, [], "chat", process="trace")
    assert (finding.kind, finding.severity) == ("unit_doubted", "warning")
    assert "1,000 requests/s" in finding.evidence
    assert not of_prompts({"kind": "trace", "doubted_per_s": 1000.0}, [], "chat")
