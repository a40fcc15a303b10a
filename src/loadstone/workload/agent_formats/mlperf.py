"""Reads MLPerf's agentic rows."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from loadstone.workload.agent_formats.messages import (
    Message,
    answer_tokens,
    asks,
    call_of_messages,
    fields_of,
    text_of,
)
from loadstone.workload.agent_formats.session import RawCall, RawSession, Seconds
from loadstone.workload.files import BadLine, RequestFile, decode


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


class _Conversation:
    """The calls of a conversation so far, and the messages of which the next one's prompt is."""

    def __init__(self, dropped: Counter[str]) -> None:
        self.calls: list[RawCall] = []
        self._dropped = dropped
        self._messages: list[str] = []
        self._fields: str | None = None
        self._delay_s = 0.0

    def add(self, row: _Turn) -> None:
        if row.system and not self._messages:
            self._add(Message("system", row.system))
        if row.tools:
            self._fields = fields_of({"tools": row.tools})
        self._delay_s += row.delay_seconds or 0.0
        if row.role == "assistant":
            self.end_call(answer_tokens(text_of(row, Counter())))
            self._add(row)
        elif row.tool_results is not None:
            for result in row.tool_results:
                self._add(Message("tool", result.content, tool_call_id=result.tool_call_id))
        else:
            self._add(row)

    def _add(self, message: Message) -> None:
        self._messages.append(text_of(message, self._dropped))

    def end_call(self, output_tokens: int) -> None:
        """Note what the last messages ask, if they do."""
        if asks(self._messages):
            place = len(self.calls)
            self.calls.append(
                call_of_messages(self._messages, place, output_tokens, self._fields, self._delay_s)
            )
            self._delay_s = 0.0


def read_mlperf(file: RequestFile, dropped: Counter[str]) -> Iterator[RawSession]:
    """Read MLPerf's agentic rows: messages, those of a conversation one after another."""
    conversations: dict[str | int, _Conversation] = {}
    name: str | int | None = None
    for line, row in file.read(lambda data: decode(data, _Turn)):
        if row.conversation_id != name and row.conversation_id in conversations:
            problem = f"conversation {str(row.conversation_id)[:40]!r} goes on after another"
            file.leave_out(line, BadLine("unsorted", problem, "keep its rows together"))
            continue
        name = row.conversation_id
        conversations.setdefault(name, _Conversation(dropped)).add(row)
    for conversation in conversations.values():
        conversation.end_call(0)
        if conversation.calls:
            yield RawSession(conversation.calls, 0)
