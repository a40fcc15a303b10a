"""Real engines: every request and token of a run against what the server says, and docs/engines.md against both.

All serve the same tiny model. Only llama.cpp, which starts in a fraction of a second, is not slow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from conftest import Json, Loadstone, Outcome
from engines.launch import ENGINES, Engine, NotInstalled, launch
from engines.quirks import EOS, documented, observe

INPUT, OUTPUT = 96, 16
DOCUMENTED = documented()


@pytest.fixture(
    scope="session",
    params=[pytest.param(name, marks=[] if name == "llama.cpp" else pytest.mark.slow) for name in ENGINES],
)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with _launched(request.param, tmp_path_factory) as engine:
        yield engine


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with _launched("llama.cpp", tmp_path_factory) as engine:
        yield engine


class _launched:  # noqa: N801
    pass


def bench(loadstone: Loadstone, engine: Engine, *more: object) -> Outcome:
    shape = ("--input", INPUT, "--output", OUTPUT, "--json")
    outcome = loadstone("bench", engine.url, "--model", engine.model, *shape, *more)
    assert outcome.code == 0, outcome.err
    return outcome
