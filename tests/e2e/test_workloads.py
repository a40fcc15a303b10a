"""Conversations, traces, ramps and fleets, as a user runs them."""

from __future__ import annotations

import itertools
import json
import re
import threading
from pathlib import Path
from urllib.request import urlopen

import pyarrow.parquet as pq
import pytest

from conftest import (
    MODEL,
    Ask,
    Json,
    Loadstone,
    ScriptedServer,
    Send,
    answer,
    eventually,
    kill,
    whole,
)
from loadstone.measure.engines import llama_cpp
from loadstone.measure.simulated_server import FixedLatency, TimingServer, start

CONVERSATIONS = (
    Path(__file__).resolve().parents[3]
    / "shared"
    / "data"
    / "traces"
    / "mooncake"
    / "conversation_trace.jsonl"
)
DEPLOYMENT = "llama-3.1-8b@1xh100"
MOONCAKE = [
    {"timestamp": 0, "input_length": 1000, "output_length": 40, "hash_ids": [0, 1]},
    {"timestamp": 1000, "input_length": 1400, "output_length": 40, "hash_ids": [0, 1, 2]},
    {"timestamp": 1000, "input_length": 520, "output_length": 60, "hash_ids": [0, 9]},
    {"timestamp": 2500, "input_length": 1500, "output_length": 40, "hash_ids": [0, 1, 2]},
]


def words(text: str) -> list[str]:
    return text.split()


def trace_file(folder: Path, rows: list[Json] = MOONCAKE) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def by_session(records: list[Json]) -> list[list[Json]]:
    records = sorted(records, key=lambda row: int(row["request_id"].partition("-")[2]))
    return [
        list(turns) for _, turns in itertools.groupby(records, key=lambda row: row["session_id"])
    ]


# --- conversations --------------------------------------------------------------------------------


def test_a_turn_follows_its_answer_after_the_think_time(
    loadstone: Loadstone, timing: TimingServer
) -> None:
    flags = words(
        "--turns 3 --think-time 60ms --concurrency 2 --requests 12 --input 8 --output 4 --json"
    )
    outcome = loadstone("bench", timing.url, *flags)
    assert outcome.cell["requests"]["ok"] == 12
    sessions = by_session([row for row in outcome.records if row["phase"] == "measure"])
    assert [[row["turn"] for row in turns] for turns in sessions] == [[0, 1, 2]] * 4
    for turns in sessions:
        for before, after in itertools.pairwise(turns):
            assert after["intended_s"] == pytest.approx(before["end_s"] + 0.06, abs=1e-6)
            assert after["sent_s"] >= after["intended_s"]
            assert after["input_tokens"] > before["input_tokens"] + before["output_tokens"]
    begun = sorted((turns[0]["sent_s"], turns[-1]["end_s"]) for turns in sessions)
    # Two places: the third session begins when one of the first two has ended.
    assert begun[2][0] >= min(end for _, end in begun[:2])
    assert [part["turn"] for part in outcome.cell["by_turn"]] == [0, 1, 2]
    assert [part["requests"]["sent"] for part in outcome.cell["by_turn"]] == [4, 4, 4]


def test_the_server_s_own_answers_are_part_of_the_next_prompt(loadstone: Loadstone) -> None:
    with ScriptedServer() as server:
        flags = words(
            "--turns 3 --concurrency 1 --requests 3 --warmup 0 --input 4 --output 3 --json"
        )
        assert loadstone("bench", server.url, *flags).cell["requests"]["ok"] == 3
        prompts = [ask.json["prompt"] for ask in server.measured]
    assert prompts[1].startswith(prompts[0] + " time time time ")
    assert prompts[2].startswith(prompts[1] + " time time time ")


def test_a_session_that_fails_cannot_go_on_and_nothing_is_dropped(loadstone: Loadstone) -> None:
    def fail_once(ask: Ask, send: Send) -> None:
        if ask.number == 1:
            send(b"HTTP/1.1 500 Oh\r\nContent-Length: 4\r\n\r\nboom")
        else:
            answer(ask, send)

    with ScriptedServer(fail_once) as server:
        flags = words(
            "--turns 4 --concurrency 1 --requests 8 --warmup 0 --input 4 --output 3 --json"
        )
        outcome = loadstone("bench", server.url, *flags)
    counts = outcome.cell["requests"]
    assert (counts["sent"], counts["ok"], counts["error"], counts["cancelled"]) == (8, 5, 1, 2)
    given_up = [row for row in outcome.records if row["status"] == "cancelled"]
    assert [row["turn"] for row in given_up] == [2, 3]
    assert all(row["sent_s"] is None and "turn 1" in row["error"] for row in given_up)


def test_sessions_by_the_second_and_by_time(loadstone: Loadstone, timing: TimingServer) -> None:
    flags = words("--turns 2 --input 8 --output 4 --warmup 1 --json")
    outcome = loadstone("bench", timing.url, *flags, "--rate", "40", "--requests", "20")
    assert outcome.cell["requests"]["ok"] == 20
    assert outcome.cell["load"]["unit"] == "sessions"
    outcome = loadstone("bench", timing.url, *flags, "--concurrency", "2", "--duration", "500ms")
    assert outcome.cell["requests"]["ok"] > 4
    sessions = by_session(outcome.records)
    assert all([row["turn"] for row in turns] == list(range(len(turns))) for turns in sessions)
    assert len({turns[0]["session_id"] for turns in sessions}) == len(sessions)


def test_a_conversation_with_llama_server_finds_its_prefix_in_the_cache(
    loadstone: Loadstone, tmp_path: Path
) -> None:
    with llama_cpp.launch(slots=1, context_tokens=2048, log_path=tmp_path / "log") as engine:
        flags = words(
            "--turns 4 --prefix 100 --concurrency 1 --requests 8 --input 64 --output 8 --json"
        )
        outcome = loadstone("bench", engine.url, *flags)
    assert outcome.cell["requests"]["ok"] == 8
    for turns in by_session([row for row in outcome.records if row["phase"] == "measure"]):
        for before, after in itertools.pairwise(turns):
            # All but the end of the last answer, whose tokens the text may not give back.
            assert after["cached_tokens"] >= before["input_tokens"]
    assert "prefix_cache_helped" not in outcome.findings


# --- traces ---------------------------------------------------------------------------------------


def test_a_trace_at_its_own_times(
    loadstone: Loadstone, timing: TimingServer, tmp_path: Path
) -> None:
    flags = ("--trace", trace_file(tmp_path), "--time-scale", "1/5,0.1", "--warmup", "1", "--json")
    outcome = loadstone("bench", timing.url, *flags)
    assert [cell["requests"]["ok"] for cell in outcome.document["cells"]] == [4, 4]
    for cell, scale in ((0, 0.2), (1, 0.1)):
        rows = [row for row in outcome.records if row["cell"] == cell and row["phase"] == "measure"]
        rows.sort(key=lambda row: int(row["request_id"].partition("-")[2]))
        intended = [row["intended_s"] - rows[0]["intended_s"] for row in rows]
        assert intended == pytest.approx([0, 1 * scale, 1 * scale, 2.5 * scale], abs=1e-6)
        assert all(row["sent_s"] >= row["intended_s"] for row in rows)
        assert [row["input_tokens"] for row in rows] == [1000, 1400, 520, 1500]
        assert [row["output_tokens"] for row in rows] == [40, 40, 60, 40]
    # 1000 tokens are one whole block and a cut one: the same block, so the longer prompt has its
    # tokens too.
    assert (
        outcome.document["cells"][0]["metrics"]["shared_input_tokens"]
        == 1024 + 512 + 1500 - 24 + 24
    )


def test_blocks_are_shared_text(loadstone: Loadstone, tmp_path: Path) -> None:
    with ScriptedServer() as server:
        flags = (
            "--trace",
            trace_file(tmp_path),
            "--time-scale",
            "0.02",
            "--length-scale",
            "0.1",
            "--warmup",
            "0",
        )
        loadstone("bench", server.url, *flags)
        asks = sorted(
            server.measured, key=lambda ask: int(ask.headers["x-request-id"].rpartition("-")[2])
        )
        first, second, third, fourth = (ask.json["prompt"] for ask in asks)
    assert [len(prompt) for prompt in (first, second, third, fourth)] == [100, 140, 52, 150]
    assert second[:100] == first
    assert third[:51] == first[:51]
    assert third[51] != first[51]
    assert fourth[:140] == second


@pytest.mark.skipif(
    not CONVERSATIONS.is_file(),
    reason="needs the Mooncake trace of shared/data beside the checkout",
)
def test_llama_server_s_cache_gives_what_the_trace_promises(
    loadstone: Loadstone, tmp_path: Path
) -> None:
    # One request at a time, in the trace's order: what an earlier one left in the cache is there.
    flags = words("--length-scale 0.0078125 --concurrency 1 --requests 300 --warmup 0 --json")
    with llama_cpp.launch(slots=1, context_tokens=1200, log_path=tmp_path / "log") as engine:
        outcome = loadstone("bench", engine.url, "--trace", CONVERSATIONS, *flags)
    metrics = outcome.cell["metrics"]
    assert outcome.cell["requests"]["ok"] == 300
    assert metrics["shared_input_tokens"] > 2000
    assert metrics["cached_input_tokens"] == pytest.approx(metrics["shared_input_tokens"], rel=0.02)
    assert "prefix_cache_helped" not in outcome.findings


def test_bad_lines_are_told_or_left_out(
    loadstone: Loadstone, timing: TimingServer, tmp_path: Path
) -> None:
    rows = [dict(row) for row in MOONCAKE]
    rows[2]["timestamp"] = 10
    path = trace_file(tmp_path, rows)
    line = loadstone("bench", timing.url, "--trace", path).line()
    assert f"{path}, line 3" in line
    assert "--skip-bad" in line
    flags = ("--trace", path, "--time-scale", "0.02", "--skip-bad", "--warmup", "0", "--json")
    outcome = loadstone("bench", timing.url, *flags)
    assert outcome.cell["requests"]["ok"] == 3
    run = json.loads((outcome.folder / "run.json").read_text())
    assert run["settings"]["workload"]["skipped"] == {"unsorted": 1}
    (finding,) = outcome.document["findings"]
    assert (
        finding["evidence"]
        == "1 of the file's items were left out (1 unsorted), 3 remain to be sent"
    )
    assert finding["evidence"] in " ".join(loadstone("show", outcome.folder).out.split())


def test_lengths_beyond_the_model(loadstone: Loadstone, tmp_path: Path) -> None:
    path = trace_file(tmp_path)
    with start(FixedLatency(0.001, 0.001), max_model_len=1500) as server:
        line = loadstone("bench", server.url, "--trace", path).line()
        assert "line 4" in line
        assert "1500" in line
        flags = ("--trace", path, "--time-scale", "0.02", "--skip-bad", "--warmup", "0", "--json")
        outcome = loadstone("bench", server.url, *flags)
    assert outcome.cell["requests"]["ok"] == 3


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--input", "10"), "--trace and --input"),
        (("--turns", "2"), "--trace and --turns"),
        (("--range-ratio", "0.5"), "--trace and --range-ratio"),
        (("--requests", "99"), "--requests 99: the trace has 4; ask for no more"),
        (("--rate", "5", "--requests", "5"), "5 req/s: 5 requests, and the trace has 4"),
        (("--rate", "inf", "--requests", "2,5"), "burst of 5: 5 requests, and the trace has 4"),
        (("--rate", "5", "--duration", "60s"), "5 req/s: "),
        (("--ramp", "5:40:10s"), "and the trace has 4"),
        (("--rate", "2", "--time-scale", "2"), "--time-scale and --rate"),
        (("--time-scale", "0"), "--time-scale 0"),
        (("--time-scale", "1/0"), "divides by zero"),
        (("--trace-sample", "2"), "--trace-sample 2"),
        (("--length-scale", "0"), "--length-scale 0"),
        (("--trace-window", "5s"), "--trace-window"),
        (("--trace-window", "5s:2s"), "ends before it begins"),
        (("--trace-window", "1h:2h"), "no request of the trace"),
        (("--duration", "5s"), "--trace and --duration"),
    ],
)
def test_flags_that_do_not_go_with_a_trace(
    loadstone: Loadstone, tmp_path: Path, flags: tuple[str, ...], said: str
) -> None:
    assert said in loadstone("bench", "--trace", trace_file(tmp_path), *flags).line()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--time-scale", "2"), "it goes with --trace"),
        (("--skip-bad",), "it goes with --trace"),
        (("--think-time", "2s"), "it goes with --turns"),
        (("--turns", "0"), "--turns"),
        (("--ramp", "1:2:3s", "--rate", "3"), "--rate and --ramp"),
        (("--ramp", "1:2:3s", "--requests", "3"), "--ramp and --requests"),
        (("--ramp", "concurrency=0:0.5:3s"), "fewer than one request"),
        (("--structured", "yaml:x"), "--structured"),
        (("--structured", "json-schema:nothing.json"), "nothing.json: cannot be read"),
        (("--structured", 'json-schema:{"a"'), "not a JSON schema"),
    ],
)
def test_flags_that_make_no_sense(loadstone: Loadstone, flags: tuple[str, ...], said: str) -> None:
    assert said in loadstone("bench", *flags).line()


# --- ramps ----------------------------------------------------------------------------------------


def test_a_ramp_of_the_rate(loadstone: Loadstone, timing: TimingServer) -> None:
    flags = words("--ramp 10:49:1s,49:510ms --burstiness inf --input 8 --output 4 --json")
    outcome = loadstone("bench", timing.url, *flags)
    cell = outcome.cell
    assert cell["requests"]["ok"] == 54  # of 29.5 + 24.99
    assert [part["requests"]["sent"] for part in cell["by_piece"]] == [29, 25]
    assert cell["load"]["profile"] == [[10, 49, 1], [49, 49, 0.51]]


def test_a_ramp_of_the_concurrency(loadstone: Loadstone, timing: TimingServer) -> None:
    flags = words("--ramp concurrency=1:6:800ms,2:400ms --input 8 --output 16 --json")
    outcome = loadstone("bench", timing.url, *flags)
    rows = [row for row in outcome.records if row["phase"] == "measure"]
    start_s = min(row["intended_s"] for row in rows)

    def under_way(at_s: float) -> int:
        return sum(row["sent_s"] - start_s <= at_s < row["end_s"] - start_s for row in rows)

    # An answer takes 40 ms: what began before a change may still be there shortly after it.
    assert max(under_way(i / 100) for i in range(20)) <= 3
    assert max(under_way(0.6 + i / 100) for i in range(20)) >= 4
    assert max(under_way(0.95 + i / 100) for i in range(20)) <= 3
    assert all(row["status"] == "ok" for row in rows)


# --- a fleet --------------------------------------------------------------------------------------


def counts(records: list[Json]) -> list[int]:
    rows = [row["replica"] for row in records if row["phase"] == "measure"]
    return [rows.count(0), rows.count(1)]


def test_round_robin_shares_evenly(
    loadstone: Loadstone, timing: TimingServer, twin: TimingServer
) -> None:
    flags = words("--concurrency 4 --requests 20 --input 8 --output 4 --json")
    outcome = loadstone("bench", timing.url, twin.url, *flags)
    assert counts(outcome.records) == [10, 10]
    assert [part["url"] for part in outcome.cell["by_replica"]] == [timing.url, twin.url]
    assert [part["token_share"] for part in outcome.cell["by_replica"]] == [0.5, 0.5]
    assert "fleet_imbalance" not in outcome.findings


def test_the_least_busy_server_gets_the_next_request(
    loadstone: Loadstone, timing: TimingServer
) -> None:
    with start(FixedLatency(0.2, 0.01)) as slow:
        flags = words(
            "--route least-busy --concurrency 4 --requests 40 --input 8 --output 4 --json"
        )
        outcome = loadstone("bench", timing.url, slow.url, *flags)
    fast, few = counts(outcome.records)
    assert fast > 2 * few > 0
    assert "fleet_imbalance" in outcome.findings
    assert outcome.document["cells"][0]["by_replica"][1]["ttft_s"]["p50"] > 0.2


def test_sessions_stay_where_they_are(
    loadstone: Loadstone, timing: TimingServer, twin: TimingServer
) -> None:
    flags = words("--turns 3 --concurrency 3 --requests 18 --input 8 --output 4 --json")
    outcome = loadstone("bench", timing.url, twin.url, *flags)
    spread = loadstone("bench", timing.url, twin.url, *flags, "--route", "round-robin")
    homes = [{row["replica"] for row in turns} for turns in by_session(outcome.records)]
    assert all(len(home) == 1 for home in homes)
    assert {0} in homes
    assert {1} in homes
    assert any(len({row["replica"] for row in turns}) == 2 for turns in by_session(spread.records))


def test_groups_stay_where_their_prefix_is(
    loadstone: Loadstone, timing: TimingServer, twin: TimingServer
) -> None:
    flags = words(
        "--prefix 4 --prefix-groups 5 --concurrency 3 --requests 30 --input 8 --output 4 --json"
    )
    outcome = loadstone("bench", timing.url, twin.url, *flags, "--route", "sticky")
    plan = {}
    groups = pq.read_table(outcome.folder / "plan.parquet")["prefix_group"].to_pylist()
    for row in outcome.records:
        plan.setdefault(groups[int(row["request_id"].partition("-")[2])], set()).add(row["replica"])
    assert all(len(replicas) == 1 for replicas in plan.values())
    assert {replica for replicas in plan.values() for replica in replicas} == {0, 1}


def test_requests_go_where_their_prefix_is(loadstone: Loadstone) -> None:
    with start(DEPLOYMENT) as one, start(DEPLOYMENT) as other:
        flags = words(
            "--prefix 512 --prefix-groups 5 --concurrency 3 --requests 40 --input 600 --output 4 --json"
        )
        found = loadstone("bench", one.url, other.url, *flags, "--route", "prefix")
        spread = loadstone("bench", one.url, other.url, *flags, "--route", "round-robin")
        talks = words(
            "--turns 4 --concurrency 3 --requests 24 --input 256 --output 4 --route prefix --json"
        )
        sessions = loadstone("bench", one.url, other.url, *talks)
    homes = [{row["replica"] for row in turns} for turns in by_session(sessions.records)]
    assert all(len(home) == 1 for home in homes)
    assert {0} in homes
    assert {1} in homes
    groups = pq.read_table(found.folder / "plan.parquet")["prefix_group"].to_pylist()
    servers: dict[int, set[int]] = {}
    for row in found.records:
        servers.setdefault(groups[int(row["request_id"].partition("-")[2])], set()).add(
            row["replica"]
        )
    assert all(len(replicas) == 1 for replicas in servers.values())
    assert min(counts(found.records)) > 0
    cached = [outcome.cell["metrics"]["cached_input_tokens"] for outcome in (found, spread)]
    assert cached[0] > cached[1] > 0


def test_what_has_the_prefix_and_is_far_busier_is_passed_over(loadstone: Loadstone) -> None:
    with start(DEPLOYMENT) as one, start(DEPLOYMENT) as other:
        flags = words(
            "--prefix 512 --concurrency 40 --requests 80 --input 600 --output 40 --route prefix --json"
        )
        outcome = loadstone("bench", one.url, other.url, *flags)
        few = words(
            "--prefix 512 --concurrency 4 --requests 20 --input 600 --output 4 --route prefix --json"
        )
        alone = loadstone("bench", one.url, other.url, *few)
    assert min(counts(outcome.records)) > 8  # no more than twice as many, and eight
    assert min(counts(alone.records)) == 0


def kill_in_the_middle(server: TimingServer) -> None:
    """Kill a server that has answered twenty of a run's requests."""
    answered = re.compile(
        r"^vllm:request_success_total.* (?:[2-9]\d|\d{3,})(?:\.0)?$", re.MULTILINE
    )
    assert eventually(
        lambda: answered.search(urlopen(f"{server.url}/metrics", timeout=60).read().decode())
    )
    kill(server.pid)


@pytest.mark.parametrize("route", ["round-robin", "least-busy"])
def test_a_server_that_dies_takes_its_requests_with_it_and_the_rest_goes_on(
    loadstone: Loadstone, timing: TimingServer, route: str
) -> None:
    with start(FixedLatency(0.01, 0.002)) as other:
        threading.Thread(target=kill_in_the_middle, args=[other]).start()
        flags = f"--route {route} --rate 100 --requests 250 --input 8 --output 8 --json".split()
        outcome = loadstone("bench", timing.url, other.url, *flags)
    cell = outcome.cell
    assert cell["requests"]["sent"] == 250
    alive, dead = (part["requests"] for part in cell["by_replica"])
    assert alive["ok"] == alive["sent"]
    assert dead["error"] > 0
    if route == "least-busy":
        assert dead["error"] < 25  # one try a second, not all that is due
    else:
        assert dead["sent"] == 125
    assert eventually(lambda: "request_errors" in outcome.findings)


def test_two_llama_servers_under_a_ramp(loadstone: Loadstone, tmp_path: Path) -> None:
    with (
        llama_cpp.launch(slots=2, context_tokens=256, log_path=tmp_path / "first.log") as first,
        llama_cpp.launch(slots=2, context_tokens=256, log_path=tmp_path / "second.log") as second,
    ):
        flags = words(
            "--ramp concurrency=1:4:1s,4:1s --route least-busy --input 32 --output 16 --json"
        )
        outcome = loadstone("bench", first.url, second.url, *flags)
    requests = outcome.cell["requests"]
    assert requests["ok"] == requests["sent"] > 8
    assert min(counts(outcome.records)) > 2
    assert [part["requests"]["sent"] > 0 for part in outcome.cell["by_piece"]] == [True, True]
    assert [part["url"] for part in outcome.cell["by_replica"]] == [first.url, second.url]
    measured = [row for row in outcome.records if row["phase"] == "measure"]
    assert all(row["output_tokens"] == 16 and row["input_tokens"] == 32 for row in measured)


def test_a_fleet_is_met_whole(loadstone: Loadstone, timing: TimingServer) -> None:
    with ScriptedServer() as stranger:
        line = loadstone("bench", timing.url, stranger.url).line()
    assert stranger.url in line
    assert "no server answers" in loadstone("bench", timing.url, stranger.url).line()
    assert "given twice" in loadstone("bench", timing.url, timing.url).line()


# --- answers in one piece -------------------------------------------------------------------------


def test_answers_in_one_piece(loadstone: Loadstone, timing: TimingServer) -> None:
    flags = words("--no-stream --concurrency 2 --requests 8 --input 8 --output 6 --json")
    outcome = loadstone("bench", timing.url, *flags)
    metrics = outcome.cell["metrics"]
    assert outcome.cell["requests"]["ok"] == 8
    assert metrics["ttft_s"] is metrics["tpot_s"] is metrics["itl_s"] is None
    assert metrics["e2e_s"]["p50"] >= 0.01 + 5 * 0.002
    assert metrics["output_tokens"] == 48
    assert "not_streamed" in outcome.findings
    measured = [row for row in outcome.records if row["phase"] == "measure"]
    assert all(len(row["arrival_s"]) == 1 and row["tokens"] == [6] for row in measured)


def test_prompts_beyond_the_servers_context(loadstone: Loadstone, tmp_path: Path) -> None:
    """They would each be an HTTP 400: told before the run, or left out, as lines of a trace are."""
    counted: list[str] = []

    def reply(ask: Ask, send: Send) -> None:
        if ask.path == "/v1/models":
            send(
                whole("200 OK", json.dumps({"data": [{"id": MODEL, "max_model_len": 64}]}).encode())
            )
        elif ask.path == "/tokenize":
            counted.append(ask.json["prompt"])
            send(
                whole(
                    "200 OK",
                    json.dumps({"tokens": list(range(len(ask.json["prompt"].split())))}).encode(),
                )
            )
        else:
            answer(ask, send)

    file = tmp_path / "prompts.jsonl"
    lengths = [4, 20, 40, 55, 70]
    file.write_text("".join(json.dumps({"prompt": "word " * n}) + "\n" for n in lengths))
    flags = (
        "--dataset",
        file,
        "--output",
        "16",
        "--concurrency",
        "1",
        "--requests",
        "5",
        "--warmup",
        "0",
    )
    with ScriptedServer(reply, meets=True) as server:
        line = loadstone("bench", server.url, *flags).line()
        assert f"{file}: a prompt of " in line
        assert "and an answer of 16: together beyond the server's context" in line
        assert not any(ask.measured for ask in server.asks)
        counted.clear()
        outcome = loadstone("bench", server.url, *flags, "--skip-bad", "--json")
    # With the mark in front of it; of what is too short in bytes to be too long nobody is asked.
    assert {len(prompt.split()) - 1 for prompt in counted if prompt.startswith("[")} == {
        20,
        40,
        55,
        70,
    }
    assert outcome.cell["requests"]["ok"] == 5
    workload = json.loads((outcome.folder / "run.json").read_bytes())["settings"]["workload"]
    assert (workload["prompts"], workload["too_long"]) == (3, 2)


# --- real text ------------------------------------------------------------------------------------


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_llama_server_counts_what_real_text_was_cut_to(
    loadstone: Loadstone, tmp_path: Path, endpoint: str
) -> None:
    folder = tmp_path / "sources"
    folder.mkdir()
    for page in sorted((Path(__file__).resolve().parents[2] / "docs").glob("*.md"))[:12]:
        (folder / page.name).write_text(page.read_text("utf-8"), "utf-8")
    flags = words("--input 200 --output 4 --concurrency 4 --requests 60 --warmup 4 --json")
    with llama_cpp.launch(slots=4, context_tokens=512, log_path=tmp_path / "log") as engine:
        outcome = loadstone("bench", engine.url, "--text", folder, "--endpoint", endpoint, *flags)
        line = loadstone(
            "bench", engine.url, "--text", folder, *flags[:-3], "--requests", "9999"
        ).line()
    measured = [row for row in outcome.records if row["phase"] == "measure"]
    assert [row["input_tokens"] for row in measured] == [200] * 60
    assert not {"input_length", "prompts_repeated", "prefix_cache_helped"} & set(outcome.findings)
    assert "used up after" in line


def test_real_text_needs_what_counts_tokens(loadstone: Loadstone, tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text("A line of a book. " * 400)
    with ScriptedServer() as server:
        line = loadstone("bench", server.url, "--text", path, "--concurrency", "1").line()
        assert not server.measured
    assert line.startswith("--text: the server counts no tokens")
    assert line.endswith("with --tokenizer")
