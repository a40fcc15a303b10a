"""The config reader against the classes of transformers and vLLM: parameters, cache and states, to
the number.

tests/catalogue/transformers_truth.py and tests/catalogue/vllm_truth.py build every decoder that
they know, with one field changed at a time, and save each config as users get it. If its family is
exact, it is read as the class has it, or refused in one line; or the field is named as not
understood.
"""

from __future__ import annotations

import contextlib
import json
import math
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import loadstone
from engines.launch import _HOMES
from loadstone.catalogue.architecture.linear import LinearAttention
from loadstone.catalogue.architecture.model import Layers, Model
from loadstone.catalogue.config.families import tables
from loadstone.catalogue.config.reader import read_path
from loadstone.core.errors import InputError

pytestmark = pytest.mark.process

TESTS = Path(__file__).resolve().parents[1] / "catalogue"
MOST_S = 1500
SHARES = 2

SIZES_APART = {
    ("longcat_flash", ""): "the class makes projections of experts that do nothing",
    ("phi4_multimodal", ""): "the decoder's class has the towers in it",
    ("deepseek_v4", "n_shared_experts"): "as vLLM reads it",
    ("deepseek_v32", "mlp_bias"): "the class does not look at it",
    ("glm_moe_dsa", "mlp_bias"): "the class does not look at it",
    **{
        (name, "layer_norm_elementwise_affine"): "no published model but Galactica's has such norms"
        for name in ("opt", "blip-2", "instructblip", "instructblipvideo")
    },
    ("longcat_flash", "attention_bias"): "vLLM's class does not look at it",
    ("kimi_vl", "attention_bias"): "vLLM's class does not look at it",
    ("mllama", "tie_word_embeddings"): "no class ties tables of two lengths",
    ("step3p5", "use_qk_norm"): "vLLM's class does not look at it",
}
"""Whose parameters differ and why: (type, field that was changed; "": whatever was)."""

CACHES_APART = {
    "deepseek_v4": "the class keeps every token besides the compressed ones; engines do not",
    "mllama": "without a picture the class keeps no states of one",
}


Truths = list[dict[str, Any]]


def truths(home: str, script: str, folder: Path, shares: int = 1) -> Truths:
    """A line for each config that could be built, with `config`: its file."""
    python = _HOMES / home / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{home} is not installed (scripts/engines/{home})")
    signal.alarm(MOST_S + 60)
    asked = [[str(python), str(TESTS / script), str(folder)] for _ in range(shares)]
    if shares > 1:
        asked = [[*each, "--share", f"{part}/{shares}"] for part, each in enumerate(asked)]
    with ThreadPoolExecutor(shares) as pool:
        said = pool.map(partial(subprocess.check_output, text=True, timeout=MOST_S), asked)
        lines = [json.loads(line) for each in said for line in each.splitlines()]
    return [
        {**line, "config": folder / line["type"] / str(line["number"]) / "config.json"}
        for line in lines
        if "error" not in line
    ]


@pytest.fixture(scope="module")
def of_transformers(tmp_path_factory: pytest.TempPathFactory) -> Truths:
    return truths(
        "transformers", "transformers_truth.py", tmp_path_factory.mktemp("transformers"), SHARES
    )


@pytest.fixture(scope="module")
def of_vllm(tmp_path_factory: pytest.TempPathFactory) -> Truths:
    return truths("vllm", "vllm_truth.py", tmp_path_factory.mktemp("vllm"))


@pytest.mark.slow
def test_every_exact_family_of_transformers_is_read_as_its_class_has_it(
    of_transformers: Truths,
) -> None:
    assert not held_against(of_transformers)
    assert len(of_transformers) > 3500


@pytest.mark.slow
def test_what_vllm_alone_knows_is_read_as_its_class_has_it(of_vllm: Truths) -> None:
    assert not held_against(of_vllm)
    assert len(of_vllm) > 100


@pytest.mark.slow
def test_whatever_is_read_can_be_sized_and_simulated(
    of_transformers: Truths, of_vllm: Truths, tmp_path: Path
) -> None:
    """By the rules of each engine; and no token comes sooner than the hardware allows."""
    done = 0
    for truth in (*of_transformers, *of_vllm):
        model = truth["config"].parent
        if truth["changed"] or not is_read(model):
            continue
        for engine in ("vllm", "sglang", "tensorrt-llm"):
            for cut in ("1xh200/tp1", "8xh100/tp4,pp2"):
                with contextlib.suppress(InputError):  # some cannot be cut so
                    (row,) = loadstone.size(
                        f"{model}@{cut},engine={engine}", context=[1024], batch=[4]
                    ).document()["rows"]
                    assert all(
                        math.isfinite(value) for value in row.values() if isinstance(value, float)
                    )
        read = read_path(truth["config"])
        is_encoder = read.is_encoder
        run = loadstone.simulate(
            f"{model}@1xh200/engine={'sglang' if read.cross else 'vllm'}",
            input=64,
            **({"endpoint": "embeddings"} if is_encoder else {"output": 32}),
            concurrency=4,
            requests=8,
            draws=0,
            out=tmp_path,
        ).document()
        (cell,) = run["cells"]
        least, found = ("ttft_s", "e2e_s") if is_encoder else ("tpot_s", "tpot_s")
        assert cell["light"][least] < cell["metrics"][found]["p50"], truth["type"]
        done += 1
    assert done > 150


def is_read(folder: Path) -> bool:
    with contextlib.suppress(InputError):
        return bool(read_path(folder))
    return False


def held_against(found: Truths) -> list[str]:
    """Return a line for each config of a family that is exact that is read wrong, or refused as it
    is."""
    wrong = []
    for truth in found:
        try:
            model = read_path(truth["config"])
        except InputError as error:
            if not truth["changed"] and tables().find(truth["type"]) is not None:
                wrong.append(f"{truth['type']}: {error}")
            continue
        exact = tables().find(model.model_type) is not None
        if exact and not any(name in said for name in truth["changed"] for said in model.assumed):
            wrong += [
                f"{truth['type']} {truth['changed']}: {off}" for off in differences(model, truth)
            ]
    return wrong


def differences(model: Model, truth: dict[str, Any]) -> list[str]:
    name = truth["type"]
    if {(name, ""), *((name, field) for field in truth["changed"])} & SIZES_APART.keys():
        return []
    text = model.parameters - model.vision_parameters
    found = [] if text == truth["text"] else [f"{text} parameters, not {truth['text']}"]
    if name in CACHES_APART or model.is_encoder:  # which is served without a cache
        return found
    layers = [run for run in model.layers for _ in range(run.count)]
    kv = truth.get("kv", [])
    if any(numbers for numbers, _ in kv):
        kv += [[0, None]] * (
            len(layers) - len(kv)
        )  # some caches end with the last layer that writes to them
        off = [
            f"layer {index} keeps {cached(layer)} of a token, not {said}"
            for index, (layer, said) in enumerate(zip(layers, kv, strict=True))
            if not getattr(
                layer.attention, "index_heads", 0
            )  # whose keys transformers keeps elsewhere
            and cached(layer) != (said if said[0] else [0, None])
        ]
        found += off[:1]
    states = [numbers for numbers, _ in truth.get("states", [])]
    if any(states) and [recurrent(layer) for layer in layers] != states + [0] * (
        len(layers) - len(states)
    ):
        found.append(f"states of {[recurrent(layer) for layer in layers]}, not {states}")
    return found


def cached(layer: Layers) -> list[float | int | None]:
    """Numbers of one token, and the window."""
    numbers = layer.kv_bytes_per_token("bf16") / 2
    return [numbers, getattr(layer.attention, "window_tokens", None)] if numbers else [0, None]


def recurrent(layer: Layers) -> int:
    return sum(
        each.heads * each.key_dim * each.value_dim
        for each in layer.states
        if isinstance(each, LinearAttention)
    )
