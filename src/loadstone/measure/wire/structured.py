"""Asks for the way tokens are drawn, and for structured output: a shape that answers must have, in
each engine's own fields. No I/O."""

import re
from typing import Any

import msgspec

from loadstone.workload.request import RequestSpec, Structured

_JSON_BEGINNINGS = {
    "object": "{",
    "array": "[",
    "string": '"',
    "number": "-0123456789",
    "integer": "-0123456789",
    "boolean": "tf",
    "null": "n",
}


def make_sampling_fields(
    spec: RequestSpec, seed: str = "seed", stop: str = "stop"
) -> dict[str, Any]:
    """Make the fields of a request body that say how tokens are drawn, as far as that is said;
    `seed`, `stop`: the names of these fields."""
    sampling = spec.sampling
    fields = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        seed: sampling.seed,
        stop: list(sampling.stop) or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def make_shape_fields(spec: RequestSpec) -> dict[str, Any]:
    """Make the fields of a request body that ask for its shape, if any; those of `sampling_params`
    go into that object.
    """
    if spec.structured is None or spec.spelling is None:
        return {}
    kind, value = spec.structured.kind, spec.structured.value
    as_text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    match spec.spelling:
        case "response_format":
            schema = {"name": "answer", "schema": value, "strict": True}
            return {"response_format": {"type": "json_schema", "json_schema": schema}}
        case "output_config":
            return {"output_config": {"format": {"type": "json_schema", "schema": value}}}
        case "text_format":
            schema = {"type": "json_schema", "name": "answer", "schema": value, "strict": True}
            return {"text": {"format": schema}}
        case "structured_outputs":
            return {"structured_outputs": {"json" if kind == "json_schema" else kind: value}}
        case "guided":
            return {"guided_json" if kind == "json_schema" else f"guided_{kind}": value}
        case "llama.cpp":
            return {kind: value}
        case "guided_decoding":
            name = "ebnf_grammar" if kind == "grammar" else kind
            return {"guided_decoding_guide_type": name, "guided_decoding_guide": as_text}
        case _:
            return {"ebnf" if kind == "grammar" else kind: as_text}


def has_shape(structured: Structured, text: str, *, ended: bool) -> bool | None:
    """Return True if an answer, or its beginning where it has not `ended` by itself, has the shape;
    None: cannot be told."""
    begun = text.lstrip()
    if not begun:
        return None
    if structured.kind == "regex" and isinstance(structured.value, str):
        try:
            # Nothing here tells whether more could still make it match.
            return True if re.fullmatch(structured.value, text) else False if ended else None
        except re.error:
            return None  # written for another reader of regular expressions
    if structured.kind == "json_schema" and isinstance(structured.value, dict):
        kind = structured.value.get("type")
        names = [kind] if isinstance(kind, str) else kind if isinstance(kind, list) else []
        beginnings = "".join(
            _JSON_BEGINNINGS.get(name, "") for name in names if isinstance(name, str)
        )
        return begun[0] in (beginnings or "".join(_JSON_BEGINNINGS.values()))
    return None
