"""`loadstone simulate`: the flags of `bench`, and a deployment in place of a server."""

from loadstone.commands.flags import Explain, Json, Strict, takes
from loadstone.commands.output import show_run
from loadstone.workload.options import SimulateOptions


@takes(SimulateOptions)
def simulate(
    options: SimulateOptions, json: Json = False, strict: Strict = False, explain: Explain = False
) -> None:
    """Simulate a deployment under a load, without hardware. Loads, run folder and numbers are those
    of bench; the predictions have 80 % intervals.
    """
    from loadstone.runs.run import run

    show_run(lambda: run(options), "simulated", json, strict, explain)
