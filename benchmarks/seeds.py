"""Makes benchmarks/results/seeds_speed.md: what 000 and 002 measured, simulated as their servers
were started.

    python benchmarks/seeds.py POINTS.csv [--json] > benchmarks/results/seeds_speed.md

POINTS.csv: docs/accuracy.md has the columns; rows whose source begins with `seed000` (DeepSeek-V3,
H200, SGLang) and `seed002` (DeepSeek-R1, MI300X and H200, dstack) are used, those that were
excluded from fits included. Each row is simulated with the shipped coefficients (whose fit saw most
of the served rows) and with those of a fit without this model family. `light` has all efficiencies
1 and no overhead. Some seconds on one core.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from loadstone.calibrate.points import Point, read_points
from loadstone.catalogue.deployment.deployment import Worker
from loadstone.catalogue.deployment.shorthand import parse_worker
from loadstone.predict.scheduler import EnginePolicy, policy_of
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.fleet import fleet_with
from loadstone.predict.step_time import StepModel
from loadstone.workload.options import Options
from loadstone.workload.planning import plan_of

FAMILY = "deepseek-v3"

EAGER = "mem_fraction_static=0.8,enforce_eager=1"
R1_SGLANG = "deepseek-r1@8xh200/tp1,dp8,attention-dp,engine=sglang,version=0.4.3"
MI300X_SGLANG = "deepseek-r1@8xmi300x/tp8,engine=sglang,version=0.4.2"
SERVERS = {
    "000, 8 GPUs, CUDA graphs off": (
        f"deepseek-v3@8xh200/tp1,dp8,attention-dp,engine=sglang,version=0.4.1,{EAGER}"
    ),
    "000, 8 GPUs, FP8 KV cache": (
        "deepseek-v3@8xh200/tp1,dp8,attention-dp,kv=fp8,engine=sglang,version=0.4.1"
    ),
    "000, 16 GPUs, CUDA graphs off": (
        f"deepseek-v3@16xh200/tp16,nodes=2,engine=sglang,version=0.4.1,{EAGER}"
    ),
    "000, 16 GPUs, FP8 KV cache": (
        "deepseek-v3@16xh200/tp16,nodes=2,kv=fp8,engine=sglang,version=0.4.1,enforce_eager=1"
    ),
    "002, H200, SGLang 0.4.3": R1_SGLANG,
    "002, H200, SGLang 0.4.3, shared prefixes": R1_SGLANG,
    "002, H200, SGLang 0.4.3, offline": "deepseek-r1@8xh200/tp8,engine=sglang,version=0.4.3",
    "002, H200, vLLM 0.7.4": "deepseek-r1@8xh200/tp8,engine=vllm,version=0.7.4",
    "002, H200, vLLM 0.7.4, shared prefixes": (
        "deepseek-r1@8xh200/tp8,engine=vllm,version=0.7.4,prefix_caching=1,enable_chunked_prefill=1"
    ),
    "002, H200, vLLM 0.7.4, offline": (
        "deepseek-r1@8xh200/tp8,engine=vllm,version=0.7.4,max_model_len=32768"
    ),
    "002, H200, TensorRT-LLM 0.17": (
        "deepseek-r1@8xh200/tp8,ep4,engine=tensorrt-llm,version=0.17,max_batch_size=512,max_num_tokens=16384,"
        "max_seq_len=16384,enforce_eager=1"
    ),
    "002, MI300X, SGLang 0.4.2": MI300X_SGLANG,
    "002, MI300X, SGLang 0.4.2, shared prefixes": MI300X_SGLANG,
    "002, MI300X, vLLM 0.7.3": (
        "deepseek-r1@8xmi300x/tp8,engine=vllm,version=0.7.3,max_model_len=32768"
    ),
}
"""As they were started, in shorthand. Sources: 000 itself; for 002 the tasks in
dstackai/benchmarks, Deepseek-R1/README.md. What vLLM 0.7 makes of its defaults (whole prompts,
before all decodes) the shorthand's version says; the rows agree: ITL has p99 near its median and a
deviation of several times it."""
PREFIX_GROUPS = 10
"""Of 50 requests each, shuffled (--gsp-num-groups, --gsp-prompts-per-group), from an empty
cache."""

PREFIXES, OFFLINE = ", shared prefixes", ", offline"
GAPS_AT: dict[str, tuple[float, ...]] = {"rate": (1, 4, 8), "concurrency": (4, 16, 64)}
"""The loads whose gaps are shown, of answers up to 1,024 tokens."""

IMPLIED = {"002, H200, vLLM 0.7.4": 280_000, "002, H200, TensorRT-LLM 0.17": 355_000}
"""KV tokens that the rows with 128 users imply (docs/seeds.md), where sizing finds more."""
IMPLIED_NIC_BYTES_PER_S = 2.5e9 / 8
"""Per GPU of the network between 000's two nodes, 20 Gbit/s a node, implied likewise; the catalogue
has 50e9."""


HEAD = """# DeepSeek-V3 and R1 as two documents measured them, beside simulations

`python benchmarks/seeds.py POINTS.csv > benchmarks/results/seeds_speed.md`. Cells are *measured / shipped /
held out*, and where there is a fourth figure, *held out* with the cache or network that the rows imply. What
they mean is in [seeds.md](../../docs/seeds.md#speed)."""


class Figures(NamedTuple):
    """Medians, s, and output tokens/s; TTFT and TPOT are None of an offline run."""

    ttft_s: float | None
    tpot_s: float | None
    rate: float


class Step(NamedTuple):
    """A decode step of one scheduler, s: the median gap between tokens, and the model's for as many
    sequences."""

    sequences: int
    measured_s: float
    shipped_s: float
    held_out_s: float
    light_s: float


class Row(NamedTuple):
    """One measurement and its simulations; `implied`: held out, with what the rows imply."""

    server: str
    load: str
    value: float
    output_tokens: int
    measured: Figures
    shipped: Figures
    held_out: Figures
    implied: Figures | None
    step: Step | None
    layers: int


def server_of(point: Point) -> str | None:
    """Which server a row was measured on; None: not simulated (16-bit weights that do not fit)."""
    if point.source.startswith("seed000"):
        kind = "FP8 KV cache" if point.kv_dtype.startswith("fp8") else "CUDA graphs off"
        return f"000, {point.gpus} GPUs, {kind}"
    if not point.source.startswith("seed002") or "BF16" in point.precision:
        return None
    gpu = "MI300X" if "MI300X" in point.gpu else "H200"
    engine = {"sglang": "SGLang", "vllm": "vLLM", "tensorrt-llm": "TensorRT-LLM"}[point.engine]
    name = (
        f"002, {gpu}, {engine}"
        f" {'.'.join(point.engine_version.split('.')[: 2 if engine[0] == 'T' else 3])}"
    )
    if point.prefix_tokens:
        return name + PREFIXES
    return name + OFFLINE if point.mode == "offline" and name + OFFLINE in SERVERS else name


def simulated(point: Point, worker: Worker, policy: EnginePolicy, model: StepModel) -> Figures:
    """Without warm-up and over the whole run, as these clients measured (`--warmup 0 --dialect
    sglang`)."""
    tokens: dict[str, Any] = {
        "input": str(round(point.input_tokens or 0)),
        "output": str(point.output_tokens),
    }
    if point.prefix_tokens:
        tokens |= {"prefix": round(point.prefix_tokens), "prefix_groups": PREFIX_GROUPS}
    requests = point.requests or 0
    if point.load == "rate":
        value = point.load_value or 0.0
        options = Options.read(**tokens, warmup=0, rate=[value], requests_per_rate=requests / value)
    else:
        users = requests if point.load == "offline" else int(point.load_value or 0)
        options = Options.read(**tokens, warmup=0, concurrency=[users], requests=[requests])
    run = run_cell(plan_of(options), 0, fleet_with(worker, policy, model))
    sent, first = np.array(run.requests.sent_s_of), np.array(run.journal.first_s)
    end, outputs = np.array(run.end_s), np.array(run.requests.output_tokens)
    rate = float(outputs.sum() / (end.max() + run.stream_s - sent.min()))
    if point.load == "offline":
        return Figures(None, None, rate)
    ttft, tpot = first + run.stream_s - sent, (end - first) / (outputs - 1)
    return Figures(float(np.median(ttft)), float(np.median(tpot)), rate)


def step_of(point: Point, worker: Worker, models: Sequence[StepModel]) -> Step | None:
    """The median gap is one decode step. A closed loop of equal lengths has all users decoding
    at once, if the cache holds them; at a rate, output tokens/s · TPOT do on average (Little's
    law)."""
    if point.prefix_tokens or point.output_tokens is None:
        return None
    if not point.itl_s or not point.tpot_s or not point.output_tokens_per_s:
        return None
    users = (
        point.output_tokens_per_s * point.tpot_s
        if point.load == "rate"
        else point.load_value or 0.0
    )
    sequences = max(1, round(users / worker.dp))
    context = sequences * ((point.input_tokens or 0) + point.output_tokens // 2)
    return Step(
        sequences, point.itl_s, *(model.step_s(sequences, round(context), ()) for model in models)
    )


def rows_of(points: Sequence[Point]) -> list[Row]:
    found = []
    for point in points:
        name = server_of(point)
        if name is None:
            continue
        worker = parse_worker(SERVERS[name])
        policy = policy_of(worker)
        shipped = StepModel(worker)
        held_out = StepModel(worker, values=shipped.profile.values(without=FAMILY))
        implied = None
        if name in IMPLIED and point.load_value == 128:
            less = msgspec.structs.replace(policy, kv_blocks=IMPLIED[name] // policy.block_tokens)
            implied = simulated(point, worker, less, held_out)
        elif worker.nodes > 1:
            gpu = msgspec.structs.replace(worker.gpu, nic_bytes_per_s=IMPLIED_NIC_BYTES_PER_S)
            slower = msgspec.structs.replace(worker, gpu=gpu)
            implied = simulated(point, slower, policy, StepModel(slower, values=held_out.values))
        value = point.requests if point.load == "offline" else point.load_value
        found.append(
            Row(
                server=name,
                load=point.load,
                value=value or 0.0,
                output_tokens=point.output_tokens or 0,
                measured=Figures(point.ttft_s, point.tpot_s, point.output_tokens_per_s or 0.0),
                shipped=simulated(point, worker, policy, shipped),
                held_out=simulated(point, worker, policy, held_out),
                implied=implied,
                step=step_of(point, worker, (shipped, held_out, shipped.light())),
                layers=worker.model.layer_count,
            )
        )
    return found


def seconds(values: Sequence[float | None], scale: float = 1.0) -> str:
    scaled = [each * scale for each in values if each is not None]
    return " / ".join(f"{each:.3g}" if each < 100 else f"{each:,.0f}" for each in scaled)


def tables(rows: Sequence[Row]) -> str:
    """Returns the page: measured / simulated as shipped / with the family held out [/ held out,
    with what the rows imply of cache or network]."""
    served = [row for row in rows if row.load != "offline"]
    prefixes = [row for row in served if row.server.endswith(PREFIXES)]
    others = [row for row in served if not row.server.endswith(PREFIXES)]
    by_rate = [row for row in others if row.load == "rate"]
    by_users = [row for row in others if row.load != "rate"]
    parts = [serving("000 | requests/s", by_rate), serving("002 | users, answer", by_users)]
    parts += [serving("002, shared prefixes | users, answer", prefixes), offline(rows), steps(rows)]
    return "\n\n".join([HEAD, *("\n".join(part) for part in parts)])


def serving(head: str, rows: Sequence[Row]) -> list[str]:
    text = [f"| {head} | TTFT, s | TPOT, ms | output tok/s |", "|---|---|---|---|---|"]
    order = list(SERVERS)
    for row in sorted(
        rows, key=lambda row: (order.index(row.server), row.output_tokens, row.value)
    ):
        kinds = [
            each
            for each in (row.measured, row.shipped, row.held_out, row.implied)
            if each is not None
        ]
        load = f"{row.value:g}" if row.load == "rate" else f"{row.value:g}, {row.output_tokens:,}"
        ttft, tpot = (
            seconds([each.ttft_s for each in kinds]),
            seconds([each.tpot_s for each in kinds], 1e3),
        )
        rate = " / ".join(f"{each.rate:,.0f}" for each in kinds)
        text.append(f"| {label(row)} | {load} | {ttft} | {tpot} | {rate} |")
    return text


def label(row: Row) -> str:
    return row.server.partition(", ")[2].removesuffix(PREFIXES).removesuffix(OFFLINE)


def offline(rows: Sequence[Row]) -> list[str]:
    text = [
        "| 002, offline, answer | requests: measured / shipped / held out, output tok/s |",
        "|---|---|",
    ]
    for name in SERVERS:
        mine = [row for row in rows if row.server == name and row.load == "offline"]
        for answer in sorted({row.output_tokens for row in mine}):
            same = sorted(
                (row for row in mine if row.output_tokens == answer), key=lambda row: row.value
            )
            cells = [
                f"{row.value:g}: {row.measured.rate:,.0f} / {row.shipped.rate:,.0f} /"
                f" {row.held_out.rate:,.0f}"
                for row in same
            ]
            text.append(f"| {label(same[0])}, {answer:,} | {'; '.join(cells)} |")
    return text


def steps(rows: Sequence[Row]) -> list[str]:
    text = [
        (
            "| server | load | sequences | gap, ms | shipped | held out | light | left, ms | µs per"
            " layer |"
        ),
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        step = row.step
        if step is None or row.output_tokens > 1024 or row.value not in GAPS_AT[row.load]:
            continue
        left_s = step.measured_s - step.held_out_s
        times = (step.measured_s, step.shipped_s, step.held_out_s, step.light_s)
        load = f"{row.value:g}/s" if row.load == "rate" else f"{row.value:g} users"
        cells = [
            f"{row.server[:3]}, {label(row)}",
            load,
            str(step.sequences),
            *(f"{each * 1e3:.1f}" for each in times),
        ]
        text.append(
            f"| {' | '.join(cells)} | {left_s * 1e3:+.0f} | {left_s * 1e6 / row.layers:+,.0f} |"
        )
    return text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("points", type=Path)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = rows_of(read_points(arguments.points))
    if not arguments.json:
        print(tables(rows))
        return
    pairs = ("measured", "shipped", "held_out", "implied", "step")
    dicts = []
    for row in rows:
        inner = {
            name: value._asdict() for name in pairs if (value := getattr(row, name)) is not None
        }
        dicts.append(row._asdict() | inner)
    print(json.dumps(dicts, indent=1))


if __name__ == "__main__":
    main()
