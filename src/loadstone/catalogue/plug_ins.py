"""Reads the tables of engines that packages bring; no module of theirs is imported for it."""

from __future__ import annotations

from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def read_table(point: EntryPoint) -> dict[str, Any]:
    """Return the table of an engine: the TOML file beside the module of its rules, by the module's
    name; empty where there is none."""
    origin, places = "", None
    for part in point.module.split("."):
        spec = PathFinder.find_spec(part, places)
        if spec is None or spec.origin is None:
            return {}
        origin, places = spec.origin, spec.submodule_search_locations
    table = Path(origin).with_suffix(".toml")
    return msgspec.toml.decode(table.read_bytes()) if table.is_file() else {}
