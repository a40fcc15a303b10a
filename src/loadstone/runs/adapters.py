"""Names LoRA adapters in requests as the server under test wants them named."""

from pathlib import PurePath

import msgspec

from loadstone.core.errors import InputError
from loadstone.core.plan import Plan, TrafficClass
from loadstone.measure.engines.server import Server
from loadstone.measure.wire.wire import find_wire
from loadstone.workload.request import RequestSpec

_PAGE = "/lora-adapters"


def find_adapters(server: Server, plan: Plan, field: str) -> dict[str, int]:
    """Return the numbers of a plan's adapters by their names; where requests have the server's own
    numbers, these, by the names of its files. Raises InputError where one is not loaded."""
    if field != "lora" or not plan.adapter_names:
        return {name: number for number, name in enumerate(plan.adapter_names, start=1)}
    rows = server.get_json(_PAGE)
    loaded = {
        PurePath(row["path"]).stem: row["id"]
        for row in (rows if isinstance(rows, list) else ())
        if isinstance(row, dict) and isinstance(row.get("path"), str) and "id" in row
    }
    missing = next((name for name in plan.adapter_names if name not in loaded), None)
    if missing is not None:
        names = ", ".join(loaded) or "none"
        raise InputError(
            f"adapter {missing}: the server has loaded no file of this name, and has {names};"
            f" start it with --lora {missing}.gguf"
        )
    return loaded


def name_adapter(
    spec: RequestSpec, field: str, of_class: TrafficClass, name: str, number: int
) -> RequestSpec:
    """Return the requests of a class for one of its adapters. `field`: see adapter_field();
    `number`: of the adapter. Raises InputError."""
    if field == "base:model" and "model" in find_wire(spec.endpoint).body(spec):
        return msgspec.structs.replace(spec, model=f"{spec.model}:{name}")
    if field == "model":
        return msgspec.structs.replace(spec, model=name)
    if field == "lora":
        fields: dict[str, object] = {"lora": [{"id": number, "scale": 1.0}]}
    elif field == "lora_request":
        if of_class.adapter_path is None:
            raise InputError(
                f"class {of_class.name}: adapter: requests to this engine say where it lies; give"
                f" its path in the file: adapters: {{{of_class.adapter}: {{path: /adapters/…}}}}"
            )
        fields = {
            "lora_request": {
                "lora_name": name,
                "lora_int_id": number,
                "lora_path": of_class.adapter_path,
            }
        }
    else:
        fields = {"lora_path": name}
    return msgspec.structs.replace(spec, extra=fields | spec.extra)
