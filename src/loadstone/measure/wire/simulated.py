"""Defines how the timing server answers an API, as far as APIs differ in that. No I/O."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import msgspec


class SimulatedBody(msgspec.Struct):
    """The fields of a request that matter to the timing server; others are accepted and ignored."""

    model: str | None = None
    stream: bool | None = None
    priority: int | None = None

    def counts(self) -> dict[str, int | None]:
        """Return by their names the fields that ask for several answers: one is simulated."""
        return {}

    def follows(self) -> str | None:
        """Return the name of a stored answer that stands before the prompt; None: there is none."""
        return None

    def keeps(self) -> bool:
        """Return whether the answer is to be stored."""
        return False


class SimulatedAnswer(Protocol):
    """The bytes of one answer. The timing server sets `cached_tokens`, `visual_tokens`, and
    `accepted`: how many steps accepted exactly 0, 1, … guesses; none where nothing is guessed."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int
    visual_tokens: int
    accepted: list[int]
    is_stream: bool

    def opening(self) -> bytes:
        """Return the chunks sent as soon as the request is read; nothing where there are none."""

    def role(self) -> bytes:
        """Return the chunk before the first token; nothing where there is none."""

    def piece(self, begin: int, end: int) -> bytes:
        """Return the chunk of the tokens from `begin` to before `end`; with the last of them, all
        that ends the response."""

    def whole(self) -> bytes:
        """Return the body of an answer in one piece."""

    def failure(self, reason: str) -> bytes:
        """Return the chunks that end a stream because its request was turned away."""


class SimulatedWire(NamedTuple):
    """How the timing server answers an API.

    path            where it is asked
    body            what a request's JSON is read as
    content         the prompt's tokens, for what they have in common with other prompts'
    limit           the most tokens of the answer; None: not said, and then `default_tokens`, or
                    what the context leaves
    answer          makes an answer: (body, settings, (input tokens, output tokens), name=, truth=)
    """

    path: str
    body: type[Any]
    content: Callable[[Any], list[Any]]
    limit: Callable[[Any], int | None]
    default_tokens: int | None
    answer: Callable[..., SimulatedAnswer]
