"""From a config's fields to how wide the heads of an attention are, and which of its projections have a bias."""

from __future__ import annotations

from loadstone.catalogue.config.families import Family
from loadstone.catalogue.config.fields import Fields


def head_widths(
    fields: Fields, family: Family, window: bool, heads: int, kv_heads: int, hidden: int
) -> tuple[int, int, int]:
    """KV heads, numbers of a key's head, of a value's. `kv_heads`: of layers with a window, where others differ."""
    swa = ("swa_",) if window else ()
    head_dim = fields.maybe(*[f"{p}head_dim" for p in swa], "head_dim", "attention_head_dim", "kv_channels", least=1)
    if head_dim is None and family.head_dim:
        head_dim = family.head_dim
        fields.assume(f"no head_dim: {head_dim}, as in the class of this model_type")
    if head_dim is None:
        head_dim = hidden // heads
        if hidden % heads:
            fields.assume(f"no head_dim, and {heads} heads do not divide {hidden}: head_dim {head_dim} assumed")
    v_head_dim = fields.maybe(*[f"{p}v_head_dim" for p in swa], "v_head_dim") or head_dim
    wide = fields.maybe("global_head_dim", least=1)
    if wide is None and not fields.find("per_layer_config"):
        wide = family.wide_head_dim
    fewer = fields.maybe("num_global_key_value_heads", least=1)
    if window:
        return kv_heads, head_dim, v_head_dim
    # Gemma 4: layers that see everything have wider heads, and fewer where their values are the keys.
    if fewer and fields.flag("attention_k_eq_v"):
        kv_heads = fewer
    return kv_heads, wide or head_dim, wide or v_head_dim


def attention_biases(fields: Fields, family: Family) -> tuple[bool, bool]:
    """Whether Q, K and V have one, and the output."""
    names = ("attention_bias", family.all_biases) if family.all_biases else ("attention_bias",)
    all_of_them, inputs = fields.find(*names), fields.find("qkv_bias", "use_qkv_bias", "add_qkv_bias")
    if family.bias and family.output_bias is None:
        all_of_them = None  # Qwen2, whose class gives Q, K and V theirs, whatever the config says
    said = inputs or all_of_them
    bias = family.bias if said is None else bool(said[1])
    output = bool(all_of_them and all_of_them[1]) if family.output_bias is None else family.output_bias and bias
    return bias, fields.flag("attention_out_bias", default=output)
