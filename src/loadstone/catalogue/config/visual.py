"""Reads how a model takes pictures: from its processor's file, then from config.json, then from
families.toml."""

from typing import Any

from loadstone.catalogue.config.families import tables
from loadstone.catalogue.config.fields import Fields
from loadstone.catalogue.visual.visual import TowerShape, Visual
from loadstone.core.errors import InputError

PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
_MOST = 1 << 31


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
    numbers, missing = dict(family.numbers), []
    parts = {"processor": processor or {}, "config": config, "vision": vision}
    if processor and processor.get("do_pan_and_scan"):
        numbers["crops"] = _first(parts, ("processor pan_and_scan_max_num_crops",), name) or 4
    for number in () if family.fixed else family.numbers:
        places = tables().visual_numbers.get(number, ())
        found = _first(parts, places, name)
        if found is not None:
            numbers[number] = found
        elif any(place.startswith("processor") for place in places):
            missing.append(f"{number.replace('_tiles', ' tiles')} {numbers[number]:,}")
    assumed = [family.remark] if family.remark else []
    if missing:
        lacks = "its processor's file does not say all" if processor else "no processor's file"
        assumed.insert(0, f"pictures: {lacks}; assumed: {', '.join(missing)}")
    return Visual(family.rule, numbers, _resolutions(parts, name), tower, tuple(assumed))


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


def _first(parts: dict[str, dict[str, Any]], places: tuple[str, ...], name: str) -> int | None:
    for place in places:
        part, _, path = place.partition(" ")
        value: Any = parts[part]
        for step in path.split("."):
            value = value.get(step) if isinstance(value, dict) else None
        if value is not None:
            return _number(value, path, Fields({}, f"{name}, {part}"))
    return None


def _number(value: Any, path: str, fields: Fields) -> int:
    """Return a number of a file: of two equal sides one, of a share its inverse, of a word such as
    anyres_max_9 or 16x its digits."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list) and value and all(entry == value[0] for entry in value):
        value = value[0]
    digits = "".join(filter(str.isdigit, value)) if isinstance(value, str) else ""
    if digits:
        value = int(digits)
    if isinstance(value, float) and 0 < value < 1:
        value = round(1 / value)
    number = fields.check_count(path, value)
    if number > _MOST:
        raise InputError(f"{fields.where}: {path} is {number}; at most {_MOST}")
    return number
