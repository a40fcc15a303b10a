"""What the tests of the three wires share: an answer heard in pieces, its facts, and values of any kind."""

import json
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, TypeVar

from hypothesis import strategies as st

from loadstone.measure.wire.answer import Answer

T = TypeVar("T", bound=Answer)
DONE = b"data: [DONE]\n\n"
ODD = [1e400, -1, 2**70]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(ODD),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
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
    """Every fact that an answer holds."""
    answer.text  # noqa: B018  # joins what is held in parts
    names = {*Answer.__slots__, *type(answer).__slots__} - {"_sse", "_plain_usage", "_decode"}
    return {name: getattr(answer, name) for name in names}


def cut(data: st.DataObject, stream: bytes) -> list[bytes]:
    """A stream in pieces of any size."""
    edges = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=30)))
    return [stream[a:b] for a, b in pairwise([0, *edges, len(stream)])]


def check_storable(answer: Answer) -> None:
    """No fact of an answer, whatever it was made of, is one that records cannot hold."""
    for count in (answer.input_tokens, answer.output_tokens, answer.cached_tokens, answer.reasoning_tokens):
        assert count is None or 0 <= count < 2**31
    for seconds in (answer.server_prefill_s, answer.server_decode_s):
        assert seconds is None or 0 <= seconds <= 1e9
    for words in (answer.error, answer.finish_reason):
        assert words is None or (words.isprintable() and len(words) <= 300 and words.encode())
    assert answer.running_tokens == sorted(answer.running_tokens)
    if answer.running:
        assert len(answer.running_tokens) == answer.events
