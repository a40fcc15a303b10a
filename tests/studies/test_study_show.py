"""What a study would take, before anything starts: counts as they are run, times near those of the
simulator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import Loadstone
from loadstone.analyse.compare.price import parse_prices
from loadstone.core import run_folder
from loadstone.runs.simulate import simulate
from loadstone.studies.file import read_study
from loadstone.studies.plan import plan_study
from loadstone.studies.show import StudyEstimate, estimate, remarks
from loadstone.workload.option_fields import options_of
from loadstone.workload.options import SimulateOptions

STUDY = """\
study: s
model: llama-3.1-70b
deployments: {engine: [vllm], layout: ["8xh200/tp8"]}
workloads: {a: {input: 1k, output: 256}}
loads: {concurrency: [4], requests: 64}
repeats: 2
"""


def shown(folder: Path, text: str, *price: str) -> StudyEstimate:
    path = folder / "s.yaml"
    path.write_text(text)
    read = read_study(path)
    return estimate(read, plan_study(read), parse_prices(price))


@pytest.mark.parametrize(
    ("engine", "layout", "workload", "loads"),
    [
        ("vllm", "8xh200/tp8", "{input: 1k, output: 256}", "{concurrency: 4, requests: 64}"),
        ("vllm", "2xh100/tp2", "{input: 4k, output: 512}", "{concurrency: 32, requests: 128}"),
        ("sglang", "8xh200/tp8", "{input: 1k, output: 1k, range-ratio: 0.8}", "{concurrency: 64, requests: 256}"),
        ("sglang", "8xh200/tp4", "{input: 2k, output: 300}", "{rate: 2, requests: 240}"),
        ("tensorrt-llm", "8xh200/tp8", "{input: 512, output: 512}", "{rate: inf, requests: 200}"),
        ("vllm", "8xh100/tp4,pp2", "{input: 1k, output: 256}", "{concurrency: 16, requests: 96}"),
        ("vllm", "8xh200/tp8", "{input: 1k, output: 128, turns: 4, think-time: 1s}", "{concurrency: 8, requests: 9}"),
        ("vllm", "8xh200/tp8", "{input: 4k, prefix: 3k, output: 128}", "{concurrency: 16, requests: 128}"),
        ("vllm", "4xh200/tp4", "{input: 1k, output: 256}", "{concurrency: 8, duration: 30s}"),
        ("vllm", "2xh200/tp2", "{input: 8k, output: 256}", "{rate: 20, requests: 240}"),
    ],
)  # fmt: skip
def test_times_are_near_those_of_the_simulator(
    tmp_path: Path, engine: str, layout: str, workload: str, loads: str
) -> None:
    text = STUDY.replace("[vllm]", f"[{engine}]").replace("8xh200/tp8", layout)
    text = text.replace("{input: 1k, output: 256}", workload).replace(
        "{concurrency: [4], requests: 64}", loads
    )
    (deployment,) = shown(tmp_path, text).deployments
    (cell,) = deployment.cells
    (launch, _) = plan_study(read_study(tmp_path / "s.yaml"))
    options = {name.replace("-", "_"): value for name, value in launch.cells[0].options.items()}
    options |= {"deployment": launch.deployment, "out": tmp_path, "draws": 0}
    summary = simulate(options_of(options, SimulateOptions)).document()
    (ran,) = run_folder.read_info(Path(summary["run_dir"])).cells
    assert cell.seconds == pytest.approx(ran.end_s - ran.start_s, rel=0.25)
    assert deployment.seconds == pytest.approx(2 * cell.seconds)
    assert deployment.gpu_hours == pytest.approx(int(layout[0]) * deployment.seconds / 3600)
    if "duration" not in loads:
        sent = summary["cells"][0]["requests"]["sent"]
        assert cell.requests is not None
        assert sent <= cell.requests <= sent + 64  # with the warm-up


@pytest.mark.parametrize(
    ("model", "workload", "loads"),
    [
        ("qwen3-vl-8b", "{input: 64, output: 16, images: 2, image-size: 1920x1080}", "{concurrency: 2, requests: 24}"),
        ("qwen3-vl-8b", "{input: 64, output: 16, images: 1, image-size: 4000x4000}", "{concurrency: 1, requests: 8}"),
        ("bge-m3", "{endpoint: embeddings, input: 512}", "{concurrency: 1, requests: 32}"),
    ],
)  # fmt: skip
def test_times_of_pictures_and_texts_are_near_those_of_the_simulator(
    tmp_path: Path, model: str, workload: str, loads: str
) -> None:
    text = f"study: s\nmodel: {model}\ndeployments: {{engine: [vllm], layout: [1xh100]}}\n"
    (deployment,) = shown(
        tmp_path, f"{text}workloads: {{a: {workload}}}\nloads: {loads}\n"
    ).deployments
    (launch,) = plan_study(read_study(tmp_path / "s.yaml"))
    options = {name.replace("-", "_"): value for name, value in launch.cells[0].options.items()}
    options |= {"deployment": launch.deployment, "out": tmp_path, "draws": 0}
    summary = simulate(options_of(options, SimulateOptions)).document()
    (ran,) = run_folder.read_info(Path(summary["run_dir"])).cells
    assert deployment.cells[0].seconds == pytest.approx(ran.end_s - ran.start_s, rel=0.3)


@pytest.mark.parametrize(
    ("model", "workload", "problem"),
    [
        ("bge-reranker-v2-m3", "{endpoint: embeddings, input: 24}", "give --endpoint rerank"),
        ("bge-m3", "{input: 24}", "give --endpoint embeddings"),
        ("llama-3.1-8b", "{input: 24, images: 1}", "this model takes none"),
        ("qwen3-vl-8b", "{input: 24, images: 3, image-size: 20x5000}", "200 times"),
    ],
)
def test_what_a_model_does_not_answer_has_no_time(
    tmp_path: Path, model: str, workload: str, problem: str
) -> None:
    text = f"study: s\nmodel: {model}\ndeployments: {{engine: [vllm], layout: [1xh100]}}\n"
    text += f"workloads: {{a: {workload}}}\nloads: {{rate: 1, requests: 4}}\n"
    (deployment,) = shown(tmp_path, text).deployments
    assert deployment.cells[0].seconds is None
    assert problem in deployment.cells[0].problem


def test_counts_are_those_of_the_study_and_dollars_those_of_its_gpus(tmp_path: Path) -> None:
    text = STUDY.replace("[4]", "[4, 8]").replace("engine: [vllm]", "engine: [vllm, sglang]")
    found = shown(tmp_path, text, "h200=3")
    assert (found.launches, found.cells, found.unpredicted) == (4, 8, 0)
    assert found.requests == 2 * 2 * (64 + 4 + 64 + 8)
    assert found.usd == pytest.approx(3 * found.gpu_hours)
    assert shown(tmp_path, text, "h100=3").usd is None
    never = shown(tmp_path, text + "restart: never\n", "h200=3")
    assert (never.launches, never.cells, never.requests) == (2, 8, found.requests)
    assert never.seconds == pytest.approx(found.seconds)


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("8xh200/tp8", "1xh100/tp1", "not fit"),
        ("input: 1k", "input: 128k", "together beyond the model's context"),
        ('layout: ["8xh200/tp8"]', 'layout: [""]', "no layout or model by which"),
        ("8xh200/tp8", "6xh200/tp6", "tp6 does not divide"),
    ],
)  # fmt: skip
def test_what_will_not_fit_or_cannot_be_predicted_is_said_once(
    tmp_path: Path, before: str, after: str, problem: str
) -> None:
    found = shown(tmp_path, STUDY.replace("[4]", "[4, 8]").replace(before, after))
    assert found.unpredicted == found.cells == 4
    assert found.requests == 2 * (64 + 4 + 64 + 8)  # they are known all the same
    lines = list(remarks(read_study(tmp_path / "s.yaml"), found))
    assert sum(problem in line for line in lines) == 1, lines


def test_what_waits_and_what_the_limits_cut_is_said(tmp_path: Path) -> None:
    text = STUDY.replace("8xh200/tp8", "8xh200/tp8,max_num_seqs=16").replace("[4]", "[64]")
    found = shown(tmp_path, text + "limits: {total: 1s, cell: 2s}\n")
    assert found.deployments[0].cells[0].seconds == 2
    lines = list(remarks(read_study(tmp_path / "s.yaml"), found))
    assert any(
        "16 of 64 requests are served at once in a, concurrency 64" in line for line in lines
    )
    assert any("limits: total" in line for line in lines)


@pytest.mark.parametrize(
    "path", sorted(Path("examples").glob("*.yaml")), ids=lambda path: path.stem
)
def test_every_example_is_shown(path: Path, loadstone: Loadstone) -> None:
    document = json.loads(loadstone("study", "show", path, "--price", "h200=3", "--json").out)
    assert document["unpredicted"] == 0
    assert document["seconds"] > 0
    table = loadstone("study", "show", path)
    assert table.code == 0
    assert "at most 1800 s" in table.out


def test_what_a_study_of_texts_measured_is_shown(tmp_path: Path, loadstone: Loadstone) -> None:
    """Texts a second and E2E stand in the place of tokens, TTFT and TPOT."""
    path = tmp_path / "s.yaml"
    path.write_text(
        "study: s\nmodel: bge-m3\ndeployments: {engine: [vllm], layout: [1xl4]}\n"
        "workloads: {a: {endpoint: embeddings, input: 24, inputs: 3}}\n"
        "loads: {concurrency: [1], requests: 8}\n"
    )
    done = loadstone("study", "run", path, "--simulate", "--out", tmp_path / "out")
    heads, row = (
        line.split() for line in done.out.splitlines() if "deployment" in line or "bge-m3" in line
    )
    assert ("texts/s" in heads, "E2E" in heads, "TTFT" in heads) == (True, True, False)
    assert float(row[-4]) > 3
