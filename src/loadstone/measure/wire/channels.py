"""Tells thinking, tool calls and the answer itself apart in an answer of OpenAI's dialect. No
I/O."""

from dataclasses import dataclass, field

from loadstone.core.record import ANSWER, THINKING
from loadstone.measure.wire.chunk import BLANK, Choice

_TAGS = {"<think>": "</think>", "<|channel|>analysis<|message|>": "<|end|>"}
"""Tags around thinking that a server without a reasoning parser leaves in the content, which begins
with it."""


@dataclass(slots=True)
class Channels:
    """The channels of one answer's events, as they come.

    newest   the channel of the newest event that had one
    thought  reasoning came apart from the text
    closing  the tag that ends thinking within the content; "": there is none, or it is past; None:
             it may begin yet
    held     the next event's text decides of what channel it is: no template takes it
    """

    newest: int = 0
    thought: bool = False
    closing: str | None = None
    held: bool = False
    _tag: str = field(default="", compare=False)  # what of the content may be the beginning of one

    def find(self, choice: Choice, earlier: bytearray) -> int | None:
        """Return the channel of a choice's output; 0: of what came before, as is white space; None:
        it has no output.

        `earlier`: the channels of the events so far, changed where they turn out to be thinking.
        """
        delta, text = choice.delta, choice.text
        if text:
            channel = BLANK if text.isspace() else ANSWER
        else:
            channel = 0 if delta is None else delta.channel()
            if delta is None or not channel:
                return None
            text = delta.content
            self.thought = self.thought or bool(delta.reasoning_content or delta.reasoning)
        self.held = False
        if text and self.closing != "":
            channel = self._find_tag(text, channel, earlier)
        if channel != BLANK:
            return channel
        self.held = self.newest == THINKING
        return 0

    def _find_tag(self, text: str, channel: int, earlier: bytearray) -> int:
        """Return the channel of content that may begin with thinking between tags: `channel` where
        it does not."""
        self._tag += text
        if self.closing is None:
            begun = self._tag.lstrip()
            opening = next((tag for tag in _TAGS if begun.startswith(tag)), "")
            if not opening and any(tag.startswith(begun) for tag in _TAGS):
                self.held = True
                return channel
            self.closing = _TAGS.get(opening, "")
            if not opening:
                return channel
            earlier[:] = bytes([THINKING]) * len(earlier)
        _, closed, rest = self._tag.partition(self.closing)
        if closed:
            self.closing, self.held = "", True
            return ANSWER if rest.strip() else THINKING
        self._tag = self._tag[1 - len(self.closing) :]
        self.held = "<" in self._tag
        return THINKING
