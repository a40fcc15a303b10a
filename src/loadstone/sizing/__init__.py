"""Sizing: what a deployment's memory holds, by its engine's own rules."""

from __future__ import annotations

from loadstone.sizing.budget import EngineLimits
from loadstone.sizing.memory import engine_limits, max_context, memory_of, reserved_tokens
from loadstone.sizing.size import size
from loadstone.sizing.table import Ask, answer

__all__ = ["Ask", "EngineLimits", "answer", "engine_limits", "max_context", "memory_of", "reserved_tokens", "size"]
