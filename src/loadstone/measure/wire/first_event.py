"""Tells whether the first output event of an answer was one, where only later ones can. No I/O."""

from dataclasses import dataclass, field
from typing import Any

from loadstone.measure.wire.unlisted import find_text

_MAX_FIELDS = 16
"""Unknown fields that are kept apart."""


@dataclass(slots=True)
class FirstEvent:
    """The doubt about the first output event, until one after it resolves that.

    doubted  by what alone it is output: "" by its count, or an unknown field; None: no doubt
    count    the running count at it
    fields   unknown fields and their last text; None: it differed, they are output
    opening  what the first output event says
    closing  what the last one says, where it says the end too
    blanks   output events that say nothing but white space, until one says more: `is_past`, `text`
    """

    doubted: str | None = None
    count: int = 0
    fields: dict[str, str | None] = field(default_factory=dict)
    opening: str | None = None
    closing: str | None = None
    text: str | None = None
    blanks: int = 0
    is_past: bool = False

    def note_text(self, text: str) -> None:
        """Take the text of an output event; "" where it has none under a known name."""
        if self.is_past:
            return
        self.text = text
        self.is_past = bool(text.strip())
        self.blanks += not self.is_past
        if self.opening is None:
            self.opening = text

    def count_signs(self, spare: int) -> int:
        """Count the first events that were signs of life, of an answer that has ended with so many
        more events than tokens: they are blank."""
        return min(self.blanks, max(0, spare)) if self.is_past else 0

    def follow(self, events: int, alone: str | None, running: int) -> bool:
        """Take an event about to be counted after so many; return True if the one before was none:
        its count is not passed, or its field's text stays what it was. This is then the first.

        alone    by what it is output where it has no text that is known, as `doubted`
        running  the count at it
        """
        if events and self.doubted is None:
            return False
        is_void = False
        if self.doubted is not None:
            if 0 < self.count < running or self.fields.get(self.doubted, "") is None:
                self.doubted = None
                return False
            is_void = True
        self.doubted, self.count = alone, running
        return is_void

    def find_output(self, document: Any, events: int) -> str | None:
        """Return the unknown field by which a decoded chunk is output: what it says differed from
        chunk to chunk, or it is the first to say anything, of which the next output tells.
        """
        found = None
        for name, text in find_text(document):
            if name not in self.fields:
                if len(self.fields) == _MAX_FIELDS:
                    continue
                self.fields[name] = text
                is_output = not events or self.doubted is not None
            else:
                if self.fields[name] != text:
                    self.fields[name] = None
                is_output = self.fields[name] is None
            if is_output:
                found = name
        return found
