"""Records that somebody altered: refused in one line, and never counted twice or left out without a
word."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import loadstone
from loadstone.analyse.query import find_unsealed
from loadstone.analyse.stored_run import read_run
from loadstone.analyse.summary import summary_of
from loadstone.core.errors import InputError
from loadstone.core.run_folder import read_info, records_schema, seal, server_schema, write_info
from loadstone.interop.write import export_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    document = loadstone.simulate(
        "llama-3.1-8b@1xh100", concurrency=2, requests=8, output=8, draws=0, out=out
    ).document()
    return Path(document["run_dir"])


def constant(value: int | None, name: str = "cell") -> Callable[[pa.Table], pa.Table]:
    def alter(table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index(name)
        kind = table.schema.field(at).type
        return table.set_column(at, pa.field(name, kind), pa.array([value] * len(table), kind))

    return alter


@pytest.mark.parametrize(
    ("alter", "problem"),
    [
        (constant(None), "records of no load"),
        (constant(-1), "records of no load"),
        (constant(2**31 - 1), "a load that the run does not have"),
        (constant(2**62, "output_tokens"), "records whose output_tokens cannot be"),
        (constant(-5, "input_tokens"), "records whose input_tokens cannot be"),
        (
            lambda table: table.append_column("status", table["status"]),
            "not records of this version",
        ),
        (lambda table: pa.concat_tables([table] * 3), "planned requests"),
    ],
)
def test_altered_records_are_refused(
    run: Path, tmp_path: Path, alter: Callable[[pa.Table], pa.Table], problem: str
) -> None:
    folder = tmp_path / "altered"
    folder.mkdir()
    for file in run.iterdir():
        if file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    records = folder / "records.parquet"
    pq.write_table(alter(pq.read_table(records)), records)
    with pytest.raises(InputError, match=problem):
        summary_of(folder)
    if problem != "planned requests":
        with pytest.raises(InputError, match=problem):
            export_run(folder, "parquet", tmp_path / "out.parquet")


def test_pictures_may_have_more_pixels_than_32_bits_count(run: Path, tmp_path: Path) -> None:
    """Also those that no server would decode: what was measured of others is kept."""
    folder = copied(run, tmp_path / "large")
    for name in ("pixels", "picture_bytes", "body_bytes"):
        records = pq.read_table(folder / "records.parquet")
        pq.write_table(constant(64 * 65_535**2, name)(records), folder / "records.parquet")
    assert summary_of(folder).cells[0].requests.ok == 8
    pq.write_table(constant(2**33, "visual_tokens")(records), folder / "records.parquet")
    with pytest.raises(InputError, match="records whose visual_tokens cannot be"):
        summary_of(folder)


def copied(run: Path, to: Path) -> Path:
    to.mkdir()
    for file in run.iterdir():
        if file.is_file():
            (to / file.name).write_bytes(file.read_bytes())
    return to


@pytest.mark.parametrize("name", ["phase", "status"])
def test_words_that_nobody_knows_are_refused(run: Path, tmp_path: Path, name: str) -> None:
    folder = copied(run, tmp_path / "altered")
    table = pq.read_table(folder / "records.parquet")
    at = table.column_names.index(name)
    words = pa.array(["well", *table[name].to_pylist()[1:]])
    pq.write_table(table.set_column(at, name, words), folder / "records.parquet")
    with pytest.raises(InputError, match=f"records whose {name} is 'well'"):
        summary_of(folder)
    with pytest.raises(InputError, match=f"records whose {name} is 'well'"):
        read_run(folder)


def test_records_that_were_changed_are_not_trusted(run: Path, tmp_path: Path) -> None:
    """Halved where that is possible; and below 0, also where nobody kept how they were written."""
    for name, shift_s, sealed, kinds in (
        ("same", 0.0, True, set()),
        ("sooner", 0.001, True, {"records_altered"}),
        ("before", 1.0, True, {"records_altered", "times_impossible"}),
        ("unsealed", 1.0, False, {"times_impossible"}),
    ):
        folder = copied(run, tmp_path / name)
        rows = pq.read_table(folder / "records.parquet").to_pylist()
        for row in rows if shift_s else ():
            row["arrival_s"] = [at - shift_s for at in row["arrival_s"]]
        if shift_s:
            pq.write_table(
                pa.Table.from_pylist(rows, schema=records_schema()), folder / "records.parquet"
            )
        if not sealed:
            info = read_info(folder)
            info.marks = {}
            write_info(folder, info)
            (folder / "summary.json").unlink()
        (cell,) = read_run(folder).summary.cells
        assert set(cell.verdict.kinds("error")) == kinds, name
        assert cell.verdict.trusted == (not kinds)
        if sealed and kinds:
            with pytest.raises(InputError, match="was changed after it was written"):
                loadstone.query_runs("select count(*) from records", folder)
            loadstone.recover(folder)  # does not make them what they were
            assert not read_run(folder).summary.cells[0].verdict.trusted


def strip_marks(folder: Path) -> None:
    papers = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(papers | {"marks": {}}))


def trust_all(folder: Path) -> None:
    document = json.loads((folder / "summary.json").read_text())
    document["cells"][0]["metrics"]["ttft_s"]["p50"] /= 2
    document["cells"][0]["verdict"] = {"trusted": True, "findings": []}
    (folder / "summary.json").write_text(json.dumps(document))


def edit_settings(folder: Path) -> None:
    papers = json.loads((folder / "run.json").read_text())
    papers["settings"].pop("basis")
    (folder / "run.json").write_text(json.dumps(papers))


@pytest.mark.parametrize(
    ("alter", "files"),
    [
        ((), None),
        ((strip_marks,), "run.json"),
        ((strip_marks, lambda folder: (folder / "summary.json").unlink()), "run.json"),
        ((trust_all, strip_marks), "run.json"),
        ((edit_settings,), "run.json"),
        ((edit_settings, strip_marks), "run.json"),
        ((lambda folder: (folder / "server.parquet").unlink(),), "server.parquet"),
    ],
)
def test_a_verdict_whose_evidence_was_changed_is_judged_again(
    run: Path, tmp_path: Path, alter: tuple[Callable[[Path], None], ...], files: str | None
) -> None:
    folder = copied(run, tmp_path / "altered")
    info = read_info(folder)
    if files == "server.parquet":
        server = pa.Table.from_pylist([], schema=server_schema())
        pq.write_table(server, folder / "server.parquet")
    seal(folder, info)
    (right,) = read_run(folder).summary.cells
    for change in alter:
        change(folder)
    (cell,) = read_run(folder).summary.cells
    (told,) = [each for each in cell.verdict.findings if each.kind == "evidence_altered"] or [None]
    assert (told and told.values["files"]) == files
    assert cell.verdict.trusted == (files is None)
    assert cell.metrics.ttft_s == right.metrics.ttft_s


def test_a_query_tells_runs_that_are_not_sealed(run: Path, tmp_path: Path) -> None:
    sealed, folder = copied(run, tmp_path / "a"), copied(run, tmp_path / "b")
    seal(sealed, read_info(sealed))
    strip_marks(folder)
    assert find_unsealed(tmp_path) == ["b"]


@pytest.mark.parametrize(("phase", "kept"), [("measure", True), ("warmup", False)])
def test_a_warm_up_is_the_planned_one(run: Path, tmp_path: Path, phase: str, kept: bool) -> None:
    folder = copied(run, tmp_path / "altered")
    strip_marks(folder)
    rows = pq.read_table(folder / "records.parquet").to_pylist()
    chosen = next(row for row in rows if row["phase"] == ("warmup" if kept else "measure"))
    chosen["phase"] = phase
    pq.write_table(pa.Table.from_pylist(rows, schema=records_schema()), folder / "records.parquet")
    with pytest.raises(InputError, match="of the warm-up, for which 2 are planned"):
        read_run(folder)


def test_a_summary_that_was_changed_is_made_again(run: Path, tmp_path: Path) -> None:
    folder = copied(run, tmp_path / "altered")
    document = json.loads((folder / "summary.json").read_text())
    right = document["cells"][0]["metrics"]["ttft_s"]["p50"]
    document["cells"][0]["metrics"]["ttft_s"]["p50"] = right / 2
    (folder / "summary.json").write_text(json.dumps(document))
    ttft = read_run(folder).summary.cells[0].metrics.ttft_s
    assert ttft is not None
    assert ttft.p50 == right
    with pytest.raises(InputError, match=r"summary\.json: was changed after it was written"):
        loadstone.query_runs("select * from cells", folder)
    loadstone.recover(folder)
    loadstone.query_runs("select * from cells", folder)
