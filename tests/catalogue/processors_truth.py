"""How many tokens image processors make of pictures: those of transformers, run on real pictures,
and vLLM's own counting where transformers has none.

    .cache/engines/vllm/bin/python tests/catalogue/processors_truth.py 40

Run by the engine's interpreter, which has torch and torchvision; it needs nothing of Loadstone. One
JSON line for each family on stdout: `type`, `processor` (the fields of its file, as published),
`config`, and `counts`: [width, height, tokens]; tokens of cross attention for mllama. A family that
cannot be asked has a line with `error`.
"""

from __future__ import annotations

import importlib
import json
import random
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from PIL import Image

FIXED = [(512, 512), (1024, 768), (1920, 1080), (3840, 2160), (100, 100), (1500, 90)]
Sizes = list[tuple[int, int]]


def processor(module: str, name: str, **fields: Any) -> Any:
    return getattr(importlib.import_module(f"transformers.models.{module}"), name)(**fields)


def process(made: Any, size: tuple[int, int], **fields: Any) -> Any:
    pixels = np.zeros((size[1], size[0], 3), np.uint8)
    return made(images=Image.fromarray(pixels), return_tensors="pt", **fields)


def grids(module: str, name: str, fields: dict[str, Any], merge: int = 2) -> Callable[[Sizes], Any]:
    """Those that tell (frames, rows, columns) of patches."""

    def count(sizes: Sizes) -> list[int]:
        made = processor(module, name, **fields)
        return [int(process(made, size)["image_grid_thw"].prod()) // merge**2 for size in sizes]

    return count


def field(
    module: str, name: str, fields: dict[str, Any], tokens: Callable[[Any], int]
) -> Callable[[Sizes], Any]:
    """Those whose output says it in another way."""

    def count(sizes: Sizes) -> list[int]:
        made = processor(module, name, **fields)
        return [tokens(process(made, size)) for size in sizes]

    return count


def rows_of(patch: int) -> Callable[[Any], int]:
    def tokens(output: Any) -> int:
        height, width = (int(side) for side in output["image_sizes"][0])
        return (height // patch) * (width // patch + 1)

    return tokens


def llava_onevision(sizes: Sizes) -> list[int]:
    made = processor("llava_onevision", "LlavaOnevisionImageProcessor")
    kind = importlib.import_module("transformers.models.llava_onevision").LlavaOnevisionProcessor
    whole = kind.__new__(kind)
    whole.image_processor, whole.num_image_tokens = made, 729
    whole.vision_aspect_ratio = "anyres_max_9"
    return [whole._get_number_of_features(high, wide, 384, 384) for wide, high in sizes]


def llama4(output: Any) -> int:
    rows, columns = (int(side) for side in output["aspect_ratios"][0])
    return 144 * len(output["pixel_values"]) if rows * columns else 0


def parts_of(merged: int) -> Callable[[Any], int]:
    return lambda output: sum(int(h) * int(w) // merged for h, w in output["target_sizes"])


def vllm_deepseek_vl2(sizes: Sizes) -> list[int]:
    module = importlib.import_module("vllm.model_executor.models.deepseek_vl2")
    of_processor = importlib.import_module("vllm.transformers_utils.processors.deepseek_vl2")
    sides = [(384 * a, 384 * b) for a in range(1, 10) for b in range(1, 10) if a * b <= 9]
    made = SimpleNamespace(image_size=384, patch_size=14, downsample_ratio=2)
    made.select_best_resolution = lambda size: (
        of_processor.DeepseekVLV2Processor.select_best_resolution(
            SimpleNamespace(candidate_resolutions=sides), size
        )
    )
    info = SimpleNamespace(get_hf_processor=lambda: made)
    count = module.DeepseekVL2ProcessingInfo.get_num_image_tokens
    return [count(info, image_width=w, image_height=h, cropping=True) for w, h in sizes]


def vllm_deepseek_ocr(sizes: Sizes) -> list[int]:
    module = importlib.import_module("vllm.model_executor.models.deepseek_ocr")
    count = module.DeepseekOCRProcessingInfo.get_num_image_tokens
    return [
        count(SimpleNamespace(), image_width=w, image_height=h, cropping=True) for w, h in sizes
    ]


def vllm_kimi_vl(sizes: Sizes) -> list[int]:
    module = importlib.import_module("vllm.model_executor.models.kimi_vl")
    made = SimpleNamespace(
        image_processor=SimpleNamespace(
            patch_size=14, in_token_limit=4096, merge_kernel_size=(2, 2), num_pooled_tokens=1024
        )
    )
    info = SimpleNamespace(get_hf_processor=lambda: made)
    count = module.KimiVLProcessingInfo.get_num_image_tokens
    return [count(info, image_width=w, image_height=h) for w, h in sizes]


def vllm_internvl(sizes: Sizes) -> list[int]:
    module = importlib.import_module("vllm.transformers_utils.processors.internvl")
    targets = module.get_internvl_target_ratios(1, 12)
    return [
        256
        * module.calculate_internvl_targets(
            orig_width=w, orig_height=h, target_ratios=targets, image_size=448, use_thumbnail=True
        )[0]
        for w, h in sizes
    ]


def scaled(low: int, high: int, **more: int) -> dict[str, Any]:
    return {"size": {"shortest_edge": low, "longest_edge": high}, **more}


def square(side: int, **more: Any) -> dict[str, Any]:
    return {"size": {"height": side, "width": side}, **more}


QWEN3 = scaled(65536, 16777216, patch_size=16, merge_size=2, temporal_patch_size=2)
QWEN2 = scaled(3136, 12845056, patch_size=14, merge_size=2, temporal_patch_size=2)
GLM = scaled(12544, 9633792, patch_size=14, merge_size=2, temporal_patch_size=2)
PIXTRAL = {"size": {"longest_edge": 1024}, "patch_size": {"height": 16, "width": 16}}
MISTRAL = {"size": {"longest_edge": 1540}, "patch_size": {"height": 14, "width": 14}}
SCAN = {
    "do_pan_and_scan": True, "pan_and_scan_min_crop_size": 256,
    "pan_and_scan_max_num_crops": 4, "pan_and_scan_min_ratio_to_activate": 1.2,
}  # fmt: skip
WIDE = {**SCAN, "pan_and_scan_min_crop_size": 128, "pan_and_scan_min_ratio_to_activate": 1.5}
CANVAS = square(336, max_patches=16, resize_to_max_canvas=True)
CROPS = {"crop_to_patches": True, "min_patches": 1, "max_patches": 12}
KIMI = {"patch_size": 14, "merge_size": 2, "max_patches": 16384, "size": {"max_height": 512, "max_width": 512}}  # fmt: skip

Family = tuple[str, dict[str, Any], dict[str, Any], Callable[[Sizes], Any]]
FAMILIES: list[Family] = [
    ("qwen2_vl", QWEN2, {}, grids("qwen2_vl", "Qwen2VLImageProcessor", QWEN2)),
    ("qwen2_5_vl", QWEN2, {}, grids("qwen2_vl", "Qwen2VLImageProcessor", QWEN2)),
    ("qwen2_vl", {"patch_size": 14}, {}, grids("qwen2_vl", "Qwen2VLImageProcessor", {})),
    ("qwen3_vl", QWEN3, {}, grids("qwen2_vl", "Qwen2VLImageProcessor", QWEN3)),
    ("glm4v", GLM, {}, grids("glm4v", "Glm4vImageProcessor", GLM)),
    ("glm46v", GLM, {}, grids("glm46v", "Glm46VImageProcessor", GLM)),
    ("gemma3", square(896), {}, field("gemma3", "Gemma3ImageProcessor", square(896), lambda output: 256 * len(output["pixel_values"]))),
    ("gemma3", square(896, **SCAN), {}, field("gemma3", "Gemma3ImageProcessor", square(896, **SCAN), lambda output: 256 * len(output["pixel_values"]))),
    ("gemma3", square(896, **WIDE), {}, field("gemma3", "Gemma3ImageProcessor", square(896, **WIDE), lambda output: 256 * len(output["pixel_values"]))),
    *(
        ("gemma4", {"max_soft_tokens": budget}, {}, field("gemma4", "Gemma4ImageProcessor", {"max_soft_tokens": budget}, lambda output: int(output["num_soft_tokens_per_image"][0])))
        for budget in (70, 280, 1120)
    ),
    ("llama4", square(336, max_patches=16), {}, field("llama4", "Llama4ImageProcessor", square(336, max_patches=16), llama4)),
    ("llama4", CANVAS, {}, field("llama4", "Llama4ImageProcessor", CANVAS, llama4)),
    ("mllama", square(560, max_image_tiles=4), {}, field("mllama", "MllamaImageProcessor", square(560, max_image_tiles=4), lambda output: 1601 * len(output["pixel_values"][0][0]))),
    ("pixtral", PIXTRAL, {}, field("pixtral", "PixtralImageProcessor", PIXTRAL, rows_of(16))),
    ("mistral3", MISTRAL, {"spatial_merge_size": 2}, field("pixtral", "PixtralImageProcessor", {**MISTRAL, "patch_size": {"height": 28, "width": 28}}, rows_of(28))),
    ("internvl", square(448, **CROPS), {}, field("got_ocr2", "GotOcr2ImageProcessor", square(448, **CROPS), lambda output: 256 * len(output["pixel_values"]))),
    ("kimi_k25", KIMI, {}, grids("kimi_k25", "Kimi_K25ImageProcessor", KIMI)),
    ("deepseek_ocr2", {"tile_size": 768}, {}, field("deepseek_ocr2", "DeepseekOcr2ImageProcessor", {"tile_size": 768}, lambda output: 257 + 144 * int(output["num_local_patches"][0]))),
    ("phi4_multimodal", {"dynamic_hd": 36}, {}, field("phi4_multimodal", "Phi4MultimodalImageProcessor", {"dynamic_hd": 36}, lambda output: int(output["num_img_tokens"][0]))),
    ("llava_onevision", {}, {"vision_aspect_ratio": "anyres_max_9"}, llava_onevision),
    ("minicpmv4_6", {"max_slice_nums": 9}, {}, field("minicpmv4_6", "MiniCPMV4_6ImageProcessor", {"max_slice_nums": 9}, parts_of(16))),
    ("minicpmv4_6", {"slice_mode": False}, {}, field("minicpmv4_6", "MiniCPMV4_6ImageProcessor", {"slice_mode": False}, parts_of(16))),
    ("minicpmv4_6", {"downsample_mode": "4x"}, {}, field("minicpmv4_6", "MiniCPMV4_6ImageProcessor", {"downsample_mode": "4x"}, parts_of(4))),
    ("kimi_vl", {"in_token_limit": 4096, "patch_size": 14}, {}, vllm_kimi_vl),
    ("deepseek_vl_v2", {}, {}, vllm_deepseek_vl2),
    ("deepseek_vl_v2", {}, {"architectures": ["DeepseekOCRForCausalLM"]}, vllm_deepseek_ocr),
    ("internvl_chat", {}, {"max_dynamic_patch": 12, "min_dynamic_patch": 1}, vllm_internvl),
]  # fmt: skip


def main() -> None:
    many = int(sys.argv[1])
    drawn = random.Random(40)
    sizes = [*FIXED, *((drawn.randint(60, 1500), drawn.randint(60, 1500)) for _ in range(500))]
    for kind, of_file, config, count in FAMILIES:
        line = {"type": kind, "processor": of_file, "config": config}
        asked = sizes[: 503 if count.__name__.startswith("vllm") else many]
        try:
            counts = [[*size, tokens] for size, tokens in zip(asked, count(asked), strict=True)]
        except Exception as error:
            print(
                json.dumps(line | {"error": f"{type(error).__name__}: {str(error)[:200]}"}),
                flush=True,
            )
        else:
            print(json.dumps(line | {"counts": counts}), flush=True)


main()
