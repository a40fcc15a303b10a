"""How far predictions of deployments with prefill and decode pools are off: InferenceX's runs of
DeepSeek-R1.

    python benchmarks/disaggregated.py POINTS.csv [--draws 12] [--out CELLS.csv] [--only GPU]
    [--every N]

POINTS.csv has a row for each run: pools, layouts, lengths, users, and what was measured
(DeepSeek-R1 by SGLang and TensorRT-LLM; rows that say why are excluded). Repeats are folded: a cell
is one setup under one load, its measured values are medians. One number is fitted to these rows,
the floors of workers that decode alone, and each GPU is predicted by a fit without it; the shipped
profile has rows of single instances of the same programme. Each cell is simulated as it was
measured: ten requests a user, lengths uniform from 0.8 of the nominal, tokens over the whole run.
Acceptance of guessed tokens is that of benchmarks/inferencex.py. Then choices among setups are
scored, and tokens/s a GPU that others published of one phase alone.
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
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from pathlib import Path

import msgspec
import numpy as np
from inferencex import ACCEPTANCE

from loadstone.catalogue.deployment.shorthand import parse_deployment, parse_worker
from loadstone.core.errors import InputError
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.fleet import DECODE_FLOORS, fleet_for, fleet_of
from loadstone.predict.simulator.latencies import answered_rows, latencies_s
from loadstone.predict.simulator.uncertainty import intervals, margins_of
from loadstone.predict.step_time import StepModel
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


LAYOUTS = 3
"""Different ones that a group has at least, to choose among them."""
FLOORS_WITHOUT = {"b200": 0.5}
"""DECODE_FLOORS as fitted without the cells of a GPU, where that is not what is shipped."""
HANDOVER_S_WITHOUT = {"gb200": 0.06, "h100": 0.04}
"""SGLang's latency of a handover likewise: the median of what first tokens took longer at up to 16
users."""
_LMSYS = "attention-dp,engine=sglang,eplb=1"
_TURNS = f"{_LMSYS},two_batch_overlap=1"
PUBLISHED = [
    ("LMSYS, 72 H100, decode, 256 a rank at 2k", f"deepseek-v3@72xh100/dp72,ep72,{_TURNS}", 256, 2050, 2785),
    ("LMSYS, 32 H100, prompts of 1k", f"deepseek-v3@32xh100/dp32,ep32,{_TURNS}", 16_384, -1024, 7209),
    ("LMSYS, 32 H100, prompts of 2k", f"deepseek-v3@32xh100/dp32,ep32,{_TURNS}", 16_384, -2048, 6818),
    ("LMSYS, 32 H100, prompts of 4k", f"deepseek-v3@32xh100/dp32,ep32,{_TURNS}", 16_384, -4096, 6288),
    ("DeepSeek's service, 144 H800, decode, 88 at 5k", f"deepseek-v3@144xh800/dp144,ep144,{_TURNS}", 88, 4989, 1850),
    ("DeepSeek's profile, 128 H800, decode, 128 at 4k", f"deepseek-v3@128xh800/dp128,ep128,{_TURNS}", 128, 4096,
     2325),
    ("DeepSeek's profile, 32 H800, prompts of 4k", f"deepseek-v3@32xh800/dp32,ep32,{_TURNS}", 16_384, -4096, 7839),
    ("Kimi K2, 96 H200, decode, 480 at 2k", f"kimi-k2@96xh200/dp96,ep96,{_LMSYS}", 480, 2050, 3000),
    ("Kimi K2, 32 H200, prompts of 2k", f"kimi-k2@32xh200/dp32,ep32,{_TURNS}", 16_384, -2048, 7000),
    ("LMSYS, 48 GB200, decode, 768 at 2k, 2025-06", f"deepseek-r1@48xgb200/dp48,ep48,{_LMSYS}", 768, 2050, 7583),
    ("LMSYS, 48 GB200, decode, 768 at 2k, 2025-09", f"deepseek-r1@48xgb200/dp48,ep48,{_LMSYS}", 768, 2050, 9087),
    ("… in NVFP4, 1,408", f"deepseek-r1:nvfp4@48xgb200/dp48,ep48,kv=fp8,{_LMSYS}", 1408, 2050, 13_386),
    ("LMSYS, 4 GB200, prompts of 2k", f"deepseek-r1@4xgb200/dp4,ep4,moe_a2a_backend=deepep,{_LMSYS}", 16_384, -2048,
     18_471),
    ("… in NVFP4", f"deepseek-r1:nvfp4@4xgb200/dp4,ep4,kv=fp8,{_LMSYS}", 16_384, -2048, 26_156),
]  # fmt: skip
"""Name, deployment, tokens of a rank's step, context (below 0: of prompts so long), tokens/s a GPU:
LMSYS's posts of 2025-05-05, 06-16, 07-20 and 09-25; DeepSeek's overview of its service and its
profile-data page."""


@dataclass
class Cell:
    """One setup under one load, its rows, and what was predicted of it: quantity to (value, low,
    high)."""

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
    stored = row[f"{role}_max_running"] or (
        row["decode_max_batch_per_rank"] if role == "decode" else ""
    )
    most = "max_running_requests" if row["engine"] == "sglang" else "max_batch_size"
    given: dict[str, object] = {most: stored} if stored and role == "decode" else {}
    if row["engine"] == "sglang":
        own = (
            _amd(row, role, gpus, shared=shared)
            if row["gpu"].startswith("mi")
            else _nvidia(row, role, gpus)
        )
        given = own | given
    parts += [f"{name}={value}" for name, value in given.items()]
    if role == "decode" and re.search("eplb[1-9]", row["recipe"]):
        parts += ["eplb=1"]
    if role == "decode" and row["drafts"] == "1":
        parts += [f"num_speculative_tokens={row['draft_depth'] or 1}"]
    return f"{row[f'{role}_workers']}*({gpus}x{row['gpu']}/{','.join(parts)})"


def _amd(row: Row, role: str, gpus: int, *, shared: bool) -> dict[str, object]:
    """Return what the programme's own launches of SGLang on AMD give (InferenceX at 02d1804,
    multi_node/amd_utils, models.yaml): their limits, and chunks of 16,384 tokens for each rank of
    attention-DP."""
    dealt = {"moe_a2a_backend": "mori"} if shared and int(row[f"{role}_ep"] or 1) > 1 else {}
    if role == "decode":
        most = 4096 if shared else 256 if int(row["decode_ep"] or 1) > 1 else 128
        balanced = (
            {"ep_dispatch_algorithm": "fake"} if shared and row["date"] >= "2026-02-19" else {}
        )
        return {"mem_fraction_static": 0.85, "max_running_requests": most, **balanced, **dealt}
    chunk = 16_384 * gpus if shared else 262_144 if row["precision"] == "fp8" else 16_384
    return {
        "mem_fraction_static": 0.8, "max_running_requests": 24 if shared else 128, "chunked_prefill_size": chunk,
        "load_balance_method": "round_robin", **dealt,
    }  # fmt: skip


def _nvidia(row: Row, role: str, gpus: int) -> dict[str, object]:
    """Return what is taken where the recipe is not stored: the share of memory in which the weights
    fit, and with drafts as many slots as users; on GB200 what its scripts and recipes of FP8 have
    in common (Dynamo's dsr1-wideep-gb200 page, srt-slurm's recipes/gb200-fp8)."""
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
    # Its clients are those of public measurements.
    fleet = fleet_of(deployment, acceptance=acceptance, published=True)
    if row["gpu"] in FLOORS_WITHOUT and isinstance(fleet.model, StepModel) and not cell.wide:
        fleet = replace(fleet, model=fleet.model.eased(FLOORS_WITHOUT[row["gpu"]] / DECODE_FLOORS))
    plan = plan_of(Options.read(**options))
    lengths = check(plan, fleet.policy.longest_tokens, "its KV cache")
    fleet = fleet_for(fleet, deployment, lengths, acceptance=acceptance)
    if row["engine"] == "sglang" and fleet.prefill is not None:
        latency_s = HANDOVER_S_WITHOUT.get(row["gpu"], fleet.prefill.link.latency_s)
        fleet = replace(
            fleet,
            prefill=fleet.prefill._replace(link=fleet.prefill.link._replace(latency_s=latency_s)),
        )
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
        factors = intervals(plan, 0, fleet, fleet.draws(draws, 0), margins_of(plan, 0, fleet))
    for name, value in values.items():
        low, high = factors.get(METRICS[name], (1.0, 1.0))
        cell.predicted[name] = value, value * low, value * high


def layout(cell: Cell) -> str:
    return "+".join(
        cell.has(f"{role}_{name}")
        for role in ("prefill", "decode")
        for name in ("workers", "gpus_per_worker", "attention_dp", "ep")
    )


def per_gpu(cell: Cell, *, measured: bool) -> float:
    rate = cell.measured("tok_s") if measured else cell.predicted["tok_s"][0]
    return rate / int(cell.has("gpus_total"))


def is_near_best(cells: list[Cell], bound_ms: float, share: float) -> bool:
    """Tell whether the setup that is predicted to give most tokens/s a GPU within a bound on TPOT
    gives, as measured, at least that share of the best."""
    allowed = [cell for cell in cells if cell.predicted["tpot"][0] <= bound_ms]
    best = max(per_gpu(cell, measured=True) for cell in cells if cell.measured("tpot") <= bound_ms)
    if not allowed:
        return False
    chosen = max(allowed, key=lambda cell: per_gpu(cell, measured=False))
    kept = chosen.measured("tpot") <= 1.1 * bound_ms
    return kept and per_gpu(chosen, measured=True) >= share * best


def score_choices(cells: list[Cell]) -> None:
    """Print how often the best setup is found: under a bound on TPOT, the group's median, among all
    of a GPU, precision and lengths; and of two under one load."""
    groups: dict[tuple[str, ...], list[Cell]] = {}
    loads: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        setup = tuple(map(cell.has, ("gpu", "precision", "input_len", "output_len")))
        groups.setdefault(setup, []).append(cell)
        loads.setdefault((*setup, *map(cell.has, ("engine", "drafts", "concurrency"))), []).append(
            cell
        )
    several = [each for each in groups.values() if len(set(map(layout, each))) >= LAYOUTS]
    for name, rank in (
        ("the lower third", 1 / 3),
        ("the median", 1 / 2),
        ("the upper third", 2 / 3),
    ):
        bounds = [
            float(np.quantile([cell.measured("tpot") for cell in each], rank)) for each in several
        ]
        right = sum(
            is_near_best(each, bound, 0.9) for each, bound in zip(several, bounds, strict=True)
        )
        print(
            f"within 10 % of the best under a bound on TPOT, {name} of the group's: {right} of"
            f" {len(several)}"
        )
    pairs = [
        pair
        for each in loads.values()
        for pair in combinations(each, 2)
        if len(set(map(layout, pair))) == len(pair)
    ]
    right = sum(is_near_best([*pair], math.inf, 0.98) for pair in pairs)
    print(f"the better of two under one load: {right} of {len(pairs)}")


def score_published() -> None:
    """Print tokens/s a GPU of each phase alone, as makers and LMSYS published it: upper bounds, of
    full batches."""
    print("\n| | published | predicted | |\n|---|---|---|---|")
    for name, text, tokens, context, published in PUBLISHED:
        model = StepModel(parse_worker(text))
        if context > 0:
            step_s = model.step_s(tokens, tokens * context, [])
        else:
            step_s = model.step_s(0, 0, [(-context, 0)] * (tokens // -context))
        rate = tokens / step_s
        print(f"| {name} | {published:,} | {rate:,.0f} | {rate / published - 1:+.0%} |")


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
        ("the same, half a user a GPU or more", lambda cell: not cell.wide and is_busy(cell)),
        ("the same, fewer users", lambda cell: not cell.wide and not is_busy(cell)),
        ("decode workers of 16 GPUs and more", lambda cell: cell.wide),
    ]
    kinds = sorted({(cell.has("gpu"), cell.has("engine")) for cell in scored})
    for gpu, engine in kinds:
        for wide in (False, True):
            groups.append(
                (f"{gpu}, {engine}{', wide' if wide else ''}", partial(_is_of, gpu, engine, wide))
            )
    print(
        "| | cells | TPOT | in 80 % | TTFT | in 80 % | tokens/s a GPU | in 80 %"
        " |\n|---|---|---|---|---|---|---|---|"
    )
    for name, belongs in groups:
        if chosen := [cell for cell in scored if belongs(cell)]:
            print(line(name, chosen))
    refused = Counter(cell.why_not for cell in cells if cell.why_not)
    print(f"\n{len(cells)} cells, {len(scored)} answered")
    for why, times in refused.most_common():
        print(f"{times} × {why}")


def is_busy(cell: Cell) -> bool:
    return float(cell.has("decode_inflight")) >= 0.5 * int(cell.has("decode_gpus"))


def _is_of(gpu: str, engine: str, wide: bool, cell: Cell) -> bool:
    return (cell.has("gpu"), cell.has("engine"), cell.wide) == (gpu, engine, wide)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("points", type=Path)
    parser.add_argument("--draws", type=int, default=12)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--every", type=int, default=1)
    asked = parser.parse_args()
    with asked.points.open(newline="", encoding="utf-8") as file:
        cells = [cell for cell in fold(csv.DictReader(file)) if asked.only in cell.has("gpu")][
            :: asked.every
        ]
    for cell in cells:
        begun_s = time.monotonic()
        try:
            predict(cell, asked.draws)
        except InputError as error:
            cell.why_not = str(error).rpartition(": ")[2]
        said = " ".join(f"{name} {cell.ratio(name):.2f}" for name in cell.predicted) or cell.why_not
        text = deployment_of(cell.rows[0])
        took_s = time.monotonic() - begun_s
        print(
            f"{took_s:5.1f} s {text} c{cell.has('concurrency')} {cell.has('input_len')}: {said}",
            file=sys.stderr,
        )
    if asked.out is not None:
        asked.out.write_bytes(
            msgspec.json.encode([
                {"id": cell.has("id"), "why_not": cell.why_not, "predicted": cell.predicted} for cell in cells
            ])
        )  # fmt: skip
    tables(cells)
    score_choices([cell for cell in cells if cell.predicted])
    score_published()


if __name__ == "__main__":
    main()
