"""The simulator: hand-sized runs with exact times, the short way against the long one, and the
records' laws."""

from __future__ import annotations

import itertools
import json
import math
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.core.plan import Plan
from loadstone.predict.scheduler import EnginePolicy, Scheduler, Speculative
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.client import CellRequests, whole_prompts
from loadstone.predict.simulator.content import Contents, shares
from loadstone.predict.simulator.engine import (
    NEVER,
    LockstepGroup,
    Replica,
    RequestLog,
    choose_replica,
)
from loadstone.predict.simulator.fast import applies, run_fast
from loadstone.predict.simulator.fleet import Fleet
from loadstone.predict.simulator.parts import beginning
from loadstone.predict.simulator.pipeline import complete, engines_of
from loadstone.predict.simulator.run import CellRun, Counters, State
from loadstone.predict.simulator.table import tables
from loadstone.predict.simulator.uncertainty import Margins, intervals, median_figures
from loadstone.workload.options import Options
from loadstone.workload.planning import plan_of
from loadstone.workload.schedule import promised_tokens

Json = dict[str, Any]


class Times(msgspec.Struct):
    """A step: `step` s, `token` s per prompt token, `slot` s per decode, `context` s per KV token
    of decodes."""

    step: float = 0.010
    token: float = 0.0001
    slot: float = 0.0
    context: float = 0.0
    request_s: float = 0.003
    request_token_s: float = 0.0
    stream_s: float = 0.001
    window_tokens: float = 0.0
    window_s: float = 0.0

    def step_s(
        self,
        decodes: int,
        decode_context_tokens: float,
        chunks: Sequence[tuple[int, int]],
        met_tokens: int | None = None,
    ) -> float:
        tokens = sum(new + cached / 10 for new, cached in chunks)
        return (
            self.step
            + self.slot * decodes
            + self.context * decode_context_tokens
            + self.token * tokens
        )

    def decode_line(self, decodes: int) -> tuple[float, float]:
        return self.step + self.slot * decodes, self.context


POLICY = EnginePolicy(kv_blocks=10_000, max_batched_tokens=1024, max_seqs=64)
SLOPED = Times(step=0.006, token=1.2e-5, slot=1e-5, context=3e-9)


def plan(**options: Any) -> Plan:
    return plan_of(Options.read(**({"input": "100", "output": "5", "warmup": 0} | options)))


def records_of(asked: Plan, fleet: Fleet, cell: int = 0, **more: Any) -> list[Json]:
    run = run_cell(asked, cell, fleet, **more)
    return [row for table in tables(asked, cell, run, fleet.policy) for row in table.to_pylist()]


def check_answers(asked: Plan, records: list[Json], *, one_by_one: bool) -> None:
    """Every request has its answer, whole and in order."""
    assert len(records) == len(asked)
    for record, output in zip(records, asked.output_tokens.tolist(), strict=True):
        times = record["arrival_s"]
        assert record["tokens"][-1] == record["output_tokens"] == output
        assert all(b > a for a, b in itertools.pairwise(record["tokens"]))
        assert all(b > a for a, b in itertools.pairwise(times))
        assert record["end_s"] == times[-1]
        assert record["intended_s"] <= record["sent_s"] < times[0]
        if one_by_one:
            assert len(times) == output


# --- exact times ----------------------------------------------------------------------------------


def test_one_request_takes_its_way_its_prompt_and_its_steps() -> None:
    (record,) = records_of(plan(concurrency=[1], requests=[1]), Fleet(POLICY, Times(context=1e-5)))
    # 3 ms of way, 10 ms + 100 tokens, then 10 ms and the KV of 101, 102, 103 and 104 tokens; 1 ms
    # of way.
    sent = record["sent_s"]
    first = sent + 0.003 + 0.010 + 0.010 + 0.001
    gaps = np.cumsum([0.010 + 101e-5, 0.010 + 102e-5, 0.010 + 103e-5, 0.010 + 104e-5])
    assert record["arrival_s"] == pytest.approx([first, *(first + gaps)])
    assert record["tokens"] == [1, 2, 3, 4, 5]
    assert record["end_s"] == record["arrival_s"][-1]
    assert record["intended_s"] == 0.0
    assert (record["status"], record["finish_reason"], record["token_source"]) == (
        "ok",
        "length",
        "running usage",
    )
    assert (record["input_tokens"], record["output_tokens"], record["cached_tokens"]) == (100, 5, 0)
    assert record["read"] is None
    assert record["receive_lag_s"] is None


def test_an_arrival_waits_for_the_end_of_the_step_it_meets() -> None:
    # The second arrives 25 ms after the first: in the first's first decode step, which ends at 30
    # ms.
    two = plan(rate=[40.0], burstiness=math.inf, requests=[2])
    first, second = records_of(two, Fleet(POLICY, Times()))
    assert second["sent_s"] - first["sent_s"] == pytest.approx(0.025)
    begun = first["sent_s"] + 0.003
    assert second["arrival_s"][0] == pytest.approx(begun + 0.030 + 0.020 + 0.001)
    # Mixed: the first goes on in the step that computes the second's prompt, and pays for it.
    assert np.diff(first["arrival_s"]) == pytest.approx([0.010, 0.020, 0.010, 0.010])


def test_prefill_first_holds_up_those_that_decode() -> None:
    two = plan(rate=[40.0], burstiness=math.inf, requests=[2])
    policy = msgspec.structs.replace(POLICY, order="prefill-first")
    first, second = records_of(two, Fleet(policy, Times()))
    assert second["arrival_s"][0] == pytest.approx(first["sent_s"] + 0.003 + 0.030 + 0.020 + 0.001)
    assert np.diff(first["arrival_s"]) == pytest.approx([0.010, 0.030, 0.010, 0.010])


def test_a_closed_loop_sends_the_next_a_moment_after_the_last() -> None:
    records = records_of(plan(concurrency=[1], requests=[200], output="1"), Fleet(POLICY, Times()))
    for before, after in itertools.pairwise(records):
        assert after["intended_s"] == before["end_s"]
    moments = np.array([record["sent_s"] - record["intended_s"] for record in records])
    assert (moments > 0).all()
    assert moments.mean() == pytest.approx(0.001, rel=0.25)
    assert moments.std() == pytest.approx(0.001, rel=0.35)


def test_a_burst_begins_when_its_warm_up_has_ended() -> None:
    records = records_of(plan(rate=[math.inf], requests=[3], warmup=1), Fleet(POLICY, Times()))
    assert [record["phase"] for record in records] == ["warmup", "measure", "measure", "measure"]
    assert {record["sent_s"] for record in records[1:]} == {records[0]["end_s"] + 0.1}


def test_a_cap_makes_requests_wait_and_the_intended_time_tells() -> None:
    records = records_of(
        plan(rate=[1000.0], max_concurrency=1, requests=[5], burstiness=math.inf),
        Fleet(POLICY, Times()),
    )
    for before, after in itertools.pairwise(records):
        assert after["sent_s"] > before["end_s"]
    assert [record["intended_s"] for record in records] == pytest.approx(
        [0.001, 0.002, 0.003, 0.004, 0.005]
    )


def test_answers_on_their_way_make_room_one_by_one() -> None:
    """Steps of 10 ms, 50 ms of way: the ends of several answers are under way at once, each frees a
    place."""
    capped = plan(
        rate=[1000.0], max_concurrency=4, requests=[40], burstiness=math.inf, output="uniform:1:9"
    )
    records = records_of(capped, Fleet(POLICY, Times(stream_s=0.05)))
    ends = sorted(record["end_s"] for record in records)
    sends = sorted(record["sent_s"] for record in records)
    waited = np.array(sends[4:]) - np.array(ends[:-4])
    assert (waited > 0).all()
    assert (waited < 0.01).all()


def test_preempted_requests_go_on_where_they_were() -> None:
    policy = EnginePolicy(kv_blocks=14, max_batched_tokens=1024, max_seqs=8, prefix_cache=False)
    asked = plan(rate=[math.inf], requests=[2], output="20")
    fleet = Fleet(policy, Times())
    run = run_cell(asked, 0, fleet)
    assert run.replicas[0].scheduler.preemptions == 1
    for record in records_of(asked, fleet):
        assert record["tokens"] == list(range(1, 21))
        assert (np.diff(record["arrival_s"]) > 0).all()
    (late,) = [
        record for record in records_of(asked, fleet) if max(np.diff(record["arrival_s"])) > 0.09
    ]
    assert late["request_id"] == "0-1"


def test_what_has_not_ended_after_the_grace_is_cancelled_with_what_had_come() -> None:
    asked = plan(concurrency=[2], duration_s=0.5, output="40", warmup=2)
    records = records_of(asked, Fleet(POLICY, Times()), grace_s=0.05)
    measured = [record for record in records if record["phase"] == "measure"]
    start = min(record["sent_s"] for record in measured)
    assert max(record["sent_s"] for record in records) <= start + 0.51
    cut = [record for record in records if record["status"] == "cancelled"]
    assert cut
    for record in cut:
        assert record["end_s"] == pytest.approx(start + 0.55)
        assert record["finish_reason"] is None
        assert 0 < record["output_tokens"] == len(record["arrival_s"]) < 40
        assert record["arrival_s"][-1] <= record["end_s"]
        assert record["arrival_s"][-1] > record["end_s"] - 0.02
    assert {record["status"] for record in records} == {"ok", "cancelled"}


@pytest.mark.parametrize("speculative", [None, Speculative(1, 0.5)])
def test_an_answer_that_ends_after_the_grace_is_cancelled_be_its_last_step_under_way_or_not(
    speculative: Speculative | None,
) -> None:
    policy = msgspec.structs.replace(POLICY, speculative=speculative)
    asked = plan(concurrency=[1], duration_s=0.1, output="40", warmup=0)
    (record,) = records_of(asked, Fleet(policy, Times()), grace_s=0.03)
    stop_s = record["sent_s"] + 0.13
    assert (record["status"], record["finish_reason"], record["cached_tokens"]) == (
        "cancelled",
        None,
        None,
    )
    assert record["end_s"] == pytest.approx(stop_s)
    assert 0 < record["tokens"][-1] == record["output_tokens"] < 40
    assert stop_s - 0.011 < record["arrival_s"][-1] <= stop_s
    # The step that ends the answer may be over, and its token not yet with the client.
    slow = Times(stream_s=0.05)
    (whole,) = records_of(
        plan(rate=[math.inf], requests=[1], output="4", warmup=0), Fleet(policy, slow)
    )
    took_s = whole["end_s"] - whole["sent_s"]
    for grace_s, status in ((took_s - 0.1 - 0.01, "cancelled"), (took_s - 0.1 + 0.001, "ok")):
        asked = plan(concurrency=[1], duration_s=0.1, output="4", warmup=0)
        first = records_of(asked, Fleet(policy, slow), grace_s=grace_s)[0]
        assert first["status"] == status
        assert first["arrival_s"][-1] <= first["end_s"]
        assert len(first["arrival_s"]) == len(first["tokens"])
        assert first["tokens"][-1] == first["output_tokens"]


def test_cut_answers_have_the_tokens_of_their_own_replica() -> None:
    """Some are cut off while they write, some before their first token, and some never came to
    run."""
    policy = msgspec.structs.replace(POLICY, max_seqs=2)
    asked = plan(concurrency=[6], duration_s=0.5, input="uniform:50:900", output="40")
    records = records_of(asked, Fleet(policy, Times(), replicas=2), grace_s=0.05)
    cut = [record for record in records if record["status"] == "cancelled"]
    for record in cut:
        times = record["arrival_s"]
        assert record["tokens"] == list(range(1, len(times) + 1))
        assert (record["output_tokens"], record["cached_tokens"]) == (len(times), None)
        assert all(b > a for a, b in itertools.pairwise([record["sent_s"], *times]))
        assert not times or record["end_s"] - 0.11 < times[-1] <= record["end_s"]
        assert record["error"] == "not ended within the grace period after the duration"
    assert {bool(record["output_tokens"]) for record in cut} == {True, False}
    assert {record["error"] for record in records if record["status"] == "ok"} == {None}


def test_a_cell_by_time_goes_round_its_rows() -> None:
    asked = plan(concurrency=[8], duration_s=30.0, input="8", output="2", warmup=1)
    run = run_cell(asked, 0, Fleet(POLICY, Times()))
    sent = int((~np.isnan(run.requests.sent_s_of)).sum())
    assert sent > len(asked)
    assert sent == int((~np.isnan(run.end_s)).sum())


@pytest.mark.parametrize("warm", [0, 3])
def test_rounds_have_the_lengths_of_their_rows_and_no_warm_up(warm: int) -> None:
    lengths: Json = {"input": "uniform:8:90", "output": "uniform:2:9"}
    asked = plan(concurrency=[8], duration_s=30.0, warmup=warm, **lengths)
    records = records_of(asked, Fleet(POLICY, Times()))
    assert len(records) > len(asked) + 1
    rows = [
        *range(warm),
        *itertools.islice(itertools.cycle(range(warm, len(asked))), len(records) - warm),
    ]
    assert [record["request_id"] for record in records] == [
        f"0-{index}" for index in range(len(records))
    ]
    assert [record["input_tokens"] for record in records] == asked.input_tokens[rows].tolist()
    assert [record["output_tokens"] for record in records] == asked.output_tokens[rows].tolist()
    assert [record["phase"] for record in records] == ["warmup"] * warm + ["measure"] * (
        len(records) - warm
    )
    for record in records:
        assert record["tokens"] == list(range(1, record["output_tokens"] + 1))
        assert record["arrival_s"][-1] == record["end_s"]


@pytest.mark.parametrize(("duration_s", "think_s"), [(2.5, 1), (1.5, 1), (1.5, 100)])
def test_no_turn_is_sent_when_the_time_is_up(duration_s: float, think_s: int) -> None:
    """Two sessions, turns of about 0.35 s. Pauses of 1 s: at 2.5 s they pause, at 1.5 s they are
    answered."""
    asked = plan(
        concurrency=[2],
        duration_s=duration_s,
        turns="3",
        think_time=f"{think_s}s",
        input="64",
        output="33",
    )
    records = records_of(asked, Fleet(POLICY, Times()))
    start = min(record["sent_s"] for record in records)
    assert [record["turn"] for record in records] == ([0, 1] * 2 if think_s == 1 else [0, 0])
    assert max(record["sent_s"] for record in records) < start + duration_s
    assert {record["status"] for record in records} == {"ok"}
    # Nor is it waited for.
    run = run_cell(asked, 0, Fleet(POLICY, Times()))
    assert run.stop_s == NEVER
    assert run.over_s == max(record["end_s"] for record in records)


def test_what_is_answered_when_the_time_is_up_has_no_further_turn_at_a_rate() -> None:
    asked = {
        "rate": [10.0],
        "burstiness": math.inf,
        "duration_s": 1.0,
        "turns": "2",
        "input": "64",
        "output": "33",
    }
    records = records_of(plan(**asked), Fleet(POLICY, Times()))
    # The first is sent at 0.1 s, and ends after 0.36 s: of ten sessions those of 0.1 to 0.7 s go on
    # before 1.1 s.
    assert [record["turn"] for record in records].count(1) == 7
    assert max(record["sent_s"] for record in records) < 1.1
    # One that pauses then goes on, as with the real client.
    records = records_of(plan(**asked, think_time="1s"), Fleet(POLICY, Times()))
    assert [record["turn"] for record in records].count(1) == 7
    assert min(record["sent_s"] for record in records if record["turn"] == 1) > 1.1


def test_a_ramp_of_places_is_followed() -> None:
    asked = plan(ramp="concurrency=2:10:4s,10:2s", output="8")
    records = records_of(asked, Fleet(POLICY, Times()))
    start = min(record["sent_s"] for record in records)

    def under_way(at_s: float) -> int:
        return sum(record["sent_s"] <= start + at_s < record["end_s"] for record in records)

    assert 1 <= under_way(0.3) <= 2
    assert 5 <= under_way(2.3) <= 6
    assert 9 <= under_way(5.0) <= 10


# --- sessions and what is shared ------------------------------------------------------------------


def test_turns_bring_what_was_said_and_find_it_in_the_cache() -> None:
    asked = plan(turns="3", think_time="2s", concurrency=[2], requests=[6], input="64", output="33")
    assert whole_prompts(asked, 0).tolist() == [64, 161, 258] * 2
    records = records_of(asked, Fleet(POLICY, Times()))
    assert [record["input_tokens"] for record in records] == [64, 161, 258] * 2
    # 64 + 32 computed of the turn before (its last token never was), in whole blocks; then 161 +
    # 32.
    assert [record["cached_tokens"] for record in records] == [0, 96, 192] * 2
    for before, after in itertools.pairwise(records):
        assert before["session_id"] == (
            "0-0" if before["request_id"] in ("0-0", "0-1", "0-2") else "0-3"
        )
        if after["turn"]:
            assert after["intended_s"] == pytest.approx(before["end_s"] + 2.0)
            assert 0 <= after["sent_s"] - after["intended_s"] < 0.02


def test_a_prefix_is_computed_once() -> None:
    asked = plan(prefix=64, input="100", concurrency=[1], requests=[4])
    records = records_of(asked, Fleet(POLICY, Times()))
    assert [record["cached_tokens"] for record in records] == [0, 64, 64, 64]
    without = records_of(asked, Fleet(msgspec.structs.replace(POLICY, prefix_cache=False), Times()))
    assert [record["cached_tokens"] for record in without] == [None] * 4


def test_without_a_prefix_cache_blocks_stay_the_engines_own() -> None:
    """Only where requests share blocks are those of single tokens put together."""
    used: dict[bool, set[int]] = {}
    for cached in (False, True):
        policy = EnginePolicy(
            kv_blocks=16_000, block_tokens=1, max_batched_tokens=1024, prefix_cache=cached
        )
        seen = used.setdefault(cached, set())

        def look(at_s: float, states: Sequence[State], seen: set[int] = seen) -> float:
            seen.add(states[0].used_tokens)
            return at_s + 0.005

        asked = plan(prefix=64, concurrency=[1], requests=[1])
        run_cell(asked, 0, Fleet(policy, Times()), look=look, quick=False)
    assert used == {False: {0, 100, 101, 102, 103}, True: {0, 112}}


def keys_of(contents: Contents, index: int) -> list[tuple[Any, int]]:
    """A key for each block."""
    keys: list[tuple[Any, int]] = []
    for key, end in contents.segments(index):
        keys += [(key, place) for place in range(len(keys), end)]
    return keys


def test_keys_are_equal_where_all_up_to_the_blocks_end_is() -> None:
    asked = plan(prefix=40, prefix_groups=2, input="100", concurrency=[1], requests=[12])
    contents = Contents(asked, 0, CellRequests(asked, 0, 0.0, 0.0), 16)
    by_group: dict[int, set[tuple[tuple[Any, int], ...]]] = {}
    for index in range(12):
        keys = keys_of(contents, index)
        assert len(keys) == 2  # of 40 tokens, two whole blocks
        by_group.setdefault(int(asked.prefix_group[index]), set()).add(tuple(keys))
    assert [len(keys) for keys in by_group.values()] == [1, 1]
    assert not set.intersection(*by_group.values())


TRACE = [[0, 1, 2], [0, 1, 3], [4], [0, 1, 2, 5], [0, 5], [6, 1, 2], [0, 1, 2]]


def tokens_of(asked: Plan, request: CellRequests, index: int) -> list[Any]:
    """What each token of a request's prompt is, one after the other, and of its answer."""
    start = asked.rows(request.cell).start

    def row_of(past: int) -> int:
        round_rows = request.count - request.warm
        return start + (
            past if past < request.count else request.warm + (past - request.warm) % round_rows
        )

    said: list[Any] = []
    for past in range(index - max(0, int(asked.turn[row_of(index)])), index + 1):
        row = row_of(past)
        own = int(asked.input_tokens[row])
        if own < 0:
            said += [
                ("text", int(asked.prompt[row]), at)
                for at in range(request.input_tokens[row - start])
            ]
        elif asked.blocks is not None:
            blocks = asked.blocks.take_row(row).tolist()
            shared = [
                ("block", block, at) for block in blocks for at in range(asked.blocks.tokens)
            ][:own]
            said += [*shared, *(("own", past, at) for at in range(own - len(shared)))]
        else:
            prefix = int(asked.prefix_tokens[row])
            said += [("prefix", int(asked.prefix_group[row]), at) for at in range(prefix)]
            said += [("own", past, at) for at in range(own - prefix)]
        said += [("answer", past, at) for at in range(request.output_tokens[row - start])]
    return said


@pytest.mark.parametrize(
    ("options", "block"),
    [
        ({"prefix": 40, "prefix_groups": 3, "input": "uniform:41:100"}, 16),
        (
            {
                "prefix": 20,
                "prefix_groups": 2,
                "turns": "3",
                "input": "uniform:21:50",
                "output": "uniform:1:40",
            },
            16,
        ),
        ({"turns": "uniform:1:4", "input": "uniform:1:50", "output": "uniform:1:40"}, 8),
        (
            {
                "turns": "2",
                "prefix": 9,
                "input": "20",
                "output": "9",
                "duration_s": 1.0,
                "requests": [],
            },
            8,
        ),
        ({"trace": True}, 16),
        ({"trace": True}, 600),
        ({"dataset": True}, 16),
    ],
)
def test_blocks_have_equal_keys_where_their_tokens_and_all_before_are_equal(
    options: Json, block: int, tmp_path: Path
) -> None:
    if "trace" in options:
        path = tmp_path / "trace.jsonl"
        lines = [
            {
                "timestamp": 9 * at,
                "input_length": 512 * len(ids) - 100 * (at % 2),
                "output_length": 4,
                "hash_ids": ids,
            }
            for at, ids in enumerate(TRACE)
        ]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        asked = plan_of(Options.read(trace=path, warmup=0))
    elif "dataset" in options:
        path = tmp_path / "texts.txt"
        path.write_text("".join(f"{letter * 130}\n" for letter in "abc"))
        asked = plan_of(
            Options.read(dataset=path, requests=[9], output="5", warmup=0, concurrency=[1])
        )
    else:
        asked = plan(**({"concurrency": [2, 3], "requests": [12], "warmup": 2} | options))
    cell = len(asked.cells) - 1
    assert shares(asked, cell)
    request = CellRequests(asked, cell, 0.0, 0.0)
    # Of a cell that goes round, those of the second round too.
    indices = [
        *range(min(request.count, 40)),
        *(range(request.count, request.count + 8) if request.cyclic else ()),
    ]
    contents = Contents(asked, cell, request, block)
    key_of: dict[tuple[Any, ...], Any] = {}
    asking: dict[tuple[Any, ...], int] = {}
    keyed: set[tuple[Any, ...]] = set()
    for index in indices:
        keys = keys_of(contents, index)
        said = tokens_of(asked, request, index)
        assert len(keys) <= len(said) // block
        for place in range(len(said) // block):
            upto = tuple(said[: (place + 1) * block])
            asking[upto] = asking.get(upto, 0) + 1
            if place < len(keys):
                keyed.add(upto)
                assert key_of.setdefault(upto, keys[place]) == keys[place]
    assert len(set(key_of.values())) == len(key_of)
    assert {upto for upto, times in asking.items() if times > 1} <= keyed
    assert max(asking.values()) > 1


def write_sessions(path: Path, rng: np.random.Generator, scope: str) -> None:
    """Sessions whose prompts go on from a prompt before, whole or cut, of their own or of another
    session."""
    asked: list[list[int]] = [[1, 2, 3, 4]]
    with path.open("w") as file:
        for _ in range(6):
            mine: list[list[int]] = []
            for _ in range(int(rng.integers(1, 16))):
                known = mine if mine and rng.random() < 0.8 else asked
                begun = known[int(rng.integers(len(known)))]
                new = rng.integers(1, 4, int(rng.integers(0, 5))).tolist()
                mine.append([*begun[: int(rng.integers(len(begun) + 1))], *new] or [1])
            asked += mine
            calls = [
                {
                    "t": at,
                    "in": 32 * len(ids) - int(rng.integers(32)),
                    "out": 3,
                    "hash_ids": ids,
                    "api_time": 0.5,
                }
                for at, ids in enumerate(mine)
            ]
            file.write(
                json.dumps({"block_size": 32, "hash_id_scope": scope, "requests": calls}) + "\n"
            )


@pytest.mark.parametrize("scope", ["local", "global"])
@pytest.mark.parametrize("block", [16, 48])
@pytest.mark.parametrize("seed", range(4))
def test_calls_of_sessions_share_the_blocks_up_to_which_their_tokens_are_equal(
    scope: str, block: int, seed: int, tmp_path: Path
) -> None:
    path = tmp_path / "sessions.jsonl"
    write_sessions(path, np.random.default_rng(seed), scope)
    ended: Json = {"requests": [60]} if seed % 2 else {"duration_s": 9.0}
    asked = plan_of(Options.read(agents=path, concurrency=[3], warmup=3, **ended))
    request = CellRequests(asked, 0, 0.0, 0.0)
    contents = Contents(asked, 0, request, block)
    prompts, said = [], []
    indices = [
        *range(min(request.count, 60)),
        *range(request.count, request.count + 30 * request.cyclic),
    ]
    for index in indices:
        row = request.row(index)
        assert asked.blocks is not None
        prompts.append(
            [(asked.copy(0, index), each) for each in asked.blocks.take_row(row).tolist()]
        )
        tokens = [(*each, at) for each in prompts[-1] for at in range(32)]
        said.append(tokens[: request.input_tokens[row]])
    known = [
        max((alike(prompt, each) for each in prompts[:at]), default=0)
        for at, prompt in enumerate(prompts)
    ]
    promised = promised_tokens(asked, 0)[: min(request.count, 60)].tolist()
    lengths = request.input_tokens[: len(promised)]
    assert promised == [
        min(32 * blocks, length) for blocks, length in zip(known, lengths, strict=False)
    ]
    keys = [keys_of(contents, index) for index in indices]
    shared = 0
    for one, other in itertools.combinations(range(len(said)), 2):
        truth = alike(said[one], said[other]) // block
        assert alike(keys[one], keys[other]) == truth
        shared += truth
    assert shared > 20


def alike(one: Sequence[Any], other: Sequence[Any]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (mine, its) in pairs if mine != its), min(len(one), len(other)))


@pytest.mark.parametrize(
    ("texts", "load", "shared"),
    [
        (3, {"requests": [3]}, False),
        (3, {"requests": [4]}, True),
        (1, {"requests": [2]}, True),
        (3, {"requests": [3], "warmup": 1}, True),
        (3, {"duration_s": 1.0}, True),
    ],
)
def test_texts_are_shared_where_one_is_sent_again(
    texts: int, load: Json, shared: bool, tmp_path: Path
) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"{letter * 130}\n" for letter in "abc"[:texts]))
    asked = plan_of(
        Options.read(**({"dataset": path, "output": "5", "warmup": 0, "concurrency": [1]} | load))
    )
    assert shares(asked, 0) == shared


def test_prompts_of_their_own_share_nothing() -> None:
    for options in ({}, {"turns": "1"}):
        assert not shares(plan(concurrency=[2], requests=[6], **options), 0)
    assert shares(plan(concurrency=[2], requests=[6], turns="2"), 0)
    assert shares(plan(concurrency=[2], requests=[6], prefix=1), 0)


# --- replicas -------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_step", [False, True])
def test_replicas_share_the_load(in_step: bool) -> None:
    asked = plan(concurrency=[16], requests=[160])
    for route, least in (("least-busy", 36), ("round-robin", 40)):
        policy = msgspec.structs.replace(POLICY, route=route)
        run = run_cell(asked, 0, Fleet(policy, SLOPED, replicas=4, in_step=in_step))
        _, counts = np.unique(run.journal.replica, return_counts=True)
        assert len(counts) == 4
        assert counts.min() >= least
        assert not np.isnan(run.end_s).any()


@pytest.mark.parametrize("in_step", [False, True])
def test_a_hash_keeps_sessions_where_they_began_however_full_it_is_there(in_step: bool) -> None:
    asked = plan(turns="3", concurrency=[24], requests=[288], input="40", output="8")
    policy = msgspec.structs.replace(POLICY, route="hashed")
    run = run_cell(asked, 0, Fleet(policy, SLOPED, replicas=4, in_step=in_step))
    replicas = np.array(run.journal.replica).reshape(-1, 3)
    assert (replicas == replicas[:, :1]).all()
    counts = np.bincount(replicas[:, 0], minlength=4)
    assert counts.min() > 10
    assert counts.max() - counts.min() > 3
    alone = run_cell(asked, 0, Fleet(policy, SLOPED))
    assert sum(run.cached_tokens) == sum(alone.cached_tokens) > 0


def test_requests_one_after_another_go_to_ranks_in_turn() -> None:
    run = run_cell(
        plan(concurrency=[1], requests=[8]), 0, Fleet(POLICY, SLOPED, replicas=4, in_step=True)
    )
    assert sorted(run.journal.replica) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_in_step_all_take_as_long_as_the_slowest() -> None:
    asked = plan(rate=[math.inf], requests=[2], input="uniform:10:1000")
    apart = run_cell(asked, 0, Fleet(POLICY, Times(), replicas=2))
    together = run_cell(asked, 0, Fleet(POLICY, Times(), replicas=2, in_step=True))
    assert len(set(apart.journal.first_s)) == 2
    tokens = max(asked.input_tokens)
    first_s = set(together.journal.first_s)
    assert len(first_s) == 1 or max(first_s) - min(first_s) < 0.02 + tokens * 0.0001


def test_the_next_goes_where_the_fewest_are_before_their_first_token_four_times() -> None:
    from loadstone.predict.scheduler import Sequence as Request

    policy = msgspec.structs.replace(POLICY, max_seqs=2)
    replica = Replica(Scheduler(policy), Times(), None)
    loads = []
    for row in range(4):
        replica.add(Request(row, 100, 5), 0.0)
        loads.append(replica.load)
    assert loads == [4, 4 + 4, 4 + 8, 4 + 12]
    complete(replica)
    assert replica.load == 1 + 4 + 8
    assert choose_replica([9, 3, 3], 0, "least-busy") == 1
    assert [choose_replica([3, 3, 9], turn, "least-busy") for turn in range(4)] == [0, 1, 0, 0]
    assert [choose_replica([9, 3, 3], turn, "round-robin") for turn in range(4)] == [0, 1, 2, 0]


def ranks(hold_steps: int, *arrivals: tuple[float, int]) -> list[float]:
    """First tokens of 100 + 500 tokens on two ranks, 100 ms for each 100-token prompt, 10 ms a
    decode step."""
    from loadstone.predict.scheduler import Sequence as Request

    policy = msgspec.structs.replace(POLICY, hold_steps=hold_steps)
    journal = RequestLog(len(arrivals))
    group = LockstepGroup(
        [
            Replica(Scheduler(policy), Times(token=0.0009), journal, number=number)
            for number in range(2)
        ]
    )
    coming = list(enumerate(arrivals))
    while coming or group.next_s < NEVER:
        if coming and coming[0][1][0] <= group.next_s:
            row, (at_s, _) = coming.pop(0)
            group.add(Request(row, 100, arrivals[row][1]), at_s)
        else:
            complete(group)
    return journal.first_s


def test_ranks_hold_prompts_back_until_all_have_some() -> None:
    # One on each rank, the second a step later; from 0.2 s on both decode. A third comes in the
    # first such step.
    both = [(0.0, 500), (0.0, 500)]
    assert ranks(0, *both, (0.205, 500))[2] == pytest.approx(0.21 + 0.1)
    # Of 40 steps the last has its prompt.
    first = ranks(40, *both, (0.205, 500))
    assert first[2] == pytest.approx(0.2 + 39 * 0.01 + 0.1)
    # A fourth, for the other rank, comes first: both go at once.
    first = ranks(40, *both, (0.205, 500), (0.254, 500))
    assert first[2] == first[3] == pytest.approx(0.26 + 0.1)
    # The second ends at 0.29 s: a rank that has nothing to decode waits for nobody.
    first = ranks(400, (0.0, 500), (0.0, 10), (0.205, 500))
    assert first[2] == pytest.approx(0.29 + 0.1)


def test_experts_take_what_all_ranks_bring() -> None:
    from loadstone.predict.scheduler import Sequence as Request

    steps: list[tuple[int, list[tuple[int, int]], int | None]] = []

    class RecordedTimes(Times):
        def step_s(
            self,
            decodes: int,
            context: float,
            chunks: Sequence[tuple[int, int]],
            met_tokens: int | None = None,
        ) -> float:
            steps.append((decodes, list(chunks), met_tokens))
            return super().step_s(decodes, context, chunks, met_tokens)

    policy = msgspec.structs.replace(POLICY, speculative=Speculative(3, 0.0))
    group = LockstepGroup(
        [Replica(Scheduler(policy), RecordedTimes(), RequestLog(2)) for _ in range(2)]
    )
    group.add(Request(0, 99, 5), 0.0)
    group.add(Request(1, 29, 5), 0.001)
    for _ in range(3):
        complete(group)
    # 99 of one prompt; then 29 of the other and a token and three guesses of the first: half of
    # each, rounded up. The steps of decodes alone that follow meet no prompt.
    with_prompts = [step for step in steps if step[2] is not None]
    assert sorted(with_prompts, key=lambda step: step[0]) == [
        (0, [(99, 0)], 50),
        (0, [(29, 0)], 17),
        (1, [], 17),
    ]


@settings(max_examples=100)
@given(
    share=st.floats(0, 1, exclude_min=True),
    steps=st.integers(2, 500),
    context=st.sampled_from([0.0, 1e-9, 1e-5]),
)
def test_a_stretch_is_cut_at_the_first_step_that_ends_no_earlier(
    share: float, steps: int, context: float
) -> None:
    from loadstone.predict.scheduler import Sequence as Request

    def under_way() -> Replica:
        replica = Replica(Scheduler(POLICY), Times(context=context), None)
        replica.add(Request(0, 100, steps + 1), 1.0)
        complete(replica)
        assert replica.steps == steps
        return replica

    start_s = under_way().now_s
    a, b = 0.010 + context * 101, context
    ends = [start_s + a * j + b * (j * (j - 1) / 2) for j in range(1, steps + 1)]
    between = start_s + share * (ends[-1] - start_s)
    for at_s in (between, ends[bisect_left(ends, between)]):
        replica = under_way()
        replica.cut(at_s)
        step = bisect_left(ends, at_s)
        assert (replica.steps, replica.next_s) == (step + 1, ends[step])


@settings(max_examples=40)
@given(
    seed=st.integers(0, 1 << 30),
    order=st.sampled_from(["mixed", "prefill-first"]),
    kv_blocks=st.integers(9, 90),
)
def test_a_group_of_one_is_a_replica(seed: int, order: str, kv_blocks: int) -> None:
    from loadstone.predict.scheduler import Sequence as Request

    rng = np.random.default_rng(seed)
    policy = EnginePolicy(kv_blocks=kv_blocks, max_batched_tokens=64, max_seqs=6, order=order)  # type: ignore[arg-type]
    arrivals = np.cumsum(rng.exponential(0.02, 20)).tolist()
    lengths = rng.integers(1, 70, (20, 2)).tolist()
    found = []
    for grouped in (False, True):
        journal = RequestLog(20)
        replica = Replica(Scheduler(policy), SLOPED, journal)
        unit = LockstepGroup([replica]) if grouped else replica
        ends = []
        waiting = list(enumerate(zip(arrivals, lengths, strict=True)))
        while waiting or unit.next_s < NEVER:
            if waiting and waiting[0][1][0] <= unit.next_s:
                row, (at_s, (prompt, output)) = waiting.pop(0)
                unit.add(Request(row, prompt, output), at_s)
            else:
                ends += [(unit.next_s, sequence.row) for sequence in complete(unit)]
        found.append((journal.first_s, journal.pieces, ends))
    assert found[0] == found[1]


# --- the short way --------------------------------------------------------------------------------

LOADS = st.one_of(
    st.integers(1, 12).map(lambda places: {"concurrency": [places]}),
    st.floats(0.5, 60).map(lambda rate: {"rate": [rate]}),
    st.floats(1, 60).map(lambda rate: {"rate": [rate], "burstiness": 0.3}),
    st.floats(1, 60).map(lambda rate: {"rate": [rate], "burstiness": math.inf}),
    st.just({"ramp": "1:40:2s"}),
)


@settings(max_examples=150)
@given(
    load=LOADS,
    seed=st.integers(0, 1 << 30),
    order=st.sampled_from(["mixed", "prefill-first"]),
    chunked=st.booleans(),
    input=st.sampled_from(["100", "uniform:1:90", "uniform:1:400"]),
    output=st.sampled_from(["5", "1", "uniform:1:60"]),
    max_seqs=st.integers(1, 12),
    budget=st.sampled_from([16, 64, 1024]),
    kv_blocks=st.sampled_from([400, 60]),
    warmup=st.integers(0, 3),
    context=st.sampled_from([0.0, 3e-9, 1e-5]),
    window=st.sampled_from([0.0, 50.0, 130.5]),
    requests=st.sampled_from([40, 3]),
    way=st.sampled_from([0.0, 2.0**-12]),
    ties=st.booleans(),
)
def test_the_short_way_gives_the_same_to_the_last_bit(
    load: Json,
    seed: int,
    order: str,
    chunked: bool,
    input: str,
    output: str,
    max_seqs: int,
    budget: int,
    kv_blocks: int,
    warmup: int,
    context: float,
    window: float,
    requests: int,
    way: float,
    ties: bool,
) -> None:
    counted = {} if "ramp" in load else {"requests": [requests]}
    asked = plan(**load, **counted, seed=seed, input=input, output=output, warmup=warmup)
    times = Times(step=0.006, token=1.2e-5, slot=1e-5, context=context, request_token_s=way)
    if window:
        times = msgspec.structs.replace(
            times, window_tokens=window, window_s=1e-6, slot=1e-5 + window * 1e-6
        )
    if ties:
        # As in a trace: several come at once, and exactly where a step ends.
        asked = replace(asked, intended_s=np.ceil(asked.intended_s * 32) / 32)
        times = Times(step=2.0**-7, token=0.0, request_s=2.0**-5, request_token_s=way)
    policy = EnginePolicy(
        kv_blocks=kv_blocks,
        max_batched_tokens=budget,
        max_seqs=max_seqs,
        order=order,
        chunked=chunked,  # type: ignore[arg-type]
    )
    fleet = Fleet(policy, times)
    looks: list[list[tuple[float, ...]]] = []
    runs: list[CellRun] = []
    for quick in (True, False):
        seen: list[tuple[float, ...]] = []

        def look(at_s: float, states: Any, seen: list[tuple[float, ...]] = seen) -> float:
            seen.append((at_s, *states[0]))
            return at_s + 1.0

        runs.append(run_cell(asked, 0, fleet, 1.0, look=look, quick=quick))
        looks.append(seen)
    short, long = runs
    assert looks[0] == looks[1]
    assert short.journal.first_s == long.journal.first_s
    assert short.journal.first_tick == long.journal.first_tick
    assert short.end_s == long.end_s
    assert short.requests.sent_s_of == long.requests.sent_s_of
    assert short.requests.intended_s_of == long.requests.intended_s_of
    assert short.issue_end_s == long.issue_end_s
    assert short.over_s == long.over_s
    assert short.states() == long.states()
    clocks = [run.replicas[0].clock.times(run.replicas[0].under_way_tick) for run in runs]
    np.testing.assert_array_equal(clocks[0], clocks[1])


def test_a_stretch_ends_where_windows_are_full() -> None:
    """10 ms a step, less 20 µs for each KV token that the window of 150 lacks; 100 in, 200 out,
    walked at once."""
    times = Times(
        step=0.010, token=0.0, window_tokens=150.0, window_s=2e-5, stream_s=0.0, request_s=0.0
    )
    asked = plan(concurrency=[1], requests=[1], output="200")
    (record,) = records_of(asked, Fleet(POLICY, times))
    steps = np.diff(record["arrival_s"])
    lacking = np.maximum(0, 150 - np.arange(101, 300))
    np.testing.assert_allclose(steps, 0.010 - 2e-5 * lacking, rtol=1e-6)


def suffice(asked: Plan, kv_blocks: int) -> bool:
    """Whether the short way found that blocks cannot run short."""
    policy = msgspec.structs.replace(POLICY, kv_blocks=kv_blocks)
    run = CellRun(CellRequests(asked, 0, 0.003, 0.0), 0.0, 0.001)
    run.replicas = [Replica(Scheduler(policy), SLOPED, run.journal)]
    return run_fast(run, asked.cells[0], policy, SLOPED, None)


@pytest.mark.parametrize(
    ("input", "output", "blocks"), [("100", "5", 7), ("100", "13", 7), ("100", "14", 8)]
)
def test_the_short_way_is_gone_as_far_as_blocks_are_sure_to_suffice(
    input: str, output: str, blocks: int
) -> None:
    asked = plan(concurrency=[6], requests=[40], input=input, output=output)
    assert [suffice(asked, 6 * blocks - less) for less in (0, 1)] == [True, False]


def test_the_short_way_gives_blocks_back_as_it_took_them() -> None:
    """38 requests of one full block each, and then two of seven at a time."""
    asked = plan(concurrency=[2], requests=[40], input="12", output="5")
    asked.input_tokens[38:] = 108
    assert [suffice(asked, 14 - less) for less in (0, 1)] == [True, False]


@pytest.mark.parametrize(
    ("options", "replicas", "habits"),
    [
        ({"concurrency": [6]}, 2, {}),
        ({"concurrency": [6], "turns": "2"}, 1, {"prefix_cache": False}),
        ({"concurrency": [6], "prefix": 48}, 1, {}),
        ({"concurrency": [6], "duration_s": 1.0}, 1, {}),
        ({"ramp": "concurrency=1:9:1s"}, 1, {}),
        ({"rate": [40.0], "max_concurrency": 2}, 1, {}),
        ({"rate": [math.inf], "warmup": 2}, 1, {}),
        ({"concurrency": [6]}, 1, {"order": "static"}),
        ({"concurrency": [6]}, 1, {"speculative": Speculative(1, 0.5)}),
        ({"concurrency": [6]}, 1, {"poll_steps": 7}),
        ({"concurrency": [6]}, 1, {"gather_steps": 9, "gather_tokens": 300}),
        ({"concurrency": [6]}, 1, {"pipeline": 2}),
        ({"concurrency": [6]}, 1, {"reserved_tokens": 40_000}),
    ],
)
def test_what_the_short_way_cannot_goes_the_long_one(
    options: Json, replicas: int, habits: Json
) -> None:
    counted = {} if {"duration_s", "ramp"} & set(options) else {"requests": [40]}
    asked = plan(**options, **counted, input="uniform:60:90", output="uniform:1:40")
    fleet = Fleet(msgspec.structs.replace(POLICY, **habits), SLOPED, replicas=replicas)
    assert records_of(asked, fleet, quick=True) == records_of(asked, fleet, quick=False)
    shared = fleet.policy.prefix_cache and shares(asked, 0)
    assert not applies(asked, 0, fleet.policy, replicas, shared)


@pytest.mark.parametrize("options", [{"concurrency": [6]}, {"rate": [40.0]}, {"ramp": "1:40:2s"}])
@pytest.mark.parametrize("order", ["mixed", "prefill-first"])
def test_the_usual_sweep_goes_the_short_way(options: Json, order: str) -> None:
    policy = msgspec.structs.replace(POLICY, order=order, max_seqs=2)
    assert applies(plan(**options), 0, policy, 1, False)


@pytest.mark.parametrize("quick", [True, False])
def test_what_is_seen_in_the_middle_of_a_stretch_is_as_it_stands_then(quick: bool) -> None:
    """One prompt of 100 tokens, steps of 10 ms: no event between its first token at 23 ms and its
    last."""
    seen: dict[float, tuple[int, int]] = {}

    def look(at_s: float, states: Sequence[State]) -> float:
        seen[round(at_s, 3)] = (states[0].written_tokens, states[0].used_tokens)
        return at_s + 1.0

    asked = plan(concurrency=[1], requests=[1], output="500")
    run = run_cell(asked, 0, Fleet(POLICY, Times()), look=look, quick=quick)
    begun_s = run.journal.first_s[0]
    for at_s, (written, used) in list(seen.items())[1:]:
        assert written == 1 + int((at_s - begun_s) / 0.010)
        assert used == 16 * math.ceil((99 + written) / 16)
    assert list(seen) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


@settings(max_examples=60)
@given(
    seed=st.integers(0, 1 << 30),
    habits=st.one_of(
        st.fixed_dictionaries(
            {
                "order": st.sampled_from(["mixed", "prefill-first"]),
                "pipeline": st.sampled_from([1, 2]),
                "keep_free": st.sampled_from([0.0, 0.5, 1.0]),
                "speculative": st.sampled_from([None, Speculative(2, 0.6)]),
                "poll_steps": st.sampled_from([0, 5]),
            }
        ),
        st.sampled_from(
            [
                {"order": "static"},
                {"reserved_tokens": 200},
                {"gather_steps": 9, "gather_tokens": 60, "kv_blocks": 1000},
                {"hold_steps": 7, "kv_blocks": 1000},
            ]
        ),
    ),
    kv_blocks=st.integers(16, 60),
    rate=st.sampled_from([4.0, 20.0, 60.0]),
    prefix=st.sampled_from([0, 32]),
    engines=st.sampled_from([(1, False), (2, False), (2, True)]),
)
@example(
    1, {"keep_free": 0.5}, 16, 4.0, 32, (1, False)
)  # who waits comes to fit though nobody ends
@example(
    0, {"speculative": Speculative(2, 0.6)}, 16, 20.0, 0, (1, False)
)  # who was preempted fits again
@example(
    10766, {"keep_free": 1.0, "poll_steps": 5}, 16, 60.0, 0, (2, False)
)  # looked for, and not let in
def test_how_many_steps_go_at_once_changes_nothing(
    seed: int, habits: Json, kv_blocks: int, rate: float, prefix: int, engines: tuple[int, bool]
) -> None:
    """Neither when anything ends, nor what is seen meanwhile."""
    asked = plan(
        rate=[rate],
        requests=[14],
        input="uniform:33:90",
        output="uniform:1:90",
        prefix=prefix,
        seed=seed,
    )
    policy = EnginePolicy(
        **({"kv_blocks": kv_blocks, "max_batched_tokens": 64, "max_seqs": 6} | habits)
    )
    fleet = Fleet(policy, SLOPED, replicas=engines[0], in_step=engines[1])
    seen: list[list[list[State]]] = []
    ends: list[list[float]] = []
    for at_once in (1 << 30, 1):
        here: list[list[State]] = []

        def look(at_s: float, states: Sequence[State], here: list[list[State]] = here) -> float:
            here.append(list(states))
            return at_s + 0.0371

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(
                "loadstone.predict.simulator.cell.engines_of", partial(engines_of, at_once=at_once)
            )
            ends.append(run_cell(asked, 0, fleet, look=look, quick=False).end_s)
        seen.append(here)
    assert ends[0] == pytest.approx(ends[1])
    assert seen[0] == seen[1]


# --- laws of the records --------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    load=LOADS,
    seed=st.integers(0, 1000),
    kv_blocks=st.integers(12, 60),
    order=st.sampled_from(["mixed", "prefill-first", "static"]),
    speculative=st.sampled_from([None, Speculative(1, 0.6)]),
    replicas=st.integers(1, 3),
    in_step=st.booleans(),
    turns=st.booleans(),
    waits=st.sampled_from([(0, 0), (0, 0), (5, 0), (0, 5), (3, 9)]),
)
def test_every_token_has_its_time(
    load: Json,
    seed: int,
    kv_blocks: int,
    order: str,
    speculative: Speculative | None,
    replicas: int,
    in_step: bool,
    turns: bool,
    waits: tuple[int, int],
) -> None:
    more: Json = {} if "ramp" in load else {"requests": [30]}
    if turns and "ramp" not in load:
        more |= {"turns": "2", "input": "uniform:1:40", "output": "uniform:1:40"}
    asked = plan(**({"input": "uniform:1:90", "output": "uniform:1:90"} | load | more), seed=seed)
    policy = EnginePolicy(
        kv_blocks=kv_blocks,
        max_batched_tokens=64,
        max_seqs=6,
        order=order,
        speculative=speculative,  # type: ignore[arg-type]
        poll_steps=waits[0],
        hold_steps=waits[1],
    )
    fleet = Fleet(policy, SLOPED, replicas=replicas, in_step=in_step)
    records = records_of(asked, fleet)
    check_answers(asked, records, one_by_one=speculative is None)
    assert records == records_of(asked, fleet), "the same seed gives the same run"


@settings(max_examples=80)
@given(
    seed=st.integers(0, 1000),
    kv_blocks=st.integers(12, 60),
    order=st.sampled_from(["mixed", "prefill-first", "static"]),
    speculative=st.sampled_from([None, Speculative(1, 0.6)]),
    replicas=st.integers(1, 3),
    in_step=st.booleans(),
    stream_s=st.sampled_from([0.001, 0.05]),
    grace_s=st.floats(0.0, 0.5),
)
def test_what_is_cut_off_is_what_would_have_come_until_then(
    seed: int,
    kv_blocks: int,
    order: Any,
    speculative: Speculative | None,
    replicas: int,
    in_step: bool,
    stream_s: float,
    grace_s: float,
) -> None:
    asked = plan(
        concurrency=[9],
        duration_s=0.3,
        input="uniform:1:90",
        output="uniform:1:90",
        warmup=2,
        seed=seed,
    )
    policy = EnginePolicy(
        kv_blocks=kv_blocks, max_batched_tokens=64, max_seqs=6, order=order, speculative=speculative
    )
    fleet = Fleet(
        policy, Times(step=0.006, token=1e-4, stream_s=stream_s), replicas=replicas, in_step=in_step
    )
    stop_s = run_cell(asked, 0, fleet, grace_s=grace_s).stop_s
    whole = records_of(asked, fleet, grace_s=1e9)
    cut = records_of(asked, fleet, grace_s=grace_s)
    assert [record["sent_s"] for record in cut] == [record["sent_s"] for record in whole]
    for before, after in zip(cut, whole, strict=True):
        heard = [at_s for at_s in after["arrival_s"] if at_s <= stop_s]
        assert before["arrival_s"] == heard
        assert before["tokens"] == after["tokens"][: len(heard)]
        assert before["status"] == ("ok" if len(heard) == len(after["arrival_s"]) else "cancelled")


def test_each_engine_is_told_under_vllms_names() -> None:
    counters = Counters("m", 2, 1000)
    counters.begin(5.0)
    assert counters.look(6.5, [State(3, 2, 500, 40, 30, 1, 20, 10), State(1, 0, 1200, 7, 6)]) == 7.5
    counters.begin(8.0)
    assert counters.look(9.0, [State(4, 0, 100, 5, 4, 3, 2, 1), State(0, 0, 0, 0, 0)]) == 10.0
    names = (
        "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prompt_tokens_total",
        "generation_tokens_total", "num_preemptions_total", "prefix_cache_queries_total", "prefix_cache_hits_total",
    )  # fmt: skip
    told: dict[tuple[float, str], dict[str, float]] = {}
    for row in counters.table().to_pylist():
        engine = json.loads(row["labels"])["engine"]
        told.setdefault((row["time_s"], engine), {})[row["name"].removeprefix("vllm:")] = row[
            "value"
        ]
    assert {key: tuple(values[name] for name in names) for key, values in told.items()} == {
        (5.0, "0"): (0, 0, 0, 0, 0, 0, 0, 0),
        (5.0, "1"): (0, 0, 0, 0, 0, 0, 0, 0),
        (6.5, "0"): (3, 2, 0.5, 40, 30, 1, 20, 10),
        (6.5, "1"): (1, 0, 1.0, 7, 6, 0, 0, 0),  # no more than all of it
        (8.0, "0"): (0, 0, 0, 40, 30, 1, 20, 10),
        (8.0, "1"): (0, 0, 0, 7, 6, 0, 0, 0),
        (9.0, "0"): (4, 0, 0.1, 45, 34, 4, 22, 11),
        (9.0, "1"): (0, 0, 0, 7, 6, 0, 0, 0),
    }


def test_samples_stay_evenly_spread_as_they_thin_out() -> None:
    counters = Counters("m", 2, 1000, max_samples=20)
    at_s = 0.0
    while at_s < 100:
        at_s = counters.look(at_s, [State(1, 0, 0, 0, 0)] * 2)
    times = sorted({row["time_s"] for row in counters.table().to_pylist()})
    assert 5 <= len(times) <= 10
    assert times[0] == 0.0
    assert set(np.diff(times)) == {16.0}


def test_the_way_of_a_request_and_the_clients_moments() -> None:
    two = plan(concurrency=[1, 1], requests=[6], input="uniform:10:90")
    first, second = (CellRequests(two, cell, 0.003, 1e-5) for cell in (0, 1))
    assert first.request_s == pytest.approx(
        [0.003 + 1e-5 * tokens for tokens in first.input_tokens]
    )
    other = CellRequests(
        plan(concurrency=[1, 1], requests=[6], input="uniform:10:90", seed=1), 0, 0.003, 1e-5
    )
    assert not set(first.turnaround_s) & (set(second.turnaround_s) | set(other.turnaround_s))


def test_counters_count_on_over_cells_and_thin_out() -> None:
    asked = plan(concurrency=[2, 4], requests=[300], output="20")
    fleet = Fleet(POLICY, Times())
    counters = Counters("m", 1, POLICY.kv_tokens, max_samples=40)
    start_s = 0.0
    for cell in (0, 1):
        counters.begin(start_s)
        run = run_cell(asked, cell, fleet, start_s, look=counters.look)
        counters.look(run.over_s, run.states())
        start_s = run.over_s + 0.1
    table = counters.table().to_pylist()
    assert len({row["time_s"] for row in table}) <= 41
    for name, total in (("prompt_tokens", 60_000), ("generation_tokens", 12_000)):
        values = [row["value"] for row in table if row["name"] == f"vllm:{name}_total"]
        assert values == sorted(values)
        assert values[-1] == total
    running = [row["value"] for row in table if row["name"] == "vllm:num_requests_running"]
    assert 2 < max(running) <= 4
    assert table[0]["labels"] == '{"engine":"0","model_name":"m"}'


@pytest.mark.parametrize(("pipeline", "prefix"), [(1, 16), (2, 0)])
def test_what_the_preempted_had_written_stays_counted(pipeline: int, prefix: int) -> None:
    policy = EnginePolicy(
        kv_blocks=14, max_batched_tokens=1024, max_seqs=8, pipeline=pipeline, batch_seqs=4
    )
    asked = plan(concurrency=[8], requests=[12], output="uniform:10:60", input="60", prefix=prefix)
    written: list[int] = []

    def look(at_s: float, states: Sequence[State]) -> float:
        written.append(states[0].written_tokens)
        return at_s + 0.004

    run = run_cell(asked, 0, Fleet(policy, Times()), look=look)
    assert sum(replica.scheduler.preemptions for replica in run.replicas) > 0
    assert written == sorted(written)
    assert run.states()[0].written_tokens == int(asked.output_tokens.sum())


def test_what_is_used_of_a_cache_of_single_tokens_is_told_in_tokens() -> None:
    """Where prompts share something, its blocks are larger than the engine's; what is used of it is
    not less."""
    policy = msgspec.structs.replace(POLICY, block_tokens=1, kv_blocks=160_000)
    most = []
    for prefix in (0, 16):
        counters = Counters("m", 1, policy.kv_tokens)
        asked = plan(concurrency=[8], requests=[40], input="800", output="200", prefix=prefix)
        run_cell(asked, 0, Fleet(policy, Times()), look=counters.look)
        usage = [
            row["value"]
            for row in counters.table().to_pylist()
            if row["name"] == "vllm:kv_cache_usage_perc"
        ]
        most.append(max(usage))
    assert most[0] == pytest.approx(8 * 900 / 160_000, rel=0.15)
    assert most[1] == pytest.approx(most[0], rel=0.1)


def test_tables_have_the_stores_schema_and_split_where_they_grow_large() -> None:
    asked = plan(concurrency=[4], requests=[40], output="uniform:1:20")
    run = run_cell(asked, 0, Fleet(POLICY, Times()))
    made = list(tables(asked, 0, run, POLICY, max_events=50))
    assert len(made) > 5
    assert all(table.schema == run_folder.records_schema() for table in made)
    whole = pa.concat_tables(made)
    assert whole["request_id"].to_pylist() == [f"0-{index}" for index in range(40)]


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        (POLICY, {}),
        (EnginePolicy(kv_blocks=14, max_batched_tokens=1024, max_seqs=8), {}),  # some are preempted
        (msgspec.structs.replace(POLICY, max_seqs=3), {"duration_s": 0.5}),  # some are cut off
    ],
)
def test_records_are_the_same_however_they_are_split(policy: EnginePolicy, options: Json) -> None:
    asked = plan(
        **({"concurrency": [8], "output": "uniform:1:60", "input": "uniform:30:90"} | options)
    )
    run = run_cell(asked, 0, Fleet(policy, Times()), grace_s=0.05)
    (whole,) = tables(asked, 0, run, policy)
    for most in (1, 70, 200):
        made = list(tables(asked, 0, run, policy, max_events=most))
        assert pa.concat_tables(made).to_pylist() == whole.to_pylist()
        for table in made:
            assert (
                table.num_rows == 1
                or len(pa.concat_arrays(table["tokens"].chunks).flatten()) <= most
            )
        for table, following in itertools.pairwise(made):
            tokens = [*table["tokens"].to_pylist(), following["tokens"][0].as_py()]
            assert sum(map(len, tokens)) > most  # no smaller than they have to be


# --- how far off ----------------------------------------------------------------------------------


def test_intervals_are_as_wide_as_the_draws_and_what_remained() -> None:
    asked = plan(concurrency=[4], requests=[2000], output="50", warmup=4)
    fleet = Fleet(POLICY, Times(request_s=0.0, stream_s=0.0, token=0.0))
    draws = [
        Times(step=0.010 * factor, request_s=0.0, stream_s=0.0, token=0.0)
        for factor in np.linspace(0.8, 1.2, 41)
    ]
    draws = [Fleet(POLICY, each) for each in draws]
    found = intervals(asked, 0, fleet, draws, Margins({}))
    assert found["tpot_s"] == pytest.approx((0.84, 1.16), abs=0.005)
    wider = intervals(asked, 0, fleet, draws, Margins({"tpot": 0.5}))
    assert wider["tpot_s"][0] < 0.6
    assert wider["tpot_s"][1] > 1.7
    assert wider["ttft_s"] == found["ttft_s"]
    low, high = found["output_tokens_per_s"]
    assert 0.8 < low < 0.9
    assert 1.1 < high < 1.25


def test_throughput_is_as_unsure_as_e2e_only_where_it_follows_from_it() -> None:
    fleet = Fleet(POLICY, Times(token=0.0))
    draws = [
        Fleet(POLICY, Times(step=0.010 * factor, token=0.0)) for factor in np.linspace(0.8, 1.2, 21)
    ]
    remains = {"ttft": 0.5, "tpot": 0.5}
    closed = intervals(
        plan(concurrency=[4], requests=[200], output="50"), 0, fleet, draws, Margins(remains)
    )
    low, high = closed["output_tokens_per_s"]
    assert low == pytest.approx(1 / closed["e2e_s"][1], rel=0.1)
    assert high == pytest.approx(1 / closed["e2e_s"][0], rel=0.1)
    slow = intervals(
        plan(rate=[1.0], requests=[200], output="50"), 0, fleet, draws, Margins(remains)
    )
    assert slow["output_tokens_per_s"] == pytest.approx((1.0, 1.0), abs=0.02)
    assert slow["e2e_s"][1] > 1.3


def test_without_draws_nothing_is_known_to_be_unsure() -> None:
    found = intervals(
        plan(concurrency=[2], requests=[20]), 0, Fleet(POLICY, SLOPED), [], Margins({})
    )
    assert "e2e_s" in found
    assert set(found.values()) == {(1.0, 1.0)}


def test_medians_are_those_of_the_measured() -> None:
    fleet = Fleet(POLICY, SLOPED)
    asked = plan(
        concurrency=[4], requests=[9], warmup=12, input="uniform:10:900", output="uniform:1:90"
    )
    found = median_figures(run_cell(asked, 0, fleet))
    measured = [record for record in records_of(asked, fleet) if record["phase"] == "measure"]
    assert found["ttft_s"] == pytest.approx(
        np.median([each["arrival_s"][0] - each["sent_s"] for each in measured])
    )
    assert found["e2e_s"] == pytest.approx(
        np.median([each["end_s"] - each["sent_s"] for each in measured])
    )
    took_s = max(each["end_s"] for each in measured) - min(each["sent_s"] for each in measured)
    tokens = sum(each["output_tokens"] for each in measured)
    assert found["output_tokens_per_s"] == pytest.approx(tokens / took_s)


def test_of_one_token_e2e_is_as_unsure_as_ttft() -> None:
    fleet = Fleet(POLICY, SLOPED)
    draws = [fleet]
    asked = plan(output="1", concurrency=[2], requests=[20])
    found = intervals(asked, 0, fleet, draws, Margins({"ttft": 0.5, "tpot": 0.1}))
    assert found["e2e_s"] == pytest.approx(found["ttft_s"])
    assert found["output_tokens_per_s"] == pytest.approx(
        found["e2e_s"]
    )  # no draw says that it is surer
    asked = plan(output="500", concurrency=[2], requests=[20])
    long = intervals(asked, 0, fleet, draws, Margins({"ttft": 0.5, "tpot": 0.1}))
    assert long["tpot_s"][1] * 0.98 < long["e2e_s"][1] < long["ttft_s"][1]


def test_a_cell_by_time_comes_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadstone.predict.simulator.run.MAX_REQUESTS", 500)
    asked = plan(concurrency=[4], duration_s=1e9)
    with pytest.raises(InputError, match="--duration: more than 500 requests"):
        run_cell(asked, 0, Fleet(POLICY, SLOPED))


def test_a_cell_by_time_that_takes_too_many_requests_is_refused_early() -> None:
    asked = plan(concurrency=[4], duration_s=1e9)
    begun = time.process_time()
    with pytest.raises(
        InputError, match=r"--duration: about .*e\+\d+ requests in one load.*shorten it"
    ):
        run_cell(asked, 0, Fleet(POLICY, SLOPED))
    assert time.process_time() - begun < 5


def test_the_part_for_intervals_is_whole_sessions() -> None:
    asked = plan(turns="7", concurrency=[2], requests=[3000], warmup=2)
    part = beginning(asked, 0)
    assert 300 <= len(part) < 330
    assert asked.turn[len(part)] == 0


def test_the_part_for_intervals_is_of_its_own_cell_and_not_as_long_as_its_time() -> None:
    asked = plan(concurrency=[2, 100], duration_s=600.0, warmup=3)
    part = beginning(asked, 1)
    run = run_cell(part, 0, Fleet(POLICY, SLOPED))
    assert [load.value for load in part.cells] == [100]
    assert len(part) == len(run.end_s) == 3 + 4 * 100
    assert not np.isnan(run.end_s).any()
    ramp = plan(ramp="concurrency=1:9:1s")
    assert beginning(ramp, 0).cells == ramp.cells


# --- what cannot be -------------------------------------------------------------------------------


def test_what_never_fits_is_told() -> None:
    with pytest.raises(InputError, match="does not fit into the KV cache, which holds 96"):
        run_cell(plan(concurrency=[1], requests=[1]), 0, Fleet(EnginePolicy(kv_blocks=6), Times()))


def test_a_saved_plan_is_simulated_as_it_is(tmp_path: Path) -> None:
    asked = plan(concurrency=[2], requests=[10])
    run_folder.write_plan(tmp_path / "plan.parquet", asked)
    again = plan_of(Options.read(plan=tmp_path / "plan.parquet"))
    fleet = Fleet(POLICY, Times())
    assert records_of(again, fleet) == records_of(asked, fleet)


@pytest.mark.parametrize("quick", [True, False])
def test_slots_belong_to_their_class_in_a_loop_by_count_too(quick: bool) -> None:
    asked = plan(
        input=None, output=None, duration=1,
        class_=["short,slots=2,input=8,output=4", "long,slots=3,input=8,output=40"],
    )  # fmt: skip
    load = msgspec.structs.replace(asked.cells[0], duration_s=None)
    counted = replace(asked.take(np.arange(300)), cells=(load,))
    assert counted.traffic_class is not None
    records = records_of(counted, Fleet(POLICY, SLOPED), quick=quick)
    assert len(records) == 300
    for number, slots in enumerate((2, 3)):
        times = [
            (record["sent_s"], record["end_s"])
            for record, of_class in zip(records, counted.traffic_class, strict=True)
            if of_class == number
        ]
        assert max(sum(sent <= at < end for sent, end in times) for at, _ in times) == slots
