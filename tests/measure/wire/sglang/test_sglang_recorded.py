"""What a real SGLang server sent (README.md), read as its dialect and as OpenAI's."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadstone.measure.wires.openai import OpenAIAnswer
from loadstone.measure.wires.sglang import SglangAnswer

HERE = Path(__file__).resolve().parent
ONE_BY_ONE = list(range(1, 13))


def generate(name: str) -> SglangAnswer:
    answer = SglangAnswer(stream=name.endswith(".sse"), keep_text=True)
    answer.feed((HERE / name).read_bytes())
    answer.finish()
    return answer


@pytest.mark.parametrize(
    ("name", "running"),
    [
        ("generate_text.sse", ONE_BY_ONE),
        ("generate_ids.sse", ONE_BY_ONE),
        ("incremental.sse", ONE_BY_ONE),
        ("generate_interval_4.sse", [1, 5, 9, 12]),
    ],
)
def test_each_event_states_the_tokens_so_far(name: str, running: list[int]) -> None:
    answer = generate(name)
    assert (answer.running_tokens, answer.output_tokens, answer.input_tokens) == (running, 12, 5)
    assert (answer.finish_reason, answer.done, answer.error) == ("length", True, None)
    assert answer.text == generate("generate.json").text


def test_a_prompt_sent_twice_is_cached_but_for_its_last_token() -> None:
    first, second = generate("generate_long.sse"), generate("generate_repeated.sse")
    assert second.input_tokens == first.input_tokens
    assert (first.cached_tokens, second.cached_tokens) == (5, second.input_tokens - 1)


@pytest.mark.parametrize("name", ["generate_regex.sse", "generate_schema.sse", "generate_stop.sse"])
def test_the_token_that_ends_an_answer_counts_though_it_has_no_text(name: str) -> None:
    answer = generate(name)
    assert (answer.finish_reason, answer.error) == ("stop", None)
    assert answer.running_tokens[-1] == answer.output_tokens == answer.events


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("generate_too_long.sse", "4200 tokens"),
        ("generate_bad_schema.sse", "Failed to compile json grammar"),
        ("queue_full.sse", "The request queue is full"),
        ("aborted.sse", "Aborted"),
    ],
)
def test_a_stream_of_status_200_may_be_a_refusal(name: str, said: str) -> None:
    assert (HERE / f"{name}.hdr").read_bytes().startswith(b"HTTP/1.1 200")
    assert said in (generate(name).error or "")


@pytest.mark.parametrize("kind", ["completions", "chat"])
def test_openai_streams(kind: str) -> None:
    for name, running in ((f"{kind}_running.sse", True), (f"{kind}_usage.sse", False)):
        answer = OpenAIAnswer()
        answer.feed((HERE / name).read_bytes())
        answer.finish()
        assert (answer.output_tokens, answer.finish_reason, answer.done, answer.error) == (
            12,
            "length",
            True,
            None,
        )
        assert bool(answer.running_tokens) == running
