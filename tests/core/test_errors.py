"""What the host refuses is not blamed on files."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loadstone.core import run_folder
from loadstone.core.errors import NoRoomError, lacks_room

REFUSALS = [
    pa.ArrowException(
        "Unknown error: Failed to launch worker thread: Resource temporarily unavailable"
    ),
    OSError(errno.EMFILE, "Too many open files"),
    RuntimeError("can't start new thread"),
]


def test_an_error_of_the_host_is_told_from_one_of_a_file() -> None:
    assert all(map(lacks_room, REFUSALS))
    assert not any(
        map(lacks_room, [OSError(errno.ENOENT, "gone"), pa.ArrowException("not a Parquet file")])
    )


@pytest.mark.parametrize("refusal", REFUSALS[:2])
@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("plan.parquet", run_folder.read_plan),
        ("records.parquet", run_folder.assemble),
    ],
)
def test_no_room_for_threads_is_no_broken_file(
    refusal: Exception,
    name: str,
    read: Callable[[Path], object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise refusal

    (tmp_path / name).write_bytes(b"PAR1")
    monkeypatch.setattr(pq, "read_table", refuse)
    monkeypatch.setattr(pq, "read_metadata", refuse)
    with pytest.raises(
        NoRoomError, match=r"^no room for more memory, processes or open files.*see ulimit -a"
    ):
        read(tmp_path)
