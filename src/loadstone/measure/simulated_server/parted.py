"""Writes answers in parts: a channel's tokens stand in one that is opened and closed."""

from typing import Any, TypeVar

import msgspec

from loadstone.measure.simulated_server.answer import TimedAnswer
from loadstone.measure.wire.simulated import SimulatedBody

_Body = TypeVar("_Body", bound=SimulatedBody)


class PartedAnswer(TimedAnswer[_Body]):
    """One answer. An API says what opens a part (`_open`), is said of it (`_say`), closes it
    (`_close`), and ends the answer (`_end`).

    _part, _place, _begun   the channel of the part that is open, 0: none; which one it is, from 0;
                            and its first token
    """

    def _prepare(self, body: _Body) -> None:
        self._part, self._place, self._begun = 0, -1, 0

    def piece(self, begin: int, end: int) -> bytes:
        """Return the events of the tokens from `begin` to before `end`; with the last of them, all
        that ends the response."""
        channel, data = self._channel(end), b""
        if channel != self._part:
            data = self._close(begin) if self._part else b""
            self._part, self._begun = channel, begin
            self._place += 1
            data += self._open()
        data += self._say(self._words(begin, end))
        if end < self.output_tokens:
            return data
        return data + self._close(end) + self._end() + b"0\r\n\r\n"

    def _open(self) -> bytes:
        raise NotImplementedError

    def _say(self, text: bytes) -> bytes:
        raise NotImplementedError

    def _close(self, end: int) -> bytes:
        raise NotImplementedError

    def _end(self) -> bytes:
        raise NotImplementedError

    def _typed(self, kind: str, **fields: Any) -> bytes:
        return self._event(msgspec.json.encode({"type": kind, **fields}), kind.encode())
