"""Embeddings, reranking and scores: what models are asked for that write no text. No I/O.

Each API has several forms: OpenAI's and vLLM's paths, which SGLang, llama.cpp, TEI and Infinity
have in part, and TEI's own, without token counts in the body (its header has them). Which one a
server has is tried. Answers come in one piece: a list of vectors, or of scores, by whatever name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from loadstone.core.errors import TargetError
from loadstone.core.record import Target
from loadstone.core.text import error_text, excerpt
from loadstone.measure.simulated_server.pooling import (
    EmbeddingBody,
    PoolingBody,
    RankingBody,
    VectorAnswer,
    score_answer,
)
from loadstone.measure.wire.answer import Answer
from loadstone.measure.wire.simulated import SimulatedWire
from loadstone.measure.wire.tolerant import count, load
from loadstone.measure.wire.vectors import AnswerVectors, inspect_scores, inspect_vectors
from loadstone.measure.wire.wire import Found, Wire
from loadstone.measure.wires.openai import make_path
from loadstone.workload.request import DOCUMENTS, PROMPT, RequestSpec

if TYPE_CHECKING:
    from loadstone.measure.engines.server import Server

_TOKENS_HEADER = b"x-compute-tokens"
"""TEI's count of the tokens that it computed, where a body has no room for one."""
_LISTS = ("data", "results", "embeddings", "scores")
_VALUES = ("embedding", "relevance_score", "score")
_TEI = ("/info", "model_id")
_TEI_TITLE = "Text Embeddings Inference"


class Form(NamedTuple):
    """How requests of one API look: where they go, and the names of the text or query and of the
    documents. `base64`: vectors are asked for so, which is a third as long."""

    path: str
    text: str
    documents: str = ""
    base64: bool = False


FORMS: dict[str, dict[str, Form]] = {
    "embeddings": {
        "openai": Form("/v1/embeddings", "input", base64=True),
        "float": Form("/v1/embeddings", "input"),
        "tei": Form("/embed", "inputs"),
    },
    "rerank": {
        "jina": Form("/v1/rerank", "query", "documents"),
        "tei": Form("/rerank", "query", "texts"),
        "infinity": Form("/rerank", "query", "documents"),
    },
    "score": {
        "vllm": Form("/score", "text_1", "text_2"),
        "openai": Form("/v1/score", "text_1", "text_2"),
        "sglang": Form("/v1/score", "query", "items"),
    },
}


def form_of(spec: RequestSpec) -> Form:
    """Return the form that a request has; the first, where none was chosen."""
    forms = FORMS[spec.endpoint]
    return forms.get(spec.form) or next(iter(forms.values()))


def find_path(spec: RequestSpec) -> str:
    path = form_of(spec).path
    return make_path(spec, path.removeprefix("/v1/")) if path.startswith("/v1/") else path


def make_body(spec: RequestSpec) -> dict[str, Any]:
    """Return the body of a request: a list of texts, or a query and its documents."""
    form = form_of(spec)
    body: dict[str, Any] = {"model": spec.model, form.text: PROMPT}
    if form.documents:
        body[form.documents] = DOCUMENTS
    return body | ({"encoding_format": "base64"} if form.base64 else {})


class PoolingAnswer(Answer):
    """Reads vectors or scores. What it counts as output is how many there are."""

    __slots__ = ()

    def inspect(self, found: list[Any]) -> AnswerVectors:
        """Look at what is in the answer. Raises ValueError, TypeError."""
        raise NotImplementedError

    def fold(self, payload: bytes) -> None:
        answer = load(payload)
        fields = answer if isinstance(answer, dict) else {}
        listed = (fields.get(name) for name in _LISTS)
        found = answer if isinstance(answer, list) else next(filter(None, listed), None)
        if not isinstance(found, list) or not found:
            self.complain(error_text(payload) if fields else f"no list: {excerpt(payload)}")
            return
        self.output_tokens = len(found)
        usage = fields.get("usage")
        if isinstance(usage, dict):
            tokens = usage.get("prompt_tokens") or usage.get("total_tokens")
            self.take_counts(count(tokens), None, None)
        if isinstance(fields.get("model"), str):
            self.model = fields["model"]
        try:
            _check_indexes(found)
            self.vectors = self.inspect([_value_of(entry) for entry in found])
        except (TypeError, ValueError) as error:
            self.complain(f"{excerpt(str(error), 80)}: {excerpt(payload)}")

    def complain(self, error: str) -> None:
        """Take an error; a wrong answer gives nothing that rates may count."""
        super().complain(error)
        self.output_tokens, self.voids = 0, self.events

    def take_headers(self, headers: Mapping[bytes, bytes]) -> None:
        if self.input_tokens is None and headers.get(_TOKENS_HEADER, b"").isdigit():
            self.take_counts(int(headers[_TOKENS_HEADER]), None, None)


def _check_indexes(found: list[Any]) -> None:
    """Raise ValueError where two entries are of one text."""
    indexes = [entry["index"] for entry in found if isinstance(entry, dict) and "index" in entry]
    if len(set(indexes)) < len(indexes):
        raise ValueError("entries have the same index")


def _value_of(entry: Any) -> Any:
    if not isinstance(entry, dict):
        return entry
    return next((entry[name] for name in _VALUES if name in entry), None)


class EmbeddingsReply(PoolingAnswer):
    """Reads the vectors of as many texts as were sent."""

    __slots__ = ()

    def inspect(self, found: list[Any]) -> AnswerVectors:
        return inspect_vectors(found)

    def take_request(self, asked: int, best: int | None = None) -> None:
        if self.output_tokens is not None and self.output_tokens != asked:
            self.complain(f"{self.output_tokens} vectors for {asked} inputs")


class ScoresReply(PoolingAnswer):
    """Reads scores, of all documents or of the best, as `top_n` asks: all were judged."""

    __slots__ = ()

    def inspect(self, found: list[Any]) -> AnswerVectors:
        return inspect_scores(found)

    def take_request(self, asked: int, best: int | None = None) -> None:
        least = min(asked, best or asked)
        if self.output_tokens is not None and not least <= self.output_tokens <= asked:
            self.complain(f"{self.output_tokens} scores for {asked} documents")
        self.output_tokens = self.output_tokens and asked


def cuts_inputs(target: Target, spec: RequestSpec) -> bool:
    """Return whether longer inputs than the model takes are cut: TEI does so unless told
    otherwise, others where a field says so."""
    cut = spec.extra.get("truncate") or spec.extra.get("truncate_prompt_tokens")
    return bool(cut) or (target.engine == _TEI_TITLE and spec.extra.get("truncate") is not False)


def describe(server: Server, spec: RequestSpec, model: str | None) -> Found:
    """Describe the server, and choose the first of the API's forms that it answers. Raises
    TargetError."""
    from loadstone.measure.engines import pages

    models = server.get_json("/v1/models", must_allow=True)
    page, name = _TEI
    about = server.get_json(page)
    is_tei = isinstance(about, dict) and isinstance(about.get(name), str)
    if model is None and is_tei and not pages.list_models(models):
        model = about[name]
    spec = msgspec.structs.replace(
        spec,
        model=pages.choose_model(server, models, model),
        query=server.query,
        stream=False,
    )
    trials = []
    for form in FORMS[spec.endpoint]:
        tried = msgspec.structs.replace(spec, form=form)
        trial = server.send_once(tried)
        if trial.error is None:
            target = pages.describe(server, spec.endpoint, spec.model, models)
            target.dimensions = count(spec.extra.get("dimensions"))
            if is_tei:
                pages.name_engine(server, target, owner="tei")
                target.max_model_tokens = count(about.get("max_input_length"))
            return target, tried
        trials.append((tried, trial))
    refused = [each for each in trials if each[1].status not in pages.NOT_OFFERED]
    tried, trial = (refused or trials)[0]
    if not refused:
        raise TargetError(
            f"{server.url}: has no {spec.endpoint} ({trial.error}); start the engine with a model"
            " for it, and as such: docs/embeddings.md"
        )
    pages.check_answered(server, tried, trial)
    raise AssertionError  # a refusal does not pass


EMBEDDINGS = Wire(
    path=find_path,
    body=make_body,
    answer=EmbeddingsReply,
    prompts="text or ids",
    counts_whole=False,
    length_names=(),
    order=90,
    describe=describe,
    simulated=SimulatedWire(
        path="/v1/embeddings",
        body=EmbeddingBody,
        content=PoolingBody.words,
        limit=PoolingBody.count,
        default_tokens=None,
        answer=VectorAnswer,
    ),
)
RERANK = replace(
    EMBEDDINGS,
    answer=ScoresReply,
    prompts="text",
    has_queries=True,
    simulated=SimulatedWire(
        path="/v1/rerank",
        body=RankingBody,
        content=PoolingBody.words,
        limit=PoolingBody.count,
        default_tokens=None,
        answer=score_answer("results", "relevance_score"),
    ),
)
SCORE = replace(
    RERANK,
    simulated=SimulatedWire(
        path="/score",
        body=RankingBody,
        content=PoolingBody.words,
        limit=PoolingBody.count,
        default_tokens=None,
        answer=score_answer("data", "score"),
    ),
)
