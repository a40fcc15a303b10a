"""`loadstone tune`: which flags of an engine are best here, and how sure that is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from loadstone.commands.flags import Explain, option, takes
from loadstone.commands.output import INTERRUPTED, print_json, print_text
from loadstone.studies.tuning.options import TuneOptions
from loadstone.workload.option_fields import RUN

if TYPE_CHECKING:
    from loadstone.studies.tuning.tune import RaceProgress


@takes(TuneOptions)
def tune(
    options: TuneOptions,
    simulate: Annotated[
        bool, option(RUN, "simulate every launch; nothing is started", "--simulate")
    ] = False,
    page: Annotated[
        Path | None, option(RUN, "also write a page with pictures: tune.html", "--page", "-o")
    ] = None,
    json: Annotated[bool, option(RUN, "print one JSON document on stdout", "--json")] = False,
    explain: Explain = False,
) -> None:
    """Find the best flags of an engine by launching it: settings race, the best one is confirmed by
    fresh launches, and what was gained is told with its interval. Run it again to go on.
    """
    from loadstone.commands.progress import working
    from loadstone.core.units import show_seconds
    from loadstone.studies.tuning.race import FAILURES
    from loadstone.studies.tuning.tell import render
    from loadstone.studies.tuning.tune import tune as race

    def tell(progress: RaceProgress) -> None:
        state, done = progress.race, len(progress.race.turns)
        left_s = options.time_s - state.seconds
        if progress.outcome is None:
            kind = "fresh launch" if progress.turn.confirms else f"round {progress.turn.round + 1}"
            change(f"{kind}, {done} launches done, at most {show_seconds(left_s, 2)} left")
        elif progress.outcome.failure is not None:
            why = f"{FAILURES[progress.outcome.failure]}: {progress.outcome.why}"
            print(f"{progress.name}: {why}", file=sys.stderr)

    try:
        with working("planning a race") as change:
            result = race(options, simulate, tell)
    except KeyboardInterrupt:
        print("interrupted; run it again to go on", file=sys.stderr)
        sys.exit(INTERRUPTED)
    if page is not None:
        from loadstone.studies.tuning.page import write_page

        write_page(result, page, ["loadstone", *sys.argv[1:]])
    if json:
        print_json(result.document())
    else:
        print_text(*render(result, explain))
        if page is not None:
            print(f"wrote {page}")
