"""Requests out of other tools' files as records, from what these have: a TTFT, gaps, lengths, perhaps a start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from loadstone.core import Phase, RequestRecord, Status
from loadstone.interop.read.cell import Cell
from loadstone.interop.read.values import Value, amount, items, number, text, whole

NO_TOKENS = "no output, though the tool counts it as completed"
NO_TIME = "impossible times in the file"
MOST_S = 1e9
MOST_TOKENS = 1_000_000_000


def record(
    *,
    sent_s: float | None,
    offsets_s: Sequence[float],
    output_tokens: int | None,
    input_tokens: int | None = None,
    end_s: float | None = None,
    status: Status = "ok",
    error: str | None = None,
    phase: Phase = "measure",
    **more: Any,
) -> RequestRecord:
    """A record whose output arrived `offsets_s` after its send; `sent_s` None: that moment is time 0.

    `end_s`, too, counts from the send. A request without any output is an error, whatever the tool says of it. Its id
    and its cell it gets when it is written.
    """
    begin_s = 0.0 if sent_s is None else sent_s
    times = [begin_s, *offsets_s, *([] if end_s is None else [end_s])]
    if not all(0 <= time <= MOST_S for time in times):
        begin_s, offsets_s, end_s, status, error = 0.0, [], None, "error", NO_TIME
    if output_tokens is not None and output_tokens > MOST_TOKENS:
        output_tokens = None
    if input_tokens is not None and input_tokens > MOST_TOKENS:
        input_tokens = None
    if status == "ok" and (not offsets_s or output_tokens == 0):
        status, error = "error", error or NO_TOKENS
    last_s = end_s if end_s is not None else offsets_s[-1] if offsets_s else None
    return RequestRecord(
        request_id="",
        cell=0,
        phase=phase,
        sent_s=begin_s,
        arrival_s=[begin_s + offset_s for offset_s in offsets_s],
        read=list(range(len(offsets_s))),
        token_source=None if not offsets_s else "final usage" if output_tokens else "pieces",
        end_s=None if last_s is None else begin_s + last_s,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        status=status,
        error=error,
        **more,
    )


def earliest(starts: Iterable[float | None]) -> float:
    """The moment from which a file's requests count, 0 where none is told."""
    return min((start for start in starts if start is not None), default=0)


def failure(said: Value, key: str) -> str | None:
    """What a request's `error` says, itself or under `key`; None where there is none."""
    return (said.text(key) or said.text() or "an error without a message") if said else None


def say_recounted(cell: Cell, recounted: int, of: int | None, remedy: str) -> None:
    """Of clients that count the answers' text anew beside the server's own count."""
    if recounted:
        cell.say(
            "counts_differ",
            "info",
            f"{cell.where}: for {recounted} of {of} requests the server's count of output tokens is not the "
            "client's, which counts the text anew",
            remedy,
        )


SERVERS_COUNT = "The server's count is used here; the tool's own figures use the client's."


def _last_line(error: Any) -> str | None:
    """An error's own line: vLLM's client keeps whole tracebacks, whose last line says what went wrong."""
    lines = error.strip().splitlines() if isinstance(error, str) and error.startswith("Traceback ") else []
    return text(lines[-1] if lines else error)


def from_gaps(cell: Cell, document: Value) -> None:
    """Records of `ttfts`, `itls`, `input_lens`, `output_lens`, `errors` [, `start_times`, `latencies`,
    `queue_times`]: seconds, one entry per request, as vLLM's and SGLang's clients write them.

    Lists of unlike length are no requests: a finding, and the cell keeps its sums.
    """
    names = ("ttfts", "input_lens", "output_lens", "itls", "errors", "start_times", "latencies", "queue_times")
    columns = {name: items(document.get(name)) for name in names}
    count = len(columns["ttfts"])
    if not count:
        return
    unlike = [name for name, column in columns.items() if column and len(column) != count]
    if unlike:
        cell.say(
            "lists_differ",
            "warning",
            f"{cell.where}: {', '.join(unlike)} and ttfts differ in length; the requests are left out",
            "Save the results again; the summary statistics were kept.",
        )
        return

    columns = {name: column or [None] * count for name, column in columns.items()}
    starts = [number(value) for value in columns["start_times"]]
    cell.relative = None in starts
    # How long a request waited for its send. In a closed loop all do from the beginning, which says nothing.
    rated = cell.load is not None and cell.load.kind == "rate" and not cell.relative
    waits = [amount(value) if rated else None for value in columns["queue_times"]]
    due = [
        start - wait if start is not None and wait is not None else None
        for start, wait in zip(starts, waits, strict=True)
    ]
    origin_s = earliest([*starts, *due])
    rows = zip(*columns.values(), starts, due, strict=True)
    gapless = bundled = 0
    for ttft, given, made, gaps, error, _, latency, _, start, intended in rows:
        ttft_s, tokens = amount(ttft), whole(made)
        said = _last_line(error)
        gaps_s = [amount(gap) for gap in items(gaps)]
        offsets: list[float] = []
        if said is None and ttft_s is not None and (ttft_s > 0 or tokens) and None not in gaps_s:
            offsets = list(accumulate([ttft_s, *(gap for gap in gaps_s if gap is not None)]))
            end_s = amount(latency)
            if len(offsets) == 1 and (tokens or 0) > 1:
                # An answer without its gaps: its end is known, how it came is not.
                gapless += 1
                if end_s is not None and end_s > ttft_s:
                    offsets.append(end_s)
            elif tokens is not None and len(offsets) < tokens:
                bundled += 1
        cell.records.append(
            record(
                sent_s=None if cell.relative or start is None else start - origin_s,
                intended_s=None if intended is None else intended - origin_s,
                offsets_s=offsets,
                output_tokens=tokens if offsets else None,
                input_tokens=whole(given),
                end_s=amount(latency) or (offsets[-1] if offsets else None),
                status="ok" if said is None else "error",
                error=said,
            )
        )
    if gapless:
        cell.unknown += ("itl_s", "output_events")
    if bundled:
        cell.say(
            "tokens_bundled",
            "info",
            f"{cell.where}: {bundled} of {count} requests have fewer gaps than tokens: a chunk brought several, "
            "and they count as evenly spread",
            "Use TPOT, which does not depend on how tokens were bundled.",
        )
