"""Sizing: what a deployment's memory holds, by its engine's own rules."""

from __future__ import annotations

from loadstone.sizing.budget import Budget, EngineLimits
from loadstone.sizing.memory import Memory, engine_limits, max_context, memory_of, reserved_tokens
from loadstone.sizing.size import Row, size
from loadstone.sizing.table import Ask, answer, deployments, document, rows

__all__ = [
    "Ask",
    "Budget",
    "EngineLimits",
    "Memory",
    "Row",
    "answer",
    "deployments",
    "document",
    "engine_limits",
    "max_context",
    "memory_of",
    "reserved_tokens",
    "rows",
    "size",
]
