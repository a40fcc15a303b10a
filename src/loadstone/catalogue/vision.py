"""What stands beside the text model: vision towers, counted from `vision_config` where it says enough."""

from __future__ import annotations

from loadstone.catalogue.fields import Fields


def vision_parameters(whole: Fields, text_hidden: int) -> tuple[int, str | None]:
    """Parameters of the tower and its projection, and what to tell the reader.

    A transformer of d layers, width h, MLP m, patches of p pixels:
    d · (4h² + MLP) + 3p²h · temporal + positions · h + the merger.
    Biases and norms are counted as 13h per layer.
    """
    audio = whole.inner("audio_config")
    vision = whole.inner("vision_config", "vision_tower_config")
    heard = "audio_config: the tower is not counted" if audio is not None else None
    if vision is None:
        if whole.find("text_config") and whole.text("model_type") == "llama4":
            return 0, "no vision_config: the vision tower is not counted"
        return 0, heard
    depth = vision.maybe("depth", "num_hidden_layers", "vt_num_hidden_layers")
    hidden = vision.maybe("hidden_size", "vt_hidden_size")
    inner = vision.maybe("intermediate_size", "vt_intermediate_size")
    patch = vision.maybe("patch_size")
    if not depth or not hidden or not inner or not patch:
        return 0, "vision_config does not say enough: the vision tower is not counted"
    attention = vision.maybe("qkv_hidden_size") or hidden
    gated = vision.text("model_type").startswith("gemma4")
    layer = 4 * hidden * attention + (3 if gated else 2) * hidden * inner + 13 * hidden
    side = vision.maybe("num_position_embeddings", "position_embedding_size") or 0
    if side == 0 and vision.maybe("init_pos_emb_height"):
        side = vision.count("init_pos_emb_height") * vision.count("init_pos_emb_width", default=64)
    image = vision.find("image_size")
    if side == 0 and image is not None and isinstance(image[1], int):
        side = (vision.count("image_size") // patch) ** 2
    if gated:
        side *= 2
    total = depth * layer + 3 * patch**2 * hidden * vision.count("temporal_patch_size", default=1) + side * hidden
    merge = vision.maybe("spatial_merge_size")
    if merge is None:
        kernel = vision.items("merge_kernel_size")
        merge = kernel[0] if kernel and isinstance(kernel[0], int) and 0 < kernel[0] < 100 else 1
    out = vision.maybe("out_hidden_size", "text_hidden_size") or text_hidden
    wide = hidden * merge**2
    mergers = 1 + len(vision.items("deepstack_visual_indexes") or [])
    total += hidden * out if gated else mergers * (wide * wide + wide * out)
    return total, heard or f"vision tower counted from vision_config: about {total / 1e6:.0f} M parameters"
