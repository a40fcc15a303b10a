"""A model of the user's own: its run keeps the config, so that the run says as much where the file
is gone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conftest import Loadstone
from loadstone.analyse.run_facts import run_facts
from loadstone.catalogue.config.encoder import pooling_of
from loadstone.core.record import RunInfo
from summary_documents import summarise

CONFIG: dict[str, Any] = {
    "model_type": "llama", "torch_dtype": "bfloat16", "hidden_size": 1024, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 4096, "vocab_size": 1000,
    "tie_word_embeddings": False, "max_position_embeddings": 8192,
}  # fmt: skip
PARAMETERS = 63_954_944
"""2 · 1000 · 1024 + 4 · (1024 · 128 · (8 + 2 + 2 + 8) + 3 · 1024 · 4096 + 2 · 1024) + 1024."""
SMALL = ("--input", 64, "--output", 16, "--concurrency", 1, "--requests", 8, "--json")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own-model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    return path


def info_of(folder: Path) -> RunInfo:
    return msgspec.json.decode((folder / "run.json").read_bytes(), type=RunInfo)


def test_a_simulated_run_says_what_hardware_allows_where_the_file_is_gone(
    own: Path, tmp_path: Path, loadstone: Loadstone
) -> None:
    folder = loadstone("simulate", f"{own}@1xh200", *SMALL, "--out", tmp_path / "runs").folder
    shutil.rmtree(own)
    said = info_of(folder).settings.deployment["model"]
    assert (said["name"], said["config"], said["quantisation"]) == (str(own), CONFIG, None)
    assert run_facts(info_of(folder)).model == str(own)
    (cell,) = summarise(folder)["cells"]
    # All weights but the table of embeddings are read in a step, and next to nothing else.
    assert cell["light"]["tpot_s"] == pytest.approx(
        (PARAMETERS - 1000 * 1024) * 2 / 4.8e12, rel=0.02
    )
    assert "own-model" in loadstone("show", folder).out


def test_two_models_of_one_path_are_two_setups(
    own: Path, tmp_path: Path, loadstone: Loadstone
) -> None:
    folders = []
    for layers in (4, 6):
        (own / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": layers}))
        folders.append(
            loadstone("simulate", f"{own}@1xh200", *SMALL, "--out", tmp_path / "runs").folder
        )
    said = json.loads(loadstone("compare", *folders, "--json").out)
    setup = {each["what"]: each for each in said["setup"]}
    assert (setup["model config"]["a"], setup["model config"]["b"]) == (
        {"num_hidden_layers": 4},
        {"num_hidden_layers": 6},
    )


@pytest.mark.parametrize(
    "said",
    [
        {"name": "x", "config": None},
        {"config": CONFIG},
        {"name": "x", "config": {}, "quantisation": 7},
        {"name": "x", "config": {"model_type": "llama", "hidden_size": -1}},
        {"name": "x", "config": CONFIG, "quantisation": {"quantization": []}},
    ],
)
def test_a_described_model_that_is_none_is_let_be(
    said: Any, own: Path, tmp_path: Path, loadstone: Loadstone
) -> None:
    folder = loadstone("simulate", f"{own}@1xh200", *SMALL, "--out", tmp_path / "runs").folder
    papers = json.loads((folder / "run.json").read_bytes())
    papers["settings"]["deployment"]["model"] = said
    (folder / "run.json").write_text(json.dumps(papers))
    assert summarise(folder)["cells"][0]["light"] is None or said["config"] is CONFIG
    assert loadstone("show", folder).code == 0


@pytest.mark.parametrize(
    "told",
    [
        {"architectures": ["LlamaModel"]},
        {"architectures": ["LlamaForSequenceClassification"]},
        {"architectures": ["LlamaBidirectionalModel"]},
        {"architectures": ["LlamaForCausalLM"], "is_causal": False},
    ],
)
def test_what_writes_no_text_is_not_simulated(
    own: Path, tmp_path: Path, loadstone: Loadstone, told: dict[str, Any]
) -> None:
    (own / "config.json").write_text(json.dumps(CONFIG | told))
    line = loadstone("simulate", f"{own}@1xh200", *SMALL, "--out", tmp_path / "runs").line()
    assert "is an encoder" in line
    assert loadstone("size", own, "--gpu", "h200").code == 0


def test_generators_by_other_names_are_simulated() -> None:
    assert (
        pooling_of({"architectures": ["ChatGLMModel"], "auto_map": {"AutoModelForCausalLM": "x"}})
        is None
    )
    assert pooling_of({"architectures": ["InternVLChatModel"]}) is None
    assert pooling_of({"architectures": ["LlavaLlamaModel"], "llm_cfg": {}}) is None
    assert pooling_of({"architectures": ["GPT2LMHeadModel"]}) is None
    assert pooling_of({}) is None


def test_a_model_that_sees_says_that_its_prompts_are_text(
    tmp_path: Path, loadstone: Loadstone
) -> None:
    asked = (*SMALL[:-1], "--draws", 0, "--out", tmp_path / "runs")
    said = loadstone("simulate", "gemma-3-27b@1xh200", *asked).out
    assert "its prompts are simulated as text alone" in " ".join(said.split())
    assert "text alone" not in loadstone("simulate", "llama-3.1-8b@1xh200", *asked).out
