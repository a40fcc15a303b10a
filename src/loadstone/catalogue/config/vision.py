"""The towers for images and sound that stand beside a text model."""

from __future__ import annotations

from typing import Literal

import msgspec

from loadstone.catalogue.config.fields import Fields
from loadstone.catalogue.config.nested import TEXT_PARTS, filled, part_kind
from loadstone.catalogue.config.projectors import guessed, mergers, projector, side, two

_NO_PARTS = ("quantization_config", "generation_config")


class Tower(msgspec.Struct, frozen=True):
    """What the class of a tower has that its config does not say. In vectors of its width: norm, one norm (LayerNorm
    2, RMSNorm 1); outer_norms, norms beside the layers. positions: a learnt table, for each patch of the image, or
    none. scales: two vectors of a layer that scale its halves. head: a layer that pools, unless `vision_use_head`
    says no. merger: the tower itself joins patches and reaches the text model's width.
    """

    norm: Literal[1, 2] = 2
    outer_norms: int = 1
    matrices: Literal[2, 3] = 2
    bias: bool = True
    mlp_bias: bool = True
    patch_bias: bool = True
    positions: bool = True
    class_token: bool = False
    scales: bool = False
    head: bool = False
    merger: bool = False


_SIGLIP = Tower()
_CLIP = Tower(outer_norms=2, patch_bias=False, class_token=True)
_INTERN = Tower(outer_norms=0, class_token=True, scales=True)
_QWEN_2_5 = Tower(norm=1, outer_norms=0, matrices=3, patch_bias=False, positions=False, merger=True)
_QWEN_3 = Tower(outer_norms=0, merger=True)

TOWERS: dict[str, Tower] = {
    "siglip_vision_model": Tower(head=True),
    "siglip2_vision_model": Tower(head=True),
    "clip_vision_model": _CLIP,
    "pixtral": Tower(norm=1, matrices=3, bias=False, mlp_bias=False, patch_bias=False, positions=False),
    "idefics3_vision": _SIGLIP,
    "smolvlm_vision": _SIGLIP,
    "paddleocr_vl_vision": _SIGLIP,
    "cosmos3_edge_vision": _SIGLIP,
    "minicpm_ocr_vision": _SIGLIP,
    "minicpmv4_6_vision": _SIGLIP,
    "minicpmv4_7_vision": _SIGLIP,
    "kimi_k25_vision": _SIGLIP,
    "phi4_multimodal_vision": Tower(head=True),
    "video_llama_3_vision": Tower(positions=False),
    "minimax_m3_vl_vision": Tower(patch_bias=False, positions=False),
    "llama4_vision_model": _CLIP,
    "step3p5_vision": Tower(patch_bias=False, scales=True),
    "internvl_vision": _INTERN,
    "qianfan_ocr_vision": _INTERN,
    "qwen2_vl_vision": Tower(outer_norms=0, patch_bias=False, positions=False, merger=True),
    "qwen2_5_vl_vision": _QWEN_2_5,
    "qwen2_5_omni_vision_encoder": _QWEN_2_5,
    "exaone4_5_vision": _QWEN_2_5,
    "qwen3_vl_vision": _QWEN_3,
    "qwen3_vl_moe_vision": _QWEN_3,
    "qwen3_omni_moe_vision_encoder": _QWEN_3,
    "qwen3_5_vision": _QWEN_3,
    "qwen3_5_moe_vision": _QWEN_3,
}


def vision_parameters(whole: Fields, text_hidden: int) -> tuple[int, list[str]]:
    """Parameters of the towers and of what joins them to the text model, and what to tell the reader."""
    said: list[str] = []
    total = 0
    vision = whole.inner("vision_config", "vision_tower_config")
    audio = whole.inner("audio_config")
    if vision is not None:
        kind = part_kind(whole, vision, "vision_config")
        filled(vision, kind)
        found = _vision(whole, vision, kind, text_hidden)
        if found is None:
            said.append("vision_config does not say enough: the vision tower is not counted")
        else:
            total, exact = found
            how = "counted" if exact else "and what joins it are of kinds not known here: roughly estimated"
            said.append(f"vision tower {how} from vision_config: about {total / 1e6:.0f} M parameters")
    elif whole.find("text_config") and whole.text("model_type") == "llama4":
        said.append("no vision_config: the vision tower is not counted")
    if audio is not None:
        kind = part_kind(whole, audio, "audio_config")
        filled(audio, kind)
        heard = _audio(whole, audio, kind, text_hidden)
        if heard is None:
            said.append("audio_config: the tower is not counted")
        else:
            total += heard
            said.append(f"audio tower counted from audio_config: about {heard / 1e6:.0f} M parameters")
    if not whole.values.keys().isdisjoint(TEXT_PARTS):
        for name, value in whole.values.items():
            if name.endswith("_config") and isinstance(value, dict) and name not in (*_NO_PARTS, *whole.used):
                whole.find(name)
                said.append(f"{name}: that part is not counted")
    return total, said


def _vision(whole: Fields, vision: Fields, kind: str, text_hidden: int) -> tuple[int, bool] | None:
    """(parameters, whether all parts are known); None: too little is said."""
    if kind == "qwen2_vl_vision":
        hidden, out = vision.maybe("embed_dim"), vision.maybe("hidden_size") or text_hidden
        inner = int(vision.real("mlp_ratio", 4) * hidden) if hidden else None
    else:
        hidden = vision.maybe("hidden_size", "vt_hidden_size")
        inner = vision.maybe("intermediate_size", "vt_intermediate_size", "mlp_dim")
        if inner is None and hidden:
            inner = int(vision.real("mlp_ratio", 4) * hidden)
        out = vision.maybe("out_hidden_size", "text_hidden_size") or text_hidden
    depth = vision.maybe("num_hidden_layers", "depth", "vt_num_hidden_layers")
    patch = side(vision, "patch_size")
    if not depth or not hidden or not inner or not patch:
        return None
    if kind == "gemma4_vision":
        return _gemma4(vision, depth, hidden, inner, patch, out), True
    if kind in ("glm4v_vision", "glm4v_moe_vision", "glm_ocr_vision"):
        return _glm(vision, kind == "glm_ocr_vision", depth, hidden, inner, patch, out), True
    tower = TOWERS.get(kind)
    known = tower is not None
    tower = tower or _SIGLIP
    layer = _layer(tower, vision, hidden, inner)
    total = depth * layer + tower.outer_norms * tower.norm * hidden
    total += 3 * patch**2 * hidden * vision.count("temporal_patch_size", default=1) + tower.patch_bias * hidden
    if tower.positions:
        total += _positions(vision, patch) * hidden
    if tower.class_token:
        total += 2 * hidden  # and its position
    if tower.head and vision.flag("vision_use_head", default=True):
        # An attention of one learnt query, without the norm before it, and an MLP.
        total += layer - tower.norm * hidden + hidden
    if tower.merger:
        after = (out + 1) * text_hidden if whole.text("model_type") == "hyperclovax_vision_v2" else 0
        return total + mergers(vision, tower.norm, hidden, out) + after, known
    joined = projector(whole, vision, hidden, text_hidden)
    if joined is None:
        return total + guessed(vision, hidden, out), False
    towers = 2 if whole.text("model_type") == "video_llava" else 1  # one for images, one for videos
    return towers * total + joined, known


def _layer(tower: Tower, vision: Fields, hidden: int, inner: int) -> int:
    heads = vision.maybe("num_heads", "num_attention_heads", "vt_num_attention_heads", least=1) or 1
    wide = vision.maybe("qkv_hidden_size") or (vision.maybe("head_dim") or 0) * heads or hidden
    keys = wide // heads * (vision.maybe("num_key_value_heads", least=1) or heads)
    bias = (wide + 2 * keys) * vision.flag("attention_bias", default=tower.bias) + hidden * tower.bias
    attention = 2 * hidden * (wide + keys) + bias
    mlp = tower.matrices * hidden * inner + tower.mlp_bias * ((tower.matrices - 1) * inner + hidden)
    norm = 1 if vision.text("norm_type") == "rms_norm" else tower.norm
    return attention + mlp + 2 * norm * hidden + 2 * hidden * (tower.scales + vision.flag("use_qk_norm"))


def _positions(vision: Fields, patch: int) -> int:
    said = vision.maybe("num_position_embeddings", "position_embedding_size", "num_patches")
    if said:
        return said
    high = vision.maybe("pos_emb_height", "init_pos_emb_height")
    if high:
        return high * vision.count("pos_emb_width", "init_pos_emb_width", default=64)
    return (side(vision, "image_size") // patch) ** 2


def _gemma4(vision: Fields, depth: int, hidden: int, inner: int, patch: int, text: int) -> int:
    """Four norms and two of heads, gated, no biases; a table of positions for rows and one for columns."""
    head = vision.maybe("head_dim") or 0
    layer = 4 * hidden * hidden + 3 * hidden * inner + 4 * hidden + 2 * head
    places = vision.count("position_embedding_size", default=10_240)
    vision.flag("standardize")  # two vectors that are no parameters
    return depth * layer + 3 * patch**2 * hidden + 2 * places * hidden + hidden * text


def _glm(vision: Fields, ocr: bool, depth: int, hidden: int, inner: int, patch: int, out: int) -> int:
    """GLM-4V: gated, RMSNorm; its merger is a convolution and a gated MLP. GLM-OCR has biases and norms of heads, and
    no table of positions.
    """
    heads = vision.count("num_heads", "num_attention_heads", least=1)
    bias = vision.flag("attention_bias", default=ocr)
    merge = vision.count("spatial_merge_size", default=2, least=1)
    wide, context = (inner, 3 * out) if ocr else (out, inner)
    layer = 4 * hidden * hidden + 3 * bias * hidden + 3 * hidden * wide + 2 * hidden
    total = 3 * patch**2 * hidden * vision.count("temporal_patch_size", default=2) + hidden
    if ocr:
        layer += bias * (hidden + 2 * wide + hidden) + 2 * (hidden // heads)
    else:
        total += (side(vision, "image_size") // patch) ** 2 * hidden + hidden
    merger = out * hidden * merge**2 + out + out * out + 2 * out + 3 * out * context
    return total + depth * layer + hidden + merger


def _audio(whole: Fields, audio: Fields, kind: str, text: int) -> int | None:
    """Whisper's encoder, and what joins it to the text model."""
    width = audio.maybe("d_model", "hidden_size")
    depth = audio.maybe("encoder_layers", "num_hidden_layers")
    inner = audio.maybe("encoder_ffn_dim", "intermediate_size")
    bins = audio.maybe("num_mel_bins")
    if not width or not depth or not inner or not bins:
        return None
    places = audio.count("max_source_positions", default=1500)
    # Keys have no bias.
    layer = 4 * width * width + 3 * width + two(width, inner, width) + 4 * width
    convolutions = 3 * width * (bins + width) + 2 * width
    outer = whole.text("model_type")
    if kind == "qwen2_5_omni_audio_encoder":
        out = audio.count("output_dim", default=text)
        return depth * layer + convolutions + 2 * width + 2 * out + width * out + out
    if kind == "qwen3_omni_moe_audio_encoder":
        channels = audio.count("downsample_hidden_size", default=480)
        mixed = 10 * channels + 2 * (9 * channels + 1) * channels + channels * -(-bins // 8) * width
        out = audio.count("output_dim", default=text)
        return depth * (layer + width) + mixed + 2 * width + two(width, width, out)
    body = depth * layer + convolutions + places * width + 2 * width
    if outer == "qwen2_audio":
        return body + width * text + text
    if outer == "voxtral":
        return body + two(inner, text, text, bias=False)
    if outer == "moss_transcribe_diarize":
        wide = width * whole.count("audio_merge_size", default=4, least=1)
        return body + two(wide, wide, text) + 2 * text
    return None
