"""Emptying an engine's prefix cache, where it can be told to."""

from __future__ import annotations

from loadstone.core.errors import TargetError
from loadstone.measure.engines.server import Server

_FLUSHES = ("/reset_prefix_cache", "/flush_cache")
"""vLLM's (only with VLLM_SERVER_DEV_MODE=1), and SGLang's."""


def flush(server: Server) -> str | None:
    """Empty the prefix cache; by which path that was done, None where the server offers none.

    A server that is gone by now is left to the run, whose requests then tell.
    """
    for path in _FLUSHES:
        try:
            answer = server.post(path, b"{}")
        except TargetError:
            return None
        if answer.status_code == 200:
            return path
    return None
