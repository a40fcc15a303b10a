"""The studies in examples/: each is planned, printed as commands, and simulated."""

import json
import shlex
from pathlib import Path

import pytest

from conftest import Loadstone
from loadstone.studies.file import read_study
from loadstone.studies.plan import plan_study

EXAMPLES = sorted(Path("examples").glob("*.yaml"))


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 4


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_deployment_has_a_command_that_loads_the_model_that_it_names(
    path: Path, loadstone: Loadstone
) -> None:
    launches = plan_study(read_study(path))
    printed = loadstone("study", "run", path, "--dry-run").out.splitlines()
    titles = [line for line in printed if line.startswith("# ") and "@" in line]
    assert len(titles) == len(launches)
    for launch in launches:
        at = printed.index(f"# {launch.deployment}")
        command = next(line for line in printed[at + 1 :] if not line.startswith("#"))
        # As it is, or the folder into which it must be converted.
        name = launch.model.removesuffix(":fp8")
        assert {name, f"./{name.rpartition('/')[2]}-fp8"} & set(shlex.split(command))


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_cell_simulates_and_is_reported(
    path: Path, tmp_path: Path, loadstone: Loadstone
) -> None:
    assert loadstone("study", "run", path, "--simulate", "--out", tmp_path).code == 0
    found = json.loads(
        loadstone("study", "status", path, "--simulate", "--out", tmp_path, "--json").out
    )
    assert {launch["state"] for launch in found["launches"]} == {"done"}
    report = loadstone(
        "study", "report", path, "--simulate", "--out", tmp_path, "-o", tmp_path / "report.html"
    )
    assert report.code == 0, report.err
    page = (tmp_path / "report.html").read_text()
    assert "Repeat this" in page
    assert 'id="missing"' not in page
