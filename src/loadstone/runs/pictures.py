"""Checks before a run with pictures: does the API take them, and how many tokens are they there."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from loadstone.catalogue import Deployment, Worker, parse_worker
from loadstone.catalogue.engines import DEFAULT_ENGINE, engine_key
from loadstone.core.errors import InputError
from loadstone.core.pictures import Pictures, PictureShape
from loadstone.core.plan import Plan
from loadstone.core.record import Target
from loadstone.engines import rules_of
from loadstone.engines.rules import EngineRules

TAKEN = {"chat": None, "messages": {"image_url"}, "responses": {"image_url"}}
"""APIs that take parts other than text in a prompt, and which; None: whatever the server does."""


def parts_of(workload: Mapping[str, Any]) -> set[str]:
    """Return the kinds of parts other than text that a workload's prompts have."""
    inside = [parts_of(of_class) for of_class in workload.get("classes", ())]
    made = {"image_url"} if "pictures" in workload else set()
    return made.union(workload.get("parts", ()), *inside)


def needed_endpoint(plan: Plan) -> str | None:
    """Return `chat` where prompts hold what completions do not take; None: any API will do."""
    in_messages = plan.graph.recorded and plan.chat
    return "chat" if in_messages or parts_of(plan.workload) else None


def check_endpoint(plan: Plan, endpoint: str) -> None:
    """Raise InputError where an API does not take what prompts hold besides text."""
    parts = parts_of(plan.workload)
    takes = TAKEN.get(endpoint, set())
    if takes is not None and not parts <= takes:
        refused = ", ".join(sorted(parts - takes))
        raise InputError(
            f"--endpoint {endpoint}: takes no parts of the kind {refused} in a prompt; measure with"
            " --endpoint chat"
        )


def count_visual_tokens(plan: Plan, declared: Deployment | None, target: Target | None) -> Plan:
    """Return the plan with the tokens that its pictures become at the deployment, or at a server of
    a model that is known. Raises InputError: a shape that the model's processor refuses."""
    pictures = plan.pictures
    workers = list(_find_worker(declared, target))
    if pictures is None or not workers:
        return plan
    rules = rules_of(workers[0])
    if target is None:
        _check_limit(plan, pictures, rules)
    visual, processor = rules.visual, workers[0].model.visual
    if visual is None or processor is None:
        return plan

    numbers = visual.numbers
    most = numbers.get("max_pixels")
    turns = rules.turns_pictures
    limit = None if most is None else most // (numbers["patch"] * numbers["merge"]) ** 2

    def count(shape: PictureShape) -> PictureShape:
        sizes = [file[1::-1] if file.turned and turns else file[:2] for file in shape.sizes]
        try:
            counted = [visual.count(*size) for size in sizes]
            full = sum(processor.count(*size).tokens for size in sizes)
        except InputError:
            if not shape.files or target is None:
                raise
            return shape  # The server says what it makes of a data set's.
        return msgspec.structs.replace(
            shape,
            tokens=sum(picture.tokens for picture in counted),
            full=full,
            markers=sum(picture.markers for picture in counted),
            limit=limit,
        )

    return replace(plan, pictures=replace(pictures, shapes=tuple(map(count, pictures.shapes))))


def _check_limit(plan: Plan, pictures: Pictures, rules: EngineRules) -> None:
    """Raise InputError where a request has more pictures than its engine is told to take."""
    largest, limit = int(pictures.images(np.arange(len(plan))).max(initial=0)), rules.most_pictures
    if limit is not None and largest > limit:
        raise InputError(
            f"pictures in a request: {largest}, of which the deployment takes at most {limit};"
            " raise limit_mm_per_prompt, or ask for fewer"
        )


def _find_worker(declared: Deployment | None, target: Target | None) -> Iterator[Worker]:
    if declared is not None:
        yield declared.decoder
    elif target is not None:
        engine = engine_key(target.engine or "") or DEFAULT_ENGINE
        with contextlib.suppress(InputError):
            yield parse_worker(f"{target.model}@1xh200/tp1,engine={engine}")
