"""Gets to know a server: who it is, what it takes, and how to write prompts of exact length for it.

Everything here happens before the run, with single small requests, each sent and read as the run's
will be.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import httpx
import msgspec

from loadstone.core.errors import TargetError
from loadstone.core.record import Target
from loadstone.core.text import excerpt
from loadstone.engines.table import SIMULATED, KnownServer, known_servers
from loadstone.measure.engines.probe import Requirements, check_extra, find_vocabulary, negotiate
from loadstone.measure.engines.server import Server, Trial, refusal
from loadstone.measure.engines.triton import TritonRepository
from loadstone.measure.wire.request import make_path, new_answer
from loadstone.measure.wire.tolerant import list_objects
from loadstone.workload.prompts import Vocabulary
from loadstone.workload.request import SGLANG, TRITON, RequestSpec

_NOT_OFFERED = (404, 405, 501)
_REFUSED = (400, 422, *_NOT_OFFERED)
"""By this a server without a chat template, or of chat alone, or of another kind of model, may say
that it is."""
_MOST_MODELS = 8
_LENGTHS: tuple[tuple[int, Any], ...] = (
    *itertools.product((1, 16, 128), ("max_tokens", "max_completion_tokens")),
)
"""Ways to ask for a short answer: the fewest tokens, and their name."""


class Attached(NamedTuple):
    """Holds a server that was probed: what it is, how prompts are written for it, and what all
    requests have in common."""

    target: Target
    vocabulary: Vocabulary
    request: RequestSpec


def attach(server: Server, needs: Requirements) -> Attached:
    """Find out who the server is and what it takes.

    Raises TargetError, one line, where it cannot be measured, and InputError where it does not take
    what is needed.
    """
    plain = RequestSpec(
        endpoint=needs.endpoint or "completions", model="", stream=needs.stream, extra=needs.extra
    )
    target, spec = _identify(server, plain, needs)
    target.streams = needs.stream
    spec = negotiate(server, target, spec, needs)
    vocabulary = find_vocabulary(server, target, spec, needs)
    target.prompt_kind, target.overhead_tokens = vocabulary.kind, vocabulary.overhead_tokens
    return Attached(target, vocabulary, spec)


def check_same(server: Server, target: Target, request: RequestSpec) -> str | None:
    """Another server of a fleet must offer the same model at the same endpoint. Returns its engine,
    where known.

    Raises TargetError, naming the server.
    """
    kept = ("endpoint", "model", "stream", "query", "length", "least_tokens")
    spec = RequestSpec(**{name: getattr(request, name) for name in kept})
    if target.endpoint == TRITON:
        _check(server, TritonRepository(server).complete(spec, target.model))
        return target.engine
    models = server.get_json("/v1/models", must_allow=True)
    names = _names(models)
    if names and target.model not in names:
        raise TargetError(
            f"{server.url}: offers {_join_names(names)}, and {target.url} {_safe(target.model)}; "
            "a fleet serves one model"
        )
    _check(server, spec)
    known = _known_server(models, server.get("/metrics"))
    return None if known is None else known.title


def simulated_deployment(target: Target) -> str | None:
    """Return the shorthand of what a simulated engine simulates, by its own word; None: it does not
    say so, or is no such engine.
    """
    if target.engine != SIMULATED:
        return None
    named = (
        entry.get("deployment")
        for entry in list_objects(target.models, "data")
        if entry.get("id") == target.model
    )
    return next((text for text in named if isinstance(text, str)), None)


def flush(server: Server) -> str | None:
    """Empty the prefix cache; by which path that was done, None where the server offers none.

    A server that is gone by now is left to the run, whose requests then tell.
    """
    for known in known_servers():
        if known.flush is None:
            continue
        try:
            answer = server.post(known.flush, b"{}")
        except TargetError:
            return None
        if answer.status_code == 200:
            return known.flush
    return None


def _identify(
    server: Server, plain: RequestSpec, needs: Requirements
) -> tuple[Target, RequestSpec]:
    """Return the server, and the plainest request that it answers: `plain`, with its model and
    endpoint.

    Without an endpoint: completions (which take exact prompts), else chat, with `text_only` in the
    other order; else SGLang's /generate, else Triton. Raises TargetError, one line, where it cannot
    be measured.
    """
    endpoint, model = needs.endpoint, needs.model
    if endpoint == TRITON:
        return _triton(server, plain, model)
    models = server.get_json("/v1/models", must_allow=True)
    if endpoint == SGLANG:
        return _sglang(server, plain, model, models)
    plain = msgspec.structs.replace(plain, query=server.query)
    openai: tuple[str, ...] = (
        ("chat", "completions") if needs.text_only else ("completions", "chat")
    )
    if endpoint is None and model is None and not _names(models):
        native = _by_other_dialect(server, plain, model, models)
        if native is not None:
            return native
    chosen = _choose_model(server, models, model)
    names = [chosen] if model is not None else _names(models)[:_MOST_MODELS] or [chosen]
    refusals: list[tuple[RequestSpec, Trial]] = []
    for name, choice in itertools.product(names, openai if endpoint is None else (endpoint,)):
        spec, trial = _send_short(
            server, msgspec.structs.replace(plain, endpoint=choice, model=name)
        )
        if trial.status == 200:
            _check(server, spec, trial)
            target = _target(server, name, models)
            target.endpoint = choice
            if name != names[0]:
                server.missed.append(
                    f"{server.url}: {_safe(names[0])} is refused; measured with {_safe(name)}"
                )
            return target, spec
        refusals.append((spec, trial))
        if trial.status not in _REFUSED:
            break
    serious = [entry for entry in refusals if entry[1].status not in _NOT_OFFERED]
    if not serious and endpoint is None:
        native = _by_other_dialect(server, plain, model, models)
        if native is not None:
            return native
    try:
        _check(server, *(serious or refusals[-1:])[0])
    except TargetError as error:
        if len(names) == 1:
            raise
        raise TargetError(f"{error}; or choose with --model: {_join_names(names)}") from error
    raise AssertionError  # a refusal does not pass


def _send_short(server: Server, spec: RequestSpec) -> tuple[RequestSpec, Trial]:
    """Return the plainest request, with the length asked for in the first of the ways that is not
    refused."""
    trial = server.send_once(spec)
    for least, name in _LENGTHS[1:]:
        if (
            trial.status not in (400, 422)
            or re.search("token|max|length", trial.error or "") is None
        ):
            break
        other = msgspec.structs.replace(spec, length=name, least_tokens=least)
        if (answered := server.send_once(other)).status == 200:
            return other, answered
    return spec, trial


def _check(server: Server, spec: RequestSpec, trial: Trial | None = None) -> None:
    """Raises TargetError, or InputError about --extra-body, unless the plain request is
    answered."""
    _, error, response = trial or server.send_once(spec)
    if error is None:
        return
    check_extra(server, spec, error)
    place = server.url + make_path(spec)
    if response.status_code == 200:
        kind = excerpt(response.headers.get("content-type", "no content type"))
        if "event-stream" in kind and spec.stream:
            raise TargetError(
                f"{place}: the simplest request failed ({error}); see the server's log"
            )
        if spec.stream and _answers_whole(spec, response.content):
            raise TargetError(
                f"{place}: asked for a stream, it answers in one piece; measure that: --no-stream"
            )
        what = "event stream" if spec.stream else "answer"
        raise TargetError(
            f"{place}: no {what} of a language model ({kind}: {error}); check the URL"
        )
    if spec.stream and response.status_code not in (401, 403, *_NOT_OFFERED):
        whole = msgspec.structs.replace(spec, stream=False)
        if server.send_once(whole).error is None:
            raise TargetError(
                f"{place}: streaming is refused ({error}); measure without it: --no-stream"
            )
    raise TargetError(refusal(place, response))


def _answers_whole(spec: RequestSpec, content: bytes) -> bool:
    whole = new_answer(spec.endpoint, stream=False)
    whole.feed(content)
    whole.finish()
    return (
        whole.error is None and whole.done and (whole.events > 0 or whole.finish_reason is not None)
    )


# --- the OpenAI endpoints -------------------------------------------------------------------------


def _target(server: Server, model: str, models: Any) -> Target:
    """Return the server as it describes itself; its endpoint and prompts are found out later."""
    version = server.get_json("/version")
    metrics = server.get("/metrics")
    known = _known_server(models, metrics)
    if known is not None:
        version = _own_version(server, known) or version
    reported = version.get("version") if isinstance(version, dict) else None
    return Target(
        url=server.url,
        endpoint="",
        model=model,
        engine=None if known is None else known.title,
        engine_version=_safe(reported) if isinstance(reported, str) else None,
        prompt_kind="text",
        max_model_tokens=_context(models, model),
        models=models,
        version=version,
        metrics_names=list_metrics(metrics),
    )


def _choose_model(server: Server, models: Any, requested: str | None) -> str:
    names = _names(models)
    if requested is None:
        if not names and (deployment := re.search("/deployments/([^/]+)", server.base_path)):
            return deployment[1]
        if not names:
            place, answer = server.url + "/v1/models", server.answer("/v1/models")
            if answer.status_code not in (200, *_NOT_OFFERED):
                raise TargetError(refusal(place, answer))
            status = "" if answer.status_code == 200 else f" (HTTP {answer.status_code})"
            raise TargetError(
                f"{place} names no model{status}; check the URL, or name the model with --model"
            )
        return names[0]
    if names and requested not in names:
        raise TargetError(f"--model {requested}: the server offers {_join_names(names)}")
    return requested


def _names(models: Any) -> list[str]:
    return [
        name
        for entry in list_objects(models, "data")
        if isinstance(name := entry.get("id"), str) and name
    ]


def _known_server(models: Any, metrics: httpx.Response | None) -> KnownServer | None:
    owners = {str(entry.get("owned_by", "")).lower() for entry in list_objects(models, "data")}
    text = metrics.text[:20_000] if metrics is not None else ""
    by_owner = [known for known in known_servers() if known.owner in owners]
    by_metrics = [known for known in known_servers() if known.metrics and known.metrics in text]
    return next(iter(by_owner + by_metrics), None)


def _own_version(server: Server, known: KnownServer) -> dict[str, str] | None:
    """Return the version that the engine's own pages state, of all that they hold that alone."""
    about = next((answer for page in known.about if (answer := server.get_json(page))), None)
    version = about.get(known.version) if isinstance(about, dict) else None
    return {"version": _safe(version)} if isinstance(version, str) and version else None


def _context(models: Any, model: str) -> int | None:
    """Return the longest prompt and answer together, where the server says: vLLM's and SGLang's
    key, or llama.cpp's."""
    for entry in list_objects(models, "data"):
        if entry.get("id") == model:
            meta = entry.get("meta")
            value = entry.get("max_model_len") or (
                meta.get("n_ctx") if isinstance(meta, dict) else None
            )
            return int(value) if isinstance(value, int | float) and 0 < value < math.inf else None
    return None


def list_metrics(metrics: httpx.Response | None) -> list[str]:
    if metrics is None:
        return []
    names = {
        line.split()[2]
        for line in metrics.text.splitlines()
        if line.startswith("# TYPE ") and line.count(" ") >= 3
    }
    return sorted(_safe(name) for name in names)[:500]


# --- the others -----------------------------------------------------------------------------------


def _triton(server: Server, plain: RequestSpec, model: str | None) -> tuple[Target, RequestSpec]:
    repository = TritonRepository(server)
    version = repository.version
    model = repository.choose_model(model)
    spec = repository.complete(plain, model)
    _check(server, spec)
    target = Target(
        url=server.url,
        endpoint=TRITON,
        model=model,
        engine="Triton",
        engine_version=(_safe(version) or None) if isinstance(version, str) else None,
        prompt_kind="text",
        models=repository.index,
        version=repository.about,
        metrics_names=list_metrics(server.get("/metrics")),
    )
    return target, spec


def _by_other_dialect(
    server: Server, plain: RequestSpec, model: str | None, models: Any
) -> tuple[Target, RequestSpec] | None:
    """Return the server by another dialect than OpenAI's; None where it speaks none that is
    known."""
    native = msgspec.structs.replace(plain, endpoint=SGLANG)
    if server.send_once(native).error is None:
        return _sglang(server, native, model, models)
    about = server.get_json("/v2")
    if isinstance(about, dict) and about.get("name") == TRITON:
        return _triton(server, msgspec.structs.replace(plain, endpoint=TRITON), model)
    return None


def _sglang(
    server: Server, plain: RequestSpec, model: str | None, models: Any
) -> tuple[Target, RequestSpec]:
    about = server.get_json("/model_info") or server.get_json("/get_model_info")
    own = about.get("model_path") if isinstance(about, dict) else None
    if model is None and not _names(models) and isinstance(own, str):
        model = own
    target = _target(server, _choose_model(server, models, model), models)
    if target.engine is None and own is not None:
        native = next(known for known in known_servers() if known.owner == SGLANG)
        target.engine = native.title
        target.version = _own_version(server, native)
        target.engine_version = target.version["version"] if target.version is not None else None
    spec = msgspec.structs.replace(plain, endpoint=SGLANG, model=target.model)
    _check(server, spec)
    target.endpoint = SGLANG
    return target, spec


def _join_names(names: Sequence[str]) -> str:
    return ", ".join(map(_safe, names[:8]))


def _safe(text: str) -> str:
    return excerpt(text, 120)
