"""Requests for vectors and scores, and the models that answer them, through the simulator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from conftest import Loadstone
from loadstone.calibrate.cases import Case, CaseTable, simulate
from loadstone.calibrate.points import Point
from loadstone.calibrate.update import update
from loadstone.catalogue import parse_deployment
from loadstone.catalogue.find import find_model
from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.core.plan import Plan, PoolingTask
from loadstone.core.vectors import Floats
from loadstone.predict.scheduler import EnginePolicy, policy_of
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.fleet import Fleet, fleet_of
from loadstone.predict.sizing.deployments import sizes
from loadstone.predict.sizing.options import SizeOptions
from loadstone.predict.sizing.size import size
from loadstone.predict.steady_state import Lengths, steady_state
from loadstone.predict.step_time import StepModel
from loadstone.predict.step_time.coefficients import INDEX, NAMES
from loadstone.predict.step_time.operators import HEAD
from loadstone.predict.step_time.profile import profile_of
from loadstone.predict.step_time.work import work_of
from loadstone.workload.options import SimulateOptions
from loadstone.workload.planning import plan_of


class Times:
    """A step takes 10 ms, and a millisecond for each token; nothing else takes any time."""

    request_s = request_token_s = stream_s = window_tokens = window_s = 0.0

    def step_s(self, decodes, context, chunks, met_tokens=None):  # type: ignore[no-untyped-def]
        return 0.01 + 0.001 * sum(new for new, _ in chunks)

    def decode_line(self, decodes: int) -> tuple[float, float]:
        raise AssertionError("nothing is decoded")


WHOLE = EnginePolicy(
    kv_blocks=10_000, max_batched_tokens=100, max_seqs=64, chunked=False, prefix_cache=False
)


def planned(**asked: object) -> Plan:
    return plan_of(SimulateOptions.read(deployment="x", **asked))


@pytest.mark.parametrize(
    ("asked", "pairs", "seconds"),
    [
        # An idle engine begins with the first text; two of 40 fit the next step of 100 tokens.
        ({"endpoint": "embeddings", "inputs": 3, "input": 40}, None, 0.01 + 0.08 + 0.01 + 0.04),
        ({"endpoint": "embeddings", "inputs": 1, "input": 40}, None, 0.05),
        # By itself each text is read once: 10, then 30 + 30.
        ({"endpoint": "rerank", "documents": 2, "input": 10, "document": 30}, None, 0.02 + 0.07),
        # A cross encoder reads 10 + 30 + 3 for each document.
        ({"endpoint": "rerank", "documents": 2, "input": 10, "document": 30}, 3, 0.053 + 0.053),
        (
            {"endpoint": "score", "documents": 3, "input": 10, "document": 30},
            3,
            0.01 + 0.086 + 0.01 + 0.043,
        ),
    ],
)
def test_whole_texts_are_read_until_the_budget_is_full(
    asked: dict[str, object], pairs: int | None, seconds: float
) -> None:
    plan = planned(**asked, concurrency=1, requests=3, warmup=0)
    assert plan.inputs is not None
    plan.inputs.pairs = pairs
    run = run_cell(plan, 0, Fleet(WHOLE, Times()))
    took = [end - sent for end, sent in zip(run.end_s, run.requests.sent_s_of, strict=True)]
    assert took == pytest.approx([seconds] * 3)


def test_an_encoder_has_no_head_no_cache_and_twice_the_pairs() -> None:
    deployment = parse_deployment("bge-base@1xl4")
    work, model = work_of(deployment.worker), deployment.model
    assert HEAD not in work.operators.kind
    # 12 layers, 12 heads of 64 numbers for keys and as many for values, 2 FLOPs each, both ways.
    assert work.pair_flops[0] == 2 * 12 * 2 * 12 * (64 + 64)
    assert model.kv_bytes_per_token() == 0
    policy = policy_of(deployment.worker)
    assert (policy.chunked, policy.prefix_cache) == (False, False)


def test_an_embedder_made_of_a_decoder_keeps_its_cache_and_has_no_head() -> None:
    worker = parse_deployment("qwen3-embedding-0.6b@1xl4").worker
    assert HEAD not in work_of(worker).operators.kind
    assert worker.model.kv_bytes_per_token() == 28 * 2 * 8 * 128 * 2
    assert policy_of(worker).chunked


@pytest.mark.parametrize(
    ("name", "parameters"),
    [  # as transformers' classes have them
        ("bge-base", 109_482_240), ("bge-m3", 567_754_752), ("bge-reranker-v2-m3", 567_755_777),
        ("modernbert-base", 149_014_272), ("modernbert-large", 394_781_696),
    ],
)  # fmt: skip
def test_encoders_are_counted_exactly(name: str, parameters: int) -> None:
    assert find_model(name).parameters == parameters


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["bge-large@1xl4"], "is an encoder, which writes no text; give --endpoint embeddings"),
        (["bge-reranker-base@1xl4", "--endpoint", "embeddings"], "give --endpoint rerank"),
        (
            ["bge-large@1xl4", "--endpoint", "embeddings", "--output", 8],
            "--endpoint embeddings and --output",
        ),
        (
            ["bge-large@1xl4", "--endpoint", "embeddings", "--input", 600],
            "beyond the model's context of 512",
        ),
        (["llama-3.1-8b@1xh100", "--inputs", 8], "--inputs: goes with --endpoint embeddings"),
        (["llama-3.1-8b@1xh100", "--endpoint", "embeddings", "--documents", 8], "--documents"),
        (["llama-3.1-8b@1xh100", "--endpoint", "rerank", "--temperature", 0], "--temperature"),
        (
            ["llama-3.1-8b@1xh100/engine=llama.cpp", "--endpoint", "embeddings", "--input", 600],
            "of 512 tokens",
        ),
        (
            ["llama-3.1-8b@1xh100/task=x", "--endpoint", "embeddings"],
            "write task=embed or task=score",
        ),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(
    words: list[object], line: str, loadstone: Loadstone
) -> None:
    assert line in loadstone("simulate", *words).line()


def test_a_simulated_run_has_rates_of_its_own(loadstone: Loadstone, tmp_path: Path) -> None:
    outcome = loadstone(
        "simulate", "bge-reranker-v2-m3@1xl4", "--endpoint", "rerank", "--input", 20, "--documents", 10,
        "--document", 100, "--concurrency", 4, "--requests", 40, "--json", "--out", tmp_path,
    )  # fmt: skip
    metrics = outcome.cell["metrics"]
    assert metrics["ttft_s"] is metrics["tpot_s"] is metrics["output_tokens_per_s"] is None
    assert metrics["documents_per_s"] == pytest.approx(10 * metrics["requests_per_s"])
    assert metrics["input_tokens"] == 40 * 10 * 123
    assert outcome.cell["verdict"]["trusted"]
    plan = run_folder.read_plan(outcome.folder)
    assert plan.inputs is not None
    assert plan.inputs.own(plan.rows(0)[-1]).tolist() == [20, *[100] * 10]


def test_pools_are_not_asked_for_vectors() -> None:
    split = parse_deployment("llama-3.1-8b@prefill=1*(1xh100)+decode=1*(1xh100),engine=vllm")
    with pytest.raises(InputError, match="one worker"):
        split.asked_for("embeddings")
    assert fleet_of(parse_deployment("bge-reranker-base@1xl4")).pairs == 3


@pytest.mark.parametrize(
    ("text", "endpoint", "batch", "at_once", "kv_tokens"),
    [
        ("bge-m3@1xl4", "embeddings", 64, 2048 // 512, 0),
        ("qwen3-8b@1xh100", "embeddings", 64, 8192 // 512, 8192),
        ("qwen3-8b@2xh100/tp1,dp2", "embeddings", 64, 2 * 8192 // 512, 2 * 8192),
        ("qwen3-8b@1xh100", "score", 4, 8192 // 512, 4 * 512),
        ("bge-reranker-v2-m3@1xl4", "rerank", 1, 2048 // 512, 0),
    ],
)
def test_texts_are_in_the_cache_for_one_step(
    text: str, endpoint: PoolingTask, batch: int, at_once: int, kv_tokens: int
) -> None:
    """Whole texts of 512 tokens, of which a step of vLLM has room for so many; what else is asked
    waits and keeps nothing. A token of Qwen3-8B is 36 · 2 · 8 · 128 · 2 bytes."""
    (row,) = sizes(SizeOptions(models=(text,), context=(512,), batch=(batch,), endpoint=endpoint))
    assert row.max_concurrent_requests == at_once
    assert row.kv_bytes == kv_tokens * 36 * 2 * 8 * 128 * 2
    assert row.fits
    written = parse_deployment(text).worker
    if written.task is None:  # no scores of words are kept
        assert size(written, 512).activation_bytes > row.activation_bytes


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["bge-reranker-base@1xl4", "--endpoint", "embeddings"], "give --endpoint rerank"),
        (["qwen3-8b@1xh100", "--endpoint", "chat"], "--endpoint"),
        (
            ["qwen3-8b@1xh100", "--endpoint", "score", "--context", "2k", "--answer", 8],
            "no text is written",
        ),
    ],
)
def test_sizes_of_endpoints(words: list[object], line: str, loadstone: Loadstone) -> None:
    assert line in loadstone("size", *words).line()


@pytest.mark.parametrize("inputs", [1, 4, 16])
def test_each_further_text_takes_of_the_frontend(inputs: int) -> None:
    """A request has 0.15 of it more for each text, by simulation and by closed form."""
    deployment = parse_deployment("bge-base@1xl4")
    model, policy = StepModel(deployment.worker), policy_of(deployment.worker)
    slow = model.at(np.where(np.arange(len(NAMES)) == INDEX["request_s"], 1.0, model.values))
    share = 1 + 0.15 * (inputs - 1)
    plan = planned(endpoint="embeddings", inputs=inputs, input=16, concurrency=1, requests=2)
    took = []
    for times in (slow, model):
        run = run_cell(plan, 0, Fleet(policy, times))
        took.append(run.end_s[-1] - run.requests.sent_s_of[-1])
    added_s = 1.0 - model.request_s
    assert took[0] - took[1] == pytest.approx(share * added_s, rel=1e-6)
    lengths = Lengths(16.0, 1.0, texts=float(inputs))
    slower, quick = (steady_state(times, policy, 1, 0.1, lengths) for times in (slow, model))
    assert slower.base_s - quick.base_s == pytest.approx(share * added_s, rel=1e-6)


def test_calibration_learns_the_frontend_from_requests_of_several_texts() -> None:
    """An engine whose frontend takes ten times as long: with loads of one and of eight texts, what
    sixteen take is found within a tenth; before, it was less than half."""
    deployment = parse_deployment("bge-base@1xl4/engine=llama.cpp")
    base = profile_of(deployment.worker)
    truth = base.values() * np.where(np.arange(len(NAMES)) == INDEX["request_s"], 10.0, 1.0)

    def case_of(row: int, inputs: int) -> Case:
        plan = planned(endpoint="embeddings", inputs=inputs, input=16, concurrency=1, requests=20)
        assert plan.inputs is not None
        lengths = np.array([sum(plan.inputs.sequences(at)) for at in range(len(plan))], np.int64)
        return Case(
            Point(row=row, load="concurrency", load_value=1.0, stat="median"), deployment, 1,
            policy_of(deployment.worker), lengths, np.ones_like(lengths), work_of(deployment.worker),
            texts=plan.inputs,
        )  # fmt: skip

    def e2e_s(case: Case, values: Floats) -> float:
        return float(np.median(simulate(case, values)[0].ttft_s))

    cases = []
    for row, inputs in enumerate((1, 8), 1):
        case = case_of(row, inputs)
        point = msgspec.structs.replace(case.point, ttft_s=e2e_s(case, truth))
        cases.append(replace(case, point=point))
    assert CaseTable(cases).frontends.tolist() == [1.0, 1 + 0.35 * 7]
    made = update(base, cases, "p", "2026-01-01").profile
    other = case_of(9, 16)
    assert e2e_s(other, made.values()) == pytest.approx(e2e_s(other, truth), rel=0.1)
    assert e2e_s(other, base.values()) < 0.5 * e2e_s(other, truth)
