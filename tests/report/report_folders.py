"""Run folders for the report's tests: papers and a summary, with records where a test makes
them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from loadstone.analyse.compare.price import Prices
from loadstone.core import run_folder
from loadstone.core.host import Host
from loadstone.core.plan import Load
from loadstone.core.record import CellInfo, RequestRecord, RunInfo, Target
from loadstone.core.settings import read_settings
from loadstone.core.version import __version__
from loadstone.report.data.points import CellPoint, points_of
from loadstone.report.data.runs import read_runs

Json = dict[str, Any]


def stat(value_s: float, *, spread: float = 0.02, n: int = 500, p99: float | None = None) -> Json:
    """A latency whose median is known to ±spread."""
    return {
        "n": n, "mean": value_s, "std": value_s / 10, "p50": value_s, "p90": 1.1 * value_s, "p95": 1.2 * value_s,
        "p99": p99 if p99 is not None else 1.3 * value_s,
        "ci95": {
            "mean": [None, None],
            "p50": [value_s * (1 - spread), value_s * (1 + spread)],
            "p99": [1.2 * value_s, None],
        },
    }  # fmt: skip


def cell(
    load: float, *, kind: str = "concurrency", ttft: float | None = 0.1, tpot: float | None = 0.02, e2e: float = 2.0,
    output: float | None = 1000.0, total: float | None = 2000.0, **more: Any,
) -> Json:  # fmt: skip
    """One cell of a summary; `more` replaces whole keys of it."""
    latencies = {"ttft_s": ttft, "tpot_s": tpot, "e2e_s": e2e}
    metrics: Json = {
        name: stat(value) if value is not None else None for name, value in latencies.items()
    }
    metrics |= {
        "itl_s": None,
        "ttft_intended_s": metrics["ttft_s"],
        "e2e_intended_s": metrics["e2e_s"],
    }
    metrics |= {
        "output_tokens_per_s": output,
        "total_tokens_per_s": total,
        "requests_per_s": 10.0,
        "steady": None,
    }
    base: Json = {
        "load": {"kind": kind, "value": load},
        "requests": {"sent": 500, "ok": 500, "error": 0, "timeout": 0, "cancelled": 0, "short": 0},
        "duration_s": 50.0,
        "metrics": metrics,
        "client": {},
        "verdict": {"trusted": True, "findings": []},
    }
    return base | more


def run(
    parent: Path, name: str, cells: Sequence[Json], *, engine: str = "vLLM", model: str = "org/Model-7B",
    source: Any = "measured", deployment: Mapping[str, Any] | None = None, workload: Mapping[str, Any] | None = None,
    records: Sequence[RequestRecord] = (), settings: Mapping[str, Any] | None = None, servers: int = 1,
    slo: Mapping[str, float] | None = None,
) -> Path:  # fmt: skip
    """A run folder with these cells."""
    deployed = {"gpu": "h200", "gpus": 8} | dict(deployment or {})
    asked: Json = {
        "kind": "synthetic",
        "input": length(1024),
        "output": length(128),
        "prefix_tokens": 0,
    }
    asked |= workload or {}
    info = RunInfo(
        run_id=name, source=source, status="done", created=f"2026-01-01T00:00:00+00:00 {name}",
        command=["loadstone", "bench", "http://localhost:8000"], loadstone=__version__, host=Host(cpu="a cpu"),
        target=Target(url="http://x", urls=[f"http://x{n}" for n in range(servers)], endpoint="completions",
                      model=model, engine=engine, prompt_kind="text"),
        slo=dict(slo or {}),
        plan_id="0123456789ab", seed=0, salt=None,
        settings=read_settings({"deployment": deployed, "workload": asked, **(settings or {})}),
        cells=[CellInfo(load=Load(kind=each["load"]["kind"], value=each["load"]["value"]), start_s=0.0, end_s=9.0)
               for each in cells],
    )  # fmt: skip
    folder = run_folder.create(parent, name)
    run_folder.write_info(folder, info)
    summary = {
        "schema": 1,
        "run_id": name,
        "run_dir": str(folder),
        "source": source,
        "status": "done",
        "plan_id": "0",
        "seed": 0,
    }
    run_folder.write_json(folder / "summary.json", summary | {"cells": list(map(_complete, cells))})
    if records:
        schema = run_folder.records_schema()
        rows = [{each: getattr(record, each) for each in schema.names} for record in records]
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / "records.parquet")
    run_folder.seal(folder, info)
    return folder


def _complete(cell: Json) -> Json:
    """The cell with what every summary has and no test is about."""
    metrics, verdict = cell["metrics"], cell["verdict"]
    window = {"start_s": 0.0, "end_s": 9.0, "requests_per_s": 10.0, "ci95": {}}
    windows = {
        name: window | metrics[name] for name in ("steady", "sustained") if metrics.get(name)
    }
    findings = [
        {"severity": "warning", "evidence": "seen", "remedy": "Mend it."} | finding
        for finding in verdict["findings"]
    ]
    bounds = [
        {"bound": "ttft<1s", "metric": "ttft", "limit_s": 1.0} | bound
        for bound in cell.get("slo", ())
    ]
    return cell | {
        "metrics": metrics | windows,
        "verdict": {"trusted": False} | verdict | {"findings": findings},
        "slo": bounds,
    }


def points(folder: Path, prices: Mapping[str, float] | None = None) -> list[CellPoint]:
    """Return the points of all runs in the folder. `prices`: dollars per hour by GPU."""
    return points_of(read_runs([folder])[0], None if prices is None else Prices(prices))


def length(tokens: int) -> Json:
    return {"kind": "fixed", "mean": float(tokens), "sd": 0.0, "low": 1, "high": 10**6}


def record(number: int, sent_s: float, arrivals: Sequence[float], **more: Any) -> RequestRecord:
    """A request of cell 0 whose tokens came at `arrivals`, one each."""
    return RequestRecord(
        request_id=f"0-{number}", cell=0, phase=more.pop("phase", "measure"), intended_s=sent_s, sent_s=sent_s,
        arrival_s=list(arrivals), read=list(range(len(arrivals))), tokens=list(range(1, len(arrivals) + 1)),
        token_source="pieces",  # noqa: S106
        end_s=arrivals[-1] if arrivals else None, input_tokens=1024,
        output_tokens=len(arrivals), status=more.pop("status", "ok"), **more,
    )  # fmt: skip
