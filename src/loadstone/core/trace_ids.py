"""Names traces and spans after what they are of: they are found again, and kept nowhere."""

import hashlib


def name_trace(run_id: str, request_id: str, session_id: str | None) -> str:
    """Return the id of a session's trace, or of a request's outside of sessions: 32 hex digits."""
    return _digest(f"{run_id}/trace/{session_id or request_id}", 16)


def name_span(run_id: str, name: str) -> str:
    """Return the id of the span of a request, by its id, or of another `name`: 16 hex digits."""
    return _digest(f"{run_id}/span/{name}", 8)


def traceparent(run_id: str, request_id: str, session_id: str | None) -> str:
    """Write W3C's header, by which an engine's spans become children of the request's."""
    trace, span = name_trace(run_id, request_id, session_id), name_span(run_id, request_id)
    return f"00-{trace}-{span}-01"


def _digest(key: str, size: int) -> str:
    return hashlib.shake_128(key.encode()).hexdigest(size)
