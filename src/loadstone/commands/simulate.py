"""`loadstone simulate`: the flags of `bench`, and a deployment in place of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loadstone.commands.flags import Explain, Json, Strict, takes
from loadstone.commands.output import show_run
from loadstone.workload.options import SimulateOptions

if TYPE_CHECKING:
    from loadstone.core.ranked_runs import RankedRuns
    from loadstone.core.summary import Summary


@takes(SimulateOptions)
def simulate(
    options: SimulateOptions, json: Json = False, strict: Strict = False, explain: Explain = False
) -> None:
    """Simulate a deployment under a load, without hardware. Loads, run folder and numbers are those
    of bench; the predictions have 80 % intervals.
    """
    from loadstone.commands.progress import working
    from loadstone.runs.run import run

    def simulate_all() -> Summary | RankedRuns:
        with working("simulating"):
            return run(options)

    show_run(simulate_all, "simulated", json, strict, explain)
