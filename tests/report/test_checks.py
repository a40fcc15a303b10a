"""Comparisons as continuous integration reads them."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from conftest import Loadstone
from loadstone.analyse.compare import compare
from loadstone.report.pages.checks import github, junit
from test_compare import make


@pytest.fixture
def sides(tmp_path: Path) -> tuple[str, str]:
    """Four runs a side; B takes 10% longer."""
    folders = [
        [make(tmp_path / f"{side}{n}", seed=10 * n + len(side), slower=slower) for n in range(4)]
        for side, slower in (("a", 1.0), ("bb", 1.1))
    ]
    a, b = (",".join(map(str, side)) for side in folders)
    return a, b


def test_a_slower_tpot_fails_in_every_form(sides: tuple[str, str], loadstone: Loadstone) -> None:
    a, b = sides
    flags = ("--fail-on", "tpot_p50>+3%", "--fail-on", "output_tokens_per_s<-50%")
    done = loadstone("compare", a, b, *flags, "--format", "github")
    assert done.code == 1
    lines = done.out.splitlines()
    assert all(line.startswith(("::error ", "::notice ", "::warning ")) for line in lines)
    (error,) = [line for line in lines if line.startswith("::error ")]
    assert error.startswith("::error title=Loadstone%3A tpot_p50>+3%25::MET at ")
    assert "A is better" in error
    assert any(
        line.startswith("::notice title=Loadstone%3A output_tokens_per_s<-50%25::not met")
        for line in lines
    )

    done = loadstone("compare", a, b, *flags, "--format", "junit")
    assert done.code == 1
    suite = ElementTree.fromstring(done.out)  # noqa: S314 - written here
    cases = suite.findall("testcase")
    failed = [case for case in cases if case.find("failure") is not None]
    assert [case.get("name") for case in failed] == ["tpot_p50>+3%"]
    assert (suite.get("tests"), suite.get("failures")) == (str(len(cases)), "1")
    assert {case.get("classname") for case in cases} == {"bounds", "concurrency 4"}

    assert loadstone("compare", a, b, "--fail-on", "tpot_p50>+30%", "--format", "junit").code == 0
    done = loadstone("compare", a, b, "--format", "junit", "--json")
    assert (done.code, done.err.count("\n")) == (2, 1)


def test_names_of_engines_and_metrics_end_no_line_and_no_element(tmp_path: Path) -> None:
    """A label is anybody's text: of several lines, with markup, with what a workflow obeys."""
    evil = "x\n::error::gotcha ]]></testcase> \x1b[2J"
    a, b = (
        make(tmp_path / side, seed=seed, settings={"label": evil})
        for side, seed in (("a", 1), ("b", 2))
    )
    comparison = compare([a], [b], fail_on=["itl_p99>+5%"])
    lines = github(comparison).splitlines()
    assert lines
    assert not any(line.startswith("::error::") for line in lines)
    text = junit(comparison)
    assert "\x1b" not in text
    ElementTree.fromstring(text)  # noqa: S314 - written here
