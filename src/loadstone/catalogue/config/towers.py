"""Counts the towers for images and sound that stand beside a text model: one count for all of
them."""

from loadstone.catalogue.config.families import Tower, tables
from loadstone.catalogue.config.fields import Fields
from loadstone.catalogue.config.nested import TEXT_PARTS, filled, part_kind
from loadstone.catalogue.visual.visual import TowerShape

_NO_PARTS = ("quantization_config", "generation_config")


def read_towers(whole: Fields, text_hidden: int) -> tuple[int, TowerShape | None, list[str]]:
    """Return the parameters of the towers and of what joins them to the text model, the shape of
    that for images, and what to tell the reader."""
    remarks: list[str] = []
    total, shape = 0, None
    for sense, names in (
        ("vision", ("vision_config", "vision_tower_config")),
        ("audio", ("audio_config",)),
    ):
        part = whole.inner(*names)
        if part is None:
            continue
        kind = part_kind(whole, part, names[0])
        filled(part, kind)
        if sense == "vision":
            shape = _images(part, kind, text_hidden, whole)
            counted = None if shape is None else shape.parameters
        else:
            counted = _sound(part, text_hidden)
        if counted is None:
            remarks.append(f"{names[0]} does not say enough: the {sense} tower is not counted")
            continue
        total += counted
        how = "counted" if _tower(whole, kind) else "of a kind not known here: roughly estimated"
        remarks.append(
            f"{sense} tower {how} from {names[0]}: about {counted / 1e6:.0f} M parameters"
        )
    if whole.find("text_config") and whole.text("model_type") == "llama4" and not total:
        remarks.append("no vision_config: the vision tower is not counted")
    if not whole.values.keys().isdisjoint(TEXT_PARTS):
        for name, value in whole.values.items():
            if (
                name.endswith("_config")
                and isinstance(value, dict)
                and name not in (*_NO_PARTS, *whole.used)
            ):
                whole.find(name)
                remarks.append(f"{name}: that part is not counted")
    return total, shape, remarks


def _tower(whole: Fields, kind: str) -> Tower | None:
    """Return a tower's row: of the model type that joins it in its own way, else of the tower's."""
    rows = tables().tower
    return rows.get(f"{whole.text('model_type')}/{kind}", rows.get(kind))


def _images(vision: Fields, kind: str, text_hidden: int, whole: Fields) -> TowerShape | None:
    """Return the shape of a vision transformer and its projector; None: too little is said."""
    tower = _tower(whole, kind) or Tower()
    hidden = vision.optional_count("embed_dim", "hidden_size", "vt_hidden_size")
    inner = vision.optional_count(tower.inner, "vt_intermediate_size", "mlp_dim")
    if inner is None and hidden:
        inner = int(vision.number("mlp_ratio", 4) * hidden)
    depth = vision.optional_count("num_hidden_layers", "depth", "vt_num_hidden_layers")
    patch = _side(vision, "patch_size")
    depth = depth and depth + vision.count("num_global_layers", default=0)  # Llama 3.2 Vision
    if not depth or not hidden or not inner or not patch:
        return None
    wide = vision.optional_count("qkv_hidden_size") or hidden
    matrices = 3 if vision.text("hidden_act") == "silu" else tower.matrices
    layer = 4 * hidden * wide + matrices * hidden * inner + 2 * tower.norm * hidden
    if tower.bias:
        layer += 3 * wide + (matrices - 1) * inner + 2 * hidden
    if tower.qk_norm:
        layer += 2 * (vision.optional_count("head_dim") or 0)
    total = depth * layer + tower.outer_norms * tower.norm * hidden
    inputs = 3 * patch**2 * vision.count("temporal_patch_size", default=1)
    total += inputs * hidden + tower.bias * hidden
    shapes = len(vision.entries("supported_aspect_ratios") or [])  # Llama 3.2 Vision, by tile
    by_tile = (1 + shapes) * vision.count("max_num_tiles", default=0)
    total += (tower.positions + by_tile) * _positions(vision, patch) * hidden
    output = vision.optional_count(
        "hidden_size" if vision.find("embed_dim") else "out_hidden_size", "text_hidden_size"
    )
    merge = (
        vision.optional_count("spatial_merge_size")
        or _side(vision, "merge_kernel_size")
        or whole.optional_count("spatial_merge_size")
        or round(1 / whole.number("downsample_ratio", 1))
    )
    joined = _joined(vision, tower, hidden, hidden * merge**2, output or text_hidden)
    whole_views = vision.entries("fullatt_block_indexes")
    return TowerShape(
        depth,
        hidden,
        inner,
        matrices,
        inputs,
        joined,
        total + joined,
        windowed=0 if whole_views is None else max(0, depth - len(whole_views)),
        window=(vision.count("window_size", default=0) // patch) ** 2,
        deepstack=len(vision.entries("deepstack_visual_indexes") or []),
    )


def _positions(vision: Fields, patch: int) -> int:
    count = vision.optional_count(
        "num_position_embeddings", "position_embedding_size", "num_patches"
    )
    high = vision.optional_count("pos_emb_height", "init_pos_emb_height")
    if count is None and high:
        count = high * vision.count("pos_emb_width", "init_pos_emb_width", default=64)
    return count or (_side(vision, "image_size") // patch) ** 2


def _joined(vision: Fields, tower: Tower, hidden: int, wide: int, out: int) -> int:
    """Return the parameters of what joins a tower's output to the text model, of patches of
    `hidden` numbers, those that are joined of `wide` together; see `Tower`."""
    inner = vision.optional_count("intermediate_size") or 0
    match tower.joins:
        case "matrix" | "norm":
            return hidden * out + (hidden if tower.joins == "norm" else 0)
        case "merged" if wide > hidden:
            return hidden + wide * hidden + _two_matrices(hidden, out, out)
        case "merged" | "wide":
            return _two_matrices(wide, out, out)
        case "gated":
            return wide * out + out * out + 3 * out * inner
        case "output":
            tower_out = vision.count("vision_output_dim")
            taken = vision.count("projector_output_dim", default=0)
            return tower_out * out + taken * (inner + taken)
    deep = len(vision.entries("deepstack_visual_indexes") or [])
    return (1 + deep) * _two_matrices(wide, wide, out) + tower.norm * (hidden + deep * wide)


def _sound(audio: Fields, text_hidden: int) -> int | None:
    """Return the parameters of an encoder like Whisper's and one matrix behind it; None: too little
    is said."""
    width = audio.optional_count("d_model", "hidden_size")
    depth = audio.optional_count("encoder_layers", "num_hidden_layers")
    inner = audio.optional_count("encoder_ffn_dim", "intermediate_size")
    bins = audio.optional_count("num_mel_bins")
    if not width or not depth or not inner or not bins:
        return None
    layer = 4 * width * width + 7 * width + _two_matrices(width, inner, width)
    return depth * layer + 3 * width * (bins + width) + width * text_hidden


def _side(vision: Fields, name: str) -> int:
    """Return a square's side: one number, or two equal ones."""
    value = vision.raw(name)
    if value is None:
        return 0
    if isinstance(value, list):
        value = value[0] if value and all(entry == value[0] for entry in value) else 0
    return vision.check_count(name, value)


def _two_matrices(inputs: int, inner: int, out: int) -> int:
    return inputs * inner + inner * out + inner + out
