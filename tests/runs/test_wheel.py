"""The package as it is published: the sdist builds the wheel, which works alone in an empty environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from test_readme import follow

ROOT = Path(__file__).resolve().parents[2]
PINNED = {**os.environ, "PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
"""The build's own environment is pinned too."""
BASE_MB = 380
"""The most that a base installation may take."""

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sdist")
    venv = tmp_path_factory.mktemp("builder") / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    install = [venv / "bin" / "pip", "install", "-q", "hatchling", "vl-convert-python"]
    subprocess.run(install, check=True, env=PINNED)
    build = [venv / "bin" / "python", "-m", "hatchling", "build", "-t", "sdist", "-d", out]
    subprocess.run(build, cwd=ROOT, check=True)
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", out, sdist]
    subprocess.run(build, check=True, env=PINNED)
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment that holds the wheel and what it needs, no more."""
    venv = tmp_path_factory.mktemp("empty") / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    subprocess.run([venv / "bin" / "pip", "install", "-q", wheel], check=True, env=PINNED)
    return venv / "bin"


def run(programs: Path, folder: Path, *words: str, code: int = 0) -> str:
    """Run the installed program in a folder; return its output, or its error where it fails."""
    done = subprocess.run(
        [programs / "loadstone", *words],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


def test_the_wheel_has_what_the_package_reads(wheel: Path, sdist: Path) -> None:
    source = ROOT / "src"
    data = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    carried = set(zipfile.ZipFile(wheel).namelist())
    assert data - carried == set()
    assert "loadstone/report/assets/vega.js" in carried
    assert {Path(name).name for name in carried if "/licenses/" in name} == {"LICENSE", "NOTICE"}
    with tarfile.open(sdist) as archive:
        kept = {Path(*Path(name).parts[1:]) for name in archive.getnames()}
    assert {Path("hatch_build.py"), Path("constraints.txt")} <= kept
    assert Path("src/loadstone/report/assets/vega.js") not in kept


def test_the_base_is_small_and_lacks_only_extras(programs: Path, tmp_path: Path) -> None:
    (packages,) = programs.parent.glob("lib/python*/site-packages")
    measured = subprocess.run(
        ["du", "-sm", packages], capture_output=True, text=True, check=True
    ).stdout
    assert int(measured.split()[0]) <= BASE_MB
    checks = json.loads(run(programs, tmp_path, "doctor", "--json"))["checks"]
    remedies = {check["name"]: check["remedy"] for check in checks if check["group"] == "extras"}
    assert remedies == {
        name: f"pip install 'loadstone[{name}]'"
        for name in ("gpu", "images", "otlp", "ray", "sql", "ssh", "tokenizers")
    }


def test_the_tutorial_needs_the_wheel_alone(programs: Path, tmp_path: Path) -> None:
    follow(tmp_path, str(programs / "loadstone"))


def test_the_first_answers_need_no_extra(programs: Path, tmp_path: Path) -> None:
    assert "yes" in run(programs, tmp_path, "size", "llama-3.1-8b@1xh200")
    traffic = ["--input", "1k", "--output", "128", "--rate", "4", "--slo", "tpot_p99<50ms"]
    plans = run(programs, tmp_path, "recommend", "llama-3.1-8b", *traffic, "--gpus", "h100")
    assert plans.startswith("Deploy ")
    load = ["--concurrency", "2", "--requests", "20", "--input", "64", "--output", "8"]
    server = [programs / "loadstone", "serve-sim", "ttft=5ms,itl=1ms", "--port", "0"]
    with subprocess.Popen(server, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        try:
            for name in ("a", "b"):
                run(programs, tmp_path, "bench", url, *load, "--out", f"runs/{name}")
        finally:
            process.terminate()
    folders = sorted(str(path.parent) for path in tmp_path.glob("runs/*/**/run.json"))
    assert len(folders) == 2
    run(programs, tmp_path, "simulate", "llama-3.1-8b@1xh200", *load)
    run(programs, tmp_path, "compare", *folders)
    run(programs, tmp_path, "report", "runs", "-o", "report.html")
    page = (tmp_path / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "vegaEmbed" in page
    run(programs, tmp_path, "size", "llama-3.1-8b@1xh200", "--picture", "memory.html")
    (tmp_path / "study.yaml").write_text(STUDY)
    run(programs, tmp_path, "study", "run", "study.yaml", "--simulate")


STUDY = """
study: small
engines: {vllm: {}}
deployments: {engine: [vllm], model: [llama-3.1-8b], layout: [1xh200/tp1]}
workloads: {chat: {input: 64, output: 8}}
loads: {concurrency: [1, 2], requests: 20}
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["query", "select 1", "--runs", "."],
            "query: duckdb is not installed; pip install 'loadstone[sql]'",
        ),
        (
            ["size", "llama-3.1-8b@1xh200", "--picture", "m.svg"],
            "SVG: vl_convert is not installed; pip install 'loadstone[images]'",
        ),
    ],
)
def test_what_needs_an_extra_names_it(
    programs: Path, tmp_path: Path, words: Sequence[str], said: str
) -> None:
    assert run(programs, tmp_path, *words, code=2) == f"loadstone: {said}\n"
