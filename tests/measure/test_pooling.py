"""Answers with vectors and scores, in the forms that servers give them."""

import base64
from typing import Any

import msgspec
import numpy as np
import pytest

from loadstone.measure.wire.answer import Answer
from loadstone.measure.wire.request import RequestBody, make_body, make_path
from loadstone.measure.wire.wire import find_wire
from loadstone.workload.request import RequestSpec

ONE, TWO = [0.5, -1.0, 2.0], [0.25, 1.0, 0.0]


def packed(vector: list[float]) -> str:
    return base64.b64encode(np.array(vector, "<f4").tobytes()).decode()


def read(
    endpoint: str,
    said: Any,
    asked: int = 2,
    headers: dict[bytes, bytes] | None = None,
    best: int | None = None,
) -> Answer:
    answer = find_wire(endpoint).answer(stream=False)
    answer.feed(msgspec.json.encode(said))
    answer.finish()
    answer.take_headers(headers or {})
    answer.take_request(asked, best)
    return answer


@pytest.mark.parametrize(
    ("endpoint", "said", "tokens"),
    [
        (
            "embeddings",
            {
                "data": [{"embedding": packed(ONE)}, {"embedding": packed(TWO)}],
                "usage": {"prompt_tokens": 9},
            },
            9,
        ),
        (
            "embeddings",
            {"data": [{"embedding": ONE}, {"embedding": TWO}], "usage": {"total_tokens": 9}},
            9,
        ),
        ("embeddings", [ONE, TWO], None),
        (
            "rerank",
            {
                "results": [
                    {"index": 1, "relevance_score": 0.5},
                    {"index": 0, "relevance_score": 0.1},
                ],
                "usage": {"prompt_tokens": 20},
            },
            20,
        ),
        ("rerank", [{"index": 0, "score": 0.5}, {"index": 1, "score": 0.25}], None),
        (
            "score",
            {
                "data": [{"index": 0, "score": 0.5}, {"index": 1, "score": 0.2}],
                "usage": {"prompt_tokens": 7},
            },
            7,
        ),
        ("score", {"scores": [[0.5, 0.5], [0.25, 0.75]]}, None),
    ],
)
def test_vectors_and_scores_are_read_in_every_form(
    endpoint: str, said: Any, tokens: int | None
) -> None:
    answer = read(endpoint, said)
    assert (answer.error, answer.events, answer.output_tokens, answer.input_tokens) == (
        None,
        1,
        2,
        tokens,
    )
    assert answer.vectors is not None
    assert (answer.vectors.faulty, answer.vectors.alike) == (False, False)
    assert dict(answer.vectors.lengths) == ({3: 2} if endpoint == "embeddings" else {})


@pytest.mark.parametrize(
    ("endpoint", "said", "faulty", "alike"),
    [
        ("embeddings", [ONE, ONE], False, True),
        ("embeddings", [ONE, [0.0, 0.0, 0.0]], True, False),
        ("embeddings", [ONE, [1.0, None, 2.0]], True, False),
        ("embeddings", [packed(ONE), packed([1.0, float("nan"), 0.0])], True, False),
        ("rerank", [{"score": 0.5}, {"score": 0.5}], False, True),
    ],
)
def test_odd_vectors_are_told(endpoint: str, said: Any, faulty: bool, alike: bool) -> None:
    vectors = read(endpoint, said).vectors
    assert vectors is not None
    assert (vectors.faulty, vectors.alike) == (faulty, alike)


@pytest.mark.parametrize(
    ("endpoint", "said", "error"),
    [
        ("embeddings", [ONE], "1 vectors for 2 inputs"),
        ("rerank", [{"score": n} for n in range(3)], "3 scores for 2 documents"),
        ("rerank", [{"index": 1, "score": 0.5}], "1 scores for 2 documents"),
        ("score", {"data": [{"index": 0, "score": 0.5}]}, "1 scores for 2 documents"),
        ("embeddings", {"data": []}, "data"),
        ("embeddings", {"data": [{"embedding": "%%%"}]}, "no base64"),
        ("embeddings", {"data": [{"embedding": "YWJjZGU="}]}, "no base64 of 32-bit floats"),
        ("embeddings", {"data": [{"index": 0, "embedding": None}]}, "no list of numbers"),
        ("embeddings", {"data": [{"embedding": {"1": 0.5}}] * 2}, "no list of numbers"),
        ("embeddings", {"data": [{"index": 0, "embedding": ONE}] * 2}, "the same index"),
        ("rerank", {"results": [{"index": 1, "score": n} for n in range(2)]}, "the same index"),
        ("rerank", {"results": [{"index": 0, "score": None}]}, "an entry has no score"),
        ("rerank", {"results": [{"index": 0}]}, "results"),
        ("embeddings", {"error": {"message": "no such model"}}, "no such model"),
    ],
)
def test_what_is_no_whole_answer_is_an_error(endpoint: str, said: Any, error: str) -> None:
    answer = read(endpoint, said)
    assert error in (answer.error or "")
    assert (answer.output_tokens or 0, answer.events - answer.voids) == (0, 0)


def test_the_best_of_all_documents_are_an_answer_for_all() -> None:
    said = {"results": [{"relevance_score": 0.5}], "usage": {"prompt_tokens": 1260}}
    answer = read("rerank", said, 10, best=1)
    assert (answer.error, answer.output_tokens, answer.input_tokens) == (None, 10, 1260)
    assert read("rerank", said, 10, best=3).error == "1 scores for 10 documents"
    assert read("rerank", said, 1, best=3).error is None
    assert read("rerank", said, 10, best=0).error == "1 scores for 10 documents"


def test_tokens_may_stand_in_a_header() -> None:
    assert (
        read("rerank", [{"score": 1}, {"score": 2}], 2, {b"x-compute-tokens": b"252"}).input_tokens
        == 252
    )


@pytest.mark.parametrize(
    ("endpoint", "form", "path", "body"),
    [
        (
            "embeddings",
            "openai",
            "/v1/embeddings",
            {"model": "m", "input": ["a b", "c"], "encoding_format": "base64"},
        ),
        ("embeddings", "tei", "/embed", {"model": "m", "inputs": ["a b", "c"]}),
        ("rerank", "jina", "/v1/rerank", {"model": "m", "query": "a b", "documents": ["c"]}),
        ("rerank", "tei", "/rerank", {"model": "m", "query": "a b", "texts": ["c"]}),
        ("score", "vllm", "/score", {"model": "m", "text_1": "a b", "text_2": ["c"]}),
        ("score", "sglang", "/v1/score", {"model": "m", "query": "a b", "items": ["c"]}),
    ],
)
def test_requests_have_the_form_of_the_server(
    endpoint: str, form: str, path: str, body: dict[str, Any]
) -> None:
    spec = RequestSpec(endpoint=endpoint, model="m", stream=False, form=form)
    assert make_path(spec) == path
    assert msgspec.json.decode(RequestBody(make_body(spec)).render(b'["a b","c"]', 1)) == body
