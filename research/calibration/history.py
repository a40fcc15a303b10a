"""The shipped profile against InferenceX's history of DeepSeek-R1: by GPU, engine and date, p99s
too.

    python research/calibration/history.py HISTORY.csv --images REPOSITORY > images.csv     releases
    by date, once python research/calibration/history.py HISTORY.csv [--every N] [--json FILE]
    predict and score
    --without POINTS.csv…   leaves out rows that are in these files, on which the profile was fitted
    --hold-out              predicts with the coefficients of fits without DeepSeek

HISTORY.csv has rows of InferenceX's database (inferencex_history.csv). Rows of one setup and
release are one cell: its figures are their medians. The database stores GPUs as tp × ep; tokens per
second are per GPU of tp. The release is that of the configuration file on the eve of the run, from
a clone of github.com/SemiAnalysisAI/InferenceX; rows without one are left open. Arguments of
launches are those of May 2026 (benchmarks/inferencex.py), whatever the date, and the number of
drafts, which is not stored, is theirs too.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import runpy
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from loadstone.calibrate.cases import case_of, simulate
from loadstone.calibrate.points import Point, read_points
from loadstone.calibrate.validate import Scored, score
from loadstone.core.errors import InputError
from loadstone.predict.step_time.profile import profile_of

HERE = Path(__file__).resolve().parent
IMAGES = HERE / "images.csv"
LAUNCHES = runpy.run_path(str(HERE.parents[1] / "benchmarks" / "inferencex.py"))
"""How InferenceX launches what."""
_VERSION = re.compile(r"(?:sglang:v|sgl-dev-v|sglang-|sgl-dev:v|release:)([0-9][0-9a-z.]*)")
_SETUP = (
    "gpu", "framework", "precision", "spec_method", "decode_tp", "decode_ep", "decode_dp_attention", "input_len",
    "output_len", "concurrency",
)  # fmt: skip
FIGURES = ("ttft_ms_median", "tpot_ms_median", "output_tok_s_per_gpu", "ttft_ms_p99", "tpot_ms_p99")


def key_of(row: dict[str, str]) -> str:
    drafts = "-mtp" if row["spec_method"] != "none" else ""
    return f"dsr1-{row['precision']}-{row['gpu']}-{row['framework']}{drafts}"


def images(repository: Path, rows: Iterable[dict[str, str]]) -> list[tuple[str, str, str]]:
    """List (key, date, image) as the configuration had it on the eve of each date."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(repository), *words], capture_output=True, text=True, check=True
        ).stdout

    wanted = sorted({(row["date"], key_of(row)) for row in rows})
    found = []
    for date in sorted({date for date, _ in wanted}):
        commit = git("rev-list", "-1", f"--before={date}T00:00:00Z", "HEAD").strip()
        tree = git("ls-tree", "-r", "--name-only", commit).split()
        text = "".join(
            git("show", f"{commit}:{name}") for name in tree if name.endswith("-master.yaml")
        )
        blocks = dict(re.findall(r"^([a-z0-9.-]+):\s*\n\s+image:\s*(\S+)", text, re.MULTILINE))
        found += [(key, date, blocks[key]) for day, key in wanted if day == date and key in blocks]
    return found


def cells(rows: Iterable[dict[str, str]]) -> list[dict[str, str]]:
    """Fold rows of one setup and release into one, of medians; `date` is the first of them."""
    with IMAGES.open(newline="", encoding="utf-8") as file:
        image_of = {(key, date): image for key, date, image in list(csv.reader(file))[1:]}
    members: dict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        image = image_of.get((key_of(row), row["date"]), "")
        match = _VERSION.search(image)
        if row["disagg"] == "0" and row["framework"] in LAUNCHES["ENGINES"] and match:
            members[(*(row[name] for name in _SETUP), match.group(1))].append(row)
    folded = []
    for key, same in sorted(members.items()):
        cell = dict(min(same, key=lambda row: row["date"]), version=key[-1], repeats=str(len(same)))
        for name in FIGURES:
            values = [float(row[name]) for row in same if row[name]]
            cell[name] = str(median(values)) if values else ""
        folded.append(cell)
    return folded


def point_of(number: int, cell: dict[str, str]) -> Point:
    """Make a point of a cell, launched as benchmarks/inferencex.py has it."""
    notes = ["mtp"] * (cell["spec_method"] != "none") + ["dp attention"] * (
        cell["decode_dp_attention"] == "1"
    )
    launched = {
        "engine": cell["framework"], "gpu": cell["gpu"].upper(), "precision": cell["precision"],
        "note": " ".join(notes), "tp": cell["decode_tp"], "ep": cell["decode_ep"],
        "concurrency": cell["concurrency"], "input_len": cell["input_len"], "output_len": cell["output_len"],
        "engine_version": cell["version"].replace(".post", "-post").replace("rc", "-rc"),
    }  # fmt: skip
    users = int(cell["concurrency"])
    rate = cell["output_tok_s_per_gpu"]
    return Point(
        row=number, source=LAUNCHES["SOURCE"], deployment=LAUNCHES["deployment_of"](launched),
        input_tokens=int(cell["input_len"]), output_tokens=int(cell["output_len"]), load="concurrency",
        load_value=float(users), requests=10 * users, mode="serving", range_ratio=0.8, stat="median",
        fold="deepseek-v3", acceptance=float(LAUNCHES["ACCEPTANCE"]) if notes[:1] == ["mtp"] else None,
        ttft_s=float(cell["ttft_ms_median"]) / 1e3, tpot_s=float(cell["tpot_ms_median"]) / 1e3,
        output_tokens_per_s=float(rate) * int(cell["decode_tp"]) if rate else None,
    )  # fmt: skip


def p99s(scored: Scored) -> dict[str, float]:
    case = case_of(scored.point)
    outcome, _ = simulate(case, profile_of(case.worker, published=True).values())
    return {
        name: float(np.quantile(getattr(outcome, f"{name}_s"), 0.99)) for name in ("ttft", "tpot")
    }


def show(title: str, found: list[dict[str, Any]]) -> None:
    text = f"{title:34s} n {len(found):3d}"
    for name in ("tpot", "ttft", "throughput", "tpot_p99", "ttft_p99"):
        gaps = np.array([row[name] for row in found if name in row])
        if not len(gaps):
            continue
        text += (
            f" | {name} {np.median(np.abs(np.expm1(gaps))):5.1%} {np.expm1(np.median(gaps)):+5.0%}"
        )
        inside = [row[f"{name}_in"] for row in found if f"{name}_in" in row]
        text += f" in {np.mean(inside):4.0%}" if inside else ""
    print(text)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("history", type=Path)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--hold-out", action="store_true")
    parser.add_argument("--without", type=Path, nargs="*", default=[])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with arguments.history.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["disagg"] == "0"]
    if arguments.images:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerows([("key", "date", "image"), *images(arguments.images, rows)])
        return
    seen = {
        (point.ttft_s, point.tpot_s) for path in arguments.without for point in read_points(path)
    }
    rows = [
        row for row in rows if tuple(float(row[name]) / 1e3 for name in FIGURES[:2]) not in seen
    ]
    folded = cells(rows)
    print(f"{len(rows)} aggregated rows, {len(folded)} cells by setup and release")
    folded = folded[:: arguments.every]
    points = [point_of(at, cell) for at, cell in enumerate(folded, 1)]
    found = []
    for cell, scored in zip(folded, score(points, hold_out=arguments.hold_out), strict=True):
        if scored.skipped_because:
            print(f"left out: {scored.skipped_because}: {scored.point.deployment}", file=sys.stderr)
            continue
        gaps: dict[str, Any] = {
            name: float(np.log(scored.predicted[name] / scored.measured[name]))
            for name in scored.measured
        }
        gaps |= {
            f"{name}_in": scored.low[name] <= value <= scored.high[name]
            for name, value in scored.measured.items()
        }
        try:
            for name, value in p99s(scored).items():
                if cell[f"{name}_ms_p99"]:
                    gaps[f"{name}_p99"] = float(
                        np.log(value / (float(cell[f"{name}_ms_p99"]) / 1e3))
                    )
        except InputError:
            continue
        gaps |= {name: cell[name] for name in (*_SETUP, "version", "date")}
        found.append(gaps)
    for title, way in (
        ("all", lambda row: "all"),
        ("drafts", lambda row: row["spec_method"]),
        ("GPU and engine", lambda row: f"{row['gpu']} {row['framework']}"),
        ("release", lambda row: f"{row['framework']} {row['version']}"),
        ("month", lambda row: row["date"][:7]),
        (
            "GPU, engine, release",
            lambda row: f"{row['gpu']} {row['framework']} {row['version']} {row['precision']}",
        ),
    ):
        groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in found:
            groups[way(row)].append(row)
        print(title)
        for which, members in sorted(groups.items()):
            show(f"  {which}", members)
    if arguments.json:
        arguments.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
