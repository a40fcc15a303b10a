"""Puts together what belongs together."""

from collections.abc import Hashable, Iterable
from typing import TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


def by_key(pairs: Iterable[tuple[_Key, _Value]]) -> dict[_Key, list[_Value]]:
    """List the values of each key; keys and values in the order in which they come."""
    groups: dict[_Key, list[_Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups
