"""`loadstone bench`: flags to options, and how the run ended to an exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from loadstone.commands.flags import Explain, Json, Strict, option, takes
from loadstone.commands.output import show_run
from loadstone.core.errors import InputError
from loadstone.workload.option_fields import RUN
from loadstone.workload.options import Options

if TYPE_CHECKING:
    from loadstone.core.ranked_runs import RankedRuns
    from loadstone.core.summary import Summary


def _target(words: dict[str, Any]) -> dict[str, Any]:
    """Read the argument: a server's URL; with --sim a deployment, or fixed times."""
    target, sim = words.pop("target"), words.pop("sim")
    if sim and len(target or ()) > 1:
        raise InputError(
            "--sim: a run simulates one deployment, or one set of fixed times, ttft=…,itl=…;"
            " give one"
        )
    return words | ({"sim": target[0] if target else True} if sim else {"url": target})


Report = Annotated[
    bool, option(RUN, "write report.html into the run's folder, and open it", "--report")
]


@takes(Options, _target)
def bench(
    options: Options,
    json: Json = False,
    strict: Strict = False,
    explain: Explain = False,
    report: Report = False,
) -> None:
    """Measure a live engine over a sweep of loads. Each load has TTFT, TPOT, ITL, E2E, throughput
    and a verdict; the run is kept in a folder. Without a load, loads are doubled until throughput
    stops growing. Without a URL, an embedded simulated engine is measured.
    """
    from loadstone.commands.progress import Display
    from loadstone.runs.run import run

    def measure() -> Summary | RankedRuns:
        with Display() as display:
            result = run(options, display, sweeps=True)
        if report:
            from loadstone.commands.report import open_report

            open_report(result)
        return result

    show_run(measure, "measured", json, strict, explain)
