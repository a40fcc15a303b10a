"""Logs of requests by an engine's own clock, one JSON object a line: when queued, scheduled, first and last token.

As LLMServingSim's recorder writes them for vLLM. There is no client in it: no network, no HTTP, no tokeniser.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadstone.interop.read.cell import Cell, Request, after
from loadstone.interop.read.values import Value


def is_row(row: Value) -> bool:
    return row.has("queued_ts", "first_token_ts", "last_token_ts", "input_toks", "output_toks")


def requests(rows: Sequence[Value], where: str) -> Cell:
    cell = Cell(where=where, tool="engine's request log", load=None, unknown=("itl_s", "output_events"))
    cell.add_requests([_request(row, queued) for row in rows if (queued := row.number("queued_ts")) is not None])
    cell.say("engine_clock", "times are the engine's own, from queueing to the last token")
    return cell


def _request(row: Value, queued: float) -> Request:
    tokens = row.whole("output_toks")
    ends = [after(queued, row.number(name)) for name in ("first_token_ts", "last_token_ts")]
    offsets = [end for end in ends if end is not None]
    return Request(
        start=queued,
        offsets_s=offsets[:1] if tokens == 1 else offsets,
        input_tokens=row.whole("input_toks"),
        output_tokens=tokens if offsets else None,
    )
