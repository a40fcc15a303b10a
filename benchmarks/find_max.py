"""How well does --find-max find the highest load that bounds allow?

    python benchmarks/find_max.py [--seeds 20] [--http 240] [--aiperf PROGRAM] [--json FILE]

On the simulated clock: the simulator's own capacity is that at which a long simulation (60,000
requests) of other arrivals just holds the bounds; found is what `simulate --find-max` says with
each seed. With --http (seconds for a search) also over real HTTP on a `serve-sim` of the same
deployment, by rate and by concurrency, for shorter requests of normal lengths and a bound on a p95;
with --aiperf beside it AIPerf's `max-concurrency-under-sla`, whose TTFT and inter-token latency
bound the same p95 of the same quantities. The server counts what each asks of it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
from peers import write_tokenizer

from loadstone.runs.bench import bench  # noqa: F401 - imported before the clock runs
from loadstone.runs.find_max import find_max
from loadstone.runs.simulate import simulate
from loadstone.workload.option_fields import change, options_of
from loadstone.workload.options import Options, SimulateOptions

Json = dict[str, Any]
BOUNDS = "ttft_p99<500ms,tpot_p99<15ms"
TRAFFIC = {"input": "512", "output": "128", "range_ratio": 0.8}
HTTP_BOUNDS = "ttft_p95<200ms,tpot_p95<15ms"
HTTP_TRAFFIC = {"input": "normal:256:64", "output": "normal:32:8"}
DEPLOYMENT = "llama-3.1-8b@1xh100/engine=vllm"
LONG = 60_000


def true_capacity(kind: str, bounds: str, traffic: Json) -> float:
    """By bisection to 0.5 % or to whole requests, each probe long."""
    low, high = 1.0, 200.0
    given = traffic | {"deployment": DEPLOYMENT, "slo": bounds, "draws": 0}
    while high / low > 1.005 and (kind == "rate" or round(high) - round(low) > 1):
        middle = math.sqrt(low * high)
        load = {kind: str(middle if kind == "rate" else round(middle))}
        with tempfile.TemporaryDirectory() as out:
            options = options_of(given | load | {"out": out}, SimulateOptions)
            cell = simulate(change(options, requests=(LONG,), seed=12345)).document()["cells"][0]
        holds = all(each["value"] <= each["limit_s"] for each in cell["slo"])
        low, high = (middle, high) if holds else (low, middle)
    return math.sqrt(low * high) if kind == "rate" else round(low)


def on_simulated_clock(seeds: int) -> Json:
    capacity = true_capacity("rate", BOUNDS, TRAFFIC)
    print(f"the simulator's own capacity: {capacity:.2f} requests/s")
    rows = []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as out:
            begun_s = time.monotonic()
            given = TRAFFIC | {
                "deployment": DEPLOYMENT,
                "out": out,
                "find_max": BOUNDS,
                "seed": seed,
            }
            answer = find_max(options_of(given, SimulateOptions)).document()["max"]
        middle = math.sqrt(answer["load"]["value"] * answer["fails_at"]["value"])
        rows.append({"seed": seed, "low": answer["load"]["value"], "high": answer["fails_at"]["value"],
                     "off": middle / capacity - 1, "requests": answer["requests"],
                     "seconds": time.monotonic() - begun_s})  # fmt: skip
    within = sum(abs(row["off"]) <= 0.05 for row in rows)
    print(
        f"within 5 %: {within} of {len(rows)}; requests {rows[0]['requests']:,},"
        f" {rows[0]['seconds']:.1f} s a search"
    )
    return {"capacity": capacity, "within": within, "rows": rows}


@contextlib.contextmanager
def served() -> Iterator[str]:
    """The URL of a `serve-sim` of DEPLOYMENT."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "loadstone", "serve-sim", DEPLOYMENT, "--port", str(port)]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        while True:
            with contextlib.suppress(httpx.HTTPError):
                httpx.get(f"{url}/v1/models")
                break
            time.sleep(0.1)
        yield url
    finally:
        server.terminate()
        server.wait()


def counted(url: str, what: str = "request_success") -> int:
    """A counter of the server's; requests that it has answered or given up so far."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return round(
        sum(float(line.split()[-1]) for line in lines if line.startswith(f"vllm:{what}_total{{"))
    )


def over_http(longest_s: float, kinds: Sequence[str]) -> list[Json]:
    found = []
    for kind in kinds:
        capacity = true_capacity(kind, HTTP_BOUNDS, HTTP_TRAFFIC)
        with served() as url, tempfile.TemporaryDirectory() as out:
            given = HTTP_TRAFFIC | {
                "url": url,
                "out": out,
                "find_max": HTTP_BOUNDS,
                "max_duration": longest_s,
            }
            begun_s, before = time.monotonic(), counted(url)
            answer = find_max(
                options_of(given | ({kind: "8"} if kind == "concurrency" else {}), Options)
            ).document()["max"]
            row = answer | {"seconds": time.monotonic() - begun_s, "asked": counted(url) - before}
        off = {
            name: value["value"] / capacity - 1
            for name in ("load", "fails_at")
            if (value := answer[name])
        }
        found.append(row | {"capacity": capacity, "off": off})
        print(
            f"{kind}: {capacity:.4g} by simulation; {answer['text']}; {row['seconds']:.0f} s, off"
            f" {off}",
            flush=True,
        )
    return found


def with_aiperf(program: Path, style: str, requests: int, longest_s: float) -> Json:
    """Its own search, from a third of what the simulator holds to three times that."""
    capacity = true_capacity("concurrency", HTTP_BOUNDS, HTTP_TRAFFIC)
    with served() as url, tempfile.TemporaryDirectory() as folder:
        write_tokenizer(Path(folder))
        command = [
            str(program),
            "profile",
            "--endpoint-type",
            "completions",
            "--streaming",
            "--url",
            url,
        ]
        command += ["--model", "meta-llama/Meta-Llama-3.1-8B", "--tokenizer", folder]
        command += ["--extra-inputs", "ignore_eos:true", "--isl", "256", "--isl-stddev", "64"]
        command += [
            "--osl",
            "32",
            "--osl-stddev",
            "8",
            "--search-recipe",
            "max-concurrency-under-sla",
        ]
        command += [
            "--ttft-sla-ms",
            "200",
            "--tpot-sla-ms",
            "15",
            "--search-style",
            style,
            "--ui",
            "none",
        ]
        command += [
            "--concurrency-min",
            str(round(capacity / 3)),
            "--concurrency-max",
            str(round(3 * capacity)),
        ]
        command += ["--artifact-dir", f"{folder}/artifacts"]
        command += ["--request-count", str(requests)] if requests else []
        begun_s, before = time.monotonic(), counted(url)
        search = subprocess.Popen(
            command,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            search.wait(longest_s)
        except subprocess.TimeoutExpired:
            os.killpg(search.pid, signal.SIGKILL)
            search.wait()
        row: Json = {
            "style": style,
            "seconds": time.monotonic() - begun_s,
            "asked": counted(url) - before,
        }
        row["cached"] = counted(url, "prefix_cache_hits") / max(
            1, counted(url, "prefix_cache_queries")
        )
        histories = list(Path(folder, "artifacts").rglob("search_history.json"))
        history = json.loads(histories[0].read_text()) if histories else {}
        row |= {"history": history, "capacity": capacity}
    told = (
        history.get("boundary_summary"),
        history.get("convergence_reason"),
        len(history.get("iterations", [])),
    )
    print(
        f"AIPerf, {style}: {row['seconds']:.0f} s, {row['asked']:,} requests, {row['cached']:.0%}"
        " cached"
    )
    print(f"by simulation {capacity}; {told}")
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--http", type=float, metavar="SECONDS")
    parser.add_argument("--by", default="rate,concurrency", help="with --http")
    parser.add_argument("--aiperf", type=Path, metavar="PROGRAM")
    parser.add_argument("--style", default="smooth_isotonic")
    parser.add_argument(
        "--requests", type=int, default=0, help="of each of AIPerf's probes; 0: its default"
    )
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    document: Json = {}
    if arguments.seeds:
        document |= on_simulated_clock(arguments.seeds)
    if arguments.http:
        document["http"] = over_http(arguments.http, arguments.by.split(","))
    if arguments.aiperf:
        document["aiperf"] = with_aiperf(
            arguments.aiperf.absolute(), arguments.style, arguments.requests, 600
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
