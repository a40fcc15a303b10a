"""Each section of docs/questions.md has its study, which shows without a complaint, its picture and
its results."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from loadstone.analyse.compare.price import Prices
from loadstone.studies.file import read_study
from loadstone.studies.plan import plan_study
from loadstone.studies.show import estimate

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "questions.md").read_text("utf-8")
SECTIONS = {int(text.partition(".")[0]): text for text in PAGE.split("\n## ")[1:]}
STUDIES = sorted((ROOT / "examples" / "questions").glob("[0-9]*.yaml"))


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.stem)
def test_a_study_shows_and_every_cell_can_be_predicted(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)  # slower networks are files beside the study
    read = read_study(study)
    found = estimate(read, plan_study(read), Prices())
    assert found.cells
    if read.study.deployments.layout != (
        "",
    ):  # else it is measured on this machine, whatever that is
        assert all(deployment.seconds for deployment in found.deployments)
        assert [
            cell.problem
            for deployment in found.deployments
            for cell in deployment.cells
            if cell.problem
        ] == []


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.stem)
def test_a_study_has_its_section_with_an_answer_and_a_picture(study: Path) -> None:
    section = SECTIONS[int(study.name[:2])]
    assert f"(../examples/questions/{study.name})" in section
    assert "**" in section
    assert "> 00" in section


def test_every_section_has_one_picture() -> None:
    for section in SECTIONS.values():
        (picture,) = re.findall(r"!\[.+\]\((pictures/questions/.+\.svg)\)", section)
        assert (ROOT / "docs" / picture).is_file()


def test_every_section_has_its_results() -> None:
    results = (ROOT / "benchmarks" / "results" / "questions.md").read_text("utf-8")
    assert re.findall(r"^## (.*)", results, re.MULTILINE) == re.findall(
        r"^## (.*)", PAGE, re.MULTILINE
    )
