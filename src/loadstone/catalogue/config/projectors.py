"""What joins a tower's output to the text model: parameters, by the outer config's class."""

from __future__ import annotations

from loadstone.catalogue.config.fields import Fields


def side(vision: Fields, name: str) -> int:
    """A square's: one number, or two equal ones."""
    found = vision.find(name)
    if found is None:
        return 0
    value = found[1]
    if isinstance(value, list):
        value = value[0] if value and all(each == value[0] for each in value) else 0
    return vision.whole(name, value)


def two(inputs: int, inner: int, out: int, bias: bool = True) -> int:
    """An MLP of two matrices."""
    return inputs * inner + inner * out + bias * (inner + out)


def mergers(vision: Fields, norm: int, hidden: int, out: int) -> int:
    """Qwen's: a norm, and patches side by side through an MLP of their width together; others for inner layers."""
    wide = hidden * vision.count("spatial_merge_size", default=2, least=1) ** 2
    deep = len(vision.items("deepstack_visual_indexes") or [])
    return (1 + deep) * two(wide, wide, out) + norm * (hidden + deep * wide)


def guessed(vision: Fields, hidden: int, out: int) -> int:
    """A guess: the patches that are merged side by side, through an MLP of two matrices."""
    merge = vision.maybe("spatial_merge_size") or side(vision, "merge_kernel_size") or 1
    wide = hidden * merge**2
    return two(wide, wide, out)


def projector(whole: Fields, vision: Fields, hidden: int, text: int) -> int | None:
    """Parameters of the projector, which is the outer class's; None where that class is not known here."""
    kind = whole.text("model_type")
    bias = whole.flag("multimodal_projector_bias", default=kind not in ("mistral3", "lighton_ocr"))
    if kind in ("llava", "llava_next", "llava_next_video", "llava_onevision", "video_llava"):
        used = whole.find("vision_feature_layer")
        many = len(used[1]) if used is not None and isinstance(used[1], list) else 1
        return two(many * hidden, text, text, bias) + kind.startswith(("llava_next", "llava_one")) * text
    if kind == "vipllava":
        wide = len(whole.items("vision_feature_layers") or [0] * 5) * hidden
        return 2 * wide + two(wide, text, text)
    if kind in ("gemma3", "shieldgemma2"):
        return hidden * text + hidden
    if kind == "paligemma":
        out = whole.maybe("projection_dim") or vision.maybe("projection_dim") or text
        return hidden * out + out
    if kind in ("mistral3", "lighton_ocr"):
        merge = whole.count("spatial_merge_size", default=2, least=1)
        return hidden + hidden * hidden * merge**2 + two(hidden, text, text, bias)
    if kind in ("idefics3", "smolvlm"):
        return text * hidden * whole.count("scale_factor", default=2, least=1) ** 2
    if kind in ("internvl", "qianfan_ocr"):
        wide = int(hidden * (1 / whole.real("downsample_ratio", 0.5)) ** 2)
        return 2 * wide + two(wide, text, text)
    if kind in ("kimi_k25", "paddleocr_vl"):
        merge = side(vision, "merge_kernel_size") or vision.count("spatial_merge_size", default=2, least=1)
        return 2 * hidden + two(hidden * merge**2, hidden * merge**2, text)
    if kind in ("cohere2_vision", "aya_vision"):
        wide = hidden * whole.count("downsample_factor", default=2, least=1) ** 2
        middle = whole.count("alignment_intermediate_size", default=text)
        norm = 2 * wide if kind == "aya_vision" else 0
        return norm + wide * middle + middle + middle // 2 * text + text
    if kind in ("deepseek_vl", "video_llama_3"):
        return two(hidden, text, text)
    if kind == "cosmos3_edge":
        wide = hidden * vision.count("spatial_merge_size", default=2, least=1) ** 2
        return 2 * hidden + two(wide, whole.count("projector_hidden_size", default=11_520), text)
    if kind in ("minicpm_ocr", "minicpmv4_6", "minicpmv4_7"):
        # Within the tower: an attention, and four patches to one; after it, again and again, four to one.
        wide = 4 * hidden
        inside = wide * hidden + 3 * wide + 2 * hidden + two(wide, 4 * wide, hidden)
        again = (whole.count("merger_times", default=1, least=1) - 1) * (2 * wide + two(wide, wide, hidden))
        return inside + again + 2 * wide + two(wide, wide, text)
    if kind == "phi4_multimodal":  # and what stands for the ends of rows
        return 2 * hidden + two(hidden, text, text)
    if kind == "llama4":
        inner = vision.count("projector_input_dim", default=4096)
        through = vision.count("projector_output_dim", default=4096)
        joins = vision.count("intermediate_size") * inner + inner * through
        return joins + vision.count("vision_output_dim", default=through) * text
    if kind == "step3p7":  # two convolutions of 3 by 3, each to twice the width
        return 9 * 2 * hidden * hidden + 2 * hidden + 9 * 8 * hidden * hidden + 4 * hidden + 4 * hidden * text
    if kind == "lfm2_vl":
        wide = hidden * whole.count("downsample_factor", default=2, least=1) ** 2
        norm = 2 * wide if whole.flag("projector_use_layernorm", default=True) else 0
        return norm + two(wide, whole.count("projector_hidden_size", default=2560), text)
    if kind == "minimax_m3_vl":
        middle, merge = whole.count("projector_hidden_size", default=text), vision.maybe("spatial_merge_size") or 2
        return two(hidden, middle, text) + two(text * merge**2, middle, text)
    return None
