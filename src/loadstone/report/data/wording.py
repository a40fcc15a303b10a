"""Write pieces of sentences: names made harmless, counts, parts joined."""

from __future__ import annotations

from collections.abc import Iterable

from loadstone.core.text import excerpt


def count(many: int) -> str:
    return f"{many:,}".replace(",", "\u202f")


def requests_a(what: str, counts: Iterable[int | None]) -> str:
    """Write `500 requests a point`, or `300 to 500 …`; empty where no count is known."""
    known = [many for many in counts if many]
    if not known:
        return ""
    least, most = count(min(known)), count(max(known))
    return f"{least if least == most else f'{least} to {most}'} requests a {what}"


def join(*parts: str | None, by: str = ", ") -> str:
    """Join those of the parts that are there."""
    return by.join(part for part in parts if part)


def clean(text: str, limit: int = 80) -> str:
    """Make a name from a server or file one printable line."""
    return excerpt(text, limit)


def show_probability(p: float) -> str:
    """Write a probability as `66 %`, to one per cent."""
    return f"{'< 1' if p < 0.01 else '> 99' if p > 0.99 else round(100 * p)} %"


def show_share(share: float) -> str:
    """Write a share in per cent; 100 % and 0 % are all and none."""
    return "100 %" if share == 1 else "0 %" if share == 0 else f"{min(max(100 * share, 0.1), 99.9):.1f} %"
