"""Holds pages of `loadstone report` to what a page must be: seen at once, light, quick, readable.

    python benchmarks/report_page.py [--results FOLDER] [--shots FOLDER] [--axe FILE]

Published files of dstack (37 runs, with --results FOLDER that has dstack/ in it), 18 simulated
sweeps, a study of 36 cells with one lost, plans for six kinds of GPU, one `bench` of a simulated
server; and 200 runs, for size and time. Each is opened in headless Chromium, light and dark.
`--axe`: axe.min.js of the npm package axe-core, which judges contrast, names and roles, with all
parts unfolded. `--shots`: screenshots of 1440×900 and 390×844.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from loadstone.core.units import show_number

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "report"))

Browser: Any = importlib.import_module("browser").Browser

MODELS = (("llama-3.1-70b", "1k", "256"), ("qwen3-32b", "2k", "512"), ("gpt-oss-120b", "1k", "512"))
SLO = "ttft_p99<2s,tpot_p99<50ms"
STUDY = """\
study: pages
model: llama-3.1-70b
deployments: {engine: [vllm, sglang, tensorrt-llm], layout: [4xh200/tp4, 2xb200/tp2]}
workloads: {chat: {input: 1k, output: 256, range-ratio: 0.8}}
loads: {concurrency: [1, 4, 16, 64, 128, 256], requests: 300}
slo: "ttft_p99<2s,tpot_p99<50ms"
"""
PRICES = "h100=2.1,h200=3.2,b200=5,mi300x=2.5,l40s=0.9,a100=1.5"
ASKED = ("--input", "2k", "--output", "500", "--rate", "20", "--slo", SLO, "--price", PRICES)
DRAWN = "document.querySelector('.chart.drawn') !== null"
HERO = "JSON.stringify(document.querySelector('figure').getBoundingClientRect())"
UNFOLD = "document.querySelectorAll('details').forEach((each) => { each.open = true; })"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--results", type=Path, help="folder of published results")
    parser.add_argument("--shots", type=Path, help="folder for screenshots")
    parser.add_argument("--axe", type=Path, help="axe.min.js")
    given = parser.parse_args()
    print(
        "| page | hero ends at (1440×900) | written in | processor | size | opens in | 390 px |"
        " messages | axe |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    with TemporaryDirectory() as folder:
        for name, words in _pages(Path(folder), given.results):
            page = Path(folder) / f"{name}.html"
            begin, busy_s = time.perf_counter(), _busy_s()
            loadstone(*words, "-o", page)
            written_s, busy_s = time.perf_counter() - begin, _busy_s() - busy_s
            cells = [name, *_opened(page, given.axe, given.shots)]
            cells[2:2] = [
                f"{written_s:.1f} s",
                f"{busy_s:.1f} s",
                f"{page.stat().st_size / 1e6:.2f} MB",
            ]
            print("| " + " | ".join(cells) + " |", flush=True)


def _busy_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _pages(folder: Path, results: Path | None) -> Iterator[tuple[str, list[str | Path]]]:
    """Yield each page's name and the command that writes it."""
    if results is not None:
        yield "dstack, 37 runs", ["report", results / "dstack"]
    yield "a study, 35 of 36 cells", _studied(folder / "study")
    yield (
        "plans for six GPUs",
        ["recommend", "llama-3.1-70b", *ASKED, "--gpus", re.sub(r"=[\d.]+", "", PRICES)],
    )
    yield "one bench", ["report", _measured(folder / "bench")]
    sweeps = folder / "sweeps"
    of = product((("h100", 8), ("h200", 8), ("b200", 4)), ("vllm", "sglang"), MODELS)
    with ThreadPoolExecutor(2) as pool:
        for _ in pool.map(lambda each: _simulated(sweeps, *each), list(of)):
            pass
    yield "18 simulated sweeps", ["report", sweeps]
    many = folder / "many"
    made = sorted(sweeps.iterdir())
    for at in range(200):
        shutil.copytree(made[at % len(made)], many / f"{at:03d}")
    yield "200 runs", ["report", many]


def _studied(folder: Path) -> list[str | Path]:
    folder.mkdir()
    file, out = folder / "pages.yaml", folder / "studies"
    file.write_text(STUDY)
    loadstone("study", "run", file, "--simulate", "--out", out)
    shutil.copytree(out / "pages-simulated", out / "pages")
    (next((out / "pages" / "cells").glob("*/*/run.json"))).unlink()
    return ["study", "report", file, "--out", out]


def _simulated(out: Path, gpus: tuple[str, int], engine: str, asked: tuple[str, str, str]) -> None:
    (gpu, many), (model, prompt, answer) = gpus, asked
    deployment = f"{model}@{many}x{gpu}/tp{many},engine={engine}"
    loads: list[str | Path] = ["--concurrency", "1,4,16,64,256", "--slo", SLO, "--out", out]
    loadstone("simulate", deployment, "--input", prompt, "--output", answer, *loads)


def _measured(out: Path) -> Path:
    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "loadstone",
            "serve-sim",
            "llama-3.1-8b@1xh100/engine=vllm",
            "--port",
            "0",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        found = re.search(r"http://[\d.:]+", server.stdout.readline())
        assert found is not None
        url = found.group()
        asked = [
            "--concurrency",
            "1,4,16,64",
            "--input",
            "256",
            "--output",
            "64",
            "--requests",
            "120",
        ]
        loadstone("bench", url, *asked, "--slo", "ttft_p90<500ms,tpot_p90<12ms", "--out", out)
    finally:
        server.terminate()
        server.wait()
    return out


def loadstone(*words: str | Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "loadstone", *map(str, words)], check=True, capture_output=True
    )


def _opened(page: Path, axe: Path | None, shots: Path | None) -> list[str]:
    """Where the hero ends, how long the page takes to open, its screens on a phone, messages, and
    what axe says."""
    worst = {"bottom": 0.0, "load_s": 0.0, "screens": 0.0, "messages": 0.0, "axe": 0.0}
    for dark in (False, True):
        with TemporaryDirectory() as profile, Browser(Path(profile), dark=dark) as browser:
            for width, height in ((1440, 900), (390, 844)):
                browser.size(width, height)
                browser.open(page.as_uri())
                browser.run("document.querySelector('figure').scrollIntoView()")
                browser.until(DRAWN)
                browser.run("window.scrollTo(0, 0)")
                timing = "performance.getEntriesByType('navigation')[0].loadEventEnd / 1000"
                worst["load_s"] = max(worst["load_s"], float(browser.run(timing)))
                if width == 1440:
                    worst["bottom"] = max(worst["bottom"], json.loads(browser.run(HERO))["bottom"])
                else:
                    screens = browser.run("document.documentElement.scrollHeight / 844")
                    worst["screens"] = max(worst["screens"], float(screens))
                if shots is not None:
                    shots.mkdir(exist_ok=True)
                    name = f"{page.stem.replace(' ', '-').replace(',', '')}-{width}-{'dark' if dark else 'light'}.png"
                    browser.screenshot(shots / name, whole=False)
                if axe is not None:
                    if not page.stem.startswith("200"):
                        browser.run(UNFOLD)
                    browser.run(axe.read_text("utf-8") + ";0")
                    serious = (
                        "found.violations.filter((each) => ['serious',"
                        " 'critical'].includes(each.impact))"
                    )
                    shown = (
                        f"{serious}.map((each) => each.id + ': ' + each.nodes[0].html.slice(0,"
                        " 120))"
                    )
                    for each in browser.run(f"axe.run().then((found) => {shown})"):
                        print(
                            f"  axe, {page.stem}, {width} px, {'dark' if dark else 'light'}:"
                            f" {each}",
                            file=sys.stderr,
                        )
                        worst["axe"] += 1
            worst["messages"] += len(browser.complaints)
    return [
        f"{worst['bottom']:.0f} px",
        f"{show_number(worst['load_s'], 2)} s",
        f"{worst['screens']:.1f} screens",
        f"{worst['messages']:.0f}",
        f"{worst['axe']:.0f} serious" if axe is not None else "-",
    ]


if __name__ == "__main__":
    main()
