"""The journal of a study survives what may happen to it: a torn line, a second writer's garbage, a
full disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from loadstone.core.errors import InputError
from loadstone.core.run_folder.owner import is_owned
from loadstone.studies.journal import FILE_NAME, StudyJournal, find_leftovers, read_entries


def test_what_was_written_is_read(tmp_path: Path) -> None:
    journal = StudyJournal(tmp_path)
    journal.write("launch", launch="a", handle={"job": 7, "hosts": ["x"]})
    journal.write("done", launch="a", cell="b", folder="runs/1")
    journal.close()
    first, second = read_entries(tmp_path)
    assert (first.event, first.launch, first.handle) == ("launch", "a", {"job": 7, "hosts": ["x"]})
    assert (second.event, second.cell, second.folder) == ("done", "b", "runs/1")
    assert first.at <= second.at


def test_a_torn_line_is_passed_over_and_joined_to_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        journal = StudyJournal(tmp_path)
        journal.write("launch", launch="a")
        journal.close()
        with (tmp_path / FILE_NAME).open("ab") as file:
            file.write(b'{"event":"done","at":1.0,"lau')
    assert [entry.event for entry in read_entries(tmp_path)] == ["launch", "launch"]


def test_no_journal_is_an_empty_one(tmp_path: Path) -> None:
    assert list(read_entries(tmp_path)) == []


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError):
        StudyJournal(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


def test_what_may_still_run_is_what_was_begun_and_not_ended(tmp_path: Path) -> None:
    journal = StudyJournal(tmp_path)
    for launch in ("ended", "lost", "local"):
        journal.write(
            "launch",
            launch=launch,
            handle={} if launch == "local" else {"kind": "slurm", "job": launch},
        )
        journal.write("ready", launch=launch, handle={"url": "http://x"})
    journal.write("end", launch="ended", why="interrupted")
    journal.close()
    assert find_leftovers(tmp_path) == {"lost": {"kind": "slurm", "job": "lost"}}


def test_no_pipe_and_no_device_is_read_in_its_place(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FILE_NAME)
    with pytest.raises(InputError, match="a pipe, not a file"):
        list(read_entries(tmp_path))
    (tmp_path / FILE_NAME).unlink()
    (tmp_path / FILE_NAME).symlink_to("/dev/zero")
    with pytest.raises(InputError, match="a device, not a file"):
        list(read_entries(tmp_path))


def test_a_pipe_in_place_of_the_owner_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".owner")
    assert not is_owned(tmp_path)
