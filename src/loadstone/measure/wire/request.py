"""Writes what a run asks of the server: everything that all its requests say beside their prompt
and length. No I/O.

`make_body` writes it in the API's own words with markers, which RequestBody replaces by prompts and
lengths.
"""

import re
from typing import Any

import msgspec

from loadstone.measure.wire.wire import Spell, find_wire
from loadstone.workload.request import DOCUMENTS, LENGTH, PROMPT, TEXT_OR_IDS, RequestSpec


def make_path(spec: RequestSpec) -> str:
    """Return the path of the requests, from the server's root on."""
    return find_wire(spec.endpoint).path(spec)


def make_body(spec: RequestSpec) -> dict[str, Any]:
    """Make the JSON body of every request, with PROMPT and LENGTH where requests differ."""
    return _merge(find_wire(spec.endpoint).body(spec), spec.extra)


def _merge(fields: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    """Merge the fields of `extra` into `fields`, and objects that are on both sides."""
    merged = dict(fields)
    for name, value in extra.items():
        written = merged.get(name)
        if isinstance(written, dict) and isinstance(value, dict):
            merged[name] = _merge(written, value)
        else:
            merged[name] = value
    return merged


class RequestBody:
    """Writes the request bodies of one run: everything but prompt and length is encoded once."""

    def __init__(self, template: dict[str, Any], spell: Spell | None = None) -> None:
        """`spell`: writes prompts as the API has them, see Wire."""
        self._spell = spell
        marks = [msgspec.json.encode(mark) for mark in (PROMPT, LENGTH, TEXT_OR_IDS, DOCUMENTS)]
        self._pieces = re.split(
            b"(%b)" % b"|".join(map(re.escape, marks)), msgspec.json.encode(template)
        )
        self._prompts, self._lengths, self._names, self._documents = (
            [i for i, piece in enumerate(self._pieces) if piece == mark] for mark in marks
        )

    def render(self, prompt: bytes, output_tokens: int, previous: str | None = None) -> bytes:
        """Write the body for a prompt already in JSON (a string, an array of token ids, or an array
        of messages). `previous`: the server's name of a stored answer that the prompt goes on
        from."""
        if self._spell is not None:
            prompt = self._spell(prompt, previous)
        pieces = self._pieces.copy()
        for place in self._documents:
            prompt, pieces[place] = _split_query(prompt)
        for place in self._prompts:
            pieces[place] = prompt
        for place in self._lengths:
            pieces[place] = b"%d" % output_tokens
        for place in self._names:
            pieces[place] = b'"input_ids"' if prompt.startswith(b"[") else b'"text"'
        return b"".join(pieces)


def _split_query(prompt: bytes) -> tuple[bytes, bytes]:
    """Split a list of texts into the first, the query, and the others; a single text behind its
    first word."""
    texts = msgspec.json.decode(prompt)
    if isinstance(texts, str):
        query, _, rest = texts.partition(" ")
        texts = [query, rest or query]
    return msgspec.json.encode(texts[0]), msgspec.json.encode(texts[1:])
