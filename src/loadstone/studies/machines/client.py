"""A client on another host, followed to its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from loadstone.core.errors import TargetError

HERE = "localhost"
"""The name in a study file of the host that runs the study."""
_POLL_S = 0.1
_NO_PROGRAM = 127
_TAIL_BYTES = 4096


class Process(Protocol):
    """`stop` asks it to end, and returns when it has."""

    log_path: Path

    def exit_code(self) -> int | None: ...

    def stop(self) -> None: ...


def follow(client: Process, host: str, check: Callable[[], None]) -> None:
    """Return once `loadstone bench` on `host` has left a run folder there. `check` is called meanwhile; what it
    raises ends the client, which saves what it has. Raises TargetError.
    """
    try:
        while (code := client.exit_code()) is None:
            check()
            time.sleep(_POLL_S)
    finally:
        client.stop()
    if code in (0, 1):  # 1: the run has failed, which its folder says
        return
    with client.log_path.open("rb") as log:
        log.seek(max(0, client.log_path.stat().st_size - _TAIL_BYTES))
        lines = [" ".join(line.split()) for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    last = lines[-1] if lines else "it wrote nothing"
    remedy = ""
    if code == _NO_PROGRAM or "No module named loadstone" in last:
        remedy = "; Loadstone must be there: name its interpreter with python:, or write client: localhost"
    raise TargetError(f"the client on {host} ended with exit code {code}: {last}{remedy}")
