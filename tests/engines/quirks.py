"""What a live engine does where engines differ, in the words of the tables of docs/engines.md.

Each column is observed by plain HTTP requests, apart from Loadstone's own client, so that the
tables say what anyone would see.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from engines.launch import Engine
from loadstone.workload.word_list import WORDS

Json = dict[str, Any]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "engines.md"
NOT_RUN = "†"
"""Marks engines on the page that were not run for it."""
EOS = {"2": 100}
"""Bias after which the tiny model says nothing but its end of sequence."""
ONE_OR_TWO: Json = {"enum": ["one", "two"]}
"""A JSON schema that no free answer of the tiny model meets, and that leaves it no room to
ramble."""
_LENGTH = 6
_SHAPED_TOKENS = 64
_REPEATED_TOKENS = 100
_PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


class Stream(NamedTuple):
    """One streamed answer: HTTP version, events in order, whether `[DONE]` ended them and comments
    lay between."""

    version: str
    events: list[Json]
    done: bool
    comments: bool


def documented() -> dict[str, dict[str, str]]:
    """Engine → column → cell, of all tables of the page whose first column is "engine".

    A note in parentheses at the end of a cell is left out.
    """
    engines: dict[str, dict[str, str]] = {}
    for table in re.findall(r"(?:^\|.*\n)+", PAGE.read_text(), re.MULTILINE):
        header, _, *rows = [
            [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()
        ]
        if header[0] == "engine":
            for engine, *cells in rows:
                told = [re.sub(r" \([^()]*\)$", "", cell) for cell in cells]
                engines.setdefault(engine, {}).update(zip(header[1:], told, strict=True))
    return engines


def observe(engine: Engine) -> dict[str, str]:
    """Column → cell, for every column."""
    fresh = httpx.Limits(max_keepalive_connections=0)  # some close a kept connection unasked
    with httpx.Client(base_url=engine.url, trust_env=False, timeout=60.0, limits=fresh) as http:
        probe = _Probe(http, engine.model)
        return probe.streams() | probe.requests() | probe.telling()


class _Probe:
    def __init__(self, http: httpx.Client, model: str) -> None:
        self._http = http
        self._model = model

    def streams(self) -> dict[str, str]:
        plain = {kind: self._stream(kind) for kind in ("completions", "chat")}
        asked = {kind: self._stream(kind, stream_options={"include_usage": True}) for kind in plain}
        running = {"include_usage": True, "continuous_usage_stats": True}
        counted = [
            event
            for event in self._stream("completions", stream_options=running).events
            if _counts(event)
        ]
        return {
            "usage, completions": _usage(plain["completions"], asked["completions"]),
            "usage, chat": _usage(plain["chat"], asked["chat"]),
            "running usage": "yes" if len(counted) >= _LENGTH else "no",
            "`[DONE]`": "yes" if all(stream.done for stream in asked.values()) else "no",
            "first chat event": _first(plain["chat"].events),
            "comments": "yes" if plain["completions"].comments else "no",
            "HTTP": plain["completions"].version.removeprefix("HTTP/"),
        }

    def requests(self) -> dict[str, str]:
        return {
            "`ignore_eos`": self._demand(ignore_eos=True),
            "`min_tokens`": self._demand(min_tokens=_LENGTH),
            "`n`": self._several(),
            "token ids as prompt": _answered(self._post(prompt=[300, 301, 302]), "taken"),
            "another model's name": _answered(self._post(model="another"), "served"),
            "JSON schema, completions": self._shaped("completions"),
            "JSON schema, chat": self._shaped("chat"),
        }

    def telling(self) -> dict[str, str]:
        models = self._http.get("/v1/models").json()["data"]
        metrics = self._http.get("/metrics")
        prefixes = set(re.findall(r"^# TYPE (\w+:)", metrics.text, re.MULTILINE))
        tokenized = self._http.post(
            "/tokenize", json={"model": self._model, "prompt": " time", "content": " time"}
        )
        return {
            "model in `/v1/models`": "yes"
            if self._model in [entry["id"] for entry in models]
            else "no",
            "cached tokens": self._cached(),
            "`/metrics`": ", ".join(f"`{name}*`" for name in sorted(prefixes))
            or f"{metrics.status_code}",
            "`/tokenize`": "yes" if tokenized.status_code == 200 else f"{tokenized.status_code}",
        }

    def _cached(self) -> str:
        """Of the second of two equal prompts, what usage says came from the prefix cache."""
        prompt = "".join(f" {word}" for word in WORDS[:_REPEATED_TOKENS])
        first, second = (self._post(prompt=prompt, max_tokens=1).json()["usage"] for _ in range(2))
        assert first["prompt_tokens"] == second["prompt_tokens"] == _REPEATED_TOKENS
        cached = (second.get("prompt_tokens_details") or {}).get("cached_tokens")
        return "not told" if cached is None else f"{cached} of {_REPEATED_TOKENS}"

    def _demand(self, **field: Any) -> str:
        """What a demand for a length comes to when the model would rather stop at once."""
        answer = self._post(**field)
        if answer.status_code != 200:
            return f"refused, {answer.status_code}"
        stops = self._post(logit_bias=EOS).json()["usage"]["completion_tokens"]
        goes_on = self._post(logit_bias=EOS, **field).json()["usage"]["completion_tokens"]
        assert stops == 1, "the model does not stop by itself, so that nothing is shown"
        return "honoured" if goes_on >= _LENGTH else "ignored"

    def _several(self) -> str:
        """Whether a request for two answers is answered by two."""
        answer = self._post(n=2, temperature=1)  # vLLM gives no two greedy ones
        if answer.status_code != 200:
            return f"refused, {answer.status_code}"
        return "honoured" if len(answer.json()["choices"]) == 2 else "ignored"

    def _shaped(self, kind: str) -> str:
        """What `response_format` comes to: whether an answer is one of the two that the schema
        allows."""
        shape = {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": ONE_OR_TWO, "strict": True},
        }
        answer = self._post(kind, response_format=shape, max_tokens=_SHAPED_TOKENS)
        if answer.status_code != 200:
            return f"refused, {answer.status_code}"
        (choice,) = answer.json()["choices"]
        text = choice["message"]["content"] if kind == "chat" else choice["text"]
        try:
            return "honoured" if json.loads(text) in ONE_OR_TWO["enum"] else "ignored"
        except ValueError:
            return "ignored"

    def _post(self, kind: str = "completions", **fields: Any) -> httpx.Response:
        return self._http.post(_PATHS[kind], json=self._body(kind, fields))

    def _stream(self, kind: str, **fields: Any) -> Stream:
        answer = self._post(kind, stream=True, **fields)
        lines = answer.text.splitlines()
        data = [line.removeprefix("data:").strip() for line in lines if line.startswith("data:")]
        return Stream(
            version=answer.http_version,
            events=[json.loads(text) for text in data if text != "[DONE]"],
            done=data[-1:] == ["[DONE]"],
            comments=any(line.startswith(":") for line in lines),
        )

    def _body(self, kind: str, fields: Json) -> Json:
        text = " time water people"
        prompt = (
            {"messages": [{"role": "user", "content": text}]}
            if kind == "chat"
            else {"prompt": text}
        )
        return {"model": self._model, "max_tokens": _LENGTH, "temperature": 0, **prompt, **fields}


def _answered(answer: httpx.Response, good: str) -> str:
    return good if answer.status_code == 200 else f"refused, {answer.status_code}"


def _counts(event: Json) -> bool:
    return bool((event.get("usage") or {}).get("completion_tokens"))


def _usage(plain: Stream, asked: Stream) -> str:
    """Where the final usage comes, and whether it has to be asked for."""
    where = {_place(event) for event in asked.events if _counts(event)}
    if not where:
        return "never"
    (place,) = where
    return f"{place}, {'always' if any(_counts(event) for event in plain.events) else 'when asked'}"


def _place(event: Json) -> str:
    return "with the last choice" if event.get("choices") else "event of its own"


def _first(events: list[Json]) -> str:
    delta = events[0]["choices"][0]["delta"]
    if "role" not in delta:
        return "no role"
    if "content" not in delta:
        return "role alone"
    return {"": 'role, `""`', None: "role, null"}.get(delta["content"], "role, first token")
