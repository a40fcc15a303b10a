"""How much is simulated until a plan is chosen."""

from typing import NamedTuple


class Effort(NamedTuple):
    """Holds how many candidates are simulated, with how many requests.

    stages               pipeline stages of a deployment, at most
    cheapest, of_groups  finalists: so many of the cheapest layouts, and the cheapest of so many
                         GPUs, sizes and engines besides; of_pools: those with pools beside these
    draws                of the errors of all finalists together
    curve_requests       of each load among which a capacity is looked for, at least and at most
    asked_requests       of the load that was asked for; a trace of no more than `whole_requests` on
                         the replicas that are simulated is simulated whole, for each draw of errors
                         too
    sessions, calls      of a simulation of sessions, at least
    """

    stages: int = 4
    cheapest: int = 10
    of_groups: int = 10
    of_pools: int = 6
    draws: int = 1024
    curve_requests: tuple[int, int] = (800, 4_000)
    asked_requests: tuple[int, int] = (2_000, 8_000)
    whole_requests: int = 20_000
    sessions: int = 24
    calls: int = 800


FULL = Effort()
OF_A_SET = Effort(cheapest=4, of_groups=4, of_pools=0, curve_requests=(600, 3_000))
"""Of a fleet for some classes of a mix, of which there are many."""
OF_PRIORITIES = OF_A_SET._replace(cheapest=3, of_groups=2)
"""Of the same with priorities."""
