"""Finds what installed packages offer to this one, its own among them: entry points, by group."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from loadstone.core.errors import InputError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

WIRES = "loadstone.wires"
"""APIs by which servers are measured."""
ENGINES = "loadstone.engines"
"""Engines, by the classes of their rules."""
READERS = "loadstone.readers"
"""Readers of other tools' results."""


@cache
def offers(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by their names; nothing of them is loaded."""
    from importlib.metadata import entry_points  # a fifth of what `loadstone --help` takes

    return {point.name: point for point in entry_points(group=group)}


def check(group: str, name: str, flag: str) -> None:
    """Raises InputError, which names the `flag`, where nothing is offered under a name."""
    if name in offers(group):
        return
    names = ", ".join(sorted(offers(group)))
    remedy = f"choose one of {names}" if names else "install loadstone as a package: pip install ."
    raise InputError(f"{flag}: {name!r} is offered by no package here; {remedy}")


@cache
def load(group: str, name: str, flag: str) -> Any:
    """Return what is offered under a name. Raises InputError, which names the `flag`, where nothing
    is, or where it cannot be loaded."""
    check(group, name, flag)
    point = offers(group)[name]
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"{flag} {name}: {point.value} cannot be loaded ({error}); mend or remove that package"
        ) from error
