"""An engine that another package brings: found by its entry point, named by its table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RULES = """
from loadstone.engines.launch import Command
from loadstone.engines.rules import EngineRules


class Acme(EngineRules):
    name = "acme"
    spelled = frozenset({"tp", "max_model_len"})

    def command(self, site):
        flags = [("tensor-parallel", self.worker.tp), ("context", self.worker.count("max_model_len"))]
        return Command([site.program or "acme-serve", self.weights(site).model], flags)
"""
TABLE = """
program = "acme-serve"

[shorthand]
title = "Acme"
arguments = ["acme_fast"]

[[server]]
owner = "acme"
metrics = "acme:"
"""
LOOK = """
import json
from loadstone.catalogue import parse_worker
from loadstone.catalogue.engines import engine_title
from loadstone.engines import ENGINES, launch_of
from loadstone.engines.table import known_servers

launch = launch_of(parse_worker("llama-3.1-8b@2xh100/tp2,engine=acme,max_model_len=4096"))
print(json.dumps({
    "argv": launch.ranks[0].argv,
    "title": engine_title("acme"),
    "servers": [server.title for server in known_servers() if server.owner == "acme"],
    "sized": "acme" in ENGINES,
    "fast": parse_worker("llama-3.1-8b@1xh100/engine=acme,acme_fast=1").arguments,
}))
"""


@pytest.mark.process
@pytest.mark.parametrize(("table", "title"), [(TABLE, "Acme"), ("", "acme")])
def test_an_engine_of_another_package_is_an_entry_point_and_a_table(
    tmp_path: Path, table: str, title: str
) -> None:
    metadata = tmp_path / "acme_loadstone-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: acme-loadstone\nVersion: 1.0\n"
    )
    (metadata / "entry_points.txt").write_text("[loadstone.engines]\nacme = acme_loadstone:Acme\n")
    (tmp_path / "acme_loadstone.py").write_text(RULES)
    if table:
        (tmp_path / "acme_loadstone.toml").write_text(table)
    look = LOOK if table else LOOK.replace(",acme_fast=1", "")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", look], env=os.environ | {"PYTHONPATH": path},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    seen = json.loads(done.stdout)
    assert seen["argv"][:6] == [
        "acme-serve", "meta-llama/Meta-Llama-3.1-8B", "--tensor-parallel", "2", "--context", "4096",
    ]  # fmt: skip
    assert seen["title"] == title
    assert seen["servers"] == ([title] if table else [])
    assert not seen["sized"]
    assert seen["fast"] == ([["acme_fast", "1"]] if table else [])
