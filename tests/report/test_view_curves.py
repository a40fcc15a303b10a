import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from loadstone.core import run_folder
from loadstone.core.record import RequestRecord
from loadstone.report.view.curves import BINS, FIRST_BIN_S, RATIO, Curves
from loadstone.report.view.live import WINDOW_BYTES, Tail, look
from loadstone.report.view.run_list import RunList
from test_summary import CLOSED
from test_view_run_list import papers

Fields = dict[str, Any]


def part(name: str, arrival: list[float], status: str | None = None, **more: Any) -> Fields:
    cell = int(name.partition("-")[0])
    row = {
        "request_id": name,
        "cell": cell,
        "phase": "measure",
        "intended_s": 0.5,
        "sent_s": 1.0,
        "status": status,
    }
    return dict.fromkeys(RequestRecord.__struct_fields__) | row | {"arrival_s": arrival} | more


def batch(*rows: Fields) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=run_folder.records_schema())


def near(value: float) -> Any:
    return pytest.approx(value, rel=RATIO - 1)


def test_a_request_in_two_parts_is_one() -> None:
    curves = Curves(["concurrency"])
    curves.add(batch(part("0-0", [1.25, 1.5])))
    curves.add(batch(part("0-0", [1.75], "ok", end_s=1.75, output_tokens=6)))
    cell = curves.cells[0]
    assert (cell.sent, cell.ok, cell.ended, cell.events) == (1, 1, 1, 3)
    assert cell.tokens_per_event == 2
    series = curves.series(running=False)
    assert series["ttft_p50_s"] == [None, None, near(0.25), None]
    assert series["gap_p50_s"] == [None, None, None, near(0.25)]
    assert int(cell.gap.sum()) == 2, "the gap across the parts counts too"
    assert series["output_tokens_per_s"] == [0, 0, 1 * 2 / 0.5, 2 * 2 / 0.5]
    assert series["under_way"] == [0, 0, 1, 0]
    assert series["requests_per_s"] == [0, 0, 0, 2]


def test_an_open_loop_counts_from_the_intended_time() -> None:
    curves = Curves(["rate"])
    curves.add(batch(part("0-0", [1.5], "ok", end_s=1.5, output_tokens=1)))
    assert curves.series(running=False)["ttft_p50_s"][-1] == near(1.0)


def test_warm_up_counts_as_load_and_not_in_latencies() -> None:
    curves = Curves(["concurrency"])
    curves.add(batch(part("0-0", [1.5, 1.6], "ok", end_s=1.6, output_tokens=2, phase="warmup")))
    cell = curves.cells[0]
    assert (cell.sent, cell.warm, cell.events) == (1, 1, 2)
    assert not cell.ttft.any()
    assert not cell.gap.any()


def test_failures_are_counted_where_they_happened() -> None:
    curves = Curves(["concurrency", "concurrency"])
    curves.add(batch(
        part("0-0", [], "error", end_s=1.2), part("0-1", [], "timeout", end_s=2.2),
        part("1-0", [2.0], "cancelled", end_s=2.4), part("1-1", [2.0], "short", end_s=2.4, output_tokens=1),
        part("1-2", [], "error", sent_s=None, end_s=2.4),
    ))  # fmt: skip
    assert (curves.cells[0].failed, curves.cells[1].failed) == (2, 1)
    assert (curves.cells[1].cancelled, curves.cells[1].short) == (1, 1)
    assert curves.series(running=False)["failed_per_s"] == [0, 0, 2, 0, 4]
    assert curves.series(running=False)["under_way"][-1] == 0


def test_percentiles_are_those_of_the_values_within_a_bucket() -> None:
    rng = np.random.default_rng(0)
    gaps = rng.lognormal(-4, 1, 5000)
    curves = Curves(["concurrency"])
    arrival = 1.2 + np.concatenate([[0], np.cumsum(gaps)])
    curves.add(
        batch(
            part(
                "0-0", arrival.tolist(), "ok", end_s=float(arrival[-1]), output_tokens=len(arrival)
            )
        )
    )
    from loadstone.report.view.curves import percentile

    for level in (0.5, 0.99):
        assert percentile(curves.cells[0].gap[None, :], level) == [
            near(float(np.quantile(gaps, level)))
        ]


def test_a_long_run_takes_the_same_room_and_loses_nothing() -> None:
    curves = Curves(["concurrency"])
    for number in range(50):
        at = 10.0 + 100 * number
        curves.add(
            batch(
                part(
                    f"0-{number}", [at + 1, at + 2], "ok", sent_s=at, end_s=at + 2, output_tokens=2
                )
            )
        )
    assert curves.bin_s == FIRST_BIN_S * 2 ** math.ceil(
        math.log2(curves.newest_s / (BINS * FIRST_BIN_S))
    )
    series = curves.series(running=False)
    assert len(series["output_tokens_per_s"]) <= BINS
    assert sum(filter(None, series["output_tokens_per_s"])) * curves.bin_s == pytest.approx(100)
    assert sum(filter(None, series["requests_per_s"])) * curves.bin_s == pytest.approx(50)
    assert int(curves.gap.sum()) == 50
    assert series["under_way"][-1] == 0


def test_what_is_not_yet_in_the_journal_is_not_drawn_as_a_fall() -> None:
    curves = Curves(["concurrency"])
    curves.add(batch(part("0-0", [1.1, 9.9], "ok", end_s=10, output_tokens=2), part("0-1", [4.0])))
    assert curves.complete_until_s(running=True) == 4.0
    assert len(curves.series(running=True)["under_way"]) == 8
    curves.add(batch(part("0-1", [30.0], "ok", end_s=30, output_tokens=2)))
    assert curves.complete_until_s(running=True) == 28.5


def test_a_stream_that_says_nothing_holds_the_curves_up_for_seconds_only() -> None:
    curves = Curves(["concurrency"])
    curves.add(batch(part("0-0", [])))
    curves.add(batch(part("0-1", [40.0], "ok", sent_s=39.0, end_s=40.0, output_tokens=1)))
    assert curves.complete_until_s(running=True) == 33.0


@pytest.mark.parametrize("time_s", [math.nan, math.inf, -math.inf, -1.0, 1e300])
def test_times_that_cannot_be_are_left_out(time_s: float) -> None:
    curves = Curves(["concurrency"])
    curves.add(
        batch(
            part("0-0", [time_s, 1.5, time_s], "ok", sent_s=time_s, end_s=time_s, output_tokens=-5)
        )
    )
    curves.add(batch(part("7-0", [1.0], "ok"), part("0-1", [1.5], "nonsense", output_tokens=2**40)))
    for values in curves.series(running=False).values():
        assert all(value is None or math.isfinite(value) for value in values)
    assert curves.cells[0].sent == 2
    assert list(curves.cells) == [0]


# --- journals that grow ---------------------------------------------------------------------------


def test_a_journal_is_read_from_where_the_last_look_ended(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "journal-0.arrow")
    assert tail.read() == ([], False), "not there yet"
    writer = run_folder.JournalWriter(tmp_path, 0)
    assert tail.read() == ([], False)
    for number in range(3):
        writer.write(batch(part(f"0-{number}", [1.0])))
        (found,), more = tail.read()
        assert found["request_id"].to_pylist() == [f"0-{number}"]
        assert not more
    writer.close()
    (tmp_path / "journal-0.arrow").unlink()
    assert tail.read() == ([], False)
    assert tail.broken == ""


def test_a_message_comes_when_its_last_byte_is_there(tmp_path: Path) -> None:
    writer = run_folder.JournalWriter(tmp_path, 0)
    for number in range(3):
        writer.write(batch(part(f"0-{number}", [1.0, 2.0])))
    writer.close()
    whole = (tmp_path / "journal-0.arrow").read_bytes()
    growing = tmp_path / "journal-1.arrow"
    tail = Tail(growing)
    found: list[str] = []
    for end in range(0, len(whole) + 1, 61):
        growing.write_bytes(whole[:end])
        found += [name for one in tail.read()[0] for name in one["request_id"].to_pylist()]
        assert tail.broken == ""
    growing.write_bytes(whole)
    found += [name for one in tail.read()[0] for name in one["request_id"].to_pylist()]
    assert found == ["0-0", "0-1", "0-2"]


def test_a_journal_longer_than_a_window_is_read_in_pieces(tmp_path: Path) -> None:
    writer = run_folder.JournalWriter(tmp_path, 0)
    arrival = np.arange(300_000) * 1e-3
    for number in range(16):
        writer.write(batch(part(f"0-{number}", arrival.tolist())))
    writer.close()
    assert (tmp_path / "journal-0.arrow").stat().st_size > WINDOW_BYTES
    tail, found, looks, more = Tail(tmp_path / "journal-0.arrow"), 0, 0, True
    while more:
        batches, more = tail.read()
        found, looks = found + len(batches), looks + 1
    assert (found, tail.broken) == (16, "")
    assert looks > 1


@pytest.mark.parametrize("damage", ["noise", "text", "length", "bits", "columns"])
def test_a_damaged_journal_is_told_and_read_no_further(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "journal-0.arrow"
    writer = run_folder.JournalWriter(tmp_path, 0)
    writer.write(batch(part("0-0", [1.0, 2.0])))
    writer.close()
    whole = bytearray(path.read_bytes())
    rng = np.random.default_rng(1)
    if damage == "noise":
        whole = bytearray(rng.bytes(4096))
    elif damage == "text":
        whole = bytearray(b"<script>alert(1)</script>" * 100)
    elif damage == "length":
        whole[4:8] = (2**31 - 1).to_bytes(4, "little")
    elif damage == "columns":
        other = pa.record_batch({"a": [1]})
        whole = bytearray(other.schema.serialize().to_pybytes() + other.serialize().to_pybytes())
    else:
        for at in rng.integers(0, len(whole), 200):
            whole[at] ^= 0xFF
    path.write_bytes(whole)
    tail = Tail(path)
    batches, _ = tail.read()
    assert len(batches) <= 1
    assert tail.broken


def test_a_run_is_told_as_its_journals_grow(tmp_path: Path) -> None:
    folder = papers(tmp_path / "r")
    run_list = RunList([tmp_path])
    (row,) = run_list.rows()
    assert look(row)["cells"][0]["sent"] == 0
    writers = [run_folder.JournalWriter(folder, worker) for worker in (0, 1)]
    for worker, writer in enumerate(writers):
        writer.write(batch(part(f"0-{worker}", [1.5], "ok", end_s=1.5, output_tokens=1)))
    seen = look(row)
    assert (seen["state"], seen["cells"][0]["load"], seen["cells"][0]["ok"]) == (
        "running",
        CLOSED.label,
        2,
    )
    writers[0].write(batch(part("0-2", [2.0], "error", end_s=2.0)))
    (folder / "journal-7.arrow").write_bytes(b"no journal at all, but of the length of a header")
    seen = look(row)
    assert (seen["cells"][0]["ok"], seen["cells"][0]["failed"]) == (2, 1)
    assert seen["notes"] == ["journal-7.arrow: not a journal, or a damaged one"]
    for writer in writers:
        writer.close()
