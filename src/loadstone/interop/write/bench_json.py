"""Writes result files with the keys of `vllm bench serve --save-result --save-detailed` and
`sglang.bench_serving --output-details`: a JSON object per cell, one a line (as --append-result and
SGLang's own file have them).

The numbers are this run's records by those tools' definitions (loadstone.analyse.other_tools).
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadstone.analyse import imported_run
from loadstone.analyse.other_tools import summarise_as
from loadstone.analyse.run_facts import RunFacts, run_facts
from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.core.plan import POOLING_TASKS, Load
from loadstone.core.record import RunInfo
from loadstone.interop.read.values import drop_missing

if TYPE_CHECKING:
    import pyarrow as pa

_OVER_DURATION = frozenset(
    {
        "request_throughput",
        "input_throughput",
        "output_throughput",
        "total_token_throughput",
        "total_throughput",
        "concurrency",
    }
)
_METADATA = {
    "engine": "engine",
    "engine_version": "engine_version",
    "gpu": "gpu",
    "gpus": "gpus",
    "tp": "tp",
    "pp": "pp",
    "dp": "dp",
    "dtype": "weights_dtype",
    "kv_cache_dtype": "kv_dtype",
}
_SERVER_INFO = {
    "model_path": "model",
    "version": "engine_version",
    "tp_size": "tp",
    "dp_size": "dp",
    "pp_size": "pp",
    "quantization": "weights_dtype",
    "kv_cache_dtype": "kv_dtype",
}
_COLUMNS = (
    "phase",
    "status",
    "error",
    "intended_s",
    "sent_s",
    "end_s",
    "arrival_s",
    "tokens",
    "input_tokens",
    "output_tokens",
)


def lines(folder: Path, info: RunInfo, tool: str) -> bytes:
    """Write one line per cell that sent anything. `tool`: vllm or sglang."""
    facts = run_facts(info)
    rows = []
    for cell, about in enumerate(info.cells):
        detail = _list_requests(run_folder.read_columns(folder, _COLUMNS, cell))
        if not detail["errors"]:
            continue
        native = info.target is not None and info.target.endpoint == "sglang"
        dialect = tool if tool == "vllm" or native else "sglang-oai"
        read = partial(run_folder.read_records, folder, cell)
        numbers = summarise_as(dialect, read, streams=info.streams).metrics
        imported = imported_run.of_cell(info, cell)
        relative = imported is not None and imported.relative_times
        if imported is not None and relative:
            numbers = _rescale(imported.stated.duration_s, numbers)
            del detail["start_times"]
        if info.target is not None and info.target.endpoint in POOLING_TASKS:
            numbers = _leave_out_answers(numbers)
            for name in ("output_lens", "ttfts", "itls"):
                del detail[name]
        if tool != "vllm" or not about.load.is_open or relative or None in detail["queue_times"]:
            del detail["queue_times"]
        head = (
            _make_vllm_head(info, facts, about.load, detail)
            if tool == "vllm"
            else _make_sglang_head(info, facts, about.load)
        )
        rows.append(json.dumps(head | numbers | detail, ensure_ascii=False))
    return "".join(row + "\n" for row in rows).encode("utf-8", "replace")


def _rescale(duration_s: float | None, numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Take rates of requests without a common clock over the duration that their file stated; None
    where it did not.
    """
    seen_s = numbers["duration"]
    factor = seen_s / duration_s if seen_s is not None and duration_s else None
    rates = {
        name: value * factor if value is not None and factor is not None else None
        for name, value in numbers.items()
        if name in _OVER_DURATION
    }
    unknown = {"max_output_tokens_per_s": None, "max_concurrent_requests": None}
    return dict(numbers) | rates | unknown | {"duration": duration_s}


def _leave_out_answers(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Take what tools state of requests for vectors or scores: what is computed as output tokens is
    how many these are, and all tokens are the input's."""
    of_answers = re.compile("output|ttft|tpot|itl")
    kept = {name: value for name, value in numbers.items() if not of_answers.search(name)}
    seconds, tokens = kept["duration"], kept["total_input_tokens"]
    return kept | {"total_token_throughput": tokens / seconds if seconds else None}


def _list_requests(table: pa.Table) -> dict[str, list[Any]]:
    """Make one entry per measured request, in the records' order; failed ones have lengths and a
    TTFT of 0, as there.

    `queue_times`: from when it should have been sent, None where that is not known.
    """
    detail = defaultdict[str, list[Any]](list)
    for batch in table.to_batches(max_chunksize=4096):
        for row in batch.to_pylist():
            if row["phase"] != "measure":
                continue
            done = (
                row["status"] in ("ok", "short")
                and bool(row["arrival_s"])
                and row["sent_s"] is not None
            )
            arrivals = row["arrival_s"] if done else []
            tokens = (
                row["output_tokens"]
                if row["output_tokens"] is not None
                else (row["tokens"] or [0])[-1]
            )
            detail["input_lens"].append(row["input_tokens"] or 0)
            detail["output_lens"].append(tokens if done else 0)
            detail["ttfts"].append(arrivals[0] - row["sent_s"] if done else 0.0)
            detail["itls"].append([b - a for a, b in pairwise(arrivals)])
            detail["start_times"].append(row["sent_s"])
            dated = row["sent_s"] is not None and row["intended_s"] is not None
            detail["queue_times"].append(
                max(0.0, row["sent_s"] - row["intended_s"]) if dated else None
            )
            detail["errors"].append("" if done else row["error"] or row["status"])
    return detail


def _write_date(info: RunInfo) -> str:
    try:
        return datetime.fromisoformat(info.created).strftime("%Y%m%d-%H%M%S")
    except ValueError:
        raise InputError(
            "run.json: `created` is not a time; correct it, e.g. 2026-01-31T23:59:00+00:00"
        ) from None


def _make_vllm_head(
    info: RunInfo, facts: RunFacts, load: Load, detail: dict[str, list[Any]]
) -> dict[str, Any]:
    rate, places = _read_offered(load)
    return {
        "date": _write_date(info),
        "endpoint_type": info.target.endpoint if info.target else None,
        "backend": info.target.endpoint if info.target else None,
        "label": info.settings.label or info.run_id,
        "model_id": facts.model,
        "tokenizer_id": facts.model,
        "num_prompts": len(detail["errors"]),
        "request_rate": "inf" if rate is None else rate,
        "burstiness": load.burstiness,
        "max_concurrency": places,
        # What `--metadata` would add, in the names that `loadstone import` knows.
        **_name_facts(facts, _METADATA),
    }


def _make_sglang_head(info: RunInfo, facts: RunFacts, load: Load) -> dict[str, Any]:
    rate, places = _read_offered(load)
    plain = facts.workload == "synthetic" and facts.range_ratio is not None
    lengths = [
        None if tokens is None or not plain else round(_longest(tokens, facts))
        for tokens in (facts.input_tokens, facts.output_tokens)
    ]
    return {
        "tag": info.run_id,
        "backend": _name_backend(info, facts),
        "dataset_name": "random" if plain else facts.workload or "unknown",
        # Its own files have a bare Infinity here, which its readers expect, though it is no JSON.
        "request_rate": float("inf") if rate is None else rate,
        "max_concurrency": places,
        "sharegpt_output_len": None,
        "random_input_len": lengths[0],
        "random_output_len": lengths[1],
        "random_range_ratio": facts.range_ratio if plain else None,
        "server_info": _name_facts(facts, _SERVER_INFO) or None,
    }


def _name_facts(facts: RunFacts, keys: Mapping[str, str]) -> dict[str, Any]:
    """Write the facts that are known under a tool's keys."""
    return drop_missing({key: getattr(facts, name) for key, name in keys.items()})


def _name_backend(info: RunInfo, facts: RunFacts) -> str:
    """Name the backend as the tool's own flag does."""
    if info.target is not None and info.target.endpoint == "sglang":
        return "sglang"
    return {"vLLM": "vllm", "TensorRT-LLM": "trt", "LMDeploy": "lmdeploy"}.get(
        facts.engine or "", "sglang-oai"
    )


def _longest(mean_tokens: float, facts: RunFacts) -> float:
    """Compute n of lengths uniform in [r·n, n]: the mean is (1 + r)·n/2."""
    return 2 * mean_tokens / (1 + (facts.range_ratio if facts.range_ratio is not None else 1.0))


def _read_offered(load: Load) -> tuple[float | None, int | None]:
    """Return (rate, None: infinite; cap on requests under way)."""
    if load.is_open:
        return load.value, load.max_concurrency
    return None, int(load.value) if load.is_closed else load.max_concurrency
