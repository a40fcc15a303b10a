"""In whose session workers run, and with what weight."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loadstone.measure.client import priority

LISTEN = (
    "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); "
    "print(s.getsockname()[1], flush=True); sys.stdin.read()"
)
MAY = priority.may_rise()
AUTOGROUPS = Path("/proc/self/autogroup").exists()


@contextmanager
def listening(*, session: bool) -> Iterator[int]:
    """The port of a server in another process, in a session of its own or in this one."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", LISTEN], stdin=pipe, stdout=pipe, start_new_session=session
    ) as one:
        assert one.stdout is not None
        yield int(one.stdout.readline())
        one.kill()


def permitted() -> bool:
    return True


@pytest.mark.process
def test_workers_stay_in_the_session_of_a_server() -> None:
    with listening(session=False) as here, listening(session=True) as elsewhere:
        assert not priority.needs_own_session({here}, permitted)
        assert priority.needs_own_session({elsewhere}, permitted)
        assert not priority.needs_own_session({elsewhere, here}, permitted)  # a fleet


@pytest.mark.process
def test_who_only_connects_to_a_port_is_no_server_on_it() -> None:
    with listening(session=True) as port, socket.create_connection(("127.0.0.1", port)):
        assert priority.needs_own_session({port}, permitted)


@pytest.mark.process
def test_without_the_right_to_more_weight_workers_stay() -> None:
    with listening(session=True) as port:
        assert not priority.needs_own_session({port}, lambda: False)


def tried(program: str, **more: object) -> str:
    """What a program prints that begins with this module, in a process of its own."""
    words = [
        sys.executable,
        "-c",
        f"import os\nfrom loadstone.measure.client import priority\n{program}",
    ]
    return subprocess.run(words, capture_output=True, text=True, check=True, **more).stdout.strip()  # type: ignore[call-overload]


def test_finding_out_leaves_the_priority_as_it_was() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    priority.may_rise()
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


@pytest.mark.process
def test_who_was_started_with_nice_is_not_raised() -> None:
    program = "raised = os.nice(5); print(priority.needs_own_session(set()), os.nice(0) - raised)"
    assert tried(program) == "False 0"


@pytest.mark.process
@pytest.mark.skipif(not AUTOGROUPS, reason="this kernel has no autogroups")
def test_a_session_of_others_is_left_as_it_is() -> None:
    """The user's shell is in it."""
    # Without an autogroup of its own (the kernel's first session) a process reads an empty line
    # there.
    shown = (
        "print([os.getpriority(os.PRIO_PROCESS, 0), open('/proc/self/autogroup').read().strip()])"
    )
    before, after = tried(f"{shown}; priority.rise(); {shown}").splitlines()
    assert before == after


@pytest.mark.process
@pytest.mark.skipif(not MAY, reason="raising priority takes root")
def test_a_worker_in_a_session_of_its_own_takes_more_weight() -> None:
    assert tried(
        "priority.rise(); print(os.getpriority(os.PRIO_PROCESS, 0))", start_new_session=True
    ) == str(priority.LEVELS[0])
    if AUTOGROUPS:
        group = tried(
            "priority.rise(); print(open('/proc/self/autogroup').read())", start_new_session=True
        )
        assert group.endswith(f"nice {priority.LEVELS[0]}")


def test_what_is_not_permitted_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("os.getsid", lambda _: os.getpid())

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("os.setpriority", refuse)
    autogroup = tmp_path / "none" / "autogroup"
    priority.rise(lambda nice: priority.set_weight(nice, autogroup))


def test_a_kernel_that_is_busy_with_another_change_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answers = iter([BlockingIOError, BlockingIOError, None])
    written = []

    def write(self: Path, text: str, encoding: str) -> None:
        if (error := next(answers)) is not None:
            raise error
        written.append(text)

    monkeypatch.setattr("os.getsid", lambda _: os.getpid())
    monkeypatch.setattr("os.setpriority", lambda *_: None)
    monkeypatch.setattr("pathlib.Path.write_text", write)
    priority.rise(retry_s=0.0)
    assert written == [str(priority.LEVELS[0])]


class LateLoop:
    """A clock whose timer fires `late_s` late, while the process computes for `used_s` of that."""

    def __init__(self, late_s: float, used_s: float) -> None:
        self.late_s, self.used_s, self.now_s, self.computed_s = late_s, used_s, 0.0, 0.0
        self.due: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, when_s: float, what: Callable[[], None]) -> None:
        self.due = [(when_s, what)]

    def run(self, seconds: float) -> None:
        while self.due and self.now_s < seconds:
            ((when_s, what),) = self.due
            self.due = []
            self.now_s, self.computed_s = when_s + self.late_s, self.computed_s + self.used_s
            what()


@pytest.mark.parametrize(
    ("late_s", "used_s", "levels"),
    [
        (0.0002, 0.0, []),  # a timer's own lateness
        (0.02, 0.02, []),  # busy with its own work
        (0.02, 0.0, [-10, -15, -20]),  # kept waiting by others
    ],
)
def test_weight_rises_while_a_worker_is_kept_waiting(
    late_s: float, used_s: float, levels: list[int]
) -> None:
    loop, taken = LateLoop(late_s, used_s), list[int]()

    def change(nice: int) -> bool:
        taken.append(nice)
        return True

    priority.WeightGuard(loop, change, lambda: loop.computed_s).watch()  # type: ignore[arg-type]
    loop.run(10.0)
    assert taken == levels


def test_a_change_that_the_kernel_put_off_is_tried_again() -> None:
    loop, answers = LateLoop(0.02, 0.0), iter([False, True, True, True])
    taken: list[int] = []

    def change(nice: int) -> bool:
        taken.append(nice)
        return next(answers)

    priority.WeightGuard(loop, change, lambda: 0.0).watch()  # type: ignore[arg-type]
    loop.run(10.0)
    assert taken == [-10, -10, -15, -20]
