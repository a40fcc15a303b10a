"""Pictures in prompts: what is asked for, and that they are always the same."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import PIXTRAL
from loadstone.catalogue import parse_deployment
from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.core.pictures import PictureShape
from loadstone.core.plan import Plan
from loadstone.measure.wire.wire import find_wire
from loadstone.runs.pictures import count_visual_tokens
from loadstone.workload.files import BadItem
from loadstone.workload.media import embed_files
from loadstone.workload.options import Options
from loadstone.workload.picture_files import read_picture
from loadstone.workload.pictures import PictureWriter, draw_pixels, encode
from loadstone.workload.planning import plan_of
from loadstone.workload.prompts import PromptWriter, Vocabulary

WORDS = Vocabulary("text", words=("the", "cat", "sat"))


def planned(**options: Any) -> Plan:
    return plan_of(Options.read(concurrency="2", requests="40", input="32", output="4", **options))


def test_each_request_has_the_pictures_that_are_asked_for() -> None:
    plan = planned(images="uniform:1:3", image_size="64x48,32x16:0.25")
    requests = [request.pictures for request in plan]
    assert all(pictures is not None for pictures in requests)
    assert {pictures.images for pictures in requests if pictures} == {1, 2, 3}
    sizes = [pictures.shape.size for pictures in requests if pictures]
    assert set(sizes) == {"64x48", "32x16"}
    assert 0.1 < sizes.count("32x16") / len(sizes) < 0.45
    assert all(pictures.group is None for pictures in requests if pictures)


def test_some_requests_have_no_picture_where_the_number_may_be_0() -> None:
    counts = [
        request.pictures and request.pictures.images for request in planned(images="uniform:0:2")
    ]
    assert {1, 2} < {count or 0 for count in counts} == {0, 1, 2}
    assert planned(images="0").pictures is None


def test_text_draws_what_it_draws_without_pictures() -> None:
    plain, pictured = planned(), planned(images="1")
    assert plain.pictures is None
    for name in Plan.COLUMNS:
        np.testing.assert_array_equal(getattr(plain, name), getattr(pictured, name))
    assert plain.plan_id != pictured.plan_id


def test_a_uniform_size_lies_between_its_bounds_and_a_group_has_one_size() -> None:
    plan = planned(images="1", image_size="uniform:64x64:128x256", image_groups=3)
    by_group: dict[Any, set[str]] = {}
    for request in plan:
        assert request.pictures is not None
        shape = request.pictures.shape
        assert 64 <= shape.width <= 128
        assert 64 <= shape.height <= 256
        by_group.setdefault(request.pictures.group, set()).add(shape.size)
    assert sorted(by_group) == [0, 1, 2]
    assert all(len(sizes) == 1 for sizes in by_group.values())


def test_a_plan_with_pictures_is_stored_and_read(tmp_path: Path) -> None:
    plan = planned(images="uniform:1:2", image_size="uniform:64x64:128x256", image_groups=5)
    run_folder.write_plan(tmp_path / "plan.parquet", plan)
    assert run_folder.read_plan(tmp_path / "plan.parquet").plan_id == plan.plan_id


def test_classes_have_pictures_of_their_own() -> None:
    classes = [
        "text,share=0.5,input=32,output=4",
        "large,share=0.25,input=32,output=4,images=2,image_size=640x480",
        "small,share=0.25,input=32,output=4,images=1,image_size=64x48,image_format=png",
    ]
    plan = plan_of(Options.read(rate="10", requests="40", classes=classes))
    seen = {
        (
            request.traffic_class,
            request.pictures and (request.pictures.images, request.pictures.shape.size),
        )
        for request in plan
    }
    assert seen == {(0, None), (1, (2, "640x480")), (2, (1, "64x48"))}


def asking(folder: Path, name: str, *prompts: list[bytes]) -> Path:
    """Write a data set whose prompts have these files."""
    rows = []
    for files in prompts:
        urls = [f"data:image/png;base64,{base64.b64encode(file).decode()}" for file in files]
        parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        words = {"type": "text", "text": "what is this"}
        rows.append({"messages": [{"role": "user", "content": [words, *parts]}]})
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_classes_have_pictures_of_their_own_data_sets(tmp_path: Path) -> None:
    small, large = (
        encode(draw_pixels("k", side, side, "solid"), PictureShape(side, side, format="png"))
        for side in (32, 64)
    )
    first = asking(tmp_path, "first", [small], [small, large])
    second = asking(tmp_path, "second", [large], [])
    classes = [f"{path.stem},share=0.5,output=4,dataset={path}" for path in (first, second)]
    plan = plan_of(Options.read(rate="10", requests="40", classes=classes))
    seen = {
        (
            request.traffic_class,
            request.pictures and (request.pictures.images, request.pictures.shape.size),
        )
        for request in plan
    }
    assert seen == {(0, (1, "32x32")), (0, (2, "32x32 and 64x64")), (1, (1, "64x64")), (1, None)}
    run_folder.write_plan(tmp_path / "plan.parquet", plan)
    assert run_folder.read_plan(tmp_path / "plan.parquet").plan_id == plan.plan_id
    with pytest.raises(InputError, match="pictures of their own"):
        plan_of(Options.read(rate="10", dataset=str(first), output="4", images="1"))


def test_a_picture_is_turned_as_the_engine_does(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PIXTRAL))
    path = asking(tmp_path, "turned", [file_of("JPEG", (640, 320), exif=camera(6))])
    plan = plan_of(Options.read(rate="10", requests="4", dataset=str(path), output="4"))
    tokens = {}
    for engine in ("vllm", "sglang"):
        deployment = parse_deployment(f"{tmp_path}@1xh200/engine={engine}")
        pictures = count_visual_tokens(plan, deployment, None).pictures
        assert pictures is not None
        tokens[engine] = pictures.shapes[0].tokens
    assert tokens == {"vllm": 40 * 21, "sglang": 20 * 41}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": "64x64"}, "--images"),
        ({"images": "-1"}, "--images"),
        ({"images": "99"}, "at most 64"),
        ({"images": "1", "image_size": "64"}, "--image-size"),
        ({"images": "1", "image_size": "64x64:-1"}, "weight"),
        ({"images": "1", "image_size": "64x64:1,32x32"}, "nothing is left"),
        ({"images": "1.5"}, "--images: write a whole number from 0"),
        ({"images": "normal:0:1"}, "--images: write a number from 1"),
        ({"images": "1", "image_size": "uniform:64x64:32x32"}, "smallest"),
        ({"images": "1", "image_size": "uniform:64x64"}, "smallest"),
        ({"images": "1", "image_format": "gif"}, "--image-format gif"),
        ({"images": "1", "image_format": "png:9"}, "--image-format png:9"),
        ({"images": "1", "image_format": "jpeg:99"}, "1 to 95"),
        ({"images": "1", "image_content": "cat"}, "image-content"),
        ({"images": "1", "image_groups": 0}, "image-groups"),
    ],
)
def test_odd_pictures_are_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        planned(**options)
    assert "\n" not in str(error.value)


DIGESTS = {
    "photo": "93ebb9fe55ffa88e",
    "noise": "7c6e23f4fb2f3bb5",
    "solid": "a6359fe0ced3bee5",
}


@pytest.mark.parametrize("content", DIGESTS)
def test_pixels_are_the_same_everywhere(content: str) -> None:
    pixels = draw_pixels("0/salt/picture/0-0-0", 100, 70, content)
    assert pixels.shape == (70, 100, 3)
    assert hashlib.sha256(pixels.tobytes()).hexdigest()[:16] == DIGESTS[content]


def test_pictures_are_new_after_any_scaling_down() -> None:
    small = [
        draw_pixels(f"k{number}", 640, 480, "photo")[::64, ::64].tobytes() for number in range(50)
    ]
    assert len(set(small)) == 50


def test_files_hold_the_pixels_and_say_their_size() -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = draw_pixels("k", 90, 33, "photo")
    png, jpeg = (
        encode(pixels, PictureShape(90, 33, format="png")),
        encode(pixels, PictureShape(90, 33)),
    )
    assert np.array_equal(np.asarray(image.open(io.BytesIO(png))), pixels)
    off = np.asarray(image.open(io.BytesIO(jpeg))).astype(int) - pixels
    assert np.abs(off).mean() < 5
    found = [read_picture(file) for file in (png, jpeg)]
    assert [(each.media, each.size[:2]) for each in found if each] == [
        ("image/png", (90, 33)),
        ("image/jpeg", (90, 33)),
    ]


def file_of(form: str, size: tuple[int, int], **options: Any) -> bytes:
    image = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    image.new("RGB", size, (9, 99, 199)).save(file, form, **options)
    return file.getvalue()


def camera(orientation: int) -> bytes:
    exif = pytest.importorskip("PIL.Image").Exif()
    exif[0x0112] = orientation
    exif[0x010F] = "camera"
    return bytes(exif.tobytes())


FILES: dict[str, tuple[str, dict[str, Any], bool]] = {
    "image/png": ("PNG", {}, False),
    "image/png upright": ("PNG", {"exif": 8}, True),
    "image/png turned over": ("PNG", {"exif": 3}, False),
    "image/gif": ("GIF", {}, False),
    "image/jpeg": ("JPEG", {"progressive": True}, False),
    "image/jpeg upright": ("JPEG", {"exif": 6}, True),
    "image/jpeg turned over": ("JPEG", {"exif": 3}, False),
    "image/webp lossy": ("WEBP", {}, False),
    "image/webp lossless": ("WEBP", {"lossless": True}, False),
    "image/webp extended": ("WEBP", {"exif": 1}, False),
    "image/webp upright": ("WEBP", {"exif": 6}, True),
}


@pytest.mark.parametrize("kind", FILES)
def test_files_of_a_data_set_say_their_size_without_a_library(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    form, options, turned = FILES[kind]
    if "exif" in options:
        options = {"exif": camera(options["exif"])}
    file = file_of(form, (301, 77), **options)
    monkeypatch.setattr("loadstone.workload.picture_files.find_spec", lambda name: None)
    found = read_picture(file)
    assert found is not None
    assert (found.media, found.size) == (kind.partition(" ")[0], (301, 77, turned))
    # Wherever it breaks off, it has this size or none; a WebP's says last how it is turned.
    broken = {read_picture(file[:end]) for end in range(len(file))}
    assert broken == ({None} if form == "WEBP" and "exif" in options else {None, found})


def test_other_formats_are_read_with_the_library() -> None:
    assert read_picture(file_of("TIFF", (30, 20))) == ("image/tiff", (30, 20, False))
    assert read_picture(b"") is None
    assert read_picture(b"<svg width='30' height='20'/>") is None


def test_broken_files_have_no_size_and_do_no_harm() -> None:
    rng = np.random.default_rng(0)
    heads = [file_of("JPEG", (30, 20), exif=camera(6)), file_of("WEBP", (30, 20))]
    heads += [file_of("PNG", (30, 20)), b"\xff\xd8" + b"\xff" * 500, b"\xff\xd8\xff\xe1\0\0"]
    for head in heads:
        for _ in range(300):
            file = np.frombuffer(head, np.uint8).copy()
            file[rng.integers(2, len(file), 3)] = rng.integers(0, 256, 3)
            found = read_picture(file.tobytes())
            assert found is None or all(1 <= side <= 65_535 for side in found.size[:2])
    huge = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (10**9).to_bytes(4, "big") * 2
    assert read_picture(huge) is None


def test_jpeg_without_its_library_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadstone.core.extras.find_spec", lambda name: None)
    pixels = draw_pixels("k", 9, 9, "photo")
    with pytest.raises(InputError, match=r"--image-format jpeg: PIL .*loadstone\[images\]"):
        encode(pixels, PictureShape(9, 9))
    assert encode(pixels, PictureShape(9, 9, format="png")).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("endpoint", "path"),
    [
        ("chat", ["image_url", "url"]),
        ("responses", ["image_url"]),
        ("messages", ["source", "data"]),
    ],
)
def test_each_api_gets_pictures_in_its_own_words(endpoint: str, path: list[str]) -> None:
    plan = planned(images="2", image_size="40x20", image_format="png", image_place="last")
    assert plan.pictures is not None
    prompts = PromptWriter(WORDS, seed=plan.seed, salt="s", chat=True)
    prompt = prompts.write(plan.request(0, 3))
    spell = find_wire(endpoint).spell
    if spell is not None:
        prompt = spell(prompt, None)
    writer = PictureWriter(plan.pictures.shapes, seed=plan.seed, salt="s")
    filled = writer.fill(b'{"messages":%b}' % prompt.partition(b',"instructions"')[0])
    content = json.loads(filled.body)["messages"][0]["content"]
    assert len(content) == 3
    assert content[0]["type"] in ("text", "input_text")
    files = []
    for part in content[1:]:
        found = part
        for step in path:
            found = found[step]
        files.append(found.rpartition(",")[2])
    assert len(set(files)) == 2
    found = read_picture(base64.b64decode(files[0]))
    assert found is not None
    assert found.size[:2] == (40, 20)
    assert filled.picture_bytes == pytest.approx(sum(map(len, files)) * 3 / 4, abs=4)


def test_groups_share_files_and_others_do_not() -> None:
    shapes = planned(images="1", image_size="40x20", image_format="png").pictures
    assert shapes is not None
    writer = PictureWriter(shapes.shapes, seed=0, salt="s")
    mark = b"\\u0002picture:0:%b\\u0003"
    assert writer.fill(mark % b"0/1-0") == writer.fill(mark % b"0/1-0")
    assert writer.fill(mark % b"0-1-0") != writer.fill(mark % b"0-2-0")
    assert PictureWriter(shapes.shapes, seed=0, salt="t").fill(mark % b"0-1-0") != writer.fill(
        mark % b"0-1-0"
    )


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "image_url", "image_url": {"url": ""}}, "image_url has no url"),
        ({"type": "image_url"}, "image_url has no url"),
        ({"type": "input_audio"}, "input_audio has no data"),
        ({"type": "input_audio", "input_audio": {"data": ""}}, "input_audio has no data"),
    ],
)
def test_media_that_hold_nothing_are_told(
    tmp_path: Path, part: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadItem, match=message):
        embed_files({"messages": [{"role": "user", "content": [part]}]}, tmp_path)
