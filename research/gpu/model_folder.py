"""A model folder from facts alone: a catalogued model's config.json, and a tokenizer of its size.

Weights are the engine's own random ones (vLLM's `--load-format dummy`). It is as fast with them as
with trained ones: what it computes depends on shapes. What differs is the text, which is nonsense,
and with experts the routing, which random weights spread evenly.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from loadstone.catalogue.find import entries_of, model_names
from loadstone.core.errors import InputError
from loadstone.measure.engines import tiny_gguf

ARCHITECTURES = {
    # model_type: what the catalogue leaves out, for it says nothing of size or speed
    "llama": {"architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-5, "rope_theta": 500000.0},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "rms_norm_eps": 1e-6, "rope_theta": 1000000.0},
    "mistral": {
        "architectures": ["MistralForCausalLM"],
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000000.0,
    },
}
_COMMON = {
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "torch_dtype": "bfloat16",
}


def config_of(name: str) -> dict[str, Any]:
    """The config.json of a catalogued model."""
    key = model_names().get(name.lower())
    if key is None:
        raise InputError(f"no model {name!r} in the catalogue; see loadstone catalogue models")
    fields = entries_of("models")[key]["config"]
    known = ARCHITECTURES.get(fields.get("model_type", ""))
    if known is None:
        raise InputError(f"{name}: models of type {fields.get('model_type')!r} are not made here; known are "
                         f"{', '.join(ARCHITECTURES)}")  # fmt: skip
    return {**known, **fields, **_COMMON}


def write(folder: Path, config: dict[str, Any]) -> None:
    """config.json, the tokenizer, and what goes with them. Every id of the vocabulary can be
    decoded; English words of loadstone's list are one token each, with the space before them."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens, merges = tiny_gguf.vocabulary()
    size = config["vocab_size"]
    if size < len(tokens):
        raise InputError(f"a vocabulary of {size} tokens: at least {len(tokens)} are needed")
    # Nothing is ever tokenized to these: no merge leads to them. Answers have them.
    tokens = [*tokens, *(f"Ġx{number:x}" for number in range(len(tokens), size))]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    flags = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    model = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
        "vocab": {token: number for number, token in enumerate(tokens)}, "merges": merges,
    }  # fmt: skip
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [{"id": place, "content": token, **flags} for place, token in enumerate(tiny_gguf.SPECIALS)],
        "pre_tokenizer": byte_level, "decoder": byte_level, "model": model,
    }  # fmt: skip
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
        "pad_token": "<unk>", "add_bos_token": False, "clean_up_tokenization_spaces": False,
        "model_max_length": config.get("max_position_embeddings", 131072), "chat_template": tiny_gguf.CHAT_TEMPLATE,
    }  # fmt: skip
    for name, fields in {
        "config.json": config,
        "generation_config.json": {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": about,
    }.items():
        (folder / name).write_text(json.dumps(fields, ensure_ascii=False), encoding="utf-8")
