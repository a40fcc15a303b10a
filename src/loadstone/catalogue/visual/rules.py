"""Counts the tokens that a picture becomes in a prompt: one function for each way in which
processors resize and cut pictures.

Each takes the picture's width and height in pixels and the rule's numbers, and returns `Counted`.
Which model type has which rule, and its numbers: families.toml, `[visual]`. Facts are from the
image processors of transformers 5.24 and vLLM 0.32; tests/catalogue/processors_truth.py asks them.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from loadstone.core.errors import InputError

Numbers = Mapping[str, int]
Resolutions = tuple[tuple[int, int], ...]
_MOST_STRETCHED = 200
"""Qwen's and GLM's processors refuse a picture with longer sides than so many times the other."""
_LEAST_SHOWN = 10
"""Phi-4's processor refuses one that fills fewer pixels of its tiles, across or down."""


class Counted(NamedTuple):
    """Holds what one picture becomes.

    rows, columns  of its grid: of tokens, or of tiles where it is cut into tiles
    tiles          patches of each tile that the tower encodes, before merging
    tokens         in the prompt, without markers
    embeddings     those that the tower makes; the others are line breaks
    markers        text tokens that the processor puts around them
    cross          states that layers of cross attention see, beside the prompt
    """

    rows: int
    columns: int
    tiles: tuple[int, ...]
    tokens: int
    embeddings: int
    markers: int = 0
    cross: int = 0

    @property
    def patches(self) -> int:
        return sum(self.tiles)

    @property
    def seen(self) -> int:
        """Return the states that the tower hands to the text model."""
        return self.embeddings or self.cross


def count_scaled(width: int, height: int, numbers: Numbers) -> Counted:
    """Count where sides become multiples of a factor, between a least and a most number of pixels
    (Qwen-VL; GLM with `frames` 2; llama.cpp with `half_up`)."""
    factor, frames = numbers["patch"] * numbers["merge"], numbers.get("frames", 1)
    if frames > 1 and min(width, height) < factor:
        scale = max(factor / height, factor / width)
        width, height = int(width * scale), int(height * scale)
    if not numbers.get("half_up") and max(width, height) > _MOST_STRETCHED * min(width, height):
        raise _refuse_shape(width, height, f"more than {_MOST_STRETCHED} times")
    columns, rows = (_nearest(side / factor, numbers) for side in (width, height))
    area, size = frames * rows * columns * factor**2, frames * width * height
    if area > numbers["max_pixels"]:
        scale = math.sqrt(size / numbers["max_pixels"])
        columns, rows = (max(1, math.floor(side / scale / factor)) for side in (width, height))
    elif area < numbers["min_pixels"]:
        scale = math.sqrt(numbers["min_pixels"] / size)
        columns, rows = (math.ceil(side * scale / factor) for side in (width, height))
    return _grid(rows, columns, numbers["merge"], breaks=bool(numbers.get("breaks")))


def _refuse_shape(width: int, height: int, times: str) -> InputError:
    return InputError(
        f"a picture of {width}x{height}: one side is {times} the other, which this model's"
        " processor refuses"
    )


def _nearest(count: float, numbers: Numbers) -> int:
    """Round as Python does, half to even; with `half_up` as C does, and to 1 at least."""
    return max(1, math.floor(count + 0.5)) if numbers.get("half_up") else round(count)


def _grid(rows: int, columns: int, merge: int, *, breaks: bool = False) -> Counted:
    """Return a picture without tiles; `breaks`: a token ends each row."""
    made = rows * columns
    return Counted(rows, columns, (made * merge**2,), made + rows * breaks, made)


def count_longest_side(width: int, height: int, numbers: Numbers) -> Counted:
    """Count where the longest side alone is bounded, and a break ends each row (Pixtral)."""
    ratio = max(1.0, max(width, height) / numbers["longest"])
    factor = numbers["patch"] * numbers["merge"]
    columns, rows = (math.ceil(math.floor(side / ratio) / factor) for side in (width, height))
    if not rows * columns:
        raise _refuse_shape(width, height, "too many times")
    return _grid(rows, columns, numbers["merge"], breaks=True)


def count_within_patches(width: int, height: int, numbers: Numbers) -> Counted:
    """Count where a picture is scaled down to a most number of patches, and of patches a side where
    `side_patches` is above 0, and padded (Kimi)."""
    patch, merge, limit = numbers["patch"], numbers["merge"], numbers.get("side_patches", 0)
    patches = max(1, width // patch) * max(1, height // patch)
    scale = min(1.0, math.sqrt(numbers["most_patches"] / patches))
    if limit:
        scale = min(scale, limit * patch / width, limit * patch / height)
    columns, rows = (
        math.ceil(max(1, int(side * scale)) / (patch * merge)) for side in (width, height)
    )
    return _grid(rows, columns, merge)


def count_budget(width: int, height: int, numbers: Numbers) -> Counted:
    """Count where every picture is scaled to a budget of tokens, small ones up (Gemma 4)."""
    factor, budget = numbers["patch"] * numbers["merge"], numbers["budget"]
    scale = math.sqrt(factor**2 * budget / (width * height))
    rows, columns = math.floor(scale * height / factor), math.floor(scale * width / factor)
    if not rows:
        rows, columns = 1, min(width // height, budget)
    elif not columns:
        rows, columns = min(height // width, budget), 1
    return _grid(rows, columns, numbers["merge"])


def count_fixed(width: int, height: int, numbers: Numbers) -> Counted:
    """Count where every picture has the same size; with `crops` above 0 parts of a long one have it
    too (Gemma 3)."""
    side, tokens = numbers["side"], numbers["tokens"]
    crops = _cut_long_side(max(width, height), min(width, height), numbers)
    tiles = ((side // numbers["patch"]) ** 2,) * (1 + crops)
    made = tokens * len(tiles)
    across = (crops or 1) if width >= height else 1
    return Counted((crops or 1) // across or 1, across, tiles, made, made, 6 * len(tiles))


def _cut_long_side(longer: int, shorter: int, numbers: Numbers) -> int:
    """Return the crops of Gemma 3's pan and scan: sides over 6:5, each crop 256 pixels at least."""
    allowed, least_side = numbers.get("crops", 0), numbers.get("crop_side", 256)
    if not allowed or 100 * longer < numbers.get("crop_percent", 120) * shorter:
        return 0
    parts = min(allowed, max(2, min(longer // least_side, math.floor(longer / shorter + 0.5))))
    return parts if min(shorter, math.ceil(longer / parts)) >= least_side else 0


def count_canvas(width: int, height: int, numbers: Numbers) -> Counted:
    """Count tiles of the canvas that scales a picture up least, else down least, and of those the
    smallest; and the whole picture as one more (Llama 4)."""
    rows, columns = _best_canvas(width, height, numbers)
    cut = rows * columns
    patches = (numbers["side"] // numbers["patch"]) ** 2
    parts = cut + (cut > 1)
    tokens = parts * (patches // numbers["merge"] ** 2)
    markers = 3 + cut * (cut > 1) * (not numbers.get("bare"))
    return Counted(rows, columns, (patches,) * parts, tokens, tokens, markers)


def count_cross(width: int, height: int, numbers: Numbers) -> Counted:
    """Count where layers of cross attention see the picture and the prompt has one token for it
    (Llama 3.2 Vision). The processor adds empty tiles up to the most, and none is left out."""
    rows, columns = _best_canvas(width, height, numbers)
    tiles = ((numbers["side"] // numbers["patch"]) ** 2 + 1,) * numbers["most_tiles"]
    return Counted(rows, columns, tiles, 1, 0, cross=sum(tiles))


def _best_canvas(width: int, height: int, numbers: Numbers) -> tuple[int, int]:
    side, tiles = numbers["side"], numbers["most_tiles"]
    limit = numbers.get("most_across", tiles)
    scales = {
        (rows, columns): min(rows * side / height, columns * side / width)
        for rows in range(1, limit + 1)
        for columns in range(1, min(limit, tiles // rows) + 1)
    }
    larger = [scale for scale in scales.values() if scale >= 1]
    best = min(larger) if larger and not numbers.get("to_largest") else max(scales.values())
    found = [canvas for canvas, scale in scales.items() if scale == best]
    return min(found, key=lambda canvas: canvas[0] * canvas[1])


def _best_aspect(width: int, height: int, side: int, least: int, most: int) -> tuple[int, int]:
    """Return the grid (columns, rows) of `least` to `most` tiles whose shape is nearest the
    picture's; of two as near the one with more tiles, if the picture fills half of it."""
    grids = sorted(
        (
            (columns, rows)
            for columns in range(1, most + 1)
            for rows in range(1, most // columns + 1)
            if columns * rows >= least
        ),
        key=lambda grid: grid[0] * grid[1],
    )
    nearest, best = math.inf, (1, 1)
    for columns, rows in grids:
        off = abs(width / height - columns / rows)
        if off < nearest or (off == nearest and 2 * width * height > side**2 * columns * rows):
            nearest, best = off, (columns, rows)
    return best


def _best_resolution(width: int, height: int, resolutions: Resolutions) -> tuple[int, int]:
    """Return the (width, height) that keeps most of a picture's pixels, then wastes fewest."""

    def score(resolution: tuple[int, int]) -> tuple[int, int]:
        scale = min(resolution[0] / width, resolution[1] / height)
        used = min(int(width * scale) * int(height * scale), width * height)
        return used, used - resolution[0] * resolution[1]

    return max(resolutions, key=score)


def count_dynamic_tiles(width: int, height: int, numbers: Numbers) -> Counted:
    """Count tiles of the grid whose shape is nearest, and a thumbnail (InternVL)."""
    columns, rows = _best_aspect(
        width, height, numbers["side"], numbers["least_tiles"], numbers["most_tiles"]
    )
    patches = (numbers["side"] // numbers["patch"]) ** 2
    parts = columns * rows + (columns * rows > 1)
    tokens = parts * (patches // numbers["merge"] ** 2)
    return Counted(rows, columns, (patches,) * parts, tokens, tokens, 2)


def count_deepseek_vl(
    width: int, height: int, numbers: Numbers, of_file: Resolutions = ()
) -> Counted:
    """Count the whole picture and tiles of the best of many resolutions, with a break after each
    row and one between them (DeepSeek-VL2). `of_file`: those that a file lists. Three or more
    pictures of a request are not cut."""
    side, tiles = numbers["side"], numbers["most_tiles"]
    resolutions = of_file or tuple(
        (columns * side, rows * side)
        for columns in range(1, tiles + 1)
        for rows in range(1, tiles // columns + 1)
    )
    wide, high = _best_resolution(width, height, resolutions)
    columns, rows = wide // side, high // side
    across = math.ceil(side // numbers["patch"] / numbers["merge"])
    return _with_views(across, (across, columns, rows), (side, side), numbers)


def _with_views(
    whole: int, cut: tuple[int, int, int], sides: tuple[int, int], numbers: Numbers
) -> Counted:
    """Return DeepSeek's count: `whole` tokens a side of the whole picture, then `cut`: tokens a
    side of a tile, columns and rows of tiles; sides in pixels of the whole and of a tile."""
    across, columns, rows = cut
    line = numbers.get("breaks", 1)
    tokens = whole * (whole + line) + 1 + across * rows * (across * columns + line)
    tiles = tuple((side // numbers["patch"]) ** 2 for side in sides)
    made = whole**2 + across**2 * rows * columns
    parts = (tiles[0], *(tiles[1],) * (rows * columns))
    return Counted(max(1, rows), max(1, columns), parts, tokens, made)


def count_deepseek_ocr(width: int, height: int, numbers: Numbers) -> Counted:
    """Count the whole picture, and of one with a side longer than a tile's also the tiles of the
    grid whose shape is nearest (DeepSeek-OCR; `breaks` 0 for OCR 2)."""
    side, tile, factor = numbers["side"], numbers["tile"], numbers["patch"] * numbers["merge"]
    columns = rows = 0
    if max(width, height) > tile:
        columns, rows = _best_aspect(
            width, height, tile, numbers["least_tiles"], numbers["most_tiles"]
        )
    cut = (math.ceil(tile / factor), columns, rows)
    return _with_views(math.ceil(side / factor), cut, (side, tile), numbers)


def count_padded_tiles(width: int, height: int, numbers: Numbers) -> Counted:
    """Count tiles that cover the picture, less their padding, a break after each row, and the whole
    as one more tile (Phi-4)."""
    side, patch, limit = numbers["side"], numbers["patch"], numbers["most_tiles"]
    columns, rows = math.ceil(width / side), math.ceil(height / side)
    if columns * rows > limit:
        columns, rows = _best_aspect(width, height, side, 1, limit)
    wide, high = columns * side / width, rows * side / height
    padded_right = 0 if wide < high else columns * side - int(width * high)
    padded_below = rows * side - int(height * wide) if wide < high else 0
    if min(columns * side - padded_right, rows * side - padded_below) < _LEAST_SHOWN:
        raise _refuse_shape(width, height, "too many times")
    across = side // patch
    kept = [
        _halved(across, count, across * count - padding // patch)
        for count, padding in ((columns, padded_right), (rows, padded_below))
    ]
    whole = math.ceil(across / numbers["merge"]) ** 2
    tokens = whole + 17 + kept[0] * kept[1] + kept[1]
    made = whole + kept[0] * kept[1]
    return Counted(rows, columns, (across**2,) * (rows * columns + 1), tokens, made)


def _halved(across: int, tiles: int, kept: int) -> int:
    """Return how many of every second patch of each tile lie among the first `kept` of all."""
    return sum(
        tile * across + place < kept for tile in range(tiles) for place in range(0, across, 2)
    )


def count_any_resolution(
    width: int, height: int, numbers: Numbers, of_file: Resolutions = ()
) -> Counted:
    """Count the whole picture and the tiles of the best grid without padding, shrunk to a most
    number of tiles, with a break after each row (LLaVA-OneVision)."""
    side, tiles, limit = numbers["side"], numbers["most_tiles"], numbers["most_across"]
    resolutions = of_file or tuple(
        (columns * side, rows * side)
        for rows in range(1, limit + 1)
        for columns in range(1, limit + 1)
    )
    wide, high = (size // side for size in _best_resolution(width, height, resolutions))
    across = side // numbers["patch"]
    columns, rows = across * wide, across * high
    if width / height > columns / rows:
        rows -= (rows - int(round(height * (columns / width), 7))) // 2 * 2
    else:
        columns -= (columns - int(round(width * (rows / height), 7))) // 2 * 2
    made, ratio = rows * columns, math.sqrt(rows * columns / (tiles * across**2))
    if ratio > 1.1:
        rows, columns = int(rows // ratio), int(columns // ratio)
        made = rows * columns
    tokens = made + rows + across**2
    return Counted(high, wide, (across**2,) * (wide * high + 1), tokens, made + across**2)


def count_slices(width: int, height: int, numbers: Numbers) -> Counted:
    """Count the whole picture and slices whose grid is nearest its shape, each of about one area;
    so many `slice_tokens` each, or where that is 0 as many as merged patches (MiniCPM-V)."""
    side, patch = numbers["tile"], numbers["patch"]
    step = patch * numbers["step"]
    wanted = min(math.ceil(width * height / side**2), numbers["most_tiles"])
    columns, rows = _best_slices(width, height, wanted, numbers["most_tiles"])
    cut = columns * rows > 1
    parts = [_resize_slice(width, height, side, step, enlarge=not cut)]
    if cut:
        of_each = (max(round(width / columns), 1), max(round(height / rows), 1))
        parts += [_resize_slice(*of_each, side, step, enlarge=True)] * (columns * rows)
    tiles = tuple((wide // patch) * (high // patch) for wide, high in parts)
    tokens = sum(numbers["slice_tokens"] or tile // numbers["merged"] for tile in tiles)
    return Counted(rows, columns, tiles, tokens, tokens, 2 * len(tiles))


def _best_slices(width: int, height: int, wanted: int, most: int) -> tuple[int, int]:
    if wanted <= 1:
        return 1, 1
    nearest, best = math.inf, (1, 1)
    for count in (wanted - 1, wanted, wanted + 1):
        for rows in range(1, count + 1):
            if count == 1 or count > most or count % rows:
                continue
            off = abs(math.log(width / height) - math.log(count // rows / rows))
            if off < nearest or (off == nearest and rows > best[1]):
                nearest, best = off, (count // rows, rows)
    return best


def _resize_slice(
    width: float, height: float, side: int, step: int, *, enlarge: bool
) -> tuple[int, int]:
    if width * height > side**2 or enlarge:
        ratio = width / height
        height = int(side / math.sqrt(ratio))
        width = int(height * ratio)
    return max(round(width / step), 1) * step, max(round(height / step), 1) * step


RULES: dict[str, Callable[..., Counted]] = {
    "scaled": count_scaled,
    "longest-side": count_longest_side,
    "within-patches": count_within_patches,
    "budget": count_budget,
    "fixed": count_fixed,
    "canvas": count_canvas,
    "cross": count_cross,
    "dynamic-tiles": count_dynamic_tiles,
    "deepseek-ocr": count_deepseek_ocr,
    "padded-tiles": count_padded_tiles,
    "slices": count_slices,
}
RULES_OF_RESOLUTIONS: dict[str, Callable[..., Counted]] = {
    "deepseek-vl": count_deepseek_vl,
    "any-resolution": count_any_resolution,
}
"""Those that also take the resolutions which a file lists."""
