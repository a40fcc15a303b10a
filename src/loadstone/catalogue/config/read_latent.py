"""From a config's fields to attention with a compressed cache: a latent for all heads, a vector for many tokens."""

from __future__ import annotations

from typing import Literal

from loadstone.catalogue.architecture.attention import CompressedAttention, LatentAttention
from loadstone.catalogue.config.families import Family
from loadstone.catalogue.config.fields import Fields
from loadstone.core.errors import InputError

_GATES: dict[str, Literal["element", "head"] | None] = {
    "": None, "headwise": "head", "elementwise": "element", "head_wise": "head", "element_wise": "element",
}  # fmt: skip
_LATENT = (
    "num_attention_heads", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
)  # fmt: skip


def latent_attention(fields: Fields, family: Family, window: bool, index: int) -> LatentAttention:
    fields.find("head_dim", "qk_head_dim", "num_key_value_heads", "num_attention_heads")
    of_windows = [f"swa_{name}" for name in (*_LATENT, "head_dim", "num_key_value_heads", "attention_gate_type")]
    fields.find(*of_windows, "use_dsa")

    def named(name: str) -> tuple[str, ...]:
        return (f"swa_{name}", name) if window else (name,)

    top = None if window else fields.maybe("index_topk", least=1)
    who = fields.items("indexer_types")  # GLM-5.2: `shared` layers use the choice of the last `full` one
    own = top is not None and (who is None or index >= len(who) or who[index] == "full")
    heads, dim = fields.maybe("index_n_heads"), fields.maybe("index_head_dim")
    pool = fields.maybe("index_kpool", least=1)
    return LatentAttention(
        heads=fields.count(*named("num_attention_heads"), least=1),
        q_rank=fields.maybe(*named("q_lora_rank"), least=1),
        kv_rank=fields.count(*named("kv_lora_rank"), least=1),
        nope_dim=fields.count(*named("qk_nope_head_dim")),
        rope_dim=fields.count(*named("qk_rope_head_dim")),
        v_dim=fields.count(*named("v_head_dim"), least=1),
        top_tokens=top,
        index_heads=(heads or 0) if own else 0,
        index_dim=(dim or 0) if own else 0,
        index_pool=pool if own else None,
        gate=_gate(fields, family, window),
        window_tokens=fields.count("sliding_window", "sliding_window_size", least=1) if window else None,
        bias=fields.flag("attention_bias"),
        sinks=fields.flag("learnable_sink", default=family.sinks),
        rope_norm=family.rope_norm,
    )


def _gate(fields: Fields, family: Family, window: bool) -> Literal["element", "head"] | None:
    if fields.flag("mla_use_output_gate"):
        return "element"
    names = ("swa_attention_gate_type",) if window else ()
    said = fields.text(*names, "attention_gate_type", "gating_type", "gated_attention_proj_granularity_type")
    if said not in _GATES:
        raise InputError(
            f"{fields.where}: {said[:40]!r} is not a gate that is known; known are headwise and elementwise"
        )
    # Ling's own configs say which gate, or that there is none; transformers' form of them leaves it to its class.
    unsaid = None if family.state == "kda-full" and "linear_num_heads" not in fields.values else family.gate
    return (_GATES[said] or unsaid) if fields.flag("gated_mla", default=True) else None


def compressed_attention(fields: Fields, ratio: int, indexed: bool) -> CompressedAttention:
    """`indexed`: the overlapping fine compression, which has the indexer; the coarse one is read whole."""
    fields.find("num_key_value_heads", "index_topk", "index_n_heads", "index_head_dim")
    return CompressedAttention(
        heads=fields.count("num_attention_heads", least=1),
        head_dim=fields.count("head_dim", least=1),
        rope_dim=fields.count("qk_rope_head_dim"),
        q_rank=fields.count("q_lora_rank", least=1),
        o_rank=fields.count("o_lora_rank", least=1),
        groups=fields.count("o_groups", least=1),
        ratio=ratio,
        window_tokens=fields.count("sliding_window", least=1),
        top_tokens=fields.maybe("index_topk") if indexed else None,
        index_heads=fields.count("index_n_heads") if indexed else 0,
        index_dim=fields.count("index_head_dim") if indexed else 0,
    )
