"""Tells which tests start a process, for `scripts/test --quick` runs none of them.

A test's own code tells, that of the helpers of the tests which it calls, and that of its fixtures. What cannot be
seen there, such as a call through a table, is skipped at the moment when it would start a process.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parent
STARTERS = frozenset({
    "subprocess", "Popen", "fork", "spawn", "start", "serve", "ServerProcess", "bench", "selftest", "find_max",
})  # fmt: skip
"""Names of what starts a process."""
COMMANDS = frozenset({"bench", "launch", "offline", "selftest", "serve-sim"})
"""Commands that start one, unless they refuse what they are given."""
EVENTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"})
"""Audit events of a process that is about to start."""


def starts_process(item: pytest.Item) -> bool:
    if "e2e" in item.path.parts:
        return True
    if not isinstance(item, pytest.Function):
        return False
    found = getattr(item, "_fixtureinfo").name2fixturedefs  # noqa: B009  (its type is private)
    fixtures = [each[-1].func for name, each in found.items() if name not in _AUTOMATIC]
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    given = [each for each in parameters if inspect.isfunction(each)]
    return any(_starts(function) for function in (item.function, *fixtures, *given))


_AUTOMATIC = frozenset({"room", "not_for_ever", "no_selftest", "no_keys", "loadstone"})


@cache
def _starts(function: Callable[..., object]) -> bool:
    words = _words(inspect.unwrap(function), set())
    return bool(words & STARTERS) or bool(words & COMMANDS and not words & {"line"})


def _words(function: Any, seen: set[object]) -> set[str]:
    """Return the names and strings in a function's code and in that of the tests' helpers which it names."""
    if function in seen or not hasattr(function, "__code__"):
        return set()
    seen.add(function)
    words = set(_code_words(function.__code__))
    for name in words & function.__globals__.keys():
        helper = function.__globals__[name]
        if isinstance(helper, tuple):
            words |= {each for each in helper if isinstance(each, str)}
        elif inspect.isfunction(helper) and _is_of_tests(helper):
            words |= _words(helper, seen)
        elif inspect.isclass(helper) and _is_of_tests(helper):
            for method in vars(helper).values():
                words |= _words(method, seen)
    return words


def _is_of_tests(helper: Any) -> bool:
    file = getattr(sys.modules.get(helper.__module__), "__file__", None)
    return file is not None and Path(file).is_relative_to(TESTS)


def _code_words(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code_words(constant)
        elif isinstance(constant, str):
            yield constant
        elif isinstance(constant, tuple):
            yield from (each for each in constant if isinstance(each, str))


class Guard:
    """Skips a test at the moment when it would start a process; between tests processes are free to start."""

    def __init__(self) -> None:
        self._armed = False
        sys.addaudithook(self._look)

    def _look(self, event: str, _: object) -> None:
        if self._armed and event in EVENTS and threading.current_thread() is threading.main_thread():
            pytest.skip("it starts a process")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        self._armed = True
        try:
            return (yield)
        finally:
            self._armed = False
