"""Thinking, answers and tool calls told apart, and what answers say of drafts, in each sender's
fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadstone.core.record import ANSWER, THINKING, TOOL_CALL
from loadstone.measure.wire.drafts import DraftCounts, read_drafts
from loadstone.measure.wires.openai import OpenAIAnswer
from loadstone.measure.wires.sglang import SglangAnswer

SHAPES = Path(__file__).parents[3] / "shared/data/agents/stream_shapes_synthetic.jsonl"
CALL = {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}


def channels(*deltas: dict[str, Any]) -> list[int]:
    answer = OpenAIAnswer()
    for delta in deltas:
        answer.feed(
            b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode() + b"\n\n"
        )
    assert len(answer.channels) == answer.events
    return list(answer.channels)


@pytest.mark.parametrize(
    ("deltas", "expected"),
    [
        ([{"role": "assistant", "content": ""}, {"content": "a"}], [ANSWER]),
        ([{"reasoning": "a"}, {"content": "\n\n"}, {"content": "b"}, {"content": " "}], [1, 1, 2, 2]),
        ([{"reasoning_content": "a", "content": None}, {"content": " "}, {"content": "\n"}, CALL], [1, 1, 1, 3]),
        ([{"reasoning": "a", "content": "b"}, {"reasoning": "a", **CALL}, {"refusal": "no"}], [2, 3, 2]),
        ([{"reasoning": "a", "content": " "}], [THINKING]),
        ([{"content": "a"}, {"reasoning": "b"}, {"content": "c"}, CALL], [2, 1, 2, 3]),
        ([{"content": "<think>"}, {"content": "a"}, {"content": "</think>"}, {"content": "\n"}, {"content": "b"}],
         [1, 1, 1, 1, 2]),
        ([{"content": "<th"}, {"content": "ink>a</"}, {"content": "think> b"}, {"content": "<think>"}], [1, 1, 2, 2]),
        ([{"content": "<html>"}, {"content": "<think>"}], [ANSWER, ANSWER]),
        ([{"content": " "}, {"content": "a"}], [0, ANSWER]),
        ([{"thinking_text": "a"}, {"thinking_text": "b"}, {"content": "c"}], [1, 1, 2]),
        ([{"function_call": {"name": "f", "arguments": ""}}], [TOOL_CALL]),
    ],
)  # fmt: skip
def test_an_event_has_the_last_of_its_channels(
    deltas: list[dict[str, Any]], expected: list[int]
) -> None:
    assert channels(*deltas) == expected


def test_senders_shapes() -> None:
    if not SHAPES.is_file():
        pytest.skip(f"no shared data beside the checkout: {SHAPES.name}")
    found = []
    for line in SHAPES.read_text().splitlines():
        shape = json.loads(line)
        if not shape["source"].startswith("anthropic"):
            whole = "non-streaming" in shape["source"]
            answer = OpenAIAnswer(stream=not whole)
            for event in shape["events"]:
                text = json.dumps(event)
                answer.feed((text if whole else f"data: {text}\n\n").encode())
            answer.finish()
            found.append((list(answer.channels), answer.drafts))
    vllm, sglang = (
        DraftCounts(3, 9, 1, [2, 1, 0, 0]),
        DraftCounts(43, 215, 63, [11, 14, 11, 4, 0, 3]),
    )
    assert found == [
        ([1, 1, 1, 2], vllm), ([1, 2], None), ([3, 3, 3], None), ([1, 2], None), ([1, 2], None),
        ([1, 1, 1, 2], None), ([1, 2], None), ([2], sglang),
    ]  # fmt: skip


def test_sglang_s_own_dialect_tells_thinking_by_its_count() -> None:
    answer = SglangAnswer()
    for tokens, thought in ((1, 1), (3, 3), (4, 3)):
        meta: dict[str, Any] = {
            "completion_tokens": tokens,
            "reasoning_tokens": thought,
            "spec_verify_ct": 2,
        }
        meta["finish_reason"] = "stop" if tokens == 4 else None
        answer.feed(b"data: " + json.dumps({"text": "a", "meta_info": meta}).encode() + b"\n\n")
    assert list(answer.channels) == [1, 1, 2]
    assert answer.drafts == DraftCounts(2, None, 2)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"timings": {"draft_n": 8, "draft_n_accepted": 5}}, DraftCounts(None, 8, 5)),
        ({"choices": [{"speculative_decoding_stats": {"acceptance_histogram": {"0": 2, "2": 1}}}]},
         DraftCounts(3, None, 2, [2, 0, 1])),
        ({"metrics": {"speculative_decoding": None}}, None),
        ({"metrics": {"speculative_decoding": {"num_spec_steps": 3, "num_accepted_draft_tokens": -1}}}, None),
        ({"metrics": {"speculative_decoding": {"num_draft_tokens": 3, "num_accepted_draft_tokens": 4}}}, None),
        ({"sglext": {"spec_verify_ct": 2, "spec_num_correct_drafts": 1, "spec_correct_drafts_histogram": [0] * 99}},
         DraftCounts(2, None, 1)),
        ({"metrics": [], "choices": "x", "sglext": 1, "meta_info": {"a": 1}, "timings": []}, None),
    ],
)  # fmt: skip
def test_counts_of_drafts_are_read_where_they_stand(
    document: dict[str, Any], expected: DraftCounts | None
) -> None:
    assert read_drafts(document) == expected
