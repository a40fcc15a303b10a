"""What vLLM's own classes are made of: parameters and cache of models that transformers has no
class for.

    .cache/engines/vllm/bin/python tests/catalogue/vllm_truth.py FOLDER [NAME…]

Like `transformers_truth.py` (read it first), whose line format it has, but the configs are its own:
`served_configs.json` beside it has fields as the makers publish them, at small sizes. vLLM's class
of each is created on one rank of the CPU. `kv` and `states` are what `get_kv_cache_spec` says of
each layer; layers that loop keep one for every time. A model that cannot be created has one line
with `error`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
os.environ["VLLM_LOGGING_STREAM"] = "ext://sys.stderr"

import torch
from transformers import AutoConfig, PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.model_executor.models import registry
from vllm.transformers_utils.config import _CONFIG_REGISTRY
from vllm.v1.kv_cache_interface import AttentionSpec, MambaSpec

from transformers_truth import tried, variants

CONFIGS = json.loads(Path(__file__).with_name("served_configs.json").read_text())
_NO_SIZES = (
    "token_id", "dropout", "rope", "max_position", "use_cache", "scale", "eps", "topk_group", "n_group", "tie_word",
)  # fmt: skip
"""Some classes do not look whether embeddings are tied, and load the same table twice."""
_ALIASES = {"num_hidden_layers": "num_layers"}
_TOWERS = re.compile(
    r"(^|\.)(vision|visual|vit|audio|aligner|multi_modal|mm_|projector|image|merger|view_|tile_)"
)


class _Absent(ModuleType):
    """Pictures are read by it; none are here."""

    __spec__ = ModuleSpec("torchvision", None)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    registry._run_in_subprocess = lambda look: look()  # slow, and of no use here
    names = (
        "torchvision",
        "torchvision.transforms",
        "torchvision.transforms.v2",
        "torchvision.transforms.functional",
    )
    sys.modules |= {name: _Absent(name) for name in names}
    torch.set_default_dtype(torch.bfloat16)
    with tempfile.NamedTemporaryFile() as meeting, set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, f"file://{meeting.name}.rank", 0, "gloo")
        initialize_model_parallel(1, 1)
    for name in options.names or CONFIGS:
        for line in lines(name, CONFIGS[name], options.folder):
            print(json.dumps(line), flush=True)


def lines(name: str, base: dict[str, Any], folder: Path) -> Iterator[dict[str, Any]]:
    def one(place: Path, changed: dict[str, Any]) -> dict[str, Any]:
        place.joinpath("config.json").write_text(json.dumps(_merged(base, changed)))
        return built(place)

    yield from tried(name, variants(_text(base), _NO_SIZES), folder, one)


def _text(base: dict[str, Any]) -> dict[str, Any]:
    inner = [
        base[part] for part in ("text_config", "language_config", "llm_config") if part in base
    ]
    return inner[0] if inner else base


def _merged(base: dict[str, Any], changed: dict[str, Any]) -> dict[str, Any]:
    whole = json.loads(json.dumps(base))
    _text(whole).update(changed)
    return whole


def built(place: Path) -> dict[str, Any]:
    config = json.loads((place / "config.json").read_text())
    kind = config["model_type"]
    if kind not in CONFIG_MAPPING and kind not in _CONFIG_REGISTRY:
        # What the makers' own class does not have, no config here leaves out.
        names = {name: alias for name, alias in _ALIASES.items() if alias in config}
        AutoConfig.register(
            kind,
            type("Published", (PretrainedConfig,), {"model_type": kind, "attribute_map": names}),
            exist_ok=True,
        )
    asked = EngineArgs(
        model=str(place), skip_tokenizer_init=True, load_format="dummy", enforce_eager=True, max_model_len=128,
        enable_prefix_caching=False, block_size=128,
    )  # fmt: skip
    given = asked.create_engine_config()
    with set_current_vllm_config(given):
        model = initialize_model(given)
    parts = {id(each): (name, each.numel()) for name, each in reversed([*model.named_parameters()])}
    whole = sum(count for _, count in parts.values())
    towers = sum(count for name, count in parts.values() if _TOWERS.search(name))
    return {"parameters": whole, "text": whole - towers, **cache(given)}


def cache(given: VllmConfig) -> dict[str, Any]:
    kv: dict[tuple[int, ...], list[Any]] = {}
    states: dict[tuple[int, ...], list[int]] = {}
    for name, layer in given.compilation_config.static_forward_context.items():
        if not isinstance(layer, AttentionLayerBase):
            continue
        place = tuple(
            int(number) for number in re.findall(r"\.(\d+)(?=\.|$)", name)
        )  # of two attentions in a layer too
        held = layer.get_kv_cache_spec(given)
        if isinstance(held, MambaSpec):
            *conv, last = (torch.Size(shape).numel() for shape in held.shapes)
            states[place] = [last, sum(conv)]
        elif isinstance(held, AttentionSpec):
            numbers = (
                held.num_kv_heads * (held.head_size + held.head_size_v) / held.tokens_per_state
            )
            before = kv.get(place, [0, None])
            window = getattr(held, "sliding_window", None) or getattr(
                held, "attention_chunk_size", None
            )
            kv[place] = [before[0] + numbers, window or before[1]]
    places = sorted({*kv, *states})
    return {
        "kv": [kv.get(place, [0, None]) for place in places],
        "states": [states.get(place, [0, 0]) for place in places],
    }


if __name__ == "__main__":
    sys.exit(main())
