"""Prompts with pictures against what others published: `python benchmarks/published_pictures.py [--write]`.

The seven squares are the time in the tower of Qwen3.5-27B on an RTX 3090 (published beside a port, ninfer-3090's pull
request 78), to which e₀ and the share of the peak were fitted. The others were not fitted to: TTFT of Qwen2.5-VL-7B in
vLLM 0.19.1 (vLLM's issue 41267), and images/s of Qwen3-VL-30B-A3B in 2025's vLLM, one token out, at most 1,280 tokens
an image (vLLM's pull request 24955; its data set's sizes are not said, the largest is taken for all).
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from loadstone import simulate
from loadstone.catalogue.deployment.shorthand import parse_worker
from loadstone.engines import rules_of
from loadstone.predict.step_time.pictures import picture_times

OUT = Path(__file__).with_name("results") / "published_pictures.md"
SQUARES_MS = {224: 15.1, 448: 27.2, 672: 56.0, 896: 112.0, 1120: 181.5, 1344: 300.0, 1568: 475.0}
QWEN_25_VL_7B: dict[str, Any] = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "model_type": "qwen2_5_vl",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 128000,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vision_config": {
        "model_type": "qwen2_5_vl",
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "out_hidden_size": 3584,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
        "hidden_act": "silu",
    },
}
PROCESSOR = {"patch_size": 14, "merge_size": 2, "min_pixels": 3136, "max_pixels": 12845056}


class Row(NamedTuple):
    """What was measured and predicted, in `unit`."""

    what: str
    unit: str
    measured: float
    predicted: float
    fitted: bool = False

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def squares() -> list[Row]:
    """Return the times in the tower."""
    times = picture_times(rules_of(parse_worker("Qwen/Qwen3.5-27B@1xrtx-3090/tp1")))
    assert times is not None
    made = {side: times.encode_s([times.picture(side, side)]) for side in SQUARES_MS}
    return [
        Row(f"tower, {side}x{side}, RTX 3090", "ms", measured, 1e3 * made[side], fitted=True)
        for side, measured in SQUARES_MS.items()
    ]


def served(folder: Path) -> list[Row]:
    """Return what servers were measured with."""
    (folder / "config.json").write_text(json.dumps(QWEN_25_VL_7B))
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    common = {"input": "20", "images": "1", "draws": 0, "out": str(folder / "runs")}
    alone: Any = simulate(
        f"{folder}@1xh100/version=0.19.1",
        image_size="1920x1080",
        concurrency=1,
        output="16",
        requests=4,
        **common,
    )
    ttft = alone.cells[0].metrics.ttft_s
    many: Any = simulate(
        "Qwen/Qwen3-VL-30B-A3B-Instruct@4xl40s/tp4",
        image_size="1280x1024",
        rate="inf",
        output="1",
        requests=128,
        **common,
    )
    rate = many.cells[0].metrics.requests_per_s
    return [
        Row("TTFT, 1920x1080, Qwen2.5-VL-7B, H100", "ms", 293, 1e3 * ttft.p50),
        Row("images/s, Qwen3-VL-30B-A3B, 4 × L40S", "1/s", 6.63, rate),
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = squares() + served(Path(folder))
    lines = [
        "| what | unit | measured | predicted | error | fitted |",
        "|---|---|---:|---:|---:|---|",
    ]
    lines += [
        f"| {row.what} | {row.unit} | {row.measured:g} | {row.predicted:.4g} | {row.error:+.0%} |"
        f" {'yes' if row.fitted else 'no'} |"
        for row in rows
    ]
    for fitted, name in ((None, "all"), (False, "not fitted")):
        errors = [abs(row.error) for row in rows if fitted is None or row.fitted == fitted]
        lines.append(
            f"\nMedian |error|, {name}: {statistics.median(errors):.0%} of {len(errors)} rows."
        )
    text = "\n".join(["# Pictures against published figures", "", *lines]) + "\n"
    print(text)
    if given.write:
        OUT.write_text(text)


if __name__ == "__main__":
    main()
