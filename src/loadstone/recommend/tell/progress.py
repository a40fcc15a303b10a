"""Shows on a terminal's stderr what a plan is waiting for."""

from __future__ import annotations

import sys

_WIDTH = 110


def show_progress(line: str = "") -> None:
    """Write the line over the one before; without one, wipe it. Nothing where stderr is no
    terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{line[:_WIDTH]:<{_WIDTH}}" + ("" if line else "\r"))
        sys.stderr.flush()
