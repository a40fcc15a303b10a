"""Keeps tests quick: few examples of each property but with --thorough, no process with --quick.

Cases that say again, with other numbers, what another case of the same test says are `further`
ones: they too are for --thorough.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

QUICK_EXAMPLES, EXAMPLES = 20, 30
_SETTINGS = "_hypothesis_internal_use_settings"
PROCESS_EVENTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"})
"""Audit events of a process that is about to start."""


def further(*cases: Any, values: int = 1) -> list[Any]:
    """Return cases of a parameter, or of so many, that are tried with --thorough alone."""
    return [
        pytest.param(*([case] if values == 1 else case), marks=pytest.mark.thorough)
        for case in cases
    ]


def limit_examples(item: pytest.Item, limit: int) -> None:
    """Have a property tried with at most `limit` inputs."""
    function = getattr(item, "function", None)
    declared = getattr(function, _SETTINGS, None)
    if declared is not None and declared.max_examples > limit:
        setattr(function, _SETTINGS, settings(declared, max_examples=limit))


class Guard:
    """Fails a test that starts a process though it is not marked `process`."""

    def __init__(self) -> None:
        self._armed = False
        sys.addaudithook(self._look)

    def _look(self, event: str, _: object) -> None:
        in_main = threading.current_thread() is threading.main_thread()
        if self._armed and in_main and event in PROCESS_EVENTS:
            pytest.fail("it starts a process: mark it with pytest.mark.process")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        self._armed = True
        try:
            return (yield)
        finally:
            self._armed = False
