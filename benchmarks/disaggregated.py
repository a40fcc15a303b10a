"""How far predictions of deployments with prefill and decode pools are off: InferenceX's runs of DeepSeek-R1.

    python benchmarks/disaggregated.py POINTS.csv [--draws 12] [--out CELLS.csv] [--only GPU] [--every N]

POINTS.csv has a row for each run: pools, layouts, lengths, users, and what was measured (DeepSeek-R1 by SGLang and
TensorRT-LLM; rows that say why are excluded). Repeats are folded: a cell is one setup under one load, its measured
values are medians. Nothing is fitted to these rows, so that no GPU has to be held out of anything but the shipped
profile, which has rows of single instances of the same programme. Each cell is simulated as it was measured: ten
requests a user, lengths uniform from 0.8 of the nominal, tokens over the whole run. Acceptance of guessed tokens is
that of benchmarks/inferencex.py.
"""

from __future__ import annotations

import argparse
import csv
import math
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from inferencex import ACCEPTANCE

from loadstone.catalogue.deployment.shorthand import parse_deployment
from loadstone.core.errors import InputError
from loadstone.predict.simulator.bound_errors import find_uncovered_load
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.fleet import fleet_for, fleet_of
from loadstone.predict.simulator.interval import intervals
from loadstone.predict.simulator.latencies import answered_rows, latencies_s
from loadstone.predict.step_time import StepModel
from loadstone.predict.step_time.profile import remaining
from loadstone.runs.simulate import check
from loadstone.workload.options import Options
from loadstone.workload.planning import plan_of

Row = Mapping[str, str]
REQUESTS_PER_USER = 10
QUANTITIES = {"tpot": "tpot_ms", "ttft": "ttft_ms", "tok_s": "output_tok_s"}
METRICS = {"tpot": "tpot_s", "ttft": "ttft_s", "tok_s": "output_tokens_per_s"}
VERSIONS = {"sglang": {"0.5.1": "0.5.3"}, "tensorrt-llm": {"0.5.1": "1.1", "0.8.1": "1.2"}}
"""Of the engine in Dynamo's images, by Dynamo's own release, as its release notes have it."""
LARGE = 16
"""GPUs of a decode worker from which on it counts as wide."""


@dataclass
class Cell:
    """One setup under one load, its rows, and what was predicted of it: quantity to (value, low, high)."""

    rows: list[Row]
    predicted: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    why_not: str = ""

    def measured(self, quantity: str) -> float:
        return statistics.median(float(row[QUANTITIES[quantity]]) for row in self.rows)

    def ratio(self, quantity: str) -> float:
        return self.predicted[quantity][0] / self.measured(quantity)

    def holds(self, quantity: str) -> bool:
        _, low, high = self.predicted[quantity]
        return low <= self.measured(quantity) <= high

    def has(self, name: str) -> str:
        return self.rows[0][name]

    @property
    def wide(self) -> bool:
        return int(self.has("decode_gpus_per_worker")) >= LARGE

    @property
    def overloaded(self) -> bool:
        return any(row["overload"] == "1" for row in self.rows)


def deployment_of(row: Row) -> str:
    """Return the setup of a row in shorthand."""
    return f"deepseek-r1:{row['precision']}@prefill={_pool(row, 'prefill')}+decode={_pool(row, 'decode')}"


def _pool(row: Row, role: str) -> str:
    gpus, ep = int(row[f"{role}_gpus_per_worker"]), int(row[f"{role}_ep"] or 1)
    shared = row[f"{role}_attention_dp"] == "1" and gpus > 1
    parts = [f"tp1,dp{gpus},attention-dp" if shared else f"tp{gpus},pp1"]
    parts += [f"ep{gpus if shared else ep}"] if ep > 1 else []
    parts += [f"engine={row['engine']}", "kv=fp8"]
    version = _version(row)
    parts += [f"version={version}"] if version else []
    stored = row[f"{role}_max_running"] or (row["decode_max_batch_per_rank"] if role == "decode" else "")
    most = "max_running_requests" if row["engine"] == "sglang" else "max_batch_size"
    given: dict[str, object] = {most: stored} if stored and role == "decode" else {}
    if row["engine"] == "sglang":
        own = _amd(row, role, gpus, shared=shared) if row["gpu"].startswith("mi") else _nvidia(row, role, gpus)
        given = own | given
    parts += [f"{name}={value}" for name, value in given.items()]
    if role == "decode" and re.search("eplb[1-9]", row["recipe"]):
        parts += ["eplb=1"]
    if role == "decode" and row["drafts"] == "1":
        parts += [f"num_speculative_tokens={row['draft_depth'] or 1}"]
    return f"{row[f'{role}_workers']}*({gpus}x{row['gpu']}/{','.join(parts)})"


def _amd(row: Row, role: str, gpus: int, *, shared: bool) -> dict[str, object]:
    """Return what the programme's own launches of SGLang on AMD give (InferenceX at 02d1804, multi_node/amd_utils,
    models.yaml): their limits, and chunks of 16,384 tokens for each rank of attention-DP."""
    if role == "decode":
        most = 4096 if shared else 256 if int(row["decode_ep"] or 1) > 1 else 128
        return {"mem_fraction_static": 0.85, "max_running_requests": most}
    chunk = 16_384 * gpus if shared else 262_144 if row["precision"] == "fp8" else 16_384
    return {
        "mem_fraction_static": 0.8, "max_running_requests": 24 if shared else 128, "chunked_prefill_size": chunk,
    }  # fmt: skip


def _nvidia(row: Row, role: str, gpus: int) -> dict[str, object]:
    """Return what is taken where the recipe is not stored: the share of memory in which the weights fit, and with
    drafts as many slots as users; on GB200 what its scripts and recipes of FP8 have in common (Dynamo's
    dsr1-wideep-gb200 page, srt-slurm's recipes/gb200-fp8)."""
    fp8 = row["precision"] == "fp8" and row["gpu"] == "gb200"
    given: dict[str, object] = {"mem_fraction_static": 0.95 if fp8 and gpus == 4 else 0.85}
    if role == "decode" and row["drafts"] == "1":
        given["max_running_requests"] = row["concurrency"]
    if role == "prefill" and fp8 and gpus == 8 and row["prefill_attention_dp"] == "1":
        given |= {"moe_a2a_backend": "deepep", "chunked_prefill_size": 131_072}
    # Dynamo's own scripts capture one graph, its later recipes many.
    if role == "decode" and gpus >= LARGE and "DECODE_NODES" in row["recipe"]:
        given["cuda_graph_bs"] = 768
    return given


def _version(row: Row) -> str:
    own = re.search(r"sglang(?:-rocm)?[:-]v?([0-9]+\.[0-9]+\.[0-9]+)", row["image"])
    if own is not None:
        return own[1]
    dynamo = re.search(r"runtime:([0-9]+\.[0-9]+\.[0-9]+)", row["image"])
    return VERSIONS[row["engine"]].get(dynamo[1], "") if dynamo else ""


def predict(cell: Cell, draws: int) -> None:
    row = cell.rows[0]
    users = int(row["concurrency"])
    options = {
        "input": row["input_len"], "output": row["output_len"], "range_ratio": 0.8, "concurrency": [users],
        "requests": [max(20, REQUESTS_PER_USER * users)], "warmup": 0,
    }  # fmt: skip
    deployment, acceptance = parse_deployment(deployment_of(row)), float(ACCEPTANCE)
    fleet = fleet_of(deployment, acceptance=acceptance)
    plan = plan_of(Options.read(**options))
    lengths = check(plan, fleet.policy.longest_tokens, "its KV cache")
    fleet = fleet_for(fleet, deployment, lengths, acceptance=acceptance)
    run = run_cell(plan, 0, fleet)
    rows = answered_rows(run)
    latencies = latencies_s(rows)
    rate = float(rows["tokens"].sum() / (rows["end"].max() - rows["sent"].min()))
    values = {
        "tpot": float(np.median(latencies["tpot_s"])) * 1e3,
        "ttft": float(np.median(latencies["ttft_s"])) * 1e3,
        "tok_s": rate,
    }
    assert isinstance(fleet.model, StepModel)
    factors: dict[str, tuple[float, float]] = {}
    if draws:
        profile = fleet.model.profile
        wider = profile.wider_for(find_uncovered_load(plan, 0, fleet))
        factors = intervals(plan, 0, fleet, fleet.draws(draws, 0), remaining(profile), wider)
    for name, value in values.items():
        low, high = factors.get(METRICS[name], (1.0, 1.0))
        cell.predicted[name] = value, value * low, value * high


def fold(rows: Iterable[Row]) -> list[Cell]:
    cells: dict[str, Cell] = {}
    for row in rows:
        if row["exclude"] in ("", "0"):
            cells.setdefault(row["repeat_group"], Cell([])).rows.append(row)
    return list(cells.values())


def line(name: str, cells: list[Cell]) -> str:
    parts = [name, str(len(cells))]
    for quantity in QUANTITIES:
        # A queue that grows all the time has no latency to be met.
        scored = [cell for cell in cells if quantity != "ttft" or not cell.overloaded]
        if not scored:
            parts += ["", ""]
            continue
        errors = [abs(cell.ratio(quantity) - 1) for cell in scored]
        bias = math.exp(statistics.median(math.log(cell.ratio(quantity)) for cell in scored)) - 1
        parts.append(f"{statistics.median(errors):.0%} ({bias:+.0%})")
        parts.append(f"{sum(cell.holds(quantity) for cell in scored) / len(scored):.0%}")
    return "| " + " | ".join(parts) + " |"


def tables(cells: list[Cell]) -> None:
    scored = [cell for cell in cells if cell.predicted]
    groups: list[tuple[str, Callable[[Cell], bool]]] = [
        ("all", lambda cell: True),
        ("decode workers below 16 GPUs", lambda cell: not cell.wide),
        ("the same, plain", lambda cell: not cell.wide and cell.has("drafts") == "0"),
        ("the same, drafts", lambda cell: not cell.wide and cell.has("drafts") == "1"),
        ("decode workers of 16 GPUs and more", lambda cell: cell.wide),
    ]
    kinds = sorted({(cell.has("gpu"), cell.has("engine")) for cell in scored})
    for gpu, engine in kinds:
        groups.append((f"{gpu}, {engine}", partial(_is_of, gpu, engine)))
    print(
        "| | cells | TPOT | in 80 % | TTFT | in 80 % | tokens/s a GPU | in 80 % |\n|---|---|---|---|---|---|---|---|"
    )
    for name, belongs in groups:
        print(line(name, [cell for cell in scored if belongs(cell)]))
    refused = Counter(cell.why_not for cell in cells if cell.why_not)
    print(f"\n{len(cells)} cells, {len(scored)} answered")
    for why, times in refused.most_common():
        print(f"{times} × {why}")


def _is_of(gpu: str, engine: str, cell: Cell) -> bool:
    return (cell.has("gpu"), cell.has("engine")) == (gpu, engine)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("points", type=Path)
    parser.add_argument("--draws", type=int, default=12)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--every", type=int, default=1)
    asked = parser.parse_args()
    with asked.points.open(newline="", encoding="utf-8") as file:
        cells = [cell for cell in fold(csv.DictReader(file)) if asked.only in cell.has("gpu")][:: asked.every]
    for cell in cells:
        begun_s = time.monotonic()
        try:
            predict(cell, asked.draws)
        except InputError as error:
            cell.why_not = str(error).rpartition(": ")[2]
        said = " ".join(f"{name} {cell.ratio(name):.2f}" for name in cell.predicted) or cell.why_not
        text = deployment_of(cell.rows[0])
        took_s = time.monotonic() - begun_s
        print(f"{took_s:5.1f} s {text} c{cell.has('concurrency')} {cell.has('input_len')}: {said}", file=sys.stderr)
    if asked.out is not None:
        asked.out.write_bytes(
            msgspec.json.encode([
                {"id": cell.has("id"), "why_not": cell.why_not, "predicted": cell.predicted} for cell in cells
            ])
        )  # fmt: skip
    tables(cells)


if __name__ == "__main__":
    main()
