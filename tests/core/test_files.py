"""Reading files that anybody may have written."""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import pytest

from loadstone.core import files, run_folder
from loadstone.core.errors import InputError
from loadstone.core.files import TemporaryFolder, check_regular, open_regular, read_bytes, read_json


class Document(msgspec.Struct):
    name: str


def _read(path: Path) -> Document:
    return read_json(path, Document, 100, "a document", "write it again")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not a document"),
        (b"[1, 2]", "Expected `object`"),
        (b'{"name": "\xff"}', "invalid start byte"),
        (b'{"name": 1}', r"`\$\.name`"),
        (b'{"name": "x"', "truncated"),
        (b'{"name": "x", "others": ' + b"[" * 60, "not a document"),
        (b" " * 101, "more than 0 KiB, too large"),
    ],
)
def test_what_is_no_document_is_refused_in_one_line(
    content: bytes, why: str, tmp_path: Path
) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"file.json: .*{why}.*; write it again") as caught:
        _read(path)
    assert "\n" not in str(caught.value)


def test_what_nests_too_deeply_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(b'{"x": ' + b"[" * 1_000_000)
    with pytest.raises(InputError, match="recursion"):
        read_json(path, Document, 10_000_000, "a document", "write it again")


def test_a_document_is_read_through_a_link_too(tmp_path: Path) -> None:
    (tmp_path / "file.json").write_bytes(b'{"name": "x"}')
    (tmp_path / "link.json").symlink_to("file.json")
    assert _read(tmp_path / "file.json") == _read(tmp_path / "link.json") == Document("x")


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (os.mkfifo, "a pipe, not a file"),
        (Path.mkdir, "a folder, not a file"),
        (lambda path: path.symlink_to("/dev/zero"), "a device, not a file"),
        (_loop, "symbolic links"),
        (lambda path: None, "No such file or directory"),
    ],
)
def test_only_files_are_opened(make: Callable[[Path], None], why: str, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    make(path)
    for opens in (open_regular, check_regular):
        with pytest.raises(OSError, match=why):
            opens(path)
    with pytest.raises(InputError, match=why):
        read_bytes(path, 10, "write it again")


def test_a_name_with_a_nul_is_refused() -> None:
    with pytest.raises(InputError, match="null byte"):
        read_bytes(Path("a\0b"), 10, "write it again")


def test_no_pipe_in_a_run_folder_is_waited_for(tmp_path: Path) -> None:
    for name in (
        "run.json",
        "plan.parquet",
        "records.parquet",
        "server.parquet",
        "journal-0.arrow",
    ):
        os.mkfifo(tmp_path / name)
    for read in (
        run_folder.read_info,
        run_folder.read_plan,
        run_folder.damaged_journals,
        run_folder.assemble,
    ):
        with pytest.raises(InputError, match="a pipe, not a file"):
            read(tmp_path)
    with pytest.raises(InputError, match="no records"):
        next(run_folder.read_records(tmp_path))
    assert run_folder.read_server(tmp_path) is None


def _interrupted_after(steps: int, work: Callable[[], None]) -> bool:
    """Whether work() takes more steps than these in our files and pathlib, and is then interrupted
    as by ctrl-c."""
    left = steps
    ours = {__file__, files.__file__, pathlib.__file__}

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in ours:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_a_temporary_folder_goes_whenever_a_signal_comes(tmp_path: Path) -> None:
    def work() -> None:
        with TemporaryFolder(parent=tmp_path) as folder:
            (folder / "folder").mkdir()

    steps = 1
    while _interrupted_after(steps, work):
        assert list(tmp_path.iterdir()) == [], steps
        steps += 1
    assert list(tmp_path.iterdir()) == []
    assert steps > 100


def test_a_temporary_folder_that_is_kept_stays(tmp_path: Path) -> None:
    folder = TemporaryFolder(parent=tmp_path)
    with folder:
        folder.keep()
    assert list(tmp_path.iterdir()) == [folder.path]
    with pytest.raises(NotADirectoryError):
        TemporaryFolder(parent=Path(os.devnull))
