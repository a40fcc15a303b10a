"""Journals that were damaged: what is lost is told, the rest is read, and the damaged file
stays."""

import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.core.plan import Load
from loadstone.core.record import CellInfo
from loadstone.runs.execution import recover
from loadstone.workload.lengths import Length
from loadstone.workload.schedule import make_plan
from loadstone.workload.synthetic import Synthetic
from test_store import Row, batch, info, row

LOAD = Load("concurrency", 3)
REQUESTS = 9


@pytest.fixture(autouse=True)
def _small_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder.journal, "RESERVE_BYTES", 4096)


def part(number: int, status: str | None, times: list[float], earlier: int) -> Row:
    told = {"end_s": times[-1], "output_tokens": 4, "finish_reason": "length"} if status else {}
    sent = {
        "intended_s": float(number),
        "sent_s": number + 0.001,
        "http_status": 200,
        "worker": 0,
        "replica": 0,
    }
    return row(
        f"0-{number}", status, times, earlier_events=earlier, input_tokens=40, **sent, **told
    )


def fragments(*rows: Row) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=run_folder.journal_schema())


def run_of_nine(folder: Path) -> Path:
    """A run that was cut off, of nine requests: two of four events in two parts, the others in
    one."""
    plan = make_plan(
        Synthetic(Length("fixed", 40), Length("fixed", 4)),
        [LOAD],
        requests=[REQUESTS],
        warmup=0,
        seed=0,
    )
    folder.mkdir()
    cells = [CellInfo(load=LOAD, start_s=0.0, issue_end_s=9.0, end_s=10.0)]
    run_folder.write_info(folder, info(plan_id=plan.plan_id, cells=cells, origin_ns=0))
    run_folder.write_plan(folder / "plan.parquet", plan)
    writer = run_folder.JournalWriter(folder, 0)
    for number in range(REQUESTS):
        times = [number + 0.1 * k for k in range(1, 5)]
        if number in (2, 6):
            writer.write(fragments(part(number, None, times[:2], 0)))
            writer.write(fragments(part(number, "ok", times[2:], 2)))
        else:
            writer.write(fragments(part(number, "ok", times, 0)))
    writer.close()
    return folder


def recovered(folder: Path) -> tuple[dict[str, Any], dict[str, Row]]:
    document = recover(folder).document()
    return document, {
        one["request_id"]: one
        for part in run_folder.read_records(folder)
        for one in part.to_pylist()
    }


def kinds(findings: list[dict[str, Any]]) -> set[str]:
    return {finding["kind"] for finding in findings}


@pytest.mark.parametrize("count", [20, pytest.param(500, marks=pytest.mark.slow)])
def test_a_flipped_bit_loses_nothing_in_silence(tmp_path: Path, count: int) -> None:
    template = run_of_nine(tmp_path / "template")
    whole = (template / "journal-0.arrow").read_bytes()
    _, truth = recovered(Path(shutil.copytree(template, tmp_path / "whole")))
    assert len(truth) == REQUESTS
    rng = random.Random(0)
    for bit in rng.sample(range(8 * len(whole)), count):
        folder = Path(shutil.copytree(template, tmp_path / "run"))
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        (folder / "journal-0.arrow").write_bytes(flipped)
        document, records = recovered(folder)
        assert (folder / "journal-0.arrow").read_bytes() == flipped, bit
        assert "journal_damaged" in kinds(document["findings"]), bit
        (cell,) = document["cells"]
        assert not cell["verdict"]["trusted"]
        for name, record in records.items():
            assert record == truth[name] or (record["status"], record["error"]) == (
                "cancelled", run_folder.assembly.DAMAGED,
            ), bit  # fmt: skip
        # No more than the one batch is lost, and which requests are missing is counted.
        assert sum(record == truth[name] for name, record in records.items()) >= REQUESTS - 1, bit
        assert ("records_missing" in kinds(cell["verdict"]["findings"])) == (
            len(records) < REQUESTS
        ), bit
        # Neither is it forgotten, nor is more lost, the next time.
        assert recovered(folder) == (document, records)
        shutil.rmtree(folder)


def test_the_damage_names_its_place_and_its_cells(tmp_path: Path) -> None:
    writer = run_folder.JournalWriter(tmp_path, 0)
    path = tmp_path / "journal-0.arrow"
    ends = []
    for cell in range(6):
        writer.write(batch(row(f"{cell}-0", arrival=[1.0])))
        ends.append(path.stat().st_size)
    writer.close()
    data = bytearray(path.read_bytes())
    data[ends[1] + 3] ^= 1  # the header of the third batch
    data[ends[3] - 1] ^= 1  # the last byte of the fourth
    path.write_bytes(data)
    assert run_folder.assemble(tmp_path) == 4
    (damage,) = run_folder.damaged_journals(tmp_path)
    assert (damage.at, damage.bytes, damage.batches) == (ends[1], ends[3] - ends[1], 2)
    assert (damage.first_cell, damage.last_cell) == (1, 4)
    # A frame that was cut out as a whole is missed by its number.
    path.write_bytes(bytes(data[: ends[0]] + data[ends[4] :]))
    read = run_folder.Journal(path)
    assert [part["request_id"].to_pylist() for part in read] == [["0-0"], ["5-0"]]
    assert read.damage is not None
    assert (read.damage.bytes, read.damage.batches) == (0, 4)


def test_a_request_whose_first_part_is_lost_is_not_taken_for_a_whole_one(tmp_path: Path) -> None:
    writer = run_folder.JournalWriter(tmp_path, 0)
    begin = (tmp_path / "journal-0.arrow").stat().st_size
    writer.write(fragments(part(0, None, [0.1, 0.2], 0)))
    writer.write(fragments(part(0, "ok", [0.3, 0.4], 2), part(1, "ok", [0.1], 0)))
    writer.close()
    data = bytearray((tmp_path / "journal-0.arrow").read_bytes())
    data[begin + 40] ^= 1
    (tmp_path / "journal-0.arrow").write_bytes(data)
    run_folder.assemble(tmp_path)
    rows = {
        one["request_id"]: one
        for part in run_folder.read_records(tmp_path)
        for one in part.to_pylist()
    }
    assert (rows["0-0"]["status"], rows["0-0"]["error"]) == (
        "cancelled",
        run_folder.assembly.DAMAGED,
    )
    assert rows["0-1"]["status"] == "ok"


def old_journal(path: Path, count: int) -> bytes:
    """As versions without checksums wrote it: a plain Arrow stream."""
    messages = [batch(row(f"0-{i}", arrival=[1.0, 2.0])).serialize() for i in range(count)]
    data = b"".join(
        [message.to_pybytes() for message in (run_folder.records_schema().serialize(), *messages)]
    )
    path.write_bytes(data)
    return data


def test_journals_without_checksums_are_still_read(tmp_path: Path) -> None:
    path = tmp_path / "journal-0.arrow"
    data = old_journal(path, 5)
    assert run_folder.assemble(tmp_path) == 5
    assert not path.exists()
    (tmp_path / "records.parquet").unlink()
    path.write_bytes(data[:-10])
    assert run_folder.assemble(tmp_path) == 4
    assert path.exists()
    assert [damage.batches for damage in run_folder.damaged_journals(tmp_path)] == [1]


def test_journals_without_checksums_raise_nothing_undeclared(tmp_path: Path) -> None:
    path = tmp_path / "journal-0.arrow"
    whole = old_journal(path, 9)
    rng = random.Random(1)
    for bit in rng.sample(range(8 * len(whole)), 300):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        read = run_folder.Journal(path)
        try:
            rows = sum(part.num_rows for part in read)
        except InputError:
            continue
        assert rows == 9 or read.damage is not None, bit


def test_a_journal_that_went_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for worker in (0, 1):
        writer = run_folder.JournalWriter(tmp_path, worker)
        writer.write(batch(row(f"0-{worker}", arrival=[1.0])))
        writer.close()
    monkeypatch.setattr(
        run_folder.assembly, "wait_for_writers", lambda *_: (tmp_path / "journal-1.arrow").unlink()
    )
    with pytest.raises(InputError, match=r"journal-1\.arrow: cannot be read \(No such file"):
        run_folder.assemble(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["journal-0.arrow"]


def test_a_flipped_bit_in_a_page_of_plan_or_records_is_told(tmp_path: Path) -> None:
    run = run_of_nine(tmp_path / "run")
    recover(run)
    for name in ("plan.parquet", "records.parquet"):
        path = run / name
        whole = path.read_bytes()
        column = pq.read_metadata(path).row_group(0).column(0)
        last = column.data_page_offset + column.total_compressed_size - 1
        if column.has_dictionary_page:
            last -= column.data_page_offset - column.dictionary_page_offset
        path.write_bytes(whole[:last] + bytes([whole[last] ^ 1]) + whole[last + 1 :])
        with pytest.raises(InputError, match=rf"{name}: .*CRC"):
            recover(run)
        path.write_bytes(whole)
    assert recovered(run)[0]["cells"]
