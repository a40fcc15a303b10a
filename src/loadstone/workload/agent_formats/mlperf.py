"""Reads MLPerf's agentic rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from loadstone.core.plan import ASSISTANT
from loadstone.workload.agent_formats.messages import (
    Message,
    answer_tokens,
    call_of_messages,
    fields_of,
    text_of,
)
from loadstone.workload.agent_formats.session import (
    BadSession,
    RawCall,
    RawSession,
    Reader,
    Seconds,
    read_as,
)
from loadstone.workload.trace import BadLine


class _ToolResult(Struct):
    tool_call_id: str
    content: str | list[dict[str, Any]] | None = None


class _Turn(Message, kw_only=True):
    conversation_id: str | int
    turn: int | None = None
    system: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_results: list[_ToolResult] | None = None
    delay_seconds: Seconds | None = None


class MlperfReader(Reader):
    """Reads MLPerf's agentic rows: messages, those of a conversation one after another."""

    def __init__(self, dropped: Counter[str]) -> None:
        super().__init__(dropped)
        self._name: str | int | None = None
        self._seen: set[str | int] = set()
        self._begin()

    def _begin(self) -> None:
        self._calls: list[RawCall] = []
        self._messages: list[str] = []
        self._fields: str | None = None
        self._delay_s = 0.0

    def add(self, line: int, value: bytes) -> Iterator[RawSession]:
        row = read_as(_Turn, value)
        if row.conversation_id != self._name:
            if row.conversation_id in self._seen:
                what = f"conversation {str(row.conversation_id)[:40]!r} goes on after another"
                raise BadLine("unsorted", what, "keep its rows together")
            yield from self._end()
            self._begin()
            self._name = row.conversation_id
            self._seen.add(row.conversation_id)
        if row.system and not self._messages:
            self._messages.append(text_of(Message("system", row.system), self._dropped))
        if row.tools:
            self._fields = fields_of({"tools": row.tools})
        self._delay_s += row.delay_seconds or 0.0
        if row.role == "assistant":
            text = text_of(row, self._dropped)
            if self._messages and not self._messages[-1].startswith(ASSISTANT):
                self._end_call(answer_tokens(text))
            self._messages.append(text)
        elif row.tool_results is not None:
            self._messages += [
                text_of(
                    Message("tool", each.content, tool_call_id=each.tool_call_id), self._dropped
                )
                for each in row.tool_results
            ]
        else:
            self._messages.append(text_of(row, self._dropped))

    def _end_call(self, output_tokens: int) -> None:
        call = call_of_messages(
            self._messages, len(self._calls), output_tokens, self._fields, self._delay_s
        )
        self._calls.append(call)
        self._delay_s = 0.0

    def finish(self) -> Iterator[RawSession | BadSession]:
        yield from self._end()

    def _end(self) -> Iterator[RawSession]:
        if self._messages and not self._messages[-1].startswith(ASSISTANT):
            self._end_call(0)
        if self._calls:
            yield RawSession(self._calls, 0)
