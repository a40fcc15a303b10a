"""What servers say of themselves, as figures of a cell and as findings."""

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loadstone.analyse.server_figures import server_figures
from loadstone.core import run_folder
from loadstone.core.machine_figures import Level, ServerFigures, TtftParts
from loadstone.core.plan import Load
from loadstone.core.verdict import Finding
from loadstone.measure.engines.observe import read_metrics
from loadstone.workload import agents
from loadstone.workload.lengths import Length, Sessions
from loadstone.workload.schedule import make_plan
from loadstone.workload.synthetic import Synthetic
from summary_documents import summarise
from test_summary import make_run
from verdict_cells import LOAD, TARGET, WORKLOAD, Case, check, found, rows

WIRE = Path(__file__).resolve().parents[3] / "shared" / "data" / "wire"
Said = tuple[float, int, str, dict[str, str], float]


def table(said: list[Said]) -> pa.Table:
    lines = [
        {
            "time_s": t,
            "replica": r,
            "name": n,
            "labels": msgspec.json.encode(labels).decode(),
            "value": v,
        }
        for t, r, n, labels, v in sorted(said, key=lambda each: each[0])
    ]
    return pa.Table.from_pylist(lines, schema=run_folder.server_schema())


def said(
    name: str, values: list[float], replica: int = 0, start_s: float = 10.0, **labels: str
) -> list[Said]:
    """One value a second."""
    return [(start_s + i, replica, name, labels, value) for i, value in enumerate(values)]


def figures(
    *series: list[Said], start_s: float = 10.0, end_s: float = 14.0, answered: int | None = None
) -> dict[str, Any]:
    made = server_figures(table([each for one in series for each in one]), start_s, end_s, answered)
    assert made is not None
    known: dict[str, Any] = msgspec.to_builtins(made)
    known.pop("samples")
    return known


# --- figures --------------------------------------------------------------------------------------


def test_gauges_are_of_the_cell_alone() -> None:
    running = said("vllm:num_requests_running", [99, 1, 2, 3, 99], start_s=9.5, engine="0")
    assert figures(running, start_s=10, end_s=13) == {
        "restarts": 0,
        "running": {"mean": 2, "max": 3},
    }


def test_counters_are_what_the_cell_added() -> None:
    hits = said("vllm:prefix_cache_hits_total", [100, 104, 110, 150, 990], start_s=8.5)
    # From the last sample before it to the first one after it.
    assert figures(hits, start_s=9.7, end_s=11.4) == {"restarts": 0, "prefix_hits": 46.0}


def test_servers_of_a_fleet_count_together() -> None:
    one = said("sglang:num_running_reqs", [1, 1, 5, 1, 1])
    two = said("sglang:num_running_reqs", [2, 2, 2, 2, 2], replica=1)
    used = said("sglang:token_usage", [0.2] * 5) + said("sglang:token_usage", [0.4] * 5, replica=1)
    known = figures(one, two, used)
    assert known["running"] == {"mean": 3.8, "max": 7}
    assert known["kv_usage"] == {"mean": pytest.approx(0.3), "max": pytest.approx(0.3)}


def test_engines_of_one_server_count_together_but_ranks_say_the_same() -> None:
    by_engine = [said("vllm:num_requests_waiting", [3] * 5, engine=number) for number in "01"]
    assert figures(*by_engine)["waiting"]["max"] == 6
    by_rank = [
        said("sglang:num_queue_reqs", [3] * 5, tp_rank=number, dp_rank="0") for number in "01"
    ]
    by_rank += [said("sglang:num_queue_reqs", [4] * 5, tp_rank="0", dp_rank="1")]
    assert figures(*by_rank)["waiting"]["max"] == 7
    counted = [
        said("sglang:cached_tokens_total", [0, 1, 2, 3, 4], tp_rank=number) for number in "01"
    ]
    assert figures(*counted)["prefix_hits"] == 4
    # Of ranks that differ some say nothing yet.
    silent = said("sglang:num_queue_reqs", [0] * 5, tp_rank="1") + said(
        "sglang:cached_tokens_total", [0] * 5, tp_rank="2"
    )
    known = figures(said("sglang:num_queue_reqs", [3] * 5, tp_rank="0"), silent, *counted)
    assert (known["waiting"]["mean"], known["prefix_hits"]) == (3, 4)


def test_a_gauge_that_was_not_yet_told_has_its_first_value() -> None:
    one = said("vllm:num_requests_running", [1, 1, 1, 1, 1])
    late = said("vllm:num_requests_running", [10, 20, 30], replica=1, start_s=12.0)
    assert figures(one, late)["running"] == {"mean": (11 + 11 + 11 + 21 + 31) / 5, "max": 31}


def test_labels_may_be_part_of_a_name() -> None:
    family = "nv_trt_llm_request_metrics"
    known = figures(
        said(family, [5] * 5, request_type="scheduled", model="m"),
        said(family, [2] * 5, request_type="waiting", model="m"),
        said(family, [512] * 5, request_type="max", model="m"),
        said("nv_trt_llm_kv_cache_block_metrics", [0.5] * 5, kv_cache_block_type="fraction"),
        said("nv_trt_llm_kv_cache_block_metrics", [64] * 5, kv_cache_block_type="tokens_per"),
    )
    assert known == {
        "restarts": 0,
        "running": {"mean": 5, "max": 5},
        "waiting": {"mean": 2, "max": 2},
        "kv_usage": {"mean": 0.5, "max": 0.5},
    }


def test_llama_cpp_counts_prompts_without_what_was_cached() -> None:
    known = figures(
        said("llamacpp:prompt_tokens_total", [0, 10, 20, 30, 60]),
        said("llamacpp:prompt_tokens_cached_total", [0, 0, 0, 20, 40]),
    )
    assert known == {"restarts": 0, "prefix_hits": 40, "prefix_queries": 100}
    # Without the latter the sum is not known.
    assert figures(said("llamacpp:prompt_tokens_total", [0, 10, 20, 30, 60])) == {"restarts": 0}


def test_transfers_are_counted_by_each_engine() -> None:
    shared = [
        said("sglang:kv_transfer_total_mb_count", [0, 1, 2, 3, 4], tp_rank=number)
        for number in "01"
    ]
    failed = said("sglang:num_transfer_failed_reqs_total", [0, 0, 1, 1, 1])
    failed += said("sglang:num_bootstrap_failed_reqs_total", [0, 0, 2, 2, 2])
    assert figures(*shared, failed) == {"restarts": 0, "transfers": 4, "transfers_failed": 3}
    by_source_name = "vllm:prompt_tokens_by_source_total"
    by_source = [
        said(by_source_name, [0, 10, 20, 30, 40], source="external_kv_transfer"),
        said(by_source_name, [0, 1, 1, 1, 1], source="local_compute"),
        said("vllm:external_prefix_cache_hits_total", [0, 10, 20, 30, 40]),
    ]
    assert figures(*by_source) == {"restarts": 0, "transferred_tokens": 40}
    # What a decode worker finds in its own cache is not sent again; what a prefill worker finds in
    # its own is.
    hits = "vllm:prefix_cache_hits_total"
    prefill = said(by_source_name, [0] * 5, source="external_kv_transfer") + said(
        hits, [0, 16, 32, 48, 64]
    )
    decode = said(hits, [0, 0, 0, 64, 64], replica=1)
    decode += said(by_source_name, [0, 80, 80, 96, 96], source="external_kv_transfer", replica=1)
    known = figures(prefill, decode)
    assert (known["transferred_tokens"], known["prefix_hits"]) == (160, 128)


def histogram(name: str, counts: list[float], each_s: float, **labels: str) -> list[Said]:
    sums = [count * each_s for count in counts]
    return said(f"{name}_count", counts, **labels) + said(f"{name}_sum", sums, **labels)


@pytest.mark.parametrize(
    ("series", "answered", "parts"),
    [
        (["vllm:request_queue_time_seconds", {}, 0.5], None, [0.5, None, None]),
        (["vllm:request_prefill_time_seconds", {}, 0.2], None, [None, 0.2, None]),
        (["sglang:queue_time_seconds", {"tp_rank": "1"}, 0.5], None, [0.5, None, None]),
        (
            ["sglang:per_stage_req_latency_seconds", {"stage": "prefill_forward"}, 0.3],
            None,
            [None, 0.3, None],
        ),
        (
            ["sglang:per_stage_req_latency_seconds", {"stage": "prefill_transfer_kv_cache"}, 0.1],
            5,
            [None, None, 0.1],
        ),
        (["trtllm_request_queue_time_seconds", {}, 0.5], None, [0.5, None, None]),
        (["vllm:nixl_xfer_time_seconds", {}, 0.1], 5, [None, None, 0.1]),
        # Of pools both sides count a request: 20 waits of half a second in 10 requests.
        (["vllm:request_queue_time_seconds", {}, 0.5], 10, [1.0, None, None]),
        (["sglang:per_stage_req_latency_seconds", {"stage": "request_process"}, 0.3], None, None),
    ],
)
def test_ttft_is_split_as_the_engines_count_it(
    series: tuple[str, dict[str, str], float],
    answered: int | None,
    parts: list[float | None] | None,
) -> None:
    name, labels, each_s = series
    known = figures(histogram(name, [7, 7, 10, 20, 27], each_s, **labels), answered=answered)
    made = known.get("ttft_parts")
    assert (made if made is None else list(made.values())) == (
        parts if parts is None else pytest.approx(parts)
    )


def test_a_split_without_requests_is_unknown() -> None:
    known = figures(histogram("vllm:request_queue_time_seconds", [7] * 5, 0.5))
    assert "ttft_parts" not in known


@pytest.mark.skipif(not (WIRE / "vllm.metrics.txt").is_file(), reason="no recorded pages here")
def test_recorded_pages_tell_of_queue_and_prompt() -> None:
    for page in (
        WIRE / "vllm.metrics.txt",
        Path(__file__).parents[1] / "measure/wire/sglang/metrics.txt",
    ):
        samples = read_metrics(page.read_text())
        said = [(each.name, msgspec.json.decode(each.labels), each.value) for each in samples]
        read = [(at, 0, name, labels, at * value) for name, labels, value in said for at in (0, 1)]
        parts = figures(read, start_s=0.0, end_s=1.0)["ttft_parts"]
        assert 0 < parts["queue_s"] < parts["prefill_s"] < 1


def test_a_counter_under_two_names_is_counted_once() -> None:
    known = figures(
        said("vllm:num_preemptions_total", [0, 1, 2, 3, 4]),
        said("sglang:num_retracted_requests_total", [0] * 4 + [9]),
    )
    assert known == {"restarts": 0, "preemptions": 4}


def test_no_figures_without_samples_near() -> None:
    samples = table(said("vllm:num_requests_running", [1] * 5))
    assert server_figures(samples, 100.0, 110.0) is None
    assert server_figures(samples.slice(0, 0), 0.0, 10.0) is None
    for apart_s, known in ((4.9, True), (5.1, False)):  # from 10 s to 14 s
        assert (server_figures(samples, 14.0 + apart_s, 30.0) is not None) == known
        assert (server_figures(samples, 1.0, 10.0 - apart_s) is not None) == known


def test_a_cell_between_two_samples_has_its_counters() -> None:
    gauge = said("vllm:num_requests_running", [1, 4])  # of a moment outside it
    made = server_figures(table(said("vllm:num_preemptions_total", [1, 4]) + gauge), 10.2, 10.7)
    assert made == ServerFigures(samples=0, restarts=0, preemptions=3)


def test_odd_values_harm_nothing() -> None:
    nan, inf = float("nan"), float("inf")
    known = figures(
        said("vllm:num_requests_running", [nan, 1, 1, 1, nan]),
        said("vllm:num_preemptions_total", [nan, 1, 2, 2, nan]),
    )
    assert known["running"]["max"] == 1
    assert known["preemptions"] == 1
    huge = figures(said("vllm:num_requests_running", [1e308, -1e308, inf, 2, 1e308]))
    assert huge["running"] == {"mean": 2, "max": 2}
    broken = table(said("vllm:num_requests_running", [1] * 5)).to_pylist()
    broken[0]["labels"] = "no json"
    assert (
        server_figures(pa.Table.from_pylist(broken, schema=run_folder.server_schema()), 10, 12)
        is not None
    )


# --- a new beginning ------------------------------------------------------------------------------


def test_an_engine_that_began_anew_by_its_start_time() -> None:
    started = said("process_start_time_seconds", [1e9, 1e9, 1e9 + 60, 1e9 + 60])
    assert figures(started)["restarts"] == 1
    of_one = [
        said("process_start_time_seconds", [1e9, 1e9 + late, 1e9 + late], pid=str(late))
        for late in (0, 60)
    ]
    assert figures(*of_one)["restarts"] == 1
    assert figures(said("process_start_time_seconds", [1e9, 1e9 + 0.5, 1e9, 1e9]))["restarts"] == 0
    assert (
        figures(said("process_start_time_seconds", [1e9, 1e9 + 1.5, 1e9 + 3, 1e9 + 3]))["restarts"]
        == 2
    )


def test_a_start_that_moves_while_counters_go_on_is_no_new_beginning() -> None:
    """As where it is computed from the time of day, on a host whose clock is being set."""
    moves = said("process_start_time_seconds", [1e9, 1e9, 1e9 + 1.5, 1e9 + 3])
    assert figures(moves, said("done_total", [5, 6, 7, 8]))["restarts"] == 0
    assert figures(moves, said("done_total", [0, 0, 0, 0]))["restarts"] == 2
    assert figures(moves, said("done_total", [5, 6, 1, 2]))["restarts"] == 2


def test_an_engine_that_began_anew_by_its_counters() -> None:
    names = [f"x{i}_total" for i in range(4)]
    anew = [said(name, [5, 9, 1, 2, 3]) for name in names]
    assert figures(*anew)["restarts"] == 1
    assert (
        figures(anew[0], *(said(name, [5, 9, 10, 11, 12]) for name in names[1:]))["restarts"] == 0
    )  # misnamed
    at_zero = [said(name, [0] * 5) for name in names[1:]]
    assert figures(anew[0], *at_zero)["restarts"] == 1  # of those nobody can tell whether they fell
    gained = figures(
        *(said(f"vllm:{name}", [5, 9, 1, 2, 3]) for name in ("num_preemptions_total",))
    )
    assert gained["preemptions"] == 4 + 1 + 1 + 1


def test_what_happened_before_the_cell_is_not_its_own() -> None:
    anew = [said(f"x{i}_total", [9, 1, 2, 3, 4], start_s=7.0) for i in range(4)]
    assert figures(*anew, start_s=9.5, end_s=12)["restarts"] == 0


A_IN_TURN = [132857, 134009, 37760, 38912, 40128, 41280, 140153, 43712]
"""vllm:prompt_tokens_total, once a second, as nginx in front of two engines let them answer."""
B_IN_TURN = [68660, 68926, 9204, 9498, 9794, 10085, 70460, 10690]
"""vllm:generation_tokens_total of the same."""


def test_engines_that_answer_in_turn_did_not_begin_anew() -> None:
    counted = [
        said("vllm:prompt_tokens_total", A_IN_TURN),
        said("vllm:generation_tokens_total", B_IN_TURN),
    ]
    hits = said("vllm:prefix_cache_hits_total", [900, 900, 100, 100, 100, 100, 900, 100])
    assert figures(*counted, hits, end_s=17) == {"restarts": 0, "in_turns": 1}
    # What they say after the cell tells of it too.
    assert figures(*counted, end_s=13) == {"restarts": 0, "in_turns": 1}
    other = said("vllm:num_requests_running", [2] * 5, replica=1)
    assert figures(*counted, other)["running"]["max"] == 2
    # Begun anew, and soon as far again.
    anew = said("vllm:prompt_tokens_total", [900, 1000, 0, 300, 600, 900, 1200])
    assert figures(anew, end_s=16) == {"restarts": 1}
    started = "process_start_time_seconds"
    assert figures(said(started, [100, 500, 100, 500, 500])) == {"restarts": 0, "in_turns": 1}
    assert figures(said(started, [100, 500, 500, 500, 500])) == {"restarts": 1}


# --- findings -------------------------------------------------------------------------------------


def with_server(restarts: int = 0, **known: Any) -> dict[str, Finding]:
    return found(rows(), server=ServerFigures(samples=5, restarts=restarts, **known))


def cached(
    hits: float | None, queries: float | None = 40_000, usage: int | None = None, **more: Any
) -> dict[str, Finding]:
    known = ServerFigures(samples=5, restarts=0, prefix_hits=hits, prefix_queries=queries)
    return found(rows(cached_tokens=usage), server=known, **more)


def shared_prefix() -> Any:
    return make_plan(
        Synthetic(WORKLOAD.input, WORKLOAD.output, prefix_tokens=50),
        [LOAD],
        requests=[400],
        warmup=2,
    )


def handed_over(*, has_pools: bool = True, **known: Any) -> dict[str, Finding]:
    """Of 400 answered requests of 100 tokens, 2 of them of the warm-up."""
    return found(rows(), server=ServerFigures(samples=5, restarts=0, **known), has_pools=has_pools)


RESTARTED, ROUTED, LATE, CACHE, DIFFER = (
    "engine_restarted",
    "engines_in_turns",
    "server_writes_late",
    "prefix_cache_helped",
    "transfers_differ",
)
CASES: list[Case] = [
    ("=", None, {}, with_server),
    (RESTARTED, "error", {"restarts": 2}, lambda: with_server(2)),
    (RESTARTED, "error", {"restarts": 1}, lambda: with_server(1)),
    (
        ROUTED, "info", {"addresses": None},
        lambda: with_server(in_turns=1),
    ),
    (ROUTED, "info", {"addresses": 2}, lambda: with_server(in_turns=2)),
    (LATE, None, {}, lambda: with_server(write_late_s=1e-6)),
    (LATE, "warning", {"late_s": 0.5}, lambda: with_server(write_late_s=0.5)),
    ("=", None, {}, lambda: with_server(preemptions=0)),
    ("preemptions", "info", {"preemptions": 29}, lambda: with_server(preemptions=29)),
    (
        "preemptions", "info", {"preemptions": 3, "kv_usage_share": 0.987},
        lambda: with_server(preemptions=3, kv_usage=Level(0.5, 0.987)),
    ),
    ("=", None, {}, lambda: handed_over(transfers=400, transfers_failed=0)),
    ("=", None, {}, handed_over),
    ("=", None, {}, lambda: handed_over(has_pools=False, transferred_tokens=0)),
    ("=", None, {}, lambda: handed_over(transferred_tokens=96 * 400)),
    (
        DIFFER, "warning", {"handed_over": 399, "unit": "requests", "answered": 400},
        lambda: handed_over(transfers=399),
    ),
    (DIFFER, "warning", {"handed_over": 0, "unit": "prompt tokens"}, lambda: handed_over(transferred_tokens=0)),
    ("transfers_differ.failed", "warning", {"failed": 3}, lambda: handed_over(transfers=400, transfers_failed=3)),
    # The server's counters tell of its prefix cache where usage does not, and usage is believed
    # before them.
    ("=", None, {}, lambda: cached(400 + 400)),
    (
        "prefix_cache_helped.counters", "warning",
        {"share": 0.5},
        lambda: cached(400 + 20_000),
    ),
    ("=", None, {}, lambda: cached(400 + 20_000, has_pools=True)),  # both look for a prompt
    # a template
    ("=", None, {}, lambda: cached(8 * 400, target=msgspec.structs.replace(TARGET, overhead_tokens=8))),
    ("=", None, {}, lambda: cached(51 * 400, plan=shared_prefix())),
    ("=", None, {}, lambda: cached(20_000, None)),
    ("=", None, {}, lambda: cached(20_000, 0)),
    ("=", None, {}, lambda: cached(None)),
    ("=", None, {}, lambda: cached(0)),
    ("=", None, {}, lambda: cached(20_000, usage=0)),  # others may use the server too
    # Another client's prompts of 60,000 tokens, which may have had them all.
    ("=", None, {}, lambda: cached(20_000, 100_000)),
    ("prefix_cache_helped.counters", "warning", {"share": 0.5}, lambda: cached(60_400 + 20_000, 100_000)),
    # 400 answers of 4 tokens, of which the engines count as many, more, or fewer; 0.1 s to the first.
    ("=", None, {}, lambda: with_server(output_tokens=1450, ttft_s=0.12)),
    ("=", None, {}, lambda: with_server(output_tokens=9999, ttft_s=0.01)),
    ("=", None, {}, lambda: with_server(output_tokens=0)),  # a page that stands still
    ("=counters_differ", "warning", {"made": 1400, "billed": 1600}, lambda: with_server(output_tokens=1400)),
    ("=counters_differ.ttft", "warning", {"counted_s": 0.14, "ttft_s": 0.1}, lambda: with_server(ttft_s=0.14)),
    (
        "=counters_differ.ttft", "warning", {"counted_s": 0.15},
        lambda: with_server(ttft_parts=TtftParts(queue_s=0.05, prefill_s=0.1)),
    ),
    ("=", None, {}, lambda: handed_over(ttft_parts=TtftParts(queue_s=0.05, prefill_s=0.1))),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_findings_about_servers(case: Case) -> None:
    check(case)


def test_how_late_a_server_of_known_times_wrote() -> None:
    known = figures(
        said("loadstone:write_late_seconds_total", [0.0, 0.1, 0.2, 0.3, 0.4]),
        said("loadstone:writes_total", [0, 50, 100, 150, 200]),
    )
    assert known == {"restarts": 0, "write_late_s": pytest.approx(0.002)}


def test_sessions_share_what_only_the_answers_tell() -> None:
    plan = make_plan(
        WORKLOAD, [LOAD], requests=[400], warmup=0, sessions=Sessions(Length("fixed", 4))
    )
    records = rows(cached_tokens=None)
    for index, each in enumerate(records):
        each["request_id"] = f"0-{index}"
        each["turn"] = index % 4
    known = ServerFigures(samples=5, restarts=0, prefix_hits=20_000, prefix_queries=40_000)
    assert "prefix_cache_helped" not in found(records, plan, server=known)
    # Of the answers only first turns tell of more than what was said: a word and a system message
    # are in any cache.
    for cached_tokens, helped in ((17, False), (18, False), (19, True)):  # of 100, from 1 % on
        for each in records:
            each["cached_tokens"] = cached_tokens if each["turn"] == 0 else 90
        assert ("prefix_cache_helped" in found(records, plan)) == helped


def test_sessions_of_messages_share_what_texts_share(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "yes"}] * 4
    (tmp_path / "sessions.jsonl").write_bytes(msgspec.json.encode({"messages": messages}))
    for live in (False, True):
        trace = msgspec.structs.replace(agents.read(tmp_path / "sessions.jsonl"), live=live)
        plan = make_plan(trace, [LOAD], requests=[400], warmup=0)
        records = rows(cached_tokens=90)
        for index, each in enumerate(records):
            each["request_id"] = f"0-{index}"
            each["turn"] = index % 4
        assert "prefix_cache_helped" not in found(records, plan)


# --- in the summary -------------------------------------------------------------------------------


def test_the_summary_has_what_the_server_said(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r", [Load("concurrency", 1)], {})
    assert "server" not in summarise(folder)["cells"][0]
    series = said("vllm:num_requests_running", [1.0] * 9, start_s=0.5) + said(
        "vllm:num_preemptions_total", [2.0 * i for i in range(9)], start_s=0.5
    )
    pq.write_table(table(series), folder / "server.parquet")
    (cell,) = summarise(folder)["cells"]
    assert cell["server"] == {
        "samples": 9,
        "restarts": 0,
        "running": {"mean": 1.0, "max": 1.0},
        "preemptions": 16.0,
    }
    assert "preemptions" in {finding["kind"] for finding in cell["verdict"]["findings"]}
    (folder / "server.parquet").write_bytes(b"no Parquet file")
    assert "server" not in summarise(folder)["cells"][0]
