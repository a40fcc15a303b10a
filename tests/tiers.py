"""Tells which tests start a process, for `scripts/test --quick` runs none of them.

A test's own code tells, that of the helpers of the tests which it calls, and that of its fixtures.
What cannot be seen there, such as a call through a table, is skipped at the moment when it would
start a process.
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
from hypothesis import settings

TESTS = Path(__file__).resolve().parent
STARTERS = frozenset({
    "subprocess", "Popen", "fork", "spawn", "start", "serve", "ServerProcess", "bench", "selftest", "find_max",
})  # fmt: skip
"""Names of what starts a process."""
METHODS = frozenset({"start", "spawn", "serve"})
"""Those of them that are something else where they are an object's, such as a thread's."""
SERVERS = frozenset({"ScriptedServer", "--sim", "--engine", "--launch", "--quick"})
"""Words of a test whose `bench` comes to the point where it starts one."""
EXAMPLES = 20
_SETTINGS = "_hypothesis_internal_use_settings"
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
    names, texts = _words(inspect.unwrap(function), set())
    return bool(names & STARTERS) or bool(
        {"bench", "selftest"} & texts and (names | texts) & SERVERS
    )


def _words(function: Any, seen: set[object]) -> tuple[set[str], set[str]]:
    """Return the names and strings in a function's code and in that of the tests' helpers which it
    names."""
    if not inspect.isfunction(function) or function in seen:
        return set(), set()
    seen.add(function)
    all_names, texts = _code_words(function.__code__)
    names = {name for name in all_names if name in function.__globals__ or name not in METHODS}
    for helper in [function.__globals__[name] for name in names & function.__globals__.keys()]:
        functions: list[object] = []
        if isinstance(helper, tuple):
            texts |= {each for each in helper if isinstance(each, str)}
        elif inspect.isfunction(helper) and _is_of_tests(helper):
            functions = [helper]
        elif inspect.isclass(helper) and _is_of_tests(helper) and helper.__name__ not in SERVERS:
            functions = list(vars(helper).values())
        for each in functions:
            more_names, more_texts = _words(each, seen)
            names |= more_names
            texts |= more_texts
    return names, texts


def _is_of_tests(helper: Any) -> bool:
    file = getattr(sys.modules.get(helper.__module__), "__file__", None)
    return file is not None and Path(file).is_relative_to(TESTS)


def _code_words(code: CodeType) -> tuple[set[str], set[str]]:
    names, texts = set(code.co_names), set()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner_names, inner_texts = _code_words(constant)
            names |= inner_names
            texts |= inner_texts
        else:
            texts |= {
                each
                for each in (constant if isinstance(constant, tuple) else (constant,))
                if isinstance(each, str)
            }
    return names, texts


def limit_examples(item: pytest.Item) -> None:
    """Have a property tried with no more than EXAMPLES inputs."""
    function = getattr(item, "function", None)
    own = getattr(function, _SETTINGS, None)
    if own is not None and own.max_examples > EXAMPLES:
        setattr(function, _SETTINGS, settings(own, max_examples=EXAMPLES))


class Guard:
    """Skips a test at the moment when it would start a process; between tests processes are free to
    start."""

    def __init__(self) -> None:
        self._armed = False
        sys.addaudithook(self._look)

    def _look(self, event: str, _: object) -> None:
        if (
            self._armed
            and event in EVENTS
            and threading.current_thread() is threading.main_thread()
        ):
            pytest.skip("it starts a process")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        self._armed = True
        try:
            return (yield)
        finally:
            self._armed = False
