"""Pictures in simulated prompts, against times by hand."""

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from loadstone.catalogue.deployment.shorthand import parse_deployment
from loadstone.core.errors import InputError
from loadstone.core.pictures import Pictures, PictureShape
from loadstone.core.plan import Plan
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.fleet import Fleet, fleet_of
from loadstone.predict.simulator.latencies import request_rows
from loadstone.predict.simulator.table import tables
from loadstone.predict.steady_state import steady_state
from loadstone.predict.step_time.pictures import (
    DECODING,
    PictureTimes,
    mean_picture_work,
    picture_shares,
)
from loadstone.recommend.demand.options import RecommendOptions
from loadstone.recommend.demand.planning import plan_for
from loadstone.recommend.demand.traffic import traffic_of
from loadstone.recommend.tell.share import bench_command
from loadstone.runs.pictures import count_visual_tokens
from loadstone.workload.option_fields import options_of
from loadstone.workload.options import SimulateOptions
from loadstone.workload.planning import Planner

QWEN = "qwen3-vl-8b@1xh100"
ENCODE_S = 0.05


def planned(**asked: Any) -> Plan:
    base = {"input": "64", "output": "4", "images": "1", "image_size": "1024x768", "warmup": "0"}
    options = options_of({"deployment": QWEN} | base | asked, SimulateOptions)
    return count_visual_tokens(Planner(options).plan(), parse_deployment(QWEN), None)


def timed(fleet: Fleet, **times: float) -> Fleet:
    """Return a fleet whose pictures take these times, and else none."""
    model: Any = fleet.model
    changed = model.at(model.values)
    seen: PictureTimes = model.pictures
    nothing = dict.fromkeys(("fixed_s", "flop_s", "picture_s", "pixel_s"), 0.0)
    changed.pictures = seen._replace(**{**nothing, **times})
    return replace(fleet, model=changed)


def ttft_s(plan: Plan, fleet: Fleet) -> np.ndarray:
    rows = request_rows(run_cell(plan, 0, fleet))
    return rows["first"] - rows["sent"]


def test_a_fixed_encoder_and_a_fixed_processor_are_added_to_first_tokens() -> None:
    plan, fleet = planned(concurrency="1", requests="8"), fleet_of(parse_deployment(QWEN))
    without = ttft_s(plan, timed(fleet))
    encoded = ttft_s(plan, timed(fleet, fixed_s=ENCODE_S))
    prepared = ttft_s(plan, timed(fleet, picture_s=0.02))
    assert encoded - without == pytest.approx(ENCODE_S, abs=1e-6)
    assert prepared - without == pytest.approx(0.02, abs=1e-6)
    text = replace(plan, pictures=None, input_tokens=plan.input_tokens + 768)
    assert without == pytest.approx(ttft_s(text, fleet), abs=2e-3)


def test_a_flop_costs_as_much_as_the_tower_computes() -> None:
    """3.96 TFLOP of 1024x768 in Qwen3-VL-8B's tower."""
    plan, fleet = planned(concurrency="1", requests="4"), fleet_of(parse_deployment(QWEN))
    more = ttft_s(plan, timed(fleet, flop_s=1e-14)) - ttft_s(plan, timed(fleet))
    assert more == pytest.approx(0.0396, rel=0.01)


def test_threads_decode_pictures_and_one_processor_prepares_requests_in_turn() -> None:
    """Nine at once: eight are decoded after 0.3 s, and one processor takes 0.7 s for each. Two
    pictures of one request are decoded at the same time and prepared one after the other."""
    plan, fleet = planned(rate="inf", requests="9"), fleet_of(parse_deployment(QWEN))
    alone = ttft_s(planned(concurrency="1", requests="2"), timed(fleet))[0]
    times = np.sort(ttft_s(plan, timed(fleet, picture_s=1.0)))
    assert times - alone == pytest.approx(0.3 + 0.7 * np.arange(1, 10), abs=0.1)
    two = planned(concurrency="1", requests="2", images="2")
    more = ttft_s(two, timed(fleet, picture_s=1.0)) - ttft_s(two, timed(fleet))
    assert more == pytest.approx(0.3 + 2 * 0.7, abs=1e-6)


def test_each_api_server_has_a_processor() -> None:
    fleet = fleet_of(parse_deployment("qwen3-vl-8b@2xh100/tp1,dp2"))
    plan = planned(rate="inf", requests="8")
    times = np.sort(ttft_s(plan, timed(fleet, picture_s=1.0)))
    assert times[-1] - times[0] == pytest.approx(0.7 * 3, abs=0.1)


@pytest.mark.parametrize(
    ("engine", "place", "encoded", "prepared"),
    [
        ("vllm", "first", 2, 2 + 4 * DECODING),
        ("vllm", "last", 2, 2 + 4 * DECODING),
        ("vllm,mm_processor_cache_gb=0", "first", 2, 6),
        ("vllm,enable_prefix_caching=false", "last", 2, 2 + 4 * DECODING),
        ("sglang", "last", 2, 6),
        ("llama.cpp", "first", 2, 6),
        ("llama.cpp", "last", 6, 6),
    ],
)
def test_pictures_of_a_group_are_made_once(
    engine: str, place: str, encoded: int, prepared: float
) -> None:
    """Six requests, one after another, of two groups of a picture: which of an engine's caches has
    what the first of a group made, and which tokens come from the prefix cache."""
    deployment = parse_deployment(f"{QWEN}/engine={engine}")
    asked = {"concurrency": "1", "requests": "6", "image_groups": "2", "image_place": place}
    plan, fleet = planned(**asked), fleet_of(deployment)
    assert plan.pictures is not None
    group = np.array([0, 1, 0, 0, 1, 1], np.int32)
    plan = replace(plan, pictures=replace(plan.pictures, group=group))
    without = ttft_s(plan, timed(fleet))
    for term, times in (("fixed_s", encoded), ("picture_s", prepared)):
        more = ttft_s(plan, timed(fleet, **{term: 0.05})) - without
        assert more.sum() == pytest.approx(times * 0.05, abs=1e-6), term
    cached = run_cell(plan, 0, fleet).cached_tokens
    has_any = place == "first" and fleet.policy.prefix_cache
    assert [tokens > 700 for tokens in cached] == [False, False, *[has_any] * 4]


def test_a_cache_of_embeddings_forgets_the_oldest() -> None:
    """Of 768 embeddings each, four groups in turn do not stay in room for three."""
    plan, fleet = planned(concurrency="1", requests="8"), fleet_of(parse_deployment(QWEN))
    assert plan.pictures is not None
    for groups, encoded in ((3, 3), (4, 8)):
        group = (np.arange(8) % groups).astype(np.int32)
        shared = replace(plan, pictures=replace(plan.pictures, group=group))
        policy = msgspec.structs.replace(
            fleet.policy, prefix_cache=False, encoder_tokens=2400, encoder_kept=2400
        )
        tight = replace(fleet, policy=policy)
        more = ttft_s(shared, timed(tight, fixed_s=0.05)) - ttft_s(shared, timed(tight))
        assert more.sum() == pytest.approx(encoded * 0.05, abs=1e-6)


def test_a_step_encodes_no_more_than_its_budget() -> None:
    """Of 2,040 tokens each, three pictures are beyond 4,096 embeddings: two steps encode."""
    plan = planned(concurrency="1", requests="4", images="3", image_size="1920x1080")
    fleet = fleet_of(parse_deployment(f"{QWEN}/max_num_batched_tokens=16384"))
    policy = msgspec.structs.replace(fleet.policy, encoder_tokens=4096)
    tight = replace(fleet, policy=policy)
    once, twice = (
        ttft_s(plan, timed(one, fixed_s=ENCODE_S)) - ttft_s(plan, timed(one))
        for one in (fleet, tight)
    )
    assert once == pytest.approx(ENCODE_S, abs=1e-6)
    assert twice == pytest.approx(2 * ENCODE_S, abs=1e-6)


@pytest.mark.parametrize(("model", "steps"), [("qwen3-vl-8b", 1), ("gemma-3-27b", 2)])
def test_a_picture_that_sees_itself_is_not_split(model: str, steps: int) -> None:
    """Two pictures of 256 tokens in steps of 300: the second waits whole, where it has to."""
    deployment = parse_deployment(f"{model}@1xh200/max_num_batched_tokens=300,max_num_seqs=8")
    fleet = fleet_of(deployment)
    shape = PictureShape(width=512, height=512, tokens=256, full=256)
    plan = planned(concurrency="1", requests="2", images="2", input="1")
    count = len(plan)
    pictures = Pictures(
        (shape,),
        np.zeros(count, np.int32),
        np.full(count, 2, np.uint8),
        np.full(count, -1, np.int32),
    )
    plan = replace(plan, pictures=pictures)
    more = ttft_s(plan, timed(fleet, fixed_s=ENCODE_S)) - ttft_s(plan, timed(fleet))
    assert more == pytest.approx(steps * ENCODE_S, abs=1e-6)
    assert fleet.policy.whole_pictures == (steps == 2)


def test_recommend_counts_pictures() -> None:
    """By closed form and by simulation a replica carries fewer requests with pictures."""
    asked = {"model": "qwen3-vl-8b", "gpus": "h100", "price": "h100=2", "slo": "ttft_p99<4s"}
    asked |= {"input": "64", "output": "16", "rate": "20", "engine": "vllm"}
    text, seen = (
        traffic_of(options_of(asked | more, RecommendOptions))
        for more in ({}, {"images": "2", "image_size": "1024x768"})
    )
    assert seen.input_tokens - text.input_tokens == 2 * 768
    fleet = fleet_of(parse_deployment(QWEN))
    model: Any = fleet.model
    one, other = (
        steady_state(model, fleet.policy, 1, 8.0, traffic.lengths) for traffic in (text, seen)
    )
    alone = steady_state(model, fleet.policy, 1, 8.0, seen.lengths._replace(pictures=()))
    times: PictureTimes = model.pictures
    picture = times.picture(1024, 768)
    assert other.base_s - alone.base_s >= times.encode_s([picture] * 2) + picture.prepare_s
    assert other.rate_per_s < alone.rate_per_s < one.rate_per_s


@pytest.mark.parametrize(
    ("more", "different", "encoded", "processed"),
    [
        ({}, 400, 1.0, 1.0),
        ({"image_groups": "4"}, 4, 4 / 400, 4 / 400),
        ({"image_groups": "4", "image_place": "last"}, 4, 4 / 400, 4 / 400),
        ({"image_groups": "200", "image_place": "last"}, None, None, None),
    ],
)
def test_mean_work_leaves_out_what_caches_have(
    more: dict[str, str], different: int | None, encoded: float, processed: float
) -> None:
    """Of four pictures of 768 tokens, which the encoder's cache of 8,192 has room for, but not of
    200. Decoding the file is done for each."""
    plan = planned(rate="1", requests="400", **more)
    model: Any = fleet_of(parse_deployment(QWEN)).model
    times: PictureTimes = model.pictures
    (share,) = picture_shares(plan)
    kind = times.picture(1024, 768)
    shared = "image_groups" in more and "image_place" not in more
    work = mean_picture_work(times, (share,), prefix_cache=shared)
    if different is None:
        room = times.encoder.kept / (share.different * 768)
        encoded, processed = 1 - (1 - share.new) * room, share.new
        assert 0.9 < encoded < 1
    else:
        assert share == (1024, 768, 1.0, different, different / 400, "image_place" not in more)
    flops_s = times.fixed_s + times.flop_s * kind.flops / times.ranks
    assert work.encode_s == pytest.approx(encoded * flops_s)
    assert work.prepare_s == pytest.approx(kind.prepare_s * (0.3 + 0.7 * processed))
    assert work.host_s == pytest.approx(kind.prepare_s * max(0.3 / 8, 0.7 * processed))


@pytest.mark.parametrize("limit", [0, 2])
def test_more_pictures_than_a_deployment_takes_are_refused(limit: int) -> None:
    deployment = parse_deployment(f"{QWEN}/limit_mm_per_prompt={limit}")
    asked = planned(images=str(limit + 1))
    with pytest.raises(InputError, match=f"{limit + 1}, of which the deployment takes .* {limit};"):
        count_visual_tokens(asked, deployment, None)
    assert count_visual_tokens(planned(images="2"), parse_deployment(QWEN), None).pictures


def test_a_measurement_of_a_plan_has_its_pictures() -> None:
    asked = {"model": "qwen3-vl-8b", "images": "2", "image_size": "512x512", "input": "64"}
    load = {"output": "4", "rate": 2.0, "slo": "ttft_p99<1s", "gpus": "h100"}
    planning = plan_for(options_of(asked | load, RecommendOptions))
    command = bench_command(parse_deployment(QWEN), planning, 1, 5)
    assert "--images 2 --image-size 512x512 " in command
    shared = asked | load | {"image_groups": "8", "image_place": "last"}
    command = bench_command(
        parse_deployment(QWEN), plan_for(options_of(shared, RecommendOptions)), 1, 5
    )
    assert "--image-place last" in command
    assert "--image-groups 8" in command


def test_simulated_records_have_what_the_plan_says_of_pictures() -> None:
    """Markers around a picture are text; a request without any says nothing."""
    gemma = "google/gemma-3-27b-it@1xh200"
    options = options_of(
        {"deployment": gemma, "images": "uniform:0:2", "image_size": "300x900", "output": "4"}
        | {"rate": 2.0, "requests": "12", "warmup": "0", "input": "64"},
        SimulateOptions,
    )
    deployment = parse_deployment(gemma)
    plan = count_visual_tokens(Planner(options).plan(), deployment, None)
    fleet = fleet_of(deployment)
    (table,) = tables(plan, 0, run_cell(plan, 0, fleet), fleet.policy)
    assert plan.pictures is not None
    for count, row in zip(plan.pictures.count.tolist(), table.to_pylist(), strict=True):
        assert row["input_tokens"] == 64 + count * 262
        found = [row[name] for name in ("images", "pixels", "visual_tokens")]
        assert found == ([count, count * 270_000, count * 256] if count else [None] * 3)
    assert {0, 1, 2} == {*plan.pictures.count.tolist()}
