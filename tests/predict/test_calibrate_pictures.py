"""What calibration learns of pictures, against servers and engines whose times are known."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from conftest import Loadstone, Outcome, lines
from loadstone.calibrate.cases import Case, middle_of, simulate
from loadstone.calibrate.points import Point
from loadstone.calibrate.update import update
from loadstone.catalogue.deployment.shorthand import parse_deployment
from loadstone.core.errors import InputError
from loadstone.core.pictures import Pictures, PictureShape
from loadstone.measure.simulated_server import FixedLatency, TimingServer, start
from loadstone.predict.scheduler import policy_of
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.fleet import fleet_of
from loadstone.predict.simulator.uncertainty import split_error, sum_causes
from loadstone.predict.step_time import StepModel
from loadstone.predict.step_time.pictures import TERMS
from loadstone.predict.step_time.profile import Profile, load, profile_of, save
from loadstone.predict.step_time.work import work_of
from loadstone.runs.calibrate import cases_of_runs
from loadstone.workload.draw import stagger
from loadstone.workload.pictures import draw_pixels, encode

QWEN = "qwen3-vl-8b@1xh100"
DEPLOYMENT = parse_deployment(QWEN)
TEXT, ANSWER = 64, 32
TRUTH = {"picture_s": 6e-3, "pixel_s": 90e-9, "fixed_s": 20e-3, "peaks": 3.0}


def case_of(row: int, side: int, users: int) -> Case:
    """Return a closed loop of pictures of a size; 0: of text alone."""
    count, worker = 12 * users, DEPLOYMENT.worker
    inputs, pictures = np.full(count, TEXT, np.int64), None
    if side:
        model = StepModel(worker)
        assert model.pictures is not None
        tokens = model.pictures.encoder.visual.count(side, side).tokens
        zeros, one = np.zeros(count, np.int32), PictureShape(side, side, tokens=tokens)
        pictures = Pictures((one,), zeros, np.ones(count, np.uint8), zeros - 1)
        inputs += tokens
    outputs = stagger(np.full(count, ANSWER, np.int32), users).astype(np.int64)
    point = Point(row=row, load="concurrency", load_value=float(users), stat="median")
    policy = policy_of(worker, lengths=inputs + outputs)
    work = work_of(worker)
    return Case(
        point, DEPLOYMENT, users, policy, inputs, outputs, work, warm=users, pictures=pictures
    )


def predicted_s(case: Case, profile: Profile) -> float:
    terms = None if profile.pictures is None else np.array(profile.pictures.logarithms)
    outcome, _ = simulate(case, profile.values(), terms)
    return float(np.mean(outcome.ttft_s))


def measured(case: Case, profile: Profile) -> Case:
    """Return the case with the times of an engine that is the profile's, with TRUTH."""
    outcome, _ = simulate(case, profile.values(), np.log(list(TRUTH.values())))
    middle = middle_of(case)
    ttft_s, tpot_s = float(middle(outcome.ttft_s)), float(middle(outcome.tpot_s))
    return replace(case, point=msgspec.structs.replace(case.point, ttft_s=ttft_s, tpot_s=tpot_s))


LEARNED = {
    "two sizes": ([(256, 1), (1280, 1)], [(768, 1), (1024, 1)]),
    "users": ([(256, 1), (1280, 1), (1280, 4)], [(768, 1), (768, 4), (1024, 4)]),
}


@pytest.mark.parametrize(("cells", "held_out"), LEARNED.values(), ids=LEARNED)
def test_two_sizes_tell_what_a_third_takes(
    cells: list[tuple[int, int]], held_out: list[tuple[int, int]], tmp_path: Path
) -> None:
    """What a picture takes is found again within a few per cent, and another size and load are
    predicted within ten; before, they were a third off."""
    base = profile_of(DEPLOYMENT.worker)
    cases = [
        measured(case_of(row, side, users), base) for row, (side, users) in enumerate(cells, 1)
    ]
    made = load(save(update(base, cases, "p", "2026-01-01").profile, tmp_path))
    truth = replace_terms(base)
    for side, users in [*cells, *held_out]:
        case = case_of(9, side, users)
        right, found = predicted_s(case, truth), predicted_s(case, made)
        assert found == pytest.approx(right, rel=0.1 if (side, users) in held_out else 0.05)
        assert not side or predicted_s(case, base) < 0.75 * right


def replace_terms(profile: Profile) -> Profile:
    """Return the profile of the engine that was measured."""
    model = StepModel(DEPLOYMENT.worker, profile)
    assert model.pictures is not None
    terms = msgspec.structs.replace(
        model.pictures.terms, logarithms=tuple(np.log(list(TRUTH.values())).tolist())
    )
    return msgspec.structs.replace(profile, pictures=terms)


def test_intervals_are_widest_where_nothing_was_measured() -> None:
    """One size tells its own time; of another it tells less, and text alone nothing."""
    base = profile_of(DEPLOYMENT.worker)

    def spread(profile: Profile, side: int) -> float:
        models = StepModel(DEPLOYMENT.worker, profile).draws(200, 0)
        drawn = []
        for model in models:
            assert model.pictures is not None
            picture = model.pictures.picture(side, side)
            drawn.append(picture.prepare_s + model.pictures.encode_s([picture]))
        return float(np.std(np.log(drawn)))

    cells = [measured(case_of(row, side, 1), base) for row, side in enumerate((0, 1024), 1)]
    made = update(base, cells, "p", "2026-01-01").profile
    assert made.pictures is not None
    assert spread(made, 1024) < 0.5 * spread(base, 1024)
    assert spread(made, 1024) < 0.7 * spread(made, 128)
    text = update(base, cells[:1], "p", "2026-01-01").profile
    assert text.pictures is None
    assert spread(text, 1024) == pytest.approx(spread(base, 1024), rel=0.05)


def test_bounds_know_how_sure_pictures_are(tmp_path: Path) -> None:
    """Of guessed pictures a first token is as unsure as their share of it is; measured ones leave
    less."""
    base = profile_of(DEPLOYMENT.worker)
    cells = [measured(case_of(row, side, 1), base) for row, side in enumerate((256, 1024), 1)]
    path = save(update(base, cells, "p", "2026-01-01").profile, tmp_path)
    held_out = case_of(9, 1024, 1)
    pictures = []
    for profile in (None, str(path)):
        fleet = fleet_of(DEPLOYMENT, profile=profile)
        causes = split_error(run_cell(held_out.plan(), 0, fleet), fleet)
        pictures.append(causes["the times of pictures"][0, 0])
        assert sum_causes(causes).covariance[0, 0] > 0
    guessed, learned = pictures
    assert 0.1**2 < guessed < (np.log(2) / 1.28) ** 2
    assert learned < 0.5 * guessed


# --- from runs ------------------------------------------------------------------------------------

LOAD = f"--input {TEXT} --output 8 --warmup 0 --concurrency 1 --requests 16 --endpoint chat"
ENCODE_S = 0.05


@pytest.fixture(scope="module")
def seeing() -> Iterator[TimingServer]:
    latency = FixedLatency(ttft_s=0.03, itl_s=0.005, encode_s=ENCODE_S)
    with start(latency, vision="qwen3-vl-8b") as server:
        yield server


def ttft_s(outcome: Outcome) -> float:
    seconds: float = outcome.cell["metrics"]["ttft_s"]["p50"]
    return seconds


@pytest.mark.process
def test_the_command_learns_a_fixed_encoder(
    loadstone: Loadstone, seeing: TimingServer, tmp_path: Path
) -> None:
    """Of a server that takes 50 ms for whatever picture: two sizes say so, one leaves it open."""

    def measure(size: str) -> Outcome:
        asked = f"{LOAD} --images 1 --image-size {size} --image-format png --deployment {QWEN}"
        return loadstone("bench", seeing.url, *asked.split(), "--out", tmp_path / size, "--json")

    runs = {size: measure(size) for size in ("64x64", "640x640")}
    folders = [run.folder for run in runs.values()]
    kept = ("--out", tmp_path / "profiles", "--force")
    one = loadstone("calibrate", folders[1], *kept)
    assert "pictures of 640x640: what one takes is learned as a whole" in one.out
    two = loadstone("calibrate", *folders, *kept)
    assert "pictures of 64x64, 640x640: learned what they take together" in two.out
    assert TERMS["fixed_s"] in two.out
    document = json.loads(loadstone("calibrate", *folders, *kept, "--json").out)
    assert document["pictures"]["sizes"] == ["64x64", "640x640"]
    assert "fixed_s" in document["pictures"]["learned"]

    load_alike = LOAD.replace("--endpoint chat", "--images 1 --image-size 320x480")
    simulated = loadstone(
        *f"simulate {QWEN} {load_alike} --json --out {tmp_path}".split(),
        "--profile", tmp_path / "profiles" / "mine.json",
    )  # fmt: skip
    assert ttft_s(simulated) == pytest.approx(0.03 + ENCODE_S, rel=0.1)
    found = [each["kind"] for each in simulated.cell["verdict"]["findings"]]
    assert "pictures_guessed" not in found


@pytest.mark.process
def test_what_says_nothing_of_pictures_is_refused(
    loadstone: Loadstone, seeing: TimingServer, timing: TimingServer, tmp_path: Path
) -> None:
    file = encode(draw_pixels("k", 64, 64, "solid"), PictureShape(64, 64, format="png"))
    picture = f"data:image/png;base64,{base64.b64encode(file).decode()}"
    parts = [
        {"type": "image_url", "image_url": {"url": picture}},
        {"type": "text", "text": "what is this"},
    ]
    video = {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}
    items, videos = tmp_path / "items.jsonl", tmp_path / "videos.jsonl"
    for file, content in ((items, parts), (videos, [video, parts[1]])):
        file.write_text(lines({"messages": [{"role": "user", "content": content}]}))
    few = "--output 8 --warmup 0 --concurrency 1 --requests 3 --endpoint chat"
    sized = f"{few} --input {TEXT} --images 1 --image-size 64x64 --image-format png"
    text = f"{few} --input {TEXT}"
    wrong = {
        "shared": (seeing, f"{sized} --image-groups 1", QWEN, "came again"),
        "data set": (seeing, f"{few} --dataset {items}", QWEN, "came again"),
        "video": (seeing, f"{few} --dataset {videos}", QWEN, "video_url"),
        "dropped": (timing, sized, QWEN, "fewer tokens than their pictures"),
        "no tower": (seeing, sized, "llama-3.1-8b@1xh100", "name a model with a vision_config"),
    }
    for name, (server, asked, deployment, message) in wrong.items():
        out = tmp_path / name
        loadstone("bench", server.url, *asked.split(), "--out", out)
        run = next(out.rglob("summary.json")).parent
        with pytest.raises(InputError, match=message) as refused:
            cases_of_runs([run], parse_deployment(deployment), force=True)
        assert len(str(refused.value).splitlines()) == 1
    loadstone("bench", seeing.url, *text.split(), "--out", tmp_path / "text")
    run = next((tmp_path / "text").rglob("summary.json")).parent
    (case,) = cases_of_runs([run], DEPLOYMENT, force=True)
    assert case.pictures is None
