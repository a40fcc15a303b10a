"""What pictures become: the rules against fixed numbers, and against processors (slow)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from engines.launch import _HOMES
from loadstone import catalogue
from loadstone.catalogue.config.families import tables
from loadstone.catalogue.config.visual import read_visual
from loadstone.catalogue.visual.visual import Visual
from loadstone.commands.catalogue import catalogue as show
from loadstone.core.errors import InputError
from loadstone.engines import rules_of

MOST_S = 900
QWEN2 = {"min_pixels": 3136, "max_pixels": 12845056}
OCR = {"architectures": ["DeepseekOCRForCausalLM"]}


def visual(
    kind: str, processor: dict[str, Any] | None = None, config: dict[str, Any] | None = None
) -> Visual:
    made = read_visual({"model_type": kind, **(config or {})}, processor, None, kind)
    assert made is not None
    return made


TABLE: list[tuple[str, dict[str, Any] | None, dict[str, Any], list[int]]] = [
    ("qwen2_vl", QWEN2, {}, [324, 999, 2691]),
    ("qwen2_5_vl", QWEN2, {}, [324, 999, 2691]),
    ("qwen3_vl", None, {}, [256, 768, 2040]),
    ("qwen3_5_moe", None, {}, [256, 768, 2040]),
    ("glm4v_moe", None, {}, [324, 999, 2691]),
    ("gemma3", None, {}, [256, 256, 256]),
    ("gemma4", None, {}, [256, 266, 264]),
    ("llama4", None, {}, [720, 1872, 2304]),
    ("llava", None, {"vision_config": {"model_type": "pixtral"}}, [1056, 3120, 2340]),
    ("mistral3", None, {}, [380, 1064, 1736]),
    ("internvl", None, {}, [256, 3328, 2304]),
    ("kimi_vl", None, {}, [361, 1036, 1032]),
    ("kimi_k25", None, {}, [361, 1036, 2691]),
    ("deepseek_vl_v2", None, {}, [1023, 1415, 1807]),
    ("deepseek_vl_v2", None, OCR, [273, 893, 483]),
    ("deepseek_ocr2", None, {}, [257, 1121, 545]),
    ("phi4mm", None, {}, [1329, 1681, 3918]),
    ("llava_onevision", None, {}, [3699, 4725, 7269]),
    ("minicpmv", None, {}, [192, 320, 576]),
    ("minicpmv4_6", None, {}, [196, 315, 578]),
]


@pytest.mark.parametrize(("kind", "processor", "config", "tokens"), TABLE)
def test_a_picture_becomes_tokens_by_the_rule_of_its_model_type(
    kind: str, processor: dict[str, Any] | None, config: dict[str, Any], tokens: list[int]
) -> None:
    rule = visual(kind, processor, config)
    sizes = [(512, 512), (1024, 768), (1920, 1080)]
    assert [rule.count(*size).tokens for size in sizes] == tokens


def test_small_and_large_pictures_are_brought_within_bounds() -> None:
    qwen = visual("qwen3_vl")
    sizes = [(100, 100), (8000, 6000), (3840, 2160)]
    assert [qwen.count(*size).tokens for size in sizes] == [64, 16170, 8160]
    assert visual("glm4v").count(3840, 2160).tokens == 6032
    budgets = [visual("gemma4", {"max_soft_tokens": budget}) for budget in (1120, 70)]
    assert [rule.count(1024, 768).tokens for rule in budgets] == [1064, 63]


def test_what_is_no_token_of_the_prompt_is_counted_apart() -> None:
    assert visual("pixtral").count(1024, 768)[2:5] == ((3072,), 3120, 3072)
    cross = visual("mllama").count(1920, 1080)
    assert (cross.tokens, cross.embeddings, cross.cross) == (1, 0, 6404)
    assert visual("mllama").count(100, 100)[2:] == ((1601,) * 4, 1, 0, 0, 6404)
    tiled = visual("llama4")
    assert [tiled.count(*size).markers for size in ((512, 512), (1920, 1080), (300, 300))] == [
        7,
        18,
        3,
    ]


def test_a_number_that_no_file_says_is_named() -> None:
    silent = visual("qwen2_vl", {"patch_size": 14, "merge_size": 2, "min_pixels": 3136})
    assert silent.count(1920, 1080).tokens == 1222
    assert silent.assumed == (
        "pictures: its processor's file does not say all; assumed: max_pixels 1,003,520",
    )
    assert visual("qwen2_vl", {**QWEN2, "patch_size": 14, "merge_size": 2}).assumed == ()


def test_the_processor_s_file_comes_before_the_config(tmp_path: Path) -> None:
    model = catalogue.model("qwen3-vl-8b")
    source = catalogue.find.entries_of("models")[model.name]["config"]
    (tmp_path / "config.json").write_text(json.dumps(source))
    assert catalogue.model(str(tmp_path)).visual == model.visual
    size = {"shortest_edge": 65536, "longest_edge": 1048576}
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": {"size": size}}))
    bounded = catalogue.model(str(tmp_path)).visual
    assert bounded is not None
    assert bounded.assumed == ()
    assert bounded.count(1920, 1080).tokens == 1008
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"max_pixels": 2097152}))
    wider = catalogue.model(str(tmp_path)).visual
    assert wider is not None
    assert wider.count(1920, 1080).tokens == 2040
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"max_pixels": "many"}))
    with pytest.raises(InputError, match="max_pixels is 'many'"):
        catalogue.model(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "tera"),
    [("qwen3-vl-8b", (1.06, 3.96, 15.68)), ("google/gemma-3-27b-it", (5.46, 5.46, 5.46))],
)
def test_the_tower_s_operations_follow_from_its_shape(name: str, tera: tuple[float, ...]) -> None:
    rule = catalogue.model(name).visual
    assert rule is not None
    sizes = [(512, 512), (1024, 768), (1920, 1080)]
    found = [rule.flops(rule.count(*size)) or 0 for size in sizes]
    assert [round(flops / 1e12, 2) for flops in found] == list(tera)


def test_windows_of_a_tower_see_less(tmp_path: Path) -> None:
    vision = {
        "model_type": "qwen2_5_vl", "depth": 32, "hidden_size": 1280, "intermediate_size": 3420,
        "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31], "out_hidden_size": 3584, "hidden_act": "silu",
    }  # fmt: skip
    text = {
        "model_type": "qwen2_5_vl", "hidden_size": 3584, "num_hidden_layers": 28,
        "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18944,
        "vocab_size": 152064,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps({**text, "vision_config": vision}))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(QWEN2))
    rule = catalogue.model(str(tmp_path)).visual
    assert rule is not None
    sizes = [(512, 512), (1024, 768), (1920, 1080)]
    found = [(rule.flops(rule.count(*size)) or 0) / 1e12 for size in sizes]
    assert found == pytest.approx([1.71, 5.50, 16.31], abs=0.02)


@pytest.mark.parametrize(
    ("arguments", "tokens"),
    [("", (1056, 999, 1032)), (",image_max_tokens=4096", (1056, 3120, 4128))],
)
def test_llama_cpp_bounds_tokens_its_own_way(
    tmp_path: Path, arguments: str, tokens: tuple[int, ...]
) -> None:
    text = {
        "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "vocab_size": 512,
        "num_attention_heads": 4, "intermediate_size": 512,
    }  # fmt: skip
    config = {
        "model_type": "llava",
        "text_config": text,
        "vision_config": {"model_type": "pixtral"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    worker = catalogue.parse_worker(f"{tmp_path}@1xh200/tp1,engine=llama.cpp{arguments}")
    rule = rules_of(worker).visual
    assert rule is not None
    sizes = [(512, 512), (1024, 768), (1920, 1080)]
    assert tuple(rule.count(*size).tokens for size in sizes) == tokens


def test_pictures_of_a_model_that_cannot_be_sized_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = {"model_type": "moshi", "hidden_size": 4096, "num_hidden_layers": 40}
    vision = {"image_size": 560, "patch_size": 14, "max_num_tiles": 4}
    config = {"model_type": "mllama", "text_config": text, "vision_config": vision}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError):
        catalogue.model(str(tmp_path))
    show(["models", str(tmp_path)], image="1920x1080", json=True)
    document = json.loads(capsys.readouterr().out)
    assert [document["pictures"][0][field] for field in ("tokens", "cross")] == [1, 6404]


def test_the_catalogue_shows_what_pictures_become(capsys: pytest.CaptureFixture[str]) -> None:
    show(["models", "qwen3-vl-8b"], image="100x100,1920x1080")
    out = capsys.readouterr().out.splitlines()
    assert [line.split("\t")[1:6] for line in out[1:3]] == [
        ["100x100", "8x8", "1", "256", "64"],
        ["1920x1080", "60x34", "1", "8160", "2040"],
    ]
    assert "max_pixels 16,777,216" in out[3]
    show(["models", "qwen3-vl-8b"], image="1920x1080", engine="llama.cpp", json=True)
    assert json.loads(capsys.readouterr().out)["pictures"][0]["tokens"] == 2040


@pytest.mark.parametrize(
    ("words", "image", "message"),
    [
        (["models", "qwen3-vl-8b"], "1920", "1024x768"),
        (["models", "qwen3-vl-8b"], "0x5", "1 to 16,384"),
        (["models", "llama-3.1-8b"], "10x10", "takes no pictures"),
        (["gpus", "h100"], "10x10", "name models"),
    ],
)
def test_odd_pictures_of_the_catalogue_are_refused(
    words: list[str], image: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        show(words, image=image)


@pytest.mark.parametrize(
    ("kind", "refused", "taken"),
    [
        ("qwen3_vl", (6000, 20), (4000, 20)),
        ("pixtral", (5000, 1), (1024, 1)),
        ("mistral3", (1, 5000), (1, 1540)),
        ("phi4mm", (200, 1), (80, 2)),
        ("phi4mm", (1, 5000), (2, 80)),
    ],
)
def test_a_shape_that_its_processor_refuses_is_refused(
    kind: str, refused: tuple[int, int], taken: tuple[int, int]
) -> None:
    with pytest.raises(InputError, match="times the other, which this model's processor refuses"):
        visual(kind).count(*refused)
    assert visual(kind).count(*taken).tokens > 0


SCAN = {"pan_and_scan_min_crop_size": 128, "pan_and_scan_min_ratio_to_activate": 1.5}


@pytest.mark.parametrize(
    ("kind", "processor", "size", "tokens"),
    [
        ("gemma3", {"do_pan_and_scan": True}, (800, 600), 768),
        ("gemma3", {"do_pan_and_scan": True, **SCAN}, (800, 600), 256),
        ("gemma3", {"do_pan_and_scan": True}, (1650, 175), 256),
        ("gemma3", {"do_pan_and_scan": True, **SCAN}, (1650, 175), 1280),
        ("llama4", {"resize_to_max_canvas": True}, (1, 1), 2448),
        ("llama4", {"resize_to_max_canvas": False}, (1, 1), 144),
        ("minicpmv4_6", {"slice_mode": False}, (896, 896), 64),
    ],
)
def test_switches_of_a_processor_s_file_count(
    kind: str, processor: dict[str, Any], size: tuple[int, int], tokens: int
) -> None:
    """As the processors of transformers 5.19 count."""
    assert visual(kind, processor).count(*size).tokens == tokens


@pytest.mark.parametrize(
    ("kind", "processor"),
    [
        ("qwen2_vl", {"max_pixels": 0}),
        ("qwen3_vl", {"patch_size": 0}),
        ("internvl", {"max_patches": 1_000_000}),
        ("gemma4", {"max_soft_tokens": 0}),
        ("gemma3", {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 0}),
        ("gemma3", {"do_pan_and_scan": True, "pan_and_scan_min_ratio_to_activate": "wide"}),
    ],
)
def test_numbers_that_cannot_be_are_refused(kind: str, processor: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"is (0|1000000|'wide'); (it must be|at most)"):
        visual(kind, processor)


def test_numbers_are_looked_for_where_the_table_says() -> None:
    assert tables().visual_numbers["side"][0] == "processor size.height"
    listed = visual("deepseek_vl_v2", {"candidate_resolutions": [[384, 384], [384, 768]]})
    assert listed.count(1920, 1080).tokens == 211 + 14 * 29


@pytest.mark.slow
@pytest.mark.process
def test_the_rules_count_as_processors_do() -> None:
    """Of transformers, 40 pictures each; of vLLM's own counting 503 sizes."""
    python = _HOMES / "vllm" / "bin" / "python"
    if not python.exists():
        pytest.skip("vllm is not installed (scripts/engines/vllm)")
    script = Path(__file__).with_name("processors_truth.py")
    said = subprocess.check_output([str(python), str(script), "40"], text=True, timeout=MOST_S)
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert not [line for line in lines if "error" in line]
    assert len({line["type"] for line in lines}) >= 18
    for line in lines:
        rule = visual(line["type"], line["processor"], line["config"])
        for width, height, tokens in line["counts"]:
            counted = rule.count(width, height)
            found = counted.cross or counted.tokens
            assert found == tokens, (line["type"], line["processor"], width, height)
