"""Reads what a server's pages say of it and of its models, and whether it answers the plainest
request.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

import httpx
import msgspec

from loadstone.core.errors import InputError, TargetError
from loadstone.core.record import Target
from loadstone.core.text import excerpt
from loadstone.engines.table import KnownServer, known_servers
from loadstone.measure.engines.server import Server, Trial, refusal
from loadstone.measure.wire.request import make_path
from loadstone.measure.wire.tolerant import list_objects
from loadstone.measure.wire.wire import find_wire
from loadstone.workload.request import RequestSpec

NOT_OFFERED = (404, 405, 501)
_MAX_METRICS = 500


# --- who it is ------------------------------------------------------------------------------------


def describe(server: Server, endpoint: str, model: str, models: Any) -> Target:
    """Describe the server by what its pages say, `models` among them; how prompts are written for
    it is found out later."""
    version = server.get_json("/version")
    metrics = server.get("/metrics")
    engine = recognise_engine(models, metrics)
    if engine is not None:
        version = _read_version(server, engine) or version
    reported = version.get("version") if isinstance(version, dict) else None
    return Target(
        url=server.url,
        endpoint=endpoint,
        model=model,
        engine=None if engine is None else engine.title,
        engine_version=shorten(reported) if isinstance(reported, str) else None,
        prompt_kind="text",
        max_model_tokens=_read_context(models, model),
        models=models,
        version=version,
        metrics_names=list_metrics(metrics),
    )


def recognise_engine(models: Any, metrics: httpx.Response | None) -> KnownServer | None:
    """Return the kind of server that has such models and metrics; None: it is not known."""
    owners = {str(entry.get("owned_by", "")).lower() for entry in list_objects(models, "data")}
    text = metrics.text[:20_000] if metrics is not None else ""
    by_owner = [kind for kind in known_servers() if kind.owner in owners]
    by_metrics = [kind for kind in known_servers() if kind.metrics and kind.metrics in text]
    return next(iter(by_owner + by_metrics), None)


def name_engine(server: Server, target: Target, owner: str) -> None:
    """Say that the engine is the one that is known by the owner of its models."""
    engine = next(engine for engine in known_servers() if engine.owner == owner)
    target.engine = engine.title
    target.version = _read_version(server, engine)
    target.engine_version = target.version["version"] if target.version is not None else None


def _read_version(server: Server, known: KnownServer) -> dict[str, str] | None:
    """Return the version that the engine's own pages state, of all that they hold that alone."""
    answers = (server.get_json(page) for page in known.about)
    about = next((answer for answer in answers if answer), None)
    version = about.get(known.version) if isinstance(about, dict) else None
    return {"version": shorten(version)} if isinstance(version, str) and version else None


def list_metrics(metrics: httpx.Response | None) -> list[str]:
    """List the names of the families on a page of metrics."""
    if metrics is None:
        return []
    names = {
        line.split()[2]
        for line in metrics.text.splitlines()
        if line.startswith("# TYPE ") and line.count(" ") >= 3
    }
    return sorted(shorten(name) for name in names)[:_MAX_METRICS]


# --- its models -----------------------------------------------------------------------------------


def list_models(models: Any) -> list[str]:
    """List the names on a /v1/models page."""
    names = (entry.get("id") for entry in list_objects(models, "data"))
    return [name for name in names if isinstance(name, str) and name]


def choose_model(server: Server, models: Any, requested: str | None) -> str:
    """Return the model asked for, else the first that the server lists. Raises TargetError."""
    names = list_models(models)
    if requested is not None:
        if names and requested not in names:
            raise TargetError(f"--model {requested}: the server offers {join_names(names)}")
        return requested
    if names:
        return names[0]
    deployment = re.search("/deployments/([^/]+)", server.base_path)
    if deployment is not None:
        return deployment[1]
    place, answer = server.url + "/v1/models", server.answer("/v1/models")
    if answer.status_code not in (200, *NOT_OFFERED):
        raise TargetError(refusal(place, answer))
    status = "" if answer.status_code == 200 else f" (HTTP {answer.status_code})"
    raise TargetError(
        f"{place} names no model{status}; check the URL, or name the model with --model"
    )


def _read_context(models: Any, model: str) -> int | None:
    """Return the longest prompt and answer together, where the server says: vLLM's and SGLang's
    key, or llama.cpp's."""
    cards = (entry for entry in list_objects(models, "data") if entry.get("id") == model)
    card = next(cards, {})
    context, meta = card.get("max_model_len"), card.get("meta")
    if not context and isinstance(meta, dict):
        context = meta.get("n_ctx")
    if isinstance(context, int | float) and 0 < context < math.inf:
        return int(context)
    return None


def join_names(names: Sequence[str]) -> str:
    return ", ".join(map(shorten, names[:8]))


def shorten(text: str) -> str:
    return excerpt(text, 120)


# --- whether it answers ---------------------------------------------------------------------------


def check_answered(server: Server, spec: RequestSpec, trial: Trial | None = None) -> None:
    """Raises TargetError, or InputError about --extra-body, unless the plainest request is
    answered; `trial`: it was sent already."""
    _, error, response = trial or server.send_once(spec)
    if error is None:
        return
    if spec.extra and server.send_once(msgspec.structs.replace(spec, extra={})).error is None:
        raise InputError(f"--extra-body: the server does not take it ({error}); correct it")
    place = server.url + make_path(spec)
    if response.status_code == 200:
        kind = excerpt(response.headers.get("content-type", "no content type"))
        if "event-stream" in kind and spec.stream:
            raise TargetError(
                f"{place}: the simplest request failed ({error}); see the server's log"
            )
        if spec.stream and _is_whole(spec, response.content):
            raise TargetError(
                f"{place}: asked for a stream, it answers in one piece; measure that: --no-stream"
            )
        form = "event stream" if spec.stream else "answer"
        raise TargetError(
            f"{place}: no {form} of a language model ({kind}: {error}); check the URL"
        )
    if spec.stream and response.status_code not in (401, 403, *NOT_OFFERED):
        whole = msgspec.structs.replace(spec, stream=False)
        if server.send_once(whole).error is None:
            raise TargetError(
                f"{place}: streaming is refused ({error}); measure without it: --no-stream"
            )
    raise TargetError(refusal(place, response))


def _is_whole(spec: RequestSpec, content: bytes) -> bool:
    """Return whether a body is an answer in one piece."""
    answer = find_wire(spec.endpoint).answer(stream=False)
    answer.feed(content)
    answer.finish()
    has_ended = answer.events > 0 or answer.finish_reason is not None
    return answer.error is None and answer.done and has_ended
