"""Meeting a server: who it is, what it takes, and how to write prompts of exact length for it.

Everything here happens before the run, over httpx, with single small requests. Nothing that the server says is
believed further than it is used: names become excerpts, counts become ints.
"""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import SplitResult, urlsplit

import httpx

from loadstone.errors import InputError, TargetError
from loadstone.records import Target
from loadstone.wire.openai import PATHS, Answer, Endpoint, error_text, excerpt
from loadstone.workload.prompts import Vocabulary
from loadstone.workload.words import WORDS

_TIMEOUT_S = 60.0
_MIN_PIECES = 64
"""A vocabulary smaller than this would make prompts that share prefixes by chance."""
_GROUP_WORDS = 64
_BODY_BYTES = 4 * 1024 * 1024
_ID_PROBE = 32
_OPTIONAL: dict[str, dict[str, Any]] = {
    "ignore_eos": {"ignore_eos": True},
    "min_tokens": {"min_tokens": 1},
    "stream_options": {"stream_options": {"include_usage": True}},
    "continuous_usage_stats": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
}
"""Fields that help where they are known: exact lengths, and token counts in the stream."""


class Server:
    """The control plane of one server: `api` is the URL up to and without `/v1`. Close it before the run.

    `headers` go with every request. Proxies in the environment are not used, only `proxy` is.
    """

    def __init__(self, url: str, headers: Sequence[tuple[str, str]], proxy: str | None = None) -> None:
        self.parts = check_url(url)
        path = self.parts.path.rstrip("/")
        self.base_path = path.removesuffix("/v1")
        self.origin = f"{self.parts.scheme}://{self.parts.netloc}"
        self._http = httpx.Client(
            base_url=self.origin + self.base_path,
            headers=dict(headers),
            timeout=httpx.Timeout(_TIMEOUT_S, connect=10.0),
            trust_env=False,
            proxy=proxy,
            # A kept connection would hold a thread of llama-server's, and some servers and proxies cut it unasked.
            limits=httpx.Limits(max_keepalive_connections=0),
            verify=ssl.create_default_context() if self.parts.scheme == "https" else True,
        )

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str, *, must_allow: bool = False) -> httpx.Response | None:
        """The answer if it is a 200, else None. Raises TargetError where there is no server.

        `must_allow`: also where the server wants a key, or another one.
        """
        answer = self._ask("GET", path, None)
        if must_allow and answer.status_code in (401, 403):
            raise TargetError(_refusal(f"{self.origin}{self.base_path}{path}", answer))
        return answer if answer.status_code == 200 else None

    def get_json(self, path: str, *, must_allow: bool = False) -> Any:
        answer = self.get(path, must_allow=must_allow)
        return _json(answer) if answer is not None else None

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return self._ask("POST", path, body)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None) -> httpx.Response:
        try:
            deadline = time.monotonic() + _TIMEOUT_S
            request = self._http.build_request(method, path, json=body)
            answer = self._http.send(request, stream=True)
            with_limit = bytearray()
            with contextlib.closing(answer):
                for piece in answer.iter_bytes():
                    with_limit += piece
                    if len(with_limit) > _BODY_BYTES:
                        break
                    if time.monotonic() > deadline:  # sending a little for ever is no better than silence
                        raise httpx.ReadTimeout("the answer does not end", request=request)
            answer._content = bytes(with_limit)
        except httpx.ConnectError as error:
            if "CERTIFICATE" in str(error):
                raise TargetError(
                    f"{self.origin}: its certificate is not trusted ({_reason(error)}); "
                    "name the file of its issuer's in SSL_CERT_FILE"
                ) from error
            raise TargetError(
                f"{self.origin}: no server answers there ({_reason(error)}); start it, or correct the URL"
            ) from error
        except httpx.TimeoutException as error:
            raise TargetError(
                f"{self.origin}{path}: no whole answer within {_TIMEOUT_S:.0f} s; is the server well?"
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise TargetError(
                f"{self.origin}{path}: not an HTTP server ({_reason(error)}); correct the URL"
            ) from error
        return answer


def check_url(url: str) -> SplitResult:
    """The parts of a server's URL. Raises InputError, one line, on anything but http(s)://host[:port][/path]."""
    if not url.isascii() or not url.isprintable() or " " in url:
        raise InputError(f"{_safe(url)}: no URL, which is ASCII and has no spaces; write e.g. http://localhost:8000")
    try:
        parts = urlsplit(url)
        port = parts.port
        (parts.hostname or "").encode("idna")
    except ValueError as error:
        raise InputError(f"{url}: no URL ({error}); write e.g. http://localhost:8000") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise InputError(f"{url}: no URL of a server; write e.g. http://localhost:8000")
    if parts.query or parts.fragment:
        raise InputError(f"{parts.scheme}://{parts.hostname}: leave out what begins with ? or # in the URL")
    if parts.username or parts.password:
        raise InputError("the URL holds a user name or password; give keys in LOADSTONE_API_KEY or OPENAI_API_KEY")
    return parts


def attach(
    server: Server, *, model: str | None, endpoint: Endpoint | None, tokenizer: str | None, extra: dict[str, Any]
) -> tuple[Target, Vocabulary]:
    """Ask the server who it is and try what it takes. Raises TargetError, one line, where it cannot be measured."""
    models = server.get_json("/v1/models", must_allow=True)
    version = server.get_json("/version")
    metrics = server.get("/metrics")
    model = _choose_model(server, models, model)
    target = Target(
        url=server.origin + server.base_path,
        endpoint="",
        model=model,
        engine=_engine(models, version, metrics, server),
        engine_version=_version(models, version),
        prompt_kind="text",
        max_model_tokens=_context(models, model),
        models=models,
        version=version,
        metrics_names=_metric_names(metrics),
    )
    endpoint = _choose_endpoint(server, target, endpoint, extra)
    target.endpoint = endpoint
    _try_optional(server, target, endpoint, extra)
    vocabulary = None
    if endpoint == "completions":
        vocabulary = _id_vocabulary(server, target, tokenizer, extra)
    if vocabulary is None:
        vocabulary = _word_vocabulary(server, target, endpoint, tokenizer, extra)
    target.prompt_kind, target.overhead_tokens = vocabulary.kind, vocabulary.overhead_tokens
    return target, vocabulary


# --- who it is ------------------------------------------------------------------------------------------------


def _choose_model(server: Server, models: Any, wanted: str | None) -> str:
    ids = [str(entry["id"]) for entry in _entries(models) if "id" in entry]
    if wanted is None:
        if not ids:
            raise TargetError(f"{server.origin}: /v1/models names no model; give its name with --model")
        return ids[0]
    if ids and wanted not in ids:
        raise TargetError(f"--model {wanted}: the server offers {', '.join(map(_safe, ids[:8]))}")
    return wanted


def _entries(models: Any) -> list[dict[str, Any]]:
    data = models.get("data") if isinstance(models, dict) else None
    return [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []


def _engine(models: Any, version: Any, metrics: httpx.Response | None, server: Server) -> str | None:
    owners = {str(entry.get("owned_by", "")).lower() for entry in _entries(models)}
    known = {"vllm": "vLLM", "llamacpp": "llama.cpp", "sglang": "SGLang", "loadstone": "timing server"}
    for owner, name in known.items():
        if owner in owners:
            return name
    text = metrics.text[:20_000] if metrics is not None else ""
    for prefix, name in (
        ("vllm:", "vLLM"),
        ("sglang:", "SGLang"),
        ("llamacpp:", "llama.cpp"),
        ("trtllm_", "TensorRT-LLM"),
    ):
        if prefix in text:
            return name
    return None


def _version(models: Any, version: Any) -> str | None:
    if isinstance(version, dict) and isinstance(version.get("version"), str):
        return _safe(version["version"])
    return None


def _context(models: Any, model: str) -> int | None:
    """Longest prompt and answer together, where the server says: vLLM's and SGLang's key, or llama.cpp's."""
    for entry in _entries(models):
        if entry.get("id") == model:
            meta = entry.get("meta")
            value = entry.get("max_model_len") or (meta.get("n_ctx") if isinstance(meta, dict) else None)
            return int(value) if isinstance(value, int | float) and value > 0 else None
    return None


def _metric_names(metrics: httpx.Response | None) -> list[str]:
    if metrics is None:
        return []
    names = {
        line.split()[2] for line in metrics.text.splitlines() if line.startswith("# TYPE ") and line.count(" ") >= 3
    }
    return sorted(_safe(name) for name in names)[:500]


# --- what it takes --------------------------------------------------------------------------------------------


def _choose_endpoint(server: Server, target: Target, wanted: Endpoint | None, extra: dict[str, Any]) -> Endpoint:
    """The one asked for, else completions (which takes exact prompts) where offered, else chat."""
    refusals = []
    for endpoint in (wanted,) if wanted is not None else ("completions", "chat"):
        answer = server.post(PATHS[endpoint], _body(target, endpoint, " ".join(WORDS[:8]), extra, stream=False))
        if answer.status_code == 200:
            return endpoint
        refusals.append((endpoint, answer))
        if answer.status_code not in (404, 405, 501):
            break
    endpoint, answer = refusals[-1]
    raise TargetError(_refusal(f"{target.url}{PATHS[endpoint]}", answer))


def _refusal(where: str, answer: httpx.Response) -> str:
    said = error_text(answer.content) if answer.content.strip() else "no further word"
    remedy = {
        401: "set LOADSTONE_API_KEY or OPENAI_API_KEY",
        403: "set LOADSTONE_API_KEY or OPENAI_API_KEY",
        404: "check --model and the URL",
        429: "the server limits requests; raise its limit",
    }.get(answer.status_code, "the server refuses the simplest request; see its log")
    return f"{where}: HTTP {answer.status_code}: {said}; {remedy}"


def _body(target: Target, endpoint: Endpoint, prompt: Any, extra: dict[str, Any], *, stream: bool) -> dict[str, Any]:
    asked = {"messages": [{"role": "user", "content": prompt}]} if endpoint == "chat" else {"prompt": prompt}
    return {"model": target.model, "max_tokens": 1, "stream": stream, **asked, **extra}


def _try_optional(server: Server, target: Target, endpoint: Endpoint, extra: dict[str, Any]) -> None:
    """Which helpful fields the server takes without an error, tried one at a time on a stream of one token."""
    path = PATHS[endpoint]
    plain = _body(target, endpoint, " ".join(WORDS[:8]), extra, stream=True)
    _check_stream(server, path, plain)
    for name, fields in _OPTIONAL.items():
        answer = server.post(path, {**plain, **fields})
        target.accepts[name] = answer.status_code == 200 and _stream_error(answer) is None


def _check_stream(server: Server, path: str, body: dict[str, Any]) -> None:
    answer = server.post(path, body)
    where = f"{server.origin}{server.base_path}{path}"
    if answer.status_code != 200:
        raise TargetError(f"{where}: streaming is refused, HTTP {answer.status_code}: {error_text(answer.content)}")
    error = _stream_error(answer)
    if error is not None:
        kind = excerpt(answer.headers.get("content-type", "no content type").encode())
        raise TargetError(f"{where}: no event stream of a language model ({kind}: {error}); check the URL")


def _stream_error(answer: httpx.Response) -> str | None:
    heard = Answer()
    heard.feed(answer.content)
    heard.finish()
    if heard.error is None and heard.finish_reason is None and not heard.done:
        return excerpt(answer.content) or "an empty answer"
    return heard.error


# --- prompts of exact length ----------------------------------------------------------------------------------


def _prompt_tokens(
    server: Server, target: Target, endpoint: Endpoint, prompt: Any, extra: dict[str, Any]
) -> int | None:
    """What the server counts for a prompt; None where it refuses it or gives no count."""
    answer = server.post(PATHS[endpoint], _body(target, endpoint, prompt, extra, stream=False))
    usage = _json(answer).get("usage") if answer.status_code == 200 and isinstance(_json(answer), dict) else None
    count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return int(count) if isinstance(count, int | float) else None


def _id_vocabulary(server: Server, target: Target, tokenizer: str | None, extra: dict[str, Any]) -> Vocabulary | None:
    """Token ids of ordinary words, if prompts of ids are taken and counted as they are."""
    text = "".join(f" {word}" for word in WORDS)
    if tokenizer is not None:
        ids = _local_tokenizer(tokenizer)(text)
    else:
        ids = _server_tokens(server, target, text) or list(range(1000, 3000))
    ids = sorted(set(ids))
    if len(ids) < _MIN_PIECES:
        return None
    counts = [
        _prompt_tokens(server, target, "completions", ids[:count], extra) for count in (_ID_PROBE, 2 * _ID_PROBE)
    ]
    if None in counts or counts[1] - counts[0] != _ID_PROBE:  # type: ignore[operator]
        return None
    overhead = int(counts[0] or 0) - _ID_PROBE
    return Vocabulary("token ids", ids=tuple(ids), overhead_tokens=overhead, verified=True)


def _server_tokens(server: Server, target: Target, text: str) -> list[int] | None:
    """Token ids of `text` by the server's own /tokenize: vLLM's and SGLang's form, or llama.cpp's."""
    fields = {"model": target.model, "prompt": text, "content": text, "add_special_tokens": False}
    answer = server.post("/tokenize", fields)
    tokens = _json(answer).get("tokens") if answer.status_code == 200 and isinstance(_json(answer), dict) else None
    if not isinstance(tokens, list) or not all(isinstance(token, int) and token >= 0 for token in tokens):
        return None
    return tokens


def _word_vocabulary(
    server: Server, target: Target, endpoint: Endpoint, tokenizer: str | None, extra: dict[str, Any]
) -> Vocabulary:
    """Words of one token each, found by counting: with a tokenizer where there is one, else by the server's usage."""

    def by_usage(words: Sequence[str]) -> int | None:
        return _prompt_tokens(server, target, endpoint, " ".join(words), extra)

    if tokenizer is not None:
        encode = _local_tokenizer(tokenizer)
        words = _single_token_words(lambda words: len(encode("".join(f" {word}" for word in words))), 0)
    elif _server_tokens(server, target, " time") is not None:

        def by_tokenize(words: Sequence[str]) -> int | None:
            tokens = _server_tokens(server, target, "".join(f" {word}" for word in words))
            return None if tokens is None else len(tokens)

        words = _single_token_words(by_tokenize, 0)
    else:
        overhead = _overhead(by_usage, WORDS)
        words = _single_token_words(by_usage, overhead) if overhead is not None else []
    if len(words) < _MIN_PIECES:
        # No count to go by, or a tokenizer that knows few English words: lengths are then checked after the run.
        return Vocabulary("text", words=WORDS, overhead_tokens=0, verified=False)
    overhead = _overhead(by_usage, words)
    return Vocabulary("text", words=tuple(words), overhead_tokens=overhead or 0, verified=overhead is not None)


def _overhead(count: Callable[[Sequence[str]], int | None], words: Sequence[str]) -> int | None:
    """Tokens that are not words: what 16 words cost, less what 16 more cost. None where that is no constant."""
    few, more = count(words[:16]), count(words[:32])
    if few is None or more is None or more <= few:
        return None
    return max(0, 2 * few - more)


def _single_token_words(count: Callable[[Sequence[str]], int | None], overhead: int) -> list[str]:
    """Words that cost one token each, by counting groups and halving those that cost more."""
    good: list[str] = []
    groups = [list(WORDS[i : i + _GROUP_WORDS]) for i in range(0, len(WORDS), _GROUP_WORDS)]
    tries = 0
    while groups and tries < 200:
        group = groups.pop()
        tries += 1
        cost = count(group)
        if cost is None:
            return good
        if cost - overhead == len(group):
            good += group
        elif len(group) > 4:
            middle = len(group) // 2
            groups += [group[:middle], group[middle:]]
    return good


def _local_tokenizer(path: str) -> Callable[[str], list[int]]:
    """Encoder from a tokenizer.json, or a folder that holds one. Raises InputError, one line."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise InputError("--tokenizer needs an extra package: pip install 'loadstone[tokenizers]'") from error
    from pathlib import Path

    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise InputError(
            f"--tokenizer {path}: cannot be read ({error}); give a tokenizer.json or its folder"
        ) from error

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    return encode


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        return None


def _reason(error: Exception) -> str:
    return excerpt(str(error).encode()) or type(error).__name__


def _safe(text: str) -> str:
    return excerpt(text.encode("utf-8", "replace"), 120)
