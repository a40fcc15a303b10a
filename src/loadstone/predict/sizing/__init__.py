"""Sizing: what a deployment's memory holds, by its engine's own rules."""

from __future__ import annotations

from loadstone.predict.sharding.limits import EngineLimits
from loadstone.predict.sizing.many import Ask, answer
from loadstone.predict.sizing.memory import engine_limits, max_context, memory_of, reserved_tokens
from loadstone.predict.sizing.size import size

__all__ = ["Ask", "EngineLimits", "answer", "engine_limits", "max_context", "memory_of", "reserved_tokens", "size"]
