"""Pictures in prompts, end to end: sent, counted, and each of their findings made on purpose."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from conftest import BUSY_MACHINE, PIXTRAL, Loadstone, lines
from engines import launch
from loadstone.core.errors import InputError
from loadstone.core.pictures import PictureShape
from loadstone.measure.engines import llama_cpp
from loadstone.measure.engines.launch import serve
from loadstone.measure.engines.process import free_port
from loadstone.measure.simulated_server import FixedLatency, TimingServer, start
from loadstone.workload.pictures import draw_pixels, encode

pytestmark = pytest.mark.process

MODEL = "qwen3-vl-8b@1xh200"
FEW = "--input 64 --output 4 --warmup 0 --concurrency 2 --requests 12 --endpoint chat"
TWO_SIZES = "--image-size 64x64,640x640:0.5 --image-format png"


@pytest.fixture(scope="module")
def seeing() -> Iterator[TimingServer]:
    """A server that counts pictures as Qwen3-VL does, and takes two in a request."""
    with start(FixedLatency(), vision="qwen3-vl-8b", images=2) as server:
        yield server


def run_of(folder: Path) -> Path:
    return next(path.parent for path in folder.rglob("summary.json"))


def records(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(run_of(folder) / "records.parquet").to_pylist()
    return rows


def summary(folder: Path) -> Any:
    return json.loads((run_of(folder) / "summary.json").read_text())


def findings(folder: Path) -> dict[str, str]:
    cell = summary(folder)["cells"][0]
    return {found["kind"]: found["evidence"] for found in cell["verdict"]["findings"]}


def test_pictures_are_sent_counted_and_told_by_size(
    loadstone: Loadstone, seeing: TimingServer, tmp_path: Path
) -> None:
    asked = f"bench {seeing.url} {FEW} --images 1 {TWO_SIZES} --deployment {MODEL} --out {tmp_path}"
    done = loadstone(*asked.split())
    assert done.code == 0
    rows = records(tmp_path)
    assert {(row["pixels"], row["visual_tokens"]) for row in rows} == {(4096, 64), (409600, 400)}
    for row in rows:
        assert row["images"] == 1
        assert row["visual_tokens"] == row["visual_tokens_planned"]
        assert row["input_tokens"] == 64 + row["visual_tokens"]
        assert row["body_bytes"] > row["picture_bytes"] * 4 / 3 > 0
        assert row["sent_s"] <= row["sent_end_s"] <= row["end_s"]
    sizes = summary(tmp_path)["cells"][0]["by_size"]
    assert [part["size"] for part in sizes] == ["64x64", "640x640"]
    assert [part["visual_tokens"] for part in sizes] == [64, 400]
    assert sum(part["images"] for part in sizes) == 12
    kinds = findings(tmp_path).keys() - BUSY_MACHINE
    assert not [kind for kind in kinds if "image" in kind or "visual" in kind]
    assert "pictures" in done.out
    assert "640x640" in done.out
    info = json.loads((run_of(tmp_path) / "run.json").read_text())
    assert info["settings"]["pictures"]["library"] == "zlib"
    assert len(info["settings"]["pictures"]["sha256"]) == 64


@pytest.mark.parametrize("place", ["first", "last"])
@pytest.mark.parametrize("endpoint", ["messages", "responses"])
def test_every_api_that_takes_pictures_has_them_counted(
    loadstone: Loadstone, seeing: TimingServer, tmp_path: Path, endpoint: str, place: str
) -> None:
    """By the difference from the text, as these APIs have no count of their own."""
    asked = f"{FEW} --endpoint {endpoint} --images 1 {TWO_SIZES} --image-place {place}"
    loadstone(*f"bench {seeing.url} {asked} --deployment {MODEL} --out {tmp_path}".split())
    assert {row["input_tokens"] - 64 for row in records(tmp_path)} == {64, 400}
    sizes = summary(tmp_path)["cells"][0]["by_size"]
    assert [part["visual_tokens"] for part in sizes] == [64, 400]
    assert "images_dropped" not in findings(tmp_path)


PLANTS = {
    "images_dropped": ("{blind}", f"--images 1 {TWO_SIZES}", "12 of 12"),
    "images_refused": ("{seeing}", f"--images 3 {TWO_SIZES}", "At most 2 image"),
    "visual_tokens_differ": (
        "{seeing}",
        f"--images 1 {TWO_SIZES} --deployment google/gemma-3-27b-it@1xh200",
        "640x640 is 400 tokens at the server, 256 by the rule",
    ),
    "images_rescaled": ("{flat}", f"--images 1 {TWO_SIZES}", "stays at 256"),
}


@pytest.mark.parametrize("kind", PLANTS)
def test_what_happens_to_pictures_is_found(
    loadstone: Loadstone, seeing: TimingServer, timing: TimingServer, tmp_path: Path, kind: str
) -> None:
    target, asked, evidence = PLANTS[kind]
    with start(FixedLatency(), vision="google/gemma-3-27b-it") as flat:
        url = target.format(seeing=seeing.url, blind=timing.url, flat=flat.url)
        loadstone(*f"bench {url} {FEW} {asked} --out {tmp_path}".split())
    assert evidence in findings(tmp_path)[kind]


def test_a_bounded_rule_is_no_rescaling(loadstone: Loadstone, tmp_path: Path) -> None:
    with start(FixedLatency(), vision="google/gemma-3-27b-it") as flat:
        asked = f"{FEW} --images 1 {TWO_SIZES} --deployment google/gemma-3-27b-it@1xh200"
        loadstone(*f"bench {flat.url} {asked} --out {tmp_path}".split())
    assert "images_rescaled" not in findings(tmp_path)


def test_pictures_that_are_not_made_in_time_are_late(
    loadstone: Loadstone, seeing: TimingServer, tmp_path: Path
) -> None:
    asked = "--images 1 --image-size 1000x1000 --image-format png --image-content noise"
    load = "--input 64 --output 1 --warmup 0 --rate 500 --requests 12 --endpoint chat"
    loadstone(*f"bench {seeing.url} {load} {asked} --out {tmp_path}".split())
    assert "were not ready" in findings(tmp_path)["images_late"]
    assert {row["status"] for row in records(tmp_path)} == {"ok"}


def test_a_server_that_counts_nothing_leaves_it_unknown(
    loadstone: Loadstone, tmp_path: Path
) -> None:
    with start(FixedLatency(), vision="qwen3-vl-8b", usage="none") as server:
        loadstone(*f"bench {server.url} {FEW} --images 1 {TWO_SIZES} --out {tmp_path}".split())
    assert "image_count_unknown" in findings(tmp_path)


def test_the_same_pictures_come_from_a_cache_and_a_group_s_may(
    loadstone: Loadstone, tmp_path: Path
) -> None:
    load = "--input 64 --output 2 --warmup 0 --concurrency 1 --requests 6 --images 1"
    with start(MODEL) as engine:
        for folder, more in (
            ("new", ""), ("first", "--salt same"), ("again", "--salt same"),
            ("group", "--image-groups 1"),
        ):  # fmt: skip
            asked = f"bench {engine.url} {load} {more} --image-size 640x640 --image-format png"
            loadstone(*f"{asked} --endpoint chat --out {tmp_path / folder}".split())
    found = {
        folder: "image_cache_helped" in findings(tmp_path / folder)
        for folder in ("new", "first", "again", "group")
    }
    assert found == {"new": False, "first": False, "again": True, "group": False}
    assert max(row["cached_tokens"] for row in records(tmp_path / "group")) >= 400


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("--images 1 --endpoint completions", "chat"),
        ("--images 1 --image-size 6000x20 --deployment " + MODEL, "200 times"),
        ("--images 1 --image-format bmp", "jpeg:85"),
        ("--image-size 64x64", "--images"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    loadstone: Loadstone, seeing: TimingServer, tmp_path: Path, asked: str, message: str
) -> None:
    done = loadstone(*f"bench {seeing.url} {asked} --requests 2 --out {tmp_path}".split())
    assert done.code == 2
    assert message in done.err
    assert len(done.err.splitlines()) == 1


def png(width: int, height: int) -> bytes:
    shape = PictureShape(width, height, format="png")
    return encode(draw_pixels("k", width, height, "photo"), shape)


def data_url(file: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(file).decode()


def asking(*prompts: list[str]) -> str:
    """Write a data set whose prompts have these pictures."""
    items = [
        {"messages": [{"role": "user", "content": [
            {"type": "text", "text": "what is this"},
            *({"type": "image_url", "image_url": {"url": url}} for url in urls),
        ]}]}
        for urls in prompts
    ]  # fmt: skip
    return lines(*items)


def test_pictures_of_a_data_set_are_sent_and_planned(
    loadstone: Loadstone, seeing: TimingServer, tmp_path: Path
) -> None:
    large, small = png(640, 640), png(300, 200)
    (tmp_path / "cat.jpg").write_bytes(large)
    prompts = [["cat.jpg"], [data_url(large)], [data_url(small), "cat.jpg"], []]
    (tmp_path / "items.jsonl").write_text(asking(*prompts))
    asked = f"bench {seeing.url} --dataset {tmp_path / 'items.jsonl'} --output 4 --warmup 0"
    load = f"--concurrency 1 --requests 8 --out {tmp_path / 'runs'} --deployment {MODEL}"
    done = loadstone(*f"{asked} {load}".split())
    assert done.code == 0
    rows = records(tmp_path / "runs")
    facts = ("images", "pixels", "picture_bytes", "visual_tokens", "visual_tokens_planned")
    assert {tuple(row[name] for name in facts) for row in rows} == {
        (1, 409_600, len(large), 400, 400),
        (2, 469_600, len(large) + len(small), 470, 470),
        (None, None, None, None, None),
    }
    sizes = summary(tmp_path / "runs")["cells"][0]["by_size"]
    assert [(part["size"], part["images"], part["visual_tokens"]) for part in sizes] == [
        ("300x200 and 640x640", 4, 235),
        ("640x640", 4, 400),
    ]
    assert (
        not {"image_count_unknown", "input_length", "visual_tokens_differ"}
        & findings(tmp_path / "runs").keys()
    )
    again = f"--plan {run_of(tmp_path / 'runs')} --out {tmp_path / 'again'}"
    assert loadstone(*f"bench {seeing.url} {again}".split()).code == 0
    assert {row["visual_tokens"] for row in records(tmp_path / "again")} == {None, 400, 470}


def test_pictures_of_a_data_set_are_simulated_and_told_where_they_differ(
    loadstone: Loadstone, seeing: TimingServer, tmp_path: Path
) -> None:
    prompts = [[data_url(png(60 + 20 * n, 60 + 10 * n))] for n in range(40)]
    (tmp_path / "items.jsonl").write_text(asking(*prompts))
    asked = f"--dataset {tmp_path / 'items.jsonl'} --output 4 --warmup 0 --requests 40"
    load = f"{asked} --concurrency 2 --out"
    loadstone(*f"bench {seeing.url} {load} {tmp_path / 'bench'} --deployment {MODEL}".split())
    other = f"{tmp_path / 'other'} --deployment google/gemma-3-27b-it@1xh200"
    loadstone(*f"bench {seeing.url} {load} {other}".split())
    loadstone(*f"simulate {MODEL} {load} {tmp_path / 'simulated'}".split())
    measured, simulated = (
        summary(tmp_path / name)["cells"][0]["by_size"] for name in ("bench", "simulated")
    )
    assert [part["size"] for part in measured] == [
        "60x60 to 240x150", "260x160 to 440x250", "460x260 to 640x350", "660x360 to 840x450",
    ]  # fmt: skip
    for part, planned in zip(measured, simulated, strict=True):
        assert part["visual_tokens"] == part["visual_tokens_planned"]
        assert planned["visual_tokens_planned"] == part["visual_tokens"]
        assert planned["visual_tokens"] == part["visual_tokens"]
    targets = [
        json.loads((run_of(tmp_path / name) / "run.json").read_text())["target"]
        for name in ("bench", "simulated")
    ]
    assert [target["endpoint"] for target in targets] == ["chat", "chat"]
    facts = ("images", "pixels", "visual_tokens", "visual_tokens_planned")
    told = [
        sorted([row[name] for name in facts] for row in records(tmp_path / made))
        for made in ("bench", "simulated")
    ]
    assert told[0] == told[1]
    assert "840x450 is" in findings(tmp_path / "other")["visual_tokens_differ"]
    assert "for 40 sizes" in findings(tmp_path / "other")["visual_tokens_differ"]


def test_a_picture_that_a_processor_refuses_is_an_error_of_its_request(
    loadstone: Loadstone, seeing: TimingServer, tmp_path: Path
) -> None:
    (tmp_path / "items.jsonl").write_text(asking([data_url(png(2000, 8))]))
    asked = f"bench {seeing.url} --dataset {tmp_path / 'items.jsonl'} --output 4 --requests 2"
    loadstone(*f"{asked} --deployment {MODEL} --out {tmp_path / 'runs'}".split())
    assert "200 times" in findings(tmp_path / "runs")["images_refused"]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("https://example.com/cat.png", "http"),
        ("missing.png", "missing.png"),
        ("../secret.png", "beside"),
    ],
)
def test_pictures_that_lie_elsewhere_are_refused(
    loadstone: Loadstone, seeing: TimingServer, tmp_path: Path, url: str, message: str
) -> None:
    part = {"type": "image_url", "image_url": {"url": url}}
    item = {"messages": [{"role": "user", "content": [part]}]}
    (tmp_path / "items.jsonl").write_text(lines(item))
    asked = f"bench {seeing.url} --dataset {tmp_path / 'items.jsonl'} --output 4 --requests 2"
    done = loadstone(*f"{asked} --out {tmp_path / 'runs'}".split())
    assert done.code == 2
    assert message in done.err
    assert "line 1" in done.err


TINY = Path(__file__).resolve().parents[3] / "shared" / "data" / "tiny_models"
SIZES = "512x512,1024x768,1920x1080"
SPELT = 8
"""Tokens that the tiny vocabulary spells a mark of llama.cpp's with, beyond one."""


@contextlib.contextmanager
def seeing_llama(folder: Path, *more: str) -> Iterator[str]:
    """Serve the tiny model that sees with llama-server."""
    try:
        server = llama_cpp.find() or llama_cpp.fetch()
    except InputError as error:
        pytest.skip(str(error))
    url = f"http://127.0.0.1:{free_port()}"
    words = [
        str(server), "--model", str(TINY / "llama" / "tiny.gguf"), "--mmproj",
        str(TINY / "llama" / "mmproj.gguf"), "--port", url.rpartition(":")[2], "--host",
        "127.0.0.1", "--parallel", "1", "--ctx-size", "8192", "--no-warmup", *more,
    ]  # fmt: skip
    log = folder / "log"
    with serve(words, "llama.cpp", log_path=log, url=url, env=dict(os.environ), timeout_s=60):
        yield url


def repeat_a_file(
    loadstone: Loadstone, url: str, folder: Path, more: str = ""
) -> dict[str, dict[str, str]]:
    """Ask of one file twice, and then of another one with the same pixels: what is found."""
    image = pytest.importorskip("PIL.Image")
    pixels = draw_pixels("k", 320, 320, "noise")
    for name, level in (("first", 1), ("other", 9)):
        file = io.BytesIO()
        image.fromarray(pixels).save(file, "PNG", compress_level=level)
        (folder / f"{name}.jsonl").write_text(asking([data_url(file.getvalue())]))
    told = {}
    for name, file_name in (("first", "first"), ("same", "first"), ("other", "other")):
        asked = f"bench {url} --dataset {folder / file_name}.jsonl --output 2 --warmup 0"
        load = f"--concurrency 1 --requests 1 {more} --out {folder / name}"
        done = loadstone(*f"{asked} {load}".split())
        assert done.code == 0
        told[name] = findings(folder / name)
    return told


@pytest.mark.slow
@pytest.mark.skipif(not TINY.is_dir(), reason="shared/data/tiny_models is not beside this checkout")
@pytest.mark.parametrize(
    ("most", "sizes", "tokens"),
    [
        (None, SIZES, {1056, 999, 1032}),
        (4096, SIZES, {1056, 3120, 4128}),
        (4096, "320x320", {420}),
    ],
    ids=["bounded", "raised", "one size"],
)
def test_llama_server_bounds_pictures_as_its_rule_says(
    loadstone: Loadstone, tmp_path: Path, most: int | None, sizes: str, tokens: set[int]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PIXTRAL))
    of_engine = f"engine=llama.cpp{f',image_max_tokens={most}' if most else ''}"
    asked = f"--images 1 --image-size {sizes} --input 16 --output 2 --warmup 0 --concurrency 1"
    with seeing_llama(tmp_path, *(["--image-max-tokens", str(most)] if most else [])) as url:
        done = loadstone(
            *f"bench {url} {asked} --requests 12 --out {tmp_path}".split(),
            *("--deployment", f"{tmp_path}@1xh200/tp1,{of_engine}"),
        )
    assert done.code == 0
    rows = records(tmp_path)
    assert {row["visual_tokens_planned"] for row in rows} == tokens
    assert all(row["input_tokens"] == 16 + row["visual_tokens_planned"] + SPELT for row in rows)
    found = findings(tmp_path)
    assert ("images_rescaled" in found) == (most is None)
    assert most or "1,024" in found["images_rescaled"]
    assert "visual_tokens_differ" not in found


@pytest.mark.slow
@pytest.mark.skipif(not TINY.is_dir(), reason="shared/data/tiny_models is not beside this checkout")
def test_the_same_pixels_in_another_file_are_new_to_llama_server(
    loadstone: Loadstone, tmp_path: Path
) -> None:
    with seeing_llama(tmp_path) as url:
        again = repeat_a_file(loadstone, url, tmp_path, "--salt none")
    cached = [records(tmp_path / name)[0]["cached_tokens"] for name in ("first", "same", "other")]
    assert max(cached[0], cached[2]) < 10
    assert cached[1] > 400
    assert {name: "image_cache_helped" in found for name, found in again.items()} == {
        "first": False,
        "same": True,
        "other": False,
    }


@pytest.mark.slow
@pytest.mark.skipif(not TINY.is_dir(), reason="shared/data/tiny_models is not beside this checkout")
def test_vllm_counts_pictures_as_planned(loadstone: Loadstone, tmp_path: Path) -> None:
    program = launch._HOMES / "vllm" / "bin" / "vllm"
    if not program.exists():
        pytest.skip("vllm is not installed (scripts/engines/vllm)")
    url = f"http://127.0.0.1:{free_port()}"
    words = [
        str(program), "serve", str(TINY / "vlm"), "--served-model-name", "tiny", "--host",
        "127.0.0.1", "--port", url.rpartition(":")[2], "--dtype", "float32", "--max-model-len",
        "8192", "--enforce-eager", "--enable-prompt-tokens-details", "--limit-mm-per-prompt",
        '{"image": 2, "video": 0}',
    ]  # fmt: skip
    env = os.environ | launch.RECIPES["vLLM"].environment
    asked = f"--images uniform:1:2 --image-size 100x100,{SIZES} --input 40 --output 2 --warmup 0"
    load = f"--concurrency 2 --requests 12 --endpoint chat --out {tmp_path / 'run'}"
    with serve(words, "vLLM", log_path=tmp_path / "log", url=url, env=env, timeout_s=300):
        done = loadstone(
            *f"bench {url} {asked} {load}".split(),
            *("--deployment", f"{TINY / 'vlm'}@1xh200/tp1,engine=vllm"),
        )
        assert done.code == 0
        again = repeat_a_file(loadstone, url, tmp_path)
    rows = records(tmp_path / "run")
    assert {row["status"] for row in rows} == {"ok"}
    assert all(row["visual_tokens"] == row["visual_tokens_planned"] for row in rows)
    assert {name: "image_cache_helped" in found for name, found in again.items()} == {
        "first": False,
        "same": True,
        "other": False,
    }
    assert "1 picture the server had 1 prepared" in again["same"]["image_cache_helped"]
