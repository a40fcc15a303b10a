"""What the documentation shows is run as it stands, against the timing server in place of the reader's."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from loadstone import simserver

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
READERS_SERVER = "http://localhost:8000"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(page.read_text()) if kind == language]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_on_the_page_run(page: Path, tmp_path: Path) -> None:
    commands = [line for block in blocks(page, "sh") for line in block.splitlines() if line.startswith("loadstone ")]
    programs = blocks(page, "python")
    if not commands and not programs:
        pytest.skip("no examples on this page")
    prompts = [{"prompt": f"What is {i} times {i}?"} for i in range(12)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    with simserver.start(simserver.Law.parse("ttft=5ms,itl=1ms")) as server:
        for command in commands:
            parts = shlex.split(command.replace(READERS_SERVER, server.url))
            run([sys.executable, "-m", "loadstone.cli", *parts[1:]], tmp_path, command)
        for program in programs:
            run([sys.executable, "-c", program.replace(READERS_SERVER, server.url)], tmp_path, program)


def run(command: list[str], folder: Path, shown: str) -> None:
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, f"{shown}\n{result.stdout}\n{result.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_architecture_names_every_module() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    source = ROOT / "src" / "loadstone"
    for module in source.rglob("*.py"):
        name = module.relative_to(source).as_posix()
        if module.name.startswith("__"):
            continue
        folder = module.relative_to(source).parent.as_posix()
        assert name in text or f"`{module.stem}`" in text or f"`{folder}/`" in text, (
            f"{name} is not in ARCHITECTURE.md"
        )
