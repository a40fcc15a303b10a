"""Whether sessions are simulated as they are measured: one plan through `simulate`, and through
`bench` on serve-sim.

    python benchmarks/session_agreement.py [WORKLOAD…]   prints both, how far apart they are, and
    whether that is more
                                                         than 3 % beyond what the simulated sample
                                                         leaves open

serve-sim has the same scheduler in real time, so that what differs is how the client, the plan and
the caches are simulated. Workloads of ten to forty seconds each, of different shapes; steps take 15
ms or more, so that a client which shares its machine does not decide. Messages have words that cost
serve-sim what the plan's estimate says; of real text the two count differently. Weka's sample is
that of ../shared/data/agents, made from MLPerf's sessions.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import loadstone

SAMPLES = Path(__file__).resolve().parents[2] / "shared" / "data" / "agents"
DEPLOYMENT = "llama-3.1-70b@4xh100/tp4"
SMALL = "llama-3.1-70b@4xh100/tp4,engine=sglang,max_total_tokens=20000"
BLOCK = 64
WITHIN = 0.03
Row = dict[str, Any]


def chains(path: Path, sessions: int = 12, calls: int = 8) -> Path:
    """Write sessions of calls that wait for tools, each with more in its prompt."""
    draw, rows = random.Random(1), []
    for session in range(sessions):
        blocks: list[int] = list(range(8))
        for call in range(calls):
            blocks += [
                1000 * session + 100 * call + each + 100 for each in range(draw.randint(2, 12))
            ]
            rows.append(
                row(
                    session,
                    call,
                    [call - 1] if call else [],
                    blocks,
                    draw,
                    delay=draw.expovariate(2),
                )
            )
    return write(path, rows)


def agents(path: Path, sessions: int = 8) -> Path:
    """Write sessions that send three sub-agents of three calls each, and join them."""
    draw, rows = random.Random(2), []
    for session in range(sessions):
        own = iter(range(1000 * (session + 1), 1000 * (session + 2)))
        root = [*range(8), *(next(own) for _ in range(16))]
        rows.append(row(session, 0, [], root, draw))
        ends = []
        for number in range(3):
            blocks = [*range(4), *(next(own) for _ in range(6))]
            for step in range(3):
                place = 1 + 3 * number + step
                after, trigger = (
                    ([0], "sent")
                    if number == 2 and not step
                    else ([0 if not step else place - 1], "ended")
                )
                blocks = blocks + [next(own) for _ in range(draw.randint(1, 8))]
                rows.append(row(session, place, after, blocks, draw, trigger, draw.expovariate(4)))
            ends.append(place)
        rows.append(row(session, 10, ends, [*root, *(next(own) for _ in range(12))], draw))
    return write(path, rows)


def messages(path: Path, sessions: int = 8, calls: int = 7) -> Path:
    """Write sessions of messages, tools' results among them, in words of which serve-sim and the
    plan's estimate have as many tokens."""
    draw, rows = random.Random(3), []

    def said(role: str, words: int) -> Row:
        return {
            "role": role,
            "content": " ".join("".join(draw.choices("aeiou", k=3)) for _ in range(words)),
        }

    for session in range(sessions):
        history = [said("system", 500), said("user", 300)]
        for call in range(calls):
            tokens = draw.randint(10, 80)
            rows.append({
                "session_id": f"m{session}", "id": f"m{session}-{call}", "messages": [*history],
                "after": [f"m{session}-{call - 1}"] if call else [], "delay_s": round(draw.expovariate(3), 3),
                "output_tokens": tokens,
            })  # fmt: skip
            history += [said("assistant", tokens), said("user", draw.randint(100, 900))]
    return write(path, rows)


def row(
    session: int, place: int, after: list[int], blocks: list[int], draw: random.Random, trigger: str = "ended",
    delay: float = 0.0,
) -> Row:  # fmt: skip
    return {
        "session_id": f"s{session}", "id": f"s{session}-{place}", "after": [f"s{session}-{each}" for each in after],
        "trigger": trigger, "delay_s": round(delay, 3), "output_tokens": draw.randint(10, 80), "hash_ids": [*blocks],
        "block_tokens": BLOCK, "input_tokens": BLOCK * len(blocks) - draw.randint(0, BLOCK - 1),
    }  # fmt: skip


def write(path: Path, rows: list[Row]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


def weka(path: Path) -> Path:
    texts = (SAMPLES / f"weka_derived_from_mlperf_{number}.json" for number in (0, 1))
    return write(path, [json.loads(each.read_text()) for each in texts])


def workloads(folder: Path) -> dict[str, tuple[str, Row]]:
    turns: Row = {
        "turns": "5",
        "input": "600",
        "output": "uniform:20:60",
        "think_time": "exponential:300ms",
    }
    tools, tree = chains(folder / "chains.jsonl"), agents(folder / "agents.jsonl")
    found: dict[str, tuple[str, Row]] = {
        "turns": (DEPLOYMENT, {**turns, "concurrency": [8], "requests": [200], "warmup": 4}),
        "turns, open": (DEPLOYMENT, {**turns, "rate": [4.0], "requests": [200], "warmup": 0}),
        "tools, evicted": (
            SMALL,
            {"agents": tools, "concurrency": [12], "requests": [192], "warmup": 0},
        ),
        "tools, host tier": (
            f"{SMALL},kv_host=100gb".replace("20000", "32000"),
            {"agents": tools, "concurrency": [12], "requests": [192], "warmup": 0},
        ),
        "tools": (
            DEPLOYMENT,
            {"agents": tools, "concurrency": [8], "requests": [192], "warmup": 0},
        ),
        "tools drawn, two replicas": (
            "llama-3.1-70b@8xh100/tp4,dp2",
            {
                "agents": tools,
                "concurrency": [10],
                "requests": [192],
                "warmup": 0,
                "tool_time": "exponential:500ms",
            },
        ),
        "sub-agents": (
            DEPLOYMENT,
            {"agents": tree, "concurrency": [4], "requests": [176], "warmup": 0},
        ),
    }
    chat = {"agents": messages(folder / "messages.jsonl")}
    found["messages"] = (DEPLOYMENT, {**chat, "concurrency": [6], "requests": [112], "warmup": 0})
    found["messages, live answers"] = (DEPLOYMENT, {**found["messages"][1], "answers": "live"})
    if SAMPLES.is_dir():
        found["Weka's blocks"] = (DEPLOYMENT, {
            "agents": weka(folder / "weka.jsonl"), "concurrency": [8], "requests": [112], "warmup": 0,
            "tool_time": "0.5x",
        })  # fmt: skip
    return found


def figures(document: Row) -> dict[str, tuple[float, float, float]]:
    """Each figure with the bounds between which its sample knows it."""
    (cell,) = document["cells"]
    metrics = cell["metrics"]
    found = {"tok/s": (metrics["output_tokens_per_s"],) * 3}
    for point in ("p50", "p99"):
        value, (low, high) = metrics["ttft_s"][point], metrics["ttft_s"]["ci95"][point]
        found[f"TTFT {point}"] = value, low or value, high or metrics["ttft_s"]["max"]
    return found | {"hit share": (metrics["cached_input_tokens"] / metrics["input_tokens"],) * 3}


def main() -> None:
    print(f"{'':30}{'':>12}{'simulated':>12}{'measured':>12}{'apart':>9}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, (deployment, options) in workloads(folder).items():
            if sys.argv[1:] and name not in sys.argv[1:]:
                continue
            simulated = loadstone.simulate(deployment, **options, draws=0, out=folder).document()
            measured = loadstone.bench(
                sim=deployment, plan=Path(simulated["run_dir"]), out=folder
            ).document()
            one, other = figures(simulated), figures(measured)
            lag_s = measured["cells"][0]["client"]["receive_lag_p99_s"]
            said = name
            for metric, (value, low, high) in one.items():
                got = other[metric][0]
                apart = got / value - 1 if value else 0.0
                far = "" if abs(got - min(max(got, low), high)) <= WITHIN * value else "  too far"
                print(
                    f"{said:30}{metric:>12}{value:>12.4f}{got:>12.4f}{apart:>9.1%}{far}", flush=True
                )
                said = ""
            print(
                f"{'':30}receive lag p99 {lag_s * 1e3:.1f} ms,"
                f" {measured['cells'][0]['requests']['ok']} answered",
                flush=True,
            )


if __name__ == "__main__":
    main()
