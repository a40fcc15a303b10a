"""Summarises records as other tools define their numbers, to compare with published ones.

A dialect gives the keys of the tool's own result file in its own units; where that file is nested,
keys are the path in it, joined by dots. `DEFINITIONS` says in a line what each key is. Percentiles,
which requests count and where a duration begins and ends are the tool's own too; what a record
cannot tell is None. docs/dialects.md has the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.resources import files
from typing import TYPE_CHECKING

import msgspec

from loadstone.analyse.other_tools.dialect import Dialect
from loadstone.analyse.other_tools.facts import gather
from loadstone.core.errors import InputError
from loadstone.core.summary import ToolNumbers

if TYPE_CHECKING:
    import pyarrow as pa

TOOLS = msgspec.toml.decode(
    files(__package__).joinpath("tools.toml").read_bytes(), type=dict[str, Dialect]
)
DIALECTS = tuple(TOOLS)
DEFINITIONS = {name: dict(dialect.definitions()) for name, dialect in TOOLS.items()}
"""For each dialect, the definition of each of its keys, in a line."""


def find_definition(dialect: str | None, metric: str) -> str | None:
    """Find a dialect's definition of a field of core's Metrics, in a line; None where it has
    none."""
    return TOOLS[dialect].find_definition(metric) if dialect in TOOLS else None


def summarise_as(
    name: str, read: Callable[[], Iterable[pa.RecordBatch]], *, streams: bool = True
) -> ToolNumbers:
    """Compute the numbers of one cell in the dialect `name`, each with its definition in a line.

    `read` starts reading the cell's records, columns named as in RequestRecord; it is called once.
    `streams`: False where answers came in one piece: what needs a first token or a gap is None
    then. Raises InputError where there is no such dialect.

    Kept are 90 bytes per request and 12 per stream event, several times over while values are
    sorted.
    """
    if name not in TOOLS:
        raise InputError(f"--dialect {name}: unknown; choose one of {', '.join(DIALECTS)}")
    dialect = TOOLS[name]
    numbers = dialect.numbers(gather(read, streams=streams))
    return ToolNumbers(
        name=name, tool=dialect.tool, metrics=dict(numbers), definitions=DEFINITIONS[name]
    )
