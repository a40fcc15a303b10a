"""Findings of pictures in prompts, of records made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loadstone.core.machine_figures import ServerFigures
from loadstone.core.pictures import FileSize, Pictures, PictureShape
from loadstone.core.plan import Plan
from verdict_cells import COUNT, PLAN, WARM, found, rows

SENT, ALL = COUNT, COUNT + WARM
"""Of all planned, the measured ones have records."""
URL = '[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,%d"}}]}]'


def plan(kind: str) -> Plan:
    """A plan whose requests have a picture each: new ones, of two groups, or of ten files."""
    shape = PictureShape(64, 64, tokens=64)
    group = np.arange(ALL) % 2 if kind == "groups" else np.full(ALL, -1)
    changes: dict[str, Any] = {}
    if kind == "files":
        shape = PictureShape(64, 64, tokens=64, files=(FileSize(64, 64),))
        changes["prompt"] = np.arange(ALL, dtype=np.int32) % 10
    table = Pictures(
        (shape,), np.zeros(ALL, np.int32), np.ones(ALL, np.uint8), group.astype(np.int32)
    )
    planned = PLAN.take(np.arange(ALL), **changes)
    planned.pictures, planned.prompts = table, [URL % number for number in range(10)]
    return planned


@pytest.mark.parametrize(
    ("kind", "cached", "requests"),
    [("new", 60, COUNT), ("new", 40, None), ("groups", 60, None), ("files", 60, None)],
)
def test_most_of_a_prompt_from_a_cache_is_told_of_new_pictures_alone(
    kind: str, cached: int, requests: int | None
) -> None:
    told = found(rows(visual_tokens=64, cached_tokens=cached), plan=plan(kind))
    helped = told.get("image_cache_helped")
    assert (helped and helped.values["requests"]) == requests


def test_a_data_set_s_pictures_are_new_where_the_run_sends_each_once() -> None:
    planned = plan("files")
    planned.prompt[:] = np.arange(ALL)
    planned.prompts = [URL % number for number in range(ALL)]
    cached = rows(visual_tokens=64)
    for one in cached[:7]:
        one["cached_tokens"] = 90
    assert found(cached, plan=planned)["image_cache_helped"].values["requests"] == 7


@pytest.mark.parametrize(
    ("kind", "hits", "queries", "repeats"),
    [
        ("new", 0, SENT, None),
        ("new", 1, SENT, 0),
        ("new", 7, SENT + 7, None),
        ("groups", SENT - 2, SENT, None),
        ("groups", SENT, SENT, SENT - 2),
        ("files", SENT - 10, SENT, None),
        ("files", SENT - 9, SENT, SENT - 10),
    ],
)
def test_more_hits_in_the_cache_of_pictures_than_the_plan_sends_again_are_told(
    kind: str, hits: float, queries: float, repeats: int | None
) -> None:
    server = ServerFigures(samples=5, restarts=0, picture_hits=hits, picture_queries=queries)
    told = found(rows(visual_tokens=64), plan=plan(kind), server=server)
    if repeats is None:
        assert "image_cache_helped" not in told
    else:
        values = told["image_cache_helped"].values
        assert (values["hits"], values["pictures"], values["repeats"]) == (hits, SENT, repeats)


@pytest.mark.parametrize(
    ("status", "said", "refused"),
    [
        (400, "At most 2 image(s) may be provided in one prompt", True),
        (400, "Input length (16418) exceeds model's maximum context length (8192)", True),
        (400, "the request exceeds the available context size", True),
        (413, "Payload Too Large", True),
        (500, "out of memory", False),
        (503, "The context of the engine was lost", False),
    ],
)
def test_a_prompt_that_is_too_long_with_its_pictures_is_refused_for_them(
    status: int, said: str, refused: bool
) -> None:
    failed = {"status": "error", "http_status": status, "error": f"HTTP {status}: {said}"}
    told = found(rows(output_tokens=None, **failed), plan=plan("new"))
    assert ("images_refused" in told) == refused
