"""Real engines on this machine's processor: calibrated at two concurrencies, predicted at the
others.

    python benchmarks/cpu_engines.py --engine llama.cpp [--runs DIR] [--repeats 3] [--concurrency
    1,2,4,8,16]
                                     [--given 1,8] [--input 128] [--output 64] [--requests 96]
                                     [--json]

Each repeat starts the engine anew with the tiny random model, pinned to one core, and measures
every concurrency with `loadstone bench` from the other cores, in an order that rotates, so that a
slow minute does not fall on the same one each time. `loadstone calibrate` then gets the runs of the
`--given` concurrencies alone, and `loadstone simulate --profile` predicts all. What is printed: the
median of the repeats, their spread (largest less smallest, over the median), the prediction, and
its error. Runs in DIR are kept and added to; `--repeats 0` only predicts from them. `--fit DIR`
calibrates on the runs of another folder: of another load. vLLM is installed by
scripts/engines/vllm; its recipe is that of tests/engines/launch.py.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loadstone.core.errors import LoadstoneError
from loadstone.measure.engines import llama_cpp

SLOTS = 16
CONTEXT_TOKENS = 512
HARDWARE = {
    "llama.cpp": (
        f"1xcpu/engine=llama.cpp,kv=fp16,parallel={SLOTS},ctx_size={SLOTS * CONTEXT_TOKENS}"
    ),
    "vLLM": (
        f"1xcpu/engine=vllm,max_num_seqs={SLOTS},max_model_len=4096,block_size=32,enforce_eager=true"
    ),
}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "tie_word_embeddings": False,
    "max_position_embeddings": 4096,
    "torch_dtype": "float32",
}
"""The tiny model of loadstone.measure.engines.tiny_gguf, as those would say it who publish
models."""
METRICS = ("ttft_s", "tpot_s", "output_tokens_per_s")
TESTS = Path(__file__).resolve().parents[1] / "tests"

Cells = dict[int, list[dict[str, float]]]


@contextmanager
def serving(engine: str, folder: Path) -> Iterator[str]:
    """The address of a ready engine on the first core; the client has the others from then on."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:1])  # what is started now inherits it
    try:
        if engine == "llama.cpp":
            with llama_cpp.launch(
                slots=SLOTS, context_tokens=CONTEXT_TOKENS, log_path=folder / "log"
            ) as server:
                os.sched_setaffinity(0, cores[1:] or cores)
                yield server.url
        else:
            sys.path.insert(0, str(TESTS))
            with importlib.import_module("engines.launch").launch(engine, folder) as server:
                os.sched_setaffinity(0, cores[1:] or cores)
                yield server.url
    finally:
        os.sched_setaffinity(0, cores)


def loadstone(*arguments: object, env: dict[str, str] | None = None) -> dict[str, Any]:
    """The JSON document of a command. Raises SystemExit with its last line of errors."""
    command = [str(Path(sys.executable).with_name("loadstone")), *map(str, arguments), "--json"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **(env or {})}
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise SystemExit(f"{arguments[0]}: {lines[-1]}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def load_flags(asked: argparse.Namespace, concurrency: object) -> list[object]:
    lengths = ["--input", asked.input, "--output", asked.output, "--range-ratio", asked.range_ratio]
    return [*lengths, "--requests", asked.requests, "--concurrency", concurrency]


def measure(asked: argparse.Namespace, runs: Path, repeat: int) -> None:
    first = repeat % len(asked.concurrency)
    order = asked.concurrency[first:] + asked.concurrency[:first]
    with (
        tempfile.TemporaryDirectory(prefix="cpu-engines-") as scratch,
        serving(asked.engine, Path(scratch)) as url,
    ):
        loadstone("bench", url, *load_flags(asked, SLOTS), "--out", Path(scratch) / "warm")
        for concurrency in order:
            loadstone("bench", url, *load_flags(asked, concurrency), "--out", runs)


def metrics_of(cell: dict[str, Any]) -> dict[str, float]:
    found = cell["metrics"]
    return {name: float(found[name]["p50"] if name.endswith("_s") and isinstance(found[name], dict) else found[name])
            for name in METRICS}  # fmt: skip


def read(runs: Path) -> tuple[Cells, dict[int, list[Path]]]:
    """Metrics and folders by concurrency. Doubtful cells are used, and said to be."""
    cells: Cells = defaultdict(list)
    folders: dict[int, list[Path]] = defaultdict(list)
    for path in sorted(runs.glob("*/summary.json")):
        (cell,) = json.loads(path.read_text())["cells"]
        concurrency = int(cell["load"]["value"])
        cells[concurrency].append(metrics_of(cell))
        folders[concurrency].append(path.parent)
        if not cell["verdict"]["trusted"]:
            kinds = {
                finding["kind"]
                for finding in cell["verdict"]["findings"]
                if finding["severity"] != "info"
            }
            print(
                f"in doubt: concurrency {concurrency}, {', '.join(sorted(kinds))}", file=sys.stderr
            )
    return cells, folders


def predict(
    asked: argparse.Namespace, folders: dict[int, list[Path]], scratch: Path
) -> tuple[Any, Cells]:
    config = scratch / "config.json"
    config.write_text(json.dumps(CONFIG))
    deployment = f"{config}@{HARDWARE[asked.engine]}"
    env = {"XDG_CONFIG_HOME": str(scratch)}
    given = [folder for concurrency in asked.given for folder in folders[concurrency]]
    fit = loadstone("calibrate", *given, "--deployment", deployment, "--profile", "here", env=env)
    every = ",".join(str(concurrency) for concurrency in asked.concurrency)
    flags = [*load_flags(asked, every), "--profile", "here", "--out", scratch / "runs"]
    found = loadstone("simulate", deployment, *flags, env=env)
    return fit, {int(cell["load"]["value"]): [metrics_of(cell)] for cell in found["cells"]}


def rows(asked: argparse.Namespace, measured: Cells, predicted: Cells) -> Iterator[dict[str, Any]]:
    for concurrency in asked.concurrency:
        for name in METRICS:
            values = [each[name] for each in measured[concurrency]]
            middle, said = statistics.median(values), predicted[concurrency][0][name]
            spread = (max(values) - min(values)) / middle
            yield {
                "concurrency": concurrency, "metric": name, "given": concurrency in asked.given and not asked.fit,
                "measured": middle, "spread": spread, "repeats": len(values), "predicted": said,
                "error": said / middle - 1, "within": abs(said / middle - 1) <= max(0.15, spread),
            }  # fmt: skip


def whole_numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", choices=tuple(HARDWARE), default="llama.cpp")
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--fit", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--concurrency", type=whole_numbers, default=[1, 2, 4, 8, 16])
    parser.add_argument("--given", type=whole_numbers, default=[1, 8])
    for name, default in (("input", 128), ("output", 64), ("requests", 96)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--range-ratio", type=float, default=0.5)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cpu-engines-") as scratch:
        runs = asked.runs or Path(scratch) / "measured"
        before = len(read(runs)[0].get(asked.concurrency[0], []))
        try:
            for repeat in range(before, before + asked.repeats):
                measure(asked, runs, repeat)
        except LoadstoneError as error:
            raise SystemExit(str(error)) from error
        measured, folders = read(runs)
        if asked.fit:
            folders = read(asked.fit)[1]
        missing = [str(each) for each in asked.concurrency if each not in measured]
        missing += [str(each) for each in asked.given if each not in folders]
        if missing:
            raise SystemExit(
                f"--runs {runs}: no run of concurrency {', '.join(missing)}; give --repeats 1 or"
                " more"
            )
        fit, predicted = predict(asked, folders, Path(scratch))
    found = list(rows(asked, measured, predicted))
    if asked.json:
        print(json.dumps({"engine": asked.engine, "calibration": fit, "rows": found}, indent=1))
        return
    given = f"{asked.given} of another load" if asked.fit else str(asked.given)
    print(f"{asked.engine}: given {given}, {found[0]['repeats']} repeats; times in ms")
    print(f"{'':12}{'metric':22}{'measured':>10}{'spread':>9}{'predicted':>11}{'error':>9}")
    for row in found:
        scale = 1e3 if row["metric"] in ("ttft_s", "tpot_s") else 1.0
        print(
            f"{row['concurrency']:<4}{'given' if row['given'] else '':8}{row['metric']:22}"
            f"{row['measured'] * scale:>10.2f}{row['spread']:>9.1%}{row['predicted'] * scale:>11.2f}"
            f"{row['error']:>+9.1%}{'' if row['within'] else '  beyond'}"
        )


if __name__ == "__main__":
    main()
