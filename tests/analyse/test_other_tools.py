"""Other tools' own summaries, from their own per-request data: the dialects must say what the tools
said."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadstone.analyse.metrics import measure_cell
from loadstone.analyse.other_tools import DIALECTS, TOOLS, summarise_as
from loadstone.analyse.other_tools.facts import Facts, gather
from loadstone.core.errors import InputError
from loadstone.core.plan import Load
from loadstone.core.record import RequestRecord
from loadstone.core.run_folder import records_schema
from test_metrics import record

CAPTURES = Path(__file__).parent / "dialects"
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "results"
CLOSED = Load(kind="concurrency", value=4)
Json = dict[str, Any]


def batches(records: list[RequestRecord]) -> list[pa.RecordBatch]:
    """In two pieces, the second a slice of a larger batch, as readers of files make them."""
    rows = [msgspec.to_builtins(one) for one in records]
    whole = pa.RecordBatch.from_pylist([*rows, *rows], schema=records_schema())
    cut = len(rows) // 2
    return [whole.slice(0, cut), whole.slice(cut, len(rows) - cut)]


def summarise(name: str, records: list[RequestRecord], **options: Any) -> Json:
    return summarise_as(name, lambda: batches(records), **options).metrics


def facts(records: list[RequestRecord], window: tuple[float, float]) -> Facts:
    """`window`: what the tool measured around its requests."""
    return replace(gather(lambda: batches(records)), window=window)


def capture(name: str) -> Json:
    found: Json = json.loads((CAPTURES / name).read_text())
    return found


def shared(path: str) -> str:
    if not (SHARED / path).is_file():
        pytest.skip(f"no shared data beside the checkout: {path}")
    return (SHARED / path).read_text()


def at(document: Json, path: str) -> Any:
    for part in re.split(r"\.(?!\d)", path):  # p99.9 is one name
        document = document[part]
    return document


def agree(ours: Json, theirs: Json, keys: Iterable[str], rel: float = 1e-9) -> None:
    """Every key the tool printed, to the last digits of its floating point."""
    wrong = {
        key: (ours[key], theirs[key])
        for key in keys
        if ours[key] != pytest.approx(theirs[key], rel=rel, abs=1e-9)
    }
    assert not wrong


# --- vLLM -----------------------------------------------------------------------------------------


def of_vllm(result: Json) -> list[RequestRecord]:
    """Its chunks are our events. Its detail has no counts per chunk; none of its numbers needs
    them."""
    starts = result.get("start_times", [0.0] * len(result["ttfts"]))
    records = []
    for start, ttft, gaps, inputs, outputs, error in zip(
        starts,
        result["ttfts"],
        result["itls"],
        result["input_lens"],
        result["output_lens"],
        result["errors"],
        strict=True,
    ):
        arrival = [start + ttft]
        for gap in gaps:
            arrival.append(arrival[-1] + gap)
        counts = np.linspace(1, outputs, len(arrival)).astype(int).tolist()
        records.append(
            record(
                start,
                arrival,
                counts,
                input_tokens=inputs,
                output_tokens=outputs,
                status="error" if error else "ok",
                error=error or None,
            )
        )
    return records


def test_vllm_says_what_vllm_bench_serve_said() -> None:
    result = capture("vllm.json")
    records = of_vllm(result)
    ours = dict(TOOLS["vllm"].numbers(facts(records, (0.0, result["duration"]))))
    assert set(ours) <= set(result)
    assert set(result) - set(ours) == {
        "endpoint_type", "backend", "model_id", "num_prompts", "request_rate", "burstiness", "max_concurrency",
        "input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times", "errors",
        "request_goodput", "rtfx",
    }  # fmt: skip
    agree(ours, result, ours)
    # Several tokens a chunk: what it calls ITL is not its TPOT, and its peak is of chunks.
    assert ours["mean_itl_ms"] > 2 * ours["mean_tpot_ms"]
    assert ours["max_output_tokens_per_s"] < result["total_output_tokens"] / math.ceil(
        result["duration"]
    )

    # Left to the records alone, the duration begins and ends with the requests, so within what was
    # measured around.
    alone = summarise("vllm", records)
    assert 0.95 * result["duration"] < alone["duration"] <= result["duration"]
    assert alone["request_throughput"] == pytest.approx(12 / alone["duration"])


@pytest.mark.parametrize(
    "path",
    ["peers/vllm_bench/vllm_bench_serve.json", "vllm_serve/vllm-32.0qps-Llama-3.1-405B-FP8.json"],
)
def test_vllm_on_published_results(path: str) -> None:
    result = json.loads(shared(path))
    ours = dict(TOOLS["vllm"].numbers(facts(of_vllm(result), (0.0, result["duration"]))))
    keys = set(ours) & set(result)
    if "latencies" not in result:
        # In that release E2E, and so TPOT, ended with the last line of a stream, of which its
        # detail has no time.
        keys -= {key for key in keys if "tpot" in key}
    assert len(keys) > 10
    agree(ours, result, keys)


# --- SGLang ---------------------------------------------------------------------------------------


def of_sglang(outputs: Iterable[Json], *, native: bool) -> list[RequestRecord]:
    """Of its own endpoint a gap was written once per token, in equal parts: a run of equal ones was
    one chunk."""
    records = []
    for output in outputs:
        arrival, counts = [output["start_time"] + output["ttft"]], [1]
        runs = groupby(output["itl"]) if native else ((gap, [gap]) for gap in output["itl"])
        for gap, run in runs:
            brought = len(list(run))
            arrival.append(arrival[-1] + brought * gap)
            counts.append(counts[-1] + brought)
        records.append(
            record(
                output["start_time"],
                arrival,
                counts,
                input_tokens=output["prompt_len"],
                output_tokens=output["output_len"],
                end_s=output["start_time"] + output["latency"],
            )
        )
    return records


@pytest.mark.parametrize("native", [True, False])
def test_sglang_says_what_bench_serving_said(native: bool) -> None:
    document = capture("sglang.json" if native else "sglang_oai.json")
    result, records = document["result"], of_sglang(document["outputs"], native=native)
    ours = dict(
        TOOLS["sglang" if native else "sglang-oai"].numbers(
            facts(records, (0.0, result["duration"]))
        )
    )
    # It prints the largest gap, and leaves it out of its file.
    assert set(ours) - set(result) == {"max_itl_ms"}
    assert ours["max_itl_ms"] == pytest.approx(
        max(max(output["itl"]) for output in document["outputs"]) * 1e3
    )
    agree(
        ours, result, set(ours) - {"max_itl_ms", "total_output_tokens_retokenized", "accept_length"}
    )
    # Shared out over the tokens the gaps are about its TPOT; between chunks of three they are about
    # three times that.
    assert (ours["mean_itl_ms"] < 1.2 * ours["mean_tpot_ms"]) is native


def test_sglang_on_a_published_result() -> None:
    """Start and end of a request are not in its file: what needs them is not compared."""
    result = json.loads(shared("peers/sglang_bench/sglang_bench.jsonl").splitlines()[0])
    names = {
        "ttft": "ttfts",
        "itl": "itls",
        "prompt_len": "input_lens",
        "output_len": "output_lens",
    }
    outputs = [
        dict(zip(names, each, strict=True)) | {"start_time": 0.0, "latency": each[0] + sum(each[1])}
        for each in zip(*(result[name] for name in names.values()), strict=True)
    ]
    known = facts(of_sglang(outputs, native=False), (0.0, result["duration"]))
    ours = dict(TOOLS["sglang-oai"].numbers(known))
    absent = ("e2e", "tpot", "max_", "conc", "retokenized", "accept")
    keys = [key for key in ours if key in result and not any(word in key for word in absent)]
    assert len(keys) > 18
    agree(ours, result, keys)


# --- AIPerf ---------------------------------------------------------------------------------------


def of_aiperf(lines: Iterable[Json]) -> list[RequestRecord]:
    """`request_latency` is to the last chunk with content; the end of the stream is in the
    metadata."""
    lines = list(lines)
    origin = min(line["metadata"]["request_start_ns"] for line in lines)
    records = []
    for line in lines:
        metrics = {name: metric["value"] for name, metric in line["metrics"].items()}
        start = (line["metadata"]["request_start_ns"] - origin) / 1e9
        gaps = np.array(metrics.get("inter_chunk_latency", []))
        arrival = (
            start
            + (metrics["time_to_first_token"] + np.concatenate([[0.0], np.cumsum(gaps)])) / 1e3
        )
        outputs = metrics["output_sequence_length"]
        counts = np.linspace(1, outputs, len(arrival)).astype(int).tolist()
        records.append(
            record(
                start,
                arrival,
                counts,
                input_tokens=metrics["input_sequence_length"],
                output_tokens=outputs,
                end_s=(line["metadata"]["request_end_ns"] - origin) / 1e9,
            )
        )
    return records


def check_aiperf(lines: Iterable[Json], document: Json, summary: Json) -> Json:
    records = of_aiperf(lines)
    phase_s = (
        datetime.fromisoformat(document["end_time"])
        - datetime.fromisoformat(document["start_time"])
    ).total_seconds()
    ours = dict(TOOLS["aiperf"].numbers(facts(records, (0.0, phase_s))))
    compared = 0
    for key, value in ours.items():
        name, statistic = key.rsplit(".", 1)
        if name == "time_to_first_output_token":
            assert value is None
        elif name in summary:
            # It keeps nanoseconds of each request and microseconds of its phase.
            rel = 3e-6 if name.endswith("throughput") else 1e-6
            assert value == pytest.approx(summary[name][statistic], rel=rel, abs=1e-6), key
            compared += 1
        else:
            assert name == "error_request_count"
            assert value == 0
    assert compared == 12 * 13 + 10

    alone = summarise("aiperf", records)
    assert {key for key in ours if alone[key] != ours[key]} == {
        f"{name}_throughput.avg"
        for name in ("request", "input_token", "output_token", "total_token")
    }
    assert (
        ours["request_throughput.avg"]
        < alone["request_throughput.avg"]
        < 1.1 * ours["request_throughput.avg"]
    )
    return ours


def test_aiperf_says_what_aiperf_said() -> None:
    document = capture("aiperf.json")
    ours = check_aiperf(document["records"], document, document["summary"])
    assert ours["inter_chunk_latency.avg"] > 2 * ours["inter_token_latency.avg"]


def test_aiperf_takes_reasoning_out_of_output_tokens_only() -> None:
    thought = record(0.0, [1.0, 2.0, 3.0], reasoning_tokens=2)
    only_thought = record(0.0, [1.0, 2.0], reasoning_tokens=2)
    found = summarise("aiperf", [thought, only_thought])
    assert (found["total_osl.avg"], found["total_output_tokens.avg"]) == (5, 1)
    assert (found["output_sequence_length.avg"], found["output_token_count.avg"]) == (2.5, 1.0)
    assert found["inter_token_latency.avg"] == 1000.0


def test_aiperf_on_a_published_result() -> None:
    lines = map(json.loads, shared("peers/aiperf/artifacts/profile_export.jsonl").splitlines())
    measured = [line for line in lines if line["metadata"]["benchmark_phase"] == "profiling"]
    summary = json.loads(shared("peers/aiperf/artifacts/profile_export_aiperf.json"))
    check_aiperf(measured, summary, summary)


# --- GuideLLM -------------------------------------------------------------------------------------


def of_guidellm(requests: Iterable[Json]) -> list[RequestRecord]:
    """It keeps the first and the last event and how many there were, and spreads the others evenly
    itself."""
    records = []
    for request in requests:
        times = request["timings"]
        first, last = times["first_token_iteration"], times["last_token_iteration"]
        arrival = np.linspace(first, last, times["token_iterations"])
        outputs = request["output_tokens"]
        records.append(
            record(
                times["request_start"],
                arrival,
                np.linspace(1, outputs, len(arrival)).astype(int).tolist(),
                input_tokens=request["input_tokens"],
                output_tokens=outputs,
                end_s=times["request_end"],
            )
        )
    return records


def near(value: float | None, other: float | None) -> bool:
    if value is None or other is None:
        return value is other
    return value == pytest.approx(other, rel=1e-6, abs=1e-6)


def check_guidellm(requests: list[Json], scheduler: Json, metrics: Json) -> None:
    # Its times are of the wall clock, which a double holds to a quarter of a microsecond. Moved to
    # an origin of ours its rates would not be as coarse as it computed them.
    records = of_guidellm(requests)
    ours = dict(
        TOOLS["guidellm"].numbers(
            facts(records, (scheduler["measure_start_time"], scheduler["measure_end_time"]))
        )
    )
    wrong = {
        key: (value, at(metrics, key))
        for key, value in ours.items()
        if not key.startswith("time_to_first_output_token")  # its records do not tell the channels
        and value != pytest.approx(at(metrics, key), rel=1e-6, abs=1e-6)
    }
    assert not wrong
    assert len(ours) == 4 + 13 * 12

    alone = summarise("guidellm", records)
    differing = {key.split(".")[0] for key in ours if not near(alone[key], ours[key])}
    assert differing <= {
        "requests_per_second", "request_concurrency", "prompt_tokens_per_second", "output_tokens_per_second",
        "tokens_per_second",
    }  # fmt: skip


def test_guidellm_says_what_guidellm_said() -> None:
    document = capture("guidellm.json")
    check_guidellm(document["requests"], document["scheduler_metrics"], document["metrics"])


def test_guidellm_on_a_published_result() -> None:
    benchmark = json.loads(shared("peers/guidellm/guidellm.json"))["benchmarks"][0]
    requests = [
        {
            "timings": one["info"]["timings"],
            "input_tokens": one["input_metrics"]["text_tokens"],
            "output_tokens": one["output_metrics"]["text_tokens"],
        }
        for one in benchmark["requests"]["successful"]
    ]
    check_guidellm(requests, benchmark["scheduler_metrics"], benchmark["metrics"])


# --- by hand: what no capture shows ---------------------------------------------------------------

# Sent at 1 and 2, a second late each; four tokens at 2.0, three at 3.5, one at 3.75; then one token
# at 4.
BY_HAND = [
    record(1.0, [2.0, 3.5, 3.75], [4, 7, 8], intended_s=0.0, end_s=4.0, input_tokens=10),
    record(2.0, [4.0], intended_s=1.0, end_s=4.5, input_tokens=20),
    record(
        3.0, [3.5], status="error", error="reset", end_s=6.0, input_tokens=5, output_tokens=None
    ),
    record(0.0, [0.1], phase="warmup"),
]


def test_vllm_by_hand() -> None:
    found = summarise(
        "vllm",
        [*BY_HAND[:1], msgspec.structs.replace(BY_HAND[1], output_tokens=None), *BY_HAND[2:]],
    )
    assert (found["completed"], found["failed"], found["duration"]) == (2, 1, 5.0)
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (30, 9)
    assert (found["mean_ttft_ms"], found["median_e2el_ms"]) == (1500.0, 2375.0)
    assert found["mean_tpot_ms"] == 1750 / 7  # one token has none
    assert (found["mean_itl_ms"], found["std_itl_ms"]) == (
        875.0,
        625.0,
    )  # 1.5 s and 0.25 s: three chunks, eight tokens
    # By seconds from the first send: chunks at 1.0; 2.5, 2.75; 3.0.
    assert (found["max_output_tokens_per_s"], found["max_concurrent_requests"]) == (2.0, 2)


def test_requests_that_follow_one_another_are_concurrent_to_vllm_and_sglang() -> None:
    one_by_one = [record(index / 10, [index / 10 + 0.05]) for index in range(10)]
    assert summarise("vllm", one_by_one)["max_concurrent_requests"] == 10
    assert summarise("sglang-oai", one_by_one)["max_concurrent_requests"] == 10
    assert summarise("guidellm", one_by_one)["request_concurrency.successful.max"] == 1.0


def test_sglang_by_hand() -> None:
    native, oai = summarise("sglang", BY_HAND), summarise("sglang-oai", BY_HAND)
    assert native["mean_e2e_latency_ms"] == 2750.0  # to the end of the stream
    assert native["mean_tpot_ms"] == pytest.approx(2000 / 7)
    assert (native["max_itl_ms"], native["median_itl_ms"]) == (
        500.0,
        500.0,
    )  # 0.5 s three times, then 0.25 s
    assert native["mean_itl_ms"] == 1750 / 4
    assert (oai["max_itl_ms"], oai["mean_itl_ms"]) == (1500.0, 875.0)
    assert native["concurrency"] == (3.0 + 2.5) / 5.0
    # First chunks at 1.0 and 3.0, three tokens up to 2.5 at 1.5, 2.0 and 2.5, one at 2.75.
    assert native["max_output_tokens_per_s"] == 3.0
    assert oai["max_output_tokens_per_s"] == 2.0


def test_sglang_spreads_the_tokens_of_each_request_on_their_own() -> None:
    # 1.5, 2.0 and 2.5 of the one; 1.6, 1.75, 1.9, 2.05 and 2.2 of the other: with the first chunks
    # six before 2.
    two = [record(0.0, [1.0, 2.5], [1, 4]), record(0.0, [1.45, 2.2], [1, 6])]
    assert summarise("sglang", two)["max_output_tokens_per_s"] == 6.0


def test_aiperf_by_hand() -> None:
    found = summarise("aiperf", [*BY_HAND, record(5.0, status="cancelled", end_s=7.0)])
    assert (found["request_count.avg"], found["error_request_count.avg"]) == (2, 1)
    assert found["request_error_rate.avg"] == 100 / 3
    assert found["request_throughput.avg"] == 2 / 6  # from 1 to 7
    assert found["benchmark_duration.avg"] == 3.0
    assert (found["inter_token_latency.avg"], found["output_token_throughput_per_user.avg"]) == (
        250.0,
        4.0,
    )
    assert found["time_to_second_token.avg"] == 1500.0
    at_once = summarise("aiperf", [record(0.0, [1.0], [8])])
    assert (
        at_once["inter_token_latency.avg"],
        at_once["output_token_throughput_per_user.avg"],
    ) == (0.0, None)


def test_inference_perf_by_hand() -> None:
    found = summarise("inference-perf", BY_HAND)
    latency = "successes.latency."
    assert found[f"{latency}request_latency.mean"] == 2.75
    assert found[f"{latency}normalized_time_per_output_token.max"] == 2.5
    assert found[f"{latency}time_per_output_token.median"] == 0.25
    assert found[f"{latency}time_to_first_token.max"] == 1.0  # of two tokens and more
    # Eight tokens have seven gaps: 0 three times, 1.5, 0 twice, 0.25.
    assert found[f"{latency}inter_token_latency.mean"] == 0.25
    assert (
        found[f"{latency}inter_token_latency.median"],
        found[f"{latency}inter_token_latency.max"],
    ) == (0.0, 1.5)
    assert found["load_summary.schedule_delay.mean"] == 1.0
    assert (found["load_summary.count"], found["load_summary.achieved_rate"]) == (3, 1.5)
    assert (
        found["successes.count"],
        found["failures.count"],
        found["failures.request_latency.max"],
    ) == (2, 1, 3.0)
    assert found["successes.throughput.total_tokens_per_sec"] == 39 / 5
    # What comes before the first token is no gap: the second token's is 0, the third's 2 s.
    late = [
        record(sent, [sent + 1, sent + 2, sent + 4], [0, 2, 3], input_tokens=1)
        for sent in (0.0, 7.0)
    ]
    gaps = summarise("inference-perf", late)
    assert (
        gaps[f"{latency}inter_token_latency.mean"],
        gaps[f"{latency}inter_token_latency.max"],
    ) == (1.0, 2.0)


def test_inference_perf_on_a_published_result() -> None:
    folder = "peers/inference-perf/reports/"
    summary = json.loads(shared(folder + "stage_0_lifecycle_metrics.json"))
    records = []
    for request in json.loads(shared(folder + "per_request_lifecycle_metrics.json")):
        response = request["info"]["response_metrics"]
        # A chunk's tokens share its time; a retokenised chunk may hold other tokens than the server
        # counted.
        runs = [(time, len(list(run))) for time, run in groupby(response["output_token_times"])]
        counts = np.cumsum([count for _, count in runs]).tolist()
        records.append(
            record(
                request["start_time"],
                [time for time, _ in runs],
                counts,
                end_s=request["end_time"],
                input_tokens=request["info"]["request_metrics"]["text"]["input_tokens"],
                output_tokens=response["output_tokens"],
            )
        )
    ours = summarise("inference-perf", records)
    keys = [
        key for key in ours if "schedule_delay" not in key and "failures.request_latency" not in key
    ]
    wrong = {
        key: (ours[key], at(summary, key))
        for key in keys
        if ours[key] != pytest.approx(at(summary, key), rel=1e-9)
    }
    assert not wrong
    assert len(keys) == 10 + 6 * 14


def test_llmperf_by_hand() -> None:
    found = summarise("llmperf", BY_HAND)
    assert found["results_inter_token_latency_s_mean"] == (2.75 / 8 + 2.0) / 2  # TTFT included
    assert found["results_ttft_s_quantiles_p25"] == 1.25
    assert found["results_end_to_end_latency_s_max"] == 3.0
    assert found["results_end_to_end_latency_s_stddev"] == pytest.approx(
        0.5 / math.sqrt(2)
    )  # over n − 1
    assert found["results_request_output_throughput_token_per_s_min"] == 1 / 2.5
    assert found["results_mean_output_throughput_token_per_s"] == 9 / 5
    assert found["results_num_completed_requests_per_min"] == 2 / 5 * 60
    assert (found["results_number_errors"], found["results_error_rate"]) == (1, 1 / 3)


def test_guidellm_by_hand() -> None:
    found = summarise("guidellm", [*BY_HAND, record(5.0, status="cancelled", end_s=6.0)])
    totals = {
        name: found[f"request_totals.{name}"]
        for name in ("successful", "errored", "incomplete", "total")
    }
    assert totals == {"successful": 2, "errored": 1, "incomplete": 1, "total": 4}
    tpot, itl = "time_per_output_token_ms.successful.", "inter_token_latency_ms.successful."
    assert found[f"{tpot}mean"] == pytest.approx(
        (8 * 2750 / 8 + 2000) / 9
    )  # by tokens, TTFT included
    assert (found[f"{tpot}median"], found[f"{tpot}percentiles.p90"]) == (343.75, 2000.0)
    assert (found[f"{itl}mean"], found[f"{itl}max"]) == (250.0, 250.0)
    assert found["request_latency.successful.median"] == 2.5  # a value that occurred
    # From 1 to 6: one for a second, two up to 4, one to 4.5, none after.
    assert found["request_concurrency.successful.mean"] == pytest.approx((3.0 + 2.5) / 5)


def test_guidellms_window_has_the_last_end_in_it() -> None:
    begin_s, end_s = 0.8, 3.9
    assert begin_s + (end_s - begin_s) < end_s  # as floating point has it
    found = summarise("guidellm", [record(begin_s, [2.0], end_s=end_s)])
    assert found["requests_per_second.successful.mean"] == pytest.approx(
        1 / (end_s - begin_s), rel=1e-5
    )


# --- all of them ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize(
    "records", [[], BY_HAND[2:], BY_HAND, [record(None, [1.0], end_s=None)], [record(1.0)]]
)
def test_every_key_has_a_definition_and_a_value_that_json_can_hold(
    name: str, records: list[RequestRecord]
) -> None:
    numbers = summarise_as(name, lambda: batches(records))
    found, definitions = numbers.metrics, numbers.definitions
    assert list(found) == list(definitions)
    assert all(
        value is None or (type(value) in (int, float) and math.isfinite(value))
        for value in found.values()
    )
    assert all(line and "\n" not in line for line in definitions.values())
    assert numbers.tool


@pytest.mark.parametrize("name", DIALECTS)
def test_answers_in_one_piece_have_no_first_token(name: str) -> None:
    whole = [
        record(0.0, [1.0 + index], [5], end_s=1.5 + index, input_tokens=3) for index in range(3)
    ]
    found = summarise(name, whole, streams=False)
    words = ("ttft", "first_token", "tpot", "itl", "inter_chunk", "per_output_token")
    # A tool's ITL or TPOT that includes the first token needs only the end.
    whole_too = ("normalized", "time_per_output_token_ms")
    timed = {
        key
        for key in found
        if any(word in key for word in words) and not any(word in key for word in whole_too)
    }
    assert {found[key] for key in timed} <= {None}
    latency = {
        "vllm": "mean_e2el_ms", "sglang": "mean_e2e_latency_ms", "sglang-oai": "mean_e2e_latency_ms",
        "aiperf": "request_latency.avg", "guidellm": "request_latency.successful.mean",
        "inference-perf": "successes.latency.request_latency.mean", "llmperf": "results_end_to_end_latency_s_mean",
    }  # fmt: skip
    assert found[latency[name]] is not None


def test_an_unknown_dialect_is_told_what_there_is() -> None:
    with pytest.raises(InputError, match="--dialect vlm: unknown; choose one of vllm, sglang"):
        summarise("vlm", [])


streams = st.lists(
    st.tuples(
        st.floats(0.2, 1.0),
        st.lists(st.tuples(st.floats(0.001, 1.0), st.integers(1, 4)), max_size=6),
    ),
    min_size=1,
    max_size=6,
)


def drawn(shapes: list[tuple[float, list[tuple[float, int]]]]) -> list[RequestRecord]:
    records = []
    for index, (ttft, events) in enumerate(shapes):
        sent = index * 0.25
        arrival, counts = [sent + ttft], [1]
        for gap, brought in events:
            arrival.append(arrival[-1] + gap)
            counts.append(counts[-1] + brought)
        records.append(record(sent, arrival, counts, intended_s=sent, input_tokens=7))
    return records


@settings(max_examples=40)
@given(streams)
def test_where_definitions_are_the_same_so_are_the_numbers(
    shapes: list[tuple[float, list[tuple[float, int]]]],
) -> None:
    """Streams that end with their last event and begin with one token: most tools mean the same by
    a name then."""
    records = drawn(shapes)
    ours = measure_cell(lambda: batches(records), CLOSED).metrics
    said = {name: summarise(name, records) for name in DIALECTS}
    assert ours.ttft_s is not None
    ttft_ms = pytest.approx(ours.ttft_s.p99 * 1e3)
    assert said["vllm"]["p99_ttft_ms"] == ttft_ms
    assert said["sglang"]["p99_ttft_ms"] == ttft_ms
    assert said["aiperf"]["time_to_first_token.p99"] == ttft_ms
    assert said["llmperf"]["results_ttft_s_quantiles_p99"] * 1e3 == ttft_ms
    if ours.tpot_s is not None:
        tpot_ms = pytest.approx(ours.tpot_s.mean * 1e3)
        assert said["vllm"]["mean_tpot_ms"] == tpot_ms
        assert said["sglang"]["mean_tpot_ms"] == tpot_ms
        assert said["aiperf"]["inter_token_latency.avg"] == tpot_ms
        assert (
            said["inference-perf"]["successes.latency.time_per_output_token.mean"] * 1e3 == tpot_ms
        )
        # What SGLang's own endpoint pools, and GuideLLM weighs, is our ITL.
        assert ours.itl_s is not None
        itl_ms = pytest.approx(ours.itl_s.mean * 1e3, rel=1e-5)
        assert said["sglang"]["mean_itl_ms"] == itl_ms
        assert said["inference-perf"]["successes.latency.inter_token_latency.mean"] * 1e3 == itl_ms
        assert said["guidellm"]["inter_token_latency_ms.successful.mean"] == itl_ms
    assert said["vllm"]["output_throughput"] == pytest.approx(ours.output_tokens_per_s)
    assert said["guidellm"]["output_tokens_per_second.successful.mean"] == pytest.approx(
        ours.output_tokens_per_s, rel=1e-3
    )
