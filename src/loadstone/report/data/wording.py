"""Pieces of sentences: names made harmless, counts, parts joined."""

from __future__ import annotations

from collections.abc import Iterable

from loadstone.core.text import excerpt


def count(many: int) -> str:
    return f"{many:,}".replace(",", "\u202f")


def requests_a(what: str, counts: Iterable[int | None]) -> str:
    """`500 requests a point`, or `300 to 500 …`; empty where no count is known."""
    known = [many for many in counts if many]
    if not known:
        return ""
    least, most = count(min(known)), count(max(known))
    return f"{least if least == most else f'{least} to {most}'} requests a {what}"


def joined(*parts: str | None, by: str = ", ") -> str:
    """Those of the parts that are there."""
    return by.join(part for part in parts if part)


def clean(text: str, limit: int = 80) -> str:
    """Names come from servers and files: one printable line."""
    return excerpt(text, limit)
