"""What is said where a package of an extra is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from conftest import Loadstone
from test_summary import CLOSED, make_run


@pytest.mark.parametrize(
    ("module", "command", "said"),
    [
        (
            "duckdb",
            ["query", "select 1", "--runs", "RUN"],
            "query: duckdb is not installed; pip install 'loadstone[sql]'",
        ),
        (
            "vl_convert",
            ["size", "llama-3.1-8b@1xh100", "--picture", "m.png"],
            "PNG: vl_convert is not installed; pip install 'loadstone[images]'",
        ),
        (
            "vl_convert",
            ["report", "RUN", "-o", "pictures.svg"],
            "SVG: vl_convert is not installed; pip install 'loadstone[images]'",
        ),
    ],
)
def test_a_missing_extra_is_told_in_one_line(
    loadstone: Loadstone,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    command: list[str],
    said: str,
) -> None:
    make_run(tmp_path / "run", [CLOSED], {})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    outcome = loadstone(*(word.replace("RUN", "run") for word in command))
    assert outcome.line() == said
