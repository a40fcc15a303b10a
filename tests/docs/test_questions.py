"""Each section of benchmarks/results/questions.md has its study, which shows without a complaint,
and its picture; docs/seeds.md leads to each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from loadstone.analyse.compare.price import Prices
from loadstone.studies.file import read_study
from loadstone.studies.plan import plan_study
from loadstone.studies.show import estimate

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = (RESULTS / "questions.md").read_text("utf-8")
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
    assert f"(../../examples/questions/{study.name})" in section
    assert "**" in section
    assert "> 00" in section


def test_every_section_has_one_picture() -> None:
    for section in SECTIONS.values():
        (picture,) = re.findall(r"!\[.+\]\((\S+/pictures/questions/.+\.svg)\)", section)
        assert (RESULTS / picture).is_file()


def test_the_page_of_the_documents_leads_to_every_answer() -> None:
    seeds = (ROOT / "docs" / "seeds.md").read_text("utf-8")
    rows = re.findall(r"^\| \[(\d+)\]\(\S+/questions\.md#", seeds, re.MULTILINE)
    assert sorted(map(int, rows)) == sorted(SECTIONS)
