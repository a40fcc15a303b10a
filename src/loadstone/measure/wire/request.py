"""Writes what a run asks of the server: everything that all its requests say beside their prompt
and length. No I/O.

`body` writes it in the endpoint's own words with markers, which RequestBody replaces by prompts and
lengths.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import msgspec

from loadstone.measure.wire import sglang, triton
from loadstone.measure.wire.answer import Answer
from loadstone.measure.wire.openai import OpenAIAnswer
from loadstone.measure.wire.sglang import SglangAnswer
from loadstone.measure.wire.structured import make_shape_fields
from loadstone.measure.wire.triton import TritonAnswer
from loadstone.workload.request import LENGTH, PROMPT, TEXT_OR_IDS, RequestSpec


def make_path(spec: RequestSpec) -> str:
    """Return the path of the requests, from the server's root on."""
    match spec.endpoint:
        case "sglang":
            return "/generate"
        case "triton":
            model = quote(spec.model, safe="")
            return f"/v2/models/{model}/generate{'_stream' if spec.stream else ''}"
    version = "" if spec.query else "/v1"
    chat = "/chat" if spec.endpoint == "chat" else ""
    return f"{version}{chat}/completions{spec.query}"


def make_body(spec: RequestSpec) -> dict[str, Any]:
    """Make the JSON body of every request, with PROMPT and LENGTH where requests differ."""
    if spec.endpoint == "sglang":
        written = {**sglang.make_fields(spec, LENGTH), TEXT_OR_IDS: PROMPT}
    elif spec.endpoint == "triton":
        written = triton.make_inputs(spec, PROMPT, LENGTH)
    else:
        written = _make_openai_body(spec)
    return _merge(written, spec.extra)


def _make_openai_body(spec: RequestSpec) -> dict[str, Any]:
    written: dict[str, Any] = {"model": spec.model, "stream": spec.stream}
    if spec.stream and spec.usage != "none":
        written["stream_options"] = {"include_usage": True}
        if spec.usage == "running":
            written["stream_options"]["continuous_usage_stats"] = True
    if spec.ignore_eos:
        written["ignore_eos"] = True
    for name in ("temperature", "top_p", "seed"):
        if (value := getattr(spec.sampling, name)) is not None:
            written[name] = value
    if spec.sampling.stop:
        written["stop"] = list(spec.sampling.stop)
    written |= make_shape_fields(spec)
    written[spec.length] = LENGTH
    if spec.min_tokens:
        written["min_tokens"] = LENGTH
    written["messages" if spec.endpoint == "chat" else "prompt"] = PROMPT
    return written


def _merge(fields: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    """Merge the fields of `extra` into `fields`, and objects that are on both sides."""
    merged = dict(fields)
    for name, value in extra.items():
        before = merged.get(name)
        merged[name] = (
            _merge(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
        )
    return merged


class RequestBody:
    """Writes the request bodies of one run: everything but prompt and length is encoded once."""

    def __init__(self, template: dict[str, Any]) -> None:
        marks = [msgspec.json.encode(mark) for mark in (PROMPT, LENGTH, TEXT_OR_IDS)]
        self._pieces = re.split(
            b"(%b)" % b"|".join(map(re.escape, marks)), msgspec.json.encode(template)
        )
        self._prompts, self._lengths, self._names = (
            [i for i, piece in enumerate(self._pieces) if piece == mark] for mark in marks
        )

    def render(self, prompt: bytes, output_tokens: int) -> bytes:
        """Write the body for a prompt already in JSON (a string, an array of token ids, or an array
        of messages)."""
        pieces = self._pieces.copy()
        for place in self._prompts:
            pieces[place] = prompt
        for place in self._lengths:
            pieces[place] = b"%d" % output_tokens
        for place in self._names:
            pieces[place] = b'"input_ids"' if prompt.startswith(b"[") else b'"text"'
        return b"".join(pieces)


_ANSWERS: dict[str, type[Answer]] = {
    "completions": OpenAIAnswer,
    "chat": OpenAIAnswer,
    "sglang": SglangAnswer,
    "triton": TritonAnswer,
}


def new_answer(endpoint: str, *, stream: bool = True, keep_text: bool = False) -> Answer:
    """Make an answer about to be heard: as a stream or in one piece, with its text kept or not."""
    return _ANSWERS[endpoint](stream=stream, keep_text=keep_text)
