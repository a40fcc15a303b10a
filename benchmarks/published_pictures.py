"""Prompts with pictures against what others published: `python benchmarks/published_pictures.py [--write]`.

The seven squares are the time in the tower of Qwen3.5-27B on an RTX 3090 (published beside a port, ninfer-3090's pull
request 78), to which e₀ and the share of the peak were fitted. Nothing was fitted to the others: the rows of
`picture_points.csv` whose column `excluded` is empty, of all requests and the whole time, as those tools count. There, `text` are the tokens of a prompt beside its pictures, as
the client's sums say, with the template's. `picture_models.json` has the shapes of models that the catalogue lacks.
"""

import argparse
import csv
import json
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from loadstone import open_run, simulate
from loadstone.analyse.other_tools import summarise_as
from loadstone.catalogue.deployment.shorthand import parse_worker
from loadstone.engines import rules_of
from loadstone.predict.step_time.pictures import picture_times

HERE = Path(__file__).parent
OUT = HERE / "results" / "published_pictures.md"
SQUARES_MS = {224: 15.1, 448: 27.2, 672: 56.0, 896: 112.0, 1120: 181.5, 1344: 300.0, 1568: 475.0}
PROCESSORS: dict[str, dict[str, Any]] = {
    "qwen2_5_vl": {"patch_size": 14, "merge_size": 2, "min_pixels": 3136, "max_pixels": 12845056},
}
REMARK = """
Under load the host decides: before one processor prepared one request after another, as engines' code does, half of
these numbers were off by more than 39 %. They were seen before that was decided, though no coefficient was set by them.
What is left: SGLang 0.5.6 over 8 GPUs takes 0.45 to 0.58 s for each request
under 100 users, one after another from the first on, of which a request alone shows nothing; a transfer of 44 MB of
pixels to each rank explains a part at most."""
UNITS = {"ttft_ms_median": "ms", "ttft_ms_mean": "ms", "requests_per_s": "1/s"}


class Row(NamedTuple):
    """What was measured and predicted, in `unit`."""

    what: str
    metric: str
    measured: float
    predicted: float
    fitted: bool = False

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def squares() -> list[Row]:
    """Return the times in the tower."""
    times = picture_times(rules_of(parse_worker("Qwen/Qwen3.5-27B@1xrtx-3090/tp1")))
    assert times is not None
    made = {side: times.encode_s([times.picture(side, side)]) for side in SQUARES_MS}
    return [
        Row(f"tower, {side}x{side}, RTX 3090", "ms", measured, 1e3 * made[side], fitted=True)
        for side, measured in SQUARES_MS.items()
    ]


def points() -> list[dict[str, str]]:
    with (HERE / "picture_points.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def served(point: dict[str, str], folder: Path) -> Iterator[Row]:
    """Yield what a server was measured with."""
    models = json.loads((HERE / "picture_models.json").read_text())
    name = point["model"]
    if name in models:
        config, name = models[name], str(folder / name)
        Path(name).mkdir(exist_ok=True)
        (Path(name) / "config.json").write_text(json.dumps(config))
        processor = PROCESSORS.get(config["model_type"])
        if processor is not None:
            (Path(name) / "preprocessor_config.json").write_text(json.dumps(processor))
    summary: Any = simulate(
        f"{name}@{point['hardware']}",
        images=point["images"],
        image_size=point["size"],
        input=point["text"],
        output=point["output"],
        requests=int(point["requests"]),
        draws=0,
        warmup=0,
        start="together" if point["load"] == "concurrency" else None,
        out=str(folder / "runs"),
        **{point["load"]: point["value"]},
    )
    told = summarise_as("vllm", open_run(summary.run_dir).records().to_batches).metrics
    predicted = {
        "ttft_ms_median": told["median_ttft_ms"],
        "ttft_ms_mean": told["mean_ttft_ms"],
        "requests_per_s": told["request_throughput"],
    }
    what = (
        f"{point['model'].split('/')[-1]}, {point['hardware'].split('/')[0]}, {point['images']} ×"
    )
    what += f" {point['size']}, {point['load']} {point['value']}"
    for metric, value in predicted.items():
        if point[metric]:
            assert value is not None
            yield Row(what, metric, float(point[metric]), value)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    listed = points()
    used = [point for point in listed if not point["excluded"]]
    with tempfile.TemporaryDirectory() as folder:
        rows = squares() + [row for point in used for row in served(point, Path(folder))]
    lines = [
        "| what | metric | measured | predicted | error | fitted |",
        "|---|---|---:|---:|---:|---|",
    ]
    lines += [
        f"| {row.what} | {row.metric} | {row.measured:g} | {row.predicted:.4g} | {row.error:+.0%} |"
        f" {'yes' if row.fitted else 'no'} |"
        for row in rows
    ]
    apart = [row for row in rows if not row.fitted]
    for metrics, name in (
        (tuple(UNITS), "all"),
        (tuple(UNITS)[:2], "TTFT"),
        (("requests_per_s",), "requests/s"),
    ):
        errors = [abs(row.error) for row in apart if row.metric in metrics]
        lines.append(
            f"\nMedian |error|, not fitted, {name}: {statistics.median(errors):.0%} of {len(errors)} numbers."
        )
    lines.append(REMARK)
    lines += ["\n## Published, not used\n", "| source | model | why |", "|---|---|---|"]
    lines += [
        f"| {point['source']} | {point['model'] or '?'} | {point['excluded']} |"
        for point in listed
        if point["excluded"]
    ]
    text = "\n".join(["# Pictures against published figures", "", *lines]) + "\n"
    print(text)
    if given.write:
        OUT.write_text(text)


if __name__ == "__main__":
    main()
