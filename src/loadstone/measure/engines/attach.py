"""Getting to know a server: who it is, what it takes, and how to write prompts of exact length for it.

Everything here happens before the run, with single small requests, each sent and read as the run's will be.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import msgspec

from loadstone.core.errors import InputError, TargetError
from loadstone.core.record import Target
from loadstone.core.text import excerpt
from loadstone.measure.engines.probe import Trial, ask_once, check_extra, find_vocabulary, negotiate, token_counter
from loadstone.measure.engines.server import Server, check_proxy, check_url, refusal, shown
from loadstone.measure.wire import triton
from loadstone.measure.wire.ask import new_answer, path
from loadstone.workload.prompts import Vocabulary
from loadstone.workload.request import Ask, Endpoint, Sampling, Structured

__all__ = ["Server", "check_proxy", "check_same", "check_url", "flush", "meet", "shown", "token_counter"]


class KnownServer(NamedTuple):
    """By what a server is known, and what it alone offers.

    owner      what /v1/models says of the models' owner
    metrics    how the names in /metrics begin
    about      the pages that state its version, the newest first; the rest of what they say is not kept
    version    the field of these pages that states it; without such pages /version says it
    flush      the path that empties its prefix cache (vLLM's: only with VLLM_SERVER_DEV_MODE=1)
    """

    engine: str
    owner: str | None = None
    metrics: str | None = None
    about: tuple[str, ...] = ()
    version: str = "version"
    flush: str | None = None


_SGLANG = KnownServer("SGLang", "sglang", "sglang:", ("/server_info", "/get_server_info"), flush="/flush_cache")
_KNOWN_SERVERS = (
    KnownServer("vLLM", "vllm", "vllm:", flush="/reset_prefix_cache"),
    KnownServer("llama.cpp", "llamacpp", "llamacpp:", ("/props",), version="build_info"),
    _SGLANG,
    KnownServer("TensorRT-LLM", metrics="trtllm_"),
    KnownServer("timing server", "loadstone"),
    KnownServer("simulated engine", "loadstone-sim"),
)
_NOT_OFFERED = (404, 405, 501)
_TRITON_MODELS = ("ensemble", "tensorrt_llm_bls")
"""TensorRT-LLM's models that take text, the preferred one first."""


def meet(
    server: Server,
    *,
    model: str | None,
    endpoint: Endpoint | None,
    tokenizer: str | None,
    sampling: Sampling,
    structured: Structured | None,
    extra: dict[str, Any],
    stream: bool,
    exact: bool,
    text_only: bool,
) -> tuple[Target, Vocabulary, Ask]:
    """Ask the server who it is and try what it takes; the Ask is what the run then sends.

    exact       lengths of answers are demanded, as far as the server can be told so
    text_only   prompts must be text (conversations): chat is preferred, and token ids are not used
    Raises TargetError, one line, where it cannot be measured, and InputError where it does not take what is wished.
    """
    if endpoint == "triton-grpc":
        raise InputError("--endpoint triton-grpc: this is met over gRPC; over HTTP it is --endpoint triton")
    plain = Ask(endpoint=endpoint or "completions", model="", stream=stream, extra=extra)
    target, ask = _identify(server, plain, model, endpoint, text_only=text_only)
    target.streams = stream
    ask = negotiate(partial(ask_once, server), target, ask, sampling=sampling, structured=structured, exact=exact)
    vocabulary = find_vocabulary(server, target, ask, tokenizer, text_only=text_only)
    target.prompt_kind, target.overhead_tokens = vocabulary.kind, vocabulary.overhead_tokens
    return target, vocabulary, ask


def check_same(server: Server, target: Target) -> None:
    """Another server of a fleet must offer the same model at the same endpoint. Raises TargetError, naming it."""
    names = _names(server.get_json("/v1/models", must_allow=True)) if target.endpoint != "triton" else []
    if names and target.model not in names:
        raise TargetError(
            f"{server.where('')}: offers {', '.join(map(_safe, names[:8]))}, and {target.url} {_safe(target.model)}; "
            "a fleet serves one model"
        )
    ask = Ask(endpoint=target.endpoint, model=target.model, stream=target.streams)  # type: ignore[arg-type]
    if target.endpoint == "triton":
        ask = msgspec.structs.replace(ask, inputs=_triton_inputs(server, target.model))
    _check(server, ask, ask_once(server, ask))


def flush(server: Server) -> str | None:
    """Empty the prefix cache; by which path that was done, None where the server offers none.

    A server that is gone by now is left to the run, whose requests then tell.
    """
    for known in _KNOWN_SERVERS:
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
    server: Server, plain: Ask, model: str | None, endpoint: Endpoint | None, *, text_only: bool
) -> tuple[Target, Ask]:
    """The server, and the plainest request that it answers: `plain`, with its model and endpoint.

    Without `endpoint`: completions (which take exact prompts), else chat, with `text_only` in the other order; else
    SGLang's /generate, else Triton. Raises TargetError, one line, where it cannot be measured.
    """
    if endpoint == "triton":
        return _triton(server, plain, model)
    models = server.get_json("/v1/models", must_allow=True)
    if endpoint == "sglang":
        return _sglang(server, plain, model, models)
    openai: tuple[Endpoint, ...] = ("chat", "completions") if text_only else ("completions", "chat")
    offered = openai if endpoint is None else (endpoint,)
    if endpoint is None and model is None and not _names(models):
        native = _by_other_dialect(server, plain, model, models)
        if native is not None:
            return native
    target = _target(server, _choose_model(server, models, model), models)
    refusals: list[tuple[Ask, Trial]] = []
    for choice in offered:
        ask = msgspec.structs.replace(plain, endpoint=choice, model=target.model)
        trial = ask_once(server, ask)
        if trial.status == 200:
            _check(server, ask, trial)
            target.endpoint = choice
            return target, ask
        refusals.append((ask, trial))
        # A server without a chat template, or of chat alone, may say 400.
        if trial.status not in (400, *_NOT_OFFERED):
            break
    serious = [entry for entry in refusals if entry[1].status not in _NOT_OFFERED]
    if not serious and endpoint is None:
        native = _by_other_dialect(server, plain, model, models)
        if native is not None:
            return native
    _check(server, *(serious or refusals[-1:])[0])
    raise AssertionError  # a refusal does not pass


def _check(server: Server, ask: Ask, trial: Trial) -> None:
    """Raises TargetError, or InputError about --extra-body, unless it is an answer."""
    _, error, response = trial
    if error is None or response is None:
        return
    check_extra(partial(ask_once, server), ask, error)
    where = server.where(path(ask))
    if response.status_code == 200:
        kind = excerpt(response.headers.get("content-type", "no content type"))
        if "event-stream" in kind and ask.stream:
            raise TargetError(f"{where}: the simplest request failed ({error}); see the server's log")
        if ask.stream and _answers_whole(ask, response.content):
            raise TargetError(f"{where}: asked for a stream, it answers in one piece; measure that: --no-stream")
        what = "event stream" if ask.stream else "answer"
        raise TargetError(f"{where}: no {what} of a language model ({kind}: {error}); check the URL")
    if ask.stream and response.status_code not in (401, 403, *_NOT_OFFERED):
        whole = msgspec.structs.replace(ask, stream=False)
        if ask_once(server, whole).error is None:
            raise TargetError(f"{where}: streaming is refused ({error}); measure without it: --no-stream")
    raise TargetError(refusal(where, response))


def _answers_whole(ask: Ask, content: bytes) -> bool:
    whole = new_answer(ask.endpoint, stream=False)
    whole.feed(content)
    whole.finish()
    return whole.error is None and whole.done and (whole.events > 0 or whole.finish_reason is not None)


# --- the OpenAI endpoints -------------------------------------------------------------------------------------


def _target(server: Server, model: str, models: Any) -> Target:
    """The server as it describes itself; its endpoint and prompts are found out later."""
    version = server.get_json("/version")
    metrics = server.get("/metrics")
    known = _known_server(models, metrics)
    if known is not None:
        version = _own_version(server, known) or version
    reported = version.get("version") if isinstance(version, dict) else None
    return Target(
        url=server.origin + server.base_path,
        endpoint="",
        model=model,
        engine=None if known is None else known.engine,
        engine_version=_safe(reported) if isinstance(reported, str) else None,
        prompt_kind="text",
        max_model_tokens=_context(models, model),
        models=models,
        version=version,
        metrics_names=_metric_names(metrics),
    )


def _choose_model(server: Server, models: Any, requested: str | None) -> str:
    names = _names(models)
    if requested is None:
        if not names:
            where, answer = server.where("/v1/models"), server.answer("/v1/models")
            if answer.status_code not in (200, *_NOT_OFFERED):
                raise TargetError(refusal(where, answer))
            status = "" if answer.status_code == 200 else f" (HTTP {answer.status_code})"
            raise TargetError(f"{where} names no model{status}; check the URL, or name the model with --model")
        return names[0]
    if names and requested not in names:
        raise TargetError(f"--model {requested}: the server offers {', '.join(map(_safe, names[:8]))}")
    return requested


def _names(models: Any) -> list[str]:
    return [name for entry in _objects(models, "data") if isinstance(name := entry.get("id"), str) and name]


def _known_server(models: Any, metrics: httpx.Response | None) -> KnownServer | None:
    owners = {str(entry.get("owned_by", "")).lower() for entry in _objects(models, "data")}
    text = metrics.text[:20_000] if metrics is not None else ""
    by_owner = [known for known in _KNOWN_SERVERS if known.owner in owners]
    by_metrics = [known for known in _KNOWN_SERVERS if known.metrics and known.metrics in text]
    return next(iter(by_owner + by_metrics), None)


def _own_version(server: Server, known: KnownServer) -> dict[str, str] | None:
    """The version that the engine's own pages state, of all that they hold that alone."""
    about = next((answer for page in known.about if (answer := server.get_json(page))), None)
    version = about.get(known.version) if isinstance(about, dict) else None
    return {"version": _safe(version)} if isinstance(version, str) and version else None


def _context(models: Any, model: str) -> int | None:
    """Longest prompt and answer together, where the server says: vLLM's and SGLang's key, or llama.cpp's."""
    for entry in _objects(models, "data"):
        if entry.get("id") == model:
            meta = entry.get("meta")
            value = entry.get("max_model_len") or (meta.get("n_ctx") if isinstance(meta, dict) else None)
            return int(value) if isinstance(value, int | float) and 0 < value < math.inf else None
    return None


def _metric_names(metrics: httpx.Response | None) -> list[str]:
    if metrics is None:
        return []
    names = {
        line.split()[2] for line in metrics.text.splitlines() if line.startswith("# TYPE ") and line.count(" ") >= 3
    }
    return sorted(_safe(name) for name in names)[:500]


# --- the others -----------------------------------------------------------------------------------------------


def _by_other_dialect(server: Server, plain: Ask, model: str | None, models: Any) -> tuple[Target, Ask] | None:
    """The server by another dialect than OpenAI's; None where it speaks none that is known."""
    native = msgspec.structs.replace(plain, endpoint="sglang")
    if ask_once(server, native).error is None:
        return _sglang(server, native, model, models)
    about = server.get_json("/v2")
    if isinstance(about, dict) and about.get("name") == "triton":
        return _triton(server, plain, model)
    return None


def _sglang(server: Server, plain: Ask, model: str | None, models: Any) -> tuple[Target, Ask]:
    about = server.get_json("/model_info") or server.get_json("/get_model_info")
    own = about.get("model_path") if isinstance(about, dict) else None
    if model is None and not _names(models) and isinstance(own, str):
        model = own
    target = _target(server, _choose_model(server, models, model), models)
    if target.engine is None and own is not None:
        target.engine = "SGLang"
        target.version = _own_version(server, _SGLANG)
        target.engine_version = target.version["version"] if target.version is not None else None
    ask = msgspec.structs.replace(plain, endpoint="sglang", model=target.model)
    _check(server, ask, ask_once(server, ask))
    target.endpoint = "sglang"
    return target, ask


def _triton(server: Server, plain: Ask, model: str | None) -> tuple[Target, Ask]:
    about = server.get_json("/v2", must_allow=True)
    if not isinstance(about, dict) or "name" not in about:
        raise TargetError(f"{server.where('/v2')}: no Triton server answers there; correct the URL, or --endpoint")
    index = server.post_json("/v2/repository/index", {"ready": True})
    model = choose_triton_model(server.where(""), index, model)
    ask = msgspec.structs.replace(plain, endpoint="triton", model=model, inputs=_triton_inputs(server, model))
    _check(server, ask, ask_once(server, ask))
    version = about.get("version")
    target = Target(
        url=server.origin + server.base_path,
        endpoint="triton",
        model=model,
        engine="Triton",
        engine_version=_safe(version) if isinstance(version, str) else None,
        prompt_kind="text",
        models=index,
        version=about,
        metrics_names=_metric_names(server.get("/metrics")),
    )
    return target, ask


def choose_triton_model(where: str, index: Any, requested: str | None) -> str:
    """The model asked for, else TensorRT-LLM's that takes text, else the only one, of a repository's index.

    index   [{"name": …, "state": "READY", …}, …], or anything where the server gives none. Raises TargetError.
    """
    entries = _objects({"index": index}, "index")
    ready = [str(entry["name"]) for entry in entries if "name" in entry and entry.get("state", "READY") == "READY"]
    if requested is not None:
        if ready and requested not in ready:
            raise TargetError(f"--model {requested}: the server has ready {', '.join(map(_safe, ready[:8]))}")
        return requested
    for name in _TRITON_MODELS:
        if name in ready:
            return name
    if len(ready) != 1:
        listed = f"has ready {', '.join(map(_safe, ready[:8]))}" if ready else "names no model that is ready"
        raise TargetError(f"{where}: the server {listed}; choose one with --model")
    return ready[0]


def _triton_inputs(server: Server, model: str) -> tuple[str, ...]:
    """The names of a model's inputs. Raises TargetError where they are not those of a language model."""
    where = f"/v2/models/{quote(model, safe='')}/config"
    config = server.get_json(where, must_allow=True)
    return triton_inputs(server.where(where), [str(entry.get("name")) for entry in _objects(config, "input")])


def triton_inputs(where: str, names: list[str]) -> tuple[str, ...]:
    """The same names, if they are those of a language model as TensorRT-LLM's backend has it. Raises TargetError."""
    missing = [name for name in triton.NEEDED if name not in names]
    if missing:
        raise TargetError(
            f"{where}: the model has no input {' and '.join(missing)}: it has "
            f"{', '.join(map(_safe, names[:20])) or 'none'}; name one that has with --model"
        )
    return tuple(names)


def _objects(document: Any, name: str) -> list[dict[str, Any]]:
    """The objects in a document's list of that name; none where there is no such list."""
    entries = document.get(name) if isinstance(document, dict) else None
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _safe(text: str) -> str:
    return excerpt(text, 120)
