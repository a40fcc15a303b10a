"""Defines what the timing server is started with: when tokens are due, and in what form it sends
them."""

from __future__ import annotations

import contextlib
from typing import Literal

import msgspec

from loadstone.core.errors import InputError
from loadstone.core.units import parse_seconds

Usage = Literal["asked", "none", "final", "running", "unasked"]

MODEL = "timing"
_SHARES = ("thinking", "tool_calls")


def parse_share(text: str, name: str) -> float:
    """Parse a number from 0 to 1. Raises InputError."""
    with contextlib.suppress(ValueError):
        share = float(text)
        if 0 <= share <= 1:
            return share
    raise InputError(f"{name}: {text.strip()!r} is no share; write a number from 0 to 1")


class FixedLatency(msgspec.Struct, frozen=True):
    """A latency model of fixed times, in seconds from the arrival of the request: TTFT = a +
    b·input_tokens, ITL = c; `encode_s` more where a prompt has pictures that count.

    thinking, tool_calls: shares of a chat's answer, at its beginning and its end.
    """

    ttft_s: float = 0.05
    itl_s: float = 0.01
    per_input_token_s: float = 0.0
    thinking: float = 0.0
    tool_calls: float = 0.0
    encode_s: float = 0.0

    @classmethod
    def parse(cls, text: str, what: str = "--sim", or_else: str = "") -> FixedLatency:
        """Parse `ttft=50ms,itl=10ms[,per_input_token=20us]`; what is left out keeps its default.

        A number without a unit is seconds. `what` names the flag in the InputError for anything
        else, `or_else` what may stand there too. Raises InputError.
        """
        seconds: dict[str, float] = {}
        for part in text.split(","):
            key, _, value = part.partition("=")
            key = key.strip()
            if key in _SHARES and key not in seconds:
                seconds[key] = parse_share(value, f"{what} {key}")
                continue
            name = f"{key}_s"
            if name not in cls.__struct_fields__ or name in seconds:
                raise InputError(
                    f"{what}: {part.strip()!r} in {text!r} is not a fixed latency; write"
                    f" {or_else}ttft=50ms,itl=10ms"
                )
            seconds[name] = parse_seconds(value, f"{what} {key}")
        return cls(**seconds)

    def __str__(self) -> str:
        """Write it as `parse` reads it, all in seconds."""
        shares = "".join(
            f",{name}={getattr(self, name)}" for name in _SHARES if getattr(self, name)
        )
        times = f"ttft={self.ttft_s}s,itl={self.itl_s}s,per_input_token={self.per_input_token_s}s"
        encode = f",encode={self.encode_s}s" if self.encode_s else ""
        return times + shares + encode

    def due_ns(self, input_tokens: int, index: int, *, pictures: bool = False) -> int:
        """Return nanoseconds from arrival to the output token `index` (from 0)."""
        encode_s = self.encode_s if pictures else 0.0
        return int(
            (encode_s + self.ttft_s + self.per_input_token_s * input_tokens + self.itl_s * index)
            * 1e9
        )


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that a timing server is started with; as JSON they are the argument of its
    process.

    deployment         whose scheduler decides when tokens are due, e.g. `llama-3.1-70b@8xh200`; "":
                       `latency`
    acceptance         of a deployment's guessed tokens
    profile            performance profile of a deployment; None: the one that is shipped for it
    port               to listen on; 0: any, and the line on stdout says which
    with_parent        ends when stdin does
    tokens_per_event   the first event carries one token, each later one up to so many, and is sent
                       when the last of them is due (vLLM's `--stream-interval`)
    usage              `asked`: as `stream_options` asks; `none`; `final`: in an event of its own
                       before the end; `running`: on every event too; `unasked`: on the last event
                       with text (llama.cpp)
    done               ends streams with `[DONE]`
    model              the name under which it serves
    adapters           of LoRA, whose names are served too
    max_model_len      the most tokens of input and output together
    vision             the model by whose rule pictures count, where no deployment has one; "":
                       pictures are dropped
    images             the most pictures of a request
    keep_truth         keeps when each event with text was written, until GET /truth takes it
    """

    latency: FixedLatency = FixedLatency()
    deployment: str = ""
    acceptance: float | None = None
    profile: str | None = None
    host: str = "127.0.0.1"
    port: int = 0
    with_parent: bool = False
    tokens_per_event: int = 1
    usage: Usage = "asked"
    done: bool = True
    model: str = MODEL
    adapters: tuple[str, ...] = ()
    max_model_len: int = 131_072
    vision: str = ""
    images: int = 999
    keep_truth: bool = False

    def __post_init__(self) -> None:
        if self.tokens_per_event < 1 or self.max_model_len < 1:
            raise InputError("tokens_per_event and max_model_len: must be at least 1")
        if not 0 <= self.port < 1 << 16:
            raise InputError(f"--port {self.port}: must be 0 (any) to 65535")
