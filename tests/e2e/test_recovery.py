"""`recover` at random moments of a run's life, also of one whose owner is killed: nothing is
lost."""

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Loadstone, eventually, kill, read_records, spawn
from loadstone.core.errors import InputError
from loadstone.measure.simulated_server import FixedLatency, TimingServer, start
from loadstone.runs.execution import recover

REQUESTS = 150
ASKED = (
    "--input",
    "8",
    "--output",
    "10",
    "--concurrency",
    "8",
    "--requests",
    str(REQUESTS),
    "--warmup",
    "0",
)
EACH = 10


@pytest.fixture(scope="module")
def server() -> Iterator[TimingServer]:
    with start(FixedLatency(ttft_s=0.05, itl_s=0.01)) as running:
        yield running


def recover_at(moments: list[float], out: Path, outcomes: Counter[str]) -> None:
    begun_s = time.monotonic()
    for at_s in sorted(moments):
        time.sleep(max(0.0, begun_s + at_s - time.monotonic()))
        for folder in out.glob("*"):
            try:
                summary = recover(folder)
            except InputError as error:
                refused = [
                    text
                    for text in ("this run is still going on", "not a run folder")
                    if text in str(error)
                ]
                outcomes[refused[0] if refused else str(error)] += 1
            except Exception as error:
                outcomes[f"{type(error).__name__}: {error}"] += 1
            else:
                outcomes[f"recovered a run that is {summary.status}"] += 1


@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_recovers_at_random_moments_lose_nothing(
    loadstone: Loadstone, server: TimingServer, tmp_path: Path, count: int
) -> None:
    rng = random.Random(0)
    outcomes: Counter[str] = Counter()
    tried, life_s = 0, 4.0
    for run in range(1000):
        if tried >= count:
            break
        out = tmp_path / str(run)
        killed = run % 3 == 1
        with spawn(out, "bench", server.url, *ASKED, "--workers", "2") as process:
            assert eventually(lambda: any(out.glob("*/journal-1.arrow")))  # noqa: B023
            (folder,) = out.iterdir()
            begun_s = time.monotonic()
            before = outcomes.total()
            # Over all of its life, and once more around its end.
            threads = [
                threading.Thread(
                    target=recover_at,
                    args=(
                        [life_s * rng.uniform(least, 1.2) for _ in range(EACH // 2)],
                        out,
                        outcomes,
                    ),
                )
                for least in (0.0, 0.7)
            ]
            for thread in threads:
                thread.start()
            if killed:
                time.sleep(rng.uniform(0.1, 1.5))
                kill(process.pid)
            process.communicate(timeout=50)
            if not killed:
                life_s = time.monotonic() - begun_s
            for thread in threads:
                thread.join(60)
            tried += outcomes.total() - before
        outcome = loadstone("recover", folder, "--json")
        assert outcome.code == 0
        records = read_records(folder)
        numbers = {int(record["request_id"].split("-")[1]) for record in records}
        sent = sum(cell["requests"]["sent"] for cell in outcome.document["cells"])
        assert sent == len(records) == len(numbers)
        if killed:
            # The workers outlived their owner and saved all that they had sent, one more than the
            # other.
            assert outcome.document["status"] == "interrupted"
            for worker in (0, 1):
                mine = [number for number in numbers if number % 2 == worker]
                assert sorted(mine) == list(range(worker, 2 * len(mine), 2))
        else:
            assert process.returncode == 0
            assert outcome.document["status"] == "done"
            assert numbers == set(range(REQUESTS))
            assert {record["status"] for record in records} == {"ok"}
        assert not [path for path in folder.iterdir() if path.name.startswith((".", "journal"))]
    allowed = {
        "recovered a run that is done",
        "recovered a run that is interrupted",
        "this run is still going on",
    }
    assert set(outcomes) <= allowed, outcomes
    assert outcomes["this run is still going on"] >= count / 10, outcomes
    assert outcomes.total() >= count
    print(dict(outcomes))


def test_recover_beside_a_run_is_refused_with_its_process(
    loadstone: Loadstone, server: TimingServer, tmp_path: Path
) -> None:
    with spawn(tmp_path, "bench", server.url, *ASKED) as process:
        assert eventually(lambda: any(tmp_path.glob("*/journal-0.arrow")))
        (folder,) = tmp_path.iterdir()
        line = loadstone("recover", folder).line()
        process.communicate(timeout=50)
    assert f"this run is still going on (process {process.pid} on " in line
    assert len(read_records(folder)) == REQUESTS
