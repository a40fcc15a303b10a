import errno
import multiprocessing
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loadstone.core import run_folder
from loadstone.core.errors import DiskFullError, InputError
from loadstone.core.host import Host
from loadstone.core.plan import Load, Plan
from loadstone.core.record import CellInfo, RunInfo
from loadstone.core.run_folder.folder import replace_file
from loadstone.workload.dataset import Dataset
from loadstone.workload.lengths import Length
from loadstone.workload.options import Options
from loadstone.workload.planning import plan_of
from loadstone.workload.schedule import make_plan
from loadstone.workload.synthetic import Synthetic

Row = dict[str, Any]
RUNNING = {"token_source": "running usage"}
FINAL = {"token_source": "final usage"}
SYNTHETIC = Synthetic(
    Length("uniform", 60, low=20, high=100), Length("fixed", 5), prefix_tokens=8, prefix_groups=2
)
LOADS = [
    Load("concurrency", 2),
    Load("rate", 4.0, process="gamma", burstiness=0.5),
    Load("burst", 3),
]


@pytest.fixture(autouse=True)
def _small_reserve(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "small_disk" not in request.fixturenames:
        monkeypatch.setattr(run_folder.journal, "RESERVE_BYTES", 4096)


def info(**fields: Any) -> RunInfo:
    given: Row = {
        "run_id": "r", "source": "measured", "created": "2026-01-02T03:04:05+00:00",
        "command": ["loadstone", "bench"],
        "loadstone": "0.1.0", "host": Host(cores=2), "plan_id": "0123456789ab", "seed": 0, "salt": None,
    }  # fmt: skip
    return RunInfo(**{**given, **fields})


def row(
    name: str = "0-0", status: str | None = "ok", arrival: list[float] | None = None, **fields: Any
) -> Row:
    """A fragment: the last of a request if it has a status."""
    arrival = arrival if arrival is not None else []
    given: Row = {
        "request_id": name,
        "cell": int(name.partition("-")[0]),
        "phase": "measure",
        "status": status,
    }
    lists = {"arrival_s": arrival, "read": list(range(len(arrival))), "tokens": []}
    return {
        **dict.fromkeys(run_folder.records_schema().names),
        **given,
        **lists,
        "token_source": "pieces",
        **fields,
    }


def batch(*rows: Row) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=run_folder.records_schema())


def journal(folder: Path, worker: int, *batches: list[Row]) -> None:
    writer = run_folder.JournalWriter(folder, worker)
    for rows in batches:
        assert writer.write(batch(*rows))
    writer.close()


def records(folder: Path) -> dict[str, Row]:
    run_folder.assemble(folder)
    return {
        one["request_id"]: one
        for part in run_folder.read_records(folder)
        for one in part.to_pylist()
    }


# --- the folder -----------------------------------------------------------------------------------


def test_a_taken_name_gets_a_number(tmp_path: Path) -> None:
    names = [run_folder.create(tmp_path / "runs", "r").name for _ in range(3)]
    assert names == ["r", "r-2", "r-3"]


def test_a_folder_that_cannot_be_made_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        InputError, match=r"file/runs: cannot write here \(Not a directory\); give another folder"
    ):
        run_folder.create(tmp_path / "file" / "runs", "r")


def test_run_json_comes_back_as_it_was_written(tmp_path: Path) -> None:
    cells = [CellInfo(load=LOADS[1], start_s=0.5, end_s=2.0), CellInfo(load=LOADS[0])]
    written = info(cells=cells, slo={"ttft": 0.5}, status="interrupted", clock="kernel", error="x")
    run_folder.write_info(tmp_path, written)
    assert run_folder.read_info(tmp_path) == written
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_fields_that_a_later_version_adds_are_passed_over(tmp_path: Path) -> None:
    run_folder.write_json(
        tmp_path / "run.json", {**msgspec.to_builtins(info()), "moon": {"phase": 1}}
    )
    assert run_folder.read_info(tmp_path) == info()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "not a run folder"),
        (b"", "not a run this version"),
        (b"[]", "not a run this version"),
        (b'{"x": ' + b"[" * 100_000, "not a run this version"),
        (
            msgspec.json.encode({**msgspec.to_builtins(info()), "schema": 2, "loadstone": "9.1"}),
            "run of schema 2, and this version of Loadstone reads 1; read it with Loadstone 9.1, which",
        ),
        (
            msgspec.json.encode({"schema": 3, "loadstone": "10", "cells": {"a": "another shape"}}),
            "run of schema 3, and this version of Loadstone reads 1; read it with Loadstone 10, which",
        ),
        (
            msgspec.json.encode({"schema": 0, "loadstone": "0.0.9"}),
            "run of schema 0, and this version of Loadstone reads 1; read it with Loadstone 0.0.9, which",
        ),
    ],
)
def test_what_is_no_run_is_told_in_one_line(
    tmp_path: Path, content: bytes | None, why: str
) -> None:
    if content is not None:
        (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(InputError, match=why):
        run_folder.read_info(tmp_path)


def test_json_is_replaced_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    run_folder.write_json(path, {"a": 1})

    def full(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:3])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(DiskFullError, match=r"a\.json: disk full; free some space"):
        run_folder.write_json(path, {"a": 2})
    assert msgspec.json.decode(path.read_bytes()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupt_leaves_no_part_of_a_file(tmp_path: Path) -> None:
    def interrupted(path: Path) -> None:
        with replace_file(path) as partial:
            partial.write_bytes(b"{")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path / "a.json")
    assert not list(tmp_path.iterdir())


def test_a_link_in_the_place_of_a_file_to_be_written_is_not_followed(tmp_path: Path) -> None:
    """A folder that somebody else made may hold one, to a file of the user's."""
    mine = tmp_path / "mine"
    mine.write_text("mine")
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").symlink_to(mine)
    (run / run_folder.OWNER).symlink_to(mine)
    with pytest.raises(InputError, match=r"\.owner: cannot write here"), run_folder.own(run):
        pass
    run_folder.write_info(run, info())
    assert mine.read_text() == "mine"
    assert not (run / "run.json").is_symlink()
    assert run_folder.read_info(run) == info()


# --- the plan -------------------------------------------------------------------------------------


def same(one: Plan, other: Plan) -> bool:
    return (
        list(one) == list(other) and one.workload == other.workload and one.plan_id == other.plan_id
    )


def test_a_synthetic_plan_comes_back_as_it_was_written(tmp_path: Path) -> None:
    plan = make_plan(SYNTHETIC, LOADS, seed=0)
    run_folder.write_plan(tmp_path / "plan.parquet", plan)
    for path in (tmp_path / "plan.parquet", tmp_path):
        back = run_folder.read_plan(path)
        assert same(plan, back)
        assert (back.seed, back.cells, back.exact_output) == (0, tuple(LOADS), True)
    assert [path.name for path in tmp_path.iterdir()] == ["plan.parquet"]


def test_a_plan_of_the_schema_before_is_replayed_as_it_was_drawn(tmp_path: Path) -> None:
    """The file was written by the version whose arrivals were not bound to a span: the last of
    twelve at 2 requests/s, and two of warm-up, came at 6.3 s.
    """
    written = Path(__file__).parent / "plan_schema_2.parquet"
    times = [
        0.08852006242645692, 1.0060253200188736, 2.23387330535373, 2.266036794176154, 2.533835186733911,
        2.775323335193752, 2.8289970930973416, 3.8319303976553125, 4.059684551185383, 4.214672808575908,
        4.782685474849951, 5.5260526944634725, 5.806873208907396, 6.31597179150507,
    ]  # fmt: skip
    plan = run_folder.read_plan(written)
    assert plan.intended_s[:14].tolist() == times
    assert plan.plan_id == "be127cb16852"
    replayed = plan_of(Options.read(plan=written))
    run_folder.write_plan(tmp_path / "plan.parquet", replayed)
    assert same(run_folder.read_plan(tmp_path), plan)


@pytest.mark.parametrize("format", ["text", "messages"])
def test_a_plan_with_prompts_comes_back_as_it_was_written(tmp_path: Path, format: str) -> None:
    # The same text twice, one nobody asks for, odd characters.
    texts = ["same", "same", '[{"role":"user","content":"x"}]', "ü\n\0🙂", *map(str, range(50))]
    plan = make_plan(
        Dataset(format, texts, [3] * len(texts), "00", 0), LOADS, seed=5, requests=[9, 60, 3]
    )
    run_folder.write_plan(tmp_path / "p", plan)
    back = run_folder.read_plan(tmp_path / "p")
    assert same(plan, back)
    assert not back.exact_output
    assert [request.chat for request in back] == [format == "messages"] * len(plan)


def test_what_is_no_plan_is_told_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "plan.parquet"
    with pytest.raises(InputError, match=r"plan\.parquet: no such file"):
        run_folder.read_plan(path)
    path.write_bytes(b"no parquet at all")
    with pytest.raises(InputError, match=r"plan\.parquet: not a plan"):
        run_folder.read_plan(path)
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(InputError, match=r"plan\.parquet: not a plan"):
        run_folder.read_plan(path)
    run_folder.write_plan(path, make_plan(SYNTHETIC, LOADS))
    table = pq.read_table(path)
    pq.write_table(table.drop_columns(["phase"]), path)
    with pytest.raises(InputError, match=r"plan\.parquet: not a plan"):
        run_folder.read_plan(path)
    about = msgspec.json.decode(table.schema.metadata[b"loadstone.plan"])
    later = msgspec.json.encode({**about, "schema": 8})
    pq.write_table(table.replace_schema_metadata({"loadstone.plan": later}), path)
    with pytest.raises(
        InputError, match="plan of schema 8; this version of Loadstone reads 2 to 7"
    ):
        run_folder.read_plan(path)


@pytest.mark.parametrize(
    ("name", "number"),
    [("input_tokens", 2**31 - 1), ("output_tokens", -5), ("cell", 7), ("cell", -1)],
)
def test_a_plan_of_numbers_that_no_request_has_is_refused(
    tmp_path: Path, name: str, number: int
) -> None:
    path = tmp_path / "plan.parquet"
    run_folder.write_plan(path, make_plan(SYNTHETIC, LOADS))
    table = pq.read_table(path)
    column = table.schema.get_field_index(name)
    odd = pa.array([number] * len(table), table.schema.field(name).type)
    pq.write_table(table.set_column(column, table.schema.field(name), odd), path)
    with pytest.raises(InputError, match=f"not a plan: numbers in {name} are impossible"):
        run_folder.read_plan(path)


# --- journals -------------------------------------------------------------------------------------


def test_fragments_over_batches_and_workers_become_one_record_each(tmp_path: Path) -> None:
    journal(
        tmp_path, 0,
        [row("0-0", None, [1.0, 1.5], sent_s=0.5, input_tokens=None), row("0-2", arrival=[1.0])],
        [row("0-0", None, [2.0], sent_s=0.5, input_tokens=30)],
        [row("0-4", None, [9.0]), row("0-0", "short", [3.0], sent_s=0.5, end_s=3.5, finish_reason="stop")],
    )  # fmt: skip
    journal(
        tmp_path, 1,
        [row("0-1", None, [1.25]), row("0-1", None, [1.5]), row("0-1", "ok", [], output_tokens=2)],
        [row("1-1", "error", error="broke")],
    )  # fmt: skip
    assert run_folder.assemble(tmp_path) == 5
    found = records(tmp_path)
    assert set(found) == {"0-0", "0-1", "0-2", "0-4", "1-1"}
    joined = found["0-0"]
    assert joined["arrival_s"] == [1.0, 1.5, 2.0, 3.0]
    assert joined["read"] == [0, 1, 0, 0]
    assert joined["tokens"] == [1, 2, 3, 4]
    assert {n: joined[n] for n in ("status", "sent_s", "end_s", "finish_reason", "input_tokens", "error")} == {
        "status": "short", "sent_s": 0.5, "end_s": 3.5, "finish_reason": "stop", "input_tokens": 30, "error": None,
    }  # fmt: skip
    assert (found["0-1"]["arrival_s"], found["0-1"]["status"]) == ([1.25, 1.5], "ok")
    assert found["0-2"] == row("0-2", arrival=[1.0], tokens=[1])
    assert found["1-1"] == row("1-1", "error", error="broke")


def test_a_request_without_its_end_is_cancelled_with_what_had_arrived(tmp_path: Path) -> None:
    journal(
        tmp_path,
        0,
        [row("0-0", None, [1.0, 2.0], sent_s=0.5, token_source=None)],
        [row("0-0", None, [3.0])],
    )
    (found,) = records(tmp_path).values()
    assert (found["status"], found["error"]) == ("cancelled", run_folder.INTERRUPTED)
    assert (found["arrival_s"], found["tokens"], found["token_source"]) == (
        [1.0, 2.0, 3.0],
        [1, 2, 3],
        "pieces",
    )
    assert (found["sent_s"], found["end_s"]) == (0.5, None)


@pytest.mark.parametrize(("total", "events"), [(9, 4), (3, 7), (5, 5), (1, 3), (100, 3), (7, 1)])
def test_a_final_count_is_spread_evenly_over_the_events(
    tmp_path: Path, total: int, events: int
) -> None:
    arrival = [1.0 + i for i in range(events)]
    journal(tmp_path, 0, [row("0-0", "ok", arrival, output_tokens=total, **FINAL)])
    (found,) = records(tmp_path).values()
    assert found["tokens"] == [max(1, round((k + 1) * total / events)) for k in range(events)]
    assert found["tokens"][-1] == total
    assert found.items() >= FINAL.items()


def test_without_usage_each_event_is_a_token(tmp_path: Path) -> None:
    rows = [row("0-0", "ok", [1.0, 2.0], output_tokens=2), row("0-1", "ok", [1.0], **FINAL)]
    journal(tmp_path, 0, [*rows, row("0-2", "error")])
    found = records(tmp_path)
    assert [found[f"0-{i}"]["tokens"] for i in range(3)] == [[1, 2], [1], []]


def test_a_running_count_stays_as_it_was_sent(tmp_path: Path) -> None:
    journal(
        tmp_path, 0,
        [row("0-0", "ok", [1.0, 2.0], tokens=[3, 4], **RUNNING)],
        [row("0-1", None, [1.0, 2.0], tokens=[1, 1], **RUNNING)],
        [row("0-1", None, [3.0], tokens=[5], **RUNNING)],
        [row("0-2", "ok", [1.0, 2.0], output_tokens=4, **FINAL)],
        [row("0-1", "ok", [4.0], tokens=[6], output_tokens=6, **RUNNING)],
        [row("0-3", None, [1.0], tokens=[2], **RUNNING)],
    )  # fmt: skip
    found = records(tmp_path)
    assert [found[f"0-{i}"]["tokens"] for i in range(4)] == [[3, 4], [1, 1, 5, 6], [2, 4], [2]]
    assert [found[f"0-{i}"]["token_source"] for i in (0, 1, 3)] == ["running usage"] * 3


def test_a_running_count_that_broke_off_is_spread_as_a_final_one(tmp_path: Path) -> None:
    journal(
        tmp_path, 0,
        [row("0-0", None, [1.0, 2.0], tokens=[1, 2], **RUNNING)],
        [row("0-0", "ok", [3.0, 4.0], output_tokens=8, **FINAL)],
        [row("0-1", "ok", [1.0, 2.0], tokens=[1], output_tokens=4, **RUNNING)],
    )  # fmt: skip
    found = records(tmp_path)
    assert [(r["tokens"], r["token_source"]) for r in found.values()] == [
        ([2, 4, 6, 8], "final usage"), ([2, 4], "final usage"),
    ]  # fmt: skip


def test_a_torn_end_loses_what_is_behind_the_tear_and_nothing_else(tmp_path: Path) -> None:
    source = tmp_path / "journal-0.arrow"
    writer = run_folder.JournalWriter(tmp_path, 0)
    ends = [source.stat().st_size]
    for i in range(6):
        writer.write(
            batch(row(f"0-{2 * i}", arrival=[1.0, 2.0]), row(f"0-{2 * i + 1}", None, [float(i)]))
        )
        ends.append(source.stat().st_size)
    writer.close()
    whole = source.read_bytes()
    assert len(whole) == ends[-1]
    torn = tmp_path / "torn.arrow"
    for size in sorted(
        {
            *range(0, len(whole), 61),
            *ends,
            *(end - 1 for end in ends),
            *(end + 1 for end in ends[:-1]),
        }
    ):
        torn.write_bytes(whole[:size])
        read = run_folder.Journal(torn)
        names = [name for part in read for name in part["request_id"].to_pylist()]
        assert read.damage is None, size
        batches = sum(size >= end for end in ends[1:])
        assert names == [f"0-{i}" for i in range(2 * batches)], size
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "journal-0.arrow").write_bytes(whole[: ends[3] + 100])
    found = records(folder)
    assert {name: r["status"] for name, r in found.items()} == {
        f"0-{i}": "cancelled" if i % 2 else "ok" for i in range(6)
    }


def test_a_journal_torn_before_its_first_row_is_a_run_without_records(tmp_path: Path) -> None:
    (tmp_path / "journal-0.arrow").write_bytes(b"")
    assert run_folder.assemble(tmp_path) == 0
    assert list(run_folder.read_records(tmp_path)) == []


def test_assembling_again_changes_nothing(tmp_path: Path) -> None:
    journal(tmp_path, 0, [row("0-0", arrival=[1.0])])
    assert run_folder.assemble(tmp_path) == 1
    before = (tmp_path / "records.parquet").read_bytes()
    assert run_folder.assemble(tmp_path) == 1
    assert (tmp_path / "records.parquet").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["records.parquet"]


@pytest.mark.parametrize("names", [["cell"], ["sent_s", "tokens"]])
def test_records_of_other_columns_are_told_in_one_line(tmp_path: Path, names: list[str]) -> None:
    journal(tmp_path, 0, [row("0-0")])
    run_folder.assemble(tmp_path)
    path = tmp_path / "records.parquet"
    whole = pq.read_table(path)
    texts = pa.table({name: ["x"] if name in names else whole[name] for name in whole.column_names})
    for odd in (whole.drop_columns(names), texts.replace_schema_metadata(whole.schema.metadata)):
        pq.write_table(odd, path)
        with pytest.raises(
            InputError, match=r"records\.parquet: not records of this version .*measure it again"
        ):
            list(run_folder.read_records(tmp_path, 0))


def test_records_that_are_none_are_told_and_cost_no_journal(tmp_path: Path) -> None:
    journal(tmp_path, 0, [row("0-0", arrival=[1.0])])
    (tmp_path / "records.parquet").write_bytes(b"{ broken")
    with pytest.raises(InputError, match=r"records\.parquet: not a Parquet file"):
        run_folder.assemble(tmp_path)
    (tmp_path / "records.parquet").unlink()
    assert run_folder.assemble(tmp_path) == 1


def test_a_crash_while_journals_are_removed_loses_nothing(tmp_path: Path) -> None:
    for worker in (0, 1):
        journal(tmp_path, worker, [row(f"0-{worker}", arrival=[1.0])])
    left = (tmp_path / "journal-1.arrow").read_bytes()
    assert run_folder.assemble(tmp_path) == 2
    (tmp_path / "journal-1.arrow").write_bytes(left)
    assert run_folder.assemble(tmp_path) == 2
    assert set(records(tmp_path)) == {"0-0", "0-1"}
    assert not (tmp_path / "journal-1.arrow").exists()


def test_journals_stay_until_the_records_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal(tmp_path, 0, [row("0-0", arrival=[1.0])])

    def broken(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(pq, "ParquetWriter", broken)
        with pytest.raises(
            InputError, match=r"records\.parquet: cannot write here \(Input/output error\)"
        ):
            run_folder.assemble(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["journal-0.arrow"]
    assert run_folder.assemble(tmp_path) == 1


def test_a_folder_without_journals_or_records_is_told(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="neither journals nor records; nothing was measured in this run"
    ):
        run_folder.assemble(tmp_path)
    with pytest.raises(InputError, match="no records; if the run was cut off, `loadstone recover "):
        list(run_folder.read_records(tmp_path))
    (tmp_path / "records.parquet").write_bytes(b"torn")
    with pytest.raises(InputError, match=r"records\.parquet: not a Parquet file"):
        list(run_folder.read_records(tmp_path))


def _hold(folder: Path, ready: Any, release: Any) -> None:
    writer = run_folder.JournalWriter(folder, 0)
    writer.write(batch(row("0-0", arrival=[1.0])))
    ready.set()
    release.wait(30)
    writer.write(batch(row("0-1", arrival=[1.0])))


def test_a_run_that_still_goes_on_is_not_assembled_under_its_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawn = multiprocessing.get_context("spawn")
    ready, release = spawn.Event(), spawn.Event()
    worker = spawn.Process(target=_hold, args=(tmp_path, ready, release))
    worker.start()
    try:
        assert ready.wait(30)
        monkeypatch.setattr(run_folder.journal, "WRITERS_TIMEOUT_S", 0.1)
        with pytest.raises(
            InputError, match="this run is still going on; wait for its end, or stop it"
        ):
            run_folder.assemble(tmp_path)
        # A worker that is about to end is waited for.
        monkeypatch.setattr(run_folder.journal, "WRITERS_TIMEOUT_S", 30.0)
        release.set()
        assert set(records(tmp_path)) == {"0-0", "0-1"}
    finally:
        release.set()
        worker.join(30)
    worker.close()


# --- a full disk ----------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        mount = ["mount", "-t", "tmpfs", "-o", "size=40m", "loadstone-test", str(disk)]
        done = subprocess.run(mount, capture_output=True, check=False)
    except OSError as error:
        pytest.skip(f"no small disk: {error}")
    if done.returncode:
        pytest.skip(f"no small disk: {done.stderr.decode().strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(path: Path) -> None:
    size = os.statvfs(path.parent).f_bavail * os.statvfs(path.parent).f_bsize
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)


@pytest.mark.process
def test_a_full_disk_loses_nothing_and_is_recovered_from_once_there_is_room(
    small_disk: Path,
) -> None:
    rng = np.random.default_rng(0)
    writer = run_folder.JournalWriter(small_disk, 0)
    reserve = small_disk / ".reserve-0"
    assert reserve.stat().st_blocks * 512 >= run_folder.RESERVE_BYTES
    written = 0
    while writer.write(
        batch(*(row(f"0-{written + i}", arrival=rng.random(1000).tolist()) for i in range(20)))
    ):
        written += 20
        assert written < 10_000
    written += 20
    assert not reserve.exists()
    assert writer.write(
        batch(row("1-0", None, [1.0]))
    )  # what workers save at the end goes into the reserve's room
    writer.close()

    filler = small_disk / "filler"
    fill(filler)
    before = (small_disk / "journal-0.arrow").read_bytes()
    with pytest.raises(
        DiskFullError, match=f"free some space, then `loadstone recover {small_disk}`"
    ) as raised:
        run_folder.assemble(small_disk)
    assert "\n" not in str(raised.value)
    assert (small_disk / "journal-0.arrow").read_bytes() == before
    assert not list(small_disk.glob("*.part"))

    filler.unlink()
    assert run_folder.assemble(small_disk) == written + 1
    found = records(small_disk)
    assert set(found) == {*(f"0-{i}" for i in range(written)), "1-0"}
    assert all(len(r["arrival_s"]) == 1000 for name, r in found.items() if name != "1-0")
    assert found["1-0"]["status"] == "cancelled"


@pytest.mark.process
def test_a_disk_full_from_the_start_or_for_good_is_told(small_disk: Path) -> None:
    writer = run_folder.JournalWriter(small_disk, 0)
    (small_disk / ".reserve-0").unlink()
    fill(small_disk / "filler")
    good = (small_disk / "journal-0.arrow").read_bytes()
    with pytest.raises(DiskFullError, match=r"journal-0\.arrow: disk full"):
        writer.write(batch(row("0-0", arrival=[0.0] * 10_000)))
    writer.close()
    assert (small_disk / "journal-0.arrow").read_bytes() == good
    with pytest.raises(DiskFullError, match="disk full"):
        run_folder.JournalWriter(small_disk, 1)
    assert not (small_disk / ".reserve-1").exists()
    with pytest.raises(DiskFullError, match="disk full"):
        run_folder.write_info(small_disk, info())
    with pytest.raises(DiskFullError, match="disk full"):
        run_folder.write_plan(small_disk / "plan.parquet", make_plan(SYNTHETIC, LOADS))
    assert sorted(path.name for path in small_disk.iterdir()) == ["filler", "journal-0.arrow"]


# --- reading --------------------------------------------------------------------------------------


@pytest.fixture
def many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three cells of 40 requests by two workers, in many row groups."""
    monkeypatch.setattr(run_folder.assembly, "ROW_GROUP_EVENTS", 50)
    for worker in (0, 1):
        batches = [
            [row(f"{c}-{i}", arrival=[1.0, 2.0]) for i in range(worker, 40, 2)] for c in range(3)
        ]
        journal(tmp_path, worker, *(rows[k : k + 4] for rows in batches for k in range(0, 20, 4)))
    assert run_folder.assemble(tmp_path) == 120
    return tmp_path


def test_records_of_a_cell_are_found_across_row_groups(many: Path) -> None:
    assert pq.read_metadata(many / "records.parquet").num_row_groups > 5
    for cell in range(3):
        expected = {f"{cell}-{i}" for i in range(40)}
        table = run_folder.read_columns(many, ["request_id", "tokens"], cell)
        assert table.column_names == ["request_id", "tokens"]
        assert (set(table["request_id"].to_pylist()), table.num_rows) == (expected, 40)
        rows = [r for part in run_folder.read_records(many, cell) for r in part.to_pylist()]
        assert {r["request_id"] for r in rows} == expected
        assert all(r["tokens"] == [1, 2] for r in rows)
    assert sum(part.num_rows for part in run_folder.read_records(many)) == 120


def test_a_cell_without_records_has_empty_columns(many: Path) -> None:
    table = run_folder.read_columns(many, ["request_id", "arrival_s"], 9)
    assert (table.num_rows, table.schema.field("arrival_s").type) == (0, pa.list_(pa.float64()))
    assert list(run_folder.read_records(many, 9)) == []


FINAL = {"token_source": "final usage"}
TIMES = [0.005, 0.3, 0.31, 0.32, 0.33]


@pytest.mark.parametrize(
    ("arrival", "tokens", "changed", "left_out"),
    [
        (TIMES, 4, 20, 20),
        (TIMES, 4, 18, 18),
        (TIMES, 4, 17, 0),  # not in nearly all
        (TIMES, 5, 20, 0),  # a true first token
        ([0.29, 0.3, 0.31, 0.32, 0.33], 4, 20, 0),  # the last may be none
    ],
)
def test_a_first_event_that_was_no_token_is_left_out(
    tmp_path: Path, arrival: list[float], tokens: int, changed: int, left_out: int
) -> None:
    def one(i: int) -> Row:
        events, counted = (arrival, tokens) if i < changed else (arrival[1:], 4)
        return row(f"0-{i}", arrival=events, output_tokens=counted, **FINAL)

    journal(tmp_path, 0, [one(i) for i in range(20)])
    voids = Counter[int]()
    run_folder.assemble(tmp_path, voids)
    rows = [one for part in run_folder.read_records(tmp_path) for one in part.to_pylist()]
    assert voids == Counter({0: left_out} if left_out else {})
    assert (
        sum(each["arrival_s"] == arrival[1:] and each["read"][0] == 1 for each in rows) >= left_out
    )
    assert {len(each["arrival_s"]) - len(each["tokens"]) for each in rows} == {0}


SLOW = [0.005, 0.1, 0.2, 0.3, 0.31, 0.32, 0.33]
HANDED_OVER = [0.04, 0.14, 0.15, 0.16, 0.17, 0.18]


@pytest.mark.parametrize(
    ("arrival", "tokens", "openings", "void"),
    [
        (TIMES, 4, [7] * 13 + [0] * 7, 1),  # in a part of the answers
        (SLOW, 4, [7] * 20, 3),  # dots, until the first token
        # First tokens that differ, a pause for the KV cache's way, and a last event that is not
        # counted.
        (HANDED_OVER, 5, list(range(1, 21)), 0),
        (HANDED_OVER, 5, [7, 8, 9, 10] * 5, 0),
    ],
)
@pytest.mark.parametrize("end", [0, 3])
def test_first_events_that_say_the_same_are_told_from_tokens(
    tmp_path: Path, arrival: list[float], tokens: int, openings: list[int], void: int, end: int
) -> None:
    writer = run_folder.JournalWriter(tmp_path, 0)
    made = [
        row(f"0-{i}", arrival=arrival if opening else arrival[1:], output_tokens=tokens, **FINAL)
        | {"earlier_events": 0, "voids": 0, "opening": opening or i + 100, "closing": end}
        for i, opening in enumerate(openings)
    ]
    writer.write(pa.RecordBatch.from_pylist(made, schema=run_folder.journal_schema()))
    writer.close()
    voids = Counter[int]()
    run_folder.assemble(tmp_path, voids)
    rows = [one for part in run_folder.read_records(tmp_path) for one in part.to_pylist()]
    assert voids[0] == (np.count_nonzero(openings) if void else 0)
    assert {each["arrival_s"][0] for each in rows} == {arrival[void]}


def test_places_in_a_queue_are_told_by_ends_that_differ(tmp_path: Path) -> None:
    made = [
        row(f"0-{i}", arrival=SLOW, output_tokens=4, **FINAL)
        | {"earlier_events": 0, "voids": 0, "opening": 1 + i % 9, "closing": 1 + i}
        for i in range(20)
    ]
    writer = run_folder.JournalWriter(tmp_path, 0)
    writer.write(pa.RecordBatch.from_pylist(made, schema=run_folder.journal_schema()))
    writer.close()
    run_folder.assemble(tmp_path, Counter())
    rows = [one for part in run_folder.read_records(tmp_path) for one in part.to_pylist()]
    assert {each["arrival_s"][0] for each in rows} == {SLOW[3]}


def test_a_first_event_that_the_client_saw_to_be_none_is_left_out(tmp_path: Path) -> None:
    parts = [
        row(status=None, arrival=[0.1], tokens=[1]),
        row(arrival=[0.5, 0.6], output_tokens=6, **FINAL),
    ]
    own = {"earlier_events": 1, "voids": 1}
    writer = run_folder.JournalWriter(tmp_path, 0)
    for part, more in zip(parts, ({}, own), strict=True):
        writer.write(pa.RecordBatch.from_pylist([part | more], schema=run_folder.journal_schema()))
    writer.close()
    voids = Counter[int]()
    run_folder.assemble(tmp_path, voids)
    (whole,) = next(iter(run_folder.read_records(tmp_path))).to_pylist()
    assert (whole["arrival_s"], whole["tokens"], voids[0]) == ([0.5, 0.6], [3, 6], 1)


def test_whole_requests_come_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder.assembly, "ROW_GROUP_EVENTS", 10)
    journal(tmp_path, 0, *([row(f"0-{i}", arrival=[1.0] * 4)] for i in range(9)))
    assert run_folder.assemble(tmp_path) == 9
    records = pq.read_metadata(tmp_path / "records.parquet")
    assert [records.row_group(i).num_rows for i in range(records.num_row_groups)] == [3, 3, 3]


def _cyclic(warmup: int = 2) -> Plan:
    loads = [Load("concurrency", 2, duration_s=1.0), Load("burst", 3)]
    return make_plan(SYNTHETIC, loads, warmup=warmup)


def test_what_ran_by_time_is_written_as_what_was_issued(tmp_path: Path) -> None:
    plan = _cyclic()
    journal(tmp_path, 0, [row(f"0-{i}") for i in (0, 3, 1, 2)], [row("1-0")])
    run_folder.assemble(tmp_path)
    short = run_folder.cut_to_issued(tmp_path, plan)
    assert [len(short.rows(cell)) for cell in (0, 1)] == [4, 5]
    assert [short.request(0, i) for i in range(4)] == [plan.request(0, i) for i in range(4)]
    assert list(short)[4:] == [plan.request(1, i) for i in range(5)]
    assert run_folder.cut_to_issued(tmp_path, short).plan_id == short.plan_id


def test_laps_are_unrolled(tmp_path: Path) -> None:
    plan = _cyclic()
    count = 2 + 2 * 1024 + 5
    journal(tmp_path, 0, [row(f"0-{i}") for i in range(count)])
    run_folder.assemble(tmp_path)
    unrolled = run_folder.cut_to_issued(tmp_path, plan)
    assert len(unrolled.rows(0)) == count
    assert [unrolled.request(0, i) for i in range(count)] == [
        plan.request(0, i) for i in range(count)
    ]


@pytest.mark.parametrize("names", [[], ["0-0"], ["0-0", "0-1"]])
def test_a_cell_that_came_to_no_measured_request_keeps_its_rows(
    tmp_path: Path, names: list[str]
) -> None:
    plan = _cyclic()
    journal(tmp_path, 0, [row(name) for name in [*names, "1-0"]])
    run_folder.assemble(tmp_path)
    found = run_folder.cut_to_issued(tmp_path, plan)
    assert all(
        (getattr(found, name) == getattr(plan, name)).all()
        for name in ("cell", "phase", "output_tokens")
    )
    assert found.cells[0] == plan.cells[0], "it is still to run by time"
    again = run_folder.cut_to_issued(tmp_path, found)
    assert again.plan_id == found.plan_id


@pytest.mark.parametrize(
    ("name", "fits"), [("0-999999999999", False), ("0-x", True), ("0--5", True)]
)
def test_a_number_that_cannot_be_is_not_counted_up_to(
    tmp_path: Path, name: str, fits: bool
) -> None:
    journal(tmp_path, 0, [row(each) for each in ("0-0", "0-1", "0-2", name)])
    run_folder.assemble(tmp_path)
    if fits:
        assert len(run_folder.cut_to_issued(tmp_path, _cyclic()).rows(0)) == (
            6 if name == "0--5" else 3
        )
        return
    with pytest.raises(InputError, match="are of no run"):
        run_folder.cut_to_issued(tmp_path, _cyclic())


def test_an_issued_plan_keeps_its_id_on_disk(tmp_path: Path) -> None:
    texts = Dataset("text", [f"p{i}" for i in range(2000)], [3] * 2000, "00", 0)
    plan = make_plan(texts, [Load("concurrency", 2, duration_s=1.0)])
    journal(tmp_path, 0, [row(f"0-{i}") for i in range(7)])
    run_folder.assemble(tmp_path)
    short = run_folder.cut_to_issued(tmp_path, plan)
    run_folder.write_plan(tmp_path / "plan.parquet", short)
    assert run_folder.read_plan(tmp_path).plan_id == short.plan_id == replace(short).plan_id


def test_the_schema_is_versioned() -> None:
    assert run_folder.records_schema().metadata == {b"loadstone.core": b"1"}


def test_a_runs_name_says_when_and_what() -> None:
    at = datetime(2026, 1, 31, 23, 59, tzinfo=UTC)
    assert (
        run_folder.run_id(at, "sim", "vLLM", "Llama 3.1/8B", "1xh100")
        == "20260131-235900-sim-vllm-llama-3.1-8b-1xh100"
    )
    assert run_folder.run_id(at, None, "") == "20260131-235900-run"
    assert len(run_folder.run_id(at, "m" * 500)) == len("20260131-235900-") + 60
    assert "/" not in run_folder.run_id(at, "../../etc/passwd")
