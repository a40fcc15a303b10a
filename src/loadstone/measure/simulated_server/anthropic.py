"""Messages as the timing server reads and answers them: the events are those of vLLM 0.33, which
begins with the first token."""

from __future__ import annotations

from typing import Any

import msgspec

from loadstone.core.record import ANSWER, THINKING, TOOL_CALL
from loadstone.measure.simulated_server.body import (
    MessagePart,
    RefusalError,
    begin_turn,
    split_turn,
)
from loadstone.measure.simulated_server.parted import PartedAnswer
from loadstone.measure.wire.simulated import SimulatedBody

_BLOCKS: dict[int, dict[str, Any]] = {
    THINKING: {"type": "thinking", "thinking": ""},
    ANSWER: {"type": "text", "text": ""},
    TOOL_CALL: {"type": "tool_use", "id": "call_1", "name": "tool", "input": {}},
}
_DELTAS = {
    THINKING: b'{"type":"thinking_delta","thinking":"',
    ANSWER: b'{"type":"text_delta","text":"',
    TOOL_CALL: b'{"type":"input_json_delta","partial_json":"',
}


class _Block(MessagePart):
    type: str | None = None
    content: str | list[_Block] | None = None


class _Message(msgspec.Struct):
    role: str | None = None
    content: str | list[_Block] | None = None


class MessagesBody(SimulatedBody):
    """A request to /v1/messages."""

    system: str | list[_Block] | None = None
    messages: list[_Message] | None = None
    max_tokens: int | None = None

    def limit(self) -> int | None:
        return self.max_tokens

    def split_messages(self) -> list[Any]:
        """Return a conversation's tokens, which are those of the same one in OpenAI's chat. Raises
        RefusalError."""
        if not self.messages:
            raise RefusalError(400, "messages must be a list of at least one message")
        tokens = split_turn("system", _parts(self.system)) if self.system else []
        for message in self.messages:
            blocks = message.content if isinstance(message.content, list) else []
            results = [block for block in blocks if block.type == "tool_result"]
            for result in results:
                tokens += split_turn("tool", _parts(result.content))
            if not results or any(block.text or block.source for block in blocks):
                tokens += split_turn(message.role or "", _parts(message.content))
        return tokens + begin_turn("assistant")


def _parts(content: str | list[_Block] | None) -> list[str] | list[_Block]:
    return content if isinstance(content, list) else [content or ""]


class MessagesAnswer(PartedAnswer[MessagesBody]):
    """One answer to a conversation."""

    def role(self) -> bytes:
        """Return the event before the first token."""
        if not self.is_stream:
            return b""
        message = self._message([], None) | {"usage": self._usage(0)}
        return self._typed("message_start", message=message)

    def whole(self) -> bytes:
        """Return the body of an answer in one piece."""
        text = self._words(0, self.output_tokens).decode()
        message = self._message([{"type": "text", "text": text}], "max_tokens")
        return msgspec.json.encode(message | {"usage": self._usage(self.output_tokens)})

    def _message(self, content: list[dict[str, Any]], reason: str | None) -> dict[str, Any]:
        return {
            "id": f"msg_{self._id.decode()}",
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self._settings.model,
            "stop_reason": reason,
            "stop_sequence": None,
        }

    def _usage(self, tokens: int) -> dict[str, int] | None:
        if self._settings.usage == "none":
            return None
        return {
            "input_tokens": self.input_tokens - self.cached_tokens,
            "output_tokens": tokens,
            "cache_read_input_tokens": self.cached_tokens,
        }

    def _open(self) -> bytes:
        block = _BLOCKS[self._part]
        return self._typed("content_block_start", index=self._place, content_block=block)

    def _say(self, text: bytes) -> bytes:
        event = b'{"type":"content_block_delta","index":%d,"delta":%b%b"}}'
        payload = event % (self._place, _DELTAS[self._part], text)
        return self._event(payload, b"content_block_delta")

    def _close(self, end: int) -> bytes:
        return self._typed("content_block_stop", index=self._place)

    def _end(self) -> bytes:
        delta = {"stop_reason": "max_tokens", "stop_sequence": None}
        usage = self._usage(self.output_tokens)
        return self._typed("message_delta", delta=delta, usage=usage) + self._typed("message_stop")
