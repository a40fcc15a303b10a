"""A process that is forked is what one that is executed is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import eventually
from preloaded import OFF

pytestmark = pytest.mark.process
WORKER = [sys.executable, "-P", "-m", "loadstone.measure.client.worker"]


@pytest.mark.parametrize("forked", [True, False])
def test_it_has_its_own_command_line_folder_session_and_parent(
    forked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not forked:
        monkeypatch.setenv(OFF, "")
    pipe = subprocess.PIPE
    with subprocess.Popen(
        WORKER, stdin=pipe, stdout=pipe, cwd=tmp_path, start_new_session=True
    ) as process:
        papers = Path(f"/proc/{process.pid}")
        line = "\0".join(WORKER).encode()
        assert eventually(lambda: (papers / "cmdline").read_bytes().rstrip(b"\0") == line)
        assert (papers / "cwd").readlink() == tmp_path
        assert int((papers / "stat").read_text().rpartition(")")[2].split()[1]) == os.getpid()
        assert os.getsid(process.pid) == os.getpgid(process.pid) == process.pid
        process.kill()
        assert process.wait() == -signal.SIGKILL


@pytest.mark.parametrize("forked", [True, False])
def test_it_says_what_it_says_and_ends_as_it_ends(
    forked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not forked:
        monkeypatch.setenv(OFF, "")
    server = [sys.executable, "-P", "-m", "loadstone.measure.simulated_server", "nonsense"]
    done = subprocess.run(server, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith("msgspec.DecodeError: ")
    assert subprocess.run(WORKER, stdin=subprocess.DEVNULL, check=False).returncode == 2
