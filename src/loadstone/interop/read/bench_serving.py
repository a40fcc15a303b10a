"""Reads results of vLLM's clients (`vllm bench serve`, benchmark_serving.py before it,
`throughput`, `latency`) and of SGLang's (`bench_serving` of any version,
`bench_offline_throughput`, `bench_one_batch_server`), and tables made of them, as dstack publishes.
SGLang's client began as a copy of vLLM's: most keys of the two are the same.

Keys: vllm/benchmarks/serve.py, throughput.py, latency.py; sglang/benchmark/serving.py. All but the
oldest are optional. `backend` names the client's way of asking (`openai-chat`), which tells the
engine only where it is an engine's name. A line of SGLang's has neither model nor version nor
failures, unless `server_info` is in it.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from loadstone.analyse.run_facts import engine_name
from loadstone.core.plan import Load
from loadstone.core.statistics import STATISTICS, distribution
from loadstone.core.units import show_seconds
from loadstone.interop.read import values
from loadstone.interop.read.cell import MAX_S, ResultCell, ResultRequest
from loadstone.interop.read.check import UNDER_WAY_SHARE
from loadstone.interop.read.reader import Reader, ReadRow
from loadstone.interop.read.values import Value, drop_missing, keep, make_burst, make_lengths

WAIT_SHARE = 0.05
"""Mean wait before sending, as a share of the mean E2E, from which latencies that lack it are told.
"""
_VLLM_BACKENDS = {"vllm", "sglang", "tgi", "tensorrt-llm", "lmdeploy", "deepspeed-mii", "llama.cpp"}
_DRAWN = ("random", "random-ids")
# Of vLLM's, what people give as --metadata, which lands between the tool's own keys. Of several the
# last one counts.
_METADATA = {
    "engine": "engine",
    "engine_version": "vllm_version|engine_version|version",
    "gpu": "hardware|gpu_type|gpu",
    "weights_dtype": "quantization|dtype|precision",
    "kv_dtype": "kv_cache_dtype",
    "tp": "tensor_parallel_size|tp",
    "pp": "pipeline_parallel_size|pp",
    "dp": "data_parallel_size|dp",
    "ep": "ep",
    "gpus": "num_gpus|gpus",
    "nodes": "nodes",
}


def _add_sums(cell: ResultCell, document: Value) -> None:
    """Fill in the sums that the serving benchmarks of both state."""
    cell.duration_s = document.positive("duration")
    cell.totals = _read_totals(document)
    cell.latencies = document.read_spelled(cell.duration_s, cell.mean_lengths[1])


def _read_totals(document: Value) -> dict[str, Any]:
    return document.fields(
        input_tokens="total_input_tokens",
        output_tokens="total_output_tokens",
        cached_input_tokens="cache_report.total_cached_tokens",
        requests_per_s="request_throughput",
        output_tokens_per_s="output_throughput",
        total_tokens_per_s="total_token_throughput|total_throughput",
        goodput_per_s="request_goodput",
        attainment="slo_attainment",
    )


# --- vLLM -----------------------------------------------------------------------------------------


def _read_vllm(document: Value, where: str) -> ResultCell | list[ResultCell]:
    # A sweep's warm-up is no result.
    return [] if document.number("run_number") == -1 else _read_vllm_serve(document, where)


def _read_vllm_serve(document: Value, where: str) -> ResultCell:
    backend = document.text("backend|endpoint_type")
    engine = engine_name(backend if backend in _VLLM_BACKENDS else None)
    metadata = document.fields(**_METADATA)
    cell = ResultCell(
        where=where,
        tool="vllm bench serve",
        load=_read_vllm_load(document),
        endpoint=backend,
        created=document.when("date"),
        deployment=drop_missing({"model": document.text("model_id"), "engine": engine})
        | {name: value for name, value in metadata.items() if value},
        workload=_read_vllm_workload(document),
        label=_read_swept(document),
        definitions="vllm",
    )
    completed, failed = document.whole("completed"), document.whole("failed")
    if failed is None and document.has("errors"):
        failed = sum(error.text() is not None for error in document.items("errors"))
    cell.requests = values.count_ended(completed, failed)
    _add_sums(cell, document)
    cell.add_drafts(document)
    latencies = document.items("latencies")
    # Of a default run newer releases give no sums of E2E, but all of its values.
    if "e2e_s" not in cell.latencies and completed == len(latencies):
        cell.latencies |= drop_missing({"e2e_s": _summarise(latencies)})
    _add_requests(cell, document)
    if not cell.records:
        _check_waits(cell, document.items("queue_times"))
    return cell


def _read_swept(document: Value) -> str | None:
    """Read what `vllm bench sweep` set for this run: it writes that behind the run's number."""
    keys = list(document.mapping())
    behind = keys[keys.index("run_number") + 1 :] if "run_number" in keys else []
    return (
        ", ".join(f"{key}={document.raw[key]}" for key in behind if document.raw[key] is not None)
        or None
    )


def _check_waits(cell: ResultCell, times: Sequence[Value]) -> None:
    """Say how long the requests of an open loop had waited for a slot: sums count from sending."""
    waits_s = keep(time.amount() for time in times)
    e2e_s = cell.mean("e2e_s")
    if not cell.is_open or not waits_s or e2e_s is None:
        return
    mean_s = sum(waits_s) / len(waits_s)
    if mean_s > WAIT_SHARE * e2e_s:
        cell.say(
            "waits_left_out",
            f"requests waited {show_seconds(mean_s)} on average to be sent, at most"
            f" {show_seconds(max(waits_s))}; the stated latencies count from sending",
        )


def _read_vllm_load(document: Value) -> Load | None:
    strategy = document.get("ramp_up_strategy")
    if strategy is not None:
        # `request_rate` then says inf.
        start, end = (document.positive(f"ramp_up_{which}_rps") for which in ("start", "end"))
        prompts = document.positive("num_prompts")
        return (
            _make_ramp(start, end, prompts, strategy == "exponential")
            if start and end and prompts
            else None
        )
    return values.make_load(
        rate=document.get("request_rate"),
        concurrency=document.get("max_concurrency"),
        prompts=document.get("num_prompts"),
        burstiness=document.get("burstiness"),
    )


def _make_ramp(start: float, end: float, prompts: float, exponential: bool) -> Load | None:
    """Make the load of a ramp, whose rate goes from start to end with the requests that were sent,
    evenly or by equal factors, not with time: it takes n·∫ dp/r(p) to send n, which is n·ln(e/s)/(e
    − s), and n·(1/s − 1/e)/ln(e/s).
    """
    ratio = math.log(end) - math.log(start)
    if abs(ratio) < 1e-9:
        return Load("rate", start)
    each_s = (1 / start - 1 / end) / ratio if exponential else ratio / (end - start)
    took_s = prompts * each_s
    return (
        Load("rate", 1 / each_s, profile=((start, end, took_s),))
        if each_s > 0 and took_s <= MAX_S
        else None
    )


def _summarise(latencies: Sequence[Value]) -> dict[str, float]:
    import numpy as np

    values_s = keep(latency.positive() for latency in latencies)
    if not values_s or len(values_s) < len(latencies):
        return {}
    spread = distribution(np.array(values_s))
    return {} if spread is None else {name: getattr(spread, name) for name in STATISTICS}


def _read_vllm_workload(document: Value) -> dict[str, Any]:
    """Read lengths where all requests have the same; the file does not name the data set."""
    ends = [document.items(name) for name in ("input_lens", "output_lens")]
    alike = all(len({str(length.raw) for length in lengths}) == 1 for lengths in ends)
    return make_lengths(ends[0][0].raw, ends[1][0].raw) if alike else {}


def _read_vllm_throughput(document: Value, where: str) -> ResultCell:
    """Read an offline run: all requests at once, without a server. `tokens_per_second` counts input
    and output."""
    return ResultCell(
        where=where,
        tool="vllm bench throughput",
        load=make_burst(document.whole("num_requests")),
        workload={"mode": "offline"},
        requests=document.fields(ok="num_requests", sent="num_requests"),
        duration_s=document.positive("elapsed_time"),
        totals=document.fields(
            requests_per_s="requests_per_second", total_tokens_per_s="tokens_per_second"
        ),
    )


def _read_vllm_latency(document: Value, where: str) -> ResultCell:
    """Read an offline run: one batch after another, each timed as a whole. How large a batch is,
    the file does not tell.
    """
    percentiles = {f"p{key}": value for key, value in document.mapping("percentiles").items()}
    spread = _summarise(document.items("latencies"))
    spread = spread or values.statistics(percentiles | {"mean": document.get("avg_latency")})
    return ResultCell(
        where=where,
        tool="vllm bench latency",
        load=None,
        workload={"mode": "offline"},
        latencies={"e2e_s": spread} if "mean" in spread else {},
    )


# --- SGLang ---------------------------------------------------------------------------------------


def _read_sglang(document: Value, where: str, *, all_sent: bool = False) -> ResultCell:
    """Read a line of bench_serving. `all_sent`: an empty rate means an infinite one, as in tables
    that leave `inf` out."""
    backend = document.text("backend") or ""
    rate = document.get("request_rate")
    cell = ResultCell(
        where=where,
        tool="sglang.bench_serving",
        load=values.make_load(
            rate=float("inf") if all_sent and values.number(rate) is None else rate,
            concurrency=document.get("max_concurrency"),
            prompts=document.get("completed"),
        ),
        endpoint=backend or None,
        deployment=_read_sglang_deployment(document, backend),
        definitions="sglang" if backend in ("sglang", "sglang-native") else "sglang-oai",
        requests=document.fields(ok="completed"),
        under_way=document.amount("concurrency"),
    )
    _add_sums(cell, document)
    cell.add_drafts(document)
    # The oldest lines leave these out; they are quotients of what is there.
    input_per_s = document.amount("input_throughput")
    output_per_s = document.amount("output_throughput")
    if input_per_s is not None and output_per_s is not None:
        cell.totals.setdefault("total_tokens_per_s", input_per_s + output_per_s)
    cell.add_rates("requests_per_s", "total_tokens_per_s")
    cell.workload = _read_sglang_workload(cell, document)
    if rate == "trace":
        cell.workload["name"] = cell.workload.get("name") or "trace"
    # Its client may take the length it asked for as the length it got; its own count of the text
    # tells.
    counted = cell.totals.get("output_tokens")
    again = document.whole("total_output_tokens_retokenized")
    if counted and again is not None and again < 0.9 * counted:
        evidence = (
            f"{counted:,} output tokens are counted; the text has {again:,} by the client's"
            " tokenizer"
        )
        cell.say("tokens_doubtful", evidence)
    _add_requests(cell, document)
    return cell


def _read_sglang_workload(cell: ResultCell, document: Value) -> dict[str, Any]:
    name = document.text("dataset_name", limit=60)
    listed = [document.whole(f"random_{end}_len") for end in ("input", "output")]
    if name in _DRAWN:
        return make_lengths(listed[0], listed[1], document.get("random_range_ratio"))
    if name is None:
        return {}
    means = cell.mean_lengths
    unused = [
        tokens
        for tokens, real in zip(listed, means, strict=True)
        if tokens and real and tokens != round(real)
    ]
    if unused and None not in means:
        cell.say(
            "lengths_not_used",
            f"lists random lengths {listed[0]}/{listed[1]}, which the data set {name} does not use;"
            f" its requests average {means[0]:.0f}/{means[1]:.0f} tokens",
        )
    return {"kind": "synthetic" if name == "generated-shared-prefix" else "dataset", "name": name}


def _read_sglang_deployment(document: Value, backend: str) -> dict[str, Any]:
    engine = "TensorRT-LLM" if backend.startswith("trt") else engine_name(backend.partition("-")[0])
    server = document.at("server_info").fields(
        engine_version="version",
        model="model_path",
        weights_dtype="quantization",
        kv_dtype="kv_cache_dtype",
        **{name: f"{name}_size" for name in ("tp", "pp", "dp", "ep")},
    )
    if server.get("kv_dtype") == "auto":
        del server["kv_dtype"]
    return (
        drop_missing({"engine": None if backend in ("", "truss", "gserver") else engine}) | server
    )


def _read_sglang_offline(document: Value, where: str) -> ResultCell:
    return ResultCell(
        where=where,
        tool="sglang.bench_offline_throughput",
        load=make_burst(document.whole("successful_requests")),
        deployment={"engine": "SGLang"},
        workload={"mode": "offline"},
        requests=document.fields(ok="successful_requests"),
        duration_s=document.positive("total_latency"),
        totals=_read_totals(document),
    )


def _read_one_batch(document: Value, where: str) -> ResultCell:
    """Read a burst of equal requests. Its `output_throughput` leaves the time to the last TTFT out;
    ours does not."""
    batch, took_s = document.whole("batch_size"), document.positive("latency")
    inputs, outputs = document.whole("input_len"), document.whole("output_len")
    cell = ResultCell(
        where=where,
        tool="sglang.bench_one_batch_server",
        load=make_burst(batch),
        deployment={"engine": "SGLang"},
        workload=make_lengths(inputs, outputs),
        requests=document.fields(ok="batch_size"),
        duration_s=took_s,
    )
    if batch and took_s and inputs is not None and outputs is not None:
        cell.totals = {
            "input_tokens": batch * inputs,
            "output_tokens": batch * outputs,
            "output_tokens_per_s": batch * outputs / took_s,
            "total_tokens_per_s": batch * (inputs + outputs) / took_s,
            "requests_per_s": batch / took_s,
        }
        cell.latencies = {"e2e_s": {"max": took_s}}
        last_s = document.positive("last_ttft")
        if last_s is not None:
            cell.latencies["ttft_s"] = {"max": last_s}
    return cell


# --- requests -------------------------------------------------------------------------------------

_LISTS = (
    "ttfts",
    "input_lens",
    "output_lens",
    "itls",
    "errors",
    "start_times",
    "latencies",
    "queue_times",
)


def _find_last_line(error: Any) -> str | None:
    """Find an error's own line: vLLM's client keeps whole tracebacks, whose last line says what
    went wrong."""
    lines = (
        error.strip().splitlines()
        if isinstance(error, str) and error.startswith("Traceback ")
        else []
    )
    return values.text(lines[-1] if lines else error)


def _add_requests(cell: ResultCell, document: Value) -> None:
    """Add records from _LISTS, seconds, one entry per request, of which some may be missing.

    Lists of unlike length are no requests: a finding, and the cell keeps its sums.
    """
    columns = {name: document.items(name) for name in _LISTS}
    count = len(columns["ttfts"])
    unlike = [name for name, column in columns.items() if column and len(column) != count]
    if count and unlike:
        cell.say(
            "lists_differ",
            f"{', '.join(unlike)} and ttfts differ in length; the requests are left out",
        )
    if not count or unlike:
        return

    # How long a request waited for its send. In a closed loop all do from the beginning, which says
    # nothing.
    starts = [start.number() for start in columns["start_times"]]
    dated = cell.is_open and bool(starts) and None not in starts
    requests = []
    gapless = bundled = 0
    for row in zip(*(column or [Value(None)] * count for column in columns.values()), strict=True):
        ttft, inputs, outputs, gaps, error, start, latency, wait = row
        ttft_s = ttft.amount()
        end_s = latency.amount()
        tokens = outputs.whole()
        start_s = start.number()
        wait_s = wait.amount() if dated else None
        problem = _find_last_line(error.raw)
        gaps_s = [values.amount(gap) for gap in gaps.raw] if isinstance(gaps.raw, list) else []
        offsets: list[float] = []
        if problem is None and ttft_s is not None and (ttft_s > 0 or tokens) and None not in gaps_s:
            offsets = list(accumulate([ttft_s, *(gap for gap in gaps_s if gap is not None)]))
            if len(offsets) == 1 and (tokens or 0) > 1:
                # An answer without its gaps: its end is known, how it came is not.
                gapless += 1
                if end_s is not None and end_s > ttft_s:
                    offsets.append(end_s)
            elif tokens is not None and len(offsets) < tokens:
                bundled += 1
        requests.append(
            ResultRequest(
                start=start_s,
                due=None if start_s is None or wait_s is None else start_s - wait_s,
                offsets_s=offsets,
                end_s=end_s or None,
                input_tokens=inputs.whole(),
                output_tokens=tokens if offsets else None,
                error=problem,
            )
        )
    cell.add_requests(requests)
    if gapless:
        cell.unknown += ("itl_s", "output_events")
    if bundled:
        cell.say(
            "tokens_bundled",
            f"{bundled} of {count} requests have fewer gaps than tokens: a chunk brought several,"
            " and they count as evenly spread",
        )


# --- tables ---------------------------------------------------------------------------------------


def _read_row(row: Mapping[str, str]) -> Value:
    """Return a row as a document, in which empty cells are null."""
    return Value({name: value if value.strip() else None for name, value in row.items()})


def _read_serve_row(row: Mapping[str, str], where: str) -> ResultCell:
    """Read one line of the table that `vllm bench sweep` makes of its results."""
    return _read_vllm_serve(_read_row(row), where)


def _read_throughput_row(row: Mapping[str, str], where: str) -> ResultCell:
    """Read one line of a CSV of the throughput benchmark's keys with GPU, backend and lengths, as
    dstack publishes.
    """
    document = _read_row(row)
    cell = _read_vllm_throughput(document, where)
    cell.deployment = drop_missing(
        {
            "engine": engine_name(document.text("backend", limit=60)),
            "gpu": document.text("GPU|gpu", limit=60),
        }
    )
    cell.workload = make_lengths(
        document.get("input_len"), document.get("output_len"), mode="offline"
    )
    cell.totals |= document.fields(
        input_tokens="total_input_tokens", output_tokens="total_output_tokens"
    )
    cell.add_rates("output_tokens_per_s")
    cell.say_odd(document.odd)
    return cell


def _read_sglang_row(row: Mapping[str, str], where: str) -> ResultCell:
    """Read one line of a CSV of bench_serving's keys with a column `GPU` before them, as dstack
    publishes.

    Where the client also wrote p95_itl_ms, for which the table has no column, `p99_itl_ms` holds
    the p95 and `concurrency` the p99; what `concurrency` should be, Little's law tells: requests
    under way = Σ E2E/duration. It is put right only where that names another number, and the two
    ITL values are in order.
    """
    document = _read_row(row)
    cell = _read_sglang(document, where, all_sent=True)
    cell.deployment |= drop_missing({"gpu": document.text("GPU|gpu", limit=60)})
    cell.say_odd(document.odd)
    stated = cell.under_way
    cap = document.number("max_concurrency")
    under_way = cell.mean_under_way
    p99_ms = document.number("p99_itl_ms")
    if (
        stated is None
        or cap is None
        or p99_ms is None
        or under_way is None
        or document.has("p95_itl_ms")
    ):
        return cell
    agrees = abs(stated - under_way) <= UNDER_WAY_SHARE * under_way
    if agrees or under_way > cap * (1 + UNDER_WAY_SHARE) or p99_ms > stated:
        return cell
    cell.latencies["itl_s"] |= {"p95": p99_ms * 1e-3, "p99": stated * 1e-3}
    cell.under_way = None
    cell.say(
        "columns_shifted",
        f"column concurrency says {stated:.1f} where Σ E2E/duration is {under_way:.1f}, of"
        f" {cap:.0f} places: a p95 of ITL moved the columns after it; p95 {p99_ms:.1f} ms, p99"
        f" {stated:.1f} ms",
    )
    return cell


_ROWS: tuple[tuple[set[str], ReadRow], ...] = (
    (
        {"backend", "max_concurrency", "median_ttft_ms", "mean_e2e_latency_ms", "completed"},
        _read_sglang_row,
    ),
    (
        {"duration", "completed", "request_throughput", "output_throughput", "model_id"},
        _read_serve_row,
    ),
    ({"backend", "elapsed_time", "num_requests", "tokens_per_second"}, _read_throughput_row),
)
"""Columns of tables of the two tools, and what reads a row of one."""


def _choose_row_reader(header: Sequence[str]) -> ReadRow | None:
    return next((read for columns, read in _ROWS if columns <= set(header)), None)


READER = Reader(
    tools="vLLM's bench serve, throughput or latency, SGLang's bench_serving",
    documents=[
        (
            (
                "duration",
                "completed",
                "random_input_len",
                "median_e2e_latency_ms|mean_e2e_latency_ms",
            ),
            _read_sglang,
        ),
        (("successful_requests", "total_latency", "output_throughput"), _read_sglang_offline),
        (("batch_size", "input_len", "output_len", "latency"), _read_one_batch),
        (
            (
                "duration",
                "completed",
                "request_throughput",
                "output_throughput",
                "total_token_throughput|model_id",
            ),
            _read_vllm,
        ),
        # Of requests for vectors or scores.
        (
            ("duration", "completed", "request_throughput", "input_lens", "endpoint_type"),
            _read_vllm,
        ),
        (("elapsed_time", "num_requests", "tokens_per_second"), _read_vllm_throughput),
        (("avg_latency", "percentiles"), _read_vllm_latency),
    ],
    rows=_choose_row_reader,
)
