"""The plan of the house: wings, their order and their pages are as ARCHITECTURE.md says."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "loadstone"
WINGS = sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists())
PATH = re.compile(r"`([\w./]+\.(?:py|toml|json|md|csv)|[\w./]+/)`")
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
ENGINE = re.compile(
    r'"(?:vllm|sglang|trtllm|tensorrt[-_]llm|triton|llama\.cpp|llamacpp|transformers|mlx-lm)"'
)
ENGINES_NAMED = {
    "measure/wire/structured.py",
    "predict/sizing/options.py",  # an example
    "workload/options.py",
    "workload/request.py",  # endpoints
}
"""Files outside of `engines/` and `interop/` in which an engine's name stands; the list may only
shrink."""
QUESTIONS = (
    "Where is TPOT defined?",
    "Where is vLLM's memory rule?",
    "Where is a new engine, API, importer or kind of machines added?",
    "Where is a finding's threshold?",
    "Where is the kernel's stamp read?",
)


def test_nothing_lies_loose_beside_the_wings() -> None:
    assert sorted(path.name for path in PACKAGE.glob("*.py")) == ["__init__.py", "__main__.py"]
    assert len(WINGS) <= 14


def test_the_contract_names_every_wing_and_ignores_no_import() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    rows = next(each["layers"] for each in contracts if each["type"] == "layers")
    assert sorted(wing.strip() for row in rows for wing in re.split(r"[|:]", row)) == WINGS
    assert len(rows) <= 10
    assert not any("ignore_imports" in each for each in contracts)


@pytest.mark.parametrize("wing", WINGS)
def test_the_map_names_a_wing(wing: str) -> None:
    assert f"| `{wing}/` |" in ARCHITECTURE


@pytest.mark.parametrize("wing", [path.parent.name for path in PACKAGE.glob("*/README.md")])
def test_a_wing_has_the_files_that_its_page_names(wing: str) -> None:
    page = (PACKAGE / wing / "README.md").read_text("utf-8")
    named = PATH.findall(page)
    assert named, "it names no file to start reading with"
    assert [name for name in named if not (PACKAGE / wing / name).exists()] == []
    assert len(page.splitlines()) <= 25


def test_files_that_the_architecture_names_exist() -> None:
    named = PATH.findall(ARCHITECTURE)
    assert [
        name for name in named if not ((ROOT / name).exists() or (PACKAGE / name).exists())
    ] == []


def test_engines_are_named_in_their_wing_alone() -> None:
    elsewhere = (
        path
        for wing in {*WINGS} - {"engines", "interop"}
        for path in (PACKAGE / wing).rglob("*.py")
    )
    named = {
        path.relative_to(PACKAGE).as_posix()
        for path in elsewhere
        if path.parent.name != "wires"  # an engine's own API
        and ENGINE.search(path.read_text("utf-8"))
    }
    assert named == ENGINES_NAMED


def test_walks_go_one_way() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    rows = next(each["layers"] for each in contracts if each["type"] == "layers")
    row_of = {
        wing.strip(): -number for number, row in enumerate(rows) for wing in re.split(r"[|:]", row)
    }
    section = ARCHITECTURE.partition("## Five walks")[2].partition("\n## ")[0]
    walks = [re.findall(r"^\d\. (.*)", walk, re.MULTILINE) for walk in section.split("\n\n")]
    walks = [walk for walk in walks if walk]
    assert len(walks) == 5
    for walk in walks:
        files = [name for stop in walk for name in PATH.findall(stop) if name.endswith(".py")]
        wings = [row_of[name.partition("/")[0]] for name in files]
        assert len(files) <= 8
        assert wings in (sorted(wings), sorted(wings, reverse=True)), f"{files} turns back"


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_architecture_answers_in_one_step(question: str) -> None:
    (row,) = [line for line in ARCHITECTURE.splitlines() if question in line]
    assert PATH.findall(row)
