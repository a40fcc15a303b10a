"""Real engines: every request and token of a run against what the server says, and docs/engines.md
against both.

All serve the same tiny model. Only llama.cpp, which starts in a fraction of a second, is not slow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from conftest import Json, Loadstone, Outcome
from engines.launch import ENGINES, Engine, launch_or_skip
from engines.quirks import ONE_OR_TWO, documented, observe

pytestmark = pytest.mark.process

INPUT, OUTPUT = 96, 16
SHAPED = 128
"""Tokens that no answer to the schema needs, though blanks be allowed around it."""


@pytest.fixture(
    scope="session",
    params=[
        pytest.param(name, marks=() if name == "llama.cpp" else pytest.mark.slow)
        for name in ENGINES
    ],
)
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    yield from launch_or_skip(request.param, tmp_path_factory)


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    yield from launch_or_skip("llama.cpp", tmp_path_factory)


@pytest.fixture(scope="session")
def quirks(engine: Engine) -> dict[str, str]:
    return documented()[engine.name]


def bench(loadstone: Loadstone, engine: Engine, *more: object) -> Outcome:
    shape = ("--input", INPUT, "--output", OUTPUT, "--json")
    outcome = loadstone("bench", engine.url, "--model", engine.model, *shape, *more)
    assert outcome.code == 0, outcome.err
    return outcome


def check(outcome: Outcome, quirks: dict[str, str], sent: list[int]) -> None:
    """Every request ended well, with the lengths asked for, by the counts that this engine
    gives."""
    assert [cell["requests"]["ok"] for cell in outcome.document["cells"]] == sent
    for cell in outcome.document["cells"]:
        assert cell["metrics"]["input_tokens"] == INPUT * cell["requests"]["sent"]
        assert cell["metrics"]["output_tokens"] == OUTPUT * cell["requests"]["sent"]
        assert cell["metrics"]["ttft_s"]["p50"] > 0
    measured = [record for record in outcome.records if record["phase"] == "measure"]
    assert len(measured) == sum(sent)
    for record in measured:
        assert record["status"] == "ok"
        assert record["finish_reason"] == "length"
        assert record["input_tokens"] == INPUT
        assert record["output_tokens"] == record["tokens"][-1] == OUTPUT
        assert record["token_source"] == (
            "running usage" if quirks["running usage"] == "yes" else "final usage"
        )
        assert (
            record["sent_s"] < record["arrival_s"][0] <= record["arrival_s"][-1] <= record["end_s"]
        )
        assert (record["cached_tokens"] is None) == (quirks["cached tokens"] == "not told")
    assert not outcome.spoilt_by, outcome.document["cells"]


def test_completions(loadstone: Loadstone, engine: Engine, quirks: dict[str, str]) -> None:
    outcome = bench(
        loadstone, engine, "--endpoint", "completions", "--concurrency", "1,4", "--requests", "8"
    )
    check(outcome, quirks, [8, 8])
    target = json.loads((outcome.folder / "run.json").read_text())["target"]
    assert target["prompt_kind"] == (
        "token ids" if quirks["token ids as prompt"] == "taken" else "text"
    )
    for field in ("ignore_eos", "min_tokens"):
        assert target["accepts"][field] == (not quirks[f"`{field}`"].startswith("refused"))


def test_chat(loadstone: Loadstone, engine: Engine, quirks: dict[str, str]) -> None:
    outcome = bench(
        loadstone, engine, "--endpoint", "chat", "--concurrency", "4", "--requests", "8"
    )
    check(outcome, quirks, [8])
    assert outcome.document["target"]["prompt_kind"] == "text"


def test_a_cache_that_helped_is_found_out(
    loadstone: Loadstone, engine: Engine, quirks: dict[str, str]
) -> None:
    """The same prompts twice: no fault of the first run, and of the second wherever the engine
    tells."""
    again = (
        "--salt",
        "0123456789ab",
        "--no-flush-cache",
        "--concurrency",
        "1",
        "--requests",
        "4",
        "--warmup",
        "0",
    )
    first, second = (bench(loadstone, engine, *again) for _ in range(2))
    assert "prefix_cache_helped" not in first.findings
    assert ("prefix_cache_helped" in second.findings) == (quirks["cached tokens"] != "not told")


def test_answers_that_would_end_early(
    loadstone: Loadstone, engine: Engine, quirks: dict[str, str]
) -> None:
    """The model is made to prefer its end of sequence: full answers where ignore_eos works, else
    short ones, said."""
    if quirks["`ignore_eos`"].startswith("refused"):
        pytest.skip("it takes no ignore_eos, and no logit_bias to show that with")
    ends = json.dumps({"logit_bias": {"2": 33}})
    outcome = bench(
        loadstone, engine, "--extra-body", ends, "--concurrency", "2", "--requests", "8"
    )
    short = [record for record in outcome.records if record["status"] == "short"]
    if quirks["`ignore_eos`"] == "honoured":
        assert not short
        assert outcome.cell["metrics"]["output_tokens"] == OUTPUT * 8
        assert not outcome.spoilt_by
    else:
        assert short
        assert all(
            record["finish_reason"] == "stop" and record["output_tokens"] < OUTPUT
            for record in short
        )
        # mlx-lm sends no event for the end of sequence: an answer of nothing else is empty.
        silent = any(not record["arrival_s"] for record in short)
        # And where some answers were long enough all the same, their ends differ.
        mixed = (
            len(
                {
                    record["finish_reason"]
                    for record in outcome.records
                    if record["phase"] == "measure"
                }
            )
            > 1
        )
        also = ({"empty_answers"} if silent else set()) | ({"finish_reasons"} if mixed else set())
        assert outcome.spoilt_by - also == {"short_outputs"}


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_answers_to_a_schema(
    loadstone: Loadstone, engine: Engine, quirks: dict[str, str], endpoint: str, tmp_path: Path
) -> None:
    """Free to end where the schema ends wherever the engine heeds it, else refused before anything
    is measured."""
    (file := tmp_path / "schema.json").write_text(json.dumps(ONE_OR_TWO))
    wish = ("--endpoint", endpoint, "--structured", f"json-schema:{file}", "--output", SHAPED)
    # llama.cpp has a field of its own besides.
    if quirks[f"JSON schema, {endpoint}"] == "honoured" or engine.name == "llama.cpp":
        outcome = bench(loadstone, engine, *wish, "--concurrency", "2", "--requests", "8")
        assert outcome.cell["requests"]["ok"] == 8
        # A model that says anything may fill an answer with the white space that a schema admits.
        ended = [record for record in outcome.records if record["finish_reason"] == "stop"]
        assert len(ended) >= 6
        assert all(0 < record["output_tokens"] < SHAPED for record in ended)
    else:
        refusal = loadstone("bench", engine.url, "--model", engine.model, *wish).line()
        assert refusal.startswith("--structured: the server takes no json schema")


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_answers_side_by_side(
    loadstone: Loadstone, engine: Engine, quirks: dict[str, str], endpoint: str
) -> None:
    """Every token of both is counted, whether the engine counts for each answer or for all, and it
    is said."""
    both = (
        "--extra-body",
        '{"n": 2}',
        "--endpoint",
        endpoint,
        "--concurrency",
        "2",
        "--requests",
        "8",
    )
    outcome = bench(loadstone, engine, *both)
    answers = 2 if quirks["`n`"] == "honoured" else 1
    measured = [record for record in outcome.records if record["phase"] == "measure"]
    assert outcome.cell["metrics"]["output_tokens"] == answers * OUTPUT * 8
    for record in measured:
        assert (record["status"], record["input_tokens"]) == ("ok", INPUT)
        assert record["output_tokens"] == record["tokens"][-1] == answers * OUTPUT
        assert record["tokens"] == sorted(record["tokens"])
    assert outcome.spoilt_by == ({"several_answers"} if answers == 2 else set())


def test_the_users_own_fields_do_not_hinder_the_meeting(
    loadstone: Loadstone, engine: Engine, quirks: dict[str, str]
) -> None:
    """Some make sense in a stream alone, or in an answer as long as the run's; meeting a server
    takes others, too."""
    fields: Json = {"stream_options": {"continuous_usage_stats": False}}
    if not quirks["`min_tokens`"].startswith("refused"):
        fields["min_tokens"] = 4
    own = (
        "--endpoint",
        "completions",
        "--extra-body",
        json.dumps(fields),
        "--concurrency",
        "2",
        "--requests",
        "8",
    )
    outcome = bench(loadstone, engine, *own)
    assert outcome.cell["metrics"]["input_tokens"] == INPUT * 8
    taken = quirks["token ids as prompt"] == "taken"
    assert outcome.document["target"]["prompt_kind"] == ("token ids" if taken else "text")
    assert not outcome.spoilt_by


def test_all_serve_the_same_model(engine: Engine, reference: Engine) -> None:
    """So that what differs between them is theirs: greedy answers are the same words."""

    def words(server: Engine) -> list[str]:
        body: Json = {
            "model": server.model,
            "prompt": " time water people",
            "max_tokens": 6,
            "temperature": 0,
        }
        answer = httpx.post(
            f"{server.url}/v1/completions", json=body, timeout=30, trust_env=False
        ).json()
        return str(answer["choices"][0]["text"]).split()

    assert len(words(reference)) == 6
    assert words(engine) == words(reference)


def test_the_page_says_what_the_engine_does(engine: Engine, quirks: dict[str, str]) -> None:
    assert observe(engine) == quirks
