"""Keeps the result of the self-test of this host's client for later runs, and quotes it under their
tables."""

import hashlib
import math
from pathlib import Path

import msgspec

from loadstone.analyse.verdict.finding import finding
from loadstone.core import host, run_folder
from loadstone.core.errors import InputError
from loadstone.core.files import read_json
from loadstone.core.summary import CellSummary
from loadstone.core.units import show_number, show_seconds
from loadstone.core.verdict import Finding
from loadstone.core.version import __version__

SCHEMA = 1
LAG_TIMES = 10.0
"""Receive lag of a run over the self-test's, from which the client was not what was tested."""
_MAX_BYTES = 1 << 20


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """A sample of `n` times, seconds; a percentile is None where fewer than one value lies beyond
    it."""

    n: int
    min: float
    p50: float
    p90: float | None
    p99: float | None
    p999: float | None
    max: float


class Shift(msgspec.Struct, frozen=True):
    """A metric's percentiles by the client's times minus the same by the server's, seconds."""

    p50: float
    p99: float


class ClientErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Compares records with the truth, over measured requests that are ok.

    error_s            of each token: our arrival − its write
    ttft_s, itl_s      shifts; TTFT from our `sent_s` in both
    request_s          of each request: read by the server − our `sent_s`, which can be no later
                       than this
    server_late_s      of each token: its write − when the law had it due
    coalesced          tokens that one read brought together with a later one, as a share: they have
                       its stamp
    unmatched          requests of which the truth knows nothing, or another number of tokens
    """

    error_s: Spread
    ttft_s: Shift | None
    itl_s: Shift | None
    request_s: Spread
    server_late_s: Spread
    coalesced: float
    unmatched: int


class SelftestRow(msgspec.Struct, frozen=True, kw_only=True):
    """One level of the self-test. `note`: why there are no numbers, or a caution. `client_cores`:
    busy, on average.
    """

    streams: int
    tokens_per_s: float
    contended: bool
    created: str
    note: str | None = None
    clock: str | None = None
    events_per_s: float | None = None
    comparison: ClientErrors | None = None
    receive_lag_p99_s: float | None = None
    send_lag_p99_s: float | None = None
    client_cores: float | None = None


class Selftest(msgspec.Struct, frozen=True, kw_only=True):
    """The accuracy of one host's client; as JSON it is printed by `--json` and kept in the cache
    folder."""

    schema: int = SCHEMA
    host: host.Host
    rows: list[SelftestRow]


# --- what is kept ---------------------------------------------------------------------------------


def path() -> Path:
    """Name the file of this host's self-test: a host is its processor, cores, kernel, Python and
    this program."""
    about = host.describe()
    same = [about.cpu, about.cores, about.system, about.python, __version__]
    key = hashlib.sha256(msgspec.json.encode(same)).hexdigest()[:12]
    return host.cache_folder() / f"selftest-{key}.json"


def save(selftest: Selftest) -> Path:
    """Keep it for later runs, with levels of an earlier one that it has not. Raises InputError, one
    line."""
    file, earlier = path(), load()

    def level(row: SelftestRow) -> tuple[bool, int, float]:
        return row.contended, row.streams, row.tokens_per_s

    rows = {
        level(row): row for row in [*(earlier.rows if earlier is not None else ()), *selftest.rows]
    }
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        run_folder.write_json(
            file, msgspec.structs.replace(selftest, rows=sorted(rows.values(), key=level))
        )
    except (OSError, InputError) as error:
        raise InputError(
            f"the self-test cannot be kept in {file.parent}; set XDG_CACHE_HOME"
        ) from error
    return file


def load() -> Selftest | None:
    """Read this host's self-test; None where there is none that can be read."""
    try:
        selftest = read_json(
            path(), Selftest, _MAX_BYTES, "a self-test", "make one with `loadstone selftest`"
        )
    except (InputError, RuntimeError):  # no file, no JSON, no home
        return None
    return selftest if selftest.schema == SCHEMA else None


# --- what a run may say of it ---------------------------------------------------------------------


def bound(selftest: Selftest, streams: float, events_per_s: float) -> SelftestRow | None:
    """Find the smallest level without contention that had at least so many streams and events; None
    beyond the largest.
    """
    rows = [
        row
        for row in selftest.rows
        if not row.contended
        and row.comparison is not None
        and row.streams >= streams
        and (row.events_per_s or 0) >= events_per_s
    ]
    return min(rows, key=lambda row: (row.streams, row.tokens_per_s), default=None)


def quote(cell: CellSummary, selftest: Selftest | None) -> tuple[str | None, Finding | None]:
    """Quote the self-test for a run's cell: a line for the table's foot, and a finding or None.

    Both are None where there is no self-test, or nothing arrived. A run beyond the self-test is an
    info, no warning: that nobody looked is no evidence against it, and its own receive lag and late
    sends are judged in any case.
    """
    streams, rate = _streams(cell), events_per_s(cell)
    if selftest is None or streams is None or not rate:
        return None, None
    row = bound(selftest, streams, rate)
    lag_s = cell.client.receive_lag_p99_s
    if row is not None and _waited(cell, row):
        line = (
            "the self-test of this host does not apply here: the client read later than in the"
            " self-test"
        )
        tested_s = row.receive_lag_p99_s
        return line, finding("beyond_selftest.late", lag_s=lag_s, tested_lag_s=tested_s)
    if row is not None and row.comparison is not None:
        error = row.comparison.error_s
        name, most_s = ("p99", error.p99) if error.p99 is not None else ("at most", error.max)
        size = f"{show_number(row.streams, 1)} streams, {show_number(row.events_per_s, 2)} events/s"
        error_line = (
            f"a token's time is off by {show_seconds(error.p50, 2)}, {name}"
            f" {show_seconds(most_s, 2)}"
        )
        return f"self-test of this host at {size}: {error_line}", None
    tested = [row for row in selftest.rows if row.comparison is not None and not row.contended]
    largest = max(tested, key=lambda row: row.events_per_s or 0, default=None)
    return "beyond the self-test of this host", finding(
        "beyond_selftest",
        streams=math.ceil(streams),
        events_per_s=rate,
        tested_streams=largest.streams if largest else None,
        tested_events_per_s=largest.events_per_s if largest else None,
    )


def _waited(cell: CellSummary, row: SelftestRow) -> bool:
    """Tell if the cell's receive lag (p99) is not as in the self-test, and long enough to bring
    tokens together.

    Stamps are the kernel's: as long as a read comes before the stream's next token, its waiting
    changes no time.
    """
    lag_s, tested_s = cell.client.receive_lag_p99_s, row.receive_lag_p99_s
    tpot = cell.metrics.tpot_s
    if lag_s is None or tested_s is None or tpot is None:
        return False
    return lag_s >= max(tpot.p50 or 0.0, LAG_TIMES * tested_s)


def _streams(cell: CellSummary) -> float | None:
    """Count the requests under way at once: as the load says, and of an open loop as many as
    Little's law gives."""
    load, rate, e2e = cell.load, cell.metrics.requests_per_s, cell.metrics.e2e_s
    cap = load.max_concurrency or math.inf
    if not load.is_open:
        return min(load.value, cap)
    if rate is None or e2e is None or e2e.mean is None:
        return None
    return min(rate * e2e.mean, cap)


def events_per_s(cell: CellSummary) -> float | None:
    """Compute the stream events/s while the load was full."""
    metrics = cell.metrics
    tokens_per_s = (metrics.steady or metrics).output_tokens_per_s
    if tokens_per_s is None or not metrics.output_tokens or metrics.output_events is None:
        return None
    return tokens_per_s * metrics.output_events / metrics.output_tokens
