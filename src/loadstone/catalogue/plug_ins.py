"""Finds engines that packages bring, by the entry points of their metadata: no module of theirs is
imported to read a table."""

from __future__ import annotations

from functools import cache
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import msgspec

ENGINES = "loadstone.engines"
"""The group of entry points whose names are those of engines, and whose objects are their rules."""


@cache
def engine_points() -> dict[str, EntryPoint]:
    """Return the entry points of engines by name, Loadstone's own among them."""
    return {point.name: point for point in entry_points(group=ENGINES)}


def read_table(point: EntryPoint) -> dict[str, Any]:
    """Return the table of an engine: the TOML file beside the module of its rules, by the module's
    name; empty where there is none."""
    places = None
    for part in point.module.split("."):
        spec = PathFinder.find_spec(part, places)
        if spec is None or spec.origin is None:
            return {}
        places = spec.submodule_search_locations
    table = Path(spec.origin).with_suffix(".toml")
    return msgspec.toml.decode(table.read_bytes()) if table.is_file() else {}
