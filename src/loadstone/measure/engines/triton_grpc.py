"""Meeting Triton over gRPC alone, as `--endpoint triton-grpc` does: attach.py's counterpart for a gRPC port."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import msgspec

from loadstone.core.errors import InputError, TargetError
from loadstone.core.record import Target
from loadstone.core.secrets import blank, keys_in
from loadstone.core.text import excerpt
from loadstone.measure.client.grpc import METHOD, OPTIONS, library, metadata
from loadstone.measure.engines.attach import choose_triton_model, triton_inputs
from loadstone.measure.engines.probe import PROMPT, Trial, check_extra, find_words, negotiate, trial_tokens
from loadstone.measure.engines.server import check_url
from loadstone.measure.wire.ask import RequestBody, body
from loadstone.measure.wire.triton import GrpcAnswer, encode, fold
from loadstone.workload.prompts import Vocabulary
from loadstone.workload.request import Ask, Sampling, Structured

_TIMEOUT_S = 60.0
_PREFIX = METHOD.rpartition("/")[0]
_RESPONSES = 1000


class Server:
    """Triton's gRPC port, for single small requests; use in a `with`, and leave it before the run.

    Raises InputError on a URL of TLS or with a path, on a proxy, and where the `triton` extra is not installed.
    """

    def __init__(self, url: str, headers: Sequence[tuple[str, str]], proxy: str | None = None) -> None:
        parts = check_url(url)
        if parts.scheme != "http":
            raise InputError(f"{url}: gRPC is measured without TLS only; give http://HOST:PORT")
        if proxy is not None:
            raise InputError("--proxy: gRPC is measured without a proxy only; leave it out")
        if parts.path.strip("/"):
            raise InputError(f"{url}: a gRPC port has no path; give http://{parts.netloc}")
        self.parts = parts
        self.base_path = ""
        self.origin = f"http://{parts.netloc}"
        self.messages = library().messages
        self._grpc = library().grpc
        self._metadata = metadata(headers)
        self._keys = keys_in(headers)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        self._channel = self._grpc.insecure_channel(f"{host}:{parts.port or 80}", OPTIONS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def call(self, name: str, /, **fields: Any) -> Any:
        """A control request's answer. Raises TargetError where there is none."""
        request = getattr(self.messages, f"{name}Request")(**fields)
        method = self._channel.unary_unary(
            f"{_PREFIX}/{name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=getattr(self.messages, f"{name}Response").FromString,
        )
        try:
            return method(request, timeout=_TIMEOUT_S, metadata=self._metadata)
        except self._grpc.RpcError as error:
            raise TargetError(self._refusal(name, error)) from error

    def ask_once(
        self, ask: Ask, prompt: str = PROMPT, *, tokens: int | None = None, keep_text: bool = False
    ) -> Trial:
        """One request, sent and read as in a run. Raises TargetError where the server refuses the stream."""
        tokens = tokens or trial_tokens(ask)
        rendered = RequestBody(body(ask)).render(msgspec.json.encode(prompt), tokens)
        request = encode(self.messages, rendered, "meet")
        answer = GrpcAnswer(stream=ask.stream, keep_text=keep_text)
        parse = self.messages.ModelStreamInferResponse.FromString
        responses = self._channel.stream_stream(METHOD)(iter([request]), timeout=_TIMEOUT_S, metadata=self._metadata)
        try:
            for number, data in enumerate(responses):
                if fold(parse, answer, data)[1]:
                    break
                if number > _RESPONSES + tokens:
                    answer.fail("the answer does not end")
                    break
        except self._grpc.RpcError as error:
            raise TargetError(self._refusal("ModelStreamInfer", error)) from error
        finally:
            responses.cancel()
        if answer.error is None and not answer.done:
            answer.fail("no output" if not answer.events else "the answer has no last response")
        return Trial(answer, answer.error and blank(answer.error, self._keys))

    def _refusal(self, name: str, error: Any) -> str:
        code = error.code().name
        details = blank(excerpt(error.details() or "no further word"), self._keys)
        remedy = {
            "UNAVAILABLE": "no gRPC server answers there; start it, or give Triton's gRPC port (8001 by default)",
            "UNIMPLEMENTED": "it is not a Triton server; correct the URL",
            "UNAUTHENTICATED": "set LOADSTONE_API_KEY or OPENAI_API_KEY",
            "PERMISSION_DENIED": "set LOADSTONE_API_KEY or OPENAI_API_KEY",
            "DEADLINE_EXCEEDED": "check that the server is healthy",
            "NOT_FOUND": "check --model",
        }.get(code, "see the server's log")
        return f"{self.origin}: {name}: gRPC {code}: {details}; {remedy}"


def meet(
    server: Server,
    *,
    model: str | None,
    tokenizer: str | None,
    sampling: Sampling,
    structured: Structured | None,
    extra: dict[str, Any],
    stream: bool,
    exact: bool,
) -> tuple[Target, Vocabulary, Ask]:
    """As attach.meet: who the server is, how to write prompts for it, and what a run asks.

    Raises TargetError, one line, where it cannot be measured, and InputError where it does not take what was asked.
    """
    about = server.call("ServerMetadata")
    index = [
        {"name": entry.name, "version": entry.version, "state": entry.state or "READY"}
        for entry in server.call("RepositoryIndex", ready=True).models
    ]
    model = choose_triton_model(server.origin, index, model)
    ask = _plain(server, model, stream, extra)
    _check(server, ask)
    target = Target(
        url=server.origin,
        endpoint="triton-grpc",
        streams=stream,
        model=model,
        engine="Triton",
        engine_version=excerpt(about.version, 120) or None,
        prompt_kind="text",
        models=index,
        version={"name": about.name, "version": about.version, "extensions": list(about.extensions)},
    )
    ask = negotiate(server.ask_once, target, ask, sampling=sampling, structured=structured, exact=exact)
    vocabulary = find_words(tokenizer, lambda words: server.ask_once(ask, " ".join(words)).answer.input_tokens)
    target.overhead_tokens = vocabulary.overhead_tokens
    return target, vocabulary, ask


def check_same(server: Server, target: Target) -> None:
    """Another server of a fleet must have the same model. Raises TargetError, naming it."""
    _check(server, _plain(server, target.model, target.streams, {}))


def _plain(server: Server, model: str, stream: bool, extra: dict[str, Any]) -> Ask:
    """The plainest request to a model: what its configuration says of its inputs."""
    config = server.call("ModelConfig", name=model).config
    data_type = config.DESCRIPTOR.file.enum_types_by_name["DataType"].values_by_number
    types = {
        entry.name: data_type[entry.data_type].name.removeprefix("TYPE_").replace("STRING", "BYTES")
        for entry in config.input
        if entry.data_type in data_type
    }
    return Ask(
        endpoint="triton-grpc",
        model=model,
        stream=stream,
        inputs=triton_inputs(server.origin, list(types)),
        types=types,
        batched=config.max_batch_size > 0,
        extra=extra,
    )


def _check(server: Server, ask: Ask) -> None:
    """Raises TargetError, or InputError about --extra-body, unless the plain request is answered."""
    error = server.ask_once(ask).error
    if error is not None:
        check_extra(server.ask_once, ask, error)
        raise TargetError(f"{server.origin}: {ask.model} refuses the simplest request: {error}; see the server's log")
