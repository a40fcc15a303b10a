"""An open loop of some 950 streams at once: how far each tool's TTFT is from what the server knows
it to be.

    python benchmarks/open_loop.py [--rate 400] [--requests 8000] [--output 40] [--law
    ttft=370ms,itl=50ms]
                                   [--tools loadstone,vllm,aiperf,guidellm] [--json]

Every tool sends the same Poisson traffic, 64 tokens a prompt, to one timing server, which keeps
when it had read each request and when it wrote each token. A tool's error is its own TTFT
percentile, from the moment that it says it sent the request, less the same percentile of (first
token written − request read) at the server in the same run: what the server itself was late by is
in both. Client and server share the host. The peers are installed as by peers.py.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx
import peers
from peers import TOOLS, Json, Work

from loadstone.core.errors import InputError
from loadstone.core.host import describe
from loadstone.measure import simulated_server


def command(name: str, programs: Path, work: Work, rate: float) -> list[str]:
    """The tool's closed-loop command of peers.py, with a rate in place of the concurrency."""
    closed = TOOLS[name].command(programs, work)
    if name == "guidellm":
        closed[closed.index("--profile") + 1] = f"kind=poisson,rate={rate:g}"
        return closed
    flag = {"vllm": "--max-concurrency"}.get(name, "--concurrency")
    at = closed.index(flag)
    given = {"loadstone": ["--rate", f"{rate:g}"]}.get(name, ["--request-rate", f"{rate:g}"])
    return [*closed[:at], *given, *closed[at + 2 :]]


def percentiles(values: list[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return cuts[49], cuts[98]


def measure(name: str, work: Work, rate: float) -> Json:
    tool, programs = TOOLS[name], peers.installed(name)
    httpx.get(f"{work.url}/truth", timeout=60, trust_env=False)  # empties it
    with tempfile.TemporaryDirectory(prefix="open-loop-") as scratch:
        folder = Path(scratch)
        env = peers.environment(tool, peers.PEERS / "hf")
        spent = peers.run_tree(command(name, programs, work, rate), folder, env)
        if spent.exit_code:
            raise InputError(
                f"{name}: ended with exit code {spent.exit_code}: {peers.last_words(folder)}"
            )
        reading = tool.read(json.loads((folder / tool.result).read_text()))
    truth: dict[str, list[int]] = httpx.get(f"{work.url}/truth", timeout=60, trust_env=False).json()
    # Requests of the meeting (Loadstone's, GuideLLM's validation) ask for less than the work does.
    served = [times for times in truth.values() if len(times) > work.output_tokens]
    ttft_p50, ttft_p99 = percentiles([(times[1] - times[0]) / 1e6 for times in served])
    ends = sorted([(times[0], 1) for times in served] + [(times[-1], -1) for times in served])
    streams = peak = 0
    for _, step in ends:
        streams += step
        peak = max(peak, streams)
    between_s = (max(times[0] for times in served) - min(times[0] for times in served)) / 1e9
    return {
        "requests": reading.requests,
        "served": len(served),
        "rate_at_server_per_s": (len(served) - 1) / between_s,
        "streams_at_once": peak,
        "server_ttft_p50_ms": ttft_p50,
        "server_ttft_p99_ms": ttft_p99,
        "ttft_p50_error_ms": reading.ttft_ms.p50 - ttft_p50,
        "ttft_p99_error_ms": reading.ttft_ms.p99 - ttft_p99,
        "cpu_s": spent.cpu_s,
    }


def render(document: Json) -> str:
    rows = [
        [
            "tool",
            "requests",
            "rate at the server",
            "streams at once",
            "server's TTFT p50 / p99",
            "error p50 / p99",
        ]
    ]
    for name, row in document["tools"].items():
        rows.append(
            [
                TOOLS[name].label,
                f"{row['requests']:,}",
                f"{row['rate_at_server_per_s']:.0f}/s",
                f"{row['streams_at_once']:,}",
                f"{row['server_ttft_p50_ms']:.1f} / {row['server_ttft_p99_ms']:.1f} ms",
                f"{row['ttft_p50_error_ms']:+,.2f} / {row['ttft_p99_error_ms']:+,.2f} ms",
            ]
        )
    return (
        f"Poisson {document['rate']:g} requests/s, {document['law']}, {document['output']} tokens"
        " each\n\n" + (peers.table(rows))
    )


def compare(arguments: argparse.Namespace) -> Json:
    names = arguments.tools.split(",")
    unknown = [name for name in names if name not in TOOLS]
    if unknown:
        raise InputError(f"--tools {','.join(unknown)}: unknown; choose of {','.join(TOOLS)}")
    law = simulated_server.FixedLatency.parse(arguments.law, "--law")
    found: dict[str, Any] = {}
    for name in names:
        peers.installed(name)
    with tempfile.TemporaryDirectory(prefix="open-loop-tokenizer-") as folder:
        peers.write_tokenizer(Path(folder))
        for name in names:
            peers.say(f"{TOOLS[name].label}")
            with simulated_server.start(law, keep_truth=True) as server:
                work = Work(server.url, 1, arguments.requests, arguments.output, Path(folder))
                found[name] = measure(name, work, arguments.rate)
            print(f"open_loop: {name}: {found[name]}", file=sys.stderr, flush=True)
    return {
        "rate": arguments.rate,
        "law": str(law),
        "output": arguments.output,
        "host": describe(),
        "tools": found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, default=400)
    parser.add_argument("--requests", type=int, default=8000)
    parser.add_argument("--output", type=int, default=40)
    parser.add_argument("--law", default="ttft=370ms,itl=50ms")
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    try:
        document = compare(arguments)
    except InputError as error:
        parser.exit(error.exit_code, f"open_loop: {error}\n")
    print(json.dumps(document, indent=1) if arguments.json else render(document))


if __name__ == "__main__":
    main()
