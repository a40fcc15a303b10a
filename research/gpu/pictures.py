"""Draw measured beside predicted for the rounds of research/gpu/rounds.py, and print the table of
errors.

Usage: python research/gpu/pictures.py, from research/gpu/h200 into docs/pictures.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import altair as alt
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "research" / "gpu" / "h200"
PROFILES = {"shipped": "uncalibrated", "two": "calibrated on two cells"}
NAMES = {"tpot_s": "TPOT", "ttft_s": "TTFT"}
CASES = {
    "llama-bf16": "8B bf16", "llama-cache": "8B bf16, shared prefixes",
    "llama-chunk-2048": "8B bf16, chunks of 2,048", "llama-chunk-16384": "8B bf16, chunks of 16,384",
    "llama-fp8": "8B fp8", "qwen3-32b-bf16": "32B bf16",
}  # fmt: skip


def rows(profile: str) -> list[dict[str, Any]]:
    """The scored cells of one profile: trusted ones that it was not calibrated on."""
    found: list[dict[str, Any]] = json.loads((RESULTS / f"scores-{profile}.json").read_text())
    return [row for row in found if row["trusted"] and row["ask"] != "two-points"]


def chart(values: list[dict[str, Any]]) -> alt.Chart:
    return alt.Chart(alt.Data(values=values))  # type: ignore[no-untyped-call]


def panel(metric: str, profile: str) -> alt.LayerChart | alt.FacetChart:
    data = [
        {"measured": row["measured"] * 1e3, "predicted": row["predicted"] * 1e3, "low": row["low"] * 1e3,
         "high": row["high"] * 1e3, "case": CASES[row["case"]]}
        for row in rows(profile) if row["metric"] == metric
    ]  # fmt: skip
    ends = (3, 250) if metric == "tpot_s" else (8, 20000)
    scale = alt.Scale(type="log", domain=ends, nice=False)
    base, color = chart(data), alt.Color("case:N", title=None)
    x = alt.X("measured:Q", scale=scale, title=f"{NAMES[metric]} measured, ms")
    y = alt.Y("predicted:Q", scale=scale, title="predicted, ms")
    line = chart([{"v": end} for end in ends]).mark_line(color="#999", strokeWidth=1)
    return alt.layer(
        line.encode(x=alt.X("v:Q", scale=scale), y=alt.Y("v:Q", scale=scale)),
        base.mark_rule(opacity=0.35, clip=True).encode(
            x=x, y=alt.Y("low:Q", scale=scale), y2="high:Q", color=color
        ),
        base.mark_circle(size=55, opacity=0.9).encode(
            x=x, y=y, color=color.legend(symbolOpacity=1, orient="bottom", columns=3)
        ),
    ).properties(width=300, height=260, title=f"{NAMES[metric]}, {PROFILES[profile]}")


def main() -> None:
    grid = alt.vconcat(
        *(alt.hconcat(*(panel(metric, profile) for metric in NAMES)) for profile in PROFILES)
    )
    path = ROOT / "docs" / "pictures" / "h200.png"
    grid.configure(font="sans-serif").save(str(path), scale_factor=2)
    colours = Image.open(path).convert("RGB").quantize(64, dither=Image.Dither.NONE)
    colours.save(path, optimize=True)
    print(
        "| profile | metric | cells | median error | worst | inside the 80 % interval"
        " |\n|---|---|---|---|---|---|"
    )
    for path in sorted(RESULTS.glob("scores-*.json")):
        profile = path.stem.removeprefix("scores-")
        for metric in ("tpot_s", "ttft_s", "output_tokens_per_s"):
            scored = [row for row in rows(profile) if row["metric"] == metric]
            errors = [abs(row["error"]) for row in scored]
            held = [row["low"] <= row["measured"] <= row["high"] for row in scored if row["low"]]
            inside = f"{sum(held)} of {len(held)}" if held else "–"
            print(f"| {profile} | {metric} | {len(scored)} | {statistics.median(errors):.1%} | {max(errors):.0%} "
                  f"| {inside} |")  # fmt: skip


if __name__ == "__main__":
    main()
