import json
import os
import shutil
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loadstone.analyse.query import rows_of
from loadstone.commands.output import print_rows
from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.core.host import Host
from loadstone.core.plan import Load
from loadstone.core.record import CellInfo, RunInfo
from summary_documents import summarise
from test_summary import CLOSED, make_run

LOADS = [Load("rate", 2.5), Load("rate", 5.0)]


def finished(
    folder: Path, loads: list[Load], *, failed: bool = False, slo: dict[str, float] | None = None
) -> None:
    change = (
        {f"{c}-{i}": {"status": "error", "error": "x"} for c in range(2) for i in range(5)}
        if failed
        else {}
    )
    make_run(folder, loads, change, slo=slo or {}, **({"target": None} if failed else {}))
    run_folder.write_json(folder / "summary.json", summarise(folder))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of different shape, and one of which there are papers alone."""
    folder = tmp_path_factory.mktemp("made")
    finished(folder / "a", [CLOSED], failed=True)  # no latency at all
    finished(folder / "b", LOADS, slo={"ttft": 1.0, "tpot_p99": 1.0})
    info = RunInfo(
        run_id="c", source="measured", created="2026-01-02T03:04:05+00:00", command=[], loadstone="0.1.0",
        host=Host(), plan_id="x", seed=0, salt=None, cells=[CellInfo(load=CLOSED)],
    )  # fmt: skip
    (folder / "c").mkdir()
    run_folder.write_info(folder / "c", info)
    return folder


@pytest.fixture
def runs(made: Path, tmp_path: Path) -> Path:
    """A copy of the runs of its own."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_cells_of_runs_that_differ_in_shape(runs: Path) -> None:
    columns, rows = rows_of(
        "select run, cell.load.value, cell.metrics.ttft_s.p50 from cells order by all", runs
    )
    assert columns == ["run", "value", "p50"]
    assert rows == [("a", 1.0, None), ("b", 2.5, 0.5), ("b", 5.0, 0.5)]
    sql = "select cell.load.kind, cell.requests.error, cell.metrics.attainment, cell.slo[1].met, cell.verdict.trusted"
    assert rows_of(f"{sql} from cells order by run, cell.load.value", runs)[1] == [
        ("concurrency", 4, None, None, False), ("rate", 0, 1.0, True, False), ("rate", 0, 1.0, True, False),
    ]  # fmt: skip


def test_cells_where_no_run_has_a_latency(tmp_path: Path) -> None:
    finished(tmp_path / "a", [CLOSED], failed=True)
    assert rows_of("select run, cell.metrics.ttft_s.p50 from cells", tmp_path)[1] == [("a", None)]


def test_records_of_all_runs(runs: Path) -> None:
    sql = "select run, cell, count(*), max(list_max(arrival_s)) from records group by all order by all"
    assert rows_of(sql, runs)[1] == [("a", 0, 5, 5.25), ("b", 0, 5, 5.25), ("b", 1, 5, 5.25)]
    assert rows_of("select * from records", runs)[0][:4] == ["run", "request_id", "cell", "phase"]


def test_samples_of_the_servers(runs: Path) -> None:
    with pytest.raises(
        InputError, match="these runs hold no data for the table server; there are cells, "
    ):
        rows_of("select * from server", runs)
    for folder, value in (("a", 1.0), ("b", 2.0)):
        row = {
            "time_s": 0.5,
            "replica": 0,
            "name": "vllm:num_requests_running",
            "labels": "{}",
            "value": value,
        }
        run_folder.write_server(
            runs / folder, pa.Table.from_pylist([row], schema=run_folder.server_schema())
        )
    assert rows_of("select run, name, value from server order by all", runs) == (
        ["run", "name", "value"],
        [("a", "vllm:num_requests_running", 1.0), ("b", "vllm:num_requests_running", 2.0)],
    )


@pytest.mark.parametrize("name", ["servers", "Record", "pg_sequenc", "no such"])
def test_a_table_that_is_none_is_told_those_that_are(runs: Path, name: str) -> None:
    with pytest.raises(InputError) as raised:
        rows_of(f'select * from "{name}"', runs)  # noqa: S608
    assert str(raised.value) == f"query: no table '{name}'; there are cells, records, runs"


def test_runs_have_their_papers(runs: Path) -> None:
    sql = "select run, status, seed, cells[1].load.value, target.model from runs order by run"
    assert rows_of(sql, runs)[1] == [
        ("a", "done", 0, 1.0, None), ("b", "done", 0, 2.5, "m"), ("c", "running", 0, 1.0, None),
    ]  # fmt: skip


def test_tables_join(runs: Path) -> None:
    sql = "select count(*) from records join runs using (run) join cells using (run)"
    assert rows_of(sql, runs)[1] == [(5 + 2 * 10,)]


@pytest.mark.parametrize(
    "name", ["it's", 'a "quote"', "br[ack]ets", "st*r?", "{braces}", "ü space", "a;b--c"]
)
def test_any_name_of_a_folder(tmp_path: Path, name: str) -> None:
    finished(tmp_path / name / name, [CLOSED])
    finished(tmp_path / name / "other", [CLOSED])
    for table in ("records", "cells", "runs"):
        sql = f"select distinct run from {table} order by run"  # noqa: S608
        assert rows_of(sql, tmp_path / name)[1] == sorted([(name,), ("other",)])


def test_a_relative_folder(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs.parent)
    assert rows_of("select count(*) from records", Path(runs.name))[1] == [(15,)]


@pytest.mark.parametrize(
    "sql",
    [
        "selct 1",
        "select nothing from records",
        "select * from moons",
        "select 1/",
        "select 'a'::int",
        "",
        ";",
        "-- x",
    ],
)
def test_bad_sql_is_told_in_one_line(runs: Path, sql: str) -> None:
    with pytest.raises(InputError, match=r"^query: ") as raised:
        rows_of(sql, runs)
    assert str(raised.value).isprintable()


@pytest.mark.parametrize(
    "sql",
    [
        "select * from read_csv('/etc/passwd')",
        "select * from read_text('/etc/passwd')",
        "select * from '/etc/passwd'",
        "select * from glob('/etc/*')",
        "copy (select 1) to '{runs}/x.csv'",
        "copy (select 1 as a) to '{runs}/b/records.parquet' (format parquet, use_tmp_file false)",
        "copy (pivot (select 1 as a) on a) to '{runs}/b/run.json' (format csv, use_tmp_file false)",
        "explain analyze copy (select 1 as a) to '{runs}/b/run.json' (format csv, use_tmp_file false)",
        "with x as (copy (select 1 as a) to '{runs}/b/run.json' (format csv, use_tmp_file false)) select 1",
        "select 1; copy (select 1 as a) to '{runs}/b/run.json' (format csv, use_tmp_file false)",
        "attach '{runs}/b/run.json' as x",
        "attach '{runs}/x.db' as x",
        "install httpfs",
        "set enable_external_access = true",
        "set allowed_paths = ['/etc/passwd']",
        "select * from read_text('{runs}/b/secret.txt')",
        "select * from json_execute_serialized_sql(json_serialize_sql('with x as (co' || 'py (select 1 as a) to "
        "''{runs}/b/records.parquet'' (format parquet, use_tmp_file false)) select 1'))",
        "select * from query('co' || 'py (select 1) to ''{runs}/b/run.json''')",
        "select * from enable_profiling(format = 'json', save_location = '{runs}/b/run.json'); select 1; select 2",
    ],
)
def test_nothing_but_the_runs_is_open_to_a_query(runs: Path, sql: str) -> None:
    (runs / "b" / "secret.txt").write_text("x")
    before = contents(runs)
    with pytest.raises(InputError, match=r"^query: "):
        rows_of(sql.replace("{runs}", str(runs)), runs)
    assert contents(runs) == before


@pytest.mark.parametrize(
    "sql", ["select 'copy' as copy", "select 'copy' as \"copy\" -- copy", "select 'c' || 'opy'"]
)
def test_no_word_is_refused(runs: Path, sql: str) -> None:
    assert rows_of(sql, runs)[1] == [("copy",)]


def test_all_of_a_runs_papers_can_be_shown(runs: Path) -> None:
    columns, rows = rows_of("select * from runs order by run", runs)
    assert [row[columns.index("run")] for row in rows] == ["a", "b", "c"]
    assert rows[2][columns.index("created")] == datetime(2026, 1, 2, 3, 4, 5)  # in UTC


def test_a_time_with_a_zone_is_told_in_one_line(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pytz", None)  # as where it is not installed
    with pytest.raises(InputError, match="times with a time zone; cast them"):
        rows_of("select now() as at", runs)
    assert len(rows_of("select now()::timestamp as at", runs)[1]) == 1


def test_hundreds_of_runs_of_which_few_have_a_field(tmp_path: Path) -> None:
    """A reader of DuckDB's takes 128 MiB, and a field that is rare makes a map of all its
    object."""
    finished(tmp_path / "run-000", [CLOSED])
    for number in range(1, 300):
        folder = tmp_path / f"run-{number:03}"
        shutil.copytree(tmp_path / "run-000", folder)
        for file in ("run.json", "summary.json"):
            document = json.loads((folder / file).read_text()) | {"run_id": folder.name}
            for cell in document["cells"] if number != 7 else []:
                cell.pop("metrics", None)
            (folder / file).write_text(json.dumps(document))
    assert rows_of("select count(*) from runs", tmp_path)[1] == [(300,)]
    sql = "select run, cell.metrics.ttft_s.p50 is null from cells where cell.metrics is not null order by run"
    assert rows_of(sql, tmp_path)[1] == [("run-000", False), ("run-007", False)]
    assert rows_of("select count(distinct run) from records where run > 'run-009'", tmp_path)[
        1
    ] == [(290,)]


def test_records_of_another_version_have_what_they_have(runs: Path) -> None:
    path = runs / "a" / "records.parquet"
    table = pq.read_table(path).drop_columns(["sent_s"])
    pq.write_table(table.append_column("colour", pa.array(["red"] * len(table))), path)
    sql = (
        "select run, count(*), count(sent_s), count(colour) from records group by all order by run"
    )
    assert rows_of(sql, runs)[1] == [("a", 5, 0, 5), ("b", 10, 10, 0)]


@pytest.mark.parametrize("text", ["{", "", "[]", '{"a": 1} x', "[" * 100_000])
@pytest.mark.parametrize("file", ["run.json", "summary.json", "records.parquet"])
def test_a_damaged_file_is_named(runs: Path, file: str, text: str) -> None:
    (runs / "b" / file).write_text(text)
    with pytest.raises(InputError) as raised:
        rows_of("select 1", runs)
    assert str(raised.value).startswith(f"{runs / 'b' / file}: ")
    assert str(raised.value).isprintable()


def contents(runs: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "sql",
    [
        "call enable_logging(storage = 'file', storage_config = {'path': '{runs}/log'})",
        "select * from enable_logging(storage = 'file', storage_config = {'path': '{runs}/log'})",
        "select (select count(*) from enable_logging(storage='file'))",
        "with x as (from enable_logging(storage='file')) from x",
        "select * from query('select * from enable_logging()')",
        "select 1 where exists (from checkpoint())",
        "describe select * from enable_profiling()",
        "create table t as select 1",
        "pragma database_list",
        "set memory_limit = '1GB'",
        "explain analyze select 1",
        "select 1; select 2",
        "load json",
        "execute x",
        "export database '{runs}/x'",
        "checkpoint",
        "use memory",
    ],
)
def test_nothing_but_one_select_is_run(
    runs: Path, sql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(runs)
    before = contents(runs)
    with pytest.raises(InputError, match=r"^query: ") as raised:
        rows_of(sql.replace("{runs}", str(runs)), runs)
    assert str(raised.value).isprintable()
    assert contents(runs) == before


@pytest.mark.parametrize(
    "sql",
    [
        "describe cells", "show tables", "summarize select 1 as a", "values (1)", "from range(3)", "table runs",
        "select unnest([1, 2])", "from unnest([1, 2])", "with a as (select 1) from a", "select 1;",
        "select * from (pivot (select 1 as a) on a in (1))",
    ],
)  # fmt: skip
def test_what_selects_is_run(runs: Path, sql: str) -> None:
    assert rows_of(sql, runs).rows


def test_nothing_is_spilled_into_the_current_folder(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    settings = "select value from duckdb_settings() where name = 'temp_directory'"
    with pytest.raises(InputError, match=r"duckdb_settings\(\) is not run"):
        rows_of(settings, runs)
    assert rows_of("select current_setting('temp_directory')", runs).rows == [("",)]
    assert not list((tmp_path / "here").iterdir())


def test_records_have_their_latencies(runs: Path) -> None:
    sql = "select run, cell, {} from records where phase = 'measure' and status in ('ok', 'short') group by all"
    for name in ("ttft_s", "tpot_s", "e2e_s", "ttft_intended_s", "e2e_intended_s"):
        values = rows_of(sql.format(f"avg({name})") + " order by all", runs).rows
        of_cell = f"select run, {name}_mean from cells where {name}_mean is not null order by all"  # noqa: S608
        of_cells = rows_of(of_cell, runs).rows
        known = [(run, pytest.approx(value)) for run, _, value in values if value is not None]
        assert known == of_cells or name.endswith("intended_s")
    one = "select ttft_s, e2e_s, arrival_s[1] - sent_s, arrival_s[-1] - sent_s from records"
    assert all(row[:2] == row[2:] for row in rows_of(one, runs).rows)


def test_answers_in_one_piece_have_no_ttft(runs: Path) -> None:
    path = runs / "b" / "run.json"
    document = json.loads(path.read_text())
    document["target"]["streams"] = False
    path.write_text(json.dumps(document))
    sql = "select run, count(ttft_s) > 0, count(tpot_s) > 0, count(e2e_s) > 0 from records group by all order by all"
    rows = rows_of(sql, runs).rows
    assert rows[1] == ("b", False, False, True)
    assert rows[0][1]


def test_cells_are_flat(runs: Path) -> None:
    sql = "select run, load_kind, load_value, requests_error, ttft_s_p50, verdict_trusted from cells order by all"
    assert rows_of(sql, runs).rows == [
        ("a", "concurrency", 1.0, 4, None, False),
        ("b", "rate", 2.5, 0, 0.5, False),
        ("b", "rate", 5.0, 0, 0.5, False),
    ]
    both = "select count(*) from cells where load_value is distinct from cell.load.value"
    assert rows_of(both, runs).rows == [(0,)]


def test_an_error_is_told_without_its_place(runs: Path) -> None:
    with pytest.raises(InputError) as raised:
        rows_of("select nothing, run\nfrom records", runs)
    assert "LINE" not in str(raised.value)
    assert 'Referenced column "nothing" not found' in str(raised.value)


@pytest.mark.parametrize("name", ["run.json", "summary.json", "records.parquet", "server.parquet"])
def test_a_pipe_in_a_run_folder_is_not_waited_for(runs: Path, name: str) -> None:
    (runs / "b" / name).unlink(missing_ok=True)
    os.mkfifo(runs / "b" / name)
    with pytest.raises(InputError, match="a pipe, not a file"):
        rows_of("select 1", runs)


@pytest.mark.parametrize("terminal", [False, True])
def test_what_is_nested_is_printed_as_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    monkeypatch.setenv("COLUMNS", "200")
    nested = {"ok": True, "p50": None, "of": [{"when": datetime(2026, 1, 2, tzinfo=UTC)}]}
    print_rows(["run", "cell"], [("a", nested), ("b\nc", None)])
    printed = capsys.readouterr().out
    assert '{"ok":true,"p50":null,"of":[{"when":"2026-01-02T00:00:00Z"}]}' in printed
    assert terminal or printed.splitlines()[1:] == [
        'a\t{"ok":true,"p50":null,"of":[{"when":"2026-01-02T00:00:00Z"}]}', "b c\t"
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["", "not there"])
def test_a_folder_without_runs_is_told(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        InputError,
        match="no run folders here; measure something first, or name the folder with --runs",
    ):
        rows_of("select 1", tmp_path / name)


def test_a_result_is_bounded(runs: Path) -> None:
    assert rows_of("select sum(range) from range(3000000)", runs).rows == [(4499998500000,)]
    limit = 25_000
    assert len(rows_of("select * from range(25000)", runs, max_values=limit).rows) == 25_000
    for sql in ("select * from range(3000000000)", "select [1, 2, 3] from range(30000)"):
        with pytest.raises(InputError, match="add a limit, or aggregate"):
            rows_of(sql, runs, max_values=limit)
    with pytest.raises(InputError, match="Memory"):  # which is soon reached
        rows_of(
            "select * from range(30000000000) order by range desc",
            runs,
            max_values=limit,
            max_memory_bytes=200_000_000,
        )


@pytest.mark.process
def test_ctrl_c_ends_a_query_in_one_line(runs: Path) -> None:
    """Sent once it runs: to the program that says so."""
    program = (
        "import sys; from loadstone.analyse import query; check = query.check_statement\n"
        "def told(*of): check(*of); print('runs', flush=True)\n"
        "query.check_statement = told; sys.argv[0] = 'loadstone'\n"
        "from loadstone.__main__ import main; main()"
    )
    sql = "select sum(range * range) from range(3000000000000)"
    command = [sys.executable, "-c", program, "query", sql, "--runs", str(runs)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "runs\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "loadstone: interrupted\n")
