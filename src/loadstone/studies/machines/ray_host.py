"""A Ray actor of a study on its node: it leads one process, by a shell that ends when the actor
does.

Ray carries messages between actors as it likes; those of ours are bytes, text and numbers.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import shutil
import subprocess
import tarfile
import tempfile
import threading
import time
from pathlib import Path

from loadstone.measure.engines.process import free_port

_BEAT_S = 3.0
_PIECE_BYTES = 1 << 20


class RankHost:
    """One rank of an engine, or the client, on a node of the cluster."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="loadstone-"))
        self._process: subprocess.Popen[bytes] | None = None

    def about(self) -> tuple[str, int]:
        """Return the node's address, and a port that is free there."""
        import ray

        return ray.util.get_node_ip_address(), free_port()

    def node(self) -> str:
        """Return the node's name in the cluster."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def work(self) -> str:
        return str(self._folder)

    def put(self, name: str, content: bytes) -> str:
        path = self._folder / name
        path.write_bytes(content)
        return str(path)

    def start(self, text: str) -> None:
        """Start a shell that reads this, and then signs of life; see ssh.make_script()."""
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                ["bash", "-s"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        # Where this actor is killed, nobody cleans up after it but that shell.
        gone = f"kill -0 {os.getpid()} 2>/dev/null || rm -rf {shlex.quote(str(self._folder))}"
        self._write(f"trap {shlex.quote(gone)} EXIT\n{text}".encode())
        threading.Thread(target=self._beat, args=(self._process,), daemon=True).start()

    def read(self, at: int) -> tuple[bytes, int | None]:
        """Return what was written from byte `at` on, and the exit code once it has ended."""
        code = self._process.poll() if self._process is not None else None
        with (self._folder / "log").open("rb") as log:
            log.seek(at)
            return log.read(_PIECE_BYTES), code

    def end(self) -> None:
        """Ask it to end."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                self._process.stdin.close()

    def packed(self, name: str) -> bytes:
        """Pack a folder of the work folder into a tar archive; nothing where there is none."""
        buffer = io.BytesIO()
        if (self._folder / name).is_dir():
            with tarfile.open(fileobj=buffer, mode="w") as archive:
                archive.add(self._folder / name, arcname=".")
        return buffer.getvalue()

    def clean(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _beat(self, process: subprocess.Popen[bytes]) -> None:
        while process.poll() is None:
            time.sleep(_BEAT_S)
            self._write(b"\n")

    def _write(self, text: bytes) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                self._process.stdin.write(text)
                self._process.stdin.flush()
