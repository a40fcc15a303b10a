"""The page on extending: the reader that it shows is built, installed, and reads a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from extending_package import install_from_page
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
    section = PAGE.read_text("utf-8").partition("## Results of a tool")[2]
    site = install_from_page(section, "loadstone_hammer.py", tmp_path)
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
