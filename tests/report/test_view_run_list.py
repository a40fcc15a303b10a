import json
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.core.host import Host
from loadstone.core.plan import Load
from loadstone.core.record import CellInfo, RunInfo
from loadstone.interop.read import import_files
from loadstone.report.view.run_list import FRESH_S, RunList, RunRow
from summary_documents import summarise
from test_import import SGLANG
from test_summary import CLOSED, make_run


def finished(folder: Path, loads: list[Load] | None = None, **fields: Any) -> Path:
    make_run(folder, loads or [CLOSED], {}, **fields)
    run_folder.write_json(folder / "summary.json", summarise(folder))
    return folder


def papers(folder: Path, **fields: Any) -> Path:
    folder.mkdir()
    given: dict[str, Any] = {
        "run_id": folder.name, "source": "measured", "created": "2026-01-02T03:04:05+00:00", "command": [],
        "loadstone": "0.1.0", "host": Host(), "plan_id": "x", "seed": 0, "salt": None,
        "cells": [CellInfo(load=CLOSED)],
    }  # fmt: skip
    run_folder.write_info(folder, RunInfo(**{**given, **fields}))
    return folder


def old(folder: Path) -> Path:
    then = time.time() - 2 * FRESH_S
    for path in folder.iterdir():
        os.utime(path, (then, then))
    return folder


def only(root: Path) -> RunRow:
    (row,) = RunList([root]).rows()
    return row


def test_a_run_is_told_in_a_line(tmp_path: Path) -> None:
    folder = finished(tmp_path / "r", [Load("concurrency", 1), Load("concurrency", 2)])
    assert only(tmp_path).why == "not sealed, and perhaps changed since"
    run_folder.seal(folder, run_folder.read_info(folder))
    row = only(tmp_path)
    assert (row.key, row.state, row.source, row.why) == ("r", "done", "measured", "")
    assert row.loads == "concurrency 1, 2"
    assert row.trusted[1] == 2
    assert row.output_tokens_per_s is not None
    assert "m" in row.deployment


def test_what_another_tool_stated_is_not_called_trusted(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(SGLANG))
    import_files([tmp_path / "a.jsonl"], tmp_path / "runs")
    assert only(tmp_path / "runs").stated
    finished(tmp_path / "measured" / "r")
    assert not only(tmp_path / "measured").stated


def test_the_newest_run_comes_first(tmp_path: Path) -> None:
    finished(tmp_path / "a", created="2026-01-01T00:00:00+00:00")
    finished(tmp_path / "b", created="2026-03-01T00:00:00+00:00")
    finished(tmp_path / "c", created="2026-02-01T00:00:00+00:00")
    assert [row.key for row in RunList([tmp_path]).rows()] == ["b", "c", "a"]


def test_what_changed_is_read_again_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        finished(tmp_path / name)
    run_list = RunList([tmp_path])
    run_list.rows()
    read = []
    honest = run_folder.read_info

    def counted(folder: Path) -> RunInfo:
        read.append(folder.name)
        return honest(folder)

    monkeypatch.setattr(run_folder, "read_info", counted)
    assert len(run_list.rows()) == 3
    assert read == []
    (tmp_path / "b" / "summary.json").write_text("[]")
    assert {row.key: row.state for row in run_list.rows()} == {
        "a": "done",
        "b": "no summary",
        "c": "done",
    }
    assert read == ["b"]


def test_a_run_that_is_removed_is_gone(tmp_path: Path) -> None:
    folder = papers(tmp_path / "r")
    run_list = RunList([tmp_path])
    assert run_list.find("r") is not None
    (folder / "run.json").unlink()
    assert run_list.rows() == []
    assert run_list.find("r") is None


@pytest.mark.parametrize(
    ("files", "state"),
    [
        ({"run.json": b""}, "unreadable"),
        ({"run.json": b"{}"}, "unreadable"),
        ({"run.json": b'{"run_id": 1}'}, "unreadable"),
        ({"run.json": b"[" * 100_000}, "unreadable"),
        ({"summary.json": b"{}"}, "unreadable"),
        ({".owner": b"1"}, "unreadable"),
    ],
)
def test_a_half_written_folder_is_shown_as_such(
    tmp_path: Path, files: dict[str, bytes], state: str
) -> None:
    (tmp_path / "r").mkdir()
    for name, text in files.items():
        (tmp_path / "r" / name).write_bytes(text)
    row = only(tmp_path)
    assert row.state == state
    assert row.why
    assert "\n" not in row.why


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"null", b'{"cells": 3}', b'{"cells": [1, null, "x"]}', b'{"cells": [{"load": 1, "metrics": []}]}',
     b'{"cells": [{"load": {"kind": "rate", "value": "x"}, "requests": {"ok": "y"}, "verdict": 7}]}'],
)  # fmt: skip
def test_a_summary_of_anothers_making_spoils_one_line_at_most(tmp_path: Path, text: bytes) -> None:
    finished(tmp_path / "good")
    bad = papers(tmp_path / "bad", status="done")
    (bad / "summary.json").write_bytes(text)
    rows = {row.key: row for row in RunList([tmp_path]).rows()}
    assert rows["good"].state == "done"
    assert rows["bad"].output_tokens_per_s is None


def test_papers_with_settings_of_the_wrong_kind_are_a_line(tmp_path: Path) -> None:
    settings = {"deployment": 3, "workload": [], "import": "x", "intervals": {}}
    row = only(papers(tmp_path / "r", status="failed", error="x", settings=settings))
    assert row.state == "no summary"


def test_other_folders_are_no_runs(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "file").write_text("x")
    assert RunList([tmp_path]).rows() == []


def test_a_folder_that_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        RunList([tmp_path / "nowhere"])


# --- running, or cut off --------------------------------------------------------------------------


def test_a_run_whose_worker_lives_is_running_however_old_its_files(tmp_path: Path) -> None:
    folder = papers(tmp_path / "r")
    writer = run_folder.JournalWriter(folder, 0)
    old(folder)
    assert only(tmp_path).state == "running"
    writer.close()
    row = only(tmp_path)
    assert row.state == "cut off"
    assert "loadstone recover" in row.why


def test_a_run_that_has_just_begun_is_running(tmp_path: Path) -> None:
    folder = papers(tmp_path / "r")
    run_list = RunList([tmp_path])
    assert run_list.rows()[0].state == "running"
    old(folder)
    assert run_list.rows()[0].state == "cut off"


# --- keys and links -------------------------------------------------------------------------------


def test_keys_are_plain_and_tell_folders_of_the_same_name_apart(tmp_path: Path) -> None:
    roots = [tmp_path / "one", tmp_path / "two"]
    for root in roots:
        root.mkdir()
        papers(root / "r")
    papers(roots[0] / "a b<script>")
    papers(roots[0] / "b").rename(roots[0] / os.fsdecode(b"\xff\xfe"))
    keys = {row.key for row in RunList(roots).rows()}
    assert {"r", "r~2"} < keys
    assert len(keys) == 4
    assert all(key.replace("~", "-").replace("-", "").isalnum() for key in keys)


def test_only_keys_of_the_list_are_found(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    papers(runs / "r")
    papers(tmp_path / "outside")
    run_list = RunList([runs])
    assert run_list.find("r") is not None
    for key in (
        "../outside",
        "..",
        ".",
        "",
        "r/",
        "r/../../outside",
        str(tmp_path / "outside"),
        "r\0",
    ):
        assert run_list.find(key) is None


def test_links_that_lead_out_are_refused(tmp_path: Path) -> None:
    runs, outside = tmp_path / "runs", finished(tmp_path / "outside")
    runs.mkdir()
    (runs / "whole").symlink_to(outside)
    part = papers(runs / "part", status="done")
    (part / "summary.json").symlink_to(outside / "summary.json")
    within = papers(runs / "within", status="done")
    (within / "log.txt").symlink_to(within / "run.json")
    circle = papers(runs / "circle")
    (circle / "log.txt").symlink_to(circle / "log.txt")
    rows = {row.key: row for row in RunList([runs]).rows()}
    assert {key: row.state for key, row in rows.items()} == {
        "whole": "unreadable", "part": "unreadable", "circle": "unreadable", "within": "no summary",
    }  # fmt: skip
    assert "leads out" in rows["whole"].why
    assert "summary.json is a link" in rows["part"].why


def test_a_pipe_in_the_place_of_a_file_does_not_hang_the_page(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    os.mkfifo(tmp_path / "r" / "run.json")
    row = only(tmp_path)
    assert (row.state, row.why) == ("unreadable", "refused: run.json is not a regular file")


def test_hostile_names_are_made_harmless(tmp_path: Path) -> None:
    folder = papers(tmp_path / "r", status="done", created="\x1b[31m", error="a\nb\x1b[2J")
    summary = {"cells": [], "run_id": "<script>"}
    (folder / "summary.json").write_bytes(msgspec.json.encode(summary))
    row = only(tmp_path)
    assert "\x1b" not in row.created + row.why + row.deployment


@pytest.mark.slow
def test_a_thousand_runs_are_listed_fast_the_second_time(tmp_path: Path) -> None:
    finished(tmp_path / "0")
    for number in range(1, 1000):
        copy = tmp_path / str(number)
        copy.mkdir()
        for name in ("run.json", "summary.json"):
            (copy / name).write_bytes((tmp_path / "0" / name).read_bytes())
    run_list = RunList([tmp_path])
    begin = time.process_time()
    assert len(run_list.rows()) == 1000
    first_s = time.process_time() - begin
    assert len(run_list.rows()) == 1000
    assert time.process_time() - begin - first_s < first_s / 2
