"""The self-test: against real servers at small levels, and its arithmetic on times made by hand."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from conftest import Loadstone
from loadstone.analyse import client_accuracy
from loadstone.analyse.client_accuracy import ClientErrors, Selftest, SelftestRow, Shift
from loadstone.core import host, run_folder
from loadstone.core.errors import InputError
from loadstone.core.host import Host
from loadstone.core.metrics import Latency, Metrics, Requests
from loadstone.core.plan import Load, LoadKind
from loadstone.core.record import RequestRecord
from loadstone.core.summary import CellSummary, Client
from loadstone.core.verdict import Verdict
from loadstone.measure.simulated_server import FixedLatency
from loadstone.report.pages.selftest import render
from loadstone.report.table import to_text
from loadstone.runs import bench as measure
from loadstone.runs import selftest
from loadstone.runs.selftest import StreamLevel, compare, spread

CLOCKS_DIFFER_S = 50e-6  # kernel stamps are CLOCK_REALTIME, mapped by an offset that is sampled
ORIGIN_NS = 1_000_000_000_000
LAW = FixedLatency(ttft_s=0.1, itl_s=0.1)
LOAD = Load("concurrency", 2)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "loadstone"


# The real thing.


@pytest.mark.process
def test_small_levels() -> None:
    said: list[str] = []
    found = selftest.run([StreamLevel(1, 100, 0.4), StreamLevel(5, 100, 0.4)], False, said.append)
    assert said == ["1 × 100 tokens/s", "5 × 100 tokens/s"]
    assert [(row.streams, row.contended) for row in found.rows] == [(1, False), (5, False)]
    for row in found.rows:
        assert row.comparison is not None, row.note
        error = row.comparison.error_s
        assert error.n == row.streams * 2 * 20
        assert row.comparison.request_s.n == row.streams * 2
        assert row.comparison.unmatched == 0
        # A token cannot come before it was written, nor be written before it was due; nor a request
        # be read unsent.
        assert -CLOCKS_DIFFER_S < error.min <= error.p50 <= error.max
        assert row.comparison.server_late_s.min >= 0
        assert row.comparison.request_s.min > -CLOCKS_DIFFER_S
        assert 0 < (row.events_per_s or 0) <= 1.05 * row.streams * row.tokens_per_s
        assert row.clock in ("kernel", "user")
        assert (row.client_cores or 0) > 0
    assert client_accuracy.save(found).is_file()
    assert client_accuracy.load() == found


@pytest.mark.process
def test_contention_is_there_and_ends() -> None:
    with selftest._keep_busy(2) as pids:
        deadline = time.monotonic() + 10
        while not all(cpu_s(pid) > 0 for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert all(cpu_s(pid) > 0 for pid in pids)
        assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in pids} == {
            os.getpriority(os.PRIO_PROCESS, 0)
        }
    assert len(pids) == 2
    assert not any(map(running, pids))


@pytest.mark.process
def test_busy_processes_die_with_their_owner() -> None:
    code = "import time; from loadstone.runs import selftest\n"
    code += "with selftest._keep_busy(1) as pids: print(pids[0], flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        owner.kill()
    deadline = time.monotonic() + 10
    while running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not running(pid)


def stat(pid: int) -> list[str]:
    """State and what follows it in /proc/<pid>/stat; nothing where there is no such process."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def running(pid: int) -> bool:
    return stat(pid)[:1] not in ([], ["Z"])


def cpu_s(pid: int) -> float:
    return sum(map(int, stat(pid)[11:13])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.process
def test_a_level_the_host_cannot_do_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 100))
    (row,) = selftest.run([StreamLevel(50, 10)], False).rows
    assert row.comparison is None
    assert row.note == "the limit of open files is 100; raise it with ulimit -n"


@pytest.mark.process
def test_a_run_that_fails_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def bench(options: Any) -> Any:
        raise InputError("no room")

    monkeypatch.setattr(measure, "bench", bench)
    (row,) = selftest.run([StreamLevel(1, 10)], False).rows
    assert (row.comparison, row.note) == (None, "no room")


# Arithmetic.


def records(*given: dict[str, Any]) -> pa.Table:
    """A table of records; `arrival_s` and `sent_s` are said, the rest is as in a good request."""
    rows = []
    for index, fields in enumerate(given):
        tokens = len(fields["arrival_s"])
        good: dict[str, Any] = {
            "request_id": f"0-{index}",
            "cell": 0,
            "phase": "measure",
            "status": "ok",
        }
        good |= {
            "read": list(range(tokens)),
            "intended_s": fields["sent_s"],
            "tokens": list(range(1, tokens + 1)),
            "output_tokens": tokens,
        }
        rows.append(
            msgspec.to_builtins(RequestRecord(**good | {"end_s": fields["arrival_s"][-1]} | fields))
        )
    return pa.Table.from_pylist(rows, schema=run_folder.records_schema())


def ns(*seconds: float) -> list[int]:
    return [ORIGIN_NS + round(second * 1e9) for second in seconds]


def test_compare_by_hand() -> None:
    table = records(
        {"sent_s": 1.0, "arrival_s": [1.102, 1.204, 1.304]},
        {"sent_s": 2.0, "arrival_s": [2.105, 2.203, 2.301]},
        {"sent_s": 0.0, "arrival_s": [9.0], "phase": "warmup"},
        {"sent_s": 0.0, "arrival_s": [9.0], "status": "error"},
    )
    truth = {
        "selftest-0-0": ns(
            1.0005, 1.1005, 1.2025, 1.3005
        ),  # read, then written; due at 1.1005, 1.2005, 1.3005
        "selftest-0-1": ns(2.001, 2.101, 2.201, 2.301),
        "selftest-0-2": ns(0, 0.1),
        "selftest-0-3": ns(0, 0.1),
    }
    found = compare(table, truth, ORIGIN_NS, LAW, LOAD)
    assert found is not None
    # Errors in ms: 1.5, 1.5, 3.5 and 4, 2, 0. Lateness: 0, 2, 0 and 0, 0, 0. Requests: 0.5 and 1.
    assert (found.error_s.n, found.unmatched) == (6, 0)
    assert found.error_s.min == pytest.approx(0, abs=1e-9)
    assert found.error_s.p50 == pytest.approx(0.00175)
    assert found.error_s.max == pytest.approx(0.004)
    assert found.server_late_s.max == pytest.approx(0.002)
    assert found.server_late_s.p50 == pytest.approx(0, abs=1e-9)
    assert (found.request_s.min, found.request_s.max) == (
        pytest.approx(0.0005),
        pytest.approx(0.001),
    )
    assert found.ttft_s is not None
    assert found.itl_s is not None
    # TTFT by us 102 and 105 ms, by the server 100.5 and 101.
    # ITL by us 102, 100, 98, 98, by the server 102, 98, 100, 100.
    assert found.ttft_s.p50 == pytest.approx(0.1035 - 0.10075)
    assert found.ttft_s.p99 == pytest.approx((0.102 + 0.99 * 0.003) - (0.1005 + 0.99 * 0.0005))
    assert found.itl_s.p50 == pytest.approx(0.099 - 0.100, abs=1e-8)


def test_a_late_client_is_told_from_a_late_server() -> None:
    """The same arrivals: either the tokens were written late, or they were written in time and
    noticed late."""
    table = records({"sent_s": 0.0, "arrival_s": [0.35, 0.45]})
    server_late = compare(table, {"selftest-0-0": ns(0, 0.35, 0.45)}, ORIGIN_NS, LAW, LOAD)
    client_late = compare(table, {"selftest-0-0": ns(0, 0.1, 0.2)}, ORIGIN_NS, LAW, LOAD)
    assert server_late is not None
    assert client_late is not None
    assert (server_late.error_s.max, server_late.server_late_s.max) == pytest.approx(
        (0, 0.25), abs=1e-9
    )
    assert (client_late.error_s.max, client_late.server_late_s.max) == pytest.approx(
        (0.25, 0), abs=1e-9
    )


def test_coalesced_tokens_are_those_read_with_a_later_one() -> None:
    times = [0.1, 0.3, 0.3, 0.3]
    table = records(
        {"sent_s": 0.0, "arrival_s": times, "read": [0, 1, 1, 1]},
        {
            "sent_s": 0.0,
            "arrival_s": times,
            "read": [1, 2, 3, 4],
        },  # its first read has the number of the last before
    )
    truth = {f"selftest-0-{index}": ns(0, 0.1, 0.2, 0.25, 0.3) for index in range(2)}
    found = compare(table, truth, ORIGIN_NS, LAW, LOAD)
    assert found is not None
    assert found.coalesced == 2 / 8
    assert found.error_s.max == pytest.approx(0.1)


def test_tokens_that_do_not_match_are_counted() -> None:
    table = records(*({"sent_s": 0.0, "arrival_s": [0.1, 0.2]} for _ in range(4)))
    truth = {"selftest-0-0": ns(0, 0.1, 0.2), "selftest-0-1": ns(0, 0.1), "selftest-0-2": []}
    found = compare(table, truth, ORIGIN_NS, LAW, LOAD)
    assert found is not None
    assert (found.unmatched, found.error_s.n) == (3, 2)
    assert compare(table, {}, ORIGIN_NS, LAW, LOAD) is None


def test_spread_gives_no_percentile_that_nothing_lies_beyond() -> None:
    few = spread(np.array([3.0, 1.0, 2.0]))
    assert (few.n, few.min, few.p50, few.max) == (3, 1.0, 2.0, 3.0)
    assert (few.p90, few.p99, few.p999) == (None, None, None)
    values = np.arange(101.0)
    assert (spread(values).p90, spread(values).p99, spread(values).p999) == (90.0, 99.0, None)
    assert spread(np.arange(1001.0)).p999 == pytest.approx(999.0)


# What is kept.


def row(
    streams: int, tokens_per_s: float = 20, *, p50: float = 30e-6, n: int = 1000, **fields: Any
) -> SelftestRow:
    values = np.full(n, p50)
    values[n // 2 + 1 :] = 3 * p50
    error = spread(values)
    shift = Shift(p50, 2 * p50)
    comparison = ClientErrors(
        error_s=error,
        ttft_s=shift,
        itl_s=None,
        request_s=error,
        server_late_s=error,
        coalesced=0.0,
        unmatched=0,
    )
    given: dict[str, Any] = {
        "events_per_s": 0.99 * streams * tokens_per_s,
        "contended": False,
        "created": "2026-11-21",
    }
    given |= {"comparison": comparison}
    return SelftestRow(streams=streams, tokens_per_s=tokens_per_s, **given | fields)


def test_save_keeps_what_was_not_measured_again(cache: Path) -> None:
    assert client_accuracy.load() is None
    first = Selftest(host=host.describe(), rows=[row(1), row(100), row(1, contended=True)])
    file = client_accuracy.save(first)
    assert file.parent == cache
    assert client_accuracy.load() == first
    client_accuracy.save(Selftest(host=Host(cores=2), rows=[row(10), row(1, p50=5e-6)]))
    kept = client_accuracy.load()
    assert kept is not None
    assert kept.host == Host(cores=2)
    assert kept.rows == [row(1, p50=5e-6), row(10), row(100), row(1, contended=True)]
    document = json.loads(file.read_bytes())
    assert (document["schema"], sorted(document)) == (1, ["host", "rows", "schema"])


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"null", b'{"schema":1}', b'{"schema":1,"host":{},"rows":[{"streams":"many"}]}',
     b'{"schema":2,"host":{},"rows":[]}', b"[" * 100_000, b" " * (1 << 21)],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_none(content: bytes, cache: Path) -> None:
    client_accuracy.save(Selftest(host=Host(), rows=[row(1)]))
    client_accuracy.path().write_bytes(content)
    assert client_accuracy.load() is None
    client_accuracy.save(Selftest(host=Host(), rows=[row(1)]))
    assert client_accuracy.load() is not None


def test_another_host_has_another_selftest(monkeypatch: pytest.MonkeyPatch) -> None:
    client_accuracy.save(Selftest(host=Host(), rows=[row(1)]))
    about = host.describe()
    monkeypatch.setattr(
        host, "describe", lambda: msgspec.structs.replace(about, load_average=99.0, memory_bytes=1)
    )
    assert client_accuracy.load() is not None
    for change in ({"cores": 999}, {"cpu": "other"}, {"system": "Linux 1.0"}, {"python": "3.99"}):
        monkeypatch.setattr(
            host, "describe", lambda change=change: msgspec.structs.replace(about, **change)
        )
        assert client_accuracy.load() is None


def test_a_cache_that_cannot_be_written_is_one_line(cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    assert client_accuracy.load() is None
    with pytest.raises(InputError, match="XDG_CACHE_HOME"):
        client_accuracy.save(Selftest(host=Host(), rows=[row(1)]))


@pytest.mark.process
def test_what_cannot_be_kept_is_shown_all_the_same(
    cache: Path, loadstone: Loadstone, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write_text("a file where the folder should be")
    monkeypatch.setattr(selftest, "run", lambda *_: Selftest(host=Host(cores=2), rows=[row(1)]))
    for flags in ((), ("--json",)):
        outcome = loadstone("selftest", *flags)
        assert outcome.code == 2
        assert outcome.err.startswith("loadstone: the self-test cannot be kept in")
        assert "XDG_CACHE_HOME" in outcome.err
        assert outcome.out
    assert outcome.document["rows"][0]["streams"] == 1


# What a run says of it.


def cell(kind: LoadKind, value: float, events_per_s: float, **load: Any) -> CellSummary:
    """Of requests that took two seconds."""
    return CellSummary(
        load=Load(kind, value, **load),
        requests=Requests(),
        metrics=Metrics(
            output_tokens_per_s=4 * events_per_s,
            output_tokens=400,
            output_events=100,
            requests_per_s=value if kind == "rate" else 1.0,
            e2e_s=Latency(mean=2.0),
            tpot_s=Latency(p50=0.01),
        ),
        client=Client(receive_lag_p99_s=0.009),
        verdict=Verdict(True, []),
    )


TESTED = Selftest(
    host=Host(),
    rows=[
        row(1, p50=10e-6, n=80),
        row(10, p50=20e-6),
        row(100),
        row(1000, comparison=None, events_per_s=None, note="could not"),
        row(5000, 10, contended=True),
    ],
)


def test_bound_is_the_next_larger_level() -> None:
    def streams(at_once: float, events_per_s: float) -> int | None:
        found = client_accuracy.bound(TESTED, at_once, events_per_s)
        return found.streams if found is not None else None

    assert [streams(n, 10) for n in (0.4, 1, 2, 10, 11, 100)] == [1, 1, 10, 10, 100, 100]
    assert [streams(1, rate) for rate in (19.8, 20, 198, 1980)] == [1, 10, 10, 100]
    # Neither a level that could not be done counts, nor one under contention.
    assert streams(101, 10) is None
    assert streams(1, 1981) is None


def test_quote() -> None:
    line, finding = client_accuracy.quote(cell("concurrency", 8, 150), TESTED)
    assert finding is None
    assert (
        line
        == "self-test of this host at 10 streams, 198 events/s: a token's time is off by 20 µs, p99 60 µs"
    )
    line, _ = client_accuracy.quote(cell("concurrency", 1, 15), TESTED)
    assert line is not None
    assert line.endswith("at most 30 µs")  # too few tokens for a p99


def test_quote_beyond_is_an_info() -> None:
    line, finding = client_accuracy.quote(cell("burst", 400, 1000), TESTED)
    assert line == "beyond the self-test of this host"
    assert finding is not None
    assert (finding.kind, finding.severity) == ("beyond_selftest", "info")
    assert "400 streams" in finding.evidence
    assert "100 streams" in finding.evidence


def test_a_client_that_reads_far_later_than_it_was_tested_is_not_vouched_for() -> None:
    tested = Selftest(host=Host(), rows=[row(10, receive_lag_p99_s=0.002)])

    def quoted(lag_s: float | None) -> tuple[str, str | None]:
        run = cell("concurrency", 8, 150)
        run.client = Client(receive_lag_p99_s=lag_s)
        line, finding = client_accuracy.quote(run, tested)
        assert line is not None
        return line, f"{finding.severity} {finding.evidence}" if finding is not None else None

    assert quoted(0.019)[0].startswith(
        "self-test of this host at 10 streams"
    )  # late, but no later than ten times
    assert quoted(None)[1] is None
    line, finding = quoted(0.3)
    assert (
        line
        == "the self-test of this host does not apply here: the client read later than in the self-test"
    )
    assert finding is not None
    assert finding.startswith("info the receive lag was 300 ms (p99), and 2.0 ms in the self-test")


def test_quote_counts_streams_as_the_load_does() -> None:
    # 40 requests/s of two seconds: 80 under way; a cap holds; a burst of 400 under a cap of 5 is 5
    # at once.
    assert client_accuracy._streams(cell("rate", 40, 100)) == 80
    assert client_accuracy._streams(cell("rate", 40, 100, max_concurrency=6)) == 6
    assert client_accuracy._streams(cell("burst", 400, 100, max_concurrency=5)) == 5
    assert client_accuracy.events_per_s(cell("concurrency", 1, 100)) == 100


def test_nothing_is_said_without_a_selftest_or_output() -> None:
    assert client_accuracy.quote(cell("concurrency", 1, 10), None) == (None, None)
    silent = cell("rate", 40, 0)
    silent.metrics = Metrics(
        output_tokens_per_s=0.0, output_tokens=0, output_events=0, tpot_s=Latency(p50=0.01)
    )
    assert client_accuracy.quote(silent, TESTED) == (None, None)


def test_render_shows_every_row_and_note() -> None:
    text = to_text(render(TESTED), 160)
    for shown in ("1 × 20/s", "10 × 20/s", "5000 × 10/s busy", "1000 × 20/s: could not", "60 µs"):
        assert shown in text
