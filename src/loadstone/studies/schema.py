"""The JSON Schema of study files, by which editors complete and check them."""

from collections.abc import Collection
from typing import Any

import msgspec

from loadstone.studies.file import ACCEPTANCE, LOAD_FLAGS, NAME, WORKLOAD_FLAGS, Seconds, Study
from loadstone.workload.option_fields import json_schema
from loadstone.workload.options import Options, SimulateOptions


def study_schema() -> dict[str, Any]:
    """Make the JSON Schema, draft 2020-12. A file that it takes may still be refused, for what it
    cannot say."""
    schema = msgspec.json.schema(Study, schema_hook=_quantity)
    study = schema["$defs"]["Study"]["properties"]
    options = json_schema(Options)
    # Names that Python keeps for itself end in "_" there.
    named = {name.rstrip("_"): schema for name, schema in options["properties"].items()}
    named[ACCEPTANCE] = json_schema(SimulateOptions)["properties"][ACCEPTANCE]
    load = _entry(named, LOAD_FLAGS)
    study["workloads"]["additionalProperties"] = _entry(named, WORKLOAD_FLAGS)
    study["loads"] = {"anyOf": [load, {"type": "array", "items": load}]}
    study["study"]["pattern"] = f"^{NAME.pattern}$"
    schema["$defs"] |= options["$defs"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A study of Loadstone",
    } | schema


def _quantity(kind: type) -> dict[str, Any]:
    example = "30m" if kind is Seconds else "5%"
    return {"type": ["string", "number"], "examples": [example]}


def _entry(options: dict[str, Any], flags: Collection[str]) -> dict[str, Any]:
    """Describe a workload or a load: options by their flags, each a value, text, or a list of
    these."""
    properties = {}
    for flag in sorted(flags):
        schema = options[flag.replace("-", "_")]
        lists = [{"type": "array", "items": {"type": ["string", "number"]}}]
        has_list = any(choice.get("type") == "array" for choice in schema.get("anyOf", ()))
        properties[flag] = schema | {"anyOf": schema["anyOf"] + lists} if has_list else schema
    return {"type": "object", "properties": properties, "additionalProperties": False}
