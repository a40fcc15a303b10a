"""A Ray actor of a study on its node: it leads one process, by a shell that ends when the actor
does.

Ray carries messages between actors as it likes; those of ours are bytes, text and numbers.
"""

import io
import os
import shlex
import subprocess
import tarfile
import threading
import time

from loadstone.measure.client.ray_actor import ProcessHost
from loadstone.measure.engines.process import free_port

_BEAT_S = 3.0


class RankHost(ProcessHost):
    """One rank of an engine, or the client, on a node of the cluster."""

    def place(self) -> tuple[str, int]:
        """Return the node's address, and a port that is free there."""
        import ray

        return ray.util.get_node_ip_address(), free_port()

    def node(self) -> str:
        """Return the node's name in the cluster."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def lead(self, text: str) -> None:
        """Start a shell that reads this, and then signs of life; see ssh.make_script()."""
        # Where this actor is killed, nobody cleans up after it but that shell.
        gone = f"kill -0 {os.getpid()} 2>/dev/null || rm -rf {shlex.quote(str(self._folder))}"
        self.start(["bash", "-s"], f"exec 2>&1\ntrap {shlex.quote(gone)} EXIT\n{text}".encode())
        threading.Thread(target=self._beat, args=(self._process,), daemon=True).start()

    def packed(self, name: str) -> bytes:
        """Pack a folder of the work folder into a tar archive; nothing where there is none."""
        buffer = io.BytesIO()
        if (self._folder / name).is_dir():
            with tarfile.open(fileobj=buffer, mode="w") as archive:
                archive.add(self._folder / name, arcname=".")
        return buffer.getvalue()

    def _beat(self, process: subprocess.Popen[bytes]) -> None:
        while process.poll() is None:
            time.sleep(_BEAT_S)
            self.tell(b"\n")
