"""The settings of an inference gateway's flow control; gateway.py has what it does."""

from __future__ import annotations

from typing import Literal

import msgspec

from loadstone.core.errors import InputError
from loadstone.core.units import parse_seconds

_TIMES = ("refresh", "stale", "ttl")


class FlowControl(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a gateway's flow control, with its defaults.

    fairness        global-strict: flows are not looked at; round-robin: each in turn
    ordering        fcfs; slo-deadline: by arrival and the header x-slo-ttft-ms, without it last
    queue_depth     waiting requests, and `kv_utilization`, the share of the KV cache, of a
                    saturated engine
    refresh         seconds from scrape to scrape; metrics older than `stale` count as saturated
    ttl             seconds that a request may wait; 0: as long as it takes
    shed            whether priorities below 0 are turned away while the pool is saturated
    """

    fairness: Literal["global-strict", "round-robin"] = "global-strict"
    ordering: Literal["fcfs", "slo-deadline"] = "fcfs"
    queue_depth: float = 5
    kv_utilization: float = 0.8
    refresh: float = 0.05
    stale: float = 0.2
    ttl: float = 0
    shed: Literal["on", "off"] = "on"

    @classmethod
    def parse(cls, text: str) -> FlowControl:
        """Parse `default`, or KEY=VALUE with commas. Raises InputError."""
        values: dict[str, str | float] = {}
        for part in text.split(",") if text.strip() != "default" else ():
            key, _, value = part.strip().partition("=")
            if key not in cls.__struct_fields__ or key in values:
                raise InputError(
                    f"--flow-control: {part.strip()!r} is none of its settings, or is given twice;"
                    f" write default, or KEY=VALUE of {', '.join(cls.__struct_fields__)}"
                )
            values[key] = parse_seconds(value, "--flow-control") if key in _TIMES else value
        try:
            control = msgspec.convert(values, cls, strict=False)
        except msgspec.ValidationError as error:
            raise InputError(f"--flow-control {text}: {error}") from None
        if not (control.queue_depth > 0 and 0 < control.kv_utilization <= 1 and control.refresh):
            raise InputError(
                f"--flow-control {text}: queue_depth and refresh must be above 0, kv_utilization"
                " between 0 and 1"
            )
        return control
