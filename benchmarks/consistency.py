"""Holds what Loadstone says of a run in four forms to one another: terminal, JSON, Markdown, HTML.

    python benchmarks/consistency.py [--runs 20] [--studies 3] [--seed 0]

Runs and studies are simulated, drawn by the seed. For each load the throughput, TTFT p50, TPOT p50
and whether the load is trusted are written as people read them, from the JSON, and looked for in
the other three; so is the highest load that holds the SLO. Each that is missing is a line, and the
exit code is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import html
import io
import os
import random
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from loadstone import commands
from loadstone.core.units import show_number, show_seconds

DEPLOYMENTS = (
    "llama-3.1-8b@1xh100",
    "llama-3.1-8b@1xh200/engine=sglang",
    "llama-3.1-70b@4xh100",
    "llama-3.1-70b:fp8@2xh200",
    "qwen3-32b@2xh100",
    "gpt-oss-120b@1xb200",
)
STUDY = """\
study: drawn
deployments: {{model: [{model}], engine: [vllm, sglang], layout: [1xh100, 1xh200]}}
workloads: {{chat: {{input: {input}, output: {output}}}}}
loads: {{concurrency: [1, {load}]}}
repeats: 2
"""


def call(*words: str) -> str:
    """Run a command of Loadstone in this process; returns what it printed."""
    said = io.StringIO()
    before, sys.argv = sys.argv, ["loadstone", *words]
    try:
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            commands.main()
    finally:
        sys.argv = before
    return said.getvalue()


def draw_run(draw: random.Random, folder: Path) -> Path:
    """Simulate a run of drawn lengths and loads; returns its folder."""
    loads = sorted(draw.sample((1, 2, 4, 8, 16, 32, 64), draw.randint(1, 4)))
    words = [draw.choice(DEPLOYMENTS), "--input", str(draw.randint(64, 3000))]
    words += ["--output", str(draw.randint(8, 400)), "--seed", str(draw.randint(0, 99))]
    words += ["--concurrency", ",".join(map(str, loads)), "--requests", str(draw.randint(40, 500))]
    words += ["--slo", f"ttft_p90<{draw.randint(50, 900)}ms,tpot_p90<{draw.randint(6, 30)}ms"]
    return Path(
        msgspec.json.decode(call("simulate", *words, "--out", str(folder), "--json"))["run_dir"]
    )


def expected(cell: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each number of a load, as people read it."""
    metrics = cell["metrics"]
    window = metrics.get("steady") or metrics
    yield "throughput", show_number(window["output_tokens_per_s"], 4)
    for name in ("ttft", "tpot"):
        yield f"{name} p50", show_seconds(metrics[f"{name}_s"]["p50"])


def check_run(run: Path) -> list[str]:
    """Return a line for each number that one of the forms lacks."""
    document = msgspec.json.decode(call("show", str(run), "--json"))
    forms = {"terminal": call("show", str(run))}
    for suffix in ("md", "html"):
        file = run.parent / f"{run.name}.{suffix}"
        call("report", str(run), "-o", str(file))
        forms[suffix] = file.read_text("utf-8")
    # In Markdown `<` is text, and a backslash escapes it.
    forms["md"] = forms["md"].replace("\\", "")
    forms["html"] = html.unescape(re.sub(r"<[^>]*>", " ", forms["html"]))
    lines = []
    for cell in document["cells"]:
        for name, text in expected(cell):
            lines += [
                f"{run.name}: {form} lacks {name} {text} at {cell['load']['value']:g}"
                for form, said in forms.items()
                if text not in said
            ]
    doubted = sum(not cell["verdict"]["trusted"] for cell in document["cells"])
    if len(re.findall(r"NO \(", forms["terminal"])) != doubted:
        lines.append(f"{run.name}: the terminal does not doubt {doubted} loads")
    return lines


def check_study(draw: random.Random, folder: Path) -> list[str]:
    """Simulate a drawn study, and check each of its runs."""
    file = folder / f"study{draw.randint(0, 10**9)}.yaml"
    model = draw.choice(("llama-3.1-8b", "mistral-7b"))
    text = STUDY.format(
        model=model,
        input=draw.randint(64, 1000),
        output=draw.randint(8, 100),
        load=draw.choice((2, 4, 8)),
    )
    file.write_text(text)
    out = folder / file.stem
    said = call("study", "run", str(file), "--simulate", "--out", str(out))
    status = msgspec.json.decode(
        call("study", "status", str(file), "--simulate", "--out", str(out), "--json")
    )
    lines = []
    for launch in status["launches"]:
        for measured in launch["cells"]:
            run = Path(measured["run_dir"])
            (cell,) = msgspec.json.decode(call("show", str(run), "--json"))["cells"]
            lines += [
                f"{file.name}: study run lacks {name} {text} of {launch['deployment']}"
                for name, text in expected(cell)
                if text not in said
            ]
            lines += check_run(run)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--studies", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    os.environ["COLUMNS"] = "200"
    draw = random.Random(asked.seed)
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stderr(io.StringIO()):
        folder = Path(name)
        lines = [
            line for _ in range(asked.runs) for line in check_run(draw_run(draw, folder / "runs"))
        ]
        for _ in range(asked.studies):
            lines += check_study(draw, folder)
    print(f"{asked.runs} runs and {asked.studies} studies: {len(lines)} contradictions")
    for line in lines:
        print(line)
    sys.exit(1 if lines else 0)


if __name__ == "__main__":
    main()
