"""Makes the pictures of docs/gallery.md, from simulated runs and, where given, other people's
result files.

    python benchmarks/gallery.py [--results FOLDER]      with dstack/ in it

Without --results the pictures that need them stay as they are.
"""

from __future__ import annotations

import argparse
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

import loadstone
from loadstone.analyse.compare.price import Prices
from loadstone.interop.read import import_files
from loadstone.predict.sizing.deployments import sizes
from loadstone.predict.sizing.options import SizeOptions
from loadstone.report.charts.sizing import contexts_picture, memory_picture
from loadstone.report.charts.theme import Figure, to_png
from loadstone.report.data.runs import read_runs
from loadstone.report.pages.document import Report, build

DOCS = Path(__file__).resolve().parents[1] / "docs"
PICTURES = DOCS / "pictures"
SCALE = 1.6
"""Pixels per unit of length: read at a third of that in a table of three."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--results", type=Path, help="folder of published results")
    given = parser.parse_args()
    PICTURES.mkdir(exist_ok=True)
    with TemporaryDirectory() as folder:
        for name, report in _reports(Path(folder), given.results):
            for figure in [
                *report.figures,
                *(each for part in report.parts for each in part.figures),
            ]:
                wanted = WANTED.get((name, figure.key))
                if wanted is not None:
                    save(figure, wanted)
    for name, found in _sizing():
        save(found, name)
    print(f"pictures are in {PICTURES}")


WANTED = {
    ("dstack", "throughput-e2e"): "throughput-latency",
    ("dstack", "ttft-by-output"): "ttft-by-output",
    ("dstack", "tpot-by-load"): "tpot-by-load",
    ("dstack", "prefix-ttft"): "prefix",
    ("dstack", "offline-total_tok_s-by-load"): "offline",
    ("dstack", "gpus-H200-MI300X"): "gpus",
    ("both", "predicted-tpot"): "predicted",
    ("simulated", "pareto"): "pareto",
    ("simulated", "price"): "price",
    ("simulated", "parallel-output_tok_s"): "parallel",
    ("simulated", "run-1-spread-ttft"): "spread",
    ("simulated", "run-1-cdf-ttft"): "cdf",
    ("simulated", "run-1-timeline"): "timeline",
    ("simulated", "run-1-gaps"): "gaps",
}


def _reports(folder: Path, results: Path | None) -> Iterable[tuple[str, Report]]:
    for deployment in (
        "llama-3.1-70b@4xh200/tp4",
        "llama-3.1-70b@4xh200/tp2,dp2",
        "llama-3.1-70b@4xh100/tp4",
    ):
        loadstone.simulate(
            deployment, input="1024", output="256", range_ratio=0.5, concurrency=[1, 4, 16, 64, 256], requests=[600],
            out=folder / "simulated",
        )  # fmt: skip
    yield (
        "simulated",
        build(read_runs([folder / "simulated"])[0], prices=Prices(h200=3.2, h100=2.1)),
    )
    if results is not None:
        files = [results / "dstack" / f"{kind}_results.csv" for kind in ("online", "offline")]
        import_files(files, folder / "dstack", given=["model=deepseek-ai/DeepSeek-R1", "gpus=8"])
        yield "dstack", build(read_runs([folder / "dstack"])[0])
        # As dstack's server and client were; the coefficients of that release were fitted on these
        # very runs.
        loadstone.simulate(
            "deepseek-r1@8xh200/tp1,dp8,attention-dp,engine=sglang,version=0.4.3", input="3200", output="800",
            concurrency=[4, 8, 16, 32, 64, 128], requests=[500], warmup=0, out=folder / "both",
        )  # fmt: skip
        import_files(
            files[:1],
            folder / "both",
            given=["model=deepseek-ai/DeepSeek-R1", "gpus=8", "tp=1", "dp=8"],
        )
        yield "both", build(read_runs([folder / "both"])[0])


def _sizing() -> Iterable[tuple[str, Figure]]:
    models = ["llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "mixtral-8x22b", "deepseek-v3"]
    yield (
        "contexts",
        contexts_picture(sizes(SizeOptions(models=models, gpu=("h200",), gpus=(1, 2, 4, 8)))),
    )
    yield (
        "memory",
        memory_picture(sizes(SizeOptions(models=models[1:3], gpu=("h200",), gpus=(2, 4, 8)))),
    )


def save(figure: Figure, name: str) -> None:
    path = PICTURES / f"{name}.png"
    path.write_bytes(smaller(to_png(figure, scale=SCALE)))
    print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB, {figure.title}")


def smaller(png: bytes) -> bytes:
    """The same picture with 256 colours at most: charts have few, and take a sixth of the room
    then."""
    pixels = _pixels(png)
    for bits in range(8, 2, -1):
        step = 1 << (8 - bits)
        coarse = np.minimum(255, (pixels.astype(np.int64) + step // 2) // step * step)
        colours, index = np.unique(coarse.reshape(-1, 3), axis=0, return_inverse=True)
        if len(colours) <= 256:
            break
    height, width, _ = pixels.shape
    lines = np.zeros((height, width + 1), np.uint8)
    lines[:, 1:] = index.reshape(height, width)
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    body = zlib.compress(lines.tobytes(), 9)
    parts = (
        (b"IHDR", head),
        (b"PLTE", colours.astype(np.uint8).tobytes()),
        (b"IDAT", body),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def _pixels(png: bytes) -> NDArray[np.uint8]:
    """Height × width × 3 of an RGBA PNG of 8 bits, not interlaced, on white. PNG specification,
    9.2: filters."""
    at, data, width, height = 8, b"", 0, 0
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at : at + 8])
        chunk = png[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, height = struct.unpack(">II", chunk[:8])
        elif kind == b"IDAT":
            data += chunk
        at += 12 + length
    raw = np.frombuffer(zlib.decompress(data), np.uint8).reshape(height, 1 + 4 * width)
    rows = np.zeros((height, width, 4), np.int64)
    above = np.zeros((width, 4), np.int64)
    for y in range(height):
        line = raw[y, 1:].reshape(width, 4).astype(np.int64)
        rows[y] = above = _unfiltered(int(raw[y, 0]), line, above)
    alpha = rows[..., 3:] / 255
    return np.rint(rows[..., :3] * alpha + 255 * (1 - alpha)).astype(np.uint8)


def _unfiltered(kind: int, line: NDArray[np.int64], above: NDArray[np.int64]) -> NDArray[np.int64]:
    if kind == 0:
        return line
    if kind == 1:
        return np.cumsum(line, axis=0) % 256
    if kind == 2:
        return (line + above) % 256
    out = np.zeros_like(line)
    left, corner = np.zeros(4, np.int64), np.zeros(4, np.int64)
    for x in range(len(line)):
        up = above[x]
        if kind == 3:
            guess = (left + up) // 2
        else:
            near = left + up - corner
            a, b, c = abs(near - left), abs(near - up), abs(near - corner)
            guess = np.where((a <= b) & (a <= c), left, np.where(b <= c, up, corner))
        out[x] = (line[x] + guess) % 256
        left, corner = out[x], up
    return out


if __name__ == "__main__":
    main()
