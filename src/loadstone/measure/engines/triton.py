"""Reads the pages of a Triton server: what it says of itself, its models, and their inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from loadstone.core.errors import TargetError
from loadstone.core.text import excerpt
from loadstone.measure.engines.server import Server
from loadstone.measure.wire import triton
from loadstone.measure.wire.tolerant import list_objects
from loadstone.workload.request import RequestSpec

_PREFERRED_MODELS = ("ensemble", "tensorrt_llm_bls")
"""TensorRT-LLM's models that take text, the preferred one first."""


class TritonRepository:
    """A Triton server's models. Raises TargetError where no Triton answers.

    about   what the server says of itself: `name`, `version`
    index   its models, [{"name": …, "state": …}, …], or whatever it gives
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self.about: Any = server.get_json("/v2", must_allow=True)
        if not isinstance(self.about, dict) or "name" not in self.about:
            raise TargetError(
                f"{server.url}/v2: no Triton server answers there; correct the URL, or --endpoint"
            )
        self.index: Any = server.post_json("/v2/repository/index", {"ready": True})

    @property
    def version(self) -> Any:
        return self.about.get("version")

    def choose_model(self, requested: str | None) -> str:
        """Return the model asked for, else TensorRT-LLM's that takes text, else the only one.
        Raises TargetError."""
        ready = [
            str(entry["name"])
            for entry in list_objects({"index": self.index}, "index")
            if "name" in entry and entry.get("state", "READY") == "READY"
        ]
        if requested is not None:
            if ready and requested not in ready:
                raise TargetError(f"--model {requested}: the server has ready {_join(ready[:8])}")
            return requested
        for name in _PREFERRED_MODELS:
            if name in ready:
                return name
        if len(ready) != 1:
            state = f"has ready {_join(ready[:8])}" if ready else "names no model that is ready"
            raise TargetError(f"{self._server.url}: the server {state}; choose one with --model")
        return ready[0]

    def complete(self, spec: RequestSpec, model: str) -> RequestSpec:
        """Return a request to a model with its inputs. Raises TargetError where they are not those
        that a language model has in TensorRT-LLM's backend."""
        page = f"/v2/models/{quote(model, safe='')}/config"
        config = self._server.get_json(page, must_allow=True)
        inputs = tuple(str(entry.get("name")) for entry in list_objects(config, "input"))
        missing = [name for name in triton.NEEDED if name not in inputs]
        if missing:
            raise TargetError(
                f"{self._server.url}{page}: the model has no input {' and '.join(missing)}: it has"
                f" {_join(inputs[:20]) or 'none'}; name one that has with --model"
            )
        return msgspec.structs.replace(spec, model=model, inputs=inputs)


def _join(names: Sequence[str]) -> str:
    return ", ".join(excerpt(name, 120) for name in names)
