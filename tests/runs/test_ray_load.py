"""Load workers on the two machines of a Ray cluster, both of them this one: one plan, one schedule,
one folder."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from loadstone.analyse.verdict.client import client_limits
from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.core.plan import Load
from loadstone.core.record import CellInfo
from loadstone.measure.client.protocol import Job
from loadstone.measure.simulated_server import FixedLatency, start
from loadstone.runs.bench import bench
from loadstone.runs.preflight import check_client
from loadstone.workload.options import ClientOptions, Options
from loadstone.workload.prompts import Vocabulary

SCRIPT = Path(__file__).parents[2] / "scripts" / "clusters" / "ray"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    pytest.importorskip("ray")
    with subprocess.Popen(
        [sys.executable, SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as ray:
        assert ray.stdin is not None
        assert ray.stdout is not None
        try:
            yield next(
                line.strip() for line in ray.stdout if line.count(":") == 1 and " " not in line
            )
        finally:
            ray.stdin.close()
            ray.wait(60)


def options(url: str, out: Path, address: str | None, **more: object) -> Options:
    return Options.read(
        url=url,
        rate=[40],
        input="32",
        output="16",
        salt="same",
        out=out,
        workers=2,
        ray=address,
        **more,
    )  # type: ignore[arg-type]


def rows(folder: Path) -> list[tuple[object, ...]]:
    table = run_folder.read_columns(
        folder, ["request_id", "phase", "intended_s", "output_tokens", "status"], 0
    )
    return sorted(tuple(row.values()) for row in table.to_pylist())


@pytest.mark.process
@pytest.mark.slow
def test_the_merged_run_is_that_of_one_machine(tmp_path: Path, address: str) -> None:
    with start(FixedLatency(ttft_s=0.02, itl_s=0.005)) as server:
        folders = [
            Path(bench(options(server.url, tmp_path, ray, requests=[120])).run_dir)
            for ray in (None, address)
        ]
    here, there = map(rows, folders)
    assert len(here) == len(there) > 120
    for one, other in zip(here, there, strict=True):
        assert one[:2] + one[3:] == other[:2] + other[3:]
    infos = [run_folder.read_info(folder) for folder in folders]
    starts = [info.cells[0].start_s or 0.0 for info in infos]
    # Each at its own distance from its step's start: the schedule is one, whoever sends.
    for one, other in zip(here, there, strict=True):
        assert one[2] - starts[0] == pytest.approx(other[2] - starts[1], abs=2e-3)  # type: ignore[operator]
    clocks = infos[1].settings.worker_clocks
    assert [each.worker for each in clocks] == [0, 1]
    # Both machines are this one: the offset is known to be 0, and no more may be claimed than that
    # it is within.
    assert all(abs(each.offset_s) <= each.within_s < 0.01 for each in clocks)
    assert infos[0].cells[0].clocks_apart_s is None
    assert 0 < (infos[1].cells[0].clocks_apart_s or 0) < 0.05
    assert not list(folders[1].glob("journal-*")) + list(folders[1].glob(".reserve*"))


@pytest.mark.process
@pytest.mark.slow
def test_a_worker_that_dies_there_ends_the_run_and_loses_no_record(
    tmp_path: Path, address: str
) -> None:
    killed = []

    def kill_one() -> None:
        time.sleep(2)
        killed.append(workers_there()[0])
        os.kill(killed[0], signal.SIGKILL)

    def on_event(event: object) -> None:
        if getattr(event, "kind", "") == "cell":
            threading.Thread(target=kill_one).start()

    with start(FixedLatency(ttft_s=0.02, itl_s=0.005)) as server:
        document = bench(
            options(server.url, tmp_path, address, duration_s=60.0), on_event
        ).document()
    folder = Path(document["run_dir"])
    info = run_folder.read_info(folder)
    assert info.status == "failed"
    assert "died on its machine (signal 9)" in (info.error or "")
    by_worker = run_folder.read_columns(folder, ["worker", "status"], 0).to_pylist()
    assert {row["worker"] for row in by_worker if row["status"] == "ok"} == {0, 1}
    assert not workers_there()


def workers_there() -> list[int]:
    """Worker processes that keep their journal in a folder of their own, as those of a cluster
    do."""
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            files = [str(fd.readlink()) for fd in (process / "fd").iterdir()]
            if any("/loadstone-worker-" in file and "journal" in file for file in files):
                pids.append(int(process.name))
    return pids


@pytest.mark.process
@pytest.mark.slow
def test_a_process_that_still_connects_ends_with_its_owner(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    job = Job(
        folder=str(tmp_path), worker=0, origin_ns=0, destinations=[], route="round-robin", endpoint="completions",
        streams=True, body={}, vocabulary=Vocabulary(kind="text"), salt=None, request_tag="",
        timeouts=ClientOptions().timeouts, grace_s=1.0, held_limit_bytes=1, ray="127.0.0.1:9",
    )  # fmt: skip
    command = [sys.executable, "-P", "-m", "loadstone.measure.client.ray_worker"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        try:
            process.stdin.write(msgspec.json.encode(job) + b"\n")
            process.stdin.flush()
            time.sleep(8)  # Ray is loaded by then, and tries for minutes
            assert process.poll() is None
            process.stdin.close()
            assert process.wait(10) == 2
        finally:
            process.kill()


@pytest.mark.parametrize("address", ["127.0.0.1:9", "nonsense", "127.0.0.1:99999", "127.0.0.1:"])
def test_a_cluster_that_is_not_there_is_one_line(address: str) -> None:
    with pytest.raises(InputError, match=r"--ray.*(no Ray cluster answers there|not installed)"):
        check_client(ClientOptions(ray=address))


def test_more_workers_than_this_machine_has_processors_need_a_cluster() -> None:
    with pytest.raises(InputError, match="on this host"):
        check_client(ClientOptions(workers=500))


@pytest.mark.parametrize(("apart_s", "warned"), [(None, False), (0.0015, False), (0.004, True)])
def test_clocks_that_may_be_apart_by_more_than_a_late_send_are_a_finding(
    apart_s: float | None, warned: bool
) -> None:
    info = CellInfo(load=Load("rate", 1.0), clocks_apart_s=apart_s)
    cell = SimpleNamespace(info=info, requests=SimpleNamespace(worker=np.zeros(1)), clock="kernel")
    assert bool(list(client_limits(cell))) is warned  # type: ignore[arg-type]
