"""Cells of a study that search the highest load: over HTTP, interrupted and taken up again,
simulated, reported."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from clusters import end
from conftest import eventually
from loadstone.core.errors import InputError
from loadstone.measure.engines.process import free_port
from loadstone.studies.file import read_study
from loadstone.studies.plan import plan_study
from loadstone.studies.report import study_runs
from loadstone.studies.status import read_status
from loadstone.studies.supervise import CELLS, CUT

STUDY = """\
study: search
model: llama-3.1-8b
deployments: {engine: [vllm], layout: [1xh100, 2xh100]}
workloads: {short: {input: 64, output: 8}}
loads: {find-max: "ttft_p99<500ms,tpot_p99<15ms"}
slo: e2e<9s
"""

QUEUE = "llama-3.1-8b@1xh100/max_num_seqs=2"
"""Answers wait for one another, so that few probes find the highest load."""


def words(path: Path, *more: str) -> list[str]:
    out = str(path.parent / "out")
    return [
        sys.executable,
        "-m",
        "loadstone",
        "study",
        "run",
        str(path),
        "--out",
        out,
        "--json",
        *more,
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "study.yaml"
    path.write_text(STUDY)
    return path


@pytest.mark.process
def test_a_search_is_simulated_and_reported(path: Path) -> None:
    run = subprocess.run(words(path, "--simulate"), capture_output=True, check=True)
    cells = [
        cell for launch in msgspec.json.decode(run.stdout)["launches"] for cell in launch["cells"]
    ]
    assert [cell["state"] for cell in cells] == ["done", "done"]
    assert all("hold at" in cell["found"] for cell in cells)
    folder = path.parent / "out" / "search-simulated"
    assert all(len(list((folder / CELLS / cell["id"]).iterdir())) > 2 for cell in cells)
    read = read_study(path)
    runs = study_runs(read, plan_study(read), folder)
    assert [str(run) for run in runs.folders] == [cell["run_dir"] for cell in cells]
    assert all(
        cell.found.startswith("holds at") and "requests/s" in cell.found for cell in runs.part.cells
    )


def test_a_search_without_bounds_is_no_other_load(path: Path) -> None:
    path.write_text(STUDY.replace('"ttft_p99<500ms,tpot_p99<15ms"', ""))
    with pytest.raises(InputError, match=r"find-max: has no value"):
        read_study(path)


def listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.process
@pytest.mark.slow
def test_a_search_that_is_interrupted_begins_again_and_is_then_done(path: Path) -> None:
    port = free_port()
    served = [sys.executable, "-m", "loadstone", "serve-sim", QUEUE, "--port", str(port)]
    server = subprocess.Popen(served, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    path.write_text(
        f"""\
study: search
engines: {{sim: {{url: "http://127.0.0.1:{port}"}}}}
deployments: {{engine: [sim]}}
workloads: {{short: {{input: 16, output: 4}}}}
loads: {{find-max: "e2e_p50<200ms", concurrency: 2, max-duration: 20s}}
"""
    )
    read = read_study(path)
    launches, folder = plan_study(read), path.parent / "out" / "search"
    try:
        assert eventually(lambda: listens(port))
        run = subprocess.Popen(
            words(path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        cell = folder / CELLS / launches[0].cells[0].id
        begun = lambda: any(cell.glob("*/summary.json")) and len(list(cell.glob("*"))) > 1  # noqa: E731
        assert eventually(lambda: begun() or run.poll() is not None)
        assert run.poll() is None, run.communicate()
        end(run, 130, signal.SIGINT)
        assert read_status(read, launches, folder).launches[0].cells[0].state == "waiting"
        probes = len(list(cell.iterdir()))
        subprocess.run(words(path), capture_output=True, check=True)
        done = read_status(read, launches, folder).launches[0].cells[0]
        assert done.state == "done"
        assert done.found is not None
        assert "under way" in done.found
        assert len(list((folder / CUT).iterdir())) == probes
        found = sorted(cell.iterdir())
        subprocess.run(words(path), capture_output=True, check=True)
        assert sorted(cell.iterdir()) == found
    finally:
        server.terminate()
        server.wait(30)


@pytest.mark.parametrize(
    ("load", "place", "problem"),
    [
        ('{find-max: "ttft<1s"}', "5:9", "is no bound on percentiles"),
        ('{find-max: "ttft_p99<1s", requests: 3}', "5:34", "--find-max decides that itself"),
        ('{find-max: "ttft_p99<1s", rate: [1, 2]}', "5:9", "give one load to begin with"),
        ("{find-max: 3}", "5:9", "find-max"),
    ],
)
def test_bad_input_is_told_with_its_place(path: Path, load: str, place: str, problem: str) -> None:
    path.write_text(STUDY.replace('{find-max: "ttft_p99<500ms,tpot_p99<15ms"}', load))
    with pytest.raises(InputError, match=problem) as caught:
        plan_study(read_study(path))
    assert str(caught.value).startswith(f"{path}:{place}: ")
