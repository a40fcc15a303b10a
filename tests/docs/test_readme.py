"""The blocks of README and of the tutorial run as they stand in an empty folder, one after another
in one shell."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from loadstone.measure.engines.process import free_port

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs" / "tutorial.md"]
BLOCKS = [
    block
    for page in PAGES
    for block in re.findall(r"^```sh\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
]
LISTENS = """
listens() {
  for _ in $(seq 300); do (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null && return; sleep 0.1; done
  echo "nothing listens on $1" >&2; return 1
}
"""


def test_the_blocks_of_the_tutorial_run_in_order(tmp_path: Path) -> None:
    follow(tmp_path, f"{sys.executable} -m loadstone.commands")


def follow(parent: Path, loadstone: str) -> None:
    """Run all blocks in a new folder, with an installed program as `loadstone`."""
    programs, folder = parent / "bin", parent / "empty"
    for path in (programs, folder):
        path.mkdir()
    # What pip would install is what runs here.
    stubs = {"loadstone": f'exec {loadstone} "$@"', "pip": '[ "$*" = "install loadstone" ]'}
    for name, text in stubs.items():
        (programs / name).write_text(f"#!/bin/bash\n{text}\n")
        (programs / name).chmod(0o755)
    # A reader goes on once a server has said that it is ready.
    waits = [
        "\n".join(f"listens {port}" for port in re.findall(r"--port (\d+) &", block))
        for block in BLOCKS
    ]
    script = LISTENS + "".join(
        f"{block}{wait}\n" for block, wait in zip(BLOCKS, waits, strict=True)
    )
    script = script.replace("8000", str(free_port()))  # something else may listen there
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    shell = subprocess.Popen(
        ["bash", "-euxc", script], cwd=folder, env=environment, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = shell.communicate(timeout=280)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGTERM)  # the servers, where it did not come to their end
    assert shell.returncode == 0, output[-6000:]
    assert (folder / "report.html").exists()
    assert len(list((folder / "runs").iterdir())) == 4
