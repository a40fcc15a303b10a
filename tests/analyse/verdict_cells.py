"""Cells for tests of the verdict: one that nothing is wrong with, to be spoilt in one way at a
time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from loadstone.analyse.metrics import measure_cell
from loadstone.analyse.verdict.finding import Origin
from loadstone.analyse.verdict.finding import finding as make_finding
from loadstone.analyse.verdict.requests import SCALARS, EventReader, JudgedCell, request_table
from loadstone.analyse.verdict.rules import cell_findings
from loadstone.core import run_folder
from loadstone.core.host import Host
from loadstone.core.plan import Load, Plan
from loadstone.core.record import CellInfo, RunInfo, Target
from loadstone.core.settings import read_settings
from loadstone.core.verdict import Finding
from loadstone.workload.lengths import Length
from loadstone.workload.schedule import make_plan
from loadstone.workload.synthetic import Synthetic

LOAD = Load("rate", 100.0, process="constant")
WORKLOAD = Synthetic(Length("fixed", 100), Length("fixed", 4))
COUNT = 400
WARM = 2
PLAN = make_plan(WORKLOAD, [LOAD], requests=[COUNT], warmup=WARM)

TARGET = Target(url="http://server", endpoint="completions", model="tiny", prompt_kind="token ids")

Rows = list[dict[str, Any]]
SCHEMA = run_folder.records_schema()


def info_of(
    loads: Sequence[Load] = (), settings: dict[str, Any] | None = None, **more: Any
) -> RunInfo:
    """run.json of a run of these loads."""
    return RunInfo(
        run_id="run", source="measured", created="", command=[], loadstone="", host=Host(), plan_id="", seed=0,
        salt=None, settings=read_settings(settings),
        cells=[CellInfo(load=load) for load in loads], **more,
    )  # fmt: skip


def plan_of(load: Load, count: int = COUNT, warm: int = WARM, **more: Any) -> Plan:
    return make_plan(WORKLOAD, [load], requests=[count], warmup=warm, **more)


@cache
def _jitters(index: int) -> list[float]:
    jitters: list[float] = np.random.default_rng(index).uniform(0, 5e-5, 4).tolist()
    return jitters


def row(
    index: int,
    at: float,
    *,
    ttft: float = 0.1,
    tpot: float = 0.1,
    phase: str = "measure",
    **changed: Any,
) -> dict[str, Any]:
    """A request sent at `at`, as it should be; its gaps are its own, as an engine's are."""
    arrival = [at + ttft + k * tpot + jitter for k, jitter in enumerate(_jitters(index))]
    return (
        dict.fromkeys(SCHEMA.names)
        | {
            "request_id": f"0-{index}", "cell": 0, "phase": phase, "intended_s": at, "sent_s": at,
            "arrival_s": arrival, "read": [0, 1, 2, 3], "tokens": [1, 2, 3, 4], "token_source": "final usage",
            "end_s": arrival[-1], "input_tokens": 100, "output_tokens": 4, "cached_tokens": 0, "status": "ok",
            "finish_reason": "length", "http_status": 200, "worker": 0, "reused_connection": True,
            "receive_lag_s": 1e-4,
        }
        | changed
    )  # fmt: skip


def rows(count: int = COUNT, **changed: Any) -> Rows:
    """A cell of an open loop that nothing is wrong with, 100 requests/s; `changed` holds for all of
    them."""
    return [row(index, index / 100, **changed) for index in range(WARM, count + WARM)]


def spoilt(count: int, **changed: Any) -> Rows:
    """The clean cell, its first `count` requests changed."""
    made = rows()
    for each in made[:count]:
        each.update(changed)
    return made


def closed(
    places: int,
    count: int,
    e2e: Callable[[float], float] = lambda _: 0.4,
    warm: int | None = None,
    **changed: Any,
) -> Rows:
    """A cell of a closed loop: each place sends when its answer has ended; `e2e` of the time it is
    sent at."""
    warm = places if warm is None else warm
    free = [0.0] * places
    made = []
    for index in range(warm + count):
        place = int(np.argmin(free))
        at = free[place]
        ttft = e2e(at) / 4
        phase = "warmup" if index < warm else "measure"
        # The first answers end spread out, as those of a staggered warm-up do.
        tpot = ttft * (1 if index >= places else index / places)
        made.append(row(index, at, ttft=ttft, tpot=tpot, phase=phase, **changed))
        free[place] = made[-1]["end_s"]
    return made


def found(
    records: Rows,
    plan: Plan = PLAN,
    clock: Any = "kernel",
    interrupted: str | None = None,
    cell: int = 0,
    source: Any = "measured",
    **more: Any,
) -> dict[str, Finding]:
    """The findings by their kinds; `more`: as in verdict.JudgedCell."""
    batch = pa.RecordBatch.from_pylist(records, schema=SCHEMA)
    target: Target | None = more.setdefault("target", TARGET)
    more.setdefault("info", CellInfo(load=plan.cells[cell]))
    numbers = measure_cell(
        lambda: [batch], plan.cells[cell], streams=target is None or target.streams
    )
    scalars = pa.Table.from_batches([batch]).select(SCALARS)
    # Cut anywhere: batches are as the file has them.
    events = EventReader()
    for cut in (batch.slice(0, 7), batch.slice(7)):
        events.add(cut)
    seen = JudgedCell(
        numbers=numbers,
        requests=request_table(scalars, events),
        plan=plan,
        number=cell,
        origin=Origin(source),
        clock=clock,
        interrupted=interrupted,
        **more,
    )
    findings = cell_findings(seen)
    assert len({finding.kind for finding in findings}) == len(findings)
    assert all(f"{f.evidence}{f.remedy}".isprintable() and f.remedy.endswith(".") for f in findings)
    return {finding.kind: finding for finding in findings}


Case = tuple[str, str | None, dict[str, Any], Callable[[], Mapping[str, Finding]]]
"""(kind, severity, values, what is planted): the kind, or its row of findings.toml; a severity of None where a
finding of its kind must not come; "=row": nothing else may come, "=": nothing at all. `values` are
some of the finding's, to as many digits as they are shown; None where it has none of that name.
"""


def check(case: Case) -> None:
    row, severity, values, planted = case
    findings = dict(planted())
    kind = row.removeprefix("=").partition(".")[0]
    if row.startswith("="):
        assert set(findings) == {kind} - {""}
    finding = findings.get(kind)
    assert (finding.severity if finding else None) == severity
    if finding is not None:
        if "." in row:
            assert finding == make_finding(row.removeprefix("="), **finding.values)
        for name, value in values.items():
            assert are_alike(finding.values.get(name), value), (name, finding.values)


def are_alike(value: Any, expected: Any) -> bool:
    """Compare values of findings: numbers to three digits, shares to a hundredth."""
    if isinstance(expected, list):
        return len(value) == len(expected) and all(map(are_alike, value, expected))
    if isinstance(expected, dict):
        return all(are_alike(value.get(name), part) for name, part in expected.items())
    if isinstance(expected, float) or isinstance(value, float):
        return bool(value == pytest.approx(expected, rel=5e-3, abs=1e-12))
    return bool(value == expected)
