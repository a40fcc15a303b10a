"""Models of the Hugging Face cache, found by their ids; nothing is downloaded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from loadstone import catalogue
from loadstone.catalogue.config.hub import cached_config
from loadstone.catalogue.deployment.shorthand import parse_named, parse_worker
from loadstone.core.errors import InputError

CONFIG: dict[str, Any] = {
    "model_type": "llama", "torch_dtype": "bfloat16", "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100,
    "tie_word_embeddings": False, "max_position_embeddings": 512,
}  # fmt: skip


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    return tmp_path / "hub"


def put(hub: Path, name: str, commit: str = "c0ffee", ref: bool = True, **changes: Any) -> Path:
    """As huggingface_hub leaves it: a snapshot's files are links to blobs."""
    model = hub / f"models--{name.replace('/', '--')}"
    blob, snapshot = model / "blobs" / f"of-{commit}", model / "snapshots" / commit
    for folder in (blob.parent, snapshot, model / "refs"):
        folder.mkdir(parents=True, exist_ok=True)
    blob.write_text(json.dumps(CONFIG | changes))
    (snapshot / "config.json").symlink_to(blob)
    if ref:
        (model / "refs" / "main").write_text(commit)
    return snapshot / "config.json"


def test_a_downloaded_model_is_found_by_its_id(hub: Path) -> None:
    put(hub, "lab/Own-7B")
    model = catalogue.model("lab/Own-7B")
    assert (model.name, model.layer_count, model.hidden) == ("lab/Own-7B", 2, 64)
    deployed = parse_worker("lab/Own-7B:fp8@2xh200/tp2,kv=fp8")
    assert (deployed.model.name, deployed.weights_dtype, deployed.tp) == ("lab/Own-7B", "fp8", 2)


def test_the_main_branch_counts_and_not_what_was_downloaded_last(hub: Path) -> None:
    put(hub, "lab/Own-7B", "main")
    other = put(hub, "lab/Own-7B", "other", ref=False, num_hidden_layers=9)
    os.utime(other, (2e9, 2e9))
    assert catalogue.model("lab/Own-7B").layer_count == 2


def test_a_download_by_commit_alone_is_found(hub: Path) -> None:
    old, new = (
        put(hub, "Own-7B", "a", ref=False),
        put(hub, "Own-7B", "b", ref=False, num_hidden_layers=3),
    )
    os.utime(old, (1e9, 1e9))
    assert cached_config("Own-7B") == new
    assert catalogue.model("Own-7B").layer_count == 3


@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"])
def test_the_cache_is_where_the_environment_says(
    hub: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    put(hub.parent / "elsewhere", "lab/Own-7B")
    monkeypatch.setenv("HOME", str(hub.parent))
    monkeypatch.setenv(variable, "~/elsewhere")
    assert catalogue.model("lab/Own-7B").hidden == 64


@pytest.mark.parametrize("name", ["meta-llama/Meta-Llama-3.1-8B", "lab/Mixtral-8x7B-Instruct-v0.1"])
def test_the_catalogue_comes_first(hub: Path, name: str) -> None:
    """So that a run of it says the same on every machine."""
    put(hub, name)
    assert catalogue.model(name).hidden == 4096


@pytest.mark.parametrize(
    "name", ["../lab/Own-7B", "lab/../Own-7B", "lab/Own-7B/..", "", "lab/Other-7B", "a" * 5000]
)
def test_what_is_no_id_is_not_looked_for(hub: Path, name: str) -> None:
    put(hub, "lab/Own-7B")
    assert cached_config(name) is None


def test_a_reference_does_not_lead_out_of_the_cache(hub: Path, tmp_path: Path) -> None:
    put(hub, "lab/Own-7B")
    (tmp_path / "config.json").write_text("{}")
    (hub / "models--lab--Own-7B" / "refs" / "main").write_text("../../../..")
    assert (
        cached_config("lab/Own-7B")
        == hub / "models--lab--Own-7B" / "snapshots" / "c0ffee" / "config.json"
    )


def test_an_id_that_is_not_there_names_the_nearest(hub: Path) -> None:
    with pytest.raises(
        InputError, match=r"no model 'lab/Owm-7B' in the catalogue; .*a path to a config.json"
    ):
        catalogue.model("lab/Owm-7B")


def test_a_name_of_a_run_is_not_looked_for_on_this_machine(hub: Path) -> None:
    put(hub, "lab/Own-7B")
    with pytest.raises(InputError, match="only a file of yours"):
        parse_named("lab/Own-7B@1xh200", None)
