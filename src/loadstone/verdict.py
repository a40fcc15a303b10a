"""Whether a cell's numbers can be believed: findings, each with its evidence and what to do about it.

No warning and no error means trusted. Thresholds are named below, with their reasons.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from loadstone.metrics import CellMetrics
from loadstone.records import Clock, Load, Plan
from loadstone.schedule import promised_tokens
from loadstone.units import show_seconds

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

Severity = Literal["info", "warning", "error"]

LATE_SHARE = 0.05
"""A send later than this share of the median E2E changes what is measured."""
LATE_FLOOR_S = 0.005
LATE_REQUESTS = 0.01
"""Late sends, as a share of requests and at least two, from which percentiles suffer: one hiccup in a short run is
one request among others."""
IMBALANCE = 1.25
"""The busiest server's output tokens over the mean, from which a fleet is unevenly used."""
CACHED_SHARE = 0.01
"""Cached tokens beyond the plan's promise, as a share of input tokens, from which a run is flattered."""
SYSTEM_TOKENS = 16
"""What a chat template may add for a system message, which is shared too."""
LENGTH_SHARE = 0.01
"""Requests whose input is not as long as asked, from which the workload is another one."""
BUNCHED_S = 1e-5
"""Time per output token, median, below which tokens were not streamed: well below any engine's step."""
COALESCED_TOKENS = 1.05
"""Tokens per output event from which events are no tokens."""


class Finding(msgspec.Struct, frozen=True):
    kind: str
    severity: Severity
    evidence: str
    remedy: str


class Verdict(msgspec.Struct, frozen=True):
    trusted: bool
    findings: list[Finding]


def judge(findings: list[Finding]) -> Verdict:
    order = ("error", "warning", "info")
    ranked = sorted(findings, key=lambda finding: order.index(finding.severity))
    return Verdict(all(finding.severity == "info" for finding in ranked), ranked)


SCALARS = (
    "request_id", "phase", "status", "error", "turn", "intended_s", "sent_s", "input_tokens", "output_tokens",
    "cached_tokens", "token_source",
)  # fmt: skip
"""The columns of the records that `cell_findings` looks at, beside the metrics."""


def cell_findings(
    metrics: CellMetrics,
    scalars: pa.Table,
    plan: Plan,
    cell: int,
    clock: Clock,
    interrupted: str | None,
    *,
    overhead_tokens: int = 0,
    streams: bool = True,
    replicas: Sequence[Mapping[str, Any]] = (),
) -> list[Finding]:
    """Findings of one cell.

    `scalars`: the cell's records, columns SCALARS. `interrupted`: why it ended early. `overhead_tokens`: what the
    server adds to every prompt. `streams`: False where answers came in one piece. `replicas`: the summary's figures
    of each server of a fleet.
    """
    import pyarrow.compute as pc

    load = plan.cells[cell]
    measured = scalars.filter(pc.equal(scalars["phase"], "measure"))
    found = [
        _interrupted(interrupted),
        _failures(metrics, measured),
        _short(metrics),
        _late(metrics, load, measured),
        _user_clock(clock),
        _not_streamed(streams),
        _bunched(metrics),
        _few(metrics),
        _imbalance(replicas),
    ]
    if measured.num_rows:
        rows = _plan_rows(measured, plan, cell)
        found += [
            _input_lengths(measured, plan, rows),
            _cached(measured, plan, cell, rows, overhead_tokens),
            _token_counts(metrics, measured) if streams else None,
        ]
    return [finding for finding in found if finding is not None]


def _interrupted(reason: str | None) -> Finding | None:
    if reason is None:
        return None
    return Finding("interrupted", "warning", reason, "Run the cell again to its end.")


def _failures(metrics: CellMetrics, measured: pa.Table) -> Finding | None:
    counts = metrics.requests
    failed = counts.error + counts.timeout + counts.cancelled
    if not failed:
        return None
    texts = Counter(error for error in measured["error"].to_pylist() if error)
    most = "; ".join(f"{count} × {_printable(text)}" for text, count in texts.most_common(2))
    return Finding(
        "request_errors",
        "error",
        f"{failed} of {counts.sent} requests failed ({counts.error} error, {counts.timeout} timeout, "
        f"{counts.cancelled} cancelled)" + (f": {most}" if most else ""),
        "Percentiles leave failed requests out: mend the cause, or read them with the attainment.",
    )


def _printable(text: str) -> str:
    """Other programs' words, which records of any origin hold, made harmless for terminals."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def _short(metrics: CellMetrics) -> Finding | None:
    counts = metrics.requests
    if not counts.short:
        return None
    return Finding(
        "short_outputs",
        "warning",
        f"{counts.short} of {counts.sent} answers ended before the demanded length",
        "The engine ignores ignore_eos: compare tokens per second, not requests per second.",
    )


def _late(metrics: CellMetrics, load: Load, measured: pa.Table) -> Finding | None:
    import numpy as np

    e2e = metrics.e2e_s
    if e2e is None or load.max_concurrency is not None:
        return None
    lag_s = measured["sent_s"].to_numpy() - measured["intended_s"].to_numpy()
    limit_s = max(LATE_FLOOR_S, LATE_SHARE * e2e.p50)
    late = int((lag_s > limit_s).sum())
    if late < max(2, LATE_REQUESTS * len(lag_s)):
        return None
    return Finding(
        "sends_late",
        "warning",
        f"{late} of {len(lag_s)} requests were sent more than {show_seconds(limit_s)} late, "
        f"up to {show_seconds(float(np.nanmax(lag_s)))}",
        "Give the client more room: fewer other processes, more --workers, or another machine.",
    )


def _not_streamed(streams: bool) -> Finding | None:
    if streams:
        return None
    return Finding(
        "not_streamed",
        "info",
        "answers came in one piece: TTFT, TPOT and ITL are not measured, E2E is",
        "Leave out --no-stream to measure them.",
    )


def _imbalance(replicas: Sequence[Mapping[str, Any]]) -> Finding | None:
    """How unevenly the output of a fleet came from its servers."""
    shares = [replica["token_share"] for replica in replicas]
    if len(shares) < 2 or None in shares:
        return None
    most = max(range(len(shares)), key=shares.__getitem__)
    over = shares[most] * len(shares)
    if over < IMBALANCE:
        return None
    return Finding(
        "fleet_imbalance",
        "info",
        f"{replicas[most]['url']} gave {shares[most]:.0%} of the output tokens, {over:.2f} times its equal share",
        "A server may be down or slower, or the routing uneven; try --route least-busy.",
    )


def _bunched(metrics: CellMetrics) -> Finding | None:
    """Answers of several tokens that came all at once: no engine writes them so, but what lies between may."""
    tpot = metrics.tpot_s
    if tpot is None or tpot.p50 > BUNCHED_S:
        return None
    return Finding(
        "arrivals_bunched",
        "warning",
        f"half of the answers arrived whole, their tokens within {show_seconds(BUNCHED_S)} of each other",
        "Something between buffers the stream: measure without the proxy, or switch its buffering off.",
    )


def _user_clock(clock: Clock) -> Finding | None:
    if clock == "kernel":
        return None
    return Finding(
        "user_clock",
        "info",
        "arrivals are timed when they are read, not by the kernel",
        "On Linux the kernel stamps them; elsewhere mind the receive lag under load.",
    )


def _few(metrics: CellMetrics) -> Finding | None:
    values = metrics.ttft_s or metrics.e2e_s
    if values is None:
        return None
    low, high = values.ci95["p99"]
    if high is not None:
        return None
    at_least = f", only that it is at least {show_seconds(low)}" if low is not None else ""
    return Finding(
        "few_samples",
        "info",
        f"{values.n} requests do not bound the p99{at_least}",
        "For a p99 with a 95 % bound on both sides measure 368 requests or more.",
    )


def _plan_rows(measured: pa.Table, plan: Plan, cell: int) -> NDArray[np.int64]:
    """The plan's row of each record."""
    import numpy as np

    index = np.array([int(name.rpartition("-")[2]) for name in measured["request_id"].to_pylist()])
    rows, warm = plan.rows(cell), plan.warmup_count(cell)
    lap = max(1, len(rows) - warm)
    return rows.start + np.where(index < len(rows), index, warm + (index - warm) % lap)


def _input_lengths(measured: pa.Table, plan: Plan, rows: NDArray[np.int64]) -> Finding | None:
    import numpy as np

    # What a session's later turns hold depends on the answers, and a template may add more for a system message.
    unsure = (plan.turn[rows] > 0) | ((plan.turn[rows] == 0) & (plan.prefix_tokens[rows] > 0))
    asked = np.where(unsure, -1, plan.input_tokens[rows])
    got = measured["input_tokens"].to_numpy().astype(float)
    known = ~np.isnan(got) & (asked >= 0)
    wrong = known & (got != asked)
    if not known.any() or wrong.sum() <= LENGTH_SHARE * known.sum():
        return None
    off = np.median((got - asked)[wrong])
    return Finding(
        "input_length",
        "warning",
        f"{wrong.sum()} of {known.sum()} prompts are not as long as asked by the server's count (median {off:+.0f})",
        "Give the model's --tokenizer, or use an endpoint that takes token ids.",
    )


def _cached(
    measured: pa.Table, plan: Plan, cell: int, rows: NDArray[np.int64], overhead_tokens: int
) -> Finding | None:
    """Tokens the server took from its prefix cache, beyond what the plan shares on purpose."""
    import numpy as np

    cached = measured["cached_tokens"].to_numpy().astype(float)
    inputs = measured["input_tokens"].to_numpy().astype(float)
    promised = promised_tokens(plan, cell)[rows - plan.rows(cell).start]
    # Texts of a file share what they share, and later turns what was said.
    known = ~np.isnan(cached) & ~np.isnan(inputs) & (promised >= 0)
    if not known.any() or plan.prompts:
        return None
    # A template, and the word that every text begins with, are in any cache after the first request.
    shared = promised[known] + overhead_tokens + 1
    shared += SYSTEM_TOKENS * (plan.turn[rows][known] == 0)
    excess = np.clip(cached[known] - shared, 0, None).sum()
    share = excess / max(1.0, inputs[known].sum())
    if share <= CACHED_SHARE:
        return None
    return Finding(
        "prefix_cache_helped",
        "warning",
        f"{share:.0%} of input tokens came from the prefix cache beyond what the plan shares",
        "Restart the engine or switch its prefix cache off; leave --salt alone.",
    )


def _token_counts(metrics: CellMetrics, measured: pa.Table) -> Finding | None:
    sources = Counter(measured["token_source"].to_pylist())
    if sources["pieces"] and not sources["final usage"] and not sources["running usage"]:
        return Finding(
            "no_usage",
            "warning",
            "the server states no usage: output tokens are counted as stream events",
            "Events can hold several tokens or none; use an engine version that reports usage.",
        )
    # Of completed requests alone, as the metrics count events.
    done = [status in ("ok", "short") for status in measured["status"].to_pylist()]
    events, tokens = metrics.output_events, sum(filter(None, measured["output_tokens"].filter(done).to_pylist()))
    if events and tokens > COALESCED_TOKENS * events:
        return Finding(
            "several_tokens_an_event",
            "info",
            f"{tokens / events:.2f} tokens per stream event",
            "ITL is the gap between events shared among their tokens; TPOT is not affected.",
        )
    return None


def to_json(verdict: Verdict) -> dict[str, Any]:
    built: dict[str, Any] = msgspec.to_builtins(verdict)
    return built
