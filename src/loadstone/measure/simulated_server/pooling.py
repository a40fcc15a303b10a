"""Embeddings, reranking and scores as the timing server reads and answers them: vectors and scores
that follow from the text, so that different texts have different ones."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from loadstone.measure.simulated_server.body import RefusalError, split_prompt
from loadstone.measure.simulated_server.settings import Settings
from loadstone.measure.wire.simulated import SimulatedBody

_DIMENSIONS = 64


class PoolingBody(SimulatedBody):
    """A request for vectors or scores. `truncate_prompt_tokens`: the most tokens of a text that are
    read, −1: as many as the model takes; else a longer one is refused."""

    truncate_prompt_tokens: int | None = None

    def texts(self) -> list[list[Any]]:
        """Return the tokens of each sequence that the model reads. Raises RefusalError."""
        raise NotImplementedError

    def words(self) -> list[Any]:
        return [word for text in self.texts() for word in text]

    def count(self) -> int | None:
        return len(self.texts())

    def lengths(self, most: int) -> list[int]:
        """Return the tokens of each sequence that are read, of a model that takes so many. Raises
        RefusalError."""
        limit, lengths = self.truncate_prompt_tokens, [len(text) for text in self.texts()]
        if limit is not None:
            return [min(length, most if limit < 0 else limit) for length in lengths]
        if max(lengths) > most:
            raise RefusalError(
                400, f"an input of {max(lengths)} tokens; this model takes at most {most}."
            )
        return lengths


class EmbeddingBody(PoolingBody):
    """A request to /v1/embeddings."""

    input: Any = None
    encoding_format: str | None = None
    dimensions: int | None = None

    def texts(self) -> list[list[Any]]:
        several = isinstance(self.input, list) and self.input and type(self.input[0]) is not int
        texts = [split_prompt(text) for text in (self.input if several else [self.input])]
        if not all(texts):
            raise RefusalError(400, "input must hold no empty text")
        return texts


class RankingBody(PoolingBody):
    """A request to /v1/rerank or /score, whose model reads each document behind the query."""

    query: str | None = None
    text_1: str | None = None
    documents: list[str] | None = None
    text_2: list[str] | None = None
    top_n: int | None = None

    def texts(self) -> list[list[Any]]:
        query = self.query or self.text_1
        documents = self.documents or self.text_2
        if not query or not documents:
            raise RefusalError(400, "a query and at least one document are needed")
        return [[*query.split(), *document.split()] for document in documents]


class _PoolingAnswer:
    """The answer to a request, in one piece."""

    is_stream = False

    def __init__(
        self,
        body: Any,
        settings: Settings,
        lengths: tuple[int, int],
        *,
        name: bytes,
        truth: bool,
    ) -> None:
        self.input_tokens, self.output_tokens = lengths
        self.cached_tokens = self.visual_tokens = 0
        self.accepted: list[int] = []
        self._body, self._model = body, settings.model

    def opening(self) -> bytes:
        return b""

    role = opening

    def piece(self, begin: int, end: int) -> bytes:
        return b""

    def failure(self, reason: str) -> bytes:
        return b""

    def fields(self) -> dict[str, Any]:
        raise NotImplementedError

    def whole(self) -> bytes:
        usage = {"prompt_tokens": self.input_tokens, "total_tokens": self.input_tokens}
        return msgspec.json.encode({"model": self._model, "usage": usage} | self.fields())

    def _drawn(self, numbers: int) -> list[np.ndarray[Any, Any]]:
        """Draw as many numbers for each text, from −1 to 1."""
        return [
            np.frombuffer(hashlib.shake_128(repr(text).encode()).digest(2 * numbers), "<i2").astype(
                "<f4"
            )
            / 32768
            for text in self._body.texts()
        ]


class VectorAnswer(_PoolingAnswer):
    """A vector for each text."""

    def fields(self) -> dict[str, Any]:
        vectors: list[Any] = self._drawn(self._body.dimensions or _DIMENSIONS)
        if self._body.encoding_format == "base64":
            written = [base64.b64encode(vector.tobytes()).decode() for vector in vectors]
        else:
            written = [vector.tolist() for vector in vectors]
        entries = [
            {"object": "embedding", "index": place, "embedding": vector}
            for place, vector in enumerate(written)
        ]
        return {"object": "list", "data": entries}


def score_answer(listed: str, name: str) -> Callable[..., _PoolingAnswer]:
    """Return what makes an answer of scores: in the list `listed`, each called `name`, the best
    first."""

    class ScoreAnswer(_PoolingAnswer):
        def fields(self) -> dict[str, Any]:
            scores = [float(drawn[0]) for drawn in self._drawn(1)]
            order = sorted(range(len(scores)), key=lambda place: -scores[place])
            best = order[: self._body.top_n or len(order)]
            return {listed: [{"index": place, name: scores[place]} for place in best]}

    return ScoreAnswer
