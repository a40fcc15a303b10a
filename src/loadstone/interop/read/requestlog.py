"""Logs of requests by an engine's own clock, one JSON object a line: when queued, scheduled, first and last token.

As LLMServingSim's recorder writes them for vLLM. There is no client in it: no network, no HTTP, no tokeniser.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadstone.interop.read.cell import Cell
from loadstone.interop.read.requests import earliest, record
from loadstone.interop.read.values import Value

_TIMES = ("queued_ts", "first_token_ts", "last_token_ts")


def is_row(row: Value) -> bool:
    return row.has(*_TIMES, "input_toks", "output_toks")


def requests(rows: Sequence[Value], where: str) -> Cell:
    cell = Cell(where=where, tool="engine's request log", load=None, unknown=("itl_s", "output_events"))
    times = [[row.number(name) for name in _TIMES] for row in rows]
    origin_s = earliest(queued for queued, _, _ in times)
    for row, (queued, first, last) in zip(rows, times, strict=True):
        if queued is None:
            continue
        made = row.whole("output_toks")
        ends = [time - queued for time in (first, last) if time is not None and time >= queued]
        cell.records.append(
            record(
                sent_s=queued - origin_s,
                offsets_s=ends[:1] if made == 1 else ends,
                output_tokens=made if ends else None,
                input_tokens=row.whole("input_toks"),
            )
        )
    cell.say(
        "engine_clock",
        "info",
        f"{where}: times are the engine's own, from queueing to the last token",
        "For a client, the network, HTTP and the tokeniser come on top.",
    )
    return cell
