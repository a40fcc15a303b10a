"""Experts over many ranks: exchanges as measured, imbalance, halves that take turns, padded
graphs."""

from __future__ import annotations

import numpy as np
import pytest

from loadstone.catalogue import parse_deployment, parse_worker
from loadstone.core.errors import InputError
from loadstone.engines import launch_of
from loadstone.predict.simulator.fleet import DECODE_FLOORS, fleet_of
from loadstone.predict.step_time import StepModel
from loadstone.predict.step_time.exchange import FLOOR_S, exchange_of, is_wide
from loadstone.predict.step_time.operators import EXCHANGE, Work

RACK = "deepseek-r1@32xgb200/dp32,ep32,attention-dp,engine=sglang"


def model_of(text: str) -> StepModel:
    return StepModel(parse_worker(text))


def decode_s(text: str, users: int = 128, context: int = 2000) -> float:
    return model_of(text).step_s(users, users * context, [])


@pytest.mark.parametrize(
    ("where", "sent_bytes", "tokens", "measured_us"),
    [
        (
            "8xgb200/dp8,ep8",
            2.0,
            2048,
            312 + 323,
        ),  # TensorRT-LLM, one-sided over NVLink, both ways in 16 bits
        ("32xgb200/dp32,ep32", 2.0, 128, 38 + 41),
        ("32xgb200/dp32,ep32", 2.0, 2048, 374 + 370),
        ("64xgb200/dp64,ep64", 2.0, 512, 116 + 107),
        (
            "16xh100/dp16,ep16",
            1.0,
            128,
            102 + 186,
        ),  # DeepEP over InfiniBand, FP8 there and 16 bits back
        ("32xh100/dp32,ep32", 1.0, 256, 264 + 500),
        ("64xh100/dp64,ep64", 1.0, 256, 301 + 580),
        ("128xh800/dp128,ep128", 1.0, 128, 192 + 369),
    ],
)
def test_an_exchange_takes_what_was_measured(
    where: str, sent_bytes: float, tokens: int, measured_us: float
) -> None:
    way = exchange_of(
        parse_worker(f"deepseek-v3@{where},attention-dp,engine=sglang"), 7168, 8, sent_bytes
    )
    assert FLOOR_S + tokens * way.message / way.link == pytest.approx(measured_us * 1e-6, rel=0.2)


def test_between_nodes_many_tokens_travel_once_for_each_node() -> None:
    way = exchange_of(
        parse_worker("deepseek-v3@32xh100/dp32,ep32,attention-dp,engine=sglang"), 7168, 8, 1.0
    )
    assert 16_384 * way.bundled / way.link == pytest.approx((6957 + 13_517) * 1e-6, rel=0.1)


@pytest.mark.parametrize(
    ("where", "wide"),
    [
        ("32xgb200/dp32,ep32,attention-dp,engine=tensorrt-llm", True),
        ("16xh200/dp16,ep8,attention-dp,engine=sglang", False),
        ("8xh200/dp8,ep8,attention-dp,engine=sglang", False),
        ("8xh200/dp8,ep8,attention-dp,engine=sglang,moe_a2a_backend=deepep", True),
        ("16xgb200/tp16,ep16,engine=sglang", False),
    ],
)
def test_where_tokens_are_dealt_out(where: str, wide: bool) -> None:
    deployment = parse_worker(f"deepseek-r1@{where}")
    assert is_wide(deployment) == wide
    work: Work = StepModel(deployment).work
    assert bool((work.operators.kind == EXCHANGE).any()) == wide
    # Tokens that are dealt out are not gathered too: products of all layers see a rank's own alone.
    others = work.operators.group[(work.operators.experts == 0)]
    assert (float(others.max()) == 1.0) == (wide or not deployment.attention_dp)


def test_a_rack_is_one_node_whatever_its_trays() -> None:
    assert decode_s(RACK) == decode_s(RACK.replace("dp32", "nodes=8,dp32", 1))


def test_wider_costs_less_than_gathering_did() -> None:
    """With as many users a rank, 32 ranks bring four times the tokens of 8 to experts of which each
    has a quarter."""
    narrow = decode_s("deepseek-r1@8xgb200/dp8,ep8,attention-dp,engine=sglang")
    assert decode_s(RACK) < narrow


def test_even_experts_are_the_quickest() -> None:
    times = [
        decode_s(f"{RACK}{more}", 512) for more in (",ep_dispatch_algorithm=fake", ",eplb=1", "")
    ]
    assert times == sorted(times)
    assert times[0] < times[2]


def test_prompts_gain_from_halves_that_take_turns_as_published() -> None:
    text = "deepseek-v3@32xh100/dp32,ep32,attention-dp,engine=sglang,eplb=1"
    apart, turns = (
        model_of(f"{text}{more}").step_s(0, 0, [(2048, 0)] * 8)
        for more in ("", ",two_batch_overlap=1")
    )
    assert 1.25 < apart / turns < 1.37  # LMSYS: 27 to 35 %


def test_a_graph_of_one_size_is_computed_whole() -> None:
    padded = model_of(f"{RACK},cuda_graph_bs=256")
    free = model_of(RACK)
    assert padded.step_s(256, 0, []) == pytest.approx(free.step_s(256, 0, []))
    assert free.step_s(16, 0, []) < padded.step_s(16, 0, []) < padded.step_s(128, 0, [])
    assert padded.step_s(300, 0, []) == pytest.approx(free.step_s(300, 0, []))
    # Places without a token go to no expert, so that a padded step is no full one.
    assert padded.step_s(16, 0, []) < padded.step_s(256, 0, [])


@pytest.mark.parametrize(
    ("where", "users", "context", "published"),
    [
        (
            "deepseek-v3@72xh100/dp72,ep72,attention-dp,engine=sglang,eplb=1,two_batch_overlap=1",
            256,
            2050,
            2785,
        ),
        ("deepseek-r1@48xgb200/dp48,ep48,attention-dp,engine=sglang,eplb=1", 768, 2050, 7583),
        ("kimi-k2@96xh200/dp96,ep96,attention-dp,engine=sglang,eplb=1", 480, 2050, 3000),
    ],
)
def test_published_rates_of_decode(where: str, users: int, context: int, published: float) -> None:
    assert users / decode_s(where, users, context) == pytest.approx(published, rel=0.3)


@pytest.mark.parametrize(
    ("gpu", "layout", "share"),
    [
        ("b200", "tp8,version=0.5.8", DECODE_FLOORS),
        ("b200", "tp8", 1.0),
        ("h200", "tp8,version=0.5.8", 1.0),
        ("mi355x", "tp8,version=0.5.8", 1.0),
        ("gb200", "dp16,ep16,attention-dp", 1.0),
    ],
)
def test_a_worker_that_decodes_alone_has_smaller_floors(
    gpu: str, layout: str, share: float
) -> None:
    worker = f"{16 if 'dp16' in layout else 8}x{gpu}/{layout},engine=sglang"
    fleet = fleet_of(
        parse_deployment(f"deepseek-r1@prefill=8x{gpu}/tp8,engine=sglang+decode={worker}")
    )
    model, alone = fleet.model, model_of(f"deepseek-r1@{worker}")
    assert isinstance(model, StepModel)
    np.testing.assert_allclose(model.work.layers, share * alone.work.layers)
    assert (model.step_s(1, 1000, []) < alone.step_s(1, 1000, [])) == (share < 1)
    (drawn,) = fleet.draws(1, 0)
    assert isinstance(drawn.model, StepModel)
    np.testing.assert_allclose(drawn.model.work.layers, share * alone.work.layers)


def test_engines_are_told() -> None:
    lines = "\n".join(
        launch_of(parse_worker(f"{RACK},eplb=1,cuda_graph_bs=768,nodes=8")).shell_lines()
    )
    assert "--enable-eplb" in lines
    assert "--cuda-graph-bs 768" in lines
    with pytest.raises(InputError, match="eplb"):
        launch_of(
            parse_worker("deepseek-r1@32xgb200/dp32,ep32,attention-dp,engine=tensorrt-llm,eplb=1")
        )
