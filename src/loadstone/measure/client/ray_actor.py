"""Runs a load worker on another machine of a Ray cluster: an actor that has the worker as its
child.

Ray finds this module by its name, so Loadstone has to be installed on every machine of the cluster.
What passes is bytes: the protocol's lines and the journal as it grows.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from loadstone.core.version import __version__

_PIECE_BYTES = 4 << 20


class WorkerHost:
    """Starts one worker. If the actor ends, however that happens, the worker sees its stdin end,
    saves and exits."""

    def __init__(self, plan: bytes) -> None:
        """`plan`: a run's plan.parquet, for the worker's own folder on this machine."""
        # The object lives as long as the actor, whose end it shares.
        self._keeper = tempfile.TemporaryDirectory(prefix="loadstone-worker-")
        self._folder = Path(self._keeper.name)
        (self._folder / "plan.parquet").write_bytes(plan)
        self._log = self._folder / "log.txt"
        self._read_bytes: dict[Path, int] = {}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "loadstone.measure.client.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        if self._process.stdout is None or self._process.stdin is None:
            raise OSError("a worker started without pipes")
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        os.set_blocking(self._stdout.fileno(), False)

    def about(self) -> tuple[str, str]:
        """Loadstone's version, and the worker's folder."""
        return __version__, str(self._folder)

    def now_ns(self) -> int:
        """CLOCK_MONOTONIC of this machine."""
        return time.monotonic_ns()

    def tell(self, lines: bytes) -> None:
        with contextlib.suppress(OSError):  # a dead worker is noticed when it is read
            self._stdin.write(lines)
            self._stdin.flush()

    def read(self) -> tuple[bytes, bytes, bytes, int | None]:
        """Read what is new of reports, journal and log; the worker's exit code once it has ended
        and all is read."""
        code = self._process.poll()  # before reading: nothing written before the end is missed
        reports = b""
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self._stdout.fileno(), 1 << 16):
                reports += piece
        journals = sorted(self._folder.glob("journal-*.arrow"))
        journal = self._new(journals[0]) if journals else b""
        return (
            reports,
            journal,
            self._new(self._log),
            None if len(journal) == _PIECE_BYTES else code,
        )

    def _new(self, path: Path) -> bytes:
        with path.open("rb") as file:
            file.seek(self._read_bytes.get(path, 0))
            piece = file.read(_PIECE_BYTES)
        self._read_bytes[path] = self._read_bytes.get(path, 0) + len(piece)
        return piece

    def close(self) -> None:
        """End the worker, which has ended unless its owner is in a hurry, and remove its folder."""
        self._process.kill()
        self._process.wait()
        self._keeper.cleanup()
