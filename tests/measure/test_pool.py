"""How many workers a load needs; their work is tested end to end."""

from __future__ import annotations

import pytest

from loadstone.core.plan import Load
from loadstone.measure.client import pool
from loadstone.measure.client.pool import choose_workers


def test_small_loads_have_one_worker() -> None:
    assert choose_workers((Load("concurrency", 1), Load("concurrency", 64), Load("rate", 8.0))) == 1


def test_the_heaviest_cell_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "count_processors", lambda: 16)
    assert choose_workers((Load("concurrency", 1), Load("concurrency", 10_000))) == 3
    assert choose_workers((Load("rate", 2500.0),)) == 3


def test_there_are_never_more_workers_than_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "count_processors", lambda: 2)
    assert choose_workers((Load("burst", 1_000_000),)) == 2
