"""What a person reads, on terminals of any width."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from msgspec.structs import replace

from conftest import Loadstone
from loadstone.commands import app, examples, output
from loadstone.commands.catalogue import catalogue
from loadstone.report.table import Table, fit, to_text
from test_summary import CLOSED, make_run

TABLE = Table(
    heads=["conc", "TTFT p50", "p99", "TPOT p50", "p99", "trusted"],
    align="lrurul",
    rows=[
        ["1", "11.2 ms", "≥ 12.0 ms", "5.49 ms", "5.52 ms", "yes"],
        ["64", "62.1 ms", "210 ms", "8.37 ms", "9.90 ms", "NO (1)"],
    ],
)


@pytest.mark.parametrize("width", [34, 40, 60, 80])
def test_a_terminal_of_any_width_shows_every_figure(width: int) -> None:
    text = to_text([TABLE], width)
    assert "…" not in text
    assert all(figure in text for row in TABLE.rows for figure in row)
    assert max(map(len, text.splitlines())) <= width


SIZES = Table(
    heads=["model", "GPUs", "weights", "KV room", "KV tokens"],
    align="nnrrr",
    rows=[
        ["Meta-Llama-3.1-405B", gpus, "189.0", "28.6", "475,968"] for gpus in ("4×h100", "8×h100")
    ],
)


def test_a_narrow_terminal_has_loads_as_columns() -> None:
    turned = fit(TABLE, 40)
    assert turned.heads == ["conc", "1", "64"]
    # Of what a p99 is it says itself there.
    names = ["TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99", "trusted"]
    assert [row[0] for row in turned.rows] == names
    assert turned.rows[-1] == ["trusted", "yes", "NO (1)"]
    assert fit(TABLE, 120) is TABLE


def test_setups_are_named_by_what_they_differ_in() -> None:
    turned = fit(SIZES, 48)
    assert turned.heads == ["GPUs", "4×h100", "8×h100"]
    assert [row[0] for row in turned.rows] == ["weights", "KV room", "KV tokens"]
    assert turned.caption == "Meta-Llama-3.1-405B"


def test_of_many_rows_columns_that_can_be_spared_are_left_out() -> None:
    rows = [[str(load), *TABLE.rows[0][1:]] for load in range(8)]
    narrow = fit(replace(TABLE, rows=rows, spare=("TTFT p99", "TPOT p99")), 46)
    assert narrow.heads == ["conc", "TTFT p50", "TPOT p50", "p99", "trusted"]
    assert narrow.left_out == ["TTFT p99"]
    assert [row[0] for row in narrow.rows] == [row[0] for row in rows]
    listed = fit(replace(TABLE, rows=rows), 30)
    assert [row for row in listed.rows if row[0] == "TPOT p99"] == [["TPOT p99", "5.52 ms"]] * 8


def test_names_in_a_list_are_whole_on_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are what one has to type."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")  # 80 wide, without colours
    heads = ["name", *(f"figure {n}, TFLOP/s" for n in range(6))]
    output.print_rows(heads, [("rtx-pro-6000-blackwell", *range(1000, 1006))])
    text = capsys.readouterr().out
    assert "…" not in text
    assert all(
        figure in text
        for figure in ("rtx-pro-6000-blackwell", "1000", "1005", "figure 5,", "TFLOP/s")
    )
    assert max(map(len, text.splitlines())) <= 80
    output.print_rows(
        ["name", "value", "note"], [("h100", 80, "a long remark " * 12)]
    )  # longer than any line
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "h100" in line)
    assert "80" in line
    assert "a long remark" in line


def test_the_catalogue_is_a_table_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers under one another at their ends, units under their names; elsewhere one value, one
    tab, as ever."""
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    catalogue(["gpus"])
    lines = capsys.readouterr().out.splitlines()
    (old,) = (line for line in lines if line.split()[:2] == ["t4", "16"])
    (new,) = (line for line in lines if line.split()[:2] == ["h200", "141"])
    assert old.index("16") + 2 == new.index("141") + 3
    assert any(line.split()[0] == "bf16," for line in lines if line.strip())
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    catalogue(["gpus"])
    heading, first, *_ = capsys.readouterr().out.splitlines()
    assert heading.split("\t")[:4] == ["name", "memory, GiB", "usable, GiB", "bandwidth, TB/s"]
    assert first.split("\t")[:3] == ["t4", "16", "14.56"]


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("loadstone be", "bench"),
        ("loadstone bench --endp", "--endpoint"),
        ("loadstone bench --endpoint mes", "messages"),
        ("loadstone catalogue ", "gpus"),
        ("loadstone recommend llama-3.1-8", "llama-3.1-8b"),
        ("loadstone simulate llama-3.1-8b@1xh20", "llama-3.1-8b@1xh200"),
    ],
)
def test_the_shell_completes_commands_flags_and_choices(words: str, offered: str) -> None:
    place = str(len(words.split(" ")) - 1)
    asked = {"_LOADSTONE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": place}
    program = "import sys; sys.argv[0] = 'loadstone'; from loadstone.commands import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | asked,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert offered in done.stdout.split()


def test_help_begins_with_two_examples_that_can_be_typed() -> None:
    group = typer.main.get_command(app)
    context = group.make_context("loadstone", ["doctor"])
    assert {*examples(), "study"} == set(group.list_commands(context))
    for name, lines in examples().items():
        assert len(lines) == 2
        for line in lines:
            program, command, *words = shlex.split(line)
            assert (program, command) == ("loadstone", name)
            group.get_command(context, name).make_context(name, words, parent=context)
            assert f"Examples:\n  {lines[0]}\n" in group.get_command(context, name).get_help(
                context
            )


def test_a_dumb_terminal_shows_every_figure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is asked of rich: to it such a terminal has 80 columns."""
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal then, as rich has it
    heads = [f"column {number}" for number in range(13)]
    output.print_text(Table(heads=heads, align="r" * 13, rows=[["99.75 ms"] * 13]))
    text = capsys.readouterr().out
    assert "…" not in text
    assert text.count("99.75 ms") >= 13
    assert max(map(len, text.splitlines())) <= 80


def test_lines_are_broken_for_a_terminal_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for is_terminal, count in ((False, 1), (True, 3)):
        monkeypatch.setattr(sys.stdout, "isatty", lambda is_terminal=is_terminal: is_terminal)
        monkeypatch.setenv("COLUMNS", "60")
        output.print_text("words " * 30)
        assert len(capsys.readouterr().out.splitlines()) == count


def shown(folder: Path, rest: str) -> subprocess.CompletedProcess[bytes]:
    """`loadstone show` of a run in a process of its own, where the locale knows ASCII alone."""
    make_run(folder / "r", [CLOSED], {})
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = ["sh", "-c", f'exec "$0" -m loadstone.commands show r {rest}', sys.executable]
    return subprocess.run(
        command, cwd=folder, env=os.environ | ascii_only, capture_output=True, check=False
    )


@pytest.mark.process
def test_the_locale_changes_nothing(tmp_path: Path) -> None:
    done = shown(tmp_path, "")
    assert (done.returncode, done.stderr) == (0, b"")
    assert "~ too few requests for a reliable p99" in done.stdout.decode()


@pytest.mark.process
@pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="a disk without room is Linux's /dev/full"
)
def test_a_stdout_without_room_is_one_line(tmp_path: Path) -> None:
    done = shown(tmp_path, "--json >/dev/full")
    assert done.returncode == 2
    assert (
        done.stderr
        == b"loadstone: stdout: No space left on device; give another file, or make room\n"
    )


@pytest.mark.process
@pytest.mark.parametrize("rest", ["", "--json", "--help"])
def test_who_stops_reading_is_told_from_a_verdict(rest: str, tmp_path: Path) -> None:
    """1 would be: not trusted."""
    make_run(tmp_path / "r", [CLOSED], {})
    with subprocess.Popen(
        [sys.executable, "-m", "loadstone.commands", "show", "r", *rest.split()],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_an_export_that_is_no_text_finds_a_name(
    tmp_path: Path, loadstone: Loadstone, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path / "r", [CLOSED], {})
    monkeypatch.chdir(tmp_path)
    for words, name in (("--format parquet", "r.parquet"), ("--format vllm --json", "r.vllm.json")):
        done = loadstone("export", "r", *words.split())
        assert (done.document["file"] if "--json" in words else done.out.strip()) == name
        assert Path(name).stat().st_size > 0


@pytest.mark.process
def test_closed_streams_are_nobody_elses(tmp_path: Path) -> None:
    """What is said on a closed stderr goes nowhere, least of all into the JSON or a file of the
    run."""
    done = shown(tmp_path, "--json 2>&- <&-")
    assert done.returncode == 0
    assert json.loads(done.stdout)["run_id"] == "r"
    assert shown(tmp_path / "silent", ">&- 2>&-").returncode == 0


@pytest.mark.process
def test_closed_streams_are_not_closed_to_what_is_started(tmp_path: Path) -> None:
    child = "import os; os.fstat(0), os.fstat(2); print('both are open')"
    code = "import subprocess, sys; from loadstone.commands import _mend_streams; _mend_streams(); "
    code += f"subprocess.run([sys.executable, '-c', {child!r}], check=True)"
    command = ["sh", "-c", 'exec "$0" -c "$1" 2>&- <&-', sys.executable, code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "both are open\n")


def test_nothing_that_is_printed_speaks_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_text("c\x1b[2J\nd", Table(heads=["a\x1b]0;x\x07"], align="l", rows=[["b\x9b31m"]]))
    out = capsys.readouterr().out
    assert all(each.isprintable() or each == "\n" for each in out)
    assert all(said in out for said in ("c\ufffd[2J\nd", "a\ufffd]0;x", "b\ufffd31m"))


def test_json_turns_no_line_of_a_terminal_round(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["\u202eabc\u2066", "\x9b31m", "\u200f", "ünï 漢字"]
    output.print_json(words)
    said = capsys.readouterr().out
    assert said.rstrip("\n").isprintable()
    assert "ünï 漢字" in said
    assert json.loads(said) == words
