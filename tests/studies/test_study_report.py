"""Reports of studies: what is missing and why, what differs, what was predicted, and how a stranger
repeats them."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from conftest import Loadstone
from loadstone.measure.simulated_server import start
from loadstone.studies import report as study_reports
from loadstone.studies.file import read_study
from loadstone.studies.plan import plan_study
from loadstone.studies.supervise import find_run

STUDY = """\
study: small
engines:
  broken: {engine: llama.cpp, program: /bin/false, env: {API_KEY: a-key-that-nobody-should-see, X_TOKEN: "abc"}}
deployments: {engine: [llama.cpp, broken]}
workloads:
  short: {input: 16, output: 8, check: "generated:2", check-share: 50%}
loads: {concurrency: [1, 2], requests: 4, warmup: 0}
repeats: 2
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the study, run: two repeats of an engine, and of one that does not start."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "study.yaml").write_text(STUDY)
    run = [
        sys.executable,
        "-m",
        "loadstone",
        "study",
        "run",
        folder / "study.yaml",
        "--out",
        folder / "studies",
    ]
    assert subprocess.run(run, check=False, timeout=300, capture_output=True).returncode == 1
    return folder


@pytest.fixture
def folder(measured: Path, tmp_path: Path) -> Path:
    """A copy of it, to spoil."""
    shutil.copytree(measured, tmp_path / "copy")
    return tmp_path / "copy"


def runs(folder: Path) -> list[Path]:
    launches = plan_study(read_study(folder / "study.yaml"))
    known = [
        find_run(folder / "studies" / "small", cell) for launch in launches for cell in launch.cells
    ]
    return [run for run in known if run is not None]


def change(run: Path, **provenance: object) -> None:
    info = json.loads((run / "run.json").read_text())
    info["settings"]["provenance"] = info["settings"].get("provenance", {}) | provenance
    (run / "run.json").write_text(json.dumps(info))


def report(loadstone: Loadstone, folder: Path) -> str:
    told = loadstone(
        "study", "report", folder / "study.yaml", "--out", folder / "studies", "-o", "-"
    )
    assert told.code == 0, told.err
    return told.out


@pytest.mark.process
def test_what_is_missing_comes_first_with_its_cause(measured: Path, loadstone: Loadstone) -> None:
    text = report(loadstone, measured)
    assert text.index("## Missing") < text.index("## Verdicts")
    (line,) = re.findall(r"^- broken.*$", text, re.M)
    assert line.startswith("- broken lacks 2 of its 2 loads in repeat 1 and 2: ")
    assert "exit code 1" in line


@pytest.mark.process
def test_accuracy_stands_beside_speed(measured: Path, loadstone: Loadstone) -> None:
    assert all((run / "answers.parquet").is_file() for run in runs(measured))
    text = report(loadstone, measured)
    assert re.search(r"\| output tok/s \|.*\| right % \| 95% right \|", text), text
    assert (
        len(
            re.findall(
                r"^\| \d \| llama.cpp \| concurrency .* \| 0\.0 \| 0\.0–65\.8 \|", text, re.M
            )
        )
        == 4
    )
    # Answers of this model are cut: nothing is said of them.
    assert "Neither faster" not in text


@pytest.mark.process
def test_repeats_stand_together(measured: Path, loadstone: Loadstone) -> None:
    rows = re.findall(
        r"^\| (\S+) \| short \| concurrency (\d) \| (\d) of 2 \|", report(loadstone, measured), re.M
    )
    assert rows == [
        ("llama.cpp", "1", "2"),
        ("llama.cpp", "2", "2"),
        ("broken", "1", "0"),
        ("broken", "2", "0"),
    ]


@pytest.mark.process
def test_a_stranger_has_the_file_and_the_commands_and_no_secret(
    measured: Path, loadstone: Loadstone, tmp_path: Path
) -> None:
    text = report(loadstone, measured)
    (file,) = re.findall(r"```yaml\n(.*?)```", text, re.S)
    again = tmp_path / "again.yaml"
    again.write_text(file)
    ids = [
        [launch.id for launch in plan_study(read_study(path))][::2]
        for path in (again, measured / "study.yaml")
    ]
    assert ids[0] == ids[1]  # those whose engine has no secret
    (command,) = re.findall(r"^- command: (.*)$", text, re.M)
    words = shlex.split(command)
    assert Path(words[0]).name == "llama-server"
    assert "--parallel" in words
    assert re.search(r"^- engine: llama.cpp \S+", text, re.M)
    page = tmp_path / "report.html"
    written = loadstone(
        "study", "report", measured / "study.yaml", "--out", measured / "studies", "-o", page
    )
    assert written.out.strip() == str(page)
    for form in (text, page.read_text()):
        assert "a-key-that" not in form
        assert "abc" not in form.partition("Repeat this")[2].partition("deployments:")[0]
        assert "API_KEY: …" in form
    assert page.read_text().index('id="missing"') < page.read_text().index('id="findings"')


@pytest.mark.process
def test_what_differs_beyond_the_axes_is_a_finding(folder: Path, loadstone: Loadstone) -> None:
    assert "Not every run" not in report(loadstone, folder)
    for at, run in enumerate(runs(folder)):
        environment = {"GGML_A": "1", "GGML_B": str(2 + at % 2)}
        change(
            run, environment=environment, driver=f"580.{at % 2}", git={"commit": "ab"[at % 2] * 40}
        )
    text = report(loadstone, folder)
    findings = text[text.index("## Findings") : text.index("## Verdicts")].replace("\\", "")
    assert (
        "Not every run of llama.cpp has the same engine environment: GGML_B 2 or GGML_B 3"
        in findings
    )
    assert "Not every run has the same driver: 580.0 or 580.1." in findings
    assert "Not every run has the same git commit: aaaaaaaaaaaa or bbbbbbbbbbbb." in findings
    assert "engine flags" not in findings  # ports differ, and what an engine does not


@pytest.mark.process
def test_runs_without_provenance_or_with_anothers_are_reported(
    folder: Path, loadstone: Loadstone
) -> None:
    for run in runs(folder):
        change(run, commands=7)
    assert "- command: not recorded" in report(loadstone, folder)


@pytest.mark.process
def test_a_cell_whose_folder_was_spoilt_is_missing(folder: Path, loadstone: Loadstone) -> None:
    (runs(folder)[0] / "run.json").write_text("{")
    why = "cut off while it was measured, or its run folder cannot be read"
    lacks = "llama.cpp lacks 1 of its 2 loads (short at concurrency 1) in repeat 1"
    assert f"\n- {lacks}: {why}\n" in report(loadstone, folder)


@pytest.mark.process
def test_a_torn_journal_is_read_as_far_as_it_goes(folder: Path, loadstone: Loadstone) -> None:
    journal = folder / "studies" / "small" / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-30] + b"\n\xff\x00{")
    assert "| 2 of 2 |" in report(loadstone, folder)


@pytest.mark.process
def test_cells_of_a_file_that_was_changed_are_passed_over(
    folder: Path, loadstone: Loadstone
) -> None:
    (folder / "study.yaml").write_text(STUDY.replace("[1, 2]", "[1, 3]"))
    text = report(loadstone, folder)
    assert "2 loads that are not, or no longer, of this file" in text
    assert "lacks 1 of its 2 loads (short at concurrency 3) in repeat 1 and 2: not run yet" in text


@pytest.mark.process
@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        ("other", "its 4 loads are of another study, or of this file before it was changed; "),
        ("nothing", "nothing of this study is done yet; run the study first"),
        ("summary", "summary.json"),
        ("journal", "journal.jsonl"),
    ],
)  # fmt: skip
def test_what_cannot_be_reported_is_one_line(
    folder: Path, loadstone: Loadstone, spoil: str, told: str
) -> None:
    study = folder / "studies" / "small"
    if spoil == "other":
        (folder / "study.yaml").write_text(STUDY.replace("input: 16", "input: 17"))
    elif spoil == "nothing":
        shutil.rmtree(study)
    elif spoil == "summary":
        (runs(folder)[0] / "summary.json").write_text('{"cells": 7}')
    else:
        (study / "journal.jsonl").unlink()
        (study / "journal.jsonl").mkdir()
    failed = loadstone(
        "study",
        "report",
        folder / "study.yaml",
        "--out",
        folder / "studies",
        "-o",
        folder / "r.html",
    )
    assert failed.code == 2
    assert told in failed.err
    assert len(failed.err.splitlines()) == 1
    assert not (folder / "r.html").exists()


@pytest.mark.process
def test_measured_cells_stand_beside_their_predictions(
    tmp_path: Path, loadstone: Loadstone
) -> None:
    deployment = "llama-3.1-8b@1xh100/tp1,engine=vllm"
    path = tmp_path / "study.yaml"
    with start(deployment) as server:
        path.write_text(
            f"study: twins\nmodel: llama-3.1-8b\nengines: {{vllm: {{url: '{server.url}'}}}}\n"
            "deployments: {engine: [vllm], layout: [1xh100/tp1]}\n"
            "workloads: {chat: {input: 256, output: 32}}\nloads: {concurrency: [2, 8], requests: 24}\n"
        )
        done = loadstone("study", "run", path, "--out", tmp_path)
        assert done.code == 0, done.err
    told = loadstone("study", "report", path, "--out", tmp_path, "-o", "-")
    assert "predicted" not in told.out
    assert loadstone("study", "run", path, "--out", tmp_path, "--simulate").code == 0
    told = loadstone("study", "report", path, "--out", tmp_path, "-o", "-")
    assert told.code == 0, told.err
    assert "### Measured and predicted, by load" in told.out
    cells = [
        line.split("|")
        for line in told.out.splitlines()
        if "| chat |" in line and " of 1 |" in line
    ]
    assert len(cells) == 2
    for cell in cells:  # the server keeps the times of the same model of the engine
        throughput, predicted, off = (text.strip() for text in cell[5:8])
        error = float(predicted.replace(",", "")) / float(throughput.replace(",", "")) - 1
        assert float(
            off.replace("−", "-").replace("+", "").removesuffix("%")
        ) / 100 == pytest.approx(error, abs=0.006)
        assert abs(error) < 0.3
    assert re.search(
        r"Predictions are off by, in the median: output tok/s [\d.]+%, TTFT ", told.out
    )


def test_a_study_s_deployments_are_named_as_people_write_them() -> None:
    launches = [
        SimpleNamespace(id=f"{engine}/{layout}", engine=engine, model="m", layout=layout)
        for engine in ("vllm", "mine", "tensorrt-llm")
        for layout in ("4xh200/tp4", "8xmi300x/tp4")
    ]
    assert list(study_reports._names(cast("Any", launches)).values()) == [
        "vLLM on 4×H200", "vLLM on 8×MI300X/tp4", "mine on 4×H200", "mine on 8×MI300X/tp4",
        "TensorRT-LLM on 4×H200", "TensorRT-LLM on 8×MI300X/tp4",
    ]  # fmt: skip
