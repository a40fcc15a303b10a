"""Leads a process on another machine of a Ray cluster: an actor that has it as its child.

Ray finds this module by its name, so Loadstone has to be installed on every machine of the cluster.
What passes is bytes, text and numbers.
"""

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from loadstone.core.version import __version__

_PIECE_BYTES = 4 << 20


class ProcessHost:
    """Leads one process, in a folder that goes with the actor. If the actor ends, however that
    happens, the process sees its stdin end."""

    def __init__(self) -> None:
        # The object lives as long as the actor, whose end it shares.
        self._keeper = tempfile.TemporaryDirectory(prefix="loadstone-")
        self._folder = Path(self._keeper.name)
        self._process: subprocess.Popen[bytes] | None = None

    def about(self) -> tuple[str, str, str]:
        """Return Loadstone's version, the folder, and the path of Python."""
        return __version__, str(self._folder), sys.executable

    def now_ns(self) -> int:
        """Return CLOCK_MONOTONIC of this machine."""
        return time.monotonic_ns()

    def put(self, name: str, content: bytes) -> str:
        """Write a file into the folder; returns its path."""
        path = self._folder / name
        path.write_bytes(content)
        return str(path)

    def start(self, argv: Sequence[str], text: bytes = b"") -> None:
        """Start the process, which gets `text` on stdin; what it prints goes to the files `stdout`
        and `stderr`."""
        with (
            (self._folder / "stdout").open("wb") as output,
            (self._folder / "stderr").open("wb") as errors,
        ):
            self._process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=output, stderr=errors, start_new_session=True
            )
        self.tell(text)

    def tell(self, text: bytes) -> None:
        """Write to the process; one that has ended is noticed when it is read."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                self._process.stdin.write(text)
                self._process.stdin.flush()

    def read(self, offsets: Mapping[str, int]) -> tuple[list[bytes], int | None]:
        """Read what is new of files, by name or pattern, from the byte that is given of each; and
        the exit code, once the process has ended and all is read."""
        # Before reading: nothing that is written before the end is missed.
        code = self._process.poll() if self._process is not None else None
        pieces = [self._read(name, offset) for name, offset in offsets.items()]
        return pieces, code if all(len(piece) < _PIECE_BYTES for piece in pieces) else None

    def _read(self, name: str, offset: int) -> bytes:
        paths = sorted(self._folder.glob(name))
        if not paths:
            return b""
        with paths[0].open("rb") as file:
            file.seek(offset)
            return file.read(_PIECE_BYTES)

    def end(self) -> None:
        """Ask the process to end, by the end of its stdin."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                self._process.stdin.close()

    def close(self) -> None:
        """End the process, which has ended unless its owner is in a hurry; the folder goes."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self.clean()

    def clean(self) -> None:
        """Remove the folder."""
        self._keeper.cleanup()
