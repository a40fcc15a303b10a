"""The client proves itself on this host: its time of every token against the server's time of
writing that token.

The server is the timing server in a process of its own, the client the real one: workers, sockets,
journal, records. Both read CLOCK_MONOTONIC, so the two times of a token differ by its way through
the kernel and by the client's error. docs/selftest.md has the method, its limits and an example.
"""

import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import httpx
import msgspec
import numpy as np
import pyarrow as pa

from loadstone.analyse.client_accuracy import (
    ClientErrors,
    Selftest,
    SelftestRow,
    Shift,
    Spread,
    events_per_s,
)
from loadstone.analyse.metrics import measure_cell
from loadstone.core import host, run_folder
from loadstone.core.errors import LoadstoneError
from loadstone.core.files import TemporaryFolder
from loadstone.core.plan import Load
from loadstone.core.statistics import Distribution, percentile
from loadstone.core.summary import Summary
from loadstone.core.units import show_seconds
from loadstone.core.vectors import Floats
from loadstone.measure.simulated_server import FixedLatency, TimingServer, start
from loadstone.runs import bench
from loadstone.workload.options import Options

_SALT = "selftest"
_INPUT_TOKENS, _OUTPUT_TOKENS = 32, 20
_SPARE_FILES = 64
_LATE_SHARE = 0.5
"""Of the time between a stream's tokens: a server later than this (p99) does not offer the load
that a row names."""


class StreamLevel(msgspec.Struct, frozen=True):
    """A load of so many streams at once, each at this rate, measured for about so many seconds."""

    streams: int
    tokens_per_s: float
    seconds: float = 4.0


LEVELS = (
    StreamLevel(1, 20),
    StreamLevel(10, 20),
    StreamLevel(100, 20),
    StreamLevel(1000, 20),
    StreamLevel(5000, 10),
)
QUICK_LEVELS = (StreamLevel(1, 20, 2), StreamLevel(10, 20, 2), StreamLevel(100, 20, 2))


# --- measuring ------------------------------------------------------------------------------------


def run(
    levels: Sequence[StreamLevel] = LEVELS,
    contention: bool = True,
    on_event: Callable[[str], None] = lambda text: None,
) -> Selftest:
    """Measure every level, then with `contention` every level again with as many busy processes as
    cores.

    `on_event` is told what comes next. A level that this host cannot do is a row with a note.
    Ctrl-C raises.
    """
    described = host.describe()
    rows = []
    for contended in (False, True) if contention else (False,):
        with _keep_busy(described.cores or 1) if contended else contextlib.nullcontext():
            for level in levels:
                contention_text = ", with busy processes" if contended else ""
                on_event(f"{level.streams} × {level.tokens_per_s:g} tokens/s{contention_text}")
                rows.append(_row(level, contended))
    return Selftest(host=described, rows=rows)


def _row(level: StreamLevel, contended: bool) -> SelftestRow:
    row = SelftestRow(
        streams=level.streams,
        tokens_per_s=level.tokens_per_s,
        contended=contended,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if limit not in (resource.RLIM_INFINITY, -1) and level.streams + _SPARE_FILES > limit:
        return msgspec.structs.replace(
            row, note=f"the limit of open files is {limit}; raise it with ulimit -n"
        )
    itl_s = 1 / level.tokens_per_s
    law = FixedLatency(ttft_s=itl_s, itl_s=itl_s)
    try:
        with TemporaryFolder() as folder, start(law, keep_truth=True) as server:
            options = Options.read(
                url=server.url,
                concurrency=[level.streams],
                requests=[level.streams * max(1, round(level.seconds / (_OUTPUT_TOKENS * itl_s)))],
                input=str(_INPUT_TOKENS),
                output=str(_OUTPUT_TOKENS),
                salt=_SALT,
                out=folder,
            )
            summary = bench.bench(options)
            return _numbers(row, summary, law, _ask_truth(server))
    except LoadstoneError as error:
        return msgspec.structs.replace(row, note=str(error))


def _ask_truth(server: TimingServer) -> dict[str, list[int]]:
    """Ask the server for its times by X-Request-Id, CLOCK_MONOTONIC ns: when the request was read,
    then when each token was written.
    """
    try:
        answer = httpx.get(f"{server.url}/truth", timeout=60, trust_env=False)
    except httpx.HTTPError as error:
        raise LoadstoneError(f"the timing server did not say when it wrote ({error})") from error
    return msgspec.json.decode(answer.content, type=dict[str, list[int]])


def _numbers(
    row: SelftestRow,
    summary: Summary,
    law: FixedLatency,
    truth: Mapping[str, Sequence[int]],
) -> SelftestRow:
    if not summary.cells:
        return msgspec.structs.replace(row, note="nothing was sent")
    folder, cell = Path(summary.run_dir), summary.cells[0]
    info = run_folder.read_info(folder)
    records = pa.Table.from_batches(
        run_folder.read_records(folder, 0), schema=run_folder.records_schema()
    )
    comparison = compare(records, truth, info.origin_ns or 0, law, info.cells[0].load)
    ran, sent, ok = info.cells[0], cell.requests.sent or 0, cell.requests.ok or 0
    ran_s = ran.end_s - ran.start_s if ran.end_s is not None and ran.start_s is not None else None
    notes = (
        [] if info.clock == "kernel" else ["no kernel stamps here: arrivals are times of reading"]
    )
    if comparison is None:
        notes.append("no request could be compared")
    if ok < sent:
        notes.append(f"{sent - ok} of {sent} requests failed")
    if comparison is not None and comparison.unmatched:
        notes.append(
            f"{comparison.unmatched} requests have another number of tokens than were written"
        )
    late_s = comparison.server_late_s.p99 if comparison is not None else None
    if late_s is not None and late_s > _LATE_SHARE / row.tokens_per_s:
        notes.append(
            f"the server itself was {show_seconds(late_s, 2)} late: the load was less even than"
            " this"
        )
    return msgspec.structs.replace(
        row,
        note="; ".join(notes) or None,
        clock=info.clock,
        events_per_s=events_per_s(cell),
        comparison=comparison,
        receive_lag_p99_s=cell.client.receive_lag_p99_s,
        send_lag_p99_s=cell.client.send_lag_p99_s,
        client_cores=ran.client_cpu_s / ran_s if ran_s and ran.client_cpu_s is not None else None,
    )


@contextlib.contextmanager
def _keep_busy(processes: int) -> Iterator[list[int]]:
    """Run so many processes that only count, at this one's priority; yields their ids. They end
    with the block, or with us.
    """
    program = f"import os\nwhile os.getppid() == {os.getpid()}:\n for _ in range(100_000): pass"
    pids = []
    with contextlib.ExitStack() as stack:
        for _ in range(processes):
            process = stack.enter_context(
                subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
            )
            stack.callback(process.kill)
            pids.append(process.pid)
        yield pids


# --- arithmetic -----------------------------------------------------------------------------------


def compare(
    records: pa.Table,
    truth: Mapping[str, Sequence[int]],
    origin_ns: int,
    law: FixedLatency,
    load: Load,
) -> ClientErrors | None:
    """Compare records of one cell with the truth (see `_ask_truth`); None where no measured request
    is ok and matched.

    `origin_ns`: CLOCK_MONOTONIC at the records' time 0.
    """
    import pyarrow.compute as pc

    chosen = records.filter(
        pc.and_(pc.equal(records["phase"], "measure"), pc.equal(records["status"], "ok"))
    )
    lengths = pc.fill_null(pc.list_value_length(chosen["arrival_s"]), 0).to_pylist()
    matched, written, late, received = [], [], [], []
    for row, (name, tokens) in enumerate(
        zip(chosen["request_id"].to_pylist(), lengths, strict=True)
    ):
        read_ns, *written_ns = truth.get(f"{_SALT}-{name}") or [0]
        if not written_ns or len(written_ns) != tokens:
            continue
        due_ns = [read_ns + law.due_ns(0, token) for token in range(tokens)]
        matched.append(row)
        received.append(read_ns)
        written.append(np.subtract(written_ns, origin_ns) * 1e-9)
        late.append(np.subtract(written_ns, due_ns) * 1e-9)
    if not matched:
        return None
    ours = chosen.take(matched)
    index = ours.schema.get_field_index("arrival_s")
    theirs = ours.set_column(
        index, ours.schema.field(index), pa.array(written, pa.list_(pa.float64()))
    )
    arrival_s = ours["arrival_s"].combine_chunks().flatten().to_numpy()
    by_us, by_them = (measure_cell(table.to_batches, load).samples for table in (ours, theirs))
    return ClientErrors(
        error_s=spread(arrival_s - np.concatenate(written)),
        ttft_s=_shift(by_us["ttft_s"], by_them["ttft_s"]),
        itl_s=_shift(by_us["itl_s"], by_them["itl_s"]),
        request_s=spread(np.subtract(received, origin_ns) * 1e-9 - ours["sent_s"].to_numpy()),
        server_late_s=spread(np.concatenate(late)),
        coalesced=_coalesced_share(ours),
        unmatched=len(chosen) - len(matched),
    )


def _coalesced_share(records: pa.Table) -> float:
    """Return the share of events that came in one read with the event after them."""
    reads = records["read"].combine_chunks()
    numbers = reads.flatten().to_numpy()
    same = np.flatnonzero(numbers[1:] == numbers[:-1]) + 1
    firsts = np.cumsum(reads.value_lengths().to_numpy())[:-1]
    return len(np.setdiff1d(same, firsts)) / len(numbers)


def spread(values: Floats) -> Spread:
    """Return the spread of at least one value, in any order."""
    ordered = np.sort(values)
    n = len(ordered)

    def at(q: float) -> float | None:
        return percentile(ordered, q) if n * (1 - q) >= 1 - 1e-9 else None

    low, median, high = float(ordered[0]), float(np.median(ordered)), float(ordered[-1])
    return Spread(n=n, min=low, p50=median, p90=at(0.9), p99=at(0.99), p999=at(0.999), max=high)


def _shift(ours: Distribution | None, theirs: Distribution | None) -> Shift | None:
    if ours is None or theirs is None:
        return None
    return Shift(ours.p50 - theirs.p50, ours.p99 - theirs.p99)
