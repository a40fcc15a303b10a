"""Reads how a model takes pictures: from its processor's file, then from config.json, then from
families.toml."""

from collections.abc import Iterable
from typing import Any

import msgspec

from loadstone.catalogue.config.families import tables
from loadstone.catalogue.config.fields import Fields
from loadstone.catalogue.visual.visual import TowerShape, Visual
from loadstone.core.errors import InputError

PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
_MOST, _MOST_TILES = 1 << 31, 4096


def read_visual(
    config: dict[str, Any], processor: dict[str, Any] | None, tower: TowerShape | None, name: str
) -> Visual | None:
    """Return how a model takes pictures; None: no rule is known for its type. `processor`: what
    its files say, as `join_processor` joins them. Raises InputError: a number that cannot be."""
    vision = config.get("vision_config")
    vision = vision if isinstance(vision, dict) else {}
    kind = _kind(config, vision)
    family = tables().visual.get(kind)
    if family is None:
        return None
    parts = {"processor": processor or {}, "config": config, "vision": vision}
    stated = {} if family.fixed else _stated_numbers(family.numbers, parts, name)
    numbers = family.numbers | stated | _switched_numbers(processor or {}, name)
    missing = [
        f"{number.replace('_tiles', ' tiles')} {size:,}"
        for number, size in family.numbers.items()
        if number not in stated
        and not family.fixed
        and any(place.startswith("processor") for place in tables().visual_numbers.get(number, ()))
    ]
    assumed = [family.remark] if family.remark else []
    if missing:
        lacks = "its processor's file does not say all" if processor else "no processor's file"
        assumed.insert(0, f"pictures: {lacks}; assumed: {', '.join(missing)}")
    return Visual(family.rule, numbers, _resolutions(parts, name), tower, tuple(assumed))


def override(visual: Visual, fields: dict[str, Any], name: str) -> Visual:
    """Return how a model takes pictures where an engine's argument `name` gives its processor other
    `fields`. Raises InputError."""
    for scope in ("images_kwargs", "image"):
        inner = fields.get(scope)
        fields = {**fields, **(inner if isinstance(inner, dict) else {})}
    parts = {"processor": fields, "config": fields, "vision": {}}
    stated = _stated_numbers(visual.numbers, parts, name) | _switched_numbers(fields, name)
    assumed = () if stated else visual.assumed
    return msgspec.structs.replace(visual, numbers=visual.numbers | stated, assumed=assumed)


def _stated_numbers(
    names: Iterable[str], parts: dict[str, dict[str, Any]], name: str
) -> dict[str, int]:
    """Return those of these numbers that a model's files say."""
    places = tables().visual_numbers
    found = {number: _first(number, parts, places.get(number, ()), name) for number in names}
    return {number: size for number, size in found.items() if size is not None}


def _switched_numbers(processor: dict[str, Any], name: str) -> dict[str, int]:
    """Return the numbers of what a processor's switches turn on: crops of long pictures (Gemma 3),
    the largest canvas (Llama 4); or off: slices (MiniCPM-V)."""
    numbers = {}
    if processor.get("do_pan_and_scan"):
        fields = Fields(processor, f"{name}, processor")
        ratio = fields.number("pan_and_scan_min_ratio_to_activate", 1.2)
        numbers = {
            "crops": fields.count("pan_and_scan_max_num_crops", default=4),
            "crop_side": fields.count("pan_and_scan_min_crop_size", default=256, least=1),
            "crop_percent": round(100 * ratio),
        }
    if processor.get("resize_to_max_canvas"):
        numbers["to_largest"] = 1
    if processor.get("slice_mode") is False:
        numbers["most_tiles"] = 1
    return numbers


def _resolutions(parts: dict[str, dict[str, Any]], name: str) -> tuple[tuple[int, int], ...]:
    """Return as (width, height) what a file lists as (height, width), as processors do."""
    listed: list[Any] = []
    for part in (parts["processor"], parts["config"]):
        listed = (
            listed or part.get("candidate_resolutions") or part.get("image_grid_pinpoints") or []
        )
    sides = Fields({}, f"{name}, resolutions of pictures")
    if not isinstance(listed, list) or not all(
        isinstance(pair, list) and len(pair) == 2 for pair in listed
    ):
        raise InputError(f"{sides.where}: pairs of numbers are meant, e.g. [[384, 768]]")
    return tuple(
        (sides.check_count("width", wide, 1), sides.check_count("height", high, 1))
        for high, wide in listed
    )


def join_processor(files: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the fields of a processor's files as one object: those of `image_processor` within
    count as the file's own, and the first file's win."""
    joined: dict[str, Any] = {}
    for content in files:
        inner = content.get("image_processor")
        joined = {**content, **(inner if isinstance(inner, dict) else {}), **joined}
    joined.pop("chat_template", None)
    return joined


def _kind(config: dict[str, Any], vision: dict[str, Any]) -> str:
    """Return the type whose rule holds: the outer one, or where it has none its tower's."""
    kind = str(config.get("model_type"))
    if "OCR" in str(config.get("architectures")) and kind == "deepseek_vl_v2":
        return "deepseek_ocr"
    return kind if kind in tables().visual else str(vision.get("model_type"))


def _first(
    number: str, parts: dict[str, dict[str, Any]], places: tuple[str, ...], name: str
) -> int | None:
    """Return what the first of the places that has it says of a number. Raises InputError."""
    for place in places:
        part, _, path = place.partition(" ")
        value: Any = parts[part]
        for step in path.split("."):
            value = value.get(step) if isinstance(value, dict) else None
        if value is not None:
            least = int(not number.startswith(("least", "min")))
            limit = _MOST_TILES if number.endswith("tiles") else _MOST
            return _number(value, path, Fields({}, f"{name}, {part}"), (least, limit))
    return None


def _number(value: Any, path: str, fields: Fields, bounds: tuple[int, int]) -> int:
    """Return a number of a file, within bounds: of two equal sides one, of a share its inverse, of
    a word such as anyres_max_9 or 16x its digits."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list) and value and all(entry == value[0] for entry in value):
        value = value[0]
    digits = "".join(filter(str.isdigit, value)) if isinstance(value, str) else ""
    if digits:
        value = int(digits)
    if isinstance(value, float) and 0 < value < 1:
        value = round(1 / value)
    least, limit = bounds
    number = fields.check_count(path, value, least)
    if number > limit:
        raise InputError(f"{fields.where}: {path} is {number}; at most {limit}")
    return number
