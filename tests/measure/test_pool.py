"""How many workers a load needs; their work is tested end to end."""

from __future__ import annotations

import pytest

from loadstone.core.plan import Load
from loadstone.measure.client import pool
from loadstone.measure.client.pool import workers_for


def test_small_loads_have_one_worker() -> None:
    assert workers_for((Load("concurrency", 1), Load("concurrency", 64), Load("rate", 8.0))) == 1


def test_the_heaviest_cell_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "processors", lambda: 16)
    assert workers_for((Load("concurrency", 1), Load("concurrency", 10_000))) == 3
    assert workers_for((Load("rate", 2500.0),)) == 3


def test_there_are_never_more_workers_than_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "processors", lambda: 2)
    assert workers_for((Load("burst", 1_000_000),)) == 2
