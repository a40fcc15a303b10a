"""Real engines on this machine's GPU, measured by `loadstone bench` over a grid of loads. Run by scripts/gpu/engines.

For each model, precision, engine and prefix-cache setting: make the model's folder, start the engine, measure every
cell, stop it, and keep the summary. A later cell that fails takes nothing from earlier ones. What the GPU has no room
for is left out, and said: models, and loads that would wait for memory. With --dry-run nothing is started: commands
are printed, and what they need is looked for.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import model_folder

from loadstone.catalogue import parse_deployment
from loadstone.core.errors import InputError, LoadstoneError
from loadstone.core.nvml import Gpus
from loadstone.measure.engines.launch import serve
from loadstone.measure.engines.process import free_port
from loadstone.predict.calibrate.gpu import gpu_of
from loadstone.predict.sizing.size import size

GRACE_S = "10s"
LAST_WORDS_S = 30
"""For what was interrupted to save what it has."""
CONTEXT_MARGIN = 64
QUIET = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0",
         "VLLM_HOST_IP": "127.0.0.1"}  # fmt: skip


class Case(NamedTuple):
    """One server and what is asked of it."""

    engine: str
    model: str
    precision: str
    prefix_cache: bool

    @property
    def name(self) -> str:
        cache = "" if self.engine == "transformers" else "-cache" if self.prefix_cache else "-nocache"
        model = Path(self.model).name.removesuffix(".json")
        return f"{self.engine}-{model}-{self.precision}{cache}"

    @property
    def served(self) -> str:
        """The name it is served under: reports tell runs apart by it."""
        return self.model + ("-fp8" if self.precision == "fp8" else "")


def cases(given: argparse.Namespace) -> Iterator[Case]:
    for model, engine in itertools.product(given.model, given.engine):
        name, _, precision = model.partition(":")
        for cached in given.prefix_cache.split(","):
            if cached not in ("on", "off"):
                raise InputError(f"--prefix-cache {cached}: write on, off, or off,on")
            if engine == "transformers" and (precision == "fp8" or cached != given.prefix_cache.split(",")[0]):
                continue  # no 8-bit weights of its own, and one kind of cache
            yield Case(engine, name, precision or "bf16", cached == "on")


def command(given: argparse.Namespace, case: Case, folder: Path, port: int, context: int) -> list[str]:
    if case.engine == "vllm":
        start = [given.python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
        start += ["--served-model-name", case.served, "--load-format", "dummy", "--max-model-len", str(context)]
        start += ["--enable-prefix-caching" if case.prefix_cache else "--no-enable-prefix-caching"]
        start += ["--enable-prompt-tokens-details", "--dtype", "bfloat16" if given.device == "cuda" else "float32"]
        if case.precision == "fp8":
            start += ["--quantization", "fp8"]
        if given.device == "cpu":
            start += ["--enforce-eager", "--block-size", "32", "--max-num-seqs", "16"]
    else:
        start = [given.python, "-m", "transformers.cli.transformers", "serve", str(folder), "--continuous-batching"]
        start += ["--device", given.device, "--dtype", "bfloat16" if given.device == "cuda" else "float32"]
        if given.device == "cpu":
            start += ["--cb-num-blocks", "512", "--cb-max-batch-tokens", "512"]
    return [*start, "--host", "127.0.0.1", "--port", str(port), *shlex.split(given.engine_arguments)]


def room(given: argparse.Namespace, case: Case, lengths: str) -> tuple[list[str], str]:
    """The loads of a sweep that the GPU holds at once by loadstone's sizing, and why not the others, if so."""
    asked = given.concurrency.split(",")
    if given.gpu is None or case.engine != "vllm" or given.layers is not None:
        return asked, ""
    weights = ":fp8" if case.precision == "fp8" else ""
    deployment = parse_deployment(f"{case.model}{weights}@1x{given.gpu}/engine=vllm")
    row = size(deployment, sum(map(int, lengths.split("/"))), max(map(int, asked)))
    held = [load for load in asked if int(load) <= row.max_concurrent_requests]
    return held, "" if held == asked else row.why


def found_gpu() -> str | None:
    """This machine's GPU as the catalogue has it; None where it tells of none."""
    try:
        with Gpus() as gpus:
            return gpu_of(gpus.describe()[0].name).name
    except InputError as error:
        told(f"nothing is left out for want of room: {error}")
        return None


def bench(
    given: argparse.Namespace, case: Case, url: str, lengths: str, loads: list[str], folder: Path, runs: Path
) -> list[str]:
    """One sweep. Prompts are new to any prefix cache; where it is to be on, half of each prompt is its group's, and
    where it is off beside that too, so that both are asked the same."""
    entered, left = lengths.split("/")
    said = [sys.executable, "-m", "loadstone.commands", "bench", url, "--input", entered, "--output", left]
    said += ["--concurrency", ",".join(loads), "--duration", given.duration, "--grace", GRACE_S, "--json"]
    said += ["--gpu-telemetry"] if given.device == "cuda" else []
    said += ["--prefix", str(int(entered) // 2), "--prefix-groups", "4"] if "on" in given.prefix_cache else []
    said += ["--model", str(folder)] if case.engine == "transformers" else []
    return [*said, "--out", str(runs)]


def environment(given: argparse.Namespace, home: Path) -> dict[str, str]:
    (home / "hub").mkdir(parents=True, exist_ok=True)  # /v1/models of transformers fails without
    env = os.environ | QUIET | {"HF_HOME": str(home)}
    if given.device == "cpu":
        env |= {"CUDA_VISIBLE_DEVICES": "", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}
    return env


def run(given: argparse.Namespace, case: Case) -> bool:
    """Whether all of it was measured."""
    folder, port = given.work / case.name, free_port()
    url = f"http://127.0.0.1:{port}"
    sweeps = {}
    for lengths in given.lengths.split(","):
        loads, why = room(given, case, lengths)
        if why:
            told(f"{case.name} {lengths}: on a {given.gpu} only the loads {','.join(loads) or 'none'}: {why}")
        if loads:
            sweeps[lengths] = loads
    if not sweeps:
        return True
    context = max(sum(map(int, each.split("/"))) for each in sweeps) + CONTEXT_MARGIN
    start = command(given, case, folder, port, context)
    runs = given.work / "runs"
    asks = [bench(given, case, url, lengths, loads, folder, runs) for lengths, loads in sweeps.items()]
    if given.dry_run:
        print(f"# {case.name}", shlex.join(start), *map(shlex.join, asks), sep="\n", flush=True)
        return True
    begun = time.monotonic()
    model_folder.write(folder, model_folder.config_of(case.model, given.layers))
    env = environment(given, given.work / "huggingface")
    if case.engine == "transformers":
        making = [given.python, "-c", model_folder.WEIGHTS, str(folder), given.device]
        left_s = given.until_s - time.monotonic()
        subprocess.run(making, env=env, check=True, stdout=sys.stderr, timeout=left_s if left_s < math.inf else None)
    log, complete = given.out / f"{case.name}.log", True
    ready_s = max(1.0, min(given.ready, given.until_s - time.monotonic()))
    with serve(start, case.engine, log_path=log, url=url, env=env, timeout_s=ready_s):
        told(f"{case.name}: ready after {time.monotonic() - begun:.0f} s")
        for lengths, ask in zip(sweeps, asks, strict=True):
            status, said = measure(ask, given.until_s - time.monotonic())
            complete &= status == 0
            if not said.strip():
                told(f"{case.name} {lengths}: loadstone bench ended with {status}")
                continue
            kept = given.out / f"{case.name}-{lengths.replace('/', '-')}.json"
            kept.write_text(said)
            keep_plan(json.loads(said), kept)
            told(f"{case.name} {lengths}: {kept.name}")
    shutil.rmtree(folder)
    return complete


def measure(command: list[str], left_s: float) -> tuple[int, str]:
    """Exit code and output. After `left_s` seconds it is interrupted, and tells what it has."""
    if left_s <= 0:
        return 1, ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as asked:
        try:
            said, _ = asked.communicate(timeout=left_s if left_s < math.inf else None)
        except subprocess.TimeoutExpired:
            told("the time is up: what was measured is kept")
            asked.terminate()  # not SIGINT, which what runs in the background may have been told to ignore
            try:
                said, _ = asked.communicate(timeout=LAST_WORDS_S)
            except subprocess.TimeoutExpired:
                asked.kill()
                said, _ = asked.communicate()
    return asked.returncode, said


def keep_plan(document: dict[str, object], beside: Path) -> None:
    """The run's papers and its plan: what a prediction of the same requests needs."""
    folder = Path(str(document["run_dir"]))
    shutil.copyfile(folder / "run.json", beside.with_suffix(".run.json"))
    shutil.copyfile(folder / "plan.parquet", beside.with_suffix(".plan.parquet"))


def check(given: argparse.Namespace, case: Case) -> list[str]:
    """What a run of the case would miss."""
    missing = []
    module = "vllm" if case.engine == "vllm" else "transformers"
    found = subprocess.run([given.python, "-c", f"import {module}"], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        last = (found.stderr.strip().splitlines() or ["it cannot be started"])[-1]
        missing.append(f"{given.python} cannot import {module}: {last}")
    try:
        config = model_folder.config_of(case.model, given.layers)
    except InputError as error:
        return [*missing, str(error)]
    if case.engine == "transformers":
        room = 3 * config["hidden_size"] * config["intermediate_size"] * config["num_hidden_layers"] * 3  # bf16, rest
        if shutil.disk_usage(given.work).free < room:
            missing.append(f"{given.work}: about {room / 1e9:.0f} GB are needed for weights")
    return missing


def told(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/gpu/engines", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for summaries and logs")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "loadstone-gpu",
                        help="folder for models and runs")  # fmt: skip
    parser.add_argument("--engine", nargs="+", default=["vllm"], choices=("vllm", "transformers"))
    parser.add_argument("--model", nargs="+", default=["llama-3.1-8b", "llama-3.1-8b:fp8", "qwen3-32b"],
                        help="NAME[:fp8] of the catalogue, or a config.json")  # fmt: skip
    parser.add_argument("--lengths", default="1024/128,512/256", help="input/output tokens, a sweep each")
    parser.add_argument("--concurrency", default="1,8,32,64,128,256")
    parser.add_argument("--duration", default="15s", help="of each cell")
    parser.add_argument("--prefix-cache", default="off", help="on, off, or off,on for both")
    parser.add_argument("--python", default=sys.executable, help="the engine's own Python")
    parser.add_argument("--engine-arguments", default="", help="more of the engine's own, in one string")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--gpu", help="name in the catalogue, whose room counts; else the one that is found")
    parser.add_argument("--layers", type=int, help="only so many layers, to try it out")
    parser.add_argument("--ready", type=float, default=300.0, help="seconds that an engine has to get ready")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds for all of it; what is done is kept")
    parser.add_argument("--dry-run", action="store_true", help="print the commands, and look for what they need")
    given = parser.parse_args()
    given.until_s = time.monotonic() + given.budget
    if given.gpu is None and given.device == "cuda":
        given.gpu = found_gpu()
    return given


def main() -> int:
    given = parse()
    status = 0
    for folder in (given.out, given.work):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        for case in cases(given):
            if time.monotonic() >= given.until_s:
                told(f"{case.name}: no time left")
                status = 1
                continue
            try:
                if given.dry_run:
                    for each in check(given, case):
                        told(f"{case.name}: {each}")
                        status = 1
                status |= not run(given, case)
            except (LoadstoneError, subprocess.SubprocessError, OSError) as error:
                told(f"{case.name}: {error}")
                status = 1
    except InputError as error:
        told(f"loadstone: {error}")
        return 2
    return status


if __name__ == "__main__":
    sys.exit(main())
