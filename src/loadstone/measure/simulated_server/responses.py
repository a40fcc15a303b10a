"""Responses as the timing server reads and answers them: the events are those of vLLM 0.33, which
acknowledges a request before it is computed."""

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

RESPONSE = "resp_"
"""Begins the name of an answer."""
_ITEMS: dict[int, dict[str, Any]] = {
    THINKING: {"type": "reasoning", "summary": []},
    ANSWER: {"type": "message", "role": "assistant", "content": []},
    TOOL_CALL: {"type": "function_call", "call_id": "call_1", "name": "tool", "arguments": ""},
}
_SAID = {
    THINKING: "response.reasoning_text",
    ANSWER: "response.output_text",
    TOOL_CALL: "response.function_call_arguments",
}
_PARTS = {THINKING: "reasoning_text", ANSWER: "output_text"}


class _Item(msgspec.Struct):
    type: str | None = None
    role: str | None = None
    content: str | list[MessagePart] | None = None
    output: str | list[MessagePart] | None = None


class ResponsesBody(SimulatedBody):
    """A request to /v1/responses."""

    input: str | list[_Item] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    previous_response_id: str | None = None
    store: bool | None = None

    def follows(self) -> str | None:
        return self.previous_response_id

    def keeps(self) -> bool:
        return bool(self.store)

    def limit(self) -> int | None:
        return self.max_output_tokens

    def split_input(self) -> list[Any]:
        """Return a conversation's tokens, which are those of the same one in OpenAI's chat. Raises
        RefusalError."""
        if not self.input:
            raise RefusalError(400, "input must be a text or a list of at least one item")
        tokens = split_turn("system", [self.instructions]) if self.instructions else []
        items = self.input
        if isinstance(items, str):
            items = [_Item(role="user", content=items)]
        spoke = ""
        for item in items:
            role = {"function_call": "assistant", "function_call_output": "tool"}.get(
                item.type or "", item.role or ""
            )
            # A message and the calls behind it are one.
            if role and not (item.type == "function_call" and spoke == role):
                tokens += split_turn(role, _parts(item.content or item.output))
            spoke = role or spoke
        return tokens + begin_turn("assistant")


def _parts(content: str | list[MessagePart] | None) -> list[str] | list[MessagePart]:
    return content if isinstance(content, list) else [content or ""]


class ResponsesAnswer(PartedAnswer[ResponsesBody]):
    """One answer to a conversation."""

    def _prepare(self, body: ResponsesBody) -> None:
        super()._prepare(body)
        self._serial = -1

    def opening(self) -> bytes:
        """Return the events sent as soon as the request is read."""
        response = self._response("in_progress", [])
        return b"".join(
            self._numbered(f"response.{word}", response=response)
            for word in ("created", "in_progress")
        )

    def whole(self) -> bytes:
        """Return the body of an answer in one piece."""
        self._part = ANSWER
        return msgspec.json.encode(self._final([self._item(self.output_tokens)]))

    def _final(self, output: list[dict[str, Any]]) -> dict[str, Any]:
        details = {"reason": "max_output_tokens"}
        return self._response("incomplete", output) | {
            "incomplete_details": details,
            "usage": self._usage(),
        }

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"{RESPONSE}{self._id.decode()}",
            "object": "response",
            "status": status,
            "model": self._settings.model,
            "output": output,
            "usage": None,
        }

    def _usage(self) -> dict[str, Any] | None:
        if self._settings.usage == "none":
            return None
        thinking, _ = self._parts if self.is_stream else (0, 0)
        return {
            "input_tokens": self.input_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens},
            "output_tokens": self.output_tokens,
            "output_tokens_details": {"reasoning_tokens": thinking},
            "total_tokens": self.input_tokens + self.output_tokens,
        }

    def _numbered(self, kind: str, **fields: Any) -> bytes:
        self._serial += 1
        return self._typed(kind, sequence_number=self._serial, **fields)

    def _place_of(self, *names: str) -> dict[str, Any]:
        """Return the fields that say of which item, and part of it, an event is."""
        fields = {"item_id": f"item_{self._place}", "output_index": self._place, "content_index": 0}
        return {name: fields[name] for name in names}

    def _item(self, end: int) -> dict[str, Any]:
        """Return the item that is open, with what was said of it up to the token `end`."""
        text = self._words(self._begun, end).decode()
        written: dict[str, Any] = {"arguments": text}
        if self._part in _PARTS:
            written = {"content": [{"type": _PARTS[self._part], "text": text}]}
        item = _ITEMS[self._part] | {"id": f"item_{self._place}", "status": "in_progress"}
        return item | written | {"status": "completed"} if end > self._begun else item

    def _open(self) -> bytes:
        item = self._item(self._begun)
        data = self._numbered("response.output_item.added", output_index=self._place, item=item)
        return data + self._about_part("added", "")

    def _about_part(self, word: str, text: str) -> bytes:
        if self._part not in _PARTS:
            return b""
        part = {"type": _PARTS[self._part], "text": text}
        places = self._place_of("item_id", "output_index", "content_index")
        return self._numbered(f"response.content_part.{word}", **places, part=part)

    def _say(self, text: bytes) -> bytes:
        self._serial += 1
        kind = b"%b.delta" % _SAID[self._part].encode()
        payload = (
            b'{"content_index":0,"delta":"%b","item_id":"item_%d","output_index":%d,'
            b'"sequence_number":%d,"type":"%b"}'
        )
        return self._event(payload % (text, self._place, self._place, self._serial, kind), kind)

    def _close(self, end: int) -> bytes:
        text = self._words(self._begun, end).decode()
        named = {"text" if self._part in _PARTS else "arguments": text}
        places = self._place_of("item_id", "output_index")
        data = self._numbered(f"{_SAID[self._part]}.done", **places, **named)
        data += self._about_part("done", text)
        item = self._item(end)
        return data + self._numbered(
            "response.output_item.done", output_index=self._place, item=item
        )

    def _end(self) -> bytes:
        return self._numbered("response.incomplete", response=self._final([]))
