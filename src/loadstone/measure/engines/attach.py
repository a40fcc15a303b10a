"""Gets to know a server: who it is, what it takes, and how to write prompts of exact length for it.

Everything here happens before the run, with single small requests, each sent and read as the run's
will be.
"""

import contextlib
import itertools
import re
from typing import NamedTuple

import msgspec

from loadstone.core.errors import TargetError
from loadstone.core.record import Target
from loadstone.engines.table import SIMULATED, known_servers, priority_sign
from loadstone.measure.engines import pages
from loadstone.measure.engines.probe import Requirements, counts_pairs, find_vocabulary, negotiate
from loadstone.measure.engines.server import Server, Trial
from loadstone.measure.wire.tolerant import list_objects
from loadstone.measure.wire.wire import Found, find_wire, list_wires
from loadstone.workload.prompts import Vocabulary
from loadstone.workload.request import RequestSpec

_REFUSED = (400, 422, *pages.NOT_OFFERED)
"""By this a server without a chat template, or of chat alone, or of another kind of model, may say
that it is."""
_MAX_MODELS = 8
_LEAST_TOKENS = (1, 16, 128)
"""The fewest tokens that are asked for: some servers refuse less."""


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
        endpoint=needs.endpoint or "", model="", stream=needs.stream, extra=needs.extra
    )
    target, spec = _identify(server, plain, needs)
    target.streams = needs.stream
    spec = negotiate(server, target, spec, needs)
    vocabulary = find_vocabulary(server, target, spec, needs)
    target.prompt_kind, target.overhead_tokens = vocabulary.kind, vocabulary.overhead_tokens
    if find_wire(spec.endpoint).has_queries:
        target.pairs = counts_pairs(server, spec, vocabulary.words)
        # What is added to a pair is none of its texts'; read by itself, each has its half of it.
        added = 0 if target.pairs else target.overhead_tokens // 2
        vocabulary = msgspec.structs.replace(vocabulary, overhead_tokens=added)
    return Attached(target, vocabulary, spec)


def check_same(server: Server, target: Target, request: RequestSpec) -> str | None:
    """Return the engine of another server of a fleet, where known; it must offer the same model at
    the same endpoint.

    Raises TargetError, naming the server.
    """
    kept = ("endpoint", "model", "stream", "query", "length", "least_tokens", "stored", "form")
    spec = RequestSpec(**{name: getattr(request, name) for name in kept})
    models = server.get_json("/v1/models", must_allow=True)
    names = pages.list_models(models)
    if names and target.model not in names:
        raise TargetError(
            f"{server.url}: offers {pages.join_names(names)}, and {target.url}"
            f" {pages.shorten(target.model)}; a fleet serves one model"
        )
    wire = find_wire(target.endpoint)
    if wire.describe is not None:
        return wire.describe(server, spec, target.model)[0].engine
    pages.check_answered(server, spec)
    engine = pages.recognise_engine(models, server.get("/metrics"))
    return None if engine is None else engine.title


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


def priority_sign_of(target: Target) -> int:
    """Return how a server orders the priorities of requests, as priority_sign() has it; of a
    simulated engine by its own word."""
    if target.engine != SIMULATED:
        return priority_sign(target.engine)
    signs = [entry.get("priority_sign") for entry in list_objects(target.models, "data")]
    return next((sign for sign in signs if sign in (-1, 1)), 0)


def flush(server: Server) -> str | None:
    """Empty the prefix cache; by which path that was done, None where the server offers none.

    A server that is gone by now is left to the run, whose requests then tell.
    """
    with contextlib.suppress(TargetError):
        for kind in known_servers():
            if kind.flush is not None and server.post(kind.flush, b"{}").status_code == 200:
                return kind.flush
    return None


def _identify(server: Server, plain: RequestSpec, needs: Requirements) -> Found:
    """Return the server, and the plainest request that it answers: `plain`, with its model and
    endpoint.

    Without an endpoint: those whose servers list their models at /v1/models, completions (which
    take exact prompts) first, or with `text_only` the first that takes messages; else those that
    are recognised by pages of their own. Raises TargetError, one line, where it cannot be measured.
    """
    endpoint, model = needs.endpoint, needs.model
    if endpoint is not None:
        describe = find_wire(endpoint).describe
        if describe is not None:
            return describe(server, plain, model)
    endpoints = [endpoint] if endpoint is not None else _list_endpoints(needs)
    models = server.get_json("/v1/models", must_allow=True)
    listed = pages.list_models(models)
    if endpoint is None and model is None and not listed:
        found = _recognise(server, plain, model)
        if found is not None:
            return found
    plain = msgspec.structs.replace(plain, query=server.query)
    chosen = pages.choose_model(server, models, model)
    names = [chosen]
    if model is None and listed:
        names = listed[:_MAX_MODELS]
    refusals: list[tuple[RequestSpec, Trial]] = []
    for name, candidate in itertools.product(names, endpoints):
        spec = msgspec.structs.replace(plain, endpoint=candidate, model=name)
        spec, trial = _send_short(server, spec)
        if trial.status == 200:
            pages.check_answered(server, spec, trial)
            if name != names[0]:
                server.missed.append(
                    f"{server.url}: {pages.shorten(names[0])} is refused; measured with"
                    f" {pages.shorten(name)}"
                )
            return pages.describe(server, candidate, name, models), spec
        refusals.append((spec, trial))
        if trial.status not in _REFUSED:
            break
    serious = [refused for refused in refusals if refused[1].status not in pages.NOT_OFFERED]
    if not serious and endpoint is None:
        found = _recognise(server, plain, model)
        if found is not None:
            return found
    spec, trial = (serious or refusals[-1:])[0]
    try:
        pages.check_answered(server, spec, trial)
    except TargetError as error:
        if len(names) == 1:
            raise
        raise TargetError(f"{error}; or choose with --model: {pages.join_names(names)}") from error
    raise AssertionError  # a refusal does not pass


def _list_endpoints(needs: Requirements) -> list[str]:
    """List the APIs to try on a server that lists its models at /v1/models, in order."""
    wires = {name: wire for name, wire in list_wires().items() if wire.describe is None}
    if needs.text_only:
        first = [name for name, wire in wires.items() if wire.takes_messages][:1]
        return [*first, *(name for name in wires if name not in first)]
    return list(wires)


def _recognise(server: Server, plain: RequestSpec, model: str | None) -> Found | None:
    """Return the server by an API that shows on pages of its own; None where it has none that is
    known."""
    for name, wire in list_wires().items():
        spec = msgspec.structs.replace(plain, endpoint=name, query="")
        if (
            wire.describe is not None
            and wire.recognise is not None
            and wire.recognise(server, spec)
        ):
            return wire.describe(server, spec, model)
    return None


def _send_short(server: Server, spec: RequestSpec) -> tuple[RequestSpec, Trial]:
    """Return the plainest request, with the length asked for in the first of the ways that is not
    refused."""
    names = find_wire(spec.endpoint).length_names
    spec = msgspec.structs.replace(spec, length=names[0])
    trial = server.send_once(spec)
    for least_tokens, name in itertools.islice(itertools.product(_LEAST_TOKENS, names), 1, None):
        error = trial.error or ""
        if trial.status not in (400, 422) or re.search("token|max|length", error) is None:
            break
        changed = msgspec.structs.replace(spec, length=name, least_tokens=least_tokens)
        answered = server.send_once(changed)
        if answered.status == 200:
            return changed, answered
    return spec, trial
