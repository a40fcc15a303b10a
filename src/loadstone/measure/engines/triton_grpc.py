"""Is the control plane of a Triton server over gRPC alone, as `--endpoint triton-grpc` does it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loadstone.core.errors import InputError, TargetError
from loadstone.core.secrets import blank, keys_in
from loadstone.core.text import excerpt
from loadstone.measure.client.grpc import METHOD, OPTIONS, load_library, make_metadata
from loadstone.measure.engines.server import Server, Trial, TritonModel, check_url
from loadstone.measure.wire.answer import Answer
from loadstone.measure.wire.triton import GrpcAnswer, encode, fold
from loadstone.workload.request import RequestSpec

_TIMEOUT_S = 60.0
_PREFIX = METHOD.rpartition("/")[0]
_RESPONSES = 1000


class GrpcServer(Server):
    """Triton's gRPC port, for single small requests; use in a `with`, and leave it before the run.

    Raises InputError on a URL of TLS or with a path, on a proxy, and where the `triton` extra is
    not installed.
    """

    def __init__(
        self, url: str, headers: Sequence[tuple[str, str]], proxy: str | None = None
    ) -> None:
        super().__init__()
        parts = check_url(url)
        if parts.scheme != "http":
            raise InputError(f"{url}: gRPC is measured without TLS only; give http://HOST:PORT")
        if proxy is not None:
            raise InputError("--proxy: gRPC is measured without a proxy only; leave it out")
        if parts.path.strip("/"):
            raise InputError(f"{url}: a gRPC port has no path; give http://{parts.netloc}")
        self.parts = parts
        self.origin = f"http://{parts.netloc}"
        self.messages = load_library().messages
        self._grpc = load_library().grpc
        self._metadata = make_metadata(headers)
        self._keys = keys_in(headers)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        self._channel = self._grpc.insecure_channel(f"{host}:{parts.port or 80}", OPTIONS)

    def close(self) -> None:
        self._channel.close()

    def call(self, name: str, /, **fields: Any) -> Any:
        """Return a control request's answer. Raises TargetError where there is none."""
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

    def _exchange(self, spec: RequestSpec, rendered: bytes, answer: Answer, tokens: int) -> Trial:
        assert isinstance(answer, GrpcAnswer)  # noqa: S101
        request = encode(self.messages, rendered, "probe")
        parse = self.messages.ModelStreamInferResponse.FromString
        responses = self._channel.stream_stream(METHOD)(
            iter([request]), timeout=_TIMEOUT_S, metadata=self._metadata
        )
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

    def triton_about(self) -> dict[str, Any]:
        about = self.call("ServerMetadata")
        return {"name": about.name, "version": about.version, "extensions": list(about.extensions)}

    def triton_index(self) -> Any:
        entries = self.call("RepositoryIndex", ready=True).models
        return [
            {"name": each.name, "version": each.version, "state": each.state or "READY"}
            for each in entries
        ]

    def triton_model(self, name: str) -> TritonModel:
        config = self.call("ModelConfig", name=name).config
        data_type = config.DESCRIPTOR.file.enum_types_by_name["DataType"].values_by_number
        types = {
            entry.name: (
                data_type[entry.data_type].name.removeprefix("TYPE_").replace("STRING", "BYTES")
            )
            for entry in config.input
            if entry.data_type in data_type
        }
        return TritonModel(self.url, types, config.max_batch_size > 0)

    def _refusal(self, name: str, error: Any) -> str:
        code = error.code().name
        details = blank(excerpt(error.details() or "no further word"), self._keys)
        remedy = {
            "UNAVAILABLE": (
                "no gRPC server answers there; start it, or give Triton's gRPC port (8001 by"
                " default)"
            ),
            "UNIMPLEMENTED": "it is not a Triton server; correct the URL",
            "UNAUTHENTICATED": "set LOADSTONE_API_KEY or OPENAI_API_KEY",
            "PERMISSION_DENIED": "set LOADSTONE_API_KEY or OPENAI_API_KEY",
            "DEADLINE_EXCEEDED": "check that the server is healthy",
            "NOT_FOUND": "check --model",
        }.get(code, "see the server's log")
        return f"{self.origin}: {name}: gRPC {code}: {details}; {remedy}"
