"""The tiny model of `loadstone.measure.engines.tiny_gguf` as a Hugging Face folder, for engines
that load those.

The same weights and the same vocabulary, so that every engine of the tests serves the same model:
each of `WORDS` with its leading space is one token, answers are such words, and greedy answers can
be compared between engines. Written without torch: a safetensors file is a length, a JSON header
and the tensors' bytes.
"""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadstone.measure.engines import tiny_gguf

CONTEXT_TOKENS = 4096
_HEAD_DIM = 64

_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Matrices of a layer: GGUF's names and Hugging Face's."""


def write(folder: Path) -> None:
    """Make the model in `folder`, 18 MB. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens, merges = tiny_gguf.vocabulary()
    tensors = {
        _name(name): _tensor(name, value) for name, value in tiny_gguf._tensors(tokens).items()
    }
    _write_safetensors(folder / "model.safetensors", tensors)
    for name, fields in {
        "config.json": _config(tensors),
        "generation_config.json": {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
        "tokenizer.json": _tokenizer(tokens, merges),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "unk_token": "<unk>",
            "pad_token": "<unk>",
            "add_bos_token": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": CONTEXT_TOKENS,
            "chat_template": tiny_gguf.CHAT_TEMPLATE,
        },
    }.items():
        (folder / name).write_text(
            json.dumps(fields, ensure_ascii=False, indent=1), encoding="utf-8"
        )


def _name(gguf_name: str) -> str:
    whole = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    stem = gguf_name.removesuffix(".weight")
    if stem in whole:
        return f"{whole[stem]}.weight"
    _, layer, matrix = stem.split(".")
    return f"model.layers.{layer}.{_NAMES[matrix]}.weight"


def _tensor(gguf_name: str, value: NDArray[np.float32]) -> NDArray[np.float32]:
    """GGUF's llama rotates neighbouring pairs of a head's rows, Hugging Face the halves: reorder
    the rows."""
    if "attn_q" not in gguf_name and "attn_k" not in gguf_name:
        return value
    rows, columns = value.shape
    return (
        value.reshape(rows // _HEAD_DIM, _HEAD_DIM // 2, 2, columns)
        .swapaxes(1, 2)
        .reshape(rows, columns)
    )


def _config(tensors: dict[str, NDArray[np.float32]]) -> dict[str, Any]:
    vocabulary, hidden = tensors["model.embed_tokens.weight"].shape
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": tensors["model.layers.0.mlp.gate_proj.weight"].shape[0],
        "num_hidden_layers": sum(name.endswith("q_proj.weight") for name in tensors),
        "num_attention_heads": tensors["model.layers.0.self_attn.q_proj.weight"].shape[0]
        // _HEAD_DIM,
        "num_key_value_heads": tensors["model.layers.0.self_attn.k_proj.weight"].shape[0]
        // _HEAD_DIM,
        "head_dim": _HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": CONTEXT_TOKENS,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "torch_dtype": "float32",
    }


def _tokenizer(tokens: list[str], merges: list[str]) -> dict[str, Any]:
    """The `tokenizers` library's file: byte-level BPE, split as GPT-2 does."""
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
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": token, **flags} for i, token in enumerate(tiny_gguf.SPECIALS)
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": merges,
        },
    }


def _write_safetensors(path: Path, tensors: dict[str, NDArray[np.float32]]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, tensor in tensors.items():
        end = start + tensor.nbytes
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the tensors begin at a multiple of eight bytes
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor, "<f4").tobytes())
