"""The bytes of an answer of /generate, streamed or in one piece, as SGLang 0.5 writes them, less its own times."""

from __future__ import annotations

import msgspec

from loadstone.measure.simulated_server.answer import WORDS, event
from loadstone.measure.simulated_server.ask import Ask
from loadstone.measure.simulated_server.law import Options


class GenerateAnswer:
    """One generation: the bytes of its parts, as `Answer`.

    Each event holds all text and ids so far, as SGLang's do: what a stream costs grows with its length squared.
    """

    def __init__(self, ask: Ask, options: Options, lengths: tuple[int, int], *, name: bytes, truth: bool) -> None:
        self.input_tokens, self.output_tokens = lengths
        self.cached_tokens = 0
        self.is_stream = bool(ask.stream)
        self._options, self._truth = options, truth
        self._id = msgspec.json.encode(name.decode("latin-1"))
        self._text = bytearray()
        self._ids = bytearray()

    def role(self) -> bytes:
        """No event comes before the first token."""
        return b""

    def piece(self, begin: int, end: int) -> bytes:
        """The event of the tokens up to before `end`; with the last of them, all that ends the response."""
        data = event(self._document(begin, end), self._truth)
        if end < self.output_tokens:
            return data
        return data + (event(b"[DONE]", self._truth) if self._options.done else b"") + b"0\r\n\r\n"

    def whole(self) -> bytes:
        """The body of an answer in one piece."""
        return self._document(0, self.output_tokens)

    def _document(self, begin: int, end: int) -> bytes:
        """All tokens before `end`, of which those before `begin` were said already."""
        for index in range(begin, end):
            self._text += WORDS[index % len(WORDS)]
            self._ids += b"%d," % (index % len(WORDS))
        reason = b"null" if end < self.output_tokens else b'{"type":"length","length":%d}' % self.output_tokens
        meta = b'{"id":%b,"finish_reason":%b,"prompt_tokens":%d,"completion_tokens":%d,"cached_tokens":%d}'
        said = meta % (self._id, reason, self.input_tokens, end, self.cached_tokens)
        return b'{"text":"%b","output_ids":[%b],"meta_info":%b}' % (bytes(self._text), bytes(self._ids[:-1]), said)
