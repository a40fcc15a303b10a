"""Reads TraceLab's rows: a call of Claude Code or Codex each, of which lengths, what the provider's
cache had, and times are kept, but no text.

Format: uw-syfi/TraceLab, release v2026-06-08 (README.md, extract_claude_rounds.py).
"""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime

from msgspec import Struct

from loadstone.core.groups import by_key
from loadstone.workload.agent_formats.session import (
    MAX_SECONDS,
    NO_BLOCKS,
    RawCall,
    RawSession,
    Tokens,
    grow,
)
from loadstone.workload.files import RequestFile, decode


class _Tool(Struct):
    tool_wall_latency_ms: float | None = None
    tool_internal_latency_ms: float | None = None

    @property
    def took_s(self) -> float:
        """Its own time, else the wall's, in which it also waited for a person."""
        latency_ms = self.tool_internal_latency_ms
        took_ms = self.tool_wall_latency_ms if latency_ms is None else latency_ms
        return min(MAX_SECONDS, max(0.0, took_ms or 0.0) / 1e3)


class _Event(Struct):
    event_type: str
    timestamp: datetime | None = None


class _Round(Struct):
    session_id: str
    prefix_tokens: Tokens
    newly_append_tokens: Tokens
    output_tokens: Tokens = 0
    timing_events: list[_Event] = []
    tools: list[_Tool] = []

    @property
    def asked(self) -> datetime | None:
        """The last message or result before the answer."""
        times = [
            event.timestamp
            for event in self.timing_events
            if event.event_type in ("user_message", "tool_result")
        ]
        return times[-1] if times else None

    @property
    def answered(self) -> datetime | None:
        return self.timing_events[-1].timestamp if self.timing_events else None


def read_tracelab(file: RequestFile, dropped: Counter[str]) -> Iterator[RawSession]:
    """Read TraceLab's rows: a session's rounds follow one another. What the cache had of a prompt
    is what it shares with the one before; where that shrank, it was compacted or had expired."""
    rounds = (row for _, row in file.read(lambda data: decode(data, _Round)))
    for members in by_key((row.session_id, row) for row in rounds).values():
        calls: list[RawCall] = []
        shared: list[int] = []
        for place, row in enumerate(members):
            past = members[place - 1] if place else None
            tokens = max(1, row.prefix_tokens + row.newly_append_tokens)
            context_tokens = calls[-1].input_tokens + calls[-1].output_tokens if calls else 0
            parents = (place - 1,) if place else ()
            pause_s = 0.0 if past is None else _pause_s(past, row)
            output = max(1, row.output_tokens)
            calls.append(RawCall(parents, False, pause_s, tokens, output, NO_BLOCKS))
            shared.append(min(row.prefix_tokens, context_tokens))
        yield grow(calls, shared)


def _pause_s(past: _Round, row: _Round) -> float:
    """Return the time from an answer to the next call: that of its tools, which run side by side,
    else of the person who wrote."""
    if past.tools:
        return max(tool.took_s for tool in past.tools)
    if past.answered is None or row.asked is None:
        return 0.0
    try:
        return min(MAX_SECONDS, max(0.0, (row.asked - past.answered).total_seconds()))
    except TypeError:  # one with its time zone, one without
        return 0.0
