"""Joules for an output token, as Loadstone and AIPerf make them of the same exporter's readings.

    python benchmarks/energy.py [--rounds 5] [--requests 120] [--concurrency 4] [--output 128]
                                [--law ttft=30ms,itl=5ms] [--json]

An exporter in the words of NVIDIA's DCGM tells of four GPUs that draw 310 W each, all the time.
Whatever stretch of time a tool takes, the truth is then 1,240 W over the tokens per second that the
same tool reports. The tools take turns. AIPerf is installed as by peers.py.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import peers
from peers import TOOLS, Json, Work

from loadstone.core.errors import InputError
from loadstone.core.host import describe
from loadstone.measure import simulated_server

GPUS, WATTS = 4, 310.0
_LABELS = (
    'gpu="{0}",UUID="GPU-00000000-0000-0000-0000-00000000000{0}",pci_bus_id="00000000:0{0}:00.0",device="nvidia{0}",modelName="NVIDIA'
    ' H100 80GB HBM3",Hostname="node"'
)


class Told(NamedTuple):
    """What a tool's result says: tokens/s and J a token, each over the same time."""

    output_tokens_per_s: float
    j_per_output_token: float


def of_loadstone(document: Json) -> Told:
    steady = document["cells"][0]["metrics"]["steady"]
    return Told(steady["output_tokens_per_s"], steady["j_per_output_token"])


def of_aiperf(document: Json) -> Told:
    millijoules = document["nvidia_energy_per_output_token"]["avg"]
    return Told(document["output_token_throughput"]["avg"], millijoules / 1e3)


READERS: dict[str, tuple[str, Callable[[Json], Told]]] = {
    "loadstone": ("--gpu-metrics", of_loadstone),
    "aiperf": ("--gpu-telemetry", of_aiperf),
}


@contextmanager
def exporter() -> Iterator[str]:
    """Its address, HOST:PORT."""
    begun_s = time.monotonic()

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            past_s = time.monotonic() - begun_s
            # A reading that never changes would be taken for one that is not renewed.
            watts = WATTS + (0.5 if int(past_s * 10) % 2 else -0.5)
            values = {
                "POWER_USAGE": ("gauge", f"{watts:.3f}"),
                "TOTAL_ENERGY_CONSUMPTION": ("counter", f"{1e9 + WATTS * past_s * 1e3:.0f}"),
                "GPU_UTIL": ("gauge", "97"),
            }
            lines = []
            for name, (kind, value) in values.items():
                lines.append(
                    f"# HELP DCGM_FI_DEV_{name} {name}\n# TYPE DCGM_FI_DEV_{name} {kind}\n"
                )
                lines += [
                    f"DCGM_FI_DEV_{name}{{{_LABELS.format(gpu)}}} {value}\n" for gpu in range(GPUS)
                ]
            body = "".join(lines).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def measure(name: str, work: Work, address: str) -> Json:
    """One run of one tool. Raises InputError if it fails."""
    tool, programs = TOOLS[name], peers.installed(name)
    flag, read = READERS[name]
    with tempfile.TemporaryDirectory(prefix="energy-") as scratch:
        folder = Path(scratch)
        command = [*tool.command(programs, work), flag, address]
        spent = peers.run_tree(command, folder, peers.environment(tool, peers.PEERS / "hf"))
        if spent.exit_code:
            raise InputError(
                f"{name}: ended with exit code {spent.exit_code}: {peers.last_words(folder)}"
            )
        told = read(json.loads((folder / tool.result).read_text()))
    true = GPUS * WATTS / told.output_tokens_per_s
    return {
        **told._asdict(),
        "true_j_per_output_token": true,
        "error": told.j_per_output_token / true - 1,
    }


def render(document: Json) -> str:
    rows = [["tool", "output tok/s", "J per output token", "true", "error"]]
    for name, rounds in document["tools"].items():
        for row in rounds:
            joules, true = row["j_per_output_token"], row["true_j_per_output_token"]
            rate, error = f"{row['output_tokens_per_s']:.1f}", f"{row['error']:+.1%}"
            rows.append([TOOLS[name].label, rate, f"{joules:.3f}", f"{true:.3f}", error])
    return peers.table(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--law", default="ttft=30ms,itl=5ms")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found: dict[str, list[Json]] = {name: [] for name in READERS}
    try:
        law = simulated_server.FixedLatency.parse(arguments.law, "--law")
        with (
            tempfile.TemporaryDirectory(prefix="energy-tokenizer-") as folder,
            exporter() as address,
        ):
            peers.write_tokenizer(Path(folder))
            for _ in range(arguments.rounds):
                for name, rounds in found.items():
                    with simulated_server.start(law) as server:
                        work = Work(
                            server.url,
                            arguments.concurrency,
                            arguments.requests,
                            arguments.output,
                            Path(folder),
                        )
                        rounds.append(measure(name, work, address))
    except InputError as error:
        parser.exit(error.exit_code, f"energy: {error}\n")
    document = {"law": arguments.law, "host": describe(), "tools": found}
    print(json.dumps(document, indent=1) if arguments.json else render(document))


if __name__ == "__main__":
    main()
