"""Sessions of agents: the formats held against one another, what follows what, what prompts
share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from loadstone.analyse.sessions import cacheable_shares
from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.core.plan import CHECK, Load, Plan
from loadstone.core.record import Target
from loadstone.core.sessions import OpenSessions
from loadstone.workload import agents
from loadstone.workload.options import Options
from loadstone.workload.planning import plan_of
from loadstone.workload.prompts import PromptWriter, Vocabulary
from loadstone.workload.schedule import make_plan, promised_tokens

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "agents"
needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason="shared/data/agents is not beside this checkout"
)
Json = dict[str, Any]

ROWS: list[Json] = [
    {"session_id": "a", "id": "1", "input_tokens": 20, "output_tokens": 4, "hash_ids": [0, 1], "block_tokens": 10},
    {"session_id": "a", "id": "2", "after": ["1"], "delay_s": 1, "input_tokens": 5, "output_tokens": 4,
     "hash_ids": [7], "block_tokens": 10},
    {"session_id": "a", "id": "3", "after": ["1"], "trigger": "sent", "delay_s": 0.5, "input_tokens": 5,
     "output_tokens": 4, "hash_ids": [8], "block_tokens": 10},
    {"session_id": "a", "id": "4", "after": ["2", "3"], "delay_s": 2, "input_tokens": 34, "output_tokens": 4,
     "hash_ids": [0, 1, 2, 3], "block_tokens": 10},
]  # fmt: skip
"""A call, two that it spawns, one of them when it is sent, and one that joins both."""


def written(folder: Path, rows: list[Json] | Json, name: str = "sessions.jsonl") -> Path:
    path = folder / name
    path.write_text(
        json.dumps(rows)
        if isinstance(rows, dict)
        else "".join(json.dumps(row) + "\n" for row in rows)
    )
    return path


def plan_from(path: Path, *, load: Load | None = None, warmup: int = 0, **more: Any) -> Plan:
    load = load or Load("concurrency", 1, unit="sessions")
    return make_plan(agents.read(path), [load], warmup=warmup, **more)


def graph(calls: list[agents.Call]) -> list[tuple[tuple[int, ...], bool, float]]:
    return [(call.parents, call.sent, round(call.delay_s, 2)) for call in calls]


def test_what_becomes_due_and_when(tmp_path: Path) -> None:
    sessions = OpenSessions(plan_from(written(tmp_path, ROWS)), 0)
    assert sessions.sent(0, 10.0) == [(10.5, 2)]
    assert sessions.ended(0, 11.0) == [(12.0, 1)]
    for index in (2, 1):
        assert sessions.sent(index, 12.0) == []
    assert sessions.ended(1, 13.0) == []
    assert not sessions.close(1)
    assert sessions.ended(2, 20.0) == [(22.0, 3)]
    sessions.sent(3, 22.0)
    assert sessions.ended(3, 23.0) == []
    assert sessions.close(3)


def test_a_failure_ends_a_session_once_what_is_under_way_has_ended(tmp_path: Path) -> None:
    sessions = OpenSessions(plan_from(written(tmp_path, ROWS)), 0)
    sessions.sent(0, 0.0)
    sessions.ended(0, 1.0)
    sessions.sent(1, 2.0)
    sessions.sent(2, 2.0)
    assert sessions.failed(1) == [3]
    assert sessions.is_given_up(3)
    assert not sessions.close(1)
    assert sessions.ended(2, 3.0) == []
    assert sessions.close(2)


def test_a_plan_keeps_its_graph_in_its_file(tmp_path: Path) -> None:
    plan = plan_from(
        written(tmp_path, ROWS), load=Load("concurrency", 2, duration_s=5.0, unit="sessions")
    )
    run_folder.write_plan(tmp_path / "plan.parquet", plan)
    again = run_folder.read_plan(tmp_path)
    assert again.plan_id == plan.plan_id
    assert [again.request(0, index) for index in range(12)] == [
        plan.request(0, index) for index in range(12)
    ]
    assert [plan.request(0, index).copy for index in (0, 4, 17)] == [0, 1, 4]


MESSAGES: Json = {"messages": [
    {"role": "user", "content": "go"}, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "on"},
    {"role": "assistant", "content": "done"},
]}  # fmt: skip


@pytest.mark.parametrize("rows", [ROWS, [MESSAGES]])
def test_graded_questions_stand_between_sessions(tmp_path: Path, rows: list[Json]) -> None:
    given: dict[str, Any] = {
        "agents": written(tmp_path, rows),
        "concurrency": "2",
        "requests": "40",
    }
    bare, plan = plan_of(Options.read(**given)), plan_of(Options.read(**given, check="generated:4"))
    run_folder.write_plan(tmp_path / "plan.parquet", plan)
    again = run_folder.read_plan(tmp_path)
    assert again.plan_id == plan.plan_id
    for each in (plan, again):
        questions = each.phase == CHECK
        assert questions.sum() == 4
        assert promised_tokens(each, 0)[~questions].tolist() == promised_tokens(bare, 0).tolist()
        assert (promised_tokens(each, 0)[questions] <= 0).all()
        sent = [request for request in each if request.phase != "check"]
        assert [(one.blocks, one.messages) for one in sent] == [
            (one.blocks, one.messages) for one in bare
        ]


def test_what_could_be_cached_is_that_of_the_calls_that_were_made(tmp_path: Path) -> None:
    plan = plan_from(written(tmp_path, ROWS), requests=[8])
    for count, template in ((2, 0), (4, 0), (8, 0), (8, 16)):
        ids = pa.chunked_array([[f"0-{place}" for place in range(count)]])
        target = Target(
            url="", endpoint="chat", model="m", prompt_kind="text", overhead_tokens=template
        )
        shares = cacheable_shares(plan, 0, ids, target)
        promised = promised_tokens(plan, 0)[:count]
        shared = promised.sum() + template * (promised > 0).sum()
        assert shares[-1] == pytest.approx(
            shared / (plan.input_tokens[:count].sum() + template * count)
        )


def test_messages_keep_in_a_plan_s_file(tmp_path: Path) -> None:
    turns = [
        {"role": role, "content": f"{role} {n}"} for n in range(3) for role in ("user", "assistant")
    ]
    tools = [{"type": "function", "function": {"name": "look"}}]
    plan = plan_from(written(tmp_path, [{"messages": turns, "tools": tools}]))
    run_folder.write_plan(tmp_path / "plan.parquet", plan)
    again = run_folder.read_plan(tmp_path)
    assert again.plan_id == plan.plan_id
    last = again.request(0, 2)
    assert [json.loads(message) for message in last.messages] == turns[:5]
    assert json.loads(last.prompt or "") == {"tools": tools}
    writer = PromptWriter(Vocabulary("text", words=("a",)), seed=0, salt=None, chat=True)
    assert json.loads(b'{"messages":' + writer.write(last) + b"}") == {
        "messages": turns[:5],
        "tools": tools,
    }


def test_live_answers_stand_in_the_place_of_the_recorded(tmp_path: Path) -> None:
    turns = [
        {"role": role, "content": f"{role} {n}"} for n in range(3) for role in ("user", "assistant")
    ]
    path = written(tmp_path, [{"messages": turns}])
    plan = plan_of(Options.read(agents=path, answers="live", concurrency=1, warmup=0))
    last = plan.request(0, 2)
    assert last.answers == ((3, 1), (1, 0))
    writer = PromptWriter(Vocabulary("text", words=("a",)), seed=0, salt=None, chat=True)
    sent = json.loads(writer.opened(last, answers={0: "mine", 1: "too"}) + b"]")
    assert [message["content"] for message in sent] == ["user 0", "mine", "user 1", "too", "user 2"]
    assert promised_tokens(plan, 0).tolist() == [0, 0, 0, 0, 0, 0]


def test_prompts_share_their_blocks_byte_for_byte_and_copies_share_none(tmp_path: Path) -> None:
    plan = plan_from(
        written(tmp_path, ROWS), load=Load("concurrency", 1, unit="sessions"), requests=[8]
    )
    vocabulary = Vocabulary("token ids", ids=tuple(range(100, 1100)))
    writer = PromptWriter(vocabulary, seed=0, salt="x", chat=False)
    first, _, _, last, copied = (
        json.loads(writer.write(plan.request(0, index))) for index in (0, 1, 2, 3, 4)
    )
    alone = PromptWriter(vocabulary, seed=0, salt="x", chat=False)
    assert json.loads(alone.write(plan.request(0, 3))) == last
    assert (len(first), len(last)) == (20, 34)
    assert last[:20] == first
    assert copied[:10] != first[:10]
    assert promised_tokens(plan, 0).tolist() == [0, 0, 0, 20] * 2


def test_a_loop_begins_in_the_midst_of_sessions(tmp_path: Path) -> None:
    rows = [
        {"session_id": "s", "input_tokens": 10 * n, "output_tokens": 1, "hash_ids": list(range(n)),
         "block_tokens": 10, "delay_s": n}
        for n in range(1, 9)
    ]  # fmt: skip
    plan = plan_from(
        written(tmp_path, rows), load=Load("concurrency", 4, unit="sessions"), warmup=4
    )
    assert plan.warmup_count(0) == 2 + 4 + 6 + 8
    assert [plan.request(0, index).input_tokens for index in (0, 1, 2, 6, 12, 20)] == [
        70,
        80,
        50,
        30,
        10,
        10,
    ]
    assert plan.request(0, 0).blocks == tuple(range(7))
    assert plan.request(0, 1).blocks == tuple(range(8))
    assert plan.request(0, 1).think_s == 8


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({1: {"after": ["9"]}}, "line 2: it waits for '9', which is no call"),
        ({1: {"after": ["4"]}}, "line 2: it waits for a call that waits for it"),
        ({1: {"id": "1"}}, "line 2: '1' names two calls"),
        ({1: {"delay_s": -1}}, "line 2: Expected `float` >= 0"),
        ({1: {"trigger": "now"}}, "line 2: 'trigger' is 'now'"),
        ({1: {"hash_ids": [1 << 64]}}, "line 2: a number of hash_ids is beyond 64 bits"),
        ({1: {"input_tokens": 0}}, "line 2: neither messages nor a length"),
        ({1: {"messages": []}}, "line 2: neither messages nor a length"),
        (
            {1: {"messages": [{"role": "user"}]}},
            "line 2: a session of which some calls have messages and some",
        ),
        ({1: {"hash_ids": [*range(9)]}}, "line 2: 9 hash_ids, but"),
        (
            {0: {"block_tokens": 16}, 1: {"block_tokens": 32}},
            "line 2: blocks of 32 tokens here, of 16 further up",
        ),
    ],
)
def test_bad_lines_are_told_by_number(tmp_path: Path, changes: dict[int, Json], said: str) -> None:
    rows = [row | changes.get(at, {}) for at, row in enumerate(ROWS)]
    with pytest.raises(InputError, match=r"sessions\.jsonl") as told:
        agents.read(written(tmp_path, rows))
    assert said in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    "text", ["", "x", "[1]", '{"a": 1}', '{"requests": 1, "block_size": 64}', "[" * 10**5]
)
def test_what_is_no_session_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(InputError) as told:
        agents.read(path)
    assert str(path) in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    "resource",
    [5, {"scopeSpans": 5}, {"scopeSpans": [{"spans": 5}]}]
    + [
        {"scopeSpans": [{"spans": [{"startTimeUnixNano": nanos, "endTimeUnixNano": 1, "attributes": [{"key": key},
            {"key": "gen_ai.prompt", "value": {"stringValue": "go"}}]}]}]}
        for nanos, key in ((["1"], "a"), ({}, "a"), ("9" * 30, "a"), ("x", ["a"]))
    ],
)  # fmt: skip
def test_spans_that_are_none_are_one_line(tmp_path: Path, resource: Json | int) -> None:
    for value in (resource, [resource]):
        with pytest.raises(InputError, match=r"line 1: no (span with|time in a span)"):
            agents.read(written(tmp_path, {"resourceSpans": value}))


def test_requests_that_each_hold_those_before_are_no_sessions(tmp_path: Path) -> None:
    turns = MESSAGES["messages"]
    requests = [{"messages": turns[:last]} for last in (1, 3, 5)]
    with pytest.raises(
        InputError, match="line 2: begins with all of an earlier one; give it as --dataset"
    ):
        agents.read(written(tmp_path, requests))
    others = [{"messages": [{"role": "user", "content": f"{n}"}, *turns]} for n in range(3)]
    assert (
        agents.read(written(tmp_path, [*others, others[0]])).calls
        == 4 * agents.read(written(tmp_path, others[:1])).calls
    )


def test_a_session_with_a_repeated_id_does_not_take_the_others_along(tmp_path: Path) -> None:
    row = {"input_tokens": 9, "output_tokens": 1}
    rows = [row | {"session_id": session, "id": name} for session, name in ("aa", "ba", "cc")]
    read = agents.read(written(tmp_path, rows), skip_bad=True)
    assert (read.calls, read.skipped) == (2, {"repeated id": 1})


def test_a_tool_s_result_of_megabytes_is_sent(tmp_path: Path) -> None:
    long = "x" * 10_000_000
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]},
                {"role": "tool", "tool_call_id": "1", "content": long},
                {"role": "assistant", "content": "done"}]  # fmt: skip
    read = agents.read(written(tmp_path, [{"messages": messages}]))
    assert read.sessions[0][1].input_tokens == pytest.approx(len(long) / 4, rel=0.001)


def test_a_session_ends_before_the_call_that_the_model_does_not_take(tmp_path: Path) -> None:
    read = agents.read(written(tmp_path, ROWS))
    assert read.within(38) is read
    cut = read.within(37)
    assert (len(cut.sessions[0]), cut.overflowed) == (3, {"sessions": 1, "calls": 1})
    with pytest.raises(InputError, match="beyond the 3 tokens"):
        read.within(3)


def test_parts_that_are_no_text_are_counted(tmp_path: Path) -> None:
    content = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "x"}}]
    read = agents.read(written(tmp_path, [{"messages": [{"role": "user", "content": content}]}]))
    assert read.dropped == {"image_url": 1}
    assert json.loads(read.prompts[0])["content"] == content[:1]
    with pytest.raises(InputError, match="--output: 1 calls"):
        plan_of(
            Options.read(
                agents=written(tmp_path, [{"messages": [{"role": "user", "content": "a"}]}])
            )
        )


@pytest.mark.parametrize("pauses", ["infx", "1e999x", "nanx", "-1x", "1e7x"])
def test_pauses_are_scaled_by_a_number(tmp_path: Path, pauses: str) -> None:
    with pytest.raises(InputError, match="--tool-time"):
        plan_of(Options.read(agents=written(tmp_path, ROWS), tool_time=pauses, concurrency=1))


@pytest.mark.parametrize(("pauses", "first"), [("0.5x", 0.5), ("3s", 3.0), ("0x", 0.0)])
def test_pauses_are_scaled_or_drawn(tmp_path: Path, pauses: str, first: float) -> None:
    path = written(tmp_path, ROWS)
    plan = plan_of(Options.read(agents=path, tool_time=pauses, concurrency=1, warmup=0))
    assert plan.think_s[:2].tolist() == [0.0, first]


def test_sub_agents_spawn_and_join(tmp_path: Path) -> None:
    def call(t: float, ids: list[int], api: float = 1.0, **more: Any) -> Json:
        return {
            "t": t,
            "type": "n",
            "in": 64 * len(ids),
            "out": 8,
            "hash_ids": ids,
            "api_time": api,
            **more,
        }

    session = {"id": "x", "block_size": 64, "requests": [
        call(0, [1, 2]),
        {"t": 2, "type": "subagent", "agent_id": "one", "requests": [call(2, [9]), call(4, [9, 10])]},
        {"t": 2, "type": "subagent", "agent_id": "two", "requests": [call(2.5, [11], 9)]},
        call(6, [1, 2, 3]),
        call(20, [1, 2, 3, 4]),
    ]}  # fmt: skip
    read = agents.read(written(tmp_path, session, "trace.json"))
    assert graph(read.sessions[0]) == [
        ((), False, 0.0), ((0,), False, 1.0), ((0,), False, 1.5), ((1,), False, 1.0), ((0, 3), False, 1.0),
        ((4, 2), False, 8.5),
    ]  # fmt: skip
    assert [(call.base, call.kept) for call in read.sessions[0]][-2:] == [(0, 2), (4, 3)]


def test_spans_follow_all_that_had_ended(tmp_path: Path) -> None:
    def span(start: int, end: int, text: str) -> Json:
        messages = [{"role": "user", "parts": [{"type": "text", "content": text}]}]
        facts = {"gen_ai.input.messages": json.dumps(messages),
                 "gen_ai.usage.output_tokens": 7}  # fmt: skip
        times = {
            "start_time": f"2026-01-01T00:00:{start:02}",
            "end_time": f"2026-01-01T00:00:{end:02}",
        }
        return {"trace_id": "t", "attributes": facts, **times}

    spans = [span(0, 2, "a"), span(3, 5, "b"), span(4, 6, "c"), span(8, 9, "d"), span(5, 20, "e")]
    read = agents.read(written(tmp_path, {"spans": spans}, "spans.json"))
    assert graph(read.sessions[0]) == [
        ((), False, 0.0), ((0,), False, 1.0), ((0,), False, 2.0), ((1,), False, 0.0), ((1, 2), False, 2.0),
    ]  # fmt: skip
    assert {call.output_tokens for call in read.sessions[0]} == {7}


@needs_data
def test_the_same_sessions_in_four_formats_are_the_same() -> None:
    mlperf = agents.read(DATA / "mlperf_agentic_edge_2conv.jsonl")
    dynamo = agents.read(DATA / "dynamo_agentic_mooncake_derived.jsonl")
    weka = [agents.read(DATA / f"weka_derived_from_mlperf_{number}.json") for number in (0, 1)]
    told = agents.read(DATA / "openai_messages_tools_derived.jsonl")
    assert (dynamo.block_tokens, weka[0].block_tokens, mlperf.calls) == (64, 64, 71)
    sessions = [each.sessions[0] for each in weka]
    for ours, theirs, texts in zip(sessions, dynamo.sessions, mlperf.sessions, strict=True):
        one, two = (
            [(c.parents, c.input_tokens, c.output_tokens, c.kept, len(c.added)) for c in of]
            for of in (ours, theirs)
        )
        assert one == two
        delays = np.array([[call.delay_s for call in of[:14]] for of in (ours, theirs, texts)])
        assert np.ptp(delays, axis=0).max() < 0.005
        tokens = np.array([[call.input_tokens for call in of[:14]] for of in (ours, texts)])
        assert (np.abs(tokens[1] / tokens[0] - 1) < 0.05).all()
    assert told.sessions[0][0].added.size == mlperf.sessions[1][0].added.size


@needs_data
def test_the_share_of_a_trace_that_a_cache_could_give() -> None:
    # The share that the data's own description states for this file.
    plan = plan_from(DATA / "weka_aiperf_trace_0001.json")
    assert promised_tokens(plan, 0)[:5].sum() / plan.input_tokens[:5].sum() == pytest.approx(
        0.545, abs=0.001
    )


def _edge(parent: str, trigger: str, delay_ms: float) -> Json:
    return {"request_id": parent, "relation": "x", "trigger": trigger, "delay_ms": delay_ms}


def _play(play: str) -> list[Json]:
    common: Json = {
        "play_id": play,
        "input_length": 128,
        "output_length": 4,
        "recorded_api_time_ms": 50,
    }
    return [
        common | {"request_id": "0", "session_id": f"{play}-main", "not_before_ms": 0, "dependencies": [],
                  "hash_ids": [1, 2]},
        common | {"request_id": "1", "session_id": f"{play}-child", "not_before_ms": 400, "hash_ids": [1, 3],
                  "dependencies": [_edge("0", "dispatch", 400)]},
        common | {"request_id": "2", "session_id": f"{play}-main", "not_before_ms": 2500, "hash_ids": [1, 2],
                  "dependencies": [_edge("0", "completion", 0), _edge("1", "completion", 2000)]},
    ]  # fmt: skip


HEADER: Json = {
    "schema": "agentic_mooncake",
    "version": 2,
    "block_size": 64,
    "hash_id_scope": "local",
}


@pytest.mark.parametrize("header", [[], [HEADER]])
def test_edges_and_plays_of_rows_are_kept(tmp_path: Path, header: list[Json]) -> None:
    read = agents.read(written(tmp_path, [*header, *_play("p"), *_play("q")]))
    expected = [((), False, 0.0), ((0,), True, 0.4), ((0, 1), False, 2.0)]
    assert [graph(calls) for calls in read.sessions] == [expected, expected]
    assert (read.block_tokens, read.dropped) == (64, {})


def test_an_edge_of_another_trigger_is_counted(tmp_path: Path) -> None:
    rows = _play("p")
    rows[2]["dependencies"][0]["trigger"] = "dispatch"
    read = agents.read(written(tmp_path, rows))
    assert graph(read.sessions[0])[2] == ((1,), False, 2.0)
    assert read.dropped == {"dependencies": 1}


def test_fields_of_order_and_time_that_are_not_known_are_told(tmp_path: Path) -> None:
    rows = [row | {"fork_of": "1", "branch_id": 3, "mood": "calm"} for row in ROWS]
    dropped = agents.read(written(tmp_path, rows)).dropped
    assert dropped == {"field fork_of": 4, "field branch_id": 4}


# --- TraceLab -------------------------------------------------------------------------------------


def tracelab(
    session: str, prefix: int, more: int, out: int, at: str, **other: Any
) -> dict[str, Any]:
    events = [
        {"event_type": "user_message", "timestamp": f"2026-04-18T08:{at}Z", "source": "user"},
        {"event_type": "text", "timestamp": f"2026-04-18T08:{at}.500Z", "source": "assistant"},
    ]
    return {
        "provider": "claude", "session_id": session, "round_id": at, "input_tokens_total": prefix + more,
        "prefix_tokens": prefix, "newly_append_tokens": more, "output_tokens": out,
        "claude_cache_creation_input_tokens": None, "timing_events": events, "tools": [], **other,
    }  # fmt: skip


def test_tracelab_rounds_share_what_the_cache_had(tmp_path: Path) -> None:
    tools = [
        {"tool_name": "Read", "tool_wall_latency_ms": 9000, "tool_internal_latency_ms": 2000},
        {"tool_name": "Bash", "tool_wall_latency_ms": 3000, "tool_internal_latency_ms": None},
    ]
    rows = [
        tracelab("a", 0, 1600, 50, "00:00", tools=tools),
        tracelab("b", 4800, 10, 7, "00:01"),
        tracelab("a", 1600, 320, 40, "00:10"),
        tracelab("a", 9999, 80, 30, "00:20"),  # more than was said: another session's cache
        tracelab("a", 160, 400, 20, "01:00"),  # compacted
    ]
    trace = agents.read(written(tmp_path, rows))
    assert (trace.format, len(trace.sessions), trace.block_tokens) == ("tracelab", 2, 16)
    (first, second, third, fourth), (other,) = trace.sessions
    assert [call.input_tokens for call in (first, second, third, fourth)] == [
        1600,
        1920,
        10079,
        560,
    ]
    assert [call.delay_s for call in (first, second, third, fourth)] == [0, 3.0, 9.5, 39.5]
    assert [call.kept for call in (second, third, fourth)] == [100, 120, 10]
    assert [call.parents for call in (first, second, third)] == [(), (0,), (1,)]
    assert (other.input_tokens, other.kept, other.output_tokens) == (4810, 0, 7)
