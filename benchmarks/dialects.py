"""What other tools keep of each request, and what they say of all: the captures under
tests/analyse/dialects.

    python benchmarks/dialects.py OUT [--tools vllm,aiperf,guidellm]

Each tool measures one timing server (30 ms + 0.1 ms per input token to the first token, then 7 ms
per token, three tokens an event) with 12 requests of about 64 + 24 tokens, four at a time. Its raw
output is cut down to what tests/analyse/test_other_tools.py needs and written to OUT/<tool>.json.
The tools are installed as benchmarks/peers.py does.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import peers

from loadstone.core.errors import InputError
from loadstone.measure import simulated_server

Json = dict[str, Any]
LAW = simulated_server.FixedLatency(ttft_s=0.030, itl_s=0.007, per_input_token_s=0.0001)
CONCURRENCY, REQUESTS, OUTPUT_TOKENS, TOKENS_PER_EVENT = 4, 12, 24, 3


def vllm_command(command: list[str]) -> list[str]:
    """With every metric, each request's own numbers, and lengths that differ."""
    start = command.index("--percentile-metrics")
    wanted = ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,90,95,99"]
    return [
        *command[:start],
        *wanted,
        *command[start + 4 :],
        "--save-detailed",
        "--random-range-ratio",
        "0.4",
    ]


def vllm_capture(folder: Path) -> Json:
    result: Json = json.loads((folder / "result.json").read_text())
    return {
        key: value
        for key, value in result.items()
        if key not in ("date", "tokenizer_id", "generated_texts", "label")
    }


def aiperf_command(command: list[str]) -> list[str]:
    return [*command, "--use-server-token-count", "--isl-stddev", "10", "--osl-stddev", "6"]


def aiperf_capture(folder: Path) -> Json:
    document = json.loads((folder / "artifacts/profile_export_aiperf.json").read_text())
    lines = map(json.loads, (folder / "artifacts/profile_export.jsonl").read_text().splitlines())
    times = ("session_num", "request_start_ns", "request_end_ns", "benchmark_phase")
    kept = (
        "request_latency", "time_to_first_token", "input_sequence_length", "output_sequence_length",
        "output_token_count", "inter_chunk_latency",
    )  # fmt: skip
    return {
        **{key: document[key] for key in ("aiperf_version", "start_time", "end_time")},
        "summary": {
            name: metric
            for name, metric in document.items()
            if isinstance(metric, dict) and "unit" in metric and not name.startswith("http_")
        },
        "records": [
            {
                "metadata": {key: line["metadata"][key] for key in times},
                "metrics": {key: line["metrics"][key] for key in kept},
            }
            for line in lines
        ],
    }


def guidellm_command(command: list[str]) -> list[str]:
    data = command.index("--data") + 1
    spread = (
        ",prompt_tokens_stdev=10,output_tokens_stdev=6,output_tokens_min=4,output_tokens_max=40"
    )
    return [*command[:data], command[data] + spread, *command[data + 1 :]]


def guidellm_capture(folder: Path) -> Json:
    document = json.loads((folder / "result.json").read_text())
    benchmark = document["benchmarks"][0]
    kept = (
        "request_latency", "time_to_first_token_ms", "time_per_output_token_ms", "inter_token_latency_ms",
        "prompt_token_count", "output_token_count", "total_token_count", "requests_per_second", "request_concurrency",
        "prompt_tokens_per_second", "output_tokens_per_second", "tokens_per_second",
    )  # fmt: skip
    dropped = ("pdf", "mean_ci", "percentile_cis")
    times = (
        "targeted_start", "request_start", "first_token_iteration", "last_token_iteration", "token_iterations",
        "request_end",
    )  # fmt: skip
    metrics = benchmark["metrics"]
    window = ("measure_start_time", "measure_end_time")
    return {
        "metadata": {key: document["metadata"].get(key) for key in ("version", "guidellm_version")},
        "scheduler_metrics": {key: benchmark["scheduler_metrics"][key] for key in window},
        "metrics": {
            "request_totals": metrics["request_totals"],
            **{
                name: {
                    "successful": {
                        k: v for k, v in metrics[name]["successful"].items() if k not in dropped
                    }
                }
                for name in kept
            },
        },
        "requests": [
            {
                "timings": {key: request["info"]["timings"][key] for key in times},
                "input_tokens": request["input_metrics"]["total_tokens"],
                "output_tokens": request["output_metrics"]["total_tokens"],
            }
            for request in benchmark["requests"]["successful"]
        ],
    }


class Capture(NamedTuple):
    """`command`: peers' own, with more asked for; `read`: what is kept of the run's folder."""

    command: Callable[[list[str]], list[str]]
    read: Callable[[Path], Json]


CAPTURES = {
    "vllm": Capture(vllm_command, vllm_capture),
    "aiperf": Capture(aiperf_command, aiperf_capture),
    "guidellm": Capture(guidellm_command, guidellm_capture),
}


def take(name: str, work: peers.Work) -> Json:
    """One run of one tool, cut down. Raises InputError if it fails."""
    tool = peers.TOOLS[name]
    command = CAPTURES[name].command(tool.command(peers.installed(name), work))
    with tempfile.TemporaryDirectory(prefix="dialects-") as scratch:
        folder = Path(scratch)
        spent = peers.run_tree(command, folder, peers.environment(tool, peers.PEERS / "hf"))
        if spent.exit_code:
            raise InputError(
                f"{name}: ended with exit code {spent.exit_code}: {peers.last_words(folder)}"
            )
        return CAPTURES[name].read(folder)


def capture(names: list[str], out: Path) -> None:
    """Write OUT/<tool>.json of each. Raises InputError, one line."""
    if unknown := [name for name in names if name not in CAPTURES]:
        raise InputError(f"--tools {','.join(unknown)}: unknown; choose of {','.join(CAPTURES)}")
    out.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="dialects-tokenizer-") as folder,
        simulated_server.start(LAW, tokens_per_event=TOKENS_PER_EVENT) as server,
    ):
        peers.write_tokenizer(Path(folder))
        work = peers.Work(server.url, CONCURRENCY, REQUESTS, OUTPUT_TOKENS, Path(folder))
        for name in names:
            path = out / f"{name}.json"
            path.write_text(json.dumps(take(name, work)) + "\n")
            print(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--tools", default=",".join(CAPTURES))
    arguments = parser.parse_args()
    try:
        capture(arguments.tools.split(","), arguments.out)
    except InputError as error:
        parser.exit(error.exit_code, f"dialects: {error}\n")


if __name__ == "__main__":
    main()
