"""Plans for vectors and scores: capacities by hand, and what is told of them."""

from __future__ import annotations

from typing import Any

import pytest

from asked import FEW
from loadstone.catalogue import parse_worker
from loadstone.core.errors import InputError
from loadstone.predict.scheduler import EnginePolicy
from loadstone.predict.steady_state import Lengths, steady_state
from loadstone.recommend.demand.options import RecommendOptions
from loadstone.recommend.demand.planning import Planning, plan_for
from loadstone.recommend.recommend import recommend
from loadstone.recommend.search.candidates import closed_form_capacity
from loadstone.recommend.tell.text import answer, plan_table
from loadstone.workload.option_fields import options_of

ASKED = {
    "model": "bge-m3", "endpoint": "embeddings", "inputs": "8", "input": "256", "rate": 50, "slo": "e2e_p99<300ms",
    "gpus": "l4,h100", "gpus_max": 8, "engine": "vllm", "price": "l4=0.7,h100=2.5", "tp": (1,),
}  # fmt: skip
RERANKED = {"model": "bge-reranker-v2-m3", "endpoint": "rerank", "inputs": None, "input": None}


class Times:
    """A step takes 10 ms, and a millisecond for each token; nothing else takes any time."""

    request_s = request_token_s = stream_s = text_share = 0.0
    adapters = None

    def step_s(self, decodes, context, chunks, met_tokens=None):  # type: ignore[no-untyped-def]
        assert not decodes
        return 0.01 + 0.001 * sum(new for new, _ in chunks)


WHOLE = EnginePolicy(
    kv_blocks=10_000, max_batched_tokens=100, max_seqs=64, chunked=False, prefix_cache=False
)


def asked_for(**changed: Any) -> RecommendOptions:
    given = {name: value for name, value in (ASKED | changed).items() if value is not None}
    return options_of(given, RecommendOptions)


def planning(**changed: Any) -> Planning:
    return plan_for(asked_for(**changed))


def test_a_replica_carries_what_its_token_budget_reads() -> None:
    traffic = planning(inputs="3", input="40", slo="e2e_p99<1000s").traffic
    assert traffic.lengths == Lengths(40, 1.0, texts=3)
    load, level = closed_form_capacity(Times(), WHOLE, parse_worker("bge-m3@1xl4"), traffic)
    # A step has room for two texts of 40, and takes 10 + 80 ms: 1.5 steps a request.
    assert load == pytest.approx(0.99 / (1.5 * 0.09))
    assert level.rate_per_s == pytest.approx(load)
    # Alone a request takes a step of two texts, and one of one.
    idle = steady_state(Times(), WHOLE, 1, 0.0, traffic.lengths)
    assert idle.latency_s("e2e", 0.5, 1.0) == pytest.approx(0.09 + 0.05)


@pytest.mark.parametrize(
    ("slo", "load"),
    [
        # Slower than one request alone.
        ("e2e_p99<100ms", 0.0),
        # A loop that keeps it full waits 0.8 of the bound, at 135 ms a request.
        ("e2e_p99<2s", 1 + 0.8 * 2 / 0.135),
        ("e2e_p99<54s", 0.99 + 0.99 / 0.135 * 0.8 * 54),
    ],
)
def test_a_closed_loop_waits_as_long_as_the_bound_lets_it(slo: str, load: float) -> None:
    traffic = planning(inputs="3", input="40", rate=None, concurrency=64, slo=slo).traffic
    worker = parse_worker("bge-m3@1xl4")
    assert closed_form_capacity(Times(), WHOLE, worker, traffic)[0] == pytest.approx(load)


def test_a_text_beyond_the_budget_of_a_decoder_takes_several_steps() -> None:
    policy = EnginePolicy(
        kv_blocks=10_000, max_batched_tokens=100, max_seqs=64, chunked=True, prefix_cache=False
    )
    level = steady_state(Times(), policy, 1, 0.5, Lengths(300, 1.0, texts=2))
    assert level.rate_per_s == pytest.approx(0.5 / (6 * 0.11))


def test_a_cross_encoder_reads_the_query_with_each_document() -> None:
    found = planning(**RERANKED, documents="10", document="256").traffic
    assert found.texts == 10
    assert found.input_tokens == pytest.approx(10 * (32 + 256 + found.plan.inputs.pairs))


def test_plans_tell_e2e_alone() -> None:
    document = recommend(asked_for(engine="vllm,tensorrt-llm"), FEW)
    refused = {row.why for row in document.rejected if "tensorrt-llm" in row.deployment}
    assert refused == {"tensorrt-llm is not started for vectors or scores here"}
    first = document.plans[0]
    assert document.holds
    assert (first.ttft_s, first.tpot_s) == (None, None)
    assert first.e2e_s is not None
    assert first.e2e_s.p50 < first.e2e_s.p99 < 0.3
    assert first.usd_per_mtok is not None
    # 50 requests of 8 texts of 256 tokens and two special ones at most, each second.
    assert first.usd_per_month is not None
    an_hour = first.usd_per_month.value / 730
    tokens = 50 * document.traffic.input_tokens * 3600
    assert first.usd_per_mtok.value == pytest.approx(an_hour / tokens * 1e6)
    heads = plan_table(document, [str(number) for number, _ in enumerate(document.plans, 1)]).heads
    assert heads[4:] == ["E2E p50", "p99", "$ a month", "$/M in", "80%"]
    assert "(8 texts of 256 tokens each)" in answer(document)
    assert document.measure_next is None or "--endpoint embeddings" in document.measure_next.command


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"slo": "ttft_p99<1s"}, "--slo ttft_p99: vectors and scores come in one piece; bound e2e"),
        ({"pools": True}, "--endpoint and --pools: no text is written; leave one out"),
        ({"endpoint": None, "inputs": None}, "give --endpoint embeddings"),
        ({"endpoint": "rerank", "inputs": None, "output": "5"}, "--output: do not go together"),
        ({**RERANKED, "endpoint": "embeddings"}, "gives no vectors; give --endpoint rerank"),
    ],
)
def test_what_cannot_be_asked_is_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as told:
        planning(**changed)
    assert words in str(told.value)
