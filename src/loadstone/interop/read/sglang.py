"""Results of SGLang's clients: `bench_serving` (JSON lines of any version), `bench_offline_throughput`,
`bench_one_batch_server`; and tables made of the first, such as dstack's.

Keys: sglang/benchmark/serving.py. A line has neither model nor version nor failures, unless `server_info` is in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadstone.analyse.run_facts import engine_name
from loadstone.core import Load
from loadstone.interop.read.cell import Cell
from loadstone.interop.read.check import UNDER_WAY_SHARE
from loadstone.interop.read.requests import from_gaps
from loadstone.interop.read.values import Value, keyed, known, lengths, load_of, number, sum_per_s, text

_LATENCIES = {"ttft_s": "ttft_ms", "tpot_s": "tpot_ms", "itl_s": "itl_ms", "e2e_s": "e2e_latency_ms"}
_DRAWN = ("random", "random-ids")


def is_serving(document: Value) -> bool:
    return document.has("duration", "completed", "random_input_len") and (
        "median_e2e_latency_ms" in document or "mean_e2e_latency_ms" in document
    )


def serving(document: Value, where: str, *, all_sent: bool = False) -> Cell:
    """`all_sent`: an empty rate means an infinite one, as in tables that leave `inf` out."""
    backend = document.text("backend") or ""
    rate = document.get("request_rate")
    cell = Cell(
        where=where,
        tool="sglang.bench_serving",
        load=load_of(
            rate=float("inf") if all_sent and number(rate) is None else rate,
            concurrency=document.get("max_concurrency"),
            prompts=document.get("completed"),
        ),
        endpoint=backend or None,
        deployment=_deployment(document, backend),
        definitions="sglang" if backend in ("sglang", "sglang-native") else "sglang-oai",
    )
    completed = document.whole("completed")
    cell.requests = known({"ok": completed})
    cell.duration_s = document.positive("duration")
    cell.latencies = known({ours: keyed(document, theirs) for ours, theirs in _LATENCIES.items()})
    inputs, outputs = (document.whole(f"total_{name}_tokens") for name in ("input", "output"))
    input_rate, output_rate = (document.amount(f"{name}_throughput") for name in ("input", "output"))
    both, per_s = document.amount("total_throughput"), document.amount("request_throughput")
    # The oldest lines leave these out; they are quotients of what is there.
    if both is None:
        both = sum_per_s(1.0, input_rate, output_rate)
    if both is None:
        both = sum_per_s(cell.duration_s, inputs, outputs)
    if per_s is None:
        per_s = sum_per_s(cell.duration_s, completed)
    cell.totals = known({
        "input_tokens": inputs,
        "output_tokens": outputs,
        "cached_input_tokens": document.whole("cache_report", "total_cached_tokens"),
        "requests_per_s": per_s,
        "output_tokens_per_s": output_rate,
        "total_tokens_per_s": both,
        "goodput_per_s": document.amount("request_goodput"),
        "attainment": document.amount("slo_attainment"),
    })  # fmt: skip
    cell.under_way = document.amount("concurrency")
    cell.workload = _workload(cell, document)
    if rate == "trace":
        cell.workload["name"] = cell.workload.get("name") or "trace"
    _retokenised(cell, document)
    from_gaps(cell, document)
    return cell


def _workload(cell: Cell, document: Value) -> dict[str, Any]:
    name = document.text("dataset_name", limit=60)
    asked = [document.whole(f"random_{end}_len") for end in ("input", "output")]
    if name in _DRAWN:
        return lengths(asked[0], asked[1], document.get("random_range_ratio"))
    if name is None:
        return {}
    counts = [cell.totals.get(f"{end}_tokens") for end in ("input", "output")]
    means = [total / cell.completed if total is not None and cell.completed else None for total in counts]
    unused = [tokens for tokens, real in zip(asked, means, strict=True) if tokens and real and tokens != round(real)]
    if unused and None not in means:
        cell.say(
            "lengths_not_used",
            "info",
            f"{cell.where}: lists random lengths {asked[0]}/{asked[1]}, which the data set {name} does not use; "
            f"its requests average {means[0]:.0f}/{means[1]:.0f} tokens",
            "The averages are used.",
        )
    kind = "synthetic" if name == "generated-shared-prefix" else "dataset"
    return {"kind": kind, "name": name}


def _retokenised(cell: Cell, document: Value) -> None:
    """SGLang's client may take the length it asked for as the length it got; its own count of the text tells."""
    counted, again = cell.totals.get("output_tokens"), document.whole("total_output_tokens_retokenized")
    if not counted or again is None or again >= 0.9 * counted:
        return
    cell.say(
        "tokens_doubtful",
        "warning",
        f"{cell.where}: {counted:,} output tokens are counted; the text has {again:,} by the client's tokenizer",
        "Answers ended early or failed in the stream while the requested length was counted; measure with usage.",
    )


def _deployment(document: Value, backend: str) -> dict[str, Any]:
    server = document.at("server_info")
    engine = "TensorRT-LLM" if backend.startswith("trt") else engine_name(backend.partition("-")[0])
    return known({
        "engine": None if backend in ("", "truss", "gserver") else engine,
        "engine_version": server.text("version"),
        "model": server.text("model_path"),
        "weights_dtype": server.text("quantization"),
        "kv_dtype": None if server.get("kv_cache_dtype") == "auto" else server.text("kv_cache_dtype"),
        **{name: server.whole(f"{name}_size") for name in ("tp", "pp", "dp", "ep")},
    })  # fmt: skip


# --- without a server, or one batch -----------------------------------------------------------------------------


def is_offline(document: Value) -> bool:
    return document.has("successful_requests", "total_latency", "output_throughput")


def offline(document: Value, where: str) -> Cell:
    count = document.whole("successful_requests")
    return Cell(
        where=where,
        tool="sglang.bench_offline_throughput",
        load=Load("burst", count) if count else None,
        deployment={"engine": "SGLang"},
        workload={"mode": "offline"},
        requests=known({"ok": count}),
        duration_s=document.positive("total_latency"),
        totals=known({
            "input_tokens": document.whole("total_input_tokens"),
            "output_tokens": document.whole("total_output_tokens"),
            "requests_per_s": document.amount("request_throughput"),
            "output_tokens_per_s": document.amount("output_throughput"),
            "total_tokens_per_s": document.amount("total_throughput"),
        }),
    )  # fmt: skip


def is_one_batch(document: Value) -> bool:
    return document.has("batch_size", "input_len", "output_len", "latency")


def one_batch(document: Value, where: str) -> Cell:
    """A burst of equal requests. Its `output_throughput` leaves the time to the last TTFT out; ours does not."""
    batch, made = document.whole("batch_size"), document.whole("output_len")
    given, took_s = document.whole("input_len"), document.positive("latency")
    cell = Cell(
        where=where,
        tool="sglang.bench_one_batch_server",
        load=Load("burst", batch) if batch else None,
        deployment={"engine": "SGLang"},
        workload=lengths(given, made),
        requests=known({"ok": batch}),
        duration_s=took_s,
    )
    if batch and took_s and given is not None and made is not None:
        cell.totals = {
            "input_tokens": batch * given,
            "output_tokens": batch * made,
            "output_tokens_per_s": batch * made / took_s,
            "total_tokens_per_s": batch * (given + made) / took_s,
            "requests_per_s": batch / took_s,
        }
        cell.latencies["e2e_s"] = {"max": took_s}
        if (last := document.positive("last_ttft")) is not None:
            cell.latencies["ttft_s"] = {"max": last}
    return cell


# --- tables of it ----------------------------------------------------------------------------------------------


def is_table(header: list[str]) -> bool:
    return {"backend", "max_concurrency", "median_ttft_ms", "mean_e2e_latency_ms", "completed"} <= set(header)


def table_row(row: Mapping[str, str], where: str) -> Cell:
    """One line of a CSV of bench_serving's keys with a column `GPU` before them, as dstack publishes."""
    values: dict[str, Any] = {name: value if value.strip() else None for name, value in row.items()}
    repaired = _unshifted(values, where)
    cell = serving(Value(values), where, all_sent=True)
    cell.deployment |= known({"gpu": text(values.get("GPU") or values.get("gpu"), 60)})
    if repaired:
        cell.say(*repaired)
    return cell


def _unshifted(values: dict[str, Any], where: str) -> tuple[str, str, str, str] | None:
    """Puts right, in place, a row whose client also wrote p95_itl_ms, for which the table has no column.

    `p99_itl_ms` then holds the p95 and `concurrency` the p99; what `concurrency` should be, Little's law tells:
    requests under way = Σ E2E/duration. It is put right only where that names another number, and the two ITL
    values are in order.
    """
    row = Value(values)
    mean_ms, duration_s = row.number("mean_e2e_latency_ms"), row.positive("duration")
    completed, stated = row.number("completed"), row.number("concurrency")
    p99_ms, places = row.number("p99_itl_ms"), row.number("max_concurrency")
    if mean_ms is None or duration_s is None or completed is None or "p95_itl_ms" in values:
        return None
    if stated is None or p99_ms is None or places is None:
        return None
    under_way = mean_ms / 1e3 * completed / duration_s
    agrees = abs(stated - under_way) <= UNDER_WAY_SHARE * under_way
    if agrees or under_way > places * (1 + UNDER_WAY_SHARE) or not p99_ms <= stated:
        return None
    values["p95_itl_ms"], values["p99_itl_ms"], values["concurrency"] = p99_ms, stated, None
    return (
        "columns_shifted",
        "info",
        f"{where}: column concurrency says {stated:.1f} where Σ E2E/duration is {under_way:.1f}, of {places:.0f} "
        f"places: a p95 of ITL moved the columns after it; p95 {p99_ms:.1f} ms, p99 {stated:.1f} ms",
        "Corrected here; ask the source for its own file if the ITL tail matters.",
    )
