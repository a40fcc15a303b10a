"""Which engine and which GPU has which colour: the same in every picture, and told apart by the colour-blind.

The first eight are those of Okabe and Ito, Color Universal Design (2008), without black, which dark pages hide, and
yellow, which light ones do; the others are from Tol, "muted" (2021), for names this table does not know.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
VERMILION, SKY, GREY = "#D55E00", "#56B4E9", "#666666"

ENGINES = {
    "vllm": BLUE,
    "sglang": ORANGE,
    "tensorrt-llm": GREEN,
    "llama.cpp": PURPLE,
    "transformers": VERMILION,
    "mlx-lm": SKY,
    "timing server": GREY,
}
GPUS = {
    "a100": ORANGE,
    "h100": BLUE,
    "h200": GREEN,
    "b200": VERMILION,
    "b300": PURPLE,
    "gb200": "#AA4499",
    "gb300": "#882255",
    "mi300x": SKY,
    "mi325x": "#999933",
    "mi355x": "#44AA99",
    "l40s": GREY,
    "rtx 4090": "#CC6677",
}
OTHERS = (
    "#44AA99",
    "#AA4499",
    "#999933",
    "#CC6677",
    "#88CCEE",
    "#882255",
    "#117733",
    "#DDCC77",
    "#6699CC",
    "#661100",
)

SEQUENCE = (BLUE, ORANGE, GREEN, PURPLE, VERMILION, SKY, GREY, *OTHERS)
"""For what has no colour of its own: runs, parallelism, panels."""

DASHES = ((1, 0), (7, 4), (2, 3), (9, 3, 2, 3), (4, 2), (12, 4), (1, 2), (6, 2, 1, 2, 1, 2))
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right", "triangle-left")


def colour(name: str) -> str:
    """The colour of an engine, a GPU, or anything else: a fixed one, or one that follows from the name alone."""
    fixed = _known(name)
    return fixed if fixed is not None else OTHERS[zlib.crc32(name.encode("utf-8", "replace")) % len(OTHERS)]


def colours(names: Sequence[str]) -> list[str]:
    """A colour for each name of one picture. Two names whose own colours are the same get different ones."""
    taken = {name: own_colour for name in names if (own_colour := _known(name)) is not None}
    used = set(taken.values()) if len(set(taken.values())) == len(taken) else set()
    chosen: list[str] = []
    for name in names:
        wanted = colour(name)
        if name not in taken or wanted in chosen:
            start = OTHERS.index(wanted) if wanted in OTHERS else 0
            order = (*OTHERS[start:], *OTHERS[:start])
            free = (other for other in order if other not in used and other not in chosen)
            wanted = next(free, wanted)
        chosen.append(wanted)
    return chosen


def _known(name: str) -> str | None:
    low = name.lower()
    if low in ENGINES:
        return ENGINES[low]
    # 8×H200-SXM-141GB, H100 PCIe: the GPU is told by a word of it, the longest first (GB200 has B200 in it).
    words = low.replace("×", " ").replace("-", " ").replace("_", " ").split()
    for gpu in sorted(GPUS, key=len, reverse=True):
        if gpu in words or (" " in gpu and gpu in " ".join(words)):
            return GPUS[gpu]
    return None
