"""docs/engines.md against what the tests launch. Its cells are compared with live engines in
tests/engines."""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path

import pytest

from engines.launch import ENGINES, RECIPES
from engines.quirks import NOT_RUN, PAGE, documented
from engines.triton_server import COMMAND

ROOT = Path(__file__).resolve().parents[2]


def test_every_engine_has_a_row_in_every_table_or_is_marked_as_not_run() -> None:
    tables = documented()
    run = {engine for engine in tables if not engine.endswith(NOT_RUN)}
    assert run == set(ENGINES)
    columns = set(tables["llama.cpp"])
    for engine in tables:
        assert set(tables[engine]) == columns, engine
        assert all(tables[engine].values()), engine


@pytest.mark.parametrize("name", RECIPES)
def test_the_commands_on_the_page_are_those_of_the_tests(name: str) -> None:
    recipe = RECIPES[name]
    shown = shlex.split(section(name).split("```")[1])
    environment = [f"{key}={value}" for key, value in recipe.environment.items()]
    started = [*environment, *shlex.split(recipe.command.format(model="MODEL", port=8000))]
    assert shown[: len(started)] == started
    assert names_its_script(name, recipe.home)


def test_triton_s_command_on_the_page_is_that_of_the_tests() -> None:
    shown = shlex.split(section("Triton").split("```")[1])
    started = COMMAND.format(
        models="tests/engines/triton/models", http=8000, grpc=8001, metrics=8002
    ).split()
    assert shown[: len(started)] == started
    assert (ROOT / "tests" / "engines" / "triton" / "models").is_dir()
    assert names_its_script("Triton", "triton")


def names_its_script(engine: str, home: str) -> bool:
    executable = (ROOT / "scripts" / "engines" / home).stat().st_mode & 0o111
    return bool(executable) and f"`scripts/engines/{home}`" in section(engine)


def section(name: str) -> str:
    lines = PAGE.read_text().splitlines()
    begin = lines.index(f"### {name}") + 1
    return "\n".join(itertools.takewhile(lambda line: not line.startswith("#"), lines[begin:]))


def test_the_versions_on_the_page_are_those_of_the_scripts() -> None:
    sentence = next(part for part in PAGE.read_text().split("\n\n") if part.startswith("Versions:"))
    versions = dict(re.findall(r"(\S+) (\d+\.\d+\.\d+)", sentence))
    assert set(versions) >= set(RECIPES)
    for name, recipe in RECIPES.items():
        assert versions[name] in (ROOT / "scripts" / "engines" / recipe.home).read_text(), name
