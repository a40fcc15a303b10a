"""Installs the package that a page shows, without a network."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest


def install_from_page(text: str, module: str, folder: Path) -> Path:
    """Build the first package in a page's text, whose code is `module`; return where it lies."""
    pytest.importorskip("hatchling", reason="pip install hatchling builds the package")
    project, site = folder / module.removesuffix(".py").replace("_", "-"), folder / "site"
    project.mkdir()
    for language, name in (("toml", "pyproject.toml"), ("python", module)):
        block = re.search(f"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        assert block is not None
        (project / name).write_text(block[1])
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "--no-index", "--target", str(site), str(project)],
        capture_output=True,
        text=True,
        check=False,
    )
    if "No module named pip" in done.stderr:
        pytest.skip("this environment has no pip")
    assert done.returncode == 0, done.stderr
    return site
