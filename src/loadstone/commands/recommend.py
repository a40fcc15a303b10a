"""`loadstone recommend`: what should be deployed."""

import sys
from pathlib import Path
from typing import Annotated

from loadstone.commands.flags import Explain, Json, option, takes
from loadstone.commands.output import print_json, print_text
from loadstone.recommend.demand.options import RecommendOptions
from loadstone.workload.option_fields import RUN


@takes(RecommendOptions)
def recommend(
    options: RecommendOptions,
    page: Annotated[
        Path | None, option(RUN, "also write a page with pictures: plans.html", "--page", "-o")
    ] = None,
    json: Json = False,
    explain: Explain = False,
) -> None:
    """Choose GPUs, engine and layout for traffic under bounds on latency. Shows three plans, each
    with the probability that the bounds hold and its cost, and the measurement that would tell
    most.
    """
    from loadstone.commands.progress import working
    from loadstone.recommend.recommend import advise
    from loadstone.recommend.tell.mixed import MixRecommendation, render_mix

    with working("ranking deployments, then simulating the best of them"):
        document = advise(options)
    command = ["loadstone", *sys.argv[1:]]
    if page is not None:
        from loadstone.recommend.tell.page import write_mix_page, write_page

        if isinstance(document, MixRecommendation):
            write_mix_page(document, page, command)
        else:
            write_page(document, page, command)
    if json:
        print_json(document)
        return
    if isinstance(document, MixRecommendation):
        print_text(*render_mix(document, explain))
    else:
        from loadstone.recommend.tell.text import render

        print_text(*render(document, explain))
    if page is not None:
        print(f"wrote {page}")
