"""Each answer is one table at any width, whole, with what decides in sight."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conftest import Loadstone
from test_summary import CLOSED, make_run

STUDY = """\
study: widths
deployments: {model: [llama-3.1-8b], engine: [vllm, sglang], layout: [1xh100, 1xh200]}
workloads: {chat: {input: 512, output: 16}}
loads: {concurrency: [1, 2]}
"""
SIMULATE = "--input 128 --output 8 --requests 8 --warmup 0"
COMMANDS = {
    "size llama-3.1-70b@8xh100/tp8": "fits",
    "size 'llama-3.1-70b@8xh100/tp={4,8}'": "fits",
    "size llama-3.1-8b --gpu h100,h200,b200 --gpus 1,2,4": "fits",
    f"simulate llama-3.1-8b@1xh100 --concurrency 1 {SIMULATE} --slo ttft<1s": "trusted",
    f"simulate llama-3.1-8b@1xh100 --concurrency 1,2,4,8 {SIMULATE}": "trusted",
    f"simulate llama-3.1-8b@1xh100 --concurrency 1,2,3,4,5,6,7,8 {SIMULATE}": "trusted",
    f"simulate 'llama-3.1-8b@{{1,2}}xh100' --concurrency 4 {SIMULATE}": "out tok/s",
    "recommend llama-3.1-8b --rate 5 --slo tpot_p99<50ms --gpus h100 --price h100=2": "P(SLO)",
    "compare a b": "conclusion",
    "show a": "trusted",
    "study show study.yaml": "loads",
    "study run study.yaml --simulate": "trusted",
    "study status study.yaml --simulate": "state",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("widths")
    for name in ("a", "b"):
        make_run(folder / name, [CLOSED], {})
    (folder / "study.yaml").write_text(STUDY)
    return folder


@pytest.mark.parametrize("line", COMMANDS)
@pytest.mark.parametrize("width", [80, 100, 120])
def test_an_answer_is_one_table_at_any_width(
    line: str, width: int, folder: Path, loadstone: Loadstone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", str(width))
    done = loadstone(*re.sub("'", "", line).split())
    assert done.err == "" or line.startswith("study run"), done.err
    rules = [text for text in done.out.splitlines() if "──" in text]
    assert len(rules) <= 1
    assert all(len(text) <= width for text in rules)
    assert COMMANDS[line] in done.out
    assert "…" not in done.out.replace(" …", "")
    # Commands to paste have flags' own words.
    prose = re.sub(r"^  loadstone .*$", "", done.out, flags=re.MULTILINE)
    assert not re.search(r"\b1 (GPUs|replicas|requests at once)\b|tpot_p|ttft_p", prose)
