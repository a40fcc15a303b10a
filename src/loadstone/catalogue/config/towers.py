"""The towers for images and sound that stand beside a text model."""

from __future__ import annotations

from loadstone.catalogue.config.families import Tower, tables
from loadstone.catalogue.config.fields import Fields
from loadstone.catalogue.config.nested import TEXT_PARTS, filled, part_kind

_NO_PARTS = ("quantization_config", "generation_config")


def vision_parameters(whole: Fields, text_hidden: int) -> tuple[int, list[str]]:
    """Parameters of the towers and of what joins them to the text model, and what to tell the reader."""
    remarks: list[str] = []
    total = 0
    vision = whole.inner("vision_config", "vision_tower_config")
    audio = whole.inner("audio_config")
    if vision is not None:
        kind = part_kind(whole, vision, "vision_config")
        filled(vision, kind)
        counted = _vision(whole, vision, kind, text_hidden)
        if counted is None:
            remarks.append("vision_config does not say enough: the vision tower is not counted")
        else:
            total, exact = counted
            how = "counted" if exact else "and what joins it are of kinds not known here: roughly estimated"
            remarks.append(f"vision tower {how} from vision_config: about {total / 1e6:.0f} M parameters")
    elif whole.find("text_config") and whole.text("model_type") == "llama4":
        remarks.append("no vision_config: the vision tower is not counted")
    if audio is not None:
        kind = part_kind(whole, audio, "audio_config")
        filled(audio, kind)
        audio_parameters = _audio(whole, audio, kind, text_hidden)
        if audio_parameters is None:
            remarks.append("audio_config: the tower is not counted")
        else:
            total += audio_parameters
            remarks.append(f"audio tower counted from audio_config: about {audio_parameters / 1e6:.0f} M parameters")
    if not whole.values.keys().isdisjoint(TEXT_PARTS):
        for name, value in whole.values.items():
            if name.endswith("_config") and isinstance(value, dict) and name not in (*_NO_PARTS, *whole.used):
                whole.find(name)
                remarks.append(f"{name}: that part is not counted")
    return total, remarks


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
    patch = _side(vision, "patch_size")
    if not depth or not hidden or not inner or not patch:
        return None
    if kind == "gemma4_vision":
        return _gemma4(vision, depth, hidden, inner, patch, out), True
    if kind in ("glm4v_vision", "glm4v_moe_vision", "glm_ocr_vision"):
        return _glm(vision, kind == "glm_ocr_vision", depth, hidden, inner, patch, out), True
    tower = tables().tower.get(kind)
    known = tower is not None
    tower = tower or Tower()
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
        return total + _mergers(vision, tower.norm, hidden, out) + after, known
    joined = _projector(whole, vision, hidden, text_hidden)
    if joined is None:
        return total + _guessed(vision, hidden, out), False
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
    count = vision.maybe("num_position_embeddings", "position_embedding_size", "num_patches")
    if count:
        return count
    high = vision.maybe("pos_emb_height", "init_pos_emb_height")
    if high:
        return high * vision.count("pos_emb_width", "init_pos_emb_width", default=64)
    return (_side(vision, "image_size") // patch) ** 2


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
        total += (_side(vision, "image_size") // patch) ** 2 * hidden + hidden
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
    layer = 4 * width * width + 3 * width + _two_matrices(width, inner, width) + 4 * width
    convolutions = 3 * width * (bins + width) + 2 * width
    outer = whole.text("model_type")
    if kind == "qwen2_5_omni_audio_encoder":
        out = audio.count("output_dim", default=text)
        return depth * layer + convolutions + 2 * width + 2 * out + width * out + out
    if kind == "qwen3_omni_moe_audio_encoder":
        channels = audio.count("downsample_hidden_size", default=480)
        mixed = 10 * channels + 2 * (9 * channels + 1) * channels + channels * -(-bins // 8) * width
        out = audio.count("output_dim", default=text)
        return depth * (layer + width) + mixed + 2 * width + _two_matrices(width, width, out)
    body = depth * layer + convolutions + places * width + 2 * width
    if outer == "qwen2_audio":
        return body + width * text + text
    if outer == "voxtral":
        return body + _two_matrices(inner, text, text, bias=False)
    if outer == "moss_transcribe_diarize":
        wide = width * whole.count("audio_merge_size", default=4, least=1)
        return body + _two_matrices(wide, wide, text) + 2 * text
    return None


# --- what joins a tower's output to the text model, by the outer config's class ---------------------------------


def _side(vision: Fields, name: str) -> int:
    """A square's: one number, or two equal ones."""
    value = vision.raw(name)
    if value is None:
        return 0
    if isinstance(value, list):
        value = value[0] if value and all(each == value[0] for each in value) else 0
    return vision.whole(name, value)


def _two_matrices(inputs: int, inner: int, out: int, bias: bool = True) -> int:
    """An MLP of two matrices."""
    return inputs * inner + inner * out + bias * (inner + out)


def _mergers(vision: Fields, norm: int, hidden: int, out: int) -> int:
    """Qwen's: a norm, and patches side by side through an MLP of their width together; others for inner layers."""
    wide = hidden * vision.count("spatial_merge_size", default=2, least=1) ** 2
    deep = len(vision.items("deepstack_visual_indexes") or [])
    return (1 + deep) * _two_matrices(wide, wide, out) + norm * (hidden + deep * wide)


def _guessed(vision: Fields, hidden: int, out: int) -> int:
    """A guess: the patches that are merged side by side, through an MLP of two matrices."""
    merge = vision.maybe("spatial_merge_size") or _side(vision, "merge_kernel_size") or 1
    wide = hidden * merge**2
    return _two_matrices(wide, wide, out)


def _projector(whole: Fields, vision: Fields, hidden: int, text: int) -> int | None:
    """Parameters of the projector, which is the outer class's; None where that class is not known here."""
    kind = whole.text("model_type")
    bias = whole.flag("multimodal_projector_bias", default=kind not in ("mistral3", "lighton_ocr"))
    if kind in ("llava", "llava_next", "llava_next_video", "llava_onevision", "video_llava"):
        used = whole.raw("vision_feature_layer")
        many = len(used) if isinstance(used, list) else 1
        return _two_matrices(many * hidden, text, text, bias) + kind.startswith(("llava_next", "llava_one")) * text
    if kind == "vipllava":
        wide = len(whole.items("vision_feature_layers") or [0] * 5) * hidden
        return 2 * wide + _two_matrices(wide, text, text)
    if kind in ("gemma3", "shieldgemma2"):
        return hidden * text + hidden
    if kind == "paligemma":
        out = whole.maybe("projection_dim") or vision.maybe("projection_dim") or text
        return hidden * out + out
    if kind in ("mistral3", "lighton_ocr"):
        merge = whole.count("spatial_merge_size", default=2, least=1)
        return hidden + hidden * hidden * merge**2 + _two_matrices(hidden, text, text, bias)
    if kind in ("idefics3", "smolvlm"):
        return text * hidden * whole.count("scale_factor", default=2, least=1) ** 2
    if kind in ("internvl", "qianfan_ocr"):
        wide = int(hidden * (1 / whole.real("downsample_ratio", 0.5)) ** 2)
        return 2 * wide + _two_matrices(wide, text, text)
    if kind in ("kimi_k25", "paddleocr_vl"):
        merge = _side(vision, "merge_kernel_size") or vision.count("spatial_merge_size", default=2, least=1)
        return 2 * hidden + _two_matrices(hidden * merge**2, hidden * merge**2, text)
    if kind in ("cohere2_vision", "aya_vision"):
        wide = hidden * whole.count("downsample_factor", default=2, least=1) ** 2
        middle = whole.count("alignment_intermediate_size", default=text)
        norm = 2 * wide if kind == "aya_vision" else 0
        return norm + wide * middle + middle + middle // 2 * text + text
    if kind in ("deepseek_vl", "video_llama_3"):
        return _two_matrices(hidden, text, text)
    if kind == "cosmos3_edge":
        wide = hidden * vision.count("spatial_merge_size", default=2, least=1) ** 2
        return 2 * hidden + _two_matrices(wide, whole.count("projector_hidden_size", default=11_520), text)
    if kind in ("minicpm_ocr", "minicpmv4_6", "minicpmv4_7"):
        # Within the tower: an attention, and four patches to one; after it, again and again, four to one.
        wide = 4 * hidden
        inside = wide * hidden + 3 * wide + 2 * hidden + _two_matrices(wide, 4 * wide, hidden)
        again = (whole.count("merger_times", default=1, least=1) - 1) * (2 * wide + _two_matrices(wide, wide, hidden))
        return inside + again + 2 * wide + _two_matrices(wide, wide, text)
    if kind == "phi4_multimodal":  # and what stands for the ends of rows
        return 2 * hidden + _two_matrices(hidden, text, text)
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
        return norm + _two_matrices(wide, whole.count("projector_hidden_size", default=2560), text)
    if kind == "minimax_m3_vl":
        middle, merge = whole.count("projector_hidden_size", default=text), vision.maybe("spatial_merge_size") or 2
        return _two_matrices(hidden, middle, text) + _two_matrices(text * merge**2, middle, text)
    return None
