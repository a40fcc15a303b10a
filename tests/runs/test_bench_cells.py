"""A measured run's cells and its checks, without servers and workers."""

import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadstone.core.errors import InputError
from loadstone.core.host import Host
from loadstone.core.plan import Load, Plan
from loadstone.core.record import CellInfo, RunInfo
from loadstone.core.signals import Signals
from loadstone.measure.client.protocol import StepDone
from loadstone.runs.cells import CellLoop
from loadstone.runs.execution import OpenRun
from loadstone.runs.preflight import check_open_files
from loadstone.workload.lengths import Length
from loadstone.workload.schedule import make_plan
from loadstone.workload.synthetic import Synthetic


def plan_of(*loads: Load, requests: int = 6, warmup: int = 2) -> Plan:
    lengths = Synthetic(Length("fixed", 8), Length("fixed", 4))
    return make_plan(lengths, loads, requests=[requests] * len(loads), warmup=warmup)


class Workers:
    """A pool whose steps take a second each, and resend a request each."""

    origin_ns = 0
    clock = "kernel"

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.clocks: dict[int, object] = {}
        self.steps: list[tuple[int, int | None]] = []

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run_step(self, cell: int, load: Load, first: int, last: int | None) -> Iterator[StepDone]:
        start_ns = len(self.steps) * 10**9
        self.steps.append((first, last))
        yield StepDone(start_ns, start_ns + 5 * 10**8, start_ns + 10**9, cpu_s=0.25, resent=1)


def measured(tmp_path: Path, plan: Plan) -> tuple[Workers, list[CellInfo]]:
    workers: Any = Workers()
    info = RunInfo(
        run_id="r", source="measured", created="", command=[], loadstone="", host=Host(), plan_id="", seed=0,
        salt=None, cells=[CellInfo(load=load) for load in plan.cells],
    )  # fmt: skip
    run = OpenRun(tmp_path, info, plan, Signals())
    CellLoop(run=run, pool=workers, on_event=lambda event: None).measure()
    return workers, info.cells


def test_requests_that_a_burst_s_warm_up_sent_again_count(tmp_path: Path) -> None:
    workers, (cell,) = measured(tmp_path, plan_of(Load("burst", 6)))
    assert workers.steps == [(0, 2), (2, 8)]
    assert cell.requests_resent == 2
    assert (cell.start_s, cell.issue_end_s, cell.end_s, cell.client_cpu_s) == (1.0, 1.5, 2.0, 0.25)


def test_cells_follow_one_another(tmp_path: Path) -> None:
    workers, cells = measured(tmp_path, plan_of(Load("concurrency", 1), Load("concurrency", 2)))
    assert workers.steps == [(0, 8), (0, 8)]
    assert [(cell.start_s, cell.requests_resent) for cell in cells] == [(0.0, 1), (1.0, 1)]


@pytest.mark.parametrize(
    ("load", "workers", "refused"),
    [
        (
            Load("concurrency", 100),
            1,
            "100 connections at once: the limit of open files is 128; raise it",
        ),
        (Load("concurrency", 100), 2, None),
        (Load("concurrency", 64), 1, None),
        (Load("rate", 5000.0), 1, None),
        (Load("rate", 5000.0, max_concurrency=100), 1, "100 connections at once"),
        (Load("rate", 5000.0, max_concurrency=100), 2, None),
        (Load("rate", 5000.0, max_concurrency=100_000), 2, "202 connections at once"),
        (Load("rate", 5000.0, max_concurrency=100_000), 4, None),
        (Load("burst", 100, max_concurrency=60), 1, None),
    ],
)
def test_no_worker_needs_more_open_files_than_it_may_have(
    monkeypatch: pytest.MonkeyPatch, load: Load, workers: int, refused: str | None
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (128, 128))
    plan = plan_of(load, requests=200)
    if refused is None:
        check_open_files(plan, workers)
        return
    with pytest.raises(InputError, match=f"^{refused}"):
        check_open_files(plan, workers)


def test_a_limit_below_what_a_client_has_open_anyway_is_told_without_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (60, 60))
    with pytest.raises(
        InputError, match=r"^even without a connection too few: the limit of open files is 60"
    ):
        check_open_files(plan_of(Load("rate", 5.0), requests=20), 1)
