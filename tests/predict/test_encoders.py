"""Workers that encode pictures for others, against times, bytes and commands by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loadstone
from loadstone.analyse.verdict.run import LIMITS
from loadstone.catalogue.deployment.shorthand import parse_deployment, parse_worker
from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.engines.deployment_launch import launch_deployment
from loadstone.engines.launch import Site
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.encoders import encoder_pool
from loadstone.predict.simulator.fleet import Fleet, fleet_of
from loadstone.predict.simulator.latencies import request_rows
from loadstone.predict.sizing.size import pool_sizes, size
from loadstone.report.pages.sizes import render
from loadstone.runs.pictures import count_visual_tokens
from loadstone.workload.option_fields import options_of
from loadstone.workload.options import SimulateOptions
from loadstone.workload.planning import Planner

APART = "qwen3-vl-8b@encode={encoders}*(1xh100/tp1)+both=1xh100/tp1,engine={engine}"
ONE = "qwen3-vl-8b@1xh100/tp1,engine={engine}"
TOWER = 576_388_336


def ttft_s(text: str, fleet: Fleet, **asked: str) -> Any:
    base = {"input": "64", "output": "4", "images": "2", "image_size": "1024x768", "warmup": "0"}
    load = {} if "rate" in asked else {"concurrency": "1", "requests": "4"}
    plan = Planner(options_of({"deployment": text} | base | load | asked, SimulateOptions)).plan()
    rows = request_rows(run_cell(count_visual_tokens(plan, parse_deployment(text), None), 0, fleet))
    return rows["first"] - rows["sent"]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("encoders", [1, 2])
def test_one_by_one_a_first_token_waits_for_encoder_and_link(engine: str, encoders: int) -> None:
    """Two pictures of 768 tokens and 3.96 TFLOP. One encoder prepares both one after the other and
    makes both in one step, two prepare and make one each at the same time; 4,096 · 2 · 4 bytes of a token go over 37.5 GB/s."""
    text = APART.format(engine=engine, encoders=encoders)
    deployment = parse_deployment(text)
    fleet, pool = fleet_of(deployment), encoder_pool(deployment)
    assert pool is not None
    times = pool.times
    picture = times.picture(1024, 768)
    assert picture.flops == pytest.approx(3.96e12, rel=0.01)
    each = 2 // encoders
    encode_s = times.fixed_s + each * picture.flops * times.flop_s
    link_s = each * 768 * 4096 * 2 * 4 / 37.5e9
    prepare_s = (0.3 + each * 0.7) * picture.prepare_s
    nothing = dict.fromkeys(("fixed_s", "flop_s", "picture_s", "pixel_s"), 0.0)
    free = replace(fleet, encoders=pool._replace(times=times._replace(**nothing), embedding_s=0.0))
    more = ttft_s(text, fleet) - ttft_s(text, free)
    assert more == pytest.approx(prepare_s + encode_s + link_s, abs=1e-6)
    together = fleet_of(parse_deployment(ONE.format(engine=engine)))
    model: Any = together.model
    whole = ttft_s(ONE.format(engine=engine), together)
    encoded_s = model.pictures.encode_s([picture] * 2)
    prepared_s = (0.3 + 2 * 0.7) * picture.prepare_s
    assert ttft_s(text, free) == pytest.approx(whole - encoded_s - prepared_s, abs=1e-4)


@pytest.mark.parametrize(
    ("release", "workers", "times"),
    [("vllm", 1, 0), ("vllm,version=0.25", 1, 1), ("vllm,version=0.25", 2, 1), ("sglang", 1, 0)],
)
def test_pictures_that_are_sent_on_are_prepared_once_more(
    release: str, workers: int, times: int
) -> None:
    """Of one request at a time as long as by the encoder; of four at once one after another on the
    processor of each worker behind it, however many encode."""
    text = f"qwen3-vl-8b@encode=8*(1xh100/tp1)+both={workers}*(1xh100/tp1),engine={release}"
    fleet = fleet_of(parse_deployment(text))
    pool = fleet.encoders
    assert pool is not None
    free = pool.times._replace(picture_s=0.0, pixel_s=0.0, fixed_s=0.0, flop_s=0.0)
    slow, free = (
        replace(fleet, encoders=pool._replace(times=seconds))
        for seconds in (free._replace(picture_s=1.0), free)
    )
    alone, quick = (ttft_s(text, made, images="1") for made in (slow, free))
    assert np.mean(alone - quick) == pytest.approx(1.0 + times, abs=0.01)
    at_once = {"rate": "inf", "requests": "4", "images": "1"}
    last = ttft_s(text, slow, **at_once).max() - ttft_s(text, free, **at_once).max()
    behind = times * (0.3 + 0.7 * 4 / workers)
    assert last == pytest.approx(1.0 + behind, abs=0.08)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_more_encoders_prepare_pictures_of_a_request_at_once(engine: str) -> None:
    """Of four pictures an encoder has four, two, two, and one at most."""
    more = []
    for encoders in (1, 2, 3, 4):
        text = APART.format(engine=engine, encoders=encoders)
        fleet = fleet_of(parse_deployment(text))
        pool = fleet.encoders
        assert pool is not None
        free = pool.times._replace(picture_s=0.0, pixel_s=0.0, fixed_s=0.0, flop_s=0.0)
        slow = free._replace(picture_s=1.0)
        slow_s, free_s = (
            ttft_s(text, replace(fleet, encoders=pool._replace(times=times)), images="4")
            for times in (slow, free)
        )
        more.append(np.mean(slow_s - free_s))
    assert more == pytest.approx([0.3 + most * 0.7 for most in (4, 2, 2, 1)], abs=0.01)


@pytest.mark.parametrize(
    ("deployment", "rate", "output", "limit"),
    [
        ("encode=1xh100/tp1+both=2*(1xh100/tp1)", 30, "16", "encode"),
        ("encode=1xh100/tp1+both=2*(1xh100/tp1)", 30, "256", "encode"),
        ("encode=3*(1xh100/tp1)+both=2*(1xh100/tp1)", 2, "16", "both"),
        ("encode=1xh100/tp1+prefill=1xh100/tp1+decode=1xh100/tp1", 30, "16", "encode"),
        ("encode=2*(1xh100/tp1)+prefill=1xh100/tp1+decode=1xh100/tp1", 2, "16", "none"),
    ],
)
def test_an_encode_pool_that_is_full_is_named(
    tmp_path: Path, deployment: str, rate: int, output: str, limit: str
) -> None:
    """60 pictures a second of 0.7 · 42 ms on one processor are too many."""
    document = loadstone.simulate(
        f"qwen3-vl-8b@{deployment},engine=sglang",
        images=2, image_size="1024x768", input=64, output=output, rate=[rate], requests=60,
        draws=1, out=tmp_path,
    ).document()  # fmt: skip
    (cell,) = document["cells"]
    (found,) = [each for each in cell["verdict"]["findings"] if each["kind"] == "pools"]
    assert LIMITS[limit] in found["evidence"]
    assert ("caches handed over" in found["evidence"]) == ("prefill" in deployment)
    (stored,) = run_folder.read_info(Path(document["run_dir"])).settings.pools
    assert stored.limit == limit
    busy = cell["pools"][0]["busy_share"]
    assert busy == stored.encode_busy
    assert (busy > 0.85) == (limit == "encode")
    assert stored.encode_s is not None
    assert (stored.encode_s > 0.3) == (limit == "encode")


def test_encoders_work_in_steps_of_so_many_requests() -> None:
    """Seventeen at once, of which SGLang encodes eight together: steps end after 1, 2 and 3 s."""
    text = APART.format(engine="sglang", encoders=1)
    fleet = fleet_of(parse_deployment(text))
    pool = fleet.encoders
    assert pool is not None
    times = pool.times._replace(fixed_s=1.0, flop_s=0.0, picture_s=0.0, pixel_s=0.0)
    slow = replace(fleet, encoders=pool._replace(times=times, embedding_s=0.0))
    found = np.sort(ttft_s(text, slow, rate="inf", requests="17", images="1"))
    assert [np.sum((found > n) & (found < n + 0.9)) for n in (1, 2, 3)] == [8, 8, 1]


@pytest.mark.parametrize(("engine", "embeddings"), [("vllm", 16_384 * 4096 * 2 * 4), ("sglang", 0)])
def test_an_encoder_holds_tower_activations_and_cache_alone(engine: str, embeddings: int) -> None:
    """The largest picture has 65,536 patches: 65,536 · (4,304 + 2 · 1,152) · 2 bytes."""
    deployment = parse_deployment(APART.format(engine=engine, encoders=2))
    encode, both = pool_sizes(deployment, 8192, 1)
    assert (encode.pool, encode.workers, encode.fits, both.pool) == ("encode", 2, True, "both")
    assert encode.weights_bytes == 2 * TOWER
    assert encode.tower_bytes == 65_536 * (4304 + 2 * 1152) * 2
    assert encode.embeddings_bytes == embeddings
    used = encode.weights_bytes + encode.tower_bytes + embeddings
    assert encode.free_bytes == encode.usable_bytes - used
    table: Any = render([encode, both])[1]
    shown = dict(zip(table.heads, table.rows[0], strict=True))
    assert [shown[head] for head in ("KV room", "KV tokens", "max context", "sessions")] == [
        "-"
    ] * 4
    assert "-" not in table.rows[1]
    alone = size(parse_deployment(ONE.format(engine=engine)).worker, 8192, 1)
    assert alone.weights_bytes - both.weights_bytes == (2 * TOWER if engine == "sglang" else 0)


@pytest.mark.parametrize(
    ("deployment", "says"),
    [
        ("qwen3-vl-8b@encode=1xh100/tp1+both=1xh100/tp1,engine=tensorrt-llm", "vllm and sglang"),
        ("qwen3-vl-8b@encode=1xh100/tp1+both=1xh100/tp1,engine=llama.cpp", "vllm and sglang"),
        ("gemma-3-27b@encode=1xh200/tp1+both=1xh200/tp1,engine=sglang", "leave encode= out"),
        ("llama-3.1-8b@encode=1xh100/tp1+both=1xh100/tp1,engine=vllm", "takes no pictures"),
        ("qwen3-vl-8b@encode=1xh100/tp1+both=1xh100/tp1,engine=vllm,version=0.12.0", "since 0.13"),
        ("qwen3-vl-8b@encode=1xh100/tp1+both=1xh100/tp1,engine=sglang,version=0.5.6", "0.5.7"),
        ("qwen3-vl-8b@encode=2xh100/tp1,dp2+both=1xh100/tp1,engine=vllm", "tp alone"),
        ("qwen3-vl-8b@both=1xh100/tp1,engine=vllm", "stand behind an encode pool"),
        ("qwen3-vl-8b@encode=1xh100/tp1,engine=vllm", "no prefill pool"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(deployment: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        pool_sizes(parse_deployment(deployment))
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match=says):
        launch_deployment(parse_deployment(deployment), Site())


def test_prefill_and_decode_stand_behind_encoders_too() -> None:
    text = "qwen3-vl-8b@encode=1xh100/tp1+prefill=1xh100/tp1+decode=1xh100/tp1,engine=sglang"
    deployment = parse_deployment(text)
    assert parse_deployment(deployment.name) == deployment
    assert deployment.gpus == 3
    assert deployment.to_settings()["pools"][0]["role"] == "encode"
    _, prefill, decode = pool_sizes(deployment, 8192, 1)
    assert decode.weights_bytes - prefill.weights_bytes == 2 * TOWER  # who decodes is not told
    fleet = fleet_of(deployment)
    assert fleet.prefill is not None
    assert ttft_s(text, fleet).max() > 0.05


def test_sglang_is_told_where_its_encoders_are() -> None:
    text = "qwen3-vl-8b@encode=2*(1xh100/tp1)+both=1xh100/tp1,engine=sglang"
    *encoders, both, router = launch_deployment(parse_deployment(text), Site()).shell_lines()[1::2]
    assert all(" --encoder-only " in line for line in encoders)
    assert not any("--language-only" in line for line in encoders)
    assert " --language-only --encoder-urls http://127.0.0.1:8101 http://127.0.0.1:8102 " in both
    assert "--worker-urls http://127.0.0.1:8103 " in router
    text = text.replace("both=", "prefill=") + "+decode=1xh100/tp1"
    *_, prefill, decode, router = launch_deployment(parse_deployment(text), Site()).shell_lines()[
        1::2
    ]
    assert "--disaggregation-mode prefill" in prefill
    assert "--encoder-urls" in prefill
    assert "--encoder-urls" not in decode
    assert "8101" not in router


def test_vllm_has_a_producer_and_a_consumer_of_embeddings() -> None:
    text = "qwen3-vl-8b@encode=1xh100/tp1+both=1xh100/tp1,engine=vllm"
    encode, both, proxy = launch_deployment(parse_deployment(text), Site()).shell_lines()[1::2]
    assert '"ec_connector": "ECExampleConnector", "ec_role": "ec_producer"' in encode
    assert "--no-enable-prefix-caching" in encode
    assert '"ec_role": "ec_consumer"' in both
    assert "SIDE_CHANNEL" not in both
    words = "--encode-servers-urls http://127.0.0.1:8101 --prefill-servers-urls disable"
    assert f"disagg_epd_proxy.py {words} --decode-servers-urls http://127.0.0.1:8102" in proxy


@pytest.mark.parametrize(
    ("settings", "pictures"),
    [
        ("tp2", 32),  # of 256 embeddings, in a step of 8,192 tokens
        ("tp2,mm_encoder_tp_mode=data", 16),
        ("tp2,max_num_batched_tokens=2048", 8),
        ("tp2,max_num_seqs=3,limit_mm_per_prompt=2", 6),
        ("tp2,max_num_seqs=3,max_model_len=1024", 12),
        ("tp2,max_num_seqs=3,max_model_len=200", 3),
    ],
)
def test_vllm_tries_as_many_pictures_as_a_step_takes(settings: str, pictures: int) -> None:
    """A rank's results: 4,096 patches each; keys, values and queries or the inner width are cut."""
    worker = parse_worker(f"gemma-3-27b@2xh100/{settings}")
    cut = 1 if "data" in settings else 2
    layer = 4304 / cut + 2 * 1152
    assert size(worker, 128).tower_bytes == 2 * pictures * 4096 * layer * 2
