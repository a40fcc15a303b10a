"""Half an hour of one GPU: vLLM with random weights beside what was predicted for it, in rounds of
ten minutes.

    python research/gpu/rounds.py predict FOLDER [PROFILE]   what is said before anything is
    measured python research/gpu/rounds.py measure ROUND FOLDER       start each engine, measure,
    stop, where the GPU is python research/gpu/rounds.py score MEASURED PREDICTED   the folder of
    one beside that of the other

A case is one start of an engine. What is asked of it are `loadstone bench` sweeps, and `vllm bench
serve` beside some of them. A case that fails takes nothing from the others; its log is kept.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import model_folder
from loadstone.core.errors import LoadstoneError
from loadstone.measure.engines.launch import serve
from loadstone.measure.engines.process import free_port

GPU = "h200"
ROUND_S = 560.0
READY_S = 260.0
QUIET = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0",
         "VLLM_HOST_IP": "127.0.0.1", "PYTHONUNBUFFERED": "1"}  # fmt: skip


class Ask(NamedTuple):
    """One sweep. `users`: concurrency of each cell, beside which `vllm bench serve` runs where
    `peer` says so."""

    name: str
    load: str
    peer: tuple[int, ...] = ()


class Case(NamedTuple):
    """One start of vLLM. `options`: those of the deployment's shorthand; `arguments`: vLLM's
    own."""

    round: int
    name: str
    model: str
    asks: tuple[Ask, ...]
    options: str = "prefix_caching=0"
    arguments: str = "--no-enable-prefix-caching"

    @property
    def deployment(self) -> str:
        return f"{self.model}@1x{GPU}/engine=vllm,version=0.26.0" + (
            f",{self.options}" if self.options else ""
        )


LONG = "--input 1024 --output 128"
TWO = Ask("two-points", f"{LONG} --concurrency 1,64 --duration 10s --grace 10s")
"""What `loadstone calibrate` gets."""
EVEN = Ask(
    "1024-128", f"{LONG} --concurrency 4,16,128 --duration 10s --grace 10s --seed 7", (1, 16, 64)
)
SHORT = Ask("512-256", "--input 512 --output 256 --concurrency 1,16,64 --duration 10s --grace 10s")
FEW = Ask("1024-128", f"{LONG} --concurrency 1,16,64 --duration 10s --grace 10s")
BESIDE = FEW._replace(peer=(16,))
SLOW = Ask("1024-128", f"{LONG} --concurrency 1,16,64 --duration 16s --grace 15s", (16,))
BURST = Ask("burst", f"{LONG} --rate inf --requests 1,32,256")
SHARED = Ask(
    "shared-half",
    f"{LONG} --prefix 512 --prefix-groups 4 --concurrency 1,16,64 --duration 10s --grace 10s",
)
OPEN = Ask("rate", f"{LONG} --rate 10,20 --duration 10s")
PROMPTS = tuple(
    Ask(f"prompt-{tokens}", f"--input {tokens} --output 16 --concurrency 1 --requests 16")
    for tokens in (32, 256, 2048, 4000)
)
CASES = (
    Case(1, "llama-bf16", "llama-3.1-8b", (TWO, EVEN, *PROMPTS, SHORT, BURST)),
    Case(2, "llama-fp8", "llama-3.1-8b:fp8", (FEW._replace(peer=(1, 16, 64)), BURST),
         arguments="--no-enable-prefix-caching --quantization fp8"),
    Case(2, "qwen3-32b-bf16", "qwen3-32b", (SLOW, BURST)),
    Case(3, "llama-cache", "llama-3.1-8b", (SHARED, OPEN), "prefix_caching=1", "--enable-prefix-caching"),
    Case(3, "llama-chunk-2048", "llama-3.1-8b", (FEW, BURST), "prefix_caching=0,max_num_batched_tokens=2048",
         "--no-enable-prefix-caching --max-num-batched-tokens 2048"),
    Case(3, "llama-chunk-16384", "llama-3.1-8b", (FEW, BURST), "prefix_caching=0,max_num_batched_tokens=16384",
         "--no-enable-prefix-caching --max-num-batched-tokens 16384"),
)  # fmt: skip
PEER = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
"""`vllm bench serve` without the rest of vLLM's command line."""


def predict(folder: Path, profile: str | None = None) -> None:
    """Write FOLDER/CASE-ASK.json for each sweep, as `loadstone simulate --json` prints it."""
    folder.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        for ask in case.asks:
            command = [sys.executable, "-m", "loadstone.commands", "simulate", case.deployment]
            command += re.sub(r" --grace \S+", "", ask.load).split()
            command += [
                "--json",
                "--out",
                str(folder / "runs"),
                *(["--profile", profile] if profile else []),
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if not done.stdout:
                raise SystemExit(f"{case.name} {ask.name}: {done.stderr}")
            (folder / f"{case.name}-{ask.name}.json").write_text(done.stdout)
    shutil.rmtree(folder / "runs", ignore_errors=True)


def measure(number: int, folder: Path, work: Path) -> int:
    """Run the cases of a round within ROUND_S; returns how many are not whole."""
    folder.mkdir(parents=True, exist_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    until_s, missing = time.monotonic() + float(os.environ.get("ROUND_S", ROUND_S)), 0
    for case in CASES:
        if case.round != number:
            continue
        try:
            missing += not _run(case, folder, work, until_s)
        except (LoadstoneError, subprocess.SubprocessError, OSError) as error:
            print(f"{case.name}: {error}", flush=True)
            missing += 1
    return missing


def _run(case: Case, folder: Path, work: Path, until_s: float) -> bool:
    model, port = work / case.name, free_port()
    served = case.model.replace(":", "-")
    model_folder.write(model, model_folder.config_of(case.model.partition(":")[0]))
    url = f"http://127.0.0.1:{port}"
    start = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    start += ["--model", str(model), "--load-format", "dummy"]
    start += ["--served-model-name", served, "--max-model-len", "4352", "--dtype", "bfloat16"]
    start += [
        "--enable-prompt-tokens-details",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        *case.arguments.split(),
    ]
    env = os.environ | QUIET | {"HF_HOME": str(work / "huggingface")}
    begun, whole = time.monotonic(), True
    ready_s = min(READY_S, until_s - begun)
    if ready_s < 60:
        print(f"{case.name}: no time is left for it", flush=True)
        return False
    with serve(
        start, "vllm", log_path=folder / f"{case.name}.log", url=url, env=env, timeout_s=ready_s
    ):
        print(f"{case.name}: ready after {time.monotonic() - begun:.0f} s", flush=True)
        for ask in case.asks:
            kept = folder / f"{case.name}-{ask.name}.json"
            command = [
                sys.executable,
                "-m",
                "loadstone.commands",
                "bench",
                url,
                *ask.load.split(),
                "--json",
            ]
            command += ["--gpu-telemetry", "--out", str(folder / "runs")]
            done = _keep(command, kept, until_s)
            if not kept.stat().st_size:  # telemetry may be what is missing
                done = _keep([each for each in command if each != "--gpu-telemetry"], kept, until_s)
            whole &= done
            if kept.is_file() and kept.stat().st_size:
                _tell(json.loads(kept.read_text()), f"{case.name} {ask.name}")
            for users in ask.peer:
                whole &= _peer(case, ask, users, url, model, served, folder, until_s)
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as said:  # noqa: S310
            (folder / f"{case.name}.metrics.txt").write_bytes(said.read())
    shutil.rmtree(model, ignore_errors=True)
    return whole


def _keep(command: list[str], kept: Path, until_s: float) -> bool:
    """Whether the command ended by itself; what it printed goes to `kept`."""
    left_s = until_s - time.monotonic()
    if left_s < 15:
        print(f"{kept.stem}: no time is left for it", flush=True)
        kept.touch()
        return False
    with kept.open("w") as out, subprocess.Popen(command, stdout=out) as process:
        try:
            process.wait(left_s)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait(30)
            return False
    return process.returncode in (0, 1)


def _peer(
    case: Case,
    ask: Ask,
    users: int,
    url: str,
    model: Path,
    served: str,
    folder: Path,
    until_s: float,
) -> bool:
    """`vllm bench serve` with the lengths of the sweep and so many users; requests for about ten
    seconds."""
    words = ask.load.split()
    requests = max(16, 6 * users)
    name = f"{case.name}-{ask.name}-peer-{users}"
    twin = [
        sys.executable,
        "-m",
        "loadstone.commands",
        "bench",
        url,
        *words[:4],
        "--concurrency",
        str(users),
    ]
    twin += ["--requests", str(requests), "--warmup", "0", "--seed", str(users), "--json"]
    twin += ["--out", str(folder / "runs")]
    _keep(twin, folder / f"{name}-twin.json", until_s)
    _tell(json.loads((folder / f"{name}-twin.json").read_text()), f"{name} twin")
    command = [sys.executable, "-c", PEER, "--backend", "openai"]
    command += [
        "--base-url",
        url,
        "--endpoint",
        "/v1/completions",
        "--model",
        served,
        "--tokenizer",
        str(model),
    ]
    command += [
        "--dataset-name",
        "random",
        "--random-input-len",
        words[1],
        "--random-output-len",
        words[3],
    ]
    command += [
        "--num-prompts",
        str(requests),
        "--max-concurrency",
        str(users),
        "--ignore-eos",
        "--num-warmups",
        "4",
    ]
    command += ["--seed", str(users)]
    command += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,90,99"]
    command += ["--save-result", "--result-dir", str(folder), "--result-filename", f"{name}.json"]
    whole = _keep(command, folder / f"{name}.log", until_s)
    try:
        said = json.loads((folder / f"{name}.json").read_text())
        print(f"{name}: ttft {said['median_ttft_ms']:.1f} tpot {said['median_tpot_ms']:.3f} "
              f"tok/s {said['output_throughput']:.0f}", flush=True)  # fmt: skip
    except (OSError, ValueError, LookupError) as error:
        print(f"{name}: {error}; {(folder / f'{name}.log').read_text()[-600:]}", flush=True)
        return False
    return whole


def _tell(document: dict[str, Any], name: str) -> None:
    for cell in document["cells"]:
        metrics = cell["metrics"]
        found = [
            metrics[each]["p50"] if metrics.get(each) else None for each in ("ttft_s", "tpot_s")
        ]
        shown = " ".join("-" if each is None else f"{each * 1e3:.2f}" for each in found)
        kinds = [each["kind"] for each in cell["verdict"]["findings"] if each["severity"] != "info"]
        print(f"{name} {cell['load']['value']}: n {cell['requests']['ok']} ttft/tpot ms {shown} "
              f"tok/s {metrics['output_tokens_per_s'] or 0:.0f} {kinds}", flush=True)  # fmt: skip


def score(measured: Path, predicted: Path) -> list[dict[str, Any]]:
    """One row a cell and metric: measured, predicted, low, high, error = predicted/measured − 1."""
    rows = []
    for case in CASES:
        for ask in case.asks:
            files = [folder / f"{case.name}-{ask.name}.json" for folder in (measured, predicted)]
            if not all(each.is_file() and each.stat().st_size for each in files):
                continue
            seen, said = (json.loads(each.read_text())["cells"] for each in files)
            for cell, other in zip(seen, said, strict=False):
                for metric in ("ttft_s", "tpot_s", "output_tokens_per_s"):
                    value, guess = cell["metrics"].get(metric), other["metrics"].get(metric)
                    low = high = None
                    if isinstance(guess, dict):
                        low, high = guess.get("low"), guess.get("high")
                    if isinstance(value, dict):
                        value = value["p50"]
                    if isinstance(guess, dict):
                        guess = guess["p50"]
                    if value and guess:
                        rows.append({
                            "case": case.name, "ask": ask.name, "load": cell["load"]["value"],
                            "trusted": cell["verdict"]["trusted"], "metric": metric, "measured": value,
                            "predicted": guess, "low": low, "high": high, "error": guess / value - 1,
                        })  # fmt: skip
    return rows


def main() -> int:
    words = sys.argv[1:]
    if words[:1] == ["predict"]:
        predict(Path(words[1]), words[2] if len(words) > 2 else None)
    elif words[:1] == ["measure"]:
        return measure(
            int(words[1]), Path(words[2]), Path(os.environ.get("WORK", ".cache/gpu")).resolve()
        )
    elif words[:1] == ["score"]:
        json.dump(score(Path(words[1]), Path(words[2])), sys.stdout, indent=1)
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
