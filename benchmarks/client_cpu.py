"""CPU per streamed token: Loadstone's client beside a bare uvloop loop that only reads and counts.

    python benchmarks/client_cpu.py [--streams 200,1000] [--tokens 400] [--itl 25ms]
                                    [--rounds 5] [--usage final|running]
    python benchmarks/client_cpu.py --endpoints chat,messages,responses

Both read the same streams of the embedded timing server, in turn, several rounds. The bare loop
does `add_reader` and `recvmsg`, looks for the last chunk and counts: no kernel stamps, no HTTP, no
JSON, no records. Loadstone does all of that, journals, and is charged for connecting and for
writing the requests too; only process start is left out. Both send their requests evenly over one
second: how tokens bunch decides how often a loop is woken, and a wake costs more than a read.

With --endpoints the client alone is measured by each of these APIs in turn, and its ratio is to the
first of them.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from loadstone.measure import simulated_server
from loadstone.runs.bench import bench
from loadstone.workload.options import Options

RAMP_S = 1.0
OPTIONS = {
    "final": {"include_usage": True, "continuous_usage_stats": False},
    "running": {"include_usage": True, "continuous_usage_stats": True},
}
"""Token counts at the end of the stream, or in every event, as Loadstone asks where the server
can."""


def bare(url: str, streams: int, tokens: int, usage: str) -> float:
    """CPU µs per token of the bare loop, in a process of its own."""
    command = [
        sys.executable,
        __file__,
        "--bare",
        url,
        "--streams",
        str(streams),
        "--tokens",
        str(tokens),
    ]
    command += ["--usage", usage]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def run_bare(url: str, streams: int, tokens: int, usage: str) -> float:
    import time

    import uvloop

    parts = urlsplit(url)
    body = json.dumps(
        {
            "model": "timing",
            "prompt": [1, 2],
            "max_tokens": tokens,
            "stream": True,
            "stream_options": OPTIONS[usage],
        }
    ).encode()
    request = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )
    loop = uvloop.new_event_loop()
    left, reads = streams, 0

    def on_readable(sock: socket.socket) -> None:
        nonlocal left, reads
        data, _, _, _ = sock.recvmsg(65536, 64)
        reads += 1
        if not data or data.endswith(b"0\r\n\r\n"):
            loop.remove_reader(sock)
            left -= 1
            if not left:
                loop.stop()

    sockets = [
        socket.create_connection((parts.hostname or "", parts.port or 80)) for _ in range(streams)
    ]
    for sock in sockets:
        sock.setblocking(False)
        loop.add_reader(sock, on_readable, sock)
    for number, sock in enumerate(sockets):
        loop.call_later(RAMP_S * number / streams, sock.send, request)
    started = time.process_time()
    loop.run_forever()
    spent = time.process_time() - started
    for sock in sockets:
        sock.close()
    return spent / (streams * tokens) * 1e6


def ours(url: str, streams: int, tokens: int, usage: str, endpoint: str = "completions") -> float:
    """CPU µs per token of Loadstone's worker."""
    counted = endpoint in ("completions", "chat")
    input_tokens = "2" if endpoint == "completions" else "16"
    with tempfile.TemporaryDirectory() as folder:
        document = bench(
            Options.read(
                url=url, rate=[streams / RAMP_S], burstiness=float("inf"), requests=[streams], warmup=0, input=input_tokens,
                endpoint=endpoint, output=str(tokens), workers=1, out=Path(folder),
                extra_body={"stream_options": OPTIONS[usage]} if counted else {},
            )
        ).document()  # fmt: skip
    cell = document["cells"][0]
    assert cell["requests"]["ok"] == streams, cell["requests"]
    assert cell["metrics"]["output_tokens"] == streams * tokens
    return float(cell["client"]["cpu_s"]) / (streams * tokens) * 1e6


def compare_endpoints(
    endpoints: list[str], law: simulated_server.FixedLatency, arguments: argparse.Namespace
) -> None:
    """Print CPU µs per token by each API, and its ratio to the first of the same round."""
    print(f"{'streams':>8} {'endpoint':>12} {'µs/token':>9} {'ratio':>6}   rounds")
    for streams in map(int, arguments.streams.split(",")):
        rounds = []
        with simulated_server.start(law) as server:
            given = server.url, streams, arguments.tokens, arguments.usage
            for _ in range(arguments.rounds):
                rounds.append([ours(*given, endpoint) for endpoint in endpoints])
        for place, endpoint in enumerate(endpoints):
            ratios = [spent[place] / spent[0] for spent in rounds]
            median = statistics.median(spent[place] for spent in rounds)
            shown = " ".join(f"{ratio:.2f}" for ratio in ratios)
            ratio = statistics.median(ratios)
            print(f"{streams:>8} {endpoint:>12} {median:>9.2f} {ratio:>6.2f}   {shown}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", default="200,1000")
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--itl", default="25ms")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--usage", choices=sorted(OPTIONS), default="final")
    parser.add_argument("--endpoints")
    parser.add_argument("--bare", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.bare:
        print(run_bare(arguments.bare, int(arguments.streams), arguments.tokens, arguments.usage))
        return
    law = simulated_server.FixedLatency.parse(f"ttft=50ms,itl={arguments.itl}")
    if arguments.endpoints:
        compare_endpoints(arguments.endpoints.split(","), law, arguments)
        return
    print(f"{'streams':>8} {'bare µs/token':>14} {'loadstone':>10} {'ratio':>6}   rounds")
    for streams in map(int, arguments.streams.split(",")):
        pairs = []
        with simulated_server.start(law) as server:
            for _ in range(arguments.rounds):
                given = server.url, streams, arguments.tokens, arguments.usage
                pairs.append((bare(*given), ours(*given)))
        ratios = [mine / other for other, mine in pairs]
        plain, full = (statistics.median(column) for column in zip(*pairs, strict=True))
        shown = " ".join(f"{ratio:.2f}" for ratio in ratios)
        print(
            f"{streams:>8} {plain:>14.2f} {full:>10.2f} {statistics.median(ratios):>6.2f}   {shown}"
        )


if __name__ == "__main__":
    main()
