"""SGLang by its own dialect, `POST /generate`: counts, cache, shapes, and answers in one piece."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Json, Loadstone, Outcome
from engines.launch import Engine, launch_or_skip
from engines.quirks import ONE_OR_TWO

pytestmark = [pytest.mark.slow, pytest.mark.process]

INPUT, OUTPUT = 96, 16


@pytest.fixture(scope="module")
def sglang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    yield from launch_or_skip("SGLang", tmp_path_factory)


def bench(loadstone: Loadstone, engine: Engine, *more: object) -> Outcome:
    shape = ("--input", INPUT, "--output", OUTPUT, "--requests", 8, "--json")
    outcome = loadstone("bench", engine.url, "--endpoint", "sglang", *shape, *more)
    assert outcome.code == 0, outcome.err
    assert {cell["requests"]["ok"] for cell in outcome.document["cells"]} == {8}
    return outcome


def measured(outcome: Outcome) -> list[Json]:
    return [record for record in outcome.records if record["phase"] == "measure"]


def test_every_token_is_counted(loadstone: Loadstone, sglang: Engine) -> None:
    outcome = bench(loadstone, sglang, "--concurrency", "1,4")
    target = outcome.document["target"]
    assert (target["engine"], target["model"], target["endpoint"]) == ("SGLang", "tiny", "sglang")
    assert target["prompt_kind"] == "token ids"
    assert len(measured(outcome)) == 16
    assert {record["token_source"] for record in measured(outcome)} == {"running usage"}
    for record in measured(outcome):
        assert (record["status"], record["finish_reason"]) == ("ok", "length")
        assert (record["input_tokens"], record["output_tokens"]) == (INPUT, OUTPUT)
        # With four at a time an event may bring more than one token; the count that it states says
        # how many.
        assert record["tokens"] == sorted(set(record["tokens"]))
        assert record["tokens"][-1] == OUTPUT
        assert len(record["tokens"]) == len(record["arrival_s"])
        assert record["cached_tokens"] is not None
    assert "prefix_cache_helped" not in outcome.findings


@pytest.mark.parametrize("way", ["--stream", "--no-stream"])
def test_answers_side_by_side(loadstone: Loadstone, sglang: Engine, way: str) -> None:
    outcome = bench(
        loadstone,
        sglang,
        "--extra-body",
        '{"sampling_params": {"n": 2}}',
        "--concurrency",
        "2",
        way,
    )
    assert outcome.document["target"]["prompt_kind"] == "token ids"
    for record in measured(outcome):
        assert (record["status"], record["input_tokens"], record["output_tokens"]) == (
            "ok",
            INPUT,
            2 * OUTPUT,
        )
        assert record["tokens"][-1] == 2 * OUTPUT
    assert "several_answers" in outcome.findings
    assert not {"output_length", "prefix_cache_helped", "input_length"} & outcome.findings


def test_a_known_prompt_is_cached_but_for_its_last_token_unless_the_cache_is_emptied(
    loadstone: Loadstone, sglang: Engine
) -> None:
    again = ("--salt", "0123456789ab", "--concurrency", "1", "--warmup", "0")
    bench(loadstone, sglang, *again)
    left = bench(loadstone, sglang, *again, "--no-flush-cache")
    assert {record["cached_tokens"] for record in left.records} == {INPUT - 1}
    assert "prefix_cache_helped" in left.findings
    emptied = bench(loadstone, sglang, *again)
    assert {record["cached_tokens"] for record in emptied.records} == {0}
    assert "prefix_cache_helped" not in emptied.findings


@pytest.mark.parametrize(("shape", "tokens"), [("regex", 8), ("json-schema", 6)])
def test_answers_end_where_their_shape_does(
    loadstone: Loadstone, sglang: Engine, shape: str, tokens: int, tmp_path: Path
) -> None:
    """A letter, a digit or a quote is a token of the tiny model each, and so is the end."""
    (file := tmp_path / "schema.json").write_text(json.dumps(ONE_OR_TWO))
    wish = {"regex": "regex:[0-9]{7}", "json-schema": f"json-schema:{file}"}[shape]
    outcome = bench(loadstone, sglang, "--structured", wish, "--concurrency", "2")
    assert {record["finish_reason"] for record in outcome.records} == {"stop"}
    assert {record["output_tokens"] for record in outcome.records} == {tokens}


def test_answers_in_one_piece(loadstone: Loadstone, sglang: Engine) -> None:
    outcome = bench(loadstone, sglang, "--no-stream", "--concurrency", "2")
    assert {
        (record["output_tokens"], len(record["arrival_s"])) for record in measured(outcome)
    } == {(OUTPUT, 1)}
    assert {record["input_tokens"] for record in measured(outcome)} == {INPUT}
    assert all(record["cached_tokens"] is not None for record in measured(outcome))
