"""Records that somebody altered: refused in one line, and never counted twice or left out without a word."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import loadstone
from loadstone.analyse.summary import summary_of
from loadstone.core.errors import InputError
from loadstone.interop.write import export_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    document = loadstone.simulate("llama-3.1-8b@1xh100", concurrency=2, requests=8, output=8, draws=0, out=out)
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
        (constant(None), "records of no cell"),
        (constant(-1), "records of no cell"),
        (constant(2**31 - 1), "a cell that the run does not have"),
        (constant(2**62, "output_tokens"), "records whose output_tokens cannot be"),
        (constant(-5, "input_tokens"), "records whose input_tokens cannot be"),
        (lambda table: table.append_column("status", table["status"]), "not records of this version"),
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
