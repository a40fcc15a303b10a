"""Who a server is: its engine, its model, and the endpoint to measure."""

from __future__ import annotations

import math
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from loadstone.core import Target
from loadstone.core.errors import InputError, TargetError
from loadstone.core.text import excerpt
from loadstone.measure.engines.probe import Heard, ask_once
from loadstone.measure.engines.server import Server, refusal
from loadstone.measure.wire import triton
from loadstone.measure.wire.ask import path
from loadstone.measure.wire.dialects import new_answer
from loadstone.workload.request import Ask, Endpoint

_ENGINES = {
    "vllm": "vLLM",
    "llamacpp": "llama.cpp",
    "sglang": "SGLang",
    "loadstone": "timing server",
    "loadstone-sim": "simulated engine",
}
"""By what /v1/models says of the models' owner."""
_METRICS = {"vllm:": "vLLM", "sglang:": "SGLang", "llamacpp:": "llama.cpp", "trtllm_": "TensorRT-LLM"}
"""By how the names in /metrics begin."""
_NOT_OFFERED = (404, 405, 501)
_TRITON_MODELS = ("ensemble", "tensorrt_llm_bls")
"""TensorRT-LLM's models that take text, the preferred one first."""


def identify(
    server: Server,
    *,
    model: str | None,
    endpoint: Endpoint | None,
    extra: dict[str, Any],
    stream: bool,
    text_only: bool,
) -> tuple[Target, Ask]:
    """The server, and the plainest request that it answers.

    Without `endpoint`: completions (which take exact prompts), else chat, with `text_only` in the other order; else
    SGLang's /generate, else Triton. Raises TargetError, one line, where it cannot be measured.
    """
    plain = Ask(endpoint=endpoint or "completions", model="", stream=stream, extra=extra)
    if endpoint == "triton":
        return _triton(server, plain, model)
    models = server.get_json("/v1/models", must_allow=True)
    if endpoint == "sglang":
        return _sglang(server, plain, model, models)
    offered: tuple[Endpoint, ...] = ("chat", "completions") if text_only else ("completions", "chat")
    if endpoint is not None:
        offered = (endpoint,)
    if endpoint is None and model is None and not _names(models):
        found = _elsewhere(server, plain, model, models)
        if found is not None:
            return found
    target = _target(server, _choose_model(server, models, model), models)
    refusals: list[tuple[Ask, Heard]] = []
    for choice in offered:
        ask = msgspec.structs.replace(plain, endpoint=choice, model=target.model)
        heard = ask_once(server, ask)
        if heard.response.status_code == 200:
            _check(server, ask, heard)
            target.endpoint = choice
            return target, ask
        refusals.append((ask, heard))
        # A server without a chat template, or of chat alone, may say 400.
        if heard.response.status_code not in (400, *_NOT_OFFERED):
            break
    serious = [entry for entry in refusals if entry[1].response.status_code not in _NOT_OFFERED]
    if not serious and endpoint is None:
        found = _elsewhere(server, plain, model, models)
        if found is not None:
            return found
    _check(server, *(serious or refusals[-1:])[0])
    raise AssertionError  # a refusal does not pass


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
    _check(server, ask, ask_once(server, ask, tokens=_probe_tokens(ask)))


def _check(server: Server, ask: Ask, heard: Heard) -> None:
    """Raises TargetError, or InputError about --extra-body, unless it is an answer."""
    if heard.error is None:
        return
    where, status = server.where(path(ask)), heard.response.status_code
    if ask.extra and ask_once(server, msgspec.structs.replace(ask, extra={})).error is None:
        raise InputError(f"--extra-body: the server does not take it ({heard.error}); correct it")
    if status == 200:
        kind = excerpt(heard.response.headers.get("content-type", "no content type"))
        if "event-stream" in kind and ask.stream:
            raise TargetError(f"{where}: the simplest request failed ({heard.error}); see the server's log")
        if ask.stream and _answers_whole(ask, heard):
            raise TargetError(f"{where}: asked for a stream, it answers in one piece; measure that: --no-stream")
        what = "event stream" if ask.stream else "answer"
        raise TargetError(f"{where}: no {what} of a language model ({kind}: {heard.error}); check the URL")
    if ask.stream and status not in (401, 403, *_NOT_OFFERED):
        whole = msgspec.structs.replace(ask, stream=False)
        if ask_once(server, whole).error is None:
            raise TargetError(f"{where}: streaming is refused ({heard.error}); measure without it: --no-stream")
    raise TargetError(refusal(where, heard.response))


def _answers_whole(ask: Ask, heard: Heard) -> bool:
    whole = new_answer(ask.endpoint, stream=False)
    whole.feed(heard.response.content)
    whole.finish()
    return whole.error is None and whole.done and (whole.events > 0 or whole.finish_reason is not None)


# --- the OpenAI endpoints -------------------------------------------------------------------------------------


def _target(server: Server, model: str, models: Any) -> Target:
    """The server as it describes itself; its endpoint and prompts are found out later."""
    version = server.get_json("/version")
    metrics = server.get("/metrics")
    engine = _engine(models, metrics)
    if engine == "SGLang":
        version = _sglang_version(server) or version
    elif engine == "llama.cpp":
        version = _llama_cpp_version(server) or version
    said = version.get("version") if isinstance(version, dict) else None
    return Target(
        url=server.origin + server.base_path,
        endpoint="",
        model=model,
        engine=engine,
        engine_version=_safe(said) if isinstance(said, str) else None,
        prompt_kind="text",
        max_model_tokens=_context(models, model),
        models=models,
        version=version,
        metrics_names=_metric_names(metrics),
    )


def _choose_model(server: Server, models: Any, wanted: str | None) -> str:
    names = _names(models)
    if wanted is None:
        if not names:
            where, answer = server.where("/v1/models"), server.answer("/v1/models")
            if answer.status_code not in (200, *_NOT_OFFERED):
                raise TargetError(refusal(where, answer))
            status = "" if answer.status_code == 200 else f" (HTTP {answer.status_code})"
            raise TargetError(f"{where} names no model{status}; check the URL, or name the model with --model")
        return names[0]
    if names and wanted not in names:
        raise TargetError(f"--model {wanted}: the server offers {', '.join(map(_safe, names[:8]))}")
    return wanted


def _names(models: Any) -> list[str]:
    return [name for entry in _entries(models) if isinstance(name := entry.get("id"), str) and name]


def _entries(models: Any) -> list[dict[str, Any]]:
    data = models.get("data") if isinstance(models, dict) else None
    return [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []


def _engine(models: Any, metrics: httpx.Response | None) -> str | None:
    owners = {str(entry.get("owned_by", "")).lower() for entry in _entries(models)}
    text = metrics.text[:20_000] if metrics is not None else ""
    by_owner = [name for owner, name in _ENGINES.items() if owner in owners]
    by_metrics = [name for prefix, name in _METRICS.items() if prefix in text]
    return next(iter(by_owner + by_metrics), None)


def _context(models: Any, model: str) -> int | None:
    """Longest prompt and answer together, where the server says: vLLM's and SGLang's key, or llama.cpp's."""
    for entry in _entries(models):
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


def _elsewhere(server: Server, plain: Ask, model: str | None, models: Any) -> tuple[Target, Ask] | None:
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
        target.version = _sglang_version(server)
        target.engine_version = target.version["version"] if target.version is not None else None
    ask = msgspec.structs.replace(plain, endpoint="sglang", model=target.model)
    _check(server, ask, ask_once(server, ask))
    target.endpoint = "sglang"
    return target, ask


def _sglang_version(server: Server) -> dict[str, str] | None:
    """Of a long answer, which holds the server's arguments, the version alone."""
    about = server.get_json("/server_info") or server.get_json("/get_server_info")
    version = about.get("version") if isinstance(about, dict) else None
    return {"version": _safe(version)} if isinstance(version, str) else None


def _llama_cpp_version(server: Server) -> dict[str, str] | None:
    """The build, as `b11669-Debian`: of all its properties, which hold paths and a template, that alone."""
    about = server.get_json("/props")
    build = about.get("build_info") if isinstance(about, dict) else None
    return {"version": _safe(build)} if isinstance(build, str) and build else None


def _triton(server: Server, plain: Ask, model: str | None) -> tuple[Target, Ask]:
    about = server.get_json("/v2", must_allow=True)
    if not isinstance(about, dict) or "name" not in about:
        raise TargetError(f"{server.where('/v2')}: no Triton server answers there; correct the URL, or --endpoint")
    index = server.post_json("/v2/repository/index", {"ready": True})
    model = choose_triton_model(server.where(""), index, model)
    ask = msgspec.structs.replace(plain, endpoint="triton", model=model, inputs=_triton_inputs(server, model))
    _check(server, ask, ask_once(server, ask, tokens=_probe_tokens(ask)))
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


def choose_triton_model(where: str, index: Any, wanted: str | None) -> str:
    """The model asked for, else TensorRT-LLM's that takes text, else the only one, of a repository's index.

    index   [{"name": …, "state": "READY", …}, …], or anything where the server gives none. Raises TargetError.
    """
    entries = [entry for entry in index if isinstance(entry, dict)] if isinstance(index, list) else []
    ready = [str(entry["name"]) for entry in entries if "name" in entry and entry.get("state", "READY") == "READY"]
    if wanted is not None:
        if ready and wanted not in ready:
            raise TargetError(f"--model {wanted}: the server has ready {', '.join(map(_safe, ready[:8]))}")
        return wanted
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
    given = config.get("input") if isinstance(config, dict) else None
    inputs = [entry for entry in given if isinstance(entry, dict)] if isinstance(given, list) else []
    return triton_inputs(server.where(where), [str(entry.get("name")) for entry in inputs])


def triton_inputs(where: str, names: list[str]) -> tuple[str, ...]:
    """The same names, if they are those of a language model as TensorRT-LLM's backend has it. Raises TargetError."""
    missing = [name for name in triton.NEEDED if name not in names]
    if missing:
        raise TargetError(
            f"{where}: the model has no input {' and '.join(missing)}: it has "
            f"{', '.join(map(_safe, names[:20])) or 'none'}; name one that has with --model"
        )
    return tuple(names)


def _probe_tokens(ask: Ask) -> int:
    """Tokens of a trial: Triton's answers may hide a single token that has no text."""
    return 4 if ask.endpoint == "triton" else 1


def _safe(text: str) -> str:
    return excerpt(text, 120)
