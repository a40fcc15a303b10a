"""What transformers' own classes are made of: parameters and cache of every decoder it knows, and
of encoders for vectors, on the meta device.

    .cache/engines/transformers/bin/python tests/catalogue/transformers_truth.py [--share 0/2]
    FOLDER [TYPE…]

Run by the engine's interpreter, which has torch; it needs nothing of Loadstone. For each model
type: its default config with four layers, then the same with one field changed at a time (flags
turned over, numbers doubled). What can be built is saved in FOLDER/TYPE/NUMBER as users get it
(`save_pretrained`), with one JSON line on stdout:

    type, number    whose config it is, and its folder
    changed         {field: value}, {} for the first; what the type needs anyway (NEEDED) is not
                    named
    parameters      all that a checkpoint holds, towers included; text: of the decoder and its
                    output head, or of the encoder
    kv              (numbers that one token adds to the cache, window or null) of each layer; absent
                    where the class cannot be run on the meta device
    states          (numbers of the recurrent state, of the convolution's inputs) of each layer;
                    absent likewise

A type that cannot be built with default fields has one line with `error`.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import torch
import transformers
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

LAYERS = 4
ENCODERS = ("bert", "modernbert", "roberta", "xlm-roberta")
"""Types that are served for their vectors, without a head that writes text."""
TOKENS = 7
MOST_S = 40
"""A few classes compute their first weights on the processor whatever the device."""
_NO_SIZES = (
    "token_id", "dropout", "output_", "return_dict", "chunk_size_feed", "torchscript", "is_encoder_decoder",
    "add_cross", "is_decoder", "problem_type", "use_cache",
)  # fmt: skip
NEEDED: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
    },
    "gemma3n_text": {"num_kv_shared_layers": 2, "num_hidden_layers": 10},
    "granitemoehybrid": {"layer_types": ["mamba", "attention", "mamba", "attention"]},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "hunyuan_vl": {"head_dim": 128},
    "jamba": {"attn_layer_period": 3, "attn_layer_offset": 1},
    "kimi_linear": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8, "head_dim": 128},
    "zamba2": {"num_hidden_layers": 6, "layers_block_type": ["mamba", "mamba", "hybrid"] * 2},
}
"""What some classes cannot do without, or have no layer with attention without."""
_LEFT_OPEN = ("head_dim", "num_key_value", "rank")
"""Fields whose null stands for something else."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("types", nargs="*")
    parser.add_argument(
        "--share", default="0/1", help="which part of the types, of how many: 0/2, 1/2"
    )
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    autos = dict.fromkeys(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, AutoModelForImageTextToText)
    autos |= dict.fromkeys(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, AutoModelForCausalLM)
    autos |= dict.fromkeys(ENCODERS, AutoModel)
    part, parts = map(int, options.share.split("/"))
    for name in (options.types or sorted(autos))[part::parts]:
        for line in lines(name, autos[name], options.folder):
            print(json.dumps(line), flush=True)


def lines(name: str, auto: Any, folder: Path) -> Iterator[dict[str, Any]]:
    def one(place: Path, changed: dict[str, Any]) -> dict[str, Any]:
        config, model = build(name, auto, changed)
        config.architectures = [type(model).__name__]
        config.save_pretrained(place)
        return weights(model) | cache(model)

    try:
        fields = CONFIG_MAPPING[name]().get_text_config().to_dict()
    except Exception as error:
        yield {"type": name, "error": short(error)}
    else:
        yield from tried(name, variants(fields, _NO_SIZES), folder, one)


def tried(
    name: str,
    changes: Iterator[dict[str, Any]],
    folder: Path,
    one: Callable[[Path, dict[str, Any]], dict[str, Any]],
) -> Iterator[dict[str, Any]]:
    """A line for each of `changes`: what `one` finds of it, having saved its config in the folder
    that it gets."""
    signal.signal(signal.SIGALRM, _too_long)
    for number, changed in enumerate(changes):
        place = folder / name / str(number)
        place.mkdir(parents=True, exist_ok=True)
        signal.alarm(MOST_S)
        try:
            found = {"type": name, "number": number, "changed": changed, **one(place, changed)}
        except Exception as error:
            if number == 0:
                yield {"type": name, "error": short(error)}
                return
            continue  # such a value of the field is not allowed
        finally:
            signal.alarm(0)
        yield found


def variants(fields: dict[str, Any], no_sizes: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    yield {}
    for name, value in fields.items():
        if any(part in name for part in no_sizes):
            continue
        if isinstance(value, bool):
            yield {name: not value}
        elif isinstance(value, int) and value > 0:
            yield {name: 2 * value}
        elif value is None and any(part in name for part in _LEFT_OPEN):
            yield {name: 2}


def build(name: str, auto: Any, changed: dict[str, Any]) -> tuple[Any, Any]:
    kind = CONFIG_MAPPING[name]
    base = kind()
    text = base.get_text_config()
    fields = NEEDED.get(name, {}) | changed
    if hasattr(text, "num_hidden_layers"):
        fields.setdefault("num_hidden_layers", LAYERS)
    if text is base:
        config = kind(**fields)
    else:
        part = next(part for part in base.sub_configs if getattr(base, part) is text)
        config = kind(**{part: {"model_type": text.model_type, **fields}})
    inner = config.get_text_config()
    inner._experts_implementation = "batched_mm"  # the one whose shapes do not depend on values
    with torch.device("meta"):
        return config, auto.from_config(config, attn_implementation="eager").eval()


def weights(model: Any) -> dict[str, int]:
    parts = [model.get_decoder(), model.get_output_embeddings()]
    text = {place: numbers for part in parts if part is not None for place, numbers in stored(part)}
    return {"parameters": sum(dict(stored(model)).values()), "text": sum(text.values())}


def stored(model: Any) -> Iterator[tuple[int, int]]:
    """(identity, numbers) of parameters, and of routers' corrections, which checkpoints hold and
    classes have as buffers.
    """
    for module in model.modules():
        held = [each for name, each in module._buffers.items() if name != "bias" and "bias" in name]
        yield from (
            (id(each), each.numel())
            for each in (*module._parameters.values(), *held)
            if each is not None
        )


def cache(model: Any) -> dict[str, Any]:
    """What `TOKENS` tokens leave in it, by layer; {} where the class does not run so."""
    text = model.get_decoder() if type(model).__name__.endswith("ConditionalGeneration") else model
    try:
        with torch.device("meta"), torch.no_grad():
            out = text(input_ids=torch.zeros(1, TOKENS, dtype=torch.long), use_cache=True)
        layers = out.past_key_values.layers
    except Exception:
        return {}
    kv, states = [], []
    for layer in layers:
        held = vars(layer)
        both = [
            held[part] for part in ("keys", "values") if isinstance(held.get(part), torch.Tensor)
        ]
        kv.append((sum(each.numel() for each in both) / TOKENS, held.get("sliding_window")))
        states.append([_numbers(held.get(part)) for part in ("recurrent_states", "conv_states")])
    return {"kv": kv, "states": states}


def _numbers(held: Any) -> int:
    parts = (
        held.values()
        if isinstance(held, dict)
        else held
        if isinstance(held, list | tuple)
        else [held]
    )
    return sum(each.numel() for each in parts if isinstance(each, torch.Tensor))


def short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:150]


def _too_long(*_: object) -> NoReturn:
    raise TimeoutError(f"more than {MOST_S} s")


if __name__ == "__main__":
    sys.exit(main())
