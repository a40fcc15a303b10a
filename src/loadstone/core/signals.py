"""Counts Ctrl-C, SIGTERM and SIGHUP while a run lasts, so that what there is of it is saved."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loadstone.core.ranked_runs import RankedRuns
    from loadstone.core.summary import Summary

SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGALRM,
    signal.SIGXCPU,
)
"""The signals by which a user, a scheduler, a closed terminal or a time limit ends a program."""


Handler = Callable[[int, FrameType | None], None]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or a termination signal ended the run; what was measured or simulated is saved in
    `folder`, and `result` is what would have been returned, of as much as there is."""

    def __init__(self, folder: Path, result: Summary | RankedRuns) -> None:
        super().__init__(str(folder))
        self.folder = folder
        self.result = result


def ignores_hangup(number: signal.Signals) -> bool:
    """Return True for SIGHUP if the program was started with nohup: a terminal's end does not end
    it."""
    return number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN


class Signals:
    """Counts SIGNALS while the run lasts, and calls `on_first` at the first: nothing is ever
    torn."""

    def __init__(self) -> None:
        self.count = 0
        self.on_first: Callable[[], None] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if not ignores_hangup(number):
                    self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, previous in self._before.items():
            signal.signal(number, previous)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.on_first is None:
            raise KeyboardInterrupt  # there is nothing to save yet
        self.count += 1
        if self.count == 1:
            self.on_first()
