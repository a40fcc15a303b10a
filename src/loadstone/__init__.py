"""Loadstone: a laboratory for LLM inference serving."""

__version__ = "0.1.0"
