"""Reduce the records of a run to what pictures of it need: quantiles, counts over time. One pass,
bounded memory.

A million requests with a hundred million tokens become a few thousand numbers here; nothing later
sees a record.
"""

from collections.abc import Iterable

import msgspec
import numpy as np

from loadstone.analyse.stored_run import StoredRun
from loadstone.core import arrays, run_folder
from loadstone.core.gpu_metrics import Readings
from loadstone.core.plan import Load
from loadstone.core.record import RunInfo
from loadstone.core.vectors import Array, Bools, Floats, Ints64
from loadstone.engines.server_metrics import GAUGES

TIME_BINS = 160
HEAT_TIMES, HEAT_GAPS = 80, 48
GAP_LOW_S, GAP_HIGH_S = 1e-5, 1e2
"""ITL outside of these is counted at the edge."""
LEVELS = np.unique(
    np.concatenate([np.linspace(0, 0.9, 37), np.linspace(0.9, 0.99, 10), [0.995, 0.999, 1.0]])
)
LONGEST_S = 1e8
MAX_CELLS = 7
"""As many lines have colours that nobody takes for one another."""


class Cdf(msgspec.Struct, frozen=True):
    """A distribution of a cell's n ok and short requests: the share levels[i] took values[i] s or
    less.

    Of few requests every step is there, up at each one's value; of more than LEVELS has entries,
    their quantiles.
    """

    label: str
    metric: str
    n: int
    levels: list[float]
    values: list[float]
    p50_s: float
    p99_s: float


class Track(msgspec.Struct, frozen=True):
    """A curve over time: `values[i]` at `times_s[i]`."""

    panel: str
    name: str
    times_s: list[float]
    values: list[float]


class Heat(msgspec.Struct, frozen=True):
    """Counts the inter-token gaps in each box: counts[t, g], edges as given; gaps are over all
    requests."""

    time_edges_s: Floats
    gap_edges_s: Floats
    counts: Ints64


class RunSample(msgspec.Struct, frozen=True):
    """`cells`: (label, start, end) of each, seconds of the run."""

    cdfs: list[Cdf]
    tracks: list[Track]
    heat: Heat | None
    cells: list[tuple[str, float, float]]


def sample(run: StoredRun) -> RunSample | None:
    """Reduce the run's records; None where none of its requests was sent.

    Raises InputError where they cannot be read, ValueError as arrays.events() does.
    """
    edges = _edges(run)
    if edges is None:
        return None
    heat = Heat(
        np.linspace(edges[0], edges[-1], HEAT_TIMES + 1),
        np.geomspace(GAP_LOW_S, GAP_HIGH_S, HEAT_GAPS + 1),
        np.zeros((HEAT_TIMES, HEAT_GAPS), np.int64),
    )
    tokens = np.zeros(TIME_BINS, np.int64)
    requests = []
    for cell in range(len(run.info.cells)):
        parts = [np.empty(0, arrays.ROW)]
        for batch in run_folder.read_records(run.folder, cell, arrays.COLUMNS):
            events = arrays.events(batch)
            parts.append(arrays.rows(batch, events))
            _count(events, heat, tokens, edges)
        requests.append(np.concatenate(parts))
    cdfs = [
        result
        for number in _reduce(len(requests))
        for result in _cdfs(run.info.cells[number].load, requests[number])
    ]
    streams = run.info.streams
    return RunSample(
        cdfs=cdfs,
        tracks=[*_tracks(np.concatenate(requests), tokens, edges), *_server_tracks(run, edges)],
        heat=heat if streams and heat.counts.any() else None,
        cells=_spans(run.info, requests),
    )


def _edges(run: StoredRun) -> Floats | None:
    """Return TIME_BINS bins from the first send to the last end; None without a send. These columns
    cost little to read.
    """
    columns = ("sent_s", "end_s")
    tables = [
        run_folder.read_columns(run.folder, columns, cell) for cell in range(len(run.info.cells))
    ]
    sent, end = (
        np.concatenate([table[name].to_numpy() for table in tables] or [np.empty(0)])
        for name in columns
    )
    if not len(sent) or np.isnan(sent).all():
        return None
    first = float(np.nanmin(sent))
    last = float(np.nanmax(np.concatenate([sent, end])))
    if not -LONGEST_S < first <= last < LONGEST_S:
        raise ValueError("they have times that no run has")
    return np.linspace(first, max(last, first + 1e-6), TIME_BINS + 1)


def _count(events: arrays.Events, heat: Heat, tokens: Ints64, edges: Floats) -> None:
    """Add the events to the heat map and to the tokens per time bin. A gap counts once for each
    token that ended it, divided by them: ITL, as arrays.token_gaps() has it.
    """
    gained = np.maximum(arrays.count_gained(events), 0)
    tokens += np.bincount(
        _bin(events.arrival, edges), weights=gained, minlength=len(tokens)
    ).astype(np.int64)
    at_s, gap_s, brought = arrays.spread_gaps(events.arrival, gained, events.lengths)
    low, high = np.log(GAP_LOW_S), np.log(GAP_HIGH_S)
    position = (np.log(np.maximum(gap_s, GAP_LOW_S)) - low) * (HEAT_GAPS / (high - low))
    row = np.clip(position.astype(np.int64), 0, HEAT_GAPS - 1)
    box = _bin(at_s, heat.time_edges_s) * HEAT_GAPS + row
    heat.counts[...] += (
        np.bincount(box, weights=brought, minlength=heat.counts.size)
        .astype(np.int64)
        .reshape(heat.counts.shape)
    )


def _bin(times: Floats, edges: Floats) -> Ints64:
    width = (edges[-1] - edges[0]) / (len(edges) - 1)
    result: Ints64 = np.clip(((times - edges[0]) / width).astype(np.int64), 0, len(edges) - 2)
    return result


def _reduce(cells: int) -> list[int]:
    """Return cells whose distributions are drawn: all, or some spread evenly over the sweep, its
    ends among them."""
    return [int(number) for number in np.linspace(0, cells - 1, min(cells, MAX_CELLS)).round()]


def _cdfs(load: Load, rows: Array) -> Iterable[Cdf]:
    done = rows[rows["measured"] & arrays.is_completed(rows)]
    unknown = bool(np.isnan(done["intended"]).all())  # as other tools' files have it
    begin = done["sent"] if load.is_closed or unknown else done["intended"]
    values = {
        "TTFT": done["first"] - begin,
        "TPOT": arrays.tpot_s(done),
        "E2E": done["last"] - begin,
    }
    for metric, times_s in values.items():
        present = np.sort(arrays.drop_missing(times_s))
        n = len(present)
        if not n:
            continue
        if n > len(LEVELS):
            levels, drawn = LEVELS, np.quantile(present, LEVELS)
        else:
            levels, drawn = np.repeat(np.arange(n + 1) / n, 2)[1:-1], np.repeat(present, 2)
        p50_s, p99_s = np.quantile(present, (0.5, 0.99)).tolist()
        yield Cdf(load.label, metric, n, levels.tolist(), drawn.tolist(), p50_s, p99_s)


def _spans(info: RunInfo, requests: list[Array]) -> list[tuple[str, float, float]]:
    result = []
    for cell, rows in zip(info.cells, requests, strict=True):
        if len(rows):
            end = np.nanmax(np.concatenate([rows["end"], rows["last"], rows["sent"]]))
            result.append((cell.load.label, float(np.nanmin(rows["sent"])), float(end)))
    return result


def _tracks(rows: Array, tokens: Ints64, edges: Floats) -> Iterable[Track]:
    """Return requests under way and those of them without a first token, tokens/s: each the mean
    over a bin."""
    over = np.where(np.isnan(rows["end"]), rows["last"], rows["end"])
    width_s = float(edges[1] - edges[0])

    def up_to(times: Floats) -> Floats:
        """Count the times that were past, as the mean over each bin: from its integral up to every
        edge."""
        past_s = np.sort(arrays.drop_missing(times))
        past = np.searchsorted(past_s, edges, side="right")
        integral = past * edges - np.concatenate([[0.0], np.cumsum(past_s)])[past]
        return np.asarray(np.diff(integral) / width_s)

    sent, begun, ended = up_to(rows["sent"]), up_to(rows["first"]), up_to(over)
    middles = ((edges[:-1] + edges[1:]) / 2).tolist()
    yield Track("requests", "under way", middles, (sent - ended).clip(0).tolist())
    if not np.isnan(rows["first"]).all():
        never = up_to(np.where(np.isnan(rows["first"]), over, np.nan))
        yield Track(
            "requests", "before their first token", middles, (sent - begun - never).clip(0).tolist()
        )
    yield Track("output tok/s", "arrived", middles, (tokens / width_s).tolist())


def _server_tracks(run: StoredRun, edges: Floats) -> Iterable[Track]:
    """Read what the servers reported: running, waiting, KV use; and power where something else
    reported it."""
    table = run_folder.read_server(run.folder)
    if table is None:
        return
    names = np.asarray(table["name"].to_pylist(), dtype=object)
    times, values = table["time_s"].to_numpy(), table["value"].to_numpy()
    fine = (
        np.isfinite(values) & (np.abs(values) < 1e12) & (times >= edges[0]) & (times <= edges[-1])
    )
    shown = {
        "running": ("requests", "running, says the server", 1.0),
        "waiting": ("requests", "waiting, says the server", 1.0),
        "kv_usage": ("KV cache (%)", "says the server", 100.0),
    }
    for key, names_of in GAUGES.items():
        plain = next((name for name in names_of if "{" not in name and (names == name).any()), None)
        if plain is not None:
            panel, spoken, scale = shown[key]
            yield from _series(panel, spoken, times, values * scale, fine & (names == plain), edges)
    moments, power = Readings(table).interpolate("power_w", edges[0], edges[-1])
    yield from _series(
        "power (W)", "all GPUs", moments, power.sum(axis=0), np.isfinite(moments), edges
    )


def _series(
    panel: str, name: str, times: Floats, values: Floats, wanted: Bools, edges: Floats
) -> Iterable[Track]:
    """Return sums over what was said at one time (ranks, GPUs), then means per bin, so that long
    runs stay small."""
    if not wanted.any():
        return
    moments, inverse = np.unique(times[wanted], return_inverse=True)
    total: Array = np.bincount(inverse, weights=values[wanted])
    if panel.startswith("KV"):
        total = total / np.bincount(inverse)
    box = _bin(moments, edges)
    count = np.bincount(box, minlength=len(edges) - 1)
    mean = np.bincount(box, weights=total, minlength=len(edges) - 1)[count > 0] / count[count > 0]
    middles = ((edges[:-1] + edges[1:]) / 2)[count > 0]
    yield Track(panel, name, middles.tolist(), mean.tolist())
