"""What the tests of the three wires share: an answer heard in pieces, its facts, and values of any
kind."""

import json
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, TypeVar

from hypothesis import strategies as st

from loadstone.measure.wire.answer import MAX_TEXT, Answer
from loadstone.measure.wire.tolerant import MAX_COUNT

T = TypeVar("T", bound=Answer)
COUNTS = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens")
DONE = b"data: [DONE]\n\n"
ODD = [1e400, -1, 2**70]
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(ODD),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


def fields(names: Iterable[str], **more: Any) -> st.SearchStrategy[Any]:
    """Anything, or an object that may have these fields, with any value, and those of `more`."""
    return JSON | st.fixed_dictionaries({}, optional=dict.fromkeys(names, JSON) | more)


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def hear(answer: T, *pieces: bytes) -> T:
    """Feed an answer to its end; what each step says of its events adds up."""
    told = sum(answer.feed(piece) for piece in pieces)
    assert told + answer.finish() == answer.events
    return answer


def state(answer: Answer) -> dict[str, Any]:
    """Every fact that an answer holds, whichever way it was read."""
    answer.text  # noqa: B018  # joins what is held in parts
    names = {*Answer.__slots__, *type(answer).__slots__} - {
        "_sse", "_decode", "_plain",
    }  # fmt: skip
    return {name: getattr(answer, name) for name in names}


def cut(data: st.DataObject, stream: bytes) -> list[bytes]:
    """A stream in pieces of any size."""
    edges = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=30)))
    return [stream[a:b] for a, b in pairwise([0, *edges, len(stream)])]


def check_storable(answer: Answer) -> None:
    """No fact of an answer, whatever it was made of, is one that records cannot hold."""
    for name in COUNTS:
        tokens = getattr(answer, name)
        assert tokens is None or (type(tokens) is int and 0 <= tokens <= MAX_COUNT), (name, tokens)
    running = answer.running_tokens
    assert all(a <= b for a, b in pairwise([0, *running]))
    assert all(type(tokens) is int and tokens <= MAX_COUNT for tokens in running)
    assert len(running) <= answer.events
    assert not answer.running or len(running) == answer.events
    if answer.error is not None:
        assert answer.error, "an error without a word"
        assert answer.error.isprintable()
        assert len(answer.error) <= 300
    if answer.finish_reason is not None:
        assert answer.finish_reason.isprintable()
        assert len(answer.finish_reason) <= 40
    for seconds in (answer.server_prefill_s, answer.server_decode_s):
        assert seconds is None or 0 <= seconds <= 1e9
    assert len(answer.text) <= MAX_TEXT
