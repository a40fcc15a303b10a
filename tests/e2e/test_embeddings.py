"""Embeddings and reranking against servers: one of fixed times, a scripted one that answers as Text
Embeddings Inference does, and llama.cpp's own."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest

from conftest import Ask, Loadstone, ScriptedServer, Send
from loadstone.core.errors import InputError
from loadstone.measure.engines import llama_cpp
from loadstone.measure.engines.process import ServerProcess

RUN = ("--concurrency", 2, "--requests", 12, "--json")
FEW = ("--concurrency", 1, "--requests", 3, "--json")


def test_inputs_are_counted_and_nothing_is_streamed(loadstone: Loadstone) -> None:
    asked = ("--endpoint", "embeddings", "--inputs", 8, "--input", 32, "--slo", "e2e_p99<10s")
    outcome = loadstone("bench", "--sim", "ttft=5ms,itl=1ms", *asked, *RUN)
    assert outcome.code == 0, outcome.err
    metrics = outcome.cell["metrics"]
    assert (metrics["ttft_s"], metrics["tpot_s"], metrics["output_tokens"]) == (None, None, None)
    assert metrics["input_tokens"] == 12 * 8 * 32
    assert metrics["inputs_per_s"] == pytest.approx(8 * metrics["requests_per_s"])
    assert metrics["e2e_s"]["min"] >= 0.012
    assert outcome.cell["slo"][0]["met"]
    shown = loadstone("show", outcome.folder).out
    assert "inputs/s" in shown
    assert "TTFT" not in shown
    assert "out tok/s" not in shown


@pytest.mark.parametrize("asked", [("--endpoint", "embeddings"), ("--no-stream",)])
def test_bounds_on_first_tokens_are_refused_where_answers_have_none(
    loadstone: Loadstone, asked: tuple[str, ...]
) -> None:
    line = loadstone("bench", "--sim", "ttft=5ms,itl=1ms", *asked, *FEW, "--slo", "ttft_p99<1s")
    assert "have e2e alone" in line.line()


def test_what_a_calibration_is_off_by_is_e2e(loadstone: Loadstone, tmp_path: Path) -> None:
    asked = ("--endpoint", "embeddings", "--inputs", 2, "--input", 32)
    run = loadstone("bench", "--sim", "ttft=5ms,itl=1ms", *asked, *RUN).folder
    where = ("--deployment", "bge-m3@1xl4", "--out", tmp_path / "profiles", "--force")
    said = loadstone("calibrate", run, *where).out
    assert "\nE2E: off by " in said
    assert "TTFT: off" not in said


@pytest.mark.parametrize("endpoint", ["rerank", "score"])
def test_documents_are_counted_with_their_query(endpoint: str, loadstone: Loadstone) -> None:
    asked = ("--endpoint", endpoint, "--input", 20, "--documents", 10, "--document", 100)
    outcome = loadstone("bench", "--sim", "ttft=1ms,itl=0ms", *asked, *RUN)
    assert outcome.code == 0, outcome.err
    metrics = outcome.cell["metrics"]
    assert metrics["input_tokens"] == 12 * 10 * 120
    assert metrics["documents_per_s"] == pytest.approx(10 * metrics["requests_per_s"])
    assert not {"input_length", "inputs_truncated"} & kinds(outcome)


def kinds(outcome: object) -> set[str]:
    return {finding["kind"] for finding in outcome.cell["verdict"]["findings"]}  # type: ignore[attr-defined]


def test_texts_that_are_cut_are_told(loadstone: Loadstone) -> None:
    cut = ("--extra-body", '{"truncate_prompt_tokens": 16}')
    outcome = loadstone(
        "bench", "--sim", "ttft=1ms,itl=0ms", "--endpoint", "embeddings", "--input", 32, *cut, *FEW
    )
    (found,) = [
        each for each in outcome.cell["verdict"]["findings"] if each["kind"] == "inputs_truncated"
    ]
    assert found["values"] == {"truncated": 3, "requests": 3, "read_share": 0.5}


LIMIT = 64


def answer_as_tei(ask: Ask, send: Send) -> None:
    """Its own paths, plain arrays, tokens in a header; longer texts are cut."""
    if ask.path == "/info":
        about = {"model_id": "BAAI/bge-m3", "max_input_length": LIMIT, "version": "1.8.0"}
        return respond(send, 200, about)
    if ask.path not in ("/embed", "/rerank"):
        return respond(send, 404, {"error": "not found"})
    body = json.loads(ask.body)
    if ask.path == "/embed":
        texts = body["inputs"]
        texts = [texts] if isinstance(texts, str) or isinstance(texts[0], int) else texts
    else:
        texts = [f"{body['query']} {text}" for text in body["texts"]]
    if len(texts) > 16:
        error = {
            "error": "batch size 17 > maximum allowed batch size 16",
            "error_type": "Validation",
        }
        return respond(send, 422, error)
    sizes = [len(text.split() if isinstance(text, str) else text) + 2 for text in texts]
    found = [[float(crc32(str(text).encode())), 1.0] for text in texts]
    said = (
        found
        if ask.path == "/embed"
        else [{"index": n, "score": each[0]} for n, each in enumerate(found)]
    )
    return respond(send, 200, said, sum(min(size, LIMIT) for size in sizes))


def respond(send: Send, status: int, said: object, tokens: int | None = None) -> None:
    body = json.dumps(said).encode()
    counted = "" if tokens is None else f"x-compute-tokens: {tokens}\r\n"
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{counted}content-length: {len(body)}\r\n\r\n"
    send(head.encode() + body)


@pytest.mark.parametrize(
    ("asked", "tokens", "found"),
    [
        (("embeddings", "--inputs", 4, "--input", 32), 12 * 4 * 32, None),
        (("rerank", "--documents", 5, "--input", 8, "--document", 20), 12 * 5 * 30, None),
        (("embeddings", "--input", 100), 12 * LIMIT, "inputs_truncated"),
        (("embeddings", "--inputs", 17, "--input", 8), None, "request_errors"),
    ],
)
def test_its_own_form_is_found_and_counted_by_its_header(
    asked: tuple[object, ...], tokens: int | None, found: str | None, loadstone: Loadstone
) -> None:
    with ScriptedServer(answer_as_tei, meets=True) as server:
        outcome = loadstone("bench", server.url, "--endpoint", *asked, *RUN)
    assert outcome.code == 0, outcome.err
    target = outcome.document["target"]
    assert (target["engine"], target["model"], target["max_model_tokens"]) == (
        "Text Embeddings Inference", "BAAI/bge-m3", LIMIT,
    )  # fmt: skip
    assert outcome.cell["metrics"]["input_tokens"] == tokens
    assert (
        {"inputs_truncated", "request_errors", "input_length", "vectors_alike"} & kinds(outcome)
    ) == ({found} if found else set())
    if found == "request_errors":
        evidence = str(outcome.cell["verdict"]["findings"])
        assert "--max-client-batch-size" in evidence


def test_rates_leave_out_answers_that_lack_vectors(loadstone: Loadstone) -> None:
    def forget(ask: Ask, send: Send) -> None:
        if ask.path != "/embed" or not ask.measured:
            return answer_as_tei(ask, send)
        texts = json.loads(ask.body)["inputs"]
        return respond(send, 200, [[float(number), 1.0] for number in range(len(texts) - 1)], 8)

    with ScriptedServer(forget, meets=True) as server:
        asked = ("--endpoint", "embeddings", "--inputs", 3, "--input", 8)
        outcome = loadstone("bench", server.url, *asked, *RUN)
    assert "2 vectors for 3 inputs" in str(outcome.cell["verdict"]["findings"])
    assert outcome.cell["metrics"]["inputs_per_s"] == 0


def test_a_server_without_the_api_is_told_so_in_one_line(loadstone: Loadstone) -> None:
    with ScriptedServer(answer_as_tei, meets=True) as server:
        line = loadstone("bench", server.url, "--endpoint", "score", *FEW).line()
    assert "has no score" in line


# --- llama.cpp's own server -----------------------------------------------------------------------


def serve(folder: Path, *flags: str) -> ServerProcess:
    try:
        _ = llama_cpp.find() or llama_cpp.fetch()
    except InputError as error:
        pytest.skip(str(error))
    return llama_cpp.launch(slots=4, context_tokens=1024, log_path=folder / "log", flags=flags)


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serve(tmp_path_factory.mktemp("embedder"), "--embedding", "--pooling", "mean") as server:
        yield server


def test_llama_cpp_gives_vectors_of_exact_lengths(
    embedder: ServerProcess, loadstone: Loadstone
) -> None:
    asked = (
        "--endpoint",
        "embeddings",
        "--inputs",
        4,
        "--input",
        48,
        "--extra-body",
        '{"dimensions": 64}',
    )
    outcome = loadstone("bench", embedder.url, *asked, *RUN)
    assert outcome.code == 0, outcome.err
    assert outcome.cell["metrics"]["input_tokens"] == 12 * 4 * 48
    (found,) = [
        each for each in outcome.cell["verdict"]["findings"] if each["kind"] == "dimensions_ignored"
    ]
    assert found["values"] == {"asked": 64, "came": 256}


def test_an_input_beyond_the_physical_batch_names_its_flag(
    embedder: ServerProcess, loadstone: Loadstone
) -> None:
    outcome = loadstone("bench", embedder.url, "--endpoint", "embeddings", "--input", 600, *FEW)
    assert outcome.cell["requests"]["error"] == 3
    (found,) = [
        each for each in outcome.cell["verdict"]["findings"] if each["kind"] == "request_errors"
    ]
    assert "--ubatch-size" in found["remedy"]


def test_a_reranker_reads_all_documents_whatever_comes_back(
    tmp_path: Path, loadstone: Loadstone
) -> None:
    with serve(tmp_path, "--reranking") as server:
        asked = ("--endpoint", "rerank", "--input", 20, "--documents", 10, "--document", 100)
        outcome = loadstone("bench", server.url, *asked, "--extra-body", '{"top_n": 3}', *FEW)
    assert outcome.code == 0, outcome.err
    assert outcome.document["target"]["pairs"]
    assert outcome.cell["metrics"]["input_tokens"] >= 3 * 10 * 120
    assert outcome.cell["metrics"]["documents_per_s"] == pytest.approx(
        10 * outcome.cell["metrics"]["requests_per_s"]
    )
    assert not {"input_length", "inputs_truncated"} & kinds(outcome)


# --- what is done with such runs ------------------------------------------------------------------

BY_VECTORS = ("--endpoint", "embeddings", "--inputs", 2, "--input", 32)


def test_a_measured_embedder_is_learned_from_by_its_e2e(
    embedder: ServerProcess, loadstone: Loadstone, tmp_path: Path
) -> None:
    """The server stands for a deployment of its engine; its predictions are surer then."""
    where = ("--deployment", "bge-m3@1xl4/engine=llama.cpp", "--warmup", 2, "--out", tmp_path)
    run = loadstone("bench", embedder.url, *BY_VECTORS, *RUN, *where)
    traffic = (*BY_VECTORS, "--rate", 0.5, "--slo", "e2e_p99<60s", "--gpus", "l4", "--json")
    asked = ("recommend", "bge-m3", *traffic, "--engine", "llama.cpp")
    plain, learned = (loadstone(*asked, *more) for more in ((), ("--with", run.folder, "--force")))
    assert "Warning" not in learned.err
    before, after = (
        math.log(e2e_s["high"] / e2e_s["low"])
        for e2e_s in (outcome.document["plans"][0]["e2e_s"] for outcome in (plain, learned))
    )
    assert after < before / 2


def test_runs_for_vectors_are_compared_followed_and_exported(
    loadstone: Loadstone, tmp_path: Path
) -> None:
    runs = [
        loadstone("bench", "--sim", f"ttft={ttft}ms,itl=1ms", *BY_VECTORS, *RUN).folder
        for ttft in (5, 50)
    ]
    compared = loadstone("compare", *runs).out
    assert "E2E p50" in compared
    assert "inputs per s" in compared
    assert "TTFT" not in compared
    assert "missing" not in compared
    assert loadstone("trend", *runs, "-o", tmp_path / "trend.html").code == 0
    assert "e2e_p50" in (tmp_path / "trend.html").read_text()
    rows = loadstone("query", "select inputs_per_s, e2e_s_p50 from cells", "--runs", runs[0]).out
    assert len(rows.splitlines()) == 2
    for form in ("csv", "vllm", "sglang", "llm-d"):
        out = tmp_path / f"run.{form}"
        assert loadstone("export", runs[0], "--format", form, "-o", out).code == 0
        again = loadstone("import", out, "--out", tmp_path / form, "--json")
        assert again.code == 0, again.err
    document = json.loads((tmp_path / "run.vllm").read_text())
    assert not [name for name in document if "output" in name or "ttft" in name]
    tokens, seconds = document["total_input_tokens"], document["duration"]
    assert document["total_token_throughput"] == pytest.approx(tokens / seconds)
    head, row = (tmp_path / "run.csv").read_text().splitlines()
    per_s = dict(zip(head.split(","), row.split(","), strict=True))
    assert float(per_s["input_tokens_per_s"]) == pytest.approx(32 * float(per_s["inputs_per_s"]))
