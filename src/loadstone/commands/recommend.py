"""`loadstone recommend`: what should be deployed."""

from __future__ import annotations

from loadstone.commands.flags import Json, takes
from loadstone.commands.output import print_json, print_text
from loadstone.recommend.options import RecommendOptions


@takes(RecommendOptions)
def recommend(options: RecommendOptions, json: Json = False) -> None:
    """Choose GPUs, engine and layout for a model's traffic under bounds on latency: three plans, each with the
    probability that the bounds hold, its cost, and the measurement that would tell most.
    """
    from loadstone.recommend.recommend import recommend as choose

    document = choose(options)
    if json:
        print_json(document)
    else:
        from loadstone.recommend.text import render

        print_text(*render(document))
