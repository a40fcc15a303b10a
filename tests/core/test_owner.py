"""One process at a time works on a run folder, whatever becomes of it."""

import contextlib
import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.runs.execution import recover
from test_store import batch, info, row

CODE = """
import os, sys, time
from pathlib import Path
from loadstone.core import run_folder
with run_folder.own(Path(sys.argv[1])):
    child = os.fork() if sys.argv[2] == "fork" else 1
    if child:
        print(child, flush=True)
    time.sleep(60)
"""


@contextlib.contextmanager
def owner(folder: Path, how: str = "") -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Another process that owns the folder, and one that was forked off it."""
    with subprocess.Popen(
        [sys.executable, "-c", CODE, folder, how], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            yield process, child
        finally:
            process.kill()
            if how:
                os.kill(child, signal.SIGKILL)


@pytest.fixture
def cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder with a journal of one record."""
    monkeypatch.setattr(run_folder.journal, "RESERVE_BYTES", 4096)
    run_folder.write_info(tmp_path, info())
    writer = run_folder.JournalWriter(tmp_path, 0)
    writer.write(batch(row("0-0", arrival=[1.0])))
    writer.close()
    return tmp_path


@pytest.mark.process
def test_recover_beside_the_owner_is_refused_and_touches_nothing(cut_off: Path) -> None:
    with owner(cut_off) as (process, _):
        before = {path.name: path.read_bytes() for path in cut_off.iterdir()}
        with pytest.raises(
            InputError,
            match=rf"this run is still going on \(process {process.pid} on .*\); wait for its end",
        ):
            recover(cut_off)
        assert {path.name: path.read_bytes() for path in cut_off.iterdir()} == before


@pytest.mark.process
@pytest.mark.parametrize("how", ["", "fork"])
def test_an_owner_that_was_killed_owns_nothing(cut_off: Path, how: str) -> None:
    with owner(cut_off, how) as (process, _):
        process.kill()
        process.wait()
        with run_folder.own(cut_off):
            assert run_folder.assemble(cut_off) == 1
    assert [path.name for path in cut_off.iterdir() if path.suffix != ".json"] == [
        "records.parquet"
    ]


def test_threads_of_one_process_exclude_each_other_and_a_look_excludes_nobody(
    cut_off: Path,
) -> None:
    with (
        run_folder.own(cut_off),
        pytest.raises(InputError, match="still going on"),
        run_folder.own(cut_off),
    ):
        pass
    (cut_off / run_folder.OWNER).touch()
    looks = []
    taken = run_folder.owner.lock

    def looked_at(file: Any, *how: int) -> bool:
        # Somebody who looks whether the lock is held, as the live page does, has it just then.
        if not looks:
            with (cut_off / run_folder.OWNER).open("rb") as look:
                fcntl.flock(look, fcntl.LOCK_SH)
                looks.append(True)
                return taken(file, *how)
        return taken(file, *how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_folder.owner, "lock", looked_at)
        with run_folder.own(cut_off):
            assert looks


def test_a_file_system_without_locks(cut_off: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with run_folder.own(cut_off):
        text = rf"may still be going on \(process {os.getpid()} on .*\), .* remove .*\.owner"
        with pytest.raises(InputError, match=text), run_folder.own(cut_off):
            pass
        assert run_folder.assemble(cut_off) == 1
    with run_folder.own(cut_off):  # it was removed at the end
        pass


def test_what_another_process_left_unfinished_is_removed(cut_off: Path) -> None:
    (cut_off / "records.parquet.1-ab.part").write_bytes(b"half")
    with run_folder.own(cut_off):
        assert run_folder.assemble(cut_off) == 1
    assert not list(cut_off.glob("*.part"))
