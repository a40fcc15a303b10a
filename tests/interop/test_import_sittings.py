"""interop/read/run_folders.py: which cells were measured in one sitting."""

import pytest

from loadstone.core.plan import Load
from loadstone.interop.read.cell import ResultCell
from loadstone.interop.read.run_folders import group_runs


def cell(tool: str, load: float, created: str | None) -> ResultCell:
    return ResultCell(
        where="r.jsonl, line 1", tool=tool, load=Load("concurrency", load), created=created
    )


@pytest.mark.parametrize(
    ("times", "runs"),
    [
        (["2026-01-01T00:00:00", "2026-01-01T11:00:00"], 1),
        (["2026-01-01T00:00:00", "2026-01-01T13:00:00"], 2),
        # The same moments, told in different zones.
        (["2026-01-01T00:00:00+08:00", "2026-01-01T00:00:00+00:00"], 1),
        (["2026-01-01T00:00:00+08:00", "2026-01-01T05:00:00+00:00"], 2),
        ([None, None], 1),
    ],
)
def test_a_sitting_ends_where_nothing_is_measured_for_long(
    times: list[str | None], runs: int
) -> None:
    found = group_runs([cell("vllm", 2.0**at, created) for at, created in enumerate(times)])
    assert len(found) == runs


def test_what_another_tool_did_meanwhile_joins_no_sittings() -> None:
    """Its times may be of another zone, and its cells are of other runs in any case."""
    mine = [cell("vllm", 1.0, "2026-01-01T00:00:00"), cell("vllm", 2.0, "2026-01-01T20:00:00")]
    other = cell("GuideLLM", 1.0, "2026-01-01T10:00:00+00:00")
    assert len(group_runs(mine)) == 2
    assert len(group_runs([*mine, other])) == 3
