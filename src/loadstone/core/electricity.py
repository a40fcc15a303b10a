"""Says what electricity costs, and whose is counted: that of GPU boards alone, or a site's."""

import math
from typing import Any

import msgspec

from loadstone.core.errors import InputError

BOARDS = "GPU boards alone"
HELP = "dollars per kWh of the GPU boards, besides of node and site: 0.12,host=250,pue=1.2"


class Electricity(msgspec.Struct, frozen=True, omit_defaults=True):
    """Holds dollars per kWh, None where nobody gave them; watts of a node's other parts, per GPU;
    and the site's PUE, watts from the grid over those of its machines."""

    usd_per_kwh: float | None = None
    host: float = 0.0
    pue: float = 1.0

    @property
    def boundary(self) -> str:
        """Name those whose watts are counted."""
        if not self.host and self.pue == 1:
            return BOARDS
        return f"boards, {self.host:g} W of the node for each, PUE {self.pue:g}"

    def drawn_w(self, boards_w: float, gpus: int) -> float:
        """Return the watts within the boundary."""
        return (boards_w + gpus * self.host) * self.pue

    def usd_per_mtok(self, drawn_w: float, tokens_per_s: float | None) -> float | None:
        """Return dollars of electricity for a million tokens."""
        if self.usd_per_kwh is None or not tokens_per_s:
            return None
        return drawn_w / tokens_per_s * self.usd_per_kwh / 3.6


def parse_electricity(value: Any, flag: str) -> Electricity:
    """Read `0.12`, or with the node and the site `0.12,host=250,pue=1.2`. Raises InputError."""
    given: dict[str, float] = {}
    bounds = {"usd_per_kwh": (0, 10), "host": (0, 5000), "pue": (1, 3)}
    for part in str(value).split(","):
        name, equals, number = part.rpartition("=")
        name = name.strip() if equals else "usd_per_kwh"
        low, high = bounds.get(name, (1, 0))
        try:
            given[name] = float(number)
        except ValueError:
            given[name] = math.nan
        if not low <= given[name] <= high:
            raise InputError(
                f"{flag} {value}: write dollars per kWh, and besides host=WATTS of the node for"
                " each GPU (to 5000) and pue=FACTOR (1 to 3), e.g. 0.12,host=250,pue=1.2"
            )
    return Electricity(**given)
