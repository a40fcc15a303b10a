"""One trace of sessions, replayed by Loadstone and by AIPerf on the same simulated engine: what
each says of it.

    python benchmarks/agents_peer.py AIPERF [--sessions 32] [--turns 8] [--concurrency 8] [--rounds
    1]

AIPERF: its program (0.13 was tried). Rows have a session, whole histories with recorded answers, a
length of the answer and a delay: both read that file as it is. The engine counts tokens, and what
its cache had of each prompt.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from peers import write_tokenizer

DEPLOYMENT = "llama-3.1-8b@1xh100/engine=vllm"


def write_trace(path: Path, sessions: int, turns: int) -> None:
    """Write sessions that share a system prompt; each turn adds a question and the recorded
    answer."""
    draw = random.Random(7)

    def words(count: int) -> str:
        return " ".join(f"w{draw.randrange(1000):04d}" for _ in range(count))

    system = words(400)
    with path.open("w") as file:
        for session in range(sessions):
            history = [{"role": "system", "content": system}]
            for turn in range(turns):
                history = [*history, {"role": "user", "content": words(draw.randrange(100, 700))}]
                output = draw.randrange(40, 160)
                row: dict[str, Any] = {
                    "session_id": f"s{session}",
                    "messages": history,
                    "output_length": output,
                }
                if turn:
                    row["delay"] = draw.randrange(100, 1500)
                file.write(json.dumps(row) + "\n")
                history = [*history, {"role": "assistant", "content": words(output)}]


def of_loadstone(url: str, trace: Path, concurrency: int, folder: Path) -> list[float]:
    calls = len(trace.read_text().splitlines())
    command = [
        sys.executable,
        "-m",
        "loadstone",
        "bench",
        url,
        "--agents",
        str(trace),
        "--endpoint",
        "chat",
        "--json",
    ]
    command += [
        "--concurrency",
        str(concurrency),
        "--requests",
        str(calls),
        "--warmup",
        "0",
        "--out",
        str(folder),
    ]
    document = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    metrics = document["cells"][0]["metrics"]
    hits = metrics["cached_input_tokens"] / metrics["input_tokens"]
    return [
        metrics["output_tokens_per_s"],
        metrics["ttft_s"]["p50"] * 1e3,
        metrics["tpot_s"]["p50"] * 1e3,
        hits,
    ]


def of_aiperf(program: Path, url: str, trace: Path, concurrency: int, folder: Path) -> list[float]:
    sessions = len({json.loads(line)["session_id"] for line in trace.open()})
    (folder / "tokenizer").mkdir()
    write_tokenizer(folder / "tokenizer")
    command = [
        str(program),
        "profile",
        "--endpoint-type",
        "chat",
        "--streaming",
        "--url",
        url,
        "--ui",
        "none",
    ]
    command += ["--model", "meta-llama/Meta-Llama-3.1-8B", "--tokenizer", str(folder / "tokenizer")]
    command += [
        "--extra-inputs",
        "ignore_eos:true",
        "--use-server-token-count",
        "--artifact-dir",
        str(folder),
    ]
    command += ["--custom-dataset-type", "mooncake-trace", "--input-file", str(trace)]
    command += ["--dataset-sampling-strategy", "sequential", "--conversation-num", str(sessions)]
    silent = {
        **os.environ,
        "DO_NOT_TRACK": "1",
        "HF_HOME": str(folder / "hf"),
        "NO_PROXY": "127.0.0.1",
    }
    command += ["--concurrency", str(concurrency)]
    subprocess.run(command, capture_output=True, check=True, env=silent)
    told = json.loads((folder / "profile_export_aiperf.json").read_text())
    hits = (
        told["total_usage_prompt_cache_read_tokens"]["avg"]
        / told["total_usage_prompt_tokens"]["avg"]
    )
    spread = ("time_to_first_token", "inter_token_latency")
    return [told["output_token_throughput"]["avg"], *(told[name]["p50"] for name in spread), hits]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("aiperf", type=Path)
    parser.add_argument("--sessions", type=int, default=32)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=1)
    asked = parser.parse_args()
    served = [sys.executable, "-m", "loadstone", "serve-sim", DEPLOYMENT, "--port", "0", "--json"]
    print(f"{'':>10} {'tok/s':>8} {'TTFT p50':>9} {'TPOT p50':>9} {'cached':>7}")
    for _ in range(asked.rounds):
        for tool in ("Loadstone", "AIPerf"):
            with (
                tempfile.TemporaryDirectory() as name,
                subprocess.Popen(
                    served, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
                ) as server,
            ):
                folder, trace = Path(name) / "out", Path(name) / "trace.jsonl"
                folder.mkdir()
                write_trace(trace, asked.sessions, asked.turns)
                assert server.stdout is not None
                url = json.loads(server.stdout.readline())["url"]
                try:
                    if tool == "AIPerf":
                        told = of_aiperf(
                            asked.aiperf.absolute(), url, trace, asked.concurrency, folder
                        )
                    else:
                        told = of_loadstone(url, trace, asked.concurrency, folder)
                finally:
                    server.terminate()
            print(f"{tool:>10} {told[0]:8.1f} {told[1]:6.1f} ms {told[2]:6.2f} ms {told[3]:7.2%}")


if __name__ == "__main__":
    main()
