"""The page on extending: the reader that it shows is built, installed, and reads a file."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from loadstone.core import plugins
from loadstone.core.errors import InputError
from loadstone.interop.read import detect

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extending.md"
RESULT = {
    "hammer": {
        "users": 8,
        "took_s": 20,
        "done": 160,
        "first_token_ms": {"mean": 50, "p99": 90},
    }
}


@pytest.mark.process
def test_a_reader_of_another_package_reads_its_tools_files(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="pip install hatchling builds the package")
    project, site = tmp_path / "loadstone-hammer", tmp_path / "site"
    project.mkdir()
    section = PAGE.read_text("utf-8").partition("## Results of a tool")[2]
    for language, name in (("toml", "pyproject.toml"), ("python", "loadstone_hammer.py")):
        block = re.search(f"^```{language}\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
        assert block is not None
        (project / name).write_text(block[1])
    pip = [
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--target",
    ]
    done = subprocess.run(
        [sys.executable, *pip, str(site), str(project)], capture_output=True, text=True, check=False
    )
    if "No module named pip" in done.stderr:
        pytest.skip("this environment has no pip")
    assert done.returncode == 0, done.stderr
    result = tmp_path / "result.json"
    result.write_text(json.dumps(RESULT))
    command = ["-m", "loadstone", "import", str(result), "--out", str(tmp_path / "runs"), "--json"]
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    summary = json.loads((Path(run) / "summary.json").read_text())
    (cell,) = summary["cells"]
    assert (cell["measured_by"], cell["load"]["value"]) == ("hammer", 8)
    assert cell["metrics"]["ttft_s"]["mean"] == 0.05
    assert cell["metrics"]["ttft_s"]["p99"] == 0.09
    assert cell["metrics"]["requests_per_s"] == 8


def test_the_shipped_readers_come_by_entry_points() -> None:
    assert [reader.tools.partition(",")[0] for reader in detect.load_readers()] == [
        "AIPerf",
        "vLLM's bench serve",
        "InferenceX's evaluations",
        "GuideLLM",
        "inference-perf",
        "InferenceX's aggregates",
    ]


def test_a_reader_that_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EntryPoint("hammer", "no_such_module:READER", plugins.READERS)
    monkeypatch.setattr(plugins, "offers", lambda group: {"hammer": broken})
    with pytest.raises(InputError, match=r"reader hammer: no_such_module:READER cannot be loaded"):
        detect.load_readers.__wrapped__()
